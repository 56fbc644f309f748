"""`measure`: measure everything in small launches; the points of each launch are stored before the next."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ...common.checks import of_type, one_of
from ...common.extras import naming_extra
from ...common.files import check_output
from ...provenance import of_run
from ...ranks.host import num_cores
from ...ranks.joined import place
from ...ranks.launcher import launch
from ...ranks.server import PRELOAD
from ..profile import Profile
from .plan import Protocol, guess_s, keys_of, words_of

PRELOAD.append("rankscope.box.measuring.rank")
POINTS_PER_LAUNCH = 20  # an interrupted run loses those of its last launch
# The time limit of a launch is PATIENCE_S plus LENIENCE times the expected time, which is a rough guess.
PATIENCE_S = 60.0
LENIENCE = 10.0


class Progress(NamedTuple):
    """The progress of a run, reported before each launch: points in the file, of all; what comes next; seconds left.

    The seconds are a rough guess.
    """

    num_done: int
    num_points: int
    doing: str
    left_s: float


@naming_extra()
def measure(
    path: str | os.PathLike[str],
    protocol: Protocol | None = None,
    *,
    num_ranks: int | None = None,
    backend: str | None = None,
    fresh: bool = False,
    name: str = "",
    command: str = "measure",
    report: Callable[[Progress], object] = lambda progress: None,
) -> Profile:
    """Measure this machine, store its `Profile` at `path` after every few points, and return it.

    Links and memory are measured first, then the collectives of the protocol, then copies to and from the GPU of
    rank 0, if it has one.
    A file that exists is replaced only if `fresh`.

    `backend` is "gloo" or "nccl"; see `backend_and_ranks` for the defaults. Under torchrun or mpirun, its ranks are
    used: all must call `measure` with the same arguments, rank 0 writes the file, and all return the profile.

    `name` and `command` are stored, too: what to call the machine, and what the user ran. `report` gets the `Progress`
    before each launch.

    Raises ValueError if an argument is invalid, or if the file exists;
    RankError if a rank fails, hangs or gets a wrong result; OSError if the file cannot be written.

    >>> import tempfile
    >>> protocol = Protocol(iterations=6, budget_s=0.1, algorithms=["ring"], sizes=[4096])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     profile = measure(f"{folder}/machine.json", protocol, num_ranks=2)
    >>> [point.what for point in profile.select(algorithm="ring")]
    ['allreduce']
    """
    from . import rank  # which loads torch

    protocol = Protocol() if protocol is None else of_type("protocol", protocol, Protocol)
    backend, num_ranks = backend_and_ranks(backend, num_ranks)
    check_output("path", path)
    if writes() and os.path.exists(path) and not fresh:
        raise ValueError(f"{path} exists: name another file, or replace it by --force (fresh=True)")
    machine, nodes = launch(rank.survey, num_ranks, [], backend, PATIENCE_S)[0]  # of rank 0, for all
    ranks_per_node = list(Counter(nodes).values())
    network = "loopback" if len(ranks_per_node) == 1 else f"between {len(ranks_per_node)} nodes"
    provenance = {
        **of_run(name, command, network),
        **machine,
        "num_ranks": len(nodes),
        "num_nodes": len(ranks_per_node),
        "ranks_per_node": ranks_per_node,
        "backend": backend,
    }
    how = {
        "iterations": protocol.iterations,
        "budget_s": protocol.budget_s,
        "statistic": "slowest rank of each iteration",
        "verified": True,  # a wrong result raises an error
    }
    profile = Profile(provenance, how)
    keys = keys_of(protocol, backend, ranks_per_node, has_gpu=bool(machine["gpus"]))
    pace = slowdown(len(nodes))  # actual / expected time: of the last launch, but of the first by the machine's load
    for num_done in range(0, len(keys), POINTS_PER_LAUNCH):
        left_s = pace * guess_s(keys[num_done:], protocol, backend)
        report(Progress(num_done, len(keys), words_of(keys[num_done]), left_s))
        chosen = keys[num_done : num_done + POINTS_PER_LAUNCH]
        expected_s = guess_s(chosen, protocol, backend)
        limit_s = PATIENCE_S + LENIENCE * pace * expected_s
        begin_s = time.monotonic()
        points = launch(rank.measure_keys, num_ranks, [chosen, nodes, protocol], backend, limit_s)[0]  # rank 0 has all
        pace = (time.monotonic() - begin_s) / expected_s
        profile = profile.add(*points)
        if writes():
            profile.save(path)
    return profile


def slowdown(num_ranks: int) -> float:
    """Return by how much other programs slow the ranks down, as far as the load of the last minute tells."""
    busy = os.getloadavg()[0] + num_ranks
    return max(1.0, busy / max(num_ranks, num_cores()))


def writes() -> bool:
    """Whether this process writes the file: under torchrun or mpirun only rank 0 does."""
    here = place()
    return here is None or here.rank == 0


def backend_and_ranks(backend: str | None, num_ranks: int | None) -> tuple[str, int | None]:
    """Return the backend and the number of ranks, as asked for or by default; None stands for those of torchrun.

    By default, the backend is "nccl" if there are two GPUs or more and one for each rank of this machine, and the ranks
    are as many as GPUs with "nccl", or else 4.
    """
    import torch
    import torch.distributed as dist

    num_gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
    num_ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks or num_gpus))  # torchrun states it, mpirun not
    if backend is None:
        backend = "nccl" if num_gpus >= 2 and num_ranks_here <= num_gpus else "gloo"
    if backend == "nccl" and not num_gpus:
        raise ValueError("backend nccl needs a GPU, and torch finds none on this machine")
    if num_ranks is None and place() is None:
        num_ranks = num_gpus if backend == "nccl" else 4
    return one_of("backend", backend, ("gloo", "nccl")), num_ranks
