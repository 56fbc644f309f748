"""The explorer of a recorded DataLoader: its first batches, above what other settings would make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from ...common.checks import of_type
from ...common.units import three_digits
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps
from ...timeline import Timeline
from ...timeline.picture import draw_timeline
from .advice import advise
from .profile import COLUMNS, LoaderProfile, LoaderSettings, predicted_epoch

_SHOWN = 24  # batches in the picture
_MADE_UP = 200  # batches


def loader(own: Any = None) -> Explorer:
    """Return controls over the settings of a recorded DataLoader, and what an epoch would be with them.

    `own` is what `record_dataloader` returned, once it has been iterated, or its `profile()`, which a script can store,
    and of which the recorded settings are predicted, too; without it, times are made up. The step is in per cent of the
    recorded one. Raises ValueError for anything else, and if no batch has been recorded.
    """
    above = "recorded"
    if hasattr(own, "timeline"):
        profile = own.profile()
        timeline = own.timeline()
    else:
        profile = _made_up() if own is None else of_type("own", own, LoaderProfile, "profile() of record_dataloader")
        timeline = Timeline.of(predicted_epoch(profile, profile.settings))
        above = "predicted for the recorded settings"
    recorded = profile.settings
    num_batches = profile.num_batches
    shown = range(min(_SHOWN, num_batches))
    advice = advise(profile)
    lines = str(advice).splitlines()

    def draw(now: Now) -> list[Drawing]:
        changes = now._asdict()
        step = changes.pop("step") / 100
        changed = replace(profile, step_s=profile.step_s * step, step_cpu_s=profile.step_cpu_s * step)
        epoch = Timeline.of(predicted_epoch(changed, replace(recorded, **changes)))
        seconds = (epoch.end_s, profile.epoch_s, profile.reproduced_s)
        predicted, measured, reproduced = [three_digits(num_batches / epoch_s) for epoch_s in seconds]
        title = f"{predicted} batches/s predicted, {measured} recorded"
        deck = f"With the recorded settings, {reproduced} batches/s are predicted"
        if advice.doubt:
            deck = f"Doubtful. {deck}"
        panels = {above: timeline.select(item=shown), "predicted": epoch.select(item=shown)}
        return [draw_timeline(panels, title, deck)]

    settings = (
        Setting("num_workers", recorded.num_workers, range(2 * recorded.num_workers + 15), "num_workers"),
        Setting(
            "prefetch_factor",
            recorded.prefetch_factor,
            range(1, recorded.prefetch_factor + 7),
            "prefetch_factor",
            _has_workers,
        ),
        Setting("step", 100, Steps((10, 25, 50, 100, 200, 400)), "training step [%]"),
        Setting("in_order", recorded.in_order, (), "in_order", _has_workers),
        Setting("persistent_workers", recorded.persistent_workers, (), "persistent_workers", _has_workers),
    )
    return Explorer(settings, draw, lambda now: lines, {"four workers": {"num_workers": 4}})


def _has_workers(now: Now) -> bool:
    return bool(now.num_workers > 0)


def _made_up() -> LoaderProfile:
    """Return the times of batches that one worker reads in 20 ms, and of steps of 8 ms."""
    short_s = np.full(_MADE_UP, 5e-4)
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, short_s)
    columns |= {"read_s": 40 * short_s, "wait_s": 25 * short_s, "step_s": 16 * short_s, "total_s": 41 * short_s}
    return LoaderProfile(LoaderSettings(1), _MADE_UP, 8, **columns)
