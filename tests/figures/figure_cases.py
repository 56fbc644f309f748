"""The public figures of the core: a call of each view, drawings, and what is refused, for `test_every_figure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.playback import playback
from rankscope.figures.assignments import draw_assignment
from rankscope.figures.marks import Drawing
from rankscope.figures.player import draw_play
from rankscope.figures.rankings import draw_ranking
from rankscope.figures.schedules import draw_schedule
from rankscope.figures.steps import draw_bars
from rankscope.figures.timelines import draw_timeline
from rankscope.pipeline import Pipeline, Stage
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import assign
from rankscope.timeline import Span, Timeline

LINK = Link(5e-6, 25e9)
EIGHT = Cluster.uniform(8, LINK)
FOUR = build("allreduce", "ring", 4)
ROAD = Pipeline([Stage("read", 0.004), Stage("decode", 0.03, num_workers=2), Stage("train", 0.012)])
RACE = (("allreduce", "ring"), ("allreduce", "halving_doubling"))
LENGTHS = np.random.default_rng(0).integers(1, 400, 512)
UNEQUAL = assign(512, 8, sampler="balanced", lengths=LENGTHS, batch_size=16)
PAIRS = {"one": ([1, 2, 3, 4], [1, 2, 3, 5]), "two": (None, [2, 2, 2, 2])}
TOO_MANY = [Span(0, "a", "b", 0, 0, 1)] * 20_001


def curves(**on: Any) -> Any:
    return figures.curves([1, 2, 4, 8], PAIRS, **{"title": "Two", "x_label": "ranks", "y_label": "time [ms]"} | on)


def spans(*some: Span) -> Timeline:
    return Timeline.of(some)


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Any]] = {
    "assignment": lambda **on: figures.assignment(
        assign(50, 8, drop_last=True).with_loader(2), color_by="position", **on
    ),
    "step_costs": lambda **on: figures.step_costs(assign(512, 8).with_loader(8), LENGTHS, **on),
    "bars": lambda **on: figures.bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}, **on),
    "curves": curves,
    "ranking": lambda **on: figures.ranking({"ring": 3e-3, "flat": 1.0}, chosen="ring", **on),
    "schedule": lambda **on: figures.schedule(FOUR, 2, **on),
    "timeline": lambda **on: figures.timeline(simulate_pipeline(ROAD, 12), **on),
}

DRAWINGS: dict[str, Drawing] = {
    "assignment": draw_assignment(assign(50, 4).with_loader(4)),
    "dropped": draw_assignment(assign(10, 4, drop_last=True), "position"),
    "out of range": draw_assignment(assign(3, 8, sampler="libtorch_random")),
    "reads nothing": draw_assignment(assign(3, 8, drop_last=True)),
    "no samples": draw_assignment(assign(0, 2)),
    "unequal batches": draw_assignment(UNEQUAL),
    "bars": draw_bars({"<&>": {"backward": 60, "loader": 0.01}, "b" * 99: {"allreduce": 5}}, behind=["", "b"]),
    "ranking": draw_ranking({"ring": 3e-3, "flat" * 20: 1.0, "swing": 2e-3}, 1e-3, "ring"),
    "step": draw_schedule(build("allreduce", "halving_doubling", 8), 1, gpus_per_node=4),
    "shares": draw_schedule(build("allreduce", "ring", 16), 3),
    "origins": draw_schedule(build("allgather", "ring", 4), 1),
    "end": draw_schedule(FOUR, 6),
    "timeline": draw_timeline(spans(Span(0, "gpu" * 30, "mine" * 30, 0, 0, 1), Span(1, "gpu", "allreduce", 3, 0.5, 2))),
    "two timelines": draw_timeline({"predicted": simulate_pipeline(ROAD, 12), "measured": simulate_pipeline(ROAD, 9)}),
    "many ranks": draw_assignment(assign(100_000, 1024).with_loader(8)),
    "many reads": draw_assignment(assign(10**6, 24, drop_last=True).with_loader(16)),
    "play": draw_play([playback(FOUR, 2**20, Cluster.uniform(4, LINK))], 4e-5),
    "race": draw_play([playback(build(*what, 16), 2**20, Cluster.uniform(16, LINK)) for what in RACE], 4e-5),
    "moved": draw_play([playback(build("broadcast", "binomial", 8), 2**20, EIGHT)], 1e9),
    "nothing ran": draw_timeline(spans()),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.assignment(None), "assignment"),
    (lambda: figures.assignment(assign(10, 2), color_by="size"), "color_by"),
    (lambda: figures.step_costs(assign(4, 2), [1, 2]), "4, got 2"),
    (lambda: figures.schedule(FOUR, 7), "step"),
    (lambda: figures.schedule(FOUR, 0, gpus_per_node=-2), "gpus_per_node"),
    (lambda: figures.schedule(build("allreduce", "ring", 65), 0), "4225"),
    (lambda: figures.bars({}), "rows"),
    (lambda: figures.bars({"a": {"read": -1}}), "a, read"),
    (lambda: figures.bars({"a": {"read": 1}}, limits=[("now", -1)]), "limit now"),
    (lambda: figures.timeline({"a": None}), "timeline a"),
    (lambda: figures.timeline(Timeline.of(TOO_MANY)), "20001"),
    (lambda: draw_ranking({}), "at least one"),
    (lambda: figures.curves([1], {"a": (None, None)}, "", "", ""), "a: must"),
    (lambda: curves(log="yx"), "log"),
]
