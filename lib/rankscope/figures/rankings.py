"""Which algorithm is the fastest: bars at one size, a table of slowdowns over sizes, a map over sizes and ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ..collectives.best import Best
from ..common.units import bytes_words, time_unit
from .marks import LETTER_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text
from .palette import OTHER, PAPER, Look, looks, mixed, ramp
from .plots import WIDE_PX, FloatArray, Key, Plot, Rects, Texts, numbers_on

_FASTEST = "#2377ce"
_MOST_CELLS = 16_384
_SAME = 1e-9  # a smaller relative difference comes from rounding
_MARGIN_PX = 32  # a cell that is wide enough for a number
_CELL_PX, _ROW_PX = 44.0, 24.0
_LONGEST = 20.0  # times the fastest, beyond which a bar is cut


def draw_ranking(
    seconds: Mapping[str, float],
    bound_s: float | None = None,
    chosen: str = "",
    title: str | None = None,
    measured: Mapping[str, float] | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw the time of each algorithm as a bar, the fastest on top and in blue, with its time and its factor behind it.

    A dashed line is the lower bound, an upright dark mark a `measured` time, and the bar of `chosen` has an edge. Only
    bars longer than 20 times the fastest, and the bound, are cut. Raises ValueError if there are no algorithms or a
    time is not finite and at least 0.
    """
    if not seconds or not all(0 <= value < math.inf for value in seconds.values()):
        raise ValueError(f"seconds must be finite, at least 0 and of at least one algorithm, got {dict(seconds)}")
    measured = {name: value for name, value in (measured or {}).items() if name in seconds}
    names = sorted(seconds, key=lambda name: seconds[name])
    fastest_s = seconds[names[0]]
    all_s = [*seconds.values(), *measured.values(), bound_s or 0.0]
    longest_s = max(all_s)
    if fastest_s:
        longest_s = min(longest_s, max(_LONGEST * fastest_s, bound_s or 0.0))
    scale, unit = time_unit(longest_s)
    left = 1.32 * LETTER_PX * max(map(len, names)) + 20
    words = {name: _time_words(seconds[name], measured.get(name), fastest_s, scale, unit) for name in names}
    if chosen in words:
        words[chosen] += "  ← your choice"
    widest_px = max(LETTER_PX * len(text) for text in words.values()) + 24
    px_per_s = (RIGHT_PX - left - widest_px) / (longest_s or 1.0)
    marks: list[Mark] = []
    for row, name in enumerate(names):
        y = 26.0 * row
        is_chosen = name == chosen
        is_fastest = seconds[name] <= fastest_s * (1 + _SAME)
        length = min(seconds[name], longest_s) * px_per_s
        marks.append(Text(left - 12, y + 15, name.replace("_", " "), "label", "ink", "end"))
        hue = _FASTEST if is_fastest else OTHER
        marks.append(Box(left, y, max(length, 1.5), 20, hue, "work", key=name, edge="ink" if is_chosen else ""))
        end = left + length
        if seconds[name] > longest_s:
            marks.append(Text(end - 14, y + 15, "//", "label", "ink"))
        if name in measured:
            x = left + min(measured[name], longest_s) * px_per_s
            marks.append(Line(((x, y - 1), (x, y + 21)), "ink", 3))
            end = max(end, x)
        tone = "ink" if is_chosen or is_fastest else "mute"
        marks.append(Text(end + 8, y + 15, words[name], "label", tone))
    height = 26.0 * len(names)
    if bound_s:
        x = left + bound_s * px_per_s
        marks.append(Line(((x, -4), (x, height)), "accent", 1.5, "3 3"))
        marks.append(Text(x, height + 12, "lower bound", "label", "accent", "middle"))
        height += 16
    if deck is None and measured:
        deck = "bar: predicted; dark mark: measured"
    return Drawing(title or _ranked(names, seconds, chosen), marks, height + 8, deck or "")


def _ranked(names: Sequence[str], seconds: Mapping[str, float], chosen: str) -> str:
    fastest = names[0]
    if not seconds[names[-1]]:
        return "None takes any time"
    if chosen in seconds and seconds[fastest] and seconds[chosen] > seconds[fastest] * (1 + _SAME):
        factor = seconds[chosen] / seconds[fastest]
        return f"{chosen} takes {factor:.3g} times as long as the fastest"
    return f"{fastest} is the fastest"


