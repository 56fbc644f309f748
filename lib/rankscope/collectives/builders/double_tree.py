"""The double binary tree: two pipelined trees, in which whoever is inside one is a leaf of the other.

Sanders, Speck and Träff (2009), Two-tree algorithms for full bandwidth broadcast, reduction and scan; NCCL since 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...values.checks import whole
from ..schedule import Ints, Phase, Schedule


def double_binary_tree(num_ranks: int, num_segments: int = 8) -> Schedule:
    """Half of the buffer up and down one tree, half up and down the other, each half in `num_segments` chunks.

    A rank is inside one tree at most, so it receives from two children there, in turns, and sends to its two parents in
    the turns between: every step uses each port once. The way down is the way up in reverse. Any N.
    """
    n, segments = whole("num_ranks", num_ranks, 1), whole("num_segments", num_segments, 1)
    trees = parents(n, 0), parents(n, 1)
    tree, child = (np.concatenate(rows) for rows in zip(*(_edges(t, up) for t, up in enumerate(trees)), strict=True))
    parent = np.where(tree == 0, trees[0][child], trees[1][child])
    first = _first_steps(n, tree, child, parent) if n > 1 else np.empty(0, dtype=np.int64)
    last = int(first.max()) + 2 * (segments - 1) if n > 1 else -1

    def carried(step: int) -> tuple[Ints, Ints]:
        """Which edges carry something in this step of the way up, and which segment."""
        segment = (step - first) // 2
        used = np.flatnonzero(((step - first) % 2 == 0) & (segment >= 0) & (segment < segments))
        return used, segment[used]

    def phases() -> Iterator[Phase]:
        for step in range(last + 1):
            edge, segment = carried(step)
            yield Phase(child[edge], parent[edge], tree[edge] * segments + segment, 1, True)
        for step in reversed(range(last + 1)):
            edge, segment = carried(step)
            yield Phase(parent[edge], child[edge], (tree[edge] + 1) * segments - 1 - segment, 1, False)

    return Schedule("allreduce", "double_binary_tree", n, 2 * segments, phases)


def parents(num_ranks: int, tree: int) -> Ints:
    """Return each rank's parent in the tree, -1 for its root.

    Rank r stands at place r + 1 of the first tree and at place r of the second (rank 0 at N); a place's height is the
    number of zeros its binary form ends with, so odd places are the leaves.

    >>> parents(6, 0).tolist()
    [1, 3, 1, -1, 5, 3]
    """
    up = np.full(num_ranks + 1, -1)
    top = 1 << (num_ranks.bit_length() - 1)
    for here in (place for place in range(1, num_ranks + 1) if place != top):
        above = here
        while above == here or above > num_ranks:  # a parent that is not there: the next one up
            low = above & -above
            above = (above ^ low) | (low << 1)
        up[here] = above
    rank_at = (np.arange(num_ranks + 1) - 1 if tree == 0 else np.arange(num_ranks + 1)) % num_ranks
    result = np.full(num_ranks, -1)
    result[rank_at[1:]] = np.where(up[1:] < 0, -1, rank_at[up[1:]])
    return result


def _edges(tree: int, up: Ints) -> tuple[Ints, Ints]:
    child = np.flatnonzero(up >= 0)
    return np.full(child.size, tree), child


def _first_steps(n: int, tree: Ints, child: Ints, parent: Ints) -> Ints:
    """When each edge carries its first segment: after all edges below it, in the turn of its colour."""
    color = _two_colors(n, child, parent)
    first = np.zeros(tree.size, dtype=np.int64)
    edge_of = {(int(t), int(c)): e for e, (t, c) in enumerate(zip(tree, child, strict=True))}
    below: dict[int, list[int]] = {}
    for e, (t, p) in enumerate(zip(tree.tolist(), parent.tolist(), strict=True)):
        above = edge_of.get((t, p))
        if above is not None:
            below.setdefault(above, []).append(e)
    done: dict[int, int] = {}

    def settle(e: int) -> int:
        if e not in done:
            soonest = max((settle(b) + 1 for b in below.get(e, [])), default=0)
            done[e] = soonest + (soonest - int(color[e])) % 2
        return done[e]

    for e in range(tree.size):
        first[e] = settle(e)
    return first


def _two_colors(n: int, child: Ints, parent: Ints) -> Ints:
    """A turn, 0 or 1, for each edge, so that no rank sends twice, nor receives twice, in one turn.

    Each rank sends on two edges at most and receives on two at most: alternate along the paths and rings they form.
    """
    ends: dict[int, list[int]] = {}
    for e, (c, p) in enumerate(zip(child.tolist(), parent.tolist(), strict=True)):
        ends.setdefault(c, []).append(e)
        ends.setdefault(n + p, []).append(e)
    color = np.full(child.size, -1)
    for start in range(child.size):
        todo = [(start, 0)] if color[start] < 0 else []
        while todo:
            e, mine = todo.pop()
            if color[e] < 0:
                color[e] = mine
                near = ends[int(child[e])] + ends[n + int(parent[e])]
                todo += [(other, 1 - mine) for other in near if color[other] < 0]
    return color
