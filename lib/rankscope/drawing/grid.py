"""Rows of cells, a column for each size: what holds at each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .drawing import Drawing
from .marks import RIGHT_PX, Box, Text, axis, every_nth, key_marks
from .palette import WorkLook

_LEFT_PX = 8.0
_ROW_PX = 46.0  # with the name above the cells
_NAME_PX = 22.0
_LEAST_TICK_PX = 72.0  # a phone has room for "256 MiB"


def draw_grid(
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    columns: Sequence[str],
    chosen: str,
    looks: Mapping[str, WorkLook],
    title: str,
    deck: str,
) -> Drawing:
    """Draw rows of cells, each a hue and a text, below their names; `looks` explain the hues.

    The cells of the column `chosen` have an edge. A row without a name is close below the one before.
    """
    marks, y = key_marks(looks)
    width = (RIGHT_PX - _LEFT_PX) / len(columns)
    places = [(_LEFT_PX + number * width, column) for number, column in enumerate(columns)]
    for name, cells in rows:
        if name:
            marks.append(Text(_LEFT_PX, y + 13, name))
        else:
            y -= _NAME_PX
        for (left, column), (hue, text) in zip(places, cells, strict=True):
            marks.append(Box(left, y + 19, width - 2, 22, hue, text=text, edge="ink" if column == chosen else ""))
        y += _ROW_PX
    ticks = [(left + width / 2, column) for left, column in places]
    marks += axis(y, ticks[:: -every_nth(width, _LEAST_TICK_PX)], _LEFT_PX)
    return Drawing(title, marks, y + 24, deck)
