"""What `observe` records, worked out by hand: collectives, memory and timelines of small modules."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

from rankscope.train import fsdp
from rankscope.train.fake_group import fake_group
from rankscope.train.fsdp.observed import Sharding
from tests.extents import SAMPLE_OR_EVERYTHING, first_in_test

from .models import drawn_case


class Rows(nn.Sequential):
    """Layers of 3 columns, each called with the sum of what the one before it returns."""

    def forward(self, batch: Tensor) -> Tensor:
        for layer in self:
            batch = layer(batch).sum(-1, keepdim=True).repeat(1, 3)
        return batch


def rows(*sizes: int) -> nn.Sequential:
    """Layers without bias of 3 columns, so that n rows on two ranks take 12 · (n rounded up to even) bytes."""
    return Rows(*(nn.Linear(3, size, bias=False) for size in sizes))


def collectives(module: nn.Module, **options: Any) -> list[fsdp.CollectiveCall]:
    """The collectives of a step on a batch that the module takes."""
    matrices = [parameter for parameter in module.parameters() if parameter.ndim == 2]
    inputs = torch.ones(2, matrices[0].shape[-1])
    return fsdp.collectives(module, lambda model: model(inputs).sum(), **{"num_ranks": 2, **options})


def sizes_of(kind: str, calls: list[fsdp.CollectiveCall]) -> list[int]:
    return [call.num_bytes for call in calls if call.kind == kind]


gathers = partial(sizes_of, "allgather")
reduces = partial(sizes_of, "reduce_scatter")


# ---- collectives


def test_dimension_0_is_padded_and_each_group_has_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "chunk", None)  # to make a chunk for each of many ranks takes long
    for num_ranks, num_rows in ((2, 4 + 6), (4, 4 + 8), (4096, 2 * 4096)):
        calls = collectives(rows(3, 5), num_ranks=num_ranks, reshard_after_forward=False)
        assert calls == [("allgather", 12 * num_rows), ("reduce_scatter", 12 * num_rows)]


def test_the_roots_default_is_to_keep_its_parameters() -> None:
    calls = {}
    for reshard in (True, None, False):
        calls[reshard] = collectives(rows(2, 4, 6), wrap=["0", "1"], reshard_after_forward=reshard)
    assert gathers(calls[True]) == [72, 24, 48, 72, 48, 24]
    assert gathers(calls[None]) == [72, 24, 48, 48, 24]
    assert gathers(calls[False]) == [72, 24, 48]
    # the first layer's input needs no gradient, so autograd does not end there, and the root's callback reduces it
    assert reduces(calls[True]) == reduces(calls[None]) == reduces(calls[False]) == [48, 72, 24]


def test_frozen_layers_in_front_are_gathered_once_more_at_most_and_never_reduced() -> None:
    """As FSDP2 does on two real ranks: 9 all-gathers and 2 reduce-scatters, where a count of layers says 12 and 6."""
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    for layer in list(module)[:4]:
        layer.requires_grad_(False)
    calls = collectives(module, wrap=["*"])
    assert (len(gathers(calls)), len(reduces(calls))) == (9, 2)
    between = rows(2, 4, 6)
    between[1].requires_grad_(False)
    calls = collectives(between, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(calls) == [72, 24, 48, 48, 24]
    assert reduces(calls) == [72, 24]


# ---- memory


@pytest.mark.parametrize("seed", first_in_test(3, range(12)))
def test_a_module_on_meta_shows_the_same_step_and_the_callers_module_stays_as_it_is(seed: int) -> None:
    case = drawn_case(seed, 4)
    before = copy.deepcopy(case.module)
    real = fsdp.observe(case.module, case.loss, optimizer=torch.optim.Adam, **case.settings)
    assert str(case.module) == str(before)
    for parameter, old in zip(case.module.parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    on_meta = fsdp.observe(case.module.to("meta"), case.loss, optimizer=torch.optim.Adam, **case.settings)
    assert on_meta.collectives == real.collectives
    assert on_meta.peak == real.peak


def test_a_loss_that_depends_on_values_sees_those_of_the_module() -> None:
    module = nn.Linear(4, 2)
    seen = []

    def loss(model: nn.Module) -> Tensor:
        outputs: Tensor = model(torch.ones(3, 4))
        seen.append(outputs.tolist())
        return outputs.sum()

    fsdp.observe(module, loss, num_ranks=4)
    assert seen == [module(torch.ones(3, 4)).tolist()] * 2


def equal_layers(width: int = 256) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))


def of_one_row(model: nn.Module) -> Tensor:
    outputs: Tensor = model(torch.ones(1, 256, requires_grad=True))
    return outputs.sum()


LAYER = 4 * 256 * 256


def test_one_group_needs_everything_at_once() -> None:
    step = fsdp.observe(equal_layers(), of_one_row, num_ranks=2, optimizer=torch.optim.SGD)
    assert step.peak["parameters"] == 4 * LAYER // 2
    # next to the parameters that were copied out of it, the all-gather's buffer is kept until the forward has ended
    assert step.peak["gathered_parameters"] == step.peak["gather_buffers"] == 4 * LAYER
    assert "optimizer_states" not in step.peak
    assert sum(step.peak.values()) == step.peak_bytes
    assert step.peak_bytes == pytest.approx(4 * LAYER * 2.5, rel=0.01)


def test_resharding_saves_memory() -> None:
    settings: list[dict[str, Any]] = [{"reshard_after_forward": False}, {}]
    peaks = []
    for options in settings:
        step = fsdp.observe(equal_layers(), of_one_row, num_ranks=2, wrap=["*"], **options)
        peaks.append(step.peak_bytes)
        last = {term: int(num_bytes[-1]) for term, num_bytes in step.memory().items()}
        assert {term for term, num_bytes in last.items() if num_bytes} <= {"parameters", "gradients", "inputs"}
        assert last["parameters"] == 4 * LAYER // 2
        assert all((num_bytes >= 0).all() for num_bytes in step.memory().values())
    assert peaks[0] > peaks[1]


def tracked_peak(module: nn.Module, loss: Callable[[nn.Module], Tensor], settings: dict[str, Any]) -> int:
    """The peak of the second step by torch's own tracker, which counts in a way of its own."""
    sharding = Sharding(**settings).checked(module, loss)
    with fake_group(sharding.num_ranks):
        sharding.apply(module)
        optimizer = torch.optim.Adam(module.parameters())
        tracker = FSDPMemTracker(module, optimizer)  # type: ignore[no-untyped-call]
        with tracker:
            for number in range(2):
                loss(module).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                if number == 0:
                    tracker.reset_mod_stats()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
        return int(snapshot["Total"])


