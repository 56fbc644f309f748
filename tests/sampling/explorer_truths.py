"""What the explorers of `sampling` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rankscope.sampling.work.explorer import epoch_of
from rankscope.sampling.work.lengths import LENGTHS

Truths = list[tuple[Any, ...]]


def samplers(now: Any) -> Truths:
    """Reads by arithmetic, for samplers that deal all samples evenly."""
    if now.sampler == "balanced":
        return []
    exact = now.size / now.num_ranks
    reads = math.floor(exact) if now.drop_last else math.ceil(exact)
    truths: Truths = [("rank 0 reads # samples? in # steps?", reads, math.ceil(reads / now.batch_size))]
    twice = reads * now.num_ranks - now.size
    if now.sampler == "weighted" or now.epoch or not reads:
        return truths
    if twice > 0:
        return [*truths, ("# of # samples? (?:is|are) read twice", twice, now.size)] if twice <= now.size else truths
    if twice < 0:
        return [*truths, (r"# of # samples? (?:is|are) \*never read", -twice, now.size)]
    return [*truths, ("Each of # samples? is read exactly once", now.size)]


def unequal_lengths(now: Any) -> Truths:
    """Costs and padding, sample by sample."""
    lengths = LENGTHS[now.lengths](now.size)
    epoch = epoch_of(now)
    ranks = [[lengths[batch] for batch in epoch.batches(rank)] for rank in range(now.num_ranks)]
    if not ranks[0]:
        return []
    costs = np.array([[sum(batch**2 if now.cost == "quadratic" else batch) for batch in rank] for rank in ranks])
    mean = costs.mean(axis=0)
    slowest = costs.max(axis=0)
    processed = sum(batch.max() * batch.size for rank in ranks for batch in rank)
    padding = 1 - sum(batch.sum() for rank in ranks for batch in rank) / processed
    longer = slowest.sum() / mean.sum()
    return [
        ("Ranks wait for #", 1 - 1 / longer),
        ("# of tokens are padding", padding),
        ("takes # times as long as with equal work, and the worst step # times", longer, max(slowest / mean)),
        ("# of the tokens that are processed are padding", padding),
        ("the longest has #", max(lengths)),
    ]


TRUTHS = {"samplers": ({}, samplers), "unequal_lengths": ({}, unequal_lengths)}
