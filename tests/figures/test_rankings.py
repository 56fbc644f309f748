"""What the pictures of the fastest algorithm show: the map, the bars, and lines with their crossings."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Text

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import best
from rankscope.figures.marks import Line
from rankscope.figures.rankings import draw_ranking

from .hues import keys_of
from .shown import artist, boxes, heights, points, words_of

LINK = Link(alpha_s=5e-6, bytes_per_s=25e9)


# ---- map and bars


def test_the_map_shows_the_winner_and_by_how_much() -> None:
    sizes = 2.0**10, 2.0**20
    results = {n: {size: best(size, Cluster.uniform(n, LINK)) for size in sizes} for n in (4, 6)}
    drawing = figures.winners(results)
    cells = [box for box in boxes(drawing) if box.key]
    found = [cell for n in (6, 4) for cell in results[n].values()]  # more ranks further up
    assert [cell.key for cell in cells] == [best.algorithm for best in found]
    assert {cell.key: cell.fill for cell in cells} == {
        name: box.fill for name, box in keys_of(drawing).items() for name in [name.replace(" ", "_")]
    }
    assert {"4 ranks", "6 ranks", "1 KiB", "1 MiB"} <= set(words_of(drawing))
    for cell, best_one in zip(cells, found, strict=True):
        assert (cell.text == "=") == (best_one.margin <= 1e-9)
        if cell.text.endswith("%"):
            assert float(cell.text[:-1].strip("<")) == pytest.approx(100 * best_one.margin, abs=0.5)


def test_the_ranking_is_in_order_and_cuts_only_what_is_far_off() -> None:
    drawing = draw_ranking({"flat": 1e-3, "ring": 2e-6, "swing": 1e-6}, bound_s=0.5e-6, chosen="ring")
    bars = sorted(boxes(drawing), key=lambda box: box.y)
    assert [box.key for box in bars] == ["swing", "ring", "flat"]
    assert [box.width / bars[0].width for box in bars] == pytest.approx([1, 2, 20], rel=0.1)
    assert [box.edge for box in bars] == ["", "ink", ""]
    assert bars[0].fill != bars[1].fill == bars[2].fill
    words = words_of(drawing)
    assert words.count("//") == 1
    assert {"1 µs", "2 µs, 2 ×  ← your choice", "1000 µs, 1000 ×", "lower bound"} <= set(words)
    close = draw_ranking({"a": 1.0, "b": 6.72, "c": 7.87, "d": 19.0})
    widths = [box.width for box in boxes(close)]
    assert np.divide(widths, widths[0]) == pytest.approx([1, 6.72, 7.87, 19])
    assert "//" not in words_of(close)
    ticked = draw_ranking({"ring": 2e-6, "swing": 1e-6}, measured={"ring": 3e-6, "other": 1.0})
    (tick,) = [mark for mark in ticked.marks if isinstance(mark, Line)]
    left = boxes(ticked)[0].x
    assert (tick.points[0][0] - left) / boxes(ticked)[0].width == pytest.approx(3)


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
    places = sorted(Text.get_window_extent(text).y0 for text in ax.texts if text.get_text() in pairs)
    assert np.diff(places).min() > 10
    assert len(places) == len(pairs)