@SAMPLE_OR_EVERYTHING
def test_the_peak_is_that_of_torchs_own_tracker(everything: bool) -> None:
    num_equal = 0
    seeds = range(40) if everything else range(5)
    for seed in seeds:
        case = drawn_case(seed, 2)
        observed = fsdp.observe(case.module, case.loss, optimizer=torch.optim.Adam, **case.settings).peak_bytes
        try:
            tracked = tracked_peak(case.module, case.loss, case.settings)
        except AttributeError:  # the tracker fails if a wrapped part is never called
            continue
        assert observed == pytest.approx(tracked, rel=0.02)
        num_equal += 1
    assert num_equal >= len(seeds) / 2


# ---- time


def by_kind(**seconds: float) -> Callable[[fsdp.Work], float]:
    """A cost: these seconds for each work of a kind, 1 s for each matrix product of a layer, and nothing else."""
    return lambda work: seconds.get(work.kind, float(work.flops > 0))


def step_of_layers(**options: Any) -> fsdp.Step:
    return fsdp.observe(equal_layers(), of_one_row, **{"num_ranks": 4, "wrap": ["*"], **options})


def spans(step: fsdp.Step, cost: Callable[[fsdp.Work], float], kind: str) -> list[tuple[int, float, float]]:
    selected = step.timeline(cost).select(kind=kind)
    return sorted((span.item, span.start_s, span.stop_s) for span in selected)


