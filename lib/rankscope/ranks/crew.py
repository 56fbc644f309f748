"""An owner's end of its workers: the server that forks them, crews that end together, and what became of each.

The server starts when it is first needed, in a tenth of a second, or in some seconds where torch has to be imported. It
stays, and ends with the process that started it, together with all workers and their folders, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import linecache
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from ..common import folders
from . import pickling
from .errors import MachineError, WorkerError
from .host import how_it_ended, is_stopped
from .interrupts import Interrupts
from .server import ENDED, FORKED, NEWS, WHERE, serve
from .worker import Raised, Refused, Surroundings, WorkerLine

_BEGIN = f"import sys; sys.path[:] = sys.argv[5:]; from {serve.__module__} import serve; serve(*sys.argv[1:5])"
# libraries of numpy's and torch's that start threads when they are imported, from which one must not fork
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_START_S = 300.0  # for the server, on a cold disk of a busy machine
_STOP_S = 5.0  # how long workers may take to end
_LEAVE_S = 1.0  # how long the server may: it may be in the middle of an import
STOPPED = "is stopped (SIGSTOP)"
_STACKS_S = 0.5  # for workers to write where they stand


class Workshop:
    """The server of this process; `folder` and `memory` are places for the folders of crews, on disk and in memory."""

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # a standard stream was closed
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
        self.folder = folders.make_folder()
        self.memory = folders.make_folder(folders.memory()) if folders.memory() else self.folder
        self._control, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), str(self._owner), str(self.folder), str(self.memory), *_search_path()]
        with theirs, open(self.folder / "server.err", "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BEGIN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **_ONE_THREAD},
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the owner, which then ends the workers
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it is this process's and runs."""
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(
        self, words: Sequence[str], streams: Sequence[int], timeout_s: float | None
    ) -> tuple[socket.socket, Connection]:
        """Have a worker forked; return the line that says what becomes of it, and the connection to it, where waiting
        for longer than `timeout_s` raises BlockingIOError."""
        with contextlib.ExitStack() as ends:  # which closes all where one cannot be had
            line, their_line, ours, theirs = (ends.enter_context(end) for _ in range(2) for end in socket.socketpair())
            if timeout_s is not None:
                limit = struct.pack("ll", *divmod(round(timeout_s * 1e6), 1_000_000))
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            message = os.fsencode("\0".join(words))
            descriptors = [their_line.fileno(), theirs.fileno(), *streams]
            with self._lock, contextlib.suppress(ConnectionError):  # it is gone, as its line says
                socket.send_fds(self._control, [struct.pack("!i", len(message)), message], descriptors)
            return socket.socket(fileno=line.detach()), Connection(ours.detach())

    def obituary(self) -> str:
        """Say how it ended, with the last that it printed."""
        try:
            ending = how_it_ended(self._process.wait(_STOP_S))
        except subprocess.TimeoutExpired:
            ending = "has not ended, and does not answer"
        with contextlib.suppress(OSError):
            said = (self.folder / "server.err").read_text(errors="replace").strip()
            ending = f"{ending}{said and ':'}\n{said[-2000:]}".rstrip()
        return f"the server that forks the workers (pid {self.pid}) {ending}"

    def kill(self) -> None:
        """End it at once, and with it all workers."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """End it and wait, once; in a process that was forked from its owner, only forget it."""
        if self._control.fileno() < 0:
            return
        if self._owner == os.getpid():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # works also where a forked process holds the socket, too
            try:
                self._process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            for folder in {self.folder, self.memory}:
                folders.delete_folder(folder)
        else:
            self._process.returncode = 0  # not ours to wait for
        self._control.close()


def _search_path() -> list[str]:
    """Where the server finds modules: the working directory comes last, so that no file in it passes for another."""
    here = os.getcwd()
    return sorted((os.fspath(place) or here for place in sys.path), key=lambda place: os.path.realpath(place) == here)


_current: Workshop | None = None
_lock = threading.Lock()


def workshop() -> Workshop:
    """Return that of this process, started where there is none."""
    global _current
    with _lock:
        if _current is None or not _current.usable:
            _close()
            _current = Workshop()
        return _current


def _close() -> None:
    global _current
    if _current is not None:
        _current.close()
        _current = None


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _close()


atexit.register(_close)
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_in_child)


class Worker:
    """One worker. It has news for `listen` when `multiprocessing.connection.wait` says that it is ready."""

    def __init__(
        self,
        name: str,
        place: Path,
        line: socket.socket,
        connection: Connection,
        server: Workshop,
        timeout_s: float | None,
    ) -> None:
        self.name, self.place, self.timeout_s, self._line, self._server = name, place, timeout_s, line, server
        self.pid, self.code = 0, cast("int | None", None)
        self.post = WorkerLine(connection, place, 0)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def fileno(self) -> int:
        return self._line.fileno()

    def listen(self, within_s: float = 0.0) -> bool:
        """Wait for the next news, and return whether there were any. Raises WorkerError where the server is gone, and
        OSError where the worker could not be forked."""
        with self._lock:
            if self.code is not None or not wait([self._line], within_s):
                return False
            news = self._line.recv(NEWS.size)
            if not news:
                if self.pid:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)  # what it has started has no guard now
                raise WorkerError(self._server.obituary())
            kind, value = NEWS.unpack(news)
            if kind == FORKED:
                self.pid = value
            elif kind == ENDED:
                self.code = value
            else:
                raise OSError(value, os.strerror(value))
            return True

    def ended(self, within_s: float) -> int | None:
        """Wait for its end and return its exit code, None where it goes on."""
        deadline = time.monotonic() + within_s
        while self.code is None and self.listen(max(0.0, deadline - time.monotonic())):
            pass
        return self.code

    def obituary(self) -> str:
        """Say how it ended."""
        return f"{self} {how_it_ended(self.ended(1.0))}"

    def ready(self) -> None:
        """Wait until it has loaded its work. Raises ValueError where it cannot, and WorkerError."""
        with self._in_time():
            found = self.post.receive()
        if isinstance(found, Refused):
            raise ValueError(found.reason)

    def ask(self, value: Any) -> Any:
        """Send a value and return the answer. Raises the error that the work raised, and WorkerError where the worker
        has ended, or has not answered in time."""
        with self._in_time():
            self.post.send(value)
            answer = self.post.receive()
        if isinstance(answer, Raised):
            raise answer.error
        return answer

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            raise WorkerError(self.obituary()) from None
        except BlockingIOError:
            late = f"has not answered after {self.timeout_s:g} s (timeout_s)"
            raise WorkerError(f"{self} {late}: it {stands([self])[0]}") from None

    def ask_where(self) -> None:
        """Have it write where it stands, for `stands`."""
        with contextlib.suppress(OSError):
            self._line.send(WHERE)

    def hang_up(self) -> None:
        """Let the server kill it; whoever waits for an answer, now or later, finds that there is nobody."""
        ends = (self._line.fileno(), socket.SHUT_WR), (self.post.connection.fileno(), socket.SHUT_RDWR)
        for descriptor, how in ends:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
                end.shutdown(how)

    def close(self) -> None:
        self._line.close()
        self.post.connection.close()


class Crew:
    """Workers that end together: with `close`, or with this process. They find `modules` imported.

    `folder` is theirs, in memory or on disk, and goes with them.
    """

    def __init__(self, modules: str = "", in_memory: bool = True) -> None:
        if not hasattr(os, "fork"):
            raise MachineError(f"workers are forked, which {sys.platform} cannot do")
        surroundings = Surroundings.of_this_process()
        self._owner, self._server, self._modules = os.getpid(), workshop(), dict.fromkeys(modules.split())
        self._num_packed = 0
        place = self._server.memory if in_memory else self._server.folder
        self.workers = list[Worker]()
        with Interrupts():  # or there might be a folder that nobody knows
            self.folder = Path(tempfile.mkdtemp(dir=place))
            self._delete = weakref.finalize(self, _delete, self.folder, self._owner)
            pickling.write(self.folder / "surroundings", surroundings)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def pack(self, work: Callable[[WorkerLine, int], object]) -> str:
        """Write down what workers will do, and return its name for `start`. Raises what pickling it raises."""
        self._num_packed += 1
        name = f"work{self._num_packed}"
        needed = pickling.write(self.folder / name, work)  # imported once by the server, not by each worker
        self._modules |= dict.fromkeys(sorted(needed))
        return name

    def start(
        self,
        name: str,
        labels: Sequence[str],
        outputs: Sequence[tuple[int, int]] = (),
        timeout_s: float | None = None,
    ) -> list[Worker]:
        """Start a worker of each label for the same work, number 0, 1, …; it prints to these descriptors, or to ours.

        Raises WorkerError where one cannot be forked, and where the server cannot run.
        """
        started = []
        try:
            for number, label in enumerate(labels):
                words = " ".join(self._modules), str(self.folder), name, str(number)
                with Interrupts():  # or there might be a worker that nobody knows
                    ends = self._server.fork(words, outputs[number] if outputs else (1, 2), timeout_s)
                    started.append(Worker(label, self.folder / f"{name}-{number}", *ends, self._server, timeout_s))
                    self.workers.append(started[-1])
            for worker in started:
                self._wait_for_fork(worker)
        except OSError as error:
            problem = f"not all of {', '.join(labels)} could be started"
            raise WorkerError(f"{problem}: {type(error).__name__}: {error}") from error
        return started

    def _wait_for_fork(self, worker: Worker) -> None:
        deadline = time.monotonic() + _START_S
        while not worker.listen(_STOP_S):
            stopped = is_stopped(self._server.pid)
            if stopped or time.monotonic() > deadline:
                self._server.kill()
                problem = STOPPED if stopped else f"was not ready after {_START_S:g} s"
                raise WorkerError(f"the server that forks the workers {problem}")

    def end(self) -> None:
        """End the workers and wait until they are gone; in a process that was forked from the owner, forget them."""
        workers, self.workers = self.workers, []
        if self._owner == os.getpid():
            for worker in workers:
                worker.hang_up()
            with contextlib.suppress(WorkerError):  # the server is gone, and so are they
                if any(worker.pid and worker.ended(_STOP_S) is None for worker in workers):
                    self._server.kill()
        for worker in workers:
            worker.close()

    def close(self) -> None:
        """End the workers, and delete the folder."""
        with Interrupts():
            self.end()
            self._delete()


def _delete(folder: Path, owner: int) -> None:
    """Delete a crew's folder, in the process that made it."""
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def stands(workers: Sequence[Worker]) -> list[str]:
    """Say where each worker stands, innermost last as in a traceback, with the lines where they can be found here."""
    stopped = {worker for worker in workers if is_stopped(worker.pid)}
    asked = [worker for worker in workers if worker not in stopped]
    for worker in asked:
        worker.ask_where()
    deadline, sizes = time.monotonic() + _STACKS_S, list[int]()
    while time.monotonic() < deadline:
        before, sizes = sizes, [len(_stack(worker)) for worker in asked]
        if sizes == before and all(sizes):
            break
        time.sleep(0.02)
    return [STOPPED if worker in stopped else _stands(worker) for worker in workers]


def _stack(worker: Worker) -> str:
    try:
        return Path(f"{worker.place}-stack").read_text(errors="replace")
    except OSError:
        return ""


def _stands(worker: Worker) -> str:
    lines = []
    for file, number, name in reversed(re.findall(r'File "(.*)", line (\d+) in (.*)', _stack(worker))):
        if file != "<string>" and Path(file).parent != Path(__file__).parent:
            source = linecache.getline(file, int(number)).strip()
            lines.append(f'  File "{file}", line {number}, in {name}' + (f"\n    {source}" if source else ""))
    return "stands at\n" + "\n".join(lines) if lines else "does not say where it stands"
