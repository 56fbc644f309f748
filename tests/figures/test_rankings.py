"""What the pictures of the fastest algorithm show: the map, the bars, and lines with their crossings."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, best
from rankscope.figures.marks import Line
from rankscope.figures.palette import looks, ramp
from rankscope.figures.rankings import draw_ranking, draw_slowdowns, draw_winners

from .shown import artist, boxes, heights, keys_of, points, words_of

LINK = Link(alpha_s=5e-6, bytes_per_s=25e9)


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


def test_curves_are_lines_and_markers_in_one_hue_and_names_do_not_cover_each_other() -> None:
    x = np.array([1.0, 2.0, 4.0])
    pairs = {f"line {number}": (x + 0.01 * number, x) for number in range(6)}
    ax = figures.curves(x, pairs, "title", "ranks", "time [ms]", log="x")
    for name, (predicted, executed) in pairs.items():
        assert np.allclose(points(ax, f"{name}, predicted"), np.stack([x, predicted], axis=1))
        assert np.allclose(heights(ax, f"{name}, executed"), executed)
        assert artist(ax, f"{name}, predicted").get_color() == artist(ax, f"{name}, executed").get_color()
    assert ax.get_xscale() == "log"
    ax.set_ylim(0, 50)
    ax.figure.canvas.draw()
    places = sorted(text.get_window_extent().y0 for text in ax.texts if text.get_text() in pairs)
    assert np.diff(places).min() > 10
    assert len(places) == len(pairs)


def test_an_algorithm_has_the_same_look_in_every_chart_and_no_two_share_one() -> None:
    every = looks([*ALGORITHMS["allreduce"], *(f"mine {number}" for number in range(60))])
    assert every["ring"] == looks(["mine 3", "ring"])["ring"]
    assert len(set(every.values())) == len(every)
