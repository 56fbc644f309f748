"""One battery for every public figure and each of its views, and what they refuse.

The figures of each room are in its `figure_cases`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankscope import figures
from rankscope.drawing.drawing import Drawing, to_svg
from rankscope.drawing.marks import Box, Line, Mark, Text, key_marks
from rankscope.drawing.palette import DARK, LINES, RANKS, TONES, WORK, WorkLook, rank_colors
from tests.cases import cases_of_rooms

from .hues import EYES, LEGIBLE, contrast, drawing_problems, nearest, painted
from .readable import figure_problems, svg_problems
from .shown import words_of

SVG = "{http://www.w3.org/2000/svg}"
FIGURES: dict[str, Callable[..., Any]] = {}
DRAWINGS: dict[str, Drawing] = {}
REFUSED: list[tuple[Callable[[], Any], str]] = []
for module in cases_of_rooms("figure_cases"):
    FIGURES.update(module.FIGURES)
    DRAWINGS.update(module.DRAWINGS)
    REFUSED.extend(module.REFUSED)


def test_there_is_a_call_of_each_public_figure() -> None:
    assert {name.split()[0] for name in FIGURES} == set(figures.__all__)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows_can_be_read_and_is_never_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (plt, Figure):
        monkeypatch.setattr(owner, "show", lambda *_, **__: pytest.fail("shown"))
    drawn = FIGURES[name]()
    if isinstance(drawn, Axes):
        assert drawn.get_title(loc="left")
        ticks = " ".join(label.get_text() for label in drawn.get_xticklabels())
        assert "[" in drawn.get_xlabel() + drawn.get_ylabel() or " MiB" in ticks  # a unit
        assert figure_problems(drawn.figure) == []  # type: ignore[arg-type]
        _, given = plt.subplots()
        assert FIGURES[name](ax=given, title="mine") is given
        assert given.get_title(loc="left") == "mine"
    else:
        assert repr(drawn) == "<Drawing>"
        assert FIGURES[name](title="mine").title == "mine"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_legible_and_a_hue_has_one_meaning(name: str) -> None:
    drawing = DRAWINGS[name]
    assert 0 < len(drawing.title.replace("*", "")) <= 48
    assert len(drawing.deck) <= 70
    assert list(drawing_problems(drawing)) == []
    svg = to_svg(drawing)
    assert svg_problems(svg) == []
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {word.replace("*", "") for word in words_of(drawing)} <= set(texts)
    assert "<pattern" not in svg
    assert "<script" not in svg


@pytest.mark.parametrize(("draw", "word"), REFUSED)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        draw()
    assert not plt.get_fignums()


# ---- colours


@pytest.mark.parametrize(("tones", "tint", "work"), [(TONES, 0.4, 0.52), (DARK, 0.46, 0.46)], ids=["light", "dark"])
def test_text_is_legible_on_every_fill_of_both_themes(tones: dict[str, str], tint: float, work: float) -> None:
    paper = tones["paper"]
    for tone in ("ink", "mute", "alarm", "accent"):
        assert contrast(tones[tone], paper) >= LEGIBLE
    fills = [painted(hue, "tint", paper, tint) for hue in (*RANKS, *rank_colors(64))]
    fills += [painted(look.hue, "work", paper, work) for look in WORK.values()]
    assert min(contrast(tones["ink"], fill) for fill in fills) >= LEGIBLE
    assert all(contrast(hue, TONES["paper"]) >= LEGIBLE for hue in LINES)


@pytest.mark.parametrize("eye", EYES)
def test_ranks_and_kinds_of_work_are_apart_for_all_eyes(eye: str) -> None:
    plain = {painted(look.hue, "work") for look in WORK.values() if not look.hatched}
    hatched = {painted(look.hue, "work") for look in WORK.values() if look.hatched}
    for hues in ([painted(hue, "tint") for hue in RANKS], list(plain), list(hatched)):
        assert nearest(hues, EYES[eye]) >= 2
    assert not set(RANKS) & {look.hue for look in WORK.values()}


# ---- motion and the pointer


def test_a_box_comes_from_where_one_of_its_key_was_and_new_ones_appear() -> None:
    before = Drawing("before", [Box(10, 10, 20, 20, RANKS[0], key="a"), Box(50, 10, 20, 20, RANKS[0], key="a")], 40)
    now = Drawing("now", [Box(10, 10, 20, 20, RANKS[0], key="a"), Box(80, 30, 20, 20, RANKS[1], key="a")], 60)
    assert 'class="mv"' not in to_svg(now)
    assert to_svg(now, before).count('class="mv"') == 1
    assert "--dx:-30.0px;--dy:-20.0px" in to_svg(now, before)
    more = Drawing("more", [*now.marks, Box(1, 1, 2, 2, "ink", key="b"), Box(5, 5, 1, 1, "ink")], 60)
    assert to_svg(more, now).count('class="new"') == 1
    assert "prefers-reduced-motion" in to_svg(now)
    assert "<style>" not in to_svg(now, style=False)


def test_marks_of_a_key_are_a_group_that_says_what_it_is() -> None:
    marks = [
        Box(0, 0, 9, 9, "ink", key="a"),
        Box(20, 0, 9, 9, "ink", key="a"),
        Line(((0, 0), (5, 9), (20, 0)), key="a"),
    ]
    root = ElementTree.fromstring(to_svg(Drawing("t", marks, 20, tips={"a": "two <boxes>"})))
    (group,) = [node for node in root.iter(f"{SVG}g") if node.get("class") == "k"]
    assert group.findtext(f"{SVG}title") == "two <boxes>"
    assert len(group.findall(f"{SVG}rect")) == 2
    assert group.find(f"{SVG}path").get("opacity") == "0"  # until the pointer comes


# ---- seen to fail


def test_a_hue_with_two_meanings_is_caught() -> None:
    forward, backward = WORK["forward"], WORK["backward"]

    def problems(keys: dict[str, WorkLook], *more: Mark) -> list[str]:
        marks, height_px = key_marks(keys)
        return list(drawing_problems(Drawing("t", [*marks, *more], height_px)))

    assert problems({"forward": forward, "backward": backward}) == []
    assert problems({"mine": forward, "forward": forward})
    assert problems({"forward": backward})
    assert problems({"forward": forward}, Box(0, 0, 9, 9, RANKS[0]))


def test_texts_that_are_cut_or_lie_on_each_other_are_caught() -> None:
    def problems(*texts: Text) -> list[str]:
        return svg_problems(to_svg(Drawing("a title", texts, 60)))

    assert problems(Text(100, 20, "inside")) == []
    assert "is cut" in problems(Text(620, 20, "beyond the edge"))[0]
    assert "lies on" in problems(Text(100, 20, "one"), Text(104, 22, "two"))[0]
