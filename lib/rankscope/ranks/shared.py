"""Values passed between processes: a pipe carries what is small, memory that both have mapped carries the arrays.

A value is pickled with its arrays out of band (PEP 574). They are copied once, into a segment of shared memory; the
other side makes arrays that look straight into it, and when the last of those is gone the segment is used again. So a
batch of megabytes costs one copy, and memory is allocated for the first few only.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from ..common.storage import reserve
from .pickling import PROTOCOL, Pickler

_ALIGNED = 64  # bytes: a cache line
# the segment (-1: none) and the bytes used of it, how many segments are given back, how many are done with, and the
# length of the pickle
_HEADER = struct.Struct("<qqiiq")


class SharedMemoryEnd:
    """One of two ends between which values pass as short messages and shared memory.

    `pack` makes the message, `unpack` at the other end takes it; how it gets there is left to the caller, but all
    messages must arrive, in order. Contiguous numpy arrays and CPU tensors, however deep in the value, go through
    shared memory. What `unpack` gives may be kept and written to. An end belongs to one process, and to one thread at a
    time; `side` is 0 at one end and 1 at the other, and the names of their files begin with `place`. The messages are
    pickles: they must come from one's own processes.
    """

    def __init__(self, place: Path, side: int) -> None:
        self._place, self._side = place, side
        self._ours: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._theirs: dict[int, mmap.mmap] = {}
        self._returned: deque[int] = deque()  # theirs, looked into no longer; threads of any kind append to it
        self._gone: list[int] = []
        self._count = 0

    def pack(self, value: Any) -> bytes:
        """Copy the arrays of a value into shared memory and return the message; raises what pickle raises, and OSError
        where memory is full."""
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        Pickler(stream, protocol=PROTOCOL, buffer_callback=buffers.append).dump(value)
        views = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        starts = np.cumsum([0, *(-(-view.size // _ALIGNED) * _ALIGNED for view in views)]).tolist()
        size = starts.pop()
        segment = self._segment(size) if size else -1
        for start, view in zip(starts, views, strict=True):
            if view.size:
                np.copyto(np.frombuffer(self._ours[segment], np.uint8, view.size, start), view)
        returned = [self._returned.popleft() for _ in range(len(self._returned))]
        numbers = np.array([*returned, *self._gone, *(view.size for view in views)], dtype=np.int64).tobytes()
        header = _HEADER.pack(segment, size, len(returned), len(self._gone), stream.tell())
        self._gone.clear()
        return b"".join((header, stream.getbuffer(), numbers))

    def unpack(self, message: bytes) -> Any:
        """Return the value of a message that the other end packed."""
        segment, size, num_returned, num_gone, length = _HEADER.unpack_from(message)
        body = memoryview(message)[_HEADER.size :]
        numbers = np.frombuffer(body[length:], np.int64).tolist()
        self._free.extend(numbers[:num_returned])
        for number in numbers[num_returned : num_returned + num_gone]:
            self._theirs.pop(number).close()
        lease = self._lease(segment, size) if segment >= 0 else memoryview(bytearray())
        views, start = [], 0
        for nbytes in numbers[num_returned + num_gone :]:
            views.append(lease[start : start + nbytes])
            start += -(-nbytes // _ALIGNED) * _ALIGNED
        return pickle.loads(body[:length], buffers=views)

    def _segment(self, size: int) -> int:
        """The number of a segment of ours of at least that size, into which nobody looks."""
        fitting = [number for number in self._free if len(self._ours[number]) >= size]
        if fitting:
            number = min(fitting, key=lambda fits: len(self._ours[fits]))
            self._free.remove(number)
            return number
        for number in self._free:  # too small, all of them: they make room for a larger one
            self._ours.pop(number).close()
        self._gone += self._free
        self._free.clear()
        number, self._count = self._count, self._count + 1
        path = self._path(self._side, number)
        rounded = -(-size * 9 // 8 // mmap.PAGESIZE) * mmap.PAGESIZE  # values that grow a little need no new one
        with open(path, "w+b") as file:
            try:
                reserve(file.fileno(), rounded)
            except OSError as error:
                path.unlink()
                raise OSError(f"no room for {rounded} bytes of shared memory in {path.parent}: {error}") from None
            self._ours[number] = mmap.mmap(file.fileno(), rounded)
        return number

    def _lease(self, segment: int, size: int) -> memoryview:
        """A view of a segment of theirs; when nothing looks into it any more the segment goes back."""
        if segment not in self._theirs:
            path = self._path(1 - self._side, segment)
            with open(path, "r+b") as file:
                self._theirs[segment] = mmap.mmap(file.fileno(), 0)
            path.unlink()  # from here on it lives as long as it is mapped: a kill leaves nothing behind
        base = np.frombuffer(self._theirs[segment], np.uint8, size)
        weakref.finalize(base, self._returned.append, segment).atexit = False
        return memoryview(base.data)

    def _path(self, side: int, number: int) -> Path:
        return Path(f"{self._place}-{side}-{number}")
