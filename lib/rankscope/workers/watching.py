"""A launch as its caller sees it: who runs, who has returned, who failed, and why."""

from __future__ import annotations

import errno
import linecache
import os
import pickle
import re
import socket
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from . import parcels
from .errors import RankError
from .events import Event, Events
from .forker import Forker
from .host import how_it_ended
from .output import Output
from .rank import Failure

_START_S = 300.0  # for the server, on a cold disk of a busy machine
_GRACE_S = 0.1  # whether an error came from another rank's death is known by then
_STACKS_S = 0.5
_GONE_S = 5.0
_LIVE_S, _WORD_S = 0.1, 2.0
_PF_EXITING, _UNTOLD = 4, ["?", *"000000"]  # among the flags in /proc/PID/stat; and what stands for all of that


class Watch:
    """One launch; whatever happens, `close` ends its ranks."""

    def __init__(self, forker: Forker, line: socket.socket, folder: Path) -> None:
        self._forker, self._line, self._folder = forker, line, folder
        self._events = Events(line)
        self._pids: dict[int, int] = {}
        self._running: set[int] = set()
        self._num_ranks = 0
        self._raised: tuple[int, float] | None = None  # the first that raised, and until when the cause may show
        self._began: float | None = None

    def start(self, num_ranks: int) -> None:
        """Let the server fork the ranks."""
        self._num_ranks, self._running = num_ranks, set(range(num_ranks))
        try:
            self._line.sendall(f"{num_ranks} ".encode() + os.fsencode(self._folder))
        except OSError:
            self._server_gone()

    def wait(self, timeout_s: float, live: Output | None) -> None:
        """Wait until all have returned; raises RankError, and what else `launch` says. `live` is shown meanwhile."""
        begin = word = time.monotonic()
        while self._running:
            now = time.monotonic()
            end = begin + _START_S if self._began is None else self._began + timeout_s
            if self._raised:
                rank, known = self._raised
                if now >= known + (_GONE_S if self._another_ends(rank) else 0):
                    self._raise(rank)
                end = max(known, now + _LIVE_S)
            elif now >= end:
                self._give_up(timeout_s)
            ready = wait([self._line], min(end - now, _LIVE_S) if live else end - now)
            if ready:
                self._listen()
            if live:
                live.show(last=False)
                if now > word + _WORD_S:
                    word = now
                    done = self._num_ranks - len(self._running)
                    print(f"launch: {done} of {self._num_ranks} ranks after {now - begin:.0f} s", file=sys.stderr)

    def result(self, rank: int) -> Any:
        """Return the result of a rank; raises RankError where it cannot be loaded here."""
        try:
            return parcels.read(self._folder / f"{rank}.result")
        except Exception as error:
            problem = f"the result of rank {rank} cannot be loaded: {type(error).__name__}: {error}"
            raise RankError(problem, rank) from error

    def close(self) -> None:
        """End the ranks and wait until they are gone."""
        try:
            self._line.shutdown(socket.SHUT_WR)
            if not self._all_gone():
                self._forker.kill()
        except (EOFError, OSError):  # the server is gone, and so are they
            pass
        finally:
            self._line.close()

    def _all_gone(self) -> bool:
        deadline = time.monotonic() + _GONE_S
        while wait([self._line], max(0.0, deadline - time.monotonic())):
            if any(event == Event.ALL_GONE for event, _, _ in self._events.receive()):
                return True
        return False

    def _listen(self) -> None:
        try:
            for event, rank, value in self._events.receive():
                self._take(event, rank, value)
        except (EOFError, OSError):
            self._server_gone()

    def _take(self, event: Event, rank: int, value: int) -> None:
        if event == Event.FORKED:
            self._pids[rank] = value
            self._began = self._began or time.monotonic()
        elif event == Event.RETURNED:
            self._running.discard(rank)
        elif event == Event.RAISED:
            self._raised = self._raised or (rank, time.monotonic() + _GRACE_S)
        elif event == Event.REFUSED:
            raise ValueError(self._failure(rank).line)
        elif event == Event.ENDED and (self._raised is None or self._raised[0] != rank):
            when = "before" if rank in self._running else "after"
            raise RankError(f"rank {rank} (process {self._pids[rank]}) {how_it_ended(value)} {when} it returned", rank)
        elif event == Event.NOT_FORKED:
            reason = f"{errno.errorcode.get(value, value)}: {os.strerror(value)}"
            raise RuntimeError(f"rank {rank} of {self._num_ranks} could not be started: {reason}")

    def _another_ends(self, rank: int) -> bool:
        """Whether another rank has ended, or is about to, of which the server has not told yet."""
        return any(_ends(pid) for other, pid in self._pids.items() if other != rank)

    def _failure(self, rank: int) -> Failure:
        with open(self._folder / f"{rank}.failure", "rb") as file:
            failure: Failure = pickle.load(file)
        return failure

    def _raise(self, rank: int) -> NoReturn:
        failure = self._failure(rank)
        try:
            cause = None if failure.error is None else pickle.loads(failure.error)
        except Exception:  # its class is not to be had here
            cause = None
        text = "" if failure.text == failure.line else f"\n\n{failure.text}"
        raise RankError(f"rank {rank} failed: {failure.line}{text}", rank) from cause

    def _server_gone(self) -> NoReturn:
        raise RuntimeError(f"the server of launch (process {self._forker.pid}) {self._forker.obituary()}") from None

    # ---- too late

    def _give_up(self, timeout_s: float) -> NoReturn:
        if self._began is None:
            self._forker.kill()
            raise RuntimeError(f"the server of launch was not ready after {_START_S:g} s, and is ended")
        late = sorted(self._running)
        stopped = [rank for rank in late if _state(self._pids.get(rank, 0)) in "Tt"]
        self._ask_where([rank for rank in late if rank not in stopped])
        names = f"rank {late[0]} has" if len(late) == 1 else f"ranks {', '.join(map(str, late))} have"
        parts = [f"{names} not returned after {timeout_s:g} s (timeout_s)"]
        for rank in late:
            where = "is stopped (SIGSTOP)" if rank in stopped else self._where(rank)
            parts.append(f"rank {rank} {where}")
        raise RankError("\n".join(parts), (stopped or late)[0])

    def _ask_where(self, ranks: list[int]) -> None:
        self._line.sendall(b"?")
        deadline = time.monotonic() + _STACKS_S
        sizes: dict[int, int] = {}
        while time.monotonic() < deadline:
            now = {rank: _size(self._folder / f"{rank}.stack") for rank in ranks}
            if now == sizes and all(now.values()):
                return
            sizes = now
            time.sleep(0.02)

    def _where(self, rank: int) -> str:
        """Tell a rank's stack, innermost last as in a traceback, with the lines where they can be found here."""
        path = self._folder / f"{rank}.stack"
        frames = re.findall(r'File "(.*)", line (\d+) in (.*)', path.read_text(errors="replace")) if _size(path) else []
        ours = os.path.join(os.path.dirname(__file__), "rank.py")
        lines = []
        for file, line, name in reversed([frame for frame in frames if frame[0] not in (ours, "<string>")]):
            if not file.endswith(os.path.join("workers", "server.py")):
                source = linecache.getline(file, int(line)).strip()
                lines.append(f'  File "{file}", line {line}, in {name}' + (f"\n    {source}" if source else ""))
        return "stands at\n" + "\n".join(lines) if lines else "does not say where it stands"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state(pid: int) -> str:
    """The letter of a process's state, T for stopped, where the system tells."""
    return _stat(pid)[0]


def _ends(pid: int) -> bool:
    """Whether a process has ended, or is about to, where the system tells."""
    state, *_, flags = _stat(pid)[:7]
    return os.path.exists("/proc/self/stat") and (state in "?ZX" or bool(int(flags) & _PF_EXITING))


def _stat(pid: int) -> list[str]:
    """What the system tells of a process from its state on: see proc_pid_stat(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() or _UNTOLD
    except OSError:
        return _UNTOLD
