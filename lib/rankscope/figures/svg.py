"""Paints a Drawing as an SVG string: the same drawing gives the same string, in a millisecond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from html import escape
from itertools import repeat
from typing import Any

import numpy as np

from ..common.storage import PathLike, write_atomically
from .marks import Drawing, FloatArray, Key, Lines, Rects, Texts
from .palette import FAINT, INK, PAPER, hatch_on

_TOP, _RIGHT, _BOTTOM = 34, 14, 44
_KEY_HEIGHT, _HEAD_PX = 22, 9.0
_FONT = 'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11"'
_HATCHES = {INK: "rankscope-hatch-dark", PAPER: "rankscope-hatch-white"}
_DEFS = "".join(
    f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="2" height="6" fill="{ink}" fill-opacity="0.7"/></pattern>'
    for ink, name in _HATCHES.items()
)


def to_svg(drawing: Drawing, *, shrinks: bool = True) -> str:
    """Return the drawing as one ``<svg class="rankscope">`` element, with title, axes and legend.

    It `shrinks` where the page around it is narrower, by a style of its own. A page that sets the size of its drawings,
    and forbids elements a style of their own, does without.
    """
    style = ' style="max-width:100%;height:auto"' if shrinks else ""
    wide, high = drawing.size_px
    keys, key_rows = _legend(drawing.legend, max(wide, 8.6 * len(drawing.title)))
    left = max(76.0, 30 + 6.6 * max((len(label) for _, label in drawing.y_ticks), default=0))
    width = max(wide, 8.6 * len(drawing.title)) + left + _RIGHT
    height = high + _TOP + _BOTTOM + key_rows * _KEY_HEIGHT
    parts = [
        f'<svg class="rankscope" xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}"{style} {_FONT} fill="{INK}">'
        f"<title>{escape(drawing.title)}</title><defs>{_DEFS}</defs>"
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{PAPER}"/>'
        f'<text x="{left:g}" y="20" font-size="14" font-weight="bold">{escape(drawing.title)}</text>'
        f'<g class="marks" transform="translate({left:g} {_TOP})">{marks(drawing)}</g>'
    ]
    across, down = wide / drawing.width, high / drawing.height
    parts.append(_axes(drawing, across, down, left))
    parts.append(f'<g class="legend" transform="translate({left:g} {_TOP + high + _BOTTOM - 2:g})">{keys}</g></svg>')
    return "".join(parts)


def save_svg(drawing: Drawing, path: PathLike) -> None:
    """Write the drawing as an SVG, whole or not at all."""
    svg = f"{to_svg(drawing)}\n".encode()
    write_atomically(path, lambda file: file.write(svg))


def marks(drawing: Drawing) -> str:
    """Return the drawing's rectangles, rules, lines and texts, in pixels from the corner of the area that they fill."""
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height
    parts = [_rects(rects, across, down) for rects in drawing.rects]
    if drawing.rules:
        bottom = (drawing.height if drawing.rules_to is None else drawing.rules_to) * down
        lines = "".join(f"M{x * across:.6g} 0V{bottom:g}" for x in drawing.rules)
        for color, width_px in ((PAPER, 4), (INK, 2)):  # a light edge, so that they show on dark cells too
            parts.append(f'<path d="{lines}" stroke="{color}" stroke-width="{width_px}"/>')
    parts += [_lines(lines, across, down) for lines in drawing.lines]
    parts += [_texts(texts, across, down) for texts in drawing.texts]
    return "".join(parts)


def _each(template: str, *columns: Iterable[Any]) -> str:
    """The template filled in for each row of the columns."""
    plain = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns)
    return "".join(map(template.format, *plain))


def _joined(looks: Iterable[str], template: str, *columns: FloatArray) -> str:
    """One path for all shapes of a look."""
    paths = defaultdict[str, list[str]](list)
    for look, *row in zip(looks, *(column.tolist() for column in columns), strict=True):
        paths[look].append(template.format(*row))
    return "".join(f'<path d="{"".join(found)}" {look}/>' for look, found in paths.items())


def _rects(rects: Rects, across: float, down: float) -> str:
    x, y, wide, high = rects.x * across, rects.y * down, rects.width * across, rects.height * down
    narrow = wide < 4  # an outline would hide these
    outline = 0 if narrow.all() else 1
    bare = np.where(narrow, ' stroke-width="0"' if outline else "", "")
    if rects.joined:
        looks = map('fill="{}"{}'.format, rects.fill, bare.tolist())
        body = _joined(looks, "M{:.5g} {:.5g}h{:.5g}v{:.5g}h-{:.5g}z", x, y, wide, high, wide)
    else:
        box = '<rect x="{:.6g}" y="{:.6g}" width="{:.6g}" height="{:.6g}"{}'
        body = _each(f'{box} fill="{{}}"/>', x, y, wide, high, bare, rects.fill)
        marked = np.flatnonzero(rects.hatched)
        inks = [hatch_on(rects.fill[place]) for place in marked.tolist()]
        shown = (column[marked] for column in (x, y, wide, high, bare))
        body += _each(f'{box} fill="url(#{{}})" stroke="{{}}"/>', *shown, map(_HATCHES.__getitem__, inks), inks)
    return f'<g stroke="{rects.edge}" stroke-width="{outline}">{body}</g>'


