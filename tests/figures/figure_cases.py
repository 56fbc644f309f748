"""The public figures of the core: a call of each view, drawings, and what is refused, for `test_every_figure`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import best, build, simulate
from rankscope.figures.assignments import (
    draw_assignment,
    draw_coverage,
    draw_label_counts,
    draw_lengths,
    draw_step_costs,
)
from rankscope.figures.bar_charts import draw_bars
from rankscope.figures.marks import Drawing
from rankscope.figures.rankings import draw_ranking, draw_slowdowns, draw_winners
from rankscope.figures.schedules import draw_schedule
from rankscope.figures.timelines import draw_timeline
from rankscope.pipeline import Pipeline, Stage
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import assign
from rankscope.timeline import Span, Timeline

LINK = Link(5e-6, 25e9)
EIGHT = Cluster.uniform(8, LINK)
RING = build("allreduce", "ring", 8)
FOUR = build("allreduce", "ring", 4)
SIZES = 2.0 ** np.arange(10, 27)
ROAD = Pipeline([Stage("read", 0.004), Stage("decode", 0.03, num_workers=2), Stage("train", 0.012)])
FASTEST = {n: {size: best(size, Cluster.uniform(n, LINK)) for size in 2.0 ** np.arange(10, 31, 2)} for n in (4, 6, 8)}
LENGTHS = np.random.default_rng(0).integers(1, 400, 512)
UNEQUAL = assign(512, 8, sampler="balanced", lengths=LENGTHS, batch_size=16)
FEW_EPOCHS = [assign(22, 8, epoch=epoch, drop_last=True) for epoch in range(4)]
PAIRS = {"one": ([1, 2, 3, 4], [1, 2, 3, 5]), "two": (None, [2, 2, 2, 2])}
TOO_MANY = [Span(0, "a", "b", 0, 0, 1)] * 20_001
ALLREDUCE = build("allreduce", "recursive_doubling", 4)
MANY = build("allreduce", "ring", 64)


@cache
def times() -> dict[str, list[float]]:
    names = ("flat", "ring", "binomial_tree", "recursive_doubling", "halving_doubling", "segmented_ring")
    built = {name: build("allreduce", name, 8) for name in names}
    return {
        n: [simulate(schedule, size, EIGHT, detail="ranks").makespan_s for size in SIZES]
        for n, schedule in built.items()
    }


def by_size() -> dict[str, dict[float, float]]:
    return {name: dict(zip(SIZES[::2].tolist(), row[::2], strict=True)) for name, row in times().items()}


def curves(**on: Any) -> Axes:
    return figures.curves([1, 2, 4, 8], PAIRS, **{"title": "Two", "x_label": "ranks", "y_label": "time [ms]"} | on)


def spans(*some: Span) -> Timeline:
    return Timeline.of(some)


def spans_of(schedule: Any, **options: Any) -> Timeline:
    return simulate(schedule, 1e6, Cluster.uniform(schedule.num_ranks, LINK), **options)


def costs(num_bytes: Any = (1, 2), seconds: Any = None, **options: Any) -> Axes:
    return figures.costs(num_bytes, {"ring": [1, 1]} if seconds is None else seconds, **options)


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Axes]] = {
    "assignment": lambda **on: figures.assignment(
        assign(50, 8, drop_last=True).with_loader(2), color_by="position", **on
    ),
    "lengths": lambda **on: figures.lengths(LENGTHS, **on),
    "step_costs": lambda **on: figures.step_costs(assign(512, 8).with_loader(8), LENGTHS, **on),
    "step_costs quadratic": lambda **on: figures.step_costs(UNEQUAL, LENGTHS, "quadratic", **on),
    "bars": lambda **on: figures.bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}, **on),
    "costs": lambda **on: figures.costs(SIZES, times(), np.full(SIZES.size, 1e-5), half_bytes=125_000, **on),
    "coverage": lambda **on: figures.coverage(FEW_EPOCHS, **on),
    "curves": curves,
    "label_counts": lambda **on: figures.label_counts(np.arange(100).reshape(10, 10), "digit", **on),
    "schedule": lambda **on: figures.schedule(FOUR, 2, **on),
    "schedule over time": lambda **on: figures.schedule(RING, timeline=simulate(RING, 1e6, EIGHT), **on),
    "slowdowns": lambda **on: figures.slowdowns(by_size(), **on),
    "timeline": lambda **on: figures.timeline(simulate_pipeline(ROAD, 12), **on),
    "winners": lambda **on: figures.winners(FASTEST, **on),
}

DRAWINGS: dict[str, Drawing] = {
    "assignment": draw_assignment(assign(50, 4).with_loader(4)),
    "dropped": draw_assignment(assign(10, 4, drop_last=True), "position"),
    "out of range": draw_assignment(assign(3, 8, sampler="libtorch_random")),
    "reads nothing": draw_assignment(assign(3, 8, drop_last=True)),
    "no samples": draw_assignment(assign(0, 2)),
    "unequal batches": draw_assignment(UNEQUAL),
    "lengths": draw_lengths(LENGTHS),
    "no lengths": draw_lengths([]),
    "lengths of nothing": draw_lengths([0, 0]),
    "step costs": draw_step_costs(UNEQUAL, LENGTHS),
    "one step cost": draw_step_costs(assign(2, 2), [3, 0]),
    "no step costs": draw_step_costs(assign(0, 2), []),
    "coverage": draw_coverage([assign(30, 12, epoch=epoch) for epoch in range(2)]),
    "label counts": draw_label_counts([[1, 2], [3, 4]], title="<&>"),
    "bars": draw_bars({"<&>": {"backward": 5, "loader": 0.001}, "b": {"allreduce": 60}}),
    "bars of nothing": draw_bars({"rank 0": {"forward": 0}}),
    "winners": draw_winners(FASTEST),
    "slowdowns": draw_slowdowns({"ring": {1024: 2.0, 2048: 1.0}, "flat": {1024: 1.0, 2048: 20.0}}),
    "ranking": draw_ranking({"ring": 3e-3, "flat": 1.0, "swing": 2e-3}, 1e-3, "ring", measured={"ring": 4e-3}),
    "step": draw_schedule(build("allreduce", "halving_doubling", 8), 1, gpus_per_node=4),
    "shares": draw_schedule(build("allreduce", "ring", 16), 3),
    "origins": draw_schedule(build("allgather", "ring", 4), 1),
    "end": draw_schedule(FOUR, 6),
    "messages": draw_schedule(FOUR, timeline=simulate(FOUR, 1e6, Cluster.uniform(4, LINK, gamma_s_per_byte=1e-11))),
    "timeline": draw_timeline(spans(Span(0, "gpu", "step", 0, 0, 1), Span(1, "gpu", "allreduce", 3, 0.5, 2))),
    "nothing ran": draw_timeline(spans()),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.assignment(None), "assignment must be an Assignment, got None"),
    (lambda: figures.assignment(assign(10, 2), color_by="size"), "color_by must be one of 'rank', 'position'"),
    (lambda: figures.assignment(assign(100_000, 2)), "at most 65536 cells, got 100000"),
    (lambda: figures.lengths([1, -2]), "lengths must be whole numbers from 0 to .*, got -2 for sample 1"),
    (lambda: figures.step_costs(None, [1]), "assignment must be an Assignment, got None"),
    (lambda: figures.step_costs(assign(4, 2), [1, 2]), "lengths must have the dataset's length 4, got 2"),
    (lambda: figures.coverage(3), "epochs must be a sequence of Assignments, got 3"),
    (lambda: figures.coverage([assign(4, 2), "x"]), r"epochs\[1\] must be an Assignment, got 'x'"),
    (lambda: figures.coverage([]), "at least one epoch"),
    (lambda: figures.label_counts([1, 2]), r"ranks by labels, got int64 of shape \(2,\)"),
    (lambda: figures.label_counts([[0.5]]), "whole numbers"),
    (lambda: figures.label_counts(np.ones((300, 300), int)), "at most 65536 cells, got 90000"),
    (lambda: figures.label_counts([[1, 2]], limits=(1,)), r"limits must be two whole numbers, got \(1,\)"),
    (lambda: figures.label_counts([[1, 2]], limits=(3, 0)), r"the lowest and the highest count, got \(3, 0\)"),
    (lambda: figures.schedule("ring", 0), "schedule must be a Schedule, got 'ring'"),
    (lambda: figures.schedule(FOUR), "either step or timeline must be given, got None and None"),
    (lambda: figures.schedule(FOUR, 7), "step must be a whole number from 0 to 6, got 7"),
    (lambda: figures.schedule(FOUR, 0, gpus_per_node=-2), "gpus_per_node must be a whole number of at least 1, got -2"),
    (lambda: figures.schedule(build("allreduce", "ring", 65), 0), "at most 4096 cells, ranks × chunks, got 4225: take"),
    (lambda: figures.schedule(FOUR, timeline=3), "timeline must be a Timeline, got 3"),
    (lambda: figures.schedule(MANY, timeline=spans_of(MANY)), "at most 5000 messages, got 8064: take fewer ranks"),
    (
        lambda: figures.schedule(FOUR, timeline=spans_of(ALLREDUCE)),
        "with its 24 messages .*, got 8 sends and 8 receives of others",
    ),
    (lambda: figures.bars({}), "rows must number from 1 to 64, by name, got 0"),
    (lambda: figures.bars(3), "rows must number from 1 to 64, by name, got 3"),
    (lambda: figures.bars({1: {}}), "the name of a row must be a str, got 1"),
    (lambda: figures.bars({"a": 5}), "a: must have lengths by kind of work, got 5"),
    (lambda: figures.bars({"a": {"nap": 1}}), "each kind of work must be one of 'read', .*, got 'nap'"),
    (lambda: figures.bars({"a": {"read": -1}}), "a, read must be a finite number of at least 0, got -1"),
    (lambda: figures.timeline("spans"), "timeline must be a Timeline, got 'spans'"),
    (lambda: figures.timeline(Timeline.of(TOO_MANY)), "at most 20000 spans, got 20001: select a window or a rank"),
    (lambda: figures.winners({}), "from 1 to 16384 cells, sizes × ranks, got 0 × 0"),
    (lambda: figures.winners({8: {}}), "from 1 to 16384 cells, sizes × ranks, got 0 × 1"),
    (lambda: figures.slowdowns({}), "from 1 to 16384 cells, sizes × algorithms, got 0 × 0"),
    (lambda: figures.slowdowns({"ring": {}}), "from 1 to 16384 cells, sizes × algorithms, got 0 × 1"),
    (lambda: figures.slowdowns({"ring": {1: 1}, "flat": {2: 1}}), "flat: all algorithms must have the same sizes"),
    (lambda: figures.slowdowns({"ring": {1: 0}}), "ring: times must be finite and above 0"),
    (lambda: figures.slowdowns({"ring": {1: np.nan}}), "ring: times must be finite and above 0"),
    (lambda: draw_ranking({}), "finite, at least 0 and of at least one algorithm"),
    (lambda: figures.curves([1], None, "", "", ""), "curves must number from 1 to 8, by name, got None"),
    (lambda: figures.curves([1], {str(n): ([1], None) for n in range(9)}, "", "", ""), "from 1 to 8, by name, got 9"),
    (lambda: figures.curves([1], {"a": (None, None)}, "", "", ""), "an execution each, got neither for 'a'"),
    (lambda: curves(log="yx"), "log must be one of '', 'x', 'y', 'xy', got 'yx'"),
    (lambda: figures.curves([1], {"a": 3}, "", "", ""), r"curves\['a'\] must be a pair of columns, got 3"),
    (
        lambda: figures.curves([1], {"a": ([1, 2], None)}, "", "", ""),
        r"a, predicted: \(2,\) values over x of shape \(1,",
    ),
    *(
        (lambda sizes=sizes: costs(sizes), "at least two sizes that rise from above 0")
        for sizes in ([1], [0, 1], [2, 1], [1, np.inf])
    ),
    (lambda: costs(seconds=[1, 2]), r"at least one algorithm, by name, got \[1, 2\]"),
    (lambda: costs(seconds={"ring": [1]}), r"ring: \(1,\) values over sizes of shape \(2,\)"),
    (lambda: costs(seconds={"ring": [0, 1]}), "ring: times must be finite and above 0"),
    (lambda: costs(bound_s=[1, np.nan]), "bound_s: times must be finite and at least 0"),
    (lambda: costs(half_bytes=-1), "half_bytes must be a finite number above 0, got -1"),
    (lambda: costs(measured={"ring": ([], [])}), "ring, measured: sizes must be finite and above"),
    (lambda: costs(measured={"ring": ([1], [1, 2])}), r"ring, measured: \(2,\) values over"),
]
