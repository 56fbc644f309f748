"""The Python twins of libtorch's distributed samplers give what libtorch gives."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.sampling import DistributedRandomSampler, DistributedSequentialSampler, assign
from rankscope.sampling.samplers.permutation import libstdcxx_shuffled
from tests.sampling.samplers import libtorch_oracle as oracle

TWINS = {"random": DistributedRandomSampler, "sequential": DistributedSequentialSampler}


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled oracle, kept in pytest's cache for the next run."""
    cache = getattr(request.config, "cache", None)
    build_dir = cache.mkdir("libtorch-oracle") if cache else tmp_path_factory.mktemp("libtorch-oracle")
    built = oracle.compile_oracle(build_dir)
    if built is None:
        pytest.skip("no C++ compiler for libtorch: the recorded epochs stand in")
    return built


@pytest.mark.oracle
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_compiled_libtorch(binary: Path, seed: int) -> None:
    cases = oracle.cases(seed)
    for case, output in zip(cases, oracle.run_oracle(binary, cases), strict=True):
        assert oracle.replay(case, TWINS) == output, case


def test_recorded_whole_epochs() -> None:
    stored = json.loads(oracle.WHOLE_EPOCHS.read_text(encoding="utf-8"))
    assert len(stored["epochs"]) >= 50
    for epoch in stored["epochs"]:
        ranks = epoch.pop("ranks")
        assert [indices.tolist() for indices in assign(**epoch).ranks] == ranks


@pytest.mark.oracle
def test_recorded_whole_epochs_are_what_libtorch_gives_now(binary: Path) -> None:
    stored = json.loads(oracle.WHOLE_EPOCHS.read_text(encoding="utf-8"))
    assert stored["epochs"] == oracle.whole_epochs(binary)


def test_an_assignment_is_what_the_twins_read_also_of_few_samples() -> None:
    for size, num_ranks, drop_last, kind in product((0, 1, 2, 5, 7), (1, 2, 3, 4), (False, True), TWINS):
        ranks = []
        for rank in range(num_ranks):
            sampler = TWINS[kind](size, num_ranks, rank, allow_duplicates=not drop_last)
            sampler.reset()
            ranks.append(sampler.next(100) or [])
        assigned = assign(size, num_ranks, sampler=f"libtorch_{kind}", drop_last=drop_last)
        assert [indices.tolist() for indices in assigned.ranks] == ranks


class Wrapped(DistributedRandomSampler):
    def next(self, batch_size: int) -> list[int] | None:
        batch = super().next(batch_size)
        return batch and [index % self.size for index in batch]


class RewindingLoad(DistributedSequentialSampler):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset()


@pytest.mark.oracle
@pytest.mark.parametrize(("kind", "wrong"), [("random", Wrapped), ("sequential", RewindingLoad)])
def test_a_wrong_twin_is_seen(binary: Path, kind: str, wrong: Any) -> None:
    small = [case for case in oracle.cases(0) if case.startswith(kind) and int(case.split()[1]) <= 1001]
    outputs = oracle.run_oracle(binary, small)
    assert sum(oracle.replay(case, {kind: wrong}) != output for case, output in zip(small, outputs, strict=True)) > 3


@pytest.mark.parametrize("size", [65_536, 100_003])
def test_an_order_that_is_made_in_blocks_is_that_of_the_swaps_one_by_one(size: int) -> None:
    """Without a compiler: each item is swapped with one before it, by Lemire's method on the words of MT19937."""
    words = iter(np.random.RandomState(7).randint(0, 2**32, size=2 * size, dtype=np.uint32).tolist())
    expected = list(range(size))
    for item in range(1, size):
        product = next(words) * (item + 1)
        while product % 2**32 < 2**32 % (item + 1):
            product = next(words) * (item + 1)
        other = product >> 32
        expected[item], expected[other] = expected[other], expected[item]
    assert libstdcxx_shuffled(size, 7).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(1, 16), st.sampled_from(oracle.EPOCHS), st.booleans())
def test_shuffled_first_ranks_have_slices_of_the_whole_order(size: int, n: int, epoch: int, duplicates: bool) -> None:
    order = libstdcxx_shuffled(size, epoch)
    share = -(-size // n) if duplicates else size // n
    for rank in range(n):
        sampler = DistributedRandomSampler(size, n, rank, duplicates, shuffle_first=True)
        sampler.set_epoch(epoch)
        sampler.reset()
        assert (sampler.next(100) or []) == np.resize(order, share * n)[rank * share :][:share].tolist()
