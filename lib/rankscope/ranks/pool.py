"""Worker processes and pools of them, whose workers end together. A fork server forks them, see `fork_server`."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from . import pickling, stacks
from .errors import MachineError, WorkerError
from .fork_server import ForkServer, fork_server
from .host import how_it_ended, is_stopped
from .interrupts import Interrupts
from .server import Request
from .worker import ErrorAnswer, LoadProblem, Surroundings, WorkerLine

_START_S = 300.0  # for the server to fork a worker, on a cold disk of a busy machine
_STOP_S = 5.0  # how long workers may take to end
_CHECK_S = 5.0  # between two checks whether the server is stopped, while it forks a worker
_REPORT_S = 1.0  # for the server to report the exit code of a worker whose connection is closed
_OWN_STREAMS = (1, 2)  # the descriptors of this process's stdout and stderr


class Worker:
    """A worker process. It can be passed to `multiprocessing.connection.wait`; when it is ready, call `listen`."""

    def __init__(
        self,
        name: str,
        path: Path,
        to_server: Connection,
        to_worker: Connection,
        server: ForkServer,
        timeout_s: float | None,
    ) -> None:
        self.name = name
        self.path = path  # with which the paths of its files begin
        self.timeout_s = timeout_s  # for sending a value, and for receiving one; None for no limit
        self.pid = 0  # until it has been forked
        self.code: int | None = None  # its exit code, once it has ended
        self.values = WorkerLine(to_worker, path, side=0)
        self._to_server = to_server  # for signals to the worker, and back for its pid and its exit code
        self._server = server
        self._lock = threading.Lock()  # a pipeline's supervisor and the thread that asks may listen at the same time
        if timeout_s is not None:
            _limit_waiting(to_worker, timeout_s)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def fileno(self) -> int:
        return self._to_server.fileno()

    def listen(self, within_s: float = 0.0) -> bool:
        """Wait for the worker's pid or exit code, and return whether one came.

        Raises WorkerError if the server is gone, and OSError if the worker could not be forked.
        """
        with self._lock:
            if self.code is not None or not self._to_server.poll(within_s):
                return False
            try:
                report = self._to_server.recv()
            except (EOFError, ConnectionError):
                self._kill_group()
                raise WorkerError(self._server.exit_report()) from None
            if isinstance(report, OSError):
                raise report
            if self.pid == 0:  # the first report is the process id, and the second one the exit code
                self.pid = report
            else:
                self.code = report
            return True

    def _kill_group(self) -> None:
        """Kill the worker and the processes that it has started, as the server would do if it still ran."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def ended(self, within_s: float) -> int | None:
        """Wait until it ends, for at most this time, and return its exit code, or None if it still runs."""
        deadline = time.monotonic() + within_s
        while self.code is None:  # a loop, because the first report may be its pid
            if not self.listen(max(0.0, deadline - time.monotonic())):
                break
        return self.code

    def exit_report(self) -> str:
        """Say how the worker ended."""
        return f"{self} {how_it_ended(self.ended(_REPORT_S))}"

    def ready(self) -> None:
        """Wait until it has loaded its work.

        Raises ValueError if it cannot, and WorkerError if it has ended, or is not ready in time.
        """
        with self._in_time():
            answer = self.values.receive()
        if isinstance(answer, LoadProblem):
            raise ValueError(answer.reason)

    def ask(self, value: Any) -> Any:
        """Send a value and return the answer.

        Raises the error that the work raised, and WorkerError if the worker has ended, or has not answered in time.
        """
        with self._in_time():
            self.values.send(value)
            answer = self.values.receive()
        if isinstance(answer, ErrorAnswer):
            raise answer.error
        return answer

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """Raise WorkerError if the worker has ended, or does not send or receive in time, see `_limit_waiting`."""
        try:
            yield
        except (EOFError, ConnectionError):
            raise WorkerError(self.exit_report()) from None
        except BlockingIOError:
            late = f"has not answered after {self.timeout_s:g} s (timeout_s)"
            raise WorkerError(f"{self} {late}: it {describe_stacks([self])[0]}") from None

    def request_stack(self) -> None:
        """Ask the worker to write its stack, for `describe_stacks`."""
        self._request(stacks.DUMP)

    def terminate(self) -> None:
        """Have the server kill the worker; a thread that waits for its answer, now or later, gets an error."""
        self._request(signal.SIGKILL)
        with contextlib.suppress(OSError), _as_socket(self.values.connection) as end:
            end.shutdown(socket.SHUT_RDWR)  # for the case that the server is stopped (SIGSTOP) and kills nobody

    def _request(self, number: int) -> None:
        with contextlib.suppress(OSError):  # it has ended, or the server has
            self._to_server.send(number)

    def close(self) -> None:
        self._to_server.close()
        self.values.connection.close()


