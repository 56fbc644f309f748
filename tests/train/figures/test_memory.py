"""The pictures of a rank's memory, read back from drawings and artists."""

from __future__ import annotations

from collections import defaultdict

import pytest

from rankscope.figures.palette import MEMORY
from rankscope.train import zero
from rankscope.train.figures.memory import draw_memory
from rankscope.train.zero.model import TERMS

STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s, largest_layer=128_000_000, activation_bytes=10**9) for s in range(4)}
LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "999 GB": 999e9}


def test_each_term_is_a_piece_where_the_one_before_ends() -> None:
    pieces = defaultdict[int, list[tuple[float, float, str, bool]]](list)
    for rects in draw_memory(STAGES).rects:
        for x, y, width, fill, hatched in zip(rects.x, rects.y, rects.width, rects.fill, rects.hatched, strict=True):
            if width > 0:
                pieces[int(y)].append((float(x), float(width), fill, bool(hatched)))
    for row, memory in enumerate(STAGES.values()):
        shown = [term for term in TERMS if memory.terms[term]]
        assert "buckets" not in shown
        end = 0.0
        for term, (x, width, fill, hatched) in zip(shown, pieces[row], strict=True):
            assert (fill, hatched) == MEMORY[term]
            assert width == pytest.approx(memory.terms[term] / 1e9)
            assert x == pytest.approx(end)
            end += width
        assert end == pytest.approx(memory.total_bytes / 1e9)


def test_totals_limits_and_legend() -> None:
    drawing = draw_memory(STAGES, LIMITS, chosen="stage 2")
    totals, *limits = drawing.texts
    assert totals.text == ("121 GB", "32.4 GB", "17.9 GB", "3.39 GB")
    assert [limit.text for limit in limits] == [("24 GB",), ("80 GB",)]
    assert drawing.rules == (24.0, 80.0)  # the third is out of sight
    assert drawing.title == "stage 0: 121 GB per rank; stage 3: 3.39 GB"
    assert [key.label for key in drawing.legend if key.hatched] == ["largest layer"]
    assert [label for _, label in drawing.y_ticks] == list(STAGES)
    frame = drawing.rects[0]
    assert frame.y.tolist() == [2.04]
    assert frame.width[0] > STAGES["stage 2"].total_bytes / 1e9


def test_no_line_of_a_limit_crosses_a_total() -> None:
    for activation_gb in range(0, 60, 3):
        bars = {f"stage {s}": zero.memory(7.5e9, 64, s, activation_bytes=activation_gb * 10**9) for s in range(4)}
        drawing = draw_memory(bars, {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9})
        per_px = drawing.width / drawing.size_px[0]
        totals = drawing.texts[0]
        for x, text, memory in zip(totals.x.tolist(), totals.text, bars.values(), strict=True):
            assert x > memory.total_bytes / 1e9
            assert not [limit for limit in drawing.rules if x < limit < x + 7.0 * len(text) * per_px]


def test_a_total_that_is_moved_past_a_limit_at_the_right_edge_has_room_there() -> None:
    bar = zero.memory(10**9, 1, 0, activation_bytes=52_300_000_000)
    assert bar.total_bytes == 68_300_000_000
    drawing = draw_memory({"one GPU": bar}, {"75 GB": 75e9, "80 GB": 80e9})
    assert drawing.rules == (75.0, 80.0)
    (x,) = drawing.texts[0].x.tolist()
    assert x > 80
    per_px = drawing.width / drawing.size_px[0]
    assert x + 7.0 * len("68.3 GB") * per_px < drawing.width
