"""Machines over each other: every dot is at what was measured, and every name at the end of its own line."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.figures.boxes import draw_boxes, draw_with_peers
from rankscope.box.profile import Point
from rankscope.figures.marks import Drawing
from rankscope.figures.palette import INK

SIZES = [2**power for power in range(8, 30)]


def box(start_s: float, rate: float, sick: bool = False, num_ranks: int = 8, what: str = "allreduce") -> Profile:
    about = {"name": "made up", "backend": "nccl", "num_ranks": num_ranks}
    about |= {"source": {"notes": "sick: no reason"}} if sick else {}
    options = {"algorithm": "native", "in_place": True}
    return Profile(about, {}, tuple(Point(what, size, (start_s + size / rate,), (True,), options) for size in SIZES))


TWO = {"quick": box(1e-5, 200e9), "slow": box(2e-5, 10e9, sick=True)}


def heights(drawing: Drawing, place: int, is_log: bool = False) -> np.ndarray:
    """The values of a line's dots, read from the ticks of the drawing."""
    rects = drawing.rects[place]
    y = rects.y + rects.height / 2
    (y0, low), *_, (y1, high) = drawing.y_ticks
    a, b = (float(label.replace(",", "")) for label in (low, high))
    if is_log:
        a, b = np.log10([a, b])
    values = a + (y - y0) / (y1 - y0) * (b - a)
    return 10**values if is_log else values


@pytest.mark.parametrize("view", ["busbw", "log", "time"])
def test_every_dot_is_at_what_was_measured(view: str) -> None:
    drawing = draw_boxes(TWO, view=view)
    for place, one in enumerate(TWO.values()):
        took_s = np.array([point.median_s for point in one.points if point.num_bytes >= 2**10])
        sizes = np.array([size for size in SIZES if size >= 2**10])
        expected = took_s * 1e6 if view == "time" else 1.75 * sizes / took_s / 1e9
        assert heights(drawing, place, view != "busbw") == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert drawing.x_ticks[0][1] == "1 KiB"
    assert drawing.y_label == ("time [µs]" if view == "time" else "bus bandwidth (busbw) [GB/s]")


def test_each_name_is_at_the_end_of_its_own_line_and_the_title_says_what_was_found() -> None:
    drawing = draw_boxes(TWO | {"other": box(1e-5, 190e9)}, view="log")
    (texts,) = drawing.texts
    grid = len(drawing.y_ticks)
    for place, name in enumerate(texts.text):
        line, hair = drawing.lines[grid + 2 * place : grid + 2 * place + 2]
        assert (hair.x0[0], hair.y0[0]) == (line.x1[-1], line.y1[-1])
        assert hair.y1[-1] == pytest.approx(texts.y[place])
        assert line.dashed.all() == (name == "slow")
    assert np.diff(sorted(texts.y)).min() >= 15 / 330 * drawing.height * 0.999
    assert drawing.title == "allreduce of 512 MiB: quick 349 GB/s, slow 17.5 GB/s"
    assert draw_boxes(TWO, view="time").title == "allreduce of 512 MiB: quick 2.69 ms, slow 53.7 ms"
    assert draw_boxes({"quick": TWO["quick"]}).title == "allreduce of 512 MiB: quick 349 GB/s"
    assert [(key.label, key.line) for key in drawing.legend] == [("known or suspected fault", "dashed")]
    assert draw_boxes({"quick": TWO["quick"]}).legend == ()


def test_yours_is_black_and_a_size_is_marked_where_it_was_measured() -> None:
    drawing = draw_boxes(TWO, yours="slow", at_bytes=2**20)
    colors = [set(rects.fill) for rects in drawing.rects]
    assert colors[1] == {INK} != colors[0]
    assert drawing.rules == (10.0,)
    assert draw_boxes(TWO, at_bytes=2**40).rules == ()


def test_several_collectives_have_a_line_each() -> None:
    both = Profile(TWO["quick"].provenance, {}, TWO["quick"].points + box(1e-5, 9e9, what="allgather").points)
    assert draw_boxes({"a": both}, ["allreduce", "allgather"]).texts[0].text == ("allreduce", "allgather")
    several = draw_boxes({"a": both, "b": TWO["slow"]}, ["allreduce", "allgather"])
    assert several.texts[0].text == ("a, allreduce", "a, allgather", "b, allreduce")
    assert figures.profile({"a": both}, collective="allgather").texts[0].get_text() == "a"


def test_one_size_is_a_dot_and_in_place_goes_before_out_of_place() -> None:
    options = {"algorithm": "native", "in_place": False}
    point = Point("allreduce", 512, (3e-6,), (True,), options)
    one = Profile({"name": "a", "backend": "nccl", "num_ranks": 2}, {}, (point,))
    assert one.native_s("allreduce") == {512: 3e-6}
    assert one.native_s("allgather") == {}
    assert len(draw_boxes({"a": one}).rects[0].x) == 1
    several = Profile(
        one.provenance, {}, (point, Point("allreduce", 512, (2e-6,), (True,), options | {"in_place": True}))
    )
    assert several.native_s("allreduce") == {512: 2e-6}
    far = draw_boxes({"a": one, "b": TWO["quick"]})
    assert far.title == "allreduce: up to 349 GB/s", "no size in common"


def test_a_profile_is_drawn_over_those_of_the_bank_that_are_like_it() -> None:
    drawing = draw_with_peers(Profile.load("bank:runpod_a100_2_no_p2p"))
    assert drawing.texts[0].text == ("yours", "a100_80gb_2", "runpod_a100_2")
    assert set(drawing.rects[0].fill) == {INK}
    assert "yours 13.6 GB/s" in drawing.title
    assert draw_with_peers(TWO["quick"]).texts[0].text == ("yours",), "no GPU is like one that is not named"


@pytest.mark.parametrize("view", ["busbw", "log"])
def test_a_view_of_the_bus_bandwidth_needs_one(view: str) -> None:
    """The errors were "math domain error" and "cannot convert float infinity to integer"."""
    one_rank = box(1e-5, 200e9, num_ranks=1)
    with pytest.raises(ValueError, match=f"view must be 'time' for profiles without a bus bandwidth.*got '{view}'"):
        draw_boxes({"a": one_rank}, view=view)
    assert draw_boxes({"a": one_rank}, view="time").title.startswith("allreduce of 512 MiB: a ")
    assert len(draw_boxes(TWO | {"a": one_rank}).rects) == 3, "above the axis' 0 there are others"
    with pytest.raises(ValueError, match="got 'log'"):
        draw_boxes(TWO | {"a": one_rank}, view="log")


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="at_bytes must be .*got -1"):
        draw_boxes(TWO, at_bytes=-1)
    with pytest.raises(ValueError, match=r"profiles\['quick'\] must have allgather of the backend, got none"):
        draw_boxes(TWO, "allgather")
    with pytest.raises(ValueError, match="view must be one of 'busbw', 'log', 'time', got 'rate'"):
        figures.profile(TWO, "rate")
    with pytest.raises(ValueError, match="from 1 to 12 lines, got 0"):
        draw_boxes({})
    with pytest.raises(ValueError, match="from 1 to 12 lines, got 13"):
        draw_boxes({str(place): TWO["quick"] for place in range(13)})
    with pytest.raises(ValueError, match="must have allreduce of the backend, got none"):
        draw_with_peers(Profile(TWO["quick"].provenance, {}, ()))
    with pytest.raises(ValueError, match=r"profiles\['a'\] must be a Profile, got 3"):
        figures.profile({"a": 3})
