"""The Python twins of libtorch's distributed samplers give what libtorch gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.sampling import DistributedRandomSampler, DistributedSequentialSampler, assign
from rankscope.sampling.permutation import _below, _one_below, libstdcxx_shuffle
from tests.sampling import libtorch_oracle as oracle

TWINS = (DistributedRandomSampler, DistributedSequentialSampler)


def drain(sampler: Any, batch_size: int = 1 << 20) -> list[int]:
    """Everything that is left in a sampler."""
    indices: list[int] = []
    while (batch := sampler.next(batch_size)) is not None:
        indices += batch
    return indices


def at_epoch(epoch: int, *args: Any, **options: Any) -> list[int]:
    """One rank's indices of an epoch, in order."""
    sampler = DistributedRandomSampler(*args, **options)
    sampler.set_epoch(epoch)
    sampler.reset()
    return drain(sampler)


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled oracle, kept in pytest's cache for the next run."""
    cache = getattr(request.config, "cache", None)
    build_dir = cache.mkdir("libtorch-oracle") if cache else tmp_path_factory.mktemp("libtorch-oracle")
    built = oracle.compile_oracle(build_dir)
    if built is None:
        pytest.skip("no C++ compiler for libtorch: the recorded vectors stand in")
    return built


@pytest.fixture(scope="session")
def replayed() -> dict[str, str]:
    """The twins' output for every case of seed 0, by the case's line."""
    return {case.line(): oracle.replay(case, *TWINS) for case in oracle.cases(0)}


def differing(expected: dict[str, str], got: dict[str, str]) -> list[tuple[str, str, str]]:
    """The cases whose outputs differ, shortened: line, expected, got."""
    assert expected.keys() == got.keys()
    return [(line, want[:200], got[line][:200]) for line, want in expected.items() if got[line] != want]


class TestAgainstLibtorch:
    @pytest.mark.slow
    def test_recorded_vectors(self, replayed: dict[str, str]) -> None:
        expected = {case.line(): output for case, output in oracle.recorded()}
        assert len(expected) >= 400
        assert differing(expected, {line: oracle.recordable(out) for line, out in replayed.items()}) == []

    @pytest.mark.oracle
    def test_compiled_libtorch(self, binary: Path, replayed: dict[str, str]) -> None:
        cases = oracle.cases(0)
        expected = dict(zip((c.line() for c in cases), oracle.run_oracle(binary, cases), strict=True))
        assert differing(expected, replayed) == []

    @pytest.mark.oracle
    def test_compiled_libtorch_on_other_cases(self, binary: Path) -> None:
        known = {case.line() for case in oracle.cases(0)}
        cases = [case for case in oracle.cases(1) if case.line() not in known][::2]
        assert len(cases) >= 200
        expected = dict(zip((c.line() for c in cases), oracle.run_oracle(binary, cases), strict=True))
        assert differing(expected, {c.line(): oracle.replay(c, *TWINS) for c in cases}) == []

    def test_recorded_whole_epochs(self) -> None:
        stored = json.loads(oracle.WHOLE_EPOCHS.read_text(encoding="utf-8"))
        assert len(stored["epochs"]) >= 50
        for epoch in stored["epochs"]:
            ranks = epoch.pop("ranks")
            assert [indices.tolist() for indices in assign(**epoch).ranks] == ranks
            if epoch["sampler"] == "libtorch_random" and epoch["size"] >= 10:
                other = assign(**epoch | {"epoch": epoch["epoch"] + 1})
                assert [indices.tolist() for indices in other.ranks] != ranks

    @pytest.mark.oracle
    def test_recorded_whole_epochs_are_what_libtorch_gives_now(self, binary: Path) -> None:
        stored = json.loads(oracle.WHOLE_EPOCHS.read_text(encoding="utf-8"))
        assert stored["epochs"] == oracle.whole_epochs(binary)


class LaterEpoch(DistributedRandomSampler):
    def set_epoch(self, epoch: int) -> None:
        super().set_epoch((epoch + 1) % 2**64)


class Wrapped(DistributedRandomSampler):
    def next(self, batch_size: int) -> list[int] | None:
        batch = super().next(batch_size)
        return batch and [index % self.size for index in batch]


class Forgetful(DistributedRandomSampler):
    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> None:
        pass


class Unwrapped(DistributedSequentialSampler):
    def next(self, batch_size: int) -> list[int] | None:
        start = self.index()
        batch = super().next(batch_size)
        return batch and list(range(start, start + len(batch)))


class RewindingLoad(DistributedSequentialSampler):
    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> None:
        super().load_state_dict(state, strict)
        self.reset()


class TestOracle:
    @pytest.mark.parametrize("wrong", [LaterEpoch, Wrapped, Forgetful, Unwrapped, RewindingLoad])
    def test_a_wrong_twin_is_seen(self, wrong: Any) -> None:
        kind = "random" if issubclass(wrong, DistributedRandomSampler) else "sequential"
        small = [(case, out) for case, out in oracle.recorded() if case.kind == kind and case.size <= 1001]
        assert sum(oracle.recordable(oracle.replay(case, wrong, wrong)) != out for case, out in small) > 3

    @pytest.mark.oracle
    def test_a_broken_case_is_an_error(self, binary: Path) -> None:
        cases = [oracle.Case("random", 3, 1, 0, True, (op,)) for op in ("n1", "x")]
        with pytest.raises(RuntimeError, match="case 2: unknown op x"):
            oracle.run_oracle(binary, cases)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(1, 16), st.sampled_from(oracle.EPOCHS), st.booleans())
