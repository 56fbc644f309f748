"""`Recorder`: spans of real runs, from any thread and process of a machine, at about a microsecond each.

Each process writes its spans into files of its own that are mapped into memory, in one folder: no lock on the way, no
queue to drain, and what a killed process has written is still there. The clock is `time.perf_counter_ns`, which all
processes of a machine share (CLOCK_MONOTONIC on Linux).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ..common.checks import of_type, whole
from ..common.folders import delete_folder, make_folder
from ..common.storage import StorageError, naming, read_bytes, reserve
from .timeline import Timeline

_SLOTS = 1 << 15  # spans a file holds; then the next is begun
_MOST_FILES = 1 << 10  # that `timeline` gathers, some 30 million spans
_FIELDS = {"rank": "i", "lane": "i", "kind": "i", "item": "q", "start_ns": "q", "stop_ns": "q", "written": "i"}
_pack = struct.Struct("<" + "".join(_FIELDS.values())).pack_into
_RECORD = np.dtype([(name, f"<{code}") for name, code in _FIELDS.items()])
_SIZE = _RECORD.itemsize
_now = time.perf_counter_ns
_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """Records spans of this process and of those that inherit the recorder, by fork or by pickle.

    Spans are written to `folder` and stay there; without a folder they go to a temporary one, which is deleted with the
    recorder. Recording is safe from any thread, and each process writes files of its own; `timeline` gathers them all
    at any time. `rank` is put on the spans; `for_rank` gives a recorder for another rank.

    >>> recorder = Recorder()
    >>> with recorder.span("loader", "read", item=0):
    ...     pass
    >>> [(span.lane, span.kind, span.item) for span in recorder.timeline()]
    [('loader', 'read', 0)]
    """

    def __init__(self, rank: int = 0, folder: str | os.PathLike[str] | None = None) -> None:
        self.rank = whole("rank", rank, 0, 2**31 - 1)
        self._temporary: _Temporary | None = None
        if folder is None:
            self.folder = make_folder()
            self._temporary = _Temporary()  # which also those for other ranks hold
            weakref.finalize(self._temporary, delete_folder, self.folder)
        else:
            self.folder = Path(folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        self._begin()

    def for_rank(self, rank: int) -> Recorder:
        """Return a recorder into the same files whose spans carry another rank."""
        other = object.__new__(Recorder)
        other.__dict__.update(self.__dict__, rank=whole("rank", rank, 0, 2**31 - 1))
        _recorders.add(other)
        return other

    def span(self, lane: str, kind: str, item: int = -1) -> _Running:
        """Return a context manager that records the time spent in it, also where it raises."""
        return _Running(self, lane, kind, item)

    def add(self, lane: str, kind: str, item: int, start_ns: int, stop_ns: int) -> None:
        """Record a span from two readings of `time.perf_counter_ns`.

        Raises ValueError for a span that ends before it starts, names that are no strings, an item and times that are
        no whole numbers of 64 bits; OSError where the folder is gone or full.
        """
        if stop_ns < start_ns:
            raise ValueError(f"a span must end at or after its start, got {start_ns} to {stop_ns} ns")
        slot = next(self._slots)  # atomic: each thread has a slot of its own
        number, place = divmod(slot, _SLOTS)
        try:
            lane_place, kind_place = self._names[lane], self._names[kind]
            file = self._files[number]
        except (KeyError, IndexError, TypeError):
            lane_place, kind_place, file = self._prepare(lane, kind, number)
        try:
            _pack(file, place * _SIZE, self.rank, lane_place, kind_place, item, start_ns, stop_ns, 1)
        except struct.error as error:
            got = f"item {item!r} from {start_ns!r} to {stop_ns!r} ns"
            raise ValueError(f"item and times must be whole numbers of 64 bits, got {got}: {error}") from None

    def timeline(self) -> Timeline:
        """Return what all processes have recorded so far, by start, in seconds of `time.perf_counter`.

        Raises StorageError, a ValueError that names the file, where the folder holds files of spans that no recorder
        wrote, and for more than `_MOST_FILES` of them.
        """
        files: dict[str, list[Path]] = {}
        for path in sorted(self.folder.glob("*.spans")):
            files.setdefault(path.name.partition(".")[0], []).append(path)
        if sum(map(len, files.values())) > _MOST_FILES:
            raise StorageError(self.folder, f"it must hold at most {_MOST_FILES} files of spans")
        parts = [_load(self.folder / f"{stem}.names", paths) for stem, paths in files.items()]
        gathered = Timeline.concat(parts)
        return gathered.take(np.argsort(gathered.start_s, kind="stable"))

    def __getstate__(self) -> dict[str, Any]:
        return {"rank": self.rank, "folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.rank, self.folder, self._temporary = state["rank"], state["folder"], None
        self._begin()

    def _begin(self) -> None:
        """Start files of this process, and of this recorder in it."""
        self._slots = itertools.count()
        self._names: dict[str, int] = {}
        self._files: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._stem = self.folder / f"{os.getpid()}-{_now()}-{id(self)}"
        _recorders.add(self)

    def _prepare(self, lane: str, kind: str, number: int) -> tuple[int, int, mmap.mmap]:
        """Give new names their places, on disk before any span uses them, and make the files up to `number`."""
        if not (isinstance(lane, str) and isinstance(kind, str)):
            raise ValueError(f"lane and kind must be strings, got {lane!r} and {kind!r}")
        with self._lock:
            for name in (lane, kind):
                if name not in self._names:
                    entry = json.dumps([len(self._names), name])
                    names_path = f"{self._stem}.names"
                    with open(names_path, "ab") as file, naming(names_path):
                        # on a line of its own, even after an entry that was cut short
                        file.write(f"\n{entry}\n".encode())
                    self._names[name] = len(self._names)
            while len(self._files) <= number:
                path = f"{self._stem}.{len(self._files):06d}.spans"
                with open(path, "w+b") as file, naming(path):
                    reserve(file.fileno(), _SLOTS * _SIZE)
                    self._files.append(mmap.mmap(file.fileno(), 0))
            return self._names[lane], self._names[kind], self._files[number]


class _Temporary:
    """A temporary folder lives as long as this does: as long as any recorder that writes to it."""


class _Running:
    __slots__ = ("_item", "_kind", "_lane", "_recorder", "_start_ns")

    def __init__(self, recorder: Recorder, lane: str, kind: str, item: int) -> None:
        self._recorder, self._lane, self._kind, self._item = recorder, lane, kind, item

    def __enter__(self) -> None:
        self._start_ns = _now()

    def __exit__(self, *error: object) -> None:
        self._recorder.add(self._lane, self._kind, self._item, self._start_ns, _now())


def _load(names_path: Path, paths: list[Path]) -> Timeline:
    """The spans of one process, also while it goes on recording.

    Spans are read before names: a name is on disk before a span uses it. `written` is the last field of a record, so
    that a span which a kill cut short is left out; of a name cut short no span was written.
    """
    try:
        filled = [path for path in paths if path.stat().st_size]  # a kill may leave one that is empty
        parts = [np.frombuffer(read_bytes(path, _SLOTS * _SIZE), _RECORD) for path in filled]
        records = np.concatenate([np.empty(0, _RECORD), *parts])
        rows = records[records["written"] == 1]
        rank, lane, kind, item = (rows[name] for name in ("rank", "lane", "kind", "item"))
        lines = read_bytes(names_path).decode(errors="replace").splitlines() if rows.size else []
        found: dict[int, str] = {}
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                place, name = json.loads(line)
                found[whole("place", place, 0, len(lines))] = of_type("name", name, str)
        names = tuple(found.get(place, "") for place in range(max(found, default=-1) + 1))
        return Timeline(rank, lane, kind, item, rows["start_ns"] / 1e9, rows["stop_ns"] / 1e9, names, names)
    except (ValueError, RecursionError) as error:
        raise StorageError(paths[0], f"not written by a recorder: {error}") from error


def _begin_in_child() -> None:
    """A forked process has the parent's files mapped: it must not write into the parent's slots."""
    for recorder in list(_recorders):
        recorder._begin()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_begin_in_child)
