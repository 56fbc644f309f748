"""The owner's end of its fork server, see `server`.

The server starts when it is first needed, in a tenth of a second, or in some seconds if torch has to be imported. It
stays, and ends with the process that started it, together with all workers and their folders, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ..common import folders
from .host import how_it_ended
from .server import Request, serve

# The server's Python gets four arguments for `serve`, and after them the owner's search path.
_COMMAND = f"import sys; sys.path[:] = sys.argv[5:]; from {serve.__module__} import serve; serve(*sys.argv[1:5])"
# Libraries of numpy's and torch's that start threads when they are imported. A process with threads must not fork.
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LEAVE_S = 1.0  # how long the server may take to end: it may be in the middle of an import
_REPORT_S = 5.0  # how long a server that seems to be gone may take to end
_MOST_OUTPUT = 2000  # characters of the server's output that a report shows


class ForkServer:
    """The server of this process. Pools have their folders in `folder`, on disk, or in `memory`."""

    def __init__(self) -> None:
        _open_standard_streams()  # before anything else is opened here
        self._owner = os.getpid()
        self.folder = folders.make_folder()
        self.memory = self.folder
        memory_place = folders.memory()
        if memory_place is not None:
            self.memory = folders.make_folder(memory_place)
        self._control, server_end = socket.socketpair()
        arguments = [str(server_end.fileno()), str(self._owner), str(self.folder), str(self.memory), *_search_path()]
        with server_end, open(self.folder / "server.err", "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, *arguments],  # -P: not from the working directory
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **dict.fromkeys(_THREAD_SETTINGS, "1")},
                pass_fds=[server_end.fileno()],
                process_group=0,  # Ctrl-C is for the owner, which then ends the workers
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether the server runs and belongs to this process, not to one from which this process was forked."""
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, request: Request, streams: tuple[int, int]) -> tuple[Connection, Connection]:
        """Ask the server to fork a worker; `streams` are the descriptors of its stdout and stderr.

        Return two connections: the line to the server, on which it reports the worker's process id and exit code, and
        the connection to the worker, for values.
        """
        line, server_line = Pipe()
        connection, worker_connection = Pipe()
        with server_line, worker_connection:  # closed here once the server has its copies
            line.send(request)
            descriptors = [server_line.fileno(), worker_connection.fileno(), *streams]
            with contextlib.suppress(ConnectionError):  # the server is gone: reading from the line will fail
                socket.send_fds(self._control, [b"f"], descriptors)  # one byte, because none would not be sent
        return line, connection

    def exit_report(self) -> str:
        """Say how the server ended, with the end of its output."""
        try:
            ending = how_it_ended(self._process.wait(_REPORT_S))
        except subprocess.TimeoutExpired:
            ending = "has not ended, and does not answer"
        with contextlib.suppress(OSError):
            output = (self.folder / "server.err").read_text(errors="replace").strip()
            if output:
                ending = f"{ending}:\n{output[-_MOST_OUTPUT:]}"
        return f"the server that forks the workers (pid {self.pid}) {ending}"

    def kill(self) -> None:
        """End the server at once, and with it all workers."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the server and wait; in a process that was forked from its owner, only close what was inherited.

        The server ends when the other end of its socket is shut down, or when nobody holds it any more.
        """
        if self._owner != os.getpid():
            self._control.close()
            self._process.returncode = 0  # it is no child of this process, so `Popen` must not wait for it
            return
        with contextlib.suppress(OSError):  # the server has ended
            self._control.shutdown(socket.SHUT_RDWR)  # works also if a forked process holds the socket, too
        self._control.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for folder in {self.folder, self.memory}:  # which may be the same
            folders.delete_folder(folder)


def _open_standard_streams() -> None:
    """Open the null device for standard streams that are closed.

    Otherwise the next file or socket that is opened would get the number of the stream, 0 to 2.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)  # as standard streams are; what `os.open` returns is not
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def _search_path() -> list[str]:
    """Where the server finds modules: the working directory comes last, so that no file in it passes for another."""
    here = os.getcwd()
    paths = [os.fspath(path) or here for path in sys.path]  # an empty path stands for the working directory
    return sorted(paths, key=lambda path: os.path.realpath(path) == here)


_current: ForkServer | None = None
_lock = threading.Lock()


def fork_server() -> ForkServer:
    """Return the server of this process; start it if none runs."""
    global _current
    with _lock:
        if _current is None or not _current.usable:
            _close()
            _current = ForkServer()
        return _current


def _close() -> None:
    global _current
    if _current is not None:
        _current.close()
        _current = None


def _in_child() -> None:
    """In a forked process: replace the lock, which another thread may have held, and close the owner's server."""
    global _lock
    _lock = threading.Lock()
    _close()


atexit.register(_close)
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_in_child)
