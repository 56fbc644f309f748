"""The panel of an explorer: controls in a column left of the drawings and the report. Only this needs ipywidgets.

On a narrow page the column is a grid above the drawings. The look is that of a page's own theme, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from ..drawing.drawing import Drawing, to_svg
from ..drawing.svg import STYLE
from .explorer import Explorer, Now, Setting, Steps, Typed

_MOST_SVG_BYTES = 55_000  # of the picture that a notebook stores; a larger one is left out
NUM_BESIDE = 7  # controls in the column, below the list of examples; the others are folded
_NO_EXAMPLE = ""  # of the list of examples, when a control was moved
_STYLE = """
.rankscope-explorer { flex-flow: row wrap; gap: 8px 24px; align-items: flex-start; max-width: 1080px; }
.rankscope-side { flex: 1 1 190px; display: grid !important; overflow: visible; align-content: start; gap: 6px 20px;
  grid-template-columns: repeat(auto-fill, minmax(120px, 1fr)); }
.rankscope-main { flex: 1000 1 340px; min-width: 0; max-width: 800px; overflow: visible; }
.rankscope-tools { gap: 8px; margin: 4px 8px; } .rankscope-tools > * { margin: 0; }
.rankscope-tools > .widget-text { flex: 1; min-width: 0; } .rankscope-tools input { width: 100%; }
.rankscope-shown { overflow: visible; }
.rankscope-shown svg { display: block; width: 100%; height: auto; }
.rankscope-shown svg + svg { margin-top: 16px; }
.rankscope-side > * { width: auto !important; min-width: 0; margin: 0 !important; overflow: visible; }
.rankscope-side .widget-inline-hbox { display: grid; width: auto; height: auto; margin: 0; overflow: visible;
  grid-template-columns: minmax(0, 1fr) auto; align-items: center; }
.rankscope-side .widget-inline-hbox > .widget-label { grid-column: 1 / -1; width: auto; height: auto; margin: 0;
  white-space: normal; line-height: 18px; font-size: 12px; text-align: left; color: var(--jp-ui-font-color2); }
