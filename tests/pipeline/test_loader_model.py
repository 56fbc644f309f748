"""The twin of torch's DataLoader against torch's code as SimPy processes, and against what is known on paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline import Cores, Handover, simulate_dataloader

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

    return {
        "fetch_s": times(1.0),
        "step_s": times(rng.choice([0.05, 0.3, 1.0])),
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "in_order": in_order,
        "handover_s": times(0.1),
        "receive_s": times(0.05),
        "pin_s": times(0.2) if pins else None,
        "held_s": held_s,
        "startup_s": float(rng.random()),
    }


HANDOVER = ("handover_s", "receive_s", "pin_s", "held_s", "startup_s")


def simulated(settings):
    handover = Handover(**{name: settings[name] for name in HANDOVER})
    others = {name: value for name, value in settings.items() if name not in HANDOVER}
    timeline = simulate_dataloader(num_batches=len(settings["fetch_s"]), handover=handover, **others)
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


@pytest.mark.parametrize(
    "wrong", [{"prefetch_factor": 3}, {"in_order": False}, {"held_s": 0.0}, {"num_workers": 4}, {"startup_s": 0.0}]
)
def test_the_comparison_sees_what_is_wrong(wrong):
    right = case(1, 40, 3, 2, True, False, 0.3)
    assert difference_s(simulated(right | wrong), Reference(**right).run()) > 1e-3


def test_without_workers_everything_comes_in_turn():
    timeline = simulate_dataloader([1.0, 2.0], 0.5, 2, num_workers=0, handover=Handover(9.0, pin_s=0.25, startup_s=9.0))
    assert [(s.lane, s.kind, s.item, s.start_s, s.stop_s) for s in sorted(timeline, key=lambda s: s.start_s)] == [
        ("training loop", "read", 0, 0.0, 1.0),
        ("training loop", "pin", 0, 1.0, 1.25),
        ("training loop", "step", 0, 1.25, 1.75),
        ("training loop", "read", 1, 1.75, 3.75),
        ("training loop", "pin", 1, 3.75, 4.0),
        ("training loop", "step", 1, 4.0, 4.5),
    ]


# ---- cores


@pytest.mark.parametrize(
    ("num_workers", "num_cores", "fetch_cpu", "period_s"),
    [
        (4, 2, 1.0, 0.5),  # two cores' worth
        (2, 2, 1.0, 0.5),
        (2, 8, 1.0, 0.5),  # two workers' worth
        (4, 1, 0.25, 0.25),  # each computes a quarter: they just fit
        (8, 1, 0.25, 0.25),  # and more gain nothing
        (8, 1, 0.0, 0.125),
        (4, 0.5, 1.0, 2.0),
    ],
)
def test_cores_bound_what_workers_give(num_workers, num_cores, fetch_cpu, period_s):
    timeline = simulate_dataloader(1.0, 0.0, 800, num_workers=num_workers, cores=Cores(num_cores, fetch_cpu, 0.0))
    assert timeline.makespan_s == pytest.approx(800 * period_s, rel=0.01)


def test_a_step_and_a_fetch_that_share_a_core_go_at_half_speed():
    timeline = simulate_dataloader(1.0, 1.0, 2, num_workers=1, cores=Cores(1))
    assert [(s.kind, s.item, s.stop_s) for s in timeline if s.kind != "wait"] == [
        ("read", 0, 1.0),
        ("read", 1, 3.0),
        ("step", 0, 3.0),
        ("step", 1, 4.0),
    ]
