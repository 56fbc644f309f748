"""Horizontal bars of parts: any parts by kind of work, and what steps cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..common.checks import number
from ..common.units import round_ticks, three_digits
from .drawing import Drawing
from .marks import RIGHT_PX, WIDE_LETTER_PX, WIDTH_PX, Box, Line, Text, axis, key_marks, left_of, row_name, with_text
from .palette import OTHER, WorkLook, work_look

_ROWS_PX = 300.0  # of all rows, unless they are many or few
_LEAST_ROW_PX = 15.0
_MOST_ROW_PX = 28.0


def draw_bars(
    rows: Mapping[str, Mapping[str, float]],
    x_label: str = "time [ms]",
    title: str | None = None,
    deck: str = "",
    behind: Sequence[str] = (),
    limits: Collection[tuple[str, float]] = (),
) -> Drawing:
    """Draw a horizontal bar for each row, the first on top; ``rows[name][kind]`` is the length of one of its parts.

    The look of a kind is that of `work_look`, or grey; a wait is a dotted line. The length of a part is written on it
    where it fits, and the words of `behind` are behind the bars. Dashes between the numbers mark `limits`, each a name
    and a length, except those far beyond the longest bar, or whose name would meet that of a larger one. Raises
    ValueError if there are no rows, or if a length is negative or not finite.

    >>> draw_bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}).title
    'rank 0 has the longest bar'
    """
    if not rows:
        raise ValueError("rows must be at least one, by name, got none")
    totals = {}
    looks: dict[str, WorkLook] = {}
    for name, parts in rows.items():
        totals[name] = sum(number(f"{name}, {kind}", length, 0) for kind, length in parts.items())
        looks |= {kind: work_look(kind) or WorkLook(OTHER, False) for kind in parts}
    longest_name = max(totals, key=lambda name: totals[name])
    row_px = min(max(_ROWS_PX / len(rows), _LEAST_ROW_PX), _MOST_ROW_PX)
    left = left_of(rows)
    room_px = RIGHT_PX - left
    behind = behind or [""] * len(rows)
    most_px = [max(room_px - WIDE_LETTER_PX * len(words), room_px / 4) for words in behind]
    px_per_unit = min(
        (px / total for px, total in zip(most_px, totals.values(), strict=True) if total), default=room_px
    )
    marks, top = key_marks(looks if len(looks) > 1 else {})
    if limits:
        top += 20
    bottom = top + len(rows) * row_px + 4
    free_px = WIDTH_PX  # up to the name of the limit before
    for name, limit in sorted(limits, key=lambda limit: -limit[1]):
        x = left + number(f"limit {name}", limit, 0) * px_per_unit
        half_px = WIDE_LETTER_PX * len(name) / 2
        name_x = min(x, RIGHT_PX - half_px)
        if x <= RIGHT_PX and name_x + half_px <= free_px:
            free_px = name_x - half_px
            dash = f"{row_px - 14:.1f} 14"  # between the numbers of the rows
            marks.append(Line(((x, top - row_px / 2 + 7), (x, bottom)), "ink", 1.0, dash))
            marks.append(Text(name_x, top - 11, name, "label", "mute", "middle"))
    for row, (name, parts) in enumerate(rows.items()):
        y = top + row * row_px
        x = left
        marks.append(row_name(y + row_px / 2 + 4, name, left=left))
        for kind, length in parts.items():
            width = length * px_per_unit
            look = looks[kind]
            if width >= 0.5:
                box = Box(x, y + 1, max(width - 1, 0.5), row_px - 3, look.hue, look.look, look.hatched)
                marks.append(with_text(box, three_digits(length)))
            x += width
        if behind[row]:
            marks.append(Text(x + 4, y + row_px / 2 + 4, behind[row], "number", "mute", halo=True))
    ticks = [(left + place * px_per_unit, words) for place, words in round_ticks(room_px / px_per_unit)]
    marks += axis(bottom, ticks, left)
    marks.append(Text((left + RIGHT_PX) / 2, bottom + 36, x_label, "label", "mute", "middle"))
    return Drawing(title or f"{longest_name} has the longest bar", marks, bottom + 42, deck)
