"""Stages, pipelines and service times as values: their times and bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankscope.pipeline import Lognormal, Pipeline, Stage, run, simulate
from rankscope.pipeline.service import draw

from ..distributions import Exponential


class Own:
    """A distribution of one's own."""

    mean_s = 0.2

    def draw(self, rng, num_items):
        return rng.uniform(0.1, 0.3, num_items)


@pytest.mark.parametrize(
    ("service", "mean", "deviation"),
    [
        (Lognormal(0.2, cv=0.8), 0.2, 0.16),
        (Lognormal(0.2, cv=0.0), 0.2, 0.0),
        (Exponential(0.2), 0.2, 0.2),
        (Own(), 0.2, 0.2 / 12**0.5),
    ],
)
def test_distributions_have_the_mean_and_spread_they_name(service, mean, deviation):
    times = draw("it", service, 200_000, 7)
    assert Stage("it", service).mean_s == pytest.approx(mean)
    assert times.mean() == pytest.approx(mean, rel=0.02)
    assert times.std() == pytest.approx(deviation, rel=0.05)
    assert (draw("it", service, 10, 7) == times[:10]).all(), "more items must not change the first ones"
    assert deviation == 0 or (draw("it", service, 10, 8) != times[:10]).any()


def test_the_mean_of_a_function_is_that_of_its_first_1000_items():
    assert Stage("a", lambda item: item).mean_s == 499.5
    assert Stage("a", lambda item: float(item == 0)).mean_s == 0.001
    assert Stage("a", [1.0, 2.0, 6.0]).mean_s == 3.0


def test_numbers_may_be_numpys():
    assert Stage("a", np.float32(0.5)).service_s == 0.5
    assert Stage("a", np.int64(2)).mean_s == 2.0
    assert Stage("a", torch.tensor(0.5)).service_s == 0.5
    assert draw("it", np.array(0.5), 2).tolist() == [0.5, 0.5]
    assert Lognormal(np.float32(0.5), np.int64(1)) == Lognormal(0.5, 1.0)


def test_a_huge_variation_is_no_overflow():
    assert np.isfinite(draw("it", Lognormal(0.1, 1e200), 100)).all()
    near = [draw("it", Lognormal(0.1, cv), 5) for cv in (0.99e100, 1.01e100)]
    assert np.log(near[0]) == pytest.approx(np.log(near[1]), rel=1e-3)


def test_a_bound_is_workers_over_mean_time_and_the_least_bound_is_the_bottleneck():
    path = Pipeline([Stage("read", Lognormal(0.01, 2.0)), Stage("decode", 0.05, num_workers=4), Stage("go", 0.0)])
    assert path.bounds_per_s() == pytest.approx({"read": 100.0, "decode": 80.0, "go": float("inf")})
    assert (path.bottleneck, path.bound_per_s) == ("decode", pytest.approx(80.0))
    assert path.changed("decode", num_workers=6).bottleneck == "read"


def test_a_run_tells_a_model_its_service_times():
    path = Pipeline([Stage("double", fn=lambda x: 2 * x, num_workers=2), Stage("drop", fn=id)])
    measured = path.measured(run(path, range(20)))
    assert all(len(stage.service_s) == 20 for stage in measured.stages)
    assert simulate(measured, 20).makespan_s > 0
    known = Pipeline([Stage("read", [3.0, 1.0, 2.0], num_workers=2, ordered=False), Stage("train", 0.5)])
    times_s = [stage.service_s.tolist() for stage in known.measured(simulate(known, 3)).stages]
    assert times_s == [[3, 1, 2], [0.5] * 3]
