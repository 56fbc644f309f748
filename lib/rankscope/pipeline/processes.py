"""A worker process of a stage, and its thread's end: values pass through shared memory, errors come back whole."""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from .failures import how_it_ended, portable
from .shared import Exchange, delete_folder


class StageError(RuntimeError):
    """A stage failed: `stage` is its name, `item` the number of the item it worked on, None where it had none."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


class WorkerDied(StageError):
    """A worker process ended without being asked to: killed, out of memory, or crashed."""


class Worker:
    """A process that applies `fn` to one value after the other, as asked by one thread of the process that made it.

    It ignores Ctrl-C, which that process heeds, and ends by itself when that process is gone. Raises ValueError for a
    `fn` that cannot be sent to a process.
    """

    def __init__(
        self, context: Any, stage: str, place: int, fn: Callable[[Any], Any], folder: Path, others: Sequence[Worker]
    ) -> None:
        self.stage, self.place = stage, place
        self.item: int | None = None
        self._lock = threading.Lock()
        folder.mkdir()
        self._exchange = Exchange(folder, 0)
        self._connection, theirs = context.Pipe()
        forked = context.get_start_method() == "fork"  # the child has all that is open here: it must close our ends
        ours = [self._connection, *(other._connection for other in others)] if forked else []
        self.process = context.Process(target=_serve, args=(fn, theirs, folder, ours), daemon=True)
        try:
            self.process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            message = f"the fn of stage {stage!r} must be a function of a module, to be sent to a process"
            raise ValueError(f"{message}, got {fn!r}: {error}") from error
        finally:
            theirs.close()

    def __call__(self, number: int, value: Any) -> tuple[Any, int, int]:
        """Return what fn makes of the value, and when it began and ended, in ns of `time.perf_counter_ns`.

        Raises the error that fn raised, and WorkerDied.
        """
        message = self._exchange.pack(value)
        self.item = number
        try:
            self._connection.send_bytes(message)
            answer: tuple[Any, int, int] | _Raised = self._exchange.unpack(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self.died() from None
        self.item = None
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    def died(self) -> WorkerDied:
        """Return the error that says how it ended."""
        with self._lock:  # two threads may ask, and one process is waited for once
            self.process.join(1)
            code = self.process.exitcode
        doing = "between items" if self.item is None else f"on item {self.item}"
        name = f"worker {self.place} of stage {self.stage!r} (process {self.process.pid})"
        return WorkerDied(f"{name} {how_it_ended(code)} {doing}", self.stage, self.item)

    def close(self) -> None:
        """End the process and wait for it; the thread that asks it must have ended."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(b"")
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._connection.close()
        self.process.close()


def _serve(fn: Callable[[Any], Any], connection: Connection, folder: Path, inherited: Sequence[Connection]) -> None:
    """What the process does until it is told to end, by an empty message, or the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:
        other.close()
    if "torch" in sys.modules:  # as torch's own DataLoader does: its thread pool does not survive a fork
        sys.modules["torch"].set_num_threads(1)
    exchange = Exchange(folder, 1)
    try:
        while message := connection.recv_bytes():
            connection.send_bytes(_answer(fn, exchange, message))
    except (EOFError, ConnectionError):  # that process was killed
        delete_folder(folder.parent)


def _answer(fn: Callable[[Any], Any], exchange: Exchange, message: bytes) -> bytes:
    try:
        value = exchange.unpack(message)
        start_ns = time.perf_counter_ns()
        result = fn(value)
        return exchange.pack((result, start_ns, time.perf_counter_ns()))
    except BaseException as error:
        return exchange.pack(_Raised(portable(error)))


class _Raised(NamedTuple):
    """What is sent back in place of a result."""

    error: BaseException
