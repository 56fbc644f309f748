"""What the explorers of `sampling` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

import math
from typing import Any

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
    lengths = LENGTHS[now.lengths](now.size).tolist()
    epoch = epoch_of(now)
    padded = longest = 0
    costs: list[list[int]] = []
    for rank in range(now.num_ranks):
        costs.append([])
        for batch in epoch.batches(rank):
            tokens = [lengths[sample] for sample in batch]
            padded += sum(max(tokens) - one for one in tokens)
            longest += max(tokens) * len(tokens)
            costs[-1].append(sum(one**2 if now.cost == "quadratic" else one for one in tokens))
    steps = list(zip(*costs, strict=True))
    if not steps:
        return []
    mean = sum(map(sum, steps)) / now.num_ranks
    slowest = sum(map(max, steps))
    worst = max(max(step) * now.num_ranks / sum(step) for step in steps)
    return [
        ("Ranks wait for #", 1 - mean / slowest),
        ("# of tokens are padding", padded / longest),
        ("takes # times as long as with equal work, and the worst step # times", slowest / mean, worst),
        ("# of the tokens that are processed are padding", padded / longest),
        ("the longest has #", max(lengths)),
    ]


TRUTHS = {"samplers": ({}, samplers), "unequal_lengths": ({}, unequal_lengths)}
