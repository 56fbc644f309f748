"""A process of its own for a worker. It is forked, so its function need not be pickled.

Values pass through a pipe: not through files in ``/dev/shm`` or the temporary folder, so nothing there can be full or
be left behind.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from multiprocessing import get_context, util
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from ..common.checks import number
from ..common.portable import portable
from ..ranks.errors import MachineError
from ..ranks.host import end_with, how_it_ended, kill_group


class Process:
    """A process that calls `fn` for one value at a time.

    It ends by `end`, with this object, or with the thread that has made it, however that ends.
    """

    def __init__(self, fn: Callable[[Any], Any], timeout_s: float) -> None:
        self._timeout_s = number("timeout_s", timeout_s, above=0)
        self._connection, theirs = Pipe()
        arguments = (fn, theirs, os.getpid())
        self._process = get_context("fork").Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()
        # Before multiprocessing joins at exit what it has started; a forked copy of this object ends nothing.
        self.end = util.Finalize(self, _kill, (self._process,), exitpriority=1)

    def call(self, value: Any) -> Any:
        """Return the result for a value.

        Raises the error that `fn` raised; MachineError if the process ends or has not answered after `timeout_s`.
        """
        name = f"its process (pid {self._process.pid})"
        try:
            self._connection.send(value)
            if not self._connection.poll(self._timeout_s):
                raise MachineError(f"{name} has not answered after {self._timeout_s:g} s (timeout_s)")
            answer = self._connection.recv()
        except (EOFError, OSError):
            self.end()
            raise MachineError(f"{name} {how_it_ended(self._process.exitcode or 0)}") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _kill(process: Any) -> None:
    """Kill a process, even a stopped one, and what it has started, if it has not ended before."""
    process.kill()
    kill_group(process.pid)
    process.join()


def _serve(fn: Callable[[Any], Any], connection: Connection, owner_pid: int) -> None:
    """Be the process: answer each value with the result or with an error, until the owner ends."""
    os.setpgid(0, 0)  # Ctrl-C does not reach it, and a kill of the group also ends the processes that it starts
    end_with(owner_pid)
    gc.freeze()  # finalizers of the owner's garbage are not for this process
    np.random.seed()  # or all processes would draw the same numbers; Python's own generator does so after a fork
    if "torch" in sys.modules:  # one thread per process, as in torch's own DataLoader
        sys.modules["torch"].set_num_threads(1)
    while True:
        value = connection.recv()
        try:
            answer = fn(value)
        except BaseException as error:
            answer = portable(error)
        print(end="", flush=True)  # what `fn` has printed: the process is killed at its end
        connection.send(answer)
