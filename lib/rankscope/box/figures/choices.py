"""A drawing of what NCCL chooses by size, box by box, and the colours of its protocols."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ...common.checks import of_type
from ...common.units import bytes_words
from ...figures.palette import PAPER, PROTOCOLS, mixed
from ...figures.plots import Key, Plot, Rects, Texts
from ..nccl import Model

PROTOCOL_NAMES = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
PROTOCOL_COLORS = {protocol: PROTOCOLS[name] for protocol, name in PROTOCOL_NAMES.items()}
NVLS_COLOR = PROTOCOLS["NVLS"]
MEASURED_COLOR = PROTOCOLS["measured"]
_SIZES = tuple(1 << power for power in range(10, 31))
_TICK_EVERY = 5  # sizes
_COLUMN_PX = 31.0
_ROW_PX = 30.0
_LETTER_PX = 6.9
_NAME_MARGIN_PX = 8  # of a name in its band, on both sides together
# Parts of a row: a gap separates the bands of two models.
_BAND_TOP = 0.08
_BAND_HEIGHT = 0.84


def color_of(algorithm: str, protocol: str) -> str:
    """Return the colour of a protocol, or that of NVLS, which has only one."""
    if algorithm.startswith("nvls"):
        return NVLS_COLOR
    return PROTOCOL_COLORS[protocol]


def _pale(color: str) -> str:
    return mixed(color, PAPER, 0.5)


class _Band(NamedTuple):
    """Adjacent sizes at which a box makes the same choice."""

    row: int
    column: int  # of the smallest size
    length: int  # in columns
    algorithm: str
    protocol: str

    @property
    def words(self) -> str:
        if self.algorithm.startswith("nvls"):
            return self.algorithm.upper().replace("_TREE", " tree")
        return f"{self.algorithm} {PROTOCOL_NAMES[self.protocol]}"


def draw_nccl_choices(models: Mapping[str, Model], collective: str = "allreduce", title: str | None = None) -> Plot:
    """Draw NCCL's choice of algorithm and protocol from 1 KiB to 1 GiB, with one row per model, by name.

    Colours are protocols, or NVLS; trees are hatched. Bands that are wide enough contain their name.

    Raises ValueError if there are no models, or if NCCL's model does not have the collective.
    """
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"models must be one or more, by name, got {models!r}")
    bands: list[_Band] = []
    for row, (name, model) in enumerate(models.items()):
        bands += _bands(row, of_type(f"models[{name!r}]", model, Model), collective)
    fills = [color_of(band.algorithm, band.protocol) for band in bands]
    hatched = [band.algorithm == "tree" for band in bands]
    cells = Rects(
        [band.column for band in bands],
        [band.row + _BAND_TOP for band in bands],
        [_pale(fill) for fill in fills],
        width=[band.length for band in bands],
        height=_BAND_HEIGHT,
        hatched=hatched,
    )
    return Plot(
        title=title or f"NCCL's choice for {collective}, by size",
        x_label="size of each rank's buffer",
        width=len(_SIZES),
        height=len(models),
        size_px=(_COLUMN_PX * len(_SIZES), _ROW_PX * len(models)),
        rects=(cells,),
        texts=_names(bands),
        x_ticks=[(column + 0.5, bytes_words(_SIZES[column])) for column in range(0, len(_SIZES), _TICK_EVERY)],
        y_ticks=[(row + 0.5, name) for row, name in enumerate(models)],
        legend=_legend(bands),
    )


def _bands(row: int, model: Model, collective: str) -> list[_Band]:
    """Return a band for each run of sizes at which NCCL chooses the same algorithm and protocol."""
    compared = model.compared(collective, _SIZES)
    pairs = list(compared)  # of an algorithm and a protocol
    expected_s = [figures.nccl_s for figures in compared.values()]  # a row per pair, a column per size
    choices = np.argmin(expected_s, axis=0).tolist()  # of each size: the index of the fastest pair
    bands = []
    column = 0
    for choice, run in groupby(choices):
        length = len(list(run))
        algorithm, protocol = pairs[choice]
        bands.append(_Band(row, column, length, algorithm, protocol))
        column += length
    return bands


def _names(bands: list[_Band]) -> tuple[Texts, ...]:
    """Return the names of the bands that are wide enough."""
    texts = []
    for band in bands:
        if band.length * _COLUMN_PX < _LETTER_PX * len(band.words) + _NAME_MARGIN_PX:
            continue
        texts.append(Texts(band.column + band.length / 2, band.row + 0.5, [band.words], "#000000"))
    return tuple(texts)


def _legend(bands: list[_Band]) -> list[Key]:
    """Return a key for each colour that occurs, and one for the hatching of trees."""
    colors = {color_of(band.algorithm, band.protocol) for band in bands}
    named_colors = {PROTOCOL_NAMES[protocol]: color for protocol, color in PROTOCOL_COLORS.items()}
    named_colors["NVLS"] = NVLS_COLOR
    shown = [Key(name, _pale(color)) for name, color in named_colors.items() if color in colors]
    trees = [band for band in bands if band.algorithm == "tree"]
    if trees:
        shown.append(Key("hatched: a tree", _pale(color_of("tree", trees[0].protocol)), hatched=True))
    return shown
