"""How narrow a figure may be shown: as long as its smallest text is 8 px high. On a phone it scrolls from there on."""

from __future__ import annotations

import math
import re
from pathlib import Path
from urllib.parse import unquote

from rankscope.figures.svg import LEAST_TEXT_PX, LEAST_WIDTH

_SIZE = re.compile(r"""font-size=["']([\d.]+)""")
_BOX = re.compile(r"""<svg[^>]*?viewBox=["']([-\d.]+) ([-\d.]+) ([\d.]+) ([\d.]+)["']""")
_IMAGE = re.compile(r"""<img\b(?![^>]*\bstyle=)[^>]*?\bsrc="([^":?]+\.svg)"[^>]*?(?=/?>)""")


def smallest_text(svg: str) -> float | None:
    """Return the size of the smallest text of a figure, as a share of its width; None if it has no text.

    >>> smallest_text('<svg viewBox="0 0 200 50" font-size="12"><text font-size="10">small</text></svg>')
    0.05
    """
    box = _BOX.search(svg)
    sizes = [float(size) for size in _SIZE.findall(svg)]
    if box is None or not sizes or "<text" not in svg:
        return None
    return min(sizes) / float(box[3])


def least_width_px(svg: str) -> int | None:
    """Return the width at which the smallest text of a figure is 8 px high.

    >>> least_width_px('<svg viewBox="0 0 200 50" font-size="10"><text>small</text></svg>')
    160
    """
    share = smallest_text(svg)
    return None if share is None else math.ceil(LEAST_TEXT_PX / share)


def with_least_widths(html: str, folder: Path) -> str:
    """Return a page of this folder in which each SVG that is loaded as an image says how narrow it may become."""

    def changed(image: re.Match[str]) -> str:
        path = folder / unquote(image[1])
        width_px = least_width_px(path.read_text(encoding="utf-8")) if path.exists() else None
        if width_px is None:
            return image[0]
        return f'{image[0].rstrip()} style="{LEAST_WIDTH}:{width_px}px" '

    return _IMAGE.sub(changed, html)
