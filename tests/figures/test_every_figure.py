"""One battery for every public figure and each of its views, what they refuse, and every explorer's pictures."""

from __future__ import annotations

import inspect
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from pages.states import Shown

from rankscope import ddp, figures, zero
from rankscope.cluster import Cluster, Link
from rankscope.collectives import best, build, simulate
from rankscope.ddp import LocalStep
from rankscope.ddp.buckets import ParameterSpec
from rankscope.ddp.recommend import Recommendation
from rankscope.explorers.catalogue import CATALOGUE
from rankscope.explorers.explorer import Explorer
from rankscope.figures.assignments import draw_assignment, draw_coverage, draw_label_counts
from rankscope.figures.axes import to_axes
from rankscope.figures.boxes import draw_boxes
from rankscope.figures.ddp import draw_buckets, draw_caps
from rankscope.figures.marks import Drawing, Texts
from rankscope.figures.memory import draw_memory
from rankscope.figures.profiles import draw_peers
from rankscope.figures.rankings import draw_ranking, draw_winners
from rankscope.figures.schedules import draw_link_load, draw_schedule
from rankscope.figures.svg import to_svg
from rankscope.figures.timelines import draw_timeline
from rankscope.machine import Profile
from rankscope.machine.link_facts import stated
from rankscope.machine.profile import Point
from rankscope.pipeline import Pipeline, Stage
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import assign
from rankscope.timeline import Span, Timeline

from ..machine.made import profile
from .readable import figure_problems, svg_problems
from .shown import words_of

SVG = "{http://www.w3.org/2000/svg}"
LINK = Link(5e-6, 25e9)
EIGHT = Cluster.uniform(8, LINK)
RING, FOUR = build("allreduce", "ring", 8), build("allreduce", "ring", 4)
SIZES = 2.0 ** np.arange(10, 27)
EMULATED = Path(__file__).parents[2] / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
FACTS = stated(4)
LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
ROAD = Pipeline([Stage("read", 0.004), Stage("decode", 0.03, num_workers=2), Stage("train", 0.012)])
FASTEST = {n: {size: best(size, Cluster.uniform(n, LINK)) for size in 2.0 ** np.arange(10, 31, 2)} for n in (4, 6, 8)}
STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s) for s in range(4)}
OVER_RANKS = {f"stage {s}": [zero.memory(7.5e9, 2**p, s) for p in range(11)] for s in range(4)}
SPECS = [ParameterSpec(str(n), 1 << 19) for n in range(12)]
FEW_EPOCHS = [assign(22, 8, epoch=epoch, drop_last=True) for epoch in range(4)]
PAIRS = {"one": ([1, 2, 3, 4], [1, 2, 3, 5]), "two": (None, [2, 2, 2, 2])}


@cache
def recorded() -> Profile:
    return Profile.load(EMULATED)


def bank_of(*names: str) -> dict[str, Profile]:
    return {name: Profile.load(f"bank:{name}") for name in names}


def peers(num_gpus: int = 4) -> Profile:
    """Copies between some GPUs, each of another rate."""
    ends = permutations(range(num_gpus), 2)
    options = [{"direction": "p2p", "src": src, "dst": dst, "pieces": 1, "both": False} for src, dst in ends]
    return profile([Point("transfer", 2**26, (1e-3 * (1 + n),), (True,), one) for n, one in enumerate(options)])


@cache
def recommendation(**options: Any) -> Recommendation:
    local = LocalStep.modelled([1 << 20] * 64, 0.064, unpack_s=0.004)
    return ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), **options)


@cache
def times() -> dict[str, list[float]]:
    names = ("flat", "ring", "binomial_tree", "recursive_doubling", "halving_doubling", "segmented_ring")
    built = {name: build("allreduce", name, 8) for name in names}
    return {n: [simulate(one, size, EIGHT, detail="ranks").makespan_s for size in SIZES] for n, one in built.items()}


