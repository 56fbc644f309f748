"""A process of its own for a worker. It is forked, so its function need not be pickled.

Arrays pass through memory that both processes share: not through files in ``/dev/shm`` or the temporary folder, so
nothing there can be full or be left behind.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing import get_context, util
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeAlias

import numpy as np

from ..common.checks import number
from ..common.portable import portable
from ..ranks.errors import MachineError
from ..ranks.host import end_with, how_it_ended, kill_group

_ROOM_BYTES = 1 << 30  # for the arrays of a value, of which only what is used takes memory
_Packed: TypeAlias = tuple[bytes, list[int]]  # a value, pickled without its arrays, and the sizes of these in bytes


class Process:
    """A process that calls `fn` for one value at a time.

    It ends by `end`, with this object, or with the thread that has made it, however that ends.
    """

    def __init__(self, fn: Callable[[Any], Any], timeout_s: float) -> None:
        self._timeout_s = number("timeout_s", timeout_s, above=0)
        self._memory = _Memory()
        self._connection, theirs = Pipe()
        arguments = (fn, theirs, self._memory, os.getpid())
        self._process = get_context("fork").Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()
        # Before multiprocessing joins at exit what it has started; a forked copy of this object ends nothing.
        self.end = util.Finalize(self, _kill, (self._process,), exitpriority=1)

    def call(self, value: Any) -> Any:
        """Return the result for a value.

        Raises the error that `fn` raised; MachineError if the process ends or has not answered after `timeout_s`.
        """
        name = f"its process (pid {self._process.pid})"
        try:
            self._connection.send(self._memory.packed(value))
            if not self._connection.poll(self._timeout_s):
                raise MachineError(f"{name} has not answered after {self._timeout_s:g} s (timeout_s)")
            answer: _Packed | BaseException = self._connection.recv()
        except (EOFError, OSError):
            self.end()
            raise MachineError(f"{name} {how_it_ended(self._process.exitcode or 0)}") from None
        if isinstance(answer, BaseException):
            raise answer
        return self._memory.unpacked(answer)


def _kill(process: Any) -> None:
    """Kill a process, even a stopped one, and what it has started, if it has not ended before."""
    process.kill()
    kill_group(process.pid)
    process.join()


class _Memory:
    """Memory that a forked process shares, for the arrays of one value at a time."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, _ROOM_BYTES)

    def packed(self, value: Any) -> _Packed:
        buffers: list[pickle.PickleBuffer] = []
        content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        num_bytes = sum(view.nbytes for view in views)
        if num_bytes > _ROOM_BYTES:
            raise MachineError(f"arrays between processes may have {_ROOM_BYTES} bytes together, got {num_bytes}")
        self._bytes.seek(0)
        return content, [self._bytes.write(view) for view in views]

    def unpacked(self, packed: _Packed) -> Any:
        content, sizes = packed
        buffers = []
        start = 0
        for size in sizes:
            # numpy copies without the interpreter lock.
            buffers.append(np.frombuffer(self._bytes, np.uint8, size, start).copy())
            start += size
        return pickle.loads(content, buffers=buffers)


def _serve(fn: Callable[[Any], Any], connection: Connection, memory: _Memory, owner_pid: int) -> None:
    """Be the process: answer each value with the packed result or with an error, until the owner ends."""
    os.setpgid(0, 0)  # Ctrl-C does not reach it, and a kill of the group also ends the processes that it starts
    end_with(owner_pid)
    gc.freeze()  # finalizers of the owner's garbage are not for this process
    np.random.seed()  # or all processes would draw the same numbers; Python's own generator does so after a fork
    if "torch" in sys.modules:  # one thread per process, as in torch's own DataLoader
        sys.modules["torch"].set_num_threads(1)
    while True:
        packed = connection.recv()
        answer: _Packed | BaseException
        try:
            answer = memory.packed(fn(memory.unpacked(packed)))
        except BaseException as error:
            answer = portable(error)
        print(end="", flush=True)  # what `fn` has printed: the process is killed at its end
        connection.send(answer)
