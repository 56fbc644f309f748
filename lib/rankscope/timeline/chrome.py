"""Timelines as Chrome traces, which Perfetto shows: a rank is a process, a lane is a thread, a kind is a category."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.files import write_whole
from .events import FORMAT, read_trace
from .spans import Span

# Added to whole nanoseconds, so that a viewer that rounds and one that truncates get the same number. A start needs
# more, because it can be large and a float rounds it more. A length has less, so that a slice hardly reaches into the
# next one.
_ADDED_TO_START_NS = 0.25
_ADDED_TO_LENGTH_NS = 0.001


# ---- writing


def write(
    path: str | os.PathLike[str],
    spans: Iterable[Span],
    threads: Sequence[tuple[int, int, int]],
    lanes: Sequence[str],
    kinds: Sequence[str],
) -> Path:
    """Write spans as a trace with one event per line.

    The thread of a span is its rank, the index of its lane, and the number of the thread in the lane.
    """
    tid_of = {thread: tid for tid, thread in enumerate(sorted(set(threads)))}
    events = []
    for (rank, lane, _), tid in tid_of.items():
        metadata = {
            "process_name": {"name": f"rank {rank}"},
            "thread_name": {"name": lanes[lane]},
            "thread_sort_index": {"sort_index": tid},  # without it, viewers may sort the lanes by name
        }
        events += [{"ph": "M", "name": name, "pid": rank, "tid": tid, "args": args} for name, args in metadata.items()]
    events += map(_slice, spans, [tid_of[thread] for thread in threads])
    head = json.dumps({"format": FORMAT, "lanes": lanes, "kinds": kinds})
    body = ",\n".join(map(json.dumps, events))
    content = f'{{"displayTimeUnit": "ms", "otherData": {head}, "traceEvents": [\n{body}\n]}}\n'.encode()
    if os.fspath(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)  # without the time, equal timelines make equal files
    return write_whole(path, content)


def _slice(span: Span, tid: int) -> dict[str, Any]:
    start_ns = round(span.start_s * 1e9)
    length_ns = round(span.stop_s * 1e9) - start_ns
    return {
        "ph": "X",
        "name": span.kind if span.item == -1 else f"{span.kind} {span.item}",
        "cat": span.kind,
        "pid": span.rank,
        "tid": tid,
        "ts": (start_ns + _ADDED_TO_START_NS) / 1000,
        "dur": (length_ns + _ADDED_TO_LENGTH_NS) / 1000,
        # Those are rounded, so the exact times are stored, too.
        "args": {"item": span.item, "start_s": span.start_s, "stop_s": span.stop_s},
    }


# ---- reading


def read(path: str | os.PathLike[str]) -> tuple[list[Span], Mapping[str, Any]]:
    """Return the spans of a trace that `write` wrote, and what it says of them. Call it within `while_reading`."""
    trace = read_trace(path)
    if trace.otherData.get("format") != FORMAT:
        raise ValueError("no timeline wrote it; rankscope.diagnose.read_traces reads traces of torch.profiler")
    events: list[Any] = trace.traceEvents
    lanes = {(event.pid, event.tid): event.args.name for event in events if event.name == "thread_name"}
    spans = []
    for event in events:
        if event.ph == "X":
            item, start_s, stop_s = event.args.item, event.args.start_s, event.args.stop_s
            spans.append(Span(event.pid, lanes[event.pid, event.tid], event.cat, item, start_s, stop_s))
    return spans, trace.otherData
