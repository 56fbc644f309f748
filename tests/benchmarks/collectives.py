"""Schedules simulated and verified at scale, SimGrid beside in the same run: python -m tests.benchmarks.collectives

Each line runs in a process of its own, which also tells its peak memory. SimGrid is left out where it is not installed.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate, verify

from ..collectives.simgrid import MISSING, build_peer, run_peer

INTRA, INTER, GAMMA = Link(2e-6, 300e9), Link(6e-6, 50e9), 1e-12
NUM_BYTES = 2**30
# a name, an algorithm and its options, how the links differ, and the bar in seconds
LARGE = [
    ("ring, N=1024, nodes of 8, one slow link", "ring", 1024, {}, "slow", "< 0.2 s"),
    ("ring, N=4096, nodes of 8, one slow link", "ring", 4096, {}, "slow", "seconds"),
    ("ring, N=4096, every link different", "ring", 4096, {}, "random", "seconds"),
    ("2-D torus 128×128, one slow link", "torus_2d", 16384, {"shape": (128, 128)}, "slow", "seconds"),
    ("2-D torus 128×128, every link different", "torus_2d", 16384, {"shape": (128, 128)}, "random", "seconds"),
    ("2-D torus 2×8192, one slow link", "torus_2d", 16384, {"shape": (2, 8192)}, "slow", "seconds"),
    ("3-D torus 16×32×32, one slow link", "torus_3d", 16384, {"shape": (16, 32, 32)}, "slow", "seconds"),
]


def cluster_of(num_ranks: int, links: str) -> Cluster:
    """Nodes of eight, with one slow link, or a link of its own from every rank to the next."""
    if links == "slow":
        return Cluster(num_ranks // 8, 8, INTRA, INTER, GAMMA, overrides={(3, 4): Link(7e-6, 40e9)})
    rng = np.random.default_rng(0)
    pairs = ((r, (r + 1) % num_ranks) for r in range(num_ranks))
    own = {pair: Link(a * 1e-6, b * 1e9) for pair, a, b in zip(pairs, *rng.uniform(2, 9, (2, num_ranks)), strict=True)}
    return Cluster(num_ranks // 8, 8, INTRA, INTER, GAMMA, overrides=own)


def one(place: int) -> None:
    """Simulate one line of LARGE, and print seconds and peak MB."""
    _, algorithm, num_ranks, options, links, _ = LARGE[place]
    cluster, schedule = cluster_of(num_ranks, links), build("allreduce", algorithm, num_ranks, **options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    simulate(schedule, NUM_BYTES, cluster)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(seconds, peak / 1024, (peak - before) / 1024)


def large() -> None:
    print(f"\n{'one gradient of 1 GiB, simulated':<44}{'[s]':>9}{'peak MB':>10}{'of it simulate':>16}   bar")
    for place, (name, *_, bar) in enumerate(LARGE):
        line = [sys.executable, "-m", "tests.benchmarks.collectives", str(place)]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        seconds, peak, own = map(float, done.stdout.split())
        print(f"{name:<44}{seconds:>9.3f}{peak:>10.0f}{own:>16.0f}   {bar}")


def verifying() -> None:
    print(f"\n{'verify':<44}{'[s]':>9}   bar")
    for name, num_ranks, bar in (
        ("ring", 256, "< 2 s"),
        ("halving_doubling", 256, ""),
        ("double_binary_tree", 256, ""),
    ):
        schedule = build("allreduce", name, num_ranks)
        start = time.perf_counter()
        verify(schedule)
        print(f"{name + f', N={num_ranks}':<44}{time.perf_counter() - start:>9.3f}   {bar}")


def simgrid() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = build_peer(Path(folder))
        if peer is None:
            print(f"\nSimGrid {MISSING}")
            return
        heads = f"{'ours':>9}{'SimGrid':>9}{'ratio':>8}{'makespans differ':>18}"
        print(f"\n{'simulated by both, nodes of 8, one slow link [s]':<50}{heads}   bar: ≥ 100 at ring N=1024")
        for algorithm, num_ranks in (
            ("ring", 128),
            ("ring", 512),
            ("ring", 1024),
            ("halving_doubling", 1024),
            ("torus_2d", 1024),
        ):
            schedule, cluster = build("allreduce", algorithm, num_ranks), cluster_of(num_ranks, "slow")
            cluster = Cluster(cluster.num_nodes, 8, INTRA, INTER, 0.0, overrides=cluster.overrides)
            start = time.perf_counter()
            makespan_s = simulate(schedule, NUM_BYTES, cluster, detail="ranks").makespan_s
            ours = time.perf_counter() - start
            simulated_s, wall_s = run_peer(peer, schedule, NUM_BYTES, cluster)
            name, differ = f"{algorithm}, N={num_ranks}", makespan_s / simulated_s - 1
            print(f"{name:<50}{ours:>9.4f}{wall_s:>9.2f}{wall_s / ours:>8.0f}{differ:>17.2%}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(int(sys.argv[1]))
    else:
        large()
        verifying()
        simgrid()
