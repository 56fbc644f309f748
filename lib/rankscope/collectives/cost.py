"""Closed forms and lower bounds of what a collective takes, in the single-port full-duplex Hockney model.

N ranks, S bytes in each rank's whole buffer, a message of m bytes α + mβ on both ports, adding mγ. Sources: Thakur,
Rabenseifner and Gropp (2005), Optimization of collective communication operations in MPICH; Rabenseifner (2004);
Patarasuk and Yuan (2009); Chan and others (2007), Collective communication: theory, practice, and experience. Where
texts differ, the test that compares each form with `simulate` decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..cluster import Link
from ..values.checks import number, of_type, one_of, whole
from .schedule import ROOTED


@dataclass(frozen=True)
class Terms:
    """What a formula is made of; `inner` is the link along the last axis of a grid, or within a node."""

    num_ranks: int
    num_bytes: Any
    link: Link
    gamma: float
    inner: Link

    @property
    def log(self) -> int:
        """⌈log₂N⌉."""
        return (self.num_ranks - 1).bit_length()

    @property
    def power(self) -> int:
        """The largest power of two up to N."""
        return 1 << (self.num_ranks.bit_length() - 1)

    @property
    def rest(self) -> float:
        """(N-1)/N."""
        return (self.num_ranks - 1) / self.num_ranks

    def send(self, num_bytes: Any, times: float = 1, adding: bool = False) -> Any:
        """So many messages of so many bytes, one after the other, each added up where `adding`."""
        return times * (self.link.alpha_s + num_bytes * (self.link.beta_s_per_byte + adding * self.gamma))


class NoClosedForm(ValueError):
    """No closed form is stated for this number of ranks: `simulate` tells."""


def closed_form(
    collective: str,
    algorithm: str,
    num_ranks: int,
    num_bytes: ArrayLike,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    inner: Link | None = None,
    **options: Any,
) -> Any:
    """Return the seconds that the algorithm takes where all ranks are joined by `link`.

    `num_bytes` is each rank's whole buffer, or an array of such sizes; `options` are those of the builder. `inner` is
    the link within a node, for the algorithms that tell nodes apart: the ranks of a node are those along the last axis
    of a torus or mesh, or the `gpus_per_node` of the hierarchical ring.

    Raises ValueError for an unknown name or option, and NoClosedForm, a ValueError, where none is stated for so many
    ranks: `simulate` always tells.

    >>> closed_form("allreduce", "ring", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0))
    12.0
    """
    from .closed_forms import FORMS  # they need Terms

    n = whole("num_ranks", num_ranks, 1)
    one_of("collective", collective, tuple(FORMS))
    one_of(f"algorithm of {collective} with a closed form", algorithm, tuple(FORMS[collective]))
    size = _sizes(num_bytes)
    gamma = number("gamma_s_per_byte", gamma_s_per_byte, 0)
    form = FORMS[collective][algorithm]
    taken = list(signature(form).parameters)[1:]
    if collective in ROOTED:  # all ranks being joined alike, it does not matter which is the root
        whole("root", options.pop("root", 0), 0, n - 1)
    for name in options:
        if name not in taken:
            raise ValueError(f"{algorithm} of {collective} takes no option {name!r}")
    for each in (link, inner or link):
        of_type("link and inner", each, Link)
    seconds = form(Terms(n, size, link, gamma, inner or link), **options) + 0 * size
    return float(seconds) if np.ndim(seconds) == 0 else seconds


@dataclass(frozen=True)
class Bounds:
    """Below none of these can a collective get, message by message; in-network reduction is not bound by them."""

    latency_s: float
    bandwidth_s: Any
    adding_s: Any

    @property
    def seconds(self) -> Any:
        """The largest of the three."""
        largest = np.maximum(np.maximum(self.latency_s, self.bandwidth_s), self.adding_s)
        return float(largest) if np.ndim(largest) == 0 else largest


def lower_bounds(
    collective: str,
    num_ranks: int,
    num_bytes: ArrayLike,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    ports: int | None = 1,
) -> Bounds:
    """Return the lower bounds for point-to-point messages, after Chan and others (2007).

    With p ports what depends on all ranks takes ⌈log₍ₚ₊₁₎N⌉ messages in a row. Some rank must bring out, or take in,
    so many bytes over its p ports: 2(N-1)/N·S for allreduce, S for broadcast and reduce, (N-1)/N·S for the others.

    Raises ValueError for an unknown collective and for numbers out of range.

    >>> lower_bounds("allreduce", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0)).seconds
    6.0
    """
    n = whole("num_ranks", num_ranks, 1)
    share = (n - 1) / n
    moved = {"allreduce": 2 * share, "broadcast": float(n > 1), "reduce": float(n > 1), "barrier": 0.0}
    others = ("reduce_scatter", "scatter", "gather", "allgather", "all_to_all")
    one_of("collective", collective, (*moved, *others))
    of_type("link", link, Link)
    size, gamma = _sizes(num_bytes)[()], number("gamma_s_per_byte", gamma_s_per_byte, 0)
    many = n if ports is None else whole("ports", ports, 1)
    adds = share if collective in ("allreduce", "reduce", "reduce_scatter") else 0.0
    moves = moved.get(collective, share)
    rounds = next(k for k in range(64) if (many + 1) ** k >= n)
    bandwidth_s = moves * size * link.beta_s_per_byte / (math.inf if ports is None else many)
    return Bounds(rounds * link.alpha_s, bandwidth_s, adds * size * gamma)


def _sizes(num_bytes: ArrayLike) -> Any:
    size = np.asarray(num_bytes)
    if size.dtype == bool or not np.can_cast(size.dtype, float, "same_kind"):
        raise ValueError(f"num_bytes must be finite and at least 0, got {num_bytes!r}")
    if not (np.isfinite(size).all() and (size >= 0).all()):
        raise ValueError(f"num_bytes must be finite and at least 0, got {num_bytes!r}")
    return size.astype(float)
