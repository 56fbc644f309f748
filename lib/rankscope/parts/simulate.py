"""Part files simulated: trainers in lock-step that load parts themselves, or wait for loaders to load them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..common.checks import is_scalar, number, of_type, optional, whole
from ..pipeline.service import Service, check, check_times, draw
from ..sampling.permutation import SEEDS
from ..timeline import Span, Timeline

TRAINER = "trainer"  # the lane of a trainer
# Different, so that drawn times of loading and of steps are independent.
_LOAD_STREAM = 0
_STEP_STREAM = 1


def loader_lane(loader: int) -> str:
    return f"loader {loader}"


def parts_ahead(queue_size: int, num_loaders: int) -> int:
    """Return the number of parts that are loaded or being loaded before the trainer takes the first of them.

    These are those in the queue and one per loader, rounded up to the same number for each loader.

    >>> parts_ahead(1, 1), parts_ahead(2, 2), parts_ahead(1, 3)
    (2, 4, 6)
    """
    queued_per_loader = -(-queue_size // num_loaders)  # rounded up
    return num_loaders * (queued_per_loader + 1)


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
    """Simulate trainers that take steps together, each on the parts of its own shard, and return the timeline.

    `load_s` is the time to load a part, and `steps_per_part` the number of steps on a part. At least one of them must
    be nested: one list per trainer, with one value per part. The other one may be a `Service` or an int for all parts;
    each trainer then draws its own times. `step_s` is the time of each trainer's steps 0, 1, ….

    If `queue_size` is None, a trainer loads its parts itself (`SyncPartDataset`), as spans of kind "load" on lane
    "trainer". If it is a number, loaders load ahead (`AsyncPartDataset`). Loader n modulo `num_loaders` then loads part
    n, once it has loaded its previous part and the trainer has taken the part that is
    ``parts_ahead(queue_size, num_loaders)`` parts earlier. A trainer's other kinds are "wait" for a part, "barrier" for
    the other trainers and "step". The all-reduce before each step and at the end takes `barrier_s`. A trainer without
    batches does not delay the others.

    Raises ValueError if a number is out of range, a time is negative, or `load_s` and `steps_per_part` have different
    shards.

    >>> spans = simulate([[1.0, 1.0]], 2, 0.5, queue_size=1).select(lane="trainer", kind="wait")
    >>> [(span.item, span.start_s, span.stop_s) for span in spans]
    [(0, 0.0, 1.0), (1, 2.0, 2.0)]
    """
    spans, _ = _play(load_s, steps_per_part, step_s, queue_size, num_loaders, barrier_s, seed)
    return Timeline.of(sorted(spans, key=_by_lane))


def simulated_idle_share(load_s: Any, steps_per_part: Any, step_s: Service, **options: Any) -> float:
    """Return the `idle_share` of what `simulate` returns, in half the time, because it makes no timeline.

    >>> simulated_idle_share([[1.0]], 1, 3.0)
    0.25
    """
    spans, num_trainers = _play(load_s, steps_per_part, step_s, **options)
    busy_s = sum(span.stop_s - span.start_s for span in spans if span.kind == "step")
    end_s = max(span.stop_s for span in spans)  # the makespan, because the first span starts at 0
    if end_s == 0:
        return 0.0
    return 1.0 - busy_s / num_trainers / end_s


def idle_share(timeline: Timeline) -> float:
    """Return the mean share of the makespan during which a trainer is not in a step, or 0 if there are no trainers.

    >>> idle_share(simulate([[1.0]], 1, 3.0))
    0.25
    """
    of_type("timeline", timeline, Timeline)
    ranks = np.unique(timeline.select(lane=TRAINER).rank)
    steps = timeline.select(lane=TRAINER, kind="step")
    busy_s = [steps.select(rank=int(rank)).busy_s for rank in ranks]
    if not busy_s or not timeline.makespan_s:
        return 0.0
    return 1.0 - float(np.mean(busy_s)) / timeline.makespan_s


def _by_lane(span: Span) -> tuple[int, bool, str, float, float]:
    """Return a key that sorts by rank, and puts a rank's trainer before its loaders."""
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
    """Let all trainers go through their parts; return the spans, in any order, and the number of trainers."""
    num_loaders = whole("num_loaders", num_loaders, 1)
    queue_size = optional("queue_size", queue_size, whole, 1)
    seed = whole("seed", seed, *SEEDS)
    shards = _shards(load_s, steps_per_part, seed)
    barrier_s = number("barrier_s", barrier_s, 0)
    step_times_s = []
    for rank, shard in enumerate(shards):
        times_s = draw("step_s", step_s, sum(shard.num_steps), seed, rank, _STEP_STREAM)
        step_times_s.append(times_s.tolist())
    spans: list[Span] = []
    batches_of_ranks = []
    for rank, shard in enumerate(shards):
        if queue_size is None:
            batches_of_ranks.append(_synchronous(rank, shard, spans))
        else:
            batches_of_ranks.append(_asynchronous(rank, shard, spans, queue_size, num_loaders))
    _keep_step(batches_of_ranks, step_times_s, barrier_s, spans)
    return spans, len(shards)


class _Shard(NamedTuple):
    """The seconds to load each part of a trainer, and the number of steps on it."""

    load_s: list[float]
    num_steps: list[int]


# The batches of one trainer: a generator that receives the time at which the trainer asks for a batch, and yields the
# time at which it has one. It returns the time at which it knows that there are no more.
_Batches: TypeAlias = Generator[float, float, float]


