"""Collectives with a root: broadcast, reduce, scatter and gather, and the allreduces over one; any N, any root.

A rank's place is how far it stands after the root, so that what is written for root 0 serves every root. Source:
Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication operations in MPICH.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from ..algorithms import SEGMENTS, Builder, algorithm
from ..cost import Terms, doubling_of_powers_s, one_by_one_s
from ..schedule import SUMS, Schedule
from ..steps import Ints, Step

# ---- schedules backwards


def backwards(steps: Iterable[Step], reduce: bool = False) -> list[Step]:
    """Return the same steps in the opposite order and direction.

    What a rank receives is added up if `reduce`, and copied otherwise. Transfers are sorted by sender, only so that
    `Schedule.to_text` lists them in this order.

    >>> [(step.src.tolist(), step.dst.tolist()) for step in backwards(to_leaders(4, 4))]
    [([0], [2]), ([0, 2], [1, 3])]
    """
    result = []
    for step in reversed(list(steps)):
        src, dst, chunk, num_chunks, _ = (column[np.argsort(step.dst, kind="stable")] for column in step)
        result.append(Step.of(dst, src, chunk, num_chunks, reduce))
    return result


def backwards_as(collective: str, name: str, *record: Any) -> Callable[[Builder], Builder]:
    """Register a builder's schedules backwards as an algorithm of another collective, too, by ``@backwards_as(…)``."""

    def register(builder: Builder) -> Builder:
        @algorithm(collective, name, *record)
        @wraps(builder)
        def mirrored(*arguments: Any, **options: Any) -> Schedule:
            schedule = builder(*arguments, **options)
            steps = backwards(schedule.steps(), reduce=collective in SUMS)
            return replace(schedule, collective=collective, algorithm=name, source=steps)

        return builder

    return register


# ---- the algorithms


@algorithm("allreduce", "flat", lambda t: t.takes(2 * t.num_others, 2 * t.num_others, t.num_others))
def allreduce_flat(num_ranks: int) -> Schedule:
    """All ranks send to rank 0, which adds up and sends to all: two steps, each of N-1 messages at rank 0."""
    up = _to_root(num_ranks, 0, reduce=True)
    return Schedule("allreduce", "flat", num_ranks, 1, [*up, *backwards(up)], ports=ports_to_others(num_ranks))


@algorithm("allreduce", "binomial_tree", lambda t: t.takes(2 * t.log, 2 * t.log, t.log))
def binomial_tree(num_ranks: int) -> Schedule:
    """Reduce to rank 0 on a binomial tree, then broadcast on it: 2⌈log₂N⌉ steps of the whole buffer, any N."""
    up = to_leaders(num_ranks, num_ranks)
    return Schedule("allreduce", "binomial_tree", num_ranks, 1, [*up, *backwards(up)])


@backwards_as("broadcast", "flat", lambda t: t.takes(t.num_others, t.num_others))
@algorithm("reduce", "flat", lambda t: t.takes(t.num_others, t.num_others, t.num_others))
def reduce_flat(num_ranks: int, *, root: int = 0) -> Schedule:
    """All ranks send to the root, which adds up: one step with N-1 messages there. Backwards, the root sends to all."""
    up = _to_root(num_ranks, root, reduce=True)
    return Schedule("reduce", "flat", num_ranks, 1, up, root, ports_to_others(num_ranks))


@backwards_as("broadcast", "binomial", lambda t: t.takes(t.log, t.log))
@algorithm("reduce", "binomial", lambda t: t.takes(t.log, t.log, t.log))
def reduce_binomial(num_ranks: int, *, root: int = 0) -> Schedule:
    """Sums go up a binomial tree, and backwards a buffer goes down: ⌈log₂N⌉ steps of all of it."""
    return Schedule("reduce", "binomial", num_ranks, 1, to_leaders(num_ranks, num_ranks, root=root), root)


@backwards_as("scatter", "flat", one_by_one_s)
@algorithm("gather", "flat", one_by_one_s)
def gather_flat(num_ranks: int, *, root: int = 0) -> Schedule:
    """Each rank sends the root its chunk: one step with N-1 messages there. Backwards, the root sends them out."""
    up = _to_root(num_ranks, root, own_chunks=True)
    return Schedule("gather", "flat", num_ranks, num_ranks, up, root, ports_to_others(num_ranks))


@backwards_as("scatter", "binomial", doubling_of_powers_s)
@algorithm("gather", "binomial", doubling_of_powers_s)
def gather_binomial(num_ranks: int, *, root: int = 0) -> Schedule:
    """The chunks of a rank's whole subtree go up a binomial tree, and backwards down: ⌈log₂N⌉ steps."""
    return Schedule("gather", "binomial", num_ranks, num_ranks, _subtrees(num_ranks, root), root)


