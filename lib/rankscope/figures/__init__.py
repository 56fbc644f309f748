"""Figures: a noun becomes a drawing, a drawing is painted on matplotlib Axes (here) or as SVG (`svg.to_svg`).

Every function takes what it draws and an optional `ax`, returns the Axes, and never shows. matplotlib is imported when
the first figure is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from ..values.extras import naming_extras
from ..values.lazy import lazy
from .assignments import draw_assignment, draw_coverage, draw_label_counts
from .ddp import draw_buckets
from .marks import Drawing
from .rankings import draw_winners
from .schedules import draw_link_load, draw_schedule
from .timelines import draw_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .lines import bucket_caps, costs, curves, queue_fill, zero_memory
    from .profiles import copies, profile

__all__ = [
    "assignment",
    "bucket_caps",
    "buckets",
    "copies",
    "costs",
    "coverage",
    "curves",
    "label_counts",
    "link_load",
    "profile",
    "queue_fill",
    "schedule",
    "timeline",
    "winners",
    "zero_memory",
]


def _painted(draw: Callable[..., Drawing]) -> Callable[..., Axes]:
    """Return the figure of a drawing: a function that takes what `draw` takes, and `ax` before the title."""
    parameters = list(signature(draw).parameters.values())
    place = [parameter.name for parameter in parameters].index("title")
    ax = Parameter("ax", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="Axes | None")
    shown = signature(draw).replace(parameters=[*parameters[:place], ax, *parameters[place:]], return_annotation="Axes")

    def figure(*args: Any, **options: Any) -> Axes:
        with naming_extras("rankscope.figures"):
            from .axes import to_axes

        given = shown.bind(*args, **options).arguments
        on = given.pop("ax", None)
        return to_axes(draw(**given), on)

    figure.__name__ = figure.__qualname__ = draw.__name__.removeprefix("draw_")
    figure.__doc__ = draw.__doc__
    figure.__signature__ = shown  # type: ignore[attr-defined]
    return figure


assignment = _painted(draw_assignment)
buckets = _painted(draw_buckets)
coverage = _painted(draw_coverage)
label_counts = _painted(draw_label_counts)
link_load = _painted(draw_link_load)
schedule = _painted(draw_schedule)
timeline = _painted(draw_timeline)
winners = _painted(draw_winners)

__getattr__, __dir__ = lazy(
    __name__,
    {
        "bucket_caps": "lines",
        "copies": "profiles",
        "costs": "lines",
        "curves": "lines",
        "profile": "profiles",
        "queue_fill": "lines",
        "zero_memory": "lines",
    },
)
