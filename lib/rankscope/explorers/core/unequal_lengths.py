"""The explorer of samples that are not equally long: what steps cost with each sampler, and how much is padding."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...common.units import percent_words
from ...common.words import count_of
from ...figures.marks import Drawing
from ...figures.steps import draw_lengths, draw_step_costs
from ...sampling import Assignment, EpochWork, assign, audit, epoch_work
from ...sampling.permutation import IntArray
from ..explorer import ALL, Explorer, Now, Setting, Steps
from ..opening import shows
from .samplers import LENGTHS, own_batches_line

_SAMPLERS = (
    ("random order", "torch"),
    ("BalancedSampler", "balanced"),
    ("WeightedSampler, by length", "weighted"),
)
_LENGTHS = (("texts: many short, few long", "lognormal"), ("two kinds", "two kinds"), ("equal", "equal"))
_COSTS = (("tokens", "linear"), ("tokens²", "quadratic"))

SETTINGS = (
    Setting("sampler", "torch", _SAMPLERS, "sampler"),
    Setting("lengths", "lognormal", _LENGTHS, "lengths", "the number of tokens of each sample, about 100 on average"),
    Setting("num_ranks", 8, Steps((1, 2, 4, 8, 16, 32, 64)), "ranks"),
    Setting("batch_size", 8, Steps((1, 2, 4, 8, 16, 32)), "batch size per rank"),
    Setting("size", 1024, Steps((64, 128, 256, 500, 512, 1000, 1024, 2000, 2048, 4096)), "samples"),
    Setting("window", 100, Steps((1, 2, 5, 10, 20, 50, 100)), "window", "in steps"),
    Setting(
        "cost",
        "linear",
        _COSTS,
        "cost of a sample",
        "the number of its tokens, or the square of that number, as in attention",
    ),
    Setting("drop_last", False, (False, True), "drop_last"),
    Setting("epoch", 0, range(10), "epoch"),
)

PRESETS: dict[str, dict[str, Any]] = {
    "unequal lengths, in random order": {},
    "the same, balanced": {"sampler": "balanced"},
    "balanced in windows of one step": {"sampler": "balanced", "window": 1},
    "64 ranks, in random order": {"num_ranks": 64, "size": 4096},
    "64 ranks, balanced": {"sampler": "balanced", "num_ranks": 64, "size": 4096},
    "two datasets joined": {"lengths": "two kinds"},
    "attention: the longest sample decides": {"sampler": "balanced", "cost": "quadratic"},
}


def _token_counts(now: Now) -> IntArray:
    return LENGTHS[now.lengths](now.size)


@lru_cache(maxsize=8)  # pictures, report and controls ask for the same
def epoch_of(now: Now) -> Assignment:
    """Return what each rank reads in the epoch."""
    lengths = _token_counts(now)
    settings: dict[str, Any] = {"sampler": now.sampler}
    if now.sampler == "balanced":
        settings |= {"lengths": lengths, "batch_size": now.batch_size, "cost": now.cost, "window": now.window}
    if now.sampler == "weighted":
        settings |= {"weights": lengths, "num_samples": now.size // 2}
    epoch = assign(now.size, now.num_ranks, epoch=now.epoch, drop_last=now.drop_last, **settings)
    if epoch.batch_stops is None:
        epoch = epoch.with_loader(now.batch_size)
    return epoch


def _work(now: Now) -> EpochWork:
    return epoch_work(epoch_of(now), _token_counts(now), now.cost)


def lengths_picture(now: Now) -> Drawing:
    """How many samples have which length."""
    return draw_lengths(_token_counts(now))


def cost_picture(now: Now) -> Drawing:
    """What each step costs, for how long ranks wait in it, and how much of it is padding."""
    return draw_step_costs(epoch_of(now), _token_counts(now), now.cost)


def report(now: Now) -> list[str]:
    """What the steps of the epoch cost, how much padding is processed, and what is read."""
    epoch = epoch_of(now)
    work = _work(now)
    weights = _token_counts(now) if now.sampler == "weighted" else None
    batches = own_batches_line(epoch)
    if not batches:
        num_steps = count_of(work.step_costs.shape[0], "step")
        batches = f"{num_steps} of up to {count_of(now.batch_size, 'sample')} per rank"
    worst = work.ratios.max(initial=1.0)  # 1 if there are no steps; no ratio is below 1
    return [
        f"a step takes {work.imbalance:.2f} times as long as with equal work, and the worst step {worst:.2f} times",
        f"{percent_words(work.padding_share)} of the tokens that are processed are padding",
        batches,
        *str(audit(epoch, weights=weights)).splitlines(),
    ]


def without_effect(now: Now) -> dict[str, str]:
    """Return for each control that changes nothing at these settings why it does not."""
    reasons = {}
    if now.sampler != "balanced":
        reasons["window"] = "only BalancedSampler regroups samples within a window"
    if now.lengths == "equal":
        reasons["epoch"] = "samples of equal length cost the same in every epoch"
    return reasons


ON_THE_SITE = {
    "sampler": ALL,
    "lengths": ALL,
    "num_ranks": (2, 8, 64),
    "batch_size": (2, 4, 8),
    "size": (256, 1024),
    "cost": ALL,
}


@shows(SETTINGS, on_the_site=ON_THE_SITE)
def unequal_lengths() -> Explorer:
    """Return controls over the lengths of samples and the sampler that groups them, and the resulting cost of steps."""
    return Explorer(SETTINGS, {"cost": cost_picture, "lengths": lengths_picture}, report, PRESETS, without_effect)
