"""Closed forms and lower bounds of what a collective takes, in the single-port full-duplex Hockney model.

N ranks, S bytes in each rank's whole buffer, a message of m bytes α + mβ on both ports, adding mγ. Sources: Thakur,
Rabenseifner and Gropp (2005), Optimization of collective communication operations in MPICH; Rabenseifner (2004);
Patarasuk and Yuan (2009); Chan and others (2007), Collective communication: theory, practice, and experience. Where
texts differ, the test that compares each form with `simulate` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..cluster import Link
from ..common.checks import number, of_type, one_of, truth, whole
from .builders import builders_of, check_options
from .builders.rings import nodes_of, shape_of
from .schedule import ROOTED


class NoClosedForm(ValueError):
    """No closed form is stated for this algorithm or this number of ranks; `simulate` has no such limit."""


class Terms(NamedTuple):
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

    def move(self, share: float, times: int) -> Any:
        """That share of the buffer over the wire so many times, and added up once."""
        return share * self.num_bytes * (times * self.link.beta_s_per_byte + self.gamma)


def _power_of_two(form: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(form)
    def only(t: Terms, **options: Any) -> Any:
        if t.num_ranks != t.power:
            raise NoClosedForm(f"no closed form is stated for {t.num_ranks} ranks, not a power of two: use simulate")
        return form(t, **options)

    return only


# ---- a short function each, by the names of `ALGORITHMS`


def _flat(t: Terms) -> Any:
    """2(N-1)(α + Sβ) + (N-1)Sγ: the root's one port takes N-1 messages in turn, both ways."""
    return t.send(t.num_bytes, t.num_ranks - 1, adding=True) + t.send(t.num_bytes, t.num_ranks - 1)


def _binomial_tree(t: Terms) -> Any:
    """2⌈log₂N⌉(α + Sβ) + ⌈log₂N⌉Sγ."""
    return t.send(t.num_bytes, t.log, adding=True) + t.send(t.num_bytes, t.log)


def _fold(t: Terms) -> Any:
    """The whole buffer there and back again, where N is no power of two."""
    return 0 if t.power == t.num_ranks else t.send(t.num_bytes, adding=True) + t.send(t.num_bytes)


def _recursive_doubling(t: Terms) -> Any:
    """log₂N(α + Sβ + Sγ); other N fold before and unfold after."""
    return t.send(t.num_bytes, t.power.bit_length() - 1, adding=True) + _fold(t)


def _halving_doubling(t: Terms) -> Any:
    """2log₂N·α + 2(N-1)/N·Sβ + (N-1)/N·Sγ; other N fold before and unfold after."""
    p = t.power
    return 2 * (p.bit_length() - 1) * t.link.alpha_s + t.move((p - 1) / p, 2) + _fold(t)


def _ring(t: Terms) -> Any:
    """2(N-1)(α + S/N·β) + (N-1)/N·Sγ."""
    return 2 * (t.num_ranks - 1) * t.link.alpha_s + t.move(t.rest, 2)


def _segmented_ring(t: Terms, num_segments: int = 4) -> Any:
    """2(N-1)m messages of S/(Nm), σ bytes each; adding shows only where it takes longer than a message, or m is 1.

    With one segment it is the ring. With more, either the port is always busy, or, where σγ > α + σβ, the adding of the
    way round is, and the allgather follows it at one segment's distance.
    """
    n, m = t.num_ranks, whole("num_segments", num_segments, 1)
    if m == 1 or n == 1:
        return _ring(t)
    one, adding = t.send(t.num_bytes / (n * m)), t.num_bytes / (n * m) * t.gamma
    return np.maximum(2 * (n - 1) * m * one, (2 + (n - 2) * m) * one + (n - 1) * m * adding)


def _grid(t: Terms, shape: Sequence[int]) -> Any:
    """Per axis of n ranks, from the last, 2(n-1)α + 2(n-1)/n·sβ + (n-1)/n·sγ, s a 1/n of what it was after each."""
    seconds, size = 0, t.num_bytes
    for axis in reversed(range(len(shape))):
        link = t.inner if axis == len(shape) - 1 else t.link
        seconds = seconds + _ring(t._replace(num_ranks=shape[axis], num_bytes=size, link=link))
        size = size / shape[axis]
    return seconds


def _mesh_2d(t: Terms, shape: Sequence[int] | None = None) -> Any:
    """A ring allreduce along rows, then one along columns, both of the full buffer."""
    rows, row = shape_of(t.num_ranks, shape, 2)
    return _ring(t._replace(num_ranks=row, link=t.inner)) + _ring(t._replace(num_ranks=rows))


