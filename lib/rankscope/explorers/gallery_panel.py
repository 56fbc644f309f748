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
    """A button for each explorer, a heading, the panel of the explorer that is picked, and a link to its settings.

    `address` is as of `gallery`: without it there is no link.
    """

    def __init__(self, entries: Sequence[Entry], inputs: Mapping[str, Any], opened: str, address: str | None) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.inputs = inputs  # of each explorer, None if it takes none
        self.has_link = address is not None
        self.panels: dict[str, Panel] = {}  # of the explorers that were picked so far
        state = parse_qs(address or "").get("state", [""])[0]
        called = state.partition("(")[0].rpartition(".")[2]  # "zero" for "explorers.zero(stage=1)"
        if called in self.entries:
            opened = called
        self.picked = widgets.ToggleButtons(
            options=[(entry.title, entry.name) for entry in entries], value=opened, style={"button_width": "auto"}
        )
        self.picked.add_class("rankscope-gallery")
        self.heading = widgets.HTML()
        self.panel_box = widgets.VBox()  # contains one panel
        self.link = widgets.HTML()
        super().__init__([self.picked, self.heading, self.panel_box, self.link])
        self.picked.observe(lambda _: self._show_picked(), names="value")
        self._show_picked()  # the value that the buttons begin with is no change, so it is not observed
        if state:
            self.panel.line.value = state  # sets the controls; if it is wrong, the panel says why

    @property
    def panel(self) -> Panel:
        """The panel of the explorer that is picked."""
        return self.panels[self.picked.value]

    def still(self) -> str:
        return self.panel.still()

    def _show_picked(self) -> None:
        """Show the explorer that is picked. Its panel is made when it is picked for the first time."""
        entry = self.entries[self.picked.value]
        if entry.name not in self.panels:
            self.panels[entry.name] = self._new_panel(entry)
        self.heading.value = f"<p><b>{escape(entry.title)}</b>, the subject of notebook {entry.notebook}</p>"
        self.panel_box.children = (self.panel,)
        self._show_link()

    def _new_panel(self, entry: Entry) -> Panel:
        """Open a panel, with the explorer's inputs if it has some; the link follows its line of settings."""
        inputs = self.inputs[entry.name]
        panel = entry.show(inputs) if inputs else entry.show()
        panel.line.observe(lambda _: self._show_link(), names="value")
        return panel

    def _show_link(self) -> None:
        """Link to the page's own address with the settings of the panel that is shown."""
        if self.has_link:
            state = quote(self.panel.explorer.line(self.panel.now))
            self.link.value = (
                f'<p><a style="text-decoration: underline" href="?state={state}">Link to these settings</a></p>'
            )
