"""`measure`: all is measured in small launches, and the points of each are on the disk before the next."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...values.checks import of_type, one_of, several, truth, whole
from ...workers.errors import MOST_RANKS
from ...workers.interrupts import Interrupts
from ...workers.joined import is_joined
from ...workers.launch import launch
from ..profile import EXPERIMENTS, Key, Point, Profile
from ..provenance import FIELDS, difference, of_run
from . import plan
from .plan import Protocol, Wanted, guess_s, next_launch, node_sizes

SIZES = {"nccl": plan.powers_of_two(2**10, 2**30)}
LEAST_TRANSFER_BYTES, MOST_TRANSFER_BYTES = 2**12, 2**30
CPU_SIZES = plan.powers_of_two(2**10, 2**26)
PATIENCE_S, LENIENCE = 60.0, 10.0  # what a launch may take, beside so many times what was expected
MOST_S = 1e6  # that `launch` waits at all


@dataclass(frozen=True)
class Progress:
    """How far a run has come, reported before each launch: points in the file, of all; what comes next; seconds left.

    These are a rough guess, and None as long as the links are not known. `left_out` has the sizes for which there is
    not enough memory.
    """

    num_done: int
    num_points: int
    doing: str
    left_s: float | None = None
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class Emulation:
    """A network to be emulated, one rank a host, as `emulated` makes it."""

    bytes_per_s: float
    latency_s: float = 0.0


def measure(
    path: str | os.PathLike[str], *, num_ranks: int | None = None, backend: str = "gloo", device: str | None = None,
    sizes: Sequence[int] | None = None, collectives: Sequence[str] = ("allreduce",),
    algorithms: Sequence[str] | None = None, in_place: Sequence[bool] = (True,), protocol: Protocol | None = None,
    emulate: Emulation | None = None, transfers: bool = True, fresh: bool = False, name: str = "",
    command: str = "measure", report: Callable[[Progress], object] = lambda progress: None,
) -> Profile:  # fmt: skip
    """Measure this machine and return its `Profile`, which is stored at `path` after every few points.

    Links and memory first, then each collective at each of the sizes in bytes, by the backend itself ("native") and by
    each of the `algorithms`; None stands for all. Sizes that would take more than half of the free memory are left out.
    With `transfers`, copies to and from the GPU of rank 0, if it has one, and what `folklore` judges come last.
    A file that is there already is gone on with, so that an interrupted run loses nothing; `fresh` replaces it.

    `num_ranks` is by default the number of GPUs with "nccl", where it may be 1, else 4. Under torchrun the ranks are
    its own: all call this alike, rank 0 writes, and all get the profile. Buffers are on the `device`, by default "cuda"
    with "nccl" and else "cpu". Gloo's ranks may share a GPU: links, and algorithms not asked for, are left out there.
    Raises ValueError for bad input, for a file of another machine or setting, and for one that another run has written
    meanwhile; RankError where a rank fails, hangs, or gets a wrong result; OSError where the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     some = {"algorithms": ["ring"], "sizes": [4096], "protocol": Protocol(iterations=6, budget_s=0.1)}
    ...     profile = measure(f"{folder}/machine.json", num_ranks=2, **some)
    >>> [point.what for point in profile.select(algorithm="ring")]
    ['allreduce']
    """
    one_of("backend", backend, BACKENDS)
    device, number = device_of(device, backend), num_ranks_of(num_ranks, backend)
    run = _Run(Path(path), backend, device, protocol, report)
    chosen = plan.checked_sizes(SIZES.get(backend, CPU_SIZES) if sizes is None else sizes)
    most = MOST_TRANSFER_BYTES if sizes is None else chosen[-1]
    wanted = _wanted(chosen, collectives, algorithms, in_place, number)
    wanted = wanted.through_host() if run.through_host else wanted
    with _launcher(number, backend, device, emulate) as launcher:
        found = run.survey(launcher)
        run.open(launcher, found, of_run(name, command, launcher.network), truth("fresh", fresh))
        run.measure(launcher, wanted, found, _copies(found, most) if truth("transfers", transfers) else [])
    return run.profile


def _wanted(
    sizes: tuple[int, ...], collectives: Sequence[str], algorithms: Sequence[str] | None, in_place: Any, num_ranks: int
) -> Wanted:
    listed, named = plan.checked_algorithms(collectives, algorithms, num_ranks)
    return Wanted(sizes, tuple(listed), named, tuple(truth("in_place", one) for one in several("in_place", in_place)))


@dataclass(frozen=True)
class _Launcher:
    """What launches functions in ranks, and the name of the network over which they talk."""

    launch: Callable[[Callable[..., Any], Sequence[Any], float], list[Any]]
    network: str


@contextlib.contextmanager
def _launcher(number: int, backend: str, device: str, emulate: Emulation | None) -> Iterator[_Launcher]:
    if emulate is None:
        yield _Launcher(lambda fn, args, limit_s: launch(fn, number, args, backend, limit_s), "")
        return
    of_type("emulate", emulate, Emulation)
    if backend != "gloo" or device != "cpu" or is_joined(backend):
        raise ValueError("emulate goes with backend='gloo' and device='cpu', and not with torchrun")
    from ..emulate import emulated

    with emulated(number, emulate.bytes_per_s, emulate.latency_s) as network:
        yield _Launcher(network.launch, str(network))


class _Run:
    """One run: the profile as it is on the disk, and what it takes to go on with it."""

    def __init__(
        self, path: Path, backend: str, device: str, protocol: Protocol | None, report: Callable[[Progress], object]
    ) -> None:
        if not callable(report):
            raise ValueError(f"report must be a function of a Progress, got {report!r}")
        self.protocol = Protocol() if protocol is None else of_type("protocol", protocol, Protocol)
        self.path, self.backend, self.device, self.report = path, backend, device, report
        self.through_host = is_gloo_on_gpu(device, backend)
        self.profile: Profile
        self._seen: tuple[int, int] | None = None  # the file as this run left it
        self._is_joined = is_joined(backend)
        self._writes = writes(backend)

    def survey(self, launcher: _Launcher) -> dict[str, Any]:
        """Return what rank 0 finds out about machine and nodes."""
        self.report(Progress(0, 0, "starting the ranks"))
        found: dict[str, Any] = launcher.launch(_survey, (self.device,), PATIENCE_S)[0]
        return found

    def open(self, launcher: _Launcher, found: Mapping[str, Any], about: Mapping[str, Any], fresh: bool) -> None:
        """Begin the profile, or take the one that is there; under torchrun it is rank 0 that has it."""
        opened: list[Profile | Exception | None] = [None]
        if self._writes:
            try:
                opened = [self._opened(found, about, fresh)]
            except (ValueError, OSError) as error:
                opened = [error]
        if self._is_joined:
            opened = launcher.launch(_same, tuple(opened), PATIENCE_S)
        if isinstance(opened[0], Exception):
            raise opened[0]
        assert opened[0] is not None
        self.profile = opened[0]

    def _opened(self, found: Mapping[str, Any], about: Mapping[str, Any], fresh: bool) -> Profile:
        sizes = node_sizes(found["nodes"])
        network = about["network"] or ("loopback" if len(sizes) == 1 else f"between {len(sizes)} nodes")
        machine = {name: value for name, value in found.items() if name in FIELDS}
        ranks = {"num_ranks": sum(sizes), "num_nodes": len(sizes), "ranks_per_node": sizes}
        where = {"backend": self.backend, "network": network}
        if self.through_host:  # elsewhere the backend says where buffers are
            where["device"] = self.device
        provenance = {**about, **machine, **ranks, **where}
        profile = Profile(provenance, _protocol(self.protocol, self.device, found["clock_offset_s"]))
        if fresh or not self.path.exists():
            with Interrupts():
                self._save(profile)
            return profile
        self._seen = _stamp(self.path)
        stored = Profile.load(self.path)
        problem = difference(stored.provenance, profile.provenance) or _other_protocol(stored, profile)
        if problem:
            raise ValueError(f"{self.path} cannot be gone on with: {problem}; take another file, or fresh")
        return stored

    def measure(self, launcher: _Launcher, wanted: Wanted, found: Mapping[str, Any], more: Sequence[Key] = ()) -> None:
        """Measure what the profile lacks, a launch at a time; with more keys, those of copies, the experiments too."""
        keys, left_out = wanted.keys(self.profile.provenance["ranks_per_node"], found["free_bytes"])
        keys += more
        ratio = 1.0  # of what the last launch took to what was expected
        while missing := self._missing(keys):
            known = missing[0][0] not in ("ping_pong", "together")
            left_s = ratio * guess_s(missing, self.profile, self.protocol) if known else None
            done = len(keys) - len(missing)
            self.report(Progress(done, len(keys), plan.words_of(missing[0]), left_s, left_out))
            some = next_launch(missing, self.profile, self.protocol)
            expected = guess_s(some, self.profile, self.protocol)
            begin = time.monotonic()
            args = (some, found["nodes"], self.device, self.protocol)
            points = launcher.launch(_measure_keys, args, min(PATIENCE_S + LENIENCE * expected, MOST_S))[0]
            ratio = (time.monotonic() - begin) / expected
            self._keep(points)
        if more and not all(self.profile.select(what) for what in EXPERIMENTS):
            self.report(Progress(len(keys), len(keys), "experiments on copies", None, left_out))
            self._keep(launcher.launch(_experiment, (), 4 * PATIENCE_S)[0])
        self.report(Progress(len(keys), len(keys), "", 0.0, left_out))

    def _missing(self, keys: Sequence[Key]) -> list[Key]:
        known = {point.key for point in self.profile.points}
        return [key for key in keys if key not in known]

    def _keep(self, points: Sequence[Point]) -> None:
        """Put points into the file; only then they count."""
        profile = self.profile
        for point in points:
            profile = profile.add(point)
        with Interrupts():
            if self._writes:
                if _stamp(self.path) not in (self._seen, None):
                    raise ValueError(f"{self.path} was written by another run meanwhile, and is left as it is")
                self._save(profile)
            self.profile = profile

    def _save(self, profile: Profile) -> None:
        profile.save(self.path)
        self._seen = _stamp(self.path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that takes its place; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _copies(found: Mapping[str, Any], most_bytes: int) -> list[Key]:
    """The copies that rank 0's GPU allows, of sizes up to the largest that was asked for."""
    most = min(max(most_bytes, LEAST_TRANSFER_BYTES), MOST_TRANSFER_BYTES, found["transfer_bytes"])
    chosen = plan.powers_of_two(LEAST_TRANSFER_BYTES, most, 4)
    return [key for size in chosen for key in plan.transfer_keys(size, len(found["gpus"]))]


