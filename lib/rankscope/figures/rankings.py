"""Drawings of which algorithm is the fastest: a map over sizes and ranks, and bars in order at one size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..collectives.best import Best
from ..common.units import bytes_words, round_ticks, time_unit
from .marks import Drawing, Key, Lines, Rects, Texts, frame, numbers_on
from .palette import INK, PAPER, looks

_WIDE_PX, _ROW_PX, _LETTER_PX, _MOST_CELLS = 860.0, 24.0, 6.6, 16_384
_CUT = 4.0  # times the fastest, beyond which a bar has a break


def draw_winners(found: Mapping[int, Mapping[float, Best]], title: str | None = None) -> Drawing:
    """Draw which algorithm is the fastest at each size and number of ranks, and by how much.

    `found` has what `collectives.best` found, by number of ranks and then by size. Sizes go to the right, ranks
    upwards. An algorithm has the hue of its line in `costs`, hatched where that is dashed. Its name stands where it
    wins at most sizes in a row; other cells say how much longer the next best takes where there is room, = for equal.

    Raises ValueError for no number of ranks or no size, and for more than 16,384 cells.
    """
    table = [list(row.values()) for row in found.values()]
    rows, columns = len(table), len(table[0]) if table else 0
    if not 0 < rows * columns <= _MOST_CELLS:
        raise ValueError(f"a drawing has from 1 to {_MOST_CELLS} cells, sizes × ranks, got {columns} × {rows}")
    best = [cell for row in table for cell in row]
    won = [cell.algorithm for cell in best]
    style = looks(candidate.algorithm for cell in best for candidate in cell.candidates)
    row, column = np.indices((rows, columns))
    cell_px = min(_WIDE_PX / columns, max(40.0, 420.0 / columns))
    fill, hatched = [style[name].color for name in won], [style[name].dashed for name in won]
    rects = Rects(column, rows - 1 - row, fill, hatched=hatched)
    words = np.array([_margin_words(cell.margin) for cell in best])
    wanted = np.full((rows, columns), cell_px >= 32)
    named: list[tuple[int, int, int, str]] = []  # row, first column, cells, name
    for name, (length, first, at) in _longest_runs([[cell.algorithm for cell in cells] for cells in table]).items():
        if length * cell_px >= _LETTER_PX * len(name) + 6:
            named.append((rows - 1 - at, first, length, name))
            wanted[at, first : first + length] = False
    top, left, cells, names = zip(*named, strict=True) if named else ((), (), (), ())
    areas = Rects(left, top, [style[name].color for name in names], cells, 1.0, [style[name].dashed for name in names])
    sizes = [float(size) for size in next(iter(found.values()))]
    powers = [place for place, size in enumerate(sizes) if size > 0 and math.log2(size) % 1 == 0]
    marked = powers if len(powers) > 1 else range(columns)
    every = max(1, math.ceil(len(marked) * 60 / (cell_px * columns)))
    counts = {name: won.count(name) for name in dict.fromkeys(won)}
    most = max(counts, key=lambda name: counts[name])
    keys = [Key(name, style[name].color, hatched=style[name].dashed) for name in counts]
    return Drawing(
        title=title or f"Fastest most often: {most}, in {counts[most]} of {rows * columns} cells",
        x_label="size of each rank's buffer",
        y_label="ranks",
        width=columns,
        height=rows,
        size_px=(cell_px * columns, _ROW_PX * rows),
        rects=(rects, areas),
        texts=(*numbers_on(rects, words, wanted=wanted.ravel()), *numbers_on(areas, np.array(names, dtype=str))),
        x_ticks=[(place + 0.5, bytes_words(sizes[place])) for place in marked[::every]],
        y_ticks=[(rows - place - 0.5, str(ranks)) for place, ranks in enumerate(found)],
        legend=(
            *keys,
            *[Key("5%: the next best takes 5% longer; =: as long", PAPER, line="none")] * bool(wanted.any()),
        ),
    )


def _longest_runs(table: Sequence[Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """Of each name the longest run of cells in a row: how many, the first column and the row."""
    found: dict[str, tuple[int, int, int]] = {}
    for at, row in enumerate(table):
        first = 0
        for column, name in enumerate(row):
            first = column if name != row[first] else first
            if column + 1 - first > found.get(name, (0, 0, 0))[0]:
                found[name] = column + 1 - first, first, at
    return found


def _margin_words(margin: float) -> str:
    """The share as text of at most four characters, = for none; nothing where there is no next best."""
    if not np.isfinite(margin):
        return ""
    if margin < 0.005:
        return "<1%" if margin > 1e-9 else "="
    return f"{margin:.0%}" if margin < 9.995 else f"{margin + 1:.0f}×" if margin < 998 else ">999"


def draw_ranking(
    seconds: Mapping[str, float],
    bound_s: float | None = None,
    chosen: str = "",
    title: str | None = None,
    measured: Mapping[str, float] | None = None,
) -> Drawing:
    """Draw the time of each algorithm as a bar, the fastest on top, and the lower bound as a vertical line.

    A bar longer than four times the fastest has a break in it, and so has the dark tick of what was `measured`. The bar
    of `chosen` is framed. Raises ValueError for no algorithm and for times that are not finite and at least 0.
    """
    if not seconds or not all(0 <= value < float("inf") for value in seconds.values()):
        raise ValueError(f"seconds must be finite, at least 0 and of at least one algorithm, got {dict(seconds)}")
    names = sorted(seconds, key=lambda name: seconds[name])
    fastest, slowest = seconds[names[0]], seconds[names[-1]]
    longest = max(min(slowest, _CUT * fastest) if fastest else slowest, bound_s or 0.0)
    ticks = {name: min(value, longest) for name, value in (measured or {}).items() if name in seconds}
    scale, unit = time_unit(longest)
    width = (1.45 if ticks else 1.25) * longest / scale or 1.0
    rows = np.arange(len(names))
    length = np.array([min(seconds[name], longest) for name in names]) / scale
    ends = np.array([max(end, ticks.get(name, 0.0) / scale) for name, end in zip(names, length, strict=True)])
    took = {name: f", measured {value / scale:,.4g}" for name, value in (measured or {}).items()}
    words = [f"{seconds[name] / scale:,.4g}{took.get(name, '')}" for name in names]
    style = looks(names)
    colors, hatched = [style[name].color for name in names], [style[name].dashed for name in names]
    framed = [row for row, name in enumerate(names) if name == chosen]
    at, ticked = np.array(list(ticks.values())) / scale, np.array([names.index(name) for name in ticks])
    measured_at = Lines(at, ticked + 0.02, at, ticked + 0.98, INK, width_px=3.0)
    beyond = [row for row, name in enumerate(names) if max(seconds[name], (measured or {}).get(name, 0)) > longest]
    keys = {
        Key("lower bound", INK, line="solid"): bound_s,
        Key("your choice", PAPER, edge=INK): framed,
        Key("measured", INK): ticks,
        Key("// longer than drawn", PAPER, line="none"): beyond,
    }
    return Drawing(
        title=title or (f"{names[0]} is the fastest" if longest else "none takes any time"),
        x_label=f"time [{unit}]",
        y_label="",
        width=width,
        height=len(names),
        size_px=(560.0, 19.0 * len(names)),
        rects=(
            frame(framed, length[framed], width),
            Rects(0, rows + 0.12, colors, width=length, height=0.76, hatched=hatched),
        ),
        lines=(*([measured_at] if ticks else []), *_breaks(beyond, longest / scale, width)),
        texts=(Texts(ends + 0.01 * width, rows + 0.5, words, anchor="start"),),
        rules=(bound_s / scale,) if bound_s else (),
        x_ticks=round_ticks(longest / scale) if longest else (),
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=[key for key, wanted in keys.items() if wanted],
    )


def _breaks(rows: Sequence[int], longest: float, width: float) -> tuple[Lines, ...]:
    """Two light strokes across the end of each of these bars."""
    y, slant = np.array(rows, dtype=float), 0.006 * width
    places = [longest - part * width for part in (0.04, 0.026)]
    return tuple(Lines(x - slant, y + 0.95, x + slant, y + 0.05, PAPER, width_px=3.5) for x in places if rows)
