"""The owner's end of its server, and of the supervisor of each launch, see `forking`.

The server is a fresh interpreter, which starts with the first launch, imports torch, and stays. This process only holds
a connection to each supervisor. However that is closed, by an error, by Ctrl-C or because this process was killed, the
supervisor ends its ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

from .errors import MachineError
from .forking import DONE, END, STACKS, serve
from .host import is_stopped, kill_group

# Imported by the server before it forks ranks, which then have them at once. A package whose functions run in ranks
# adds its modules. DistributedDataParallel imports _dynamo, for seconds.
PRELOAD = ["cloudpickle", "torch", "torch.distributed", "torch._dynamo"]

_START_S = 300.0  # for the server to import torch and fork, on a cold disk of a busy machine
_LOOK_S = 2.0  # between two looks whether the server is stopped meanwhile
_END_S = 5.0  # for the ranks of a launch to end
_COMMAND = f"import sys; sys.path[:] = sys.argv[2:]; from {serve.__module__} import serve; serve(sys.argv[1])"
# Libraries that start threads when they are imported. A process with threads must not fork.
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def search_path() -> list[str]:
    """Return ``sys.path``, in which an empty entry stands for the working directory."""
    return [os.fspath(entry) or os.getcwd() for entry in sys.path]


class _Server:
    def __init__(self) -> None:
        # The working directory comes last, so that no file in it passes for a library.
        path = sorted(search_path(), key=lambda entry: os.path.realpath(entry) == os.getcwd())
        with contextlib.ExitStack() as stack:
            self.output = stack.enter_context(tempfile.TemporaryFile())
            control, theirs = socket.socketpair()
            self.control = stack.enter_context(control)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _COMMAND, str(os.getpid()), *path],
                    stdin=theirs.fileno(),
                    stdout=self.output,
                    stderr=self.output,
                    env={**os.environ, **dict.fromkeys(_THREAD_SETTINGS, "1")},
                    process_group=0,  # Ctrl-C is for this process
                )
            self._close = stack.pop_all().close

    def has_ended(self) -> bool:
        """Whether the process has ended, or has closed its connection, which happens first while it ends."""
        return self.process.poll() is not None or bool(wait([self.control], 0))

    def end(self) -> None:
        """End the server at once, and with it all ranks."""
        self.process.kill()
        self.process.wait()
        self._close()

    def report(self) -> str:
        """Say that the server, or the supervisor of a launch, has ended, with the end of the server's output."""
        self.output.seek(0)
        output = self.output.read().decode(errors="replace")
        return f"the server of ranks, or a supervisor, has ended: {output[-2000:]}"


_servers: dict[int, _Server] = {}  # by the process that started it; a forked process has its parent's, too
_lock = threading.Lock()


def _server() -> _Server:
    """Return the server of this process. Start one if there is none, or if it has ended."""
    with _lock:
        pid = os.getpid()
        if pid in _servers and _servers[pid].has_ended():
            _servers.pop(pid).end()
        if pid not in _servers:
            _servers[pid] = _Server()
        return _servers[pid]


class Supervisor:
    """The connection to the supervisor of a launch."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        """Start the ranks. Raises OSError if that is impossible."""
        self._server = _server()
        self._num_ranks = num_ranks
        self._pids: list[int] = []  # of the supervisor, and then of the ranks, once they are known
        self._connection, theirs = Pipe()
        with theirs, contextlib.suppress(ConnectionError):  # the server has ended, as reading will show
            socket.send_fds(self._server.control, [b"-"], [theirs.fileno()])
            self._connection.send((folder, num_ranks, PRELOAD))

    def wait_for_start(self) -> None:
        """Wait until all ranks have started. Raises MachineError if they cannot."""
        for _ in range(round(_START_S / _LOOK_S)):
            if self._connection.poll(_LOOK_S):
                self._pids += self._received()
            if len(self._pids) == 1 + self._num_ranks:
                return
            if any(map(is_stopped, [self._server.process.pid, *self._pids])):
                break
        self._server.end()
        raise MachineError("the server of ranks, or a supervisor, is stopped (SIGSTOP), or too busy to start them")

    def listen(self, within_s: float) -> None:
        """Wait this long. Raises MachineError if the supervisor has failed or ended meanwhile."""
        if self._connection.poll(within_s):
            self._received()

    def ask_for_stacks(self) -> None:
        """Let all ranks write their stacks."""
        self._connection.send(STACKS)

    def _received(self) -> list[int]:
        try:
            answer: list[int] | str = self._connection.recv()
        except (EOFError, ConnectionError):
            answer = DONE
        if answer == DONE:  # it was not asked to end, so the server has ended before
            raise MachineError(self._server.report())
        if isinstance(answer, str):
            raise MachineError(f"the ranks could not be started, or watched: {answer}")
        return answer

    def close(self) -> None:
        """End all ranks, and wait until they have ended; if the supervisor cannot end them, kill them from here."""
        with self._connection, contextlib.suppress(OSError, EOFError):
            self._connection.send(END)  # if the server still imports what it should, it sees then that nobody waits
            while self._pids and self._connection.poll(_END_S):
                if self._connection.recv() == DONE:
                    return
        for pid in self._pids:
            kill_group(pid)


@atexit.register
def _end_server() -> None:
    server = _servers.pop(os.getpid(), None)
    if server is not None:
        server.end()
