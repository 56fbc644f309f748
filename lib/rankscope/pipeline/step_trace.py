"""A trace of torch.profiler's as a timeline of the phases of steps, its clock set by ranges of which we know when."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ..timeline import Span, Timeline
from .step_agreement import H2D, PHASES, STREAM

PREFIX = "rankscope: "
CLOCK = f"{PREFIX}clock"
_WORK = {"kernel": "kernel", "gpu_memset": "memset"}  # by the trace's categories
_COPIES = {"Memcpy HtoD": H2D, "Memcpy DtoH": "d2h"}  # by how the trace's names begin
Reading = tuple[float, float, float]  # seconds before a range "rankscope: clock", in it, and after it


def read_steps(path: str | os.PathLike[str], readings: Sequence[Reading]) -> tuple[Timeline, float]:
    """Return what a trace tells of the phases and of the GPU, by the clock of the readings, and the doubt about that.

    A range "rankscope: clock" begins between the first and the second time of its reading, and ends between the second
    and the third: all of them together tell how far the trace's clock is ahead. Raises RuntimeError where the trace has
    not as many of these ranges as there are readings, ValueError where it cannot be read.
    """
    spans = Timeline.from_chrome_trace(path)
    names = Timeline.from_chrome_trace(path, kind="name")  # the same spans, in the same order
    words = np.array(names.kinds, dtype=object)[names.kind]
    sort = np.array(spans.kinds, dtype=object)[spans.kind]
    ranges = np.flatnonzero(sort == "user_annotation")
    ranges = ranges[np.argsort(spans.start_s[ranges], kind="stable")]
    ahead_s, doubt_s = _offset_s(spans.take(ranges[words[ranges] == CLOCK]), readings)
    rows = []
    for phase in PHASES:
        for item, place in enumerate(ranges[words[ranges] == f"{PREFIX}{phase}"]):
            rows.append(Span(0, phase, phase, item, spans.start_s[place], spans.stop_s[place]))
    for place in range(len(spans)):
        kind = _kind(str(sort[place]), str(words[place]))
        if kind:
            lane = STREAM + spans[place].lane.rpartition("stream")[2].strip()
            rows.append(Span(0, lane, kind, -1, spans.start_s[place], spans.stop_s[place]))
    return Timeline.of(rows).shifted(ahead_s), doubt_s


def _kind(category: str, name: str) -> str | None:
    """What of the GPU's work an event is; None for anything else."""
    if category == "gpu_memcpy":
        return next((kind for begin, kind in _COPIES.items() if name.startswith(begin)), "d2d")
    return _WORK.get(category)


def _offset_s(ranges: Timeline, readings: Sequence[Reading]) -> tuple[float, float]:
    """What is to be added to the trace's times, and how far off that may be."""
    if len(ranges) != len(readings) or not readings:
        raise RuntimeError(f"torch.profiler recorded {len(ranges)} of {len(readings)} ranges that set its clock")
    before_s, inside_s, after_s = np.array(sorted(readings)).T
    least = np.max([before_s - ranges.start_s, inside_s - ranges.stop_s])
    most = np.min([inside_s - ranges.start_s, after_s - ranges.stop_s])
    return float(least + most) / 2, abs(float(most - least)) / 2
