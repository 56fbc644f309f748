"""Values passed between processes: a pipe carries what is small, memory that both have mapped carries the arrays.

A value is pickled with its arrays out of band (PEP 574). They are copied once, into a segment of shared memory; the
other side makes arrays that look straight into it, and when the last of those is gone the segment is used again. So a
batch of megabytes costs one copy, and memory is allocated for the first few only. A `multiprocessing.Connection` alone,
and the queues of torch and of Python, are several times slower at 8 MB: ``python -m tests.benchmarks.pipeline``.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import weakref
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..common.storage import reserve
from .pickling import PROTOCOL, Pickler

_ALIGNED = 64  # bytes: a cache line
_NO_SEGMENT = -1


class _Header(NamedTuple):
    """What a message begins with. The pickle follows, then numbers: of returned segments, of closed ones, and sizes."""

    segment: int  # or _NO_SEGMENT
    num_bytes: int  # used of the segment
    num_returned: int  # segments of the receiver that nobody looks into any more
    num_closed: int  # segments of the sender that will not be used again
    pickle_bytes: int


_HEADER = struct.Struct("<qqiiq")


class SharedMemoryEnd:
    """One of two ends between which values pass as short messages and shared memory.

    `pack` makes the message, `unpack` at the other end takes it; how it gets there is left to the caller, but all
    messages must arrive, in order. Contiguous numpy arrays and CPU tensors, however deep in the value, go through
    shared memory. What `unpack` gives may be kept and written to. An end belongs to one process, and to one thread at a
    time; `side` is 0 at one end and 1 at the other, and the names of their files begin with `path`. The messages are
    pickles: they must come from one's own processes.
    """

    def __init__(self, path: Path, side: int) -> None:
        self._path = path
        self._side = side
        # Segments by their numbers: this end writes to its own, and its values look into those of the other end.
        self._ours: dict[int, mmap.mmap] = {}
        self._free: list[int] = []  # ours, into which the other end no longer looks
        self._closed: list[int] = []  # ours, closed since the last message
        self._num_made = 0  # ours, which are numbered in this order
        self._theirs: dict[int, mmap.mmap] = {}
        self._returned: deque[int] = deque()  # theirs, into which no value looks any longer; any thread may append

    def pack(self, value: Any) -> bytes:
        """Copy the arrays of a value into shared memory and return the message.

        The message also tells the other end which of its segments nobody uses any more, so that it may use them again,
        and which segments of this end are closed. Raises what pickle raises, and OSError if memory is full.
        """
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        Pickler(stream, protocol=PROTOCOL, buffer_callback=buffers.append).dump(value)
        views = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]  # of the arrays' bytes
        num_bytes = sum(_rounded_up(view.size, _ALIGNED) for view in views)
        segment = self._take_segment(num_bytes) if num_bytes else _NO_SEGMENT
        start = 0
        for view in views:
            if view.size:  # if all arrays are empty, there is no segment
                np.copyto(np.frombuffer(self._ours[segment], np.uint8, view.size, start), view)
            start += _rounded_up(view.size, _ALIGNED)
        # Other threads may append to this queue meanwhile, so take exactly those that are in it now.
        returned = [self._returned.popleft() for _ in range(len(self._returned))]
        sizes = [view.size for view in views]
        numbers = np.array([*returned, *self._closed, *sizes], dtype=np.int64).tobytes()
        header = _Header(segment, num_bytes, len(returned), len(self._closed), stream.tell())
        self._closed.clear()
        return b"".join((_HEADER.pack(*header), stream.getbuffer(), numbers))

    def unpack(self, message: bytes) -> Any:
        """Return the value of a message that the other end packed."""
        header = _Header._make(_HEADER.unpack_from(message))
        body = memoryview(message)[_HEADER.size :]
        numbers = np.frombuffer(body[header.pickle_bytes :], np.int64).tolist()
        end_of_closed = header.num_returned + header.num_closed
        self._free.extend(numbers[: header.num_returned])
        for number in numbers[header.num_returned : end_of_closed]:
            self._theirs.pop(number).close()
        memory = memoryview(bytearray())  # none is needed if no array of the value has an element
        if header.segment != _NO_SEGMENT:
            memory = self._look_into(header.segment, header.num_bytes)
        views = []
        start = 0
        for size in numbers[end_of_closed:]:
            views.append(memory[start : start + size])
            start += _rounded_up(size, _ALIGNED)
        return pickle.loads(body[: header.pickle_bytes], buffers=views)

    def _take_segment(self, num_bytes: int) -> int:
        """Return the number of a segment of ours of at least that size, into which nobody looks.

        It is the smallest free one that is large enough. If there is none, values have become larger, so all free ones
        are closed, and a new one is made.
        """
        large_enough = [number for number in self._free if len(self._ours[number]) >= num_bytes]
        if large_enough:
            number = min(large_enough, key=lambda candidate: len(self._ours[candidate]))
            self._free.remove(number)
            return number
        for number in self._free:
            self._ours.pop(number).close()
        self._closed += self._free
        self._free.clear()
        return self._new_segment(num_bytes)

    def _new_segment(self, num_bytes: int) -> int:
        number = self._num_made
        self._num_made += 1
        path = self._segment_path(self._side, number)
        rounded = _rounded_up(num_bytes * 9 // 8, mmap.PAGESIZE)  # so that a slightly longer value fits in, too
        with open(path, "w+b") as file:
            try:
                reserve(file.fileno(), rounded)
            except OSError as error:
                path.unlink()
                raise OSError(f"no room for {rounded} bytes of shared memory in {path.parent}: {error}") from None
            self._ours[number] = mmap.mmap(file.fileno(), rounded)
        return number

    def _look_into(self, segment: int, num_bytes: int) -> memoryview:
        """Return a view of a segment of theirs; when nothing looks into it any more the segment goes back."""
        if segment not in self._theirs:
            path = self._segment_path(1 - self._side, segment)
            with open(path, "r+b") as file:
                self._theirs[segment] = mmap.mmap(file.fileno(), 0)
            path.unlink()  # the memory stays as long as it is mapped, and a kill leaves no file behind
        # All arrays of the value refer to `base`, so it is deleted with the last of them.
        base = np.frombuffer(self._theirs[segment], np.uint8, num_bytes)
        finalizer = weakref.finalize(base, self._returned.append, segment)
        finalizer.atexit = False  # when this process exits, no message will return the segment
        return base.data

    def _segment_path(self, side: int, number: int) -> Path:
        return Path(f"{self._path}-{side}-{number}")


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
