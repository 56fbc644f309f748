"""`Stage` and `Pipeline`: the path of a batch as plain values, which `simulate` predicts and `run` executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ..common.checks import check_field, each, function, of_type, optional, truth, whole
from ..timeline.timeline import WAITS
from .items import Items
from .service import Distribution, Seconds, Service, check, check_times, draw

_MOST_STAGES = 128  # a simulated stage calls the one before it, and Python's stack ends at about 1,000 calls
_ITEMS_FOR_MEAN = 1000  # over which a function's mean time is computed


def _word(name: str, value: Any) -> str:
    if not (isinstance(value, str) and value) or value in WAITS:
        raise ValueError(f"a stage's name must be a word, and none of {', '.join(WAITS)}; got {value!r}")
    return value


class Stage(msgspec.Struct, frozen=True, eq=False):
    """A kind of work on each item, done by `num_workers` workers, and the queue in which its results wait.

    `service_s` is the time of an item: seconds, a list of times by the item's number, a distribution (`Lognormal`, or
    any object with a `mean_s` and a `draw`) or a function of the item. The function's argument is the item's number or,
    if the items come from an `Assignment`, the index or the batch's indices. `fn` does the work: its argument is the
    result of the previous stage, and its result goes to the next stage. Simulating a stage requires `service_s`;
    running it requires either of the two, because it sleeps if `fn` is None.

    At most `capacity` results wait for the next stage. If the queue is full, the worker keeps its result and starts
    nothing new until there is space. `ordered` stages hand items on in the order in which they received them, so a
    worker that finishes early waits for its turn; other stages hand on each item as soon as it is done. If `processes`
    is true, the workers are processes instead of threads, for work that holds Python's interpreter lock.

    Raises ValueError if the stage has no name, if both `service_s` and `fn` are None, or if a number is out of range.
    """

    name: str
    service_s: Service | None = None
    fn: Callable[[Any], Any] | None = None
    num_workers: int = 1
    capacity: int = 2
    ordered: bool = True
    processes: bool = False

    def __post_init__(self) -> None:
        check_field(self, "name", _word)
        check_field(self, "service_s", optional, check)
        check_field(self, "fn", optional, function)
        check_field(self, "num_workers", whole, 1)
        check_field(self, "capacity", whole, 1)
        check_field(self, "ordered", truth)
        check_field(self, "processes", truth)
        if self.service_s is None and self.fn is None:
            raise ValueError(f"stage {self.name!r} must have a service_s, a fn or both")

    @property
    def mean_s(self) -> float:
        """The mean time of an item; for a function, of items 0 to 999. Raises ValueError if `service_s` is None."""
        name, service_s = self._named_service()
        if isinstance(service_s, Distribution):
            return service_s.mean_s
        if callable(service_s):
            service_s = draw(name, service_s, _ITEMS_FOR_MEAN)
        return float(np.mean(service_s))

    def times_s(self, items: Items, *stream: int) -> Seconds:
        """Return the times of a rank's items in seconds. They depend only on `stream` (seed, rank, position).

        Raises ValueError if the times are unknown, too few, negative or not finite.
        """
        name, service_s = self._named_service()
        if isinstance(service_s, Distribution | float):
            return draw(name, service_s, len(items.values), *stream)
        if callable(service_s):
            return check_times(name, [service_s(value) for value in items.values])
        num_times = int(items.numbers.max(initial=-1)) + 1  # a list has a time per number; 0 if there are no items
        return draw(name, service_s, num_times)[items.numbers]

    def _named_service(self) -> tuple[str, Service]:
        if self.service_s is None:
            raise ValueError(f"stage {self.name!r} must have a service_s to be simulated, got None")
        return f"service_s of stage {self.name!r}", self.service_s

    def lanes(self) -> list[str]:
        """Return the names of its workers' lanes in a timeline.

        >>> Stage("read", 0.01).lanes(), Stage("decode", 0.03, num_workers=2).lanes()
        (['read'], ['decode 0', 'decode 1'])
        """
        if self.num_workers == 1:
            return [self.name]
        return [f"{self.name} {worker}" for worker in range(self.num_workers)]


def _stages(name: str, value: Any) -> tuple[Stage, ...]:
    stages = each(name, value, of_type, Stage)
    whole("number of stages", len(stages), 1, _MOST_STAGES)
    _check_different("name", [stage.name for stage in stages])
    _check_different("lane", [lane for stage in stages for lane in stage.lanes()])
    return stages


def _check_different(what: str, words: list[str]) -> None:
    word, count = Counter(words).most_common(1)[0]
    if count > 1:
        raise ValueError(f"stages must differ in {what}, got {word!r} {count} times")


class Pipeline(msgspec.Struct, frozen=True, eq=False):
    """Stages in the order in which an item passes them.

    Raises ValueError if there is no stage, or if two stages have the same name or a lane of the same name.

    >>> path = Pipeline([Stage("read", 0.010), Stage("decode", 0.030, num_workers=2), Stage("train", 0.012)])
    >>> path.bottleneck, round(path.bound_per_s, 1)
    ('decode', 66.7)
    >>> path.changed("decode", num_workers=3).bottleneck
    'train'
    """

    stages: Sequence[Stage]

    def __post_init__(self) -> None:
        check_field(self, "stages", _stages)

    def changed(self, name: str, **changes: Any) -> Pipeline:
        """Return a pipeline with one stage changed, as by ``num_workers=4``, to answer "what if" questions.

        Raises KeyError for a stage that does not exist.
        """
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise KeyError(f"stages are {', '.join(names)}; got {name!r}")
        return Pipeline([replace(stage, **changes) if stage.name == name else stage for stage in self.stages])

    def bounds_per_s(self) -> dict[str, float]:
        """Return the rate of each stage in items per second if it never waited, which is workers / mean time."""
        with np.errstate(divide="ignore"):  # the rate of a stage that takes no time is infinite
            return {stage.name: float(stage.num_workers / np.float64(stage.mean_s)) for stage in self.stages}

    @property
    def bound_per_s(self) -> float:
        """The upper bound on the pipeline's rate in items per second, which is the rate of its slowest stage."""
        return min(self.bounds_per_s().values())

    @property
    def bottleneck(self) -> str:
        """The name of the stage with the lowest bound, or of the first one if several share it."""
        bounds = self.bounds_per_s()
        return min(bounds, key=lambda name: bounds[name])


def check_lockstep(pipeline: Pipeline, num_ranks: int) -> None:
    """Raise ValueError if several ranks cannot keep lock-step in the last stage."""
    last = pipeline.stages[-1]
    if num_ranks > 1 and last.num_workers > 1:
        raise ValueError(f"in lock-step the last stage must have 1 worker, got {last.num_workers} for {last.name!r}")