def _protocol(protocol: Protocol, device: str, clock_offset_s: float) -> dict[str, Any]:
    return {
        "warm_up": protocol.warm_up,
        "iterations": protocol.iterations,
        "budget_s": protocol.budget_s,
        "real_time": protocol.real_time,
        "dtype": "float32",
        "start": "agreed instant",
        "statistic": "slowest rank of each iteration",
        "clock": "cuda events" if device == "cuda" else "monotonic",
        "clock_offset_s": clock_offset_s,
        "verified": True,
    }


def _other_protocol(stored: Profile, profile: Profile) -> str:
    names = [name for name in profile.protocol if name != "clock_offset_s"]
    pairs = [(name, stored.protocol.get(name), profile.protocol[name]) for name in names]
    return "; ".join(f"{name} is {there!r} there and {here!r} here" for name, there, here in pairs if there != here)


# ---- in the ranks, where torch is there already


def _survey(device: str) -> dict[str, Any]:
    from .rank import survey

    return survey(device)


def _measure_keys(keys: Sequence[Key], nodes: Sequence[int], device: str, protocol: Protocol) -> list[Point]:
    from .rank import measure_keys

    return measure_keys(keys, nodes, device, protocol)


def _experiment() -> list[Point]:
    from .rank import experiment

    return experiment()


