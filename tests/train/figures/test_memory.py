"""The chart of a rank's memory, read back from its artists."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from rankscope.figures.palette import MEMORY
from rankscope.train import zero
from rankscope.train.figures.memory import memory_bars

STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s, largest_layer=128_000_000, activation_bytes=10**9) for s in range(4)}
LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "999 GB": 999e9}


def test_each_term_is_a_piece_where_the_one_before_ends() -> None:
    ax = memory_bars(STAGES)
    hues = {look.hue for look in MEMORY.values()}
    for row, memory in enumerate(STAGES.values()):
        pieces = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_width() > 0]
        pieces = [piece for piece in pieces if abs(piece.get_y() + piece.get_height() / 2 - row) < 0.1]
        end = 0.0
        for piece in pieces:
            assert to_hex(piece.get_facecolor()) in hues
            assert piece.get_x() == pytest.approx(end)
            end += piece.get_width()
        assert end == pytest.approx(sum(memory.terms.values()) / 1e9)


def test_totals_limits_and_the_chosen_bar() -> None:
    ax = memory_bars({name: dict(memory.terms) for name, memory in STAGES.items()}, LIMITS, chosen="stage 2")
    assert [text.get_text() for text in ax.texts] == ["121 GB", "32.4 GB", "17.9 GB", "3.39 GB", "24 GB", "80 GB"]
    lines = [line.get_xdata()[0] for line in ax.lines]  # type: ignore[index]
    assert lines == [24.0, 80.0]  # the third is out of sight
    (framed,) = [patch for patch in ax.patches if not patch.get_fill()]
    assert framed.get_width() == pytest.approx(17.9, rel=0.01)  # type: ignore[attr-defined]
    hatched = {patch.get_hatch() for patch in ax.patches}
    assert hatched == {None, "///"}
