"""Figures: functions that draw a value on matplotlib Axes. `svg.to_svg` writes the same drawings as SVG.

Every function takes the value and an optional `ax`, returns the Axes, and never shows. Each is imported, and matplotlib
with it, when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .marks import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where each figure comes from: a function of the figure's name, which draws on Axes, or one that returns a drawing.
_FIGURES = {
    "assignment": "rankscope.figures.assignments:draw_assignment",
    "bars": "rankscope.figures.bar_charts:draw_bars",
    "bucket_caps": "rankscope.train.figures.lines:bucket_caps",
    "buckets": "rankscope.train.figures.ddp:draw_buckets",
    "copies": "rankscope.box.figures.profiles:copies",
    "costs": "rankscope.figures.lines:costs",
    "coverage": "rankscope.figures.assignments:draw_coverage",
    "curves": "rankscope.figures.lines:curves",
    "fsdp_step": "rankscope.train.figures.fsdp:draw_fsdp_step",
    "lengths": "rankscope.figures.assignments:draw_lengths",
    "nccl_choices": "rankscope.box.figures.choices:draw_nccl_choices",
    "profile": "rankscope.box.figures.profiles:profile",
    "schedule": "rankscope.figures.schedules:draw_schedule",
    "slowdowns": "rankscope.figures.rankings:draw_slowdowns",
    "step_costs": "rankscope.figures.assignments:draw_step_costs",
    "timeline": "rankscope.figures.timelines:draw_timeline",
    "winners": "rankscope.figures.rankings:draw_winners",
    "zero_memory": "rankscope.train.figures.lines:zero_memory",
}

__all__ = list(_FIGURES)


def _painted(draw: Callable[..., Drawing]) -> Callable[..., Axes]:
    """Return the figure of a drawing: a function with the parameters of `draw`, and `ax` before the title."""
    parameters = list(signature(draw).parameters.values())
    index_of_title = [parameter.name for parameter in parameters].index("title")
    ax_parameter = Parameter("ax", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="Axes | None")
    parameters.insert(index_of_title, ax_parameter)
    figure_signature = signature(draw).replace(parameters=parameters, return_annotation="Axes")

    @naming_extra()
    def figure(*args: Any, **options: Any) -> Axes:
        from .axes import to_axes  # imports matplotlib

        arguments = figure_signature.bind(*args, **options).arguments  # without those that are left at their defaults
        ax = arguments.pop("ax", None)
        return to_axes(draw(**arguments), ax)

    figure.__name__ = draw.__name__.removeprefix("draw_")
    figure.__qualname__ = figure.__name__
    figure.__doc__ = draw.__doc__
    figure.__signature__ = figure_signature  # type: ignore[attr-defined]
    return figure


@cache
@naming_extra()
def __getattr__(name: str) -> Callable[..., Axes]:
    if name not in _FIGURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function: Callable[..., Any] = resolve_name(_FIGURES[name])
    if function.__name__.startswith("draw_"):
        return _painted(function)
    return function


def __dir__() -> list[str]:
    return __all__
