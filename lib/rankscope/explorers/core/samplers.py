"""The explorer of notebook 01: which rank reads which sample, for any sampler and setting, and what steps cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ...common.units import percent_words
from ...common.words import count_of
from ...figures.assignments import draw_assignment
from ...figures.marks import Drawing
from ...figures.steps import draw_step_costs
from ...sampling import Assignment, assign, audit, epoch_work
from ...sampling.kinds import SAMPLERS
from ...sampling.permutation import IntArray
from ..explorer import ALL, Explorer, Now, Setting, Steps
from ..opening import shows


def _samplers() -> list[tuple[str, str]]:
    """The title and the name of each sampler, your own as soon as it is registered."""
    return [(sampler.title, name) for name, sampler in SAMPLERS.items()]


_MEAN_LENGTH = 100  # in tokens, of all kinds of `LENGTHS`, at least approximately


def _lognormal(size: int) -> IntArray:
    """Return lengths as those of texts: many short ones and a few that are ten times as long."""
    normal = np.random.RandomState(0).standard_normal(size)
    lognormal = np.exp(normal - 0.5)  # of mean 1, since the exponential of a standard normal has the mean exp(0.5)
    whole_lengths = np.rint(_MEAN_LENGTH * lognormal)
    lengths: IntArray = np.maximum(whole_lengths, 1).astype(np.int64)  # no sample is empty
    return lengths


def _two_kinds(size: int) -> IntArray:
    """Return lengths of which the first quarter is long, as if two datasets were joined."""
    return np.where(np.arange(size) < size // 4, 250, 50)  # of mean 100


def _equal(size: int) -> IntArray:
    return np.full(size, _MEAN_LENGTH)


LENGTHS: dict[str, Callable[[int], IntArray]] = {"lognormal": _lognormal, "two kinds": _two_kinds, "equal": _equal}


def _length_kinds() -> list[str]:
    return list(LENGTHS)


SETTINGS = (
    Setting("sampler", "torch", _samplers, "sampler"),
    Setting("num_ranks", 4, range(1, 65), "ranks"),
    Setting("size", 50, Steps((*range(65), 100, 128, 200, 256, 500, 512, 1000, 1024, 1797, 2000, 2048)), "samples"),
    Setting("batch_size", 4, range(1, 65), "batch size per rank"),
    Setting(
        "lengths", "lognormal", _length_kinds, "lengths", "the number of tokens of each sample, about 100 on average"
    ),
    Setting("epoch", 0, range(10), "epoch"),
    Setting("seed", 0, range(21), "seed"),
    Setting("color_by", "rank", (("rank", "rank"), ("position in the dataset", "position")), "colour by"),
    Setting("shuffle", True, (False, True), "shuffle"),
    Setting("drop_last", False, (False, True), "drop_last", "libtorch's name for the opposite is allow_duplicates"),
    Setting("forget_set_epoch", False, (False, True), "forget set_epoch"),
)

_SHOWN_INDICES = 8  # of rank 0 in the report
PRESETS: dict[str, dict[str, Any]] = {
    "10 samples, 4 ranks": {"size": 10},
    "the same with drop_last": {"size": 10, "drop_last": True},
    "3 samples, 8 ranks": {"size": 3, "num_ranks": 8, "batch_size": 1},
    "epoch 3 without set_epoch": {"epoch": 3, "forget_set_epoch": True},
    "libtorch: the lost tail": {"sampler": "libtorch_random", "size": 22, "drop_last": True, "epoch": 5},
    "libtorch: 3 samples, 8 ranks": {"sampler": "libtorch_random", "size": 3, "num_ranks": 8, "batch_size": 1},
    "unequal lengths, in random order": {"size": 512, "num_ranks": 8, "batch_size": 8},
    "the same, balanced": {"sampler": "balanced", "size": 512, "num_ranks": 8, "batch_size": 8},
    "libtorch: slices": {"sampler": "libtorch_sequential", "color_by": "position"},
}


@lru_cache(maxsize=8)  # picture, report and controls ask for the same
def epochs(now: Now) -> list[Assignment]:
    """Return what is read in the epochs up to the one that is set.

    Without set_epoch, and for a sampler on which it has no effect, all of them are epoch 0.
    """
    without_effect = SAMPLERS[now.sampler].without_effect
    options: dict[str, Any] = {}
    for name in ("seed", "shuffle", "drop_last"):
        if name not in without_effect:  # `assign` rejects a value for a setting that the sampler does not have
            options[name] = getattr(now, name)
    options |= _own_settings(now)
    is_always_epoch_0 = now.forget_set_epoch or "epoch" in without_effect
    assignments = []
    for number in range(now.epoch + 1):
        epoch = 0 if is_always_epoch_0 else number
        assignment = assign(now.size, now.num_ranks, sampler=now.sampler, epoch=epoch, **options)
        if assignment.batch_stops is None:  # the sampler makes no batches itself
            assignment = assignment.with_loader(now.batch_size)
        assignments.append(assignment)
    return assignments


def _own_settings(now: Now) -> dict[str, Any]:
    """The settings that only this sampler has, as far as the controls decide them."""
    sampler = SAMPLERS[now.sampler]
    lengths = LENGTHS[now.lengths](now.size)
    settings: dict[str, Any] = {}
    if sampler.values is not None:  # "lengths" or "weights": as weights, longer samples are drawn more often
        settings[sampler.values] = lengths
    if "batch_size" in sampler.settings:
        settings["batch_size"] = now.batch_size
    return settings


def picture(now: Now) -> Drawing:
    """The last epoch: which rank reads which sample at which step."""
    last = epochs(now)[-1]
    when = f"epoch {now.epoch}"
    if last.epoch != now.epoch:
        when += f" in the order of epoch {last.epoch}"
    return draw_assignment(last, now.color_by)


def cost_picture(now: Now) -> Drawing:
    """The last epoch: what each step costs, for how long ranks wait in it, and how much of it is padding."""
    return draw_step_costs(epochs(now)[-1], LENGTHS[now.lengths](now.size))


def report(now: Now) -> list[str]:
    """How many batches there are per rank, and the audit of all epochs so far."""
    last = epochs(now)[-1]
    most_samples = last.num_steps  # per rank: an `Assignment` counts a step for each sample
    return [
        own_batches_line(last) or _batches_line(most_samples, now.batch_size),
        _first_rank_line(last.ranks[0].tolist()),
        _work_line(now),
        *str(audit(epochs(now), weights=_own_settings(now).get("weights"))).splitlines(),
    ]


def own_batches_line(assignment: Assignment) -> str:
    """How many batches a sampler makes that groups the samples itself; empty for other samplers."""
    if assignment.batch_stops is None:
        return ""
    sizes = np.concatenate([np.diff(stops, prepend=0) for stops in assignment.batch_stops])
    num_batches = assignment.batch_stops[0].size  # of rank 0; the samplers of the library give each rank as many
    words = "1 batch" if num_batches == 1 else f"{num_batches} batches"
    if not sizes.size:
        return f"{words} per rank"
    most = count_of(int(sizes.max()), "sample")
    if sizes.min() == sizes.max():
        return f"{words} per rank of {most}"
    return f"{words} per rank of {sizes.min()} to {most}"


def _work_line(now: Now) -> str:
    """What unequal lengths cost in the last epoch."""
    last = epochs(now)[-1]
    if any((indices >= now.size).any() for indices in last.ranks):
        return "some indices lie outside the dataset and have no length, so a step has no cost"
    work = epoch_work(last, LENGTHS[now.lengths](now.size))
    costs = f"a step takes {work.imbalance:.2f} times as long as with equal work"
    return f"{costs}, and {percent_words(work.padding_share)} of the tokens are padding"


def _batches_line(num_samples: int, batch_size: int) -> str:
    """How many batches there are per rank with so many samples, and of what size.

    >>> _batches_line(10, 4)
    '3 batches per rank of 4 samples, the last with 2'
    """
    if num_samples == 0:
        return "0 batches per rank"
    num_batches = math.ceil(num_samples / batch_size)
    line = f"{num_batches} batches per rank"
    if num_batches == 1:
        line = "1 batch per rank"
    line += f" of {count_of(min(batch_size, num_samples), 'sample')}"
    size_of_last = num_samples - (num_batches - 1) * batch_size
    if num_batches > 1 and size_of_last < batch_size:
        line += f", the last with {size_of_last}"
    return line


def _first_rank_line(indices: list[int]) -> str:
    """The first indices that rank 0 reads."""
    if not indices:
        return "rank 0 reads nothing"
    words = [str(index) for index in indices[:_SHOWN_INDICES]]
    if len(indices) > _SHOWN_INDICES:
        words.append("…")
    return f"rank 0 reads {', '.join(words)}"


def without_effect(now: Now) -> dict[str, str]:
    """Return for each control that changes nothing at these settings why it does not."""
    last = epochs(now)[-1]
    most_samples = last.num_steps  # per rank: an `Assignment` counts a step for each sample
    reasons = dict(SAMPLERS[now.sampler].without_effect)
    if "shuffle" not in reasons and not now.shuffle:
        reasons["seed"] = "without shuffle nothing is random"
    elif now.size < 2:
        reasons["seed"] = "there is nothing to shuffle"
    if now.epoch == 0:
        reasons["forget_set_epoch"] = "epoch 0 is the same with and without set_epoch"
    if last.batch_stops is None:  # otherwise the sampler groups the samples itself, and drops batches
        if now.size % now.num_ranks == 0:
            reasons["drop_last"] = "the samples divide evenly among the ranks"
        if most_samples < 2:
            reasons["batch_size"] = "no rank reads more than one sample"
    if most_samples == 0:
        for name in ("seed", "lengths", "batch_size"):
            reasons[name] = "no rank reads any sample"
    return reasons


ON_THE_SITE = {
    "sampler": ALL,
    "num_ranks": (1, 2, 4, 8),
    "size": (3, 10, 22, 50),
    "batch_size": (1, 4),
    "epoch": (0, 3, 5),
    "color_by": ALL,
    "drop_last": ALL,
    "forget_set_epoch": ALL,
}


@shows(SETTINGS, on_the_site=ON_THE_SITE)
def samplers() -> Explorer:
    """Return controls over which rank reads which sample in an epoch, and the audit of all epochs up to it."""
    return Explorer(SETTINGS, {"picture": picture, "cost": cost_picture}, report, PRESETS, without_effect)
