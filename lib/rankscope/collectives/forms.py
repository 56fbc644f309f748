"""Closed forms of what an algorithm takes, in the single-port full-duplex Hockney model: a function for each.

N ranks, S bytes in each rank's whole buffer, a message of m bytes α + mβ on both ports, adding mγ. Sources: Thakur,
Rabenseifner and Gropp (2005), Optimization of collective communication operations in MPICH; Rabenseifner (2004);
Patarasuk and Yuan (2009); Chan and others (2007), Collective communication: theory, practice, and experience. Where
texts differ, the test that compares each form with `simulate` decides. `rankscope.collectives.algorithms` says which
form belongs to which algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cluster import Link
from ..common.checks import whole
from .builders.rings import nodes_of, shape_of

Form = Callable[..., Any]  # form(terms, **options) → seconds


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


# ---- allreduce


def flat(t: Terms) -> Any:
    """2(N-1)(α + Sβ) + (N-1)Sγ: the root's one port takes N-1 messages in turn, both ways."""
    return t.send(t.num_bytes, t.num_ranks - 1, adding=True) + t.send(t.num_bytes, t.num_ranks - 1)


def binomial_tree(t: Terms) -> Any:
    """2⌈log₂N⌉(α + Sβ) + ⌈log₂N⌉Sγ."""
    return t.send(t.num_bytes, t.log, adding=True) + t.send(t.num_bytes, t.log)


def _fold(t: Terms) -> Any:
    """The whole buffer there and back again, where N is no power of two."""
    return 0 if t.power == t.num_ranks else t.send(t.num_bytes, adding=True) + t.send(t.num_bytes)


def recursive_doubling(t: Terms) -> Any:
    """log₂N(α + Sβ + Sγ); other N fold before and unfold after."""
    return t.send(t.num_bytes, t.power.bit_length() - 1, adding=True) + _fold(t)


def halving_doubling(t: Terms) -> Any:
    """2log₂N·α + 2(N-1)/N·Sβ + (N-1)/N·Sγ; other N fold before and unfold after."""
    p = t.power
    return 2 * (p.bit_length() - 1) * t.link.alpha_s + t.move((p - 1) / p, 2) + _fold(t)


def ring(t: Terms) -> Any:
    """2(N-1)(α + S/N·β) + (N-1)/N·Sγ."""
    return 2 * (t.num_ranks - 1) * t.link.alpha_s + t.move(t.rest, 2)


def segmented_ring(t: Terms, num_segments: int = 4) -> Any:
    """2(N-1)m messages of S/(Nm), σ bytes each; adding shows only where it takes longer than a message, or m is 1.

    With one segment it is the ring. With more, either the port is always busy, or, where σγ > α + σβ, the adding of the
    way round is, and the allgather follows it at one segment's distance.
    """
    n, m = t.num_ranks, whole("num_segments", num_segments, 1)
    if m == 1 or n == 1:
        return ring(t)
    one, adding = t.send(t.num_bytes / (n * m)), t.num_bytes / (n * m) * t.gamma
    return np.maximum(2 * (n - 1) * m * one, (2 + (n - 2) * m) * one + (n - 1) * m * adding)


def _grid(t: Terms, shape: Sequence[int]) -> Any:
    """Per axis of n ranks, from the last, 2(n-1)α + 2(n-1)/n·sβ + (n-1)/n·sγ, s a 1/n of what it was after each."""
    seconds, size = 0, t.num_bytes
    for axis in reversed(range(len(shape))):
        link = t.inner if axis == len(shape) - 1 else t.link
        seconds = seconds + ring(t._replace(num_ranks=shape[axis], num_bytes=size, link=link))
        size = size / shape[axis]
    return seconds


def torus_2d(t: Terms, shape: Sequence[int] | None = None) -> Any:
    """A reduce-scatter along rows, an allreduce along columns, and an allgather along rows."""
    return _grid(t, shape_of(t.num_ranks, shape, 2))


def torus_3d(t: Terms, shape: Sequence[int] | None = None) -> Any:
    """The same along three axes."""
    return _grid(t, shape_of(t.num_ranks, shape, 3))


def mesh_2d(t: Terms, shape: Sequence[int] | None = None) -> Any:
    """A ring allreduce along rows, then one along columns, both of the full buffer."""
    rows, row = shape_of(t.num_ranks, shape, 2)
    return ring(t._replace(num_ranks=row, link=t.inner)) + ring(t._replace(num_ranks=rows))


def hierarchical_ring(t: Terms, gpus_per_node: int | None = None) -> Any:
    """A binomial tree in each node, and a ring over the leaders: 2⌈log₂g⌉(αᵢ + Sβᵢ) + ⌈log₂g⌉Sγ + ring of N/g."""
    nodes, g = nodes_of(t.num_ranks, gpus_per_node)
    return binomial_tree(t._replace(num_ranks=g, link=t.inner)) + ring(t._replace(num_ranks=nodes))


