"""What the package refuses: each call raises a ValueError that names the argument."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from rankscope.sampling import (
    Assignment,
    BalancedSampler,
    DistributedRandomSampler,
    DistributedSampler,
    DistributedSequentialSampler,
    KeyedSampler,
    WeightedSampler,
    assign,
    audit,
    audit_loader,
    epoch_work,
    shard_files,
)

from .audits.test_loader_audit import Rows

ONES = [1, 1, 1]
STATE = KeyedSampler(3).state_dict()


def balanced(lengths=ONES, **settings: object) -> BalancedSampler:
    return BalancedSampler(lengths, **settings)


def load_keyed(**changes: object) -> None:
    KeyedSampler(3).load_state_dict(STATE | changes)


def load_jobs(jobs: object) -> None:
    sampler = balanced([1] * 9)
    sampler.load_state_dict(sampler.state_after(3) | {"jobs": jobs})


BROKEN_JOBS = [
    None,
    [],
    [3],
    [[0, 1, 1, 100]],
    [[0, 0, 1, 100, False]],
    [[0, 1, 0, 100, False]],
    [[0, 1, 1, "100", False]],
    [[0, 1, 1, 100, 0]],
    [[1, 1, 1, 100, False]],
    [[0, 1, 1, 100, False], [0, 2, 1, 100, False]],
]
REFUSED = [
    ("size", lambda: assign(-1, 2)),
    ("num_ranks", lambda: assign(3, 2**16 + 1)),
    ("ranks read together", lambda: assign(2**28, 3, shuffle=False)),
    ("shuffle", lambda: assign(3, 2, shuffle=False, sampler="libtorch_random")),
    ("lengths", lambda: assign(3, 2, sampler="balanced", lengths=[1] * 5)),
    ("colour", lambda: assign(3, 2, sampler="balanced", lengths=ONES, colour=3)),
    ("rank", lambda: assign(3, 2).batches(2)),
    ("loader", lambda: assign(3, 2).with_loader(2).with_loader(2)),
    ("loader", lambda: assign(3, 2, sampler="balanced", lengths=ONES).with_loader(2)),
    ("rank 1", lambda: Assignment(3, ([0], [0.5]))),
    ("rank 1", lambda: Assignment(4, ([0, 1], [2, 3]), batch_stops=([2], [2, 1, 2]))),
    ("rank 1", lambda: Assignment.collect([[0, 1], None], size=2)),
    ("rank 1", lambda: Assignment.collect([[0, 1], [0.5]], size=2)),
    ("key", lambda: Assignment.collect([[{"id": 0}]], size=2)),
    ("batches", lambda: Assignment.collect([[[0]], [1]], size=2)),
    ("files", lambda: shard_files("a.npz", 2, 0)),
    ("'b'", lambda: shard_files(["b", "a", "b"], 2, 0)),
    ("epoch", lambda: audit([])),
    ("ranks", lambda: audit([assign(10, 2), assign(10, 4)])),
    ("rank 1", lambda: epoch_work(Assignment(3, ([0, 1], [2, -1])), ONES)),
    ("loader", lambda: audit_loader([])),
    ("key", lambda: audit_loader([DataLoader(Rows([{"id": 0}]), batch_size=1)] * 2)),
    ("read_before", lambda: audit_loader(DataLoader(range(3)), read_before=[{}])),
    ("use_distributed_sampler", lambda: balanced(DistributedSampler(3, 1, 0))),
    ("batch_size", lambda: balanced(batch_size=0)),
    ("cost", lambda: balanced(cost="cubic")),
    ("sample 0", lambda: balanced(cost=lambda lengths: -lengths)),
    ("weights", lambda: WeightedSampler(torch.ones(3, requires_grad=True))),
    ("above 0", lambda: WeightedSampler([0, 0])),
    ("size", lambda: KeyedSampler(2**63)),
    ("together", lambda: KeyedSampler(3, 2)),
    ("trained", lambda: KeyedSampler(3).state_after(4)),
    ("positions", lambda: KeyedSampler(3).permutation([0.5])),
    ("consumed", lambda: KeyedSampler(3).load_state_dict({})),
    ("seed 2", lambda: load_keyed(recipe=STATE["recipe"] | {"seed": 2})),
    ("consumed", lambda: load_keyed(consumed=4)),
    ("lengths", lambda: balanced(batch_size=2).load_state_dict(balanced([1, 1, 2]).state_dict())),
    ("batch_size or max_tokens", lambda: balanced(batch_size=2, max_tokens=4)),
    ("max_tokens", lambda: balanced([1, 5], max_tokens=4)),
    *[("jobs", lambda jobs=jobs: load_jobs(jobs)) for jobs in BROKEN_JOBS],
    ("length", lambda: DistributedSampler(2**63, 2, 0)),
    ("epoch", lambda: DistributedSampler(3, 1, 0).set_epoch(1.0)),
]
for kind in (DistributedRandomSampler, DistributedSequentialSampler):
    REFUSED += [
        ("size", lambda kind=kind: kind(-1)),
        ("num_replicas", lambda kind=kind: kind(3, 0)),
        ("rank", lambda kind=kind: kind(3, 2, 2)),
        ("epoch", lambda kind=kind: kind(3).set_epoch(2**64)),
        ("batch_size", lambda kind=kind: kind(3).next(0)),
        ("allow_duplicates", lambda kind=kind: kind(3, allow_duplicates="no")),
        ("sample_index", lambda kind=kind: kind(12, 3, 1).load_state_dict({"sample_index": 9, "epoch": 0})),
    ]


@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_refused(word, call):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        call()
    assert word in str(error.value)


def test_positions_outside_the_order_are_an_index_error():
    for sampler in (KeyedSampler(10), KeyedSampler(10, shuffle=False)):
        for position in (-1, 10):
            with pytest.raises(IndexError):
                sampler[position]
