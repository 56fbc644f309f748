"""Machines over each other: every dot is at what was measured, and every name at the end of its own line."""

from __future__ import annotations

import numpy as np
import pytest

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
    assert drawing.x_ticks[0][1] == "4 KiB"
    assert drawing.y_label == ("time [µs]" if view == "time" else "bus bandwidth (busbw) [GB/s]")


def test_yours_is_black_and_a_size_is_marked_where_it_was_measured() -> None:
    drawing = draw_boxes(TWO, yours="slow", at_bytes=2**20)
    colors = [set(rects.fill) for rects in drawing.rects]
    assert colors[1] == {INK} != colors[0]
    assert drawing.rules == (10.0,)
    assert draw_boxes(TWO, at_bytes=2**40).rules == ()
    assert drawing.title.index("349 GB/s") < drawing.title.index("17.5 GB/s")  # the fastest first
    in_time = draw_boxes(TWO, view="time").title
    assert in_time.index("2.69 ms") < in_time.index("53.7 ms")


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


def test_a_profile_is_drawn_over_those_of_the_bank_that_are_like_it() -> None:
    drawing = draw_with_peers(Profile.load("bank:runpod_a100_2_no_p2p"))
    assert drawing.texts[0].text == ("yours", "a100_80gb_2", "runpod_a100_2")
    assert set(drawing.rects[0].fill) == {INK}
    assert draw_with_peers(TWO["quick"]).texts[0].text == ("yours",), "no GPU is like one that is not named"
