"""What the pictures of the fastest algorithm show: the map, the bars, and lines with their crossings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, best, closed_form
from rankscope.figures.charts import lowest
from rankscope.figures.marks import Line
from rankscope.figures.palette import looks, ramp
from rankscope.figures.rankings import draw_ranking, draw_slowdowns, draw_winners

from .shown import artist, bars, boxes, heights, keys_of, labels, named, points, words_of

LINK = Link(alpha_s=5e-6, bytes_per_s=25e9)
SIZES = 2.0 ** np.arange(10, 31, 2)
TIMES = {name: closed_form("allreduce", name, 8, SIZES, LINK) for name in ("recursive_doubling", "ring", "swing")}


# ---- map and bars


def test_the_map_shows_the_winner_and_by_how_much() -> None:
    sizes = 2.0**10, 2.0**20
    results = {n: {size: best(size, Cluster.uniform(n, LINK)) for size in sizes} for n in (4, 6)}
    drawing = draw_winners(results)
    rows = {label: at - 0.5 for at, label in drawing.y_ticks}
    assert rows == {"4": 1, "6": 0}  # more ranks further up
    assert {label: at - 0.5 for at, label in drawing.x_ticks} == {"1 KiB": 0, "1 MiB": 1}
    cells = drawing.rects[0]
    shown = dict(zip(zip(cells.x.tolist(), cells.y.tolist(), strict=True), cells.fill, strict=True))
    fill_of = {}
    for ranks, row in results.items():
        for column, size in enumerate(sizes):
            fill_of.setdefault(row[size].algorithm, set()).add(shown[column, rows[str(ranks)]])
    assert {len(fills) for fills in fill_of.values()} == {1}
    assert len(set.union(*fill_of.values())) == len(fill_of)
    named = {word for texts in drawing.texts for word in texts.text if word[-1].isalpha()}
    assert named | set(keys_of(drawing)) == set(fill_of)


def test_the_ranking_is_in_order_and_cuts_only_what_is_far_off() -> None:
    drawing = draw_ranking({"flat": 1e-3, "ring": 2e-6, "swing": 1e-6}, bound_s=0.5e-6, chosen="ring")
    bars = sorted(boxes(drawing), key=lambda box: box.y)
    assert [box.key for box in bars] == ["swing", "ring", "flat"]
    assert [box.width / bars[0].width for box in bars] == pytest.approx([1, 2, 20], rel=0.1)
    assert [box.edge for box in bars] == ["", "ink", ""]
    assert bars[0].fill != bars[1].fill == bars[2].fill
    words = words_of(drawing)
    assert words.count("//") == 1
    assert {"1 µs", "2 µs, 2 ×  ← your choice", "1,000 µs, 1e+03 ×", "lower bound"} <= set(words)
    close = draw_ranking({"a": 1.0, "b": 6.72, "c": 7.87, "d": 19.0})
    widths = [box.width for box in boxes(close)]
    assert np.divide(widths, widths[0]) == pytest.approx([1, 6.72, 7.87, 19])
    assert "//" not in words_of(close)
    ticked = draw_ranking({"ring": 2e-6, "swing": 1e-6}, measured={"ring": 3e-6, "other": 1.0})
    (tick,) = [mark for mark in ticked.marks if isinstance(mark, Line)]
    left = boxes(ticked)[0].x
    assert (tick.points[0][0] - left) / boxes(ticked)[0].width == pytest.approx(3)


def test_slowdowns_are_times_divided_by_the_fastest_of_each_size() -> None:
    rows = {"flat": [8e-3, 90.0], "ring": [2e-3, 3.0], "swing": [1e-3, 3.0]}
    times = {name: dict(zip([2**10, 2**20], row, strict=True)) for name, row in rows.items()}
    drawing = draw_slowdowns(times)
    frames, shown = drawing.rects
    assert [label for _, label in drawing.y_ticks] == ["swing", "ring", "flat"]  # the smallest slowdowns on top
    assert drawing.texts[0].text == ("1.0", "1.0", "2.0", "1.0", "8.0", "30")
    fastest = {(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)}  # two are equal at 1 MiB
    assert set(zip(frames.x.tolist(), frames.y.tolist(), strict=True)) == fastest
    pale, dark = ramp([1, 0])
    assert [shown.fill[place] for place in (0, 1, 3, 4, 5)] == [pale] * 3 + [dark] * 2  # 8 times and beyond
    assert draw_slowdowns({"ring": {1: 1}, "flat": {1: 5e4}}).texts[0].text == ("1.0", ">999")
    assert draw_slowdowns({"ring": dict.fromkeys(range(1, 101), 1.0)}).texts[0].x.size == 0  # no room


# ---- lines


def test_lines_are_the_times_in_a_unit_that_is_named() -> None:
    ax = figures.costs(SIZES, TIMES, half_bytes=125_000)
    assert labels(ax) == [*TIMES, "crossover", "n½"]
    for name, seconds in TIMES.items():
        assert np.allclose(points(ax, name), np.stack([SIZES, seconds * 1e6], axis=1))
        assert artist(ax, name).get_color() == looks([name])[name].color
    assert (artist(ax, "swing").get_linestyle(), artist(ax, "ring").get_linestyle()) == ("--", "-")
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == ("log", "log", "time [µs]")
    assert ax.get_xlabel() == "size of each rank's buffer"
    assert set(points(ax, "n½")[:, 0]) == {125_000}
    assert set(named(ax)) >= {*TIMES, "n½ = 122 KiB"}


def test_the_crossover_is_where_the_lines_cross() -> None:
    ax = figures.costs(SIZES, TIMES)
    first, changes = lowest(SIZES, np.stack(list(TIMES.values())))
    assert [list(TIMES)[n] for n in (first, *(c.leader for c in changes))] == ["recursive_doubling", "swing"]
    assert points(ax, "crossover")[:, 0] == pytest.approx([changes[0].x])
    # 3(α + Sβ) = 6α + 14/8·Sβ, at S = 12/5·αB, as far as straight lines between the sizes can tell
    assert changes[0].x == pytest.approx(12 / 5 * 5e-6 * 25e9, rel=0.1)


def test_lines_that_coincide_do_not_cross() -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0])
    wobble = np.array([1 + 1e-13, 1 - 1e-13, 1 + 1e-13, 1 - 1e-13])
    assert lowest(x, np.stack([x, x * wobble, 2 * x])) == (0, [])
    first, changes = lowest(x, np.array([[1.0, 2, 4, 8], [4, 4, 4, 4], [3, 3, 3, 3]]))
    assert (first, [c.leader for c in changes]) == (0, [2])
    assert changes[0].x == pytest.approx(3)
    # within one interval two lines take the lead one after the other
    first, changes = lowest(np.array([1.0, 100.0]), np.array([[1.0, 1e4], [2.0, 50.0], [10.0, 10.0]]))
    assert (first, [c.leader for c in changes]) == (0, [1, 2])


def test_names_do_not_cover_each_other() -> None:
    with_form = [name for name, record in ALGORITHMS["allreduce"].items() if record.form is not None]
    every = {name: closed_form("allreduce", name, 8, SIZES, LINK) for name in with_form}
    ax = figures.costs(SIZES, every)
    ax.figure.canvas.draw()
    names = {text.get_text(): text.get_window_extent() for text in ax.texts if text.get_text() in every}
    assert set(names) == set(every)
    boxes = sorted(names.values(), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert boxes[-1].y1 <= ax.bbox.y1 + 10


def test_measurements_are_markers_with_their_spread() -> None:
    repeats = np.stack([TIMES["ring"][::5] * factor for factor in (1.0, 1.5, 3.0)], axis=1)
    ax = figures.costs(SIZES, TIMES, measured={"ring": (SIZES[::5], repeats), "swing": (SIZES[:1], [1e-3])})
    ring, swing = (artist(ax, f"{name}, measured").lines[0] for name in ("ring", "swing"))
    assert np.allclose(heights(ax, "ring, measured"), TIMES["ring"][::5] * 1.5e6)
    assert np.allclose(bars(ax, "ring, measured"), repeats[:, [0, 2]] * 1e6)
    assert ring.get_color() == artist(ax, "ring").get_color()
    assert ring.get_linestyle() == "None"
    assert ring.get_marker() != swing.get_marker()
    assert len(ax.figure.legends) == 1
    alone = figures.costs(SIZES, {"swing": TIMES["swing"]}, measured={"flat": (SIZES, TIMES["ring"])})
    assert set(named(alone)) >= {"swing", "flat"}  # what was measured only is named, too
