"""The pictures of DDP's buckets and of bucket caps, read back from their marks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rankscope.cluster import Link
from rankscope.drawing.drawing import Drawing
from rankscope.drawing.marks import LEFT_PX, Box, Line, Text
from rankscope.train import ddp
from rankscope.train.ddp import LocalStep
from rankscope.train.ddp.picture import draw_buckets, draw_caps

from ..figure_cases import BUCKETS


def boxes(drawing: Drawing) -> list[Box]:
    return [mark for mark in drawing.marks if isinstance(mark, Box)]


def test_a_row_holds_the_gradients_of_a_bucket_by_their_bytes() -> None:
    drawing = draw_buckets(BUCKETS)
    pieces = boxes(drawing)
    assert [piece.key for piece in pieces] == [5, 4, 3, 0, 2, 1]
    px = pieces[0].width / 6  # of 256 KiB
    assert [piece.width / px for piece in pieces] == pytest.approx([6, 5, 4, 1, 3, 2])
    assert [round((piece.x - LEFT_PX) / px, 9) for piece in pieces] == [0, 0, 5, 0, 0, 3]
    assert [piece.hatched for piece in pieces] == [False, False, False, True, False, False]
    rows = sorted({piece.y for piece in pieces})
    assert [rows.index(piece.y) for piece in pieces] == [0, 1, 1, 2, 3, 3]
    texts = {mark.text for mark in drawing.marks if isinstance(mark, Text)}
    assert {"1.5 MiB", "2.25 MiB", "256 KiB", "1.25 MiB"} <= texts
    dashed = [mark.points[0][0] for mark in drawing.marks if isinstance(mark, Line) and mark.dash]
    assert [(x - LEFT_PX) / px for x in dashed] == pytest.approx([4, 8, 8, 8])


def test_before_the_rebuild_no_bucket_has_a_cap() -> None:
    first = draw_buckets(replace(BUCKETS, iterations=BUCKETS.iterations[:1]))
    assert len({piece.y for piece in boxes(first)}) == 1
    assert not any(mark.dash for mark in first.marks if isinstance(mark, Line))


def rows_of(drawing: Drawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, Text) and mark.anchor == "end"]


def test_bars_are_the_default_powers_of_two_and_the_caps_of_interest() -> None:
    local = LocalStep.modelled([3 << 19] * 64, backward_s=0.064)
    advice = ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8))
    drawing = draw_caps(advice, bucket_cap_mb=4)
    names = rows_of(drawing)
    assert advice.chosen.name in names
    assert advice.chosen.name in drawing.title
    powers = [f"{2**power} MiB" for power in range(8)]
    default = "25 MiB (default)"
    assert {*names} == {*powers, advice.chosen.name, default} - {"4 MiB"} | {"4 MiB, yours"}
    assert [float(name.split()[0]) for name in names] == sorted(float(name.split()[0]) for name in names)
    few = ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), caps_mb=[25, 3, 0])
    assert rows_of(draw_caps(few)) == ["0 MiB", "3 MiB", default, "25 MiB"]
