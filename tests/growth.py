"""What a call costs: processor time and memory, measured in a process of its own that is forked for each call.

with Meter() as meter:
    meter.cost("hang", folder)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MOST_RATIO = 6.0  # four times the input may cost less than this; quadratic work takes 16 times as long
QUICK_S, SMALL_BYTES = 0.1, 16 << 20  # what costs less than this counts as this: a ratio of less says nothing
REPEATS = 4
MOST_S, MOST_BYTES = 20, 6 << 30  # of a call, which is ended there

ENDED = "ended by signal"


class Cost(NamedTuple):
    seconds: float  # of a processor
    num_bytes: int  # by which the resident memory grew at most
    said: str  # the error that was raised, "" for none


class Meter:
    """Measures calls, each in a process of its own, which begins with everything imported."""

    def __enter__(self) -> Meter:
        root = str(Path(__file__).parents[1])
        command = [sys.executable, "-m", __name__]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def cost(self, action: str, path: Path) -> Cost:
        """Return what it costs to do this, one of `ACTIONS`, with a path."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([action, str(path)]), file=self._server.stdin, flush=True)
        return Cost(*json.loads(self._server.stdout.readline()))

    def growth_problem(self, action: str, small: Path, large: Path) -> str:
        """Say what is wrong if something four times as large costs `MOST_RATIO` times as much time or memory."""
        for _ in range(REPEATS):  # others may disturb a measurement
            more, less = self.cost(action, large), self.cost(action, small)
            slow = more.seconds > MOST_RATIO * max(less.seconds, QUICK_S)
            big = more.num_bytes > MOST_RATIO * max(less.num_bytes, SMALL_BYTES)
            if not slow and not big and not more.said.startswith(ENDED):
                return ""
        return f"four times the input: {less} became {more}"


def _hang(path: str) -> None:
    from rankscope.diagnose import explain_hang, read_dumps
    from rankscope.diagnose.figures.jobs import hang_page

    hang = explain_hang(read_dumps(path))
    hang_page("job", hang)


def _traces(path: str) -> None:
    from rankscope.cli import main

    os.chdir(path)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    main(["diagnose", ".", "-o", "page.html", "--perfetto", "all.json"])


def _trace(path: str) -> None:
    from rankscope.diagnose import diagnose, read_traces

    diagnose(read_traces(path))


def _timeline(path: str) -> None:
    from rankscope.timeline import Timeline

    warnings.simplefilter("ignore")
    Timeline.from_chrome_trace(path)


def _log(path: str) -> None:
    from rankscope.box import read_log

    read_log(path)


ACTIONS: dict[str, Callable[[str], None]] = {
    "hang": _hang,
    "trace": _trace,
    "traces": _traces,
    "timeline": _timeline,
    "log": _log,
}


def _child(action: str, path: str, pipe: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    said = ""
    try:
        ACTIONS[action](path)
    except (ValueError, OSError, MemoryError) as error:
        said = f"{type(error).__name__}: {error}"[:300]
    os.write(pipe, said.encode())


def _cost(action: str, path: str) -> Cost:
    own, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        os.write(theirs, f"{resident}\n".encode())
        try:
            _child(action, path, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    with open(own, errors="replace") as answer:
        resident, _, said = answer.read().partition("\n")
    _, status, used = os.wait4(pid, 0)
    if status:
        said = f"{ENDED} {os.WTERMSIG(status)}"
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 - int(resident), said)


def main() -> None:
    import numpy  # noqa: F401

    import rankscope.box
    import rankscope.box.tables
    import rankscope.diagnose
    import rankscope.diagnose.figures.jobs

    modules: Any = (rankscope.diagnose, rankscope.box)
    for module in modules:
        for name in module.__all__:
            getattr(module, name)
    for line in sys.stdin:
        print(json.dumps(_cost(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
