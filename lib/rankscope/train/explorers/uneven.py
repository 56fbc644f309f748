"""The explorer of uneven inputs: three ranks with different numbers of batches, and four ways to handle that."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.words import count_of
from ...explorers.explorer import Explorer, Now, Setting
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...sampling import Assignment, audit
from ..uneven.model import HANDLINGS, predict, simulate, stuck_ranks

BATCHES = range(1, 13)
SETTINGS = (
    Setting("handling", "hang", HANDLINGS, "handling"),
    Setting("rank_0", 2, BATCHES, "batches of rank 0"),
    Setting("rank_1", 3, BATCHES, "batches of rank 1"),
    Setting("rank_2", 5, BATCHES, "batches of rank 2"),
    Setting("allreduce_ms", 20, range(0, 201, 10), "allreduce [ms]"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "the job hangs": {},
    "drop the rest": {"handling": "drop"},
    "pad the short ones": {"handling": "pad"},
    "Join": {"handling": "join"},
}
_BATCH_SIZE = 8


def draw(now: Now) -> list[Drawing]:
    """The timeline: steps of 100 ms, and allreduces that give up after a second."""
    num_batches = [now.rank_0, now.rank_1, now.rank_2]
    title = f"{now.handling}: {count_of(len(stuck_ranks(num_batches, now.handling)), 'rank')} stuck"
    timeline = simulate(num_batches, now.handling, step_s=0.1, allreduce_s=now.allreduce_ms * 1e-3, timeout_s=1.0)
    return [draw_timeline(timeline, title=title)]


def report(now: Now) -> list[str]:
    """The effect on samples and gradients, with batches of eight."""
    ends = np.cumsum([now.rank_0, now.rank_1, now.rank_2]) * _BATCH_SIZE
    shards = np.split(np.arange(ends[-1]), ends[:-1])
    epoch = Assignment(ends[-1], tuple(shards)).with_loader(_BATCH_SIZE)
    predicted = predict(epoch, now.handling)
    reads = audit(predicted.trained)
    relative = predicted.weights / predicted.weights.mean()  # 1 is the fair share, as in the gradient of the mean loss
    scale = ", ".join(f"{weight:.3g}" for weight in predicted.scale)
    return [
        f"{count_of(epoch.size, 'sample')}: {reads.dropped} lost, {reads.duplicates} repeated",
        f"sum of the ranks' weights in the mean gradient, step by step: {scale}",
        f"each sample counts {relative.min():.2f} to {relative.max():.2f} times its fair share",
    ]


def uneven() -> Explorer:
    """Return controls over an epoch of three ranks with different numbers of batches, and its effect on samples."""
    return Explorer(SETTINGS, draw, report, PRESETS)
