"""What the Gantt chart shows, read back from the drawing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.figures.marks import Drawing
from rankscope.figures.palette import OTHER, TABLE, WORK
from rankscope.figures.timelines import draw_timeline
from rankscope.timeline import Span, Timeline

from .hues import EYES, LEAST_DISTANCE, closest
from .shown import keys_of, placed, words_of

SPANS = [
    Span(1, "gpu", "step", 0, 10.002, 10.006),
    Span(0, "read", "read", 0, 10.000, 10.002),
    Span(0, "gpu", "step", 0, 10.002, 10.005),
    Span(0, "gpu", "allreduce", 12345, 10.005, 10.0051),
    Span(0, "gpu", "allreduce", 1, 10.007, 10.010),
]


def drawn(*spans: Span) -> Drawing:
    return draw_timeline(Timeline.of(spans))


def test_each_span_is_a_bar_on_its_lane() -> None:
    drawing = drawn(*SPANS)
    (bars,) = drawing.rects
    assert drawing.x_label == "time [ms]"
    assert drawing.width == pytest.approx(10)
    assert np.allclose(bars.x, [2, 0, 2, 5, 7])
    assert np.allclose(bars.width, [4, 2, 3, 0.1, 3])
    assert [label for _, label in drawing.y_ticks] == ["gpu", "read", "gpu"]
    gpu_0, read_0, gpu_1 = (middle for middle, _ in drawing.y_ticks)
    assert np.allclose(bars.y + bars.height / 2, [gpu_1, read_0, *[gpu_0] * 3], atol=0.01)
    heads = {text: y for (_, y), text in placed(drawing).items() if text.startswith("rank")}
    assert list(heads) == ["rank 0", "rank 1"]
    assert heads["rank 0"] < gpu_0 < read_0 < heads["rank 1"] < gpu_1  # in the gap between ranks
    assert gpu_1 - read_0 > 1.5
    assert bars.hatched.tolist() == [False, False, False, True, True]
    assert bars.fill[0] == bars.fill[2] != bars.fill[1]
    legend = [("step", bars.fill[0], False), ("read", bars.fill[1], False), ("allreduce", bars.fill[3], True)]
    assert [(key.label, key.fill, key.hatched) for key in drawing.legend] == legend
    assert "61 %" in drawing.title
    hatched = draw_timeline(Timeline.of(SPANS), hatched=["read"]).rects[0].hatched
    assert hatched.tolist() == [False, True, False, True, True]


def test_ranks_are_named_where_their_lanes_are() -> None:
    def labels(*spans: Span) -> tuple[str, list[str], list[str]]:
        drawing = drawn(*spans)
        return drawing.y_label, [label for _, label in drawing.y_ticks], [w for w in words_of(drawing) if "rank" in w]

    assert labels(*SPANS[1:]) == ("rank 0", ["read", "gpu"], [])
    assert labels(SPANS[0], SPANS[2]) == ("gpu", ["rank 0", "rank 1"], [])
    assert labels(*SPANS) == ("", ["gpu", "read", "gpu"], ["rank 0", "rank 1"])


def test_waiting_is_light_grey_and_takes_no_hue_from_work() -> None:
    spans = [Span(0, "a", "wait", 0, 0.0, 9.0), *(Span(0, "a", f"kind {n}", 0, 10.0 + n, 10.5 + n) for n in range(8))]
    drawing = drawn(*spans, Span(0, "a", "barrier", 0, 20.0, 21.0))
    (bars,) = drawing.rects
    assert bars.fill[0] == bars.fill[9] == "#e2e2e2"
    assert len(set(bars.fill[1:9])) == 8
    assert "#b0b0b0" not in bars.fill
    assert bars.hatched.tolist() == [False] * 9 + [True]
    assert "19 %" in drawing.title


def test_waits_too_short_to_see_are_left_out_and_work_never_is() -> None:
    times = {"step": (0.0, 1.0), "barrier": (1.0, 1.0), "blocked": (1.0, 1.001), "wait": (1.5, 1.6)}
    spans = [Span(0, "a", kind, 0, *between) for kind, between in times.items()]
    drawing = drawn(*spans, Span(0, "a", "step", 1, 1.0, 1.0))
    assert keys_of(drawing) == ["step", "wait"]
    assert len(drawing.rects[0].x) == 3
    mark = drawn(Span(0, "a", "x", 0, 0, 1), Span(0, "a", "mark", 0, 0.5, 0.5))
    assert mark.rects[0].width[1] / mark.width * mark.size_px[0] == pytest.approx(1)  # pixel


def test_a_span_of_no_length_at_the_very_end_is_inside_of_the_drawing() -> None:
    drawing = drawn(Span(0, "a", "x", 0, 0, 1), Span(0, "a", "mark", 0, 1, 1))
    (bars,) = drawing.rects
    assert bars.width[1] / drawing.width * drawing.size_px[0] == pytest.approx(1)
    assert bars.x[1] + bars.width[1] <= drawing.width


def test_items_stand_on_the_bars_that_have_room() -> None:
    words = {(round(x, 3), text) for (x, _), text in placed(drawn(*SPANS)).items() if "rank" not in text}
    assert words == {(4.0, "0"), (1.0, "0"), (3.5, "step 0"), (8.5, "allreduce 1")}  # 12345 has no room
    narrow = drawn(*SPANS, Span(0, "gpu", "step", 2, 10.1, 10.102))
    assert set(words_of(narrow)) - {"rank 0", "rank 1"} == {"0", "1", "2"}  # nor have the kinds here


@pytest.mark.parametrize(
    ("seconds", "unit"), [(5, "s"), (5e-3, "ms"), (5e-6, "µs"), (5e-9, "ns"), (600, "min"), (90_000, "h")]
)
def test_times_have_a_unit_that_suits_them(seconds: float, unit: str) -> None:
    drawing = drawn(Span(0, "a", "b", 0, 3.0, 3.0 + seconds))
    assert drawing.x_label == f"time [{unit}]"
    assert 2 <= len(drawing.x_ticks) <= 11
    assert drawing.x_ticks[-1][0] <= drawing.width * (1 + 1e-9)


def test_of_many_unknown_kinds_the_longest_have_hues_and_the_others_are_grey() -> None:
    spans = [Span(0, "a", f"kind {n}", n, n, n + 0.05 * (n + 1)) for n in range(14)]
    waits = [Span(0, "b", kind, 0, 0, 19) for kind in ("wait", "blocked")]
    drawing = drawn(*spans)
    assert sorted(keys_of(drawing)) == sorted([*(f"kind {n}" for n in range(1, 14)), "other"])
    assert drawing.rects[0].fill[:2] == (OTHER, drawing.rects[0].fill[1])
    assert len(set(drawing.rects[0].fill)) == 14
    assert keys_of(drawn(*spans, *waits))[-1] == "wait, blocked"


def colors(kinds: Sequence[str]) -> dict[str, tuple[str, bool]]:
    drawing = drawn(*(Span(0, "a", kind, n, n, n + 1) for n, kind in enumerate(kinds)))
    rects = drawing.rects[0]
    return dict(zip(kinds, zip(rects.fill, rects.hatched.tolist(), strict=True), strict=True))


def test_a_kind_of_work_looks_the_same_in_every_picture() -> None:
    assert colors(list(WORK)) == WORK
    for kinds in (["copy", "read"], ["step", "start"], ["stop", "allreduce", "decode", "another"], ["load", "decode"]):
        looks = colors(kinds)
        assert {kind: look for kind, look in looks.items() if kind in WORK} == {k: WORK[k] for k in kinds if k in WORK}
        assert len(set(looks.values())) == len(kinds)
    assert keys_of(drawn(*(Span(0, "a", kind, n, n, n + 1) for n, kind in enumerate(["stop", "a", "start"])))) == [
        "stop, start",
        "a",
    ]


def test_a_numbered_kind_takes_no_hue_that_means_something_else() -> None:
    """The passes of a pipeline's second chunk were drawn as reading and decoding."""
    kinds = ["forward", "backward", "forward 1", "backward 1", "memcpy d2d", "mine"]
    looks = colors(kinds)
    meanings = {meaning.hue: meaning.name for meaning in TABLE if meaning.family in ("work", "rank")}
    assert [meanings.get(looks[kind][0]) for kind in kinds[:5]] == ["forward", "backward", None, None, "copying"]
    assert not any(hatched for _, hatched in looks.values())
    for eye, matrix in EYES.items():
        assert closest([looks[kind][0] for kind in kinds[:4]], matrix) > LEAST_DISTANCE, eye


def test_ranks_can_have_names_of_their_own() -> None:
    spans = Timeline.of([Span(0, "a", "step", 0, 0, 1), Span(0, "b", "step", 0, 1, 2), Span(1, "a", "step", 0, 0, 2)])
    heads = draw_timeline(spans, rank_names={0: "DataParallel"}).texts[-1]
    assert heads.text == ("DataParallel", "rank 1")
    assert draw_timeline(spans.select(rank=0), rank_names={0: "DataParallel"}).y_label == "DataParallel"
