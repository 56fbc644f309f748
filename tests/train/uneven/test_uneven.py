"""Uneven inputs: the model against counting by hand and against real ranks; each check, fed with what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from rankscope.ranks import RankError
from rankscope.sampling import Assignment, audit
from rankscope.timeline import Span, Timeline
from rankscope.train import uneven
from rankscope.train.gradients import gradient_alone
from rankscope.train.uneven import files_epoch
from rankscope.train.uneven.model import HANDLINGS, Counts
from rankscope.train.uneven.run import UnevenError, UnevenRun, split_waits

from ...processes import children, server_pid, soon
from ...small import batch, mlp

EPOCH = files_epoch([20, 24, 17], num_ranks=3, batch_size=4, seed=1)  # batches: 6, 5 (the last of one sample), 5
RUNS_S = 100.0


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def epoch_of(batch_size: int, *ranks: Iterable[int]) -> Assignment:
    arrays = tuple(np.array(list(rank), dtype=np.int64) for rank in ranks)
    return Assignment(sum(map(len, arrays)), arrays).with_loader(batch_size)


def run(handling: str = "join", epoch: Assignment = EPOCH, losses: Any = losses, **options: Any) -> UnevenRun:
    return uneven.measure(mlp(), *batch(epoch.size), epoch, losses, handling, timeout_s=RUNS_S, **options)


@pytest.fixture(autouse=True)
def _no_rank_is_left() -> Iterator[None]:
    yield
    assert soon(lambda: not children(server_pid()))


# ---- timelines


def test_join_and_a_hang_by_hand() -> None:
    timeline = uneven.simulate([1, 2], "join", step_s=3.0, allreduce_s=1.0)
    assert list(timeline.select(rank=0)) == [
        Span(0, "training", "step", 0, 0.0, 3.0),
        Span(0, "training", "allreduce", 0, 3.0, 4.0),
        Span(0, "training", "wait", 1, 4.0, 7.0),
        Span(0, "training", "shadow", 1, 7.0, 8.0),
    ]
    assert [span.kind for span in timeline.select(rank=1)] == ["step", "allreduce"] * 2
    hung = uneven.simulate([3, 1], "hang", step_s=3.0, allreduce_s=1.0, timeout_s=50.0)
    assert hung.select(rank=0)[-1] == Span(0, "training", "wait", 1, 7.0, 57.0)
    assert hung.select(rank=1).end_s == 4.0


@pytest.mark.parametrize("handling", HANDLINGS)
def test_every_allreduce_is_of_all_ranks_at_once(handling: str) -> None:
    draw = np.random.default_rng(0)
    for _ in range(10):
        own = draw.integers(1, 9, size=int(draw.integers(1, 6))).tolist()
        timeline = uneven.simulate(own, handling, step_s=2.0, allreduce_s=1.0)
        timeline.check()
        rounds = {"join": max(own), "pad": max(own)}.get(handling, min(own))
        for item in range(rounds):
            met = [span for span in timeline.select(item=item) if span.kind in ("allreduce", "shadow")]
            assert sorted(span.rank for span in met) == list(range(len(own)))
            assert len({(span.start_s, span.stop_s) for span in met}) == 1
        for rank, num_batches in enumerate(own):
            spans = timeline.select(rank=rank)
            num_shadows = rounds - num_batches if handling == "join" else 0
            assert (len(spans.select(kind="shadow")), len(spans.select(kind="allreduce"))) == (
                num_shadows,
                rounds - num_shadows,
            )
    even = list(uneven.simulate([3, 3], handling))
    assert even == list(uneven.simulate([3, 3]))  # the same however it would be handled


# ---- the samples read, and their weights


def test_files_are_dealt_out_whole() -> None:
    epoch = files_epoch([5, 0, 7, 3], num_ranks=2, batch_size=4)
    audit(epoch).check(allow=["unbalanced"])
    for first, last in pairwise(np.cumsum([0, 5, 7, 3])):
        assert sum(np.isin(np.arange(first, last), indices).all() for indices in epoch.ranks) == 1


def test_who_loses_and_who_repeats() -> None:
    audits = {handling: audit(uneven.predict(EPOCH, handling).trained) for handling in HANDLINGS}
    assert {handling: (result.dropped, result.duplicates) for handling, result in audits.items()} == {
        "hang": (4, 0),
        "drop": (4, 0),
        "pad": (0, 8),
        "throw": (4, 0),
        "join": (0, 0),
    }


@pytest.mark.parametrize("handling", HANDLINGS)
@pytest.mark.parametrize("initial", [True, False])
def test_weights_are_those_of_exact_counting(handling: str, initial: bool) -> None:
    batches = [EPOCH.batches(rank) for rank in range(3)]
    exact = [Fraction(0)] * EPOCH.size
    rounds = max(map(len, batches)) if handling in ("pad", "join") else min(map(len, batches))
    scale = []
    for step in range(rounds):
        if handling == "pad":
            present = [own[step % len(own)] for own in batches]
        else:
            present = [own[step] for own in batches if step < len(own)]
        divisor = 3 if initial else len(present)
        scale.append(Fraction(len(present), divisor))
        for indices in present:
            for index in indices.tolist():
                exact[index] += Fraction(1, divisor * len(indices))
    predicted = uneven.predict(EPOCH, handling, initial)
    np.testing.assert_allclose(predicted.weights, [float(weight) for weight in exact], rtol=1e-14)
    np.testing.assert_allclose(predicted.scale, [float(share) for share in scale])
    assert sum(exact) == sum(scale)


# ---- real ranks


WAYS = {"drop": ("drop", True), "pad": ("pad", True), "join": ("join", True), "join, by those left": ("join", False)}


@pytest.fixture(scope="module")
def runs() -> dict[str, UnevenRun]:
    return {name: run(handling, divide_by_initial_world_size=initial) for name, (handling, initial) in WAYS.items()}


def weighted_loss(module: nn.Module, weights: torch.Tensor) -> torch.Tensor:
    inputs, targets = batch(EPOCH.size)
    return (losses(module(inputs), targets) * weights).sum()


def test_every_way_does_on_real_ranks_what_is_predicted(runs: dict[str, UnevenRun]) -> None:
    for way in runs.values():
        way.check()
        # the oracle for the weights: one process with the loss of each sample times its weight
        expected = gradient_alone(mlp(), weighted_loss, torch.from_numpy(way.expected.weights))
        np.testing.assert_allclose(way.gradients.sum(axis=0), expected, rtol=0, atol=1e-13)
    audits = [audit(way.trained) for way in runs.values()]
    assert [(read.dropped, read.duplicates) for read in audits] == [(4, 0), (0, 8), (0, 0), (0, 0)]


@pytest.mark.parametrize("name", ["join", "join, by those left"])
def test_join_reads_every_sample_once_and_steps_as_by_hand(runs: dict[str, UnevenRun], name: str) -> None:
    joined = runs[name]
    assert sorted(np.concatenate(joined.trained.ranks).tolist()) == list(range(EPOCH.size))
    assert joined.counts == (Counts(gradients=6, words=14),) * 3
    # the oracle: the gradient of each rank's batch by itself, and a share of their sum
    for step, measured in enumerate(joined.gradients):
        present = [EPOCH.batches(rank)[step].tolist() for rank in range(3) if step < len(EPOCH.batches(rank))]
        inputs, targets = batch(EPOCH.size)
        parts = [gradient_alone(mlp(), mean_loss, inputs[indices], targets[indices]) for indices in present]
        divisor = 3 if name == "join" else len(present)
        np.testing.assert_allclose(measured, sum(parts) / divisor, rtol=0, atol=1e-14)


def mean_loss(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return losses(module(inputs), targets).mean()


def test_shadows_are_recorded_where_they_are_predicted(runs: dict[str, UnevenRun]) -> None:
    joined, predicted = runs["join"], uneven.simulate([6, 5, 5], "join")
    joined.timeline.check()
    for rank in range(3):
        for kind in ("step", "allreduce", "shadow"):
            recorded = joined.timeline.select(rank=rank, kind=kind).item.tolist()
            assert recorded == predicted.select(rank=rank, kind=kind).item.tolist()
    for item in range(6):
        met = [span for span in joined.timeline.select(item=item) if span.kind in ("allreduce", "shadow")]
        assert len({span.start_s for span in met}) == 1


def test_a_hang_ends_by_itself_and_names_who_is_stuck() -> None:
    hung = run("hang", hang_s=6.0)
    hung.check()
    assert hung.stuck == (0,)
    assert "imed out" in str(hung.errors[0])
    waited = hung.timeline.select(rank=0, kind="wait", item=5)
    assert waited.busy_s > 3.0
    assert not len(hung.timeline.select(rank=1, item=5)) + len(hung.timeline.select(rank=2, item=5))


def test_a_hang_in_the_second_step_is_one_of_the_rebuilt_buckets() -> None:
    """DDP broadcasts the order of its buckets before the second forward pass, so the ranks are stuck there."""
    hung = run("hang", epoch_of(2, range(5), range(5, 7), range(7, 12)), hang_s=2.0)
    hung.check()
    assert hung.stuck == (0, 2)
    assert [counts.gradients for counts in hung.counts] == [1, 1, 1]
    assert hung.timeline.select(rank=0, kind="wait", item=1).busy_s > 1.0
    assert len(hung.timeline.select(rank=0, kind="step", item=1)) == 1


def test_a_hang_of_a_module_with_buffers_is_in_the_broadcast_of_these() -> None:
    epoch = epoch_of(2, range(4), range(4, 11))
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3))
    inputs, targets = torch.randn(11, 2), torch.zeros(11, dtype=torch.long)
    hung = uneven.measure(module, inputs, targets, epoch, losses, "hang", hang_s=2.0, timeout_s=RUNS_S)
    hung.check()
    assert hung.stuck == (1,)
    assert hung.timeline.select(rank=1, kind="wait", item=2).busy_s > 1.0


def test_throw_stops_all_ranks_where_the_first_has_no_batch() -> None:
    thrown = run("throw")
    thrown.check()
    assert thrown.errors[1] == "Rank 1 exhausted all inputs."
    assert "exhausted inputs" in str(thrown.errors[0])
    assert [indices.size for indices in thrown.trained.ranks] == [20, 17, 20]


def unequal_sizes(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs - torch.zeros(3)


@pytest.mark.parametrize("handling", ["hang", "throw"])
def test_what_fails_for_other_reasons_is_no_hang(handling: str) -> None:
    with pytest.raises(RankError, match="size of tensor|must match"):
        run(handling, losses=unequal_sizes)


class FailsInItsSecondForward(nn.Module):
    """Fails at once, so that no operator is between the broadcast of its buffers and the failure."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("scale", torch.ones(1))
        self.num_calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls == 2:
            raise RuntimeError("the second one fails")
        outputs: torch.Tensor = self.layer(inputs) * self.scale
        return outputs


