"""Paints a Drawing as an SVG string: the same drawing gives the same string, in a millisecond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from itertools import repeat
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from ..common.files import PathLike, write_whole
from .marks import NARROW_PX, Drawing, FloatArray, Key, Lines, Rects, Texts
from .palette import FAINT, INK, PAPER, hatch_on

_TOP_PX = 34  # around the area of the marks: a title of one line above, and the axis below
_TITLE_LINE_PX = 18  # the height of each further line of the title
_RIGHT_PX = 14
_BOTTOM_PX = 44  # below the area of the marks, with the axis
_LEGEND_DOWN_PX = 42  # from the area of the marks down to the legend, which is below the axis
_LEFT_PX = 76.0  # at least, with the axis
_AXIS_LABEL_PX = 30  # the part of it for the label of the axis, left of the ticks
_KEY_PX = 22  # the height of a row of the legend
_EDGE_PX = 14.0  # where a title of several lines begins
_LEAST_TITLE_PX = 420.0  # the width of a title of several lines over a narrow drawing, at most
_Y_LABEL_PX = 14  # from the left edge of the picture to the baseline of the label of the vertical axis
_LETTER_PX = 6.6  # the width of a letter, about
_TITLE_LETTER_PX = 8.6
_TITLE_BASELINE_PX = 20  # of its first line
_KEY_BOX_PX = 14  # the side of the box of a key
_KEY_LINE_PX = 18  # the length of the line of a key: three dashes of 4 and two gaps of 3
_KEY_MARK_PX = 20  # the box, and a gap up to the label
_KEY_GAP_PX = 12  # from the label to the next key
_TICKS_DOWN_PX = 14  # from the marks down to the baseline of the ticks
_X_LABEL_DOWN_PX = 31  # and to that of the axis' label
_ARROW_PX = 9.0  # the length of an arrow's head
_FONT = 'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11"'
_HATCHES = {INK: "rankscope-hatch-dark", PAPER: "rankscope-hatch-white"}
_DEFS = "".join(
    f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="2" height="6" fill="{ink}" fill-opacity="0.7"/></pattern>'
    for ink, name in _HATCHES.items()
)


def to_svg(drawing: Drawing, *, shrinks: bool = True) -> str:
    """Return the drawing as one ``<svg class="rankscope">`` element, with title, axes and legend.

    It `shrinks`, by a style of its own, if the page around it is narrower. Pass False for a page that sets the size of
    its drawings, and forbids elements a style of their own.
    """
    marks_width, marks_height = drawing.size_px
    longest_tick = max((len(label) for _, label in drawing.y_ticks), default=0)
    left = max(_LEFT_PX, _AXIS_LABEL_PX + _LETTER_PX * longest_tick)
    title = _title(drawing, left)
    longest_key = max((_key_width(key) for key in drawing.legend), default=0.0)
    inner_width = max(marks_width, title.width - left, longest_key)
    legend = _legend(drawing.legend, inner_width)
    width = inner_width + left + _RIGHT_PX
    top = _TOP_PX + title.height
    height = marks_height + top + _BOTTOM_PX + legend.num_rows * _KEY_PX
    legend_top = top + marks_height + _LEGEND_DOWN_PX
    style = ""
    if shrinks:
        style = ' style="max-width:100%;height:auto"'
    return (
        f'<svg class="rankscope" xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}"{style} {_FONT} fill="{INK}">'
        f"<title>{escape(drawing.title)}</title><defs>{_DEFS}</defs>"
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{PAPER}"/>'
        f"{title.svg}"
        f'<g class="marks" transform="translate({left:g} {top})">{marks(drawing)}</g>'
        f"{_axes(drawing, left, top)}"
        f'<g class="legend" transform="translate({left:g} {legend_top:g})">{legend.svg}</g></svg>'
    )


class _Title(NamedTuple):
    svg: str
    width: float  # from the left edge of the picture to the end of its longest line
    height: int  # of its lines after the first


def _title(drawing: Drawing, left: float) -> _Title:
    """Break the title into lines that are no wider than the drawing, or than `_LEAST_TITLE_PX` if that is narrow.

    A title of several lines begins at the left edge of the whole picture.
    """
    marks_width, _ = drawing.size_px
    words = drawing.title
    if _TITLE_LETTER_PX * len(words) <= marks_width:
        # Width 0, because a line that is no wider than the marks cannot widen the picture.
        return _Title(_title_line(words, left, 0), width=0.0, height=0)
    room_px = max(marks_width + left - _EDGE_PX, _LEAST_TITLE_PX)
    lines = wrap(words, int(room_px / _TITLE_LETTER_PX)) or [""]  # blanks alone are wrapped into no line
    parts = [_title_line(line, _EDGE_PX, number) for number, line in enumerate(lines)]
    longest = max(map(len, lines))
    return _Title("".join(parts), _EDGE_PX + _TITLE_LETTER_PX * longest, (len(lines) - 1) * _TITLE_LINE_PX)


def _title_line(words: str, x: float, number: int) -> str:
    y = _TITLE_BASELINE_PX + number * _TITLE_LINE_PX
    return f'<text x="{x:g}" y="{y}" font-size="14" font-weight="bold">{escape(words)}</text>'


def save_svg(drawing: Drawing, path: PathLike) -> None:
    """Write the drawing as an SVG, atomically."""
    write_whole(path, f"{to_svg(drawing)}\n".encode())


def marks(drawing: Drawing) -> str:
    """Return the drawing's rectangles, rules, lines and texts, in pixels from the corner of the area that they fill."""
    across, down = _px_per_unit(drawing)
    parts = [_rects(rects, across, down) for rects in drawing.rects]
    if drawing.rules:
        parts.append(_rules(drawing))
    parts += [_lines(lines, across, down) for lines in drawing.lines]
    parts += [_texts(texts, across, down) for texts in drawing.texts]
    return "".join(parts)


