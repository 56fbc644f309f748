"""Part files simulated: trainers in lock-step that load parts themselves, or wait for loaders to load them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...common.checks import each, of_type, whole
from ...sampling.samplers.permutation import SEEDS
from ...timeline import Tape, Timeline
from ..service import Service, draw

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


def simulate_parts(
    load_s: Service | Sequence[Service],
    steps_per_part: Sequence[Sequence[int]],
    step_s: Service,
    *,
    queue_size: int | None = None,
    num_loaders: int = 1,
    seed: int = 0,
) -> Timeline:
    """Simulate trainers that take steps together, each on the parts of its own shard, and return the timeline.

    `steps_per_part` has a list for each trainer, with the number of steps on each of its parts. `load_s` is the time to
    load a part: a list has an entry for each trainer; of anything else, each trainer draws its own times. `step_s` is
    the time of each trainer's steps 0, 1, ….

    If `queue_size` is None, a trainer loads its parts itself (`SyncPartDataset`), as spans of kind "load" on lane
    "trainer". If it is a number, loaders load ahead (`AsyncPartDataset`). Loader n modulo `num_loaders` then loads part
    n, once it has loaded its previous part and the trainer has taken the part that is
    ``parts_ahead(queue_size, num_loaders)`` parts earlier. A trainer's other kinds are "wait" for a part, "barrier" for
    the other trainers and "step". A trainer without
    batches does not delay the others.

    Raises ValueError if a number is out of range, a time is negative, or `load_s` has fewer parts than
    `steps_per_part`.

    >>> spans = simulate_parts(1.0, [[2, 2]], 0.5, queue_size=1).select(lane="trainer", kind="wait")
    >>> [(span.item, span.start_s, span.stop_s) for span in spans]
    [(0, 0.0, 1.0), (1, 2.0, 2.0)]
    """
    num_loaders = whole("num_loaders", num_loaders, 1)
    num_ahead = None  # how many parts the loaders are ahead; None if trainers load their parts themselves
    lanes = [TRAINER]
    if queue_size is not None:
        num_ahead = parts_ahead(whole("queue_size", queue_size, 1), num_loaders)
        lanes += map(loader_lane, range(num_loaders))
    seed = whole("seed", seed, *SEEDS)
    counts_of_trainers = each("steps_per_part", steps_per_part, each, whole, 0)
    num_trainers = len(counts_of_trainers)
    loads: Any = load_s if isinstance(load_s, list) else [load_s] * num_trainers
    if not loads or len(loads) != num_trainers:
        counts = f"{len(loads)} and {num_trainers}"
        raise ValueError(f"load_s and steps_per_part must be of one trainer or more, got {counts}")
    tape = Tape()

    def steps_of(rank: int) -> Iterator[float]:
        """Yield the seconds of each step of a trainer; before its first step on a part, load that or wait for it."""
        counts = counts_of_trainers[rank]
        steps_s = iter(draw("step_s", step_s, sum(counts), seed, rank, _STEP_STREAM).tolist())
        loads_s: list[float] = []
        if counts:
            loads_s = draw(f"load_s[{rank}]", loads[rank], len(counts), seed, rank, _LOAD_STREAM).tolist()
        taken_s: list[float] = []  # when it has taken each part
        for part, (part_s, num_steps) in enumerate(zip(loads_s, counts, strict=True)):
            if num_ahead is None:
                tape.add(rank, TRAINER, "load", part, part_s)
            else:
                space_s = taken_s[part - num_ahead] if part >= num_ahead else 0.0
                loaded_s = tape.add(rank, loader_lane(part % num_loaders), "load", part, part_s, after_s=space_s)
                taken_s.append(tape.wait(rank, TRAINER, "wait", part, loaded_s))
            yield from islice(steps_s, num_steps)

    trainers = list(map(steps_of, range(num_trainers)))
    for step in range(max(map(sum, counts_of_trainers)) + 1):  # at one more barrier nobody has a batch
        seconds_of_steps = [next(trainer, None) for trainer in trainers]
        begin_s = max(tape.free_s[rank, TRAINER] for rank in range(num_trainers))
        for rank, seconds in enumerate(seconds_of_steps):
            tape.wait(rank, TRAINER, "barrier", step, begin_s)
            if seconds is not None:
                tape.add(rank, TRAINER, "step", step, seconds)
    return tape.timeline().named(lanes, ())


def idle_share(timeline: Timeline) -> float:
    """Return the mean share of the makespan during which a trainer is not in a step, or 0 if there are no trainers.

    >>> idle_share(simulate_parts(1.0, [[1]], 3.0))
    0.25
    """
    trainers = of_type("timeline", timeline, Timeline, "simulate_parts").select(lane=TRAINER)
    steps = trainers.select(kind="step")
    busy_s = [steps.select(rank=int(rank)).busy_s for rank in np.unique(trainers.rank)]
    if not busy_s or not timeline.makespan_s:
        return 0.0
    return 1.0 - float(np.mean(busy_s)) / timeline.makespan_s
