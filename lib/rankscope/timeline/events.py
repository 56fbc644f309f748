"""The events of Chrome traces: JSON in the Trace Event Format, with times in microseconds, gzipped or not."""

from __future__ import annotations

import codecs
import json
import os
from typing import Any

import msgspec

from ..common.files import read_bytes

_MOST_BYTES = 4 << 30  # of text
FORMAT = "rankscope.timeline"

_LATEST_US = 2.0**63  # no clock counts further than 64 bits

NoEvent = list[Any] | str | int | float | bool | None  # what may stand between the events, which is skipped


# There may be millions of these objects. None refers to itself, so Python's garbage collector need not visit them
# (`gc`). Decoding only the fields that are read is several times as fast as decoding all of them.
class EventArgs(msgspec.Struct, gc=False, rename={"collective": "Collective name"}):
    """The arguments of an event that are read: of a thread, of our own spans, and of torch.profiler."""

    name: Any = None
    item: Any = None
    start_s: Any = None
    stop_s: Any = None
    collective: Any = None
    correlation: Any = None


class TraceEvent(msgspec.Struct, gc=False):
    """The fields of an event that are read."""

    ph: Any = None
    name: Any = ""
    cat: Any = None
    pid: Any = 0
    tid: Any = 0
    ts: Any = None
    dur: Any = 0
    args: EventArgs | NoEvent = None

    @property
    def has_times(self) -> bool:
        """Whether the start and the length of a slice are such numbers; nan is not."""
        are_numbers = isinstance(self.ts, int | float) and isinstance(self.dur, int | float)
        return are_numbers and abs(self.ts) <= _LATEST_US and 0 <= self.dur <= _LATEST_US


class TraceFile(msgspec.Struct):
    traceEvents: list[TraceEvent | NoEvent]
    otherData: dict[str, Any] = {}
    distributedInfo: dict[str, Any] = {}  # in which torch.profiler states the rank


def read_trace(path: str | os.PathLike[str]) -> TraceFile:
    """Read a trace of at most 4 GiB; a bare list of events is one, too. Call it within `while_reading`."""
    text = read_bytes(path, _MOST_BYTES).removeprefix(codecs.BOM_UTF8)
    if text.lstrip().startswith(b"["):
        text = b'{"traceEvents":' + text + b"}"
    try:
        return msgspec.json.decode(text, type=TraceFile)
    except msgspec.DecodeError:  # Python's own reader accepts NaN, too, which some profilers write
        return msgspec.convert(json.loads(text), TraceFile)
