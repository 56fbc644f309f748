"""The loop's model against sums that can be done by hand and against the same path played as a pipeline."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from rankscope.pipeline import Pipeline, Stage, overlap_share, simulate, simulate_transfer
from rankscope.timeline import Timeline


def columns(timeline: Timeline, kind: str) -> list[tuple[int, float, float]]:
    return sorted((span.item, span.start_s, span.stop_s) for span in timeline.select(kind=kind))


@pytest.mark.parametrize(("copy_s", "step_s"), [*product((0.0, 1.0, 5.0), (0.5, 3.0))])
def test_in_turn_takes_the_sum_and_prefetched_the_longer(copy_s: float, step_s: float) -> None:
    for prefetched, batch_s in ((False, copy_s + step_s), (True, max(copy_s, step_s))):
        loop = simulate_transfer(50, 0.0, copy_s, step_s, prefetched=prefetched)
        assert loop.end_s == pytest.approx(copy_s + step_s + 49 * batch_s)
        assert np.diff(loop.select(kind="compute").start_s)[1:] == pytest.approx(batch_s)
    if copy_s:
        in_turn = simulate_transfer(1000, 0.0, copy_s, step_s, prefetched=False)
        assert overlap_share(in_turn) == pytest.approx(max(copy_s, step_s) / (copy_s + step_s), rel=0.01)


def test_prefetched_is_the_road_of_workers_with_a_pin_thread_in_it() -> None:
    plain = simulate_transfer(60, 3.0, 1.0, 2.0, num_workers=2)
    load = Stage("load", 3.0, num_workers=2, capacity=2)
    assert plain.end_s == simulate(Pipeline([load, Stage("copy", 1.0, capacity=1), Stage("compute", 2.0)]), 60).end_s
    assert "pin" not in plain.kinds
    pinned = simulate_transfer(60, 0.0, 0.5, 1.0, pin_s=2.0)
    stages = [Stage("load", 0.0, capacity=1), Stage("pin", 2.0), Stage("copy", 0.5, capacity=1), Stage("compute", 1.0)]
    assert columns(pinned, "compute") == columns(simulate(Pipeline(stages), 60), "compute")
