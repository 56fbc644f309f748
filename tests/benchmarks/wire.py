"""Our allreduce schedules, Gloo's own and Open MPI's, side by side: python -m tests.benchmarks.wire [OPTION]

Four processes, on loopback. In every round each method runs a few times, in turn: all ranks start at one agreed
instant, and the slowest one counts; "nothing" tells how late it starts. An iteration is clean if the host took no time
from this machine meanwhile; figures are of clean ones, or of all, marked *, where there are hardly any. Open MPI, where
it is installed, has its turn after each size, with its algorithm forced.

With --real-time (root) the ranks go before everything else that runs here. With --emulated (root) it is 1 MiB over
100 Mbit/s, with and without a latency.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rankscope.collectives import ALGORITHMS, Executor, build
from rankscope.machine.emulate import emulated
from rankscope.units import bytes_words

from ..collectives import openmpi
from . import _wire_openmpi

Times = dict[str, list[tuple[float, bool]]]  # of each method: the seconds of iterations, and whether clean

RANKS = 4
NATIVE, NOTHING = "Gloo's own", "nothing"
SEGMENT_BYTES = 2**19
ROUNDS = {10: 20, 12: 20, 14: 20, 16: 20, 18: 20, 20: 12, 22: 8, 24: 6, 26: 4}  # by the logarithm of the bytes
IN_A_ROW = 4  # iterations of a method in a round, the first of which does not count
LEAST_CLEAN = 4
EMULATED_BYTES, EMULATED_ROUNDS, BYTES_PER_S, LATENCIES_S = 2**20, 4, 12.5e6, (0.005, 0.0)
EMULATED_BAR = 0.75  # of Open MPI's time with the same algorithm
MARGIN_S, EMULATED_MARGIN_S, AWAKE_S = (
    0.004,
    0.1,
    0.001,
)  # in which all ranks learn when to start, and how long before they are awake


def bar(num_bytes: int) -> float:
    """How many times as quick as Gloo's own the quickest of ours must be."""
    return 2.0 if num_bytes <= 2**18 else 1.0 if num_bytes <= 2**22 else 0.85


def stolen() -> int:
    """What the host has taken from this machine, in ticks of 10 ms; 0 where nobody tells."""
    try:
        return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    except (OSError, IndexError):
        return 0


def start_together(margin_s: float) -> float:
    """Wait for an instant that all ranks agree on, and return it."""
    instant = torch.tensor([time.monotonic() + margin_s], dtype=torch.float64)
    dist.all_reduce(instant, dist.ReduceOp.MAX)
    time.sleep(max(0.0, instant.item() - AWAKE_S - time.monotonic()))
    while time.monotonic() < instant.item():  # a core that sleeps takes its time to wake up
        os.sched_yield()
    return instant.item()


