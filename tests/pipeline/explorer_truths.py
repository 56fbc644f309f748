"""What the explorers of `pipeline` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any

from rankscope.pipeline.parts.explorer import _LONG as PARTS
from rankscope.pipeline.stages.explorer import _LONG as BATCHES
from rankscope.pipeline.stages.explorer import pipeline_of

from .stages.simpy_reference import reference

Truths = list[tuple[Any, ...]]


def pipeline(now: Any) -> Truths:
    """Rates and shares of a run in SimPy."""
    path = pipeline_of(now)
    seen = reference(path, BATCHES, now.seed)
    whole_s = max(left for _, _, left in seen.values())
    bounds = {"decode": now.num_workers / now.decode_ms if now.decode_ms else 1e9}
    for name, mean_ms in (("read", now.read_ms), ("copy", now.copy_ms), ("train", now.train_ms)):
        bounds[name] = 1 / mean_ms if mean_ms else 1e9
    bound = 1e3 * min(bounds.values())
    rate = BATCHES / whole_s
    truths: Truths = [("bottleneck: # batches/s", rate), ("batches; # of the # that it can reach", rate / bound, bound)]
    for stage in path.stages:
        visits = [times for (_, name, _), times in seen.items() if name == stage.name]
        workers_s = whole_s * stage.num_workers
        work = sum(done - taken for taken, done, _ in visits) / workers_s
        blocked = sum(left - done for _, done, left in visits) / workers_s
        truths.append((f"{stage.name} +# working, +# blocked", work, blocked))
    return truths


def parts(now: Any) -> Truths:
    """Trainers that load parts themselves, step by step, all in lock step; loads take equally long."""
    load_s, step_s = now.load_ms / 1e3, now.step_ms / 1e3
    left = []  # the steps of each part that a trainer still has to take, the next part last
    for rank in range(now.num_trainers):
        shorter = 0 if now.aligned else rank % now.steps_per_part
        left.append([now.steps_per_part] * (PARTS - 1) + [now.steps_per_part - shorter])
    ready_s = [load_s] * now.num_trainers
    num_steps = sum(map(sum, left))
    stop_s = 0.0
    while any(left):
        training = [rank for rank in range(now.num_trainers) if left[rank]]
        stop_s = max(ready_s[rank] for rank in training) + step_s
        for rank in training:
            ready_s[rank] = stop_s
            left[rank][-1] -= 1
            if not left[rank][-1]:
                left[rank].pop()
                ready_s[rank] += load_s
    idle = 1 - num_steps * step_s / now.num_trainers / stop_s
    return [
        ("a part arrives every # and lasts #", load_s / now.num_loaders, step_s * now.steps_per_part),
        ("are idle # with a queue of 0", idle),
        *([("idle #", idle)] if not now.queue_size else []),
    ]


TRUTHS = {
    "pipeline": ({}, pipeline),
    "parts": ({"jitter": 0}, parts),
}
