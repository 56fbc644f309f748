"""Predicted steps: the rules of FSDP's streams worked out by hand, and memory against live tensors of real ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rankscope.timeline import Span
from rankscope.train import fsdp
from rankscope.train.fsdp.calls import CallObserver
from rankscope.train.fsdp.measured import _seconds_of_costs
from rankscope.train.fsdp.replay import ShardSettings
from rankscope.train.fsdp.running import FSDPJob, run_jobs, wrapped_names
from rankscope.train.fsdp.where import Where

from ...extents import SAMPLE_OR_EVERYTHING

MILLION = 1_000_000  # elements of each layer: 4 MB
LAYERS = [
    fsdp.ShardedLayer(str(place), [MILLION], forward_s=1.0, backward_s=2.0, activation_bytes=100) for place in range(4)
]
STEP = fsdp.ModuleStep.of_layers(LAYERS)


def constant(seconds: float, num_bytes: Any) -> float:
    return seconds


def costs(allgather_s: float, reduce_s: float, **others: float) -> fsdp.FSDPCosts:
    parts = {name: partial(constant, seconds) for name, seconds in others.items()}
    return fsdp.FSDPCosts(partial(constant, allgather_s), partial(constant, reduce_s), **parts)


def spans(step: fsdp.PredictedStep, kind: str) -> list[tuple[int, float, float]]:
    listed: list[Span] = sorted(step.timeline.select(kind=kind), key=lambda span: span.start_s)
    return [(span.item, round(span.start_s, 9), round(span.stop_s, 9)) for span in listed]


def predicted(step: fsdp.ModuleStep = STEP, **options: Any) -> fsdp.PredictedStep:
    options = {"cost": costs(0.5, 0.5), "num_ranks": 2, "wrap": ["*"], "optimizer": None, **options}
    return fsdp.predict(step, options.pop("cost"), **options)


# ---- time


def test_fast_communication_is_hidden_except_at_both_ends() -> None:
    step = predicted()
    # the first all-gather, and the last reduce-scatter, have nothing to hide behind
    assert step.step_s == pytest.approx(0.5 + 4 * 1.0 + 4 * 2.0 + 0.5)
    assert step.wait_s == pytest.approx(1.0)
    assert [item for item, _, _ in spans(step, "allgather")] == [1, 2, 3, 4, 4, 3, 2, 1]
    assert [item for item, _, _ in spans(step, "reduce_scatter")] == [4, 3, 2, 1]


def test_an_all_gather_is_at_most_two_groups_ahead_in_forward() -> None:
    step = predicted(cost=costs(0.1, 0.1))
    gathers = spans(step, "allgather")[:4]
    forward = spans(step, "forward")
    # group 3's copy-in waits for the copy-out of group 1, which is followed by its computing, and so on
    assert gathers == [(1, 0.0, 0.1), (2, 0.1, 0.2), (3, 0.2, 0.3), (4, 1.1, 1.2)]
    assert forward == [(1, 0.1, 1.1), (2, 1.1, 2.1), (3, 2.1, 3.1), (4, 3.1, 4.1)]


def test_slow_all_gathers_decide_the_forward() -> None:
    step = predicted(cost=costs(3.0, 0.0), reshard_after_forward=False)
    assert spans(step, "allgather") == [(1, 0.0, 3.0), (2, 3.0, 6.0), (3, 6.0, 9.0), (4, 9.0, 12.0)]
    assert spans(step, "forward")[-1] == (4, 12.0, 13.0)
    assert step.step_s == pytest.approx(13.0 + 8.0)


def test_a_reduce_scatter_holds_up_the_next_but_one_group() -> None:
    """Its input is kept until the next group is done, and that one waits for it."""
    step = predicted(cost=costs(0.0, 5.0), reshard_after_forward=False)
    assert spans(step, "backward") == [(4, 4.0, 6.0), (3, 6.0, 8.0), (2, 11.0, 13.0), (1, 16.0, 18.0)]
    assert spans(step, "reduce_scatter") == [(4, 6.0, 11.0), (3, 11.0, 16.0), (2, 16.0, 21.0), (1, 21.0, 26.0)]


def test_blocking_collectives_add_up() -> None:
    step = predicted(overlap=False, cost=costs(0.5, 0.25, copy_out=0.1, reduce_copy_in=0.05))
    assert step.step_s == pytest.approx(12.0 + 8 * (0.5 + 0.1) + 4 * (0.25 + 0.05))
    assert step.wait_s == pytest.approx(8 * 0.5 + 4 * 0.25)
    compute = sorted(step.timeline.select(lane="compute"), key=lambda span: span.start_s)
    assert compute[0].start_s == 0.0
    assert sum(span.stop_s - span.start_s for span in compute) == pytest.approx(step.step_s)


def test_without_overlap_the_next_collective_waits_for_the_rank_that_leaves_last() -> None:
    cost = costs(0.5, 0.25, allgather_spread=0.2, reduce_scatter_spread=0.1)
    together = predicted(overlap=False, cost=costs(0.5, 0.25))
    apart = predicted(overlap=False, cost=cost)
    assert apart.step_s == pytest.approx(together.step_s + 8 * 0.2 + 4 * 0.1)
    assert apart.wait_s == pytest.approx(together.wait_s + 8 * 0.2 + 4 * 0.1)
    assert predicted(cost=cost).step_s == predicted(cost=costs(0.5, 0.25)).step_s


def test_on_shared_cores_the_last_rank_catches_up_while_the_others_compute() -> None:
    together = predicted(overlap=False, cost=costs(0.5, 0.25))
    cost = costs(0.5, 0.25, allgather_spread=0.2)
    # a forward of 1 s lets it catch up by 0.1 s, a backward of 2 s by 0.2 s
    shared = predicted(overlap=False, cost=replace(cost, cores_per_rank=0.9))
    collectives = [call.kind for call in shared.collectives]
    assert collectives == ["allgather"] * 6 + ["reduce_scatter", "allgather"] * 2 + ["reduce_scatter"] * 2
    between_gathers_s = 3 * 0.1 + 0.1  # of forwards: after the fourth, the first all-gather of the backward follows
    assert shared.step_s == pytest.approx(together.step_s + between_gathers_s + 0.2)


@pytest.mark.parametrize("overlap", [True, False])
def test_hooks_take_the_process_once_per_group_and_direction(overlap: bool) -> None:
    cost = fsdp.FSDPCosts(partial(constant, 0.1), partial(constant, 0.1), forward_hooks_s=0.25, backward_hooks_s=0.5)
    without = predicted(cost=costs(0.1, 0.1), overlap=overlap)
    num_groups = len(LAYERS) + 1  # the root, which has no parameters here, has hooks, too
    forward_s = sum(stop_s - start_s for _, start_s, stop_s in spans(predicted(cost=cost, overlap=overlap), "forward"))
    backward_s = sum(
        stop_s - start_s for _, start_s, stop_s in spans(predicted(cost=cost, overlap=overlap), "backward")
    )
    assert forward_s == pytest.approx(4 * 1.0 + num_groups * 0.25)
    assert backward_s == pytest.approx(4 * 2.0 + num_groups * 0.5)
    assert predicted(cost=cost, overlap=overlap).step_s > without.step_s


def test_hsdp_reduces_over_the_replicas_on_a_stream_of_its_own() -> None:
    cost = fsdp.FSDPCosts(partial(constant, 0.5), partial(constant, 0.5), partial(constant, 0.7))
    step = predicted(cost=cost, num_ranks=4, num_replicas=2)
    for scatter, reduce in zip(spans(step, "reduce_scatter"), spans(step, "allreduce"), strict=True):
        assert reduce[0] == scatter[0]
        assert reduce[1] == scatter[2]
    assert step.step_s == pytest.approx(0.5 + 12.0 + 0.5 + 0.7)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_what_a_predicted_step_costs_is_read_from_it_as_from_a_run(overlap: bool, num_replicas: int) -> None:
    copies = {"copy_in": 0.01, "copy_out": 0.02, "reduce_copy_in": 0.03, "copy_out_reduced": 0.04}
    step = predicted(
        cost=costs(0.5, 0.25, allreduce=0.7, **copies), num_ranks=4, num_replicas=num_replicas, overlap=overlap
    )
    num_calls = {"copy_in": 8, "copy_out": 8, "reduce_copy_in": 4, "copy_out_reduced": 4}
    seconds = _seconds_of_costs(step.timeline, num_ranks=1)
    for name, copy_s in copies.items():
        assert seconds[name] == pytest.approx([copy_s] * num_calls[name]), name


def test_a_reduce_scatter_does_not_wait_for_an_all_reduce_of_hsdp() -> None:
    """Torch's ``foreach_reduce`` copies the gradients out on the stream of the all-reduce."""
    step = predicted(cost=costs(0.1, 0.1, allreduce=5.0), num_ranks=4, num_replicas=2)
    scatters = spans(step, "reduce_scatter")
    backwards = spans(step, "backward")
    assert [start_s for _, start_s, _ in scatters] == pytest.approx([stop_s for _, _, stop_s in backwards])
    # the all-reduces come one after the other, from the end of the first reduce-scatter on
    assert step.step_s == pytest.approx(scatters[0][2] + 4 * 5.0)


