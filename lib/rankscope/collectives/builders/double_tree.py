"""The double binary tree: two pipelined trees, in which a rank that is inside one is a leaf of the other.

Sanders, Speck and Träff (2009), Two-tree algorithms for full bandwidth broadcast, reduction and scan; NCCL since 2.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np

from ..schedule import Schedule
from ..steps import Ints, Step


def double_binary_tree(num_ranks: int, num_segments: int = 8) -> Schedule:
    """Half of the buffer goes up and down one tree and half the other, each half in `num_segments` chunks.

    A rank is inside at most one tree, so it receives from two children there, in turns, and sends to its two parents in
    the turns between: every step uses each port once. The way down is the way up in reverse. Any N.
    """
    n = num_ranks
    parents_in_trees = np.array([parents(n, 0), parents(n, 1)])
    tree, child = np.nonzero(parents_in_trees >= 0)  # of each edge, as `parent` and `first_step`
    parent = parents_in_trees[tree, child]
    first_step = _first_steps(tree.tolist(), child.tolist(), parent.tolist())
    steps_up = 0
    if n > 1:
        steps_up = int(first_step.max()) + 2 * (num_segments - 1) + 1  # in every second step an edge carries a segment

    def carried(step: int) -> tuple[Ints, Ints]:
        """Return which edges carry something in this step of the way up, and which segment each of them carries."""
        segment, remainder = np.divmod(step - first_step, 2)
        edges = np.flatnonzero((remainder == 0) & (segment >= 0) & (segment < num_segments))
        return edges, segment[edges]

    def steps() -> Iterator[Step]:
        for step in range(steps_up):
            edge, segment = carried(step)
            yield Step.of(child[edge], parent[edge], tree[edge] * num_segments + segment, reduce=True)
        for step in reversed(range(steps_up)):
            edge, segment = carried(step)
            segment_down = num_segments - 1 - segment  # segment 0 goes down first, in the turns of the last one up
            yield Step.of(parent[edge], child[edge], tree[edge] * num_segments + segment_down)

    return Schedule("allreduce", "double_binary_tree", n, 2 * num_segments, steps)


def parents(num_ranks: int, tree: int) -> Ints:
    """Return each rank's parent in the tree, -1 for its root.

    Rank r stands at place r + 1 of the first tree and at place r of the second (rank 0 at N); a place's height is the
    number of zeros its binary form ends with, so odd places are the leaves.

    >>> parents(6, 0).tolist()
    [1, 3, 1, -1, 5, 3]
    """
    places = np.arange(num_ranks + 1)  # place 0 is in no tree
    rank_at = places % num_ranks
    if tree == 0:
        rank_at = (places - 1) % num_ranks
    root_place = 1 << (num_ranks.bit_length() - 1)  # the largest power of two is the highest place
    parent = np.full(num_ranks, -1)
    for place in range(1, num_ranks + 1):
        if place == root_place:
            continue
        parent_place = _parent_of_place(place)
        while parent_place > num_ranks:  # there is no such place, so the one above it takes the child
            parent_place = _parent_of_place(parent_place)
        parent[rank_at[place]] = rank_at[parent_place]
    return parent


def _parent_of_place(place: int) -> int:
    """Return the place above, whose binary form ends with one more zero.

    >>> [_parent_of_place(place) for place in (1, 3, 2, 6)]
    [2, 2, 4, 4]
    """
    lowest_bit = place & -place
    return (place ^ lowest_bit) | (lowest_bit << 1)


def _first_steps(tree: list[int], child: list[int], parent: list[int]) -> Ints:
    """Return the step in which each edge carries its first segment: after all edges below it, in its turn.

    The turns are those of `_turns_of_edges`: an edge with turn 0 uses even steps, one with turn 1 odd steps.
    """
    turn = _turns_of_edges(child, parent)
    edges_to: dict[tuple[int, int], list[int]] = defaultdict(list)  # by tree and parent
    for edge, tree_and_parent in enumerate(zip(tree, parent, strict=True)):
        edges_to[tree_and_parent].append(edge)

    @cache
    def first_step(edge: int) -> int:
        below = edges_to[tree[edge], child[edge]]  # none, if the child is a leaf
        soonest = max((first_step(other) + 1 for other in below), default=0)
        is_its_turn = soonest % 2 == turn[edge]
        return soonest if is_its_turn else soonest + 1

    return np.array([first_step(edge) for edge in range(len(tree))], dtype=np.int64)


def _turns_of_edges(child: list[int], parent: list[int]) -> list[int]:
    """Return a turn, 0 or 1, for each edge, so that no rank sends twice, nor receives twice, in one turn.

    Each rank sends on at most two edges and receives on at most two. Two such edges must have different turns. They
    form paths and rings of even length, along which the turns alternate.
    """
    sent_by: dict[int, list[int]] = defaultdict(list)  # edges by rank, as in `received_by`
    received_by: dict[int, list[int]] = defaultdict(list)
    for edge in range(len(child)):
        sent_by[child[edge]].append(edge)
        received_by[parent[edge]].append(edge)
    turn_of: dict[int, int] = {}
    for start in range(len(child)):
        to_visit = [(start, 0)]
        while to_visit:
            edge, turn = to_visit.pop()
            if edge in turn_of:
                continue
            turn_of[edge] = turn
            for other in sent_by[child[edge]] + received_by[parent[edge]]:
                if other not in turn_of:
                    to_visit.append((other, 1 - turn))
    return [turn_of[edge] for edge in range(len(child))]
