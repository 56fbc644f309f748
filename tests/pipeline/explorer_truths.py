"""What the explorers of `pipeline` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any

from rankscope.pipeline.dataloader.explorer import _MADE_UP as MADE_UP
from rankscope.pipeline.dataloader.model import BatchTimes
from rankscope.pipeline.parts.explorer import _LONG as PARTS
from rankscope.pipeline.stages.explorer import _LONG as BATCHES
from rankscope.pipeline.stages.explorer import pipeline_of

from .dataloader.loader_reference import Reference
from .stages.simpy_reference import reference

Truths = list[tuple[Any, ...]]


def pipeline(now: Any) -> Truths:
    """Rates and shares of a run in SimPy."""
    path = pipeline_of(now)
    seen = reference(path, BATCHES, now.seed)
    whole_s = max(left for _, _, left in seen.values())
    bound = 1e3 / max(now.read_ms, now.decode_ms / now.num_workers, now.copy_ms, now.train_ms)
    rate = BATCHES / whole_s
    truths: Truths = [("limits the loop to # batches/s", rate), ("batches: # of .*'s usual #/s", rate / bound, bound)]
    if path.bottleneck == "decode":
        more = reference(path.changed("decode", num_workers=now.num_workers + 1), BATCHES, now.seed)
        truths.append((r"with \d+ workers, #/s", BATCHES / max(left for _, _, left in more.values())))
    for stage in path.stages:
        visits = [times for (_, name, _), times in seen.items() if name == stage.name]
        workers_s = whole_s * stage.num_workers
        work = sum(done - taken for taken, done, _ in visits) / workers_s
        blocked = sum(left - done for _, done, left in visits) / workers_s
        truths.append((f"{stage.name} +# working, +# blocked", work, blocked))
    return truths


def loader(now: Any) -> Truths:
    """An epoch of torch's iterator, in SimPy, of the times that are made up; without workers all is in turn."""
    fetch_s, short_s, step_s = 0.0205, 5e-4, 8e-5 * now.step
    epoch_s = MADE_UP * (fetch_s + step_s)
    if now.num_workers:
        columns = [[seconds] * MADE_UP for seconds in (fetch_s, step_s, short_s, short_s)]
        reference = Reference(BatchTimes(*columns), now.num_workers, now.prefetch_factor, now.in_order)
        epoch_s = max(reference.run().values())
    rates = ("# batches/s predicted, # recorded", MADE_UP / epoch_s, 1 / fetch_s)
    return [rates, ("the training loop waits for # of", 1 - 0.008 / fetch_s)]  # with one worker, for all of a fetch


def parts(now: Any) -> Truths:
    """In lock step, all wait for each load; loads take equally long, and those of aligned trainers begin together.

    Counted for trainers that load parts themselves: the first load, and one a part for each different first part.
    """
    load_s, step_s = now.load_ms / 1e3, now.step_ms / 1e3
    shorter = [0 if now.aligned else rank % now.steps_per_part for rank in range(now.num_trainers)]
    num_steps = PARTS * now.steps_per_part
    num_loads = 1 + (PARTS - 1) * len(set(shorter))
    taken = num_steps - sum(shorter) / now.num_trainers
    idle = 1 - taken * step_s / (num_loads * load_s + num_steps * step_s)
    truths: Truths = [
        ("a part arrives every # and lasts #", load_s / now.num_loaders, step_s * now.steps_per_part),
        ("are idle # with a queue of 0", idle),
    ]
    if not now.queue_size:
        truths.append(("Trainers are idle #", idle))
    return truths


TRUTHS = {
    "pipeline": ({}, pipeline),
    "loader": ({}, loader),
    "parts": ({"jitter": 0}, parts),
}
