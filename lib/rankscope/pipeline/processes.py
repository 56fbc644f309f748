"""A worker process of a stage, and its thread's end: values pass through shared memory, errors come back whole."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from ..workers.failures import portable
from ..workers.host import how_it_ended
from ..workers.lifelines import Lifeline, Watched
from ..workers.shared import Exchange


class StageError(RuntimeError):
    """A stage failed: `stage` is its name, `item` the number of the item it worked on, None where it had none."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


class WorkerDied(StageError):
    """A worker process ended without being asked to: killed, out of memory, or crashed."""


class Worker:
    """A process that applies `fn` to one value after the other, as asked by one thread of the process that made it.

    It ignores Ctrl-C, which that process heeds, and ends when that process is gone. `death` is ready once it has
    ended. Raises ValueError for a `fn` that cannot be sent to a process.
    """

    def __init__(
        self,
        context: Any,
        stage: str,
        place: int,
        fn: Callable[[Any], Any],
        folder: Path,
        lifeline: Lifeline,
        others: Sequence[Worker],
    ) -> None:
        self.stage, self.place = stage, place
        self.item: int | None = None
        self._lock = threading.Lock()
        folder.mkdir()
        self._exchange = Exchange(folder, 0)
        self._connection, theirs = context.Pipe()
        forked = context.get_start_method() == "fork"  # the child has all that is open here: it must close our ends
        ours = [self._connection, *(other._connection for other in others)] if forked else []
        process = context.Process(target=_serve, args=(fn, theirs, folder, lifeline, ours), daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            message = f"the fn of stage {stage!r} must be a function of a module, to be sent to a process"
            raise ValueError(f"{message}, got {fn!r}: {error}") from error
        finally:
            theirs.close()
        self._watched, self.pid = Watched(process), process.pid
        self.death = self._watched.death

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
            code = self._watched.exit_code(1.0)
        doing = "between items" if self.item is None else f"on item {self.item}"
        name = f"worker {self.place} of stage {self.stage!r} (process {self.pid})"
        return WorkerDied(f"{name} {how_it_ended(code)} {doing}", self.stage, self.item)

    def kill(self) -> None:
        """Kill the process; the thread that waits for it goes on, whoever else may hold the process's end."""
        self._watched.process.kill()
        self.hang_up()

    def hang_up(self) -> None:
        """Let the thread that waits for an answer, and whoever asks from now on, find that there is nobody."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process and wait for it; the thread that asks it must have ended."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(b"")
        self._watched.end(5.0)
        self._connection.close()


def _serve(
    fn: Callable[[Any], Any], connection: Connection, folder: Path, lifeline: Lifeline, inherited: Sequence[Connection]
) -> None:
    """What the process does until it is told to end, by an empty message, or the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:
        other.close()
    lifeline.tie()
    if "torch" in sys.modules:  # as torch's own DataLoader does: its thread pool does not survive a fork
        sys.modules["torch"].set_num_threads(1)
    exchange = Exchange(folder, 1)
    try:
        while message := connection.recv_bytes():
            connection.send_bytes(_answer(fn, exchange, message))
    except (EOFError, ConnectionError):  # that process was killed
        lifeline.end()


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
