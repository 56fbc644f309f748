"""The explorer of notebook 12: three ranks with different numbers of batches, and what is done about it."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import numpy as np

from ..figures.svg import to_svg
from ..figures.timelines import COMMUNICATION, draw_timeline
from ..sampling import Assignment, audit
from ..uneven.model import HANDLINGS, gradient_scale, reads, sample_weights, simulate
from ..values.checks import count_of, one_of
from .panel import choice, chosen, panel, slider, switch

DEFAULTS: dict[str, Any] = {"rank_0": 2, "rank_1": 3, "rank_2": 5, "handling": "hang", "allreduce_ms": 20,
                            "divide_by_initial": True}  # fmt: skip
RANGES = {"rank_0": (1, 12), "rank_1": (1, 12), "rank_2": (1, 12), "allreduce_ms": (0, 200)}
_LABELS = {"rank_0": "rank 0", "rank_1": "rank 1", "rank_2": "rank 2", "handling": "handling",
           "allreduce_ms": "allreduce [ms]", "divide_by_initial": "divide by all"}  # fmt: skip
_STEP_S, _TIMEOUT_S, _BATCH = 0.1, 1.0, 8


def picture(**settings: Any) -> str:
    """Return as SVG what runs when: steps of 100 ms, and allreduces that give up after a second."""
    now = _chosen(settings)
    spans = simulate(_batches(now), now["handling"], _STEP_S, now["allreduce_ms"] * 1e-3, _TIMEOUT_S)
    return to_svg(draw_timeline(spans, f"{now['handling']}: {_ending(now)}", COMMUNICATION | {"shadow"}))


def report(**settings: Any) -> str:
    """Return as text what becomes of samples and gradients, with batches of eight."""
    now = _chosen(settings)
    own, how = _batches(now), (now["handling"], now["divide_by_initial"])
    cuts = np.cumsum([0, *own]) * _BATCH
    shards = tuple(np.arange(*cuts[rank : rank + 2]) for rank in range(3))
    epoch = Assignment(int(cuts[-1]), shards).with_loader(_BATCH)
    found = audit(reads(epoch, now["handling"]))
    weights = sample_weights(epoch, *how)
    relative = weights / weights.sum() * weights.size
    scale = ", ".join(f"{one:.3g}" for one in gradient_scale(own, *how))
    return "\n".join([
        f"{count_of(epoch.size, 'sample')}: {found.dropped} lost, {found.duplicates} repeated",
        f"the ranks' weights in each step add up to {scale}",
        f"a sample counts {relative.min():.2f} to {relative.max():.2f} times as much as in the mean over all",
    ])  # fmt: skip


def uneven(**settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the picture and the report.

    Raises ValueError for a setting that does not exist or lies outside its range.
    """
    initial = _chosen(settings)
    controls: dict[str, Any] = {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}
    controls["handling"] = choice(initial["handling"], list(HANDLINGS), _LABELS["handling"])
    controls["divide_by_initial"] = switch(initial["divide_by_initial"], _LABELS["divide_by_initial"])
    return panel(controls, lambda now: (picture(**now), report(**now)))


def _batches(now: dict[str, Any]) -> list[int]:
    return [now[f"rank_{rank}"] for rank in range(3)]


def _ending(now: dict[str, Any]) -> str:
    own = _batches(now)
    late = [rank for rank, num_batches in enumerate(own) if num_batches > min(own)]
    if now["handling"] != "hang" or not late:
        return "the epoch comes to its end"
    return f"{'rank' if len(late) == 1 else 'ranks'} {' and '.join(map(str, late))} cannot go on"


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    now = chosen(settings, DEFAULTS, RANGES)
    one_of("handling", now["handling"], HANDLINGS)
    return now
