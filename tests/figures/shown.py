"""What pictures show, read back from drawings and from matplotlib's artists."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rankscope.figures.marks import Drawing


def words_of(drawing: Drawing) -> list[str]:
    """All texts on a drawing's marks."""
    return [text for texts in drawing.texts for text in texts.text]


def placed(drawing: Drawing) -> dict[tuple[float, float], str]:
    """{(x, y): text} of a drawing."""
    texts = drawing.texts
    return {(x, y): text for t in texts for x, y, text in zip(t.x.tolist(), t.y.tolist(), t.text, strict=True)}


def cells(drawing: Drawing, layer: int = 0) -> dict[tuple[float, float], tuple[str, bool]]:
    """{(x, y): (fill, hatched)} of one layer of rectangles."""
    rects = drawing.rects[layer]
    rows = zip(rects.x.tolist(), rects.y.tolist(), rects.fill, rects.hatched.tolist(), strict=True)
    return {(x, y): (fill, hatched) for x, y, fill, hatched in rows}


def keys_of(drawing: Drawing) -> list[str]:
    return [key.label for key in drawing.legend]


def artist(ax: Axes, label: str) -> Any:
    handles, labels = ax.get_legend_handles_labels()
    return handles[labels.index(label)]


def points(ax: Axes, label: str) -> np.ndarray:
    """x and y of the line or the markers with this label, a row a point."""
    drawn = artist(ax, label)
    return np.asarray((drawn[0] if hasattr(drawn, "lines") else drawn).get_xydata(), dtype=float)


def heights(ax: Axes, label: str) -> np.ndarray:
    return points(ax, label)[:, 1]


def bars(ax: Axes, label: str) -> np.ndarray:
    """From where to where the error bar of each marker with this label reaches, a row a point."""
    return np.array(artist(ax, label).lines[2][0].get_segments())[:, :, 1]


def labels(ax: Axes) -> list[str]:
    return list(ax.get_legend_handles_labels()[1])


def named(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def below(ax: Axes) -> list[str]:
    """The entries of the legend below the figure."""
    return [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]
