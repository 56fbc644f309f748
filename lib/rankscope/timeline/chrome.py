"""Timelines as Chrome traces, which Perfetto shows: a rank is a process, a lane is a thread, a kind is a category."""

from __future__ import annotations

import gzip
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..common.files import write_whole
from .events import FORMAT, TraceEvent, read_trace, readable
from .spans import Span

_KINDS_OF_WORDS = {  # the letters in names of collectives, and our words; longer ones contain those that follow
    "reducescatter": "reduce_scatter",
    "alltoa": "alltoall",  # "all_to_all", "all_to_allv", "alltoall_base"
    "allreduce": "allreduce",
    "allgather": "allgather",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send_recv",
    "recv": "send_recv",
}
COMMUNICATION = (*dict.fromkeys(_KINDS_OF_WORDS.values()), "nccl")
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
    length_ns = round(span.stop_s * 1e9) - round(span.start_s * 1e9)
    return {
        "ph": "X",
        "name": span.kind if span.item == -1 else f"{span.kind} {span.item}",
        "cat": span.kind,
        "pid": span.rank,
        "tid": tid,
        "ts": (round(span.start_s * 1e9) + _ADDED_TO_START_NS) / 1000,
        "dur": (length_ns + _ADDED_TO_LENGTH_NS) / 1000,
        # Those are rounded, so the exact times are stored, too.
        "args": {"item": span.item, "start_s": span.start_s, "stop_s": span.stop_s},
    }


# ---- reading


def read(path: str | os.PathLike[str]) -> tuple[list[Span], Mapping[str, Any]]:
    """Return the spans of a trace, and what `write` says of it, empty for that of another program.

    Warns if slices are skipped, because they have no readable times or are no complete events ("X"), and entries that
    are no events.
    """
    trace = read_trace(path)
    with readable(path):
        events: list[Any] = [event for event in trace.traceEvents if isinstance(event, TraceEvent)]
        slices = [event for event in events if event.ph in ("X", "B")]
        chosen = [event for event in slices if event.ph == "X" and event.has_times]
        named = [event for event in events if event.name == "thread_name"]
        names = {(event.pid, event.tid): getattr(event.args, "name", "") for event in named}
        if trace.otherData.get("format") == FORMAT:
            return [
                Span(each.pid, names[each.pid, each.tid], each.cat, each.args.item, each.args.start_s, each.args.stop_s)
                for each in chosen
            ], trace.otherData
        spans = _foreign_spans(chosen, trace.distributedInfo.get("rank") or 0, names)
    num_skipped = len(trace.traceEvents) - len(events) + len(slices) - len(chosen)
    if num_skipped:
        # The level names the line that calls `Timeline.from_chrome_trace`.
        warnings.warn(f"{path}: skipped {num_skipped} of {len(trace.traceEvents)} events", stacklevel=3)
    return spans, {}


def _foreign_spans(events: list[TraceEvent], rank: int, names: Mapping[Any, str]) -> list[Span]:
    """Return the spans of another program's events, without the profiler's own."""
    # With category "Trace", Kineto writes one span per profiler, as long as the whole recording. It is not work.
    events = [event for event in events if event.cat != "Trace"]
    # Absolute times need all bits of a float, so the first start is subtracted before the times are scaled.
    first_us = min((event.ts for event in events), default=0)
    spans = []
    for event in events:
        lane = f"process {event.pid}, {names.get((event.pid, event.tid)) or event.tid}"
        start_us = event.ts - first_us
        stop_us = start_us + event.dur
        spans.append(Span(rank, lane, _kind(event), -1, start_us / 1e6, stop_us / 1e6))
    return spans


def _kind(event: TraceEvent) -> str:
    """Return the category of an event, or its name if it has none; for kernels see `kind_of_kernel`."""
    if str(event.cat).lower() == "kernel":  # older profilers write "Kernel"
        return kind_of_kernel(str(event.name))
    return str(event.cat or event.name)


def kind_of_kernel(name: str) -> str:
    """Return the collective of a kernel of NCCL, and "kernel" for any other kernel.

    >>> kind_of_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of_kernel("sgemm")
    ('allreduce', 'kernel')
    """
    function_name = name.partition("(")[0]  # the types of its arguments follow
    return collective_of(function_name) if function_name.startswith("nccl") else "kernel"


@cache
def collective_of(name: str) -> str:
    """Return the collective in a name, "allgather" of "_allgather_base_"; "nccl" if there is none."""
    letters = re.sub("[^a-z]", "", name.lower())
    return next((kind for part, kind in _KINDS_OF_WORDS.items() if part in letters), "nccl")
