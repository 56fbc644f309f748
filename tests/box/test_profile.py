"""Profiles: what they hold, their file and everything that can be wrong with it, links and predictions."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import Profile, fit_link
from rankscope.box.profile import Point
from rankscope.collectives import build, simulate
from tests.box.made import (
    ALPHA_S,
    BYTES_PER_S,
    GAMMA,
    SIZES,
    collective,
    links,
    point,
    profile,
)

SMALL = profile(
    [
        point("allreduce", 1024, 1e-3, 0.1, algorithm="ring", in_place=True),
        point("allreduce", 1024, 2e-3, 0.1, algorithm="native", in_place=True),
        point("together", 64, 3e-4, 0.1, link="intra"),
    ]
)


# ---- points


TIMES = (5e-3, 1e-3, 4e-3, 2e-3, 3e-3)


def made(**changes: Any) -> Point:
    arguments: dict[str, Any] = {"what": "allreduce", "num_bytes": 1024, "seconds": TIMES, "clean": (True,) * 5}
    return Point(**(arguments | changes))


def test_statistics_are_of_the_clean_iterations() -> None:
    point = made(clean=(True, True, True, False, True))
    assert point.used_s == (5e-3, 1e-3, 4e-3, 3e-3)
    assert point.median_s == pytest.approx(statistics.median(point.used_s))
    low, _, high = statistics.quantiles(point.used_s, n=4, method="inclusive")
    assert point.iqr_s == pytest.approx(high - low)
    assert max(point.used_s) > point.p99_s > statistics.quantiles(point.used_s, n=10, method="inclusive")[-1]


def test_with_too_few_clean_iterations_all_are_used() -> None:
    point = made(clean=(True, True, True, False, False))
    assert point.used_s == TIMES
    assert point.num_clean == 3


def test_seconds_are_kept_to_six_digits() -> None:
    assert made(seconds=(1.23456789e-4,) * 5).seconds == (1.23457e-4,) * 5


def test_the_key_does_not_depend_on_the_order_of_options() -> None:
    assert made(options={"a": 1, "b": 2}).key == made(options={"b": 2, "a": 1}, seconds=[1.0] * 5).key
    assert made(options={"a": 1}).key != made(options={"a": 2}).key


# ---- what a profile holds


BARE = {"name": "a log", "backend": "nccl", "num_ranks": 4}


def test_texts_of_others_are_printable() -> None:
    shown = Profile(BARE | {"name": "a\x1b[31mbox"}, {"statistic": "\x1b[31m"}, [made(options={"a": "\x1b"})])
    assert "\x1b" not in f"{shown} {shown.points[0].builder_words}"
    assert hash(shown) == hash(Profile(shown.provenance, shown.protocol, shown.points))


def test_what_a_log_does_not_state_is_not_there(tmp_path: Path) -> None:
    source = dict.fromkeys(("program", "repository", "path", "commit", "licence", "date", "notes"), "a text")
    profile_of_log = Profile(BARE | {"source": source, "environment": "NCCL_P2P_DISABLE=1"}, {}, SMALL.points)
    assert Profile.load(profile_of_log.save(tmp_path / "log.json")) == profile_of_log
    assert profile_of_log.provenance["source"] == source
    assert profile_of_log.num_nodes is None
    assert str(profile_of_log).splitlines()[0] == "a log: 4 ranks (nodes not stated), nccl"
    assert "date not stated" in str(profile_of_log)
    for use in (profile_of_log.cluster, lambda: profile_of_log.ranks_per_node):
        with pytest.raises(ValueError, match="nodes"):
            use()


@pytest.mark.parametrize(
    ("said", "ranks"), [({"num_nodes": 1}, (4,)), ({"num_nodes": 4}, (1,) * 4), ({"ranks_per_node": [3, 1]}, (3, 1))]
)
def test_nodes_follow_where_they_can_be_no_others(said: dict[str, Any], ranks: tuple[int, ...]) -> None:
    bare = Profile(BARE | said, {})
    assert (bare.num_nodes, bare.ranks_per_node) == (len(ranks), ranks)


def test_a_point_comes_after_the_others_or_in_the_place_of_its_own() -> None:
    first, second, third = SMALL.points
    again = Point(second.what, second.num_bytes, [7.0], [False], second.options)
    assert SMALL.add(again).points == (first, again, third)
    assert SMALL.add(point("copy", 8, 1e-6)).points[:3] == SMALL.points
    assert SMALL.points[1] is second


def test_select_takes_what_fits_everything() -> None:
    first, second, third = SMALL.points
    assert SMALL.select() == SMALL.points
    assert SMALL.select("allreduce", algorithm="native") == (second,)
    assert SMALL.select(num_bytes=64) == (third,)
    assert SMALL.select("allreduce", 1024, in_place=True) == (first, second)
    assert SMALL.select("allreduce", link="intra") == ()


# ---- links, cluster, prediction


def test_a_link_is_the_fit_of_its_points() -> None:
    measured = profile(links(("intra",), {"ping_pong": 1.0, "together": 2.0}))
    sizes = [sample.num_bytes for sample in measured.select("together")]
    assert measured.link("intra") == fit_link(sizes, [sample.used_s for sample in measured.select("together")])
    assert measured.link("intra").link.alpha_s == pytest.approx(2 * ALPHA_S, rel=0.05)
    assert measured.link("intra", "ping_pong").link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.05)
    assert measured.gamma_s_per_byte == pytest.approx(GAMMA, rel=0.05)


def test_a_cluster_takes_all_at_once_before_ping_pong_and_the_other_link_where_it_must() -> None:
    both = profile(links(("intra",), {"ping_pong": 1.0, "together": 2.0})).cluster()
    assert both.intra == both.inter
    assert both.intra.alpha_s == pytest.approx(2 * ALPHA_S, rel=0.05)
    assert profile(links(how={"ping_pong": 1.0})).cluster().intra.alpha_s == pytest.approx(ALPHA_S, rel=0.05)


def test_two_links_are_told_apart() -> None:
    fast, slow = links(("intra",)), links(("inter",), seconds=lambda size: 5e-3 + size / 12.5e6)[:-15]
    cluster = profile([*fast, *slow], num_nodes=2, ranks_per_node=[2, 2]).cluster()
    assert (cluster.num_nodes, cluster.gpus_per_node) == (2, 2)
    assert cluster.intra.alpha_s == pytest.approx(ALPHA_S, rel=0.05)
    assert cluster.inter.alpha_s == pytest.approx(5e-3, rel=0.05)
    assert cluster.gamma_s_per_byte == pytest.approx(GAMMA, rel=0.05)


def test_a_link_at_too_few_sizes_gives_way_to_another() -> None:
    few, enough = links(how={"together": 9.0}, sizes=SIZES[:3]), links(how={"ping_pong": 1.0})
    made = profile([*few[:3], *enough])
    assert made.best_link("inter") == made.best_link("intra") == made.link("intra", "ping_pong")


def test_with_another_number_of_ranks_there_are_more_or_fewer_nodes_or_ranks_on_the_one() -> None:
    def shape(made: Profile, num_ranks: int) -> tuple[int, int]:
        cluster = made.cluster(num_ranks)
        return cluster.num_nodes, cluster.gpus_per_node

    one_node, two_nodes = profile(links()), profile(links(), num_nodes=2, ranks_per_node=[2, 2])
    spread = profile(links(("inter",)), num_nodes=4, ranks_per_node=[1] * 4)
    assert [shape(one_node, 8), shape(two_nodes, 8), shape(two_nodes, 2), shape(spread, 8)] == [
        (1, 8),
        (4, 2),
        (1, 2),
        (8, 1),
    ]
    assert spread.cluster().is_uniform
    ring = build("allreduce", "ring", 8)
    expected = simulate(
        ring, 4096, one_node.cluster(8), executor=True, link_at=lambda src, dst, size: one_node.link("intra").at(size)
    )
    assert one_node.predict("allreduce", "ring", 4096, num_ranks=8).makespan_s == expected.makespan_s


def test_sums_give_the_rate_of_adding_however_few_there_are() -> None:
    assert profile([point("add", 1000, 1e-6), point("add", 2000, 2e-6)]).gamma_s_per_byte == pytest.approx(1e-9)
    assert profile(sample for sample in links() if sample.what != "add").gamma_s_per_byte == 0.0  # type: ignore[arg-type]


def test_a_prediction_is_the_twin_with_each_message_by_its_piece() -> None:
    def switching(size: int) -> float:
        return ALPHA_S + size / BYTES_PER_S if size < 65536 else 8 * ALPHA_S + size / (4 * BYTES_PER_S)

    made = profile(links(noise=0.0, seconds=switching))
    fit = made.link("intra")
    assert len(fit.pieces) == 2
    for size in (4096, 2**22):
        timeline = made.predict("allreduce", "ring", size)
        ring = build("allreduce", "ring", 4)
        expected = simulate(ring, size, made.cluster(), executor=True, link_at=lambda src, dst, size: fit.at(size))
        assert timeline.makespan_s == expected.makespan_s
        plain = simulate(ring, size, made.cluster(), executor=True)
        assert timeline.makespan_s != pytest.approx(plain.makespan_s, rel=0.01)
    assert made.predict("allreduce", "segmented_ring", 2**22, num_segments=4).makespan_s > 0


def test_the_shape_of_a_torus_is_stored_shown_and_predicted_with(tmp_path: Path) -> None:
    tall = point("allreduce", 2**20, 1.0, algorithm="torus_2d", in_place=True, shape=[4, 1])
    stored = profile((*links(), tall))
    path = tmp_path / "a.json"
    stored.save(path)
    (loaded,) = Profile.load(path).select("allreduce")
    assert loaded == tall
    assert loaded.options["shape"] == (4, 1)
    assert loaded.builder_words == "shape=4×1"
    square_s = stored.predict("allreduce", "torus_2d", 2**20).makespan_s
    assert stored.point_s(loaded) == stored.predict("allreduce", "torus_2d", 2**20, shape=(4, 1)).makespan_s
    assert stored.point_s(loaded) > square_s


def test_a_measured_point_is_predicted_with_its_own_options() -> None:
    made = profile(links(noise=0.0))
    for options in ({"num_segments": 1}, {"num_segments": 8}):
        asked = point("allreduce", 2**22, 1.0, algorithm="segmented_ring", in_place=True, **options)
        by_hand = made.predict("allreduce", "segmented_ring", 2**22, **options)
        assert made.predict(asked).makespan_s == by_hand.makespan_s
        assert made.predict(asked, num_ranks=8, detail="ranks").makespan_s == pytest.approx(
            made.predict("allreduce", "segmented_ring", 2**22, num_ranks=8, **options).makespan_s
        )
        assert made.point_s(asked) == pytest.approx(by_hand.makespan_s)


def test_a_prediction_takes_the_link_between_nodes_for_messages_between_nodes() -> None:
    fast, slow = links(("intra",), noise=0.0), links(("inter",), noise=0.0, seconds=lambda size: 1.0 + size / 1e9)[:-15]
    made = profile([*fast, *slow], num_nodes=2, ranks_per_node=[2, 2])
    seconds = made.predict("allreduce", "hierarchical_ring", 1024, gpus_per_node=2).makespan_s
    assert 2.0 < seconds < 4.1  # two messages between nodes, one after the other, each after its rendezvous


def test_rates_are_those_of_nccl_tests() -> None:
    factors = {"allreduce": 1.5, "allgather": 0.75, "broadcast": 1.0}
    for what, factor in factors.items():
        one = point(what, 2**20, 1e-3, algorithm="native")
        assert one.busbw_bytes_per_s(4) == pytest.approx(factor * 2**20 / 1e-3)
    for what, size in (("barrier", 0), ("together", 2**20)):
        assert math.isnan(point(what, size, 1e-3).busbw_bytes_per_s(4))


def test_predictions_stand_where_there_can_be_any() -> None:
    times = dict.fromkeys(("ring", "native", "my_own", "torus_3d"), lambda size: 1e-3)
    made = collective(profile(links()), times, sizes=[4096])
    predicted = {key.options[0][1]: seconds for key, seconds in made.model_s.items() if key.what == "allreduce"}
    assert set(predicted) == {"ring", "torus_3d"}
    assert predicted["ring"] == made.predict("allreduce", "ring", 4096).makespan_s
    messages = {key.num_bytes: seconds for key, seconds in made.model_s.items() if key.what == "together"}
    assert messages == {size: made.link("intra").seconds(size) for size in SIZES}
    assert collective(profile(), times).model_s == {}
