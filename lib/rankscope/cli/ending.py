"""How a command ends early: by Ctrl-C, SIGTERM or SIGHUP, with a message on stderr and nothing left behind."""

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
def interruptible(signals: bool = True, words: Callable[[], str] = str) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, so that a hidden cursor is shown again.

    The exit code is 128 and the signal's number: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, which a process gets
    when its terminal is closed. `words` are added to the message on stderr. Without `signals`, these two end the
    process at once, as usual. One that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    received: int | None = None

    def interrupt(number: int, frame: Any) -> None:
        nonlocal received
        received = number
        handler = signal.getsignal(signal.SIGINT)  # it may be delayed for a moment
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    handles = signals and threading.current_thread() is threading.main_thread()
    caught = [one for one in _SIGNALS if handles and signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, interrupt) for one in caught}
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        # a terminal that is gone cannot be written to: what shows the progress may say so before the signal does
        if received is None and isinstance(error, OSError):
            raise
        _say("; ".join(filter(None, ["rankscope: interrupted", words()])))
        raise typer.Exit(128 + (received or signal.SIGINT)) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _say(words: str) -> None:
    """Show the cursor again and print a line on stderr, where there still is a terminal."""
    with contextlib.suppress(OSError):
        # whatever has hidden the cursor may have been just about to know of it, with sys.stderr replaced by its own
        terminal = sys.__stderr__
        if terminal is not None and terminal.isatty():
            print(_SHOW_CURSOR, end="", file=terminal, flush=True)
        print(words, file=sys.stderr, flush=True)
