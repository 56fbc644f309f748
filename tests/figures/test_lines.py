"""Prediction is a line, execution markers, of one hue a curve."""

from __future__ import annotations

import pytest
from matplotlib import pyplot as plt

from rankscope import figures

PAIRS = {"padded": ([1, 2, 3], [1, 2, 4]), "true": ([2, 2, 2], None), "measured": (None, [3, 3, 3])}


def test_lines_and_markers_share_a_hue_and_say_what_they_are():
    ax = figures.curves([1, 2, 4], PAIRS, "title", "ranks", "accuracy")
    drawn = {line.get_label(): line for line in ax.lines}
    assert list(drawn) == ["padded, predicted", "padded, executed", "true, predicted", "measured, executed"]
    assert drawn["padded, executed"].get_ydata().tolist() == [1, 2, 4]
    assert drawn["padded, executed"].get_xdata().tolist() == [1, 2, 4]
    assert drawn["padded, predicted"].get_color() == drawn["padded, executed"].get_color()
    assert drawn["padded, predicted"].get_color() != drawn["true, predicted"].get_color()
    assert drawn["padded, predicted"].get_linestyle() != drawn["true, predicted"].get_linestyle()  # in grey, too
    assert drawn["padded, executed"].get_marker() != drawn["measured, executed"].get_marker()
    assert drawn["padded, predicted"].get_marker() in ("None", "")
    assert drawn["padded, executed"].get_linestyle() == "None"
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("title", "ranks", "accuracy")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(drawn)


def test_what_exists_only_at_whole_numbers_is_drawn_as_dashes_and_not_joined():
    drawn = {line.get_label(): line for line in figures.curves([1, 2, 4], PAIRS, "", "", "", discrete=True).lines}
    assert {line.get_linestyle() for line in drawn.values()} == {"None"}
    dashes = {name for name, line in drawn.items() if line.get_marker() == "_"}
    assert dashes == {"padded, predicted", "true, predicted"}
    assert drawn["padded, predicted"].get_ydata().tolist() == [1, 2, 3]
    assert drawn["padded, predicted"].get_markersize() > 2 * drawn["padded, executed"].get_markersize()
    assert drawn["padded, predicted"].get_color() == drawn["padded, executed"].get_color()


def test_a_queue_is_drawn_in_steps_under_its_capacity():
    fills = {"predicted": ([0, 1, 3], [1, 2, 0]), "executed": ([0, 2], [1, 0])}
    ax = figures.queue_fill(fills, capacity=2, title="title")
    predicted, executed, capacity = ax.lines
    assert (predicted.get_xdata().tolist(), predicted.get_ydata().tolist()) == ([0, 1, 3], [1, 2, 0])
    assert predicted.get_drawstyle() == executed.get_drawstyle() == "steps-post"
    assert predicted.get_linestyle() != executed.get_linestyle()
    assert set(capacity.get_ydata()) == {2}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["predicted", "executed"]
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("title", "time [s]", "items in the queue")


@pytest.mark.parametrize(
    ("fills", "capacity", "message"),
    [
        ({}, None, "fills must number from 1 to 8, by name, got 0"),
        (3, None, "fills must number from 1 to 8, by name, got 3"),
        ({"a": [1, 2, 3]}, None, r"fills\['a'\] must be a pair of columns, got \[1, 2, 3\]"),
        ({"a": ([0, 1], [1])}, None, r"a: \(1,\) numbers over times of shape \(2,\)"),
        ({"a": ([0], [1])}, -1, "capacity must be a whole number of at least 0, got -1"),
    ],
)
def test_fills_that_cannot_be_drawn(fills, capacity, message):
    with pytest.raises(ValueError, match=message):
        figures.queue_fill(fills, capacity)


def test_it_draws_on_the_axes_it_is_given():
    _, ax = plt.subplots()
    assert figures.curves([1, 2, 4], PAIRS, "", "", "", ax=ax) is ax


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({}, "curves must number from 1 to 8, by name, got 0"),
        (None, "curves must number from 1 to 8, by name, got None"),
        ({str(n): ([1], None) for n in range(9)}, "from 1 to 8, by name, got 9"),
        ({"a": (None, None)}, "a prediction or an execution each, got neither for 'a'"),
        ({"a": 3}, r"curves\['a'\] must be a pair of columns, got 3"),
        ({"a": ([1, 2], None)}, r"a, predicted: \(2,\) values over x of shape \(1,\)"),
        ({"a": (None, [[1]])}, r"a, executed: \(1, 1\) values over x of shape \(1,\)"),
    ],
)
def test_bad_input(pairs, message):
    with pytest.raises(ValueError, match=message):
        figures.curves([1], pairs, "", "", "")