def double_binary_tree(t: Terms, num_segments: int = 8) -> Any:
    """For a power of two N from 4 on: 2(log₂N + m) - 3 steps up and as many down, of S/2m bytes; m each for N = 2."""
    m = whole("num_segments", num_segments, 1)
    steps = {1: 0, 2: m}.get(t.num_ranks, 2 * (t.log + m) - 3)
    return t.send(t.num_bytes / (2 * m), steps, adding=True) + t.send(t.num_bytes / (2 * m), steps)


def nvls(t: Terms, num_segments: int = 4) -> Any:
    """(m+1)α + (2 + (m-1)(1+1/N))·S/m·β where the switch adds: a segment in, m-1 in and out, one out.

    It adds for three ranks and more. Two send each other half a segment: (m+1)α + Sβ + S/2·γ.
    """
    n, m = t.num_ranks, whole("num_segments", num_segments, 1)
    if n < 3:
        return 0 if n == 1 else (m + 1) * t.link.alpha_s + t.move(0.5, 2)
    return (m + 1) * t.link.alpha_s + (2 + (m - 1) * (1 + 1 / n)) * t.num_bytes / m * t.link.beta_s_per_byte


def nvls_tree(t: Terms, gpus_per_node: int | None = None, num_segments: int = 4) -> Any:
    """`nvls` of one segment in a node, and between its two steps the double binary tree over 2^k nodes, of S/g."""
    nodes, g = nodes_of(t.num_ranks, gpus_per_node)
    if nodes & (nodes - 1):
        raise NoClosedForm(f"no closed form is stated for {nodes} nodes, not a power of two: use simulate")
    inside = nvls(t._replace(num_ranks=g, link=t.inner), 1)
    over = t._replace(num_ranks=nodes, num_bytes=t.num_bytes / g)
    return inside + double_binary_tree(over, num_segments=num_segments)


# ---- the others


def halves(t: Terms) -> Any:
    """⌈log₂N⌉ messages that make up (N-1)/N of the buffer."""
    return t.log * t.link.alpha_s + t.rest * t.num_bytes * t.link.beta_s_per_byte


def added_halves(t: Terms) -> Any:
    """The same, with what comes added up."""
    return t.log * t.link.alpha_s + t.move(t.rest, 1)


def all_to_all_bruck(t: Terms) -> Any:
    """⌈log₂N⌉ messages; the k-th carries the blocks whose distance has bit k: S/2 where N is a power of two."""
    blocks = [sum(away >> k & 1 for away in range(t.num_ranks)) for k in range(t.log)]
    return sum(t.send(t.num_bytes * count / t.num_ranks) for count in blocks)


def chain(t: Terms, num_segments: int = 8) -> Any:
    """N-2+m messages of S/m, one after the other, for the last rank to have all m."""
    m = whole("num_segments", num_segments, 1)
    return t.send(t.num_bytes / m, t.num_ranks - 2 + m if t.num_ranks > 1 else 0)


def parts(t: Terms) -> Any:
    """N-1 messages of a rank's part: (N-1)(α + S/N·β)."""
    return t.send(t.num_bytes / t.num_ranks, t.num_ranks - 1)


def added_parts(t: Terms) -> Any:
    """The same, with what comes added up."""
    return t.send(t.num_bytes / t.num_ranks, t.num_ranks - 1, adding=True)


def whole_buffers(t: Terms) -> Any:
    """N-1 messages of the whole buffer, one after the other."""
    return t.send(t.num_bytes, t.num_ranks - 1)


def added_whole_buffers(t: Terms) -> Any:
    """The same, with what comes added up."""
    return t.send(t.num_bytes, t.num_ranks - 1, adding=True)


def tree(t: Terms) -> Any:
    """⌈log₂N⌉ messages of the whole buffer."""
    return t.send(t.num_bytes, t.log)


def added_tree(t: Terms) -> Any:
    """The same, with what comes added up."""
    return t.send(t.num_bytes, t.log, adding=True)


def scatter_allgather(t: Terms) -> Any:
    """Halves down a binomial tree, then parts round a ring."""
    return halves(t) + parts(t)


def reduce_scatter_gather(t: Terms) -> Any:
    """2log₂N messages that make up 2(N-1)/N of the buffer, half of it added up."""
    return 2 * t.log * t.link.alpha_s + t.move(t.rest, 2)


def latencies(t: Terms) -> Any:
    """⌈log₂N⌉ messages without bytes."""
    return t.log * t.link.alpha_s