def curves(**on: Any) -> Axes:
    return figures.curves([1, 2, 4, 8], PAIRS, **{"title": "Two", "x_label": "ranks", "y_label": "time [ms]"} | on)


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Axes]] = {
    "assignment": lambda **on: figures.assignment(
        assign(50, 8, drop_last=True).with_loader(2), color_by="position", **on
    ),
    "bucket_caps": lambda **on: figures.bucket_caps(
        recommendation(), {1.0: [0.1, 0.11, 0.12], None: [0.2, 0.21]}, **on
    ),
    "buckets": lambda **on: figures.buckets(ddp.buckets(SPECS, 2.0), **on),
    "copies": lambda **on: figures.copies(FACTS, **on),
    "copies both_ways": lambda **on: figures.copies(FACTS, view="both_ways", **on),
    "copies pieces": lambda **on: figures.copies(FACTS, view="pieces", **on),
    "copies peers": lambda **on: figures.copies(None, peers(), "peers", **on),
    "costs": lambda **on: figures.costs(SIZES, times(), np.full(SIZES.size, 1e-5), half_bytes=125_000, **on),
    "coverage": lambda **on: figures.coverage(FEW_EPOCHS, **on),
    "curves": curves,
    "label_counts": lambda **on: figures.label_counts(np.arange(100).reshape(10, 10), "digit", **on),
    "link_load": lambda **on: figures.link_load(RING.traffic(64e6).link_bytes, **on),
    "profile": lambda **on: figures.profile(recorded(), **on),
    "profile of several": lambda **on: figures.profile(bank_of("h100_8", "l40s_8", "a100_80gb_8"), "log", **on),
    "profile residuals": lambda **on: figures.profile(recorded(), "residuals", **on),
    "queue_fill": lambda **on: figures.queue_fill({"predicted": ([0, 1, 2], [0, 3, 1])}, 4, **on),
    "schedule": lambda **on: figures.schedule(FOUR, 2, **on),
    "schedule over time": lambda **on: figures.schedule(RING, timeline=simulate(RING, 1e6, EIGHT), **on),
    "timeline": lambda **on: figures.timeline(simulate_pipeline(ROAD, 12), **on),
    "winners": lambda **on: figures.winners(FASTEST, **on),
    "zero_memory": lambda **on: figures.zero_memory(STAGES, LIMITS, **on),
    "zero_memory over ranks": lambda **on: figures.zero_memory(OVER_RANKS, LIMITS, **on),
}


def test_there_is_a_call_of_each_public_figure() -> None:
    assert {name.split()[0] for name in FIGURES} == set(figures.__all__)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_on_the_axes_it_is_given_and_never_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (plt, Figure):
        monkeypatch.setattr(owner, "show", lambda *_, **__: pytest.fail("shown"))
    _, ax = plt.subplots()
    open_before = plt.get_fignums()
    assert FIGURES[name](ax=ax, title="mine") is ax
    assert ax.get_title(loc="left") == "mine"
    assert plt.get_fignums() == open_before


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows_and_can_be_read(name: str) -> None:
    ax = FIGURES[name]()
    assert ax.get_title(loc="left")
    ticks = " ".join(label.get_text() for label in ax.get_xticklabels())
    assert "[" in ax.get_xlabel() + ax.get_ylabel() or " MiB" in ticks  # a unit
    assert ax.figure.legends or ax.get_legend() or ax.texts
    problems = figure_problems(ax.figure)  # type: ignore[arg-type]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", figures.__all__)
def test_a_figure_helps_with_its_parameters(name: str) -> None:
    figure = getattr(figures, name)
    parameters = inspect.signature(figure).parameters
    assert parameters["ax"].default is None
    assert name == "curves" or parameters["title"].default is None
    text = inspect.getdoc(figure) or ""
    assert (figure.__name__, text[:5]) == (name, "Draw ")
    assert "Raises ValueError" in text
    with pytest.raises(TypeError, match="colour"):
        figure(None, colour="red")


# ---- drawings


def spans(*some: Span) -> Timeline:
    return Timeline.of(some)


DRAWINGS: dict[str, Drawing] = {
    "assignment": draw_assignment(assign(50, 4).with_loader(4)),
    "dropped": draw_assignment(assign(10, 4, drop_last=True), "position"),
    "out of range": draw_assignment(assign(3, 8, sampler="libtorch_random")),
    "reads nothing": draw_assignment(assign(3, 8, drop_last=True)),
    "no samples": draw_assignment(assign(0, 2)),
    "coverage": draw_coverage([assign(30, 12, epoch=epoch) for epoch in range(2)]),
    "label counts": draw_label_counts([[1, 2], [3, 4]], title="<&>"),
    "buckets": draw_buckets(ddp.buckets([*SPECS, ParameterSpec("sparse", 1 << 20, sparse=True)])),
    "caps": draw_caps(recommendation(), 8),
    "memory": draw_memory(STAGES, LIMITS, "stage 1"),
    "peers": draw_peers(peers()),
    "winners": draw_winners(FASTEST),
    "ranking": draw_ranking({"ring": 3e-3, "flat": 1.0, "swing": 2e-3}, 1e-3, "ring", measured={"ring": 4e-3}),
    "step": draw_schedule(build("allreduce", "halving_doubling", 8), 1, gpus_per_node=4),
    "shares": draw_schedule(build("allreduce", "ring", 16), 3),
    "origins": draw_schedule(build("allgather", "ring", 4), 1),
    "end": draw_schedule(FOUR, 6),
    "messages": draw_schedule(FOUR, timeline=simulate(FOUR, 1e6, Cluster.uniform(4, LINK, gamma_s_per_byte=1e-11))),
    "link load": draw_link_load(FOUR.traffic(2**20).link_bytes),
    "timeline": draw_timeline(spans(Span(0, "gpu", "step", 0, 0, 1), Span(1, "gpu", "allreduce", 3, 0.5, 2))),
    "nothing ran": draw_timeline(spans()),
    "boxes": draw_boxes(bank_of("h100_8", "l40s_8"), ["allreduce", "allgather"], "time", at_bytes=2**20),
}


