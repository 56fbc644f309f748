"""The public figures of `collectives`: a call of each view, drawings, and what is refused, for `tests/figures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.picture import draw_schedule
from rankscope.collectives.player.model import playback
from rankscope.collectives.player.picture import draw_play
from rankscope.drawing.drawing import Drawing

LINK = Link(5e-6, 25e9)
EIGHT = Cluster.uniform(8, LINK)
FOUR = build("allreduce", "ring", 4)
RACE = (("allreduce", "ring"), ("allreduce", "halving_doubling"))

FIGURES: dict[str, Callable[..., Any]] = {"schedule": lambda **on: figures.schedule(FOUR, 2, **on)}

DRAWINGS: dict[str, Drawing] = {
    "step": draw_schedule(build("allreduce", "halving_doubling", 8), 1),
    "shares": draw_schedule(build("allreduce", "ring", 16), 3),
    "origins": draw_schedule(build("allgather", "ring", 4), 1),
    "play": draw_play([playback(FOUR, 2**20, Cluster.uniform(4, LINK))], 4e-5, "A ring"),
    "race": draw_play([playback(build(*what, 16), 2**20, Cluster.uniform(16, LINK)) for what in RACE], 4e-5, "A race"),
    "moved": draw_play([playback(build("broadcast", "binomial", 8), 2**20, EIGHT)], 1e9, "A broadcast"),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.schedule(FOUR, 6), "step"),
    (lambda: figures.schedule(build("allreduce", "ring", 65), 0), "4225"),
]
