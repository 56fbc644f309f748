"""How a command ends early: by Ctrl-C or SIGTERM, with a message on stderr and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import typer

_SHOW_CURSOR = "\x1b[?25h"


@contextlib.contextmanager
def interruptible(sigterm: bool = True, words: Callable[[], str] = str) -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does, so that a hidden cursor is shown again; exit with 143 or 130.

    `words` are added to the message on stderr. Without `sigterm`, SIGTERM ends the process at once, as usual.
    """
    received = signal.SIGINT

    def interrupt(number: int, frame: Any) -> None:
        nonlocal received
        received = signal.SIGTERM
        handler = signal.getsignal(signal.SIGINT)  # it may be delayed for a moment
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    handles = sigterm and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if handles else None
    try:
        yield
    except KeyboardInterrupt:
        # whatever has hidden the cursor may have been just about to know of it, with sys.stderr replaced by its own
        terminal = sys.__stderr__
        if terminal is not None and terminal.isatty():
            print(_SHOW_CURSOR, end="", file=terminal, flush=True)
        print("; ".join(filter(None, ["rankscope: interrupted", words()])), file=sys.stderr)
        raise typer.Exit(128 + received) from None
    finally:
        if handles:
            signal.signal(signal.SIGTERM, before)
