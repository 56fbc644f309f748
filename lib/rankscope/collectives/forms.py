"""Closed forms of the time of an algorithm, in the single-port full-duplex Hockney model: a function for each.

There are N ranks with S bytes in each rank's whole buffer. A message of m bytes takes α + mβ on both ports, and adding
it takes mγ. Sources: Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication operations in
MPICH; Rabenseifner (2004); Patarasuk and Yuan (2009); Chan and others (2007), Collective communication: theory,
practice, and experience. Where texts differ, the test that compares each form with `simulate` decides.
`rankscope.collectives.algorithms` says which form belongs to which algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cluster import Link
from .builders.rings import nodes_of, shape_of

Form = Callable[..., Any]  # form(terms, **options) → seconds


class NoClosedForm(ValueError):
    """No closed form is stated for this algorithm, number of ranks or option; `simulate` has no such limit."""


class Terms(NamedTuple):
    """The quantities of a formula; `inner` is the link along the last axis of a grid, or within a node."""

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
    def share_of_others(self) -> float:
        """(N-1)/N."""
        return (self.num_ranks - 1) / self.num_ranks

    def check_power_of_two(self) -> None:
        """Raise NoClosedForm unless N is a power of two."""
        if self.power != self.num_ranks:
            raise NoClosedForm(f"no closed form is stated for {self.num_ranks}, not a power of two: use simulate")

    def send(self, num_bytes: Any, times: float = 1, adding: bool = False) -> Any:
        """The seconds of so many messages of so many bytes, one after the other, each added up if `adding`."""
        per_byte_s = self.link.beta_s_per_byte
        if adding:
            per_byte_s += self.gamma
        return times * (self.link.alpha_s + num_bytes * per_byte_s)

    def move(self, share: float, times: int) -> Any:
        """The seconds of that share of the buffer over the wire so many times, and added up once."""
        return share * self.num_bytes * (times * self.link.beta_s_per_byte + self.gamma)


# ---- allreduce


def flat(t: Terms) -> Any:
    """2(N-1)(α + Sβ) + (N-1)Sγ: the root's one port takes N-1 messages in turn, both ways."""
    return t.send(t.num_bytes, t.num_ranks - 1, adding=True) + t.send(t.num_bytes, t.num_ranks - 1)


def binomial_tree(t: Terms) -> Any:
    """2⌈log₂N⌉(α + Sβ) + ⌈log₂N⌉Sγ."""
    return t.send(t.num_bytes, t.log, adding=True) + t.send(t.num_bytes, t.log)


def _fold(t: Terms) -> Any:
    """The whole buffer there and back again, if N is not a power of two."""
    if t.power == t.num_ranks:
        return 0
    return t.send(t.num_bytes, adding=True) + t.send(t.num_bytes)


def recursive_doubling(t: Terms) -> Any:
    """log₂N(α + Sβ + Sγ); other N fold before and unfold after."""
    return t.send(t.num_bytes, t.power.bit_length() - 1, adding=True) + _fold(t)


def halving_doubling(t: Terms) -> Any:
    """2log₂N·α + 2(N-1)/N·Sβ + (N-1)/N·Sγ; other N fold before and unfold after."""
    p = t.power
    num_rounds = p.bit_length() - 1
    return 2 * num_rounds * t.link.alpha_s + t.move((p - 1) / p, 2) + _fold(t)


def ring(t: Terms) -> Any:
    """2(N-1)(α + S/N·β) + (N-1)/N·Sγ."""
    return 2 * (t.num_ranks - 1) * t.link.alpha_s + t.move(t.share_of_others, 2)


def segmented_ring(t: Terms, num_segments: int = 4) -> Any:
    """2(N-1)m messages of σ = S/(Nm) bytes; adding shows only if it takes longer than a message, or if m is 1.

    With one segment it is the ring. With more, the port is always busy, or, if σγ > α + σβ, the adding of the first
    round is always busy, and the allgather follows it at a distance of one segment.
    """
    n = t.num_ranks
    m = num_segments
    if m == 1 or n == 1:
        return ring(t)
    message_s = t.send(t.num_bytes / (n * m))
    adding_s = t.num_bytes / (n * m) * t.gamma
    port_is_busy_s = 2 * (n - 1) * m * message_s
    # One message arrives before the first sum. The last sum then goes n-1 hops: the first takes one message, and each
    # further one m messages, since a rank passes on m segments in each hop.
    adder_is_busy_s = (2 + (n - 2) * m) * message_s + (n - 1) * m * adding_s
    return np.maximum(port_is_busy_s, adder_is_busy_s)


def _grid(t: Terms, shape: Sequence[int]) -> Any:
    """The sum over the axes, from the last one, of 2(n-1)α + 2(n-1)/n·sβ + (n-1)/n·sγ, for n ranks along the axis.

    s is S along the last axis, and becomes s/n after each axis.
    """
    seconds = 0
    size = t.num_bytes
    last = len(shape) - 1
    for axis in reversed(range(len(shape))):
        link = t.inner if axis == last else t.link
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
    num_rows, ranks_per_row = shape_of(t.num_ranks, shape, 2)
    return ring(t._replace(num_ranks=ranks_per_row, link=t.inner)) + ring(t._replace(num_ranks=num_rows))