.rankscope-side :is(select, input[type="number"], input[type="text"]) { height: 28px; }
.rankscope-side .slider-container { height: 28px; display: flex; align-items: center; margin: 0 8px; }
.rankscope-side .slider { flex: 1; margin: 0; }
.rankscope-side .widget-readout { min-width: 32px; max-width: none; text-align: right; white-space: nowrap; }
.rankscope-side .widget-checkbox { grid-template-columns: 1fr; height: 24px; }
.rankscope-typed { align-items: flex-end; gap: 8px; } .rankscope-typed > :first-child { flex: 1; min-width: 0; }
.rankscope-side .rankscope-typed .widget-inline-hbox > .widget-label { overflow: visible; }
.rankscope-typed > :last-child { grid-template-columns: 1fr !important; }
.rankscope-side:has(textarea) { flex-basis: 100%; } .rankscope-side .widget-textarea { grid-column: 1 / -1; }
.rankscope-side textarea { grid-column: 1 / -1; width: 100%; font: 11px/1.4 var(--jp-code-font-family, monospace); }
.rankscope-more { grid-column: 1 / -1; }
.rankscope-more .lm-Widget.jupyter-widgets-Collapse-contents { padding: 8px; }
.rankscope-side :disabled, .rankscope-side [disabled] { opacity: 0.45; }
"""


def height_of(html: str) -> float:
    """Return the height of all drawings together, divided by their width."""
    boxes = re.findall(r'<svg[^>]* viewBox="0 0 ([\d.]+) ([\d.]+)"', html)
    return sum(float(height) / float(width) for width, height in boxes)


def _number(setting: Setting, value: int) -> tuple[widgets.Widget, widgets.Widget]:
    """Return the field for a whole number that can be typed, and the slider over the choices with that field.

    The slider stands at the choice that is nearest to the number.
    """
    number = widgets.BoundedIntText(value, setting.values[0], setting.most, tooltip=setting.label)
    number.layout.width = "72px"

    def nearest() -> Any:
        return min(setting.values, key=lambda choice: abs(choice - number.value))

    slider = widgets.SelectionSlider(
        options=setting.values, value=nearest(), description=setting.label, readout=False, layout={"width": "auto"}
    )

    def follow_slider(_change: Any) -> None:
        if slider.value != nearest():  # else the slider has followed the number
            number.value = slider.value

    def follow_number(_change: Any) -> None:
        slider.value = nearest()

    slider.observe(follow_slider, "value")
    number.observe(follow_number, "value")
    field = widgets.HBox([slider, number])
    field.add_class("rankscope-typed")
    return number, field


def _control(setting: Setting, value: Any) -> widgets.Widget:
    options = {"description": setting.label, "value": value, "layout": {"width": "auto"}}
    if isinstance(setting.default, bool):
        return widgets.Checkbox(indent=False, **options)
    if isinstance(setting.choices, range):
        return widgets.IntSlider(min=setting.choices[0], max=setting.choices[-1], **options)
    if isinstance(setting.choices, Steps):
        return widgets.SelectionSlider(options=setting.options, **options)
    if isinstance(setting.choices, Typed):
        return widgets.Textarea(rows=8, **options)
    return widgets.Dropdown(options=setting.options, **options)


class Panel(widgets.Box):  # type: ignore[misc]
    """Controls; what the explorer shows at their values, which is `shown`; and `code`, the line that opens it so.

    `name` is that of the function that opens it, and `inputs` are its first arguments as code.
    """

    def __init__(self, explorer: Explorer, start: Now, name: str, inputs: Sequence[str] = ()) -> None:
        self.explorer = explorer
        self.name = name
        self.inputs = inputs
        presets = {"the defaults": {}, **explorer.presets}
        self.presets = {name: explorer.at(**preset) for name, preset in presets.items()}
        self.controls: dict[str, Any] = {}  # by the name of the setting
        self._painted: Now = None
        self._drawings: Sequence[Drawing] = ()
        self._ratio = 0.0  # the height of the tallest drawings so far, divided by their width
        self.example = widgets.Dropdown(
            options=[_NO_EXAMPLE, *self.presets], description="example", layout={"width": "auto"}
        )
        fields = [self.example]
        for setting in explorer.settings:
            value = getattr(start, setting.name)
            if setting.most:
                self.controls[setting.name], field = _number(setting, value)
            else:
                self.controls[setting.name] = field = _control(setting, value)
            fields.append(field)
        side = widgets.Box(fields[: 1 + NUM_BESIDE])
        side.add_class("rankscope-side")
        if fields[1 + NUM_BESIDE :]:
            folded = widgets.Box(fields[1 + NUM_BESIDE :])
            folded.add_class("rankscope-side")
            more = widgets.Accordion([folded], titles=("more settings",), selected_index=None)
            more.add_class("rankscope-more")
            side.children += (more,)
        self.shown = widgets.HTML()
        self.shown.add_class("rankscope-shown")
        self.code = widgets.Text(tooltip="the line that opens this panel as it is")
        self.saving = widgets.Button(description="save picture")
        self.saving.on_click(self._save)
        tools = widgets.HBox([self.code, self.saving])
        tools.add_class("rankscope-tools")
        main = widgets.VBox([self.shown, tools])
        main.add_class("rankscope-main")
        style = widgets.HTML(f"<style>{STYLE}{_STYLE}</style>", layout={"display": "none"})
        super().__init__([style, side, main])
        self.add_class("rankscope-explorer")
        for control in self.controls.values():
            control.observe(self._paint, "value")
        self._paint()
        self.example.observe(self._choose, "value")

    @property
    def now(self) -> Now:
        return self.explorer.at(**{name: control.value for name, control in self.controls.items()})

    def go(self, now: Now) -> None:
        """Set all controls, and paint once."""
        for control in self.controls.values():
            control.unobserve(self._paint, "value")
        for control, value in zip(self.controls.values(), now, strict=True):
            control.value = value
            control.observe(self._paint, "value")
        self._paint()

    def _save(self, _button: Any) -> None:
        """Write the drawings into this folder, under new names; the button then shows the last one."""
        name = self.name.rpartition(".")[2]
        for drawing in self._drawings:
            paths = (Path(f"{name}_{number}.svg") for number in count(1))
            path = drawing.save(next(path for path in paths if not path.exists()))
            self.saving.description = path.name
            self.saving.tooltip = f"saved as {path.absolute()}"

    def _choose(self, _change: Any) -> None:
        if self.example.value != _NO_EXAMPLE:
            self.go(self.presets[self.example.value])

    def _paint(self, _change: Any = None) -> None:
        now = self.now
        if now == self._painted:
            return
        self._painted = now
        self._drawings, drawn, report = self.explorer.shown(now, self._drawings)
        # What is below keeps its place: drawings have at least the room that they had before.
        self._ratio = max(self._ratio, height_of(drawn))
        self.shown.value = f'<div style="aspect-ratio:1/{self._ratio:.3f}">{drawn}</div>{report}'
        for setting in self.explorer.settings:
            self.controls[setting.name].disabled = not setting.when(now)
        arguments = filter(None, [*self.inputs, self.explorer.line(now)])
        self.code.value = f"{self.name}({', '.join(arguments)})"
        self.example.value = next((name for name, preset in self.presets.items() if preset == now), _NO_EXAMPLE)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the widget and, for readers without a kernel, its first drawing that is small."""
        data: dict[str, Any] = super()._repr_mimebundle_(**options)
        for svg in map(to_svg, self._drawings):
            if len(svg.encode()) <= _MOST_SVG_BYTES:
                return data | {"image/svg+xml": svg}
        return data
