"""What is wrong with the colours of a table or a drawing: a hue with two meanings, or hues that look alike."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankscope.figures.marks import Drawing, Key
from rankscope.figures.palette import MEMORY, PAPER, TABLE, WORK, Meaning

LEAST_DISTANCE = 0.1  # of two colours, as red, green and blue from 0 to 1
# Machado, Oliveira and Fernandes (2009), severity 1
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
EYES = {"all": np.eye(3), "people with protanopia": PROTANOPIA, "people with deuteranopia": DEUTERANOPIA}
_LEAST_CHROMA = 0.08  # from the largest to the smallest of red, green and blue; less is a grey, which is no hue


def _channels(color: str) -> NDArray[np.float64]:
    return np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])


def seen(colors: Sequence[str], eye: ArrayLike) -> NDArray[np.float64]:
    """The colours as such an eye sees them."""
    linear = np.array([_channels(color) for color in colors]) ** 2.2
    return np.asarray(np.clip(linear @ np.transpose(eye), 0, 1) ** (1 / 2.2))


def closest(colors: Sequence[str], eye: ArrayLike) -> float:
    """How close two of the colours come."""
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(seen(colors, eye), 2))


def is_hue(color: str) -> bool:
    """Whether it is a colour, and neither a grey nor nearly black or white.

    >>> is_hue("#0072b2"), is_hue("#b0b0b0"), is_hue("none")
    (True, False, False)
    """
    if not re.fullmatch("#[0-9a-f]{6,8}", color):
        return False
    channels = _channels(color)
    return float(channels.max() - channels.min()) > _LEAST_CHROMA


def table_problems(table: Sequence[Meaning]) -> Iterator[str]:
    """Pairs that look alike: within a family, and between ranks and kinds of work; and words with two meanings."""
    for first, second in combinations(table, 2):
        must_differ = first.family == second.family or {first.family, second.family} == {"rank", "work"}
        for eye, matrix in EYES.items():
            if must_differ and closest([first.hue, second.hue], matrix) < LEAST_DISTANCE:
                yield f"{first.name} and {second.name} look alike to {eye}"
    for meaning in table:
        if meaning.family in ("rank", "work") and closest([meaning.hue, PAPER], np.eye(3)) < LEAST_DISTANCE:
            yield f"{meaning.name} looks like paper"
    words = [word for meaning in table for field in meaning[3:] for word in field.split()]
    for word in sorted({word for word in words if words.count(word) > 1}):
        yield f"{word} has two meanings"


def _meanings(key: Key) -> set[str]:
    """The records of the table that a label names; the label itself if there is none."""
    found = set()
    for word in re.split(r", |; ", key.label):
        name = word.replace(" ", "_")
        for meaning in TABLE:
            if name in " ".join(meaning[3:]).split() or re.fullmatch(rf"(from )?{meaning.name}", word):
                found.add(f"{meaning.family}: {meaning.name}")
    return found or {key.label}


def drawing_problems(drawing: Drawing) -> Iterator[str]:
    """Hues with two meanings: in the legend, against the table, and of ranks next to those of work."""
    meanings_of: dict[str, set[str]] = defaultdict(set)
    shown = [(key.fill, _meanings(key)) for key in drawing.legend if key.line != "none" and is_hue(key.fill)]
    for hue, meanings in shown:
        meanings_of[hue] |= meanings
    for hue, meanings in meanings_of.items():
        records = {name for name in meanings if ":" in name}
        if len(records) > 1 or (records and len(meanings) > 1):
            yield f"{hue} means {' and '.join(sorted(meanings))}"
    for key in drawing.legend:
        for word in re.split(r", |; ", key.label):
            look = WORK.get(word, MEMORY.get(word.replace(" ", "_")))
            if look is not None and key.fill != look.hue:
                yield f"{word} is {key.fill} here, and {look.hue} in the table"
    used = {fill for rects in drawing.rects for fill in rects.fill if is_hue(fill)}
    used |= {color for lines in drawing.lines for color in lines.color if is_hue(color)}
    families = {meaning.family for meaning in TABLE if meaning.hue in used and is_hue(meaning.hue)}
    exclusive = {meaning.hue for meaning in TABLE if meaning.family == "rank"}
    if used & exclusive and families & {"work"}:
        both = used & {meaning.hue for meaning in TABLE if meaning.family == "work"}
        messages = {WORK["reduce"].hue, WORK["recv"].hue}  # what arrows do with what ranks have
        if both - messages:
            yield f"ranks and work in one drawing: {sorted(both)}"


def entries_problem(labels: Sequence[str], most: int = 6) -> Iterator[str]:
    """A legend that nobody reads."""
    if len(labels) > most:
        yield f"{len(labels)} entries in the legend, of at most {most}: {', '.join(labels)}"
