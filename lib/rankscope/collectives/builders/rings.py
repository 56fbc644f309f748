"""Allreduce on rings: each rank talks to its neighbours only, and every link carries about the same.

Torus and mesh name ways to cut the buffer here, and run on any wiring. Sources: Patarasuk and Yuan (2009), Bandwidth
optimal all-reduce algorithms; of torus and mesh, Mikami and others (2018), Massively distributed SGD:
ImageNet/ResNet-50 training in a flash.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from ...cluster import Cluster
from ...common.checks import several, whole
from ..algorithms import SEGMENTS, algorithm
from ..cost import Terms
from ..schedule import Schedule
from ..steps import Ints, Step
from .rooted import backwards, to_leaders

# ---- what rings share


class Rings(NamedTuple):
    """Rings of `size` ranks each: `rank` sends to `next`, and stands at `place` in its ring."""

    rank: Ints
    next: Ints
    place: Ints
    size: int

    def once_round(self, start: int, reduce: bool, block: int = 1, base: Ints | int = 0) -> Iterator[Step]:
        """Yield a round: in step s the rank at `place` sends block place + start - s.

        A block is `block` chunks, and block 0 begins at chunk `base`. If `start` is 0, the last block that a rank
        receives is place + 1. A reduce-scatter leaves the sum there, so the allgather after it starts at 1.
        """
        first = Step.of(self.rank, self.next, 0, block, reduce)
        for step in range(self.size - 1):
            yield first._replace(chunk=base + (self.place + start - step) % self.size * block)

    def allreduce(self, block: int = 1) -> Iterator[Step]:
        """Yield a reduce-scatter, then an allgather."""
        yield from self.once_round(0, True, block)
        yield from self.once_round(1, False, block)


def rings_along(shape: Sequence[int], axis: int = 0) -> Rings:
    """Return the rings along one axis of a grid of ranks."""
    ranks = np.arange(math.prod(shape)).reshape(shape)
    return Rings(ranks.ravel(), np.roll(ranks, -1, axis).ravel(), np.indices(shape)[axis].ravel(), shape[axis])


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
    divisors = [size for size in range(1, n + 1) if n % size == 0]
    shapes = [shape for shape in combinations_with_replacement(divisors, axes) if math.prod(shape) == n]
    # Of numbers with the same product, the most even ones have the smallest maximum, and the smallest sum.
    return min(shapes, key=lambda shape: (max(shape), sum(shape)))


def nodes_of(n: int, gpus_per_node: int | None) -> tuple[int, int]:
    """Return how many nodes n ranks are on, and the ranks on each, which is the default of `shape_of` for None.

    >>> nodes_of(12, None), nodes_of(12, 2)
    ((3, 4), (6, 2))
    >>> nodes_of(12, 5)
    Traceback (most recent call last):
    ValueError: gpus_per_node must divide num_ranks = 12, got 5
    """
    if gpus_per_node is None:
        _, gpus_per_node = shape_of(n, None, 2)
    if n % whole("gpus_per_node", gpus_per_node, 1):
        raise ValueError(f"gpus_per_node must divide num_ranks = {n}, got {gpus_per_node}")
    return n // gpus_per_node, gpus_per_node


def by_nodes(cluster: Cluster) -> dict[str, Any]:
    """The options of an algorithm that distinguishes nodes, if a cluster has several, and several ranks on each."""
    if cluster.num_nodes == 1 or cluster.gpus_per_node == 1:
        return {}
    return {"gpus_per_node": cluster.gpus_per_node}


def _grid(num_axes: int, cluster: Cluster) -> dict[str, Any]:
    """The shape of a grid whose last axis is within a node."""
    if not by_nodes(cluster):
        return {}
    return {"shape": (*shape_of(cluster.num_nodes, None, num_axes - 1), cluster.gpus_per_node)}


# ---- the algorithms


def ring_s(t: Terms) -> Any:
    """2(N-1)(α + S/N·β) + (N-1)/N·Sγ."""
    return t.takes(2 * t.num_others, 2 * t.others, t.others)


@algorithm("allreduce", "ring", ring_s)
def ring(num_ranks: int) -> Schedule:
    """Reduce-scatter round the ring, then allgather: 2(N-1) steps of one of N chunks, any N."""
    return Schedule("allreduce", "ring", num_ranks, num_ranks, rings_along((num_ranks,)).allreduce)


def _segmented_ring_s(t: Terms, num_segments: int = 4) -> Any:
    """2(N-1)m messages of σ = S/(Nm) bytes; adding shows only if it takes longer than a message, or if m is 1.

    With one segment it is the ring. With more, the port is always busy, or, if σγ > α + σβ, the adding of the first
    round is always busy, and the allgather follows it at a distance of one segment.
    """
    n, m = t.num_ranks, num_segments
    if m == 1 or n == 1:
        return ring_s(t)
    port_is_busy_s = t.takes(2 * (n - 1) * m, 2 * t.others)
    # One message arrives before the first sum. The last sum then goes n-1 hops: the first takes one message, and each
    # further one m messages, since a rank passes on m segments in each hop.
    num_messages = 2 + (n - 2) * m
    return np.maximum(port_is_busy_s, t.takes(num_messages, num_messages / (n * m), t.others))


@algorithm("allreduce", "segmented_ring", _segmented_ring_s, segments=SEGMENTS)
def segmented_ring(num_ranks: int, num_segments: int = 4) -> Schedule:
    """The ring with each chunk in segments, so that a segment is added up while the next arrives.

    Costs `num_segments` times the ring's messages. A sum is sent on `num_segments` steps after it arrived, as the lag
    states.
    """

    def steps() -> Iterator[Step]:
        for step in rings_along((num_ranks,)).allreduce():
            for segment in range(num_segments):
                yield step._replace(chunk=step.chunk * num_segments + segment)

    return Schedule("allreduce", "segmented_ring", num_ranks, num_ranks * num_segments, steps, lag=num_segments)


def _hierarchical_ring_s(t: Terms, gpus_per_node: int | None = None) -> Any:
    """A binomial tree in each node, there and back, and a ring over the leaders."""
    nodes, gpus = nodes_of(t.num_ranks, gpus_per_node)
    height = t._replace(num_ranks=gpus).log
    return t.takes(2 * height, 2 * height, height) + ring_s(t._replace(num_ranks=nodes))


@algorithm("allreduce", "hierarchical_ring", _hierarchical_ring_s, arrange=by_nodes)
def hierarchical_ring(num_ranks: int, gpus_per_node: int | None = None) -> Schedule:
    """Reduce to a leader in each node (binomial tree), ring over the leaders, broadcast in each node.

    `gpus_per_node` must divide `num_ranks`; by default it is the smallest divisor that is at least √num_ranks.
    """
    nodes, gpus = nodes_of(num_ranks, gpus_per_node)
    leaders = np.arange(0, num_ranks, gpus)
    up = to_leaders(num_ranks, gpus, num_chunks=nodes)
    over_leaders = Rings(leaders, np.roll(leaders, -1), np.arange(nodes), nodes).allreduce()
    return Schedule("allreduce", "hierarchical_ring", num_ranks, nodes, [*up, *over_leaders, *backwards(up)])


def _torus_s(t: Terms, shape: Sequence[int] | None = None, *, axes: int) -> Any:
    """A ring's bytes in 2(n-1) messages along each axis of n ranks."""
    sizes = shape_of(t.num_ranks, shape, axes)
    return t.takes(2 * (sum(sizes) - axes), 2 * t.others, t.others)


