"""Where in its code another process is: it writes its stack to a file at a signal."""

from __future__ import annotations

import linecache
import re
import signal

STACK = signal.SIGUSR1  # at which faulthandler writes it
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')  # as faulthandler writes it


def described(stack: str, caller: str) -> str:
    """Return what a stack says, innermost last, without the outer frames, which begin in the file `caller`."""
    if not stack:
        return "is stopped (SIGSTOP), or too busy to say where it stands"
    inner_frames = stack.partition(f'File "{caller}"')[0]  # the innermost comes first
    lines = ["stands at"]
    for file, number, name in reversed(_FRAME.findall(inner_frames)):
        lines.append(f'  File "{file}", line {number}, in {name}')
        lines.append(f"    {linecache.getline(file, int(number)).strip()}")
    return "\n".join(lines)
