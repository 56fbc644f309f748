"""One battery for every public figure and each of its views, and what they refuse.

The figures of each part of the library are in its `figure_cases`.
"""

from __future__ import annotations

import inspect
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from rankscope import figures
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing, Key, Rects, Texts
from rankscope.figures.palette import PAPER, WORK, rank_colors
from rankscope.figures.svg import to_svg

from ..contributed import contributed
from .hues import drawing_problems, entries_problem
from .readable import figure_problems, svg_problems
from .shown import words_of

SVG = "{http://www.w3.org/2000/svg}"
FIGURES: dict[str, Callable[..., Axes]] = {}
DRAWINGS: dict[str, Drawing] = {}
REFUSED: list[tuple[Callable[[], Any], str]] = []
for module in contributed("figure_cases"):
    FIGURES.update(module.FIGURES)
    DRAWINGS.update(module.DRAWINGS)
    REFUSED.extend(module.REFUSED)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows_can_be_read_and_has_few_entries_in_its_legend(name: str) -> None:
    ax = FIGURES[name]()
    assert ax.get_title(loc="left")
    ticks = " ".join(label.get_text() for label in ax.get_xticklabels())
    labels = {ax.get_xlabel(), ax.get_ylabel()}
    assert "[" in "".join(labels) or " MiB" in ticks or labels == {"read number", "rank"}  # a unit; ordinals have none
    assert ax.figure.legends or ax.get_legend() or ax.texts
    entries = [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]
    assert list(entries_problem(entries)) == []
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


@pytest.mark.slow
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

    painted = [
        collection
        for collection in ax.collections
        if isinstance(collection, PolyCollection) and collection.get_gid() == "rects"
    ]
    groups = [group for group in marks.findall(f"{SVG}g[@stroke]") if not group.get("text-anchor")]
    for rects, collection, group in zip(drawing.rects, painted, groups, strict=True):
        corners = [path.vertices[0] for path in collection.get_paths()]
        boxes = [box for box in group if not box.get("fill").startswith("url")]
        assert np.allclose(corners, np.stack([rects.x, rects.y], axis=1)) if corners else not boxes
        assert np.allclose([float(box.get("x")) for box in boxes], rects.x * across, rtol=1e-5)
        assert np.allclose([float(box.get("y")) for box in boxes], rects.y * down, rtol=1e-5)
        assert [box.get("fill") for box in boxes] == list(rects.fill)
        assert [to_hex(color) for color in collection.get_facecolors()] == list(rects.fill)
        assert sum(box.get("fill").startswith("url") for box in group) == rects.hatched.sum()
    hatched = [collection for collection in ax.collections if collection.get_gid() == "hatched"]
    assert sum(len(collection.get_paths()) for collection in hatched) == sum(
        rects.hatched.sum() for rects in drawing.rects
    )

    groups = marks.findall(f"{SVG}g[@class='lines']")
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    straight = [
        collection
        for collection in ax.collections
        if isinstance(collection, LineCollection) and collection.get_gid() == "lines"
    ]
    ends = [end for collection in straight for end in np.reshape(collection.get_segments(), (-1, 4)).tolist()]
    ends += [[*arrow._posA_posB[0], *arrow._posA_posB[1]] for arrow in arrows]
    ordered = sorted(drawing.lines, key=lambda lines: lines.arrows)
    expected = [np.stack([lines.x0, lines.y0, lines.x1, lines.y1], axis=1) for lines in ordered]
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


@pytest.mark.parametrize("drawing", DRAWINGS.values(), ids=DRAWINGS)
def test_a_hue_has_one_meaning_and_a_legend_few_entries(drawing: Drawing) -> None:
    assert list(drawing_problems(drawing)) == []
    assert list(entries_problem([key.label for key in drawing.legend])) == []


# ---- what cannot be drawn


@pytest.mark.parametrize(("draw", "message"), REFUSED)
def test_what_cannot_be_drawn_is_one_sentence(draw: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
    assert not plt.get_fignums()


# ---- seen to fail


def _with(rank: str, *keys: Key) -> Drawing:
    cells = Rects([0, 1], 0, [rank, WORK["forward"].hue])
    return Drawing("t", "x", "y", 2.0, 1.0, (100.0, 50.0), rects=(cells,), legend=keys)


def test_a_hue_with_two_meanings_is_caught() -> None:
    (rank_and_work,) = drawing_problems(_with(rank_colors(1)[0]))
    assert rank_and_work == "ranks and work in one drawing: ['#e69f00']"
    forward, backward = WORK["forward"].hue, WORK["backward"].hue
    fine = _with(PAPER, Key("forward, activations", forward), Key("backward", backward))
    assert list(drawing_problems(fine)) == []
    shared = _with(PAPER, Key("forward", forward), Key("rank 3", forward))
    assert "#e69f00 means rank: rank 3 and work: forward" in list(drawing_problems(shared))
    assert list(drawing_problems(_with(PAPER, Key("forward", backward)))) == [
        "forward is #d55e00 here, and #e69f00 in the table"
    ]
    assert list(entries_problem("abcdefg")) == ["7 entries in the legend, of at most 6: a, b, c, d, e, f, g"]


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
