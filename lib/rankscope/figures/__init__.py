"""Figures: a noun becomes a drawing, a drawing is painted on matplotlib Axes (here) or as SVG (`svg.to_svg`).

Every function takes what it draws and an optional `ax`, returns the Axes, and never shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from ..sampling import Assignment
from ..timeline import Timeline
from .samplers import draw_assignment, draw_coverage, draw_label_counts
from .timelines import COMMUNICATION, draw_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["assignment", "coverage", "curves", "label_counts", "queue_fill", "timeline"]


def assignment(epoch: Assignment, ax: Axes | None = None, color_by: str = "rank", title: str | None = None) -> Axes:
    """Which rank reads which sample at which step; see `draw_assignment`."""
    from .axes import to_axes

    return to_axes(draw_assignment(epoch, color_by, title), ax)


def coverage(epochs: Sequence[Assignment], ax: Axes | None = None, title: str | None = None) -> Axes:
    """Which rank reads each sample of the dataset, epoch by epoch; see `draw_coverage`."""
    from .axes import to_axes

    return to_axes(draw_coverage(epochs, title), ax)


def label_counts(
    counts: ArrayLike,
    title: str,
    label_name: str = "label",
    limits: tuple[int, int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How many samples of each label each rank reads; see `draw_label_counts`."""
    from .axes import to_axes

    return to_axes(draw_label_counts(counts, title, label_name, limits), ax)


def curves(
    x: ArrayLike,
    pairs: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]],
    title: str,
    x_label: str,
    y_label: str,
    ax: Axes | None = None,
    discrete: bool = False,
) -> Axes:
    """Prediction as lines against execution as markers, ``pairs[name] = (predicted, executed)``; see `to_curves`."""
    from .lines import to_curves

    return to_curves(x, pairs, title, x_label, y_label, ax, discrete)


def queue_fill(
    fills: Mapping[str, tuple[ArrayLike, ArrayLike]], title: str, capacity: int | None = None, ax: Axes | None = None
) -> Axes:
    """How many items wait in a queue over time, ``fills[name] = queue_fill(…)``; see `to_fills`."""
    from .lines import to_fills

    return to_fills(fills, title, capacity, ax)


def timeline(
    spans: Timeline, ax: Axes | None = None, title: str | None = None, hatched: Collection[str] = COMMUNICATION
) -> Axes:
    """What ran when, on which lane of which rank; see `draw_timeline`."""
    from .axes import to_axes

    return to_axes(draw_timeline(spans, title, hatched), ax)
