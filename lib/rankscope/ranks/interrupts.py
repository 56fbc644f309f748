"""`Interrupts`: Ctrl-C held back while processes are started and ended, and raised afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any


class Interrupts:
    """A block in which an exception of the handler of SIGINT is held back, and at whose end it is raised.

    At the signal, the exception is stored in `raised`, and `wake` is called, so that the block can end early. Without
    this, an exception in the middle of `Process.start` would leave a process that nobody knows, and one in a callback
    of fork would be dropped. Only the main thread gets signals, so in other threads this does nothing.
    """

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self.wake: Callable[[], object] = int  # `int()` does nothing
        self._pid = os.getpid()
        self._handler: Any = None  # the one that this block replaces

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.getsignal(signal.SIGINT)
        if callable(self._handler):  # it is not, if signals are ignored or handled by C code
            signal.signal(signal.SIGINT, self._hold_back)
        return self

    def __exit__(self, *error: object) -> None:
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
        raised = self.raised
        self.raised = None
        try:
            if raised is not None:
                raise raised
        finally:
            del raised  # its traceback refers to this frame, so a reference from here would be a cycle

    def _hold_back(self, number: int, frame: Any) -> None:
        """Handle SIGINT: call the handler, and store the first exception that it raises."""
        if os.getpid() != self._pid:  # in a process that was forked a moment ago: the signal is for its parent
            return
        try:
            self._handler(number, frame)
        except BaseException as error:
            if self.raised is None:
                self.raised = error
            self.wake()
