"""Whether a picture can be read: no text cut off, none on another, each standing out from what lies behind it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import TextPath

from rankscope.figures.palette import LEGIBLE, contrast

SVG = "{http://www.w3.org/2000/svg}"
SLACK_PX = 1.0
SHARED = 0.1  # of the smaller of two texts, which may lie on the other: boxes are larger than their letters


class Box(NamedTuple):
    """Where a text stands, in pixels."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def area(self) -> float:
        return max(self.x1 - self.x0, 0.0) * max(self.y1 - self.y0, 0.0)

    def meets(self, other: Box) -> bool:
        """Whether the boxes have anything in common."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def shared(self, other: Box) -> float:
        """The share of the smaller box that lies on the other."""
        common = Box("", max(self.x0, other.x0), max(self.y0, other.y0), min(self.x1, other.x1), min(self.y1, other.y1))
        return common.area / max(min(self.area, other.area), 1e-9)


def layout_problems(boxes: list[Box], width: float, height: float) -> Iterator[str]:
    for box in boxes:
        if min(box.x0, box.y0) < -SLACK_PX or box.x1 > width + SLACK_PX or box.y1 > height + SLACK_PX:
            yield f"{box.text!r} is cut: {tuple(round(v) for v in box[1:])} in {width:.0f} × {height:.0f}"
    for box, other in combinations(boxes, 2):
        if box.meets(other) and box.shared(other) > SHARED:
            yield f"{box.text!r} lies on {other.text!r}"


# ---- matplotlib


def figure_problems(figure: Figure) -> list[str]:
    """What cannot be read of a figure, as it is drawn without a screen."""
    texts = _drawn(figure)
    boxes = [Box(text.get_text(), *text.get_window_extent().extents) for text in texts]
    width, height = figure.canvas.get_width_height()
    problems = list(layout_problems(boxes, width, height))
    figure.set_layout_engine("none")  # all stays where it is
    for text in texts:
        text.set_visible(False)
    figure.canvas.draw()
    behind = np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
    for text, box in zip(texts, boxes, strict=True):
        ground, ink = _halo(text) or _ground(behind, box), to_hex(text.get_color())
        if contrast(ink, ground) < LEGIBLE:
            problems.append(f"{box.text!r} in {ink} on {ground}: contrast {contrast(ink, ground):.1f}")
    return problems


def _drawn(figure: Figure) -> list[Text]:
    """The texts that are drawn: matplotlib has others, too, as of ticks beyond the ends of an axis."""
    drawn: dict[int, Text] = {}
    draw = Text.draw

    def drawing(text: Text, *args: Any, **options: Any) -> None:
        drawn[id(text)] = text
        draw(text, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", drawing)
        figure.canvas.draw()
    return [text for text in drawn.values() if text.get_visible() and text.get_text().strip()]


def _ground(pixels: Any, box: Box) -> str:
    """The colour that most pixels behind a text have."""
    height, width = pixels.shape[:2]
    x0, x1 = (int(np.clip(x, 0, width)) for x in (box.x0, np.ceil(box.x1)))
    y0, y1 = (int(np.clip(y, 0, height)) for y in (height - np.ceil(box.y1), height - box.y0))
    colors = Counter(map(tuple, pixels[y0:y1, x0:x1, :3].reshape(-1, 3).tolist()))
    ((red, green, blue), _) = colors.most_common(1)[0]
    return f"#{red:02x}{green:02x}{blue:02x}"


def _halo(text: Text) -> str:
    box = text.get_bbox_patch()
    return to_hex(box.get_facecolor()) if box else ""


# ---- SVG


def svg_problems(svg: str) -> list[str]:
    """What cannot be read of an SVG of `to_svg`, with the letters of the font that it asks for first."""
    root = ET.fromstring(svg)
    boxes = list(_svg_boxes(root, (0.0, 0.0), 11.0, "start", "auto"))
    return list(layout_problems(boxes, float(root.attrib["width"]), float(root.attrib["height"])))


@cache
def _width(text: str, weight: str) -> float:
    """How wide a text is, in multiples of its size."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return float(TextPath((0, 0), text, 100, prop=font).get_extents().x1) / 100


def _svg_boxes(node: Any, origin: tuple[float, float], size: float, anchor: str, line: str) -> Iterator[Box]:
    turned = "rotate(-90)" in node.get("transform", "")
    moved = node.get("transform", "translate(0 0)").split("translate(")[1].split(")")[0].split()
    origin = origin[0] + float(moved[0]), origin[1] + float(moved[1] if len(moved) > 1 else 0)
    size = float(node.get("font-size", size))
    anchor, line = node.get("text-anchor", anchor), node.get("dominant-baseline", line)
    if node.tag == f"{SVG}text" and (node.text or "").strip():
        x, y = origin[0] + float(node.get("x", 0)), origin[1] + float(node.get("y", 0))
        wide = size * _width(node.text, node.get("font-weight", "normal"))
        back = wide * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        up, down = (0.45 * size, 0.45 * size) if line == "central" else (0.75 * size, 0.15 * size)
        if turned:
            yield Box(node.text, x - up, y - wide + back, x + down, y + back)
        else:
            yield Box(node.text, x - back, y - up, x - back + wide, y + down)
    for child in node:
        if child.tag not in (f"{SVG}title", f"{SVG}defs"):
            yield from _svg_boxes(child, origin, size, anchor, line)
