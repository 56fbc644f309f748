"""How far colours are apart for all eyes, and hues with two meanings in a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankscope.drawing.drawing import Drawing
from rankscope.drawing.marks import Box, Text
from rankscope.drawing.palette import MEMORY, PAPER, RANKS, WORK, mixed
from rankscope.drawing.svg import OPACITY

# Machado, Oliveira and Fernandes (2009), severity 1
EYES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# OKLab (Ottosson, 2020): to cones, and from their cube roots
_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


LEGIBLE = 4.5  # the contrast that WCAG 2 asks of text


def _light(color: str) -> NDArray[np.float64]:
    """The light of each channel of sRGB, from 0 to 1."""
    channels = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.asarray(np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4))


def contrast(color: str, other: str) -> float:
    """The WCAG 2 contrast ratio of two colours, from 1 to 21."""
    darker, lighter = sorted(float(_light(each) @ (0.2126, 0.7152, 0.0722)) for each in (color, other))
    return (lighter + 0.05) / (darker + 0.05)


def _lab(color: str, eye: ArrayLike) -> NDArray[np.float64]:
    seen = np.clip(np.asarray(eye) @ _light(color), 0, 1)
    return np.asarray(np.array(_LAB) @ np.cbrt(np.array(_CONES) @ seen))


def nearest(colors: Sequence[str], eye: ArrayLike) -> float:
    """100 ΔE in OKLab of the two colours that are nearest to such an eye."""
    labs = [_lab(color, eye) for color in colors]
    return min(100 * float(np.linalg.norm(one - other)) for one, other in combinations(labs, 2))


def painted(hue: str, look: str, paper: str = PAPER, opacity: float | None = None) -> str:
    """The colour of a fill over the paper."""
    return mixed(hue, paper, OPACITY[look] if opacity is None else opacity)


def keys_of(drawing: Drawing) -> dict[str, Box]:
    """The boxes of a drawing's keys, by the words that stand behind each."""
    behind = {(text.x, text.y): text.text for text in drawing.marks if isinstance(text, Text)}
    squares = [box for box in drawing.marks if isinstance(box, Box) and box.width == box.height == 12]
    return {
        behind[box.x + 18, box.y + 10].replace("_", " "): box for box in squares if (box.x + 18, box.y + 10) in behind
    }


def drawing_problems(drawing: Drawing) -> Iterator[str]:
    """Hues with two meanings: in the keys, against the table, and of ranks next to those of work."""
    keys = keys_of(drawing)
    looks = {name.replace("_", " "): look for name, look in {**MEMORY, **WORK}.items()}
    for one, other in combinations(keys, 2):
        are_alike = keys[one].fill == keys[other].fill and keys[one].hatched == keys[other].hatched
        if are_alike and not {one, other} <= looks.keys():
            yield f"{one} and {other} look alike"
    for label, box in keys.items():
        look = looks.get(label)
        if look is not None and box.fill != look.hue:
            yield f"{label} is {box.fill} here, and {look.hue} in the table"
    fills = {mark.fill for mark in drawing.marks if isinstance(mark, Box)}
    if fills & set(RANKS) and fills & {look.hue for look in WORK.values()}:
        yield "ranks and work in one drawing"
