"""DataParallel's step as stated: bytes and times against formulas, verified schedules and torch's own cut."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.train import data_parallel
from rankscope.train.data_parallel import StepCosts, StepSizes
from rankscope.train.data_parallel.model import chunk_sizes

SIZES = StepSizes(32, input_bytes=600, output_bytes=40, parameter_bytes=10_000)
COSTS = StepCosts(Link(1e-3, 1e6), forward_s=0.002, backward_s=0.004, loss_s=0.0005)
# the collectives of a step, with the bytes of the whole array
COLLECTIVES = [
    ("scatter", 32 * 600),
    ("broadcast", 10_000),
    ("gather", 32 * 40),
    ("scatter", 32 * 40),
    ("reduce", 10_000),
]


@given(st.integers(1, 300), st.integers(1, 70))
def test_chunks_are_those_of_torch_chunk(batch_size: int, num_devices: int) -> None:
    assert list(chunk_sizes(batch_size, num_devices)) == [len(c) for c in torch.empty(batch_size).chunk(num_devices)]


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 8])
def test_bytes_are_those_of_the_formulas(num_devices: int) -> None:
    """All but device 0's share of inputs and outputs, the outputs twice; parameters N-1 times there and back."""
    others, away = num_devices - 1, 32 - math.ceil(32 / num_devices)
    port_bytes = data_parallel.traffic(SIZES, num_devices)
    assert port_bytes[0] == port_bytes[1:].sum() == away * (600 + 2 * 40) + others * 2 * 10_000
    nine = data_parallel.traffic(StepSizes(9, 4, 4, 100), 8)
    assert (nine > 0).tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
def test_each_stage_takes_what_the_verified_schedule_takes(num_devices: int) -> None:
    """The collectives of the library, simulated message by message, are the second method."""
    step, chunks = data_parallel.simulate(SIZES, num_devices, COSTS), chunk_sizes(32, num_devices)
    cluster = Cluster.uniform(num_devices, COSTS.link)
    total_s = 32 * COSTS.loss_s + chunks[0] * (COSTS.forward_s + COSTS.backward_s)
    for collective, num_bytes in COLLECTIVES:
        total_s += simulate(build(collective, "flat", num_devices), num_bytes, cluster).makespan_s
    step.check()
    assert step.makespan_s == pytest.approx(total_s, rel=1e-9)
