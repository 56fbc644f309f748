"""Processes that watch each other: who has ended is noticed at once, and who was started ends with its starter.

A process that has ended is told by its pidfd, where the system has one. The pipes by which Python notices it otherwise
stay open as long as any process holds them, and whatever a process forks holds them, too.
"""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from .shared import delete_folder


def watch(pid: int) -> int | None:
    """Return a descriptor that is ready once the process has ended, None where the system gives none.

    Raises ProcessLookupError where there is no such process any more.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # an old kernel, a sandbox, no descriptors left
        return None


class Watched:
    """A process that was started here; `death` is a descriptor that is ready once it has ended."""

    def __init__(self, process: BaseProcess) -> None:
        self.process = process
        try:
            self._pidfd = watch(process.pid or 0)
        except ProcessLookupError:  # ended, and waited for
            self._pidfd = None
        self.death: int = process.sentinel if self._pidfd is None else self._pidfd

    def exit_code(self, within_s: float) -> int | None:
        """Wait for the end and return the exit code, None where it goes on; `join` may wait for what it has forked."""
        if wait([self.death], within_s) and self.process.exitcode is None:
            self.process.join(1.0)
        return self.process.exitcode

    def end(self, within_s: float) -> None:
        """Wait for the end, kill the process where it does not come, and let go of it."""
        if self.exit_code(within_s) is None:
            self.process.kill()
            self.process.join()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self.process.close()


class Lifeline:
    """Made by a process for those that it starts: however it ends, they end with it, and delete the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._owner = folder, os.getpid()
        ends = Pipe(duplex=False)
        self._end: Connection[Any, Any] = ends[0]
        self._held: Connection[Any, Any] | None = ends[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def tie(self) -> None:
        """Tie the calling process, which was given this by fork or by pickle, to the one that made it."""
        if self._held:
            self._held.close()
        threading.Thread(target=self._wait, name="lifeline", daemon=True).start()

    def end(self) -> None:
        """End the calling process at once: the one that made this is gone."""
        for _ in range(3):  # another thread, or another process, may be writing there
            delete_folder(self._folder)
        os._exit(1)

    def cut(self) -> None:
        """Let go: whoever is still tied ends."""
        if self._held:
            self._held.close()
        self._end.close()

    def _wait(self) -> None:
        try:
            owner = watch(self._owner)  # processes that it has forked may hold the pipe
            wait([self._end] if owner is None else [self._end, owner])
        except ProcessLookupError:
            pass
        self.end()
