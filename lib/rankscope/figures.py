"""Figures: functions that draw a value. Without `ax` a diagram is a `Drawing`, which Jupyter shows as SVG.

Every function takes the value first, and as an option `ax`, the Axes of matplotlib on which it then draws and which it
returns. Charts with numeric axes make their own Axes without it. Matplotlib is imported by what needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from pkgutil import resolve_name
from typing import Any

from .common.extras import naming_extra

# Where each figure comes from: a function that returns a drawing, or a chart that draws on Axes.
_FIGURES = {
    "assignment": "rankscope.sampling.picture:draw_assignment",
    "bars": "rankscope.drawing.bars:draw_bars",
    "bucket_caps": "rankscope.train.ddp.picture:draw_caps",
    "buckets": "rankscope.train.ddp.picture:draw_buckets",
    "copies": "rankscope.box.transfers.picture:copies",
    "curves": "rankscope.drawing.charts:curves",
    "fsdp_step": "rankscope.train.fsdp.picture:draw_fsdp_step",
    "profile": "rankscope.box.judging.picture:profile",
    "ranking": "rankscope.drawing.ranking:draw_ranking",
    "schedule": "rankscope.collectives.picture:draw_schedule",
    "step_costs": "rankscope.sampling.work.picture:draw_step_costs",
    "timeline": "rankscope.timeline.picture:draw_timeline",
    "zero_memory": "rankscope.train.zero.picture:draw_memory",
}

__all__ = list(_FIGURES)


def _figure(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return the figure of a drawing: `draw` with an option `ax`."""

    @wraps(draw)
    def figure(*args: Any, ax: Any = None, **options: Any) -> Any:
        drawing = draw(*args, **options)
        if ax is None:
            return drawing
        from .drawing.axes import to_axes  # imports matplotlib

        return to_axes(drawing, ax)

    figure.__name__ = figure.__qualname__ = name
    return figure


@cache
@naming_extra()
def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _FIGURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function: Callable[..., Any] = resolve_name(_FIGURES[name])
    return _figure(name, function) if function.__name__.startswith("draw_") else function


def __dir__() -> list[str]:
    return __all__
