"""One battery for every public figure and each of its views, and what they refuse.

The figures of each part of the library are in its `figure_cases`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rankscope import figures
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing, Key, Rects, Texts
from rankscope.figures.palette import PAPER, WORK, rank_colors
from rankscope.figures.svg import to_svg

from ..box import figure_cases as of_box
from ..train import figure_cases as of_train
from . import figure_cases
from .hues import drawing_problems, entries_problem
from .readable import figure_problems, svg_problems
from .shown import keys_of, words_of

SVG = "{http://www.w3.org/2000/svg}"
FIGURES: dict[str, Callable[..., Axes]] = {}
DRAWINGS: dict[str, Drawing] = {}
REFUSED: list[tuple[Callable[[], Any], str]] = []
for module in (figure_cases, of_box, of_train):
    FIGURES.update(module.FIGURES)
    DRAWINGS.update(module.DRAWINGS)
    REFUSED.extend(getattr(module, "REFUSED", []))


def test_there_is_a_call_of_each_public_figure() -> None:
    assert {name.split()[0] for name in FIGURES} == set(figures.__all__)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows_can_be_read_and_is_never_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (plt, Figure):
        monkeypatch.setattr(owner, "show", lambda *_, **__: pytest.fail("shown"))
    ax = FIGURES[name]()
    assert ax.get_title(loc="left")
    ticks = " ".join(label.get_text() for label in ax.get_xticklabels())
    labels = {ax.get_xlabel(), ax.get_ylabel()}
    assert "[" in "".join(labels) or " MiB" in ticks or labels == {"read number", "rank"}  # a unit; ordinals have none
    entries = [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]
    assert list(entries_problem(entries)) == []
    assert figure_problems(ax.figure) == []  # type: ignore[arg-type]
    _, given = plt.subplots()
    assert FIGURES[name](ax=given, title="mine") is given
    assert given.get_title(loc="left") == "mine"


@pytest.mark.parametrize("drawing", DRAWINGS.values(), ids=DRAWINGS)
def test_both_painters_paint_the_same_and_a_hue_has_one_meaning(drawing: Drawing) -> None:
    assert drawing.title
    assert drawing.x_label
    assert list(drawing_problems(drawing)) == []
    assert list(entries_problem(keys_of(drawing))) == []
    ax, svg = to_axes(drawing), to_svg(drawing)
    assert svg == to_svg(drawing)
    assert svg_problems(svg) == []
    root = ElementTree.fromstring(svg)
    marks = root.find(f"{SVG}g[@class='marks']")
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height
    painted = [c for c in ax.collections if isinstance(c, PolyCollection) and c.get_gid() == "rects"]
    groups = [group for group in marks.findall(f"{SVG}g[@stroke]") if not group.get("text-anchor")]
    for rects, collection, group in zip(drawing.rects, painted, groups, strict=True):
        boxes = [box for box in group if not box.get("fill").startswith("url")]
        for name, column, scale in (("x", rects.x, across), ("y", rects.y, down), ("width", rects.width, across)):
            assert np.allclose([float(box.get(name)) for box in boxes], column * scale, rtol=1e-5)
        corners = [path.vertices[0] for path in collection.get_paths()]
        assert np.allclose(corners, np.stack([rects.x, rects.y], axis=1)) if corners else not boxes
        assert [box.get("fill") for box in boxes] == list(rects.fill)
        assert [to_hex(color) for color in collection.get_facecolors()] == list(rects.fill)
        assert len(group) - len(boxes) == rects.hatched.sum()
    assert [text.get_text() for text in ax.texts] == words_of(drawing)
    assert [text.text for text in marks.iter(f"{SVG}text")] == words_of(drawing)
    axes = [text.text or "" for text in root.find(f"{SVG}g[@class='axes']")]
    assert axes == [label for _, label in (*drawing.x_ticks, *drawing.y_ticks)] + [drawing.x_label, drawing.y_label]
    assert ax.yaxis_inverted()
    assert [text.get_text() for box in ax.figure.legends for text in box.get_texts()] == keys_of(drawing)


@pytest.mark.parametrize(("draw", "word"), REFUSED)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        draw()
    assert not plt.get_fignums()


# ---- seen to fail


def test_a_hue_with_two_meanings_is_caught() -> None:
    def drawn(fill: str, *keys: Key) -> Drawing:
        cells = Rects([0, 1], 0, [fill, WORK["forward"].hue])
        return Drawing("t", "x", "y", 2.0, 1.0, (100.0, 50.0), rects=(cells,), legend=keys)

    forward, backward = WORK["forward"].hue, WORK["backward"].hue
    assert list(drawing_problems(drawn(PAPER, Key("forward, activations", forward), Key("backward", backward)))) == []
    assert list(drawing_problems(drawn(rank_colors(1)[0])))  # ranks and work
    assert list(drawing_problems(drawn(PAPER, Key("forward", forward), Key("rank 3", forward))))
    assert list(drawing_problems(drawn(PAPER, Key("forward", backward))))
    assert list(entries_problem("abcdefg"))


def test_texts_that_are_cut_lie_on_each_other_or_are_too_faint_are_caught() -> None:
    def drawn(texts: Texts) -> str:
        return to_svg(Drawing("a title", "x", "y", 10.0, 5.0, (200.0, 100.0), texts=(texts,)))

    assert svg_problems(drawn(Texts(5, 2, "in the middle"))) == []
    assert "is cut" in svg_problems(drawn(Texts(10, 2, "beyond the edge")))[0]
    assert "lies on" in svg_problems(drawn(Texts([5, 5], 2, ["one", "two"])))[0]
    _, ax = plt.subplots()
    ax.add_patch(plt.Rectangle((0.2, 0.2), 0.6, 0.6, color="#d55e00"))
    ax.text(0.5, 0.5, "dark", color="#222222", ha="center")
    (problem,) = figure_problems(ax.figure)  # type: ignore[arg-type]
    assert "contrast 4.1" in problem
    ax.texts[0].set(visible=True, color="#000000")
    ax.set_title("a title that is much too long for this figure " * 3)
    assert any("is cut" in problem for problem in figure_problems(ax.figure))  # type: ignore[arg-type]
