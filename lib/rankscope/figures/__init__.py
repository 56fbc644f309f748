"""Figures: a noun becomes a drawing, a drawing is painted on matplotlib Axes (here) or as SVG (`svg.to_svg`).

Every function takes what it draws and an optional `ax`, returns the Axes, and never shows. Those that draw on Axes
themselves are brought in, with matplotlib, when first asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from ..collectives import Schedule
from ..collectives.best import Winners
from ..ddp.buckets import DDPBuckets
from ..machine import Profile
from ..sampling import Assignment
from ..timeline import Timeline
from ..values.lazy import lazy
from ..zero.model import ZeroMemory
from .ddp_buckets import draw_buckets
from .peers import draw_peers
from .samplers import draw_assignment, draw_coverage, draw_label_counts
from .schedules import draw_schedule_step
from .timelines import COMMUNICATION, draw_timeline
from .traffic import draw_link_load, draw_space_time
from .winner_map import draw_winners
from .zero_memory import draw_zero_memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .cap_lines import to_bucket_caps as bucket_caps
    from .cost_lines import to_costs as costs
    from .lines import to_curves as curves
    from .lines import to_fills as queue_fill
    from .machine_lines import to_busbw as busbw
    from .machine_lines import to_residuals as residuals
    from .transfer_lines import to_both_ways as both_ways
    from .transfer_lines import to_copies as copies
    from .transfer_lines import to_pieces as pieces
    from .zero_lines import to_zero_curve as zero_curve

__all__ = [
    "assignment",
    "both_ways",
    "bucket_caps",
    "buckets",
    "busbw",
    "copies",
    "costs",
    "coverage",
    "curves",
    "label_counts",
    "link_load",
    "peers",
    "pieces",
    "queue_fill",
    "residuals",
    "schedule_step",
    "space_time",
    "timeline",
    "winners",
    "zero_curve",
    "zero_memory",
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


def winners(table: Winners, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Which algorithm is the quickest at each size and number of ranks, and by how much; see `draw_winners`."""
    from .axes import to_axes

    return to_axes(draw_winners(table, title), ax)


def peers(profile: Profile, ax: Axes | None = None, title: str | None = None) -> Axes:
    """How quick copies from each GPU to each other are; see `draw_peers`."""
    from .axes import to_axes

    return to_axes(draw_peers(profile, title), ax)


def zero_memory(
    memories: Mapping[str, ZeroMemory],
    limits_bytes: Mapping[str, float] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """What a rank's memory is made of, a bar for each stage or way; see `draw_zero_memory`."""
    from .axes import to_axes

    return to_axes(draw_zero_memory(memories, limits_bytes, title=title), ax)


def buckets(
    assigned: DDPBuckets, ax: Axes | None = None, iteration: int | None = None, title: str | None = None
) -> Axes:
    """Which gradients share an allreduce, in launch order, and the cap they met; see `draw_buckets`."""
    from .axes import to_axes

    return to_axes(draw_buckets(assigned, iteration, title), ax)


__getattr__, __dir__ = lazy(
    __name__,
    {
        "both_ways": "transfer_lines:to_both_ways",
        "bucket_caps": "cap_lines:to_bucket_caps",
        "busbw": "machine_lines:to_busbw",
        "copies": "transfer_lines:to_copies",
        "costs": "cost_lines:to_costs",
        "curves": "lines:to_curves",
        "pieces": "transfer_lines:to_pieces",
        "queue_fill": "lines:to_fills",
        "residuals": "machine_lines:to_residuals",
        "zero_curve": "zero_lines:to_zero_curve",
    },
)