def test_communication_is_hidden_except_at_the_ends() -> None:
    cost = by_kind(allgather=0.5, reduce_scatter=0.5)
    step = step_of_layers()
    assert step.groups == ("", "0", "1", "2", "3")
    timeline = step.timeline(cost)
    assert spans(step, cost, "forward") == [(group, group - 0.5, group + 0.5) for group in range(1, 5)]
    assert spans(step, cost, "backward") == [(5 - n, 2.5 + 2 * n, 4.5 + 2 * n) for n in range(4, 0, -1)]
    assert timeline.makespan_s == 0.5 + 4 + 8 + 0.5
    assert timeline.select(kind="wait").busy_s == 1.0
    timeline.check()


def test_a_gather_of_backward_waits_for_the_one_that_is_gathered() -> None:
    """Slow all-gathers follow each other, and each layer computes when its own is there."""
    cost = by_kind(allgather=3.0)
    starts_s = [start_s for _, start_s, _ in spans(step_of_layers(), cost, "forward")]
    assert starts_s == [3.0, 6.0, 9.0, 12.0]


def test_blocking_collectives_add_up() -> None:
    cost = by_kind(allgather=0.5, reduce_scatter=0.25, copy_out=0.125)
    step = step_of_layers()
    timeline = step.timeline(cost, overlap=False)
    copies = sum(work.kind == "copy_out" for work in step.works)
    assert timeline.makespan_s == 12.0 + 8 * 0.5 + 4 * 0.25 + copies * 0.125
    assert timeline.select(kind="wait").busy_s == 8 * 0.5 + 4 * 0.25
    assert timeline.select(kind="copy_out", lane="compute").busy_s == copies * 0.125


def test_copies_into_and_out_of_buffers_are_told_apart() -> None:
    """Each group is gathered twice and reduced once; its gradients are copied in where they were computed."""
    works = [(work.lane, work.kind) for work in step_of_layers().works if work.group == "1"]
    expected = {("copy_in", "copy_in"): 2, ("compute", "copy_out"): 2, ("compute", "copy_in"): 1}
    expected[("reduce_scatter", "copy_out")] = 1
    assert {place: number for place, number in Counter(works).items() if "copy" in place[1]} == expected


def test_hsdp_reduces_over_the_replicas_on_a_stream_of_its_own() -> None:
    cost = by_kind(allgather=0.5, reduce_scatter=0.5, allreduce=0.75)
    step = step_of_layers(num_replicas=2)
    for scatter, reduce in zip(spans(step, cost, "reduce_scatter"), spans(step, cost, "allreduce"), strict=True):
        assert reduce[:2] == (scatter[0], scatter[2])
    assert step.timeline(cost).makespan_s == 0.5 + 12 + 0.5 + 0.75


def test_memory_changes_when_the_compute_stream_gets_there() -> None:
    cost = by_kind(allgather=0.5)
    step = step_of_layers()
    times_s = step.memory_times(cost)
    assert len(times_s) == len(step.changes)
    assert (times_s[1:] >= times_s[:-1]).all()
    assert times_s[step.peak_place] <= step.timeline(cost).makespan_s
    # the gradient of the last layer is there when its backward has ended, at 4.5 + 2
    first = next(n for n, change in enumerate(step.changes) if change.term == "gradients" and change.num_works)
    assert times_s[first] == pytest.approx(6.5)


def test_hardware_takes_the_longer_of_operations_and_bytes() -> None:
    cost = fsdp.cost(lambda num_bytes: num_bytes / 10, flops_per_s=100.0, bytes_per_s=10.0, replicas=lambda _: 7.0)

    def seconds(kind: str, flops: int, num_bytes: int) -> float:
        return cost(fsdp.Work("compute", kind, "", frozenset(), flops, num_bytes))

    assert seconds("forward", 500, 10) == 5.0
    assert seconds("backward", 0, 20) == 2.0
    assert seconds("allgather", 0, 40) == seconds("reduce_scatter", 0, 40) == 2.0
    assert seconds("allreduce", 0, 40) == 7.0
