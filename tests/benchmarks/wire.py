"""Our allreduce schedules and Gloo's own, side by side on loopback: python -m tests.benchmarks.wire [--real-time]

Four processes. In every round each method runs a few times, in turn: all ranks start at one agreed instant, and the
slowest one counts; "nothing" tells how late it starts. An iteration is clean if the host took no time from this machine
meanwhile; figures are of clean ones, or of all, marked *, where there are hardly any. With --real-time (root) the ranks
go before everything else that runs here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rankscope.collectives import ALGORITHMS, Executor, build
from rankscope.units import bytes_words

RANKS = 4
NATIVE, NOTHING = "Gloo's own", "nothing"
SEGMENT_BYTES = 2**19
ROUNDS = {10: 20, 12: 20, 14: 20, 16: 20, 18: 20, 20: 12, 22: 8, 24: 6, 26: 4}  # by the logarithm of the bytes
IN_A_ROW = 4  # iterations of a method in a round, the first of which does not count
LEAST_CLEAN = 4
MARGIN_S, AWAKE_S = 0.004, 0.001  # in which all ranks learn when to start, and how long before they are awake


def bar(num_bytes: int) -> float:
    """How many times as quick as Gloo's own the quickest of ours must be."""
    return 2.0 if num_bytes <= 2**18 else 1.0 if num_bytes <= 2**22 else 0.85


def stolen() -> int:
    """What the host has taken from this machine, in ticks of 10 ms; 0 where nobody tells."""
    try:
        return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    except (OSError, IndexError):
        return 0


def start_together() -> float:
    """Wait for an instant that all ranks agree on, and return it."""
    instant = torch.tensor([time.monotonic() + MARGIN_S], dtype=torch.float64)
    dist.all_reduce(instant, dist.ReduceOp.MAX)
    time.sleep(max(0.0, instant.item() - AWAKE_S - time.monotonic()))
    while time.monotonic() < instant.item():  # a core that sleeps takes its time to wake up
        os.sched_yield()
    return instant.item()


def options(name: str, num_bytes: int) -> dict[str, int]:
    """How many segments: small enough to be added up in cache, large enough to be worth a message."""
    parts = {"segmented_ring": RANKS, "double_binary_tree": 2}
    return {"num_segments": max(1, num_bytes // (parts[name] * SEGMENT_BYTES))} if name in parts else {}


def once(method: Callable[[torch.Tensor], object], tensor: torch.Tensor, adds: bool) -> list[float]:
    """The seconds that one iteration took this rank, and what the host took meanwhile."""
    tensor.fill_(1.0)
    before = stolen()
    start = start_together()
    method(tensor)
    took = time.monotonic() - start
    time.sleep(0.001 + took / 4)  # let the others finish before this rank takes a core for what comes next
    assert not adds or tensor[0] == tensor[-1] == RANKS
    return [took, float(stolen() - before)]


def measure(num_bytes: int, rounds: int) -> dict[str, list[tuple[float, bool]]]:
    """For each method the seconds of every iteration, and whether it was clean."""
    tensor = torch.zeros(num_bytes // 4)
    methods = {NATIVE: dist.all_reduce, NOTHING: lambda tensor: None}
    for name in ALGORITHMS["allreduce"]:
        schedule = build("allreduce", name, RANKS, **options(name, num_bytes))
        methods[name] = Executor(schedule, tensor).run
    seconds: dict[str, list[list[float]]] = {name: [] for name in methods}
    for turn in range(rounds):
        for name in [*methods][turn % len(methods) :] + [*methods][: turn % len(methods)]:
            runs = [once(methods[name], tensor, name != NOTHING) for _ in range(IN_A_ROW)]
            seconds[name] += runs[1:]  # the first warms up
    found = {}
    for name, mine in seconds.items():
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found[name] = [(took, steal == 0) for took, steal in slowest.tolist()]
    return found


def line(num_bytes: int, found: dict[str, list[tuple[float, bool]]]) -> None:
    clean = {name: [took for took, is_clean in all_of if is_clean] for name, all_of in found.items()}
    mark = "" if min(map(len, clean.values())) >= LEAST_CLEAN else "*"
    used = {name: [took for took, _ in found[name]] if mark else clean[name] for name in found}
    median = {name: statistics.median(times) for name, times in used.items()}
    least = {name: min(times) for name, times in used.items()}
    ours = [name for name in found if name not in (NATIVE, NOTHING)]
    best, quickest = min(ours, key=median.__getitem__), min(ours, key=least.__getitem__)
    ratio, least_ratio = median[NATIVE] / median[best], least[NATIVE] / least[quickest]
    verdict = "met" if ratio >= bar(num_bytes) else "missed"
    count = f"{sum(map(len, clean.values()))}/{sum(map(len, found.values()))}{mark}"
    print(
        f"{bytes_words(num_bytes):>8}{median[NATIVE] * 1e6:>11.0f}{median[best] * 1e6:>10.0f}  {best:<19}{ratio:>6.2f}"
        f"{least[NATIVE] * 1e6:>11.0f}{least[quickest] * 1e6:>10.0f}  {quickest:<19}{least_ratio:>6.2f}"
        f"{count:>10}   ≥ {bar(num_bytes):.2f} {verdict}",
        flush=True,
    )
    order = [*sorted(ours, key=median.__getitem__), NOTHING]
    print(" " * 8 + ", ".join(f"{name} {median[name] * 1e6:.0f}" for name in order), flush=True)


def be_rank(rank: int, port: int, real_time: bool) -> None:
    if real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    if rank == 0:
        print(f"{RANKS} ranks on loopback, {os.cpu_count()} cores, torch {torch.__version__}; µs, max over ranks")
        print(
            f"{'':>8}{'median':>11}{'ours':>10}{'':21}{'ratio':>6}{'least':>11}{'ours':>10}{'':21}{'ratio':>6}{'clean':>10}"
        )
    for power, rounds in ROUNDS.items():
        found = measure(num_bytes := 2**power, rounds)
        if rank == 0:
            line(num_bytes, found)
    dist.barrier()
    dist.destroy_process_group()


def main(real_time: bool) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    start = [sys.executable, "-m", "tests.benchmarks.wire", *(["--real-time"] if real_time else [])]
    ranks = [subprocess.Popen([*start, str(rank), str(store.port)]) for rank in range(RANKS)]
    if max([rank.wait() for rank in ranks]):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    told = [word for word in sys.argv[1:] if word != "--real-time"]
    if told:
        be_rank(int(told[0]), int(told[1]), "--real-time" in sys.argv)
    else:
        main("--real-time" in sys.argv)
