"""Drawings of which algorithm is the fastest: a map over sizes and ranks, a table of slowdowns, bars at one size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..collectives.best import Best
from ..common.units import bytes_words, round_ticks, time_unit
from .marks import WIDE_PX, Drawing, FloatArray, Key, Lines, Rects, Texts, frame, grid_drawing, numbers_on
from .palette import INK, PAPER, Look, looks, ramp

_ROW_PX = 24.0
_LETTER_PX = 6.6  # the width of a letter of a name in cells
_NAME_MARGIN_PX = 6.0  # of a name in cells, on both sides together
_SIZE_PX = 60  # between two sizes below the cells, at least
_CELL_PX = 44.0  # of a cell of a map or a table, where there is room
_MAP_PX = 420.0  # the width of a map of few sizes
_MARGIN_PX = 32  # a cell that is wide enough for the margin of the fastest
_MOST_CELLS = 16_384
_SAME = 1e-9  # a smaller relative difference comes from rounding
_CUT = 4.0  # times the fastest, beyond which a bar has a break


# ---- a map over sizes and ranks


def draw_winners(results: Mapping[int, Mapping[float, Best]], title: str | None = None) -> Drawing:
    """Draw the fastest algorithm at each size and number of ranks, and its margin.

    `results` contains the results of `collectives.best`, by number of ranks and then by size. Sizes increase to the
    right, ranks upwards. An algorithm has the hue of its line in `costs`, and is hatched if that line is dashed. Its
    name is in its longest row of adjacent cells. Other cells state how much longer the next best takes, or = if it is
    equal, if there is space.

    Raises ValueError if there are no ranks or sizes, or more than 16,384 cells.
    """
    table = [list(by_size.values()) for by_size in results.values()]
    num_rows = len(table)
    num_columns = len(table[0]) if table else 0
    if not 0 < num_rows * num_columns <= _MOST_CELLS:
        raise ValueError(f"a drawing has from 1 to {_MOST_CELLS} cells, sizes × ranks, got {num_columns} × {num_rows}")
    cell_results = [result for row in table for result in row]
    winners = [result.algorithm for result in cell_results]
    style = looks(candidate.algorithm for result in cell_results for candidate in result.candidates)
    cell_px = min(WIDE_PX / num_columns, max(_CELL_PX, _MAP_PX / num_columns))

    row, column = np.indices((num_rows, num_columns))
    top_row = num_rows - 1  # of the drawing, where the last row of the table is, because ranks increase upwards
    cells = _algorithm_rects(winners, style, column, top_row - row)
    named_runs = []
    for run in _longest_runs([[result.algorithm for result in row] for row in table]):
        if run.length * cell_px >= _LETTER_PX * len(run.name) + _NAME_MARGIN_PX:
            named_runs.append(run)
    names = [run.name for run in named_runs]
    areas = _algorithm_rects(
        names,
        style,
        [run.column for run in named_runs],
        [top_row - run.row for run in named_runs],
        width=[run.length for run in named_runs],
    )
    margins = np.array([_margin_words(result.margin) for result in cell_results])
    has_margin = np.full((num_rows, num_columns), cell_px >= _MARGIN_PX)
    for run in named_runs:  # whose cells have the name instead
        has_margin[run.row, run.column : run.column + run.length] = False

    num_won = Counter(winners)
    most, num_most = num_won.most_common(1)[0]  # of several the one that comes first
    keys = [Key(name, style[name].color, hatched=style[name].dashed) for name in num_won]
    if has_margin.any():
        keys.append(Key("5%: the next best takes 5 % longer; =: as long", PAPER, line="none"))
    return grid_drawing(
        title=title or f"Fastest most often: {most}, in {num_most} of {num_rows * num_columns} cells",
        x_label="size of each rank's buffer",
        y_label="ranks",
        columns=num_columns,
        rows=num_rows,
        column_px=cell_px,
        row_px=_ROW_PX,
        rects=(cells, areas),
        texts=(
            *numbers_on(cells, margins, wanted=has_margin.ravel()),
            *numbers_on(areas, np.array(names)),
        ),
        x_ticks=_size_ticks([float(size) for size in next(iter(results.values()))], cell_px),
        y_ticks=[(top_row - row + 0.5, str(num_ranks)) for row, num_ranks in enumerate(results)],
        legend=keys,
    )


def _algorithm_rects(
    names: Sequence[str], style: Mapping[str, Look], x: ArrayLike, y: ArrayLike, width: ArrayLike = 1.0
) -> Rects:
    """Return a rectangle for each algorithm, one row high, that looks like its line in `costs`."""
    fills = [style[name].color for name in names]
    return Rects(x, y, fills, width=width, hatched=[style[name].dashed for name in names])


class _Winning(NamedTuple):
    """Cells in a row in which an algorithm is the fastest."""

    name: str
    row: int
    column: int  # of the first cell
    length: int


def _longest_runs(table: Sequence[Sequence[str]]) -> list[_Winning]:
    """Return the longest run of each name, the first one if several are equally long."""
    longest: dict[str, _Winning] = {}
    for row, names in enumerate(table):
        start = 0  # of the current run
        for column, name in enumerate(names):
            if name != names[start]:
                start = column
            length = column + 1 - start
            if name not in longest or length > longest[name].length:
                longest[name] = _Winning(name, row, start, length)
    return list(longest.values())


def _size_ticks(sizes: Sequence[float], cell_px: float) -> list[tuple[float, str]]:
    """Return as many sizes as there is room for, of the powers of two if there are several, and else of all."""
    columns = [column for column, size in enumerate(sizes) if size > 0 and math.log2(size).is_integer()]
    if len(columns) < 2:
        columns = list(range(len(sizes)))
    needed_px = len(columns) * _SIZE_PX
    width_px = cell_px * len(sizes)
    every = max(1, math.ceil(needed_px / width_px))
    return [(column + 0.5, bytes_words(sizes[column])) for column in columns[::every]]


def _margin_words(margin: float) -> str:
    """Return the share as text of at most four characters, = for none; nothing if there is no next best."""
    if not np.isfinite(margin):
        return ""
    if margin <= _SAME:
        return "="
    if margin <= 0.005:  # would be rounded to 0%
        return "<1%"
    if margin < 9.995:  # from there it would be 1000%
        return f"{margin:.0%}"
    num_times = margin + 1  # as long as the fastest
    if num_times < 999:
        return f"{num_times:.0f}×"
    return ">999"


# ---- a table of slowdowns

_DARKEST = 8.0  # times the fastest, at and beyond which a cell is darkest
_TABLE_PX = 620.0  # the width of a table of few sizes
_PAD = 0.07  # around a cell, as a part of it


def draw_slowdowns(seconds: Mapping[str, Mapping[float, float]], title: str | None = None) -> Drawing:
    """Draw the slowdown of each algorithm relative to the fastest, with one row per algorithm and one column per size.

    `seconds` contains the times by algorithm and then by size in bytes. The row with the smallest slowdowns is on top.
    The fastest algorithm of each size is framed; if several are equal, all are.

    Raises ValueError if there are no algorithms or sizes, if a time is not finite and above 0, if algorithms have
    different sizes, or if there are more than 16,384 cells.
    """
    times_s = _times_by_size(seconds)
    sizes = [float(size) for size in next(iter(seconds.values()))]
    unordered = times_s / times_s.min(axis=0)
    order = np.argsort(np.log(unordered).mean(axis=1), kind="stable")  # by the geometric mean over the sizes
    names = [list(seconds)[row] for row in order]
    slowdowns = unordered[order]
    num_rows, num_columns = slowdowns.shape
    cell_px = min(WIDE_PX / num_columns, max(_CELL_PX, _TABLE_PX / num_columns))

    row, column = np.indices(slowdowns.shape)
    fills = _shade(slowdowns.ravel())
    cells = Rects(column + _PAD, row + _PAD, fills, width=1 - 2 * _PAD, height=1 - 2 * _PAD)
    is_fastest = slowdowns <= 1 + _SAME
    frames = Rects(column[is_fastest], row[is_fastest], INK, edge=INK)  # below the cells, so that their pads show them
    words = np.array([_slowdown_words(value) for value in slowdowns.ravel().tolist()])
    has_room = np.full(words.shape, cell_px >= _MARGIN_PX)
    ever_fastest = [name for name, flags in zip(names, is_fastest, strict=True) if flags.any()]
    return grid_drawing(
        title=title or f"The fastest at some size: {', '.join(ever_fastest)}",
        x_label="size of each rank's buffer",
        y_label="",
        columns=num_columns,
        rows=num_rows,
        column_px=cell_px,
        row_px=_ROW_PX,
        rects=(frames, cells),
        texts=numbers_on(cells, words, wanted=has_room),
        x_ticks=_size_ticks(sizes, cell_px),
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=_slowdown_legend(float(slowdowns.max())),
    )


def _times_by_size(seconds: Mapping[str, Mapping[float, float]]) -> FloatArray:
    """Return the checked times as a matrix, algorithms by sizes."""
    num_rows = len(seconds)
    num_columns = len(next(iter(seconds.values()))) if seconds else 0
    if not 0 < num_rows * num_columns <= _MOST_CELLS:
        raise ValueError(
            f"a table has from 1 to {_MOST_CELLS} cells, sizes × algorithms, got {num_columns} × {num_rows}"
        )
    sizes = list(next(iter(seconds.values())))
    rows = []
    for name, by_size in seconds.items():
        if list(by_size) != sizes:
            raise ValueError(f"{name}: all algorithms must have the same sizes in the same order")
        times_s = np.array(list(by_size.values()), dtype=float)
        if not (np.isfinite(times_s) & (times_s > 0)).all():
            raise ValueError(f"{name}: times must be finite and above 0")
        rows.append(times_s)
    return np.stack(rows)


def _shade(slowdowns: ArrayLike) -> tuple[str, ...]:
    """A colour for each slowdown, of equal steps for equal ratios: pale for the fastest, dark from `_DARKEST` on."""
    return ramp(1 - np.log(slowdowns) / math.log(_DARKEST))


def _slowdown_words(slowdown: float) -> str:
    """Return the slowdown as text of at most four characters; the limits are as in `_margin_words`."""
    if slowdown < 9.95:
        return f"{slowdown:.1f}"
    if slowdown < 999.5:
        return f"{slowdown:.0f}"
    return ">999"


def _slowdown_legend(slowest: float) -> list[Key]:
    """The entry of the fastest, and those of shades up to the slowest that there is."""
    times = (1.0, 2.0, 4.0, _DARKEST)
    fastest_shade, double_shade, fourfold_shade, darkest_shade = _shade(times)
    keys = [Key("fastest", fastest_shade, edge=INK)]
    if slowest > 2:
        keys.append(Key("2 times as long", double_shade))
    if slowest > 4:
        keys.append(Key("4 times as long", fourfold_shade))
    if slowest > _DARKEST:
        keys.append(Key(f"{_DARKEST:.0f} times or more", darkest_shade))
    return keys


# ---- bars at one size

_BAR_MARGIN = 0.12  # above and below a bar, as a part of its row
_TICK_MARGIN = 0.02  # above and below the tick of a measured time, which is higher than the bar
_BREAK_MARGIN = 0.05  # above and below the strokes of a break
_WIDTH = 1.25  # of the drawing, times the longest bar: its time in words needs the rest
_WIDTH_WITH_MEASURED = 1.45  # the same, if measured times stand next to those of the bars
_BARS_PX = 560.0  # the width of the drawing
_BAR_ROW_PX = 19.0


def draw_ranking(
    seconds: Mapping[str, float],
    bound_s: float | None = None,
    chosen: str = "",
    title: str | None = None,
    measured: Mapping[str, float] | None = None,
) -> Drawing:
    """Draw the time of each algorithm as a bar, the fastest on top, and the lower bound as a vertical line.

    Dark ticks mark the `measured` times. Bars longer than four times the fastest, or than the bound if that is longer,
    have a break there, and so have ticks beyond the longest bar and the bound. The bar of `chosen` is framed. Raises
    ValueError if there are no algorithms or a time is not finite and at least 0.
    """
    if not seconds or not all(0 <= value < float("inf") for value in seconds.values()):
        raise ValueError(f"seconds must be finite, at least 0 and of at least one algorithm, got {dict(seconds)}")
    measured = measured or {}
    names = sorted(seconds, key=lambda name: seconds[name])
    fastest = names[0]
    slowest = names[-1]
    longest_s = _longest_s(seconds[fastest], seconds[slowest], bound_s or 0.0)
    # The places of the ticks. `measured` may have algorithms without a bar.
    ticks_s = {name: min(measured_s, longest_s) for name, measured_s in measured.items() if name in seconds}
    scale, unit = time_unit(longest_s)
    relative_width = _WIDTH_WITH_MEASURED if ticks_s else _WIDTH
    width = relative_width * longest_s / scale
    if width == 0:  # no bar has any length, and a drawing must have some width
        width = 1.0

    style = looks(names)
    rows = np.arange(len(names))
    length = np.array([min(seconds[name], longest_s) for name in names]) / scale
    bars = Rects(
        0,
        rows + _BAR_MARGIN,
        [style[name].color for name in names],
        width=length,
        height=1 - 2 * _BAR_MARGIN,
        hatched=[style[name].dashed for name in names],
    )
    chosen_rows = [row for row, name in enumerate(names) if name == chosen]
    cut_rows = [row for row, name in enumerate(names) if max(seconds[name], measured.get(name, 0)) > longest_s]
    lines = []
    if ticks_s:
        x = np.array(list(ticks_s.values())) / scale
        y = np.array([names.index(name) for name in ticks_s])
        lines.append(Lines(x, y + _TICK_MARGIN, x, y + 1 - _TICK_MARGIN, INK, width_px=3.0))
    if cut_rows:
        lines += _breaks(cut_rows, longest_s / scale, width)
    words = [_time_words(seconds[name], measured.get(name), scale) for name in names]
    ends = []  # of the bar or the tick, whichever is longer: the words stand behind it
    for name, bar_end in zip(names, length.tolist(), strict=True):
        ends.append(max(bar_end, ticks_s.get(name, 0.0) / scale))

    finding = "none takes any time"
    x_ticks: Sequence[tuple[float, str]] = ()
    if longest_s > 0:
        finding = f"{fastest} is the fastest"
        x_ticks = round_ticks(longest_s / scale)
    return Drawing(
        title=title or finding,
        x_label=f"time [{unit}]",
        y_label="",
        width=width,
        height=len(names),
        size_px=(_BARS_PX, _BAR_ROW_PX * len(names)),
        rects=(frame(chosen_rows, length[chosen_rows], width), bars),
        lines=lines,
        texts=(Texts(np.array(ends) + 0.01 * width, rows + 0.5, words, anchor="start"),),
        rules=(bound_s / scale,) if bound_s else (),
        x_axis=(0.0, longest_s / scale) if longest_s else None,
        x_ticks=x_ticks,
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=_ranking_legend(
            has_bound=bool(bound_s), has_chosen=bool(chosen_rows), has_measured=bool(ticks_s), has_cut=bool(cut_rows)
        ),
    )


def _ranking_legend(*, has_bound: bool, has_chosen: bool, has_measured: bool, has_cut: bool) -> list[Key]:
    """The entries of what there is in the drawing."""
    keys = []
    if has_bound:
        keys.append(Key("lower bound", INK, line="solid"))
    if has_chosen:
        keys.append(Key("your choice", PAPER, edge=INK))
    if has_measured:
        keys.append(Key("measured", INK))
    if has_cut:
        keys.append(Key("// longer than drawn", PAPER, line="none"))
    return keys


def _time_words(seconds: float, measured_s: float | None, scale: float) -> str:
    words = _three_digits(seconds / scale)
    if measured_s is not None:
        words = f"{words}, measured {_three_digits(measured_s / scale)}"
    return words


def _three_digits(value: float) -> str:
    """Return the value to three digits, or to a whole number if that has more.

    >>> _three_digits(1.158), _three_digits(58.69), _three_digits(1234.6)
    ('1.16', '58.7', '1,235')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _longest_s(fastest_s: float, slowest_s: float, bound_s: float) -> float:
    """Return the time that the longest bar stands for: the slowest, up to `_CUT` times the fastest, or the bound."""
    if fastest_s == 0:  # of which every multiple is 0, too
        return max(slowest_s, bound_s)
    longest_bar_s = min(slowest_s, _CUT * fastest_s)
    return max(longest_bar_s, bound_s)


def _breaks(rows: Sequence[int], longest: float, width: float) -> list[Lines]:
    """Return two light strokes across the bars in these rows, near their ends."""
    y = np.array(rows, dtype=float)
    slant = 0.006 * width
    strokes = []
    for share_before_end in (0.04, 0.026):  # of the drawing's width
        x = longest - share_before_end * width
        strokes.append(Lines(x - slant, y + 1 - _BREAK_MARGIN, x + slant, y + _BREAK_MARGIN, PAPER, width_px=3.5))
    return strokes
