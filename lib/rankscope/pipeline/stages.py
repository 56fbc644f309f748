"""`Stage` and `Pipeline`: the road of a batch as plain values, which `simulate` predicts and `run` executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..timeline.timeline import WAITS, Timeline
from ..values.checks import of_type, truth, whole
from .service import Service, check, mean_s

_MOST = {"num_workers": 4096, "capacity": 1_000_000}  # what a run can start, and count places for


@dataclass(frozen=True, eq=False)
class Stage:
    """One kind of work on each item, done by `num_workers` at once, and the queue in which its results wait.

    `service_s` is how long it takes: seconds, one number for each item, a distribution (`Lognormal`, `Exponential`,
    `Uniform`, `Measured`) or a function of the item's number. `fn` does the work: it takes what the stage before gave
    and returns what the next one takes. A model needs `service_s`, a run needs either: without `fn` it sleeps.

    `capacity` results wait for the next stage at most. A worker whose result finds no room keeps it, and starts nothing
    new meanwhile. `ordered` stages hand on in the order in which they took the items, so that a worker that is done
    early waits for its turn; others hand on whatever is done. With `processes` the workers are processes instead of
    threads: for work that holds Python's interpreter lock.

    Raises ValueError for a stage without a name, with neither `service_s` nor `fn`, and for numbers out of range.
    """

    name: str
    service_s: Service | None = None
    fn: Callable[[Any], Any] | None = None
    num_workers: int = 1
    capacity: int = 2
    ordered: bool = True
    processes: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name) or self.name in WAITS:
            raise ValueError(f"a stage's name must be a word, and none of {', '.join(WAITS)}; got {self.name!r}")
        if self.service_s is None and self.fn is None:
            raise ValueError(f"stage {self.name!r} must have a service_s, a fn or both")
        if self.service_s is not None:
            object.__setattr__(self, "service_s", check(f"service_s of stage {self.name!r}", self.service_s))
        if self.fn is not None and not callable(self.fn):
            raise ValueError(f"fn of stage {self.name!r} must be a function, got {self.fn!r}")
        for field, most in _MOST.items():
            object.__setattr__(self, field, whole(f"{field} of stage {self.name!r}", getattr(self, field), 1, most))
        for field in ("ordered", "processes"):
            object.__setattr__(self, field, truth(f"{field} of stage {self.name!r}", getattr(self, field)))

    @property
    def mean_s(self) -> float:
        """The mean time of an item; raises ValueError where only a `fn` is known."""
        return mean_s(f"service_s of stage {self.name!r}", self.known_service_s)

    @property
    def known_service_s(self) -> Service:
        """`service_s`; raises ValueError where there is none."""
        if self.service_s is None:
            raise ValueError(f"stage {self.name!r} has no service_s: run it, and ask Pipeline.measured for it")
        return self.service_s

    def lanes(self) -> list[str]:
        """Return the names of its workers' lanes in a timeline.

        >>> Stage("read", 0.01).lanes(), Stage("decode", 0.03, num_workers=2).lanes()
        (['read'], ['decode 0', 'decode 1'])
        """
        return [self.name] if self.num_workers == 1 else [f"{self.name} {worker}" for worker in range(self.num_workers)]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages in the order in which an item passes them.

    Raises ValueError for none, and for two of one name or with a lane of one name.

    >>> road = Pipeline([Stage("read", 0.010), Stage("decode", 0.030, num_workers=2), Stage("train", 0.012)])
    >>> road.bottleneck, round(road.bound_per_s, 1)
    ('decode', 66.7)
    >>> road.changed("decode", num_workers=3).bottleneck
    'train'
    """

    stages: tuple[Stage, ...]

    def __init__(self, stages: Sequence[Stage]) -> None:
        if not isinstance(stages, Iterable):
            given = type(stages).__name__
            raise ValueError(f"a pipeline must be a list of one Stage or more, got a {given} outside any list")
        stages = tuple(stages)
        wrong = [stage for stage in stages if not isinstance(stage, Stage)]
        if not stages or wrong:
            raise ValueError(f"a pipeline must be a list of one Stage or more, got {wrong[0] if stages else 'none'!r}")
        names = [[stage.name for stage in stages], [lane for stage in stages for lane in stage.lanes()]]
        for what, words in zip(("name", "lane"), names, strict=True):
            twice = next((word for word, times in Counter(words).items() if times > 1), None)
            if twice is not None:
                raise ValueError(f"stages must differ in {what}, got {twice!r} twice")
        object.__setattr__(self, "stages", stages)

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name; raises KeyError for a name that does not exist."""
        return next((stage for stage in self.stages if stage.name == name), None) or _missing(name, self.stages)

    def changed(self, name: str, **changes: Any) -> Pipeline:
        """Return a pipeline in which one stage is different, `num_workers=4` say; the question "what if"."""
        self[name]
        return Pipeline([replace(stage, **changes) if stage.name == name else stage for stage in self.stages])

    def bounds_per_s(self) -> dict[str, float]:
        """Return for each stage the items a second that it could deliver if it never waited: workers / mean time."""
        with np.errstate(divide="ignore"):
            return {stage.name: float(stage.num_workers / np.float64(stage.mean_s)) for stage in self.stages}

    @property
    def bound_per_s(self) -> float:
        """Items a second that the pipeline can deliver at best: what its slowest stage can."""
        return min(self.bounds_per_s().values())

    @property
    def bottleneck(self) -> str:
        """The name of the stage that bounds the others; of several equal ones the first."""
        bounds = self.bounds_per_s()
        return min(bounds, key=lambda name: bounds[name])

    def measured(self, timeline: Timeline) -> Pipeline:
        """Return the same pipeline with the service times that a run of it took, each item's own.

        Raises ValueError for a stage of which the timeline has no span, or not one of each item from 0 onwards.
        """
        of_type("timeline", timeline, Timeline)
        return Pipeline([replace(stage, service_s=_times(stage.name, timeline)) for stage in self.stages])


def _times(name: str, timeline: Timeline) -> list[float]:
    spans = timeline.select(kind=name)
    order = np.argsort(spans.item, kind="stable")
    if not len(spans) or not np.array_equal(spans.item[order], np.arange(len(spans))):
        raise ValueError(f"a timeline must have one span of {name!r} for each item from 0, got {len(spans)} spans")
    return [float(seconds) for seconds in (spans.stop_s - spans.start_s)[order]]


def _missing(name: str, stages: Sequence[Stage]) -> Stage:
    raise KeyError(f"stages are {', '.join(stage.name for stage in stages)}; got {name!r}")
