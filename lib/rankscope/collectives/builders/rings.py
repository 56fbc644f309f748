"""Allreduce on rings: each rank talks to its neighbours only, and every link carries about the same.

Ring: Patarasuk and Yuan (2009), Bandwidth optimal all-reduce algorithms. Torus and mesh name ways to cut the buffer
here, and run on any wiring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ...common.checks import several, whole
from ..schedule import MOST_RANKS, MOST_SEGMENTS, Ints, Phase, Schedule
from .rooted import backwards, to_leaders

_MOST_NAMED_SHAPES = 12  # in a message, which would be too long to read with more


def ring(num_ranks: int) -> Schedule:
    """Reduce-scatter round the ring, then allgather: 2(N-1) steps of one of N chunks, any N."""
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return _grid("ring", n, shape=(n,))


def segmented_ring(num_ranks: int, num_segments: int = 4) -> Schedule:
    """The ring with each chunk in segments, so that a segment is added up while the next arrives.

    Costs `num_segments` times the ring's messages. A sum is sent on `num_segments` steps after it arrived, as the lag
    states. Raises ValueError unless there are 1 to 65,536 segments.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    segments = whole("num_segments", num_segments, 1, MOST_SEGMENTS)
    ranks = np.arange(n)

    def sent_chunks(step: int, start: int) -> Ints:
        """Return the chunk that each rank sends. A step of the ring takes a step for each of its chunk's segments.

        `start` is that of `once_round`.
        """
        step_of_ring, segment = divmod(step, segments)
        chunk_of_ring = (ranks + start - step_of_ring) % n
        return chunk_of_ring * segments + segment

    def phases() -> Iterator[Phase]:
        next_rank = (ranks + 1) % n
        yield Phase(ranks, next_rank, partial(sent_chunks, start=0), reduce=True, num_steps=(n - 1) * segments)
        yield Phase(ranks, next_rank, partial(sent_chunks, start=1), num_steps=(n - 1) * segments)

    return Schedule("allreduce", "segmented_ring", n, n * segments, phases, lag=segments)


def bidirectional_ring(num_ranks: int) -> Schedule:
    """The ring used both ways at once: partial sums meet in the middle, in half as many steps of two messages each.

    As fast as the ring if a rank sends one message at a time (`Cluster.ports` 1), twice as fast with two at once.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    ranks = np.arange(n)
    hops_right = n // 2  # of the sum that goes to a chunk's owner from the left; rank r owns chunk r
    hops_left = (n - 1) // 2  # of the sum that comes from the right
    right = (ranks + 1) % n
    left = (ranks - 1) % n
    src = np.r_[ranks, ranks]  # first the messages to the right, then those to the left
    dst = np.r_[right, left]

    def added_chunks(step: int) -> Ints:
        """In each direction, the chunk whose owner is `hops_left - step` hops away."""
        return np.concatenate([ranks + hops_left - step, ranks - hops_left + step]) % n

    def copied_chunks(step: int) -> Ints:
        """In each direction, the chunk whose owner is `step` hops behind."""
        return np.concatenate([ranks - step, ranks + step]) % n

    def phases() -> Iterator[Phase]:
        if hops_right > hops_left:  # an even number of ranks: the sum to the right has one hop more
            yield Phase(ranks, right, (ranks + hops_right) % n, reduce=True)
        yield Phase(src, dst, added_chunks, reduce=True, num_steps=hops_left)
        yield Phase(src, dst, copied_chunks, num_steps=hops_left)
        if hops_right > hops_left:  # likewise, for the copies
            yield Phase(ranks, right, (ranks - hops_left) % n)

    return Schedule("allreduce", "bidirectional_ring", n, n, phases, ports=2)


def hierarchical_ring(num_ranks: int, gpus_per_node: int | None = None) -> Schedule:
    """Reduce to a leader in each node (binomial tree), ring over the leaders, broadcast in each node.

    `gpus_per_node` must divide `num_ranks`; by default it is the smallest divisor that is at least √num_ranks.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    nodes, gpus = nodes_of(n, gpus_per_node)
    leaders = np.arange(0, n, gpus)
    num_chunks = nodes  # as many as ranks in the ring

    def phases() -> Iterator[Phase]:
        next_leader = np.roll(leaders, -1)
        place = np.arange(nodes)
        yield from to_leaders(n, gpus, num_chunks)
        yield once_round(leaders, next_leader, place, size=nodes, start=0, reduce=True)
        yield once_round(leaders, next_leader, place, size=nodes, start=1, reduce=False)
        yield from backwards(to_leaders(n, gpus, num_chunks))

    return Schedule("allreduce", "hierarchical_ring", n, num_chunks, phases)


