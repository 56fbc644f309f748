"""How things are timed and checked, on threads with a real Gloo group each; and what is planned."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.box.measuring import collectives, rank
from rankscope.box.measuring.collectives import buffers, collective_tasks, native
from rankscope.box.measuring.links import ring_of
from rankscope.box.measuring.plan import (
    FEW_ALGORITHMS,
    MEASURED,
    Protocol,
    collective_keys,
    guess_s,
    key_of,
    keys_of,
    measure_in_turns,
)
from rankscope.box.measuring.rank import points_of
from rankscope.box.measuring.run import measure
from rankscope.box.measuring.timing import Ranks, TimedTask
from rankscope.box.points import NATIVE, Point
from rankscope.collectives import ALGORITHMS
from rankscope.ranks import RankError, in_threads

pytestmark = pytest.mark.slow

QUICK = Protocol(iterations=6, budget_s=0.02)
NODES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
SUM = key_of("add", 64)


# ---- timing


def test_the_slowest_rank_of_each_iteration_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(key: Any, ranks: Ranks, nodes: Any) -> TimedTask:
        return TimedTask(lambda: time.sleep(0.05 * (ranks.rank + 1)), times=2)

    monkeypatch.setattr(rank, "link_task", task)
    (point,), *others = in_threads(3, lambda _, group: points_of([SUM], [0], Ranks(group), QUICK))
    assert others == [[point]] * 2
    assert len(point.seconds) == 6
    assert 0.15 <= min(point.seconds) < 0.3, "that is the sum over the ranks, or over the times"


@pytest.mark.parametrize(("budget_s", "most", "turns"), [(100.0, 7, 3), (100.0, 300, 100), (1e-9, 300, 2)])
def test_methods_take_turns_within_the_iterations_and_the_budget(budget_s: float, most: int, turns: int) -> None:
    keys = [key_of("add", size) for size in (4, 8, 12)]
    order = []

    def seconds(key: Any) -> float:
        order.append(keys.index(key))
        return 1.0 + len(order)

    points = measure_in_turns(keys, seconds, Protocol(iterations=most, budget_s=budget_s))
    rounds = [[first, (first + 1) % 3, (first + 2) % 3] for first in range(turns)]
    assert order == [place % 3 for of_round in rounds for place in of_round for _ in range(4)]
    assert [point.key for point in points] == keys
    assert {len(point.seconds) for point in points} == {min(most, 3 * turns)}
    assert points[0].seconds[0] == 3.0  # the first one warmed up


# ---- links


@given(NODES)
def test_ranks_of_a_ring_agree_on_it(sizes: list[int]) -> None:
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    for inside, own in itertools.product((True, False), range(len(nodes))):
        ring = ring_of(nodes, own, inside)
        assert ring[0] == own
        assert ring_of(nodes, ring[-1], inside) == [ring[-1], *ring[:-1]]
        assert len({nodes[other] for other in ring}) == (1 if inside else len(ring))


def test_links_and_memory_are_measured_on_nodes_of_any_size() -> None:
    keys = [SUM, *[key_of("together", size, link=link) for size in (256, 2**20) for link in ("intra", "inter")]]

    def work(rank: int, group: Any) -> list[Point]:
        ranks = Ranks(group)
        return [point for key in keys for point in points_of([key], [0, 0, 1], ranks, QUICK)]

    found = in_threads(3, work)[0]
    assert [point.key for point in found] == keys
    assert min(found[3].seconds) > min(found[1].seconds)


# ---- collectives


@pytest.mark.parametrize(("num_ranks", "size"), [(3, 1000), (2, 4096)])
def test_all_collectives_of_all_algorithms_are_checked_and_measured(num_ranks: int, size: int) -> None:
    keys = [collective_keys(Protocol(thorough=True), name, size, num_ranks) for name in MEASURED]

    def work(rank: int, group: Any) -> list[list[Point]]:
        ranks, protocol = Ranks(group), Protocol(iterations=1)
        return [points_of(of_collective, [0] * num_ranks, ranks, protocol) for of_collective in keys]

    assert [[point.key for point in points] for points in in_threads(num_ranks, work)[0]] == keys
    names = {dict(key.options)["algorithm"] for of_collective in keys for key in of_collective}
    assert {"native", "ring", "segmented_ring", "bruck"} <= names


@pytest.mark.parametrize("collective", MEASURED)
def test_what_a_collective_leaves_undone_is_caught(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that only copies what a rank passes: a wrong result, or one of the wrong size, on some rank."""
    monkeypatch.setattr(collectives, "execute", lambda schedule, tensor, group: tensor.clone())
    keys = collective_keys(Protocol(algorithms=[next(iter(ALGORITHMS[collective]))]), collective, 4096, 2)
    with pytest.raises(RankError, match=collective):
        in_threads(2, lambda rank, group: collective_tasks(keys, Ranks(group)) and None)


@pytest.mark.parametrize("collective", MEASURED)
def test_the_backends_own_result_is_what_the_ranks_numbers_give(collective: str) -> None:
    def work(rank: int, group: Any) -> tuple[list[float], list[float]]:
        ranks = Ranks(group)
        numbers, out = buffers(collective, 4096, ranks)
        return numbers.tolist(), native(collective, numbers, out, ranks)().tolist()

    (first, first_out), (second, second_out) = in_threads(2, work)
    assert first != second
    total = [a + b for a, b in zip(first, second, strict=True)]
    expected = {
        "allreduce": (total, total),
        "reduce_scatter": (total[:512], total[512:]),
        "allgather": (first + second,) * 2,
    }
    assert (first_out, second_out) == expected[collective]


# ---- what is planned


@settings(max_examples=30)
@given(NODES.filter(lambda sizes: sum(sizes) > 1), st.integers(1, 2**20), st.sampled_from(MEASURED))
def test_keys_are_all_different_and_of_whole_elements(sizes: list[int], quads: int, collective: str) -> None:
    keys = keys_of(Protocol(sizes=[4 * quads], collectives=[collective], thorough=True), "gloo", sizes, has_gpu=True)
    assert len(set(keys)) == len(keys)
    assert all(key.num_bytes % 4 == 0 for key in keys)
    assert any(dict(key.options).get("algorithm") == "native" for key in keys)


def test_quick_is_a_part_of_thorough_and_native_is_measured_in_both_places() -> None:
    quick, thorough = (keys_of(Protocol(thorough=every), "gloo", [4], has_gpu=False) for every in (False, True))
    assert set(quick) < set(thorough)
    options = [dict(key.options) for key in quick if key.what == "allreduce"]
    assert {one["algorithm"] for one in options} == set(FEW_ALGORITHMS)
    assert {one["in_place"] for one in options if one["algorithm"] == NATIVE} == {True, False}
    assert 10 < guess_s(quick, Protocol(), "gloo") < 60 < guess_s(thorough, Protocol(), "gloo")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nccl(tmp_path: Path) -> None:
    some: dict[str, Any] = {"sizes": [4096, 2**22], "algorithms": ["native", "ring"], "collectives": MEASURED}
    profile = measure(tmp_path / "gpu.json", replace(QUICK, **some), num_ranks=2, backend="nccl")
    assert len(profile.select("allreduce", in_place=True)) == 4