def test_each_collective_has_a_span() -> None:
    for prefetch in range(3):
        step = predicted(prefetch=prefetch)
        for kind in ("allgather", "reduce_scatter"):
            assert len(spans(step, kind)) == [call.kind for call in step.collectives].count(kind)


# ---- memory by hand


def test_one_group_needs_everything_at_once() -> None:
    step = predicted(wrap=[])
    terms = step.memory.peak_terms
    assert terms["parameters"] == 4 * 4 * MILLION // 2
    # the all-gather's buffer is kept until the forward has ended, next to the parameters that were copied out of it
    assert step.memory.doing[step.memory.peak_place] == "forward of root"
    assert step.memory.peak_bytes == 4 * 4 * MILLION * 2.5 + 4 * 100


def test_resharding_saves_memory_and_prefetching_takes_some() -> None:
    never = predicted(reshard_after_forward=False).memory.peak_bytes
    always = predicted().memory.peak_bytes
    ahead = predicted(prefetch=2).memory.peak_bytes
    assert always < never
    assert ahead > always


def test_everything_but_shards_and_gradients_is_freed() -> None:
    for options in ({}, {"overlap": False}, {"prefetch": 2}, {"reshard_after_forward": 2, "num_ranks": 4}):
        memory = predicted(**options).memory
        num_ranks = options.get("num_ranks", 2)
        last = {name: int(values[-1]) for name, values in memory.terms.items()}
        shard = 4 * 4 * MILLION // int(num_ranks)  # type: ignore[call-overload]
        assert {name: size for name, size in last.items() if size} == {"parameters": shard, "gradients": shard}
        assert all((values >= 0).all() for values in memory.terms.values())


