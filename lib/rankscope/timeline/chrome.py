"""Timelines as Chrome/Perfetto traces: JSON out, and in again, from us or from torch.profiler.

Format: the Trace Event Format, "complete" events (``"ph": "X"``) with times in microseconds; pairs of "B" and "E" are
read too. A rank is a process, a lane a thread, a kind a category.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..values.checks import one_of
from ..values.storage import write_atomically
from .spans import Span, Timeline

_FORMAT, _VERSION = "rankscope.timeline", 1
Event = dict[str, Any]
_COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "reduce", "send", "recv")


def write(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write the trace whole or not at all, an event a line. Read again, it is the same to the bit."""
    lanes = timeline.rank_lanes()
    thread = {lane: number for number, lane in enumerate(lanes)}
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        for rank in sorted({rank for rank, _ in lanes})
    ]
    for (rank, lane), tid in thread.items():
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": tid, "args": {"sort_index": tid}})
    for span in timeline:
        name = span.kind if span.item == -1 else f"{span.kind} {span.item}"
        place = {"pid": span.rank, "tid": thread[span.rank, span.lane]}
        times = {"ts": span.start_s * 1e6, "dur": (span.stop_s - span.start_s) * 1e6}
        args = {"item": span.item, "start_s": span.start_s, "stop_s": span.stop_s}
        events.append({"ph": "X", "name": name, "cat": span.kind, **place, **times, "args": args})
    head = json.dumps({"format": _FORMAT, "version": _VERSION, "lanes": timeline.lanes, "kinds": timeline.kinds})
    body = ",\n".join(map(json.dumps, events))
    text = f'{{"displayTimeUnit": "ms", "otherData": {head}, "traceEvents": [\n{body}\n]}}\n'
    packed = gzip.compress(text.encode(), mtime=0) if os.fspath(path).endswith(".gz") else text.encode()
    return write_atomically(path, lambda file: file.write(packed))


def read(path: str | os.PathLike[str], kind: str = "category") -> Timeline:
    """Read a trace. Ours comes back as it was.

    Another one, torch.profiler's say, is one rank's: the rank that it says it is, 0 where it says none. Its processes
    and threads are the lanes, the category (or, with ``kind="name"``, the name) of an event the kind, NCCL's kernels
    being called by their collective, and it starts at 0.

    Raises ValueError naming the file where it is no trace, cut short, or of a newer version of ours, and OSError where
    it cannot be opened.
    """
    one_of("kind", kind, ("category", "name"))
    raw = Path(path).read_bytes()
    try:
        trace = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        if isinstance(trace, list):  # the format allows the bare list of events
            trace = {"traceEvents": trace}
        events = trace["traceEvents"]
        ours = isinstance(trace.get("otherData"), dict) and trace["otherData"].get("format") == _FORMAT
        if ours and trace["otherData"].get("version") != _VERSION:
            raise ValueError(f"version {trace['otherData'].get('version')!r}, this library reads version {_VERSION}")
        if not ours:
            return _foreign(trace, events, kind)
        names = [[str(name) for name in trace["otherData"].get(column, [])] for column in ("lanes", "kinds")]
        return Timeline.of(_own(events)).named(*names)
    except Exception as error:  # whatever a damaged file makes of itself
        raise ValueError(f"{os.fspath(path)} is no readable trace: {type(error).__name__}: {error}") from error


def _own(events: list[Event]) -> Iterator[Span]:
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "X":
            args = event["args"]
            lane = lanes[event["pid"], event["tid"]]
            yield Span(event["pid"], lane, event["cat"], args["item"], args["start_s"], args["stop_s"])


def _foreign(trace: dict[str, Any], events: list[Event], kind: str) -> Timeline:
    rank = int((trace.get("distributedInfo") or {}).get("rank", 0))
    names = {
        (event["pid"], event.get("tid") if event["name"] == "thread_name" else None): str(event["args"]["name"])
        for event in events
        if event.get("ph") == "M" and event.get("name") in ("process_name", "thread_name")
    }
    pieces = list(_complete(events))
    lanes = _lane_names({(event["pid"], event["tid"]) for event in pieces}, names)
    begin_us = min((event["ts"] for event in pieces), default=0.0)
    spans = []
    for event in pieces:
        collective = _collective(str(event.get("name", ""))) if kind == "category" else None
        word = collective or event.get("name" if kind == "name" else "cat") or event.get("name", "")
        start_us = event["ts"] - begin_us  # taken off before scaling: absolute times have no bits to spare
        lane = lanes[event["pid"], event["tid"]]
        spans.append(Span(rank, lane, str(word), -1, start_us / 1e6, (start_us + event["dur"]) / 1e6))
    return Timeline.of(spans)


def _collective(name: str) -> str | None:
    """The collective that one of NCCL's kernels works on: "ncclDevKernel_AllReduce_Sum_f32_RING_LL" is "allreduce"."""
    if not name.lower().startswith("nccl"):
        return None
    plain = name.lower().replace("_", "")
    return next((word for word in _COLLECTIVES if word.replace("_", "") in plain), None)


def _lane_names(threads: set[tuple[Any, Any]], names: dict[tuple[Any, Any], str]) -> dict[tuple[Any, Any], str]:
    """A lane for each thread: "process, thread", with their numbers where two threads would share it."""
    plain = {
        (pid, tid): f"{names.get((pid, None), f'process {pid}')}, {names.get((pid, tid), tid)}" for pid, tid in threads
    }
    times = Counter(plain.values())
    return {(pid, tid): name if times[name] == 1 else f"{name} ({pid}/{tid})" for (pid, tid), name in plain.items()}


def _complete(events: list[Event]) -> Iterator[Event]:
    """Yield complete events, and pairs of B and E as one; an E without a B, or a B without an E, is left out."""
    begun: dict[tuple[Any, Any], list[Event]] = {}
    for event in events:
        phase = event.get("ph")
        if phase not in ("X", "B", "E"):
            continue
        event = {"tid": 0, "pid": 0} | event | {"ts": float(event["ts"])}
        thread = (event["pid"], event["tid"])
        if phase == "X":
            yield event | {"dur": float(event.get("dur", 0.0))}
        elif phase == "B":
            begun.setdefault(thread, []).append(event)
        elif begun.get(thread):
            first = begun[thread].pop()
            yield first | {"dur": event["ts"] - first["ts"]}