def _limit_waiting(connection: Connection, timeout_s: float) -> None:
    """Let sending and receiving raise BlockingIOError after that time.

    `Connection.poll` would limit receiving only. But sending a long value to a stopped worker also waits, because
    nobody empties the socket.
    """
    microseconds = math.ceil(timeout_s * 1e6)  # not 0, which would mean no limit
    limit = struct.pack("ll", *divmod(microseconds, 1_000_000))  # a timeval of C: seconds and microseconds
    with _as_socket(connection) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _as_socket(connection: Connection) -> socket.socket:
    """Return the socket under a connection; closing it leaves the connection open."""
    return socket.socket(fileno=os.dup(connection.fileno()))


class WorkerPool:
    """Workers that end together, with `close` or with this process.

    `modules` are names with spaces between them, and are imported before the workers are forked. `folder` is for their
    files, in memory or on disk, and is deleted when they end.
    """

    def __init__(self, modules: str = "", in_memory: bool = True) -> None:
        if not hasattr(os, "fork"):
            raise MachineError(f"workers are forked, which {sys.platform} cannot do")
        # Before the server, which needs a working directory, too: this has an error of its own for a deleted one.
        surroundings = Surroundings.of_this_process()
        self._owner = os.getpid()
        self._server = fork_server()
        self._modules = modules.split()
        self._num_packed = 0
        self.workers: list[Worker] = []
        parent = self._server.memory if in_memory else self._server.folder
        with Interrupts():  # otherwise a folder could be made that is never deleted
            self.folder = Path(tempfile.mkdtemp(dir=parent))
            self._delete = weakref.finalize(self, _delete, self.folder, self._owner)
            pickling.write(self.folder / "surroundings", surroundings)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def pack(self, work: Callable[[WorkerLine, int], object]) -> str:
        """Write the work of workers to a file, and return its name, for `start`. Raises what pickling it raises."""
        self._num_packed += 1
        name = f"work{self._num_packed}"
        modules = pickling.write(self.folder / name, work)
        self._modules += sorted(modules - set(self._modules))  # the server imports them once, not each worker
        return name

    def start(
        self,
        name: str,
        labels: Sequence[str],
        outputs: Sequence[tuple[int, int]] = (),
        timeout_s: float | None = None,
    ) -> list[Worker]:
        """Start a worker for each label. All do the work that `pack` has named, as its number 0, 1, …

        `outputs` has the descriptors of stdout and stderr of each worker; by default, they are those of this process.
        Raises WorkerError if one cannot be forked, and if the server cannot run.
        """
        started = []
        try:
            for number, label in enumerate(labels):
                request = Request(self._modules, self.folder, name, number)
                streams = outputs[number] if outputs else _OWN_STREAMS
                with Interrupts():  # otherwise a worker could be forked that is never ended
                    to_server, to_worker = self._server.fork(request, streams)
                    path = self.folder / f"{name}-{number}"
                    worker = Worker(label, path, to_server, to_worker, self._server, timeout_s)
                    started.append(worker)
                    self.workers.append(worker)
            for worker in started:
                self._wait_for_fork(worker)
        except OSError as error:
            problem = f"not all of {', '.join(labels)} could be started"
            raise WorkerError(f"{problem}: {type(error).__name__}: {error}") from error
        return started

    def _wait_for_fork(self, worker: Worker) -> None:
        """Wait for the worker's process id. Raises WorkerError if the server is stopped or takes too long."""
        deadline = time.monotonic() + _START_S
        while not worker.listen(_CHECK_S):
            if is_stopped(self._server.pid):
                problem = stacks.STOPPED
            elif time.monotonic() > deadline:
                problem = f"was not ready after {_START_S:g} s"
            else:
                continue
            self._server.kill()
            raise WorkerError(f"the server that forks the workers {problem}")

    def end(self) -> None:
        """End the workers and wait until they are gone; in a process that was forked from the owner, forget them."""
        workers = self.workers
        self.workers = []
        if self._owner == os.getpid():
            for worker in workers:
                worker.terminate()
            with contextlib.suppress(WorkerError):  # the server is gone, and with it the workers
                self._wait_for_end(workers)
        for worker in workers:
            worker.close()

    def _wait_for_end(self, workers: Sequence[Worker]) -> None:
        """Wait for the exit codes of workers that were forked. If one does not end, kill the server and so all."""
        for worker in workers:
            if worker.pid and worker.ended(_STOP_S) is None:
                self._server.kill()
                return

    def close(self) -> None:
        """End the workers, and delete the folder."""
        with Interrupts():  # otherwise a worker or the folder could be left
            self.end()
            self._delete()


def _delete(folder: Path, owner: int) -> None:
    """Delete a pool's folder, in the process that made it."""
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def describe_stacks(workers: Sequence[Worker]) -> list[str]:
    """Say where in its code each worker is, innermost last as in a traceback, with source lines if found here."""
    stopped = [worker for worker in workers if is_stopped(worker.pid)]
    running = [worker for worker in workers if worker not in stopped]
    for worker in running:
        worker.request_stack()
    stacks.wait_for([worker.path for worker in running])
    return [stacks.STOPPED if worker in stopped else stacks.describe(worker.path) for worker in workers]