# ---- memory of live tensors


WIDE = torch.ones(256, 256)


def mean(model: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = model(torch.ones(1, 256))
    return output.float().mean()


def wide(model: nn.Module, rank: int, number: int) -> Tensor:
    """Activations and their gradients take as much as parameters."""
    output: Tensor = model(WIDE)
    return output.square().mean()


def uneven() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 700), nn.ReLU(), nn.Linear(700, 301), nn.ReLU(), nn.Linear(301, 64))


def equal() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))


MEMORY_SETTINGS: list[dict[str, Any]] = [
    {},
    {"reshard_after_forward": False},
    {"reshard_after_forward": None, "prefetch": 1},
    {"prefetch": 2},
    {"param_dtype": "bfloat16"},
    {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
    {"reduce_dtype": "bfloat16"},
]


def errors(
    num_ranks: int, settings: list[dict[str, Any]], loss: Callable[..., Tensor], everything: bool
) -> dict[str, float]:
    """The relative error of each predicted peak, for two modules and three wrappings with each of the settings.

    Without `everything`, each setting has one module and one wrapping, which alternate.
    """
    modules_and_wraps = list(product((uneven, equal), ([], ["0"], ["*"])))
    cases = []
    for place, options in enumerate(settings):
        own = modules_and_wraps
        if not everything:
            own = [modules_and_wraps[place % len(modules_and_wraps)]]
        cases += [(make(), wrap, options) for make, wrap in own]
    jobs = []
    for module, wrap, options in cases:
        checked = ShardSettings(num_ranks, **options)
        jobs.append(FSDPJob(module, loss, wrapped_names(module, wrap, checked), checked, 1, torch.optim.Adam))
    found = {}
    for (module, wrap, options), observed in zip(cases, run_jobs(jobs, Where(timeout_s=240.0)), strict=True):
        step = fsdp.observed_step(module, loss)
        expected = fsdp.predict(
            step, costs(1e-3, 1e-3, allreduce=1e-3), num_ranks=num_ranks, wrap=wrap, overlap=False, **options
        )
        found[f"{len(module)} layers, {wrap}, {options}"] = expected.memory.peak_bytes / observed.peak_bytes - 1  # type: ignore[arg-type]
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"), reason="fully_shard needs torch 2.8 on Gloo"
)
@pytest.mark.parametrize(
    ("num_ranks", "settings", "loss"),
    [
        (2, MEMORY_SETTINGS, mean),
        (2, [{}, {"reshard_after_forward": False}, {"param_dtype": "bfloat16"}], wide),
        (4, [{"num_replicas": 2}, {"reshard_after_forward": 2}, {"prefetch": 1}], mean),
    ],
)
@SAMPLE_OR_EVERYTHING
def test_the_peak_is_that_of_live_tensors(
    num_ranks: int, settings: list[dict[str, Any]], loss: Callable[..., Tensor], everything: bool
) -> None:
    found = errors(num_ranks, settings, loss, everything)
    wrong = {name: f"{error:+.1%}" for name, error in found.items() if abs(error) > 0.02}
    assert not wrong
    assert len(found) == (6 if everything else 1) * len(settings)


