"""The server behind `launch`: a fresh interpreter that has torch loaded, stays, and forks the ranks of each launch.

It has one thread, runs nothing on torch and never touches CUDA, so that a fork of it is safe and a rank may use any
device. It ends when its owner closes the socket or dies, with all ranks; where it is killed itself, so are they.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .events import Event, tell
from .rank import DUMP, be_rank

PRELOADED = ("numpy", "torch", "torch.distributed", "torch._dynamo")  # DDP imports the last, for 1.5 s
_PATIENCE_S = 5.0  # with an owner that does not read
_PARENT_CHECK_S = 0.5  # where the system cannot tell that a process has ended


def serve(descriptor: int, owner_pid: int, folder: str) -> None:
    """Be the server of the owner at the other end of a socket; the folder is theirs, and deleted at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(DUMP, signal.SIG_IGN)  # until a rank has its own way with it
    os.set_inheritable(descriptor, False)
    server = _Server(socket.socket(fileno=descriptor), owner_pid)
    try:
        for name in PRELOADED:
            import_module(name)
        gc.collect()
        gc.freeze()  # collecting what all ranks share would copy it
        with contextlib.suppress(EOFError, ProcessLookupError):  # the owner is gone
            server.run()
    finally:
        server.end_all()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False)
class _Job:
    """One launch: its socket, and the ranks that have not ended, by process id."""

    line: socket.socket
    ranks: dict[int, int] = field(default_factory=dict)
    asked: bool = False
    ending: bool = False

    def tell(self, event: Event, rank: int, value: int = 0) -> None:
        with contextlib.suppress(OSError):  # nobody listens: its end is noticed
            tell(self.line, event, rank, value)

    def signal_all(self, number: signal.Signals, group: bool) -> None:
        """Signal the ranks, or all that they have started, too."""
        for pid in self.ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(pid, number)


class _Server:
    def __init__(self, control: socket.socket, owner_pid: int) -> None:
        self._control, self._owner_pid = control, owner_pid
        self._selector = selectors.DefaultSelector()
        self._jobs: list[_Job] = []
        self._wake, self._woken = os.pipe()  # written to when a rank ends
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve; raises EOFError or ProcessLookupError when the owner is gone."""
        timeout = None
        self._watch(self._control, self._accept)
        self._watch(self._wake, self._reap)
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
        data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not data:
            raise EOFError
        for descriptor in descriptors:
            job = _Job(socket.socket(fileno=descriptor))
            job.line.settimeout(_PATIENCE_S)
            self._jobs.append(job)
            self._watch(job.line, partial(self._hear, job))

    def _hear(self, job: _Job) -> None:
        """The first message says what to start; any other asks where the ranks stand; the end of them ends the job."""
        try:
            message = job.line.recv(1 << 16)
        except OSError:
            message = b""
        if not message:
            self._selector.unregister(job.line)
            self._reap()  # who has ended of its own is told as such
            job.ending = True
            job.signal_all(signal.SIGKILL, group=True)
            self._close_if_done(job)
        elif job.asked:
            job.signal_all(DUMP, group=False)
        else:
            num_ranks, _, folder = os.fsdecode(message).partition(" ")
            job.asked = True
            self._fork_all(job, int(num_ranks), Path(folder))

    def _fork_all(self, job: _Job, num_ranks: int, folder: Path) -> None:
        for rank in range(num_ranks):
            try:
                pid = os.fork()
            except OSError as error:
                job.tell(Event.NOT_FORKED, rank, error.errno or 0)
                return
            if pid == 0:
                try:
                    self._let_go(job)
                    be_rank(job.line, os.getppid(), folder, rank)
                finally:
                    os._exit(1)
            with contextlib.suppress(OSError):  # the rank does so, too: whoever is first
                os.setpgid(pid, pid)
            job.ranks[pid] = rank
            job.tell(Event.FORKED, rank, pid)

    def _let_go(self, job: _Job) -> None:
        """In a rank: let go of all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not job.line:
                os.close(key.fd)
        self._selector.close()
        os.close(self._woken)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 1 << 16)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._took_leave(*ended)

    def _took_leave(self, pid: int, status: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what it has started and left behind
        for job in [job for job in self._jobs if pid in job.ranks]:
            rank = job.ranks.pop(pid)
            if not job.ending:
                job.tell(Event.ENDED, rank, os.waitstatus_to_exitcode(status))
            self._close_if_done(job)

    def _close_if_done(self, job: _Job) -> None:
        if job.ending and not job.ranks:
            job.tell(Event.ALL_GONE, 0)
            job.line.close()
            self._jobs.remove(job)

    def end_all(self) -> None:
        """End the ranks of all launches, and wait until they are gone."""
        for job in self._jobs:
            job.ending = True
            job.signal_all(signal.SIGKILL, group=True)
        with contextlib.suppress(ChildProcessError):
            while any(job.ranks for job in self._jobs):
                self._took_leave(*os.waitpid(-1, 0))