@pytest.mark.parametrize("drawing", DRAWINGS.values(), ids=DRAWINGS)
def test_both_painters_paint_the_same(drawing: Drawing) -> None:
    assert drawing.title
    assert drawing.x_label
    ax, svg = to_axes(drawing), to_svg(drawing)
    assert svg == to_svg(drawing)
    root = ElementTree.fromstring(svg)
    marks = root.find(f"{SVG}g[@class='marks']")
    assert root.findtext(f"{SVG}title") == drawing.title == ax.get_title(loc="left")
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height

    painted = [one for one in ax.collections if isinstance(one, PolyCollection) and one.get_gid() == "rects"]
    groups = [one for one in marks.findall(f"{SVG}g[@stroke]") if not one.get("text-anchor")]
    for rects, collection, group in zip(drawing.rects, painted, groups, strict=True):
        corners = [path.vertices[0] for path in collection.get_paths()]
        boxes = [box for box in group if not box.get("fill").startswith("url")]
        assert np.allclose(corners, np.stack([rects.x, rects.y], axis=1)) if corners else not boxes
        assert np.allclose([float(box.get("x")) for box in boxes], rects.x * across, rtol=1e-5)
        assert np.allclose([float(box.get("y")) for box in boxes], rects.y * down, rtol=1e-5)
        assert [box.get("fill") for box in boxes] == list(rects.fill)
        assert [to_hex(color) for color in collection.get_facecolors()] == list(rects.fill)
        assert sum(box.get("fill").startswith("url") for box in group) == rects.hatched.sum()
    hatched = [one for one in ax.collections if one.get_gid() == "hatched"]
    assert sum(len(one.get_paths()) for one in hatched) == sum(rects.hatched.sum() for rects in drawing.rects)

    groups = marks.findall(f"{SVG}g[@class='lines']")
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    straight = [one for one in ax.collections if isinstance(one, LineCollection) and one.get_gid() == "lines"]
    ends = [end for one in straight for end in np.reshape(one.get_segments(), (-1, 4)).tolist()]
    ends += [[*one._posA_posB[0], *one._posA_posB[1]] for one in arrows]
    ordered = sorted(drawing.lines, key=lambda lines: lines.arrows)
    expected = [np.stack([one.x0, one.y0, one.x1, one.y1], axis=1) for one in ordered]
    assert np.allclose(ends, np.concatenate(expected)) if expected else not ends
    for lines, group in zip(drawing.lines, groups, strict=True):
        dashes = [line.get("stroke-dasharray") is not None for line in group.findall(f"{SVG}line")]
        assert dashes == lines.dashed.tolist()

    words = words_of(drawing)
    assert [text.get_text() for text in ax.texts] == words
    assert [text.text for text in marks.iter(f"{SVG}text")] == words
    assert (ax.get_xlabel(), ax.get_ylabel()) == (drawing.x_label, drawing.y_label)
    axes = [text.text or "" for text in root.find(f"{SVG}g[@class='axes']")]
    assert axes == [label for _, label in (*drawing.x_ticks, *drawing.y_ticks)] + [drawing.x_label, drawing.y_label]
    assert ax.yaxis_inverted()
    assert [text.get_text() for box in ax.figure.legends for text in box.get_texts()] == [
        k.label for k in drawing.legend
    ]
    assert [text.text for text in root.find(f"{SVG}g[@class='legend']").iter(f"{SVG}text")] == [
        key.label for key in drawing.legend
    ]


def pictures_of(explorer: Explorer, now: Any) -> list[str]:
    found = []
    for picture in explorer.pictures:
        with suppress(ValueError):  # a sentence stands there
            found += [explorer.svg(picture, now)]
    return list(filter(None, found))


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_every_text_of_an_explorer_can_be_read(name: str) -> None:
    grid = Shown(name).grid(only_ends=True)
    drawn = {svg: now for now in grid.states() for svg in pictures_of(grid.explorer, now)}
    problems = [f"{now}: {problem}" for svg, now in drawn.items() for problem in svg_problems(svg)]
    assert not problems, "\n".join(problems)


