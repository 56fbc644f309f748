"""A `Drawing`: a title, a deck and marks; laid out on a page, and written as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

import msgspec

from ..common.files import PathLike, write_whole
from ..common.words import printable
from .marks import WIDTH_PX, Box, Mark, Text
from .palette import TONES
from .svg import FONT, STYLE, mark_svg

_TITLE_LETTERS = 46  # in a line, which a phone shows 1.32 times as large
_DECK_LETTERS = 72


class Drawing(msgspec.Struct, frozen=True, eq=False):
    """A title that states a finding, a deck below it with the arithmetic, and marks below both, from y = 0 down.

    `tips` say in words what the marks of a key are.
    """

    title: str
    marks: Sequence[Mark] = ()
    height_px: float = 0.0
    deck: str = ""
    tips: Mapping[Hashable, str] = {}

    def __repr__(self) -> str:
        return "<Drawing>"  # the same on every run, as notebooks store it

    def _repr_svg_(self) -> str:
        return to_svg(self)

    def save(self, path: PathLike) -> Path:
        """Write the drawing as SVG, and return the path. Raises ValueError unless it ends in .svg."""
        if Path(path).suffix != ".svg":
            raise ValueError(f"path must end in .svg, got {str(path)!r}")
        return write_whole(path, to_svg(self).encode())


class Page(NamedTuple):
    """The texts above the marks of a drawing, where its marks begin, and how high the whole is."""

    head: list[Text]
    top_px: float
    height_px: float


def page(drawing: Drawing) -> Page:
    """Lay out the title and the deck, in as many lines as they need."""
    head = []
    y = 22.0
    for line in wrap(drawing.title, _TITLE_LETTERS):
        head.append(Text(8, y, line, "title"))
        y += 22
    for line in wrap(drawing.deck, _DECK_LETTERS):
        head.append(Text(8, y, line, "deck", "mute"))
        y += 18
    return Page(head, y + 2, y + 2 + drawing.height_px)


def _numbered(drawing: Drawing) -> Iterator[tuple[tuple[Hashable, int], Mark]]:
    """Yield the marks that have a key, with their keys and their numbers among those of the key."""
    count = Counter[Hashable]()
    for mark in drawing.marks:
        key = getattr(mark, "key", None)
        if key is not None:
            yield (key, count[key]), mark
            count[key] += 1


def _middles(drawing: Drawing) -> dict[tuple[Hashable, int], tuple[float, float]]:
    """The middle of each box that has a key, on the page."""
    top = page(drawing).top_px
    boxes = [(place, mark) for place, mark in _numbered(drawing) if isinstance(mark, Box)]
    return {place: (box.x + box.width / 2, top + box.y + box.height / 2) for place, box in boxes}


def _groups(drawing: Drawing, before: Drawing | None) -> str:
    """The marks that have a key; those with a tip are a group, which answers to the pointer. The largest are on top."""
    here = _middles(drawing)
    there = _middles(before) if before else {}
    groups: dict[Hashable, list[str]] = {}
    for place, mark in _numbered(drawing):
        svg = mark_svg(mark)
        if before and isinstance(mark, Box):
            svg = _moved(svg, here[place], there.get(place))
        groups.setdefault(place[0], []).append(svg)
    painted = ""
    for key, parts in sorted(groups.items(), key=lambda group: len(group[1])):
        inside = "".join(parts)
        if key in drawing.tips:
            inside = f'<g class="k"><title>{escape(printable(drawing.tips[key]))}</title>{inside}</g>'
        painted += inside
    return painted


def _moved(svg: str, here: tuple[float, float], there: tuple[float, float] | None) -> str:
    """Let a box come from where it was, or appear."""
    if there is None:
        return f'<g class="new">{svg}</g>'
    dx = there[0] - here[0]
    dy = there[1] - here[1]
    if abs(dx) + abs(dy) < 0.5:
        return svg
    return f'<g class="mv" style="--dx:{dx:.1f}px;--dy:{dy:.1f}px">{svg}</g>'


def to_svg(drawing: Drawing, before: Drawing | None = None, style: bool = True) -> str:
    """Return one ``<svg>``: its attributes are the light look, and its style adds the rest.

    `before` is the drawing that it replaces: boxes of the same key start where they were in it. Without `style`, the
    page must have `STYLE`.
    """
    loose = "".join(mark_svg(mark) for mark in drawing.marks if getattr(mark, "key", None) is None)
    inside = f'{loose}<g class="all">{_groups(drawing, before)}</g>'
    return frame_svg(drawing, inside, page(drawing).height_px, style)


def frame_svg(drawing: Drawing, inside: str, height_px: float, style: bool = True) -> str:
    """Return the ``<svg>`` around painted marks, with the title and the deck of their drawing."""
    head, top, _ = page(drawing)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rs" role="img" width="{WIDTH_PX:g}" height="{height_px:g}" '
        f'viewBox="0 0 {WIDTH_PX:g} {height_px:g}" style="max-width:100%;height:auto" font-family="{FONT}">'
        f"{f'<style>{STYLE}</style>' if style else ''}"
        f"<title>{escape(printable(drawing.title.replace('*', '')))}</title>"
        f"<desc>{escape(printable(drawing.deck))}</desc>"
        f'<rect width="{WIDTH_PX:g}" height="{height_px:g}" class="f-paper" fill="{TONES["paper"]}"/>'
        f"{''.join(mark_svg(text) for text in head)}"
        f'<g transform="translate(0 {top:g})">{inside}</g></svg>'
    )
