"""The double binary tree: two pipelined trees, in which a rank that is inside one is a leaf of the other.

Source: Sanders, Speck and Träff (2009), Two-tree algorithms for full bandwidth broadcast, reduction and scan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ..algorithms import SEGMENTS, algorithm
from ..cost import Terms
from ..schedule import Schedule
from ..steps import Ints, Step


def double_binary_tree_s(t: Terms, num_segments: int = 8) -> Any:
    """2(log₂N + m) - 3 steps up and as many down, of S/2m bytes, if N is a power of two from 4; m each for N = 2.

    Of two ranks each tree is a single edge, which carries a segment in every second step. No other edge uses the steps
    between, so they take no time.
    """
    num_steps = {1: 0, 2: num_segments}.get(t.num_ranks, 2 * (t.log + num_segments) - 3)
    sent = num_steps / (2 * num_segments)
    return t.if_power_of_two(t.takes(2 * num_steps, 2 * sent, sent))


@algorithm("allreduce", "double_binary_tree", double_binary_tree_s, segments=SEGMENTS)
def double_binary_tree(num_ranks: int, num_segments: int = 8) -> Schedule:
    """Half of the buffer goes up and down one tree and half the other, each half in `num_segments` chunks.

    A rank is inside at most one tree, so it receives from two children there, in turns, and sends to its two parents in
    the turns between: every step uses each port once. The way down is the way up in reverse. Any N. In NCCL since 2.4.
    """
    n = num_ranks
    parents_in_trees = np.array([parents(n, 0), parents(n, 1)])
    tree, child = np.nonzero(parents_in_trees >= 0)  # of each edge, as `parent` and `first_step`
    parent = parents_in_trees[tree, child]
    first_step = _first_steps(list(zip(tree.tolist(), child.tolist(), parent.tolist(), strict=True)))
    steps_up = int(first_step.max(initial=-1)) + 2 * num_segments - 1  # an edge carries a segment in every second step

    def at(step: int, is_up: bool) -> Step:
        segment, remainder = np.divmod(step - first_step, 2)
        edge = np.flatnonzero((remainder == 0) & (segment >= 0) & (segment < num_segments))
        if is_up:
            return Step.of(child[edge], parent[edge], tree[edge] * num_segments + segment[edge], reduce=True)
        segment = num_segments - 1 - segment  # segment 0 goes down first, in the turns of the last one up
        return Step.of(parent[edge], child[edge], tree[edge] * num_segments + segment[edge])

    def steps() -> Iterator[Step]:
        if n > 1:
            yield from (at(step, True) for step in range(steps_up))
            yield from (at(step, False) for step in reversed(range(steps_up)))

    return Schedule("allreduce", "double_binary_tree", n, 2 * num_segments, steps)


def parents(num_ranks: int, tree: int) -> Ints:
    """Return each rank's parent in the tree, -1 for its root.

    Rank r stands at place r + 1 of the first tree and at place r of the second (rank 0 at N); a place's height is the
    number of zeros its binary form ends with, so odd places are the leaves.

    >>> parents(6, 0).tolist()
    [1, 3, 1, -1, 5, 3]
    """
    rank_at = (np.arange(num_ranks + 1) - (tree == 0)) % num_ranks  # place 0 is in no tree
    root_place = 1 << (num_ranks.bit_length() - 1)  # the largest power of two is the highest place
    parent = np.full(num_ranks, -1)
    for place in range(1, num_ranks + 1):
        if place != root_place:
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


Edge = tuple[int, int, int]  # tree, child and parent


def _first_steps(edges: list[Edge]) -> Ints:
    """Return the step in which each edge carries its first segment: after all edges below it, in its turn.

    An edge with turn 0 uses even steps, one with turn 1 odd steps. Each rank sends on at most two edges and receives on
    at most two, which must have different turns. They form paths and rings of even length, along which turns alternate.
    """
    sent_by: dict[int, list[Edge]] = defaultdict(list)
    received_by: dict[int, list[Edge]] = defaultdict(list)
    for edge in edges:
        sent_by[edge[1]].append(edge)
        received_by[edge[2]].append(edge)
    turn_of: dict[Edge, int] = {}
    for start in edges:
        to_visit = [(start, 0)]
        while to_visit:
            edge, turn = to_visit.pop()
            if edge not in turn_of:
                turn_of[edge] = turn
                to_visit += [(other, 1 - turn) for other in sent_by[edge[1]] + received_by[edge[2]]]

    @cache
    def first_step(edge: Edge) -> int:
        below = [other for other in received_by[edge[1]] if other[0] == edge[0]]  # none, if the child is a leaf
        soonest = max((first_step(other) + 1 for other in below), default=0)
        return soonest + (soonest + turn_of[edge]) % 2

    return np.array([first_step(edge) for edge in edges], dtype=np.int64)
