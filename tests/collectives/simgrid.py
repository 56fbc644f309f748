"""SimGrid as a peer: a schedule run by its actors on plain α-β links; skips where it is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np

from rankscope.cluster import Cluster
from rankscope.collectives import Schedule

SOURCE = Path(__file__).with_name("run_schedule.cpp")
# its defaults correct latency and bandwidth for TCP; all of these switch that off
PLAIN = [
    "network/model:CM02",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/weight-S:0",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
]
MISSING = "needs SimGrid and a C++ compiler: apt-get install libsimgrid-dev g++"


def build_peer(folder: Path) -> Path | None:
    """Compile the peer, or return None where SimGrid or a compiler is missing."""
    program = folder / "run_schedule"
    if shutil.which("g++") is None:
        return None
    probe = subprocess.run(
        ["g++", "-E", "-x", "c++", "-"], input="#include <simgrid/s4u.hpp>", capture_output=True, text=True
    )
    if probe.returncode:
        return None
    subprocess.run(["g++", "-O2", "-std=c++17", str(SOURCE), "-o", str(program), "-lsimgrid"], check=True)
    return program


def run_peer(program: Path, schedule: Schedule, num_bytes: float, cluster: Cluster) -> tuple[float, float]:
    """Return SimGrid's simulated seconds, and the wall-clock seconds that its simulation took."""
    size = num_bytes / schedule.num_chunks
    lines, pairs = [], set()
    for step in schedule.steps():
        key, place = np.unique(step.src * schedule.num_ranks + step.dst, return_inverse=True)
        moved = np.bincount(place, step.num_chunks) * size
        rows = list(zip(*(k.tolist() for k in np.divmod(key, schedule.num_ranks)), moved.tolist(), strict=True))
        pairs.update((src, dst) for src, dst, _ in rows)
        lines.append(" ".join([str(len(rows)), *(f"{src} {dst} {sent:.17g}" for src, dst, sent in rows)]))
    ordered = sorted(pairs)
    src, dst = np.array(ordered).T
    alpha_s, beta = cluster.costs(src, dst)
    links = [f"{s} {d} {1 / b:.17g} {a:.17g}" for (s, d), a, b in zip(ordered, alpha_s, beta, strict=True)]
    path = program.with_suffix(".txt")
    head = f"{schedule.num_ranks} {len(lines)} {len(links)}"
    path.write_text("\n".join([head, *links, *lines]) + "\n", encoding="utf-8")
    options = [f"--cfg={option}" for option in [*PLAIN, "contexts/stack-size:32"]]
    done = subprocess.run(
        [str(program), str(path), "--log=root.thresh:warning", *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    simulated_s, wall_s = map(float, done.stdout.split())
    return simulated_s, wall_s
