"""`DDPRun`: steps of a real DistributedDataParallel as they were observed, their file, and what they give the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...common import storage
from ...common.checks import number, truth, whole
from ...common.frozen import checked, each, fields_of, frozen, optional
from ...common.samples import used_places
from ...provenance import checked_provenance
from ...timeline import Timeline
from .buckets import Buckets, ParameterSpec, buckets_of
from .contention import OverlappedStep
from .cost import Seconds
from .step import MOST_ACCUMULATION, LocalStep, numbers

FORMAT, VERSION = "rankscope ddp run", 1
_COLUMNS = ("rank", "lane", "kind", "item", "start_s", "stop_s")  # of a timeline
_NAMES = ("lanes", "kinds")


class Iterations:
    """What `step_s` and `clean` of a value say together: which iterations are used, and what those took."""

    step_s: tuple[float, ...]
    clean: tuple[bool, ...]

    def __attrs_post_init__(self) -> None:
        if not self.step_s or len(self.clean) != len(self.step_s):
            wanted = f"True or False of each of {len(self.step_s)} iterations"
            raise ValueError(f"clean must say {wanted}, got {len(self.clean)}")

    @property
    def used(self) -> tuple[int, ...]:
        """The places of the iterations that are used; see `used_places`."""
        return used_places(self.clean)

    @property
    def used_s(self) -> Seconds:
        """The seconds of the iterations that are used."""
        return np.array(self.step_s)[list(self.used)]

    @property
    def median_s(self) -> float:
        return float(np.median(self.used_s))


@frozen
class DDPSettings:
    """DDP's settings: its own options, the micro-batches of a step, and whether it communicates at all."""

    bucket_cap_mb: float | None = checked(optional, number, above=0, default=None)
    accumulation: int = checked(whole, 1, MOST_ACCUMULATION, default=1)
    gradient_as_bucket_view: bool = checked(truth, default=False)
    find_unused_parameters: bool = checked(truth, default=False)
    static_graph: bool = checked(truth, default=False)
    communicate: bool = checked(truth, default=True)

    def __attrs_post_init__(self) -> None:
        if self.static_graph and self.accumulation > 1:
            raise ValueError(
                "static_graph must be False with accumulation: DDP's first backward of one must communicate"
            )

    @property
    def ddp(self) -> dict[str, Any]:
        """The options of DistributedDataParallel itself."""
        return {name: value for name, value in fields_of(self).items() if name not in ("accumulation", "communicate")}


@frozen(eq=False)
class ObservedStep:
    """One step: its buckets, when each gradient was in its bucket, and all spans.

    `ready_s` has a row for each rank and a column for each parameter, in seconds from the start of the rank's last
    backward, nan where no gradient came. The timeline has the lanes and kinds of `ddp.simulate`, and every rank. A
    bucket's allreduce starts when it is launched and one of the backend's workers is free: Gloo has two, and what the
    second one does is on lane "allreduce 2".
    """

    buckets: Buckets = checked(buckets_of)
    ready_s: Seconds = checked(numbers)
    timeline: Timeline = checked(Timeline)


