"""Which algorithm is the fastest: a bar for the time of each at one size, and a map over sizes and numbers of ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import cycle

from ..collectives.best import Best
from ..common.units import bytes_words, three_digits, time_unit
from ..common.words import count_of
from .marks import (
    LEFT_PX,
    LETTER_PX,
    RIGHT_PX,
    Box,
    Drawing,
    Line,
    Mark,
    Text,
    every_nth,
    key_marks,
    row_name,
    with_text,
)
from .palette import HUES, OTHER, WORK, WorkLook

_FASTEST = WORK["allreduce"].hue
_SAME = 1e-9  # a smaller relative difference comes from rounding
_LONGEST = 20.0  # times the fastest, beyond which a bar is cut
_ROW_PX = 26.0


def draw_ranking(
    seconds: Mapping[str, float],
    bound_s: float | None = None,
    chosen: str = "",
    title: str | None = None,
    measured: Mapping[str, float] | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw the time of each algorithm as a bar, the fastest on top and in blue, with its time and its factor behind it.

    A dashed line is the lower bound, an upright dark mark a `measured` time, and the bar of `chosen` has an edge. Bars
    longer than 20 times the fastest are cut. Raises ValueError if there are no algorithms or a time is not finite and
    at least 0.
    """
    if not seconds or not all(0 <= value < math.inf for value in seconds.values()):
        raise ValueError(f"seconds must be finite, at least 0 and of at least one algorithm, got {dict(seconds)}")
    measured = measured or {}
    names = sorted(seconds, key=lambda name: seconds[name])
    fastest_s = seconds[names[0]]
    longest_s = max([*seconds.values(), *[measured.get(name, 0.0) for name in names], bound_s or 0.0])
    if fastest_s:
        longest_s = min(longest_s, max(_LONGEST * fastest_s, bound_s or 0.0))
    scale, unit = time_unit(longest_s)
    words = {}
    fastest = {name for name in names if seconds[name] <= fastest_s * (1 + _SAME)}
    for name in names:
        words[name] = f"{three_digits(seconds[name] / scale)} {unit}"
        if fastest_s and name not in fastest:
            words[name] += f", {three_digits(seconds[name] / fastest_s)} ×"
        if name in measured:
            words[name] += f", measured {three_digits(measured[name] / scale)}"
        if name == chosen:
            words[name] += "  ← your choice"
    left = 1.32 * LETTER_PX * max(map(len, names)) + 20
    right = RIGHT_PX - LETTER_PX * max(map(len, words.values())) - 24
    px_per_s = (right - left) / (longest_s or 1.0)
    marks: list[Mark] = []
    for row, name in enumerate(names):
        y = _ROW_PX * row
        width = max(min(seconds[name], longest_s) * px_per_s, 1.5)
        bar = Box(left, y, width, 20, OTHER, "work", key=name, edge="ink" if name == chosen else "")
        if name in fastest:
            bar = bar._replace(fill=_FASTEST)
        measured_px = min(measured.get(name, 0.0), longest_s) * px_per_s
        tone = "ink" if name in fastest or name == chosen else "mute"
        marks += [
            row_name(y + 15, name.replace("_", " "), left=left),
            bar,
            Text(left + max(width, measured_px) + 8, y + 15, words[name], "label", tone),
        ]
        if seconds[name] > longest_s:
            marks.append(Text(left + width - 14, y + 15, "//", "label"))
        if name in measured:
            marks.append(Line(((left + measured_px, y - 1), (left + measured_px, y + 21)), "ink", 3))
    height = _ROW_PX * len(names) + 8
    if bound_s:
        x = left + bound_s * px_per_s
        marks.append(Line(((x, -4), (x, height - 8)), "accent", 1.5, "3 3"))
        marks.append(Text(x, height + 4, "lower bound", "label", "accent", "middle"))
        height += 16
    if deck is None:
        deck = "bar: predicted; dark mark: measured" if measured else ""
    return Drawing(title or f"{names[0]} is the fastest", marks, height, deck)


def draw_winners(results: Mapping[int, Mapping[float, Best]], title: str | None = None) -> Drawing:
    """Draw the fastest algorithm at each size and number of ranks, and how much longer the next best takes.

    `results` contains the results of `collectives.best`, by number of ranks and then by size. Ranks increase upwards.
    Raises ValueError if there are no ranks or sizes.
    """
    if not results or not all(results.values()):
        raise ValueError("results must have at least one number of ranks and one size")
    won = Counter(found.algorithm for by_size in results.values() for found in by_size.values())
    hues = dict(zip([name for name, _ in won.most_common()], cycle(HUES)))
    marks, y = key_marks({name: WorkLook(hue, False) for name, hue in hues.items()})
    sizes = list(next(iter(results.values())))
    width = (RIGHT_PX - LEFT_PX) / len(sizes)
    for num_ranks, by_size in reversed([*results.items()]):
        marks.append(row_name(y + 15, count_of(num_ranks, "rank")))
        for column, found in enumerate(by_size.values()):
            at = LEFT_PX + column * width, y, width - 2, _ROW_PX - 4
            box = Box(*at, hues[found.algorithm], "work", key=found.algorithm)
            marks.append(with_text(box, _margin_words(found.margin)))
        y += _ROW_PX
    for column in range(0, len(sizes), every_nth(width, 60)):
        x = LEFT_PX + (column + 0.5) * width
        marks.append(Text(x, y + 14, bytes_words(sizes[column]), "label", "mute", "middle"))
    deck = "by size of a rank's buffer; number: how much longer the next takes"
    (best, num_won), *_ = won.most_common()
    title = title or f"{best} is the fastest in {num_won} of {won.total()}"
    return Drawing(title, marks, y + 24, deck, {name: name for name in hues})


def _margin_words(margin: float) -> str:
    """The margin as text of a few characters, = for none; nothing if there is no next best.

    >>> _margin_words(0.0), _margin_words(0.001), _margin_words(0.25), _margin_words(11.0)
    ('=', '<1%', '25%', '12×')
    """
    if margin == math.inf:
        return ""
    if margin <= _SAME:
        return "="
    if margin < 0.005:  # would be rounded to 0%
        return "<1%"
    return f"{margin:.0%}" if margin < 10 else f"{margin + 1:.0f}×"
