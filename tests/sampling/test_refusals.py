"""What the package refuses: each call raises a ValueError that names the argument."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

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
    shard_files,
)

ONES = [1, 1, 1]
STATE = KeyedSampler(3).state_dict()
BALANCED = BalancedSampler([9, 1, 2, 3, 4, 5], 1, 0, 2, window=2)
(SEGMENT,) = BALANCED.state_after(1)["progress"]["segments"]


def balanced(**settings: object) -> object:
    return BalancedSampler(settings.pop("lengths", ONES), **settings)


def load_keyed(**changes: object) -> None:
    KeyedSampler(3).load_state_dict(STATE | changes)


def load_segment(**changes: object) -> None:
    BALANCED.load_state_dict(BALANCED.state_after(1) | {"progress": {"position": 0, "segments": [SEGMENT | changes]}})


def resume_torchs(**changes: object) -> None:
    sampler = DistributedSampler(3, 1, 0)
    sampler.resume(sampler.state_after(0) | changes)


def load_libtorchs(kind: Callable[..., object], **changes: object) -> None:
    sampler = kind(12, 3, 1)
    sampler.load_state_dict(sampler.state_dict() | changes)


def iterate_grown_dataset() -> None:
    dataset = [1, 2]
    sampler = DistributedSampler(dataset, 1, 0)
    dataset.append(3)
    iter(sampler)


REFUSED = [
    ("size", lambda: assign(-1, 2)),
    ("num_replicas", lambda: assign(3, 2**16 + 1)),
    ("ranks read together", lambda: assign(2**28, 3, shuffle=False)),
    ("epoch", lambda: assign(3, 2, epoch=-1, sampler="libtorch_random")),
    ("seed", lambda: assign(3, 2, seed=1, sampler="libtorch_random")),
    ("shuffle", lambda: assign(3, 2, shuffle=False, sampler="libtorch_random")),
    ("lengths", lambda: assign(3, 2, sampler="balanced")),
    ("lengths", lambda: assign(3, 2, sampler="balanced", lengths=[1] * 5)),
    ("batch", lambda: assign(3, 2, sampler="balanced", lengths=ONES, batch=3)),
    ("rank", lambda: assign(3, 2).batches(2)),
    ("loader", lambda: assign(3, 2).with_loader(2).with_loader(2)),
    ("loader", lambda: assign(3, 2, sampler="balanced", lengths=ONES).with_loader(2)),
    ("labels", lambda: assign(3, 2).count_labels("abab")),
    ("rank 1", lambda: Assignment(3, ([0], [0.5]))),
    ("2**63", lambda: Assignment(3, (np.array([2**63], np.uint64),))),
    ("rank 0", lambda: Assignment(4, ([0, 1], [2, 3]), batch_stops=([1], [2]))),
    ("rank 1", lambda: Assignment(4, ([0, 1], [2, 3]), batch_stops=([2], [2, 1, 2]))),
    ("rank 1", lambda: Assignment.collect([[0, 1], None], size=2)),
    ("rank 0", lambda: Assignment.collect([range, range], size=2)),
    ("rank 1", lambda: Assignment.collect([[0, 1], [0.5]], size=2)),
    ("64 bits", lambda: Assignment.collect([[0], [2**63]], size=2)),
    ("batches", lambda: Assignment.collect([[[0]], [1]], size=2)),
    ("files", lambda: shard_files("a.npz", 2, 0)),
    ("'b'", lambda: shard_files(["b", "a", "b"], 2, 0)),
    ("epoch", lambda: audit([])),
    ("ranks", lambda: audit([assign(10, 2), assign(10, 4)])),
    ("padding", lambda: audit(assign(10, 2)).check(allow=["padding"])),
    ("assignments", lambda: audit([assign(10, 2), 3])),
    ("weights", lambda: audit(assign(3, 2), weights=[1] * 5)),
    ("sample 2", lambda: audit(assign(3, 2), weights=[1, 2, np.nan])),
    ("loader", lambda: audit_loader([])),
    ("batch_size", lambda: balanced(batch_size=0)),
    ("sample 1", lambda: balanced(lengths=[1, 2**40 + 1])),
    ("cost", lambda: balanced(cost=lambda lengths: 2.0 * max(lengths, 1))),
    ("finite", lambda: balanced(cost=lambda lengths: np.full(3, 1.7e308))),
    ("sample 0", lambda: balanced(cost=lambda lengths: -lengths)),
    ("weights", lambda: WeightedSampler(torch.ones(3, requires_grad=True))),
    ("sample 1", lambda: WeightedSampler([1, -0.5])),
    ("sample 0", lambda: WeightedSampler([float("inf"), 1])),
    ("above 0", lambda: WeightedSampler([0, 0])),
    ("size", lambda: KeyedSampler(2**63)),
    ("together", lambda: KeyedSampler(3, 2)),
    ("trained", lambda: KeyedSampler(3).state_after(4)),
    ("positions", lambda: KeyedSampler(3, shuffle=False).positions([0.5])),
    ("progress", lambda: KeyedSampler(3).load_state_dict({})),
    ("version", lambda: load_keyed(version=True)),
    ("seed", lambda: load_keyed(recipe=STATE["recipe"] | {"seed": 2})),
    ("colour", lambda: load_keyed(recipe=STATE["recipe"] | {"colour": 1})),
    ("finished", lambda: load_keyed(finished=True)),
    ("position", lambda: load_keyed(progress={"position": 4})),
    ("lengths", lambda: balanced(batch_size=2).load_state_dict(balanced(lengths=[1, 1, 2]).state_dict())),
    ("num_samples", lambda: WeightedSampler(ONES).load_state_dict(WeightedSampler(ONES, num_samples=4).state_dict())),
    ("num_replicas", lambda: load_segment(num_replicas=2**16 + 1)),
    ("num_steps", lambda: load_segment(num_steps=99)),
    ("all_gather", lambda: KeyedSampler(3, 2, 0).check_ranks(lambda own: None)),
    ("process group", lambda: KeyedSampler(3, 2, 0).check_ranks()),
    ("num_replicas", lambda: DistributedSampler(3, 2.5, 0)),
    ("length", lambda: DistributedSampler(2**63, 2, 0)),
    ("epoch", lambda: DistributedSampler(3, 1, 0).set_epoch(1.0)),
    ("has 3", iterate_grown_dataset),
    ("consumed", lambda: resume_torchs(consumed=4)),
]
for kind in (DistributedRandomSampler, DistributedSequentialSampler):
    REFUSED += [
        ("size", lambda kind=kind: kind(-1)),
        ("num_replicas", lambda kind=kind: kind(3, 0)),
        ("rank", lambda kind=kind: kind(3, 2, 2)),
        ("epoch", lambda kind=kind: kind(3).set_epoch(2**64)),
        ("batch_size", lambda kind=kind: kind(3).next(0)),
        ("allow_duplicates", lambda kind=kind: kind(3, allow_duplicates="no")),
        ("sample_index", lambda kind=kind: load_libtorchs(kind, sample_index=9)),
    ]


@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_refused(word, call):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        call()
    assert word in str(error.value)


def test_positions_outside_the_order_are_an_index_error():
    for sampler in (KeyedSampler(10), KeyedSampler(10, shuffle=False), WeightedSampler([1] * 10)):
        for position in (-1, 10):
            with pytest.raises(IndexError):
                sampler[position]
    with pytest.raises(IndexError):
        KeyedSampler(10).positions([10])
