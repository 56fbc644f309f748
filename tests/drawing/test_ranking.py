"""What the bars of the fastest algorithm show, and what lines over any quantity show."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Text

from rankscope import figures
from rankscope.drawing.ranking import draw_ranking
from tests.figures.shown import artist, boxes, heights, points, words_of


def test_the_ranking_is_in_order_and_cuts_only_what_is_far_off() -> None:
    drawing = draw_ranking({"flat": 1e-3, "ring": 2e-6, "swing": 1e-6}, bound_s=0.5e-6, chosen="ring")
    bars = sorted(boxes(drawing), key=lambda box: box.y)
    assert [box.key for box in bars] == ["swing", "ring", "flat"]
    assert [box.width / bars[0].width for box in bars] == pytest.approx([1, 2, 20], rel=0.1)
    assert [box.edge for box in bars] == ["", "ink", ""]
    assert bars[0].fill != bars[1].fill == bars[2].fill
    words = words_of(drawing)
    assert words.count("//") == 1
    assert {"1 µs", "2 µs, 2 ×", "1000 µs, 1000 ×", "lower bound 0.5 µs"} <= set(words)
    close = draw_ranking({"a": 1.0, "b": 6.72, "c": 7.87, "d": 19.0})
    widths = [box.width for box in boxes(close)]
    assert np.divide(widths, widths[0]) == pytest.approx([1, 6.72, 7.87, 19])


# ---- lines


def test_curves_are_lines_and_markers_in_one_hue_and_names_do_not_cover_each_other() -> None:
    x = np.array([1.0, 2.0, 4.0])
    pairs = {f"line {number}": (x + 0.01 * number, x) for number in range(6)}
    ax = figures.curves(x, pairs, "title", "ranks", "time [ms]", log="x")
    for name, (predicted, measured) in pairs.items():
        assert np.allclose(points(ax, f"{name}, predicted"), np.stack([x, predicted], axis=1))
        assert np.allclose(heights(ax, f"{name}, measured"), measured)
        assert artist(ax, f"{name}, predicted").get_color() == artist(ax, f"{name}, measured").get_color()
    assert ax.get_xscale() == "log"
    ax.set_ylim(0, 50)
    ax.figure.canvas.draw()
    places = sorted(Text.get_window_extent(text).y0 for text in ax.texts if text.get_text() in pairs)
    assert np.diff(places).min() > 10
    assert len(places) == len(pairs)
