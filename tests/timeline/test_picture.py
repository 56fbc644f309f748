"""What the drawings of timelines show, read back from their marks."""

from __future__ import annotations

import pytest

from rankscope.drawing.drawing import to_svg
from rankscope.drawing.marks import Text
from rankscope.drawing.palette import OTHER, WORK
from rankscope.timeline import Span, Timeline
from rankscope.timeline.picture import draw_timeline, time_scale
from tests.figures.hues import keys_of
from tests.figures.shown import boxes, words_of

SPANS = [
    Span(1, "gpu", "step", 0, 10.002, 10.006),
    Span(0, "read", "read", 0, 10.000, 10.002),
    Span(0, "gpu", "step", 1, 10.002, 10.005),
    Span(0, "gpu", "allreduce", 12345, 10.005, 10.0051),
    Span(0, "gpu", "allreduce", 1, 10.007, 10.010),
]


def test_each_span_is_a_box_on_its_lane_and_begins_when_it_does() -> None:
    timeline = Timeline.of(SPANS)
    left, px_per_s = time_scale(timeline)
    shown = [box for box in boxes(draw_timeline(timeline)) if box.height > 12]
    rows = sorted({box.y for box in shown})
    got = sorted((rows.index(box.y), round((box.x - left) / px_per_s, 5), box.fill, box.hatched) for box in shown)
    looks = {span: WORK[span.kind] for span in SPANS}
    lane = {(0, "gpu"): 0, (0, "read"): 1, (1, "gpu"): 2}
    assert got == sorted((lane[span[:2]], round(span.start_s - 10, 5), *looks[span]) for span in SPANS)
    assert max(box.x + box.width for box in shown) <= left + 0.01 * px_per_s


def test_rows_are_named_after_lanes_ranks_or_both() -> None:
    def names(*spans: Span) -> list[str]:
        marks = draw_timeline(Timeline.of(spans)).marks
        return [mark.text for mark in marks if isinstance(mark, Text) and (mark.anchor, mark.tone) == ("end", "ink")]

    assert names(*SPANS) == ["rank 0 gpu", "read", "rank 1 gpu"]
    assert names(SPANS[0], SPANS[2]) == ["rank 0", "rank 1"]
    assert names(SPANS[2], SPANS[4]) == ["gpu"]


def test_a_wait_is_a_dotted_line_with_its_length() -> None:
    drawing = draw_timeline(Timeline.of([Span(0, "a", "step", 0, 0, 1), Span(0, "a", "wait", 0, 1, 9)]))
    assert [(box.look, box.text) for box in boxes(drawing)] == [("work", "step"), ("wait", "wait 8 s")]
    assert to_svg(drawing).count("stroke-dasharray") == 1


def test_a_kind_has_numbers_where_most_fit_and_no_name_that_its_row_has() -> None:
    spans = [Span(0, "read 0", "read", item, item, item + (0.05 if item else 1)) for item in range(3)]
    assert [box.text for box in boxes(draw_timeline(Timeline.of(spans)))] == ["", "", ""]


def test_what_no_bar_and_no_row_names_is_in_the_key_once() -> None:
    kinds = "read", "step", "copy_in", "copy_out", "forward", "wait", "barrier"
    spans = [Span(0, "read", kind, 0, time, time + 0.1) for time, kind in enumerate(kinds)]
    drawing = draw_timeline(Timeline.of([*spans, Span(0, "gpu", "step", 0, 0, 9)]))
    assert set(keys_of(drawing)) == {"copy in, copy out", "forward", "wait, barrier"}


def test_of_many_unknown_kinds_the_longest_have_hues_and_the_others_are_grey() -> None:
    spans = [Span(0, "a", f"mine{number}", 0, number, number + 0.05 * (number + 1)) for number in range(15)]
    fills = [box.fill for box in sorted(boxes(draw_timeline(Timeline.of(spans)))) if box.height > 12]
    assert fills[:3] == [OTHER] * 3
    assert len(set(fills[3:])) == 12
    assert not set(fills[3:]) & {OTHER}


def test_two_timelines_share_an_axis_and_the_difference_of_their_ends_is_stated() -> None:
    def steps(seconds: float) -> Timeline:
        return Timeline.of([Span(0, "gpu", "forward", 0, 0.0, seconds)])

    drawing = draw_timeline({"predicted": steps(0.0072), "measured": steps(0.0054)})
    first, second = sorted(boxes(drawing), key=lambda box: box.y)
    tones = [getattr(mark, "tone", "") for mark in drawing.marks]
    assert tones.index("accent") < drawing.marks.index(first)  # behind the bars
    assert second.width / first.width == pytest.approx(0.75, rel=0.01)
    assert {"predicted", "measured", "1.8 ms less"} <= set(words_of(drawing))


def test_rounding_is_no_idle_time() -> None:
    steps = [Span(0, "gpu", "step", number, 0.1 * number, 0.1 * number + 0.1) for number in range(8)]
    assert draw_timeline(Timeline.of(steps)).title == "Rank 0's gpu idles for 0 s of 800 ms"
