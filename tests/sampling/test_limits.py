"""Every number of a sampler may be as low as its message says, and one less is refused in that message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankscope.sampling import (
    Assignment,
    BalancedSampler,
    DistributedRandomSampler,
    DistributedSampler,
    KeyedSampler,
    PackedSampler,
    WeightedSampler,
    assign,
    epoch_work,
    mixing,
    shard_files,
    stream_files,
)
from rankscope.sampling.keyed import KeyedPermutation

ONES = [1, 1, 1]
TWO_RANKS = Assignment(4, (np.array([0, 1]), np.array([2, 3])))
ONE_READ = Assignment(1, (np.array([0]),))
Made = Callable[[int], Any]


def balanced_state(**changes: int) -> dict[str, Any]:
    """The state of a balanced epoch that stopped in its first window, with some fields of its only segment changed."""
    state = BalancedSampler([2] * 9, 1, 0, batch_size=2, window=9).state_after(1)
    (segment,) = state["progress"]["segments"]
    by_tokens = {"batch_size": None} if "max_tokens" in changes else {}
    segment.update(by_tokens | changes)
    return state


def load_balanced(**changes: int) -> None:
    BalancedSampler([2] * 9, 1, 0, batch_size=2, window=9).load_state_dict(balanced_state(**changes))


def load_keyed(**changes: Any) -> None:
    sampler = KeyedSampler(3)
    sampler.load_state_dict(sampler.state_dict() | changes)


def resume_torchs(**changes: Any) -> None:
    sampler = DistributedSampler(3, 1, 0)
    sampler.resume(sampler.state_after(0) | changes)


@pytest.mark.parametrize(
    ("make", "lowest", "message"),
    [
        (lambda number: BalancedSampler(ONES, 1, 0, batch_size=number), 1, "batch_size of at least 1"),
        (lambda number: BalancedSampler(ONES, 1, 0, max_tokens=number), 1, "max_tokens from 1 to 1125899906842624"),
        (lambda number: BalancedSampler(ONES, 1, 0, 1, window=number), 1, "window from 1 to 1125899906842624"),
        (lambda number: BalancedSampler(ONES, number, 0, 1), 1, "num_replicas from 1 to 65536"),
        (lambda number: PackedSampler(ONES, number), 1, "max_tokens from 1 to 1125899906842624"),
        (lambda number: PackedSampler(ONES, 3, window=number), 1, "window from 1 to 1125899906842624"),
        (lambda number: WeightedSampler(ONES, num_samples=number), 0, "num_samples from 0 to 2147483648"),
        (lambda number: KeyedSampler(number), 0, "size from 0 to 9223372036854775807"),
        (lambda number: KeyedSampler(3, 2, number), 0, "rank from 0 to 1"),
        (lambda number: KeyedSampler(3).set_epoch(number), 0, "epoch of at least 0"),
        (lambda number: KeyedSampler(3).state_after(number), 0, "trained from 0 to 3"),
        (lambda number: KeyedSampler(3, seed=number), -(2**63), f"seed from {-(2**63)} to {2**64 - 1}"),
        (lambda number: KeyedPermutation(number, ""), 0, "size from 0 to 9223372036854775807"),
        (lambda number: DistributedSampler(number, 1, 0), 0, "dataset length from 0 to 9223372036854775807"),
        (lambda number: DistributedSampler(3, number, 0), 1, "num_replicas of at least 1"),
        (lambda number: DistributedSampler(3, 1, 0).state_after(number), 0, "trained from 0 to 3"),
        (lambda number: DistributedSampler(3, 1, 0, seed=number), -(2**63), f"seed from {-(2**63)} to {2**64 - 1}"),
        (lambda number: resume_torchs(consumed=number), 0, "consumed from 0 to 3"),
        (lambda number: DistributedRandomSampler(number), 0, "size of at least 0"),
        (lambda number: DistributedRandomSampler(3, number), 1, "num_replicas of at least 1"),
        (lambda number: DistributedRandomSampler(3, 2, number), 0, "rank from 0 to 1"),
        (lambda number: DistributedRandomSampler(3).reset(number), 0, "new_size of at least 0"),
        (lambda number: DistributedRandomSampler(3).next(number), 1, "batch_size of at least 1"),
        (lambda number: assign(number, 1), 0, "size from 0 to 268435456"),
        (lambda number: assign(3, number), 1, "num_replicas from 1 to 65536"),
        (lambda number: assign(3, 1, epoch=number, sampler="libtorch_random"), 0, "epoch of at least 0"),
        (lambda number: assign(3, 1, epoch=number, sampler="libtorch_sequential"), 0, "epoch of at least 0"),
        (lambda number: TWO_RANKS.batches(number), 0, "rank from 0 to 1"),
        (lambda number: shard_files(["a"], number, 0), 1, "num_trainers of at least 1"),
        (lambda number: shard_files(["a"], 2, number), 0, "trainer_id from 0 to 1"),
        (lambda number: stream_files([number], 1), 0, "file_rows from 0 to 268435456"),
        (lambda number: stream_files([3], number), 1, "num_replicas from 1 to 65536"),
        (lambda number: stream_files([3], 1, buffer_size=number), 1, "buffer_size of at least 1"),
        (lambda number: stream_files([3], 1, initial=number), 1, "initial of at least 1"),
        (lambda number: stream_files([3], 2, num_nodes=number, method="block"), 1, "num_nodes from 1 to 2"),
        (lambda number: stream_files([3], 1, seed=number), 0, f"seed from 0 to {2**64 - 1}"),
        (lambda number: stream_files([3], 1, epoch=number), 0, "epoch of at least 0"),
        (lambda number: mixing(TWO_RANKS, [4, number]), 0, "file_rows from 0 to 268435456"),
        (lambda number: mixing(TWO_RANKS, [4], batch_size=number), 1, "batch_size of at least 1"),
        (lambda number: epoch_work(ONE_READ, [1], max_tokens=number), 1, "max_tokens from 1 to 1125899906842624"),
        (lambda number: load_keyed(epoch=number), 0, "epoch of at least 0"),
        (lambda number: load_keyed(progress={"position": number}), 0, "position from 0 to 3"),
        (lambda number: load_balanced(batch_size=number), 1, "batch_size of at least 1"),
        (lambda number: load_balanced(max_tokens=number), 2, "max_tokens from 2 to 1125899906842624"),
        (lambda number: load_balanced(num_replicas=number), 1, "num_replicas from 1 to 65536"),
        (lambda number: load_balanced(window=number), 1, "window from 1 to 1125899906842624"),
        (lambda number: load_balanced(num_samples=number), 0, "num_samples of at least 0"),
        (lambda number: load_balanced(num_steps=number), 0, "num_steps of at least 0"),
    ],
)
def test_the_lowest_number_is_allowed_and_one_less_is_not(make: Made, lowest: int, message: str) -> None:
    make(lowest)
    name, _, bounds = message.partition(" from " if " from " in message else " of ")
    word = "from" if " from " in message else "of"
    sentence = f"{name} must be a whole number {word} {bounds}, got {lowest - 1}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        make(lowest - 1)


@pytest.mark.parametrize(
    ("make", "highest"),
    [
        (lambda number: KeyedSampler(3).state_after(number), 3),
        (lambda number: KeyedSampler(3, 2, number), 1),
        (lambda number: KeyedSampler(3, seed=number), 2**64 - 1),
        (lambda number: DistributedSampler(3, 1, 0, seed=number), 2**64 - 1),
        (lambda number: DistributedSampler(3, 1, 0).state_after(number), 3),
        (lambda number: resume_torchs(consumed=number), 3),
        (lambda number: DistributedRandomSampler(3, 2, number), 1),
        (lambda number: TWO_RANKS.batches(number), 1),
        (lambda number: shard_files(["a"], 2, number), 1),
        (lambda number: stream_files([4], 2, num_nodes=number, method="block"), 2),
        (lambda number: stream_files([3], 1, seed=number), 2**64 - 1),
        (lambda number: load_keyed(progress={"position": number}), 3),
        (lambda number: load_balanced(num_steps=number), 5),
        (lambda number: load_balanced(num_samples=number, num_steps=0), 9),
    ],
)
def test_the_highest_number_is_allowed_and_one_more_is_not(make: Made, highest: int) -> None:
    make(highest)
    with pytest.raises(ValueError, match=f" to {highest}, got {highest + 1}$"):
        make(highest + 1)


def test_values_of_samples_may_be_as_large_as_the_message_says() -> None:
    longest = 2**40
    assert PackedSampler([longest], longest).lengths.tolist() == [longest]
    with pytest.raises(
        ValueError, match=f"^lengths must be whole numbers from 0 to {longest}, got {longest + 1} for sample 1$"
    ):
        PackedSampler([longest, longest + 1, -1], longest)
    with pytest.raises(ValueError, match="^lengths must be at most max_tokens, which is 8: sample 1 has 9 tokens$"):
        PackedSampler([8, 9, 10], 8)
    with pytest.raises(ValueError, match="^weights must be finite numbers of at least 0, got -1.0 for sample 1$"):
        WeightedSampler([0, -1, -2])


def test_all_ranks_together_read_a_limited_number_of_samples() -> None:
    together = "the samples that 3 ranks read together must be a whole number from 0 to 268435456, got 268435458"
    with pytest.raises(ValueError, match=f"^{together}$"):
        assign(2**28, 3, shuffle=False)