def _hierarchical_ring(t: Terms, gpus_per_node: int | None = None) -> Any:
    """A binomial tree in each node, and a ring over the leaders: 2⌈log₂g⌉(αᵢ + Sβᵢ) + ⌈log₂g⌉Sγ + ring of N/g."""
    nodes, g = nodes_of(t.num_ranks, gpus_per_node)
    return _binomial_tree(t._replace(num_ranks=g, link=t.inner)) + _ring(t._replace(num_ranks=nodes))


@_power_of_two
def _double_binary_tree(t: Terms, num_segments: int = 8) -> Any:
    """N a power of two from 4 on: 2(log₂N + m) - 3 steps up and as many down, of S/(2m) bytes; m each for N = 2."""
    m = whole("num_segments", num_segments, 1)
    steps = {1: 0, 2: m}.get(t.num_ranks, 2 * (t.log + m) - 3)
    return t.send(t.num_bytes / (2 * m), steps, adding=True) + t.send(t.num_bytes / (2 * m), steps)


def _nvls(t: Terms, num_segments: int = 4) -> Any:
    """(m+1)α + (2 + (m-1)(1+1/N))·S/m·β where the switch adds: a segment in, m-1 in and out, one out.

    It adds for three ranks and more. Two send each other half a segment: (m+1)α + Sβ + S/2·γ.
    """
    n, m = t.num_ranks, whole("num_segments", num_segments, 1)
    if n < 3:
        return 0 if n == 1 else (m + 1) * t.link.alpha_s + t.move(0.5, 2)
    return (m + 1) * t.link.alpha_s + (2 + (m - 1) * (1 + 1 / n)) * t.num_bytes / m * t.link.beta_s_per_byte


def _nvls_tree(t: Terms, gpus_per_node: int | None = None, num_segments: int = 4) -> Any:
    """`nvls` of one segment in a node, and between its two steps the double binary tree over 2^k nodes, of S/g."""
    nodes, g = nodes_of(t.num_ranks, gpus_per_node)
    if nodes & (nodes - 1):
        raise NoClosedForm(f"no closed form is stated for {nodes} nodes, not a power of two: use simulate")
    inside = _nvls(t._replace(num_ranks=g, link=t.inner), 1)
    over = t._replace(num_ranks=nodes, num_bytes=t.num_bytes / g)
    return inside + _double_binary_tree(over, num_segments=num_segments)


def _halves(t: Terms) -> Any:
    """⌈log₂N⌉ messages that make up (N-1)/N of the buffer."""
    return t.log * t.link.alpha_s + t.rest * t.num_bytes * t.link.beta_s_per_byte


def _added_halves(t: Terms) -> Any:
    """The same, with what comes added up."""
    return t.log * t.link.alpha_s + t.move(t.rest, 1)


def _all_to_all_bruck(t: Terms) -> Any:
    """⌈log₂N⌉ messages; the k-th carries the blocks whose distance has bit k: S/2 where N is a power of two."""
    blocks = [sum(away >> k & 1 for away in range(t.num_ranks)) for k in range(t.log)]
    return sum(t.send(t.num_bytes * count / t.num_ranks) for count in blocks)


def _chain(t: Terms, num_segments: int = 8) -> Any:
    """N-2+m messages of S/m, one after the other, for the last rank to have all m."""
    m = whole("num_segments", num_segments, 1)
    return t.send(t.num_bytes / m, t.num_ranks - 2 + m if t.num_ranks > 1 else 0)


def _parts(t: Terms, adding: bool = False) -> Any:
    """N-1 messages of a rank's part: (N-1)(α + S/N·β)."""
    return t.send(t.num_bytes / t.num_ranks, t.num_ranks - 1, adding)


