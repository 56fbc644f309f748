"""`fully_shard` on real ranks: its recorded collectives are the predicted ones, and rank failures end in time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rankscope.ranks import RankError
from rankscope.train import ddp, fsdp
from rankscope.train.fsdp.replay import ShardSettings
from rankscope.train.fsdp.running import FSDPJob, run_jobs, wrapped_names

from ...extents import SAMPLE_OR_EVERYTHING
from .models import DrawnCase, drawn_case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"), reason="fully_shard needs torch 2.8 on Gloo"
    ),
]
WHERE = ddp.Where(timeout_s=240.0)


def job_of(case: DrawnCase) -> FSDPJob:
    settings = ShardSettings(**case.settings)
    return FSDPJob(case.module, case.loss, wrapped_names(case.module, case.wrap, settings), settings)


def differences(cases: list[DrawnCase], runs: list[fsdp.FSDPRun]) -> list[str]:
    """The cases whose recorded collectives differ from the predicted ones."""
    found = []
    for case, observed in zip(cases, runs, strict=True):
        read = fsdp.collectives(case.module, wrap=case.wrap, **case.settings)
        followed = fsdp.collectives(case.module, wrap=case.wrap, loss=case.loss, **case.settings)
        if read != observed.collectives or followed != observed.collectives:
            found.append(f"{case}: {observed.collectives} recorded, {read} read, {followed} followed")
    return found


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_collectives_of_random_models_are_as_predicted(num_ranks: int, everything: bool) -> None:
    """Order, kinds and bytes: 12 models of the sample, 75 of everything."""
    count = 25 if everything else 4
    cases = [drawn_case(100 * num_ranks + seed, num_ranks) for seed in range(count)]
    assert differences(cases, run_jobs([job_of(case) for case in cases], WHERE)) == []


def test_a_wrong_prediction_is_found() -> None:
    right = drawn_case(7, 2)
    wrong = right._replace(settings={**right.settings, "reshard_after_forward": False})
    runs = run_jobs([job_of(right)], WHERE)
    assert differences([right], runs) == []
    assert len(differences([wrong], runs)) == 1


def mean(model: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = model(torch.ones(4, 64))
    return output.mean()


def test_the_timeline_has_every_collective_of_every_rank() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 8))
    observed = fsdp.run(
        module, mean, num_ranks=2, wrap=["0", "2"], iterations=3, optimizer=torch.optim.SGD, where=WHERE
    )
    kinds = [call.kind for call in observed.collectives]
    for rank in (0, 1):
        timeline = observed.timeline.select(rank=rank)
        for kind in ("allgather", "reduce_scatter"):
            assert len(timeline.select(kind=kind)) == kinds.count(kind)
        assert len(timeline.select(lane="compute", kind="copy_out")) == kinds.count("allgather")
        spans = sorted(timeline.select(lane="compute"), key=lambda span: span.start_s)
        for span, after in pairwise(spans):
            assert span.stop_s <= after.start_s + 1e-9
        assert {"forward", "backward", "optimizer"} <= {span.kind for span in spans}
    assert 0 < observed.timeline.makespan_s <= 2 * max(iteration.step_s for iteration in observed.iterations)


def batch_of(number: int) -> Tensor:
    return torch.randn(4, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def square(model: nn.Module, rank: int, number: int) -> Tensor:
    """The loss of the rank's half of the batch; rank 0 prints the sum of its outputs."""
    output: Tensor = model(batch_of(number)[2 * rank : 2 * rank + 2])
    if rank == 0:
        print(f"{output.sum().item():.9f}")
    return output.square().mean()


def test_training_is_as_without_sharding(capfd: pytest.CaptureFixture[str]) -> None:
    """Two ranks with half of the batch each, as one process with all of it: recording changes no value."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    fsdp.run(module, square, num_ranks=2, wrap=["0"], iterations=2, optimizer=torch.optim.SGD, where=WHERE)
    outputs = [line.removeprefix("[rank 0] ") for line in capfd.readouterr().out.splitlines() if "rank 0" in line]
    expected = []
    optimizer = torch.optim.SGD(module.parameters())
    for number in range(5):  # two steps that warm up, two that are timed, one whose live bytes are counted
        output = module(batch_of(number))
        expected.append(f"{output[:2].sum().item():.9f}")
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
    assert outputs == expected


def failing(model: nn.Module, rank: int, number: int) -> Tensor:
    if rank == 1 and number == 1:
        raise ArithmeticError("no more samples")
    return mean(model, rank, number)


def test_a_failing_rank_is_named_in_bounded_time() -> None:
    begin_s = time.monotonic()
    with pytest.raises(RankError, match=r"(?s)rank 1 .*no more samples"):
        fsdp.run(nn.Linear(64, 4), failing, num_ranks=2, where=ddp.Where(timeout_s=120.0))
    assert time.monotonic() - begin_s < 100


def stuck(model: nn.Module, rank: int, number: int) -> Tensor:
    if rank == 0:
        time.sleep(1000)
    return mean(model, rank, number)


def test_a_stuck_rank_ends_at_the_timeout() -> None:
    with pytest.raises(RankError, match="rank"):
        fsdp.run(nn.Linear(64, 4), stuck, num_ranks=2, where=ddp.Where(timeout_s=8.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ranks": 1}, "num_ranks must be a whole number from 2 to"),
        ({"wrap": ["fc"]}, "wrap must have names of submodules"),
        ({"num_ranks": 4, "num_replicas": 3}, "num_replicas must divide the 4 ranks"),
        ({"iterations": 0}, "iterations must be a whole number from 1 to"),
        ({"where": "here"}, "where must be a Where, got 'here'"),
        ({"optimizer": 3}, "optimizer must be a function, got 3"),
    ],
)
def test_wrong_input_starts_no_rank(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fsdp.run(nn.Linear(64, 4), mean, **options)
    with pytest.raises(ValueError, match="module must have parameters to shard"):
        fsdp.run(nn.ReLU(), mean)
    with pytest.raises(ValueError, match="loss must be a function, got 3"):
        fsdp.run(nn.Linear(64, 4), 3)  # type: ignore[arg-type]
