"""Real DDP processes, observed: their buckets, the order of events and their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankscope.ranks import RankError
from rankscope.ranks.recorder import Recording
from rankscope.timeline import Span, Timeline
from rankscope.train import ddp
from rankscope.train.ddp import MeasuredSteps
from rankscope.train.ddp.measured import steps_of

pytestmark = pytest.mark.slow

WIDTH = 64  # a layer's weight has 16 KiB
CAP_MB = 0.01
MIB = 2**20


def stack(depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)))


def square(module: nn.Module) -> Tensor:
    out: Tensor = module(torch.ones(8, WIDTH)).square().mean()
    return out


@pytest.fixture(scope="module")
def run() -> MeasuredSteps:
    return ddp.measure(stack(), square, bucket_cap_mb=CAP_MB, num_steps=5, optimizer=partial(torch.optim.SGD, lr=0.1))


def test_a_bucket_is_launched_when_its_last_gradient_is_in_it_and_in_order(run: MeasuredSteps) -> None:
    expected = ddp.buckets(stack(), square, CAP_MB).rebuilt
    assert len(expected) == 4
    assert len(run.steps) == 5
    for step, ready_s in zip(run.steps, run.ready_s, strict=True):
        for rank in range(2):
            spans = step.select(rank=rank)
            backward_s = spans.select(kind="backward").start_s[0]
            launched_s = [spans.select(kind="allreduce", item=item).start_s[0] for item in range(4)]
            assert launched_s == sorted(launched_s)
            for bucket, instant_s in zip(expected, launched_s, strict=True):
                assert all(backward_s + ready_s[rank, list(bucket[:-1])] < instant_s)


def test_what_ranks_do_follows_on_each_other(run: MeasuredSteps) -> None:
    run.typical.check()
    assert all(run.step_s <= [step.makespan_s for step in run.steps])
    for rank in range(2):
        compute = run.typical.select(rank=rank, lane="compute")
        # Waiting and unpacking are too short here to be seen each time.
        kinds = [span.kind for span in compute if span.kind not in ("wait", "unpack")]
        assert kinds == ["forward", "backward", "optimizer"]
        assert np.array_equal(compute.start_s[1:], compute.stop_s[:-1])
        assert set(run.typical.select(rank=rank, kind="allreduce").item) == {0, 1, 2, 3}


class Expects(torch.optim.Optimizer):
    """Raises unless every gradient is the one that is expected."""

    def __init__(self, parameters: Iterable[nn.Parameter], gradient: float) -> None:
        super().__init__(parameters, {})
        self.gradient = gradient

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            values = parameter.grad.unique().tolist()
            if values != [self.gradient]:
                raise AssertionError(f"gradient {values}, expected {self.gradient}")


def times_rank(module: nn.Module) -> Tensor:
    out: Tensor = module(torch.ones(1, 4)).sum() * (dist.get_rank() + 1)
    return out


def test_gradients_are_averaged_and_those_of_the_local_step_are_each_ranks_own() -> None:
    steps = partial(ddp.measure, nn.Linear(4, 1), times_rank, num_steps=1)
    steps(optimizer=partial(Expects, gradient=1.5))  # of ranks 0 and 1, times 1 and 2
    with pytest.raises(RankError, match=r"rank 1 failed: AssertionError: gradient \[2\.0\], expected 1\.0"):
        steps(optimizer=partial(Expects, gradient=1.0), communicate=False)


def test_the_local_step_has_what_the_module_has_and_leaves_it_as_it_was() -> None:
    module = stack()
    before = [parameter.clone() for parameter in module.parameters()]
    local = ddp.measure_local_step(module, square, 2, num_steps=5, optimizer=partial(torch.optim.SGD, lr=1.0))
    assert [gradient.name for gradient in local.gradients] == [name for name, _ in module.named_parameters()]
    assert np.nanmax(local.ready_s) == local.backward_s
    assert min(local.forward_s, local.unpack_s, local.optimizer_s) > 0
    assert {number // 2 for number in np.argsort(local.ready_s)[:2]} == {3}  # the last layer's first
    assert all(map(torch.equal, before, module.parameters()))
    assert all(parameter.grad is None for parameter in module.parameters())


# ---- from recordings to steps


def test_a_recording_is_divided_into_the_parts_of_a_step() -> None:
    spans = [
        Span(0, "compute", "forward", 0, 1.0, 2.0),
        Span(0, "compute", "backward", 0, 2.5, 9.0),
        Span(0, "gradient 1", "ready", 0, 4.0, 4.0),
        Span(0, "gradient 0", "ready", 0, 6.0, 6.0),
        Span(0, "collectives", "allreduce", 0, 4.1, 7.0),
        Span(0, "collectives 2", "allreduce", 0, 6.1, 8.0),
        Span(0, "collectives 3", "allreduce", 0, 6.2, 8.5),
        Span(0, "compute", "optimizer", 0, 9.1, 10.0),
    ]
    found = steps_of(Recording(Timeline.of(spans), np.zeros(8, dtype=np.int64)), 3)
    assert found.ready_s.tolist() == [[[3.5, 1.5, pytest.approx(np.nan, nan_ok=True)]]]
    assert [(span.lane, span.kind, span.start_s, span.stop_s) for span in found.typical.shifted(1.0)] == [
        ("compute", "forward", 1.0, 2.5),
        ("compute", "backward", 2.5, 6.0),
        ("compute", "wait", 6.0, 8.5),
        ("compute", "unpack", 8.5, 9.0),
        ("compute", "optimizer", 9.0, 10.0),
        ("allreduce", "allreduce", 4.1, 7.0),
        ("allreduce 2", "allreduce", 6.1, 8.0),
        ("allreduce 3", "allreduce", 6.2, 8.5),
    ]
    assert (found.step_s.tolist(), found.typical.select(kind="allreduce").item.tolist()) == ([9.0], [0, 1, 2])
