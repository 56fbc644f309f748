"""All ranks of a job on one clock, with what was found as arrows: a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.storage import PathLike
from ..common.words import listed
from ..timeline import Span, Timeline
from .diagnosis import JobDiagnosis
from .join import Joined
from .trace import Trace
from .verdict import in_ms

_EDGE_S = 1e-6
_LATE = 0.05  # of a step: an arrival that others wait longer for gets arrows


def to_perfetto(path: PathLike, traces: Sequence[Trace], joined: Joined, diagnosis: JobDiagnosis) -> Path:
    """Write the timelines of all ranks, in seconds of the first, and return the path; gzipped if it ends in .gz.

    In each step, arrows run from where a late rank asks for its first late collective to the same collective on the
    ranks that wait there, and a mark says in words how long they do. Another mark says of each culprit what it costs;
    of several ranks that are late next to each other, what they cost together. Arrows are pairs of flow events of the
    Trace Event Format, which bind to the slice around their time
    (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Flow Events").
    """
    offset_s = np.nan_to_num(joined.offset_s)
    spans = Timeline.concat([trace.timeline.shifted(by) for trace, by in zip(traces, offset_s.tolist(), strict=True)])
    tids = {lane: tid for tid, lane in enumerate(spans.rank_lanes())}
    slices = [_slices(trace, by) for trace, by in zip(traces, offset_s.tolist(), strict=True)]
    marks: list[dict[str, Any]] = []

    def mark(phase: str, name: str, span: Span, at_s: float, **more: Any) -> None:
        place = {"pid": span.rank, "tid": tids[span.rank, span.lane], "ts": at_s * 1e6}
        marks.append({"ph": phase, "name": name, "cat": "finding", **place, **more})

    seen = set[tuple[int, int]]()
    for step, places in zip(joined.step.tolist(), joined.calls.tolist(), strict=True):
        asked = {row: slices[row][0].get(place) for row, place in enumerate(places)}
        came = {row: span for row, span in asked.items() if span}
        if len(came) < 2:
            continue
        late = max(came, key=lambda row: came[row].start_s)
        waited_s = came[late].start_s - float(np.median([came[row].start_s for row in came if row != late]))
        if waited_s <= _LATE * diagnosis.step_s or (step, late) in seen:
            continue
        seen.add((step, late))
        at_s = _inside(came[late], came[late].start_s)
        words = f"rank {traces[late].rank} is {in_ms(waited_s)} late"
        mark("i", words, came[late], at_s, s="p")
        for row, place in enumerate(places):
            waiting = slices[row][1].get(place)
            if row != late and waiting and waiting.start_s < came[late].start_s:
                reached_s = _inside(waiting, at_s)
                left_s = min(at_s, reached_s)  # by the error of the clocks it may have ended before the late rank came
                mark("s", words, came[late], left_s, id=len(marks))
                mark("f", words, waiting, reached_s, id=len(marks) - 1, bp="e")
    for group in diagnosis.lateness.groups:
        culprits = [culprit for late in group for culprit in late.culprits]
        together_s = sum(culprit.cost_s for culprit in culprits)
        who = listed("rank", [culprit.rank for culprit in culprits])
        for rank, cause, cost_s in culprits:
            words = f"rank {rank}: {cause} costs {in_ms(cost_s)} per step"
            if len(group) > 1:
                words = f"rank {rank}: {cause}; {who} cost {in_ms(together_s)} per step"
            for step_span in spans.select(rank=rank, kind="step")[:1]:
                mark("i", words, step_span, step_span.start_s, s="g")
    return spans.to_chrome_trace(path, marks)


def _slices(trace: Trace, offset_s: float) -> tuple[dict[int, Span], dict[int, Span]]:
    """By place in the calls: the span that asks for it, where there is one, else its own; and its own."""
    found = []
    for kinds in (("launch",), Timeline.COMMUNICATION):
        spans = trace.timeline.select(kind=kinds).shifted(offset_s)
        found.append({span.item: span for span in spans if span.item >= 0})
    launches, own = found
    on_gpu = {place for place, span in own.items() if span.lane.startswith("stream")}
    return own | {place: span for place, span in launches.items() if place not in on_gpu}, own


def _inside(span: Span, at_s: float) -> float:
    """The time nearest to this one that is not at an edge of the span."""
    margin_s = min((span.stop_s - span.start_s) / 10, _EDGE_S)
    return min(max(at_s, span.start_s + margin_s), span.stop_s - margin_s)