def _px_per_unit(drawing: Drawing) -> tuple[float, float]:
    """The pixels of a unit of the drawing, across and down."""
    return drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height


def _rules(drawing: Drawing) -> str:
    across, down = _px_per_unit(drawing)
    bottom = drawing.height if drawing.rules_to is None else drawing.rules_to
    lines = "".join(f"M{x * across:.6g} 0V{bottom * down:g}" for x in drawing.rules)
    light_edge = f'<path d="{lines}" stroke="{PAPER}" stroke-width="4"/>'  # so that rules show on dark cells too
    return f'{light_edge}<path d="{lines}" stroke="{INK}" stroke-width="2"/>'


def _each(template: str, *columns: Iterable[Any]) -> str:
    """Fill the template in for each row of the columns."""
    # Python formats its own numbers faster than those of numpy.
    lists = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns)
    return "".join(map(template.format, *lists))


def _joined(attributes: Iterable[str], template: str, *columns: FloatArray) -> str:
    """Return one path for all shapes with the same attributes; a shape is the template with a row of the columns."""
    shapes_of = defaultdict[str, list[str]](list)
    for attributes_of_row, *row in zip(attributes, *(column.tolist() for column in columns), strict=True):
        shapes_of[attributes_of_row].append(template.format(*row))
    return "".join(f'<path d="{"".join(shapes)}" {attributes}/>' for attributes, shapes in shapes_of.items())


_RECT = '<rect x="{:.6g}" y="{:.6g}" width="{:.6g}" height="{:.6g}"{}'  # the last one: an attribute for the outline


