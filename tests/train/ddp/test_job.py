"""A job predicted from one step: by hand, against `simulate` both ways, and against ABCI's published jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankscope.train import ddp
from rankscope.train.ddp import LocalStep
from rankscope.train.ddp.architectures import architecture_step
from tests.benchmarks import abci

MIB = 1 << 20


def costs(mib_per_s: float, alpha_s: float = 0.0) -> Any:
    return lambda num_bytes: alpha_s + num_bytes / (mib_per_s * MIB)


# ---- the step


def test_by_hand() -> None:
    # forward 1 s, backward 2 s, two buckets of 40 MiB, the first one ready in the middle of the backward
    two_buckets = ddp.job([40 * MIB, 40 * MIB], 3.0, costs(80), bucket_cap_mb=40)
    assert two_buckets.step_s == pytest.approx((3.0, 3.5, 4.0))
    assert two_buckets.allreduce_s == pytest.approx(1.0)
    one_bucket = ddp.job([80 * MIB], 3.0, costs(80))
    assert one_bucket.step_s == pytest.approx((3.0, 4.0, 4.0))


def test_the_same_ranks_take_the_same_step() -> None:
    job = ddp.job("ResNet-50", 0.3, costs(5000), measured_allreduce_s=costs(5000))
    assert job.step_s == pytest.approx((0.3, 0.3, 0.3))
    assert ddp.job("ResNet-50", 0.3, lambda num_bytes: 0.0).step_s == (0.3, 0.3, 0.3)


def test_faster_allreduces_make_the_low_end_the_one_without_overlap() -> None:
    job = ddp.job([100 * MIB], 3.0, costs(200), measured_allreduce_s=costs(100))
    assert job.step_s == pytest.approx((2.5, 2.5, 3.0))


@given(st.integers(1, 12), st.floats(10, 1000), st.floats(10, 1000), st.sampled_from([None, 1.0, 8.0, 1000.0]))
def test_it_undoes_what_simulate_does(layers: int, before: float, after: float, cap_mb: float | None) -> None:
    local = LocalStep.modelled([3 * MIB] * layers, 0.2, optimizer_s=0.01, unpack_s=0.02)
    costs_before, costs_after = costs(before, 1e-4), costs(after, 1e-4)
    before_s = ddp.simulate(local, costs_before, bucket_cap_mb=cap_mb).makespan_s
    after_s = ddp.simulate(local, costs_after, bucket_cap_mb=cap_mb).makespan_s
    job = ddp.job(local, before_s, costs_after, measured_allreduce_s=costs_before, bucket_cap_mb=cap_mb)
    assert job.step_s.expected == pytest.approx(after_s, rel=1e-9)


def test_models_by_name_module_bytes_and_step() -> None:
    module = nn.Sequential(*[nn.Linear(500, 500) for _ in range(6)])
    sizes = [parameter.numel() * 4 for parameter in module.parameters()]
    local = LocalStep.modelled(module, 7.0)
    first, *others = (ddp.job(model, 0.1, costs(100), bucket_cap_mb=1).step_s for model in (module, sizes, local))
    assert others == [pytest.approx(first)] * 2
    named = ddp.job("ResNet-50", 0.1, costs(9e3))
    of_step = ddp.job(architecture_step("ResNet-50", 8, 1e12), 0.1, costs(9e3))
    assert named.step_s == pytest.approx(of_step.step_s)
    assert named.allreduce_s == pytest.approx(25_557_032 * 4 / (9e3 * MIB))


# ---- epochs


def test_epochs() -> None:
    job = ddp.job([40 * MIB], 3.0, costs(80))
    assert job.step_s == pytest.approx((3.0, 3.5, 3.5))
    assert job.epoch_s(100, 40, start_s=1.0) == pytest.approx((8.5, 9.75, 9.75))  # two steps and a half
    assert job.epoch_s(100, 40) == pytest.approx((7.5, 8.75, 8.75))
    assert job.epoch_s(1, 1) == pytest.approx(job.step_s)
    with pytest.raises(ValueError, match="num_samples must be a whole number of at least 1, got 0"):
        job.epoch_s(0, 40)
    with pytest.raises(ValueError, match="samples_per_step must be a whole number of at least 1, got 0"):
        job.epoch_s(100, 0)
    with pytest.raises(ValueError, match="start_s must be a finite number of at least 0, got -1"):
        job.epoch_s(100, 40, start_s=-1)


# ---- ABCI's jobs


def assert_within(median_and_worst: Iterable[float], bars: Iterable[float]) -> None:
    for error, bar in zip(median_and_worst, bars, strict=True):
        assert error <= bar


def test_abci_inside_a_node() -> None:
    jobs = abci.inside()
    assert len(jobs) == 6
    assert_within(abci.median_and_worst(jobs), abci.INSIDE_BARS)
    left_ms = np.sort([job.left_ms for job in jobs])[:5]
    assert left_ms == pytest.approx(np.full(5, 3.5), abs=0.15)


def test_abci_on_several_nodes() -> None:
    jobs = abci.several()
    assert [job.name for job in jobs if job.gpu == "V100"] == [f"{nodes} nodes" for nodes in (2, 4, 8, 16, 32)]
    assert_within(abci.median_and_worst(jobs), abci.NODES_BARS)
    assert_within(abci.median_and_worst(abci.totals()), abci.NODES_BARS)
    assert all(job.predicted_s.low < job.predicted_s.expected < job.predicted_s.high for job in jobs)


def test_four_times_the_allreduce_would_hardly_show() -> None:
    expected = [[job.errors.expected for job in abci.several(times)] for times in abci.TIMES]
    grown = np.array(expected[-1]) - np.array(expected[1])
    assert (grown > 0).all()
    assert (grown < 0.021).all()