# ---- what cannot be drawn

TOO_MANY = [Span(0, "a", "b", 0, 0, 1)] * 20_001
ALLREDUCE = build("allreduce", "recursive_doubling", 4)
MANY = build("allreduce", "ring", 64)


def spans_of(schedule: Any, **options: Any) -> Timeline:
    return simulate(schedule, 1e6, Cluster.uniform(schedule.num_ranks, LINK), **options)


def costs(num_bytes: Any = (1, 2), seconds: Any = None, **more: Any) -> Axes:
    return figures.costs(num_bytes, {"ring": [1, 1]} if seconds is None else seconds, **more)


def of_native() -> Profile:
    return Profile(recorded().provenance, {}, recorded().select("allreduce", algorithm="native"))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.assignment(None), "assignment must be an Assignment, got None"),
    (lambda: figures.assignment(assign(10, 2), color_by="size"), "color_by must be one of 'rank', 'position'"),
    (lambda: figures.assignment(assign(100_000, 2)), "at most 65536 cells, got 100000"),
    (lambda: figures.coverage(3), "epochs must be a sequence of Assignments, got 3"),
    (lambda: figures.coverage([assign(4, 2), "x"]), r"epochs\[1\] must be an Assignment, got 'x'"),
    (lambda: figures.coverage([]), "at least one epoch"),
    (lambda: figures.label_counts([1, 2]), r"ranks by labels, got int64 of shape \(2,\)"),
    (lambda: figures.label_counts([[0.5]]), "whole numbers"),
    (lambda: figures.label_counts(np.ones((300, 300), int)), "at most 65536 cells, got 90000"),
    (lambda: figures.label_counts([[1, 2]], limits=(1,)), r"limits must be two whole numbers, got \(1,\)"),
    (lambda: figures.buckets([]), r"buckets must be a DDPBuckets, got \[\]"),
    (
        lambda: figures.buckets(ddp.buckets([ParameterSpec(str(n), 100) for n in range(257)], 0)),
        "^a drawing has at most 256 buckets, got 257: take a larger cap$",
    ),
    (lambda: figures.bucket_caps([1, 2]), "recommendation must be a Recommendation"),
    (lambda: figures.bucket_caps(recommendation(caps_mb=(8,))), r"at least two caps above 0 to be drawn, got \[8.0\]"),
    (lambda: figures.bucket_caps(recommendation(), {8: []}), "measured must have at least one step .* got none for 8"),
    (
        lambda: figures.bucket_caps(recommendation(), {8: [-1]}),
        "measured must be a finite number of at least 0, got -1",
    ),
    (lambda: figures.bucket_caps(recommendation(), {-8: [1]}), "a cap of measured must be a .* number above 0, got -8"),
    (lambda: figures.zero_memory({}), "memories must be at least one, by name, got {}"),
    (lambda: figures.zero_memory({"a": 3}), r"memories\['a'\] must be a ZeroMemory, got 3"),
    (lambda: figures.zero_memory({"a": [1, 2]}), r"memories\['a'\] must be a sequence of ZeroMemory, got \[1, 2\]"),
    (lambda: figures.zero_memory({"a": []}), "memories must be lines of at least two numbers of ranks"),
    (lambda: figures.zero_memory(STAGES, {"24 GB": np.nan}), "limits_bytes must be a finite .* at least 0, got nan"),
    (lambda: figures.zero_memory(OVER_RANKS, {"none": 0}), "limits_bytes must be a finite number above 0, got 0"),
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
    (lambda: figures.link_load(np.ones(4)), r"a square matrix, senders by receivers, got shape \(4,\)"),
    (lambda: figures.link_load(np.ones((0, 0))), r"got shape \(0, 0\)"),
    (lambda: figures.link_load(-np.ones((2, 2))), "finite numbers of at least 0"),
    (lambda: figures.link_load(np.ones((257, 257))), "at most 256 ranks, got 257"),
    (lambda: figures.timeline("spans"), "timeline must be a Timeline, got 'spans'"),
    (lambda: figures.timeline(Timeline.of(TOO_MANY)), "at most 20000 spans, got 20001: select a window or a rank"),
    (lambda: figures.winners({}), "from 1 to 16384 cells, sizes × ranks, got 0 × 0"),
    (lambda: figures.winners({8: {}}), "from 1 to 16384 cells, sizes × ranks, got 0 × 1"),
    (lambda: draw_ranking({}), "finite, at least 0 and of at least one algorithm"),
    (lambda: figures.curves([1], None, "", "", ""), "curves must number from 1 to 8, by name, got None"),
    (lambda: figures.curves([1], {str(n): ([1], None) for n in range(9)}, "", "", ""), "from 1 to 8, by name, got 9"),
    (lambda: figures.curves([1], {"a": (None, None)}, "", "", ""), "an execution each, got neither for 'a'"),
    (lambda: figures.curves([1], {"a": 3}, "", "", ""), r"curves\['a'\] must be a pair of columns, got 3"),
    (
        lambda: figures.curves([1], {"a": ([1, 2], None)}, "", "", ""),
        r"a, predicted: \(2,\) values over x of shape \(1,",
    ),
    (lambda: figures.queue_fill({}), "fills must number from 1 to 8, by name, got 0"),
    (lambda: figures.queue_fill({"a": ([0, 1], [1])}), r"a: \(1,\) numbers over times of shape \(2,\)"),
    (lambda: figures.queue_fill({"a": ([0], [1])}, -1), "capacity must be a whole number of at least 0, got -1"),
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
    (lambda: figures.profile("box"), "profile must be a Profile"),
    (lambda: figures.profile(recorded(), "bus"), "view must be one of 'busbw', 'residuals', got 'bus'"),
    (lambda: figures.profile(recorded(), collective="gather"), "one that this profile has points of, got 'gather'"),
    (lambda: figures.profile(recorded(), "residuals", algorithms=[]), "algorithms must be some of .*, got none"),
    (lambda: figures.profile(recorded(), "residuals", algorithms=["star"]), "algorithms must be some of .*, got star"),
    (lambda: figures.profile(of_native(), "residuals"), "profile must have points of allreduce that can be predicted"),
    (lambda: figures.copies(None), "facts or profile must be given, got None for both"),
    (lambda: figures.copies(None, profile([])), "profile must have copies by .*, as no facts are given, got none"),
    (lambda: figures.copies("PCIe", view="pieces"), "facts must be a LinkFacts, got 'PCIe'"),
    (lambda: figures.copies(FACTS, 3, "both_ways"), "profile must be a Profile, got 3"),
    (lambda: figures.copies(FACTS, view="cost"), "view must be one of 'rate', 'both_ways', 'pieces', 'peers', got 'c"),
    (lambda: figures.copies(FACTS, direction="up"), "direction must be one of 'h2d', 'd2h', got 'up'"),
    (lambda: figures.copies(None, None, "peers"), "profile must be a Profile, got None"),
    (lambda: figures.copies(None, profile([]), "peers"), "profile must have copies between GPUs .*, got none"),
    (lambda: figures.copies(None, peers(73), "peers"), "profile must have copies between at most 72 GPUs, got 73"),
]