def _synchronous(rank: int, shard: _Shard, spans: list[Span]) -> _Batches:
    """Return the batches of a trainer that loads each part itself."""
    now_s = yield 0.0  # runs up to here before the first time is sent
    for part, (load_s, num_steps) in enumerate(zip(shard.load_s, shard.num_steps, strict=True)):
        spans.append(Span(rank, TRAINER, "load", part, now_s, now_s + load_s))
        now_s += load_s
        for _ in range(num_steps):
            now_s = yield now_s
    return now_s


def _asynchronous(rank: int, shard: _Shard, spans: list[Span], queue_size: int, num_loaders: int) -> _Batches:
    """Return the batches of a trainer whose loaders load parts ahead of it."""
    num_ahead = parts_ahead(queue_size, num_loaders)
    loaded_s: list[float] = []  # of each part
    taken_s: list[float] = []  # of each part, by the trainer
    now_s = yield 0.0  # runs up to here before the first time is sent
    for part, (load_s, num_steps) in enumerate(zip(shard.load_s, shard.num_steps, strict=True)):
        loader_free_s = 0.0  # when its loader has loaded its previous part
        if part >= num_loaders:
            loader_free_s = loaded_s[part - num_loaders]
        space_s = 0.0  # when the trainer has taken the part that leaves space for this one
        if part >= num_ahead:
            space_s = taken_s[part - num_ahead]
        start_s = max(loader_free_s, space_s)
        stop_s = start_s + load_s
        spans.append(Span(rank, loader_lane(part % num_loaders), "load", part, start_s, stop_s))
        loaded_s.append(stop_s)
        part_taken_s = max(now_s, stop_s)
        taken_s.append(part_taken_s)
        spans.append(Span(rank, TRAINER, "wait", part, now_s, part_taken_s))
        now_s = part_taken_s
        for _ in range(num_steps):
            now_s = yield now_s
    return now_s


def _keep_step(
    batches_of_ranks: list[_Batches], step_times_s: list[list[float]], barrier_s: float, spans: list[Span]
) -> None:
    """Let all trainers take their steps together, and append the spans of barriers and steps.

    A trainer that has no batch goes to the barrier at once.
    """
    num_ranks = len(batches_of_ranks)
    free_s = [0.0] * num_ranks  # of each rank: when its last step ended
    for batches in batches_of_ranks:
        next(batches)  # runs to where it receives the first time
    ranks_with_batches = set(range(num_ranks))
    for step in count():
        at_barrier_s = list(free_s)
        for rank in sorted(ranks_with_batches):  # a copy, because ranks without a batch are removed
            try:
                at_barrier_s[rank] = batches_of_ranks[rank].send(free_s[rank])
            except StopIteration as end:  # there is no batch for this step
                at_barrier_s[rank] = end.value
                ranks_with_batches.discard(rank)
        begin_s = max(at_barrier_s) + barrier_s
        for rank, arrival_s in enumerate(at_barrier_s):
            spans.append(Span(rank, TRAINER, "barrier", step, arrival_s, begin_s))
            free_s[rank] = begin_s
            if rank in ranks_with_batches:
                free_s[rank] += step_times_s[rank][step]
                spans.append(Span(rank, TRAINER, "step", step, begin_s, free_s[rank]))
        if not ranks_with_batches:  # trainers learn that at one more barrier, as in `in_step`
            return


def _shards(load_s: Any, steps_per_part: Any, seed: int) -> list[_Shard]:
    """Return the shard of each trainer; each argument is a list for each trainer, or what all trainers share."""
    loads = None  # of each trainer, the times of its parts; None until they are drawn
    if _is_nested(load_s):
        loads = [check_times(f"load_s[{rank}]", times_s).tolist() for rank, times_s in enumerate(load_s)]
    else:
        check("load_s", load_s)  # the times are drawn below, once the number of parts is known
    if _is_nested(steps_per_part):
        steps = []
        for rank, counts in enumerate(steps_per_part):
            steps.append([whole(f"steps_per_part[{rank}][{part}]", num, 0) for part, num in enumerate(counts)])
    elif loads is None:
        raise ValueError(
            f"load_s or steps_per_part must be a list for each trainer, got {load_s!r} and {steps_per_part!r}"
        )
    else:
        steps_of_each = whole("steps_per_part", steps_per_part, 0)
        steps = [[steps_of_each] * len(times_s) for times_s in loads]
    if loads is None:
        loads = []
        for rank, counts in enumerate(steps):
            loads.append(draw("load_s", load_s, len(counts), seed, rank, _LOAD_STREAM).tolist())
    num_parts_of_loads = [len(times_s) for times_s in loads]  # by trainer, as below
    num_parts_of_steps = [len(counts) for counts in steps]
    if num_parts_of_loads != num_parts_of_steps or not loads:
        got = f"got {num_parts_of_loads} and {num_parts_of_steps}"
        raise ValueError(f"load_s and steps_per_part must have the same parts, of one trainer or more; {got}")
    return [_Shard(times_s, counts) for times_s, counts in zip(loads, steps, strict=True)]


def _is_nested(values: Any) -> bool:
    """Whether this is a list for each trainer."""
    if not isinstance(values, Sequence | np.ndarray) or is_scalar(values):
        return False
    return all(isinstance(item, Sequence | np.ndarray) for item in values)
