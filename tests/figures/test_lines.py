"""Prediction is a line, execution markers, of one hue a curve."""

from __future__ import annotations

import numpy as np

from rankscope import figures

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
    curves = {"over decades": ([0.01, 2, 3e4], None)}
    ax = figures.curves([1e3, 1e5, 1e7], curves, "", "", "", log="xy")
    ax.figure.canvas.draw()
    names = {label.get_text() for label in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    assert {"1,000", "10,000,000", "0.01", "10,000"} <= names
    assert not any("e" in name or "$" in name for name in names)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    plain = figures.curves([1e3, 1e5, 1e7], curves, "", "", "")
    assert (plain.get_xscale(), plain.get_yscale()) == ("linear", "linear")


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


def test_markers_have_the_hue_of_their_line_if_a_known_algorithm_was_only_measured() -> None:
    measured = {"mine": ([1, 2], [3, 4]), "flat": ([1, 2], [5, 6])}
    ax = figures.costs([1, 2], {"mine": [3, 4]}, measured=measured)
    markers, *_ = artist(ax, "mine, measured")
    assert artist(ax, "mine").get_color() == markers.get_color() != artist(ax, "flat, measured")[0].get_color()