def torus_2d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """Reduce-scatter along rows, then along columns, then allgather back: the ring's bandwidth in fewer steps.

    `shape` is (rows, ranks per row), with rank r in row r // (ranks per row). Give the number of nodes and of GPUs per
    node to keep the large messages within nodes. Its product must be `num_ranks`; by default it is as square as can be.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return _grid("torus_2d", n, shape_of(n, shape, 2))


def torus_3d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """`torus_2d` along three axes, the last first; `shape` has three numbers whose product is `num_ranks`."""
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return _grid("torus_3d", n, shape_of(n, shape, 3))


def mesh_2d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """A whole ring allreduce along rows, then another along columns, which carries the full buffer again."""
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    shape = shape_of(n, shape, 2)
    ranks = np.arange(n)

    def phases() -> Iterator[Phase]:
        for axis in (1, 0):  # along rows, then along columns
            size = shape[axis]
            place, neighbour = _along(n, shape, axis)
            block = n // size  # the chunks of one of `size` parts of the whole buffer
            yield once_round(ranks, neighbour, place, size, block, start=0, reduce=True)
            yield once_round(ranks, neighbour, place, size, block, start=1, reduce=False)

    return Schedule("allreduce", "mesh_2d", n, n, phases)


def _grid(algorithm: str, n: int, shape: Sequence[int]) -> Schedule:
    """Reduce-scatter along each axis of a grid of ranks, the last first, then allgather in the other order.

    After each axis a rank goes on with one of shape[axis] blocks, the one that it has summed.
    """

    def phases() -> Iterator[Phase]:
        ranks = np.arange(n)
        base = np.zeros(n, dtype=np.int64)  # the first chunk that each rank still sums
        block = n  # how many chunks it still sums
        allgathers = []
        for axis in reversed(range(len(shape))):
            size = shape[axis]
            place, neighbour = _along(n, shape, axis)
            block //= size
            yield once_round(ranks, neighbour, place, size, block, start=0, reduce=True, base=base)
            allgathers.append(once_round(ranks, neighbour, place, size, block, start=1, reduce=False, base=base))
            base = base + (place + 1) % size * block  # a reduce-scatter leaves block `place + 1` on each rank
        yield from reversed(allgathers)

    return Schedule("allreduce", algorithm, n, n, phases)


def shape_of(n: int, shape: Sequence[int] | None, axes: int) -> tuple[int, ...]:
    """Return a shape of so many axes whose product is n.

    If `shape` is None, its numbers are as even as possible, and in ascending order. One axis may be -1, which stands
    for the remaining factor. Raises ValueError for a shape that does not fit, naming those that do.

    >>> shape_of(12, None, 2), shape_of(7, None, 2), shape_of(12, (-1, 6), 2)
    ((3, 4), (1, 7), (2, 6))
    """
    shapes = _shapes(n, axes)
    if shape is None:
        ascending = [shape for shape in shapes if list(shape) == sorted(shape)]
        # Of numbers with the same product, the most even ones have the smallest maximum, and the smallest sum.
        return min(ascending, key=lambda shape: (max(shape), sum(shape)))
    wanted = [whole("shape", size, -1) for size in several("shape", shape)]
    if len(wanted) == axes and wanted.count(-1) <= 1:
        for candidate in shapes:
            if all(size in (-1, fitting) for size, fitting in zip(wanted, candidate, strict=True)):
                return candidate
    names = ["×".join(map(str, shape)) for shape in shapes[:_MOST_NAMED_SHAPES]]
    if len(shapes) > _MOST_NAMED_SHAPES:
        names.append("…")
    got = "×".join(map(str, wanted))
    raise ValueError(f"shape must be {axes} numbers whose product is num_ranks = {n}: {', '.join(names)}; got {got}")


def nodes_of(n: int, gpus_per_node: int | None) -> tuple[int, int]:
    """Return how many nodes n ranks are on, and the ranks on each, which is the default of `shape_of` for None.

    >>> nodes_of(12, None), nodes_of(12, 2)
    ((3, 4), (6, 2))
    >>> nodes_of(12, 5)
    Traceback (most recent call last):
    ValueError: gpus_per_node must divide num_ranks = 12, got 5
    """
    if gpus_per_node is None:
        nodes, gpus = shape_of(n, None, 2)
        return nodes, gpus
    gpus_per_node = whole("gpus_per_node", gpus_per_node, 1, n)
    if n % gpus_per_node:
        raise ValueError(f"gpus_per_node must divide num_ranks = {n}, got {gpus_per_node}")
    return n // gpus_per_node, gpus_per_node


def _shapes(n: int, axes: int) -> list[tuple[int, ...]]:
    """Return all shapes of so many axes whose product is n."""
    if axes == 1:
        return [(n,)]
    # Each divisor up to √n has a partner from there on.
    small = [divisor for divisor in range(1, math.isqrt(n) + 1) if n % divisor == 0]
    divisors = sorted({*small, *(n // divisor for divisor in small)})
    return [(divisor, *others) for divisor in divisors for others in _shapes(n // divisor, axes - 1)]


def _along(n: int, shape: Sequence[int], axis: int) -> tuple[Ints, Ints]:
    """Return each rank's place along the axis, and its next neighbour there."""
    place = np.indices(shape)[axis].ravel()
    neighbour = np.roll(np.arange(n).reshape(shape), -1, axis).ravel()
    return place, neighbour


def once_round(
    src: Ints,
    dst: Ints,
    place: Ints,
    size: int,
    block: int = 1,
    start: int = 0,
    reduce: bool = False,
    base: Ints | int = 0,
) -> Phase:
    """Return a phase once round the rings of `size` ranks: in step s the rank at `place` sends block place + start - s.

    A block is `block` chunks, and block 0 begins at chunk `base`. If `start` is 0, the last block that a rank receives
    is place + 1. A reduce-scatter leaves the sum there, so the allgather after it starts at 1.
    """

    def chunk(step: int) -> Ints:
        return base + (place + start - step) % size * block

    return Phase(src, dst, chunk, block, reduce, num_steps=size - 1)
