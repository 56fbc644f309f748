"""The panel of an explorer: presets over controls over pictures and a report. Only these classes need ipywidgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import ipywidgets as widgets

from .explorer import MOST_SVG_BYTES, Explorer, Now, Setting, Steps

_CHARACTER_PX = 7  # about as wide as a character of a label is
_LABEL_MARGIN_PX = 14
_LIST_MARGIN_PX = 40  # for the arrow of a list
_LEAST_CONTROL_PX = 200  # without its label
_MOST_COLUMN_PX = 400  # so that two columns fit next to JupyterLab's file browser on a screen of 1,280 px
_STYLE = """<style>
.rankscope-explorer .widget-readout { flex: none; min-width: 48px; max-width: none; white-space: nowrap; }
.rankscope-gallery button { margin-bottom: 4px; } /* else rows of buttons touch */
</style>"""


def make_control(setting: Setting, value: Any) -> Any:
    """Return a new widget for the setting that is set to the value."""
    options = {
        "description": setting.label,
        "tooltip": _tooltip(setting),
        "value": value,
        "layout": widgets.Layout(width="auto"),
    }
    if isinstance(setting.default, bool):
        return widgets.Checkbox(indent=False, **options)
    if isinstance(setting.choices, range):
        return widgets.IntSlider(min=setting.choices[0], max=setting.choices[-1], **options)
    if isinstance(setting.choices, Steps):
        return widgets.SelectionSlider(options=setting.options, **options)
    return widgets.Dropdown(options=setting.options, **options)


def _tooltip(setting: Setting, reason: str = "") -> str | None:
    """Return the reason why a control has no effect, or else its hint; None, ipywidgets' default, if it has neither."""
    return reason or setting.hint or None


def _label_px(setting: Setting) -> int:
    """The width of a setting's label."""
    return _LABEL_MARGIN_PX + _CHARACTER_PX * len(setting.label)


class PicturedWidget(widgets.VBox):  # type: ignore[misc]
    """A widget that also provides a picture of its state when the cell is run, for readers without a kernel.

    Front ends that can show widgets prefer the widget.
    """

    def still(self) -> str:
        """Return the picture, as SVG; "" for none."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        data: dict[str, Any] = super()._repr_mimebundle_(**options)
        picture = self.still()
        # The notebook's file stores the picture, and a large one would make that file too large.
        if picture and len(picture.encode()) <= MOST_SVG_BYTES:
            data = data | {"image/svg+xml": picture}
        return data


class Panel(PicturedWidget):
    """Presets over controls over pictures and a report, which change with them; the line is their state."""

    def __init__(self, explorer: Explorer, start: Now) -> None:
        self.explorer = explorer
        self._painted: Now = None  # the settings that the pictures show; None before the first picture
        self._is_held = False  # see `_hold`
        self.controls: dict[str, Any] = {}  # by the name of the setting
        for setting in explorer.settings:
            self.controls[setting.name] = make_control(setting, getattr(start, setting.name))
        self.pictures = widgets.HTML()
        self.report = widgets.HTML()
        self.line = widgets.Text(
            description="these settings",
            tooltip="Copy this line into a notebook",
            layout=widgets.Layout(width="auto"),
            style={"description_width": "initial"},
        )
        self.presets = []
        for label, settings in [*explorer.presets.items(), ("reset", {})]:  # "reset" leaves all at their defaults
            target = explorer.at(**settings)
            button = self._button(label, tooltip=explorer.line(target), act=partial(self.go, target))
            self.presets.append(button)
        above = [widgets.HTML(_STYLE), self._row(self.presets), self._grid(), self.line]
        super().__init__([*above, self.pictures, self.report])
        self.add_class("rankscope-explorer")
        for control in self.controls.values():
            control.observe(lambda _: self._paint(), names="value")
        self._paint()

    def still(self) -> str:
        return self.explorer.still(self.now)

    @property
    def now(self) -> Now:
        return self.explorer.at(**{name: control.value for name, control in self.controls.items()})

    def go(self, now: Now) -> None:
        """Set all controls, and paint once."""
        with self._hold():
            for setting, value in zip(self.explorer.settings, now, strict=True):
                control = self.controls[setting.name]
                if isinstance(setting.choices, range):
                    control.max = setting.choices[-1]  # `_paint` may have set a lower max, which would cut the value
                control.value = value
        self._paint()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Let controls and the line be set without painting or reading them, which would set them again."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def _paint(self) -> None:
        """Show the present settings: the ends of sliders, derived settings, pictures, the report, and the line."""
        if self._is_held:
            return
        with self._hold():
            for name, most in self.explorer.most(self.now).items():
                self.controls[name].max = most
            now = self.now  # read after the loop, because a lower end cuts a slider's value
            for name in self.explorer.derived(now):
                self.controls[name].value = getattr(now, name)
            if now != self._painted:  # else the pictures are right, as when a preset is clicked twice
                self._painted = now
                self.pictures.value, self.report.value = self.explorer.html(now)
                reasons = self.explorer.without_effect(now)
                for setting in self.explorer.settings:
                    reason = reasons.get(setting.name, "")
                    self.controls[setting.name].disabled = bool(reason)
                    self.controls[setting.name].tooltip = _tooltip(setting, reason)
            self.line.value = self.explorer.line(now)

    def _button(self, label: str, tooltip: str, act: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(description=label, tooltip=tooltip, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: act())
        return button

    def _row(self, children: Sequence[widgets.Widget]) -> widgets.Box:
        return widgets.Box(children, layout=widgets.Layout(flex_flow="row wrap"))

    def _grid(self) -> widgets.Box:
        """Return the controls in as many columns as fit.

        All labels are as wide as the longest one, so that the controls stand in line. Only the label of a list is
        narrower, if its longest value needs the room.
        """
        # A checkbox has its label behind the box, so its label need not be as wide as the others.
        labelled = [setting for setting in self.explorer.settings if setting.kind is not bool]
        labels_px = max(_label_px(setting) for setting in labelled)
        list_px = {}  # the width that each list needs for its longest value
        for setting in labelled:
            is_slider = isinstance(setting.choices, range | Steps)
            if not is_slider:
                longest = max(len(label) for label, _ in setting.options)
                list_px[setting.name] = _LIST_MARGIN_PX + _CHARACTER_PX * longest
        control_px = max([_LEAST_CONTROL_PX, *list_px.values()])
        column_px = min(labels_px + control_px, _MOST_COLUMN_PX)
        for setting in labelled:
            room_px = column_px - list_px.get(setting.name, 0)
            width_px = min(labels_px, room_px)
            width_px = max(width_px, _label_px(setting))  # the label itself is never cut
            self.controls[setting.name].style.description_width = f"{width_px}px"
        return widgets.Box(
            list(self.controls.values()),
            layout=widgets.Layout(
                display="grid",
                # on a telephone a column is as wide as the page, and not wider
                grid_template_columns=f"repeat(auto-fill, minmax(min({column_px}px, 100%), 1fr))",
                grid_gap="0 16px",
                align_items="center",
            ),
        )