def options(name: str, num_bytes: int) -> dict[str, int]:
    """How many segments: small enough to be added up in cache, large enough to be worth a message."""
    parts = {"segmented_ring": RANKS, "double_binary_tree": 2}
    return {"num_segments": max(1, num_bytes // (parts[name] * SEGMENT_BYTES))} if name in parts else {}


def once(method: Callable[[torch.Tensor], object], tensor: torch.Tensor, adds: bool, margin_s: float) -> list[float]:
    """The seconds that one iteration took this rank, and what the host took meanwhile."""
    tensor.fill_(1.0)
    before = stolen()
    start = start_together(margin_s)
    method(tensor)
    took = time.monotonic() - start
    time.sleep(0.001 + took / 4)  # let the others finish before this rank takes a core for what comes next
    assert not adds or tensor[0] == tensor[-1] == RANKS
    return [took, float(stolen() - before)]


def measure(
    num_bytes: int, rounds: int, names: Iterable[str] = tuple(ALGORITHMS["allreduce"]), margin_s: float = MARGIN_S
) -> Times:
    """For each method the seconds of every iteration, and whether it was clean."""
    tensor = torch.zeros(num_bytes // 4)
    methods = {NATIVE: dist.all_reduce, NOTHING: lambda tensor: None}
    for name in names:
        schedule = build("allreduce", name, RANKS, **options(name, num_bytes))
        methods[name] = Executor(schedule, tensor).run
    seconds: dict[str, list[list[float]]] = {name: [] for name in methods}
    for turn in range(rounds):
        for name in [*methods][turn % len(methods) :] + [*methods][: turn % len(methods)]:
            runs = [once(methods[name], tensor, name != NOTHING, margin_s) for _ in range(IN_A_ROW)]
            seconds[name] += runs[1:]  # the first warms up
    found = {}
    for name, mine in seconds.items():
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found[name] = [(took, steal == 0) for took, steal in slowest.tolist()]
    return found


def counted(found: Times) -> tuple[dict[str, list[float]], str]:
    """The seconds that count, and how many of all are clean."""
    clean = {name: [took for took, is_clean in all_of if is_clean] for name, all_of in found.items()}
    mark = "" if min(map(len, clean.values())) >= LEAST_CLEAN else "*"
    used = {name: [took for took, _ in found[name]] if mark else clean[name] for name in found}
    return used, f"{sum(map(len, clean.values()))}/{sum(map(len, found.values()))}{mark}"


def line(num_bytes: int, found: Times) -> None:
    used, count = counted(found)
    median = {name: statistics.median(times) for name, times in used.items()}
    least = {name: min(times) for name, times in used.items()}
    ours = [name for name in found if name not in (NATIVE, NOTHING)]
    best, quickest = min(ours, key=median.__getitem__), min(ours, key=least.__getitem__)
    ratio, least_ratio = median[NATIVE] / median[best], least[NATIVE] / least[quickest]
    verdict = "met" if ratio >= bar(num_bytes) else "missed"
    print(
        f"{bytes_words(num_bytes):>8}{median[NATIVE] * 1e6:>11.0f}{median[best] * 1e6:>10.0f}  {best:<19}{ratio:>6.2f}"
        f"{least[NATIVE] * 1e6:>11.0f}{least[quickest] * 1e6:>10.0f}  {quickest:<19}{least_ratio:>6.2f}"
        f"{count:>10}   ≥ {bar(num_bytes):.2f} {verdict}",
        flush=True,
    )
    order = [*sorted(ours, key=median.__getitem__), NOTHING]
    print(" " * 8 + ", ".join(f"{name} {median[name] * 1e6:.0f}" for name in order), flush=True)


def peer_line(ours: Times, theirs: Times) -> None:
    mine, (used, count) = counted(ours)[0], counted(theirs)
    each = (
        f"{name} {statistics.median(used[name]) * 1e6:.0f} (ours {statistics.median(mine[name]) * 1e6:.0f})"
        for name in theirs
    )
    print(f"{'':8}Open MPI: {', '.join(each)}, clean {count}", flush=True)


def be_rank(rank: int, port: int, real_time: bool) -> None:
    if real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=300))
    if rank == 0:
        print(f"{RANKS} ranks on loopback, {os.cpu_count()} cores, torch {torch.__version__}; µs, max over ranks")
        print(
            f"{'':>8}{'median':>11}{'ours':>10}{'':21}{'ratio':>6}{'least':>11}{'ours':>10}{'':21}{'ratio':>6}{'clean':>10}"
        )
    with ExitStack() as stack:
        program = stack.enter_context(_wire_openmpi.program()) if rank == 0 and not openmpi.missing() else None
        for power, rounds in ROUNDS.items():
            found = measure(num_bytes := 2**power, rounds)
            if rank == 0:
                line(num_bytes, found)
            if program:
                peer_line(found, _wire_openmpi.on_loopback(program, RANKS, num_bytes, rounds * (IN_A_ROW - 1)))
            dist.barrier()  # the others sleep meanwhile
    dist.destroy_process_group()


def on_emulated(latency_s: float, program: Path | None) -> None:
    """Ours and Open MPI's on a network of 100 Mbit/s."""
    names = [openmpi.OURS[name] for name in _wire_openmpi.NAMES]
    with emulated(RANKS, BYTES_PER_S, latency_s) as network:
        print(f"{network}, {RANKS} hosts, {bytes_words(EMULATED_BYTES)}; ms, max over ranks, median")
        args = (EMULATED_BYTES, EMULATED_ROUNDS, names, EMULATED_MARGIN_S)
        ours, count = counted(network.launch(measure, args, timeout_s=300)[0])
        theirs: dict[str, list[float]] = {}
        their_count = openmpi.missing()
        if program:
            rounds = EMULATED_ROUNDS * (IN_A_ROW - 1)
            found = _wire_openmpi.on_network(program, network, EMULATED_BYTES, rounds, EMULATED_MARGIN_S)
            theirs, their_count = counted(found)
    print(f"{'':<22}{'ours':>9}{'Open MPI':>10}{'ratio':>7}     clean: ours {count}, Open MPI {their_count}")
    for name in [*names, NATIVE]:
        mine, other = statistics.median(ours[name]), statistics.median(theirs.get(name, [float("nan")]))
        verdict = f"   ≤ {EMULATED_BAR} {'met' if mine <= EMULATED_BAR * other else 'missed'}" if name in theirs else ""
        print(f"{name:<22}{mine * 1e3:>9.1f}{other * 1e3:>10.1f}{mine / other:>7.2f}{verdict}", flush=True)


def main_emulated() -> None:
    with ExitStack() as stack:
        program = None if openmpi.missing() else stack.enter_context(_wire_openmpi.program())
        for latency_s in LATENCIES_S:
            on_emulated(latency_s, program)


def main(real_time: bool) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if openmpi.missing():
        print(f"without Open MPI: {openmpi.missing()}")
    start = [sys.executable, "-m", "tests.benchmarks.wire", *(["--real-time"] if real_time else [])]
    ranks = [subprocess.Popen([*start, str(rank), str(store.port)]) for rank in range(RANKS)]
    if max([rank.wait() for rank in ranks]):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    if sys.argv[1:] == ["--emulated"]:
        sys.exit(main_emulated())
    told = [word for word in sys.argv[1:] if word != "--real-time"]
    if told:
        be_rank(int(told[0]), int(told[1]), "--real-time" in sys.argv)
    else:
        main("--real-time" in sys.argv)