def _same(value: Any) -> Any:
    return value


BACKENDS = ("gloo", "nccl", "mpi")
DEVICES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",), "mpi": ("cpu",)}  # of the buffers; the first by default
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_NUM_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def writes(backend: str) -> bool:
    """Whether this process is the one that writes the file: any but the other ranks of torchrun or mpirun."""
    return not is_joined(one_of("backend", backend, BACKENDS)) or _told_by(_RANK) == 0


def num_ranks_of(num_ranks: int | None, backend: str) -> int:
    """How many ranks there are to be: as many as asked for, as torchrun or mpirun has, as there are GPUs, or 4."""
    if num_ranks is None and is_joined(backend):
        num_ranks = _told_by(_NUM_RANKS)
    if num_ranks is not None:
        return whole("num_ranks", num_ranks, 1 if backend == "nccl" else 2, 10**6 if is_joined(backend) else MOST_RANKS)
    if backend == "nccl":
        import torch

        return whole("num_ranks, the GPUs that there are,", torch.cuda.device_count(), 1)
    return 4


def device_of(device: str | None, backend: str) -> str:
    """Return "cpu" or "cuda", whichever the buffers are to be on.

    Raises ValueError for one that the backend does not take, and for Gloo on a GPU that is not there (NCCL's ranks say
    so themselves).

    >>> device_of(None, "nccl"), device_of(None, "gloo")
    ('cuda', 'cpu')
    >>> device_of("cpu", "nccl")
    Traceback (most recent call last):
    ValueError: device with backend='nccl' must be one of 'cuda', got 'cpu'
    """
    allowed = DEVICES[backend]
    if device is None:
        return allowed[0]
    one_of(f"device with backend={backend!r}", device, allowed)
    if is_gloo_on_gpu(device, backend):
        import torch

        if not torch.cuda.is_available():
            raise ValueError("device='cuda' needs a GPU that torch can use, and there is none")
    return device


def is_gloo_on_gpu(device: str, backend: str) -> bool:
    """Whether collectives go from a GPU's memory through the host's."""
    return (device, backend) == ("cuda", "gloo")


def _told_by(names: Sequence[str]) -> int:
    """What the launcher that made this process a rank says under one of these names."""
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)