def _rects(rects: Rects, across: float, down: float) -> str:
    """Return a group of all rectangles; hatched ones are there twice, first plain and then filled with the pattern."""
    x = rects.x * across
    y = rects.y * down
    width = rects.width * across
    height = rects.height * down
    is_narrow = width < NARROW_PX
    # The group states the outline of its rectangles. Narrow ones have none, and say so unless all are narrow.
    group_outline = 0 if is_narrow.all() else 1
    without_outline = ' stroke-width="0"' if group_outline else ""
    narrow = np.where(is_narrow, without_outline, "")  # an attribute, or nothing, for each rectangle
    if rects.joined:  # only the player joins rectangles, and hatches none of them
        attributes = map('fill="{}"{}'.format, rects.fill, narrow.tolist())
        body = _joined(attributes, "M{:.5g} {:.5g}h{:.5g}v{:.5g}h-{:.5g}z", x, y, width, height, width)
    else:
        body = _each(f'{_RECT} fill="{{}}"/>', x, y, width, height, narrow, rects.fill)
        hatched = np.flatnonzero(rects.hatched)
        inks = [hatch_on(rects.fill[index]) for index in hatched.tolist()]
        patterns = [_HATCHES[ink] for ink in inks]
        columns = [column[hatched] for column in (x, y, width, height, narrow)]
        body += _each(f'{_RECT} fill="url(#{{}})" stroke="{{}}"/>', *columns, patterns, inks)
    return f'<g stroke="{rects.edge}" stroke-width="{group_outline}">{body}</g>'


def _lines(lines: Lines, across: float, down: float) -> str:
    """Return a group of all lines, with the heads of arrows."""
    x0 = lines.x0 * across
    y0 = lines.y0 * down
    x1 = lines.x1 * across
    y1 = lines.y1 * down
    length = np.maximum(np.hypot(x1 - x0, y1 - y0), 1e-9)  # not 0, by which one cannot divide
    unit_x = (x1 - x0) / length
    unit_y = (y1 - y0) / length
    # The line ends at the neck of its arrow head: if it ended at the point, it would make that blunt.
    head_px = _ARROW_PX if lines.arrows else 0.0
    neck_x = x1 - head_px * unit_x
    neck_y = y1 - head_px * unit_y
    dashes = np.where(lines.dashed, ' stroke-dasharray="5 4"', "")
    if lines.joined:
        attributes = map('fill="none" stroke="{}"{}'.format, lines.color, dashes.tolist())
        body = _joined(attributes, "M{:.5g} {:.5g}L{:.5g} {:.5g}", x0, y0, neck_x, neck_y)
    else:
        line = '<line x1="{:.6g}" y1="{:.6g}" x2="{:.6g}" y2="{:.6g}" stroke="{}"{}/>'
        body = _each(line, x0, y0, neck_x, neck_y, lines.color, dashes)
    if lines.arrows:
        half_px = head_px * 0.45  # of the head's width
        right_x = neck_x - half_px * unit_y
        right_y = neck_y + half_px * unit_x
        left_x = neck_x + half_px * unit_y
        left_y = neck_y - half_px * unit_x
        triangle = '<path d="M{:.6g} {:.6g}L{:.6g} {:.6g}L{:.6g} {:.6g}Z" fill="{}"/>'
        body += _each(triangle, x1, y1, right_x, right_y, left_x, left_y, lines.color)
    return f'<g class="lines" stroke-width="{lines.width_px:g}">{body}</g>'


def _texts(texts: Texts, across: float, down: float) -> str:
    """Return a group of all texts, with halos below the letters."""
    halos: Iterable[str] = repeat("")
    halo_style = ""
    if texts.halo:
        halos = map(' stroke="{}"'.format, texts.halo)
        halo_style = ' stroke-width="4" paint-order="stroke"'
    text = '<text x="{:.6g}" y="{:.6g}" fill="{}"{}>{}</text>'
    body = _each(text, texts.x * across, texts.y * down, texts.color, halos, map(escape, texts.text))
    style = f'text-anchor="{texts.anchor}" dominant-baseline="central" font-size="{texts.size_px:g}"{halo_style}'
    return f"<g {style}>{body}</g>"


