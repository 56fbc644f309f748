"""Exercises of notebooks 03 and 04: how a batch arrives."""

from __future__ import annotations

from typing import Any

from .. import parts
from ..pipeline import Pipeline, Stage, simulate
from ..sampling import shard_files
from .answers import Check, is_near, is_whole


def _enough_decoders(answer: Any) -> str | None:
    """The smallest number of decoders that leaves the step as the bottleneck."""
    if not is_whole(answer, 1, 64):
        return f"a number of decoders from 1 to 64 is asked for, got {answer!r}"

    def bottleneck(decoders: int) -> str:
        return Pipeline([Stage("decode", 0.050, num_workers=decoders), Stage("compute", 0.012)]).bottleneck

    if bottleneck(answer) == "decode":
        return f"{answer} x 20 batches/s are fewer than the step's 83.3"
    return None if bottleneck(answer - 1 or 1) == "decode" else f"fewer than {answer} decoders are enough"


def _last_step(answer: Any) -> str | None:
    """When four steps of 2 s end that wait for reads of 1, 4, 1 and 1 s."""
    right = simulate(Pipeline([Stage("read", [1.0, 4.0, 1.0, 1.0]), Stage("train", 2.0)]), 4).end_s
    return None if answer == right else f"the steps do not end at {answer!r} s"


def _cost_of_order(answer: Any) -> str | None:
    """How much longer 21 batches take in order, the first being slow."""
    kept = Pipeline([Stage("decode", [9.0] + [1.0] * 20, num_workers=3), Stage("train", 0.0)])
    right = simulate(kept, 21).end_s - simulate(kept.changed("decode", ordered=False), 21).end_s
    return None if answer == right else f"the order does not cost {answer!r} s"


def _steps_together(answer: Any) -> str | None:
    """The steps of four trainers on 10 files of 100 rows, in batches of 32."""
    longest = max(len(shard_files([f"{file:02d}" for file in range(10)], 4, trainer)) for trainer in range(4))
    return None if answer == longest * -(-100 // 32) else f"the longest shard does not give {answer!r} batches"


def _alone_and_loading(answer: Any) -> str | None:
    """The idle share of a trainer that loads for 300 ms and then steps for 200 ms."""
    right = parts.idle_share(parts.simulate([[0.3] * 10], 4, 0.05))
    return None if is_near(answer, right) else f"a share of the time is asked for, and it is not {answer!r}"


def _enough_loaders(answer: Any) -> str | None:
    """The smallest number of loaders that keeps up with a trainer."""
    if not is_whole(answer, 1, 64):
        return f"a number of loaders from 1 to 64 is asked for, got {answer!r}"

    def idle(loaders: int) -> float:
        return parts.idle_share(parts.simulate([[0.3] * 200], 4, 0.05, queue_size=4, num_loaders=loaders))

    if idle(answer) >= 0.05:
        return f"with {answer} the trainer waits for {idle(answer):.0%} of the time"
    return "fewer do, too" if answer > 1 and idle(answer - 1) < 0.05 else None


EXERCISES: dict[str, Check] = {
    "03.1": _enough_decoders,
    "03.2": _last_step,
    "03.3": _cost_of_order,
    "04.1": _steps_together,
    "04.2": _alone_and_loading,
    "04.3": _enough_loaders,
}
