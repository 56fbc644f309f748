"""A drawing of what NCCL chooses by size, machine by machine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import groupby

from ...common.units import bytes_words
from ...figures.marks import LEFT_PX, LETTER_PX, RIGHT_PX, Box, Drawing, Mark, axis, row_name
from ...figures.palette import PROTOCOLS
from ..nccl import Model

_SIZES = tuple(1 << power for power in range(10, 31))
_TICK_EVERY = 5  # sizes
_ROW_PX = 28.0
_NAMES = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}  # of protocols


def pair_words(algorithm: str, protocol: str) -> str:
    """Return the name of an algorithm with a protocol; NVLS has only one.

    >>> pair_words("ring", "ll128"), pair_words("nvls_tree", "simple")
    ('ring LL128', 'NVLS tree')
    """
    if algorithm.startswith("nvls"):
        return algorithm.replace("nvls", "NVLS").replace("_", " ")
    return f"{algorithm} {_NAMES[protocol]}"


def draw_nccl_choices(models: Mapping[str, Model], collective: str = "allreduce", title: str | None = None) -> Drawing:
    """Draw NCCL's choice of algorithm and protocol from 1 KiB to 1 GiB, with one row per model, by name.

    Colours are protocols, or NVLS; trees are hatched. Bands that are wide enough contain their name, and all have it as
    a tip. Raises ValueError if NCCL's model does not have the collective.
    """
    left = max([LEFT_PX, *[1.32 * LETTER_PX * len(name) + 16 for name in models]])
    column_px = (RIGHT_PX - left) / len(_SIZES)
    marks: list[Mark] = []
    tips: dict[Hashable, str] = {}
    for row, (name, model) in enumerate(models.items()):
        y = row * _ROW_PX
        marks.append(row_name(y + 16, name)._replace(x=left - 12))
        choices = [model.choose(collective, size) for size in _SIZES]
        column = 0
        for (algorithm, protocol), run in groupby(choices, lambda choice: choice[:2]):
            words = pair_words(algorithm, protocol)
            length = len(list(run))
            x = left + column * column_px
            width = length * column_px - 2
            text = words if width >= LETTER_PX * len(words) + 4 else ""
            hue = PROTOCOLS.get(words[:4], PROTOCOLS[_NAMES[protocol]])  # NVLS has a hue of its own
            marks.append(Box(x, y, width, _ROW_PX - 5, hue, "tint", algorithm == "tree", text, key=(row, column)))
            last = column + length - 1
            tips[row, column] = f"{name}: {words} from {bytes_words(_SIZES[column])} to {bytes_words(_SIZES[last])}"
            column += length
    bottom = len(models) * _ROW_PX
    ticks = [
        (left + (column + 0.5) * column_px, bytes_words(_SIZES[column]))
        for column in range(0, len(_SIZES), _TICK_EVERY)
    ]
    marks += axis(bottom, ticks, left)
    deck = "by the size of each rank's buffer; trees are hatched"
    return Drawing(title or f"NCCL's choice for {collective}, by size", marks, bottom + 24, deck, tips)
