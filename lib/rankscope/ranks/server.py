"""The fork server: a fresh interpreter with one thread, which imports modules once and forks the workers of its owner.

A worker that is forked from it starts fast, and inherits no pipes, threads, script or CUDA context of the owner. Each
worker leads a process group, which is killed when the worker ends, when the owner asks for it or closes the worker's
line, and when the owner ends. If the server itself is killed, so are the workers.

We tried multiprocessing's fork server with preloading instead. With that server the following tests fail:

- It executes a socket.py or pickle.py of the working directory when it starts, and the owner's script in each rank:
  `test_no_file_in_the_working_directory_passes_for_a_library`, `test_a_script_needs_no_guard_…`.
- If the owner is killed while a rank is stopped, the server, all ranks and what they have started stay alive, because
  every rank holds the pipe whose closing would end the server; their folders are never deleted:
  `test_a_stopped_rank_and_what_ranks_have_started_end_…`, `test_memory_goes_with_an_owner_that_is_killed`.
- It imports nothing after its start, so each rank imports what a function of this library needs. Eight ranks that use
  `rankscope.train` take five times as long.
- It ends if a single fork fails: `test_a_fork_that_fails_is_one_error_and_the_server_goes_on`.

A program shares that server with its own use of multiprocessing, and a private one is not a documented interface.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import signal
import socket
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from .stacks import DUMP
from .worker import be_worker

_ORPHANED_S = 0.5  # between two checks whether the owner has ended, on systems without a descriptor for that
_NUM_DESCRIPTORS = 4  # of a request: the line, the connection for values, stdout and stderr


class Request(NamedTuple):
    """The first message on a worker's line: what to import before the worker is forked, and its work.

    The server answers with the worker's process id, or the OSError of the fork, and at the end with its exit code.
    """

    modules: list[str]
    folder: Path
    name: str
    number: int


def serve(descriptor: str, owner_pid: str, *folders: str) -> None:
    """Serve the owner at the other end of a socket; delete these folders when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(DUMP, signal.SIG_IGN)  # a worker that has no handler yet must survive it
    server = _Server(socket.socket(fileno=int(descriptor)), int(owner_pid))
    try:
        server.run()
    except Exception:
        if os.getppid() == int(owner_pid):
            folders = ()  # the owner reads the traceback in one of them, and deletes them
        raise
    finally:
        server.kill_all()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


