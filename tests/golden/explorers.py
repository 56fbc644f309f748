"""Every explorer at every preset: the lines of its report, and of its pictures the texts and the extents of marks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from html import unescape
from typing import Any
from xml.etree import ElementTree

from torch import nn

from rankscope import explorers
from rankscope.box import Profile

from .box import NOTEBOOK_PROFILES
from .values import Cases

LEFT_OUT = ("packed", "replacement=False")  # settings of what leaves
_SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_TRANSLATE = re.compile(r"translate\(([-\d.e]+)[ ,]+([-\d.e]+)\)")


def _panels() -> dict[str, Callable[[], Any]]:
    """Return what opens each explorer, and some of them with inputs of their own."""
    panels: dict[str, Callable[[], Any]] = {
        name: getattr(explorers, name) for name in explorers.__all__ if name != "gallery"
    }
    emulated = NOTEBOOK_PROFILES / "emulated_100mbit_5ms_4_ranks.json"
    module = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
    panels["machine of a notebook"] = lambda: explorers.machine({"emulated": Profile.load(emulated)})
    panels["transfers of a machine"] = lambda: explorers.transfers(Profile.load("bank:quadro_rtx6000_copies"))
    panels["zero of a module"] = lambda: explorers.zero(module)
    return panels


def cases() -> Cases:
    all_cases: Cases = {}
    for name, show in _panels().items():
        for number, button in enumerate(show().presets):  # the last one is "reset": the defaults
            if not any(word in button.tooltip for word in LEFT_OUT):
                all_cases[f"{name}: {button.description}"] = partial(_at_preset, show, number)
    return all_cases


def _at_preset(show: Callable[[], Any], number: int) -> dict[str, Any]:
    panel = show()
    panel.presets[number].click()
    report = unescape(_TAG.sub("", panel.report.value)).splitlines()
    pictures = panel.pictures.value
    svgs = _SVG.findall(pictures)
    sentences = unescape(_TAG.sub("", _SVG.sub("", pictures)))  # where a picture cannot be drawn
    return {
        "line": panel.line.value,
        "report": report,
        "instead": sentences,
        "pictures": [_digest(svg) for svg in svgs],
    }


def _digest(svg: str) -> dict[str, Any]:
    """The texts of a picture, and of each kind of mark the number; of rectangles also the extent and the area."""
    root = ElementTree.fromstring(svg)
    texts: list[str] = []
    counts: dict[str, int] = {}
    boxes: list[tuple[float, float, float, float]] = []
    _collect(root, 0.0, 0.0, texts, counts, boxes)
    left, top, right, bottom = zip(*boxes, strict=True)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in boxes)
    return {
        "size": [root.get("width"), root.get("height")],
        "texts": sorted(texts),
        "marks": counts,
        "rectangles": [min(left), min(top), max(right), max(bottom), area, sum(left), sum(top)],
    }


def _collect(node: Any, x: float, y: float, texts: list[str], counts: dict[str, int], boxes: list[Any]) -> None:
    """Add what a node of a picture has, which is moved by x and y."""
    kind = node.tag.rpartition("}")[2]
    if kind in ("defs", "style", "script"):
        return
    moved = _TRANSLATE.search(node.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if kind in ("text", "title"):
        texts.append("".join(node.itertext()))
    if kind not in ("g", "svg"):
        counts[kind] = counts.get(kind, 0) + 1
    if kind == "rect":
        left, top = x + float(node.get("x", 0)), y + float(node.get("y", 0))
        boxes.append((left, top, left + float(node.get("width")), top + float(node.get("height"))))
    for child in node:
        _collect(child, x, y, texts, counts, boxes)
