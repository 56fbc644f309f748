"""The explorer of a recorded DataLoader: its last epoch, above what other settings would make of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from ...common.units import percent_words
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps
from ...timeline import Timeline
from ...timeline.picture import draw_timeline
from ..service import Lognormal
from .model import LOOP, PIN_THREAD, worker_lane
from .profile import COLUMNS, LoaderProfile, LoaderSettings, predicted_epoch, predicted_s

_SHOWN = 24  # batches in the picture
_MOST_BATCHES = 500  # that are predicted, so that the picture follows the slider
_MOST_MISS = 0.25  # of the recorded rate: otherwise the model does not describe the loader
_NO_BATCH = -1  # the item of a worker's start
_STEPS_MS = Steps((("as recorded", 0), 1, 2, 3, 5, 8, 10, 15, 20, 30, 50, 80, 100, 150, 200, 300, 500, 1000))


def loader(recorded: Any = None) -> Explorer:
    """Return controls over the settings of a recorded DataLoader, and the timeline and the rate that they would have.

    `recorded` is what `record_dataloader` returned, once it has been iterated; without it, times are made up. Raises
    ValueError for anything else, and if no batch has been recorded.
    """
    if recorded is None:
        source = "made up"
        profile = _made_up()
        epoch = Timeline.of(predicted_epoch(profile, profile.settings))
    elif hasattr(recorded, "longest_epoch"):
        source = "recorded"
        profile = recorded.profile()
        epoch = recorded.longest_epoch()
    else:
        raise ValueError(f"recorded must be what record_dataloader returned, got {recorded!r}")
    own = profile.settings
    num_batches = min(profile.num_batches, _MOST_BATCHES)
    profile = replace(profile, num_batches=num_batches)
    epoch = _first_batches(epoch, num_batches, own.num_workers)
    own_rate = num_batches / epoch.makespan_s
    model_rate = num_batches / predicted_s(profile, own)

    @lru_cache(maxsize=8)
    def predicted(now: Now) -> Timeline:
        changes = now._asdict()
        step_s = changes.pop("step_ms") / 1e3
        changed = profile
        if step_s > 0:
            step_cpu_s = step_s / profile.step_s.mean() * profile.step_cpu_s
            changed = replace(profile, step_s=np.full_like(step_cpu_s, step_s), step_cpu_s=step_cpu_s)
        spans = Timeline.of(predicted_epoch(changed, replace(profile.settings, **changes)))
        return _first_batches(spans, num_batches, now.num_workers)

    def draw(now: Now) -> list[Drawing]:
        title = f"{num_batches / predicted(now).makespan_s:.3g} batches/s predicted, {own_rate:.3g} {source}"
        deck = f"with the {source} settings, the model predicts {model_rate:.3g}"
        if abs(model_rate / own_rate - 1) > _MOST_MISS:
            deck = f"unreliable: {deck}"
        shown = {
            source: _first_batches(epoch, _SHOWN, own.num_workers),
            "predicted": _first_batches(predicted(now), _SHOWN, now.num_workers),
        }
        return [draw_timeline(shown, title, deck.capitalize())]

    def report(now: Now) -> list[str]:
        return [f"training waits for {_waiting(predicted(now))} of the time predicted, and {_waiting(epoch)} {source}"]

    settings = (
        Setting("num_workers", own.num_workers, range(max(16, 2 * own.num_workers) + 1), "num_workers"),
        Setting(
            "prefetch_factor",
            own.prefetch_factor,
            range(1, max(8, own.prefetch_factor) + 1),
            "prefetch_factor",
            _has_workers,
        ),
        Setting("step_ms", 0, _STEPS_MS, "training step [ms]"),
        Setting("in_order", own.in_order, (), "in_order", _has_workers),
        Setting("persistent_workers", own.persistent_workers, (), "persistent", _has_workers),
    )
    return Explorer(settings, draw, report, {})


def _has_workers(now: Now) -> bool:
    return bool(now.num_workers > 0)


def _waiting(epoch: Timeline) -> str:
    return percent_words(1 - epoch.select(kind="step").busy_s / epoch.makespan_s)


def _made_up() -> LoaderProfile:
    """Return the times of 200 batches that one worker reads in 20 ms on average, and of steps of 8 ms."""
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, np.full(200, 5e-4))
    columns["read_s"] = Lognormal(0.020, 0.5).draw(np.random.default_rng(0), 200)
    columns["step_s"] = np.full(200, 0.008)
    return LoaderProfile(LoaderSettings(1), 200, 8, **columns)


def _first_batches(epoch: Timeline, num_batches: int, num_workers: int) -> Timeline:
    """Return the first batches of an epoch, counted from 0, and the start of the workers, which are above the loop."""
    first = epoch.item[epoch.item >= 0].min()
    shown = epoch.select(item=[_NO_BATCH, *range(first, first + num_batches)])
    shown = replace(shown, item=np.maximum(shown.item - first, _NO_BATCH))
    return shown.named([*map(worker_lane, range(num_workers)), PIN_THREAD, LOOP], ())
