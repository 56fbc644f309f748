"""The panel of `gallery`: a button for each explorer over the one that was picked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import parse_qs, quote

import ipywidgets as widgets

from .opening import Entry
from .panel import Panel, PicturedWidget


class Gallery(PicturedWidget):
    def __init__(self, entries: Sequence[Entry], inputs: Mapping[str, Any], opened: str, address: str | None) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.inputs = inputs
        self.linked = address is not None
        self.panels: dict[str, Panel] = {}  # of the explorers that were picked so far
        state = parse_qs(address or "").get("state", [""])[0]
        called = state.partition("(")[0].split(".")  # "explorers.zero(stage=1)" calls explorers.zero
        for name in self.entries:
            if name in called:
                opened = name
                break
        self.picked = widgets.ToggleButtons(
            options=[(entry.title, entry.name) for entry in entries], value=opened, style={"button_width": "auto"}
        )
        self.heading = widgets.HTML()
        self.place = widgets.VBox()
        self.link = widgets.HTML()
        super().__init__([self.picked, self.heading, self.place, self.link])
        self.picked.observe(self._show, names="value")
        self._show()
        if state:
            self.panel.line.value = state  # it says what is wrong with it

    @property
    def panel(self) -> Panel:
        return self.panels[self.picked.value]

    def still(self) -> str:
        return self.panel.still()

    def _show(self, _: object = None) -> None:
        entry = self.entries[self.picked.value]
        if entry.name not in self.panels:
            inputs = self.inputs.get(entry.name)
            self.panels[entry.name] = entry.show(inputs) if inputs else entry.show()
            self.panel.line.observe(self._link, names="value")
        self.heading.value = f"<p><b>{escape(entry.title)}</b>, the subject of notebook {entry.notebook}</p>"
        self.place.children = (self.panel,)
        self._link()

    def _link(self, _: object = None) -> None:
        if self.linked:
            state = quote(self.panel.explorer.line(self.panel.now))
            self.link.value = (
                f'<p><a style="text-decoration: underline" href="?state={state}">Link to these settings</a></p>'
            )
