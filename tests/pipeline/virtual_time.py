"""A clock for `run` that moves only while all its threads wait: what is slept is exact, however busy the machine is.

The real threads of a real run, with locks and queues that know who waits in them. When nobody is left who could go on,
the clock jumps to the end of the sleep that ends first.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from importlib import import_module
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

run_module = import_module("rankscope.pipeline.run")  # the package has the function under this name
queues = import_module("rankscope.pipeline.queues")


class VirtualTime:
    """Put in the place of the clock, the sleeps, the locks and the queues of the next `run`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
        self._now_ns, self._busy, self._mutex = 0, num_workers, threading.Lock()
        self._sleepers: list[tuple[int, int, threading.Lock]] = []
        self._order = itertools.count()
        serve = run_module._PipelineExecution._run_worker

        def served(*arguments: Any) -> None:
            serve(*arguments)
            self._leave()

        monkeypatch.setattr(run_module, "_now_ns", lambda: self._now_ns)
        clock = {"perf_counter": lambda: self._now_ns / 1e9, "sleep": self.sleep, "monotonic": time.monotonic}
        monkeypatch.setattr(run_module, "time", SimpleNamespace(**clock))
        monkeypatch.setattr(run_module._PipelineExecution, "_run_worker", served)
        monkeypatch.setattr(queues, "SimpleQueue", lambda: _Queue(self))
        monkeypatch.setattr(queues, "allocate_lock", lambda: _Lock(self))

    def sleep(self, seconds: float) -> None:
        """Let the clock go on by that much, as the others sleep and work."""
        due_ns = self._now_ns + round(seconds * 1e9)
        waiter = _waiter()
        with self._mutex:
            heapq.heappush(self._sleepers, (due_ns, next(self._order), waiter))
            self._rest()
        waiter.acquire()

    def wait(self, line: deque[threading.Lock]) -> None:
        """Wait in line, with the mutex held."""
        waiter = _waiter()
        line.append(waiter)
        self._rest()
        self._mutex.release()
        waiter.acquire()
        self._mutex.acquire()

    def wake(self, line: deque[threading.Lock]) -> None:
        """Let the first in line go on, with the mutex held."""
        if line:
            self._busy += 1
            line.popleft().release()

    def _leave(self) -> None:
        with self._mutex:
            self._rest()

    def _rest(self) -> None:
        self._busy -= 1
        if not self._busy and self._sleepers:
            self._now_ns, _, waiter = heapq.heappop(self._sleepers)
            self._busy = 1
            waiter.release()


class _Queue:
    def __init__(self, clock: VirtualTime) -> None:
        self._clock, self._items, self._line = clock, deque[Any](), deque[threading.Lock]()

    def put(self, item: Any) -> None:
        with self._clock._mutex:
            self._items.append(item)
            self._clock.wake(self._line)

    def get(self) -> Any:
        with self._clock._mutex:
            while not self._items:
                self._clock.wait(self._line)
            return self._items.popleft()

    def get_nowait(self) -> Any:
        with self._clock._mutex:
            if not self._items:
                raise Empty
            return self._items.popleft()


class _Lock:
    def __init__(self, clock: VirtualTime) -> None:
        self._clock, self._held, self._line = clock, False, deque[threading.Lock]()

    def acquire(self, blocking: bool = True) -> bool:
        with self._clock._mutex:
            if self._held and not blocking:
                return False
            while self._held:
                self._clock.wait(self._line)
            self._held = True
            return True

    def release(self) -> None:
        with self._clock._mutex:
            self._held = False
            self._clock.wake(self._line)

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


def _waiter() -> threading.Lock:
    waiter = threading.Lock()
    waiter.acquire()
    return waiter
