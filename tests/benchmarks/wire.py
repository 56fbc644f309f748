"""Our allreduce schedules, Gloo's own and Open MPI's, side by side: python -m tests.benchmarks.wire [OPTION]

Four ranks on loopback, timed as `rankscope profile` does it: methods take turns, all ranks start at one agreed instant,
the slowest one counts. An iteration is clean if the host took no time from this machine meanwhile; figures are of clean
ones, or of all, marked *, where there are hardly any. Open MPI, where it is installed, has its turn after each size,
with its algorithm forced.

With --real-time (root) our ranks go before everything else that runs here. With --emulated (root) it is 1 MiB over
100 Mbit/s, with and without a latency.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rankscope.box import Protocol
from rankscope.box.measuring.plan import collective_keys
from rankscope.box.profile import NATIVE, Point
from rankscope.common.samples import LEAST_CLEAN
from rankscope.common.units import bytes_words
from rankscope.ranks import launch
from tests.tools.emulate import emulated

from ..collectives import openmpi
from . import _wire_openmpi

RANKS, TIMEOUT_S = 4, 300.0
SIZES = [2**power for power in range(10, 27, 2)]
SLOW_BYTES, BYTES_PER_S, LATENCIES_S, SLOW_MARGIN_S = 2**20, 12.5e6, (0.005, 0.0), 0.1
SLOW_BAR = 0.75  # of Open MPI's time with the same algorithm
Launch = Callable[..., list[Any]]


def bar(num_bytes: int) -> float:
    """How many times as quick as Gloo's own the quickest of ours must be."""
    return 2.0 if num_bytes <= 2**18 else 1.0 if num_bytes <= 2**22 else 0.85


def be_rank(num_bytes: int, nodes: list[int], names: list[str] | None, protocol: Protocol) -> list[Point]:
    from rankscope.box.measuring.rank import measure_keys

    sizes = [nodes.count(node) for node in dict.fromkeys(nodes)]
    return measure_keys(collective_keys("allreduce", num_bytes, sizes, names), nodes, "cpu", protocol)


def measured(start: Launch, *args: Any) -> dict[str, Point]:
    """A point of each method."""
    points = start(be_rank, args=args, timeout_s=TIMEOUT_S)[0]
    return {str(point.options["algorithm"]): point for point in points}


def theirs(program: Path | None, points: dict[str, Point], run: Callable[..., Any]) -> dict[str, Point]:
    """Open MPI's points, as many iterations as ours have; none where it is not installed."""
    if program is None:
        return {}
    found = run(program, iterations=max(len(point.seconds) for point in points.values()))
    return {name: Point("allreduce", 1, *zip(*times, strict=True)) for name, times in found.items()}


def counted(points: dict[str, Point]) -> str:
    few = any(point.num_clean < LEAST_CLEAN for point in points.values())
    clean, many = (sum(map(f, points.values())) for f in (lambda p: p.num_clean, lambda p: len(p.seconds)))
    return f"{clean}/{many}{'*' * few}"


def line(num_bytes: int, points: dict[str, Point], peer: dict[str, Point]) -> None:
    native, ours = points[NATIVE], {name: point for name, point in points.items() if name != NATIVE}
    order = sorted(ours, key=lambda name: ours[name].median_s)
    ratio = native.median_s / ours[order[0]].median_s
    least = min(native.used_s) / min(min(point.used_s) for point in ours.values())
    print(
        f"{bytes_words(num_bytes):>8}{native.median_s * 1e6:>11.0f}{ours[order[0]].median_s * 1e6:>10.0f}  "
        f"{order[0]:<19}{ratio:>6.2f}{least:>8.2f}{counted(points):>10}   "
        f"≥ {bar(num_bytes):.2f} {'met' if ratio >= bar(num_bytes) else 'missed'}"
    )
    print(" " * 8 + ", ".join(f"{name} {ours[name].median_s * 1e6:.0f}" for name in order))
    pairs = (f"{n} {p.median_s * 1e6:.0f} (ours {ours[n].median_s * 1e6:.0f})" for n, p in peer.items())
    if peer:
        print(f"{'':8}Open MPI: {', '.join(pairs)}, clean {counted(peer)}")
    sys.stdout.flush()


def on_loopback(program: Path | None, real_time: bool) -> None:
    def start(fn: Callable[..., Any], args: Any, timeout_s: float) -> list[Any]:
        return launch(fn, RANKS, args, timeout_s=timeout_s)

    print(f"{RANKS} ranks on loopback; µs, max over ranks, medians; the second ratio is of the least times")
    print(f"{'':>8}{'native':>11}{'ours':>10}{'':21}{'ratio':>6}{'least':>8}{'clean':>10}   bar")
    protocol = Protocol(real_time=real_time)
    for size in SIZES:
        points = measured(start, size, [0] * RANKS, None, protocol)
        line(size, points, theirs(program, points, partial(_wire_openmpi.on_loopback, num_ranks=RANKS, num_bytes=size)))


def on_emulated(program: Path | None, latency_s: float) -> None:
    names = [openmpi.OURS[name] for name in _wire_openmpi.NAMES]
    with emulated(RANKS, BYTES_PER_S, latency_s) as network:
        points = measured(network.launch, SLOW_BYTES, list(range(RANKS)), [NATIVE, *names], Protocol(iterations=12))
        run = partial(_wire_openmpi.on_network, network=network, num_bytes=SLOW_BYTES, margin_s=SLOW_MARGIN_S)
        peer = theirs(program, points, run)
        print(f"{network}, {RANKS} hosts, {bytes_words(SLOW_BYTES)}; ms, max over ranks, medians")
    print(f"{'':<22}{'ours':>9}{'Open MPI':>10}{'ratio':>7}     clean: ours {counted(points)}, theirs {counted(peer)}")
    for name, point in points.items():
        mine = f"{name:<22}{point.median_s * 1e3:>9.1f}"
        if name in peer:
            ratio = point.median_s / peer[name].median_s
            verdict = "met" if ratio <= SLOW_BAR else "missed"
            mine += f"{peer[name].median_s * 1e3:>10.1f}{ratio:>7.2f}   ≤ {SLOW_BAR} {verdict}"
        print(mine, flush=True)


@contextmanager
def open_mpi() -> Iterator[Path | None]:
    """Its program, or None where it is not installed, which is said."""
    with ExitStack() as stack:
        if openmpi.missing():
            print(f"without Open MPI: {openmpi.missing()}")
        yield None if openmpi.missing() else stack.enter_context(_wire_openmpi.program())


if __name__ == "__main__":
    with open_mpi() as found:
        if "--emulated" in sys.argv:
            for seconds in LATENCIES_S:
                on_emulated(found, seconds)
        else:
            on_loopback(found, "--real-time" in sys.argv)
