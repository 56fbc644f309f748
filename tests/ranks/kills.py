"""Kill and stop owners, servers, supervisors and ranks at random times: python -m tests.ranks.kills [NUMBER] [SEED]

An owner launches again and again. After each signal it must report or end in bounded time, and if it goes on, a later
launch must work. Once an owner has ended, all processes that come from it must end, too.
"""

from __future__ import annotations

import argparse
import collections
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.processes import NOT_HANGING_S, alive, children

MOST_PROCESSES = 6  # of an owner that has one launch of three ranks
ROLES = ("owner", "server", "supervisor", "rank")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT)
RIGHT = "[0, 1, 2]"
OWNER = """
from rankscope.ranks import launch
from tests.ranks.functions import meet
while True:
    try:
        print(launch(meet, 3, timeout_s=3.0), flush=True)
    except (KeyboardInterrupt, Exception) as error:
        print(type(error).__name__, str(error).partition("\\n")[0], flush=True)
"""


class Owner:
    """A process that launches again and again; `lines` are what it says of each."""

    def __init__(self) -> None:
        self._mark = f"KILLS={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self._mark.partition("=")
        path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, name: value}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.strip())
        self.lines.put("")  # it has ended

    def in_role(self, role: str) -> list[int]:
        """The processes that have this role now."""
        found = [self.process.pid]
        for _ in range(ROLES.index(role)):
            found = [child for pid in found for child in children(pid)]
        return found

    def all(self) -> list[int]:
        """All processes that come from this owner: they have its environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark.encode() in (path / "environ").read_bytes() and alive(int(path.name)):
                    found.append(int(path.name))
        return found


class Round(NamedTuple):
    """What was killed, how, and the seconds until the owner has ended or reported, and until nothing was left."""

    role: str
    signal: str
    ended: bool
    report_s: float
    gone_s: float


def one_round(owner: Owner, draw: random.Random, most_delay_s: float) -> Round | None:
    """Send a random signal after a random time. None if no process had the role. Raises AssertionError for a fault."""
    time.sleep(draw.random() * most_delay_s)
    role = draw.choice(ROLES)
    number = draw.choice(SIGNALS)
    pids = owner.in_role(role)
    if not pids:
        return None
    while not owner.lines.empty():
        owner.lines.get()
    begin_s = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(draw.choice(pids), number)
    if role == "owner" and number == signal.SIGSTOP:
        time.sleep(0.5)
        owner.process.send_signal(signal.SIGCONT)
    what = f"{number.name} to the {role}"
    report_s = 0.0
    line = "nothing"
    while line not in (RIGHT, ""):
        try:
            line = owner.lines.get(timeout=NOT_HANGING_S)
        except queue.Empty:
            raise AssertionError(f"no report after {what}") from None
        report_s = report_s or time.monotonic() - begin_s
    if line == RIGHT:
        gone_s = seconds_until(lambda: len(owner.all()) <= MOST_PROCESSES, what)
    else:
        owner.process.wait()
        gone_s = seconds_until(lambda: not owner.all(), what)
    return Round(role, number.name, line == "", report_s, gone_s)


def seconds_until(true: object, what: str, limit_s: float = NOT_HANGING_S) -> float:
    begin_s = time.monotonic()
    while not true():  # type: ignore[operator]
        assert time.monotonic() - begin_s < limit_s, f"processes are left after {what}"
        time.sleep(0.01)
    return time.monotonic() - begin_s


def kills(number: int, seed: int) -> list[Round]:
    """Do that many rounds, and return them. Raises AssertionError for a fault."""
    draw = random.Random(seed)
    rounds: list[Round] = []
    owner = Owner()
    is_new = True
    try:
        while len(rounds) < number:
            done = one_round(owner, draw, 5.0 if is_new else 0.8)
            is_new = False
            if done is None:
                continue
            rounds.append(done)
            if done.ended:
                owner = Owner()
                is_new = True
        owner.process.kill()
        seconds_until(lambda: not owner.all(), "the end")
    finally:
        owner.process.kill()
        owner.process.wait()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, nargs="?", default=200)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    options = parser.parse_args()
    rounds = kills(options.number, options.seed)
    for (role, name), count in sorted(collections.Counter((each.role, each.signal) for each in rounds).items()):
        print(f"{count:4} {name} to the {role}")
    print(f"{len(rounds)} signals, {sum(each.ended for each in rounds)} owners ended")
    print(f"slowest report {max(each.report_s for each in rounds):.2f} s")
    print(f"slowest end of all processes of an owner {max(each.gone_s for each in rounds if each.ended):.2f} s")


if __name__ == "__main__":
    main()
