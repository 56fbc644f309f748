"""The public figures of `timeline`: a call of each view, drawings, and what is refused, for `tests/figures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankscope import figures
from rankscope.drawing.drawing import Drawing
from rankscope.pipeline import Pipeline, Stage
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.timeline import Span, Timeline
from rankscope.timeline.picture import draw_timeline

ROAD = Pipeline([Stage("read", 0.004), Stage("decode", 0.03, num_workers=2), Stage("train", 0.012)])
TOO_MANY = [Span(0, "a", "b", 0, 0, 1)] * 20_001


def spans(*some: Span) -> Timeline:
    return Timeline.of(some)


FIGURES: dict[str, Callable[..., Any]] = {"timeline": lambda **on: figures.timeline(simulate_pipeline(ROAD, 12), **on)}

DRAWINGS: dict[str, Drawing] = {
    "timeline": draw_timeline(spans(Span(0, "gpu" * 30, "mine" * 30, 0, 0, 1), Span(1, "gpu", "allreduce", 3, 0.5, 2))),
    "two timelines": draw_timeline({"predicted": simulate_pipeline(ROAD, 12), "measured": simulate_pipeline(ROAD, 9)}),
    "nothing ran": draw_timeline(spans()),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.timeline({"a": None}), "timeline a"),
    (lambda: figures.timeline(Timeline.of(TOO_MANY)), "20001"),
]
