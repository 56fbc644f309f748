"""Marks and their colours: what the painters make of them, and that all can be told from each other."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import pyplot as plt
from msgspec.structs import replace

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, build
from rankscope.collectives.playback import playback
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing, Key, Lines, Rects, Texts, whole_ticks
from rankscope.figures.palette import (
    CATEGORIES,
    HUES,
    INK,
    LEGIBLE,
    RANKS,
    TABLE,
    WORK,
    Meaning,
    contrast,
    hatch_on,
    ink_on,
    looks,
    ramp,
    rank_colors,
)
from rankscope.figures.player import draw_play
from rankscope.figures.svg import to_svg
from rankscope.figures.timelines import draw_timeline
from rankscope.timeline import Span, Timeline

from .hues import table_problems

SVG = "{http://www.w3.org/2000/svg}"
COLORS = ["#0072b2", "#d55e00"]
LINES = Drawing(
    *("t", "x", "y", 10.0, 5.0, (100.0, 50.0)),
    lines=(
        Lines([0, 1], [0, 1], [10, 5], [0, 4], COLORS, dashed=[False, True], arrows=True),
        Lines(0, 2, 10, 2, INK, width_px=3.0),
    ),
    legend=(Key("adds", INK, line="solid"),),
)


def test_lines_in_svg_end_where_they_should() -> None:
    root = ElementTree.fromstring(to_svg(LINES))
    arrows, plain = (group for group in root.iter(f"{SVG}g") if group.get("class") == "lines")
    first, second = arrows.findall(f"{SVG}line")
    names = ("x1", "y1", "y2", "stroke", "stroke-dasharray")
    assert [first.get(name) for name in names] == ["0", "0", "0", COLORS[0], None]
    assert float(first.get("x2")) == 91  # the rest is its head
    assert second.get("stroke-dasharray") == "5 4"
    heads = arrows.findall(f"{SVG}path")
    assert [head.get("d").split("L")[0] for head in heads] == ["M100 0", "M50 40"]
    assert [head.get("fill") for head in heads] == COLORS
    assert plain.get("stroke-width") == "3"
    assert not plain.findall(f"{SVG}path")
    legend = next(group for group in root.iter(f"{SVG}g") if group.get("class") == "legend")
    assert legend.find(f"{SVG}path").get("stroke") == INK


def test_the_label_of_an_axis_is_below_its_middle_and_not_below_that_of_the_picture() -> None:
    whole = Drawing("t", "time", "y", 10.0, 1.0, (300.0, 100.0))
    for drawing, middle in ((whole, 150), (replace(whole, x_axis=(2.0, 6.0)), 120)):
        assert f'<text x="{middle}" y="131" text-anchor="middle" font-size="12">time</text>' in to_svg(drawing)
        assert to_axes(drawing).xaxis.label.get_position()[0] == middle / 300
    play = playback(build("allreduce", "ring", 4), 1e6, Cluster.uniform(4, Link(1e-5, 1e9)))
    drawn = draw_play([play], play.finish_s)
    assert drawn.x_axis is not None
    start, end = drawn.x_axis
    assert 0 < start == drawn.x_ticks[0][0]  # the axis of time is to the right of the chunks
    assert end < drawn.width


def test_panels_of_one_figure_share_one_legend() -> None:
    ring = build("allreduce", "ring", 4)
    _, axes = plt.subplots(1, 2, layout="constrained")
    for step, ax in zip((0, 5), axes, strict=True):
        figures.schedule(ring, step, ax=ax, title=f"step {step}")
    (legend,) = axes[0].figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[:2] == ["rank 0", "rank 3"]
    assert len(labels) == len(set(labels)) == 6
    assert [ax.get_title(loc="left") for ax in axes] == ["step 0", "step 5"]


def test_what_marks_share_may_be_given_once() -> None:
    rects = Rects([[0, 1], [2, 3]], 5, "#000000", width=[1, 2, 3, 4], hatched=True)
    assert (rects.x.tolist(), rects.y.tolist(), rects.fill) == ([0, 1, 2, 3], [5] * 4, ("#000000",) * 4)
    assert rects.hatched.tolist() == [True] * 4
    assert Texts([], 1, "nowhere", halo=INK).text == ()


def test_only_bars_too_narrow_for_it_have_no_outline() -> None:
    spans = Timeline.of([Span(0, "a", "step", 0, 0.0, 1.0), Span(0, "a", "read", 0, 1.0, 1.001)])
    (bars,) = (c for c in figures.timeline(spans).collections if c.get_gid() == "rects")
    assert (np.array(bars.get_linewidths()) > 0).tolist() == [True, False]
    svg = to_svg(draw_timeline(spans))
    wide, narrow = re.findall(r"<rect [^>]*/>", svg.split('class="marks"')[1])[:2]
    assert '<g stroke="#ffffff" stroke-width="1">' in svg
    assert 'stroke-width="0"' in narrow
    assert "stroke-width" not in wide
    thin = to_svg(draw_timeline(Timeline.of(Span(0, "a", "step", n, n, n + 1) for n in range(500))))
    assert thin.count('stroke-width="0"') == 1  # the group's


def test_hatching_is_light_on_dark_and_dark_on_light() -> None:
    colors = CATEGORIES
    rects = Rects(np.arange(8), 0, colors, hatched=True)
    svg = to_svg(Drawing("t", "x", "y", 8.0, 1.0, (400.0, 50.0), rects=(rects,)))
    assert hatch_on("#000000") == "#ffffff"
    dark = sum(hatch_on(fill) == INK for fill in colors)
    assert 0 < dark < 8
    assert svg.count("url(#rankscope-hatch-dark)") == dark
    assert svg.count("url(#rankscope-hatch-white)") == 8 - dark


def test_narrow_axes_leave_out_texts_with_a_ground_that_would_cover_others() -> None:
    texts = Texts(np.arange(10) + 0.5, 0.5, [f"number {place}" for place in range(10)], halo="#ffffff")
    drawing = Drawing("t", "x", "y", 10.0, 1.0, (800.0, 40.0), texts=(texts,))
    _, panels = plt.subplots(1, 3, figsize=(8, 3))
    assert len(to_axes(drawing).texts) == 10 > 2 * len(to_axes(drawing, panels[1]).texts) > 0


@pytest.mark.parametrize("count", [0, 1, 7, 13, 64, 1024, 100_000])
def test_ticks_are_few_and_round(count: int) -> None:
    ticks = whole_ticks(count)
    assert len(ticks) <= 12
    assert all(label == str(int(place - 0.5)) for place, label in ticks)


# ---- colours


def test_numbers_can_be_read_on_every_colour() -> None:
    for fill in (*CATEGORIES, *ramp(np.linspace(0, 1, 256))):
        assert contrast(fill, ink_on(fill)) >= LEGIBLE, fill


def test_hues_of_the_table_mean_one_thing_and_can_be_told_apart_by_all() -> None:
    assert list(table_problems(TABLE)) == []
    for meaning in TABLE:
        if meaning.family in ("rank", "work"):
            assert contrast(ink_on(meaning.hue), meaning.hue) >= LEGIBLE
    for hue, hatched in WORK.values():
        assert contrast(hatch_on(hue), hue) >= 3 or not hatched
    assert rank_colors(8) == RANKS
    assert not set(RANKS) & set(HUES)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (Meaning("rank", "rank 8", "#0072b2"), "summing over ranks and rank 8 look alike to all"),
        (Meaning("work", "napping", "#9ecbf2", "nap"), "rank 0 and napping look alike to all"),
        (Meaning("work", "napping", "#f80020", "nap"), "backward and napping look alike to people with deuteranopia"),
        (Meaning("work", "napping", "#00ff00", "read"), "read has two meanings"),
    ],
)
def test_a_wrong_table_is_caught(wrong: Meaning, problem: str) -> None:
    assert problem in list(table_problems((*TABLE, wrong)))


def test_every_algorithm_has_a_look_of_its_own_in_its_collective() -> None:
    for builders in ALGORITHMS.values():
        style = looks(builders)
        assert len(set(style.values())) == len(builders)
        assert "#f0e442" not in {look.color for look in style.values()}  # too pale for a line
    assert looks(["ring"])["ring"] == looks(ALGORITHMS["allreduce"])["ring"]
    added = looks([*ALGORITHMS["allreduce"], "mine", "yours"])
    assert len({(look.color, look.dashed) for look in added.values()}) == len(added)
    unknown = looks(f"yours {number}" for number in range(15))
    assert [look.color for look in unknown.values()].index("#f0e442") == 14  # only if no other look is left
    many = looks([*ALGORITHMS["allreduce"], *(f"yours {number}" for number in range(100))])
    assert len(set(many.values())) == len(many)
