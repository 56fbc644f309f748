"""The early end of a command, by Ctrl-C, SIGTERM or SIGHUP: a message on stderr, and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer


@contextlib.contextmanager
def interruptible(signals: bool, words: Callable[[], str]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, so that a hidden cursor is shown again.

    The exit code is 128 plus the signal's number: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, which a process gets
    when its terminal is closed. `words` returns the rest of the message on stderr. Without `signals`, SIGTERM and
    SIGHUP end the process at once, as usual. A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    received = signal.SIGINT

    def interrupt(number: int, frame: Any) -> None:
        """Note the signal, and do what Ctrl-C does."""
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt

    earlier_handlers = {}
    if signals:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                earlier_handlers[number] = signal.signal(number, interrupt)
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        # Once the terminal is closed, the progress display may fail to write to it, so SIGHUP may end the body by an
        # OSError. Without a signal, an OSError is an ordinary one.
        if received == signal.SIGINT and isinstance(error, OSError):
            raise
        with contextlib.suppress(OSError):  # there may be no terminal any more
            print(f"rankscope: interrupted; {words()}", file=sys.stderr, flush=True)
        raise typer.Exit(128 + received) from None
    finally:
        for number, earlier_handler in earlier_handlers.items():
            signal.signal(number, earlier_handler)
