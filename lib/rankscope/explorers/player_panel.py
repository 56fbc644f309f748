"""The panel of `player`: its moment can be played, paused and stepped, and the animation can be saved."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets

from ..figures.player import animated, save_play
from ..values.checks import printable
from ..values.storage import PathLike
from .explorer import MOST_SVG_BYTES, Explorer, Now
from .panel import Panel
from .player import MOST_STEPS, instants, plays

_ABOVE = 6  # controls over the picture; the links are below it


class Player(Panel):
    """A panel whose moment can be played, paused and stepped, and whose animation can be saved."""

    children: tuple[Any, ...]

    def __init__(self, explorer: Explorer, start: Now) -> None:
        super().__init__(explorer, start)
        moment = self.controls["moment"]
        self.play = widgets.Play(min=0, max=MOST_STEPS, step=1, interval=150, show_repeat=True, value=moment.value)
        self.linked = widgets.jslink((self.play, "value"), (moment, "value"))
        self.said = widgets.HTML()
        buttons = [
            self._button("step back", "to where the message before was done", lambda: self.step(-1)),
            self._button("step", "to where the next message is done", lambda: self.step(1)),
            self._button("save as SVG", "an animation that plays in a browser", lambda: self._save("svg")),
            self._button("save as GIF", "this takes some seconds", lambda: self._save("gif")),
        ]
        self.buttons = {button.description: button for button in buttons}
        row = self._row([self.play, *buttons, self.said])
        place = self.children.index(self.line)
        grid = self.children[place - 1]
        grid.children, below = grid.children[:_ABOVE], grid.children[_ABOVE:]  # so that the picture is near its player
        links = widgets.Box(below, layout=grid.layout)
        self.children = (*self.children[:place], row, *self.children[place:], links)

    def step(self, by: int) -> None:
        """Move on, or back, to where the next message is done."""
        now = self.now
        if not self.controls["moment"].disabled:
            ahead = [one for one in instants(now)[::by] if (one - now.moment) * by > 0]
            self.controls["moment"].value = ahead[0] if ahead else now.moment

    def save(self, path: PathLike, seconds: float = 12.0) -> None:
        """Write what these settings play as an animation: an SVG, or a GIF where the name ends in .gif.

        Raises ValueError for another ending, for a time that is not above 0 and at most 60 seconds, and for what cannot
        be drawn; OSError where it cannot be written.
        """
        save_play(plays(self.now), path, seconds)

    def still(self) -> str:
        """Return the animation, or, where that is too large for a notebook, the picture of the moment."""
        try:
            svg = animated(plays(self.now))
        except ValueError:
            return ""
        return svg if len(svg.encode()) <= MOST_SVG_BYTES else super().still()

    def _save(self, ending: str) -> None:
        some = [self.now.algorithm, *([self.now.against] if self.now.against != "none" else [])]
        name = f"{'_against_'.join(some).replace(' ', '_')}.{ending}"
        try:
            self.save(name)
            words = f"wrote {name}"
        except (ValueError, OSError) as error:
            words = str(error)
        self.said.value = f"<span>{escape(printable(words))}</span>"
