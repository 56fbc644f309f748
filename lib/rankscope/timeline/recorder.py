"""`Recorder`: spans of real runs, from any thread and process of a machine, at about a microsecond each.

Each process writes its spans into its own files, which are mapped into memory, in one folder. So recording needs no
lock and no queue, and the spans of a killed process are not lost. The clock is `time.perf_counter_ns`, which all
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..common.checks import of_type, whole
from ..common.folders import delete_folder, make_folder
from ..common.storage import StorageError, naming, read_bytes, reserve
from .timeline import Timeline

_SLOTS = 1 << 15  # spans in a file; after that, the next file is begun
_MOST_FILES = 1 << 10  # that `timeline` reads: some 30 million spans
_MOST_RANK = 2**31 - 1
# The fields of a span in a file, with their codes in `struct` and numpy. A span is complete once `written` is 1.
_FIELDS = {"rank": "i", "lane": "i", "kind": "i", "item": "q", "start_ns": "q", "stop_ns": "q", "written": "i"}
_pack = struct.Struct("<" + "".join(_FIELDS.values())).pack_into
_RECORD = np.dtype([(name, f"<{code}") for name, code in _FIELDS.items()])
_SIZE = _RECORD.itemsize
_now = time.perf_counter_ns
_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()  # all of this process, to begin new files after a fork


class Recorder:
    """Record spans of this process and of processes that inherit the recorder, by fork or by pickle.

    Spans are written to `folder` and stay there. If `folder` is None, they are written to a temporary folder, which is
    deleted with the recorder. Recording is safe from any thread, and each process writes its own files; `timeline` can
    read all of them at any time. `rank` is the rank of the spans; `for_rank` returns a recorder for another rank.

    >>> recorder = Recorder()
    >>> with recorder.span("loader", "read", item=0):
    ...     pass
    >>> [(span.lane, span.kind, span.item) for span in recorder.timeline()]
    [('loader', 'read', 0)]
    """

    def __init__(self, rank: int = 0, folder: str | os.PathLike[str] | None = None) -> None:
        self.rank = whole("rank", rank, 0, _MOST_RANK)
        self._temporary: _Temporary | None = None
        if folder is None:
            self.folder = make_folder()
            self._temporary = _Temporary()  # the recorders for other ranks refer to it, too
            weakref.finalize(self._temporary, delete_folder, self.folder)
        else:
            self.folder = Path(folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        self._begin()

    def for_rank(self, rank: int) -> Recorder:
        """Return a recorder for another rank, which writes to the same files."""
        other = object.__new__(Recorder)  # without __init__, which would begin new files
        other.__dict__.update(self.__dict__, rank=whole("rank", rank, 0, _MOST_RANK))
        _recorders.add(other)
        return other

    def span(self, lane: str, kind: str, item: int = -1) -> _RunningSpan:
        """Return a context manager that records the time spent in it, even if it raises."""
        return _RunningSpan(self, lane, kind, item)

    def add(self, lane: str, kind: str, item: int, start_ns: int, stop_ns: int) -> None:
        """Record a span from two readings of `time.perf_counter_ns`.

        Raises ValueError if the span ends before it starts, if a name is not a string, or if the item or a time is not
        a whole number of 64 bits; OSError if the folder is deleted or its disk is full.
        """
        if stop_ns < start_ns:
            raise ValueError(f"a span must end at or after its start, got {start_ns} to {stop_ns} ns")
        slot = next(self._slots)  # atomic, so no other thread gets the same slot
        file_number, slot_in_file = divmod(slot, _SLOTS)
        try:  # without the lock and the checks of `_prepare`, which would be slow for each span
            lane_index = self._names[lane]
            kind_index = self._names[kind]
            file = self._files[file_number]
        except (KeyError, IndexError, TypeError):  # a new name, a new file, or a name that cannot be hashed
            self._prepare(lane, kind, file_number)
            lane_index = self._names[lane]
            kind_index = self._names[kind]
            file = self._files[file_number]
        try:
            written = 1
            _pack(file, slot_in_file * _SIZE, self.rank, lane_index, kind_index, item, start_ns, stop_ns, written)
        except struct.error as error:
            got = f"item {item!r} from {start_ns!r} to {stop_ns!r} ns"
            raise ValueError(f"item and times must be whole numbers of 64 bits, got {got}: {error}") from None

    def timeline(self) -> Timeline:
        """Return the spans of all processes so far, sorted by start, in seconds of `time.perf_counter`.

        The files of one process have a stem in common: one file of names, and files of spans with a number each.

        Raises StorageError, a ValueError, if the folder contains a file of spans or names that was not written by a
        recorder, or more than `_MOST_FILES` files. It names the file or, for a number that cannot be in a span, the
        first file of the process.
        """
        paths_of_stem: dict[str, list[Path]] = {}
        for path in sorted(self.folder.glob("*.spans")):
            stem = path.name.partition(".")[0]
            paths_of_stem.setdefault(stem, []).append(path)
        if sum(map(len, paths_of_stem.values())) > _MOST_FILES:
            raise StorageError(self.folder, f"it must hold at most {_MOST_FILES} files of spans")
        timelines = [_load(self.folder / f"{stem}.names", paths) for stem, paths in paths_of_stem.items()]
        spans = Timeline.concat(timelines)
        return spans.take(np.argsort(spans.start_s, kind="stable"))

    def __getstate__(self) -> dict[str, Any]:
        return {"rank": self.rank, "folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.rank = state["rank"]
        self.folder = state["folder"]
        self._temporary = None  # the process that made the folder deletes it
        self._begin()

    def _begin(self) -> None:
        """Begin new files, which only this process and this recorder write to.

        Their stem has the time, because process numbers are reused, and the identity of the recorder, because two
        recorders may begin at the same time.
        """
        self._slots = itertools.count()  # one for each span, over all files
        self._names: dict[str, int] = {}  # the index of each lane and kind, as the file of names states it
        self._files: list[mmap.mmap] = []  # each with `_SLOTS` slots
        self._lock = threading.Lock()
        self._stem = self.folder / f"{os.getpid()}-{_now()}-{id(self)}"
        _recorders.add(self)

    def _prepare(self, lane: str, kind: str, file_number: int) -> None:
        """Give indices to new names, on disk before any span uses them, and make the files up to `file_number`."""
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
            while len(self._files) <= file_number:
                path = f"{self._stem}.{len(self._files):06d}.spans"
                with open(path, "w+b") as file, naming(path):
                    reserve(file.fileno(), _SLOTS * _SIZE)
                    self._files.append(mmap.mmap(file.fileno(), 0))


class _Temporary:
    """An object that lives as long as any recorder that writes to a temporary folder; then the folder is deleted."""


class _RunningSpan:
    __slots__ = ("_item", "_kind", "_lane", "_recorder", "_start_ns")

    def __init__(self, recorder: Recorder, lane: str, kind: str, item: int) -> None:
        self._recorder = recorder
        self._lane = lane
        self._kind = kind
        self._item = item

    def __enter__(self) -> None:
        self._start_ns = _now()

    def __exit__(self, *error: object) -> None:
        self._recorder.add(self._lane, self._kind, self._item, self._start_ns, _now())


def _load(names_path: Path, paths: list[Path]) -> Timeline:
    """Return the spans of one process, which may be recording at the same time; `paths` are its files of spans.

    Spans are read before names, because a name is on disk before a span uses it. `written` is the last field of a
    record, so a span that was cut short by a kill is left out. A name that was cut short has no span.
    """
    parts = [np.empty(0, _RECORD)]  # at least one array, even if all files are empty
    for path in paths:
        if path.stat().st_size:  # a kill may leave an empty file
            with _naming_file(path):
                parts.append(np.frombuffer(read_bytes(path, _SLOTS * _SIZE), _RECORD))
    records = np.concatenate(parts)
    spans = records[records["written"] == 1]
    names: tuple[str, ...] = ()
    if spans.size:  # a machine that went down may leave no names, but no spans either
        with _naming_file(names_path):
            names = _load_names(names_path)
    with _naming_file(paths[0]):  # a value that does not fit may be in any of the files
        return Timeline(
            rank=spans["rank"],
            lane=spans["lane"],
            kind=spans["kind"],
            item=spans["item"],
            start_s=spans["start_ns"] / 1e9,
            stop_s=spans["stop_ns"] / 1e9,
            lanes=names,  # lanes and kinds are in one list of names
            kinds=names,
        )


@contextlib.contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Turn the errors of a file that no recorder wrote into a StorageError, which names it."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise StorageError(path, f"not written by a recorder: {error}") from error


def _load_names(path: Path) -> tuple[str, ...]:
    """Return the names by their index. A line that is cut short is left out; an index without a name has "".

    Each name has a line, so an index above the number of lines is damaged. It is left out, because an index of millions
    would make as many empty names.
    """
    lines = read_bytes(path).decode(errors="replace").splitlines()
    names: dict[int, str] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            index, name = json.loads(line)  # as `Recorder._prepare` writes them
            names[whole("index", index, 0, len(lines))] = of_type("name", name, str)
    num_names = max(names, default=-1) + 1
    return tuple(names.get(index, "") for index in range(num_names))


def _begin_in_child() -> None:
    """Begin new files in a forked process, which must not write to its parent's slots."""
    for recorder in list(_recorders):
        recorder._begin()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_begin_in_child)
