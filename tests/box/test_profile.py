"""Profiles: what they hold, their file and everything that can be wrong with it, links and predictions."""

from __future__ import annotations

import math
import statistics
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.box import Profile, fit_link
from rankscope.box.profile import EVEN_RANKS, Point
from rankscope.box.sentences import joining
from rankscope.collectives import build, simulate_executor
from rankscope.common.storage import StorageError
from tests.box.made import (
    ALPHA_S,
    BYTES_PER_S,
    GAMMA,
    PROTOCOL,
    PROVENANCE,
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


def test_a_point_like_another_is_what_its_maker_would_make_or_refuse() -> None:
    seconds = (1.23456789e-3, 2e-3)
    assert made().like(4096, seconds) == made(num_bytes=4096, seconds=seconds, clean=(True, True))
    for size, some in ((-1, seconds), (1 << 61, seconds), (1, ()), (1, (1e-3, math.nan)), (1, (2e6,)), (1, (0.0,))):
        with pytest.raises(ValueError, match="num_bytes must be|seconds must be"):
            made().like(size, some)


def test_the_key_does_not_depend_on_the_order_of_options() -> None:
    assert made(options={"a": 1, "b": 2}).key == made(options={"b": 2, "a": 1}, seconds=[1.0] * 5).key
    assert made(options={"a": 1}).key != made(options={"a": 2}).key


# ---- what a profile holds


BARE = {"name": "a log", "backend": "nccl", "num_ranks": 4}


def test_what_a_log_does_not_state_is_not_there(tmp_path: Path) -> None:
    source = dict.fromkeys(("program", "repository", "path", "commit", "licence", "date", "notes"), "a text")
    profile_of_log = Profile(BARE | {"source": source, "environment": "NCCL_P2P_DISABLE=1"}, {}, SMALL.points)
    assert Profile.load(profile_of_log.save(tmp_path / "log.json")) == profile_of_log
    assert profile_of_log.provenance["source"] == source
    assert profile_of_log.num_nodes is None
    assert str(profile_of_log).splitlines()[0] == "a log: 4 ranks (nodes not stated), nccl"
    assert "date not stated" in str(profile_of_log)
    for use in (profile_of_log.cluster, lambda: profile_of_log.ranks_per_node, lambda: joining(profile_of_log)):
        with pytest.raises(ValueError, match="^profile 'a log' does not state its nodes$"):
            use()


@pytest.mark.parametrize(
    ("said", "ranks"), [({"num_nodes": 1}, (4,)), ({"num_nodes": 4}, (1,) * 4), ({"ranks_per_node": [3, 1]}, (3, 1))]
)
def test_nodes_follow_where_they_can_be_no_others(said: dict[str, Any], ranks: tuple[int, ...]) -> None:
    bare = Profile(BARE | said, {})
    assert (bare.num_nodes, bare.ranks_per_node) == (len(ranks), ranks)


def test_there_are_no_more_nodes_than_ranks() -> None:
    with pytest.raises(ValueError, match="^provenance: num_nodes must be at most the 4 ranks, got 5$"):
        Profile(BARE | {"num_nodes": 5}, {})


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


POINT: dict[str, Any] = {"what": "allreduce", "num_bytes": 8, "seconds": [1.0, 2.0], "clean": [True, False]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"points": (SMALL.points[0], SMALL.points[0])}, "points.1. must differ from .*allreduce of 1024 bytes"),
    ({"points": ("ring",)}, "points.0. must be a Point, got 'ring'"),
    ({"points": {}}, r"points must be a list, got \{\}"),
    ({"provenance": {}}, "provenance must have 'name', but lacks it"),
    ({"name": "a\x1b[2J"}, "name must be a printable string, got 'a.x1b"),
    ({"owner": "me"}, "provenance may contain only .*got 'owner'"),
    ({"date": "yesterday"}, "date must be a date in ISO form, got 'yesterday'"),
    ({"num_ranks": 0}, "num_ranks must be a whole number from 1 .*got 0"),
    ({"num_ranks": 5}, r"provenance: ranks_per_node must be of 5 ranks on 1 nodes, got \[4\]"),
    ({"ranks_per_node": "4"}, "ranks_per_node must be a list, got '4'"),
    ({"num_nodes": 2}, r"provenance: ranks_per_node must be of 4 ranks on 2 nodes, got \[4\]"),
    ({"source": {"author": "a"}}, "source may contain only program, repository, .*got 'author'"),
    ({"source": {"commit": 7}}, "source: commit must be a printable string, got 7"),
    ({"source": "a log"}, "source must be a mapping, got 'a log'"),
    ({"environment": {"NCCL_NET": "IB"}}, "environment must be a printable string"),
    ({"gpus": [{"colour": "red"}]}, r"gpus\[0\] may contain only .*got 'colour'"),
    ({"protocol": {"iterations": "9"}}, "protocol: iterations must be .*got '9'"),
    ({"protocol": {"mood": "good"}}, "protocol may contain only .*got 'mood'"),
    ({"what": "allrecude"}, "what must be one of .*got 'allrecude'"),
    ({"num_bytes": 10**30}, "num_bytes must be .*got 10{30}"),
    ({"seconds": ()}, r"seconds must be of at least one iteration, got \(\)"),
    ({"seconds": (1.0,)}, "clean must have an entry for each of 1 iterations, got .True, False."),
    *[({"seconds": (1.0, wrong)}, f"seconds must be .*got {wrong!r}") for wrong in (0.0, 1e9, math.nan, "1")],
    ({"clean": (1, 1)}, "clean must be True or False, got 1"),
    ({"clean": "11"}, "clean must be a list, got '11'"),
    ({"options": ["ring"]}, "options must be a mapping"),
    ({"options": {"segments": 1.5}}, "options must be .*got 'segments': 1.5"),
    ({"options": {"shape": [2, "a"]}}, "options must be .*got 'shape': .2, 'a'."),
    ({"options": {"shape": []}}, r"options must be .*got 'shape': \[\]"),
    ({"options": {"shape": [4]}}, r"options must be .*got 'shape': \[4\]"),
    ({"options": {"shape": [True, 2]}}, r"options must be .*got 'shape': \[True, 2\]"),
    ({"options": {"algorithm": [1, 2]}}, r"options must be .*got 'algorithm': \[1, 2\]"),
    ({"options": {"link": [1]}}, r"options must be .*got 'link': \[1\]"),
    ({"options": {"in_place": (0, 1)}}, r"options must be .*got 'in_place': \(0, 1\)"),
    ({"options": {"num_segments": [2]}}, r"options must be .*got 'num_segments': \[2\]"),
    ({"options": {"num_segments": [2, 4]}}, r"options must be .*got 'num_segments': \[2, 4\]"),
    ({"options": {"a": "\x1b[2J"}}, "options must be printable .*got 'a': .*x1b"),
    ({"options": {1: "a"}}, "options must be .*got 1"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_no_measurement_gives_is_refused(changes: dict[str, Any], words: str) -> None:
    if set(changes) <= set(POINT) | {"options"}:
        with pytest.raises(ValueError, match=words):
            Point(**POINT | changes)
        return
    whole = {"provenance": PROVENANCE, "protocol": PROTOCOL, "points": ()}
    arguments = whole | (changes if set(changes) <= set(whole) else {"provenance": PROVENANCE | changes})
    with pytest.raises(ValueError, match=words):
        Profile(**arguments)


def test_it_prints_as_what_it_is_of() -> None:
    assert str(profile(gpus=[{"name": "a card"}] * 2, topology="").add(*SMALL.points)).splitlines() == [
        "made up: 4 ranks on 1 node, gloo, loopback",
        "a processor, 8 cores, 16 GiB, 2 × a card, Linux 6.1 x86_64",
        "2030-01-02T03:04:05+00:00, rankscope 0.1.0, torch 2.13.0, python 3.12.1",
        "3 points; 2 + 9 iterations; float32; slowest rank of each iteration",
    ]


# ---- its file, beyond what tests/common holds of every stored value


def test_a_point_is_a_line_and_one_more_changes_no_other(tmp_path: Path) -> None:
    before = SMALL.save(tmp_path / "a.json").read_text().splitlines()
    after = SMALL.add(point("copy", 8, 1e-6)).save(tmp_path / "b.json").read_text().splitlines()
    assert len(after) == len(before) + 1
    assert len(set(before) - set(after)) == 2  # the checksum, and the comma after what was the last point


def signed(text: str) -> str:
    """The text of a file with the checksum that fits it: only what a profile is made of can be wrong with it."""
    head, _, body = text.partition("\n")
    return f'{head[: head.index("crc32") + 9]}{zlib.crc32(body.rstrip()[:-1].encode()):08x}",\n{body}'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"what":"together"', '"what":"apart"', r"points\[2\]: what must be one of .*got 'apart'"),
        ('"what":"together",', "", r"points\[2\]: Object missing required field `what`"),
        ('"what":"together"', '"mood":1,"what":"together"', r"points\[2\]: Object contains unknown field `mood`"),
        ('"clean":[1', '"clean":[2', r"points\[0\].clean\[0\]: Invalid enum value 2"),
        ('"name": "made up"', '"name": "a\\u001b[2J"', "name must be a printable string, got 'a.x1b"),
    ],
)
def test_what_a_profile_cannot_hold_is_refused_in_one_line_that_names_the_file(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    path = SMALL.save(tmp_path / "wrong.json")
    assert old in path.read_text()
    path.write_text(signed(path.read_text().replace(old, new, 1)))
    with pytest.raises(StorageError, match=words) as caught:
        Profile.load(path)
    assert str(caught.value).startswith(f"{path}: not a readable rankscope profile: ")


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
    with pytest.raises(ValueError, match="num_ranks must be a multiple of the 2 ranks on a node, got 3"):
        two_nodes.cluster(3)
    ring = build("allreduce", "ring", 8)
    expected = simulate_executor(
        ring, 4096, one_node.cluster(8), lambda src, dst, size: one_node.link("intra").at(size)
    )
    assert one_node.predict("allreduce", "ring", 4096, num_ranks=8).makespan_s == expected.makespan_s


def test_sums_give_the_rate_of_adding_however_few_there_are() -> None:
    assert profile([point("add", 1000, 1e-6), point("add", 2000, 2e-6)]).gamma_s_per_byte == pytest.approx(1e-9)
    assert profile(sample for sample in links() if sample.what != "add").gamma_s_per_byte == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: profile().cluster(), "this profile has no link: it contains neither together nor ping_pong points"),
        (lambda: profile(links(sizes=SIZES[:3])).cluster(), "together points of link 'intra': .*at least 5 different"),
        (lambda: profile(links(), ranks_per_node=[3, 1], num_nodes=2).cluster(), r"same on all nodes .*got \[3, 1\]"),
        (lambda: profile(links()).link(), "has no together points of link 'inter'"),
        (lambda: profile(links()).link("outer"), "where must be one of 'inter', 'intra', got 'outer'"),
        (lambda: profile(links()).predict("allreduce", "rung", 1024), "algorithm of allreduce must be one of"),
        (lambda: profile(links()).predict("allreduce", "ring", -1), "num_bytes must be"),
        (lambda: profile(links()).predict("allreduce", "ring"), "num_bytes must be a whole number .*, got None"),
        (lambda: profile(links()).predict(links()[0]), "collective must be one of"),
        (lambda: profile(links()).predict(point("allreduce", 4, 1.0, algorithm="native")), "algorithm of allreduce"),
        (lambda: profile(links()).predict(point("allreduce", 4, 1.0)), "algorithm of allreduce must be one of"),
        (lambda: profile(links()).predict(links()[0], "ring"), "a point has its own algorithm, bytes and options"),
        (lambda: profile(links()).predict(links()[0], num_segments=2), "a point has its own algorithm, bytes and"),
    ],
)
def test_what_cannot_be_predicted_is_said(ask: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask()


def test_a_prediction_is_the_twin_with_each_message_by_its_piece() -> None:
    def switching(size: int) -> float:
        return ALPHA_S + size / BYTES_PER_S if size < 65536 else 8 * ALPHA_S + size / (4 * BYTES_PER_S)

    made = profile(links(noise=0.0, seconds=switching))
    fit = made.link("intra")
    assert len(fit.pieces) == 2
    for size in (4096, 2**22):
        timeline = made.predict("allreduce", "ring", size)
        expected = simulate_executor(
            build("allreduce", "ring", 4), size, made.cluster(), lambda src, dst, num_bytes: fit.at(num_bytes)
        )
        assert timeline.makespan_s == expected.makespan_s
        plain = simulate_executor(build("allreduce", "ring", 4), size, made.cluster())
        assert timeline.makespan_s != pytest.approx(plain.makespan_s, rel=0.01)
    assert made.predict("allreduce", "segmented_ring", 2**22, num_segments=4).makespan_s > 0


@pytest.mark.parametrize("num_ranks", [EVEN_RANKS // 2, EVEN_RANKS])
def test_a_prediction_refuses_the_same_sizes_for_few_ranks_and_for_many(num_ranks: int) -> None:
    made = profile(links(noise=0.0), num_nodes=1, ranks_per_node=[4])
    with pytest.raises(ValueError, match="^num_bytes must be a multiple of 4, got 1001$"):
        made.predict("allreduce", "ring", 1001, num_ranks=num_ranks)
    with pytest.raises(ValueError, match=f"^num_bytes must be a multiple of {4 * num_ranks}, got 1028$"):
        made.predict("allgather", "ring", 1028, num_ranks=num_ranks)
    too_few = num_ranks - 1
    with pytest.raises(ValueError, match=f"must have at least {num_ranks} elements, one for each chunk, got {too_few}"):
        made.predict("allreduce", "ring", 4 * too_few, num_ranks=num_ranks)
    odd = made.predict("allreduce", "ring", 4 * (num_ranks + 1), num_ranks=num_ranks)
    assert odd.makespan_s > made.predict("allreduce", "ring", 4 * num_ranks, num_ranks=num_ranks).makespan_s


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


# ---- as a table


def test_a_row_a_point_with_rates_as_nccl_tests_has_them() -> None:
    made = profile(
        [
            point("allreduce", 2**20, 1e-3, algorithm="ring", in_place=True, num_segments=2),
            point("allgather", 2**20, 1e-3, algorithm="native", in_place=False),
            point("broadcast", 2**20, 1e-3, algorithm="chain", in_place=False),
            point("barrier", 0, 1e-3, algorithm="native", in_place=False),
            point("together", 2**20, 1e-3, link="inter"),
        ]
    )
    frame = made.to_frame()
    assert frame.what.tolist() == [sample.what for sample in made.points]
    assert frame.options.tolist() == ["num_segments=2", "", "", "", ""]
    algbw = 2**20 / 1e-3
    np.testing.assert_allclose(frame.algbw_bytes_per_s, [algbw, algbw, algbw, np.nan, algbw], rtol=1e-9)
    np.testing.assert_allclose(frame.busbw_bytes_per_s, [1.5 * algbw, 0.75 * algbw, algbw, np.nan, np.nan], rtol=1e-9)
    assert frame.num_clean.tolist() == [9] * 5
    assert frame.link.tolist()[-1] == "inter"
    assert "predicted_s" not in frame


def test_predictions_stand_where_there_can_be_any() -> None:
    times = dict.fromkeys(("ring", "native", "my_own", "torus_3d"), lambda size: 1e-3)
    made = collective(profile(links()), times, sizes=[4096])
    frame = made.to_frame(predicted=True).set_index("algorithm")
    assert frame.predicted_s["ring"] == made.predict("allreduce", "ring", 4096).makespan_s
    assert np.isnan(frame.predicted_s[["native", "my_own"]]).all()
    messages = made.to_frame(predicted=True).query("what == 'together'")
    np.testing.assert_allclose(messages.predicted_s, [made.link("intra").seconds(size) for size in messages.num_bytes])
    assert np.isnan(collective(profile(), times).to_frame(predicted=True).predicted_s).all()


def test_an_empty_profile_is_an_empty_table() -> None:
    assert profile().to_frame().shape == (0, 13)
