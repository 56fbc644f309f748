"""How things are timed and checked: on threads with a real Gloo group each, and on works of known length."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from rankscope.box import Profile
from rankscope.box.measuring import rank as measure_collectives
from rankscope.box.measuring.plan import (
    MEASURED,
    Protocol,
    builder_options,
    collective_keys,
    keys_of,
    link_keys,
)
from rankscope.box.measuring.rank import CollectiveBuffers, check, collective_tasks, method, neighbours, pair, points_of
from rankscope.box.measuring.run import measure
from rankscope.box.measuring.turns import measure_all
from rankscope.collectives import ALGORITHMS
from rankscope.collectives.timing import Ranks, TimedTask
from rankscope.ranks import RankError, in_threads

from ..extents import first_in_test

pytestmark = pytest.mark.slow

QUICK = Protocol(iterations=6, budget_s=0.02)
NODES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


# ---- the protocol


def ranks_with(group: Any, **readings: Callable[[], Any]) -> Ranks:
    """The ranks of a group, with another clock, other stolen ticks or another machine on this rank."""
    return type("Mine", (Ranks,), {name: staticmethod(read) for name, read in readings.items()})(group)  # type: ignore[no-any-return]


def test_the_slowest_rank_of_each_iteration_counts() -> None:
    def work(rank: int, group: Any) -> Any:
        return measure_all({"": TimedTask(lambda: time.sleep(0.05 * (rank + 1)))}, Ranks(group), QUICK)[""]

    (seconds, clean), *others = in_threads(3, work)
    assert all(other == (seconds, clean) for other in others)
    assert len(seconds) == len(clean) == 6
    assert min(seconds) >= 0.15
    assert min(seconds) < 0.3, "that is the sum over the ranks"


def test_all_start_at_one_instant_however_late_one_comes() -> None:
    def work(rank: int, group: Any) -> list[tuple[float, float]]:
        ranks, found = Ranks(group), []
        for turn in range(24):
            time.sleep(0.05 if turn % 3 == rank else 0)
            instant, _ = ranks.together()
            found.append((instant, time.monotonic()))
        return found

    turns = list(zip(*in_threads(3, work), strict=True))
    assert all(len({instant for instant, _ in turn}) == 1 for turn in turns)
    assert all(start >= instant for turn in turns for instant, start in turn)
    spreads = [max(start for _, start in turn) - min(start for _, start in turn) for turn in turns]
    assert min(spreads) < 0.02


@pytest.mark.parametrize("victim", [0, 1])
def test_an_iteration_from_which_the_host_took_time_is_not_clean_on_any_rank(victim: int) -> None:
    def work(rank: int, group: Any) -> Any:
        reads = itertools.count()  # two an iteration: the first two iterations are for the estimate, the third warms up
        stolen: Callable[[], int] = lambda: int(rank == victim and next(reads) >= 2 * 4 + 1)  # noqa: E731
        ticks = itertools.count()
        ranks = ranks_with(group, stolen=stolen, clock=lambda: next(ticks) * 1e-3)  # a clock by which nobody is late
        ranks.margin_s = 0.02
        return measure_all({"": TimedTask(lambda: None)}, ranks, Protocol(iterations=3, budget_s=0.1))[""]

    for _, clean in in_threads(2, work):
        assert clean == (True, False, True)


def test_an_iteration_that_some_rank_starts_too_late_is_not_clean() -> None:
    def work(rank: int, group: Any) -> Any:
        ranks = ranks_with(group, stolen=lambda: 0)
        ranks.margin_s = -0.001
        return measure_all({"": TimedTask(lambda: None)}, ranks, Protocol(iterations=3))[""]

    assert [clean for _, clean in in_threads(2, work)] == [(False,) * 3] * 2


def test_clocks_of_other_machines_are_told_apart_by_their_offset() -> None:
    ahead = [0.0, 0.0, 500.0, -70.0]  # ranks 0 and 1 share a machine

    def work(rank: int, group: Any) -> tuple[float, float, float]:
        ranks = ranks_with(group, clock=lambda: time.monotonic() + ahead[rank], machine=lambda: "aabc"[rank])
        instant, _ = ranks.together()
        return ranks._ahead_s, ranks.clock_offset_s, instant - ahead[rank]

    found = in_threads(4, work)
    for (offset, uncertain, instant), right in zip(found, ahead, strict=True):
        assert abs(offset - right) <= uncertain
        assert abs(instant - found[0][2]) <= uncertain + 1e-9
    assert [uncertain > 0 for _, uncertain, _ in found] == [False, False, True, True]


def test_tasks_take_turns() -> None:
    order: list[str] = []

    def work(rank: int, group: Any) -> Any:
        tasks = {name: TimedTask(lambda name=name: order.append(name)) for name in "abc"}
        return measure_all(tasks, Ranks(group), Protocol(warm_up=0, iterations=6, budget_s=10))

    (found,) = in_threads(1, work)
    assert "".join(order) == "aabbcc" + "aaabbbccc" + "bbbcccaaa"
    assert {name: len(seconds) for name, (seconds, _) in found.items()} == dict.fromkeys("abc", 6)


@given(st.floats(1e-6, 1e3), st.integers(1, 300), st.floats(1e-3, 100), st.integers(0, 5))
def test_turns_keep_to_the_budget_and_to_the_iterations(
    seconds: float, iterations: int, budget_s: float, warm_up: int
) -> None:
    protocol = Protocol(warm_up, iterations, budget_s)
    turns = protocol.turns(seconds)
    assert 1 <= turns <= 2 or seconds * turns * (warm_up + 3) <= budget_s
    assert min(6, iterations) <= turns * 3 < iterations + 3


# ---- links


@given(NODES)
def test_neighbours_agree_on_who_sends_to_whom(sizes: list[int]) -> None:
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    for inside in (True, False):
        rings = [neighbours(nodes, inside, rank) for rank in range(len(nodes))]
        for rank, ring in enumerate(rings):
            if ring is None:
                place = nodes[:rank].count(nodes[rank])
                assert sizes[nodes[rank]] == 1 if inside else sum(size > place for size in sizes) == 1
                continue
            before, after = ring
            assert rings[after] is not None
            assert rings[after][0] == rank  # type: ignore[index]
            assert (nodes[before] == nodes[rank]) is (nodes[after] == nodes[rank]) is inside
    if max(sizes) > 1:
        a, b = pair(nodes, inside=True)
        assert a != b
        assert nodes[a] == nodes[b]
    if len(sizes) > 1:
        a, b = pair(nodes, inside=False)
        assert nodes[a] != nodes[b]


def test_links_and_memory_are_measured_on_nodes_of_any_size() -> None:
    nodes = [0, 0, 1]
    keys = link_keys([2, 1], 1024)
    told = {("link", "intra"), ("link", "inter")}
    assert {key[2][0] for key in keys if key[2]} == told

    def work(rank: int, group: Any) -> Any:
        ranks = Ranks(group)
        return [points_of(list(some), nodes, ranks, QUICK) for _, some in itertools.groupby(keys, lambda key: key[:2])]

    found = [point for points in in_threads(3, work)[0] for point in points]
    assert [point.key for point in found] == keys


# ---- collectives


@pytest.mark.parametrize(("num_ranks", "size"), first_in_test(2, [(3, 1000), (4, 1024), (2, 4096)]))
def test_all_collectives_of_all_algorithms_are_checked_and_measured(num_ranks: int, size: int) -> None:
    keys = [collective_keys(collective, size, [num_ranks], in_place=(True, False)) for collective in MEASURED]

    def work(rank: int, group: Any) -> Any:
        ranks = Ranks(group)
        protocol = Protocol(iterations=1, budget_s=0.01)
        return [points_of(of_collective, [0] * num_ranks, ranks, protocol) for of_collective in keys]

    points_by_collective = in_threads(num_ranks, work)[0]
    assert [[point.key for point in points] for points in points_by_collective] == keys
    names = {dict(options)["algorithm"] for of_collective in keys for _, _, options in of_collective}
    assert {"native", "ring", "segmented_ring", "bruck", "chain"} <= names


@pytest.mark.parametrize("collective", MEASURED)
def test_one_wrong_element_is_caught_wherever_it_is(collective: str) -> None:
    (key,) = collective_keys(collective, 4096, [2], ["native"])
    number = 512 if collective == "reduce_scatter" else 1024

    def work(rank: int, group: Any) -> None:
        ranks = Ranks(group)
        buffers = CollectiveBuffers(collective, 4096, ranks)
        right = method(key, buffers, ranks)
        check(key, right, buffers)
        for element in (0, 17, number - 1):

            def wrong(given: Tensor, element: int = element) -> Tensor:
                found = right(given).clone()
                found[element] += 1
                return found

            with pytest.raises(RuntimeError, match=rf"element {element} is .*, 1 of {number} "):
                check(key, wrong, buffers)

    in_threads(2, work)


@pytest.mark.parametrize("collective", MEASURED)
def test_what_a_collective_leaves_undone_is_caught(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that only copies what a rank passes: a wrong result, or one of the wrong size, on some rank."""

    monkeypatch.setattr(measure_collectives, "executor", lambda *_: Tensor.clone)
    (name, *_) = [name for name in ALGORITHMS[collective] if name != "segmented_ring"]
    keys = collective_keys(collective, 4096, [2], [name])

    def work(rank: int, group: Any) -> None:
        collective_tasks(keys, Ranks(group))

    with pytest.raises(RankError, match=f"{collective} by {name}"):
        in_threads(2, work)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "all_to_all"])
