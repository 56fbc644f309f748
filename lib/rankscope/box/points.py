"""`Point`: one measured operation at one size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..collectives.schedule import COLLECTIVES
from ..common.checks import check_field, each, number, one_of, truth, whole
from ..provenance import converted

LEAST_CLEAN = 4  # iterations: with fewer clean ones, all are used
NATIVE = "native"  # stands for the backend's own collective instead of an algorithm's name
WHAT = (*COLLECTIVES, "together", "ping_pong", "add", "copy", "transfer", "transfer_host", "pin")
_NAMED = ("algorithm", "in_place", "link")  # options that are no arguments of a builder
_SPLIT = ("reduce_scatter", "allgather", "all_to_all", "scatter", "gather")  # a rank keeps or brings only its part

_Options = dict[str, str | int | bool | tuple[int, ...]]  # several numbers are the shape of a torus, for example


class PointKey(NamedTuple):
    """What identifies a point in a profile: no two points share it. The options are sorted by name."""

    what: str
    num_bytes: int
    options: tuple[tuple[str, Any], ...]


def _rounded(name: str, seconds: Any) -> float:
    """Return the seconds of an iteration, rounded to six digits."""
    return float(f"{number(name, seconds, above=0):.6g}")


class Point(msgspec.Struct, frozen=True, dict=True):
    """One measured operation at one size: the seconds of each iteration, those of its slowest rank.

    `what` is a collective ("allreduce", …), "ping_pong" (a one-way message on an idle network), "together" (every rank
    sends to the next at once), "add" or "copy" (in memory), "transfer" (to or from a GPU, see `measuring.transfers`),
    "transfer_host" (the same by the host's clock) or "pin" (memory).
    `num_bytes` is the whole buffer of a collective, otherwise the message. `options` holds the rest: for a collective
    ``algorithm`` (one of ALGORITHMS, or "native" for the backend's own), ``in_place`` and the builder's arguments; for
    messages ``link``, "intra" or "inter". `clean` says for each iteration whether nothing is known to have disturbed
    it. Seconds are rounded to six digits.

    Raises ValueError for values that no measurement can give.

    >>> point = Point("allreduce", 1024, (3e-3, 1e-3, 2e-3), (True, False, True), {"algorithm": "ring"})
    >>> point.median_s
    0.002
    """

    what: str
    num_bytes: int
    seconds: tuple[float, ...]
    clean: tuple[bool, ...]
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_field(self, "what", one_of, WHAT)
        check_field(self, "num_bytes", whole, 0)
        check_field(self, "seconds", each, _rounded)
        check_field(self, "clean", each, truth)
        check_field(self, "options", converted, _Options)
        if not self.seconds or len(self.clean) != len(self.seconds):
            raise ValueError(f"seconds and clean must be of the same iterations, got {self.seconds} and {self.clean}")

    def __hash__(self) -> int:  # of what can be hashed, unlike `options`
        return hash((self.key, self.seconds))

    @property
    def key(self) -> PointKey:
        return PointKey(self.what, self.num_bytes, tuple(sorted(self.options.items())))

    @cached_property
    def used_s(self) -> tuple[float, ...]:
        """The seconds of the clean iterations, or of all if fewer than `LEAST_CLEAN` are clean."""
        clean_s = tuple(second for second, is_clean in zip(self.seconds, self.clean, strict=True) if is_clean)
        return clean_s if len(clean_s) >= LEAST_CLEAN else self.seconds

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of `used_s`, in seconds."""
        return float(np.percentile(self.used_s, percent))

    @cached_property
    def median_s(self) -> float:
        return self.percentile_s(50)

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median."""
        return (self.percentile_s(75) - self.percentile_s(25)) / self.median_s

    def differs(self, other: Point) -> bool:
        """Return whether the interquartile ranges of the two do not overlap."""
        low, high = sorted((self, other), key=lambda point: point.median_s)
        return low.percentile_s(75) < high.percentile_s(25)

    @property
    def algbw_bytes_per_s(self) -> float:
        """The bytes divided by the median time; nan for 0 bytes."""
        return self.num_bytes / self.median_s if self.num_bytes else math.nan

    def busbw_bytes_per_s(self, num_ranks: int) -> float:
        """Return the bus bandwidth: algbw times `busbw_factor`; nan if it has no meaning."""
        return self.algbw_bytes_per_s * busbw_factor(self.what, num_ranks)

    @property
    def builder_options(self) -> dict[str, Any]:
        """The arguments of the algorithm's builder."""
        return {name: value for name, value in self.options.items() if name not in _NAMED}


def busbw_factor(what: str, num_ranks: int) -> float:
    """Return busbw / algbw of a collective, as nccl-tests define it; nan if it has no meaning.

    >>> busbw_factor("allreduce", 4), busbw_factor("allgather", 4), busbw_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    share = (num_ranks - 1) / num_ranks
    if what == "allreduce":
        return 2 * share
    if what in _SPLIT:
        return share
    if what in ("broadcast", "reduce", "together"):  # the last one is their sendrecv
        return 1.0
    return math.nan
