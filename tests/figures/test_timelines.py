"""What the Gantt chart shows, read back from the drawing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib import pyplot as plt

from rankscope import figures
from rankscope.figures.svg import to_svg
from rankscope.figures.timelines import draw_timeline
from rankscope.timeline import Span, Timeline

SPANS = [
    Span(1, "gpu", "step", 0, 10.002, 10.006),
    Span(0, "read", "read", 0, 10.000, 10.002),
    Span(0, "gpu", "step", 0, 10.002, 10.005),
    Span(0, "gpu", "allreduce", 12345, 10.005, 10.0051),
    Span(0, "gpu", "allreduce", 1, 10.007, 10.010),
]


def test_each_span_is_a_bar_on_its_lane():
    drawing = draw_timeline(Timeline.of(SPANS))
    (bars,) = drawing.rects
    assert drawing.x_label == "time [ms]"
    assert drawing.width == pytest.approx(10)
    assert np.allclose(bars.x, [2, 0, 2, 5, 7])
    assert np.allclose(bars.width, [4, 2, 3, 0.1, 3])
    rows = {label: middle for middle, label in drawing.y_ticks}
    assert list(rows) == ["0 gpu", "0 read", "1 gpu"]
    expected = [rows[label] for label in ["1 gpu", "0 read", *["0 gpu"] * 3]]
    assert np.allclose(bars.y + bars.height / 2, expected, atol=0.01)
    assert rows["1 gpu"] - rows["0 read"] > 1  # a gap between ranks
    assert bars.hatched.tolist() == [False, False, False, True, True]
    assert bars.fill[0] == bars.fill[2] != bars.fill[1]
    assert [(key.label, key.fill, key.hatched) for key in drawing.legend] == [
        ("step", bars.fill[0], False),
        ("read", bars.fill[1], False),
        ("allreduce", bars.fill[3], True),
    ]
    assert draw_timeline(Timeline.of([Span(0, "a", "b", 0, 0.0, 1234.6e-3)])).title.startswith("1235 ms; busiest")
    assert drawing.title == "10 ms; busiest is rank 0's gpu, 61% of the time"


def test_waiting_is_light_grey_and_takes_no_hue_from_work():
    spans = [Span(0, "a", "wait", 0, 0.0, 9.0), *(Span(0, "a", f"kind {n}", 0, 10.0 + n, 10.5 + n) for n in range(8))]
    drawing = draw_timeline(Timeline.of([*spans, Span(0, "a", "barrier", 0, 20.0, 21.0)]))
    (bars,) = drawing.rects
    assert bars.fill[0] == bars.fill[9] == "#e2e2e2"
    assert len(set(bars.fill[1:9])) == 8
    assert "#b0b0b0" not in bars.fill
    assert bars.hatched.tolist() == [False] * 9 + [True]
    assert drawing.title == "21 s; busiest is rank 0's a, 19% of the time"


def test_waits_too_short_to_see_are_left_out_and_work_never_is():
    spans = [Span(0, "a", "step", 0, 0.0, 1.0), Span(0, "a", "barrier", 1, 1.0, 1.0), Span(0, "a", "step", 1, 1.0, 1.0),
             Span(0, "a", "blocked", 1, 1.0, 1.001), Span(0, "a", "wait", 2, 1.5, 1.6)]  # fmt: skip
    drawing = draw_timeline(Timeline.of(spans))
    assert [key.label for key in drawing.legend] == ["step", "wait"]
    assert len(drawing.rects[0].x) == 3


def test_items_stand_on_the_bars_that_have_room():
    drawing = draw_timeline(Timeline.of(SPANS))
    words = {(round(x, 3), text) for t in drawing.texts for x, text in zip(t.x.tolist(), t.text, strict=True)}
    assert words == {(4.0, "0"), (1.0, "0"), (3.5, "step 0"), (8.5, "allreduce 1")}  # 12345 has no room
    narrow = draw_timeline(Timeline.of([*SPANS, Span(0, "gpu", "step", 2, 10.1, 10.102)]))
    words = {text for texts in narrow.texts for text in texts.text}
    assert words == {"0", "1", "2"}  # nor have the kinds here


def test_what_is_hatched_can_be_chosen():
    assert draw_timeline(Timeline.of(SPANS), hatched=["read"]).rects[0].hatched.tolist() == [False, True, *[False] * 3]


@pytest.mark.parametrize(
    ("seconds", "unit"), [(5, "s"), (5e-3, "ms"), (5e-6, "µs"), (5e-9, "ns"), (600, "min"), (90_000, "h")]
)
def test_times_have_a_unit_that_suits_them(seconds, unit):
    drawing = draw_timeline(Timeline.of([Span(0, "a", "b", 0, 3.0, 3.0 + seconds)]))
    assert drawing.x_label == f"time [{unit}]"
    assert 2 <= len(drawing.x_ticks) <= 11
    assert drawing.x_ticks[-1][0] <= drawing.width * (1 + 1e-9)


def test_of_many_kinds_the_longest_keep_their_hues_and_the_others_are_grey():
    drawing = draw_timeline(Timeline.of(Span(0, "a", f"kind {n}", n, n, n + 0.1 * (n + 1)) for n in range(10)))
    assert [key.label for key in drawing.legend] == [*(f"kind {n}" for n in range(3, 10)), "other"]
    assert drawing.rects[0].fill[:3] == (drawing.legend[-1].fill,) * 3
    assert len(set(drawing.rects[0].fill)) == 8


def colors(kinds):
    drawing = draw_timeline(Timeline.of(Span(0, "a", kind, n, n, n + 1) for n, kind in enumerate(kinds)))
    return {key.label: key.fill for key in drawing.legend}


def test_known_kinds_have_the_same_hue_in_every_picture():
    known = ["read", "decode", "collate", "pin", "copy", "compute", "start", "stop"]
    whole = colors(known)
    assert len(set(whole.values())) == 8
    for kinds in (["copy", "read"], ["step", "start"], ["stop", "allreduce", "decode", "another"]):
        found = colors(kinds)
        assert list(found) == kinds
        assert len(set(found.values())) == len(kinds)
        assert {kind: hue for kind, hue in found.items() if kind in known} == {k: whole[k] for k in kinds if k in known}
    assert colors(["train"])["train"] == colors(["step"])["step"] == whole["compute"]
    assert colors(["load"])["load"] == whole["read"]


def test_two_kinds_that_are_known_by_one_hue_are_still_told_apart():
    found = colors(["load", "read", "decode"])
    assert len(set(found.values())) == 3
    assert found["decode"] == colors(["decode"])["decode"]
    assert len(set(colors(["train", "step", "compute", "load", "read", "a", "b", "c"]).values())) == 8


def test_long_waits_do_not_take_the_place_of_work_among_many_kinds():
    spans = [Span(0, "a", f"kind {n}", n, n, n + 0.1 * (n + 1)) for n in range(10)]
    waits = [Span(0, "b", kind, 0, 0, 9) for kind in ("wait", "blocked")]
    drawing = draw_timeline(Timeline.of([*spans, *waits]))
    assert [key.label for key in drawing.legend if key.label.startswith("kind")] == [f"kind {n}" for n in range(3, 10)]


def test_only_bars_too_narrow_for_it_have_no_outline():
    spans = Timeline.of([Span(0, "a", "step", 0, 0.0, 1.0), Span(0, "a", "read", 0, 1.0, 1.001)])
    (bars,) = (c for c in figures.timeline(spans).collections if c.get_gid() == "rects")
    assert (np.array(bars.get_linewidths()) > 0).tolist() == [True, False]
    svg = to_svg(draw_timeline(spans))
    wide, narrow = re.findall(r"<rect [^>]*/>", svg.split('class="marks"')[1])[:2]
    assert '<g stroke="#ffffff" stroke-width="1">' in svg
    assert 'stroke-width="0"' in narrow
    assert "stroke-width" not in wide
    thin = to_svg(draw_timeline(Timeline.of(Span(0, "a", "step", n, n, n + 1) for n in range(500))))
    assert thin.count('stroke-width="0"') == 1


def test_a_mark_can_be_seen():
    drawing = draw_timeline(Timeline.of([Span(0, "a", "x", 0, 0, 1), Span(0, "a", "mark", 0, 0.5, 0.5)]))
    assert drawing.rects[0].width[1] / drawing.width * drawing.size_px[0] == pytest.approx(1)


def test_nothing_and_too_much():
    assert draw_timeline(Timeline.of([])).title == "nothing ran"
    many = Timeline.of([SPANS[0]] * 20_001)
    with pytest.raises(ValueError, match="at most 20000 spans, got 20001: select a window or a rank"):
        draw_timeline(many)
    with pytest.raises(ValueError, match="timeline must be a Timeline, got 'spans'"):
        draw_timeline("spans")


def test_the_figure_function_draws_on_the_axes_it_is_given():
    _, ax = plt.subplots()
    assert figures.timeline(Timeline.of(SPANS), ax=ax, title="mine") is ax
    assert ax.get_title(loc="left") == "mine"
