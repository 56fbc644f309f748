"""A process of its own for a worker of a stage. It is forked, so the stage's function need not be pickled."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ..common.portable import portable
from ..ranks.errors import MachineError
from ..ranks.host import end_with, kill_group

_ROOM_BYTES = 1 << 30  # for the arrays of an item, of which only what is used takes memory


class WorkResult(NamedTuple):
    """The result of a stage's work on an item, and when the work began and ended."""

    value: Any
    start_ns: int
    stop_ns: int


class Process:
    """A process that calls `fn`. It ends with the thread that has made it, if `end` does not end it before."""

    def __init__(self, fn: Callable[[Any], Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._arguments = mmap.mmap(-1, _ROOM_BYTES)  # memory that the process inherits
        self._results = mmap.mmap(-1, _ROOM_BYTES)
        job = (fn, self._arguments, self._results, os.getpid())
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _begin, job)
        self._pid = self._pool.submit(os.getpid).result()  # the process starts with the first call

    def call(self, value: Any) -> WorkResult:
        """Return the result for a value.

        Raises the error that `fn` raised, BrokenProcessPool if the process ends, MachineError if it is late.
        """
        future = self._pool.submit(_work, _packed(value, self._arguments))
        try:
            message, start_ns, stop_ns = future.result(self._timeout_s)
        except TimeoutError:
            if future.done():  # it is an error of `fn`
                raise
            late = f"has not answered after {self._timeout_s:g} s (timeout_s)"
            raise MachineError(f"its process (pid {self._pid}) {late}") from None
        return WorkResult(_unpacked(message, self._results), start_ns, stop_ns)

    def end(self) -> None:
        """Kill the process, and what it has started; a thread that waits for a result gets an error."""
        kill_group(self._pid)
        self._pool.shutdown()


class _Message(NamedTuple):
    """A value, pickled without its arrays, and the sizes of these, which lie in memory that both processes share."""

    content: bytes
    sizes: list[int]


def _packed(value: Any, memory: mmap.mmap) -> _Message:
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    num_bytes = sum(view.nbytes for view in views)
    if num_bytes > _ROOM_BYTES:
        raise MachineError(f"the arrays of an item must have at most {_ROOM_BYTES} bytes together, got {num_bytes}")
    memory.seek(0)
    return _Message(content, [memory.write(view) for view in views])


def _unpacked(message: _Message, memory: mmap.mmap) -> Any:
    memory.seek(0)
    buffers = [bytearray(memory.read(size)) for size in message.sizes]
    return pickle.loads(message.content, buffers=buffers)


_fn: Callable[[Any], Any]  # of this process, if it is one of a stage, with the memory of its arguments and results
_arguments: mmap.mmap
_results: mmap.mmap


def _begin(fn: Callable[[Any], Any], arguments: mmap.mmap, results: mmap.mmap, owner_pid: int) -> None:
    """Be called in a process that has just started."""
    global _fn, _arguments, _results
    _fn = fn
    _arguments = arguments
    _results = results
    os.setpgid(0, 0)  # Ctrl-C does not reach it, and a kill of the group also ends the processes that it starts
    end_with(owner_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.random.seed()  # or all processes would draw the same numbers; Python's own generator does so after a fork
    if "torch" in sys.modules:  # one thread per process, as in torch's own DataLoader
        sys.modules["torch"].set_num_threads(1)


def _work(message: _Message) -> tuple[_Message, int, int]:
    value = _unpacked(message, _arguments)
    start_ns = time.perf_counter_ns()
    try:
        result = _fn(value)
    except BaseException as error:
        raise portable(error) from None  # one that cannot be unpickled would break the pool
    stop_ns = time.perf_counter_ns()
    print(end="", flush=True)  # what `fn` has printed: the process is killed at its end
    return _packed(result, _results), start_ns, stop_ns
