"""Part files simulated: what trainers in lock-step wait for parts that they load themselves, or that loaders bring."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from ..common.checks import is_scalar, number, of_type, whole
from ..common.frozen import optional
from ..pipeline.service import Service, check, check_times, draw
from ..timeline import Span, Timeline

TRAINER = "trainer"  # the lane of what a trainer does
_SEEDS = (-(2**63), 2**64 - 1)


def loader_lane(loader: int) -> str:
    return f"loader {loader}"


def parts_ahead(queue_size: int, num_loaders: int) -> int:
    """Return how many parts are loaded or being loaded before the trainer takes the first of them.

    That is the queue and one for each loader, rounded up to the same number for each loader.

    >>> parts_ahead(1, 1), parts_ahead(2, 2), parts_ahead(1, 3)
    (2, 4, 6)
    """
    return num_loaders * (1 + -(-queue_size // num_loaders))


def simulate(
    load_s: Service | Sequence[Sequence[float]],
    steps_per_part: int | Sequence[Sequence[int]],
    step_s: Service,
    *,
    queue_size: int | None = None,
    num_loaders: int = 1,
    barrier_s: float = 0.0,
    seed: int = 0,
) -> Timeline:
    """Return what trainers do that take steps together, each on the parts of its own shard.

    Either `load_s` is a list for each trainer with the seconds that each of its parts takes to load, or
    `steps_per_part` is one with the steps that each lasts, or both; else an int or a `Service` holds for all, and each
    trainer draws times of its own. `step_s` gives the seconds of each trainer's steps 0, 1, ….

    With `queue_size` None a trainer loads its parts itself (`SyncPartDataset`): kind "load" on lane "trainer". With a
    number, loaders load ahead (`AsyncPartDataset`): loader n modulo `num_loaders` loads part n, once it has loaded its
    part before and the trainer has taken part n - `parts_ahead`. A trainer's other kinds are "wait" for a part,
    "barrier" for the other trainers and "step". Agreeing costs `barrier_s` before each step and at the end. A trainer
    without batches holds nobody up.

    Raises ValueError for numbers out of range, shards that do not fit each other, and times that are negative.

    >>> spans = simulate([[1.0, 1.0]], 2, 0.5, queue_size=1).select(lane="trainer", kind="wait")
    >>> [(span.item, span.start_s, span.stop_s) for span in spans]
    [(0, 0.0, 1.0), (1, 2.0, 2.0)]
    """
    spans, _ = _play(load_s, steps_per_part, step_s, queue_size, num_loaders, barrier_s, seed)
    return Timeline.of(sorted(spans, key=_by_lane))


def simulated_idle_share(load_s: Any, steps_per_part: Any, step_s: Service, **options: Any) -> float:
    """Return the `idle_share` of what `simulate` returns for the same, in half the time: without its timeline.

    >>> simulated_idle_share([[1.0]], 1, 3.0)
    0.25
    """
    spans, num_trainers = _play(load_s, steps_per_part, step_s, **options)
    busy_s = sum(span.stop_s - span.start_s for span in spans if span.kind == "step")
    end_s = max(span.stop_s for span in spans)
    return 1.0 - busy_s / num_trainers / end_s if end_s else 0.0


def idle_share(timeline: Timeline) -> float:
    """Return the share of the makespan in which a trainer takes no step: the mean over trainers, 0 for none.

    >>> idle_share(simulate([[1.0]], 1, 3.0))
    0.25
    """
    of_type("timeline", timeline, Timeline)
    ranks = np.unique(timeline.select(lane=TRAINER).rank)
    steps = timeline.select(lane=TRAINER, kind="step")
    busy_s = [steps.select(rank=int(rank)).busy_s for rank in ranks]
    return 1.0 - float(np.mean(busy_s)) / timeline.makespan_s if busy_s and timeline.makespan_s else 0.0


def _by_lane(span: Span) -> tuple[int, bool, str, float, float]:
    """Each rank's trainer first, then its loaders, in their order."""
    return span.rank, span.lane != TRAINER, span.lane, span.start_s, span.stop_s


