"""`measure`: measure everything in small launches; the points of each launch are stored before the next."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...cluster import node_sizes
from ...common.checks import function, of_type, one_of, truth, whole
from ...common.extras import naming_extra
from ...common.files import check_output
from ...provenance import FIELDS, difference, of_run
from ...ranks.host import MOST_RANKS
from ...ranks.joined import place
from ...ranks.launcher import launch
from ...ranks.server import PRELOAD
from ..profile import Point, PointKey, Profile
from .plan import Protocol, guess_s, keys_of, next_launch, powers_of_two, transfer_keys, words_of

PRELOAD.append("rankscope.box.measuring.rank")
BACKENDS = ("gloo", "nccl")
DEVICES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",)}  # of the buffers; the first is the default
CPU_SIZES = powers_of_two(2**10, 2**26)
NCCL_SIZES = powers_of_two(2**10, 2**30)
LEAST_TRANSFER_BYTES = 2**12
MOST_TRANSFER_BYTES = 2**30
# The time limit of a launch is PATIENCE_S plus LENIENCE times the expected time, which is a rough guess.
PATIENCE_S = 60.0
LENIENCE = 10.0
MOST_S = 1e6  # the longest time limit that `launch` accepts


class Progress(NamedTuple):
    """The progress of a run, reported before each launch: points in the file, of all; what comes next; seconds left.

    The seconds are a rough guess, None until the links are measured. `left_out` has the sizes that need too much
    memory.
    """

    num_done: int
    num_points: int
    doing: str
    left_s: float | None = None
    left_out: tuple[int, ...] = ()


@naming_extra()
def measure(
    path: str | os.PathLike[str],
    protocol: Protocol | None = None,
    *,
    num_ranks: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    network: Any = None,
    fresh: bool = False,
    name: str = "",
    command: str = "measure",
    report: Callable[[Progress], object] = lambda progress: None,
) -> Profile:
    """Measure this machine, store its `Profile` at `path` after every few points, and return it.

    Links and memory are measured first, then the collectives of the protocol, then copies to and from the GPU of
    rank 0, if it has one. Sizes that need more than half of the free memory are left out. If the file exists, measuring
    continues where it stopped, so an interrupted run loses nothing; `fresh` replaces the file.

    `backend` defaults to "nccl" if there are at least two GPUs, else to "gloo" (see `default_backend`). `num_ranks`
    defaults to the number of GPUs with "nccl" (1 is allowed), else to 4. Under torchrun or mpirun, its ranks are used:
    all must call `measure` with the same arguments, rank 0 writes the file, and all return the profile. Buffers are on
    `device`, by default "cuda" with "nccl", else "cpu". Gloo ranks may share a GPU; links and algorithms are then
    measured only if the arguments name them. `network` is an object that launches ranks on its own hosts instead of on
    this machine, as for `ddp.Where`; its name is stored.

    `name` and `command` are stored, too: what to call the machine, and what the user ran. `report` gets the `Progress`
    before each launch and at the end.

    Raises ValueError if an argument is invalid, if the file belongs to another machine or protocol, or if another run
    is writing it or has just written it; RankError if a rank fails, hangs or gets a wrong result; OSError if the file
    cannot be written.

    >>> import tempfile
    >>> protocol = Protocol(iterations=6, budget_s=0.1, algorithms=["ring"], sizes=[4096])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     profile = measure(f"{folder}/machine.json", protocol, num_ranks=2)
    >>> [point.what for point in profile.select(algorithm="ring")]
    ['allreduce']
    """
    chosen = Protocol() if protocol is None else of_type("protocol", protocol, Protocol)
    function("report", report, "of a Progress")
    fresh = truth("fresh", fresh)
    backend = default_backend(num_ranks, device, network) if backend is None else one_of("backend", backend, BACKENDS)
    device = device_of(device, backend)
    num_ranks = num_ranks_of(num_ranks, backend)
    chosen.check_algorithms(num_ranks)
    start = _starter(num_ranks, backend, device, network)
    if place() is None:
        check_output("path", path)  # before ranks are started; under torchrun, rank 0 does so in `run.open`, for all
    run = _Measurement(Path(path), chosen, backend, device, report, start)
    report(Progress(num_done=0, num_points=0, doing="starting the ranks"))  # the survey decides which points there are
    survey: dict[str, Any] = start(_in_rank, ("survey", device), PATIENCE_S)[0]  # rank 0's result of `rank.survey`
    with run.locks:  # empty until `run.open` locks the file
        run.open(survey, of_run(name, command, "" if network is None else str(network)), fresh)
        run.measure(survey)
    return run.profile


def writes() -> bool:
    """Whether this process writes the file: under torchrun or mpirun only rank 0 does."""
    here = place()
    return here is None or here.rank == 0


def default_backend(num_ranks: int | None = None, device: str | None = None, network: object = None) -> str:
    """Return "nccl" if there are two GPUs or more and one for each rank of this machine, else "gloo".

    An explicit device, which only Gloo lets you choose, or a network of hosts also gives "gloo". Raises ValueError for
    `num_ranks` below 1.
    """
    if num_ranks is not None:
        whole("num_ranks", num_ranks, 1)
    if device is not None or network is not None:
        return "gloo"
    import torch
    import torch.distributed as dist

    num_gpus = torch.cuda.device_count() if dist.is_available() and dist.is_nccl_available() else 0
    num_ranks_here = num_ranks
    here = place()
    if here is not None:
        # Only torchrun states the number of ranks on this machine. Other launchers may state just that of all ranks.
        num_ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", here.num_ranks))
    has_gpu_for_each = num_ranks_here is None or num_ranks_here <= num_gpus  # None: as many ranks as GPUs
    return "nccl" if num_gpus >= 2 and has_gpu_for_each else "gloo"


def num_ranks_of(num_ranks: int | None, backend: str) -> int:
    """Return the number of ranks: as asked for, else that of torchrun or mpirun, else of GPUs with "nccl", else 4.

    Raises ValueError if it is too small for the backend, too large for this process to start, or not whole.
    """
    here = place()
    if num_ranks is None and here is not None:
        num_ranks = here.num_ranks
    if num_ranks is not None:
        least = 1 if backend == "nccl" else 2  # a single GPU has its copies to measure
        most = MOST_RANKS if here is None else None  # limits the ranks that this process has to start itself
        return whole("num_ranks", num_ranks, least, most)
    if backend == "nccl":
        import torch

        return whole("num_ranks, which with nccl is the number of GPUs that torch finds,", torch.cuda.device_count(), 1)
    return 4


def device_of(device: str | None, backend: str) -> str:
    """Return the device of the buffers, "cpu" or "cuda".

    Raises ValueError if the backend does not support it, and for Gloo on a GPU if there is none (NCCL's ranks raise
    their own error).

    >>> device_of(None, "nccl"), device_of(None, "gloo")
    ('cuda', 'cpu')
    >>> device_of("cpu", "nccl")
    Traceback (most recent call last):
    ValueError: device with backend='nccl' must be one of 'cuda', got 'cpu'
    """
    if device is None:
        return DEVICES[backend][0]
    one_of(f"device with backend={backend!r}", device, DEVICES[backend])
    if device == "cuda" and backend == "gloo":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("device='cuda' needs a GPU that torch can use, but there is none")
    return device


# Runs a function with arguments in all ranks, within a limit in seconds, and returns the result of each rank.
Start = Callable[[Callable[..., Any], Sequence[Any], float], list[Any]]


def _starter(num_ranks: int, backend: str, device: str, network: Any) -> Start:
    """Return the function that launches the ranks: on this machine, or on the hosts of a network.

    Raises ValueError if the network cannot run these ranks.
    """
    if network is None:
        return lambda fn, args, limit_s: launch(fn, num_ranks, args, backend, limit_s)
    num_hosts = getattr(network, "num_hosts", None)
    if not num_hosts or num_ranks % num_hosts:
        raise ValueError(
            f"network must be one with hosts for {num_ranks} ranks, the same number on each, got {network!s}"
        )
    if backend != "gloo" or device != "cpu" or place() is not None:
        raise ValueError("network needs backend='gloo' and device='cpu', and does not work under torchrun")
    return lambda fn, args, limit_s: network.launch(fn, args, limit_s, num_ranks // num_hosts)


class _Measurement:
    """One run: the profile as stored, and everything needed to continue it."""

    def __init__(
        self, path: Path, protocol: Protocol, backend: str, device: str, report: Callable[..., object], start: Start
    ) -> None:
        self.path = path
        self.protocol = protocol
        self.backend = backend
        self.device = device
        self.report = report
        self.start = start
        self.through_host = device == "cuda" and backend == "gloo"  # Gloo copies the buffers of a GPU to the host
        self.profile: Profile
        self._stamp: tuple[int, int] | None = None  # the stamp of the file as this run left it
        self._writes = writes()
        self.locks = contextlib.ExitStack()  # `open` puts the file's lock into it, and the caller's `with` ends it

    def open(self, survey: Mapping[str, Any], about: Mapping[str, Any], fresh: bool) -> None:
        """Lock the file, and set `profile` to the stored profile or to a new one.

        Under torchrun only rank 0 reads the file. All ranks get its profile, or raise its error.
        """
        opened: Profile | Exception | None = None
        if self._writes:
            try:
                self.locks.enter_context(_alone(self.path))
                opened = self._opened(self._new(survey, about), fresh)
            except (ValueError, OSError) as error:
                opened = error
        if place() is not None:  # All ranks get what rank 0 passes to `rank.same`.
            opened = self.start(_in_rank, ("same", opened), PATIENCE_S)[0]
        if isinstance(opened, Exception):
            raise opened
        assert opened is not None  # a process that does not write is joined, and has rank 0's
        self.profile = opened

    def _new(self, survey: Mapping[str, Any], about: Mapping[str, Any]) -> Profile:
        """Return the profile without points: only its provenance and protocol."""
        sizes = node_sizes(survey["nodes"])
        facts = {name: value for name, value in survey.items() if name in FIELDS}  # the rest is for this run only
        provenance = {
            **about,
            **facts,
            "num_ranks": sum(sizes),
            "num_nodes": len(sizes),
            "ranks_per_node": sizes,
            "backend": self.backend,
            "network": about["network"] or ("loopback" if len(sizes) == 1 else f"between {len(sizes)} nodes"),
        }
        if self.through_host:  # otherwise the backend implies the device
            provenance["device"] = self.device
        how = {
            **{name: getattr(self.protocol, name) for name in ("warm_up", "iterations", "budget_s", "real_time")},
            "dtype": "float32",
            "start": "agreed instant",
            "statistic": "slowest rank of each iteration",
            "clock": "cuda events" if self.device == "cuda" else "monotonic",
            "clock_offset_s": survey["clock_offset_s"],
            "verified": True,  # a wrong result raises an error
        }
        return Profile(provenance, how)

    def _opened(self, new: Profile, fresh: bool) -> Profile:
        """Return the stored profile, or store and return the new one if there is no file or `fresh` is true.

        Raises ValueError if the stored profile is of another machine or protocol.
        """
        if fresh or not self.path.exists():
            self._save(new)
            return new
        self._stamp = _stamp(self.path)  # first, so that `_store` notices a change during the load as well
        stored = Profile.load(self.path)
        names = [name for name in new.protocol if name != "clock_offset_s"]  # which is measured anew by each run
        problem = difference(stored.provenance, new.provenance) or difference(stored.protocol, new.protocol, names)
        if problem:
            raise ValueError(f"{self.path} cannot be continued: {problem}; use another file, or start anew with fresh")
        return stored

    def measure(self, survey: Mapping[str, Any]) -> None:
        """Measure the missing points, one launch at a time."""
        sizes = self.protocol.sizes or (NCCL_SIZES if self.backend == "nccl" else CPU_SIZES)
        ranks_per_node = self.profile.ranks_per_node
        keys, left_out = keys_of(self.protocol, sizes, ranks_per_node, survey["free_bytes"], self.through_host)
        if self.protocol.transfers:
            keys += self._copies(survey)
        ratio = 1.0  # actual / expected time of the last launch
        done = {point.key for point in self.profile.points}
        while missing := [key for key in keys if key not in done]:
            left_s = None
            if missing[0].what not in ("ping_pong", "together"):  # Links come first, and other guesses rest on them.
                left_s = ratio * guess_s(missing, self.profile, self.protocol)
            self.report(Progress(len(keys) - len(missing), len(keys), words_of(missing[0]), left_s, left_out))
            next_keys = next_launch(missing, self.profile, self.protocol)
            expected_s = guess_s(next_keys, self.profile, self.protocol)
            limit_s = min(PATIENCE_S + LENIENCE * expected_s, MOST_S)
            begin = time.monotonic()
            args = ("measure_keys", next_keys, survey["nodes"], self.device, self.protocol)
            points = self.start(_in_rank, args, limit_s)[0]  # rank 0's, which alone has those of copies
            ratio = (time.monotonic() - begin) / expected_s
            self._store(points)
            done |= {point.key for point in points}
        self.report(Progress(len(keys), len(keys), "", 0.0, left_out))

    def _copies(self, survey: Mapping[str, Any]) -> list[PointKey]:
        """Return the copies that rank 0's GPU supports, up to the largest size asked for; none if it has no GPU."""
        asked = max(self.protocol.sizes or [MOST_TRANSFER_BYTES])
        asked = max(asked, LEAST_TRANSFER_BYTES)  # small sizes asked for still get one size of copies
        largest = min(asked, MOST_TRANSFER_BYTES, survey["transfer_bytes"])  # the last is 0 without a GPU
        sizes = powers_of_two(LEAST_TRANSFER_BYTES, largest, factor=4)
        return [key for size in sizes for key in transfer_keys(size, len(survey["gpus"]))]

    def _store(self, points: Sequence[Point]) -> None:
        """Add points to the profile, and store it in the file before it counts as this run's.

        Raises ValueError if another run has written the file since this run did.
        """
        profile = self.profile.add(*points)
        if self._writes:
            if _stamp(self.path) not in (self._stamp, None):  # None: somebody has deleted the file
                raise ValueError(f"another run has written {self.path} in the meantime, so it is left unchanged")
            self._save(profile)
        self.profile = profile

    def _save(self, profile: Profile) -> None:
        """Write the file, and remember its stamp."""
        profile.save(self.path)
        self._stamp = _stamp(self.path)


def _alone(path: Path) -> contextlib.AbstractContextManager[object]:
    """Return a lock on the file: an abstract socket name, which no other run on this machine can hold.

    It ends with the process. Only Linux has such names. Elsewhere there is no lock, and `_stamp` detects another run
    afterwards.
    """
    if sys.platform != "linux":
        return contextlib.nullcontext()
    lock = socket.socket(socket.AF_UNIX)
    # A path may be longer than the 107 bytes that the name of a socket may have.
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    try:
        lock.bind(f"\0rankscope-profile-{name}")
    except OSError:
        lock.close()
        raise ValueError(f"another run is writing {path}; wait until it ends, or use another file") from None
    return lock


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return a value that changes if the file is replaced or written again; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _in_rank(name: str, *args: Any) -> Any:
    """Call a function of the module `rank`, which loads torch: here, in a rank, but not in the launching process."""
    from . import rank

    return getattr(rank, name)(*args)
