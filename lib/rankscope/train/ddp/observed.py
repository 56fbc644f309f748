"""`DDPRun`: observed steps of a real DistributedDataParallel, their file, and the model's inputs from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...common.checks import check_field, number, optional, truth, whole
from ...common.files import PathLike, read_json, write_json
from ...timeline import Timeline
from .buckets import Buckets, ParameterSpec
from .contention import OverlappedStep
from .cost import Seconds
from .step import MOST_ACCUMULATION, NO_ITEM, LocalStep

_LEAST_CLEAN = 4  # iterations


def used_iterations(clean: Sequence[bool]) -> tuple[int, ...]:
    """Return the indices of the clean iterations, or of all if fewer than four are clean."""
    used = tuple(index for index, is_clean in enumerate(clean) if is_clean)
    return used if len(used) >= _LEAST_CLEAN else tuple(range(len(clean)))


class Iterations:
    """The iterations of a value with `step_s` and `clean`: which of them are used, and how long these took."""

    step_s: tuple[float, ...]
    clean: tuple[bool, ...]

    @property
    def used(self) -> tuple[int, ...]:
        """The indices of the iterations that are used; see `used_iterations`."""
        return used_iterations(self.clean)

    @property
    def used_s(self) -> Seconds:
        """The seconds of the iterations that are used."""
        return np.array(self.step_s)[list(self.used)]

    @property
    def median_s(self) -> float:
        return float(np.median(self.used_s))


class DDPSettings(msgspec.Struct, frozen=True):
    """DDP's settings: its own options, the micro-batches of a step, and whether it communicates at all."""

    bucket_cap_mb: float | None = None
    accumulation: int = 1
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    communicate: bool = True

    def __post_init__(self) -> None:
        check_field(self, "bucket_cap_mb", optional, number, above=0)
        check_field(self, "accumulation", whole, 1, MOST_ACCUMULATION)
        check_field(self, "gradient_as_bucket_view", truth)
        check_field(self, "find_unused_parameters", truth)
        check_field(self, "static_graph", truth)
        check_field(self, "communicate", truth)
        if self.static_graph and self.accumulation > 1:
            raise ValueError(
                "static_graph must be False with accumulation: DDP's first backward of one must communicate"
            )

    @property
    def ddp(self) -> dict[str, Any]:
        """The options of DistributedDataParallel itself."""
        options = msgspec.structs.asdict(self)
        del options["accumulation"]
        del options["communicate"]
        return options


class ObservedStep(msgspec.Struct, frozen=True, eq=False):
    """One step: its buckets, when each gradient was in its bucket, and all spans.

    `ready_s` has a row for each rank and a column for each parameter, in seconds from the start of the rank's last
    backward, or nan if the parameter got no gradient. The timeline has the lanes and kinds of `ddp.simulate`, for every
    rank. A bucket's allreduce starts when it is launched and one of the backend's workers is free. Gloo has two
    workers; the allreduces of the second one are on lane "allreduce 2".
    """

    buckets: tuple[tuple[int, ...], ...]
    ready_s: Seconds
    timeline: Timeline


class DDPRun(Iterations, msgspec.Struct, frozen=True, eq=False, tag_field="format", tag="rankscope ddp run"):
    """Steps of DDP: the time of each iteration on its slowest rank in seconds, and its observed events.

    `parameters` are those that get gradients, in the order of ``module.parameters()``. `provenance` describes the
    machine, as in a Profile, and `setting` the options. `clean` states for each iteration whether the host left the
    ranks undisturbed. `steps` has one entry per iteration.
    """

    provenance: Mapping[str, Any]
    setting: DDPSettings
    parameters: tuple[ParameterSpec, ...]
    step_s: tuple[float, ...]
    clean: tuple[bool, ...]
    steps: tuple[ObservedStep, ...]

    def __repr__(self) -> str:
        size = f"{len(self.parameters)} parameters, {self.num_ranks} ranks, {len(self.step_s)} iterations"
        return f"<DDPRun: {size}, {self.median_s:.3g} s>"

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def buckets(self) -> tuple[tuple[int, ...], ...]:
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
        return OverlappedStep(Buckets(self.buckets), float(np.median(means_s)), self.median_s)

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

    def save(self, path: PathLike) -> Path:
        """Write the run as JSON, atomically. Raises OSError if the file cannot be written."""
        return write_json(path, self)

    @classmethod
    def load(cls, path: PathLike) -> DDPRun:
        """Read a run that `save` wrote. Raises FileError, a one-line ValueError, if the file is anything else."""
        return read_json(path, cls)
