"""Processes that are killed, stopped and interrupted: the others end in time, with one error, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

from rankscope.box import Profile
from rankscope.common import folders

from ..foreign_folders import ForeignFolders
from ..processes import alive, hears_hangups
from .pool import Verdict, left_behind, run_in_threads

ROOT = Path(__file__).parents[2]
END_S = 90.0  # for a job to end after a signal; its own timeouts are 10 s, and four of them run at once
GONE_S = 20.0  # for what it had started, after that
HOW = ["KILL"] * 13 + ["STOP", "STOP and CONT"] + ["INT"] * 2 + ["TERM"] * 3 + ["HUP"] * 2  # in turn
PROLOGUE = """
import os, sys, time
from pathlib import Path
import numpy  # an interrupt inside this import is an ImportError of numpy's, whatever we do
import torch  # an interrupt inside its `_c10d_init` or `_multiprocessing_init` aborts the process (pybind11, 2.13)
from rankscope.common import folders
from rankscope.ranks.errors import RankError, WorkerError
folders.memory = lambda: Path(os.environ["CAMPAIGN_MEMORY"])
def slow(item):
    time.sleep(0.02)
    return item
def ranks():
    import torch
    for _ in range(80):
        torch.distributed.all_reduce(torch.ones(1000))
        time.sleep(0.02)
def job():
    print("begun", flush=True)
"""
EPILOGUE = """
try:
    code = job()
except KeyboardInterrupt:
    sys.exit(130)
except (RuntimeError, ValueError, OSError) as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    sys.exit(2)
sys.exit(code)
"""
PROFILE = "profile -o machine.json --num-ranks 2 --sizes 1KiB:16KiB --algorithms native,ring"
JOBS = {  # each takes some seconds
    "launch": """
    from rankscope.ranks import launch
    launch(ranks, 3, timeout_s=10)
    """,
    "pipeline.run": """
    from rankscope.pipeline import Pipeline, Stage, run
    stages = [Stage("a", fn=slow, num_workers=2, processes=True), Stage("b", fn=slow, processes=True)]
    run(Pipeline(stages), range(120), timeout_s=10)
    """,
    "measure": """
    from rankscope.box.measuring import plan, run
    plan.LAUNCH_S = 0.0  # so that there are many launches
    few = plan.Protocol(iterations=3, budget_s=0.05, sizes=[1024, 4096], algorithms=["native", "ring"])
    run.measure("machine.json", few, num_ranks=2, report=lambda progress: print(progress.num_done, "done", flush=True))
    """,
    "rankscope profile": f"""
    from rankscope.cli import main
    return main({PROFILE.split()})
    """,
}


def marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            if f"CAMPAIGN={mark}".encode() in environment and alive(int(folder.name)):
                pids.append(int(folder.name))
    return pids


def has_begun(pid: int, owner: int) -> bool:
    """Whether a process that the owner has started executes code of ours, and not yet that of Python's own start.

    A server ignores SIGINT before it does anything else, and all others are forked from it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return False
    fields = dict(re.findall(r"^(PPid|SigIgn):\s*(\w+)$", status, re.MULTILINE))
    ignores_interrupts = bool(int(fields["SigIgn"], 16) & 1 << signal.SIGINT - 1)
    return ignores_interrupts or int(fields["PPid"]) != owner


def run(seed: int, numbers: Iterable[int], report: Callable[[Verdict], object] = id) -> list[Verdict]:
    return run_in_threads(_case, seed, numbers, 3, report)


