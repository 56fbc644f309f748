"""All ranks of a job on one clock, with arrows from late ranks to those that wait: a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from ..common.files import PathLike
from ..common.words import listed
from ..timeline import Span, Timeline
from ..timeline.chrome import start_us
from ..timeline.intervals import nested
from .diagnosis import JobDiagnosis
from .join import Joined
from .trace import CALL_KINDS, Trace
from .verdict import in_ms

_EDGE_S = 1e-6  # from the edge of a slice to an arrow; traces for Perfetto have times in microseconds
_LATE = 0.05  # of a step: if others wait longer than this for an arrival, it gets arrows


def to_perfetto(path: PathLike, traces: Sequence[Trace], joined: Joined, diagnosis: JobDiagnosis) -> Path:
    """Write the timelines of all ranks, in seconds of the first, and return the path; gzipped if it ends in .gz.

    In each step, arrows run from where a late rank asks for its first late collective to the same collective on the
    ranks that wait there, and a mark says in words how long they wait. Another mark states the cost of each culprit;
    for ranks that are late next to each other, it states their cost together. Arrows are pairs of flow events of the
    Trace Event Format, which bind to the slice around their time
    (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Flow Events").

    A lane whose spans run at the same time, such as "gloo" or "gpu", continues on others, "gloo (2)" and so on.
    """
    # a rank that shares no call with the others has an offset of nan, and stays on its own clock
    offsets_s = np.nan_to_num(joined.offset_s).tolist()
    aligned = []
    for trace, offset_s in zip(traces, offsets_s, strict=True):
        aligned.append(_nested(trace.timeline.shifted(offset_s)))
    spans = Timeline.concat(aligned)
    marks = _Marks()
    _mark_late_arrivals(marks, [_call_spans(timeline) for timeline in aligned], traces, joined, diagnosis)
    _mark_culprits(marks, spans, diagnosis)
    return spans.to_chrome_trace(path, marks.events)


def _nested(timeline: Timeline) -> Timeline:
    """Return the spans of one rank on lanes on which they nest, so that a mark finds the thread of its span."""
    place = nested(timeline.lane, timeline.start_s, timeline.stop_s)
    names: list[str] = []
    first_of_each = []  # by lane of `timeline`, the index in `names` of the first lane that replaces it
    for lane, name in enumerate(timeline.lanes):
        num_replacing = 1 + int(place[timeline.lane == lane].max(initial=0))
        first_of_each.append(len(names))
        names.append(name)
        names += [f"{name} ({number})" for number in range(2, num_replacing + 1)]
    return replace(timeline, lane=np.array(first_of_each, np.int64)[timeline.lane] + place, lanes=tuple(names))


class _Marks:
    """Events of the Trace Event Format, which are added to a timeline."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, phase: str, name: str, span: Span, at_s: float, **fields: Any) -> None:
        """Add an event of a phase ("i" instant, "s" and "f" start and end of a flow) to the lane of a span."""
        event = {"ph": phase, "name": name, "cat": "finding", "pid": span.rank}
        event |= {"tid": span.lane, "ts": start_us(at_s)}
        self.events.append(event | fields)


def _mark_late_arrivals(
    marks: _Marks,
    spans_of_ranks: Sequence[_CallSpans],
    traces: Sequence[Trace],
    joined: Joined,
    diagnosis: JobDiagnosis,
) -> None:
    """Mark the first late collective of each rank in each step, with arrows to the ranks that wait there.

    The rows of `joined` are in order of launch; each has the number of the call on every rank, or -1.
    """
    marked = set[tuple[int, int]]()  # a step and a rank, by its row in `traces`
    for step, calls in zip(joined.step.tolist(), joined.calls.tolist(), strict=True):
        arrivals: dict[int, Span] = {}  # by the rank's row
        for row, call in enumerate(calls):
            arrival = spans_of_ranks[row].arrivals.get(call)
            if arrival is not None:
                arrivals[row] = arrival
        if len(arrivals) < 2:
            continue
        late = max(arrivals, key=lambda row: arrivals[row].start_s)
        late_arrival = arrivals[late]
        others_s = [arrival.start_s for row, arrival in arrivals.items() if row != late]
        waited_s = late_arrival.start_s - float(np.median(others_s))
        if waited_s <= _LATE * diagnosis.step_s or (step, late) in marked:
            continue
        marked.add((step, late))
        words = f"rank {traces[late].rank} is {in_ms(waited_s)} late"
        arrival_s = _within(late_arrival, late_arrival.start_s)
        marks.add("i", words, late_arrival, arrival_s, s="p")  # "p": a mark over all lanes of the rank
        for row, call in enumerate(calls):
            waiting = spans_of_ranks[row].work.get(call)
            if row != late and waiting is not None and waiting.start_s < late_arrival.start_s:
                _add_arrow(marks, words, late_arrival, waiting)


def _add_arrow(marks: _Marks, words: str, late_arrival: Span, waiting: Span) -> None:
    """Add an arrow from the arrival of the late rank to a span in which another rank waits for it."""
    arrival_s = _within(late_arrival, late_arrival.start_s)
    end_s = _within(waiting, arrival_s)
    # No arrow runs back in time: by the error of the clocks, the wait may end before the late rank arrives.
    start_s = min(arrival_s, end_s)
    flow = len(marks.events)  # a number that no other arrow has
    marks.add("s", words, late_arrival, start_s, id=flow)
    marks.add("f", words, waiting, end_s, id=flow, bp="e")  # "e": it binds to the slice around its time


def _mark_culprits(marks: _Marks, spans: Timeline, diagnosis: JobDiagnosis) -> None:
    """Mark the first step of each culprit with its cost, or with that of all ranks that are late together with it.

    Of ranks that are late in the same steps, the cost of one means nothing without those of the others; see `Culprit`.
    """
    for group in diagnosis.lateness.groups:
        culprits = [culprit for late in group for culprit in late.culprits]
        together_s = sum(culprit.cost_s for culprit in culprits)
        ranks = listed("rank", [culprit.rank for culprit in culprits])
        for culprit in culprits:
            words = f"rank {culprit.rank}: {culprit.cause} costs {in_ms(culprit.cost_s)} per step"
            if len(group) > 1:
                words = f"rank {culprit.rank}: {culprit.cause}; {ranks} cost {in_ms(together_s)} per step"
            steps = spans.select(rank=culprit.rank, kind="step")
            for step in islice(steps, 1):  # there may be no step
                marks.add("i", words, step, step.start_s, s="g")  # "g": a mark over all ranks


class _CallSpans(NamedTuple):
    """The spans of a rank's collectives, by their indices in its calls."""

    arrivals: dict[int, Span]  # the span that asks for the call; on the GPU, and without such a span, that of its work
    work: dict[int, Span]


def _call_spans(timeline: Timeline) -> _CallSpans:
    """Return the spans of a rank's calls, from its timeline; spans of no call have a negative item."""
    launches = {span.item: span for span in timeline.select(kind="launch") if span.item >= 0}
    work = {span.item: span for span in timeline.select(kind=CALL_KINDS) if span.item >= 0}
    arrivals = dict(work)
    for call, launch in launches.items():
        # on the GPU, a rank arrives when the stream reaches the call, and not when the CPU launches it
        is_on_gpu = call in work and work[call].lane.startswith("stream")
        if not is_on_gpu:
            arrivals[call] = launch
    return _CallSpans(arrivals, work)


def _within(span: Span, at_s: float) -> float:
    """Return the time nearest to this one that is in the span, and not at an edge of it.

    At an edge, an arrow could bind to the slice before or behind it.
    """
    margin_s = min(_EDGE_S, (span.stop_s - span.start_s) / 10)  # a tenth of a short span, so that the two leave room
    return min(max(at_s, span.start_s + margin_s), span.stop_s - margin_s)
