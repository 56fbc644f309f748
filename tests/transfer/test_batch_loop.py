"""The loop's model against sums that can be done by hand and against the same road played as a pipeline."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankscope.pipeline import Pipeline, Stage, simulate
from rankscope.timeline import Timeline
from rankscope.transfer import overlap_share, preprocess_on_workers
from rankscope.transfer import simulate as simulate_loop


def columns(timeline: Timeline, kind: str) -> list[tuple[int, float, float]]:
    return sorted((span.item, span.start_s, span.stop_s) for span in timeline.select(kind=kind))


@pytest.mark.parametrize(("copy_s", "step_s"), [*itertools.product((0.0, 1.0, 2.0, 5.0), (0.5, 1.0, 3.0))])
def test_in_turn_takes_the_sum_and_prefetched_the_longer(copy_s: float, step_s: float) -> None:
    for prefetched, batch_s in ((False, copy_s + step_s), (True, max(copy_s, step_s))):
        loop = simulate_loop(50, 0.0, copy_s, step_s, prefetched=prefetched)
        assert loop.end_s == pytest.approx(copy_s + step_s + 49 * batch_s)
        assert np.diff(loop.select(kind="compute").start_s)[1:] == pytest.approx(batch_s)
    in_turn = simulate_loop(1000, 0.0, copy_s, step_s, prefetched=False)
    if copy_s:
        assert overlap_share(in_turn) == pytest.approx(max(copy_s, step_s) / (copy_s + step_s), rel=0.01)


def test_in_turn_nothing_overlaps_and_each_step_follows_its_copy() -> None:
    loop = simulate_loop(20, 0.4, 1.0, 2.0, num_workers=2, prefetched=False, pin_s=0.5)
    copies, steps = columns(loop, "copy"), columns(loop, "compute")
    assert [item for item, *_ in copies] == [item for item, *_ in steps] == list(range(20))
    for copy, step in zip(copies, steps, strict=True):
        assert (copy[2] - copy[1], step[1], step[2] - step[1]) == pytest.approx((1.0, copy[2], 2.0))
    assert loop.overlap_s("copy", "compute") == 0
    assert {span.lane for span in loop} == {"load 0", "load 1", "pin", "copy", "compute"}


def test_prefetched_is_the_road_of_workers_with_a_pin_thread_in_it() -> None:
    plain = simulate_loop(60, 3.0, 1.0, 2.0, num_workers=2)
    road = simulate(preprocess_on_workers(3.0, 0.0, 1.0, 2.0, num_workers=2), 60)
    assert plain.end_s == road.end_s
    pinned = simulate_loop(60, 0.0, 0.5, 1.0, pin_s=2.0)
    by_hand = Pipeline(
        [Stage("load", 0.0, capacity=1), Stage("pin", 2.0), Stage("copy", 0.5, capacity=1), Stage("compute", 1.0)]
    )
    assert columns(pinned, "compute") == columns(simulate(by_hand, 60), "compute")
    assert "pin" not in plain.kinds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_s": -1.0}, "load_s must be a finite number of at least 0, got -1.0"),
        ({"copy_s": "2"}, "copy_s must be a finite number of at least 0, got '2'"),
        ({"step_s": float("nan")}, "step_s must be a finite number of at least 0, got nan"),
        ({"pin_s": -1}, "pin_s must be a finite number of at least 0, got -1"),
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1, got 0"),
        ({"prefetch_factor": 0}, "prefetch_factor must be a whole number of at least 1, got 0"),
        ({"prefetched": 1}, "prefetched must be True or False, got 1"),
        ({"num_batches": -1}, "num_batches must be a whole number of at least 0, got -1"),
    ],
)
def test_bad_input_is_one_sentence(settings: dict[str, object], message: str) -> None:
    given = {"num_batches": 3, "load_s": 1.0, "copy_s": 1.0, "step_s": 1.0} | settings
    with pytest.raises(ValueError, match=message):
        simulate_loop(**given)  # type: ignore[arg-type]
