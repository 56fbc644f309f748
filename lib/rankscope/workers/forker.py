"""The caller's end of the server: started by the first launch, kept, and ended with the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .host import how_it_ended
from .server import serve

_BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    f"from {serve.__module__} import serve; serve(int(sys.argv[1]), int(sys.argv[3]), sys.argv[4])"
)
# libraries of numpy's and torch's that start threads when they are imported, from which one must not fork
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_STOP_S = 5.0  # how long the server may take to end


class Forker:
    """A server of this process."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self.folder = Path(tempfile.mkdtemp(prefix="rankscope-ranks-"))
        self._control, theirs = socket.socketpair()
        path = json.dumps([os.fspath(place) or os.getcwd() for place in sys.path])
        arguments = [str(theirs.fileno()), path, str(self._owner), str(self.folder)]
        with theirs, open(self.folder / "server.err", "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **_ONE_THREAD},
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the caller, which then ends the ranks
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it is this process's and runs."""
        return self._owner == os.getpid() and self._process.poll() is None

    def open_line(self) -> socket.socket:
        """Return a socket for one launch; raises OSError where the server is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def obituary(self) -> str:
        """Say how it ended, with the last that it printed."""
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return "has not ended, and does not answer"
        with contextlib.suppress(OSError):
            said = (self.folder / "server.err").read_text(errors="replace").strip()
            return f"{how_it_ended(code)}{said and ':'}\n{said[-2000:]}".rstrip()
        return how_it_ended(code)

    def kill(self) -> None:
        """End it at once, and with it all ranks."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """End it and wait; in a process that was forked from its owner, only forget it."""
        if self._owner == os.getpid():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # works also where a forked process holds the socket, too
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self._process.returncode = 0  # not ours to wait for
        self._control.close()


_current: Forker | None = None
_lock = threading.Lock()


def open_line() -> tuple[Forker, socket.socket]:
    """Return the server of this process, started where there is none, and a socket for one launch."""
    global _current
    with _lock:
        if _current is not None and _current.usable:
            with contextlib.suppress(OSError):  # it is just ending
                return _current, _current.open_line()
        _close()
        _current = Forker()
        return _current, _current.open_line()


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
