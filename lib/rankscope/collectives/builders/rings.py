"""Allreduce on rings: each rank talks to its neighbours only, and every link carries about the same.

Ring: Patarasuk and Yuan (2009), Bandwidth optimal all-reduce algorithms. Torus and mesh name ways to cut the buffer
here, and run on any wiring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...common.checks import several, whole
from ..schedule import Schedule
from ..steps import Ints, Step
from .rooted import backwards, to_leaders


def ring(num_ranks: int) -> Schedule:
    """Reduce-scatter round the ring, then allgather: 2(N-1) steps of one of N chunks, any N."""
    return _grid("ring", num_ranks, shape=(num_ranks,))


def segmented_ring(num_ranks: int, num_segments: int = 4) -> Schedule:
    """The ring with each chunk in segments, so that a segment is added up while the next arrives.

    Costs `num_segments` times the ring's messages. A sum is sent on `num_segments` steps after it arrived, as the lag
    states.
    """
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        for start, reduce in ((0, True), (1, False)):
            one_segment = Step.of(ranks, (ranks + 1) % n, 0, 1, reduce)
            for step in range((n - 1) * num_segments):  # a step of the ring takes one for each segment of its chunk
                step_of_ring, segment = divmod(step, num_segments)
                chunk_of_ring = (ranks + start - step_of_ring) % n
                yield one_segment._replace(chunk=chunk_of_ring * num_segments + segment)

    return Schedule("allreduce", "segmented_ring", n, n * num_segments, steps, lag=num_segments)


def bidirectional_ring(num_ranks: int) -> Schedule:
    """The ring used both ways at once: partial sums meet in the middle, in half as many steps of two messages each.

    As fast as the ring if a rank sends one message at a time (`Cluster.ports` 1), twice as fast with two at once.
    """
    n = num_ranks
    ranks = np.arange(n)
    hops_right = n // 2  # of the sum that goes to a chunk's owner from the left; rank r owns chunk r
    hops_left = (n - 1) // 2  # of the sum that comes from the right
    right = (ranks + 1) % n
    left = (ranks - 1) % n
    # first the messages to the right, then those to the left
    adding = Step.of(np.r_[ranks, ranks], np.r_[right, left], 0, reduce=True)
    copying = Step.of(adding.src, adding.dst, 0)

    def steps() -> Iterator[Step]:
        if hops_right > hops_left:  # an even number of ranks: the sum to the right has one hop more
            yield Step.of(ranks, right, (ranks + hops_right) % n, reduce=True)
        for step in range(hops_left):  # in each direction, the chunk whose owner is `hops_left - step` hops away
            yield adding._replace(chunk=np.r_[ranks + hops_left - step, ranks - hops_left + step] % n)
        for step in range(hops_left):  # in each direction, the chunk whose owner is `step` hops behind
            yield copying._replace(chunk=np.r_[ranks - step, ranks + step] % n)
        if hops_right > hops_left:  # likewise, for the copies
            yield Step.of(ranks, right, (ranks - hops_left) % n)

    return Schedule("allreduce", "bidirectional_ring", n, n, steps, ports=2)


def hierarchical_ring(num_ranks: int, gpus_per_node: int | None = None) -> Schedule:
    """Reduce to a leader in each node (binomial tree), ring over the leaders, broadcast in each node.

    `gpus_per_node` must divide `num_ranks`; by default it is the smallest divisor that is at least √num_ranks.
    """
    nodes, gpus = nodes_of(num_ranks, gpus_per_node)
    leaders = np.arange(0, num_ranks, gpus)

    def steps() -> Iterator[Step]:
        up = to_leaders(num_ranks, gpus, num_chunks=nodes)
        yield from up
        for start, reduce in ((0, True), (1, False)):
            yield from once_round(leaders, np.roll(leaders, -1), np.arange(nodes), nodes, 1, start, reduce)
        yield from backwards(up)

    return Schedule("allreduce", "hierarchical_ring", num_ranks, nodes, steps)


def torus_2d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """Reduce-scatter along rows, then along columns, then allgather back: the ring's bandwidth in fewer steps.

    `shape` is (rows, ranks per row), with rank r in row r // (ranks per row). Give the number of nodes and of GPUs per
    node to keep the large messages within nodes. Its product must be `num_ranks`; by default it is as square as can be.
    """
    return _grid("torus_2d", num_ranks, shape_of(num_ranks, shape, 2))


def torus_3d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """`torus_2d` along three axes, the last first; `shape` has three numbers whose product is `num_ranks`."""
    return _grid("torus_3d", num_ranks, shape_of(num_ranks, shape, 3))


def mesh_2d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """A whole ring allreduce along rows, then another along columns, which carries the full buffer again."""
    n = num_ranks
    shape = shape_of(n, shape, 2)

    def steps() -> Iterator[Step]:
        for axis in (1, 0):  # along rows, then along columns
            size = shape[axis]
            place, neighbour = _along(n, shape, axis)
            block = n // size  # the chunks of one of `size` parts of the whole buffer
            for start, reduce in ((0, True), (1, False)):
                yield from once_round(np.arange(n), neighbour, place, size, block, start, reduce)

    return Schedule("allreduce", "mesh_2d", n, n, steps)


def _grid(algorithm: str, n: int, shape: Sequence[int]) -> Schedule:
    """Reduce-scatter along each axis of a grid of ranks, the last first, then allgather in the other order.

    After each axis a rank goes on with one of shape[axis] blocks, the one that it has summed.
    """

    def steps() -> Iterator[Step]:
        ranks = np.arange(n)
        base = np.zeros(n, dtype=np.int64)  # the first chunk that each rank still sums
        block = n  # how many chunks it still sums
        allgathers = []
        for axis in reversed(range(len(shape))):
            size = shape[axis]
            place, neighbour = _along(n, shape, axis)
            block //= size
            yield from once_round(ranks, neighbour, place, size, block, 0, True, base)
            allgathers.append(once_round(ranks, neighbour, place, size, block, 1, False, base))
            base = base + (place + 1) % size * block  # a reduce-scatter leaves block `place + 1` on each rank
        for allgather in reversed(allgathers):
            yield from allgather

    return Schedule("allreduce", algorithm, n, n, steps)


def shape_of(n: int, shape: Sequence[int] | None, axes: int) -> tuple[int, ...]:
    """Return a shape of so many axes whose product is n.

    If `shape` is None, its numbers are as even as possible, and in ascending order. Raises ValueError for a shape that
    does not fit.

    >>> shape_of(12, None, 2), shape_of(7, None, 2), shape_of(12, (2, 6), 2)
    ((3, 4), (1, 7), (2, 6))
    """
    if shape is not None:
        sizes = tuple(whole("shape", size, 1) for size in several("shape", shape))
        if len(sizes) != axes or math.prod(sizes) != n:
            raise ValueError(f"shape must be {axes} numbers whose product is num_ranks = {n}, got {sizes}")
        return sizes
    if axes == 1:
        return (n,)
    # A smallest number and the most even shape of the rest, whose numbers must not be smaller.
    shapes = [(size, *shape_of(n // size, None, axes - 1)) for size in range(1, math.isqrt(n) + 1) if n % size == 0]
    # Of numbers with the same product, the most even ones have the smallest maximum, and the smallest sum.
    return min((tuple(sorted(shape)) for shape in shapes), key=lambda shape: (max(shape), sum(shape)))


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


def _along(n: int, shape: Sequence[int], axis: int) -> tuple[Ints, Ints]:
    """Return each rank's place along the axis, and its next neighbour there."""
    place = np.indices(shape)[axis].ravel()
    neighbour = np.roll(np.arange(n).reshape(shape), -1, axis).ravel()
    return place, neighbour


def once_round(
    src: Ints, dst: Ints, place: Ints, size: int, block: int, start: int, reduce: bool, base: Ints | int = 0
) -> Iterator[Step]:
    """Yield a round of the rings of `size` ranks: in step s the rank at `place` sends block place + start - s.

    A block is `block` chunks, and block 0 begins at chunk `base`. If `start` is 0, the last block that a rank receives
    is place + 1. A reduce-scatter leaves the sum there, so the allgather after it starts at 1.
    """
    first = Step.of(src, dst, 0, block, reduce)
    for step in range(size - 1):
        yield first._replace(chunk=base + (place + start - step) % size * block)
