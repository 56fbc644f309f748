"""Allreduce over a switch that adds (`Cluster.switch_adds`): NCCL's NVLS within a node, NVLSTree over several.

What the switch does: multimem.ld_reduce and multimem.st in NVIDIA's PTX ISA,
https://docs.nvidia.com/cuda/parallel-thread-execution/.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import Schedule
from ..steps import Ints, Step
from .double_tree import double_binary_tree
from .rings import nodes_of
from .rooted import ports_to_others


def nvls(num_ranks: int, num_segments: int = 4) -> Schedule:
    """Each rank owns one of N chunks of every segment: all ranks send to the owners, and these send the sums to all.

    A segment is added up in the step in which the one before it goes out: `num_segments` + 1 steps. It is for a switch
    that adds, where a segment crosses each link little more than once. On other clusters it is slow, with N-1 messages
    at each port.
    """
    n = num_ranks

    def steps() -> Iterator[Step]:
        src, dst = _pairs(1, n)
        for step in range(num_segments + 1 if n > 1 else 0):
            # Each pair has two transfers: one adds a segment, and one sends out the sums of the segment before it.
            adding = Step.of(src, dst, step * n + dst, reduce=True)
            sending = Step.of(src, dst, (step - 1) * n + src)
            if step == 0:
                yield adding
            elif step == num_segments:
                yield sending
            else:
                yield Step._make(map(np.concatenate, zip(adding, sending, strict=True)))

    return Schedule("allreduce", "nvls", n, n * num_segments, steps, ports=ports_to_others(n))


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

    def steps() -> Iterator[Step]:
        src, dst = _pairs(nodes, gpus)
        if gpus > 1:
            yield Step.of(src, dst, dst % gpus * share, share, reduce=True)
        for step in trees.steps():
            # Each transfer between nodes becomes one for each owner of a share: a row of each of these tables.
            chunk = owner * share + step.chunk
            reduce = np.tile(step.reduce, gpus)
            yield Step.of(
                (step.src * gpus + owner).ravel(), (step.dst * gpus + owner).ravel(), chunk.ravel(), 1, reduce
            )
        if gpus > 1:
            yield Step.of(src, dst, src % gpus * share, share)

    return Schedule("allreduce", "nvls_tree", num_ranks, gpus * share, steps, ports=ports_to_others(gpus))


def _pairs(nodes: int, gpus_per_node: int) -> tuple[Ints, Ints]:
    """Return all pairs of two ranks of a node, as senders and receivers."""
    src, dst = np.nonzero(~np.eye(gpus_per_node, dtype=bool))
    first = np.arange(nodes)[:, None] * gpus_per_node
    return (first + src).ravel(), (first + dst).ravel()
