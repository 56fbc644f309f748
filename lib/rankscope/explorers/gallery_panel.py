"""The panel of `gallery`: a button for each explorer over the one that was picked."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from .entries import EXPLORERS
from .panel import Panel, PicturedWidget


class Gallery(PicturedWidget):
    """A button for each explorer, a heading, and the panel of the explorer that is picked."""

    def __init__(self, opened: str) -> None:
        self.panels: dict[str, Panel] = {}  # of the explorers that were picked so far
        self.picked = widgets.ToggleButtons(
            options=[(entry.title, name) for name, entry in EXPLORERS.items()],
            value=opened,
            style={"button_width": "auto"},
        )
        self.picked.add_class("rankscope-gallery")
        self.heading = widgets.HTML()
        self.panel_box = widgets.VBox()  # contains one panel
        super().__init__([self.picked, self.heading, self.panel_box])
        self.picked.observe(lambda _: self._show_picked(), names="value")
        self._show_picked()  # the value that the buttons begin with is no change, so it is not observed

    @property
    def panel(self) -> Panel:
        """The panel of the explorer that is picked."""
        return self.panels[self.picked.value]

    def still(self) -> str:
        return self.panel.still()

    def _show_picked(self) -> None:
        """Show the explorer that is picked. Its panel is made when it is picked for the first time."""
        entry = EXPLORERS[self.picked.value]
        if entry.name not in self.panels:
            self.panels[entry.name] = entry.show()
        self.heading.value = f"<p><b>{escape(entry.title)}</b>, the subject of notebook {entry.notebook}</p>"
        self.panel_box.children = (self.panel,)