class Releasing(nn.Module):
    """After its first layer it frees a copy of the batch, and before that it makes a larger one of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, batch: Tensor) -> Tensor:
        copies_of_batch = batch.repeat(50, 1)
        hidden = self.first(batch)
        copies_of_hidden = hidden.detach().repeat(100, 1)
        hidden = hidden + copies_of_hidden.mean(0)
        del copies_of_batch, copies_of_hidden
        output: Tensor = self.second(hidden)
        return output


def test_a_forward_that_frees_what_was_alive_has_the_peak_that_was_counted() -> None:
    def loss(model: nn.Module, rank: int, number: int) -> Tensor:
        output: Tensor = model(torch.ones(64, 64))
        return output.sum()

    observer = CallObserver(Releasing())
    observer.run_with_live_bytes(loss, 0, 0)
    counted_bytes = observer.input_bytes + max(mark.peak_bytes for mark in observer.marks)
    step = fsdp.observed_step(Releasing(), loss)
    assert predicted(step, wrap=[]).memory.terms["activations"].max() == counted_bytes


def attending(model: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = model(torch.ones(4, 32, 128))
    return output.square().mean()


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"), reason="fully_shard needs torch 2.8 on Gloo"
)
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}, {"prefetch": 1}])
def test_the_peak_of_a_transformer_is_that_of_live_tensors(options: dict[str, Any]) -> None:
    """Attention keeps less if query, key and value are one tensor, which hooks must not split."""
    module = nn.Sequential(*(nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True) for _ in range(3)))
    observed = fsdp.run(module, attending, num_ranks=2, wrap=["*"], iterations=1, **options)
    step = fsdp.observed_step(module, attending)
    expected = predicted(step, wrap=["*"], overlap=False, **options)
    assert abs(expected.memory.peak_bytes / observed.peak_bytes - 1) < 0.02


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"), reason="fully_shard needs torch 2.8 on Gloo"
)
def test_live_bytes_are_those_of_the_model_over_the_whole_step() -> None:
    """Every rise and fall that FSDP causes, in units of a layer, so that activations of some kilobytes do not count."""
    module = equal()
    observed = fsdp.run(module, mean, num_ranks=2, wrap=["*"], iterations=1)
    step = fsdp.observed_step(module, mean)
    step = replace(step, events=tuple([event._replace(activation_bytes=0, working_bytes=0) for event in step.events]))
    expected = predicted(step, overlap=False)
    layer_bytes = 4 * 257 * 256

    def levels(num_bytes: Any) -> list[float]:
        rounded = np.round(np.asarray(num_bytes) / layer_bytes * 2) / 2
        changes = np.flatnonzero(np.diff(rounded))
        return [float(rounded[0]), *rounded[changes + 1].tolist()]

    assert levels(observed.live[0].num_bytes) == levels(expected.memory.num_bytes)
    assert max(levels(expected.memory.num_bytes)) >= 4


# ---- totals


def test_scaled_totals_are_shared_by_parameters_or_equally() -> None:
    layers = [
        fsdp.ShardedLayer("0", [fsdp.ShardedParameter(("first",), (4,))]),
        fsdp.ShardedLayer("1", [fsdp.ShardedParameter(("second",), (8,))]),
    ]
    step = fsdp.ModuleStep.of_layers(layers).scaled(1.0, 3.0)  # the parameters have names of the root
    assert (step.forward_s, step.backward_s) == (1.0, 3.0)
    assert {event.seconds for event in step.events if event.kind == "backward"} == {1.5}
    named = fsdp.ModuleStep.of_layers([fsdp.ShardedLayer("0", [4]), fsdp.ShardedLayer("1", [8])]).scaled(1.0, 3.0)
    assert [event.seconds for event in named.events if event.kind == "backward"] == [2.0, 1.0]


def test_a_step_that_is_scaled_keeps_its_optimizer_unless_it_gets_another() -> None:
    layers = [fsdp.ShardedLayer("0", [fsdp.ShardedParameter(("0.weight",), (4,))])]
    step = fsdp.ModuleStep.of_layers(layers, optimizer_s=0.5)
    assert step.scaled(1.0, 2.0).optimizer_s == 0.5
    assert step.scaled(1.0, 2.0, optimizer_s=0.0).optimizer_s == 0.0
