"""Profiles: what they hold, their file, links, predictions and curves."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import Profile, fit_link
from rankscope.box.points import Point
from rankscope.collectives import build, simulate

from .made import ALPHA_S, GAMMA, SIZES, links, point, profile

BARE = {"name": "a log", "backend": "nccl", "num_ranks": 4}
TIMES = (5e-3, 1e-3, 4e-3, 2e-3, 3e-3)
FIRST = point("allreduce", 1024, 1e-3, 0.1, algorithm="ring", in_place=True)
SECOND = point("allreduce", 1024, 2e-3, 0.1, algorithm="native", in_place=True)
THIRD = point("together", 64, 3e-4, 0.1, link="intra")
SMALL = profile([FIRST, SECOND, THIRD])


def made(**changes: Any) -> Point:
    arguments: dict[str, Any] = {"what": "allreduce", "num_bytes": 1024, "seconds": TIMES, "clean": (True,) * 5}
    return Point(**(arguments | changes))


# ---- points


def test_statistics_are_of_the_clean_iterations_if_there_are_enough() -> None:
    point = made(clean=(True, True, True, False, True))
    assert point.used_s == (5e-3, 1e-3, 4e-3, 3e-3)
    assert point.median_s == pytest.approx(statistics.median(point.used_s))
    low, _, high = statistics.quantiles(point.used_s, n=4, method="inclusive")
    assert point.spread * point.median_s == pytest.approx(high - low)
    few = made(clean=(True, True, True, False, False))
    assert few.used_s == TIMES
    assert made().differs(made(seconds=[second + 3e-3 for second in TIMES]))
    assert not made().differs(made(seconds=[second + 1e-3 for second in TIMES]))


def test_rates_are_those_of_nccl_tests() -> None:
    for what, factor in {"allreduce": 1.5, "allgather": 0.75, "broadcast": 1.0, "together": 1.0}.items():
        one = point(what, 2**20, 1e-3, algorithm="native")
        assert one.busbw_bytes_per_s(4) == pytest.approx(factor * 2**20 / 1e-3)
    for what, size in (("barrier", 0), ("add", 2**20)):
        assert math.isnan(point(what, size, 1e-3).busbw_bytes_per_s(4))


# ---- what a profile holds


def test_a_profile_is_stored_with_what_is_stated(tmp_path: Path) -> None:
    source = dict.fromkeys(("program", "repository", "path", "commit", "licence", "date", "notes"), "a text")
    tall = point("allreduce", 2**20, 1.23456789e-4, algorithm="torus_2d", in_place=True, shape=[4, 1])
    of_log = Profile(BARE | {"source": source, "environment": "A=1"}, {}, (*SMALL.points, tall))
    assert Profile.load(of_log.save(tmp_path / "log.json")) == of_log
    assert of_log.points[-1].options["shape"] == (4, 1)
    assert of_log.points[-1].seconds[0] == 1.23457e-4
    assert of_log.num_nodes is None
    with pytest.raises(ValueError, match="nodes"):
        of_log.cluster()


@pytest.mark.parametrize(
    ("said", "ranks"), [({"num_nodes": 1}, (4,)), ({"num_nodes": 4}, (1,) * 4), ({"ranks_per_node": [3, 1]}, (3, 1))]
)
def test_nodes_follow_where_they_can_be_no_others(said: dict[str, Any], ranks: tuple[int, ...]) -> None:
    bare = Profile(BARE | said, {})
    assert (bare.num_nodes, bare.ranks_per_node) == (len(ranks), ranks)


def test_points_are_added_replaced_and_selected() -> None:
    again = made(seconds=[7.0] * 5, options={"in_place": True, "algorithm": "native"})
    assert SMALL.add(again).points == (FIRST, again, THIRD)
    assert SMALL.add(point("copy", 8, 1e-6)).points[:3] == SMALL.points
    assert SMALL.select() == SMALL.points
    assert SMALL.select(num_bytes=64) == (THIRD,)
    assert SMALL.select("allreduce", 1024, in_place=True) == (FIRST, SECOND)
    assert SMALL.select("allreduce", link="intra") == ()


def test_native_points_are_one_a_size_in_place_if_there_is_one() -> None:
    def native(size: int, seconds: float, **options: Any) -> Point:
        return point("allreduce", size, seconds, algorithm="native", **options)

    both = [native(8, 1.0, in_place=True), native(8, 2.0, in_place=False), native(4, 3.0, in_place=False)]
    held = profile([*both, native(0, 1.0, in_place=True), native(8, 9.0, in_place=True, src=0)])
    assert held.native_s("allreduce") == {4: 3.0, 8: 1.0}
    assert held.native_s("allgather") == {}
    assert held.busbw("allreduce") == {4: 1.5 * 4 / 3.0, 8: 1.5 * 8 / 1.0}


# ---- links, clusters and predictions


def test_a_cluster_has_the_fits_of_its_links() -> None:
    measured = profile(links(("intra",), {"ping_pong": 1.0, "together": 2.0}))
    together = measured.select("together")
    fit = measured.links["intra"]
    assert fit == fit_link([one.num_bytes for one in together], [one.median_s for one in together])
    cluster = measured.cluster()
    assert cluster.intra == cluster.inter == fit.link
    assert cluster.intra.alpha_s == pytest.approx(2 * ALPHA_S, rel=0.05)
    assert cluster.gamma_s_per_byte == pytest.approx(GAMMA, rel=0.3)


@pytest.mark.parametrize(
    ("ranks_per_node", "num_ranks", "shape"),
    [([4], 8, (1, 8)), ([2, 2], 8, (4, 2)), ([2, 2], 2, (1, 2)), ([1] * 4, 8, (8, 1))],
)
def test_with_another_number_of_ranks_there_are_other_nodes_or_ranks_on_the_one(
    ranks_per_node: list[int], num_ranks: int, shape: tuple[int, int]
) -> None:
    spread = profile(links(), ranks_per_node=ranks_per_node, num_nodes=len(ranks_per_node))
    cluster = spread.cluster(num_ranks)
    assert (cluster.num_nodes, cluster.gpus_per_node) == shape


def test_a_prediction_is_the_schedule_simulated_on_the_cluster() -> None:
    fast, slow = links(("intra",), noise=0.0), links(("inter",), noise=0.0, seconds=lambda size: 1.0 + size / 1e9)[:-15]
    two = profile([*fast, *slow], num_nodes=2, ranks_per_node=[2, 2])
    seconds = two.predict(point("allreduce", 1024, 1.0, algorithm="hierarchical_ring", gpus_per_node=2)).makespan_s
    assert 2.0 < seconds < 4.1  # two messages between nodes, one after the other, each after its rendezvous
    one = profile(links(noise=0.0))
    asked = point("allreduce", 2**22, 1.0, algorithm="segmented_ring", in_place=True, num_segments=8)
    schedule = build("allreduce", "segmented_ring", 8, num_segments=8)
    expected_s = simulate(schedule, 2**22, one.cluster(8), executor=True).makespan_s
    assert one.predict(asked, num_ranks=8).makespan_s == expected_s


# ---- curves


def test_a_collective_is_interpolated_from_its_native_points_in_place_first() -> None:
    def points(what: str, factor: float, **options: Any) -> list[Point]:
        return [point(what, size, factor * (1e-5 + size / 1e9), **options) for size in SIZES]

    pinned = {"direction": "h2d", "method": "pinned", "both": False}
    made = profile(
        [
            *points("allreduce", 2.0, algorithm="native", in_place=False),
            *points("allreduce", 1.0, algorithm="native", in_place=True),
            *points("allreduce", 9.0, algorithm="ring", in_place=True),
            *points("transfer", 2.0, **pinned | {"method": "pageable"}, pieces=1),
            *points("transfer", 9.0, **pinned, pieces=256),
            *points("transfer", 1.0, **pinned, pieces=1),
        ]
    )
    in_place_s = made.select("allreduce", 2**20)[1].median_s
    assert made.curve("allreduce").seconds(2**20) == in_place_s
    assert made.curve("allreduce", in_place=False).seconds(2**20) == pytest.approx(2 * in_place_s, rel=1e-5)
    assert made.curve("allreduce", algorithm="ring").seconds(2**20) == pytest.approx(9 * in_place_s, rel=1e-5)
    assert made.curve("transfer", method="pageable").seconds(2**20) == pytest.approx(2 * in_place_s, rel=1e-5)
    with pytest.raises(ValueError, match="several points; select one"):
        made.curve("transfer", direction="h2d")


def test_a_log_is_no_profile_and_the_command_that_reads_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("# nThread 1 nGpus 8")
    with pytest.raises(ValueError, match="not a profile; `rankscope import`"):
        Profile.load(tmp_path / "a.log")