@pytest.mark.slow
def test_gradients_that_are_no_numbers_are_the_same_on_all_ranks() -> None:
    epoch = files_epoch([2, 4], 2, batch_size=1)
    inputs = torch.full((6, 2), float("nan"))
    run = uneven.measure(nn.Linear(2, 1), inputs, torch.zeros(6, 1), epoch, losses, timeout_s=RUNS_S)
    run.check()
    assert np.isnan(run.gradients).all()


def test_a_failure_right_after_a_broadcast_is_no_hang() -> None:
    epoch = epoch_of(2, range(4), range(4, 8))
    with pytest.raises(RankError, match="the second one fails"):
        uneven.measure(
            FailsInItsSecondForward(), torch.randn(8, 2), torch.zeros(8, dtype=torch.long), epoch, losses, "hang"
        )


def test_a_rank_without_any_batch_joins_from_the_start() -> None:
    joined = run("join", epoch_of(4, [], range(12)))
    joined.check()
    assert joined.timeline.select(rank=0, kind="shadow").item.tolist() == [0, 1, 2]
    assert not len(joined.timeline.select(rank=1, kind="shadow"))


# ---- each check, fed with what is wrong


def emptied(epoch: Assignment, rank: int) -> Assignment:
    none = np.empty(0, dtype=np.int64)
    return replace(epoch, ranks=tuple(none if other == rank else indices for other, indices in enumerate(epoch.ranks)))


