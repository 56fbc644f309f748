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
from rankscope.drawing.ranking import draw_ranking

LINK = Link(5e-6, 25e9)
EIGHT = Cluster.uniform(8, LINK)
FOUR = build("allreduce", "ring", 4)
ABOVE = draw_ranking({"ring": 3e-5, "halving_doubling": 2e-5}, 1e-5, "ring", "halving_doubling takes 20 µs")
RACE = (("allreduce", "ring"), ("allreduce", "halving_doubling"))

FIGURES: dict[str, Callable[..., Any]] = {"schedule": lambda **on: figures.schedule(FOUR, 2, **on)}

DRAWINGS: dict[str, Drawing] = {
    "step": draw_schedule(build("allreduce", "halving_doubling", 8), 1),
    "shares": draw_schedule(build("allreduce", "ring", 16), 3),
    "origins": draw_schedule(build("allgather", "ring", 4), 1),
    "play": draw_play(ABOVE, [playback(FOUR, 2**20, Cluster.uniform(4, LINK))], 4e-5),
    "race": draw_play(ABOVE, [playback(build(*what, 16), 2**20, Cluster.uniform(16, LINK)) for what in RACE], 4e-5),
    "moved": draw_play(Drawing("A broadcast"), [playback(build("broadcast", "binomial", 8), 2**20, EIGHT)], 1e9),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.schedule(FOUR, 6), "step"),
    (lambda: figures.schedule(build("allreduce", "ring", 65), 0), "4225"),
]