def _lines(lines: Lines, across: float, down: float) -> str:
    x0, y0, x1, y1 = lines.x0 * across, lines.y0 * down, lines.x1 * across, lines.y1 * down
    length = np.maximum(np.hypot(x1 - x0, y1 - y0), 1e-9)
    ex, ey = (x1 - x0) / length, (y1 - y0) / length
    head = _HEAD_PX if lines.arrows else 0.0  # the line ends where its head begins, lest it blunt the point
    bx, by, half = x1 - head * ex, y1 - head * ey, head * 0.45
    dashes = np.where(lines.dashed, ' stroke-dasharray="5 4"', "")
    if lines.joined:
        looks = map('fill="none" stroke="{}"{}'.format, lines.color, dashes.tolist())
        body = _joined(looks, "M{:.5g} {:.5g}L{:.5g} {:.5g}", x0, y0, bx, by)
    else:
        line = '<line x1="{:.6g}" y1="{:.6g}" x2="{:.6g}" y2="{:.6g}" stroke="{}"{}/>'
        body = _each(line, x0, y0, bx, by, lines.color, dashes)
    if lines.arrows:
        corners = x1, y1, bx - half * ey, by + half * ex, bx + half * ey, by - half * ex
        point = '<path d="M{:.6g} {:.6g}L{:.6g} {:.6g}L{:.6g} {:.6g}Z" fill="{}"/>'
        body += _each(point, *corners, lines.color)
    return f'<g class="lines" stroke-width="{lines.width_px:g}">{body}</g>'


def _texts(texts: Texts, across: float, down: float) -> str:
    halos = map(' stroke="{}"'.format, texts.halo) if texts.halo else repeat("")
    text = '<text x="{:.6g}" y="{:.6g}" fill="{}"{}>{}</text>'
    body = _each(text, texts.x * across, texts.y * down, texts.color, halos, map(escape, texts.text))
    around = ' stroke-width="4" paint-order="stroke"' if texts.halo else ""
    return (
        f'<g text-anchor="{texts.anchor}" dominant-baseline="central" font-size="{texts.size_px:g}"{around}>{body}</g>'
    )


def _axes(drawing: Drawing, across: float, down: float, left: float) -> str:
    wide, high = drawing.size_px
    below = "".join(
        f'<text x="{x * across:.6g}" y="{high + 14:g}" text-anchor="middle">{escape(label)}</text>'
        for x, label in drawing.x_ticks
    )
    at_left = "".join(
        f'<text x="-6" y="{y * down:.6g}" text-anchor="end" dominant-baseline="central">{escape(label)}</text>'
        for y, label in drawing.y_ticks
    )
    middle = max(wide / 2, 3.6 * len(drawing.x_label) - left)  # under a narrow picture it begins at the edge
    return (
        f'<g class="axes" transform="translate({left:g} {_TOP})">{below}{at_left}'
        f'<text x="{middle:g}" y="{high + 31:g}" text-anchor="middle" font-size="12">{escape(drawing.x_label)}</text>'
        f'<text transform="translate({14 - left:g} {high / 2:g}) rotate(-90)" text-anchor="middle" font-size="12">'
        f"{escape(drawing.y_label)}</text></g>"
    )


def _legend(keys: tuple[Key, ...], wide: float) -> tuple[str, int]:
    """Lay the keys out in rows no wider than the drawing; return them and the number of rows."""
    parts, x, row = [], 0.0, 0
    for key in keys:
        mark = 0 if key.line == "none" else 20
        needed = 12 + mark + 6.6 * len(key.label)
        if x and x + needed > wide:
            x, row = 0.0, row + 1
        y = row * _KEY_HEIGHT
        edge = key.edge if key.edge != PAPER else FAINT
        box = f'x="{x:.6g}" y="{y}" width="14" height="14"'
        if key.line in ("solid", "dashed"):
            dash = ' stroke-dasharray="4 3"' if key.line == "dashed" else ""
            parts.append(f'<path d="M{x - 3:.6g} {y + 7}h18" stroke="{key.fill}" stroke-width="2"{dash}/>')
        elif mark:
            parts.append(f'<rect {box} fill="{key.fill}" stroke="{edge}"/>')
        if key.hatched:
            parts.append(f'<rect {box} fill="url(#{_HATCHES[hatch_on(key.fill)]})" stroke="{edge}"/>')
        parts.append(f'<text x="{x + mark:.6g}" y="{y + 7}" dominant-baseline="central">{escape(key.label)}</text>')
        x += needed
    return "".join(parts), row + 1 if keys else 0
