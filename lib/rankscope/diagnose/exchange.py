"""The messages between the ranks of a watch, through the store of the process group and off the training path.

A daemon thread per rank sends the numbers of each window of steps and, at the end, the trace; that of the first rank
judges the windows and reports them. The training loop only puts messages into a queue. Each operation on the store is
bounded in time, because a store does not answer while its server is stopped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ANSWER_S = 10.0  # how long an operation on the store may take, until the exchange gives up
CLOSE_S = 1.0  # how long closing a watch may wait for messages that are under way
_LAST_S = 10.0  # how long the thread tries to report the last windows after that
_FIRST_PAUSE_S = 0.002  # between two looks for the numbers of other ranks; it doubles …
_LONGEST_PAUSE_S = 0.1  # … up to this
_SLOTS = 4  # windows of a rank that stay in the store; a first rank that is further behind skips some
_MOST_POSTED = 8  # windows that may wait for the thread


def tell(reason: str) -> None:
    """Print one line on stderr, if that is possible."""
    with suppress(Exception):
        sys.stderr.write(f"rankscope.watch: {reason}\n")
        sys.stderr.flush()


def described(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_started: list[threading.Thread] = []  # by BoundedStore, and not known to have ended


def _hold_all() -> None:
    """At the end of the process, keep the threads that still wait for a store from returning to Python.

    If a thread returns from C++ while Python ends, Python up to 3.13 ends the thread, C++ does not allow that there,
    and the process aborts (https://github.com/python/cpython/issues/87135). In Python 3.14 and later the thread hangs
    instead. This does the same: it sends the thread a signal whose handler never returns.
    """
    waiting = [thread for thread in _started if thread.is_alive()]
    # `tgkill` is a call of Linux; elsewhere such a process may abort
    if not waiting or sys.version_info >= (3, 14) or sys.platform != "linux":
        return
    # a real-time signal, as these have no meaning of their own; any of them will do that the job does not use
    signal_number = signal.SIGRTMAX - 1
    libc = ctypes.PyDLL(None)  # a PyDLL keeps the GIL while it calls: no thread returns to Python meanwhile
    is_signal_free = signal.getsignal(signal_number) == signal.SIG_DFL
    if not is_signal_free or not hasattr(libc, "tgkill"):  # glibc has it since 2.30
        return
    # signal(2)'s types in C; ctypes would take the address that it returns for an int
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    handler = ctypes.cast(libc.pause, ctypes.c_void_p)  # libc's `pause`, which never returns
    libc.signal(signal_number, handler)
    for thread in waiting:
        libc.tgkill(os.getpid(), thread.native_id, signal_number)  # to this thread alone


atexit.register(_hold_all)  # before any exchange starts, so that it is called after all of them have been left


class BoundedStore:
    """A store of a process group; an operation that its server does not answer in time raises TimeoutError.

    An operation cannot be cancelled, so each runs in a daemon thread of its own, which is left to itself if it takes
    too long. Until it has ended, all further operations raise TimeoutError at once. The operations use a connection of
    their own if torch can clone the store (since 2.7), as one that waits would keep those of the training job waiting.
    """

    def __init__(self, store: Any) -> None:
        self._original = store
        self._store: Any = None  # the clone of `store`, from the first operation on; `store` itself if it has none
        self._unanswered: threading.Thread | None = None  # the thread of an operation that took too long

    def call(self, operation: str, *args: Any) -> Any:
        """Return what the operation returns. Raises what it raises, and TimeoutError after `ANSWER_S`."""
        if self._unanswered is not None and self._unanswered.is_alive():
            raise TimeoutError(f"the store of the process group has not answered for {ANSWER_S:g} s")
        # the thread fills one of these, unless it is not answered
        answers = list[Any]()
        errors = list[BaseException]()

        def run() -> None:
            try:
                if self._store is None:
                    self._store = self._cloned()  # here, because it waits for the server, too
                answers.append(getattr(self._store, operation)(*args))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="rankscope.watch store", daemon=True)
        _started.append(thread)
        thread.start()
        thread.join(ANSWER_S)
        if not thread.is_alive():
            _started.remove(thread)
        if errors:
            raise errors[0]
        if not answers:
            self._unanswered = thread
            raise TimeoutError(f"the store of the process group has not answered for {ANSWER_S:g} s")
        return answers[0]

    def _cloned(self) -> Any:
        try:
            return self._original.clone()
        except (AttributeError, NotImplementedError, RuntimeError):  # an older torch, or a store that has no clones
            return self._original


class _PostedWindow(NamedTuple):
    """The steps of a window, and its number."""

    number: int
    steps: list[Any]


class _AwaitedWindow(NamedTuple):
    """A window that the first rank has sent and the others may not have."""

    number: int
    step_numbers: NDArray[np.float64]


class StoreExchange:
    """The thread of this rank. `post`, `send_trace` and `close` are for the training loop, and never raise.

    `numbers_of` makes a table of a window, a row per step, the number of the step first. `line_of` makes the line
    about the tables of all ranks (steps x ranks x numbers), which is given to `report`.
    """

    def __init__(
        self,
        store: BoundedStore,
        rank: int,
        ranks: Sequence[int],
        numbers_of: Callable[[list[Any]], NDArray[np.float64]],
        line_of: Callable[[NDArray[np.float64]], str],
        report: Callable[[str], object],
    ) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._numbers_of = numbers_of
        self._line_of = line_of
        self._report = report
        self._is_first = rank == ranks[0]
        self._messages = queue.SimpleQueue[_PostedWindow | bytes | None]()  # None: the watch is closed
        self._num_posted = 0
        self._awaited = deque[_AwaitedWindow]()  # the oldest first
        self._has_lines = True  # False once an error has ended the lines
        self._last_lines = True  # whether lines on the windows that are awaited at the close are wanted
        self._leaving = threading.Event()  # set when the process ends
        self._thread = threading.Thread(target=self._run, name="rankscope.watch", daemon=True)

    # ---- called by the training loop

    def start(self) -> None:
        """Start the thread, which ends by `close`, or with the process."""
        atexit.register(self._leave)
        self._thread.start()

    def post(self, steps: list[Any]) -> None:
        """Have the numbers of a window sent; if the thread cannot keep up, the window is left out."""
        number = self._num_posted
        self._num_posted += 1  # for a window that is left out, too, as all ranks must give a window the same number
        if self._has_lines and self._messages.qsize() < _MOST_POSTED:
            self._messages.put(_PostedWindow(number, steps))

    def send_trace(self, trace: bytes) -> None:
        self._messages.put(trace)

    def close(self, last_lines: bool) -> None:
        """End the thread once all is sent and, if `last_lines`, reported; wait for that for at most `CLOSE_S`."""
        self._last_lines = last_lines
        self._messages.put(None)
        self._thread.join(CLOSE_S)

    def _leave(self) -> None:
        """End the thread before Python ends: a thread that returns from the store after that aborts the process."""
        self._leaving.set()
        self._messages.put(None)  # wakes the thread if it waits for a message
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and self._is_first and self._has_lines:
            tell(f"rank {self._rank}: the last lines are missing, as the thread that reports them does not end")

    # ---- the thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._end_lines(f"an error of rankscope's own ({described(error)})")
        finally:
            atexit.unregister(self._leave)

    def _serve(self) -> None:
        """Serve the training loop until the watch is closed, and then report the windows that are still awaited."""
        self._serve_messages()
        if not self._last_lines:
            return
        deadline = time.monotonic() + _LAST_S
        pause_s = _FIRST_PAUSE_S
        while self._awaited and time.monotonic() < deadline:
            is_leaving = self._leaving.wait(pause_s)
            if is_leaving:
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._look()

    def _serve_messages(self) -> None:
        """Send what the training loop posts, and look for the numbers of other ranks, until the watch is closed."""
        pause_s = _FIRST_PAUSE_S
        while not self._leaving.is_set():
            try:
                # if nothing is awaited, there is nothing to look for until the next message
                message = self._messages.get(timeout=pause_s if self._awaited else None)
            except queue.Empty:
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                self._look()
                continue
            if message is None:
                return
            if isinstance(message, bytes):
                with suppress(Exception):  # a store is gone once the process that serves it has ended
                    self._store.call("set", f"trace/{self._rank}", message)
            elif self._has_lines:
                self._send(message)
                self._look()
                pause_s = _FIRST_PAUSE_S

    def _send(self, window: _PostedWindow) -> None:
        """Put this rank's table of a window into the store, count it as sent, and await the others' on the first rank.

        A message is the number of columns, followed by the table. A window's slot is used again by a later window.
        """
        table = self._numbers_of(window.steps)
        message = np.append(table.shape[1], table).tobytes()
        try:
            self._store.call("set", f"window/{window.number % _SLOTS}/{self._rank}", message)
            self._store.call("add", f"sent/{window.number}", 1)  # after the table, which is read once all are counted
        except Exception as error:
            self._lose_store(error)
            return
        if self._is_first:
            self._awaited.append(_AwaitedWindow(window.number, table[:, 0]))

    def _look(self) -> None:
        """Report the windows, oldest first, that all ranks have sent.

        Once as many windows are awaited as there are slots, the oldest one is given up: the next window takes its slot.
        """
        while self._awaited:
            window = self._awaited[0]
            try:
                num_sent = self._store.call("add", f"sent/{window.number}", 0)  # adding 0 reads a counter
                are_all_sent = num_sent == len(self._ranks)
                if not are_all_sent and len(self._awaited) < _SLOTS:
                    return
                messages = []  # stays empty for a window that is given up
                if are_all_sent:
                    keys = [f"window/{window.number % _SLOTS}/{rank}" for rank in self._ranks]
                    messages = self._store.call("multi_get", keys)
                with suppress(RuntimeError, NotImplementedError):  # not all stores can delete
                    self._store.call("delete_key", f"sent/{window.number}")
            except Exception as error:
                self._lose_store(error)
                return
            self._awaited.popleft()
            self._judge(window, [np.frombuffer(message, dtype=np.float64) for message in messages])

    def _judge(self, window: _AwaitedWindow, messages: list[NDArray[np.float64]]) -> None:
        """Report a line about a window; none without messages, or if they are of other steps.

        They are if ranks end with different numbers of steps, so that their last windows differ, or if a rank is so far
        ahead that it has used its slot again.
        """
        if not messages:
            return
        tables = []
        for message in messages:
            num_columns = int(message[0])  # see `_send`
            table = message[1:].reshape(-1, num_columns)
            if not np.array_equal(table[:, 0], window.step_numbers):
                return
            tables.append(table)
        line = self._line_of(np.stack(tables, axis=1))
        try:
            self._report(line)
        except BaseException as error:
            self._end_lines(f"report raised {described(error)}")

    def _lose_store(self, error: Exception) -> None:
        """End the lines, because the store is silent or gone; the first rank says so for all."""
        reason = str(error)
        if not isinstance(error, TimeoutError):
            reason = f"the store of the process group is gone ({described(error)})"
        self._end_lines(reason if self._is_first else "")

    def _end_lines(self, reason: str) -> None:
        self._has_lines = False
        self._awaited.clear()
        # at the end of the process nothing is said: the store may have ended with the rank that serves it
        if reason and not self._leaving.is_set():
            tell(f"rank {self._rank}: no more lines, {reason}; training goes on")
