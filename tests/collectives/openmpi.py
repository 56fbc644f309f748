"""Open MPI's allreduce, its algorithm forced: on whole numbers an oracle, and in benchmarks a peer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("allreduce_mpi.c")
# Open MPI's number for each, and the name that the same algorithm has here, if it has one
ALGORITHMS = {
    "linear": 1,
    "nonoverlapping": 2,
    "recursive_doubling": 3,
    "ring": 4,
    "segmented_ring": 5,
    "rabenseifner": 6,
}
OURS = {"recursive_doubling": "recursive_doubling", "ring": "ring", "segmented_ring": "segmented_ring"}
OURS |= {"rabenseifner": "halving_doubling"}
SEGMENT_BYTES = 4096
LOOPBACK = ("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--oversubscribe")
_ALWAYS = ("--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1", "--mca", "coll_tuned_use_dynamic_rules", "1")


class Case(NamedTuple):
    """An allreduce of known numbers."""

    dtype: str
    op: str
    count: int
    seed: int


class TimedResult(NamedTuple):
    """The result, and for each iteration the slowest rank's seconds and the ticks of 10 ms that the host took."""

    result: NDArray[Any]
    seconds: list[tuple[float, int]]


def missing() -> str:
    """Say what to install; nothing if all is installed."""
    lacking = [program for program in ("mpirun", "mpicc") if shutil.which(program) is None]
    return f"{' and '.join(lacking)} missing: apt-get install openmpi-bin libopenmpi-dev" if lacking else ""


def compiled(folder: Path) -> Path:
    """Return the program, compiled into a folder."""
    program = folder / "allreduce_mpi"
    subprocess.run(["mpicc", "-O2", "-Wall", "-Werror", "-o", program, SOURCE], check=True, timeout=200)
    return program


def numbers(case: Case, rank: int) -> NDArray[Any]:
    """Return what a rank puts in: whole numbers so small that no order of operations rounds."""
    i = np.arange(case.count)
    mixed = i * 7 + rank * 13 + i % 11 * rank + case.seed
    whole = np.array([-2, -1, 1, 2])[mixed % 4] if case.op == "prod" else mixed % 17 - 8
    return whole.astype(case.dtype)


def command(
    program: Path,
    num_ranks: int,
    algorithm: str,
    cases: Sequence[Case],
    file: Path,
    iterations: int = 1,
    in_place: bool = True,
    network: Sequence[str] = LOOPBACK,
    margin_s: float = 0.004,
) -> list[str]:
    """Return the mpirun for these cases; their results go to a file, the times to stdout."""
    forced = ["--mca", "coll_tuned_allreduce_algorithm", str(ALGORITHMS[algorithm])]
    if algorithm == "segmented_ring":
        forced += ["--mca", "coll_tuned_allreduce_algorithm_segmentsize", str(SEGMENT_BYTES)]
    words = [":".join(map(str, case)) for case in cases]
    start = ["mpirun", *_ALWAYS, *network, *forced, "-n", str(num_ranks), str(program)]
    return [*start, str(file), str(iterations), str(int(in_place)), str(margin_s), *words]


def read(cases: Sequence[Case], file: Path, printed: str) -> list[TimedResult]:
    """Return what a run has written and printed."""
    results = []
    data = file.read_bytes()
    for case, line in zip(cases, printed.strip().splitlines(), strict=True):
        result = np.frombuffer(data[: 4 * case.count], case.dtype)
        data = data[4 * case.count :]
        times = [word.split(":") for word in line.split()]
        results.append(TimedResult(result, [(float(seconds), int(ticks)) for seconds, ticks in times]))
    assert not data
    return results


def allreduce(
    program: Path, num_ranks: int, algorithm: str, cases: Sequence[Case], iterations: int = 1, in_place: bool = True
) -> list[TimedResult]:
    """Run these cases by Open MPI over loopback."""
    file = program.with_name(f"{algorithm}-{num_ranks}")
    words = command(program, num_ranks, algorithm, cases, file, iterations, in_place)
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert not done.returncode, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return read(cases, file, done.stdout)


def difference(ours: NDArray[Any], theirs: NDArray[Any]) -> str:
    """Say where two results differ, in dtype, size or the first element; nothing if they are equal."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.shape} of {ours.dtype}, not {theirs.shape} of {theirs.dtype}"
    unlike = np.flatnonzero(ours != theirs)
    if not unlike.size:
        return ""
    first = unlike[0]
    return f"{unlike.size} of {ours.size} differ, first element {first}: {ours[first]}, not {theirs[first]}"
