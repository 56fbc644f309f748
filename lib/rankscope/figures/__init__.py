"""Figures: functions that draw a value on matplotlib Axes. `svg.to_svg` writes the same drawings as SVG.

Every function takes the value and an optional `ax`, returns the Axes, and never shows. The core and the subpackages
name their figures in their `Extension`; each is loaded, and matplotlib with it, when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from ..common.extensions import extensions
from ..common.extras import naming_extras
from .marks import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _modules() -> dict[str, str]:
    """Return the name of each figure's module, by the figure's name."""
    modules: dict[str, str] = {}
    for extension in extensions():
        modules.update(extension.figures)
    return modules


@cache
def _figure(name: str) -> Callable[..., Axes]:
    """Return a figure by its name: the function of that name in its module, or made from `draw_` and the name."""
    module_name = _modules()[name]
    with naming_extras("rankscope.figures"):  # some of these modules import matplotlib
        module = import_module(module_name)
    draw = getattr(module, f"draw_{name}", None)
    if draw is not None:
        return _painted(draw)
    figure: Callable[..., Axes] = getattr(module, name)
    return figure


def _painted(draw: Callable[..., Drawing]) -> Callable[..., Axes]:
    """Return the figure of a drawing: a function with the parameters of `draw`, and `ax` before the title."""
    parameters = list(signature(draw).parameters.values())
    index_of_title = [parameter.name for parameter in parameters].index("title")
    ax_parameter = Parameter("ax", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="Axes | None")
    parameters.insert(index_of_title, ax_parameter)
    figure_signature = signature(draw).replace(parameters=parameters, return_annotation="Axes")

    def figure(*args: Any, **options: Any) -> Axes:
        with naming_extras("rankscope.figures"):
            from .axes import to_axes  # imports matplotlib

        arguments = figure_signature.bind(*args, **options).arguments  # without those that are left at their defaults
        ax = arguments.pop("ax", None)
        return to_axes(draw(**arguments), ax)

    figure.__name__ = draw.__name__.removeprefix("draw_")
    figure.__qualname__ = figure.__name__
    figure.__doc__ = draw.__doc__
    figure.__signature__ = figure_signature  # type: ignore[attr-defined]
    return figure


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _figure(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