def swapped(epoch: Assignment, rank: int) -> Assignment:
    """The epoch in which the rank reads its first two samples in the other order."""
    shards = list(epoch.ranks)
    shards[rank] = shards[rank][[1, 0, *range(2, shards[rank].size)]]
    return replace(epoch, ranks=tuple(shards))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: {"trained": swapped(run.trained, 1)}, r"rank 1 trained on sample \d+ as its number 0, not on"),
        (lambda run: {"trained": emptied(run.trained, 2)}, "rank 2 trained on 0 samples, not on the 20 predicted"),
        (lambda run: {"gradients": run.gradients[:-1]}, "there were 5 steps, not 6"),
        (lambda run: {"counts": (*run.counts[:2], Counts(5, 14))}, "rank 2 helped to reduce 5 steps' gradients, not 6"),
        (lambda run: {"counts": (*run.counts[:2], Counts(6, 13))}, "ranks should exchange as many words each"),
        (lambda run: {"errors": (None, "lost", None)}, r"errors came to ranks \(1,\), not to \(\)"),
        (lambda run: {"handling": "drop"}, "rank 0 trained on 24 samples, not on the 20 predicted"),
    ],
)
def test_a_run_that_is_not_as_predicted_is_caught(
    runs: dict[str, UnevenRun], change: Callable[[UnevenRun], dict[str, Any]], message: str
) -> None:
    good = runs["join"]
    with pytest.raises(UnevenError, match=message):
        replace(good, **change(good)).check()


def test_an_allreduce_begins_where_the_last_rank_comes() -> None:
    rows = [
        (0, "step", 0.0, 1.0),
        (0, "allreduce", 1.0, 4.0),
        (1, "wait", 0.0, 0.5),
        (1, "shadow", 0.5, 4.5),
        (2, "step", 0.0, 3.0),
        (2, "allreduce", 3.0, 4.0),
    ]
    split = split_waits(Timeline.of([Span(rank, "training", kind, 0, *times) for rank, kind, *times in rows]))
    assert [(span.rank, span.kind, span.start_s, span.stop_s) for span in split] == [
        (0, "step", 0.0, 1.0),
        (0, "wait", 1.0, 3.0),
        (0, "allreduce", 3.0, 4.0),
        (1, "wait", 0.0, 3.0),
        (1, "shadow", 3.0, 4.5),
        (2, "step", 0.0, 3.0),
        (2, "allreduce", 3.0, 4.0),
    ]
