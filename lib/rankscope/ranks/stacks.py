"""Where in its code another process is: it writes its stack to a file at a signal."""

from __future__ import annotations

import faulthandler
import itertools
import linecache
import re
import signal
from typing import Any

STACK = signal.SIGUSR1
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')  # as faulthandler writes it


def write_at_signal(file: Any) -> None:
    """Write the stack of the main thread to an open file at each `STACK`."""
    faulthandler.register(STACK, file, all_threads=False)


def described(stack: str, caller: str) -> str:
    """Return what a stack says, innermost last, without the outer frames, which begin in the file `caller`."""
    if not stack:
        return "is stopped (SIGSTOP), or too busy to say where it stands"
    innermost_first = itertools.takewhile(lambda frame: frame[0] != caller, _FRAME.findall(stack))
    lines = ["stands at"]
    for file, number, name in reversed(list(innermost_first)):
        lines.append(f'  File "{file}", line {number}, in {name}')
        lines.append(f"    {linecache.getline(file, int(number)).strip()}")
    return "\n".join(lines)
