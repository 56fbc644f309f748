"""`fully_shard` on real ranks: its recorded collectives are the predicted ones, and rank failures end in time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from rankscope.ranks import RankError
from rankscope.timeline import Timeline
from rankscope.train import fsdp
from rankscope.train.fsdp.replay import ShardSettings
from rankscope.train.fsdp.running import FSDPJob, run_jobs, wrapped_names
from rankscope.train.fsdp.where import Where

from ...extents import SAMPLE_OR_EVERYTHING
from .models import DrawnCase, Recomputed, Shared, drawn_case, job_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"), reason="fully_shard needs torch 2.8 on Gloo"
    ),
]
WHERE = Where(timeout_s=240.0)
NO_COST = fsdp.FSDPCosts(lambda num_bytes: 0.0, lambda num_bytes: 0.0)


def differences(cases: list[DrawnCase], runs: list[fsdp.FSDPRun]) -> list[str]:
    """The cases whose recorded collectives differ from the predicted ones."""
    found = []
    for case, observed in zip(cases, runs, strict=True):
        predicted = fsdp.collectives(case.module, case.loss, wrap=case.wrap, **case.settings)
        if predicted != observed.collectives:
            found.append(f"{case}: {observed.collectives} recorded, {predicted} predicted")
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


class TokenModel(nn.Module):
    """A small language model, whose logits are the largest activation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4000, 64)
        layers = [nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True) for _ in range(2)]
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(64, 4000, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def cross_entropy_in_float32(model: nn.Module, rank: int, number: int) -> Tensor:
    tokens = torch.randint(0, 4000, (4, 64), generator=torch.Generator().manual_seed(number))
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def mean_square(model: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = model(torch.ones(4, 256))
    return output.square().mean()


class PeakCase(NamedTuple):
    """A module whose collectives and peak of live bytes are compared with the prediction."""

    name: str
    module: nn.Module
    wrap: list[str]
    settings: dict[str, Any]
    loss: Any = mean_square


def recomputed() -> nn.Sequential:
    return nn.Sequential(*(Recomputed(256) for _ in range(3)))


def activations_between() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))


def layers_of_which_some_are_frozen() -> nn.Sequential:
    module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    module[0].requires_grad_(False)
    module[2].requires_grad_(False)
    return module


class Attending(nn.Module):
    """Attention whose query, key and value are one tensor, which is computed from parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(256, 256)
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.before(inputs)
        output: Tensor = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return output + hidden


def of_sequences(model: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = model(torch.ones(8, 16, 256))
    return output.square().mean()


HALF = {"num_ranks": 2, "param_dtype": "bfloat16"}
ON_TWO_RANKS = [
    PeakCase("recomputed inside", recomputed(), ["*.inner.0", "*.inner.2"], {"num_ranks": 2}),
    PeakCase("recomputed inside, ahead", recomputed(), ["*.inner.0", "*.inner.2"], {"num_ranks": 2, "prefetch": 1}),
    PeakCase("recomputed in both", recomputed(), ["*", "*.inner"], {"num_ranks": 2, "reshard_after_forward": False}),
    PeakCase("without parameters, ahead", activations_between(), ["*"], {"num_ranks": 2, "prefetch": 1}),
    PeakCase("resharded to all", activations_between(), ["*"], {"num_ranks": 2, "reshard_after_forward": 2}),
    PeakCase("a layer of two modules", Shared(256), ["first.0", "first", "second"], {"num_ranks": 2}),
    PeakCase("wrapped attention", Attending(), ["attention"], {"num_ranks": 2}, of_sequences),
    PeakCase("attention in the root", Attending(), ["before"], {"num_ranks": 2}, of_sequences),
    PeakCase("a loss in float32", TokenModel(), ["blocks.*"], HALF, cross_entropy_in_float32),
    PeakCase("summed", TokenModel(), ["blocks.*"], {**HALF, "reduce_dtype": "float32"}, cross_entropy_in_float32),
]
ON_FOUR_RANKS = [
    PeakCase("resharded to two", activations_between(), ["*"], {"num_ranks": 4, "reshard_after_forward": 2}),
    PeakCase("frozen", layers_of_which_some_are_frozen(), ["*"], {"num_ranks": 4, "reshard_after_forward": 2}),
]


@pytest.mark.parametrize("cases", [ON_TWO_RANKS, ON_FOUR_RANKS], ids=["2 ranks", "4 ranks"])
def test_collectives_and_peaks_where_forward_repeats_or_dtypes_differ(cases: list[PeakCase]) -> None:
    jobs = []
    for case in cases:
        settings = ShardSettings(**case.settings)
        wrapped = wrapped_names(case.module, case.wrap, settings)
        jobs.append(FSDPJob(case.module, case.loss, wrapped, settings, 1, torch.optim.Adam))
    wrong = []
    for case, observed in zip(cases, run_jobs(jobs, WHERE), strict=True):
        step = fsdp.observed_step(case.module, case.loss, case.wrap, param_dtype=case.settings.get("param_dtype"))
        expected = fsdp.predict(step, NO_COST, wrap=case.wrap, overlap=False, **case.settings)
        if list(expected.collectives) != list(observed.collectives):
            wrong.append(f"{case.name}: {observed.collectives} recorded, {expected.collectives} predicted")
        if abs(expected.memory.peak_bytes / observed.peak_bytes - 1) > 0.02:
            wrong.append(f"{case.name}: peak {observed.peak_bytes} recorded, {expected.memory.peak_bytes} predicted")
    assert wrong == []


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


def test_a_run_of_hsdp_has_the_lanes_of_its_prediction() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    settings: dict[str, Any] = {"num_ranks": 4, "num_replicas": 2, "wrap": ["0"]}
    observed = fsdp.run(module, mean, iterations=1, where=WHERE, **settings)
    copies = dict.fromkeys(("copy_in", "copy_out", "reduce_copy_in", "copy_out_reduced"), ten_ms)
    costs = fsdp.FSDPCosts(ten_ms, ten_ms, ten_ms, forward_hooks_s=0.01, backward_hooks_s=0.01, **copies)
    step = fsdp.observed_step(module, mean)
    for overlap in (False, True):
        predicted = fsdp.predict(step, costs, optimizer=None, overlap=overlap, **settings)
        for rank in range(4):
            assert lanes_and_kinds(observed.timeline.select(rank=rank)) == lanes_and_kinds(predicted.timeline)


def ten_ms(num_bytes: Any) -> float:
    return 0.01


def lanes_and_kinds(timeline: Timeline) -> set[tuple[str, str]]:
    return {(span.lane, span.kind) for span in timeline}


_SLOW_S = 0.1


class _SlowBackward(torch.autograd.Function):
    """Its backward takes `_SLOW_S`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        time.sleep(_SLOW_S)
        return gradient


