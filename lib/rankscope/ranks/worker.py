"""What a forked worker does: it takes on its owner's surroundings, and works until it is killed."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from . import pickling
from .errors import MachineError, portable
from .shared import SharedMemoryEnd

DUMP = signal.SIGUSR1  # lets a worker write where it stands
_PR_SET_PDEATHSIG = 1


class Surroundings(NamedTuple):
    """What workers take over from their owner."""

    environment: dict[str, str]
    folder: str  # the working directory
    path: list[str]
    argv: list[str]
    sources: dict[str, Any]  # of cells: no file has them

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Raises MachineError where the working directory was deleted."""
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:
            raise MachineError("the working directory was deleted: change to another one, with os.chdir") from error
        sources = {name: entry for name, entry in list(linecache.cache.items()) if len(entry) == 4 and entry[1] is None}
        path = [os.fspath(place) or folder for place in sys.path]
        return cls(dict(os.environ), folder, path, list(getattr(sys, "argv", [])), sources)

    def take_on(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        sys.path[:], sys.argv[:] = self.path, self.argv
        linecache.cache.update(self.sources)


class WorkerLine:
    """One end of the line between a worker, side 1, and its owner: values pass as by `SharedMemoryEnd`."""

    def __init__(self, connection: Connection, place: Path, side: int) -> None:
        self.connection, self.exchange = connection, SharedMemoryEnd(place, side)

    def send(self, value: Any) -> None:
        self.connection.send_bytes(self.exchange.pack(value))

    def receive(self) -> Any:
        """Wait for the next value; raises EOFError or ConnectionError where the other end is gone."""
        return self.exchange.unpack(self.connection.recv_bytes())


class Refused(NamedTuple):
    """The first message of a worker that cannot load its work; any other sends None first."""

    reason: str


class Raised(NamedTuple):
    """What is sent in place of a result."""

    error: BaseException


def be_worker(descriptor: int, server_pid: int, folder: Path, name: str, number: int) -> NoReturn:
    """Carry out the work of that name in the folder, as number so-and-so of those that do."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is for the owner; and what a worker starts ends with it
    _die_with(server_pid)
    for output, stream in ((1, "stdout"), (2, "stderr")):  # those of the server were of another kind
        setattr(sys, stream, open(output, "w", 1, "utf-8", "backslashreplace", closefd=False))  # noqa: SIM115
    place = folder / f"{name}-{number}"
    faulthandler.enable(2)
    stack = os.open(f"{place}-stack", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(DUMP, stack, all_threads=False)
    os.set_inheritable(descriptor, False)
    post = WorkerLine(Connection(descriptor), place, 1)
    with contextlib.suppress(EOFError, ConnectionError):  # the owner is gone
        surroundings: Surroundings = pickling.read(folder / "surroundings")
        surroundings.take_on()
        np.random.seed()  # as in any fresh process; Python's own generator does so by itself
        try:
            work: Callable[[WorkerLine, int], object] = pickling.read(folder / name)
        except Exception as error:
            post.send(Refused(f"{type(error).__name__}: {error}"))
        else:
            post.send(None)
            work(post, number)
        flush()
        while True:
            signal.pause()
    os._exit(0)


def answer(fn: Callable[[Any], Any], post: WorkerLine, number: int) -> None:
    """Work: answer each value with what `fn` returns for it, and when that began and ended (`time.perf_counter_ns`)."""
    if "torch" in sys.modules:  # as torch's own DataLoader does
        sys.modules["torch"].set_num_threads(1)
    while True:
        reply = _answer(fn, post.exchange, post.connection.recv_bytes())
        flush()
        post.connection.send_bytes(reply)


def _answer(fn: Callable[[Any], Any], exchange: SharedMemoryEnd, message: bytes) -> bytes:
    try:
        value = exchange.unpack(message)
        start_ns = time.perf_counter_ns()
        result = fn(value)
        return exchange.pack((result, start_ns, time.perf_counter_ns()))
    except BaseException as error:
        return exchange.pack(Raised(portable(error)))


def flush() -> None:
    """Let what was printed be seen, before a kill."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _die_with(server_pid: int) -> None:
    """Let the worker be killed when the server ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(server_pid,), name="server", daemon=True).start()
    if os.getppid() != server_pid:
        os._exit(1)


def _watch(server_pid: int) -> None:
    while os.getppid() == server_pid:
        time.sleep(0.5)
    os._exit(1)
