"""Whether a picture can be read: no text cut off, and none on another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text as Artist
from matplotlib.textpath import TextPath

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
    from_the_top = sorted(places, key=lambda place: place.y0)
    for number, place in enumerate(from_the_top):
        for other in from_the_top[number + 1 :]:
            if other.y0 >= place.y1:
                break  # all others are below
            if place.shared(other) > SHARED:
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
    places = [Place(text.get_text(), *text.get_window_extent().extents) for text in _drawn(figure)]
    return list(layout_problems(places, *figure.canvas.get_width_height()))


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