@pytest.mark.parametrize(("draw", "message"), REFUSED)
def test_what_cannot_be_drawn_is_one_sentence(draw: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
    assert not plt.get_fignums()


# ---- seen to fail


def _drawing(*texts: Texts, title: str = "a title") -> Drawing:
    return Drawing(title, "x", "y", 10.0, 5.0, (200.0, 100.0), texts=texts)


def test_texts_that_are_cut_or_lie_on_each_other_are_caught() -> None:
    assert svg_problems(to_svg(_drawing(Texts(5, 2, "in the middle")))) == []
    assert "is cut" in svg_problems(to_svg(_drawing(Texts(10, 2, "beyond the edge"))))[0]
    assert "lies on" in svg_problems(to_svg(_drawing(Texts([5, 5], 2, ["one", "two"]))))[0]
    _, ax = plt.subplots(figsize=(3, 2), layout="constrained")
    ax.set_title("fits")
    assert figure_problems(ax.figure) == []  # type: ignore[arg-type]
    for text in [ax.title, *ax.get_xticklabels(), *ax.get_yticklabels()]:
        text.set_visible(True)
    ax.set_title("a title that is much too long for three inches of a figure")
    assert any("is cut" in problem for problem in figure_problems(ax.figure))  # type: ignore[arg-type]


def test_texts_that_are_too_faint_are_caught() -> None:
    _, ax = plt.subplots()
    ax.add_patch(plt.Rectangle((0.2, 0.2), 0.6, 0.6, color="#d55e00"))
    ax.text(0.5, 0.5, "dark", color="#222222", ha="center")
    (problem,) = figure_problems(ax.figure)  # type: ignore[arg-type]
    assert problem == "'dark' in #222222 on #d55e00: contrast 4.1"
    ax.texts[0].set(visible=True, color="#000000")
    assert figure_problems(ax.figure) == []  # type: ignore[arg-type]