def test_a_run_at_the_place_of_another_is_caught(collective: str) -> None:
    def work(rank: int, group: Any) -> None:
        ranks = Ranks(group)
        for num_elements in (2 * 61, 2 * 610, 2**12):  # the pattern has 61 numbers
            (key,) = collective_keys(collective, 4 * num_elements, [2], ["native"])
            buffers = CollectiveBuffers(collective, 4 * num_elements, ranks)
            right = method(key, buffers, ranks)
            turned = buffers.input.roll(num_elements // 2 if collective != "allgather" else 1)
            with pytest.raises(RuntimeError, match="wrong result"):
                check(key, lambda given, right=right, turned=turned: right(turned), buffers)

    in_threads(2, work)


def test_no_result_is_there_before_it_is_made() -> None:
    """A broadcast that does nothing finds nothing where it should have put it."""
    (key,) = collective_keys("broadcast", 4096, [1], ["native"])

    def work(rank: int, group: Any) -> None:
        buffers = CollectiveBuffers("broadcast", 4096, Ranks(group))
        with pytest.raises(RuntimeError, match="element 0 is nan"):
            check(key, lambda given: buffers.out, buffers)

    in_threads(1, work)


# ---- what is planned


@settings(max_examples=30)
@given(NODES.filter(lambda sizes: sum(sizes) > 1), st.integers(1, 2**20), st.sampled_from(MEASURED))
def test_keys_are_all_different_and_of_whole_elements(sizes: list[int], quads: int, collective: str) -> None:
    keys = collective_keys(collective, 4 * quads, sizes, in_place=(True, False)) + link_keys(sizes, 4 * quads)
    assert len(set(keys)) == len(keys)
    assert all(num_bytes % 4 == 0 for _, num_bytes, _ in keys)
    assert any(dict(options).get("algorithm") == "native" for _, _, options in keys)


def test_a_builder_is_arranged_by_its_own_record() -> None:
    assert builder_options("allreduce", "segmented_ring", 2**24, [8]) == {"num_segments": 4}
    assert builder_options("allreduce", "torus_2d", 2**24, [8] * 2) == {"shape": (2, 8)}
    assert builder_options("allreduce", "torus_3d", 2**24, [2] * 4) == {"shape": (2, 2, 2)}
    assert builder_options("allreduce", "torus_2d", 2**24, [3, 5]) == {}
    assert builder_options("allreduce", "hierarchical_ring", 2**24, [4, 4]) == {"gpus_per_node": 4}
    assert builder_options("allreduce", "native", 2**24, [4, 4]) == {}


def test_nodes_of_one_rank_are_told_to_a_builder_whose_default_would_be_larger_nodes() -> None:
    assert builder_options("allreduce", "hierarchical_ring", 2**20, [1] * 4) == {"gpus_per_node": 1}
    assert builder_options("allreduce", "hierarchical_ring", 2**20, [4]) == {}
    assert builder_options("allreduce", "hierarchical_ring", 2**20, [1, 2]) == {}
    assert builder_options("allreduce", "torus_2d", 2**20, [1] * 4) == {}


def test_the_points_of_a_stored_measurement_of_one_rank_per_node_are_planned() -> None:
    folder = Path(__file__).parents[2] / "notebooks" / "profiles"
    profile = Profile.load(folder / "emulated_100mbit_5ms_4_ranks.json")
    assert profile.ranks_per_node == (1, 1, 1, 1)
    points = profile.select("allreduce")
    assert any(point.options.get("gpus_per_node") == 1 for point in points)
    for point in points:
        names = [str(point.options["algorithm"])]
        places = [bool(point.options["in_place"])]
        assert point.key in collective_keys("allreduce", point.num_bytes, profile.ranks_per_node, names, places)


def test_a_hierarchical_ring_of_nodes_of_one_rank_is_predicted_as_the_ring_that_it_is() -> None:
    profile = Profile.load("bank:h100_fleet_10x1")
    size = 40 * 2**20
    options = builder_options("allreduce", "hierarchical_ring", size, profile.ranks_per_node)
    seconds = profile.predict("allreduce", "hierarchical_ring", size, **options).makespan_s
    assert seconds == pytest.approx(profile.predict("allreduce", "ring", size).makespan_s, rel=0.01)


def test_sizes_that_do_not_fit_into_memory_are_left_out_and_told() -> None:
    sizes = (2**10, 2**20, 2**30)
    keys, left_out = keys_of(Protocol(), sizes, [4], 2**30)
    assert left_out == (2**30,)
    assert max(num_bytes for what, num_bytes, _ in keys if what == "allreduce") == 2**20
    with pytest.raises(ValueError, match="sizes"):
        keys_of(Protocol(), sizes, [4], 2**13)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nccl(tmp_path: Any) -> None:
    some = {"sizes": [4096, 2**22], "algorithms": ["native", "ring"], "collectives": MEASURED}
    profile = measure(tmp_path / "gpu.json", replace(QUICK, **some), num_ranks=2, backend="nccl")
    assert profile.protocol["clock"] == "cuda events"
    assert len(profile.select("allreduce", in_place=True)) == 4