@algorithm(
    "broadcast",
    "scatter_allgather",
    lambda t: t.if_power_of_two(t.takes(t.log + t.num_others, 2 * t.others)),
)
def broadcast_scatter_allgather(num_ranks: int, *, root: int = 0) -> Schedule:
    """Scatter down a binomial tree, then allgather round a ring (van de Geijn): as long as two sends of a large buffer.

    A rank that got more than its own chunk from the scatter is not sent that again.
    """
    n = num_ranks
    place = np.arange(n)
    # A place's subtree has as many places as its lowest bit says, unless they end before. That of place 0 has them all.
    subtree_size = np.where(place == 0, n, np.minimum(place & -place, n - place))
    num_missing = n - subtree_size  # chunks that the scatter does not bring

    def steps() -> Iterator[Step]:
        yield from backwards(_subtrees(n, root))
        # Round the ring: in step s a rank is sent the chunk of the rank s + 1 before it. The chunks of its own subtree
        # would come last, so it leaves the round that many steps earlier.
        for step in range(num_missing.max()):
            dst = (place[num_missing > step] + root) % n
            yield Step.of((dst - 1) % n, dst, (dst - (step + 1)) % n)

    return Schedule("broadcast", "scatter_allgather", n, n, steps, root)


def _chain_s(t: Terms, num_segments: int = 8) -> object:
    """N-2+m messages of S/m, one after the other, until the last rank has all m; none for a single rank."""
    num_messages = t.num_ranks - 2 + num_segments
    return t.takes(num_messages, num_messages / num_segments) if t.num_ranks > 1 else 0


@algorithm("broadcast", "chain", _chain_s, segments=SEGMENTS)
def broadcast_chain(num_ranks: int, num_segments: int = 8, *, root: int = 0) -> Schedule:
    """Every rank passes the buffer on to the next one, in segments, so that all links are busy at once."""
    num_hops = num_ranks - 1
    places = np.arange(num_hops)  # in the chain, counted from the root; the last rank only receives

    def steps() -> Iterator[Step]:
        for step in range(num_hops + num_segments - 1 if num_hops else 0):  # the last segment starts after all others
            # The rank at a place sends segment `step - place`, if there is one.
            place = places[(places <= step) & (places > step - num_segments)]
            yield Step.of((place + root) % num_ranks, (place + 1 + root) % num_ranks, step - place)

    return Schedule("broadcast", "chain", num_ranks, num_segments, steps, root)


# ---- what they share, with one another and with other families


def ports_to_others(num_ranks: int) -> int:
    """Return the ports of a rank that exchanges messages with all others in one step; a schedule has at least one."""
    return max(1, num_ranks - 1)


def _to_root(n: int, root: int, own_chunks: bool = False, reduce: bool = False) -> list[Step]:
    """One step with a message from each other rank to the root; none if there are no others."""
    others = np.delete(np.arange(n), root)
    return [Step.of(others, root, others if own_chunks else 0, 1, reduce)][: others.size]


def _levels(num_ranks: int, group: int) -> list[tuple[Ints, int]]:
    """Return the children in each step up the binomial trees, and how far before them their parents stand.

    Each `group` of ranks has a tree. In a step with distance d the places that are odd multiples of d send.

    >>> [(child.tolist(), distance) for child, distance in _levels(6, 6)]
    [([1, 3, 5], 1), ([2], 2), ([4], 4)]
    """
    place = np.arange(num_ranks) % group
    return [(np.flatnonzero(place % (2 * distance) == distance), distance) for distance in distances(group)]


def distances(num_ranks: int) -> list[int]:
    """1, 2, 4, … below the number of ranks."""
    return [1 << k for k in range((num_ranks - 1).bit_length())]


def to_leaders(num_ranks: int, group: int, num_chunks: int = 1, root: int = 0) -> list[Step]:
    """Sums of whole buffers go up binomial trees to the first rank of each group of ranks.

    In step k every odd multiple of 2^k, counted within its group, sends to the even one below. If there is only one
    group, it may count from another `root`.
    """
    return [
        Step.of((child + root) % num_ranks, (child - distance + root) % num_ranks, 0, num_chunks, reduce=True)
        for child, distance in _levels(num_ranks, group)
    ]


def _subtrees(n: int, root: int) -> list[Step]:
    """Up a binomial tree: in each step a child passes its parent the chunks of it and of all places below it."""
    steps = []
    for child, distance in _levels(n, n):
        src = (child + root) % n
        dst = (child - distance + root) % n
        subtree_size = np.minimum(distance, n - child)  # the last one may be cut off
        steps.append(wrapping(src, dst, first=src, count=subtree_size, num_chunks=n))
    return steps


def wrapping(src: ArrayLike, dst: ArrayLike, first: ArrayLike, count: ArrayLike, num_chunks: int) -> Step:
    """Return one step in which `count` chunks from `first` on are copied to `dst`; a run past the last one is two rows.

    >>> wrapping([0, 1], [1, 0], [0, 2], 2, num_chunks=3).chunk.tolist()
    [0, 2, 0]
    """
    rows = Step.of(src, dst, first, count)
    over = np.maximum(rows.chunk + rows.num_chunks - num_chunks, 0)  # how many chunks are past the last one
    wraps = over > 0
    rest = Step.of(rows.src[wraps], rows.dst[wraps], 0, over[wraps])
    return Step.joined(rows._replace(num_chunks=rows.num_chunks - over), rest)