def _case(seed: int, number: int) -> Verdict:
    chance, how = Random(f"{seed} kills {number}"), HOW[number % len(HOW)]
    job = list(JOBS)[(number + 3 * (number // len(HOW))) % len(JOBS)]
    shm = Path("/dev/shm")
    for attempt in range(4):
        with (
            tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryDirectory(prefix="campaign-", dir=shm if shm.is_dir() else None) as memory,
        ):
            begun = time.monotonic()
            planted = ForeignFolders(Path(folder), Path(memory))
            wrong, hit = _signalled(job, how, chance, 0.5**attempt, Path(folder), Path(memory), planted)
            changed = planted.changed()
            if changed:
                wrong = f"changed folders of others: {changed[:3]}"
            planted.release()
            if hit or wrong:
                return Verdict(number, f"{how}, {job}", wrong, time.monotonic() - begun)
    return Verdict(number, f"{how}, {job}, too late", "no signal came in time")


def _signalled(
    job: str,
    how: str,
    chance: Random,
    share: float,
    folder: Path,
    memory: Path,
    planted: ForeignFolders,
) -> tuple[str, bool]:
    """Run a job, send a signal to one of its processes; return what is wrong afterwards, and whether it was hit."""
    mark, out, err = str(memory), folder / "out", folder / "err"
    environment = {"CAMPAIGN": mark, "CAMPAIGN_MEMORY": mark, "PYTHONPATH": str(ROOT / "lib"), "TMPDIR": str(folder)}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        owner = subprocess.Popen(
            [sys.executable, "-c", f"{PROLOGUE}{JOBS[job]}{EPILOGUE}"],
            cwd=folder,
            env=os.environ | environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=hears_hangups,
        )
    while b"begun" not in out.read_bytes() and owner.poll() is None:  # before, a signal would only meet Python's start
        time.sleep(0.02)
    time.sleep(share * chance.choice([0.3, 1.5, 4.0]) * chance.random())
    others = [pid for pid in marked(mark) if pid != owner.pid and (how != "INT" or has_begun(pid, owner.pid))]
    victim = chance.choice(others) if others and chance.random() < 0.6 else owner.pid
    whom = "its owner" if victim == owner.pid else f"one of its {len(others)} others"
    num_done = _num_done(out, err)
    hit = owner.poll() is None
    with suppress(ProcessLookupError):
        os.kill(victim, getattr(signal, f"SIG{how.split()[0]}"))
    if "STOP" in how and (how != "STOP" or victim == owner.pid or "profile" in job or job == "measure"):
        time.sleep(chance.uniform(0.2, 2.0))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    wrong = _ended(owner, mark)
    said = f"{out.read_text(errors='replace')[-300:]!r} {err.read_text(errors='replace')[-600:]!r}"
    of_signals = {"KILL": (-9,), "INT": (130, -2), "TERM": (143, -15), "HUP": (129, -1)}
    if not wrong and owner.returncode not in (0, 2, *of_signals.get(how, ())):
        wrong = f"exit {owner.returncode}: {said}"
    if not wrong and b"Traceback" in err.read_bytes():
        wrong = f"shows a traceback: {said}"
    if victim == owner.pid:  # the folders of one that was killed are deleted by the next process that needs one
        folders._sweep(folder)
        folders._sweep(memory)
        for half in folder.glob("**/*.tmp") if how == "KILL" else ():  # of a file that was being written
            half.unlink()
    left = [path.name for place in (folder, memory) for path in planted.others(place) if left_behind(path)]
    if not wrong and left:
        wrong = f"left {left[:3]}"
    if not wrong and num_done:
        wrong = _lost(folder / "machine.json", max(num_done, _num_done(out, err)))
    return wrong and f"{whom}: {wrong}", hit


def _ended(owner: subprocess.Popen[bytes], mark: str) -> str:
    """Wait until all processes have ended; kill those that have not in time, and say which."""
    deadline = time.monotonic() + END_S
    while owner.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    wrong = "" if owner.poll() is not None else f"has not ended after {END_S:.0f} s"
    deadline = time.monotonic() + GONE_S
    while not wrong and (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left := marked(mark):
        names = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:60] for pid in left]
        wrong = wrong or f"processes are left after {GONE_S:.0f} s: {names}"
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    owner.wait()
    return wrong


def _num_done(out: Path, err: Path) -> int:
    """The number of points that were said to be finished."""
    said = out.read_text() + err.read_text(errors="replace")
    return max(map(int, re.findall(r"^(\d+)(?= done$| of \d+ points)", said, re.MULTILINE)), default=0)


def _lost(path: Path, num_done: int) -> str:
    """What is wrong with a profile that had so many points."""
    try:
        num_points = len(Profile.load(path).points)
    except (ValueError, OSError) as error:
        return f"the profile is not whole: {error}"
    return "" if num_points >= num_done else f"of {num_done} finished points {num_points} are left"
