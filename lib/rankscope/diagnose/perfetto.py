"""All ranks of a job on one clock, with arrows from late ranks to those that wait: a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import PathLike
from ..timeline import Timeline
from ..timeline.intervals import nested
from .diagnosis import JobDiagnosis
from .trace import CALL_KINDS, Trace
from .verdict import in_ms

_LATE = 0.05  # of a step: if others wait longer than this for an arrival, it gets arrows


def to_perfetto(path: PathLike, traces: Sequence[Trace], diagnosis: JobDiagnosis) -> Path:
    """Write the timelines of all ranks, in seconds of the first, and return the path; gzipped if it ends in .gz.

    In each step, arrows run from where a late rank arrives at its first late collective to the same collective on the
    ranks that wait there. They are pairs of flow events of the Trace Event Format, which bind to the slice around them
    (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Flow Events").
    """
    aligned = []
    works = []  # by rank, the span of each call
    for trace, offset_s in zip(traces, diagnosis.offset_s, strict=True):
        aligned.append(_on_lanes(trace.timeline.shifted(offset_s)))
        works.append({span.item: span for span in aligned[-1].select(kind=CALL_KINDS) if span.item >= 0})
    marks: list[dict[str, Any]] = []
    marked = set[tuple[int, int]]()  # a step and a rank
    for step, places in diagnosis.meetings:
        spans = {column: works[column][place] for column, place in places.items()}
        arrive_s = {column: span.start_s for column, span in spans.items()}
        if not next(iter(spans.values())).lane.startswith("stream"):  # Gloo starts a call only when a thread is free
            for column, place in places.items():
                arrive_s[column] = traces[column].calls[place].launch_s + diagnosis.offset_s[column]
        late = max(arrive_s, key=lambda column: arrive_s[column])
        waited_s = arrive_s[late] - float(np.median(list(arrive_s.values())))
        if waited_s < _LATE * diagnosis.step_s or (step, late) in marked:
            continue
        marked.add((step, late))
        words = f"rank {traces[late].rank} is {in_ms(waited_s)} late"
        for column, span in spans.items():
            if column == late or span.start_s >= spans[late].start_s:
                continue
            flow = {"name": words, "cat": "finding", "id": len(marks), "bp": "e"}  # "e": it binds to the slice around
            for phase, end in (("s", spans[late]), ("f", span)):
                middle_us = (end.start_s + end.stop_s) / 2 * 1e6
                marks.append(flow | {"ph": phase, "pid": end.rank, "tid": end.lane, "ts": middle_us})
    return Timeline.concat(aligned).to_chrome_trace(path, marks)


def _on_lanes(timeline: Timeline) -> Timeline:
    """Return the spans of one rank on lanes on which they nest, "gloo (2)" and so on, so that an arrow finds its span."""
    threads = nested(timeline.lane, timeline.start_s, timeline.stop_s).tolist()
    spans = []
    for span, thread in zip(timeline, threads, strict=True):
        spans.append(span._replace(lane=f"{span.lane} ({thread + 1})") if thread else span)
    return Timeline.of(spans)
