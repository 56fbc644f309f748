"""Ctrl-C kept for the end: it neither tears through what starts and ends processes nor gets lost in there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any


class Interrupts:
    """While it is entered, what the handler of SIGINT raises is kept in `raised`, and `wake` called; then it is raised.

    An exception in the middle of `Process.start` would leave a process that nobody knows, and one in a callback of fork
    would be dropped. Elsewhere than in the main thread, which alone gets signals, this does nothing.
    """

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self.wake: Callable[[], object] = int
        self._pid = os.getpid()
        self._handler: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.getsignal(signal.SIGINT)
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._keep)
        return self

    def __exit__(self, *error: object) -> None:
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
        raised, self.raised = self.raised, None
        try:
            if raised:
                raise raised
        finally:
            del raised  # which has this frame: a cycle

    def _keep(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:  # forked a moment ago, and about to ignore it
            return
        try:
            self._handler(number, frame)
        except BaseException as error:
            self.raised = self.raised or error
            self.wake()
