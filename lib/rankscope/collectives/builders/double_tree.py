"""The double binary tree: two pipelined trees, in which a rank that is inside one is a leaf of the other.

Sanders, Speck and Träff (2009), Two-tree algorithms for full bandwidth broadcast, reduction and scan; NCCL since 2.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np

from ...common.checks import whole
from ..schedule import MOST_RANKS, MOST_SEGMENTS, Ints, Phase, Schedule


def double_binary_tree(num_ranks: int, num_segments: int = 8) -> Schedule:
    """Half of the buffer goes up and down one tree and half the other, each half in `num_segments` chunks.

    A rank is inside at most one tree, so it receives from two children there, in turns, and sends to its two parents in
    the turns between: every step uses each port once. The way down is the way up in reverse. Any N.
    """
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    segments = whole("num_segments", num_segments, 1, MOST_SEGMENTS)
    trees = np.array([parents(n, 0), parents(n, 1)])
    tree, child = np.nonzero(trees >= 0)  # the edges
    parent = trees[tree, child]
    first = _first_steps(tree.tolist(), child.tolist(), parent.tolist())
    last = -1  # step of the way up
    if n > 1:
        last = int(first.max()) + 2 * (segments - 1)

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
    for place in range(1, num_ranks + 1):
        if place == top:
            continue
        above = _parent_of_place(place)
        while above > num_ranks:  # that place has no rank, so its parent is taken instead
            above = _parent_of_place(above)
        up[place] = above
    places = np.arange(num_ranks + 1)
    rank_at = places % num_ranks
    if tree == 0:
        rank_at = (places - 1) % num_ranks
    parent = np.full(num_ranks, -1)
    parent[rank_at[1:]] = np.where(up[1:] < 0, -1, rank_at[up[1:]])
    return parent


def _parent_of_place(place: int) -> int:
    """Return the place above, whose binary form ends with one more zero.

    >>> [_parent_of_place(place) for place in (1, 3, 2, 6)]
    [2, 2, 4, 4]
    """
    lowest_bit = place & -place
    return (place ^ lowest_bit) | (lowest_bit << 1)


def _first_steps(tree: list[int], child: list[int], parent: list[int]) -> Ints:
    """Return the step in which each edge carries its first segment: after all edges below it, in its colour's turn."""
    color = _two_colors(child, parent)
    edges_to: dict[tuple[int, int], list[int]] = defaultdict(list)  # by tree and parent
    for edge, tree_and_parent in enumerate(zip(tree, parent, strict=True)):
        edges_to[tree_and_parent].append(edge)

    @cache
    def first_step(edge: int) -> int:
        below = edges_to[tree[edge], child[edge]]
        soonest = max((first_step(other) + 1 for other in below), default=0)
        is_its_turn = soonest % 2 == color[edge]
        return soonest if is_its_turn else soonest + 1

    return np.array([first_step(edge) for edge in range(len(tree))], dtype=np.int64)


def _two_colors(child: list[int], parent: list[int]) -> list[int]:
    """Return a turn, 0 or 1, for each edge, so that no rank sends twice, nor receives twice, in one turn.

    Each rank sends on at most two edges and receives on at most two: alternate along the paths and rings they form.
    """
    sent_by: dict[int, list[int]] = defaultdict(list)  # edges by rank, as in `received_by`
    received_by: dict[int, list[int]] = defaultdict(list)
    for edge in range(len(child)):
        sent_by[child[edge]].append(edge)
        received_by[parent[edge]].append(edge)
    color = [-1] * len(child)  # -1: not known yet
    for start in range(len(child)):
        to_color = [(start, 0)]
        while to_color:
            edge, turn = to_color.pop()
            if color[edge] >= 0:
                continue
            color[edge] = turn
            for other in sent_by[child[edge]] + received_by[parent[edge]]:
                if color[other] < 0:
                    to_color.append((other, 1 - turn))
    return color
