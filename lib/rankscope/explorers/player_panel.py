"""The panel of `player`: its moment can be played, paused and stepped."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from .core.player import MOST_STEPS, instants
from .explorer import Explorer, Now
from .panel import Panel

_NUM_ABOVE = 6  # controls above the picture: all but those of links, adding and cards, which the settings have last


class Player(Panel):
    """A panel whose moment can be played, paused, or stepped from message to message."""

    children: tuple[Any, ...]  # a trait of ipywidgets, which has no types that mypy could read

    def __init__(self, explorer: Explorer, start: Now) -> None:
        super().__init__(explorer, start)
        moment = self.controls["moment"]
        self.play = widgets.Play(
            min=0,
            max=MOST_STEPS,
            step=1,
            interval=150,  # ms
            value=moment.value,
        )
        self.linked = widgets.jslink((self.play, "value"), (moment, "value"))
        buttons = [
            self._button("step back", "go to the end of the previous message", lambda: self.step(-1)),
            self._button("step", "go to the end of the next message", lambda: self.step(1)),
        ]
        self.buttons = {button.description: button for button in buttons}
        row = self._row([self.play, *buttons])
        # The grid of controls is in front of the line. Its last controls go below the picture, so that the picture is
        # near its player.
        line_index = self.children.index(self.line)
        grid = self.children[line_index - 1]
        links = widgets.Box(grid.children[_NUM_ABOVE:], layout=grid.layout)
        grid.children = grid.children[:_NUM_ABOVE]
        self.children = (*self.children[:line_index], row, *self.children[line_index:], links)

    def step(self, by: int) -> None:
        """Move on for 1, or back for -1, to where the next message is done."""
        control = self.controls["moment"]
        if control.disabled:  # there are no messages: a single rank sends none, or the collectives cannot be played
            return
        now = self.now
        moments = instants(now)
        if by > 0:
            later = [moment for moment in moments if moment > now.moment]
            if later:
                control.value = later[0]
        else:
            earlier = [moment for moment in moments if moment < now.moment]
            if earlier:
                control.value = earlier[-1]
