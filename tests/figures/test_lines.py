"""Prediction is a line, execution markers, of one hue a curve."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rankscope import figures
from rankscope.figures.line_axes import line_axes

from .shown import artist, below, labels, named, points

PAIRS = {"padded": ([1, 2, 3], [1, 2, 4]), "true": ([2, 2, 2], None), "measured": (None, [3, 3, 3])}


def test_lines_and_markers_share_a_hue_and_say_what_they_are() -> None:
    ax = figures.curves([1, 2, 4], PAIRS, "title", "ranks", "accuracy")
    assert labels(ax) == ["padded, predicted", "padded, executed", "true, predicted", "measured, executed"]
    predicted, executed, other, measured = (artist(ax, label) for label in labels(ax))
    assert points(ax, "padded, executed").tolist() == [[1, 1], [2, 2], [4, 4]]
    assert predicted.get_color() == executed.get_color() != other.get_color()
    assert predicted.get_linestyle() != other.get_linestyle()  # in grey, too
    assert executed.get_marker() != measured.get_marker()
    assert predicted.get_marker() in ("None", "")
    assert executed.get_linestyle() == "None"
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("title", "ranks", "accuracy")
    assert below(ax) == ["predicted", "executed"]
    assert ax.get_legend() is None  # nothing lies on the data
    assert named(ax) == ["padded", "true", "measured"]


def test_names_stand_at_the_ends_of_lines_whatever_becomes_of_the_axes() -> None:
    ax = figures.curves([1, 2, 4], {"low": ([1, 1, 1], None), "high": ([1, 5, 9], None)}, "", "", "")
    assert below(ax) == []  # all of one kind

    def heights() -> list[float]:
        ax.figure.canvas.draw()
        return [text.get_position()[1] for text in ax.texts]

    ax.set_ylim(0, 10)
    assert np.allclose(heights(), [0.1, 0.9])
    ax.set_ylim(0, 100)
    close = heights()
    assert close[0] < close[1] < 0.2
    assert close[1] - close[0] > 0.03  # 0.01 and 0.09 of the height are moved apart only where names would meet
    alone = figures.curves([1, 2], {"only": ([1, 2], [1, 2])}, "", "", "")
    assert named(alone) == []


def test_ticks_of_logarithmic_axes_are_numbers_without_exponents() -> None:
    x = [1e3, 1e5, 1e7]
    curves = {"over decades": ([0.01, 2, 3e4], None)}

    def tick_labels(**options: Any) -> tuple[list[str], list[str]]:
        ax = figures.curves(x, curves, "", "", "", **options)
        ax.figure.canvas.draw()
        low_x, high_x = ax.get_xlim()
        low_y, high_y = ax.get_ylim()
        on_x = [t.label1.get_text() for t in ax.xaxis.get_major_ticks() if low_x <= t.get_loc() <= high_x]
        on_y = [t.label1.get_text() for t in ax.yaxis.get_major_ticks() if low_y <= t.get_loc() <= high_y]
        assert not any(t.label1.get_text() for t in ax.yaxis.get_minor_ticks())
        assert ax.get_xticks(minor=True).size == 0
        return on_x, on_y

    powers_x = ["1,000", "10,000", "100,000", "1,000,000", "10,000,000"]
    powers_y = ["0.01", "0.1", "1", "10", "100", "1,000", "10,000"]
    assert tick_labels(log="xy") == (powers_x, powers_y)
    on_x, on_y = tick_labels(log="x")
    assert on_x == powers_x
    assert on_y != powers_y
    on_x, on_y = tick_labels(log="y")
    assert on_x != powers_x
    assert on_y == powers_y
    on_x, on_y = tick_labels()
    assert on_x != powers_x
    assert on_y != powers_y
    few = figures.curves([1, 2, 4, 8], {"few": ([10, 20, 30, 40], None)}, "", "", "", log="x")
    few.figure.canvas.draw()
    assert [text.get_text() for text in few.get_xticklabels() if 1 <= text.get_position()[0] <= 8] == ["1", "2", "5"]


def test_what_exists_only_at_whole_numbers_is_drawn_as_dashes_and_not_joined() -> None:
    ax = figures.curves([1, 2, 4], PAIRS, "", "", "", discrete=True)
    assert {artist(ax, label).get_linestyle() for label in labels(ax)} == {"None"}
    assert [line.get_label() for line in ax.lines if line.get_marker() == "_"] == [
        "padded, predicted",
        "true, predicted",
    ]
    predicted, executed = artist(ax, "padded, predicted"), artist(ax, "padded, executed")
    assert predicted.get_ydata().tolist() == [1, 2, 3]
    assert predicted.get_markersize() > 2 * executed.get_markersize()
    assert predicted.get_color() == executed.get_color()


@pytest.mark.parametrize(("grid", "shown"), [("", set()), ("x", {"x"}), ("y", {"y"}), ("both", {"x", "y"})])
def test_the_grid_is_the_one_asked_for_whatever_the_style_of_matplotlib(grid: str, shown: set[str]) -> None:
    with plt.style.context("ggplot"):  # which has both
        ax = line_axes(None, (4, 3), "title", "x [s]", "y [s]", grid=grid)
    axes = {"x": ax.xaxis, "y": ax.yaxis}
    assert {name for name, axis in axes.items() if axis.get_gridlines()[0].get_visible()} == shown


@pytest.mark.parametrize("grid", ["", "x", "y", "both"])
def test_a_style_with_a_grid_of_minor_ticks_adds_none(grid: str) -> None:
    with plt.rc_context({"axes.grid": True, "axes.grid.which": "both"}):
        ax = line_axes(None, (4, 3), "title", "x [s]", "y [s]", log_y=True, y_limits=(0.1, 10), grid=grid)
    ax.figure.canvas.draw()
    assert ax.yaxis.get_minor_ticks()
    assert not any(tick.gridline.get_visible() for tick in ax.yaxis.get_minor_ticks())


def test_powers_of_ten_are_named_without_exponents() -> None:
    ax = line_axes(None, (4, 3), "title", "x", "y", log_y=True, y_limits=(2e-6, 2e7))
    ax.figure.canvas.draw()
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert {"0.00001", "0.1", "10,000,000"} <= set(names)
    assert not any("e" in name or "$" in name for name in names)


def test_markers_have_the_hue_of_their_line_if_a_known_algorithm_was_only_measured() -> None:
    measured = {"mine": ([1, 2], [3, 4]), "flat": ([1, 2], [5, 6])}
    ax = figures.costs([1, 2], {"mine": [3, 4]}, measured=measured)
    markers, *_ = artist(ax, "mine, measured")
    assert artist(ax, "mine").get_color() == markers.get_color() != artist(ax, "flat, measured")[0].get_color()


def test_a_bound_of_zero_has_its_name_at_the_bottom_of_the_axis() -> None:
    ax = figures.costs([1, 100, 10_000], {"ring": [1e-5, 1e-4, 1e-3]}, bound_s=[1e-6, 1e-6, 0])
    ax.figure.canvas.draw()  # a name far below the axes would leave no room for them, of which matplotlib warns
    (name,) = [text for text in ax.texts if text.get_text() == "lower bound"]
    assert -0.1 < name.get_position()[1] < 0.5  # as a share of the height of the axes
