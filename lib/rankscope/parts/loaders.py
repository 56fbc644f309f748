"""The trainer's end of the processes that load part files: it starts them, takes parts, and sees to it that they end.

The manager is a program of its own rather than a process of multiprocessing's forkserver, which would run the training
script once more in every manager, and leave two helpers behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..workers.host import how_it_ended
from ..workers.shared import Exchange, delete_folder, shared_folder
from .files import Part
from .manager import PartError, Setting, exchange_folder, manage

_BEGIN = (
    "import json, pathlib, sys; sys.path[:] = json.loads(sys.argv[2]); "
    f"from {manage.__module__} import manage; "
    "manage(int(sys.argv[1]), pathlib.Path(sys.argv[3]), int(sys.argv[4]))"
)
# libraries of numpy's that start threads when they are imported, from which one must not fork
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_STOP_S = 5.0  # how long a manager may take to end


class LoaderDied(RuntimeError):
    """A loader or the manager of the loaders ended: killed, out of memory, crashed; or could not be started."""


class PartLoaders:
    """The trainer's end: starts the processes, takes parts, and ends the processes when it is closed or collected.

    Raises ValueError where a fresh process cannot import `load`, and LoaderDied where one of the processes ended or
    could not be started.
    """

    def __init__(self, setting: Setting) -> None:
        try:
            message = pickle.dumps(setting)
        except Exception as error:
            raise _not_importable(setting.load, error) from error
        self.pids: list[int] = []  # the manager's, then the loaders'
        self._owner = os.getpid()
        self._arrived: deque[tuple[int, bytes]] = deque()
        self.folder = folder = shared_folder()
        try:
            folders = [exchange_folder(folder, loader) for loader in range(setting.num_loaders)]
            for place in folders:
                place.mkdir()
            ours, theirs = socket.socketpair()
            self._pipe: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
            self._manager = _start_manager(theirs, folder)
        except BaseException:
            delete_folder(folder)
            raise
        self._exchanges = [Exchange(place, 0) for place in folders]
        self.close = weakref.finalize(self, _stop, self._manager, ours, self._pipe, folder, os.getpid())
        try:
            with contextlib.suppress(ConnectionError):
                self._pipe.send_bytes(message)
            kind, value = self._receive()
            if kind == "refused":
                raise _not_importable(setting.load, value)
            self.pids = [self._manager.pid, *value]
        except BaseException:
            self.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether this process started them and has not closed them."""
        return self.close.alive and self._owner == os.getpid()

    def begin(self, files: Sequence[str]) -> None:
        """Let the loaders start on an epoch; every part of the one before must have been taken."""
        self._send(("epoch", list(files)))

    def take(self) -> Part:
        """Wait for the next part and take it out of the queue. Raises PartError where it could not be loaded."""
        while not self._arrived:
            self._arrived.append(self._receive()[1])
        loader, message = self._arrived.popleft()
        free_again = [exchange.pack(None) for exchange in self._exchanges]  # memory, that is
        self._send(("taken", free_again))
        try:
            value = self._exchanges[loader].unpack(message)
        except FileNotFoundError as error:  # the memory went with the manager, which may have said why
            self.check()
            raise self._dead() from error
        if isinstance(value, tuple):
            text, cause = value
            raise PartError(text) from cause
        return value  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raise LoaderDied where a process has ended; takes some microseconds."""
        if self._pipe.closed:
            raise LoaderDied("the part loaders were closed while parts were still to come")
        while self._pipe.poll():
            self._arrived.append(self._receive()[1])

    def _receive(self) -> tuple[Any, Any]:
        try:
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._dead() from error
        if kind == "died":
            raise LoaderDied(value)
        return kind, value

    def _send(self, value: Any) -> None:
        with contextlib.suppress(ConnectionError):  # who is gone is named when we next listen
            self._pipe.send(value)

    def _dead(self) -> LoaderDied:
        try:
            code = self._manager.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return LoaderDied(f"the manager of the part loaders (pid {self._manager.pid}) closed its socket")
        return LoaderDied(f"the manager of the part loaders (pid {self._manager.pid}) {how_it_ended(code)}")


def _start_manager(theirs: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    with theirs:
        path = json.dumps([os.fspath(place) or os.getcwd() for place in sys.path])
        return subprocess.Popen(
            [sys.executable, "-c", _BEGIN, str(theirs.fileno()), path, os.fspath(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is for the trainer, which then ends them
        )


def _stop(
    manager: subprocess.Popen[bytes], ours: socket.socket, pipe: Connection[Any, Any], folder: Path, owner: int
) -> None:
    """End the processes; in one that was forked from the trainer only forget them."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)  # works also where a process forked from this one holds it, too
        try:
            manager.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            manager.kill()
            manager.wait()
        delete_folder(folder)
    ours.close()
    pipe.close()


def _not_importable(load: Any, error: object) -> ValueError:
    return ValueError(
        "load must be a function that another process can import from a module, not a lambda and none of a notebook "
        f"or of the script itself; got {load!r}: {error}"
    )
