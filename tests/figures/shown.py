"""What pictures show, read back from drawings and from matplotlib's artists."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rankscope.drawing.drawing import Drawing
from rankscope.drawing.marks import Box, Text


def words_of(drawing: Drawing) -> list[str]:
    """All texts of a drawing's marks, in the order of painting."""
    return [mark.text for mark in drawing.marks if isinstance(mark, Box | Text) and mark.text]


def boxes(drawing: Drawing) -> list[Box]:
    return [mark for mark in drawing.marks if isinstance(mark, Box)]


def artist(ax: Axes, label: str) -> Any:
    handles, labels = ax.get_legend_handles_labels()
    return handles[labels.index(label)]


def points(ax: Axes, label: str) -> np.ndarray:
    """x and y of the line or the markers with this label, a row a point."""
    return np.asarray(artist(ax, label).get_xydata(), dtype=float)


def heights(ax: Axes, label: str) -> np.ndarray:
    return points(ax, label)[:, 1]


def labels(ax: Axes) -> list[str]:
    return list(ax.get_legend_handles_labels()[1])


def named(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]
