"""What explorers share: settings that are checked, sliders for them, and a panel that repaints when one moves."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from ..values.checks import truth, whole

Ranges = dict[str, tuple[int, int]]


def chosen(settings: dict[str, Any], defaults: dict[str, Any], ranges: Ranges) -> dict[str, Any]:
    """Return `defaults` with `settings` in their places.

    Raises ValueError for a setting that does not exist, a number outside its range and a switch that is no bool.
    """
    unknown = set(settings) - set(defaults)
    if unknown:
        raise ValueError(f"settings are {', '.join(defaults)}; got {', '.join(sorted(unknown))}")
    result = defaults | settings
    for name, (low, high) in ranges.items():
        result[name] = whole(name, result[name], low, high)
    for name, default in defaults.items():
        if isinstance(default, bool):
            result[name] = truth(name, result[name])
    return result


def slider(value: int, limits: tuple[int, int], label: str) -> widgets.IntSlider:
    return widgets.IntSlider(value=value, min=limits[0], max=limits[1], description=label, **_looks())


def choice(value: Any, options: Any, label: str) -> widgets.Dropdown:
    return widgets.Dropdown(value=value, options=options, description=label, **_looks())


def switch(value: bool, label: str) -> widgets.Checkbox:
    return widgets.Checkbox(value=value, description=label, indent=False, layout=widgets.Layout(width="180px"))


def _looks() -> dict[str, Any]:
    return {"layout": widgets.Layout(width="320px"), "style": {"description_width": "96px"}}


def panel(controls: dict[str, Any], paint: Callable[[dict[str, Any]], tuple[str, str]]) -> widgets.VBox:
    """Return the controls over a picture and a report, which `paint` makes, as SVG and as text, of their values."""
    shown, told = widgets.HTML(), widgets.HTML()

    def repaint(_: object = None) -> None:
        picture, report = paint({name: control.value for name, control in controls.items()})
        shown.value = picture
        told.value = f"<pre style='line-height:1.35;font-family:monospace'>{escape(report)}</pre>"

    for control in controls.values():
        control.observe(repaint, names="value")
    repaint()
    layout = widgets.Layout(flex_flow="row wrap", max_width="1000px")
    return widgets.VBox([widgets.Box(list(controls.values()), layout=layout), shown, told])
