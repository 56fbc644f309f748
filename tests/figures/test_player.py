"""A collective that plays: each moment is drawn where it belongs, and the animation shows what its moments show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.playback import Playback, playback
from rankscope.figures.marks import Drawing, Rects
from rankscope.figures.palette import EMPTY, ramp
from rankscope.figures.player import TIME_PX, draw_play, strips
from rankscope.figures.svg import to_svg

from ..tools.playing_picture import animated
from .readable import svg_problems
from .shown import placed

SVG = "{http://www.w3.org/2000/svg}"
NODES = Cluster(2, 2, Link(1.0, 200.0), Link(2.0, 50.0), 0.001)
SOME = {
    "one": [("allreduce", "ring")],
    "race": [("allreduce", "ring"), ("allreduce", "halving_doubling")],
    "whole buffers": [("allreduce", "recursive_doubling")],
    "moves": [("allgather", "bruck"), ("broadcast", "binomial")],
    "results": [("reduce_scatter", "pairwise")],
    "exchange": [("all_to_all", "pairwise")],
    "root": [("reduce", "binomial"), ("gather", "binomial")],
}


def play(collective: str = "allreduce", name: str = "ring", cluster: Cluster | None = None) -> Playback:
    where = cluster or Cluster.uniform(4, Link(1.0, 25.0))
    return playback(build(collective, name, where.num_ranks), 100.0, where)


def plays(name: str, cluster: Cluster = NODES) -> list[Playback]:
    return [play(collective, algorithm, cluster) for collective, algorithm in SOME[name]]


def boxes(drawing: Drawing, height: float) -> dict[tuple[int, int], str]:
    """Fill by the middle of all rectangles of this height."""
    fills = {}
    for rects in drawing.rects:
        rows = zip(rects.x, rects.y, rects.width, rects.height, rects.fill, strict=True)
        fills |= {(round(x + w / 2), round(y + h / 2)): fill for x, y, w, h, fill in rows if abs(h - height) < 1e-6}
    return fills


def chunk_middles(of: Playback) -> Iterator[tuple[int, int, tuple[int, int]]]:
    (strip,) = strips([of])
    for rank, chunk in np.ndindex(of.schedule.num_ranks, of.schedule.num_chunks):
        yield rank, chunk, (round((chunk + 0.5) * strip.cell_px), round(float(strip.y(np.array(rank)))))


@pytest.mark.parametrize("num_ranks", [4, 8, 16])
def test_no_message_touches_a_number_that_is_shown(num_ranks: int) -> None:
    ring = play(cluster=Cluster.uniform(num_ranks, Link(1.0, 25.0)))
    (strip,) = strips([ring])
    for at_s in np.linspace(0, ring.finish_s, 50).tolist():
        rows = np.flatnonzero(np.isin(ring.message, ring.on_the_way(at_s)))
        middle = strip.height(at_s)[ring.message[rows]]
        (frames, _), _ = strip.packets(rows, middle)
        numbers = strip.numbers(at_s)
        is_shown = np.array(numbers.text) != ""
        number_y = numbers.y[is_shown]
        is_same_chunk = np.floor(numbers.x[is_shown] / strip.cell_px)[:, None] == ring.chunk[rows]
        distance = abs(number_y[:, None] - middle)
        assert (distance[is_same_chunk] >= (frames.height.max(initial=0) + 0.72 * strip.number_px) / 2 - 1e-6).all()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.55, 0.8, 1.0])
def test_each_chunk_has_the_shade_and_the_number_of_its_shares(share: float) -> None:
    ring = play(cluster=NODES)
    at_s = share * ring.finish_s
    drawing, held = draw_play([ring], at_s), ring.held(at_s)
    (strip,) = strips([ring])
    shown, numbers = boxes(drawing, 0.76 * strip.row_px), placed(drawing)
    assert EMPTY not in shown.values()
    texts = {(round(x), round(y)): text for (x, y), text in numbers.items()}
    covered = 0
    for rank, chunk, place in chunk_middles(ring):
        assert shown[place] == ramp((held[rank, chunk] - 1) / 3)[0]
        covered += texts.get(place) is None
        assert texts.get(place, str(held[rank, chunk])).isdigit()
    assert covered <= 2 * ring.on_the_way(at_s).size
    if share == 1.0:
        assert {texts[place] for *_, place in chunk_middles(ring)} == {"4"}
        assert set(shown.values()) == set(ramp(1.0))


def test_a_message_half_way_is_between_the_rows_and_in_the_middle_of_its_line() -> None:
    ring = play()  # a step takes 2 s: 1 s of latency, 25 bytes at 25 bytes per second
    assert ring.finish_s == 12.0
    drawing = draw_play([ring], 3.0)  # half of the second step, in which rank r sends chunk r - 1, two shares
    (strip,) = strips([ring])
    packets = boxes(drawing, 0.54 * strip.row_px)
    expected = set()
    for rank in range(4):
        y = float(strip.y(np.array(rank)) + strip.y(np.array((rank + 1) % 4))) / 2
        expected.add((round(((rank - 1) % 4 + 0.5) * strip.cell_px), round(y)))
    assert set(packets) == expected
    assert set(packets.values()) == set(ramp(1 / 3))
    marks = boxes(drawing, 8.0)
    now = round(float(strip.x(3.0)))
    assert {x for x, _ in marks if x > strip.left} == {now}
    assert {y for x, y in marks if x == now} == {y for _, y in expected}  # two lines cross there
    done = [lines for lines in drawing.lines if lines.width_px == 1.8]
    assert [lines.x0.size for lines in done] == [8]
    assert max(done[0].x1) == strip.x(3.0)
    (head,) = (lines for lines in drawing.lines if lines.width_px == 2.0)
    assert head.x0.tolist() == head.x1.tolist() == [strip.x(3.0)]


@pytest.mark.parametrize("name", SOME)
def test_what_is_busy_fills_with_time(name: str) -> None:
    some = plays(name)
    laid = strips(some)
    end_s = max(play.finish_s for play in some)
    for strip in laid:
        filled = []
        for share in (0.0, 0.25, 0.5, 1.0):
            pale, full = strip.bars(share * end_s)
            filled.append(full.width.sum())
            lasts = (strip.play.end_s - strip.play.start_s) + (strip.play.done_s - strip.play.start_s)
            passed = np.clip(share * end_s, strip.play.start_s, strip.play.end_s) - strip.play.start_s
            passed += np.clip(share * end_s, strip.play.start_s, strip.play.done_s) - strip.play.start_s
            assert full.width.sum() == pytest.approx(TIME_PX * passed.sum() / end_s)
            assert (pale.x.size == 0) is (share * end_s >= strip.play.finish_s)
        assert filled == sorted(filled)
        assert filled[-1] == pytest.approx(TIME_PX * lasts.sum() / end_s)


def test_results_are_framed_where_not_all_chunks_are_wanted() -> None:
    done = play("reduce_scatter", "pairwise")
    edge = draw_play([done], done.finish_s).rects[1]
    assert isinstance(edge, Rects)
    (strip,) = strips([done])
    assert sorted(zip(edge.x + 2 + strip.boxes[2] / 2, strict=True)) == sorted(
        ((r + 0.5) * strip.cell_px,) for r in range(4)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "share"),
    [(1, 1.0), (2, 0.3), (5, 0.0), (8, 1.0), (16, 0.3), (32, 0.3)],
)
def test_every_word_can_be_read(num_ranks: int, share: float) -> None:
    where = Cluster(1, num_ranks, Link(3e-6, 2e11), Link(1e-5, 2.5e10), 1e-12)
    some = [play(name=name, cluster=where) for name in ("ring", "flat")]
    drawing = draw_play(some, share * max(play.finish_s for play in some))
    assert svg_problems(to_svg(drawing)) == []


# ---- as an animation: a player of SMIL in a few lines, against the moments


def at(share: float, node: ET.Element, name: str) -> str | None:
    """What an attribute is at this share of the animation."""
    for change in node:
        if change.get("attributeName") != name or change.tag not in (f"{SVG}animate", f"{SVG}animateTransform"):
            continue
        keys = [float(key) for key in change.get("keyTimes", "").split(";")]
        values = change.get("values", "").split(";")
        assert keys[0] == 0.0
        assert keys == sorted(keys)
        assert len(keys) == len(values)
        if change.get("calcMode") == "discrete":
            return [value for key, value in zip(keys, values, strict=True) if key <= share][-1]
        assert keys[-1] == 1.0
        columns = np.array([[float(number) for number in value.split()] for value in values]).T
        return " ".join(f"{np.interp(share, keys, column):.6g}" for column in columns)
    return node.get(name)


def visible(node: ET.Element, share: float, fill: str = "", shift: tuple[float, float] = (0.0, 0.0)) -> Iterator[Any]:
    """(x, y, fill or text) of all rectangles and texts that are seen."""
    if at(share, node, "visibility") == "hidden":
        return
    moved = re.findall(r"-?[\d.e+-]+", at(share, node, "transform") or "")
    shift = (shift[0] + float(moved[0]), shift[1] + float(moved[1])) if len(moved) == 2 else shift
    fill = at(share, node, "fill") or fill
    if node.tag in (f"{SVG}rect", f"{SVG}text"):
        wide = float(node.get("width", 0.0)) / 2 if node.tag == f"{SVG}rect" else 0.0
        high = float(node.get("height", 0.0)) / 2 if node.tag == f"{SVG}rect" else 0.0
        x, y = float(node.get("x", 0)) + shift[0] + wide, float(node.get("y", 0)) + shift[1] + high
        yield round(x), round(y), node.text or fill
    for child in node:
        if child.tag != f"{SVG}clipPath":
            yield from visible(child, share, fill, shift)


@pytest.mark.parametrize(
    ("name", "share"),
    [(name, share) for place, name in enumerate(SOME) for share in ((0.07, 0.61), (0.33, 0.93))[place % 2]],
)
def test_the_animation_shows_what_its_moments_show(name: str, share: float) -> None:
    some = plays(name)
    horizon_s = max(play.finish_s for play in some)
    at_s = share * horizon_s + 1e-4  # between two instants
    root = ET.fromstring(animated(some, seconds=10.0))
    playing = root.find(f".//{SVG}g[@class='playing']")
    assert playing is not None
    seen = set(visible(playing, (0.7 + at_s / horizon_s * 10.0) / 13.2))
    drawing = draw_play(some, at_s)
    for strip in strips(some):
        for group in strip.cells(at_s)[1:]:
            x, y = group.x + group.width / 2, group.y + group.height / 2
            assert set(zip(map(round, x), map(round, y), group.fill, strict=True)) <= seen
        sentence, count, finished = strip.captions(at_s)
        words = {word for *_, word in seen}
        assert {sentence, count} - {""} <= words
        assert finished in words | {""}
        rows = np.flatnonzero(np.isin(strip.play.message, strip.play.on_the_way(at_s)))
        packets, _ = strip.packets(rows, strip.height(at_s)[strip.play.message[rows]])
        for x, y, color in zip(packets[1].x, packets[1].y, packets[1].fill, strict=True):
            middle = x + packets[1].width[0] / 2, y + packets[1].height[0] / 2
            assert any(abs(a - middle[0]) < 2 and abs(b - middle[1]) < 2 and c == color for a, b, c in seen)
    numbers = {(round(x), round(y), text) for (x, y), text in placed(drawing).items() if text.isdigit() and x < 250}
    fixed = {(x, y, text) for x, y, text in numbers if (x, y, text) in set(visible(root, share))}
    assert numbers - fixed - {number for number in numbers if near(number, seen)} == set()


def near(number: tuple[int, int, str], seen: set[Any]) -> bool:
    return any(abs(x - number[0]) < 3 and abs(y - number[1]) < 3 and word == number[2] for x, y, word in seen)


def test_where_nothing_moves_a_moment_on_the_way_is_shown() -> None:
    ring = play()
    svg = animated([ring])
    root = ET.fromstring(svg)
    paused, playing = (root.find(f".//{SVG}g[@class='{name}']") for name in ("paused", "playing"))
    assert paused is not None
    assert playing is not None
    assert (paused.get("display"), playing.get("display")) == (None, "none")
    assert [(animation.get("attributeName"), animation.get("to")) for animation in (paused[0], playing[0])] == [
        ("display", "none"),
        ("display", "inline"),
    ]
    assert {"1", "2", "3"} < {word for *_, word in visible(paused, 0.0)}
    assert "prefers-reduced-motion: reduce" in svg
    assert not re.search(r"<script|\bon\w+=|https?://(?!www\.w3\.org)", svg)
