"""Watched training jobs whose store is stopped or killed: they train to the end as if nothing watched them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from statistics import quantiles

from ..diagnose import store_job
from ..diagnose.store_job import Result, Settings
from .pool import Verdict, run_in_threads

# A job that waits for its store does not end at all. This is for smaller delays of every step: the lower quartile, as
# other jobs load the machine, where medians of 20 steps were between 0.3 and 2.8 times as long, by chance.
MOST_TIMES = 3.0


def run(seed: int, numbers: Iterable[int], report: Callable[[Verdict], object] = id) -> list[Verdict]:
    return run_in_threads(_case, seed, numbers, 2, report)


def _case(seed: int, number: int) -> Verdict:
    chance = Random(f"{seed} stores {number}")
    num_steps = chance.choice([20, 60, 150])
    settings = Settings(
        num_ranks=chance.choice([1, 2, 2, 3]),
        num_steps=num_steps,
        every=chance.choice([2, 10, 50]),
        stop_at=chance.choice([-1, 0, num_steps // 2, num_steps - 1]),
        answer_s=chance.choice([0.1, 0.5, 10.0]),
        report=chance.choice(["print", "print", "print", "raise", "exit", "hang"]),
    )
    how = chance.choice(["STOP", "STOP", "STOP and CONT", "KILL"])
    begun = time.monotonic()
    result = store_job.run(settings, _striker(how, chance.uniform(0.05, 2.0)))
    wrong = judge(settings, result)
    return Verdict(number, f"{how} the store", wrong and f"{settings}: {wrong}", time.monotonic() - begun)


def _striker(how: str, pause_s: float) -> Callable[[int], None]:
    """Return what stops or kills the server of a store; where it is to go on, it does so after a pause."""

    def go_on(pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def strike(pid: int) -> None:
        os.kill(pid, signal.SIGKILL if how == "KILL" else signal.SIGSTOP)
        if "CONT" in how:
            threading.Timer(pause_s, go_on, [pid]).start()

    return strike


def judge(settings: Settings, result: Result) -> str:
    """Return what is wrong with a job, or nothing."""
    if result.exit_codes != [0] * settings.num_ranks:
        return f"exit codes {result.exit_codes}: {result.errors[-600:]!r}"
    if "Traceback" in result.errors:
        return f"shows a traceback: {result.errors[-600:]!r}"
    if len(result.lines) > 1:
        return f"says more than one line: {result.lines}"
    if len({said["digest"] for said in result.said}) != 1:
        return f"the ranks have different parameters: {[said['digest'] for said in result.said]}"
    for said in result.said:
        if len(said["watched_s"]) != settings.num_steps:
            return f"trained {len(said['watched_s'])} steps"
        unwatched_s = quantiles(said["unwatched_s"])[0]
        watched_s = quantiles(said["watched_s"])[0]
        if watched_s > MOST_TIMES * unwatched_s:
            return f"a step takes {watched_s:.4f} s watched and {unwatched_s:.4f} s unwatched"
    return ""
