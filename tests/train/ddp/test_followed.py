"""Batches followed from the sampler to the optimizer on real ranks: the samples, the order of events, the sums."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from rankscope.sampling import Assignment, assign
from rankscope.train import ddp
from rankscope.train.ddp.followed import FollowedSteps

pytestmark = pytest.mark.slow

SIZE, RANKS, BATCH, STEPS, SEED = 50, 2, 3, 6, 5
CAP_MB = 0.0003  # 315 bytes: two buckets


class Digits:
    """Numbers as samples, with a target that depends on them."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(6, dtype=torch.float64, generator=generator), number % 4


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def sampled(num_workers: int = 0) -> Assignment:
    return assign(SIZE, RANKS, seed=SEED).with_loader(BATCH, num_workers=num_workers)


def collected(num_workers: int = 0) -> Assignment:
    """Any indices at all: each rank reads from its own end, and one of them more than the other."""
    return Assignment(SIZE, (np.arange(20), np.arange(49, 20, -1))).with_loader(BATCH, num_workers=num_workers)


def follow(assignment: Any = None, **options: Any) -> FollowedSteps:
    training = {"dataset": Digits(), "module": model(), "loss": nn.functional.cross_entropy, "optimizer": sgd}
    settings = {**training, "num_steps": STEPS, "bucket_cap_mb": CAP_MB, **options}
    return ddp.follow(sampled() if assignment is None else assignment, **settings)


@pytest.fixture(scope="module", params=[(collected, 0), (sampled, 2)], ids=["collected", "sampled"])
def walk(request: pytest.FixtureRequest) -> tuple[Assignment, FollowedSteps]:
    make, num_workers = request.param
    return make(num_workers), follow(make(num_workers))


@pytest.fixture
def followed(walk: tuple[Assignment, FollowedSteps]) -> FollowedSteps:
    return walk[1]


def test_the_samples_read_are_the_assignments(walk: tuple[Assignment, FollowedSteps]) -> None:
    assignment, followed = walk
    for rank in range(RANKS):
        assert followed.read.ranks[rank].tolist() == assignment.ranks[rank][: STEPS * BATCH].tolist()
    assert followed.samples(1) == [indices[BATCH : 2 * BATCH].tolist() for indices in assignment.ranks]
    assert (followed.read.loader, followed.read.seed) == (assignment.loader, assignment.seed)
    if assignment.sampler == "torch":
        samplers = [DistributedSampler(Digits(), RANKS, rank, seed=SEED) for rank in range(RANKS)]  # type: ignore[arg-type]
        assert followed.samples(0) == [list(sampler)[:BATCH] for sampler in samplers]


def test_the_ranks_end_where_one_process_ends_that_trains_on_all_their_samples(followed: FollowedSteps) -> None:
    followed.check()
    alone = model()
    dataset = Digits()
    optimizer = sgd(alone.parameters())
    for step in range(STEPS):
        pairs = [dataset[number] for batch in followed.samples(step) for number in batch]
        inputs = torch.stack([image for image, _ in pairs])
        targets = torch.tensor([label for _, label in pairs])
        loss = nn.functional.cross_entropy(alone(inputs), targets)
        assert followed.losses[:, step].mean() == pytest.approx(loss.item(), rel=1e-12)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    end = nn.utils.parameters_to_vector(alone.parameters()).detach().numpy()
    start = nn.utils.parameters_to_vector(model().parameters()).detach().numpy()
    assert np.abs(followed.parameters[0] - end).max() < 1e-12
    assert np.abs(start - end).max() > 0.01


def test_buckets_are_those_of_ddp_before_and_after_its_rebuild(followed: FollowedSteps) -> None:
    predicted = ddp.buckets(model(), CAP_MB)
    assert (len(followed.buckets[0]), len(followed.buckets[-1])) == (1, 2)
    for iteration, buckets in enumerate(followed.buckets):
        predicted.check(buckets, iteration)


def test_a_batch_is_read_then_loaded_then_trained_on_and_spans_do_not_overlap(followed: FollowedSteps) -> None:
    followed.timeline.check()
    for number in range(STEPS):
        step = followed.step(number)
        for rank in range(RANKS):
            spans = step.select(rank=rank)
            phases = [spans.select(kind=kind) for kind in ("load", "forward", "backward", "optimizer")]
            assert [len(phase) for phase in phases] == [1, 1, 1, 1]
            for before, after in pairwise(phases):
                assert before.end_s <= after.begin_s
            assert len(spans.select(kind="read")) == len(spans.select(kind="collate")) == 1
            assert spans.select(kind="collate").end_s <= phases[0].end_s
            assert len(spans.select(kind="allreduce")) == len(followed.buckets[number])
    first = followed.step(0).select(kind="allreduce")
    assert first.start_s.max() < first.stop_s.min()  # the ranks' sums are one event: all are in it at once


def test_the_step_lasts_from_the_first_request_to_the_last_end(followed: FollowedSteps) -> None:
    compute = [span for span in followed.timeline if span.lane == "compute" and span.item == 3]
    lasted_s = max(span.stop_s for span in compute) - min(span.start_s for span in compute)
    assert followed.step_s[3] == pytest.approx(lasted_s)
    assert sorted(followed.step_s[2:])[1] == followed.step_s[followed.typical]


def test_ranks_with_different_parameters_are_found(followed: FollowedSteps) -> None:
    off = followed.parameters[1].copy()
    off[7] += 1e-9
    with pytest.raises(ValueError, match="rank 1 is off rank 0 by 1e-09"):
        replace(followed, parameters=(followed.parameters[0], off)).check()
    with pytest.raises(ValueError, match="number must be a whole number from 0 to 5, got 6"):
        followed.step(6)
