"""`Stage` and `Pipeline`: the path of a batch as plain values, which `simulate` predicts and `run` executes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ...common.checks import check_field, each, function, of_type, one_of, optional, truth, whole
from ...timeline.timeline import WAITS
from ..service import Seconds, Service, check, draw


def _word(name: str, value: Any) -> str:
    if not (isinstance(value, str) and value) or value in WAITS:
        raise ValueError(f"a stage's name must be a word, and none of {', '.join(WAITS)}; got {value!r}")
    return value


class Stage(msgspec.Struct, frozen=True, eq=False):
    """A kind of work on each item, done by `num_workers` workers, and the queue in which its results wait.

    `service_s` is the time of an item: seconds, a list of times by the item's number, or a `Lognormal`. `fn` does the
    work: its argument is the result of the previous stage, and its result goes to the next stage. Simulating a stage
    requires `service_s`; running it requires either of the two, because it sleeps if `fn` is None.

    At most `capacity` results wait for the next stage. If the queue is full, the worker keeps its result and starts
    nothing new until there is space. `ordered` stages hand items on in the order in which they received them, so a
    worker that finishes early waits for its turn; other stages hand on each item as soon as it is done.

    With a `batch_size`, a worker collects so many results of the previous stage, or what is left at the end, and passes
    them to `fn` as a list; `service_s` is then the time of a batch. From there on, the items are batches, numbered in
    the order in which they were collected.

    Raises ValueError if the stage has no name, if both `service_s` and `fn` are None, or if a number is out of range.
    """

    name: str
    service_s: Service | None = None
    fn: Callable[[Any], Any] | None = None
    num_workers: int = 1
    capacity: int = 2
    ordered: bool = True
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_field(self, "name", _word)
        check_field(self, "service_s", optional, check)
        check_field(self, "fn", optional, function)
        check_field(self, "num_workers", whole, 1)
        check_field(self, "capacity", whole, 1)
        check_field(self, "ordered", truth)
        check_field(self, "batch_size", optional, whole, 1)
        if self.service_s is None and self.fn is None:
            raise ValueError(f"stage {self.name!r} must have a service_s, a fn or both")

    @property
    def mean_s(self) -> float:
        """The mean time of an item. Raises ValueError if `service_s` is None."""
        service_s: Any = check(f"service_s of stage {self.name!r}", self.service_s)
        return float(np.mean(getattr(service_s, "mean_s", service_s)))

    def times_s(self, num_items: int, *stream: int) -> Seconds:
        """Return the times of items 0, 1, … in seconds. They depend only on `stream` (seed, rank, position).

        Raises ValueError if the times are unknown or too few.
        """
        return draw(f"service_s of stage {self.name!r}", self.service_s, num_items, *stream)

    def num_results(self, num_items: int) -> int:
        """Return how many results so many items have: one each, or one for each batch.

        >>> Stage("collate", 0.01, batch_size=4).num_results(9)
        3
        """
        return -(-num_items // (self.batch_size or 1))

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
    if not stages:
        raise ValueError("stages must be at least one, got none")
    # With one worker, the lane has the name of the stage.
    words = [word for stage in stages for word in {stage.name, *stage.lanes()}]
    if len(set(words)) < len(words):
        raise ValueError(f"stages must differ in their names and lanes, got {words}")
    return stages


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

        Raises ValueError for a stage that does not exist.
        """
        stages = {stage.name: stage for stage in self.stages}
        one_of("name", name, tuple(stages))
        stages[name] = replace(stages[name], **changes)
        return Pipeline(list(stages.values()))

    def bounds_per_s(self) -> dict[str, float]:
        """Return the rate of each stage if it never waited, in items of the first stage per second."""
        bounds = {}
        items_each = 1  # which a result stands for
        for stage in self.stages:
            items_each *= stage.batch_size or 1
            bounds[stage.name] = items_each * stage.num_workers / stage.mean_s if stage.mean_s else math.inf
        return bounds

    @property
    def bound_per_s(self) -> float:
        """The upper bound on the pipeline's rate in items per second, which is the rate of its slowest stage."""
        return min(self.bounds_per_s().values())

    @property
    def bottleneck(self) -> str:
        """The name of the stage with the lowest bound, or of the first one if several share it."""
        bounds = self.bounds_per_s()
        return min(bounds, key=lambda name: bounds[name])
