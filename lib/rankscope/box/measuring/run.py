"""`measure`: measure everything in small launches; the points of each launch are stored before the next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...cluster import node_sizes
from ...common.checks import of_type, one_of, whole
from ...common.extras import naming_extra
from ...common.files import check_output
from ...provenance import difference, of_run
from ...ranks.joined import place
from ...ranks.launcher import launch
from ...ranks.server import PRELOAD
from ..points import PointKey
from ..profile import Profile
from .plan import Protocol, guess_s, keys_of, words_of

PRELOAD.append("rankscope.box.measuring.rank")
BACKENDS = ("gloo", "nccl")
POINTS_PER_LAUNCH = 20  # an interrupted run loses those of its last launch
# The time limit of a launch is PATIENCE_S plus LENIENCE times the expected time, which is a rough guess.
PATIENCE_S = 60.0
LENIENCE = 10.0
MOST_S = 1e6  # the longest time limit that `launch` accepts


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
    network: str = "",
    launch_ranks: Callable[..., list[Any]] | None = None,
    fresh: bool = False,
    name: str = "",
    command: str = "measure",
    report: Callable[[Progress], object] = lambda progress: None,
) -> Profile:
    """Measure this machine, store its `Profile` at `path` after every few points, and return it.

    Links and memory are measured first, then the collectives of the protocol, then copies to and from the GPU of
    rank 0, if it has one. If the file exists, measuring continues where it stopped; `fresh` replaces the file.

    `backend` defaults to "nccl" if there are at least two GPUs, else to "gloo" (see `default_backend`). `num_ranks`
    defaults to the number of GPUs with "nccl" (1 is allowed), else to 4. Under torchrun or mpirun, its ranks are used:
    all must call `measure` with the same arguments, rank 0 writes the file, and all return the profile. Another
    function with the arguments of `ranks.launch` may start the ranks on other hosts; `network` then names what connects
    them.

    `name` and `command` are stored, too: what to call the machine, and what the user ran. `report` gets the `Progress`
    before each launch and at the end.

    Raises ValueError if an argument is invalid, or if the file is no profile or is of another machine or protocol;
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
    backend = default_backend(num_ranks) if backend is None else one_of("backend", backend, BACKENDS)
    num_ranks = num_ranks_of(num_ranks, backend)
    start = launch_ranks or launch
    path = Path(path)
    stored = _stored(path, fresh) if writes() else None
    survey = start(rank.survey, num_ranks, [stored], backend, PATIENCE_S)[0]  # rank 0's, also of the stored profile
    if isinstance(survey["stored"], Exception):
        raise survey["stored"]
    profile = _new(survey, protocol, backend, of_run(name, command, network))
    if survey["stored"] is not None:
        profile = _continued(survey["stored"], profile, path)
    keys = keys_of(protocol, backend, profile.ranks_per_node, has_gpu=bool(survey["gpus"]))
    pace = 1.0  # actual / expected time of the last launch
    while missing := _missing(keys, profile):
        left_s = pace * guess_s(missing, protocol, backend)
        report(Progress(len(keys) - len(missing), len(keys), words_of(missing[0]), left_s))
        chosen = missing[:POINTS_PER_LAUNCH]
        expected_s = guess_s(chosen, protocol, backend)
        begin = time.monotonic()
        limit_s = min(PATIENCE_S + LENIENCE * pace * expected_s, MOST_S)
        args = [chosen, survey["nodes"], protocol]
        points = start(rank.measure_keys, num_ranks, args, backend, limit_s)[0]  # rank 0 has all points
        pace = (time.monotonic() - begin) / expected_s
        profile = profile.add(*points)
        if writes():
            profile.save(path)
    report(Progress(len(keys), len(keys), "", 0.0))
    return profile


def _missing(keys: Sequence[PointKey], profile: Profile) -> list[PointKey]:
    done = {point.key for point in profile.points}
    return [key for key in keys if key not in done]


def writes() -> bool:
    """Whether this process writes the file: under torchrun or mpirun only rank 0 does."""
    here = place()
    return here is None or here.rank == 0


def default_backend(num_ranks: int | None = None) -> str:
    """Return "nccl" if there are two GPUs or more and one for each rank of this machine, else "gloo"."""
    import torch
    import torch.distributed as dist

    num_gpus = torch.cuda.device_count() if dist.is_available() and dist.is_nccl_available() else 0
    here = place()
    num_ranks_here = num_ranks or num_gpus  # by default as many ranks as GPUs
    if here is not None:
        # Only torchrun states the number of ranks on this machine. Other launchers may state just that of all ranks.
        num_ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", here.num_ranks))
    return "nccl" if num_gpus >= 2 and num_ranks_here <= num_gpus else "gloo"


def num_ranks_of(num_ranks: int | None, backend: str) -> int:
    """Return the number of ranks: as asked for, else that of torchrun or mpirun, else of GPUs with "nccl", else 4.

    Raises ValueError if it is too small for the backend, or not whole.
    """
    here = place()
    if num_ranks is None and here is not None:
        num_ranks = here.num_ranks
    elif num_ranks is None:
        import torch

        num_ranks = torch.cuda.device_count() if backend == "nccl" else 4
    return whole("num_ranks", num_ranks, 1 if backend == "nccl" else 2)  # a single GPU has its copies to measure


def _stored(path: Path, fresh: bool) -> Profile | Exception | None:
    """Return the profile in the file, None if there is none or a fresh one is asked for, or why it cannot be used.

    Under torchrun, all ranks have to get the error.
    """
    try:
        check_output("path", path)
        if fresh or not path.exists():
            return None
        return Profile.load(path)
    except (ValueError, OSError) as error:
        return error


def _continued(stored: Profile, new: Profile, path: Path) -> Profile:
    """Return the stored profile. Raises ValueError if it is of another machine or protocol than the new one."""
    names = [name for name in new.protocol if name != "clock_offset_s"]  # which is measured anew by each run
    problem = difference(stored.provenance, new.provenance) or difference(stored.protocol, new.protocol, names)
    if problem:
        raise ValueError(f"{path} cannot be continued: {problem}; use another file, or start anew with fresh")
    return stored


def _new(survey: Mapping[str, Any], protocol: Protocol, backend: str, about: Mapping[str, Any]) -> Profile:
    """Return the profile without points: only its provenance and protocol."""
    sizes = node_sizes(survey["nodes"])
    provenance = {
        **about,
        **survey,  # of which a profile keeps only its own fields
        "num_ranks": sum(sizes),
        "num_nodes": len(sizes),
        "ranks_per_node": sizes,
        "backend": backend,
        "network": about["network"] or ("loopback" if len(sizes) == 1 else f"between {len(sizes)} nodes"),
    }
    how = {
        **{name: getattr(protocol, name) for name in ("warm_up", "iterations", "budget_s", "real_time")},
        "dtype": "float32",
        "start": "agreed instant",
        "statistic": "slowest rank of each iteration",
        "clock": "cuda events" if backend == "nccl" else "monotonic",
        "clock_offset_s": survey["clock_offset_s"],
        "verified": True,  # a wrong result raises an error
    }
    return Profile(provenance, how)
