"""The early end of a command, by Ctrl-C, SIGTERM or SIGHUP: a message on stderr, and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import typer

_SHOW_CURSOR = "\x1b[?25h"
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def interruptible(signals: bool = True, words: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, so that a hidden cursor is shown again.

    The exit code is 128 plus the signal's number: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, which a process gets
    when its terminal is closed. `words` returns an addition to the message on stderr. Without `signals`, SIGTERM and
    SIGHUP end the process at once, as usual. A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    received: int | None = None

    def interrupt(number: int, frame: Any) -> None:
        """Note the signal, and do what Ctrl-C does."""
        nonlocal received
        received = number
        raise KeyboardInterrupt

    earlier_handlers = {}
    if signals and threading.current_thread() is threading.main_thread():  # others cannot set handlers
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                earlier_handlers[number] = signal.signal(number, interrupt)
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        # Once the terminal is closed, the progress display may fail to write to it, so SIGHUP may end the body by an
        # OSError. Without a signal, an OSError is an ordinary one.
        if received is None and isinstance(error, OSError):
            raise
        message = "rankscope: interrupted"
        addition = words()
        if addition:
            message += f"; {addition}"
        _print_last(message)
        if received is None:  # Ctrl-C, which `interrupt` does not handle
            received = signal.SIGINT
        raise typer.Exit(128 + received) from None
    finally:
        for number, earlier_handler in earlier_handlers.items():
            signal.signal(number, earlier_handler)


def _print_last(message: str) -> None:
    """Show the cursor again and print a line on stderr, if there still is a terminal."""
    with contextlib.suppress(OSError):
        # A progress display replaces sys.stderr, and may have been interrupted between hiding the cursor and noting it.
        terminal = sys.__stderr__
        if terminal is not None and terminal.isatty():
            print(_SHOW_CURSOR, end="", file=terminal, flush=True)
        print(message, file=sys.stderr, flush=True)
