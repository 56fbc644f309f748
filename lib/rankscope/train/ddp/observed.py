"""`DDPRun`: observed steps of a real DistributedDataParallel, their file, and the model's inputs from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from .step import MOST_ACCUMULATION, NO_ITEM, LocalStep, numbers

FORMAT = "rankscope ddp run"
VERSION = 1
_COLUMNS = ("rank", "lane", "kind", "item", "start_s", "stop_s")  # of a timeline
_NAMES = ("lanes", "kinds")  # of a timeline, to which entries of the columns "lane" and "kind" refer


class Iterations:
    """The iterations of a value with `step_s` and `clean`: which of them are used, and how long these took."""

    step_s: tuple[float, ...]
    clean: tuple[bool, ...]

    def __attrs_post_init__(self) -> None:
        if not self.step_s or len(self.clean) != len(self.step_s):
            wanted = f"True or False of each of {len(self.step_s)} iterations"
            raise ValueError(f"clean must say {wanted}, got {len(self.clean)}")

    @property
    def used(self) -> tuple[int, ...]:
        """The indices of the iterations that are used; see `used_places`."""
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
        options = dict(fields_of(self))
        del options["accumulation"]
        del options["communicate"]
        return options


@frozen(eq=False)
class ObservedStep:
    """One step: its buckets, when each gradient was in its bucket, and all spans.

    `ready_s` has a row for each rank and a column for each parameter, in seconds from the start of the rank's last
    backward, or nan if the parameter got no gradient. The timeline has the lanes and kinds of `ddp.simulate`, for every
    rank. A bucket's allreduce starts when it is launched and one of the backend's workers is free. Gloo has two
    workers; the allreduces of the second one are on lane "allreduce 2".
    """

    buckets: Buckets = checked(buckets_of)
    ready_s: Seconds = checked(numbers)
    timeline: Timeline = checked(Timeline)


@frozen(eq=False)
class DDPRun(Iterations):
    """Steps of DDP: the time of each iteration on its slowest rank in seconds, and its observed events.

    `parameters` are those that get gradients, in the order of ``module.parameters()``. `provenance` describes the
    machine, as in a Profile, and `setting` the options. `clean` states for each iteration whether the host left the
    ranks undisturbed. `steps` has one entry per iteration.

    Raises ValueError if the values cannot come from a run.
    """

    provenance: Mapping[str, Any] = checked(checked_provenance)
    setting: DDPSettings = checked(DDPSettings)
    parameters: tuple[ParameterSpec, ...] = checked(each, ParameterSpec)
    step_s: tuple[float, ...] = checked(each, number, 0)
    clean: tuple[bool, ...] = checked(each, truth)
    steps: tuple[ObservedStep, ...] = checked(each, ObservedStep)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        num_iterations = len(self.step_s)
        if len(self.steps) != num_iterations:
            raise ValueError(f"steps must be {num_iterations}, one for each iteration, got {len(self.steps)}")
        shape = (self.num_ranks, len(self.parameters))
        for step in self.steps:
            # Unlike an infinite time, NaN is allowed: the parameter got no gradient.
            if step.ready_s.shape != shape or np.isinf(step.ready_s).any():
                raise ValueError(
                    f"ready_s must have a time or nan for {shape} ranks and parameters, got {step.ready_s}"
                )
            buckets_of("buckets", step.buckets, len(self.parameters))  # for its error

    def __repr__(self) -> str:
        size = f"{len(self.parameters)} parameters, {self.num_ranks} ranks, {len(self.step_s)} iterations"
        return f"<DDPRun: {size}, {self.median_s:.3g} s>"

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def buckets(self) -> Buckets:
        """The buckets of the last iteration, which DDP keeps, in launch order."""
        return self.steps[-1].buckets

    @property
    def ready_s(self) -> Seconds:
        """The median time at which each gradient is ready on the last rank, from the start of the backward pass."""
        on_last_rank_s = [self.steps[index].ready_s.max(axis=0) for index in self.used]  # of each iteration
        return np.asarray(np.median(np.array(on_last_rank_s), axis=0))

    def timeline(self, iteration: int | None = None) -> Timeline:
        """Return the timeline of all ranks in an iteration, by default in the one of median length.

        For a single rank, use ``timeline().select(rank=0)``.
        """
        if iteration is not None:
            return self.steps[whole("iteration", iteration, 0, len(self.steps) - 1)].timeline
        typical = min(self.used, key=lambda index: abs(self.step_s[index] - self.median_s))
        return self.steps[typical].timeline

    def overlapped(self) -> OverlappedStep:
        """Return the input of `fit_contention`: the medians of the ranks' mean backward pass and of the step.

        Raises ValueError if a step has several micro-batches.
        """
        if self.setting.accumulation > 1:
            raise ValueError(f"accumulation must be 1 to fit contention, got {self.setting.accumulation}")
        means_s = []
        for index in self.used:
            backward = self.steps[index].timeline.select(kind="backward")  # one span of each rank
            means_s.append(float((backward.stop_s - backward.start_s).sum()) / self.num_ranks)
        return OverlappedStep(self.buckets, float(np.median(means_s)), self.median_s)

    def local_step(self) -> LocalStep:
        """Return the local step, with the time of the slowest rank for each event, as a median over iterations.

        Use a run with ``communicate=False``; in all others, ranks hold each other up.
        """
        ready_s = self.ready_s
        return LocalStep(
            self.parameters,
            ready_s,
            forward_s=self._median_s("forward"),
            # It computes until the last gradient is ready (0 if there is none), after which DDP waits and unpacks.
            backward_s=float(np.nanmax(ready_s, initial=0.0)),
            optimizer_s=self._median_s("optimizer"),
            unpack_s=self._median_s("unpack"),
        )

    def _median_s(self, kind: str) -> float:
        """Return the time from the last rank's start to the last rank's stop, as a median over iterations.

        Of a kind with one span for each micro-batch, it is that of the last micro-batch. It is 0 if there are no spans.
        """
        seconds = []
        for index in self.used:
            spans = self.steps[index].timeline.select(kind=kind)
            last_item = int(spans.item.max(initial=NO_ITEM))
            last_spans = spans.select(item=last_item)  # one of each rank
            seconds.append(float(last_spans.stop_s.max(initial=0.0)) - float(last_spans.start_s.max(initial=0.0)))
        return float(np.median(seconds))

    def save(self, path: storage.PathLike) -> Path:
        """Write the run as JSON, atomically. Raises OSError if the file cannot be written."""
        return storage.save(
            path,
            FORMAT,
            VERSION,
            provenance=self.provenance,
            setting=fields_of(self.setting),
            parameters=[list(fields_of(spec).values()) for spec in self.parameters],
            step_s=self.step_s,
            clean=self.clean,
            steps=[_as_stored(step) for step in self.steps],
        )

    @classmethod
    def load(cls, path: storage.PathLike) -> DDPRun:
        """Read a run that `save` wrote. Raises StorageError, a one-line ValueError, if the file is anything else."""
        return storage.load(path, FORMAT, VERSION, _StoredRun, _run)


# ---- the file


def _as_stored(step: ObservedStep) -> dict[str, Any]:
    columns = {name: getattr(step.timeline, name).tolist() for name in _COLUMNS}
    names = {name: getattr(step.timeline, name) for name in _NAMES}
    return {
        "buckets": step.buckets,
        "ready_s": step.ready_s.tolist(),  # JSON has no nan: null
        "timeline": {**columns, **names},
    }


class StoredParameter(storage.StoredPart, array_like=True):
    """A `ParameterSpec` in a file."""

    name: str
    num_bytes: int
    dtype: str
    device: str
    sparse: bool

    def value(self) -> ParameterSpec:
        return ParameterSpec(self.name, self.num_bytes, self.dtype, self.device, self.sparse)


def parameters_of(stored: Sequence[StoredParameter]) -> tuple[ParameterSpec, ...]:
    """Return the parameters of a file. Errors name the part of the file (`storage.within`)."""
    parameters = []
    for index, parameter in enumerate(stored):
        with storage.within(f"parameters[{index}]"):
            parameters.append(parameter.value())
    return tuple(parameters)


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
    """Return the run of a file. Errors name the part of the file (`storage.within`)."""
    with storage.within("setting"):
        settings = DDPSettings(**msgspec.structs.asdict(stored.setting))
    parameters = parameters_of(stored.parameters)
    steps = []
    for index, step in enumerate(stored.steps):
        with storage.within(f"steps[{index}]"):
            ready_s = np.array(step.ready_s, float)  # None, of a parameter that got no gradient, becomes nan
            steps.append(ObservedStep(Buckets(step.buckets), ready_s, step.timeline.value()))
    return DDPRun(
        provenance=stored.provenance,
        setting=settings,
        parameters=parameters,
        step_s=stored.step_s,
        clean=tuple(map(bool, stored.clean)),
        steps=tuple(steps),
    )
