"""Uneven inputs: the model against counting by hand and against real ranks; each check, fed with what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from rankscope.sampling import Assignment, audit
from rankscope.timeline import Span
from rankscope.train import uneven
from rankscope.train.uneven.run import UnevenError, UnevenRun
from rankscope.train.work import gradient_of
from tests.processes import children, server_pid, soon
from tests.small import batch, mlp

RUNS_S = 100.0


def epoch_of(batch_size: int, *ranks: Iterable[int]) -> Assignment:
    arrays = tuple(np.array(list(rank), dtype=np.int64) for rank in ranks)
    return Assignment(sum(map(len, arrays)), arrays).with_loader(batch_size)


EPOCH = epoch_of(4, range(24), range(24, 41), range(41, 61))  # batches: 6, 5 (the last of one sample), 5


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def run(handling: str = "join", epoch: Assignment = EPOCH) -> UnevenRun:
    samples = batch(epoch.size)
    return uneven.measure(mlp(), *samples, epoch, losses, handling, timeout_s=RUNS_S)


@pytest.fixture(autouse=True)
def _no_rank_is_left() -> Iterator[None]:
    yield
    assert soon(lambda: not children(server_pid()))


# ---- predicted


def test_join_and_a_hang_by_hand() -> None:
    assert list(uneven.simulate(iter([1, 2]))) == list(uneven.simulate([1, 2]))  # type: ignore[arg-type]
    timeline = uneven.simulate([1, 2], "join", step_s=3.0, allreduce_s=1.0)
    assert list(timeline.select(rank=0)) == [
        Span(0, "training", "step", 0, 0.0, 3.0),
        Span(0, "training", "allreduce", 0, 3.0, 4.0),
        Span(0, "training", "wait", 1, 4.0, 7.0),
        Span(0, "training", "shadow", 1, 7.0, 8.0),
    ]
    assert [span.kind for span in timeline.select(rank=1)] == ["step", "allreduce"] * 2
    hung = uneven.simulate([3, 1], "hang", step_s=3.0, allreduce_s=1.0, timeout_s=50.0)
    assert list(hung.select(rank=0))[-1] == Span(0, "training", "wait", 1, 7.0, 57.0)
    assert hung.select(rank=1).end_s == 4.0


# ---- real ranks


@pytest.fixture(scope="module")
def runs() -> dict[str, UnevenRun]:
    return {handling: run(handling) for handling in ("pad", "join")}


def test_every_way_does_on_real_ranks_what_is_predicted(runs: dict[str, UnevenRun]) -> None:
    inputs, targets = batch(EPOCH.size)

    for way in runs.values():
        way.check()
        # the oracle for the weights: one process with the loss of each sample times its weight
        alone = mlp()
        (losses(alone(inputs), targets) * torch.from_numpy(way.expected.weights)).sum().backward()
        np.testing.assert_allclose(way.gradients.sum(axis=0), gradient_of(alone), rtol=0, atol=1e-13)
        assert way.expected.scale.sum() == pytest.approx(way.expected.weights.sum())
    assert runs["join"].expected.scale.tolist() == [1, 1, 1, 1, 1, 1 / 3]
    reads = {name: audit(way.trained) for name, way in runs.items()}
    assert {name: (read.dropped, read.duplicates) for name, read in reads.items()} == {
        "pad": (0, 8),
        "join": (0, 0),
    }


def test_shadows_are_recorded_where_they_are_predicted(runs: dict[str, UnevenRun]) -> None:
    predicted = uneven.simulate([6, 5, 5], "join")
    joined = runs["join"].timeline
    joined.check()
    for rank in range(3):
        for kind in ("step", "allreduce", "shadow"):
            items = joined.select(rank=rank, kind=kind).item.tolist()
            assert items == predicted.select(rank=rank, kind=kind).item.tolist()


@pytest.mark.slow
def test_a_rank_without_any_batch_joins_from_the_start() -> None:
    joined = run("join", epoch_of(4, [], range(12)))
    joined.check()
    assert joined.timeline.select(rank=0, kind="shadow").item.tolist() == [0, 1, 2]
    assert not len(joined.timeline.select(rank=1, kind="shadow"))


def test_a_run_that_is_not_as_predicted_is_caught(runs: dict[str, UnevenRun]) -> None:
    good = runs["join"]
    other_order = tuple(samples[::-1] for samples in good.trained.ranks)
    for changed, message in (
        ({"trained": replace(good.trained, ranks=other_order)}, "rank 0 trained on"),
        ({"trained": runs["pad"].trained}, "rank 1 trained on"),
        ({"gradients": good.gradients[:-1]}, "5 steps, not 6"),
    ):
        with pytest.raises(UnevenError, match=message):
            replace(good, **changed).check()
