"""One colour-blind-safe palette for the whole collection.

Up to eight ranks take the eight colours of Okabe and Ito (2008); more ranks, and quantities, take a ramp of even
lightness from dark blue to pale yellow, after cividis (Nunez, Anderton and Renslow, 2018).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000")
INK, PAPER, FAINT, ALARM = "#222222", "#ffffff", "#c9c9c9", "#b00020"

_RAMP = ("#00224e", "#2d426f", "#5a6272", "#8a8678", "#bead65", "#fee838")


def ramp(fractions: ArrayLike) -> tuple[str, ...]:
    """Return a colour for each number in [0, 1].

    >>> ramp([0, 1])
    ('#00224e', '#fee838')
    """
    steps = np.clip(np.asarray(fractions, dtype=float), 0, 1) * 255
    table = _ramp_table()
    return tuple(table[step] for step in np.rint(steps).astype(int).ravel().tolist())


@lru_cache(maxsize=1)
def _ramp_table() -> tuple[str, ...]:
    anchors = np.array([_channels(color) for color in _RAMP])
    places = np.linspace(0, len(_RAMP) - 1, 256)
    mixed = [np.rint(np.interp(places, range(len(_RAMP)), channel)).astype(int).tolist() for channel in anchors.T]
    return tuple(f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in zip(*mixed, strict=True))


def rank_colors(num_ranks: int) -> tuple[str, ...]:
    """Return a colour for each rank: distinct hues up to eight, shades of the ramp beyond.

    >>> rank_colors(2)
    ('#0072b2', '#e69f00')
    """
    if num_ranks <= len(CATEGORIES):
        return CATEGORIES[:num_ranks]
    return ramp(np.linspace(0, 1, num_ranks))


@lru_cache(maxsize=1024)
def ink_on(fill: str) -> str:
    """Return the text colour, dark or white, that stands out more from `fill` (WCAG contrast).

    >>> ink_on("#f0e442"), ink_on("#00224e")
    ('#222222', '#ffffff')
    """
    return max((INK, PAPER), key=lambda ink: contrast(ink, fill))


def contrast(one: str, other: str) -> float:
    """Return the WCAG 2 contrast ratio of two colours, from 1 to 21.

    >>> round(contrast("#000000", "#ffffff"))
    21
    """
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    shares = (channel / 255 for channel in _channels(color))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