FORMS: dict[str, dict[str, Callable[..., Any]]] = {
    "allreduce": {
        "flat": _flat,
        "binomial_tree": _binomial_tree,
        "recursive_doubling": _recursive_doubling,
        "halving_doubling": _halving_doubling,
        "ring": _ring,
        "segmented_ring": _segmented_ring,
        "hierarchical_ring": _hierarchical_ring,
        "torus_2d": lambda t, shape=None: _grid(t, shape_of(t.num_ranks, shape, 2)),
        "mesh_2d": _mesh_2d,
        "torus_3d": lambda t, shape=None: _grid(t, shape_of(t.num_ranks, shape, 3)),
        "double_binary_tree": _double_binary_tree,
        "bidirectional_ring": _ring,  # with one port it is the ring; with two, half
        "swing": _halving_doubling,  # where all pairs are joined alike
        "nvls": _nvls,
        "nvls_tree": _nvls_tree,
    },
    "broadcast": {
        "flat": lambda t: t.send(t.num_bytes, t.num_ranks - 1),
        "binomial": lambda t: t.send(t.num_bytes, t.log),
        "chain": _chain,
        "scatter_allgather": _power_of_two(lambda t: _halves(t) + _parts(t)),
    },
    "reduce": {
        "flat": lambda t: t.send(t.num_bytes, t.num_ranks - 1, adding=True),
        "binomial": lambda t: t.send(t.num_bytes, t.log, adding=True),
        "reduce_scatter_gather": _power_of_two(lambda t: 2 * t.log * t.link.alpha_s + t.move(t.rest, 2)),
    },
    "scatter": {"flat": _parts, "binomial": _power_of_two(_halves)},
    "gather": {"flat": _parts, "binomial": _power_of_two(_halves)},
    "allgather": {"ring": _parts, "recursive_doubling": _power_of_two(_halves), "bruck": _halves, "pat": _halves},
    "reduce_scatter": {
        "ring": lambda t: _parts(t, adding=True),
        "pairwise": lambda t: _parts(t, adding=True),
        "recursive_halving": _power_of_two(_added_halves),
        "bruck": _added_halves,
        "pat": _added_halves,
    },
    "all_to_all": {"pairwise": _parts, "bruck": _all_to_all_bruck},
    "barrier": {"dissemination": lambda t: t.log * t.link.alpha_s},
}


# ---- what users call


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
    the link within a node, for the algorithms that distinguish nodes: the ranks of a node are those along the last axis
    of a torus or mesh, or the `gpus_per_node` of the hierarchical ring. Those of "nvls" and "nvls_tree" are for nodes
    whose switch adds (`Cluster.switch_adds`), all others for links alone.

    Raises ValueError for an unknown name or option, and NoClosedForm, a ValueError, if no closed form is stated for a
    registered algorithm or for so many ranks; `simulate` has no such limit.

    >>> closed_form("allreduce", "ring", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0))
    12.0
    """
    n = whole("num_ranks", num_ranks, 1)
    one_of("collective", collective, tuple(FORMS))
    stated = tuple(FORMS[collective])
    if algorithm not in stated and algorithm in builders_of(collective):
        raise NoClosedForm(f"no closed form is stated for {algorithm} of {collective}: use simulate")
    one_of(f"algorithm of {collective} with a closed form", algorithm, stated)
    size = _sizes(num_bytes)
    gamma = number("gamma_s_per_byte", gamma_s_per_byte, 0)
    form = FORMS[collective][algorithm]
    if collective in ROOTED:  # all ranks being joined alike, it does not matter which is the root
        whole("root", options.pop("root", 0), 0, n - 1)
    check_options(collective, algorithm, options, form)
    of_type("link", link, Link)
    inner = link if inner is None else of_type("inner", inner, Link)
    seconds = form(Terms(n, size, link, gamma, inner), **options) + 0 * size
    return float(seconds) if np.ndim(seconds) == 0 else seconds


class Bounds(NamedTuple):
    """No collective of point-to-point messages takes less than any of these; in-network reduction may."""

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
    switch_adds: bool = False,
) -> Bounds:
    """Return the lower bounds for point-to-point messages, after Chan and others (2007).

    With p ports what depends on all ranks takes ⌈log₍ₚ₊₁₎N⌉ messages in a row. Some rank must bring out, or take in,
    so many bytes over its p ports: 2(N-1)/N·S for allreduce, S for broadcast and reduce, (N-1)/N·S for the others.

    Where `switch_adds`, one message may carry the sum of all: a single α, no adding, and for allreduce S each way.

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
    if truth("switch_adds", switch_adds):
        moves, adds = min(moves, 1.0), 0.0
    rounds = next(k for k in range(64) if ((n if switch_adds else many) + 1) ** k >= n)
    bandwidth_s = moves * size * link.beta_s_per_byte / (math.inf if ports is None else many)
    return Bounds(rounds * link.alpha_s, bandwidth_s, adds * size * gamma)


def _sizes(num_bytes: ArrayLike) -> Any:
    size = np.asarray(num_bytes)
    numbers = size.dtype != bool and np.can_cast(size.dtype, float, "same_kind")
    if not (numbers and np.isfinite(size).all() and (size >= 0).all()):
        raise ValueError(f"num_bytes must be finite and at least 0, got {num_bytes!r}")
    return size.astype(float)
