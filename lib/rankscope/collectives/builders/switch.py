"""Allreduce over a switch that adds (`Cluster.switch_adds`): NCCL's NVLS within a node, NVLSTree over several.

What the switch does: multimem.ld_reduce and multimem.st in NVIDIA's PTX ISA,
https://docs.nvidia.com/cuda/parallel-thread-execution/.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...common.checks import whole
from ..schedule import MOST_RANKS, MOST_SEGMENTS, Ints, Phase, Schedule
from .double_tree import double_binary_tree
from .rings import nodes_of

MOST_IN_NODE = 1 << 10  # all pairs of them send to each other


def nvls(num_ranks: int, num_segments: int = 4) -> Schedule:
    """Each rank owns one of N chunks of every segment: all ranks send to the owners, and these send the sums to all.

    A segment is added up in the step in which the one before it goes out: `num_segments` + 1 steps. It is for a switch
    that adds, where a segment crosses each link little more than once. On other clusters it is slow, with N-1 messages
    at each port. Raises ValueError for more than 1,024 ranks.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    segments = whole("num_segments", num_segments, 1, MOST_SEGMENTS)
    whole("num_ranks of nvls", n, 1, MOST_IN_NODE)  # fewer than for other algorithms, which say "num_ranks"

    def phases() -> Iterator[Phase]:
        src, dst = _pairs(1, n)
        # Each pair has two transfers: one adds a segment, and one sends out the sums of the segment before it.
        both_src = np.r_[src, src]
        both_dst = np.r_[dst, dst]
        adds = np.repeat([True, False], src.size)

        def chunk_of(segment: int, owner: Ints) -> Ints:
            return segment * n + owner

        def both_chunks(step: int) -> Ints:
            return np.concatenate([chunk_of(step + 1, owner=dst), chunk_of(step, owner=src)])

        if n > 1:
            yield Phase(src, dst, chunk_of(0, owner=dst), reduce=True)
            yield Phase(both_src, both_dst, both_chunks, reduce=adds, num_steps=segments - 1)
            yield Phase(src, dst, chunk_of(segments - 1, owner=src))

    return Schedule("allreduce", "nvls", n, n * segments, phases, ports=max(1, n - 1))  # at least 1, for a single rank


def nvls_tree(num_ranks: int, gpus_per_node: int | None = None, num_segments: int = 4) -> Schedule:
    """Add up in each node to the owners of a share, then over the nodes, and send out in each node.

    Over the nodes each owner's share goes up and down the double binary tree of `num_segments`, with the owners of the
    same share in the other nodes. The three parts follow one another; NCCL overlaps them. `gpus_per_node` is as in
    `hierarchical_ring`.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    nodes, gpus = nodes_of(n, gpus_per_node)
    whole("gpus_per_node of nvls_tree", gpus, 1, MOST_IN_NODE)
    trees = double_binary_tree(nodes, num_segments)
    local = np.arange(gpus)  # the ranks of a node, each of which owns a share of the buffer
    share = trees.num_chunks  # of each owner, in chunks: what the trees carry

    def phases() -> Iterator[Phase]:
        src, dst = _pairs(nodes, gpus)
        if gpus > 1:
            yield Phase(src, dst, dst % gpus * share, share, reduce=True)
        for step in trees.steps():
            # Each transfer between nodes becomes one for each owner of a share. The tables have a row for each owner
            # and a column for each transfer, which has one chunk.
            owners_src = np.add.outer(local, step.src * gpus).ravel()
            owners_dst = np.add.outer(local, step.dst * gpus).ravel()
            chunk = np.add.outer(local * share, step.chunk).ravel()
            yield Phase(owners_src, owners_dst, chunk, reduce=np.tile(step.reduce, gpus))
        if gpus > 1:
            yield Phase(src, dst, src % gpus * share, share)

    ports = max(1, gpus - 1)  # within a node; at least 1, for the trees
    return Schedule("allreduce", "nvls_tree", n, gpus * share, phases, ports=ports)


def _pairs(nodes: int, gpus_per_node: int) -> tuple[Ints, Ints]:
    """Return all pairs of two ranks of a node, as senders and receivers."""
    src, dst = np.nonzero(~np.eye(gpus_per_node, dtype=bool))
    first = np.arange(nodes)[:, None] * gpus_per_node
    return (first + src).ravel(), (first + dst).ravel()
