"""Where in its code a worker is: it writes its stack to a file at a signal, and its owner reads the file."""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

DUMP = signal.SIGUSR1
STOPPED = "is stopped (SIGSTOP)"
_STACKS_S = 0.5  # for workers to write their stacks
_LOOK_S = 0.02  # between two looks at how long the files are
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')  # as faulthandler writes it


def write_at_signal(path: Path) -> None:
    """In a worker whose files begin with that path: write the stack of the main thread at each `DUMP`."""
    descriptor = os.open(f"{path}-stack", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(DUMP, descriptor, all_threads=False)


def wait_for(paths: Sequence[Path]) -> None:
    """Wait until the stacks are written, that is until the files no longer grow."""
    deadline = time.monotonic() + _STACKS_S
    sizes: list[int] = []
    while time.monotonic() < deadline:
        sizes_before = sizes
        sizes = [len(_read(path)) for path in paths]
        if sizes == sizes_before and all(sizes):  # all have begun, and none has gone on
            return
        time.sleep(_LOOK_S)


def describe(path: Path) -> str:
    """Return what a stack says, innermost last, without the frames that started the worker."""
    lines = []
    innermost_first = _FRAME.findall(_read(path))
    for file, number, function in reversed(innermost_first):
        # The frames of the server's command and of this package have started the worker.
        if file == "<string>" or Path(file).parent == Path(__file__).parent:
            continue
        lines.append(f'  File "{file}", line {number}, in {function}')
        source = linecache.getline(file, int(number)).strip()
        if source:
            lines.append(f"    {source}")
    if not lines:
        return "does not say where it stands"
    return "stands at\n" + "\n".join(lines)


def _read(path: Path) -> str:
    try:
        return Path(f"{path}-stack").read_text(errors="replace")
    except OSError:
        return ""
