"""Figures in notebooks: matplotlib's SVG made short and themed, PNG where that is long; nbval compares neither."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from rankscope import figures
from rankscope.drawing.drawing import to_svg
from rankscope.drawing.palette import LINES
from rankscope.sampling import assign
from rankscope.sampling.picture import draw_assignment
from tests.tools.pictures import MOST_SVG_BYTES, PNG, SVG, compact, copy_as_png, stored


def svg_of(figure: Figure) -> str:
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rankscope"}):
        figure.savefig(file, format="svg")
    plt.close(figure)
    return file.getvalue()


def figure_of(num_points: int = 30) -> Figure:
    x = np.arange(num_points)
    pairs = {"one": (x, x + 1), "two": (2 * x, None)}
    return figures.curves(x, pairs, "two are read twice", "rank", "time [ms]").figure  # type: ignore[return-value]


def texts_of(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_short_svg_says_what_the_long_one_says() -> None:
    whole = svg_of(figure_of())
    short = compact(whole)
    assert texts_of(short) == texts_of(whole)
    assert {"two are read twice", "rank", "predicted", "20"} <= set(texts_of(short))
    assert len(short) < len(whole) / 1.9
    assert "date" in whole
    assert not [word for word in ("date", "metadata", "DejaVu", "rotate(-0", "'#1f2328'") if word in short]
    for color in LINES[:2]:
        assert (color in short) is (color in whole) is True


def test_a_drawing_is_copied_in_the_tones_of_light_paper() -> None:
    """They are variables in its style, which not every renderer knows; without them all was black."""
    svg = to_svg(draw_assignment(assign(10, 4)))
    png, _ = copy_as_png(svg)
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        colours = picture.convert("RGB").getcolors(1 << 20) or []
    most, paper = max(colours)
    assert paper == (255, 255, 255)
    assert most > sum(number for number, _ in colours) / 2


def test_the_same_figure_gives_the_same_svg_and_no_id_means_two_things() -> None:
    one, again, other = (compact(svg_of(figure_of(size))) for size in (30, 30, 31))
    assert one == again != other
    assert compact(one) == one
    of_both = [
        {node.get("id"): ET.tostring(node) for node in ET.fromstring(svg).iter() if node.get("id")}
        for svg in (one, other)
    ]
    assert of_both[0]
    for name in set(of_both[0]) & set(of_both[1]):  # a page may hold both
        assert of_both[0][name] == of_both[1][name]


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "#d55e00").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_a_figure_of_thousands_of_marks_stays_a_png() -> None:
    few = svg_of(figure_of())
    ax = plt.subplots()[1]
    ax.scatter(*np.random.default_rng(0).random((2, 4000)))
    many = svg_of(ax.figure)  # type: ignore[arg-type]
    assert len(compact(many)) > MOST_SVG_BYTES > len(compact(few))
    both = {PNG: picture(), "text/plain": "<Figure>"}
    assert set(stored(both | {SVG: few})) == {SVG, "text/plain"}
    assert set(stored(both | {SVG: many})) == {PNG, "text/plain"}
    for data in (both | {SVG: few}, both | {SVG: many}, {SVG: "<svg/>"}, {"text/plain": "1"}):
        assert stored(stored(data)) == stored(data)
