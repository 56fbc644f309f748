"""The measured inputs of a prediction: a module's step, and a machine's costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rankscope.timeline import Span, Timeline
from rankscope.train import fsdp
from rankscope.train.fsdp import measured as measured_module
from rankscope.train.fsdp.measured import _seconds_of_costs
from rankscope.train.fsdp.where import Where

from .models import Residual, Tokens

pytestmark = pytest.mark.slow
WHERE = Where(timeout_s=240.0)


def tokens(model: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = model(torch.arange(5))
    return output.square().mean()


def test_a_measured_step_has_the_events_of_the_observed_one_and_times() -> None:
    module = Tokens([Residual(12), Residual(12)], 12)
    measured = fsdp.measure_step(
        module, tokens, num_ranks=2, iterations=3, optimizer=lambda p: torch.optim.SGD(p, 0.1), where=WHERE
    )
    observed = fsdp.observed_step(module, tokens)
    assert [event[:2] for event in measured.events] == [event[:2] for event in observed.events]
    assert [event.activation_bytes for event in measured.events] == [
        event.activation_bytes for event in observed.events
    ]
    assert 0 < measured.forward_s < 10
    assert 0 < measured.backward_s < 10
    assert measured.optimizer_s > 0
    assert measured.optimizer_shards == 2
    for wrap in ([], ["blocks.*"], ["embed", "blocks.0.first"]):
        predicted = fsdp.predict(measured, lambda num_bytes: 0.0, num_ranks=2, wrap=wrap)
        assert list(predicted.collectives) == fsdp.collectives(module, tokens, num_ranks=2, wrap=wrap)


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"), reason="fully_shard needs torch 2.8 on Gloo"
)
def test_measured_costs_cover_every_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # The hooks cost what a sharded step computes longer than the same step alone. On a busy machine that difference of
    # two measurements may come out as nothing, so here every sharded step is said to compute for 10 s.
    monkeypatch.setattr(measured_module, "_computing_s", lambda run, kind: 10.0)
    costs = fsdp.measure_costs(2, iterations=3, widths=(16, 64), where=WHERE)
    for name in ("allgather", "reduce_scatter", "copy_in", "copy_out", "reduce_copy_in", "copy_out_reduced"):
        seconds = float(getattr(costs, name)(10_000))
        assert 0 < seconds < 1, name
    num_groups = measured_module._DEPTH + 1
    assert 9 / num_groups < costs.forward_hooks_s < 10 / num_groups  # the step alone takes some milliseconds of these
    assert 9 / num_groups < costs.backward_hooks_s < 10 / num_groups
    assert 0 < float(costs.allgather_spread(10_000)) < 1
    assert 0 < float(costs.reduce_scatter_spread(10_000)) < 1
    assert 0 < costs.cores_per_rank <= 1
    assert costs.allreduce is None
    replicated = fsdp.measure_costs(4, num_replicas=2, iterations=2, widths=(16, 64), where=WHERE)
    assert replicated.allreduce is not None
    assert float(replicated.allreduce(10_000)) > 0


def test_a_collective_costs_what_its_last_rank_waits_and_its_spread_what_others_leave_later() -> None:
    calls = [
        Span(0, "allgather", "allgather", 0, 1.0, 6.0),
        Span(1, "allgather", "allgather", 0, 3.0, 6.0),  # comes last, and all leave together
        Span(1, "allgather", "allgather", 0, 10.0, 15.0),
        Span(0, "allgather", "allgather", 0, 10.0, 12.0),  # all come together, and this rank leaves first
    ]
    copies = [Span(0, "copy_in", "copy_in", 0, 0.0, 0.5), Span(1, "copy_in", "copy_in", 0, 0.0, 0.25)]
    seconds = _seconds_of_costs(Timeline.of(calls + copies), 2)
    assert seconds == {"allgather": [3.0, 2.0], "allgather_spread": [0.0, 3.0], "copy_in": [0.5]}


def changing(model: nn.Module, rank: int, number: int) -> Tensor:
    """Calls the module once more in every other step."""
    output: Tensor = model(torch.ones(2, 4))
    if number % 2:
        output = output + model(torch.ones(2, 4))
    return output.mean()


def test_a_step_that_calls_other_modules_than_the_one_before_is_refused() -> None:
    with pytest.raises(ValueError, match="same modules"):
        fsdp.measure_step(nn.Linear(4, 2), changing)
