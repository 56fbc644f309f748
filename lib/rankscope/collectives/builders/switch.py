"""Allreduce over a switch that adds (`Cluster.switch_adds`): NCCL's NVLS within a node, NVLSTree over several.

The switch does what multimem.ld_reduce and multimem.st ask for (NVIDIA's PTX ISA,
https://docs.nvidia.com/cuda/parallel-thread-execution).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..algorithms import IN_SWITCH, SEGMENTS, Algorithm
from ..cost import Terms
from ..schedule import Schedule
from ..steps import Ints, Step
from .double_tree import double_binary_tree, double_binary_tree_s
from .rings import by_nodes, nodes_of
from .rooted import ports_to_others


def nvls(num_ranks: int, num_segments: int = 4) -> Schedule:
    """Each rank owns one of N chunks of every segment: all ranks send to the owners, and these send the sums to all.

    A segment is added up in the step in which the one before it goes out: `num_segments` + 1 steps. It is for a switch
    that adds, where a segment crosses each link little more than once. On other clusters it is slow, with N-1 messages
    at each port.
    """
    n = num_ranks
    src, dst = _pairs(1, n)

    def steps() -> Iterator[Step]:
        for step in range(num_segments + 1 if n > 1 else 0):
            # Each pair has two transfers: one adds a segment, and one sends out the sums of the segment before it.
            adding = [Step.of(src, dst, step * n + dst, reduce=True)] if step < num_segments else []
            sending = [Step.of(src, dst, (step - 1) * n + src)] if step else []
            yield Step.joined(*adding, *sending)

    return Schedule("allreduce", "nvls", n, n * num_segments, steps, ports=ports_to_others(n))


def _nvls_s(t: Terms, num_segments: int = 4) -> Any:
    """(m+1)α + (2 + (m-1)(1+1/N))·S/m·β if the switch adds, which it does for three ranks and more.

    In the first of m+1 steps each rank sends a segment of S/m bytes, and in the last it receives the sums of one. In
    the steps between it sends the next segment, and also the sums that it owns of the one before, 1/N of a segment.
    Two ranks send each other half a segment instead, and add it up themselves: (m+1)α + Sβ + S/2·γ.
    """
    m = num_segments
    if t.num_ranks == 1:
        return 0
    if t.num_ranks == 2:
        return t.takes(m + 1, 1, 0.5)
    return t.takes(m + 1, (2 + (m - 1) * (1 + 1 / t.num_ranks)) / m)


def nvls_tree(num_ranks: int, gpus_per_node: int | None = None, num_segments: int = 4) -> Schedule:
    """Add up in each node to the owners of a share, then over the nodes, and send out in each node.

    Over the nodes each owner's share goes up and down the double binary tree of `num_segments`, with the owners of the
    same share in the other nodes. The three parts follow one another; NCCL overlaps them. `gpus_per_node` is as in
    `hierarchical_ring`.
    """
    nodes, gpus = nodes_of(num_ranks, gpus_per_node)
    trees = double_binary_tree(nodes, num_segments)
    share = trees.num_chunks  # of each owner, in chunks: what the trees carry
    owner = np.arange(gpus)[:, None]  # the ranks of a node, each of which owns a share of the buffer
    src, dst = _pairs(nodes, gpus)

    def steps() -> Iterator[Step]:
        if gpus > 1:
            yield Step.of(src, dst, dst % gpus * share, share, reduce=True)
        for step in trees.steps():
            # Each transfer between nodes becomes one for each owner of a share: a row of each of these tables.
            chunk = (owner * share + step.chunk).ravel()
            reduce = np.tile(step.reduce, gpus)
            yield Step.of((step.src * gpus + owner).ravel(), (step.dst * gpus + owner).ravel(), chunk, 1, reduce)
        if gpus > 1:
            yield Step.of(src, dst, src % gpus * share, share)

    return Schedule("allreduce", "nvls_tree", num_ranks, gpus * share, steps, ports=ports_to_others(gpus))


def _nvls_tree_s(t: Terms, gpus_per_node: int | None = None, num_segments: int = 4) -> Any:
    """`nvls` of one segment in a node, and between its two steps the double binary tree over 2^k nodes, of S/g."""
    nodes, gpus = nodes_of(t.num_ranks, gpus_per_node)
    over_nodes = t._replace(num_ranks=nodes, num_bytes=t.num_bytes / gpus)
    return _nvls_s(t._replace(num_ranks=gpus), 1) + double_binary_tree_s(over_nodes, num_segments)


def _pairs(nodes: int, gpus_per_node: int) -> tuple[Ints, Ints]:
    """Return all pairs of two ranks of a node, as senders and receivers."""
    src, dst = np.nonzero(~np.eye(gpus_per_node, dtype=bool))
    first = np.arange(nodes)[:, None] * gpus_per_node
    return (first + src).ravel(), (first + dst).ravel()


IN_SWITCH["nvls"] = Algorithm(
    nvls,
    _nvls_s,
    segments=SEGMENTS,
    arrange=lambda cluster: {} if cluster.switch_adds and cluster.num_nodes == 1 else None,
)
IN_SWITCH["nvls_tree"] = Algorithm(
    nvls_tree,
    _nvls_tree_s,
    segments=SEGMENTS,
    # On nodes of one rank, whose switches add nothing, its form does not apply, and it is a double binary tree.
    arrange=lambda cluster: by_nodes(cluster) if cluster.switch_adds and by_nodes(cluster) else None,
)
