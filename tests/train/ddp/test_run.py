"""Real DDP processes, observed: their buckets, the order of events and their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankscope.ranks import RankError
from rankscope.train import ddp
from rankscope.train.ddp import DDPRun, Where
from tests.tools.emulate import emulated

from ...box.networks import needs_network

pytestmark = pytest.mark.slow

WIDTH = 64  # a layer's weight has 16 KiB
CAP_MB = 0.01


def stack(depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)))


def square(module: nn.Module, rank: int, number: int) -> Tensor:
    out: Tensor = module(torch.ones(8, WIDTH)).square().mean()
    return out


@pytest.fixture(scope="module")
def run() -> DDPRun:
    return ddp.measure(stack(), square, bucket_cap_mb=CAP_MB, iterations=5)


# ---- what is observed


def test_the_buckets_are_those_of_ddp(run: DDPRun) -> None:
    order = np.argsort(run.steps[0].ready_s[0]).tolist()
    expected = ddp.buckets(stack(), CAP_MB, ready_order=order)
    assert len(expected.rebuilt) == 4
    for iteration, step in enumerate(run.steps):
        expected.check(step.buckets, 3 + iteration)
    assert run.parameters == expected.parameters


def test_a_bucket_is_launched_when_its_last_gradient_is_in_it_and_in_order(run: DDPRun) -> None:
    for step in run.steps:
        for rank in range(2):
            spans = step.timeline.select(rank=rank)
            begin_s = spans.select(kind="backward").start_s[0]
            ready_s = step.ready_s[rank] + begin_s
            launched_s = [spans.select(kind="allreduce", item=item).start_s[0] for item in range(len(step.buckets))]
            assert launched_s == sorted(launched_s)
            for bucket, instant_s in zip(step.buckets, launched_s, strict=True):
                assert all(ready_s[place] < instant_s for place in bucket[:-1])
                assert ready_s[list(bucket)].max() == ready_s[bucket[-1]]  # its stamp follows DDP's own hook


def test_what_ranks_do_follows_on_each_other(run: DDPRun) -> None:
    timeline = run.timeline()
    timeline.check()
    assert set(timeline.kinds) <= {"forward", "backward", "wait", "unpack", "allreduce"}
    assert set(timeline.lanes) <= {"compute", "allreduce", "allreduce 2"}
    for rank in range(2):
        compute = timeline.select(rank=rank, lane="compute")
        assert np.array_equal(compute.start_s[1:], compute.stop_s[:-1])
        done_s = timeline.select(rank=rank, kind="allreduce").end_s
        assert done_s <= compute.select(kind="unpack").start_s[0]
        assert compute.end_s <= max(run.step_s)


def test_a_step_takes_what_the_slowest_rank_takes(run: DDPRun) -> None:
    assert len(run.step_s) == len(run.clean) == len(run.steps) == 5
    for seconds, step in zip(run.step_s, run.steps, strict=True):
        assert step.timeline.end_s <= seconds
    assert run.median_s == np.median(run.used_s)
    assert run.steps[0].timeline is run.timeline(0)
    assert (run.overlapped().buckets, run.overlapped().step_s) == (run.buckets, run.median_s)


class Partly(nn.Module):
    """Two layers, of which one is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.used(batch)
        return out


def test_a_parameter_without_a_gradient_has_no_time() -> None:
    run = ddp.measure(Partly(), square, find_unused_parameters=True, iterations=4)
    assert np.isnan(run.ready_s).tolist() == [False, False, True, True]
    assert run.buckets.num_parameters == 4


# ---- that it is DDP


class Expects(torch.optim.Optimizer):
    """Raises unless every gradient is the one that is expected."""

    def __init__(self, gradient: float, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.gradient = gradient

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            values = parameter.grad.unique().tolist()
            if values != [self.gradient]:
                raise AssertionError(f"gradient {values}, expected {self.gradient}")


AVERAGED = partial(Expects, 1.5)  # of ranks 0 and 1, times 1 and 2
AVERAGED_TWICE = partial(Expects, 3.0)  # over two micro-batches
OWN = partial(Expects, 1.0)  # rank 0's half, over two micro-batches


def times_rank(module: nn.Module, rank: int, number: int) -> Tensor:
    assert module.training
    loss: Tensor = module(torch.ones(1, 4)).sum() * (rank + 1)
    return loss


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_gradients_are_averaged_as_ddp_does_it(options: dict[str, Any]) -> None:
    twice = {"accumulation": 2, "optimizer": AVERAGED_TWICE}
    work = {"optimizer": AVERAGED} if "static_graph" in options else twice
    run = ddp.measure(nn.Linear(4, 1), times_rank, iterations=2, **work, **options)
    assert run.local_step().parameters == run.parameters
    for step in run.steps if work is twice else ():  # the first micro-batch is under no_sync
        compute, launched = step.timeline.select(rank=0, lane="compute"), step.timeline.select(kind="allreduce")
        assert [span.item for span in compute if span.kind in ("forward", "backward")] == [0, 0, 1, 1]
        assert len(launched) == 2  # a bucket on each rank
        assert launched.select(rank=0).begin_s > compute.select(kind="forward", item=1).stop_s[0]


def test_a_wrong_gradient_would_have_been_found() -> None:
    with pytest.raises(RankError, match=r"gradient \[3\.0\], expected 1\.0"):
        ddp.measure(nn.Linear(4, 1), times_rank, iterations=1, accumulation=2, optimizer=OWN)


def test_the_local_step_communicates_nothing() -> None:
    options: dict[str, Any] = {"accumulation": 2, "optimizer": OWN, "communicate": False}
    with pytest.raises(RankError, match=r"rank 1 failed: AssertionError: gradient \[2\.0\], expected 1\.0"):
        ddp.measure(nn.Linear(4, 1), times_rank, iterations=1, **options)


def test_the_local_step_has_what_the_module_has_and_leaves_it_as_it_was() -> None:
    module = stack()
    before = [parameter.clone() for parameter in module.parameters()]
    local = ddp.measure_local_step(module, square, num_ranks=2, iterations=5, optimizer=sgd)
    assert [spec.name for spec in local.parameters] == [name for name, _ in module.named_parameters()]
    assert {place // 2 for place in local.ready_order[:2]} == {3}  # the last layer's first
    assert np.nanmax(local.ready_s) == local.backward_s
    assert min(local.forward_s, local.unpack_s, local.optimizer_s) > 0
    assert all(map(torch.equal, before, module.parameters()))
    assert all(parameter.grad is None for parameter in module.parameters())


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


# ---- where it runs


@needs_network
def test_ranks_may_be_on_an_emulated_network() -> None:
    with emulated(2, 12.5e6) as network:
        run = ddp.measure(stack(), square, iterations=2, where=Where(network=network))
    assert run.provenance["network"] == "emulated: 100 Mbit/s"
    assert run.provenance["ranks_per_node"] == [1, 1]
