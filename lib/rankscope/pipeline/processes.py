"""A process of its own for a worker. It is forked, so its function need not be pickled.

Arrays pass through memory that both processes share: not through files in ``/dev/shm`` or the temporary folder, so
nothing there can be full or be left behind.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import pickle
import signal
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import numpy as np

from ..common.portable import portable
from ..ranks.errors import MachineError
from ..ranks.host import end_with, how_it_ended, kill_group

_ROOM_BYTES = 1 << 30  # for the arrays of a value, of which only what is used takes memory


class WorkResult(NamedTuple):
    """The result of work, and when the work began and ended, in nanoseconds of `time.perf_counter_ns`."""

    value: Any
    start_ns: int
    stop_ns: int


class Process:
    """A process that calls `fn` for one value at a time.

    It ends by `end`, with this object, or with the thread that has made it, however that ends.
    """

    def __init__(self, fn: Callable[[Any], Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._arguments = _Memory()
        self._results = _Memory()
        self._connection, theirs = Pipe()
        owner_pid = os.getpid()
        print(end="", flush=True)  # or the process would print it, too
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(fn, theirs, self._arguments, self._results, owner_pid)
            finally:
                os._exit(1)
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(self.pid, self.pid)  # the process does so, too: whoever is first
        theirs.close()
        self.end = weakref.finalize(self, _kill, self.pid, owner_pid)  # also at exit; it says once how it has ended

    def call(self, value: Any) -> WorkResult:
        """Return the result for a value.

        Raises the error that `fn` raised; MachineError if the process ends or has not answered after `timeout_s`.
        """
        process = f"its process (pid {self.pid})"
        try:
            self._connection.send(self._arguments.packed(value))
            if not self._connection.poll(self._timeout_s):
                raise MachineError(f"{process} has not answered after {self._timeout_s:g} s (timeout_s)")
            answer: WorkResult | BaseException = self._connection.recv()
        except (EOFError, OSError):
            raise MachineError(f"{process} {self.end()}") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer._replace(value=self._results.unpacked(answer.value))


def _kill(pid: int, owner_pid: int) -> str:
    """Kill a process, even a stopped one, and what it has started; say how it has ended, perhaps before this."""
    if os.getpid() != owner_pid:  # a process that was forked from the owner, whose copy of the object has gone
        return "belongs to another process"
    kill_group(pid)
    _, status = os.waitpid(pid, 0)
    return how_it_ended(os.waitstatus_to_exitcode(status))


class _Packed(NamedTuple):
    """A value, pickled without its arrays, and the sizes of these in bytes."""

    content: bytes
    sizes: list[int]


class _Memory:
    """Memory that a forked process shares, for the arrays of one value at a time."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, _ROOM_BYTES)

    def packed(self, value: Any) -> _Packed:
        buffers: list[pickle.PickleBuffer] = []
        content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        num_bytes = sum(view.nbytes for view in views)
        if num_bytes > len(self._bytes):
            room = f"at most {len(self._bytes)} bytes together"
            raise MachineError(f"the arrays that pass between processes must have {room}, got {num_bytes}")
        self._bytes.seek(0)
        return _Packed(content, [self._bytes.write(view) for view in views])

    def unpacked(self, packed: _Packed) -> Any:
        buffers = []
        start = 0
        for size in packed.sizes:
            # numpy copies without the interpreter lock.
            buffers.append(np.frombuffer(self._bytes, np.uint8, size, start).copy())
            start += size
        return pickle.loads(packed.content, buffers=buffers)


def _serve(
    fn: Callable[[Any], Any], connection: Connection, arguments: _Memory, results: _Memory, owner_pid: int
) -> None:
    """Be the process: answer each value with its WorkResult or with an error, until the owner ends."""
    os.setpgid(0, 0)  # Ctrl-C does not reach it, and a kill of the group also ends the processes that it starts
    end_with(owner_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # finalizers of the owner's garbage are not for this process
    np.random.seed()  # or all processes would draw the same numbers; Python's own generator does so after a fork
    if "torch" in sys.modules:  # one thread per process, as in torch's own DataLoader
        sys.modules["torch"].set_num_threads(1)
    while True:
        packed = connection.recv()
        answer: WorkResult | BaseException
        try:
            value = arguments.unpacked(packed)
            start_ns = time.perf_counter_ns()
            result = fn(value)
            stop_ns = time.perf_counter_ns()
            answer = WorkResult(results.packed(result), start_ns, stop_ns)
        except BaseException as error:
            answer = portable(error)
        print(end="", flush=True)  # what `fn` has printed: the process is killed at its end
        connection.send(answer)