def _axes(drawing: Drawing, left: float, top: int) -> str:
    """Return the labels and ticks of both axes, around the area of the marks whose corner is at `left` and `top`."""
    across, down = _px_per_unit(drawing)
    _, height = drawing.size_px
    x_ticks = "".join(
        f'<text x="{x * across:.6g}" y="{height + _TICKS_DOWN_PX:g}" text-anchor="middle">{escape(label)}</text>'
        for x, label in drawing.x_ticks
    )
    y_ticks = "".join(
        f'<text x="-6" y="{y * down:.6g}" text-anchor="end" dominant-baseline="central">{escape(label)}</text>'
        for y, label in drawing.y_ticks
    )
    half_label_px = 3.6 * len(drawing.x_label)  # a letter is `_LETTER_PX` wide at size 11, so 7.2 at the label's 12
    middle = max(drawing.x_middle * across, half_label_px - left)  # under a narrow picture the label begins at the edge
    label_style = 'text-anchor="middle" font-size="12"'
    label_y = height + _X_LABEL_DOWN_PX
    x_label = f'<text x="{middle:g}" y="{label_y:g}" {label_style}>{escape(drawing.x_label)}</text>'
    label_x = _Y_LABEL_PX - left  # from the edge of the picture, while x counts from the edge of the marks
    y_label = (
        f'<text transform="translate({label_x:g} {height / 2:g}) rotate(-90)" {label_style}>'
        f"{escape(drawing.y_label)}</text>"
    )
    return f'<g class="axes" transform="translate({left:g} {top})">{x_ticks}{y_ticks}{x_label}{y_label}</g>'


class _Legend(NamedTuple):
    svg: str
    num_rows: int


def _legend(keys: Sequence[Key], width: float) -> _Legend:
    """Lay the keys out in rows no wider than the drawing."""
    if not keys:
        return _Legend("", 0)
    parts = []
    x = 0.0
    row = 0
    for key in keys:
        key_px = _key_width(key)
        is_first_in_row = x == 0
        if not is_first_in_row and x + key_px > width:
            x = 0.0
            row += 1
        y = row * _KEY_PX
        parts.append(_key_mark(key, x, y))
        label_x = x + _mark_width(key)
        label_y = y + _KEY_BOX_PX // 2  # the middle of the box
        parts.append(f'<text x="{label_x:.6g}" y="{label_y}" dominant-baseline="central">{escape(key.label)}</text>')
        x += key_px
    return _Legend("".join(parts), row + 1)


def _key_width(key: Key) -> float:
    """The width of an entry of the legend, with its mark and the room after it."""
    return _KEY_GAP_PX + _mark_width(key) + _LETTER_PX * len(key.label)


def _mark_width(key: Key) -> int:
    """The width of the mark in front of a key's label, with the gap between them."""
    return 0 if key.line == "none" else _KEY_MARK_PX


def _key_mark(key: Key, x: float, y: int) -> str:
    """The piece of a line, or the box, in front of a key's label."""
    edge = key.edge if key.edge != PAPER else FAINT  # the legend's own ground is `PAPER`
    box = f'x="{x:.6g}" y="{y}" width="{_KEY_BOX_PX}" height="{_KEY_BOX_PX}"'
    mark = ""
    if key.line in ("solid", "dashed"):
        dash = ' stroke-dasharray="4 3"' if key.line == "dashed" else ""
        middle_y = y + _KEY_BOX_PX // 2
        # In the middle of the place of a box, but a pixel farther from the label.
        start_x = x + (_KEY_BOX_PX - _KEY_LINE_PX) / 2 - 1
        mark = f'<path d="M{start_x:.6g} {middle_y}h{_KEY_LINE_PX}" stroke="{key.fill}" stroke-width="2"{dash}/>'
    elif key.line != "none":
        mark = f'<rect {box} fill="{key.fill}" stroke="{edge}"/>'
    if key.hatched:
        pattern = _HATCHES[hatch_on(key.fill)]
        mark += f'<rect {box} fill="url(#{pattern})" stroke="{edge}"/>'
    return mark
