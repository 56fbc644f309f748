"""The explorer of uneven inputs: three ranks with different numbers of batches, and four ways to handle that."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.words import count_of
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...sampling import Assignment, audit
from ..uneven.model import HANDLINGS, predict, simulate

SETTINGS = (
    Setting("handling", "hang", HANDLINGS, "handling"),
    Setting("rank_0", 2, range(1, 13), "batches of rank 0"),
    Setting("rank_1", 3, range(1, 13), "batches of rank 1"),
    Setting("rank_2", 5, range(1, 13), "batches of rank 2"),
    Setting("allreduce_ms", 20, Steps((*range(0, 100, 10), *range(100, 201, 20))), "allreduce [ms]"),
    Setting("divide_by_initial", True, (), "divide by all ranks", lambda now: now.handling == "join"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "the job hangs": {},
    "drop the rest": {"handling": "drop"},
    "pad the short ones": {"handling": "pad"},
    "Join": {"handling": "join"},
    "Join, divided by the ranks that are left": {"handling": "join", "divide_by_initial": False},
    "equal batches": {"rank_0": 3, "rank_2": 3},
}
_STEP_S = 0.1
_TIMEOUT_S = 1.0  # of an allreduce that hangs
_BATCH_SIZE = 8


def draw(now: Now) -> list[Drawing]:
    """The timeline: steps of 100 ms, and allreduces that give up after a second."""
    batches = _batches(now)
    stuck = [str(rank) for rank, num_batches in enumerate(batches) if num_batches > min(batches)]
    if now.handling != "hang" or not stuck:
        ending = "the epoch ends"
    elif len(stuck) == 1:
        ending = f"rank {stuck[0]} cannot go on"
    else:
        ending = f"ranks {' and '.join(stuck)} cannot go on"
    timeline = simulate(batches, now.handling, _STEP_S, now.allreduce_ms * 1e-3, _TIMEOUT_S)
    return [draw_timeline(timeline, title=f"{now.handling}: {ending}")]


def report(now: Now) -> list[str]:
    """The effect on samples and gradients, with batches of eight."""
    batches = _batches(now)
    num_samples = sum(batches) * _BATCH_SIZE
    shard_ends = np.cumsum(batches) * _BATCH_SIZE
    cuts = shard_ends[:-1]  # the last shard ends where the samples do
    shards = np.split(np.arange(num_samples), cuts)  # the samples of each rank
    epoch = Assignment(num_samples, tuple(shards)).with_loader(_BATCH_SIZE)
    predicted = predict(epoch, now.handling, now.divide_by_initial)
    reads = audit(predicted.trained)
    shares = predicted.weights / predicted.weights.sum()
    relative = shares * shares.size  # 1 is the fair share, as in the gradient of the mean loss
    scale = ", ".join(f"{weight:.3g}" for weight in predicted.scale)
    return [
        f"{count_of(epoch.size, 'sample')}: {reads.dropped} lost, {reads.duplicates} repeated",
        f"sum of the ranks' weights in the mean gradient, step by step: {scale}",
        f"each sample counts {relative.min():.2f} to {relative.max():.2f} times its fair share",
    ]


def _batches(now: Now) -> list[int]:
    return [now.rank_0, now.rank_1, now.rank_2]


def uneven() -> Explorer:
    """Return controls over an epoch of three ranks with different numbers of batches, and its effect on samples."""
    return Explorer(SETTINGS, draw, report, PRESETS)
