"""Stages, pipelines and service times as values: what they refuse, and what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankscope.pipeline import Exponential, Lognormal, Measured, Pipeline, Stage, Uniform, run, simulate
from rankscope.pipeline.service import draw, draw_one, mean_s
from rankscope.timeline import Timeline


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "a stage's name must be a word"),
        ({"name": "blocked"}, "none of blocked, barrier, wait; got 'blocked'"),
        ({"service_s": None}, "stage 'read' must have a service_s, a fn or both"),
        ({"service_s": -0.1}, r"service_s must be a finite number of at least 0, got -0\.1"),
        ({"service_s": float("nan")}, "must be a finite number of at least 0, got nan"),
        ({"service_s": [0.1, -1.0]}, r"must be finite seconds of at least 0, got -1\.0 for item 1"),
        ({"service_s": []}, "must have at least one time, got none"),
        ({"service_s": [[0.1]]}, r"must be a list of seconds, got an array of shape \(1, 1\)"),
        ({"service_s": "fast"}, "must be seconds, a list of them, a distribution or a function, got 'fast'"),
        ({"service_s": True}, "must be seconds, a list of them, a distribution or a function, got True"),
        ({"fn": 3}, "fn must be a function, got 3"),
        ({"num_workers": 0}, "num_workers must be a whole number from 1 to 4096, got 0"),
        ({"num_workers": 1.5}, r"num_workers must be a whole number from 1 to 4096, got 1\.5"),
        ({"service_s": 10**400}, "service_s must be a finite number of at least 0, got 1000"),
        ({"service_s": [10**400]}, "must be seconds, a list of them, a distribution or a function, got"),
        ({"service_s": ["0.1"]}, "must be seconds, a list of them, a distribution or a function, got"),
        ({"service_s": Uniform}, "must be seconds, a list of them, a distribution or a function, got <class"),
        ({"ordered": "no"}, "ordered must be True or False, got 'no'"),
        ({"processes": 3}, "processes must be True or False, got 3"),
        ({"num_workers": 10**30}, "num_workers must be a whole number from 1 to 4096, got 1000"),
        ({"capacity": 0}, "capacity must be a whole number from 1 to 1000000, got 0"),
        ({"capacity": 10**30}, "capacity must be a whole number from 1 to 1000000, got 1000"),
    ],
)
def test_a_wrong_stage_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Stage(**{"name": "read", "service_s": 0.1, **arguments})


def test_a_wrong_pipeline_is_refused():
    with pytest.raises(ValueError, match="must be a list of one Stage or more, got 'none'"):
        Pipeline([])
    with pytest.raises(ValueError, match="must be a list of one Stage or more, got 'read'"):
        Pipeline(["read"])
    with pytest.raises(ValueError, match="must be a list of one Stage or more, got a Stage outside any list"):
        Pipeline(Stage("read", 1.0))
    with pytest.raises(ValueError, match="timeline must be a Timeline, got 3"):
        Pipeline([Stage("a", fn=abs)]).measured(3)
    with pytest.raises(ValueError, match="must be a list of one Stage or more, got None"):
        Pipeline([None])
    with pytest.raises(ValueError, match="stages must differ in lane, got 'read 0' twice"):
        Pipeline([Stage("read", 1.0, num_workers=2), Stage("read 0", 2.0)])
    for wrong in (lambda: run(Stage("a", fn=abs), []), lambda: simulate(Stage("a", 1.0), 3)):
        with pytest.raises(ValueError, match="pipeline must be a Pipeline, got Stage"):
            wrong()
    with pytest.raises(ValueError, match="recorder must be a Recorder, got 3"):
        run(Pipeline([Stage("a", fn=abs)]), [], recorder=3)
    with pytest.raises(ValueError, match="stages must differ in name, got 'read' twice"):
        Pipeline([Stage("read", 1.0), Stage("read", 2.0)])
    with pytest.raises(KeyError, match="stages are read; got 'decode'"):
        Pipeline([Stage("read", 1.0)]).changed("decode", num_workers=2)


@pytest.mark.parametrize(
    ("service", "mean", "deviation"),
    [
        (Lognormal(0.2, cv=0.8), 0.2, 0.16),
        (Lognormal(0.2, cv=0.0), 0.2, 0.0),
        (Exponential(0.2), 0.2, 0.2),
        (Uniform(0.1, 0.3), 0.2, 0.2 / 12**0.5),
        (Measured((0.1, 0.3)), 0.2, 0.1),
    ],
)
def test_distributions_have_the_mean_and_spread_they_name(service, mean, deviation):
    times = draw("it", service, 200_000, 7)
    assert mean_s("it", service) == pytest.approx(mean)
    assert times.mean() == pytest.approx(mean, rel=0.02)
    assert times.std() == pytest.approx(deviation, rel=0.05)
    assert (draw("it", service, 10, 7) == times[:10]).all(), "more items must not change the first ones"
    assert deviation == 0 or (draw("it", service, 10, 8) != times[:10]).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lognormal(0.1, cv=-1), "cv must be a finite number of at least 0, got -1"),
        (lambda: Exponential(float("inf")), "mean_s must be a finite number of at least 0, got inf"),
        (lambda: Uniform(0.2, 0.1), r"low_s must be at most high_s, got 0\.2 and 0\.1"),
        (lambda: Measured("0.1"), "times_s must be seconds, a list of them"),
        (lambda: Lognormal("0.1", 1), "mean_s must be a finite number of at least 0, got '0.1'"),
        (lambda: Measured(()), "measured times must be at least one, got none"),
        (lambda: Measured((0.1, -0.1)), r"times_s must be finite seconds of at least 0, got -0\.1 for item 1"),
    ],
)
def test_a_wrong_distribution_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_may_be_numpys():
    assert Stage("a", np.float32(0.5)).service_s == 0.5
    assert Stage("a", np.int64(2)).mean_s == 2.0
    assert Stage("a", torch.tensor(0.5)).service_s == 0.5
    assert draw("it", np.array(0.5), 2).tolist() == [0.5, 0.5]
    assert Lognormal(np.float32(0.5), np.int64(1)) == Lognormal(0.5, 1.0)
    assert Uniform(np.int64(0), np.float64(1)) == Uniform(0.0, 1.0)
    assert Measured(np.array([0.1, 0.2])) == Measured((0.1, 0.2))
    assert Exponential(np.int64(1)).mean_s == 1.0


def test_a_huge_variation_is_no_overflow():
    assert np.isfinite(draw("it", Lognormal(0.1, 1e200), 100)).all()
    near = [draw("it", Lognormal(0.1, cv), 5) for cv in (0.99e100, 1.01e100)]
    assert np.log(near[0]) == pytest.approx(np.log(near[1]), rel=1e-3)


def test_one_time_is_the_one_that_is_drawn_among_all():
    for service in (0.5, [0.1, 0.2, 0.3], Lognormal(0.1, 1.0), lambda item: item / 10):
        assert draw_one("it", service, 2, 7) == draw("it", service, 3, 7)[2]


def test_times_may_be_listed_or_worked_out_item_by_item():
    assert draw("it", [0.1, 0.2, 0.3], 2).tolist() == [0.1, 0.2]
    assert draw("it", np.array([0.5]), 1).tolist() == [0.5]
    assert draw("it", lambda item: item / 10, 3).tolist() == [0.0, 0.1, 0.2]
    assert mean_s("it", [0.1, 0.3]) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="it must have a time for each of 4 items, got 3"):
        draw("it", [0.1, 0.2, 0.3], 4)
    with pytest.raises(ValueError, match=r"must be finite seconds of at least 0, got -1\.0 for item 0"):
        draw("it", lambda item: -1, 3)


def test_a_bound_is_workers_over_mean_time_and_the_least_bound_is_the_bottleneck():
    road = Pipeline([Stage("read", Lognormal(0.01, 2.0)), Stage("decode", 0.05, num_workers=4), Stage("go", 0.0)])
    assert road.bounds_per_s() == pytest.approx({"read": 100.0, "decode": 80.0, "go": float("inf")})
    assert (road.bottleneck, road.bound_per_s) == ("decode", pytest.approx(80.0))
    assert road.changed("decode", num_workers=6).bottleneck == "read"
    with pytest.raises(ValueError, match="stage 'a' has no service_s: run it, and ask Pipeline.measured for it"):
        _ = Pipeline([Stage("a", fn=abs)]).bottleneck


def test_a_run_tells_a_model_its_service_times():
    road = Pipeline([Stage("double", fn=lambda x: 2 * x, num_workers=2), Stage("drop", fn=id)])
    measured = road.measured(run(road, range(20)))
    assert all(len(stage.service_s) == 20 for stage in measured.stages)
    assert simulate(measured, 20).makespan_s > 0
    with pytest.raises(ValueError, match="must have one span of 'double' for each item from 0, got 0 spans"):
        road.measured(simulate(Pipeline([Stage("other", 1.0)]), 3))
    with pytest.raises(ValueError, match="must have one span of 'double' for each item from 0, got 2 spans"):
        road.measured(Timeline.concat([run(road, range(3)).select(item=item) for item in (0, 2)]))
