"""What a forked worker does: it takes on its owner's surroundings, and works until it is killed."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import linecache
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from . import pickling, stacks
from .errors import MachineError, portable
from .shared import SharedMemoryEnd

_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that this process gets when its parent ends


class Surroundings(NamedTuple):
    """The parts of the owner's state that its workers get, too."""

    environment: dict[str, str]
    folder: str  # the working directory
    path: list[str]
    argv: list[str]
    sources: dict[str, Any]  # of notebook cells, which are in no file

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Return those of this process. Raises MachineError if the working directory was deleted."""
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:
            raise MachineError("the working directory was deleted: change to another one, with os.chdir") from error
        sources = {}
        for name, entry in list(linecache.cache.items()):
            # An entry is (size, modification time, lines, name); without a time, the lines are from no file. One that a
            # module's loader has not filled yet has another length.
            if len(entry) == 4 and entry[1] is None:
                sources[name] = entry
        path = [os.fspath(entry) or folder for entry in sys.path]  # an empty entry stands for the working directory
        argv = list(getattr(sys, "argv", []))  # an embedded interpreter may have none
        return cls(dict(os.environ), folder, path, argv, sources)

    def take_on(self) -> None:
        """Set them in this process, the worker."""
        os.environ.clear()
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):  # it was deleted meanwhile
            os.chdir(self.folder)
        sys.path[:] = self.path
        sys.argv[:] = self.argv
        linecache.cache.update(self.sources)


class WorkerLine:
    """One end of the line for values between a worker, side 1, and its owner; they pass as by `SharedMemoryEnd`."""

    def __init__(self, connection: Connection, path: Path, side: int) -> None:
        self.connection = connection
        self.exchange = SharedMemoryEnd(path, side)

    def send(self, value: Any) -> None:
        self.connection.send_bytes(self.exchange.pack(value))

    def receive(self) -> Any:
        """Wait for the next value; raises EOFError or ConnectionError if the other end is gone."""
        return self.exchange.unpack(self.connection.recv_bytes())


class LoadProblem(NamedTuple):
    """The first message of a worker that cannot load its work; any other sends None first."""

    reason: str


class ErrorAnswer(NamedTuple):
    """An error, sent in place of a result."""

    error: BaseException


def be_worker(connection: Connection, server_pid: int, folder: Path, name: str, number: int) -> NoReturn:
    """Do the work in the file `name` of the folder; `number` says which of the workers that do it this one is.

    After the work, wait to be killed: the owner decides when workers end.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C does not reach it, and a kill of the group also ends the processes that it starts
    _die_with(server_pid)
    sys.stdout = _line_buffered(1)
    sys.stderr = _line_buffered(2)
    faulthandler.enable(2)  # a crash of C code prints where it happened
    path = folder / f"{name}-{number}"
    stacks.write_at_signal(path)
    values = WorkerLine(connection, path, side=1)
    with contextlib.suppress(EOFError, ConnectionError):  # the owner is gone
        surroundings: Surroundings = pickling.read(folder / "surroundings")
        surroundings.take_on()
        np.random.seed()  # or all workers would draw the same numbers; Python's own generator does so after a fork
        _work(values, folder / name, number)
        while True:
            signal.pause()
    os._exit(0)


def _work(values: WorkerLine, packed: Path, number: int) -> None:
    """Load the work, report whether that succeeded, and do it."""
    try:
        work: Callable[[WorkerLine, int], object] = pickling.read(packed)
    except Exception as error:
        flush()
        values.send(LoadProblem(f"{type(error).__name__}: {error}"))
        return
    values.send(None)  # it is loaded
    work(values, number)  # which flushes before it sends anything, because the owner may then kill this process


def answer(fn: Callable[[Any], Any], values: WorkerLine, number: int) -> None:
    """Do a worker's work: answer each value with (the result of `fn`, when the call began, and when it ended).

    The times are those of `time.perf_counter_ns`.
    """
    if "torch" in sys.modules:  # one thread per worker, as in torch's own DataLoader
        sys.modules["torch"].set_num_threads(1)
    while True:
        message = values.connection.recv_bytes()  # unpacked in `_answer`, whose reply may be an error of that, too
        reply = _answer(fn, values.exchange, message)
        flush()
        values.connection.send_bytes(reply)


def _answer(fn: Callable[[Any], Any], exchange: SharedMemoryEnd, message: bytes) -> bytes:
    try:
        value = exchange.unpack(message)
        start_ns = time.perf_counter_ns()
        result = fn(value)
        return exchange.pack((result, start_ns, time.perf_counter_ns()))
    except BaseException as error:
        return exchange.pack(ErrorAnswer(portable(error)))


def flush() -> None:
    """Write out what was printed, because a kill would lose it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _line_buffered(descriptor: int) -> Any:
    """Return a stream to a descriptor that writes line by line; the server's own streams do not."""
    line_by_line = 1
    return open(descriptor, "w", line_by_line, encoding="utf-8", errors="backslashreplace", closefd=False)


def _die_with(server_pid: int) -> None:
    """Let the worker be killed when the server ends.

    Other systems than Linux have no such call: there the owner kills it, see `Worker.listen`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:  # the server has ended before the call
        os._exit(1)
