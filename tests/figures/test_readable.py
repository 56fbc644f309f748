"""Every public figure function draws what can be read, and so does every explorer; and unreadable ones are caught."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from pages.stills import stills

from rankscope import figures, zero
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate, traffic, winners
from rankscope.ddp.buckets import ddp_buckets
from rankscope.ddp.local_step import LocalStep, ParameterSpec
from rankscope.ddp.recommend import recommend_bucket_cap
from rankscope.explorers.catalogue import CATALOGUE
from rankscope.figures.marks import Drawing, Texts
from rankscope.figures.svg import to_svg
from rankscope.machine import Point, Profile
from rankscope.machine.link_facts import stated
from rankscope.pipeline import Pipeline, Stage
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import assign

from ..machine.made import profile
from .readable import figure_problems, svg_problems

LINK = Link(5e-6, 25e9)
CLUSTER = Cluster.uniform(8, LINK)
RING = build("allreduce", "ring", 8)
SIZES = 2.0 ** np.arange(10, 27)
RECORDED = Path(__file__).parents[2] / "notebooks" / "profiles"
EMULATED = RECORDED / "emulated_100mbit_5ms_4_ranks.json"
LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
ROAD = Pipeline([Stage("read", 0.004), Stage("decode", 0.03, num_workers=2), Stage("train", 0.012)])


@cache
def recorded() -> Profile:
    return Profile.load(EMULATED)


def _peers() -> Axes:
    ends = [(src, dst) for src in range(4) for dst in range(4) if src != dst]
    told = [{"direction": "p2p", "src": src, "dst": dst, "pieces": 1, "both": False} for src, dst in ends]
    points = [Point("transfer", 2**26, (1e-3 * (1 + n),), (True,), one) for n, one in enumerate(told)]
    return figures.copies(None, profile(points), "peers")


def _costs() -> Axes:
    names = ("flat", "ring", "binomial_tree", "recursive_doubling", "halving_doubling", "segmented_ring")
    built = {name: build("allreduce", name, 8) for name in names}
    seconds = {
        name: [simulate(one, size, CLUSTER, detail="ranks").makespan_s for size in SIZES] for name, one in built.items()
    }
    return figures.costs(SIZES, seconds, np.full(SIZES.size, 1e-5), half_bytes=LINK.alpha_s * LINK.bytes_per_s)


def _zero_curve() -> Axes:
    return figures.zero_memory(
        {f"stage {s}": [zero.memory(7.5e9, 2**p, s) for p in range(11)] for s in range(4)}, LIMITS
    )


def _bucket_caps() -> Axes:
    found = recommend_bucket_cap(
        LocalStep.modelled([1 << 20] * 64, 0.064, unpack_s=0.004), Link(50e-6, 2e9), num_ranks=8
    )
    return figures.bucket_caps(found, {1.0: [0.1, 0.11, 0.12], None: [0.2, 0.21]})


# of each public figure function a call, as the notebooks make it
FIGURES: dict[str, Callable[[], Axes]] = {
    "assignment": lambda: figures.assignment(assign(50, 8, drop_last=True).with_loader(2), color_by="position"),
    "copies both_ways": lambda: figures.copies(stated(4), view="both_ways"),
    "bucket_caps": _bucket_caps,
    "buckets": lambda: figures.buckets(ddp_buckets([ParameterSpec(str(n), 1 << 19) for n in range(12)], 2.0)),
    "profile busbw": lambda: figures.profile(recorded()),
    "copies": lambda: figures.copies(stated(4)),
    "costs": _costs,
    "coverage": lambda: figures.coverage([assign(22, 8, epoch=epoch, drop_last=True) for epoch in range(4)]),
    "curves": lambda: figures.curves(
        [1, 2, 4, 8], {"one": ([1, 2, 3, 4], [1, 2, 3, 5]), "two": (None, [2, 2, 2, 2])}, "Two", "ranks", "time [ms]"
    ),
    "label_counts": lambda: figures.label_counts(np.arange(100).reshape(10, 10), "digit", title="All shades"),
    "link_load": lambda: figures.link_load(traffic(RING, 64e6).link_bytes),
    "copies peers": _peers,
    "copies pieces": lambda: figures.copies(stated(4), view="pieces"),
    "queue_fill": lambda: figures.queue_fill({"predicted": ([0, 1, 2], [0, 3, 1])}, capacity=4),
    "profile residuals": lambda: figures.profile(recorded(), "residuals"),
    "schedule": lambda: figures.schedule(build("allreduce", "ring", 4), 2),
    "schedule over time": lambda: figures.schedule(RING, timeline=simulate(RING, 1e6, CLUSTER)),
    "timeline": lambda: figures.timeline(simulate_pipeline(ROAD, 12)),
    "winners": lambda: figures.winners(
        winners(2.0 ** np.arange(10, 31, 2), [Cluster.uniform(n, LINK) for n in (4, 6, 8)])
    ),
    "zero_memory lines": _zero_curve,
    "zero_memory": lambda: figures.zero_memory({f"stage {s}": zero.memory(7.5e9, 64, s) for s in range(4)}, LIMITS),
}


def test_there_is_a_call_of_each_figure_function() -> None:
    assert {name.split()[0] for name in FIGURES} == set(figures.__all__)


@pytest.mark.parametrize("name", FIGURES)
def test_every_text_of_a_figure_can_be_read(name: str) -> None:
    ax = FIGURES[name]()
    problems = figure_problems(ax.figure)  # type: ignore[arg-type]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_every_text_of_an_explorer_can_be_read(name: str) -> None:
    profiles = {"emulated": recorded()} if name == "machine" else None
    problems = [f"{one.caption}: {problem}" for one in stills(name, profiles) for problem in svg_problems(one.svg)]
    assert not problems, "\n".join(problems)


# ---- seen to fail


def _drawing(*texts: Texts, title: str = "a title") -> Drawing:
    return Drawing(title, "x", "y", 10.0, 5.0, (200.0, 100.0), texts=texts)


def _text(x: float, y: float, *words: str, color: str = "#222222", **how: Any) -> Texts:
    return Texts(np.full(len(words), x), np.full(len(words), y), words, (color,) * len(words), **how)


def test_texts_that_are_cut_or_lie_on_each_other_are_caught() -> None:
    assert svg_problems(to_svg(_drawing(_text(5, 2, "in the middle")))) == []
    assert "is cut" in svg_problems(to_svg(_drawing(_text(10, 2, "beyond the edge"))))[0]
    assert "lies on" in svg_problems(to_svg(_drawing(_text(5, 2, "one", "two"))))[0]
    _, ax = plt.subplots(figsize=(3, 2), layout="constrained")
    ax.set_title("fits")
    assert figure_problems(ax.figure) == []  # type: ignore[arg-type]
    ax.set_title("a title that is much too long for three inches of a figure")
    assert any("is cut" in problem for problem in figure_problems(_again(ax)))


def _again(ax: Axes) -> Any:
    for text in [ax.title, *ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels()]:
        text.set_visible(True)
    return ax.figure


def test_texts_that_are_too_faint_are_caught() -> None:
    _, ax = plt.subplots()
    ax.add_patch(plt.Rectangle((0.2, 0.2), 0.6, 0.6, color="#d55e00"))
    ax.text(0.5, 0.5, "dark", color="#222222", ha="center")
    (problem,) = figure_problems(ax.figure)  # type: ignore[arg-type]
    assert problem == "'dark' in #222222 on #d55e00: contrast 4.1"
    ax.texts[0].set(visible=True, color="#000000")
    assert figure_problems(ax.figure) == []  # type: ignore[arg-type]


def test_every_label_on_every_hue_is_legible() -> None:
    from rankscope.figures.palette import CATEGORIES, LEGIBLE, contrast, ink_on, ramp

    for fill in (*CATEGORIES, *ramp(np.linspace(0, 1, 256))):
        assert contrast(ink_on(fill), fill) >= LEGIBLE
