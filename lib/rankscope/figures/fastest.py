"""A map over sizes and numbers of ranks: which algorithm is the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from ..collectives.best import Best
from ..common.units import bytes_words
from .charts import LABEL_PT, chart
from .palette import INK, PAPER, looks, mixed

_SAME = 1e-9  # a smaller relative difference comes from rounding


def winners(results: Mapping[int, Mapping[float, Best]], title: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the fastest algorithm at each size and number of ranks, and how much longer the next best takes.

    `results` contains the results of `collectives.best`, by number of ranks and then by size. Ranks increase upwards.
    Raises ValueError if there are no ranks or sizes.
    """
    if not results or not all(results.values()):
        raise ValueError("results must have at least one number of ranks and one size")
    table = [list(by_size.values()) for by_size in results.values()]
    won = [result.algorithm for row in table for result in row]
    names = sorted(set(won), key=lambda name: -won.count(name))
    pale = {name: mixed(look.color, PAPER, 0.45) for name, look in looks(names).items()}
    title = title or f"{names[0]} is the fastest in {won.count(names[0])} of {len(won)} cells"
    ax = chart(ax, title, "size of each rank's buffer [bytes]", "ranks", inches=1.4 + 0.27 * len(table))
    ax.imshow([[to_rgb(pale[result.algorithm]) for result in row] for row in table], aspect="auto", origin="lower")
    ax.grid(visible=False)
    sizes = [bytes_words(size) for size in next(iter(results.values()))]
    ax.set_xticks(range(len(sizes)), sizes)
    ax.set_yticks(range(len(table)), [str(num_ranks) for num_ranks in results])
    for row, column in np.ndindex(len(table), len(sizes)):
        words = _margin_words(table[row][column].margin)
        ax.text(column, row, words, ha="center", va="center", fontsize=LABEL_PT, color=INK)
    patches = [Patch(color=pale[name], label=name) for name in names]
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(len(names), 5)}
    ax.figure.legend(handles=patches, frameon=False, fontsize=LABEL_PT, **place)
    return ax


def _margin_words(margin: float) -> str:
    """The margin as text of a few characters, = for none; nothing if there is no next best.

    >>> _margin_words(0.0), _margin_words(0.001), _margin_words(0.25), _margin_words(11.0)
    ('=', '<1%', '25%', '12×')
    """
    if not np.isfinite(margin):
        return ""
    if margin <= _SAME:
        return "="
    if margin < 0.005:  # would be rounded to 0%
        return "<1%"
    return f"{margin:.0%}" if margin < 10 else f"{margin + 1:.0f}×"
