"""The twin of torch's DataLoader against torch's code as SimPy processes, and against what is known on paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline.dataloader.cores import Cores
from rankscope.pipeline.dataloader.model import BatchTimes, epoch
from rankscope.timeline import Timeline

from .loader_reference import Reference

MARKS = {
    "read": ("read start", "read stop"),
    "pin": ("pin start", "pin stop"),
    "wait": ("request", "handed"),
    "step": ("handed", "step stop"),
}


def case(seed, count, num_workers, prefetch_factor, in_order, pins, held_s):
    rng = np.random.default_rng(seed)

    def times(mean_s):
        return (mean_s * rng.lognormal(0, 0.7, count)).tolist()

    step_s = rng.choice([0.05, 0.3, 1.0])
    columns = [times(mean_s) for mean_s in (1.0, step_s, 0.1, 0.05, 0.2)]
    work = BatchTimes(*columns[:4], columns[4] if pins else None, held_s, float(rng.random()))
    return {"work": work, "num_workers": num_workers, "prefetch_factor": prefetch_factor, "in_order": in_order}


def simulated(settings):
    timeline = Timeline.of(epoch(**settings, cores=Cores()))
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
    held_s=st.sampled_from([0.0, 0.3, 5.0]),
)
def test_it_is_torchs_iterator_to_the_nanosecond(seed, count, num_workers, prefetch_factor, in_order, pins, held_s):
    drawn = case(seed, count, num_workers, prefetch_factor, in_order, pins, held_s)
    assert difference_s(simulated(drawn), Reference(**drawn).run()) < 1e-9


def test_without_workers_the_loop_reads_pins_and_steps_in_turn():
    work = BatchTimes([1.0, 2.0], [0.5, 0.25], [9.0, 9.0], [9.0, 9.0], pin=[0.125, 4.0])
    spans = [(span.kind, span.item, span.start_s, span.stop_s) for span in epoch(work, 0, 2, True, Cores())]
    assert spans == [
        ("read", 0, 0.0, 1.0),
        ("pin", 0, 1.0, 1.125),
        ("step", 0, 1.125, 1.625),
        ("read", 1, 1.625, 3.625),
        ("pin", 1, 3.625, 7.625),
        ("step", 1, 7.625, 7.875),
    ]


RIGHT = case(1, 40, 3, 2, True, False, 0.3)
TIMES = RIGHT["work"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefetch_factor": 3},
        {"in_order": False},
        {"num_workers": 4},
        {"work": TIMES._replace(held_s=0.0)},
        {"work": TIMES._replace(startup_s=0.0)},
    ],
)
def test_the_comparison_sees_what_is_wrong(wrong):
    assert difference_s(simulated(RIGHT | wrong), Reference(**RIGHT).run()) > 1e-3


# ---- cores


@pytest.mark.parametrize(
    ("num_workers", "num_cores", "fetch_cpu", "period_s"),
    [
        (4, 2, 1.0, 0.5),  # two cores' worth
        (2, 8, 1.0, 0.5),  # two workers' worth
        (4, 1, 0.25, 0.25),  # each computes a quarter: they just fit
        (4, 0.5, 1.0, 2.0),
    ],
)
def test_cores_bound_what_workers_give(num_workers, num_cores, fetch_cpu, period_s):
    nothing_s = [0.0] * 800
    work = BatchTimes([1.0] * 800, nothing_s, nothing_s, nothing_s)
    end_s = epoch(work, num_workers, 2, True, Cores(num_cores, fetch_cpu, 0.0))[-1].stop_s
    assert end_s == pytest.approx(800 * period_s, rel=0.01)