def _time_words(seconds: float, measured_s: float | None, fastest_s: float, scale: float, unit: str) -> str:
    words = f"{_three_digits(seconds / scale)} {unit}"
    if fastest_s and seconds > fastest_s * (1 + _SAME):
        words += f", {seconds / fastest_s:.3g} ×"
    if measured_s is not None:
        words += f", measured {_three_digits(measured_s / scale)}"
    return words


def _three_digits(value: float) -> str:
    """Return the value to three digits, or to a whole number if that has more.

    >>> _three_digits(1.158), _three_digits(58.69), _three_digits(1234.6)
    ('1.16', '58.7', '1,235')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ---- a table of slowdowns

_DARKEST = 8.0  # times the fastest, at and beyond which a cell is darkest


def draw_slowdowns(
    seconds: Mapping[str, Mapping[float, float]], title: str | None = None, deck: str | None = None
) -> Drawing:
    """Draw how many times as long as the fastest each algorithm takes, a row per algorithm and a column per size.

    `seconds` contains the times by algorithm and then by size in bytes. The row with the smallest slowdowns is on top.
    The fastest algorithms of each size are framed. Raises ValueError if there are no algorithms or sizes, if a time is
    not finite and above 0, if algorithms have different sizes, or if there are more than 16,384 cells.
    """
    times_s = _times_by_size(seconds)
    unordered = times_s / times_s.min(axis=0)
    order = np.argsort(np.log(unordered).mean(axis=1), kind="stable")  # by the geometric mean over the sizes
    names = [list(seconds)[row] for row in order]
    slowdowns = unordered[order]
    num_rows, num_columns = slowdowns.shape
    cell_px = WIDE_PX / num_columns
    row, column = (indices.ravel() for indices in np.indices(slowdowns.shape))
    fills = ramp(1 - np.log(slowdowns.ravel()) / math.log(_DARKEST))
    cells = Rects(column, row, fills, width=0.97, height=0.94)
    is_fastest = slowdowns.ravel() <= 1 + _SAME
    frames = Rects(column[is_fastest], row[is_fastest], "#ffffff", width=0.97, height=0.94, edge="#1f2328")
    words = np.array([_slowdown_words(value) for value in slowdowns.ravel().tolist()])
    ever_fastest = [name for name, flags in zip(names, is_fastest.reshape(slowdowns.shape), strict=True) if flags.any()]
    found = f"Fastest at some size: {', '.join(ever_fastest)}"
    if len(found) > 48:
        found = f"{len(ever_fastest)} algorithms are the fastest at some size"
    return Plot(
        title=title or found,
        deck=deck or "time as a multiple of the fastest, which is framed",
        x_label="size of each rank's buffer",
        width=num_columns,
        height=num_rows,
        size_px=(WIDE_PX, _ROW_PX * num_rows),
        rects=(frames, cells),
        texts=numbers_on(cells, words, wanted=np.full(words.shape, cell_px >= _MARGIN_PX)),
        x_ticks=_size_ticks([float(size) for size in next(iter(seconds.values()))], cell_px),
        y_ticks=[(place + 0.5, name) for place, name in enumerate(names)],
    )


def _times_by_size(seconds: Mapping[str, Mapping[float, float]]) -> FloatArray:
    """Return the checked times as a matrix, algorithms by sizes."""
    sizes = list(next(iter(seconds.values()), ()))
    _check_cells("a table", "sizes × algorithms", len(sizes), len(seconds))
    for name, by_size in seconds.items():
        if list(by_size) != sizes or not all(0 < time_s < math.inf for time_s in by_size.values()):
            raise ValueError(f"{name}: times must be finite and above 0, at the same sizes as the others'")
    return np.array([list(by_size.values()) for by_size in seconds.values()], dtype=float)


def _check_cells(what: str, of: str, num_columns: int, num_rows: int) -> None:
    if not 0 < num_rows * num_columns <= _MOST_CELLS:
        raise ValueError(f"{what} has from 1 to {_MOST_CELLS} cells, {of}, got {num_columns} × {num_rows}")


def _slowdown_words(slowdown: float) -> str:
    """Return the slowdown as text of at most four characters."""
    if slowdown < 9.95:
        return f"{slowdown:.1f}"
    return f"{slowdown:.0f}" if slowdown < 999.5 else ">999"


def _size_ticks(sizes: Sequence[float], cell_px: float) -> list[tuple[float, str]]:
    """Return as many sizes as there is room for, of the powers of two if there are several, and else of all."""
    columns = [column for column, size in enumerate(sizes) if size > 0 and math.log2(size).is_integer()]
    if len(columns) < 2:
        columns = list(range(len(sizes)))
    every = max(1, math.ceil(len(columns) * 64 / (cell_px * len(sizes))))
    return [(column + 0.5, bytes_words(sizes[column])) for column in columns[::every]]


# ---- a map over sizes and ranks


def draw_winners(
    results: Mapping[int, Mapping[float, Best]], title: str | None = None, deck: str | None = None
) -> Drawing:
    """Draw the fastest algorithm at each size and number of ranks, and its margin.

    `results` contains the results of `collectives.best`, by number of ranks and then by size. Sizes increase to the
    right, ranks upwards. The name of an algorithm is in its longest row of adjacent cells. Other cells state how much
    longer the next best takes, or = if it is equal. Raises ValueError if there are no ranks or sizes, or more than
    16,384 cells.
    """
    table = [list(by_size.values()) for by_size in results.values()]
    num_columns = len(table[0]) if table else 0
    _check_cells("a drawing", "sizes × ranks", num_columns, len(table))
    style = looks(candidate.algorithm for row in table for result in row for candidate in result.candidates)
    cell_px = WIDE_PX / num_columns
    top_row = len(table) - 1  # where the last row of the table is, because ranks increase upwards
    names = [[result.algorithm for result in line] for line in table]
    words = np.array([[_margin_words(result.margin) for result in line] for line in table], dtype="U16")
    middle_of: dict[str, tuple[float, float]] = {}  # of the longest run of each algorithm, if it has room for the name
    for name, run in _longest_runs(names).items():
        if run.length * cell_px >= LETTER_PX * len(name) + 6:
            words[run.row, run.column : run.column + run.length] = ""
            middle_of[name] = run.column + run.length / 2, top_row - run.row + 0.5
    won = [name for line in names for name in line]
    row, column = (indices.ravel() for indices in np.indices(words.shape))
    hatched = [style[name].dashed for name in won]
    fills = [_pale(style[name]) for name in won]
    cells = Rects(column, top_row - row, fills, width=0.97, height=0.94, hatched=hatched)
    x, y = zip(*middle_of.values(), strict=True) if middle_of else ((), ())
    most, num_most = Counter(won).most_common(1)[0]
    unnamed = [name for name in dict.fromkeys(won) if name not in middle_of]
    return Plot(
        title=title or f"{most} wins {num_most} of {len(won)} cells",
        deck=deck or "in per cent: how much longer the next best takes; =: as long",
        x_label="size of each rank's buffer",
        y_label="ranks",
        width=num_columns,
        height=len(table),
        size_px=(WIDE_PX, _ROW_PX * len(table)),
        rects=[cells],
        texts=[
            *numbers_on(cells, words.ravel(), wanted=(words.ravel() != "") & (cell_px >= _MARGIN_PX)),
            Texts(x, y, list(middle_of), "#000000"),
        ],
        x_ticks=_size_ticks([float(size) for size in next(iter(results.values()))], cell_px),
        y_ticks=[(top_row - place + 0.5, str(num_ranks)) for place, num_ranks in enumerate(results)],
        legend=[Key(name, _pale(style[name]), hatched=style[name].dashed) for name in unnamed],
    )


def _pale(look: Look) -> str:
    """The colour of an area, pale, so that the names and numbers on it are legible."""
    return mixed(look.color, PAPER, 0.45)


class _Run(NamedTuple):
    """Adjacent cells of a row in which an algorithm is the fastest."""

    length: int
    row: int
    column: int  # of the first cell


def _longest_runs(names: Sequence[Sequence[str]]) -> dict[str, _Run]:
    """Return the longest run of each algorithm."""
    longest: dict[str, _Run] = {}
    for row, line in enumerate(names):
        column = 0
        for name, group in groupby(line):
            run = _Run(len(list(group)), row, column)
            longest[name] = max(longest.get(name, run), run, key=lambda run: run.length)
            column += run.length
    return longest


def _margin_words(margin: float) -> str:
    """Return the share as text of at most four characters, = for none; nothing if there is no next best."""
    if not np.isfinite(margin):
        return ""
    if margin <= _SAME:
        return "="
    if margin <= 0.005:  # would be rounded to 0%
        return "<1%"
    return f"{margin:.0%}" if margin < 9.995 else f"{min(margin + 1, 9999):.0f}×"