@algorithm("allreduce", "torus_2d", partial(_torus_s, axes=2), arrange=partial(_grid, 2))
def torus_2d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """Reduce-scatter along rows, then along columns, then allgather back: the ring's bandwidth in fewer steps.

    `shape` is (rows, ranks per row), with rank r in row r // (ranks per row). Give the number of nodes and of GPUs per
    node to keep the large messages within nodes. Its product must be `num_ranks`; by default it is as square as can be.
    """
    return _torus("torus_2d", shape_of(num_ranks, shape, 2))


def _mesh_s(t: Terms, shape: Sequence[int] | None = None) -> Any:
    """A ring along rows, then one along columns, both of the full buffer."""
    return sum(ring_s(t._replace(num_ranks=size)) for size in shape_of(t.num_ranks, shape, 2))


@algorithm("allreduce", "mesh_2d", _mesh_s, arrange=partial(_grid, 2))
def mesh_2d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """A whole ring allreduce along rows, then another along columns, which carries the full buffer again."""
    shape = shape_of(num_ranks, shape, 2)

    def steps() -> Iterator[Step]:
        for axis in (1, 0):
            rings = rings_along(shape, axis)
            yield from rings.allreduce(num_ranks // rings.size)

    return Schedule("allreduce", "mesh_2d", num_ranks, num_ranks, steps)


@algorithm("allreduce", "torus_3d", partial(_torus_s, axes=3), arrange=partial(_grid, 3))
def torus_3d(num_ranks: int, shape: Sequence[int] | None = None) -> Schedule:
    """`torus_2d` along three axes, the last first; `shape` has three numbers whose product is `num_ranks`."""
    return _torus("torus_3d", shape_of(num_ranks, shape, 3))


def _torus(algorithm: str, shape: Sequence[int]) -> Schedule:
    """Reduce-scatter along each axis of a grid of ranks, the last first, then allgather in the other order.

    After each axis a rank goes on with one of shape[axis] blocks, the one that it has summed.
    """
    n = math.prod(shape)

    def steps() -> Iterator[Step]:
        base: Ints | int = 0  # the first chunk that each rank still sums
        block = n  # how many chunks it still sums
        allgathers = []
        for axis in reversed(range(len(shape))):
            rings = rings_along(shape, axis)
            block //= rings.size
            yield from rings.once_round(0, True, block, base)
            allgathers.append(rings.once_round(1, False, block, base))
            base = base + (rings.place + 1) % rings.size * block  # the block that the reduce-scatter leaves on a rank
        for allgather in reversed(allgathers):
            yield from allgather

    return Schedule("allreduce", algorithm, n, n, steps)
