"""Drawings of which algorithm is the fastest: a map over sizes and ranks, and bars in order at one size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from string import ascii_letters

import numpy as np

from ..collectives.best import Best
from ..values.units import bytes_words, round_ticks, time_unit
from .marks import Drawing, Key, Lines, Rects, Texts, frame, numbers_on
from .palette import INK, looks

_WIDE_PX, _ROW_PX, _MOST_CELLS = 860.0, 24.0, 16_384
_CUT = 4.0  # times the fastest, beyond which a bar is cut


def draw_winners(found: Mapping[int, Mapping[float, Best]], title: str | None = None) -> Drawing:
    """Draw which algorithm is the fastest at each size and number of ranks, and by how much.

    `found` has what `collectives.best` found, by number of ranks and then by size. Sizes go to the right, ranks
    upwards. An algorithm has the hue that its line has in `costs`, hatched where that is dashed. Where there is room a
    cell has the algorithm's letter and says how much longer the next best takes, = where that is not longer.

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
    letters = dict(zip(dict.fromkeys(won), ascii_letters, strict=False))
    words = np.array([f"{letters[cell.algorithm]} {_margin_words(cell.margin)}".rstrip() for cell in best])
    written = cell_px >= 40
    sizes = [float(size) for size in next(iter(found.values()))]
    powers = [place for place, size in enumerate(sizes) if size > 0 and math.log2(size) % 1 == 0]
    marked = powers if len(powers) > 1 else range(columns)
    every = max(1, math.ceil(len(marked) * 60 / (cell_px * columns)))
    counts = {name: won.count(name) for name in dict.fromkeys(won)}
    most = max(counts, key=lambda name: counts[name])
    keys = ((f"{letters[name]}: {name}" if written else name, style[name]) for name in counts)
    return Drawing(
        title=title or f"Most often quickest: {most}, in {counts[most]} of {rows * columns} cells",
        x_label="size of each rank's buffer" + " [cell: who; the next best takes so much longer]" * written,
        y_label="ranks",
        width=columns,
        height=rows,
        size_px=(cell_px * columns, _ROW_PX * rows),
        rects=(rects,),
        texts=numbers_on(rects, words, wanted=np.full(words.shape, written)),
        x_ticks=tuple((place + 0.5, bytes_words(sizes[place])) for place in marked[::every]),
        y_ticks=tuple((rows - place - 0.5, str(ranks)) for place, ranks in enumerate(found)),
        legend=tuple(Key(label, look.color, hatched=look.dashed) for label, look in keys),
    )


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
    """Draw what each algorithm takes as a bar, the fastest on top, and the lower bound as a line down.

    Bars are cut at four times the fastest; ``chosen`` is framed; what was `measured` is a dark tick. Raises ValueError
    for no algorithm and for times that are not finite and at least 0.
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
    words = [
        "… " * (seconds[name] > longest)
        + f"{seconds[name] / scale:,.4g}"
        + (f", measured {measured[name] / scale:,.4g}" if measured and name in measured else "")
        for name in names
    ]
    notes = {
        "the line: lower bound": bool(bound_s),
        "framed: yours": chosen in seconds,
        "…: cut": longest < slowest,
        "dark ticks: measured": bool(ticks),
    }
    style = looks(names)
    colors, hatched = [style[name].color for name in names], [style[name].dashed for name in names]
    framed = [row for row, name in enumerate(names) if name == chosen]
    at, ticked = np.array(list(ticks.values())) / scale, np.array([names.index(name) for name in ticks])
    return Drawing(
        title=title or (f"{names[0]} is the quickest" if longest else "none takes any time"),
        x_label=f"time [{unit}]" + "".join(f"; {note}" for note, wanted in notes.items() if wanted),
        y_label="",
        width=width,
        height=len(names),
        size_px=(560.0, 19.0 * len(names)),
        rects=(
            frame(framed, length[framed], width),
            Rects(0, rows + 0.12, colors, width=length, height=0.76, hatched=hatched),
        ),
        lines=(Lines(at, ticked + 0.02, at, ticked + 0.98, INK, width_px=3.0),) if ticks else (),
        texts=(Texts(ends + 0.01 * width, rows + 0.5, words, anchor="start"),),
        rules=(bound_s / scale,) if bound_s else (),
        x_ticks=round_ticks(longest / scale) if longest else (),
        y_ticks=tuple((row + 0.5, name) for row, name in enumerate(names)),
    )