def _play(
    load_s: Any,
    steps_per_part: Any,
    step_s: Any,
    queue_size: int | None = None,
    num_loaders: int = 1,
    barrier_s: float = 0.0,
    seed: int = 0,
) -> tuple[list[Span], int]:
    """Let all trainers go through their parts; return the spans, in any order, and how many trainers there are."""
    num_loaders, queue_size = whole("num_loaders", num_loaders, 1), optional("queue_size", queue_size, whole, 1)
    loads, steps = _shards(load_s, steps_per_part, whole("seed", seed, *_SEEDS))
    barrier_s = number("barrier_s", barrier_s, 0)
    times = [draw("step_s", step_s, sum(counts), seed, rank, 1).tolist() for rank, counts in enumerate(steps)]
    spans: list[Span] = []
    trainers = [
        _synchronous(*trainer, spans) if queue_size is None else _asynchronous(*trainer, spans, queue_size, num_loaders)
        for trainer in zip(range(len(loads)), loads, steps, strict=True)
    ]
    _keep_step(trainers, times, barrier_s, spans)
    return spans, len(trainers)


# A generator that is sent the time at which the trainer wants a batch, yields that at which it has one, and returns
# that at which it knows that there are no more.
_Trainer: TypeAlias = Generator[float, float, float]


def _synchronous(rank: int, loads: list[float], steps: list[int], spans: list[Span]) -> _Trainer:
    now = yield 0.0  # to be sent the first time
    for part, (seconds, lasting) in enumerate(zip(loads, steps, strict=True)):
        spans.append(Span(rank, TRAINER, "load", part, now, now + seconds))
        now += seconds
        for _ in range(lasting):
            now = yield now
    return now


def _asynchronous(
    rank: int, loads: list[float], steps: list[int], spans: list[Span], queue_size: int, num_loaders: int
) -> _Trainer:
    ahead = parts_ahead(queue_size, num_loaders)
    arrived: list[float] = []
    taken: list[float] = []
    now = yield 0.0  # to be sent the first time
    for part, (seconds, lasting) in enumerate(zip(loads, steps, strict=True)):
        free = arrived[part - num_loaders] if part >= num_loaders else 0.0
        room = taken[part - ahead] if part >= ahead else 0.0
        start = max(free, room)
        spans.append(Span(rank, loader_lane(part % num_loaders), "load", part, start, start + seconds))
        arrived.append(start + seconds)
        taken.append(max(now, arrived[-1]))
        spans.append(Span(rank, TRAINER, "wait", part, now, taken[-1]))
        now = taken[-1]
        for _ in range(lasting):
            now = yield now
    return now


def _keep_step(trainers: list[_Trainer], times: list[list[float]], barrier_s: float, spans: list[Span]) -> None:
    """Let all take their steps together; who has no batch comes to the barrier at once."""
    free = dict.fromkeys(range(len(trainers)), 0.0)
    for trainer in trainers:
        next(trainer)
    having = set(free)
    for step in count():
        ready = dict(free)
        for rank in sorted(having):
            try:
                ready[rank] = trainers[rank].send(free[rank])
            except StopIteration as end:
                ready[rank] = end.value
                having.discard(rank)
        together = max(ready.values()) + barrier_s
        for rank, since in ready.items():
            spans.append(Span(rank, TRAINER, "barrier", step, since, together))
            free[rank] = together + (times[rank][step] if rank in having else 0.0)
            if rank in having:
                spans.append(Span(rank, TRAINER, "step", step, together, free[rank]))
        if not having:
            return


def _shards(load_s: Any, steps_per_part: Any, seed: int) -> tuple[list[list[float]], list[list[int]]]:
    """Seconds and steps of each part of each trainer."""
    loads = None
    if _nested(load_s):
        loads = [check_times(f"load_s[{rank}]", shard).tolist() for rank, shard in enumerate(load_s)]
    else:
        check("load_s", load_s)
    if _nested(steps_per_part):
        steps = [
            [whole(f"steps_per_part[{rank}][{part}]", count, 0) for part, count in enumerate(shard)]
            for rank, shard in enumerate(steps_per_part)
        ]
    elif loads is None:
        raise ValueError(
            f"load_s or steps_per_part must be a list for each trainer, got {load_s!r} and {steps_per_part!r}"
        )
    else:
        each = whole("steps_per_part", steps_per_part, 0)
        steps = [[each] * len(shard) for shard in loads]
    if loads is None:
        loads = [draw("load_s", load_s, len(shard), seed, rank, 0).tolist() for rank, shard in enumerate(steps)]
    lengths = [len(shard) for shard in loads], [len(shard) for shard in steps]
    if lengths[0] != lengths[1] or not loads:
        given = f"got {lengths[0]} and {lengths[1]}"
        raise ValueError(f"load_s and steps_per_part must have the same parts, of one trainer or more; {given}")
    return loads, steps


def _nested(values: Any) -> bool:
    several = isinstance(values, Sequence | np.ndarray) and not is_scalar(values)
    return several and all(isinstance(v, Sequence | np.ndarray) for v in values)
