"""The verdict: each rule speaks where it should, of what it should, and is silent otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from rankscope.box import Profile, verdict
from rankscope.box.profile import Point
from rankscope.box.sentences import (
    above_the_bound,
    against_native,
    bound_s,
    bounds,
    far_under_the_link,
    fastest,
    few_clean,
    fit_is_off,
    groups,
    joining,
    native_falls_off,
    no_prediction,
    odd_points,
    prediction_is_off,
    wide_spread,
)
from tests.box.made import ALPHA_S, BYTES_PER_S, SIZES, as_predicted, collective, links, point, profile

NAMES = ("recursive_doubling", "halving_doubling", "ring")
GOOD = as_predicted(profile(links(sizes=SIZES)), NAMES)
GOOD = collective(GOOD, {"native": lambda size: 2e-4 + 2 * size / BYTES_PER_S})


# ---- the points of a collective


def test_of_a_collective_the_fastest_point_of_each_algorithm_in_place_counts() -> None:
    made = profile(
        [
            point("allreduce", 64, 3.0, algorithm="ring", in_place=True),
            point("allreduce", 8, 2.0, algorithm="ring", in_place=True, num_segments=2),
            point("allreduce", 8, 1.0, algorithm="ring", in_place=True, num_segments=4),
            point("allreduce", 8, 0.5, algorithm="ring", in_place=False),
            point("allreduce", 8, 4.0, algorithm="swing", in_place=True),
            point("broadcast", 8, 5.0, algorithm="chain", in_place=False),
            point("copy", 8, 5.0),
        ]
    )
    one, other = groups(made)
    assert (one.collective, list(one.by_size)) == ("allreduce", [8, 64])
    assert one.by_size[8] == {"ring": made.points[2], "swing": made.points[4]}
    assert one.fastest(8) == made.points[2]
    assert other.by_size == {8: {"chain": made.points[5]}}


def test_bounds_are_those_of_the_links_that_join_ranks() -> None:
    both = [*links(("intra",), noise=0.0), *links(("inter",), noise=0.0, seconds=lambda size: 1e-2 + size / 1e6)[:-15]]
    apart = profile(both, num_nodes=4, ranks_per_node=[1] * 4)
    assert list(joining(apart)) == ["inter"]
    assert bounds(apart, "allreduce", 2**20).bandwidth_s == pytest.approx(1.5 * 2**20 / 1e6, rel=1e-3)
    mixed = profile(both, num_nodes=2, ranks_per_node=[2, 2])
    assert list(joining(mixed)) == ["inter", "intra"]
    assert bounds(mixed, "allreduce", 2**20).bandwidth_s == pytest.approx(1.5 * 2**20 / BYTES_PER_S, rel=1e-3)
    assert bounds(profile(both), "barrier", 0).seconds == pytest.approx(2 * ALPHA_S, rel=1e-3)


# ---- what to use


def test_ranges_of_the_fastest() -> None:
    times = {
        "ring": lambda size: 1.0 if size < 4096 else 3.0,
        "swing": lambda size: 2.0,
        "native": lambda size: 2.05 if size < 16384 else 1.98,
    }
    made = collective(profile(), times, sizes=[1024, 2048, 4096, 8192, 16384], noise=0.0)
    said = list(fastest(made))  # native's 1 % at the end is no reason to change
    assert len(said) == 1
    assert "ring from 1 KiB to 2 KiB, swing from 4 KiB to 16 KiB" in said[0]
    assert list(fastest(profile(links()))) == []


def test_against_native_where_ours_is_best_and_worst() -> None:
    times = {"ring": lambda size: 1.0, "swing": lambda size: 3.0, "native": lambda size: 2.0 if size < 4096 else 0.8}
    (said,) = against_native(collective(profile(), times, sizes=[1024, 4096], noise=0.0))
    assert re.search(r"ring .*\b2 times .* 1 KiB.* ring .* 1\.25 times .* 4 KiB", said)
    assert list(against_native(as_predicted(profile(links()), NAMES))) == []


def test_distance_to_the_bound() -> None:
    made = profile(links(noise=0.0))
    times = {"ring": lambda size: 3 * float(bounds(made, "allreduce", size).seconds)}
    (said,) = above_the_bound(collective(made, times, noise=0.0))
    assert re.search(r"3\.00 times .* 1 KiB, 3\.00 times .* 16 MiB", said)
    assert list(above_the_bound(collective(profile(), times, noise=0.0))) == []


def test_copies_of_other_programs_have_the_rate_of_pinned_memory() -> None:
    to_gpu, to_host = verdict(Profile.load("bank:quadro_rtx6000_copies"))
    assert re.search(r"11\.1 GB/s with pinned .* 3\.76 GB/s with pageable", to_gpu)
    assert re.search(r"12 GB/s with pinned .* 3\.39 GB/s with pageable", to_host)


def test_without_similar_machines_there_is_nothing_to_compare_with() -> None:
    """A log of two nodes, whose bandwidth is a fifth of the usual, had a verdict as a healthy one."""
    about = {"name": "a log", "backend": "nccl", "num_ranks": 16, "num_nodes": 2, "ranks_per_node": [8, 8]}
    native = [point("allreduce", size, 1e-4 + size / 13e9, algorithm="native") for size in SIZES]
    for gpus in ([{"name": "NVIDIA H100 80GB HBM3"}] * 16, []):
        (said,) = verdict(Profile(about | {"gpus": gpus}, {}, native))
        assert "nothing to compare" in said
    assert not [said for said in verdict(Profile.load("bank:h100_8")) if "nothing to compare" in said]


# ---- what looks wrong


def test_no_links_are_said() -> None:
    uneven = profile(links(), num_nodes=2, ranks_per_node=[3, 1])
    for wrong in (profile(), uneven, profile(links(sizes=SIZES[:3]))):
        assert len(list(no_prediction(wrong))) == 1
    assert list(no_prediction(GOOD)) == []


def test_a_busbw_far_under_the_link_is_said() -> None:
    base = profile(links())
    slow = collective(base, {"ring": lambda size: 1e-3 + 1.5 * size / (0.4 * BYTES_PER_S)})
    (said,) = far_under_the_link(slow)
    assert "at 16 MiB: busbw is 39" in said
    assert "a link carries 1" in said
    assert list(far_under_the_link(collective(base, {"ring": lambda size: 1.5 * size / (0.6 * BYTES_PER_S)}))) == []
    small = collective(base, {"ring": lambda size: 1e-3 + 1.5 * size / (0.4 * BYTES_PER_S)}, sizes=SIZES[:6])
    assert list(far_under_the_link(small)) == []  # latency counts there, not the bytes
    assert list(far_under_the_link(GOOD)) == []


def test_a_size_where_native_falls_off_is_said() -> None:
    def falling(size: int) -> float:
        return (1e-4 + 2 * size / BYTES_PER_S) * (2 if size > 2**20 else 1)

    (said,) = native_falls_off(collective(profile(links()), {"native": falling}))
    assert "busbw of native falls from 7" in said
    assert said.endswith(" from 1 MiB to 2 MiB.")
    assert list(native_falls_off(collective(profile(links()), {"ring": falling}))) == []
    assert list(native_falls_off(GOOD)) == []


def test_sizes_that_are_off_from_both_neighbours_are_named_the_worst_first() -> None:
    def native(odd: dict[int, float]) -> dict[str, Callable[[int], float]]:
        return {"native": lambda size: (1e-4 + 2 * size / BYTES_PER_S) * odd.get(size, 1)}

    def said(odd: dict[int, float]) -> list[str]:
        return list(odd_points(collective(profile(), native(odd), noise=0.0)))

    assert re.fullmatch(r"allreduce in place: 1 MiB takes 3\.\d+× the time that its .* suggest\.", *said({2**20: 3.1}))
    (several,) = said({2**11: 2.0, 2**14: 6.0, 2**17: 3.0, 2**20: 4.0, 2**23: 5.0})
    assert re.match(r"allreduce in place: 16 KiB takes 5\.\d+×, 8 MiB takes (4\.9|5)\d*×, 1 MiB takes ", several)
    assert several.endswith("× the time that its neighbours suggest; also odd: 2 more sizes.")
    assert said({}) == list(odd_points(GOOD)) == []
    few = collective(profile(), native({4096: 9.0}), sizes=[1024, 2048, 4096, 8192])
    assert list(odd_points(few)) == []


def test_few_clean_iterations_are_said() -> None:
    dirty = GOOD.add(Point("copy", 8, [1.0] * 9, [True] * 3 + [False] * 6))
    (said,) = few_clean(dirty)
    assert f"{len(dirty.points)} points, 1 has" in said
    enough = Point("copy", 8, [1.0] * 9, [True] * 4 + [False] * 5)
    only_three = Point("copy", 16, [1.0] * 3, [True] * 3)
    assert list(few_clean(GOOD.add(enough).add(only_three))) == []


def test_a_wide_spread_is_said_of_the_widest() -> None:
    wide = GOOD.add(Point("copy", 8, [1.0, 2.0, 3.0, 4.0], [True] * 4))
    wide = wide.add(Point("copy", 16, [1.0, 1.0, 1.5, 2.0], [True] * 4))
    (said,) = wide_spread(wide)
    assert f"{len(wide.points)} points, 2 have" in said
    assert re.search(r"copy at 8 B: IQR 1\.5 s, median 2\.5 s", said)
    assert list(wide_spread(GOOD)) == []


def test_a_fit_that_does_not_hold_is_said() -> None:
    draw = np.random.default_rng(1)
    scattered = profile(links(noise=0.0, seconds=lambda size: 1e-3 * 10 ** draw.uniform(-1, 1)))
    (said,) = fit_is_off(scattered)
    assert "intra" in said
    assert list(fit_is_off(GOOD)) == []


def test_algorithms_that_take_another_time_than_predicted_are_said() -> None:
    mixed = as_predicted(as_predicted(profile(links()), ["ring", "swing"], share=2.0), ["halving_doubling"])
    (said,) = prediction_is_off(mixed)
    assert "ring (-50 %), swing (-50 %)" in said
    assert "halving_doubling" not in said
    assert list(prediction_is_off(as_predicted(profile(links()), ["ring"], share=1.15))) == []
    assert list(prediction_is_off(GOOD)) == []


def test_of_ranks_that_share_cores_the_prediction_says_so() -> None:
    (said,) = prediction_is_off(
        as_predicted(profile(links(how={"ping_pong": 1.0, "together": 3.0})), ["ring"], share=2.0)
    )
    assert "share" not in said
    (said,) = prediction_is_off(as_predicted(profile(links(), num_cores=2), ["ring"], share=2.0))
    assert said.endswith(", probably because 4 ranks share 2 cores.")


def test_of_a_good_profile_nothing_looks_wrong() -> None:
    said = verdict(GOOD)
    assert len(said) == 3
    assert said[0].startswith("allreduce: use recursive_doubling from 1 KiB to ")
    assert "times as fast as native at 1 KiB" in said[1]
    assert "times the lower bound at 16 MiB" in said[2]


def test_messages_that_do_not_reach_small_sizes_give_no_bound() -> None:
    times = {"native": lambda size: 1e-3 + size / BYTES_PER_S}
    large = collective(profile(links(sizes=[2**power for power in range(25, 35)])), times)
    with pytest.raises(ValueError, match="α .* 32 MiB"):
        bounds(large, "allreduce", 2**25)
    assert bound_s(large, "allreduce", 2**25) == 0.0
    assert list(above_the_bound(large)) == list(far_under_the_link(large)) == []
    (said,) = no_prediction(large)
    assert "32 MiB" in said


def test_messages_that_do_not_reach_large_sizes_give_no_bound_beyond_them() -> None:
    small = profile(links(sizes=[2**power for power in range(6, 13)]))
    assert bound_s(small, "allreduce", 2**12) > 0
    with pytest.raises(ValueError, match="B .* 4 KiB"):
        bounds(small, "allreduce", 2**13)
