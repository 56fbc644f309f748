"""`Recorder`: spans of real runs, from any thread and process of a machine, at about a microsecond each.

Each process writes its spans into a file of its own, which is mapped into memory. So recording needs no queue, and the
spans of a killed process are not lost. The clock is `time.perf_counter_ns`, which all processes of a machine share
(CLOCK_MONOTONIC on Linux).
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import secrets
import shutil
import struct
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ..common.checks import of_type, whole
from .timeline import Timeline

_BLOCK_SPANS = 1 << 15  # spans for which a file is made longer at once; their bytes are a multiple of a page
# The fields of a span in a file, with their codes in `struct` and numpy. A span is complete once `written` is 1.
_FIELDS = {"rank": "i", "label": "i", "item": "q", "start_ns": "q", "stop_ns": "q", "written": "q"}
_pack = struct.Struct("<" + "".join(_FIELDS.values())).pack_into
_RECORD = np.dtype([(name, f"<{code}") for name, code in _FIELDS.items()])
_SIZE = _RECORD.itemsize
_BLOCK_BYTES = _BLOCK_SPANS * _SIZE
_now = time.perf_counter_ns
_writers: weakref.WeakSet[_Writer] = weakref.WeakSet()  # all of this process, to begin new files after a fork


class Recorder:
    """Record spans of this process and of processes that inherit the recorder, by fork or by pickle.

    Spans are written to `folder` and stay there. If `folder` is None, they are written to a temporary folder, which is
    deleted with the recorder. Recording is safe from any thread, and each process writes its own file; `timeline` can
    read all of them at any time. `rank` is the rank of the spans; `for_rank` returns a recorder for another rank.

    >>> recorder = Recorder()
    >>> with recorder.span("loader", "read", item=0):
    ...     pass
    >>> [(span.lane, span.kind, span.item) for span in recorder.timeline()]
    [('loader', 'read', 0)]
    """

    def __init__(self, rank: int = 0, folder: str | os.PathLike[str] | None = None) -> None:
        self.rank = whole("rank", rank, 0)
        self.folder = Path(folder or tempfile.mkdtemp(prefix="rankscope-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer = _Writer(self.folder)
        if folder is None:
            weakref.finalize(self._writer, _delete, self.folder, os.getpid())

    def for_rank(self, rank: int) -> Recorder:
        """Return a recorder for another rank, which writes to the same file."""
        other = object.__new__(Recorder)  # without __init__, which would begin a new file
        other.__dict__.update(self.__dict__, rank=whole("rank", rank, 0))
        return other

    def span(self, lane: str, kind: str, item: int = -1) -> _RunningSpan:
        """Return a context manager that records the time spent in it, even if it raises."""
        return _RunningSpan(self, lane, kind, item)

    def add(self, lane: str, kind: str, item: int, start_ns: int, stop_ns: int) -> None:
        """Record a span from two readings of `time.perf_counter_ns`.

        Raises ValueError if the span ends before it starts or a name is not a string; struct.error if the item or a
        time is not a whole number of 64 bits; OSError if the folder is deleted or its disk is full.
        """
        if stop_ns < start_ns:
            raise ValueError(f"a span must end at or after its start, got {start_ns} to {stop_ns} ns")
        writer = self._writer
        block, place = divmod(next(writer.numbers), _BLOCK_SPANS)  # `next` is atomic: no other thread gets the same one
        try:  # without the lock of `prepare`, which would be slow for each span
            label = writer.labels[lane, kind]
            memory = writer.blocks[block]
        except (KeyError, IndexError):
            writer.prepare(lane, kind, block)
            self.add(lane, kind, item, start_ns, stop_ns)  # in the next place: the one that was left out stays empty
            return
        _pack(memory, place * _SIZE, self.rank, label, item, start_ns, stop_ns, 1)

    def timeline(self) -> Timeline:
        """Return the spans of all processes so far, sorted by start, in seconds of `time.perf_counter`."""
        spans = Timeline.concat([_load(path) for path in self.folder.glob("*.spans")])
        return spans.take(np.argsort(spans.start_s, kind="stable"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (self.rank, self.folder)  # the process that made a temporary folder deletes it


class _Writer:
    """The file of spans that only this process writes, and next to it a file of labels: a line per lane and kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin()
        _writers.add(self)

    def begin(self) -> None:
        """Begin a new file, which is made when the first span comes."""
        self.numbers = itertools.count()  # of spans
        self.labels: dict[tuple[str, str], int] = {}  # the numbers of lanes and kinds in the file of labels
        self.blocks: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._path = self.folder / f"{secrets.token_hex(8)}.spans"

    def prepare(self, lane: str, kind: str, block: int) -> None:
        """Make the file up to this block, and a new label, which is on disk before any span uses it."""
        label = (of_type("lane", lane, str), of_type("kind", kind, str))
        with self._lock:
            if label not in self.labels:
                number = len(self.labels)  # written, too: after an interrupt right here, another label may get it
                with open(self._path.with_suffix(".labels"), "a") as labels:
                    labels.write(f"{json.dumps([number, *label])}\n")
                self.labels[label] = number
            while len(self.blocks) <= block:
                with open(self._path, "a+b") as spans:
                    spans.write(bytes(_BLOCK_BYTES))  # now, as a mapped file on a full disk would kill the process
                    spans.flush()
                    self.blocks.append(mmap.mmap(spans.fileno(), _BLOCK_BYTES, offset=spans.tell() - _BLOCK_BYTES))


class _RunningSpan:
    def __init__(self, recorder: Recorder, lane: str, kind: str, item: int) -> None:
        self._recorder = recorder
        self._lane = lane
        self._kind = kind
        self._item = item

    def __enter__(self) -> None:
        self._start_ns = _now()

    def __exit__(self, *error: object) -> None:
        self._recorder.add(self._lane, self._kind, self._item, self._start_ns, _now())


def _load(path: Path) -> Timeline:
    """Return the spans of one process, which may be recording at the same time.

    Spans are read before labels, because a label is on disk before a span uses it. `written` is the last field of a
    record, so a span that was cut short by a kill is left out.
    """
    records = np.fromfile(path, _RECORD)
    spans = records[records["written"] == 1]
    *lines, _ = path.with_suffix(".labels").read_text().split("\n")  # the last one is empty, or cut short
    labels = {number: label for number, *label in map(json.loads, lines)}
    lanes, kinds = zip(*labels.values(), strict=True)
    return Timeline(
        rank=spans["rank"],
        lane=spans["label"],
        kind=spans["label"],
        item=spans["item"],
        start_s=spans["start_ns"] / 1e9,
        stop_s=spans["stop_ns"] / 1e9,
        lanes=lanes,
        kinds=kinds,
    )


def _delete(folder: Path, pid: int) -> None:
    """Delete a temporary folder in the process that made it, and not in one that was forked from it."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _begin_in_child() -> None:
    """Begin a new file in a forked process, which must not write to its parent's spans."""
    for writer in _writers:
        writer.begin()


os.register_at_fork(after_in_child=_begin_in_child)