class Slow(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        slow: Tensor = _SlowBackward.apply(values)  # type: ignore[no-untyped-call]
        return slow


class Block(nn.Module):
    """A module with layers of its own in front of and behind its inner one, which is called with a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 64), Slow())
        self.inner = nn.Linear(64, 64)
        self.last = nn.Sequential(nn.Linear(64, 64), Slow())

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.last(self.inner(input=self.first(values)))
        return output


def test_the_backward_of_a_module_around_a_wrapped_one_is_its_own() -> None:
    """Slow layers are in front of the block, and in the block in front of its inner module and behind it."""
    module = nn.Sequential(nn.Linear(64, 64), Slow(), Slow(), Slow(), Block())
    wrap = ["4", "4.inner"]
    observed = fsdp.run(module, mean, num_ranks=2, wrap=wrap, iterations=1, where=WHERE)
    assert observed.groups == ("", *wrap)
    for rank in (0, 1):
        spans = observed.timeline.select(rank=rank, lane="compute", kind="backward")
        backward_s = [sum(span.stop_s - span.start_s for span in spans if span.item == group) for group in range(2)]
        assert backward_s[0] >= 3 * _SLOW_S
        assert backward_s[1] >= 2 * _SLOW_S


class InPlace(nn.Module):
    """A module that adds in place to what its inner one has returned, and returns that tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.slow = nn.Sequential(nn.Linear(64, 64), Slow())

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.inner(values)
        output += self.slow(values)
        return output


def backwards_s(module: nn.Module, group: int) -> list[float]:
    """How long a group's backward takes on each of two ranks, if the second module and its inner one are wrapped."""
    observed = fsdp.run(module, mean, num_ranks=2, wrap=["1", "1.inner"], iterations=1, where=WHERE)
    backwards = [observed.timeline.select(rank=rank, lane="compute", kind="backward") for rank in (0, 1)]
    return [sum(span.stop_s - span.start_s for span in spans if span.item == group) for spans in backwards]


def test_a_module_that_changes_its_inner_ones_output_in_place_has_its_own_backward() -> None:
    module = nn.Sequential(nn.Linear(64, 64), InPlace(), nn.Linear(64, 64))
    assert min(backwards_s(module, group=1)) >= _SLOW_S


class Unseen(nn.Module):
    """A module that changes what its inner one has returned without autograd, and returns that tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 64), Slow())

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.inner(values)
        with torch.no_grad():
            output.clamp_(-9, 9)
        return output


def test_a_change_that_autograd_does_not_see_leaves_the_backward_to_the_inner_module() -> None:
    module = nn.Sequential(nn.Linear(64, 64), Unseen(), nn.Linear(64, 64))
    assert min(backwards_s(module, group=2)) >= _SLOW_S


class Repeated(nn.Module):
    """A module whose backward repeats the forward of its layers, the first of which is wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), Slow(), nn.Tanh())

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = checkpoint(self.layers, values, use_reentrant=False)
        return output


def test_after_a_repeated_forward_the_backward_that_asked_for_it_goes_on() -> None:
    module = nn.Sequential(nn.Linear(64, 64), Repeated())
    observed = fsdp.run(module, mean, num_ranks=2, wrap=["1", "1.layers.0"], iterations=1, where=WHERE)
    for rank in (0, 1):
        spans = observed.timeline.select(rank=rank, lane="compute", kind="backward")
        assert sum(span.stop_s - span.start_s for span in spans if span.item == 1) >= _SLOW_S


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
        fsdp.run(nn.Linear(64, 4), failing, num_ranks=2, where=Where(timeout_s=120.0))
    assert time.monotonic() - begin_s < 100


def stuck(model: nn.Module, rank: int, number: int) -> Tensor:
    if rank == 0:
        time.sleep(1000)
    return mean(model, rank, number)


def test_a_stuck_rank_ends_at_the_timeout() -> None:
    with pytest.raises(RankError, match="rank"):
        fsdp.run(nn.Linear(64, 4), stuck, num_ranks=2, where=Where(timeout_s=8.0))
