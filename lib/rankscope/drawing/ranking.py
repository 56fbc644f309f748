"""Which algorithm is the fastest at one size: a bar for the time of each."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..common.units import three_digits, time_unit
from .drawing import Drawing
from .marks import RIGHT_PX, WIDE_LETTER_PX, Box, Line, Mark, Text, left_of, row_name
from .palette import OTHER, WORK

_SAME = 1e-9  # a smaller relative difference comes from rounding
_LONGEST = 20.0  # times the fastest, beyond which a bar is cut
_ROW_PX = 26.0


def draw_ranking(
    seconds: Mapping[str, float],
    bound_s: float = 0.0,
    chosen: str = "",
    title: str | None = None,
    deck: str = "",
    waits_s: Mapping[str, float] = {},
    notes: Mapping[str, str] = {},
    foot: str = "",
) -> Drawing:
    """Draw the time of each algorithm as a bar, the fastest on top and in blue, with its time and its factor behind it.

    A dashed line is the lower bound, if it is above 0, and the bar of `chosen` has an edge. Bars longer than 20 times
    the fastest are cut. The part of a time that is in `waits_s` is a dotted line before the bar, and `notes`, if there
    are any, stand at the right end of each row; `foot`, below them, explains both. Raises ValueError if there are no
    algorithms, or a time is not finite and at least 0.
    """
    if not seconds or not all(0 <= value < math.inf for value in seconds.values()):
        raise ValueError(f"seconds must be finite, at least 0 and of at least one algorithm, got {dict(seconds)}")
    names = sorted(seconds, key=lambda name: seconds[name])
    fastest_s = seconds[names[0]]
    longest_s = max(*seconds.values(), bound_s)
    if fastest_s:
        longest_s = min(longest_s, max(_LONGEST * fastest_s, bound_s))
    scale, unit = time_unit(longest_s)
    words = {}
    fastest = {name for name in names if seconds[name] <= fastest_s * (1 + _SAME)}
    for name in names:
        words[name] = f"{three_digits(seconds[name] / scale)} {unit}"
        if fastest_s and name not in fastest:
            words[name] += f", {three_digits(seconds[name] / fastest_s)} ×"
    left = left_of(names)
    letters = max(map(len, words.values())) + max(map(len, notes.values()), default=0)
    right = RIGHT_PX - WIDE_LETTER_PX * letters - 24
    px_per_s = (right - left) / (longest_s or 1.0)
    marks: list[Mark] = []
    for row, name in enumerate(names):
        y = _ROW_PX * row
        width = max(min(seconds[name], longest_s) * px_per_s, 1.5)
        wait_px = min(waits_s.get(name, 0.0) * px_per_s, width - 1.5)
        fill = WORK["allreduce"].hue if name in fastest else OTHER
        tone = "ink" if name in fastest or name == chosen else "mute"
        marks += [
            row_name(y + 15, name, left=left),
            Box(left + wait_px, y, width - wait_px, 20, fill, "work", key=name, edge="ink" if name == chosen else ""),
            Text(left + width + 8, y + 15, words[name], "label", tone),
        ]
        if wait_px:
            marks.append(Box(left, y, wait_px, 20, "mute", "wait"))
        if notes:
            marks.append(Text(RIGHT_PX, y + 15, notes[name], "label", tone, "end"))
        if seconds[name] > longest_s:
            marks.append(Text(left + width - 14, y + 15, "//", "label"))
    height = _ROW_PX * len(names) + 8
    if bound_s:
        x = left + bound_s * px_per_s
        marks += [
            Line(((x, -4), (x, height - 8)), "accent", 1.5, "3 3"),
            Text(x, height + 4, f"lower bound {three_digits(bound_s / scale)} {unit}", "label", "accent", "middle"),
        ]
        height += 16
    if foot:
        marks.append(Text(RIGHT_PX, height - 12, foot, "label", "mute", "end"))
    return Drawing(title or f"{names[0]} is the fastest", marks, height, deck)
