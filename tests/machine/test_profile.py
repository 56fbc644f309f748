"""Profiles: what they hold, their file and everything that can be wrong with it, links and predictions."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.collectives import build, simulate_executor
from rankscope.machine import Point, Profile, ProfileError, fit_link
from rankscope.machine.profile_file import MOST_BYTES
from tests.machine.made import (
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


# ---- what it holds


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


def test_what_it_says_of_itself() -> None:
    two = profile(num_nodes=2, ranks_per_node=[2, 2], backend="nccl")
    assert (two.num_ranks, two.num_nodes, two.backend) == (4, 2, "nccl")


def test_pickles_and_cannot_be_changed() -> None:
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL
    with pytest.raises(TypeError):
        SMALL.provenance["name"] = "another"  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": (SMALL.points[0], SMALL.points[0])}, "points.1. must be another .*allreduce of 1024 bytes"),
        ({"points": ("ring",)}, "points.0. must be a Point, got 'ring'"),
        ({"provenance": {}}, "provenance must say name"),
        ({"provenance": PROVENANCE | {"num_ranks": 5}}, "ranks_per_node must be of 5 ranks on 1 nodes, got .4."),
        ({"protocol": {"iterations": 0}}, "protocol: iterations must be .*got 0"),
        ({"protocol": {"mood": "good"}}, "protocol must hold nothing but .*got 'mood'"),
    ],
)
def test_what_it_cannot_hold_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Profile(**({"provenance": PROVENANCE, "protocol": PROTOCOL, "points": ()} | changes))


def test_what_a_program_said_to_a_terminal_is_left_out() -> None:
    assert profile(topology="\x1b[4mGPU0\x1b[0m\tX\n\x07").provenance["topology"] == "GPU0\tX\n"


# ---- its file


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    whole = collective(profile(links(("intra", "inter"))), {"ring": lambda size: 1e-4 + size * 1e-9})
    path = whole.save(tmp_path / "made.json")
    assert Profile.load(path) == whole
    assert [p.options for p in Profile.load(path).points] == [p.options for p in whole.points]


def test_a_point_is_a_line_and_one_more_changes_no_other(tmp_path: Path) -> None:
    before = SMALL.save(tmp_path / "a.json").read_text().splitlines()
    after = SMALL.add(point("copy", 8, 1e-6)).save(tmp_path / "b.json").read_text().splitlines()
    assert len(after) == len(before) + 1
    assert len(set(before) - set(after)) == 2  # the checksum, and the comma after what was the last point


def test_a_failing_save_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = SMALL.save(tmp_path / "made.json")

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        profile().save(path)
    assert Profile.load(path) == SMALL
    assert [one.name for one in tmp_path.iterdir()] == ["made.json"]


def test_an_error_of_the_disk_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "made.json", tmp_path):
        with pytest.raises(OSError, match=re.escape(f": '{path}'")):
            SMALL.save(path)


def text(folder: Path) -> str:
    return SMALL.save(folder / "valid.json").read_text()


def changed(place: str, value: Any) -> Callable[[str], str]:
    """Put a value at a place such as "points 0 seconds 1", or leave the place out where the value is `...`."""

    def change(given: str) -> str:
        found = json.loads(given)
        *way, last = (int(word) if word.isdigit() else word for word in place.split())
        holder = found
        for word in way:
            holder = holder[word]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
        return json.dumps(found)

    return change


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(given: str) -> str:
        assert old in given
        return given.replace(old, new, 1)

    return change


HUGE = "1" + "0" * 5000
MALFORMED: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "empty": (lambda _: "", "it is empty"),
    "blank": (lambda _: "\n \n", "it is empty"),
    "zeros": (lambda t: b"\0" * len(t), "it is damaged, cut short or no JSON"),
    "cut in a number": (lambda t: t[: t.index("seconds") + 15], "cut short"),
    "cut before the end": (lambda t: t.rstrip()[:-1], "cut short"),
    "cut after the provenance": (lambda t: t[: t.index('"protocol"')], "cut short"),
    "two in one": (lambda t: t + t, "Extra data"),
    "not UTF-8": (lambda t: t.encode().replace(b"made", b"m\xffde"), "byte .* is not UTF-8"),
    "UTF-16": (lambda t: t.encode("utf-16"), "byte 0 is not UTF-8"),
    "a BOM": (lambda t: "\ufeff" + t, "BOM"),
    "an image": (lambda _: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "byte 0 is not UTF-8"),
    "a text": (lambda _: "What my machine does\n", "no JSON"),
    "conflict marks": (lambda t: t.replace("\n", "\n<<<<<<< ours\n", 1), "no JSON"),
    "a list": (lambda _: "[1, 2]", r"format must be 'rankscope profile', got \[1, 2\]"),
    "a number": (lambda _: "7", "format must be .*got 7"),
    "null": (lambda _: "null", "format must be .*got None"),
    "other JSON": (lambda _: '{"cells": []}', "format must be .*got None"),
    "a trace": (changed("format", "rankscope.timeline"), "format must be .*got 'rankscope.timeline'"),
    "deep": (lambda _: "[" * 100_000, "nested too deeply"),
    "deep in a field": (replaced('"points": [', '"points": ' + "[" * 100_000), "nested too deeply"),
    "larger than any": (lambda t: t + " " * MOST_BYTES, f"more than {MOST_BYTES} bytes"),
    "newer": (changed("version", 2), "version 2 is newer than 1"),
    "much newer": (changed("version", 99), "version 99 is newer than 1"),
    "version 0": (changed("version", 0), "version must be .*got 0"),
    "version as text": (changed("version", "1"), "version must be .*got '1'"),
    "no version": (changed("version", ...), "version must be .*got None"),
    "no checksum": (changed("crc32", ...), "'crc32' is the first that differs"),
    "no points": (changed("points", ...), "'points' is the first that differs"),
    "no provenance": (changed("provenance", ...), "'provenance' is the first that differs"),
    "a field more": (changed("colour", "red"), "'colour' is the first that differs"),
    "a field twice": (replaced('"points": [', '"version": 1, "points": ['), "got 'version' twice"),
    "an option twice": (replaced('"in_place":true', '"in_place":true,"in_place":true'), "got 'in_place' twice"),
    "points as object": (changed("points", {}), r"points must be a list, got \{\}"),
    "a point as text": (changed("points 1", "ring"), r"points\[1\]: a point must be an object .*got 'ring'"),
    "a point as null": (changed("points 1", None), r"points\[1\]: .*got None"),
    "a point twice": (lambda t: changed("points 2", json.loads(t)["points"][0])(t), r"points\[2\] .*allreduce of 1024"),
    "a point's field less": (changed("points 1 seconds", ...), r"points\[1\]: .*'seconds' is the first"),
    "a point's field more": (changed("points 1 mood", 1), r"points\[1\]: .*'mood' is the first"),
    "another what": (changed("points 0 what", "allrecude"), r"points\[0\]: what .*got 'allrecude'"),
    "what as number": (changed("points 0 what", 3), r"points\[0\]: what .*got 3"),
    "bytes below 0": (changed("points 0 num_bytes", -4), r"points\[0\]: num_bytes .*got -4"),
    "bytes as fraction": (changed("points 0 num_bytes", 1.5), r"points\[0\]: num_bytes .*got 1.5"),
    "bytes as text": (changed("points 0 num_bytes", "1024"), r"points\[0\]: num_bytes .*got '1024'"),
    "bytes as truth": (changed("points 0 num_bytes", True), r"points\[0\]: num_bytes .*got True"),
    "bytes beyond all": (changed("points 0 num_bytes", 10**30), r"points\[0\]: num_bytes .*got 10{30}"),
    "bytes of 5,000 digits": (replaced('"num_bytes":1024', f'"num_bytes":{HUGE}'), "limit .*digits"),
    "a time below 0": (changed("points 0 seconds 2", -1e-3), r"points\[0\]: seconds .*got -0.001"),
    "a time of 0": (changed("points 0 seconds 2", 0), r"points\[0\]: seconds .*got 0"),
    "a time of years": (changed("points 0 seconds 2", 1e9), r"points\[0\]: seconds .*got 1000000000.0"),
    "a time as text": (changed("points 0 seconds 2", "0.1"), r"points\[0\]: seconds .*got '0.1'"),
    "a time as null": (changed("points 0 seconds 2", None), r"points\[0\]: seconds .*got None"),
    "a time as list": (changed("points 0 seconds 2", [1]), r"points\[0\]: seconds .*got \[1\]"),
    "NaN": (changed("points 0 seconds 2", float("nan")), "numbers must be finite, got NaN"),
    "Infinity": (changed("points 0 seconds 2", float("inf")), "numbers must be finite, got Infinity"),
    "-Infinity": (changed("points 0 seconds 2", float("-inf")), "numbers must be finite, got -Infinity"),
    "1e999": (replaced('"seconds":[', '"seconds":[1e999,'), r"points\[0\]: .*clean must have"),
    "no times": (changed("points 0 seconds", []), r"points\[0\]: seconds .*got \[\]"),
    "times as number": (changed("points 0 seconds", 1.0), r"points\[0\]: seconds must be a list, got 1.0"),
    "a time less": (changed("points 0 seconds 2", ...), r"points\[0\]: clean must have a word on each of 8"),
    "clean as 2": (changed("points 0 clean 0", 2), r"points\[0\]: clean .*got 2"),
    "clean as truth": (changed("points 0 clean 0", True), r"points\[0\]: clean .*got True"),
    "clean as text": (changed("points 0 clean", "111111111"), r"points\[0\]: clean .*got '111111111'"),
    "options as list": (changed("points 0 options", ["ring"]), r"points\[0\]: options .*got \['ring'\]"),
    "an option as list": (changed("points 0 options algorithm", ["a"]), r"points\[0\]: options .*got 'algorithm'"),
    "an option as fraction": (changed("points 0 options segments", 1.5), r"points\[0\]: options .*'segments': 1.5"),
    "provenance as list": (changed("provenance", []), r"provenance must be a mapping, got \[\]"),
    "no name": (changed("provenance name", ...), "provenance must say name"),
    "a name to a terminal": (changed("provenance name", "a\x1b[2J"), "name must be a printable text, got 'a.x1b"),
    "half a letter": (changed("provenance name", "\ud800"), r"name must be a printable text, got '\\ud800'"),
    "something unknown": (changed("provenance owner", "me"), "provenance must hold nothing but .*got 'owner'"),
    "no date": (changed("provenance date", "yesterday"), "date must be a date in ISO form, got 'yesterday'"),
    "ranks beyond all": (changed("provenance num_ranks", 10**30), "num_ranks .*got 10{30}"),
    "an option to a terminal": (
        changed("points 0 options algorithm", "\x1b[2J"),
        r"points\[0\]: options must be printable",
    ),
    "no ranks": (changed("provenance num_ranks", 0), "num_ranks .*got 0"),
    "a rank more": (changed("provenance num_ranks", 5), r"ranks_per_node must be of 5 ranks on 1 nodes, got \[4\]"),
    "a node more": (changed("provenance ranks_per_node", [2, 2]), r"4 ranks on 1 nodes, got \[2, 2\]"),
    "ranks as text": (changed("provenance ranks_per_node", "4"), "ranks_per_node must be a list, got '4'"),
    "gpus as text": (changed("provenance gpus", "H100"), "gpus must be a list, got 'H100'"),
    "an unknown of a gpu": (changed("provenance gpus 0 colour", "red"), r"gpus\[0\] must hold .*got 'colour'"),
    "protocol as null": (changed("protocol", None), "protocol must be a mapping, got None"),
    "iterations as text": (changed("protocol iterations", "9"), "iterations .*got '9'"),
    "verified as 1": (changed("protocol verified", 1), "verified must be True or False, got 1"),
    "a checksum of a text": (changed("crc32", "what"), "crc32 must be '[0-9a-f]{8}', got 'what'"),
    "another time": (changed("points 0 seconds 2", 0.123), "crc32 must be .*damaged or changed by hand"),
    "another algorithm": (changed("points 0 options algorithm", "swing"), "crc32 must be"),
    "points in another order": (lambda t: changed("points", json.loads(t)["points"][::-1])(t), "crc32 must be"),
    "a point less": (changed("points 2", ...), "crc32 must be"),
    "another network": (changed("provenance network", "fast"), "crc32 must be"),
    "a long name": (changed("provenance backend", ["x" * 10_000]), "backend must be .* … "),
}


def test_there_are_many_of_them() -> None:
    assert len(MALFORMED) >= 50


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_gives_one_clear_line(name: str, tmp_path: Path) -> None:
    change, words = MALFORMED[name]
    path, made = tmp_path / "wrong.json", change(text(tmp_path))
    path.write_bytes(made if isinstance(made, bytes) else made.encode())
    with pytest.raises(ProfileError, match=words) as caught:
        Profile.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is no readable profile: ")
    assert message.isprintable()
    assert len(message) < 600 + len(str(path))


def test_reformatted_by_another_tool_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "pretty.json"
    path.write_text(json.dumps(json.loads(text(tmp_path)), indent=4, sort_keys=True))
    assert Profile.load(path) == SMALL


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_is_told_or_does_no_harm(seed: int, tmp_path: Path) -> None:
    draw, valid, path = random.Random(seed), text(tmp_path).encode(), tmp_path / "damaged.json"
    told = []
    for _ in range(150):
        made = bytearray(valid)
        for _ in range(draw.choice((1, 1, 2, 8))):
            made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
        path.write_bytes(made[: draw.randrange(len(made))] if draw.random() < 0.3 else made)
        try:
            assert Profile.load(path) == SMALL
        except ProfileError as error:
            told.append(str(error))
    assert len(told) > 100
    assert all(line.isprintable() for line in told)


def test_the_checksum_is_of_the_lines_after_the_first(tmp_path: Path) -> None:
    first, body = text(tmp_path).split("\n", 1)
    assert f'"crc32": "{zlib.crc32(body[:-2].encode()):08x}"' in first


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Profile.load(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="it is not a file"):
        Profile.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # to open one would wait for ever
    with pytest.raises(ProfileError, match="it is not a file"):
        Profile.load(tmp_path / "pipe")


# ---- links, cluster, prediction


def test_a_link_is_the_fit_of_its_points() -> None:
    found = profile(links(("intra",), {"ping_pong": 1.0, "together": 2.0}))
    sizes = [one.num_bytes for one in found.select("together")]
    assert found.link("intra") == fit_link(sizes, [one.used_s for one in found.select("together")])
    assert found.link("intra").link.alpha_s == pytest.approx(2 * ALPHA_S, rel=0.05)
    assert found.link("intra", "ping_pong").link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.05)
    assert found.gamma_s_per_byte == pytest.approx(GAMMA, rel=0.05)


def test_a_cluster_takes_all_at_once_before_ping_pong_and_the_other_link_where_it_must() -> None:
    both = profile(links(("intra",), {"ping_pong": 1.0, "together": 2.0})).cluster()
    assert both.intra == both.inter
    assert both.intra.alpha_s == pytest.approx(2 * ALPHA_S, rel=0.05)
    assert profile(links(how={"ping_pong": 1.0})).cluster().intra.alpha_s == pytest.approx(ALPHA_S, rel=0.05)


def test_two_links_are_told_apart() -> None:
    fast, slow = links(("intra",)), links(("inter",), seconds=lambda size: 5e-3 + size / 12.5e6)[:-15]
    found = profile([*fast, *slow], num_nodes=2, ranks_per_node=[2, 2]).cluster()
    assert (found.num_nodes, found.gpus_per_node) == (2, 2)
    assert found.intra.alpha_s == pytest.approx(ALPHA_S, rel=0.05)
    assert found.inter.alpha_s == pytest.approx(5e-3, rel=0.05)
    assert found.gamma_s_per_byte == pytest.approx(GAMMA, rel=0.05)


def test_one_rank_a_node_is_a_cluster_of_nodes() -> None:
    found = profile(links(("inter",)), num_nodes=4, ranks_per_node=[1, 1, 1, 1]).cluster()
    assert (found.num_nodes, found.gpus_per_node, found.is_uniform) == (4, 1, True)


def test_a_link_at_too_few_sizes_gives_way_to_another() -> None:
    few, enough = links(how={"together": 9.0}, sizes=SIZES[:3]), links(how={"ping_pong": 1.0})
    made = profile([*few[:3], *enough])
    assert made.best_link("inter") == made.best_link("intra") == made.link("intra", "ping_pong")


def test_with_another_number_of_ranks_there_are_more_or_fewer_nodes_or_ranks_on_the_one() -> None:
    def shape(made: Profile, num_ranks: int) -> tuple[int, int]:
        found = made.cluster(num_ranks)
        return found.num_nodes, found.gpus_per_node

    one, two = profile(links()), profile(links(), num_nodes=2, ranks_per_node=[2, 2])
    spread = profile(links(("inter",)), num_nodes=4, ranks_per_node=[1] * 4)
    assert [shape(one, 8), shape(two, 8), shape(two, 2), shape(spread, 8)] == [(1, 8), (4, 2), (1, 2), (8, 1)]
    with pytest.raises(ValueError, match="num_ranks must be a multiple of the 2 ranks on a node, got 3"):
        two.cluster(3)
    ring = build("allreduce", "ring", 8)
    expected = simulate_executor(ring, 4096, one.cluster(8), lambda src, dst, size: one.link("intra").at(size))
    assert one.predict("allreduce", "ring", 4096, num_ranks=8).makespan_s == expected.makespan_s


def test_without_sums_adding_is_free() -> None:
    assert profile(one for one in links() if one.what != "add").gamma_s_per_byte == 0.0  # type: ignore[arg-type]


def test_few_sums_give_their_rate() -> None:
    assert profile([point("add", 1000, 1e-6), point("add", 2000, 2e-6)]).gamma_s_per_byte == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (profile(), "this profile has no link: neither together nor ping_pong"),
        (profile(links(sizes=SIZES[:3])), "together points of link 'intra': .*at least 5 different sizes"),
        (profile(links(), ranks_per_node=[3, 1], num_nodes=2), r"same on all nodes .*got \[3, 1\]"),
    ],
)
def test_what_makes_no_cluster_is_said(made: Profile, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made.cluster()


def test_a_link_that_was_not_measured_is_said() -> None:
    with pytest.raises(ValueError, match="has no together points of link 'inter'"):
        profile(links()).link()
    with pytest.raises(ValueError, match="where must be one of 'inter', 'intra', got 'outer'"):
        profile(links()).link("outer")


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


def test_a_prediction_takes_the_link_between_nodes_for_messages_between_nodes() -> None:
    fast, slow = links(("intra",), noise=0.0), links(("inter",), noise=0.0, seconds=lambda size: 1.0 + size / 1e9)[:-15]
    made = profile([*fast, *slow], num_nodes=2, ranks_per_node=[2, 2])
    seconds = made.predict("allreduce", "hierarchical_ring", 1024, gpus_per_node=2).makespan_s
    assert 2.0 < seconds < 4.1  # two messages between nodes, one after the other, each after its rendezvous


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("allreduce", "rung", 1024), "algorithm of allreduce must be one of"),
        (("allrecude", "ring", 1024), "collective must be one of"),
        (("allreduce", "ring", -1), "num_bytes must be"),
        (("allreduce", "ring", float("nan")), "num_bytes must be"),
    ],
)
def test_what_cannot_be_predicted_is_said(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        profile(links()).predict(*arguments)


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
    assert frame.what.tolist() == [one.what for one in made.points]
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


def test_an_empty_profile_is_an_empty_table(tmp_path: Path) -> None:
    empty = Profile.load(profile().save(tmp_path / "empty.json"))
    assert empty == profile()
    assert empty.to_frame().shape == (0, 13)


def test_a_profile_is_copied_whole() -> None:
    assert copy.deepcopy(SMALL) == SMALL
    assert re.match("Profile", repr(SMALL))
