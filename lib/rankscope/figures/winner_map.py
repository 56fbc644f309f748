"""Drawings of who wins: a map over size and ranks, and the algorithms in order at one size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from string import ascii_letters

import numpy as np

from ..collectives.best import Winners
from ..values.checks import of_type
from ..values.units import bytes_words, round_ticks, time_unit
from .crossings import Floats
from .marks import Drawing, Key, Lines, Rects, Texts, numbers_on
from .palette import INK, Look, looks

_WIDE_PX, _ROW_PX, _MOST_CELLS = 860.0, 24.0, 16_384
_CUT = 4.0  # times the quickest, beyond which a bar is cut


def draw_winners(table: Winners, title: str | None = None) -> Drawing:
    """Draw which algorithm is the quickest at each size, to the right, and number of ranks, upwards.

    An algorithm has the hue that its line has in `costs`, hatched where that is dashed. Where there is room a cell has
    the algorithm's letter and says how much longer the next best takes, = where that is not longer. Raises ValueError
    for an empty table and for more than 16,384 cells.
    """
    rows, columns = of_type("table", table, Winners).winner.shape
    if not 0 < rows * columns <= _MOST_CELLS:
        raise ValueError(f"a drawing has from 1 to {_MOST_CELLS} cells, sizes × ranks, got {columns} × {rows}")
    style = looks(table.algorithms)
    won = [table.algorithms[place] for place in table.winner.ravel().tolist()]
    row, column = np.indices(table.winner.shape)
    cell_px = min(_WIDE_PX / columns, max(40.0, 420.0 / columns))
    rects = Rects.of(
        column, rows - 1 - row, [style[name].color for name in won], hatched=[style[name].dashed for name in won]
    )
    letters = dict(zip(dict.fromkeys(won), ascii_letters, strict=False))
    words = np.array(_cell_words([letters[name] for name in won], table.margin.ravel().tolist()))
    written = cell_px >= 40
    powers = np.flatnonzero(np.log2(table.num_bytes) % 1 == 0) if (table.num_bytes > 0).all() else np.empty(0, int)
    marked = powers if powers.size > 1 else np.arange(columns)
    every = max(1, math.ceil(marked.size * 60 / (cell_px * columns)))
    sizes = table.num_bytes.tolist()
    counts = {name: won.count(name) for name in dict.fromkeys(won)}
    ordered = sorted(counts, key=lambda name: -counts[name])
    return Drawing(
        title=title or f"Most often quickest: {ordered[0]}, in {counts[ordered[0]]} of {rows * columns} cells",
        x_label="size of each rank's buffer" + " [cell: who; the next best takes so much longer]" * written,
        y_label="ranks",
        width=columns,
        height=rows,
        size_px=(cell_px * columns, _ROW_PX * rows),
        rects=(rects,),
        texts=numbers_on(rects, words, wanted=np.full(words.shape, written)),
        x_ticks=tuple((place + 0.5, bytes_words(sizes[place])) for place in marked[::every].tolist()),
        y_ticks=tuple((rows - place - 0.5, str(ranks)) for place, ranks in enumerate(table.num_ranks.tolist())),
        legend=tuple(_key(f"{letters[name]}: {name}" if written else name, style[name]) for name in counts),
    )


def draw_ranking(
    seconds: Mapping[str, float],
    bound_s: float | None = None,
    chosen: str = "",
    title: str | None = None,
    measured: Mapping[str, float] | None = None,
) -> Drawing:
    """Draw what each algorithm takes as a bar, the quickest on top, and the lower bound as a line down.

    Bars are cut at four times the quickest; ``chosen`` is framed; what was `measured` is a dark tick. Raises ValueError
    for no algorithm and for times that are not finite and at least 0.
    """
    if not seconds or not all(0 <= value < float("inf") for value in seconds.values()):
        raise ValueError(f"seconds must be finite, at least 0 and of at least one algorithm, got {dict(seconds)}")
    names = sorted(seconds, key=lambda name: seconds[name])
    quickest = seconds[names[0]]
    longest = min(seconds[names[-1]], _CUT * quickest) if quickest else seconds[names[-1]]
    longest = max(longest, bound_s or 0.0)
    ticks = {name: min(value, longest) for name, value in (measured or {}).items() if name in seconds}
    scale, unit = time_unit(longest)
    width = (1.45 if ticks else 1.25) * longest / scale or 1.0
    y = np.arange(len(names))
    length = np.array([min(seconds[name], longest) for name in names]) / scale
    ends = np.array([max(end, ticks.get(name, 0.0) / scale) for name, end in zip(names, length, strict=True)])
    words = tuple(_time_words(name, seconds, measured or {}, longest, scale) for name in names)
    return Drawing(
        title=title or (f"{names[0]} is the quickest" if longest else "none takes any time"),
        x_label=f"time [{unit}]{_explained(bound_s, chosen in seconds, longest < seconds[names[-1]], bool(ticks))}",
        y_label="",
        width=width,
        height=len(names),
        size_px=(560.0, 19.0 * len(names)),
        rects=(_frame(names, length, chosen, width), _bars(names, length)),
        lines=_ticks(names, ticks, scale),
        texts=(Texts(ends + 0.01 * width, y + 0.5, words, (INK,) * y.size, anchor="start"),),
        rules=(bound_s / scale,) if bound_s else (),
        x_ticks=round_ticks(longest / scale) if longest else (),
        y_ticks=tuple((place + 0.5, name) for place, name in enumerate(names)),
    )


def _frame(names: list[str], length: Floats, chosen: str, width: float) -> Rects:
    here = np.array([place for place, name in enumerate(names) if name == chosen], dtype=int)
    return Rects.of(-0.003 * width, here + 0.04, INK, width=length[here] + 0.006 * width, height=0.92, edge=INK)


def _bars(names: list[str], length: Floats) -> Rects:
    style = looks(names)
    colors, hatched = [style[name].color for name in names], [style[name].dashed for name in names]
    return Rects.of(0, np.arange(len(names)) + 0.12, colors, width=length, height=0.76, hatched=hatched)


def _ticks(names: list[str], ticks: Mapping[str, float], scale: float) -> tuple[Lines, ...]:
    rows = np.array([names.index(name) for name in ticks], dtype=float)
    at = np.array(list(ticks.values())) / scale
    return (Lines.of(at, rows + 0.02, at, rows + 0.98, INK, width_px=3.0),) if ticks else ()


def _time_words(
    name: str, seconds: Mapping[str, float], measured: Mapping[str, float], longest: float, scale: float
) -> str:
    words = "… " * (seconds[name] > longest) + f"{seconds[name] / scale:,.4g}"
    return words + (f", measured {measured[name] / scale:,.4g}" if name in measured else "")


def _explained(bound_s: float | None, framed: bool, cut: bool, measured: bool) -> str:
    notes = {"the line: lower bound": bool(bound_s), "framed: yours": framed, "…: cut": cut}
    notes["dark ticks: measured"] = measured
    return "".join(f"; {note}" for note, wanted in notes.items() if wanted)


def _key(label: str, look: Look) -> Key:
    return Key(label, look.color, hatched=look.dashed)


def _cell_words(letters: list[str], margins: list[float]) -> list[str]:
    return [f"{letter} {_margin_words(margin)}".rstrip() for letter, margin in zip(letters, margins, strict=True)]


def _margin_words(margin: float) -> str:
    """The share as text of at most four characters, = for none; nothing where there is no next best."""
    if not np.isfinite(margin):
        return ""
    if margin < 0.005:
        return "<1%" if margin > 1e-9 else "="
    return f"{margin:.0%}" if margin < 9.995 else f"{margin + 1:.0f}×" if margin < 998 else ">999"
