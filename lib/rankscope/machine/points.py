"""`Point`: one thing measured at one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..collectives.schedule import COLLECTIVES
from ..values.checks import number, one_of, truth, whole
from ..values.frozen import ReadOnly

LEAST_CLEAN = 4  # iterations: with fewer clean ones, all are used
TRANSFERS = ("transfer", "transfer_host", "pin")
EXPERIMENTS = ("too_early", "changed_source", "loader")
WHAT = (*COLLECTIVES, "ping_pong", "together", "add", "copy", *TRANSFERS, *EXPERIMENTS)
Key = tuple[str, int, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Point:
    """The seconds of each iteration (the slowest rank's) of one thing that was measured, at one size.

    `what` is a collective ("allreduce", …), "ping_pong" (a one-way message, while nothing else is under way),
    "together" (a message of each rank to the next, all at once), "add" or "copy" (in memory), or one of TRANSFERS and
    EXPERIMENTS (see `measure_transfers`, `measure_transfer_traps`). `num_bytes` is the whole buffer of a collective,
    and otherwise the message. `options` tells apart what else differs: for a collective
    ``algorithm`` (one of ALGORITHMS, or "native": the backend's own), ``in_place`` and what its builder takes; for
    messages ``link``, "intra" or "inter". `clean` says of each iteration that the host took no time meanwhile. Seconds
    are kept to six digits.

    Raises ValueError for what no measurement can have given.

    >>> point = Point("allreduce", 1024, (3e-3, 1e-3, 2e-3), (True, False, True), {"algorithm": "ring"})
    >>> point.median_s, point.num_clean
    (0.002, 2)
    """

    what: str
    num_bytes: int
    seconds: tuple[float, ...]
    clean: tuple[bool, ...]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        one_of("what", self.what, WHAT)
        object.__setattr__(self, "num_bytes", whole("num_bytes", self.num_bytes, 0, 1 << 60))
        if not isinstance(self.seconds, list | tuple) or not self.seconds:
            raise ValueError(f"seconds must be those of at least one iteration, got {self.seconds!r}")
        if not isinstance(self.clean, list | tuple) or len(self.clean) != len(self.seconds):
            raise ValueError(f"clean must have a word on each of {len(self.seconds)} iterations, got {self.clean!r}")
        object.__setattr__(self, "seconds", tuple(map(_rounded, self.seconds)))
        object.__setattr__(self, "clean", tuple(truth("clean", one) for one in self.clean))
        if not isinstance(self.options, Mapping):
            raise ValueError(f"options must be a mapping, got {self.options!r}")
        for name, value in self.options.items():
            texts = [name, value] if isinstance(value, str) else [name]
            printable = all(isinstance(text, str) and text.isprintable() for text in texts)
            if not printable or not isinstance(value, str | int | bool):
                known = "printable texts, whole numbers or truths by name"
                raise ValueError(f"options must be {known}, got {name!r}: {value!r}")
        object.__setattr__(self, "options", ReadOnly(dict(self.options)))

    @property
    def key(self) -> Key:
        """What no two points of a profile have in common."""
        return self.what, self.num_bytes, tuple(sorted(self.options.items()))

    @property
    def num_clean(self) -> int:
        return sum(self.clean)

    @property
    def used_s(self) -> tuple[float, ...]:
        """The seconds of the iterations that are used; see `used_places`."""
        return tuple(self.seconds[place] for place in used_places(self.clean))

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of the seconds that are used."""
        return float(np.percentile(self.used_s, number("percent", percent, 0, 100)))

    @property
    def median_s(self) -> float:
        return self.percentile_s(50)

    @property
    def iqr_s(self) -> float:
        """The interquartile range."""
        return self.percentile_s(75) - self.percentile_s(25)

    def differs(self, other: Point) -> bool:
        """Return whether the interquartile ranges of the two have nothing in common."""
        low, high = sorted((self, other), key=lambda point: point.median_s)
        return low.percentile_s(75) < high.percentile_s(25)

    @property
    def p99_s(self) -> float:
        return self.percentile_s(99)


def used_places(clean: Sequence[bool]) -> tuple[int, ...]:
    """Return the places of the clean iterations, or of all where there are fewer than `LEAST_CLEAN` clean ones.

    >>> used_places([True, False, True, True, True]), used_places([True, False, True])
    ((0, 2, 3, 4), (0, 1, 2))
    """
    places = tuple(place for place, one in enumerate(clean) if one)
    return places if len(places) >= LEAST_CLEAN else tuple(range(len(clean)))


def _rounded(seconds: Any) -> float:
    return float(f"{number('seconds', seconds, 1e-9, 1e6):.6g}")
