"""The server: a fresh interpreter with one thread that stays, and forks the workers of the process that started it.

Forking from it is safe and fast, and a worker inherits nothing of its owner's: no pipes, threads or script. It runs
nothing on torch and never touches CUDA, so that a worker may use any device. Each worker leads a process group, which
is killed when the worker ends, when its owner hangs up, or when the owner ends. Where the server is killed itself, the
workers are, too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from .worker import DUMP, be_worker

NEWS = struct.Struct("<cq")  # what the server tells an owner about a worker
FORKED, NOT_FORKED, ENDED = b"f", b"n", b"e"  # with its process id, the errno, or the exit code, negative for a signal
WHERE = b"?"  # what an owner sends to have a worker write where it stands
_PARENT_CHECK_S = 0.5  # where the system cannot tell that a process has ended


def serve(descriptor: str, owner_pid: str, *folders: str) -> None:
    """Be the server of the owner at the other end of a socket; delete these folders at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(DUMP, signal.SIG_IGN)  # until a worker has its own way with it
    os.set_inheritable(int(descriptor), False)
    server = _Server(socket.socket(fileno=int(descriptor)), int(owner_pid))
    try:
        with contextlib.suppress(EOFError, ConnectionError, ProcessLookupError):  # the owner is gone
            server.run()
    finally:
        server.end_all()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


class _Server:
    def __init__(self, control: socket.socket, owner_pid: int) -> None:
        self._control, self._owner_pid = control, owner_pid
        self._lines: dict[int, socket.socket] = {}  # to the owner, by the process id of the worker that each is about
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()  # written to when a worker ends
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve; raises EOFError, ConnectionError or ProcessLookupError when the owner is gone."""
        timeout = None
        self._watch(self._control, self._accept)
        self._watch(self._woken, self._bury)
        try:
            self._watch(os.pidfd_open(self._owner_pid), self._leave)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # not on this system
            timeout = _PARENT_CHECK_S
        while os.getppid() == self._owner_pid:
            for key, _ in self._selector.select(timeout):
                key.data()

    def _watch(self, source: Any, then: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, then)

    def _leave(self) -> None:
        raise EOFError

    def _accept(self) -> None:
        """Import what the next worker needs, and fork it."""
        length, descriptors, _, _ = socket.recv_fds(self._control, 4, 4)
        if not length:
            raise EOFError
        words = os.fsdecode(self._control.recv(int.from_bytes(length), socket.MSG_WAITALL))
        modules, *where = words.split("\0")
        missing = [name for name in modules.split() if name not in sys.modules]
        for name in missing:
            import_module(name)
        if missing:
            gc.collect()
            gc.freeze()  # collecting what all workers share would copy it
        line = socket.socket(fileno=descriptors[0])
        try:
            self._fork(line, descriptors[1:], where)
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)

    def _fork(self, line: socket.socket, descriptors: list[int], where: list[str]) -> None:
        if select.select([line], (), (), 0)[0]:  # the owner has hung up meanwhile
            line.close()
            return
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(line, NOT_FORKED, error.errno or 0)
            line.close()
            return
        if pid == 0:
            try:
                self._become_worker(line, descriptors, *where)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):  # the worker does so, too: whoever is first
            os.setpgid(pid, pid)
        self._lines[pid] = line
        self._watch(line, partial(self._hear, pid, line))
        self._tell(line, FORKED, pid)

    def _become_worker(
        self, line: socket.socket, descriptors: list[int], folder: str, name: str, number: str
    ) -> NoReturn:
        """In a forked process: let go of all that is the server's, and be a worker."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in [key.fd for key in self._selector.get_map().values()] + [self._wake]:
            os.close(descriptor)
        self._selector.close()
        line.close()
        connection, *streams = descriptors
        for target, stream in enumerate(streams, start=1):
            os.dup2(stream, target)
            os.close(stream)
        be_worker(connection, os.getppid(), Path(folder), name, int(number))

    def _hear(self, pid: int, line: socket.socket) -> None:
        if self._lines.get(pid) is not line:  # the worker was buried a moment ago
            return
        try:
            message = line.recv(16)
        except OSError:
            message = b""
        if message:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, DUMP)
        else:  # the owner has hung up
            self._selector.unregister(line)
            self._bury()  # a worker that has ended by itself is reported as such
            if pid in self._lines:
                self._kill(pid)

    def _kill(self, pid: int) -> None:
        """Kill a worker and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _bury(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 1 << 16)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._report(*ended)

    def _report(self, pid: int, status: int) -> None:
        line = self._lines.pop(pid, None)
        if line is None:  # a process that an import has started
            return
        self._kill(pid)  # what it has left behind
        self._tell(line, ENDED, os.waitstatus_to_exitcode(status))
        with contextlib.suppress(KeyError):
            self._selector.unregister(line)
        line.close()

    def _tell(self, line: socket.socket, kind: bytes, value: int) -> None:
        with contextlib.suppress(OSError):  # nobody listens: that is noticed elsewhere
            line.send(NEWS.pack(kind, value))

    def end_all(self) -> None:
        """Kill all workers, and wait until they are gone."""
        for pid in self._lines:
            self._kill(pid)
        with contextlib.suppress(ChildProcessError):
            while self._lines:
                self._report(*os.waitpid(-1, 0))
