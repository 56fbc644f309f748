"""Batches of equally many samples and nearly equal cost from the samples of a window.

The costliest samples come first, as in the LPT rule (Graham, "Bounds on multiprocessing timing anomalies", SIAM J.
Appl. Math. 17 (1969)), but each round deals out one sample to every batch, so that numpy does a round at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Costs = NDArray[np.float64]


class Plan(NamedTuple):
    """The batches of a window, step by step and, within a step, rank by rank.

    `positions` are those of the samples in the window. `counts` has the shape (number of steps, number of ranks): the
    number of samples in each batch.
    """

    positions: Indices
    counts: NDArray[np.int64]


def ascending(values: Costs) -> Indices:
    """Return the indices of finite values of at least 0, lowest value first, and the lower index first among equals.

    The bits of such numbers, read as integers, sort as the numbers do. With its index in place of its last bits, each
    is different, so the fastest sort gives the same order on every machine. Values that agree in all other bits count
    as equal.

    >>> ascending(np.array([2.0, 1.0, 2.0])).tolist()
    [1, 0, 2]
    """
    index_bits = np.int64((1 << values.size.bit_length()) - 1)
    keys = (values + 0.0).view(np.int64) & ~index_bits  # the sum makes -0.0 a 0.0
    keys |= np.arange(values.size)
    keys.sort()
    return keys & index_bits


def divide(costs: Costs, num_last: int) -> tuple[Indices, Indices]:
    """Choose the samples of medium cost for a last step: few samples per rank balance best if they cost the same.

    Returns the positions of these samples, and those of all others.
    """
    by_cost = ascending(costs)
    first = (by_cost.size - num_last) // 2
    others = np.sort(np.concatenate([by_cost[:first], by_cost[first + num_last :]]))
    return by_cost[first : first + num_last], others


def plan_equal_batches(costs: Costs, num_ranks: int, batch_size: int) -> Plan:
    """Divide the samples into batches of `batch_size`, so that the batches of each step cost nearly the same.

    `costs` has a multiple of ``num_ranks * batch_size`` entries. Three parts:

    1. While the costliest sample alone costs more than a mean batch, no division can equalize all batches. A step is
       then built around the `num_ranks` costliest samples: each is filled up to the cost of the costliest batch.
    2. The others are dealt out, costliest first: in each round, the batch with the lowest cost gets the costliest
       sample of the round.
    3. The batches are sorted by cost and cut into steps, because ranks wait for each other only within a step.

    The order of steps and of ranks then follows the window's own order. So if that is random, they are random.
    """
    num_steps = costs.size // (num_ranks * batch_size)
    if num_steps == 0:
        return Plan(np.empty(0, dtype=np.int64), np.empty((0, num_ranks), dtype=np.int64))
    pool = ascending(costs)[::-1]  # the samples that are in no batch yet, costliest first
    built_steps: list[Indices] = []
    while len(built_steps) < num_steps - 1:  # the last step gets all samples that are left
        pool_costs = costs[pool]
        mean_cost = pool_costs.sum() / ((num_steps - len(built_steps)) * num_ranks)
        # The least that a batch with the costliest sample can cost, if all others in it are as cheap as the cheapest.
        least_cost_of_costliest = pool_costs[0] + (batch_size - 1) * pool_costs[-1]
        # A batch of one sample cannot be filled up, and part 3 sorts these into steps.
        if batch_size == 1 or least_cost_of_costliest <= mean_cost:
            break
        chosen = _filled_step(pool_costs, num_ranks, batch_size)
        built_steps.append(pool[chosen])
        is_left = np.ones(pool.size, dtype=bool)
        is_left[chosen] = False
        pool = pool[is_left]
    batches = _dealt_batches(pool, costs, batch_size)
    # Arrays of samples from here on, of shape (steps, ranks, samples of a batch).
    first_steps = np.array(built_steps, dtype=np.int64).reshape(-1, num_ranks, batch_size)
    steps = np.concatenate([first_steps, batches.reshape(-1, num_ranks, batch_size)])
    # The first sample of a batch is its costliest. Its index in the window decides the order of steps and of ranks.
    steps = steps[np.argsort(steps[:, 0, 0])]
    rank_order = np.argsort(steps[:, :, 0], axis=1)
    steps = np.take_along_axis(steps, rank_order[:, :, None], axis=1)
    steps.sort(axis=2)  # the samples of a batch in the window's own order, too
    return Plan(steps.ravel(), np.full((num_steps, num_ranks), batch_size))


def plan_token_batches(lengths: Indices, num_padding: int, num_ranks: int, max_tokens: int) -> Plan:
    """Divide the samples into batches of at most `max_tokens`, also if each is padded to its longest sample.

    A step takes the longest samples that are left, as many on each rank. They are dealt there and back, so that ranks
    get nearly equal numbers of tokens. The order of steps and of ranks follows the window's own order, but a step with
    padding is the last one. `num_padding` positions beyond the samples are for repeated samples that are no longer than
    the shortest; with them, there is a multiple of `num_ranks` samples.
    """
    padding = lengths.size + np.arange(num_padding)
    longest_first = np.concatenate([ascending(lengths.astype(np.float64))[::-1], padding])
    steps: list[Indices] = []
    start = 0
    while start < longest_first.size:
        longest = max(int(lengths[longest_first[start]]), 1)
        stop = start + num_ranks * max(max_tokens // longest, 1)
        dealt = longest_first[start:stop].reshape(-1, num_ranks)
        dealt[1::2] = dealt[1::2, ::-1].copy()
        steps.append(dealt.T[np.argsort(dealt[0])])
        start = stop
    steps.sort(key=lambda step: (step.max() >= lengths.size, step[0, 0]))
    positions = [np.sort(step, axis=1).ravel() for step in steps]
    counts = [[step.shape[1]] * num_ranks for step in steps]
    return Plan(np.concatenate([padding[:0], *positions]), np.reshape(counts, (-1, num_ranks)).astype(np.int64))


def _dealt_batches(pool: Indices, costs: Costs, batch_size: int) -> Indices:
    """Deal the samples of a pool, costliest first, into batches of nearly equal cost; return these, costliest first.

    In each round every batch gets one sample: the cheapest batch so far gets the costliest sample of the round. The
    result has the shape (batches, batch_size).
    """
    num_batches = pool.size // batch_size
    batches = np.empty((num_batches, batch_size), dtype=np.int64)
    totals = np.zeros(num_batches)
    for round_number in range(batch_size):
        dealt = pool[round_number * num_batches : (round_number + 1) * num_batches]
        cheapest_first = ascending(totals)
        batches[cheapest_first, round_number] = dealt
        totals[cheapest_first] += costs[dealt]
    return batches[ascending(totals)[::-1]]


def _filled_step(pool_costs: Costs, num_ranks: int, batch_size: int) -> Indices:
    """Build one step around the costliest samples of a pool, whose costs descend.

    Each batch is filled up to the cost of the batch with the costliest sample: by the costliest free sample that leaves
    enough for the cheapest ones. Returns indices into the pool, of shape (num_ranks, batch_size).
    """
    lowest = pool_costs[-1]
    target = pool_costs[0] + (batch_size - 1) * lowest  # the cost of the batch with the costliest sample
    is_free = np.ones(pool_costs.size, dtype=bool)
    chosen = np.empty((num_ranks, batch_size), dtype=np.int64)
    chosen[:, 0] = np.arange(num_ranks)
    is_free[:num_ranks] = False
    totals = pool_costs[:num_ranks].copy()
    rank_numbers = np.arange(num_ranks)
    for number in range(1, batch_size):
        num_after_this = batch_size - 1 - number  # samples that the batch gets later, which cost `lowest` at least
        cost_left = target - totals - num_after_this * lowest
        # The batch with the most cost left chooses first. `ascending` needs values of at least 0.
        ranks = ascending(np.maximum(cost_left, 0.0))[::-1]
        free = np.flatnonzero(is_free)
        # For each batch, the index in `free` of the costliest sample that is not too costly. These indices ascend.
        wanted = np.searchsorted(-pool_costs[free], -cost_left[ranks])
        # A batch whose sample was taken by the one before takes the next sample, so that indices ascend strictly.
        wanted = np.maximum.accumulate(wanted - rank_numbers) + rank_numbers
        wanted = np.minimum(wanted, free.size - num_ranks + rank_numbers)  # the last ones, if there are too few
        picked = free[wanted]
        chosen[ranks, number] = picked
        totals[ranks] += pool_costs[picked]
        is_free[picked] = False
    return chosen
