"""The twin of torch's DataLoader against torch's code as SimPy processes, and against what is known on paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline.epoch import BatchTimes, epoch
from rankscope.timeline import Timeline

from .loader_reference import Reference

MARKS = {
    "read": ("read start", "read stop"),
    "pin": ("pin start", "pin stop"),
    "wait": ("request", "handed"),
    "step": ("handed", "step stop"),
}


def case(seed, count, num_workers, prefetch_factor, in_order, pins):
    rng = np.random.default_rng(seed)

    def times(mean_s):
        return (mean_s * rng.lognormal(0, 0.7, count)).tolist()

    return {
        "fetch_s": times(1.0),
        "step_s": times(rng.choice([0.05, 0.3, 1.0])),
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "in_order": in_order,
        "handover_s": times(0.1),
        "receive_s": times(0.05),
        "pin_s": times(0.2) if pins else None,
        "startup_s": float(rng.random()),
    }


WORK = ("fetch_s", "step_s", "handover_s", "receive_s", "pin_s", "startup_s")  # in the order of `BatchTimes`


def simulated(settings):
    work = BatchTimes(*[settings[name] for name in WORK])
    timeline = Timeline.of(epoch(work, *[settings[name] for name in ("num_workers", "prefetch_factor", "in_order")]))
    timeline.check()
    return {
        (mark, span.item): time_s
        for span in timeline
        if span.kind in MARKS
        for mark, time_s in zip(MARKS[span.kind], (span.start_s, span.stop_s), strict=True)
    }


def difference_s(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(abs(ours[key] - theirs[key]) for key in ours)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    num_workers=st.integers(1, 6),
    prefetch_factor=st.integers(1, 4),
    in_order=st.booleans(),
    pins=st.booleans(),
)
def test_it_is_torchs_iterator_to_the_nanosecond(seed, count, num_workers, prefetch_factor, in_order, pins):
    drawn = case(seed, count, num_workers, prefetch_factor, in_order, pins)
    assert difference_s(simulated(drawn), Reference(**drawn).run()) < 1e-9


@pytest.mark.parametrize("wrong", [{"prefetch_factor": 3}, {"in_order": False}, {"num_workers": 4}, {"startup_s": 0.0}])
def test_the_comparison_sees_what_is_wrong(wrong):
    right = case(1, 40, 3, 2, True, False)
    assert difference_s(simulated(right | wrong), Reference(**right).run()) > 1e-3
