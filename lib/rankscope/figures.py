"""Figures: functions that draw a value. A diagram is a `Drawing`, which Jupyter shows as SVG; a chart has numeric axes.

Every function takes the value first. Charts are matplotlib's and draw on the Axes `ax`, or on their own without it;
matplotlib is imported by what needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
    "profile": "rankscope.box.judging.picture:draw_machines",
    "ranking": "rankscope.drawing.ranking:draw_ranking",
    "schedule": "rankscope.collectives.picture:draw_schedule",
    "step_costs": "rankscope.sampling.work.picture:draw_step_costs",
    "timeline": "rankscope.timeline.picture:draw_timeline",
    "zero_memory": "rankscope.train.zero.picture:draw_memory",
}

__all__ = list(_FIGURES)


@cache
@naming_extra()
def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _FIGURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function: Callable[..., Any] = resolve_name(_FIGURES[name])
    return function


def __dir__() -> list[str]:
    return __all__
