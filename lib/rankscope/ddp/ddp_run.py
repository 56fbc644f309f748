"""`DDPRun`: steps of a real DistributedDataParallel as they were seen, and what becomes of them in the model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..machine.profile import used_places
from ..machine.provenance import checked_provenance
from ..timeline import Timeline
from ..values.checks import number, of_type, truth, whole
from ..values.frozen import ReadOnly
from .contention import OverlappedStep
from .launches import bucket_places
from .local_step import MOST_ACCUMULATION, LocalStep, ParameterSpec, Seconds

Buckets = tuple[tuple[int, ...], ...]


def _cap(name: str, value: Any) -> float | None:
    return None if value is None else number(name, value, above=0)


SETTING = {
    "bucket_cap_mb": _cap,
    "accumulation": lambda name, value: whole(name, value, 1, MOST_ACCUMULATION),
    "gradient_as_bucket_view": truth,
    "find_unused_parameters": truth,
    "static_graph": truth,
    "communicate": truth,
}


@dataclass(frozen=True, eq=False)
class ObservedStep:
    """One step: the buckets in launch order, as places of parameters, when each gradient was in its bucket, all spans.

    `ready_s` has a row a rank and a column a parameter, in seconds from the start of the rank's last backward; not a
    number (nan) where no gradient came. The timeline has the lanes and kinds of `simulate_step`, and every rank. A
    bucket's allreduce starts when it is launched and one of the backend's workers is free: Gloo has two, and what the
    second one does is on lane "allreduce 2".
    """

    buckets: Buckets
    ready_s: Seconds
    timeline: Timeline

    def __post_init__(self) -> None:
        object.__setattr__(self, "buckets", bucket_places(self.buckets))
        ready_s = np.array(self.ready_s, dtype=np.float64)
        if ready_s.ndim != 2 or np.isinf(ready_s).any():
            raise ValueError(f"ready_s must have a time or nan a rank and parameter, got shape {ready_s.shape}")
        ready_s.flags.writeable = False
        object.__setattr__(self, "ready_s", ready_s)
        of_type("timeline", self.timeline, Timeline)


@dataclass(frozen=True, eq=False)
class DDPRun:
    """Steps of DDP: the seconds of each iteration, the slowest rank's, and what was seen in it.

    `parameters` are those that get gradients, in the order of ``module.parameters()``. `provenance` says where it was
    run, as a Profile's does, and `setting` with which options. `clean` says of each iteration that the host took no
    time meanwhile. `steps` has one for each iteration, or none where nothing was observed.

    Raises ValueError for what no run can have given.
    """

    provenance: Mapping[str, Any]
    setting: Mapping[str, Any]
    parameters: tuple[ParameterSpec, ...]
    step_s: tuple[float, ...]
    clean: tuple[bool, ...]
    steps: tuple[ObservedStep, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "provenance", checked_provenance("provenance", self.provenance))
        if not isinstance(self.setting, Mapping) or set(self.setting) != set(SETTING):
            raise ValueError(f"setting must say {', '.join(SETTING)} and nothing else, got {self.setting!r}")
        setting = {name: check(name, self.setting[name]) for name, check in SETTING.items()}
        object.__setattr__(self, "setting", ReadOnly(setting))
        object.__setattr__(self, "parameters", tuple(of_type("parameters", p, ParameterSpec) for p in self.parameters))
        object.__setattr__(self, "step_s", tuple(number("step_s", one, 0) for one in self.step_s))
        object.__setattr__(self, "clean", tuple(truth("clean", one) for one in self.clean))
        object.__setattr__(self, "steps", tuple(of_type("steps", one, ObservedStep) for one in self.steps))
        if not self.step_s or len(self.clean) != len(self.step_s):
            raise ValueError(f"clean must have a word on each of {len(self.step_s)} iterations, got {len(self.clean)}")
        if self.steps and len(self.steps) != len(self.step_s):
            raise ValueError(f"steps must be none or {len(self.step_s)}, one an iteration, got {len(self.steps)}")
        shape = (self.num_ranks, len(self.parameters))
        for step in self.steps:
            if step.ready_s.shape != shape:
                raise ValueError(f"ready_s must be of {shape} ranks and parameters, got {step.ready_s.shape}")
            if sorted(place for bucket in step.buckets for place in bucket) != list(range(shape[1])):
                raise ValueError(f"buckets must hold each of {shape[1]} parameters once, got {step.buckets}")

    def __repr__(self) -> str:
        what = f"{len(self.parameters)} parameters, {self.num_ranks} ranks, {len(self.step_s)} iterations"
        return f"<DDPRun: {what}, {self.median_s:.3g} s>"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DDPRun:
        """Read a run that `save` wrote, the same again. Raises ValueError, in one line, for any other file."""
        from .ddp_file import read

        return read(path)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the run as JSON, whole or not at all. Raises OSError where that cannot be."""
        from .ddp_file import write

        return write(self, path)

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @cached_property
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

    @property
    def buckets(self) -> Buckets:
        """The buckets of the last iteration, in launch order: those that DDP stays with."""
        return self._observed()[-1].buckets

    @property
    def ready_s(self) -> Seconds:
        """When each gradient was ready on its last rank, from the start of the backward: medians over iterations."""
        steps = self._observed()
        last_s = np.array([steps[place].ready_s.max(axis=0) for place in self.used])
        return np.asarray(np.median(last_s, axis=0))

    def timeline(self, iteration: int | None = None) -> Timeline:
        """Return what all ranks did in an iteration, by default in the one of median length; for one: ``.select(0)``.

        Raises ValueError where nothing was observed.
        """
        steps = self._observed()
        if iteration is not None:
            return steps[whole("iteration", iteration, 0, len(steps) - 1)].timeline
        return steps[min(self.used, key=lambda place: abs(self.step_s[place] - self.median_s))].timeline

    def overlapped(self) -> OverlappedStep:
        """Return what `fit_contention` asks for: the medians of the backward, the ranks' mean, and of the step.

        Raises ValueError for steps of several micro-batches, and where nothing was observed.
        """
        if self.setting["accumulation"] > 1:
            raise ValueError(f"accumulation must be 1 to fit contention, got {self.setting['accumulation']}")
        steps, share = self._observed(), 1 / self.num_ranks
        last = [steps[place].timeline.select(kind="backward") for place in self.used]
        took_s = [share * float((one.stop_s - one.start_s).sum()) for one in last]
        backward_s = np.median(took_s)
        return OverlappedStep(self.buckets, float(backward_s), self.median_s)

    def local_step(self) -> LocalStep:
        """Return what a rank's step takes by itself; of each event the slowest rank counts, then the median iteration.

        It says what a rank would do without the others only of a run with ``communicate=False``.
        """
        took_s = {
            kind: float(np.median([end_s - begin_s for begin_s, end_s in self._spanned(kind)]))
            for kind in ("forward", "unpack", "optimizer")
        }
        ready_s = self.ready_s
        return LocalStep(
            parameters=self.parameters,
            ready_s=ready_s,
            forward_s=took_s["forward"],
            backward_s=float(np.nanmax(ready_s, initial=0.0)),
            optimizer_s=took_s["optimizer"],
            unpack_s=took_s["unpack"],
        )

    def _spanned(self, kind: str) -> list[tuple[float, float]]:
        """When the last rank begins and ends the last span of a kind in each iteration used; (0, 0) without any."""
        found = []
        for place in self.used:
            spans = self._observed()[place].timeline.select(kind=kind)
            last = spans.select(item=int(spans.item.max(initial=-1)))
            found.append((float(last.start_s.max(initial=0.0)), float(last.stop_s.max(initial=0.0))))
        return found

    def _observed(self) -> tuple[ObservedStep, ...]:
        if not self.steps:
            raise ValueError("nothing was observed in this run: measure it with observe=True")
        return self.steps


def joined(runs: Sequence[DDPRun]) -> DDPRun:
    """Return the iterations of several runs of the same module in the same setting as one run.

    Raises ValueError for runs that differ.
    """
    first = runs[0]
    for run in runs:
        if (run.parameters, run.setting, run.num_ranks) != (first.parameters, first.setting, first.num_ranks):
            raise ValueError(f"runs must be of one module, setting and number of ranks, got {first!r} and {run!r}")
        if first.steps and run.steps and run.buckets != first.buckets:
            raise ValueError(f"runs must end with the same buckets, got {first.buckets} and {run.buckets}")
    parts = (sum((getattr(run, name) for run in runs), ()) for name in ("step_s", "clean", "steps"))
    return DDPRun(first.provenance, first.setting, first.parameters, *parts)
