"""Whether a picture can be read: no text cut off, none on another, each standing out from what lies behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text as Artist
from matplotlib.textpath import TextPath

from .hues import LEGIBLE, contrast

SVG = "{http://www.w3.org/2000/svg}"
SLACK_PX = 1.0
SHARED = 0.1  # of the smaller of two texts, which may lie on the other: boxes are larger than their letters
FONT = "DejaVu Sans"  # the widest of those that a drawing asks for


class Place(NamedTuple):
    """Where a text stands, in pixels."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def area(self) -> float:
        return max(self.x1 - self.x0, 0.0) * max(self.y1 - self.y0, 0.0)

    def shared(self, other: Place) -> float:
        """The share of the smaller place that lies on the other."""
        corners = max(self.x0, other.x0), max(self.y0, other.y0), min(self.x1, other.x1), min(self.y1, other.y1)
        return Place("", *corners).area / max(min(self.area, other.area), 1e-9)


def layout_problems(places: list[Place], width: float, height: float) -> Iterator[str]:
    for place in places:
        if min(place.x0, place.y0) < -SLACK_PX or place.x1 > width + SLACK_PX or place.y1 > height + SLACK_PX:
            yield f"{place.text!r} is cut: {tuple(round(value) for value in place[1:])} in {width:.0f} × {height:.0f}"
    for place, other in combinations(places, 2):
        meet = place.x0 < other.x1 and other.x0 < place.x1 and place.y0 < other.y1 and other.y0 < place.y1
        if meet and place.shared(other) > SHARED:
            yield f"{place.text!r} lies on {other.text!r}"


# ---- drawings


@cache
def _width(text: str, weight: str) -> float:
    """How wide a text is, in multiples of its size."""
    font = FontProperties(family=FONT, weight=weight)
    return float(TextPath((0, 0), text, 100, prop=font).get_extents().x1) / 100


def svg_problems(svg: str) -> list[str]:
    """What cannot be read of an SVG of `to_svg` at its own size."""
    root = ElementTree.fromstring(svg)
    places = list(_svg_places(root, 0.0))
    return list(layout_problems(places, float(root.attrib["width"]), float(root.attrib["height"])))


def _svg_places(node: ElementTree.Element, down: float) -> Iterator[Place]:
    if node.get("transform", "").startswith("translate"):
        down += float(node.attrib["transform"][10:-1].split()[1])
    words = "".join(node.itertext())
    if node.tag == f"{SVG}text" and words.strip():
        size, x, y = (float(node.attrib[name]) for name in ("font-size", "x", "y"))
        wide = size * _width(words, "bold" if node.get("font-weight") else "normal")
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[node.attrib["text-anchor"]] * wide
        yield Place(words, left, y + down - 0.72 * size, left + wide, y + down + 0.1 * size)
    for child in node:
        yield from _svg_places(child, down)


# ---- matplotlib


def figure_problems(figure: Figure) -> list[str]:
    """What cannot be read of a figure, as it is drawn without a screen."""
    texts = _drawn(figure)
    places = [Place(text.get_text(), *text.get_window_extent().extents) for text in texts]
    problems = list(layout_problems(places, *figure.canvas.get_width_height()))
    figure.set_layout_engine("none")  # all stays where it is
    for text in texts:
        text.set_visible(False)
    figure.canvas.draw()
    behind = np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
    for text, place in zip(texts, places, strict=True):
        ground, ink = _ground(behind, place), to_hex(text.get_color())
        if contrast(ink, ground) < LEGIBLE:
            problems.append(f"{place.text!r} in {ink} on {ground}: contrast {contrast(ink, ground):.1f}")
    return problems


def _drawn(figure: Figure) -> list[Artist]:
    """The texts that are drawn: matplotlib has others, too, as of ticks beyond the ends of an axis."""
    drawn: dict[int, Artist] = {}
    draw = Artist.draw

    def drawing(text: Artist, *args: Any, **options: Any) -> None:
        drawn[id(text)] = text
        draw(text, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Artist, "draw", drawing)
        figure.canvas.draw()
    return [text for text in drawn.values() if text.get_visible() and text.get_text().strip()]


def _ground(pixels: Any, place: Place) -> str:
    """The colour that most pixels behind a text have."""
    height, width = pixels.shape[:2]
    x0, x1 = (int(np.clip(x, 0, width)) for x in (place.x0, np.ceil(place.x1)))
    y0, y1 = (int(np.clip(y, 0, height)) for y in (height - np.ceil(place.y1), height - place.y0))
    colors = Counter(map(tuple, pixels[y0:y1, x0:x1, :3].reshape(-1, 3).tolist()))
    ((red, green, blue), _) = colors.most_common(1)[0]
    return f"#{red:02x}{green:02x}{blue:02x}"