def hierarchical_ring(t: Terms, gpus_per_node: int | None = None) -> Any:
    """A binomial tree in each node, and a ring over the leaders: 2⌈log₂g⌉(αᵢ + Sβᵢ) + ⌈log₂g⌉Sγ + ring of N/g."""
    nodes, g = nodes_of(t.num_ranks, gpus_per_node)
    return binomial_tree(t._replace(num_ranks=g, link=t.inner)) + ring(t._replace(num_ranks=nodes))


def double_binary_tree(t: Terms, num_segments: int = 8) -> Any:
    """2(log₂N + m) - 3 steps up and as many down, of S/2m bytes, if N is a power of two from 4; m each for N = 2.

    Of two ranks each tree is a single edge, which carries a segment in every second step. No other edge uses the steps
    between, so they take no time.
    """
    t.check_power_of_two()
    m = num_segments
    num_steps = 2 * (t.log + m) - 3
    if t.num_ranks == 1:
        num_steps = 0
    elif t.num_ranks == 2:
        num_steps = m
    return t.send(t.num_bytes / (2 * m), num_steps, adding=True) + t.send(t.num_bytes / (2 * m), num_steps)


def nvls(t: Terms, num_segments: int = 4) -> Any:
    """(m+1)α + (2 + (m-1)(1+1/N))·S/m·β if the switch adds, which it does for three ranks and more.

    In the first of m+1 steps each rank sends a segment of S/m bytes, and in the last it receives the sums of one. In
    the steps between it sends the next segment, and also the sums that it owns of the one before, 1/N of a segment.
    Two ranks send each other half a segment instead, and add it up themselves: (m+1)α + Sβ + S/2·γ.
    """
    n = t.num_ranks
    m = num_segments
    if n == 1:
        return 0
    latency_s = (m + 1) * t.link.alpha_s
    if n == 2:
        return latency_s + t.move(0.5, 2)
    return latency_s + (2 + (m - 1) * (1 + 1 / n)) * t.num_bytes / m * t.link.beta_s_per_byte


def nvls_tree(t: Terms, gpus_per_node: int | None = None, num_segments: int = 4) -> Any:
    """`nvls` of one segment in a node, and between its two steps the double binary tree over 2^k nodes, of S/g."""
    nodes, g = nodes_of(t.num_ranks, gpus_per_node)
    over_nodes_s = double_binary_tree(t._replace(num_ranks=nodes, num_bytes=t.num_bytes / g), num_segments)
    return nvls(t._replace(num_ranks=g, link=t.inner), num_segments=1) + over_nodes_s


# ---- the others


def halves(t: Terms) -> Any:
    """⌈log₂N⌉ messages that make up (N-1)/N of the buffer."""
    return t.log * t.link.alpha_s + t.share_of_others * t.num_bytes * t.link.beta_s_per_byte


def halves_of_powers(t: Terms) -> Any:
    """The same, if N is a power of two."""
    t.check_power_of_two()
    return halves(t)


def added_halves(t: Terms) -> Any:
    """The same as `halves`, with each message added up."""
    return t.log * t.link.alpha_s + t.move(t.share_of_others, 1)


def added_halves_of_powers(t: Terms) -> Any:
    """The same, if N is a power of two."""
    t.check_power_of_two()
    return added_halves(t)


def all_to_all_bruck(t: Terms) -> Any:
    """⌈log₂N⌉ messages; the k-th carries the blocks whose distance has bit k: S/2 if N is a power of two."""
    seconds = 0
    for bit in range(t.log):
        num_blocks = sum(distance >> bit & 1 for distance in range(t.num_ranks))
        seconds = seconds + t.send(t.num_bytes * num_blocks / t.num_ranks)
    return seconds


def chain(t: Terms, num_segments: int = 8) -> Any:
    """N-2+m messages of S/m, one after the other, until the last rank has all m; none for a single rank."""
    m = num_segments
    num_messages = t.num_ranks - 2 + m
    if t.num_ranks == 1:
        num_messages = 0
    return t.send(t.num_bytes / m, num_messages)


def parts(t: Terms) -> Any:
    """N-1 messages of a rank's part: (N-1)(α + S/N·β)."""
    return t.send(t.num_bytes / t.num_ranks, t.num_ranks - 1)


def added_parts(t: Terms) -> Any:
    """The same, with each message added up."""
    return t.send(t.num_bytes / t.num_ranks, t.num_ranks - 1, adding=True)


def whole_buffers(t: Terms) -> Any:
    """N-1 messages of the whole buffer, one after the other."""
    return t.send(t.num_bytes, t.num_ranks - 1)


def added_whole_buffers(t: Terms) -> Any:
    """The same, with each message added up."""
    return t.send(t.num_bytes, t.num_ranks - 1, adding=True)


def tree(t: Terms) -> Any:
    """⌈log₂N⌉ messages of the whole buffer."""
    return t.send(t.num_bytes, t.log)


def added_tree(t: Terms) -> Any:
    """The same, with each message added up."""
    return t.send(t.num_bytes, t.log, adding=True)


def scatter_allgather(t: Terms) -> Any:
    """Halves down a binomial tree, then parts round a ring, if N is a power of two."""
    return halves_of_powers(t) + parts(t)


def reduce_scatter_gather(t: Terms) -> Any:
    """2log₂N messages that make up 2(N-1)/N of the buffer, half of it added up, if N is a power of two."""
    t.check_power_of_two()
    return 2 * t.log * t.link.alpha_s + t.move(t.share_of_others, 2)


def latencies(t: Terms) -> Any:
    """⌈log₂N⌉ messages without bytes."""
    return t.log * t.link.alpha_s
