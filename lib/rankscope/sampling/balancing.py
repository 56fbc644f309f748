"""Batches of nearly equal cost from the samples of a window: of equally many samples, or of at most so many tokens.

Both begin with the costliest samples, as the LPT rule does (Graham, "Bounds on multiprocessing timing anomalies", SIAM
J. Appl. Math. 17 (1969)), but deal out one sample to every batch at a time, so that numpy does each round at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
Costs = NDArray[np.float64]


class WindowPlan(NamedTuple):
    """The batches of a window, as places in it, step by step and, within a step, rank by rank.

    `counts` has the shape (number of steps, number of ranks): the number of samples in each batch.
    """

    places: Places
    counts: NDArray[np.int64]


def ascending(values: Costs) -> Places:
    """Return the places of finite values of at least 0, lowest value first, and the lower place first among equals.

    The bits of such numbers sort as the numbers do. With a place instead of their last bits they are all different, so
    the fastest sort gives the same order on every machine. Values that agree in all other bits count as equal.

    >>> ascending(np.array([2.0, 1.0, 2.0])).tolist()
    [1, 0, 2]
    """
    mask = np.int64((1 << values.size.bit_length()) - 1)
    keys = (values + 0.0).view(np.int64) & ~mask  # the sum makes -0.0 a 0.0
    keys |= np.arange(values.size)
    keys.sort()
    return keys & mask


def plan_equal_batches(costs: Costs, num_ranks: int, batch_size: int) -> WindowPlan:
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
        return WindowPlan(np.empty(0, dtype=np.int64), np.empty((0, num_ranks), dtype=np.int64))
    pool = ascending(costs)[::-1]
    steps: list[Places] = []
    while len(steps) < num_steps - 1:
        pool_costs = costs[pool]
        mean_cost = pool_costs.sum() / ((num_steps - len(steps)) * num_ranks)
        highest = pool_costs[0] + (batch_size - 1) * pool_costs[-1]
        if batch_size == 1 or highest <= mean_cost:
            break
        chosen = _filled_step(pool_costs, num_ranks, batch_size)
        steps.append(pool[chosen])
        is_left = np.ones(pool.size, dtype=bool)
        is_left[chosen] = False
        pool = pool[is_left]
    num_batches = pool.size // batch_size
    batches = np.empty((num_batches, batch_size), dtype=np.int64)
    totals = np.zeros(num_batches)
    for number in range(batch_size):
        dealt = pool[number * num_batches : (number + 1) * num_batches]
        by_cost = ascending(totals)
        batches[by_cost, number] = dealt
        totals[by_cost] += costs[dealt]
    rest = batches[ascending(totals)[::-1]].reshape(-1, num_ranks, batch_size)
    grid = np.concatenate([np.array(steps, dtype=np.int64).reshape(-1, num_ranks, batch_size), rest])
    grid = grid[np.argsort(grid[:, 0, 0])]
    of_rank = np.argsort(grid[:, :, 0], axis=1)
    grid = np.take_along_axis(grid, of_rank[:, :, None], axis=1)
    grid.sort(axis=2)
    return WindowPlan(grid.ravel(), np.full((num_steps, num_ranks), batch_size))


def _filled_step(pool_costs: Costs, num_ranks: int, batch_size: int) -> Places:
    """Build one step around the costliest samples of a pool, whose costs descend.

    Each batch is filled up to the cost of the batch with the costliest sample: by the costliest free sample that leaves
    enough for the cheapest ones. Returns places in the pool, of shape (num_ranks, batch_size).
    """
    lowest = pool_costs[-1]
    target = pool_costs[0] + (batch_size - 1) * lowest
    is_free = np.ones(pool_costs.size, dtype=bool)
    chosen = np.empty((num_ranks, batch_size), dtype=np.int64)
    chosen[:, 0] = np.arange(num_ranks)
    is_free[:num_ranks] = False
    totals = pool_costs[:num_ranks].copy()
    rank_places = np.arange(num_ranks)
    for number in range(1, batch_size):
        cost_left = target - totals - (batch_size - 1 - number) * lowest
        by_cost_left = ascending(np.maximum(cost_left, 0.0))[::-1]
        free = np.flatnonzero(is_free)
        wanted = np.searchsorted(-pool_costs[free], -cost_left[by_cost_left])  # the first that is not too costly
        wanted = np.maximum.accumulate(wanted - rank_places) + rank_places  # each sample once
        wanted = np.minimum(wanted, free.size - num_ranks + rank_places)
        picked = free[wanted]
        chosen[by_cost_left, number] = picked
        totals[by_cost_left] += pool_costs[picked]
        is_free[picked] = False
    return chosen


def plan_token_batches(
    costs: Costs, lengths: NDArray[np.int64], num_ranks: int, max_tokens: int, num_steps: int
) -> WindowPlan:
    """Divide the samples into batches of at most `max_tokens` tokens, of nearly equal cost.

    There are ``num_steps * num_ranks`` batches, or more steps if the samples do not fit. A batch is empty only if there
    are fewer samples than batches, because each batch gets one before any gets a second one. No length may be above
    `max_tokens`.
    """
    by_cost = ascending(costs)
    while True:
        num_batches = num_steps * num_ranks
        owner = np.empty(costs.size, dtype=np.int64)
        totals = _dealt_tokens(by_cost, costs, lengths, np.full(num_batches, max_tokens), owner)
        if totals is not None:
            return _plan_of_owners(owner, by_cost, totals, num_ranks)
        num_steps += 1


def _dealt_tokens(
    by_cost: Places, costs: Costs, lengths: NDArray[np.int64], tokens_left: NDArray[np.int64], owner: Places
) -> Costs | None:
    """Deal samples out to batches with so many tokens left each, and write each one's batch into `owner`.

    Return the cost of each batch, or None if the samples do not fit.
    """
    totals = np.zeros(tokens_left.size)
    pending = by_cost[::-1]
    while pending.size:
        accepted = _dealt_round(pending, ascending(totals), lengths, tokens_left, owner)
        if not accepted.any():
            pending = pending[ascending(lengths[pending].astype(np.float64))[::-1]]
            accepted = _dealt_round(
                pending, ascending(tokens_left.astype(np.float64))[::-1], lengths, tokens_left, owner
            )
        if not accepted.any():
            return None
        done = pending[: accepted.size][accepted]
        totals += np.bincount(owner[done], costs[done], totals.size)
        pending = np.concatenate([pending[: accepted.size][~accepted], pending[accepted.size :]])
    return totals


def _dealt_round(
    pending: Places, batches: Places, lengths: NDArray[np.int64], tokens_left: NDArray[np.int64], owner: Places
) -> NDArray[np.bool_]:
    """Offer one sample to each batch, and return which of the samples fitted; `tokens_left` and `owner` are updated."""
    count = min(pending.size, batches.size)
    samples = pending[:count]
    takers = batches[:count]
    fits = lengths[samples] <= tokens_left[takers]
    owner[samples[fits]] = takers[fits]
    tokens_left[takers[fits]] -= lengths[samples[fits]]
    return fits


def _plan_of_owners(owner: Places, by_cost: Places, totals: Costs, num_ranks: int) -> WindowPlan:
    """Sort batches by cost into steps, and then steps and ranks by the place of their costliest sample.

    `owner` has the batch of each sample, `by_cost` the samples in the order of their costs, and `totals` the cost of
    each batch.
    """
    num_batches = totals.size
    costliest = np.full(num_batches, owner.size, dtype=np.int64)  # the place in the window; empty batches come last
    costliest[owner[by_cost]] = by_cost  # of equal batches, the last one written stays: the costliest sample
    grid = ascending(totals)[::-1].reshape(-1, num_ranks)  # batches, steps by ranks
    grid = grid[np.argsort(costliest[grid[:, 0]])]
    rank_order = np.argsort(costliest[grid], axis=1, kind="stable")
    grid = np.take_along_axis(grid, rank_order, axis=1)
    turn = np.empty(num_batches, dtype=np.int64)  # of each batch, in the order of the grid
    turn[grid.ravel()] = np.arange(num_batches)
    # One sort of turns and places together, which is faster than a stable sort of turns.
    keys = turn[owner] * owner.size + np.arange(owner.size)
    keys.sort()
    places = keys % max(owner.size, 1)
    counts = np.bincount(turn[owner], minlength=num_batches).reshape(-1, num_ranks)
    return WindowPlan(places, counts)
