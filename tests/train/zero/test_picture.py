"""The bars of a rank's memory, read back from their marks."""

from __future__ import annotations

import pytest

from rankscope.drawing.marks import Line, Text
from rankscope.drawing.palette import MEMORY
from rankscope.train import zero
from rankscope.train.zero.picture import draw_memory
from tests.figures.shown import boxes

STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s, largest_layer=128_000_000, activation_bytes=10**9) for s in range(4)}
LIMITS = {"24 GB": 24e9, "118 GB": 118e9, "119 GB": 119e9, "135 GB": 135e9}


def test_each_term_is_a_piece_where_the_one_before_ends() -> None:
    memory = STAGES["stage 2"]
    terms = [term for term in MEMORY if memory.terms.get(term)]
    pieces = boxes(draw_memory({"stage 2": memory}))[len(terms) :]
    assert [(box.fill, box.hatched) for box in pieces] == [MEMORY[term] for term in terms]
    starts = [box.x - pieces[0].x for box in pieces]
    px_per_byte = starts[-1] / sum(memory.terms[term] for term in terms[:-1])
    assert starts == pytest.approx([px_per_byte * sum(memory.terms[t] for t in terms[:i]) for i in range(len(terms))])


def test_totals_limits_and_the_chosen_bar() -> None:
    marks = draw_memory({name: dict(memory.terms) for name, memory in STAGES.items()}, LIMITS, chosen="stage 2").marks
    behind = [mark.text for mark in marks if isinstance(mark, Text) and mark.halo]
    assert behind == ["121 GB", "32.4 GB", "17.9 GB  ← your choice", "3.39 GB"]
    dashed = [mark.points[0][0] for mark in marks if isinstance(mark, Line) and mark.dash]
    at = {mark.text: mark.x for mark in marks if isinstance(mark, Text)}
    assert dashed == [at["119 GB"], at["24 GB"]]  # 135 is out of sight, 118 too near
    assert (at["24 GB"] - at["0"]) / (at["20"] - at["0"]) == pytest.approx(1.2)


def test_a_term_of_ones_own_is_in_its_bar() -> None:
    *_, parameters, mine = boxes(draw_memory({"a": {"mine": 3e9, "parameters": 1e9}}))
    assert mine.width / parameters.width == pytest.approx(3, 0.02)
