"""A clock for `run` that moves only while all its threads wait: what is slept is exact, however busy the machine is.

The real threads of a real run, with queues that know who waits in them. When nobody is left who could go on, the clock
jumps to the end of the sleep that ends first.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

run_module = import_module("rankscope.pipeline.run")  # the package has the function under this name
lines = import_module("rankscope.pipeline.lines")


class VirtualTime:
    """Put in the place of the clock, the sleeps and the queues of the next `run`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
        self._now_ns, self._busy, self.mutex = 0, num_workers, threading.Lock()
        self._sleepers: list[tuple[int, int, threading.Lock]] = []
        self._order = itertools.count()
        work = run_module._Execution._work

        def worked(*arguments: Any) -> None:
            work(*arguments)
            with self.mutex:
                self._rest()

        monkeypatch.setattr(run_module, "_now_ns", lambda: self._now_ns)
        clock = {"perf_counter": lambda: self._now_ns / 1e9, "sleep": self.sleep, "monotonic": time.monotonic}
        monkeypatch.setattr(run_module, "time", SimpleNamespace(**clock))
        monkeypatch.setattr(run_module._Execution, "_work", worked)
        monkeypatch.setattr(lines, "SimpleQueue", lambda: _Queue(self))

    def sleep(self, seconds: float) -> None:
        """Let the clock go on by that much, as the others sleep and work."""
        due_ns = self._now_ns + round(seconds * 1e9)
        waiter = _waiter()
        with self.mutex:
            heapq.heappush(self._sleepers, (due_ns, next(self._order), waiter))
            self._rest()
        waiter.acquire()

    def wait(self, line: deque[threading.Lock]) -> None:
        """Wait in line, with the mutex held."""
        waiter = _waiter()
        line.append(waiter)
        self._rest()
        self.mutex.release()
        waiter.acquire()
        self.mutex.acquire()

    def wake(self, line: deque[threading.Lock]) -> None:
        """Let the first in line go on, with the mutex held."""
        if line:
            self._busy += 1
            line.popleft().release()

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
        with self._clock.mutex:
            self._items.append(item)
            self._clock.wake(self._line)

    def get(self) -> Any:
        with self._clock.mutex:
            while not self._items:
                self._clock.wait(self._line)
            return self._items.popleft()

    def empty(self) -> bool:
        with self._clock.mutex:
            return not self._items


def _waiter() -> threading.Lock:
    waiter = threading.Lock()
    waiter.acquire()
    return waiter
