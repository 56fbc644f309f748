"""Prediction is a line, execution markers, of one hue a curve."""

from __future__ import annotations

from rankscope import figures

from .shown import artist, labels, points

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
    assert [text.get_text() for text in ax.get_legend().get_texts()] == labels(ax)


def test_what_exists_only_at_whole_numbers_is_drawn_as_dashes_and_not_joined() -> None:
    ax = figures.curves([1, 2, 4], PAIRS, "", "", "", discrete=True)
    assert {line.get_linestyle() for line in ax.lines} == {"None"}
    assert [line.get_label() for line in ax.lines if line.get_marker() == "_"] == [
        "padded, predicted",
        "true, predicted",
    ]
    predicted, executed = artist(ax, "padded, predicted"), artist(ax, "padded, executed")
    assert predicted.get_ydata().tolist() == [1, 2, 3]
    assert predicted.get_markersize() > 2 * executed.get_markersize()
    assert predicted.get_color() == executed.get_color()


def test_a_queue_is_drawn_in_steps_under_its_capacity() -> None:
    ax = figures.queue_fill({"predicted": ([0, 1, 3], [1, 2, 0]), "executed": ([0, 2], [1, 0])}, capacity=2)
    predicted, executed, capacity = ax.lines
    assert points(ax, "predicted").tolist() == [[0, 1], [1, 2], [3, 0]]
    assert predicted.get_drawstyle() == executed.get_drawstyle() == "steps-post"
    assert predicted.get_linestyle() != executed.get_linestyle()
    assert set(capacity.get_ydata()) == {2}
    assert labels(ax) == ["predicted", "executed"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time [s]", "items in the queue")
    assert ax.get_title(loc="left") == "At most 2 items in the queue"