@frozen(eq=False)
class DDPRun(Iterations):
    """Steps of DDP: the seconds of each iteration, those of the slowest rank, and what was observed in it.

    `parameters` are those that get gradients, in the order of ``module.parameters()``. `provenance` says where it ran,
    as a Profile's does, and `setting` with which options. `clean` says of each iteration whether the host took no time
    meanwhile. `steps` has one for each iteration.

    Raises ValueError for what no run can have given.
    """

    provenance: Mapping[str, Any] = checked(checked_provenance)
    setting: DDPSettings = checked(DDPSettings)
    parameters: tuple[ParameterSpec, ...] = checked(each, ParameterSpec)
    step_s: tuple[float, ...] = checked(each, number, 0)
    clean: tuple[bool, ...] = checked(each, truth)
    steps: tuple[ObservedStep, ...] = checked(each, ObservedStep)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        iterations, shape = len(self.step_s), (self.num_ranks, len(self.parameters))
        if len(self.steps) != iterations:
            raise ValueError(f"steps must be {iterations}, one for each iteration, got {len(self.steps)}")
        for step in self.steps:
            if step.ready_s.shape != shape or np.isinf(step.ready_s).any():
                raise ValueError(
                    f"ready_s must have a time or nan for {shape} ranks and parameters, got {step.ready_s}"
                )
            buckets_of("buckets", step.buckets, shape[1])

    def __repr__(self) -> str:
        what = f"{len(self.parameters)} parameters, {self.num_ranks} ranks, {len(self.step_s)} iterations"
        return f"<DDPRun: {what}, {self.median_s:.3g} s>"

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def buckets(self) -> Buckets:
        """The buckets of the last iteration, in launch order: those that DDP keeps."""
        return self.steps[-1].buckets

    @property
    def ready_s(self) -> Seconds:
        """When each gradient was ready on its last rank, from the start of the backward: medians over iterations."""
        last_s = np.array([self.steps[place].ready_s.max(axis=0) for place in self.used])
        return np.asarray(np.median(last_s, axis=0))

    def timeline(self, iteration: int | None = None) -> Timeline:
        """Return what all ranks did in an iteration, by default in the one of median length.

        ``timeline().select(rank=0)`` is that of one rank.
        """
        if iteration is not None:
            return self.steps[whole("iteration", iteration, 0, len(self.steps) - 1)].timeline
        return self.steps[min(self.used, key=lambda place: abs(self.step_s[place] - self.median_s))].timeline

    def overlapped(self) -> OverlappedStep:
        """Return what `fit_contention` needs: the medians of the backward, the ranks' mean, and of the step.

        Raises ValueError for steps of several micro-batches.
        """
        if self.setting.accumulation > 1:
            raise ValueError(f"accumulation must be 1 to fit contention, got {self.setting.accumulation}")
        backwards = [self.steps[place].timeline.select(kind="backward") for place in self.used]
        means_s = [float((one.stop_s - one.start_s).sum()) / self.num_ranks for one in backwards]
        return OverlappedStep(self.buckets, float(np.median(means_s)), self.median_s)

    def local_step(self) -> LocalStep:
        """Return what a rank's step takes by itself; of each event the slowest rank counts, then the median iteration.

        Only a run with ``communicate=False`` says what a rank would do without the others.
        """
        took_s = {}
        for kind in ("forward", "unpack", "optimizer"):
            found = []
            for place in self.used:
                spans = self.steps[place].timeline.select(kind=kind)
                last = spans.select(item=int(spans.item.max(initial=-1)))
                found.append(float(last.stop_s.max(initial=0.0)) - float(last.start_s.max(initial=0.0)))
            took_s[f"{kind}_s"] = float(np.median(found))
        ready_s = self.ready_s
        return LocalStep(self.parameters, ready_s, backward_s=float(np.nanmax(ready_s, initial=0.0)), **took_s)

    def save(self, path: storage.PathLike) -> Path:
        """Write the run as JSON, whole or not at all. Raises OSError if the file cannot be written."""
        steps = [
            {
                "buckets": step.buckets,
                "ready_s": step.ready_s.tolist(),  # JSON has no nan: null
                "timeline": {name: getattr(step.timeline, name).tolist() for name in _COLUMNS}
                | {name: getattr(step.timeline, name) for name in _NAMES},
            }
            for step in self.steps
        ]
        return storage.save(
            path,
            FORMAT,
            VERSION,
            provenance=self.provenance,
            setting=fields_of(self.setting),
            parameters=[list(fields_of(spec).values()) for spec in self.parameters],
            step_s=self.step_s,
            clean=self.clean,
            steps=steps,
        )

    @classmethod
    def load(cls, path: storage.PathLike) -> DDPRun:
        """Read a run that `save` wrote. Raises StorageError, in one line, for any other file."""
        return storage.load(path, FORMAT, VERSION, _StoredRun, _run)


# ---- as files hold it


class StoredParameter(storage.StoredPart, array_like=True):
    """A `ParameterSpec` in a file."""

    name: str
    num_bytes: int
    dtype: str
    device: str
    sparse: bool

    def value(self) -> ParameterSpec:
        return ParameterSpec(self.name, self.num_bytes, self.dtype, self.device, self.sparse)


class _StoredTimeline(storage.StoredPart):
    rank: list[int]
    lane: list[int]
    kind: list[int]
    item: list[int]
    start_s: list[float]
    stop_s: list[float]
    lanes: tuple[str, ...]
    kinds: tuple[str, ...]

    def value(self) -> Timeline:
        columns: dict[str, Any] = {name: np.array(getattr(self, name)) for name in _COLUMNS}
        return Timeline(**columns, lanes=self.lanes, kinds=self.kinds)


class _StoredStep(storage.StoredPart):
    buckets: list[list[int]]
    ready_s: list[list[float | None]]
    timeline: _StoredTimeline


class _StoredSettings(storage.StoredPart):
    bucket_cap_mb: float | None
    accumulation: int
    gradient_as_bucket_view: bool
    find_unused_parameters: bool
    static_graph: bool
    communicate: bool


class _StoredRun(storage.StoredFile):
    provenance: dict[str, Any]
    setting: _StoredSettings
    parameters: list[StoredParameter]
    step_s: tuple[float, ...]
    clean: tuple[storage.Mark, ...]
    steps: list[_StoredStep]


def _run(stored: _StoredRun) -> DDPRun:
    with storage.within("setting"):
        settings = DDPSettings(**msgspec.structs.asdict(stored.setting))
    steps = []
    for place, one in enumerate(stored.steps):
        with storage.within(f"steps[{place}]"):
            steps.append(ObservedStep(Buckets(one.buckets), np.array(one.ready_s, float), one.timeline.value()))
    clean = tuple(map(bool, stored.clean))
    parameters = tuple([spec.value() for spec in stored.parameters])
    return DDPRun(stored.provenance, settings, parameters, stored.step_s, clean, tuple(steps))
