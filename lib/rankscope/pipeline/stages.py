"""`Stage` and `Pipeline`: the path of a batch as plain values, which `simulate` predicts and `run` executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from ..common.checks import function, of_type, truth, whole
from ..common.frozen import checked, each, frozen, optional
from ..timeline.timeline import WAITS, Timeline
from .items import Items
from .service import Distribution, Seconds, Service, check, check_times, draw

MOST_STAGES = 128  # each waits for the one before it within one call: Python's own stack ends at about 1,000


def _word(name: str, value: Any) -> str:
    if not (isinstance(value, str) and value) or value in WAITS:
        raise ValueError(f"a stage's name must be a word, and none of {', '.join(WAITS)}; got {value!r}")
    return value


@frozen(eq=False)
class Stage:
    """One kind of work on each item, done by `num_workers` at once, and the queue in which its results wait.

    `service_s` is how long it takes: seconds, a list of times that is looked up by the item's number, a distribution
    (`Lognormal`, or any object with a `mean_s` and a `draw`) or a function of the item: of its number
    or, where an `Assignment` passes, of the index or of the batch's indices. `fn` does the work: it takes what the
    stage before gave and returns what the next one takes. A model needs `service_s`, a run needs either: without `fn`
    it sleeps.

    `capacity` results wait for the next stage at most. A worker whose result finds no room keeps it, and starts nothing
    new meanwhile. `ordered` stages hand on in the order in which they took the items, so that a worker that is done
    early waits for its turn; others hand on whatever is done. With `processes` the workers are processes instead of
    threads: for work that holds Python's interpreter lock.

    Raises ValueError for a stage without a name, with neither `service_s` nor `fn`, and for numbers out of range.
    """

    name: str = checked(_word)
    service_s: Service | None = checked(optional, check, default=None)
    fn: Callable[[Any], Any] | None = checked(optional, function, default=None)
    num_workers: int = checked(whole, 1, 4096, default=1)
    capacity: int = checked(whole, 1, 1_000_000, default=2)
    ordered: bool = checked(truth, default=True)
    processes: bool = checked(truth, default=False)

    def __attrs_post_init__(self) -> None:
        if self.service_s is None and self.fn is None:
            raise ValueError(f"stage {self.name!r} must have a service_s, a fn or both")

    @property
    def mean_s(self) -> float:
        """The mean time of an item, of a function over items 0 … 999; raises ValueError where only a `fn` is known."""
        service_s = self.known_service_s
        if isinstance(service_s, Distribution):
            return service_s.mean_s
        several = draw(f"service_s of stage {self.name!r}", service_s, 1000) if callable(service_s) else service_s
        return float(np.mean(several))

    @property
    def known_service_s(self) -> Service:
        """`service_s`; raises ValueError where there is none."""
        if self.service_s is None:
            raise ValueError(f"stage {self.name!r} has no service_s: run it, and ask Pipeline.measured for it")
        return self.service_s

    def times_s(self, items: Items, *stream: int) -> Seconds:
        """Return how long each of a rank's items takes, the same each time for the same `stream` (seed, rank, place).

        Raises ValueError where the times are not known, too few, negative or not finite.
        """
        name, service_s = f"service_s of stage {self.name!r}", self.known_service_s
        if isinstance(service_s, Distribution | float):
            return draw(name, service_s, len(items.values), *stream)
        if callable(service_s):
            return check_times(name, [service_s(value) for value in items.values])
        most = int(items.numbers.max(initial=-1)) + 1
        return draw(name, service_s, most)[items.numbers]

    def lanes(self) -> list[str]:
        """Return the names of its workers' lanes in a timeline.

        >>> Stage("read", 0.01).lanes(), Stage("decode", 0.03, num_workers=2).lanes()
        (['read'], ['decode 0', 'decode 1'])
        """
        return [self.name] if self.num_workers == 1 else [f"{self.name} {worker}" for worker in range(self.num_workers)]


def _stages(name: str, value: Any) -> tuple[Stage, ...]:
    stages = each(name, value, Stage)
    whole("number of stages", len(stages), 1, MOST_STAGES)
    names = {"name": [stage.name for stage in stages], "lane": [lane for stage in stages for lane in stage.lanes()]}
    for what, words in names.items():
        twice = next((word for word, times in Counter(words).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"stages must differ in {what}, got {twice!r} twice")
    return stages


@frozen(eq=False)
class Pipeline:
    """Stages in the order in which an item passes them.

    Raises ValueError for none, and for two of one name or with a lane of one name.

    >>> path = Pipeline([Stage("read", 0.010), Stage("decode", 0.030, num_workers=2), Stage("train", 0.012)])
    >>> path.bottleneck, round(path.bound_per_s, 1)
    ('decode', 66.7)
    >>> path.changed("decode", num_workers=3).bottleneck
    'train'
    """

    stages: Sequence[Stage] = checked(_stages)

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name; raises KeyError for a name that does not exist."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"stages are {', '.join(stage.name for stage in self.stages)}; got {name!r}")

    def changed(self, name: str, **changes: Any) -> Pipeline:
        """Return a pipeline in which one stage is different, `num_workers=4` say; the question "what if"."""
        changed = attrs.evolve(self[name], **changes)  # type: ignore[misc]
        return Pipeline([changed if stage.name == name else stage for stage in self.stages])

    def bounds_per_s(self) -> dict[str, float]:
        """Return for each stage the items per second that it could deliver if it never waited: workers / mean time."""
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
        stages = []
        for stage in self.stages:
            spans = timeline.select(kind=stage.name)
            order = np.argsort(spans.item, kind="stable")
            if not len(spans) or not np.array_equal(spans.item[order], np.arange(len(spans))):
                found = f"{stage.name!r} for each item from 0, got {len(spans)} spans"
                raise ValueError(f"a timeline must have one span of {found}")
            times_s = (spans.stop_s - spans.start_s)[order]
            stages.append(attrs.evolve(stage, service_s=times_s))  # type: ignore[misc]
        return Pipeline(stages)


def check_lockstep(pipeline: Pipeline, num_ranks: int) -> None:
    """Raise ValueError where several ranks cannot keep lock-step in the last stage."""
    last = pipeline.stages[-1]
    if num_ranks > 1 and last.num_workers > 1:
        raise ValueError(f"in lock-step the last stage must have 1 worker, got {last.num_workers} for {last.name!r}")
