"""Figures: a noun becomes a drawing, a drawing is painted on matplotlib Axes (here) or as SVG (`svg.to_svg`).

Every function takes what it draws and an optional `ax`, returns the Axes, and never shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from ..collectives import Schedule
from ..collectives.best import Winners
from ..machine import Profile
from ..sampling import Assignment
from ..timeline import Timeline
from .samplers import draw_assignment, draw_coverage, draw_label_counts
from .schedules import draw_schedule_step
from .timelines import COMMUNICATION, draw_timeline
from .traffic import draw_link_load, draw_space_time
from .winner_map import draw_winners

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "assignment",
    "busbw",
    "costs",
    "coverage",
    "curves",
    "label_counts",
    "link_load",
    "queue_fill",
    "residuals",
    "schedule_step",
    "space_time",
    "timeline",
    "winners",
]


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
    """Prediction as lines, or dashes, against execution as markers, ``pairs[name] = (predicted, executed)``; see
    `to_curves`."""
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


def schedule_step(
    schedule: Schedule, step: int, ax: Axes | None = None, title: str | None = None, gpus_per_node: int | None = None
) -> Axes:
    """Who holds whose shares before and after a step, and its messages as arrows; see `draw_schedule_step`."""
    from .axes import to_axes

    return to_axes(draw_schedule_step(schedule, step, title, gpus_per_node), ax)


def space_time(schedule: Schedule, spans: Timeline, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Each message as a line from sender to receiver over time; see `draw_space_time`."""
    from .axes import to_axes

    return to_axes(draw_space_time(schedule, spans, title), ax)


def link_load(link_bytes: ArrayLike, ax: Axes | None = None, title: str | None = None) -> Axes:
    """How many bytes each rank sends to each other; see `draw_link_load`."""
    from .axes import to_axes

    return to_axes(draw_link_load(link_bytes, title), ax)


def costs(
    num_bytes: ArrayLike,
    seconds: Mapping[str, ArrayLike],
    bound_s: ArrayLike | None = None,
    measured: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    half_bytes: float | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """What each algorithm takes, size by size, over the lower bound, with measurements as markers; see `to_costs`."""
    from .cost_lines import to_costs

    return to_costs(num_bytes, seconds, bound_s, measured, half_bytes, ax, title)


def winners(table: Winners, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Which algorithm is the quickest at each size and number of ranks, and by how much; see `draw_winners`."""
    from .axes import to_axes

    return to_axes(draw_winners(table, title), ax)


def busbw(
    profile: Profile,
    collective: str = "allreduce",
    algorithms: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Bus bandwidth by size, measured and predicted, under the link's bandwidth; see `to_busbw`."""
    from .machine_lines import to_busbw

    return to_busbw(profile, collective, algorithms, ax, title)


def residuals(
    profile: Profile,
    collective: str = "allreduce",
    algorithms: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """By how much the prediction is over or under the measurement, algorithm by algorithm; see `to_residuals`."""
    from .machine_lines import to_residuals

    return to_residuals(profile, collective, algorithms, ax, title)