def test_shuffled_first_ranks_have_slices_of_the_whole_order(size: int, n: int, epoch: int, duplicates: bool) -> None:
    # The order of one replica is libtorch's: it neither pads nor cuts.
    order = at_epoch(epoch, size, 1)
    assert sorted(order) == list(range(size))
    local = -(-size // n) if duplicates else size // n
    expected = [order[i % size] for i in range(local * n)]
    for rank in range(n):
        emitted = at_epoch(epoch, size, n, rank, duplicates, shuffle_first=True)
        assert emitted == expected[rank * local : (rank + 1) * local]


@pytest.mark.parametrize("twin", TWINS)
class TestStates:
    @pytest.mark.parametrize("position", [4, 8])
    def test_state_at_the_ends_of_the_slice(self, twin: Any, position: int) -> None:
        sampler = twin(12, 3, 1)
        sampler.load_state_dict({**sampler.state_dict(), "sample_index": position}, strict=True)
        assert sampler.index() == position
        assert (sampler.next(1) is None) == (position == 8)

    @pytest.mark.parametrize(
        ("name", "value"), [("size", 11), ("num_replicas", 4), ("rank", 2), ("allow_duplicates", False)]
    )
    def test_strict_refuses_a_state_of_another_sampler(self, twin: Any, name: str, value: Any) -> None:
        own = {"size": 12, "num_replicas": 3, "rank": 1, "allow_duplicates": True}
        # A position that every sampler here allows, so that only the origin is amiss.
        state = {**twin(**{**own, name: value}).state_dict(), "sample_index": 5}
        sampler = twin(**own)
        with pytest.raises(ValueError, match=rf"{name}.*{value}"):
            sampler.load_state_dict(state, strict=True)
        assert sampler.index() == 4
        sampler.load_state_dict(state)
        assert sampler.index() == 5


def test_a_shuffled_state_needs_its_epoch_and_its_way_of_shuffling() -> None:
    sampler = DistributedRandomSampler(11, 4, 3, shuffle_first=True)
    sampler.set_epoch(6)
    sampler.reset()
    sampler.next(1)
    state = sampler.state_dict()
    resumed = DistributedRandomSampler(11, 4, 3, shuffle_first=True)
    resumed.load_state_dict(state, strict=True)
    assert drain(resumed) == drain(sampler)
    with pytest.raises(ValueError, match="shuffle_first"):
        DistributedRandomSampler(11, 4, 3).load_state_dict(state, strict=True)
    with pytest.raises(ValueError, match="epoch"):
        resumed.load_state_dict({"sample_index": state["sample_index"]})


# ---- the shuffle of libstdc++


class Words:
    """Random words that are known."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def take(self, count: int) -> Any:
        taken = np.array(self.words[:count], dtype=np.uint32)
        del self.words[:count]
        return taken


def test_words_that_would_favour_some_numbers_are_drawn_again() -> None:
    """2**32 % 6 is 4, so a word is refused if the lower 32 bits of 6 times it are below 4."""
    refused, fair, large = (2 + 2**32) // 6, (4 + 2 * 2**32) // 6, 9 << 28
    assert [6 * word % 2**32 for word in (refused, fair)] == [2, 4]
    assert _one_below(6, iter([refused, 0, fair])) == 2
    assert _one_below(6, iter([large])) == 3
    assert _one_below(3, iter([0, large])) == 1
    words = Words(large, refused, 0, fair, large, 0, large, 0, large, fair, refused)
    bounds = np.array([3, 6, 6, 4, 4, 3, 6], dtype=np.uint64)
    # The second bound refuses two words, and the sixth one. A word of 0 is fair for 4, but neither for 3 nor for 6.
    assert _below(words, bounds).tolist() == [1, 2, 3, 0, 2, 1, 2]  # type: ignore[arg-type]
    assert words.words == [refused]


def test_long_orders_are_those_of_one_swap_after_the_other() -> None:
    """Above 65,535 items, item i is swapped with one below i + 1; the word is by Lemire's multiplication."""
    num_items = 70_000
    words = iter(np.random.RandomState(8).randint(0, 1 << 32, size=2 * num_items, dtype=np.uint32).tolist())
    expected = list(range(num_items))
    num_refused = 0
    for item in range(1, num_items):
        product = next(words) * (item + 1)
        while product % 2**32 < 2**32 % (item + 1):
            num_refused += 1
            product = next(words) * (item + 1)
        other = product >> 32
        expected[item], expected[other] = expected[other], expected[item]
    assert num_refused > 0
    items = np.arange(num_items)
    libstdcxx_shuffle(items, 8)
    assert items.tolist() == expected


@pytest.mark.parametrize("twin", TWINS)
def test_a_sampler_is_by_default_that_of_one_rank_that_reads_everything(twin: Any) -> None:
    state = {"sample_index": 0, "size": 5, "num_replicas": 1, "rank": 0, "allow_duplicates": True}
    assert {name: value for name, value in twin(5).state_dict().items() if name in state} == state
    assert sorted(drain(twin(5))) == [0, 1, 2, 3, 4]
    assert twin(5).state_dict().get("shuffle_first", False) is False
    highest = twin(5)
    highest.set_epoch(2**64 - 1)
    assert highest.epoch == 2**64 - 1
    highest.load_state_dict({**twin(7, 2, 1, False).state_dict(), "sample_index": 4})  # not strict
    assert highest.index() == 4
