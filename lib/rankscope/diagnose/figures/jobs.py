"""A recorded job on one page: the verdict, its tables, and one step of its ranks on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ...figures.marks import Drawing
from ...figures.svg import to_svg
from ...figures.timelines import draw_timeline
from ...timeline import Timeline
from ...timeline.intervals import merge
from ..diagnosis import JobDiagnosis
from ..tables import CALLS, RANKS, call_table, rank_table
from ..trace import CALL_KINDS, PHASES, Trace
from .page import page

_MOST_RANKS = 8
_PIXELS = 660  # of a timeline's width: spans that are closer to each other are drawn as one
_DRAWN = (*PHASES, "unpack", "kernel", "memcpy h2d", *CALL_KINDS)


def draw_step(traces: Sequence[Trace], diagnosis: JobDiagnosis) -> Drawing:
    """Draw the step of median length on one clock; of many ranks, the latest. There must be steps."""
    by_length = np.argsort(diagnosis.window_s.mean(axis=1), kind="stable")
    step = diagnosis.steps[by_length[(by_length.size - 1) // 2]]
    latest = np.argsort(-diagnosis.late_s.mean(axis=0), kind="stable")[:_MOST_RANKS]
    parts = []
    for column in sorted(latest.tolist()):
        spans = traces[column].timeline.shifted(diagnosis.offset_s[column])
        (window,) = list(spans.select(kind="step", item=step))[:1]
        lanes = [lane for lane in spans.lanes if lane != "gpu"]  # a summary of the kernels that the streams show
        parts.append(_coarse(spans.select(lane=lanes, kind=_DRAWN, between_s=(window.start_s, window.stop_s))))
    return draw_timeline(Timeline.concat(parts), title=f"Step {step} on one clock")


def _coarse(timeline: Timeline) -> Timeline:
    """Return the spans of one rank, with those of a kind that are less than a pixel from each other as one."""
    pixel_s = timeline.makespan_s / _PIXELS
    spans = []
    for lane in dict.fromkeys(timeline.lanes):
        for kind in dict.fromkeys(timeline.kinds):
            alike = timeline.select(lane=lane, kind=kind)
            starts_s, stops_s = merge(alike.start_s, alike.stop_s + pixel_s)
            for start_s, stop_s in zip(starts_s.tolist(), stops_s.tolist(), strict=True):
                spans.append(alike[0]._replace(item=-1, start_s=start_s, stop_s=max(stop_s - pixel_s, start_s)))
    return Timeline.of(spans)


def job_page(name: str, traces: Sequence[Trace], diagnosis: JobDiagnosis) -> str:
    """Return the HTML of a page on a job: the verdict, its tables, and a step of median length."""
    sections = []
    if diagnosis.steps:
        sections.append((RANKS, _html(rank_table(diagnosis))))
        sections.append((CALLS, _html(call_table(diagnosis))))
        sections.append(("", to_svg(draw_step(traces, diagnosis))))
    return page(name, str(diagnosis).splitlines(), sections)


def _html(table: Sequence[Sequence[str]]) -> str:
    heads, *rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{body}</table>"
