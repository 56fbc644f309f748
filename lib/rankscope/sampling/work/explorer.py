"""The explorer of samples that are not equally long: what steps cost with each sampler, and how much is padding."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...common.units import percent_words
from ...common.words import count_of
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps
from ..assignment import Assignment
from ..kinds import assign
from .lengths import LENGTHS, MEAN_LENGTH
from .model import epoch_work
from .picture import draw_step_costs

_SAMPLERS = (("random order", "torch"), ("BalancedSampler", "balanced"))
_LENGTHS = (("texts: many short, few long", "lognormal"), ("two kinds", "two kinds"))
_COSTS = (("tokens", "linear"), ("tokens², as in attention", "quadratic"))
_BATCHES = (("samples", "samples"), ("tokens", "tokens"))
SETTINGS = (
    Setting("sampler", "torch", _SAMPLERS, "sampler"),
    Setting("lengths", "lognormal", _LENGTHS, "lengths"),
    Setting("num_ranks", 8, Steps((1, 2, 4, 8, 16, 32, 64)), "ranks"),
    Setting("batch_size", 8, Steps((1, 2, 4, 8, 16, 32)), "batch size per rank"),
    Setting("batch_by", "samples", _BATCHES, "batch by", lambda now: now.sampler == "balanced"),
    Setting("size", 1024, Steps((64, 128, 256, 500, 512, 1000, 1024, 2000, 2048, 4096)), "samples"),
    Setting("window", 100, Steps((1, 2, 5, 10, 20, 50, 100)), "window [steps]", lambda now: now.sampler == "balanced"),
    Setting("cost", "linear", _COSTS, "cost of a sample"),
    Setting("drop_last", False, (), "drop_last"),
    Setting("epoch", 0, range(10), "epoch"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "unequal lengths, in random order": {},
    "the same, balanced": {"sampler": "balanced"},
    "balanced in windows of one step": {"sampler": "balanced", "window": 1},
    "64 ranks, in random order": {"num_ranks": 64, "size": 4096},
    "64 ranks, balanced": {"sampler": "balanced", "num_ranks": 64, "size": 4096},
    "batches of tokens": {"sampler": "balanced", "batch_by": "tokens"},
    "two datasets joined": {"lengths": "two kinds"},
    "attention: the longest sample decides": {"sampler": "balanced", "cost": "quadratic"},
}


@lru_cache(maxsize=8)  # draw and report ask for the same
def epoch_of(now: Now) -> Assignment:
    """Return what each rank reads in the epoch."""
    lengths = LENGTHS[now.lengths](now.size)
    settings: dict[str, Any] = {"sampler": now.sampler}
    if now.sampler == "balanced":
        settings |= {"lengths": lengths, "cost": now.cost, "window": now.window}
        if now.batch_by == "tokens":
            settings["max_tokens"] = max_tokens(now)
        else:
            settings["batch_size"] = now.batch_size
    epoch = assign(now.size, now.num_ranks, epoch=now.epoch, drop_last=now.drop_last, **settings)
    if epoch.batch_stops is None:
        epoch = epoch.with_loader(now.batch_size)
    return epoch


def max_tokens(now: Now) -> int:
    """Return the tokens of as many samples of mean length as a batch has; the longest sample fits, too."""
    longest = LENGTHS[now.lengths](now.size).max()
    return int(max(now.batch_size * MEAN_LENGTH, longest))


def draw(now: Now) -> list[Drawing]:
    """What each step costs, and how long ranks wait in it."""
    return [draw_step_costs(epoch_of(now), LENGTHS[now.lengths](now.size), now.cost)]


def report(now: Now) -> list[str]:
    """How long the samples are, what the steps of the epoch cost, and how much padding is processed."""
    epoch = epoch_of(now)
    lengths = LENGTHS[now.lengths](now.size)
    work = epoch_work(epoch, lengths, now.cost)
    worst = work.ratios.max(initial=1.0)  # 1 if there are no steps; no ratio is below 1
    batch = f"about {count_of(now.batch_size, 'sample')}"
    if now.sampler == "balanced" and now.batch_by == "tokens":
        batch = f"at most {max_tokens(now)} tokens"
    return [
        f"{count_of(work.step_costs.shape[0], 'step')} of {batch} per rank",
        f"a step takes {work.imbalance:.2f} times as long as with equal work, and the worst step {worst:.2f} times",
        f"{percent_words(work.padding_share)} of the tokens that are processed are padding",
        f"half of the samples have at most {np.median(lengths):.0f} tokens, and the longest has {lengths.max()}",
    ]


def unequal_lengths() -> Explorer:
    """Return controls over the lengths of samples and the sampler that groups them, and the resulting cost of steps."""
    return Explorer(SETTINGS, draw, report, PRESETS)
