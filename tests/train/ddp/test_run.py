"""Real DDP processes, observed: their buckets, the order of events and their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
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
    assert run.provenance["ranks_per_node"] == (1, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"module": "model"}, "module must be a Module, got 'model'"),
        (lambda: {"module": nn.ReLU()}, "parameters must hold at least one that requires a gradient, got none"),
        (lambda: {"loss": 3}, "loss must be a function, got 3"),
        (lambda: {"optimizer": "sgd"}, "optimizer must be a function, got 'sgd'"),
        (lambda: {"num_ranks": 0}, "num_ranks must be a whole number from 1 to 256, got 0"),
        (lambda: {"bucket_cap_mb": -1}, "bucket_cap_mb must be a finite number above 0, got -1"),
        (lambda: {"iterations": 0}, "iterations must be a whole number from 1 to 10000, got 0"),
        (lambda: {"accumulation": 0}, "accumulation must be a whole number from 1 to 10000, got 0"),
        (lambda: {"where": "nccl"}, "where must be a Where, got 'nccl'"),
        (lambda: {"where": Where("tcp")}, "backend must be one of 'gloo', 'nccl', 'mpi', got 'tcp'"),
        (lambda: {"where": Where(timeout_s=0)}, "timeout_s must be a finite number above 0 .*, got 0"),
        (lambda: {"where": Where(network=5)}, "network must be one with hosts for 2 ranks, .*, got 5"),
        (lambda: {"static_graph": True, "accumulation": 2}, "static_graph must be False with accumulation: DDP's .*"),
    ],
)
def test_bad_input_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        ddp.measure(**{"module": stack(1), "loss": square, **make()})


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda *_: 3.0, "float"),
        (lambda module, *_: module(torch.ones(2, WIDTH)), r"one of shape \(2, 64\)"),
        (lambda *_: torch.ones(()), "one that requires none"),
    ],
)
def test_a_loss_that_is_none_is_refused_in_words(loss: Any, got: str) -> None:
    message = f"ValueError: loss must return a tensor of one element that requires a gradient, got {got}"
    with pytest.raises(RankError, match=message):
        ddp.measure_local_step(stack(1), loss)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_rank'"):
        ddp.measure(stack(1), square, num_rank=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: evolve(run, step_s=(-1.0,) * 5), "step_s must be a finite number of at least 0, got -1.0"),
        (lambda run: evolve(run, clean=(True,)), "clean must say True or False of each of 5 iterations, got 1"),
        (lambda run: evolve(run, steps=run.steps[:2]), "steps must be 5, one for each iteration, got 2"),
        (lambda run: evolve(run, setting={}), "setting must be a DDPSettings, got {}"),
        (lambda run: evolve(run, parameters=run.parameters[:7]), "ready_s must have a time or nan for .2, 7. ranks"),
        (lambda run: evolve(run.steps[0], buckets=[[0], [0]]), "buckets must hold each parameter from 0 to 0 once"),
        (lambda run: evolve(run.steps[0], timeline=[]), "timeline must be a Timeline, got .."),
        (lambda run: evolve(run, steps=[evolve(run.steps[0], buckets=[[1, 0]])] * 5), "each of 8 parameters once, got"),
    ],
)
def test_what_no_run_can_have_given_is_refused(run: DDPRun, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(run)