class _Server:
    """The state of the server: its owner, its workers, and the connections to the owner."""

    def __init__(self, control: socket.socket, owner_pid: int) -> None:
        self._control = control
        self._owner_pid = owner_pid
        self._owner = _open_process(owner_pid)
        self._workers: set[int] = set()  # the process ids of those that have not been waited for
        self._lines: dict[int, Connection] = {}  # to the owner, by the process id of the worker
        self._woken, self._wake = os.pipe()  # Python writes to it when a worker ends
        os.set_blocking(self._wake, False)  # which `set_wakeup_fd` requires
        os.set_inheritable(control.fileno(), False)  # it is, because the owner passed it on to this program
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not be written to `_wake`
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)  # one byte in the pipe is enough to wake `run`

    def run(self) -> None:
        """Serve until the owner is gone.

        The end of its socket does not suffice: a process that C code has forked from the owner may still hold it.
        """
        while os.getppid() == self._owner_pid:
            if self._owner is None:
                ready = wait([self._control, self._woken, *self._lines.values()], _ORPHANED_S)
            else:
                ready = wait([self._control, self._woken, self._owner, *self._lines.values()])
                if self._owner in ready:
                    return
            if self._woken in ready:
                os.read(self._woken, 4096)  # a byte for each signal, which are all handled below
            self._reap()  # first, so that a worker which has ended by itself is reported as such
            for pid, line in list(self._lines.items()):
                if line in ready:
                    self._obey(pid, line)
            if self._control in ready:
                data, descriptors, _, _ = socket.recv_fds(self._control, 1, _NUM_DESCRIPTORS)
                if not data:  # the owner has closed its end
                    return
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)  # what a worker starts must not hold its connection
                if descriptors:  # none if this process can open no more; the owner then sees its line closed
                    self._start_worker(descriptors)

    def _start_worker(self, descriptors: list[int]) -> None:
        """Fork a worker for the request on the line, the first of the descriptors that the owner has sent."""
        line = Connection(descriptors[0])
        try:
            try:
                request: Request = line.recv()
            except (EOFError, OSError):  # the owner is gone
                return  # the line, like that of a fork that fails, is closed when nothing refers to it any more
            if len(descriptors) < _NUM_DESCRIPTORS:  # this process could not open all of them
                _tell(line, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
                return
            self._import(request.modules)
            if not line.poll():  # otherwise the owner has closed the line or asked for the end meanwhile
                self._fork(line, request, descriptors[1:])
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)

    def _import(self, modules: list[str]) -> None:
        """Import the modules that are missing. An error ends the server; the owner's report then has its traceback."""
        missing = [name for name in modules if name not in sys.modules]
        if not missing:
            return
        # Until the imports are done, nothing else notices that the owner has ended.
        signal.signal(signal.SIGALRM, self._leave_orphaned)
        signal.setitimer(signal.ITIMER_REAL, _ORPHANED_S, _ORPHANED_S)
        try:
            for name in missing:
                import_module(name)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # off
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        gc.collect()  # garbage must not be frozen
        gc.freeze()  # the collector writes to each object that it visits, which would copy pages that workers share

    def _leave_orphaned(self, *_: object) -> None:
        """End if the owner has ended: on a busy machine, an import of torch takes half a minute."""
        if os.getppid() != self._owner_pid:
            raise SystemExit

    def _fork(self, line: Connection, request: Request, descriptors: list[int]) -> None:
        """Fork a worker, and report its process id; in the forked process, do not return.

        The descriptors are those of the connection for values, of stdout and of stderr.
        """
        try:
            pid = os.fork()
        except OSError as error:
            _tell(line, error)
            return
        if pid == 0:
            try:
                self._become_worker(line, request, *descriptors)
            except BaseException:
                traceback.print_exc()
            finally:  # only after an error: a worker does not return
                os._exit(1)
        with contextlib.suppress(OSError):  # the worker does the same, so that it is done before either goes on
            os.setpgid(pid, pid)
        self._workers.add(pid)
        self._lines[pid] = line
        _tell(line, pid)

    def _become_worker(self, line: Connection, request: Request, connection: int, out: int, err: int) -> None:
        """In the forked process: close everything that belongs to the server, and work."""
        signal.set_wakeup_fd(-1)  # none
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._woken)
        os.close(self._wake)
        if self._owner is not None:
            os.close(self._owner)
        self._control.close()
        for other in [line, *self._lines.values()]:
            other.close()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        be_worker(Connection(connection), os.getppid(), request.folder, request.name, request.number)

    def _obey(self, pid: int, line: Connection) -> None:
        """Send the worker the signal that the owner asks for; kill it if the owner has closed the line."""
        try:
            number = line.recv()
        except (EOFError, ConnectionError):
            _kill_group(pid)  # that may take a while, so `_reap` waits for it
            del self._lines[pid]
            line.close()
            return
        if number == signal.SIGKILL:
            _kill_group(pid)
        else:
            os.kill(pid, number)  # the process id is still the worker's, because nobody has waited for it

    def _reap(self) -> None:
        """Report the workers that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self._workers:  # a process that an import has started
                continue
            self._workers.remove(pid)
            _kill_group(pid)  # what it has started
            line = self._lines.pop(pid, None)
            if line is not None:
                _tell(line, os.waitstatus_to_exitcode(status))

    def kill_all(self) -> None:
        """Kill all workers, and wait until they are gone."""
        for pid in self._workers:
            _kill_group(pid)
        for pid in self._workers:
            os.waitpid(pid, 0)


def _open_process(pid: int) -> int | None:
    """Return a descriptor that is ready when the process has ended, or None if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _kill_group(pid: int) -> None:
    """Kill a worker and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _tell(line: Connection, message: int | OSError) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        line.send(message)
