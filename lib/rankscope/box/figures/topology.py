"""A drawing of what connects the GPUs of a box: a square for each pair, with its word and its rate."""

from __future__ import annotations

import numpy as np

from ...common.units import rate_words
from ...figures.palette import ink_on, ramp
from ...figures.plots import Key, Plot, Rects, Texts
from ..nccl.topology import Topology

_CELL_PX = 62.0
_MOST_SIDE_PX = 560.0
_MOST_GPUS_WITH_WORDS = 16
_MOST_GPUS_WITH_RATES = 10
# From the shortest way to the longest: as in other figures, paler is faster.
_NVLINK, _SWITCH, _HOST, _BETWEEN = ramp([1.0, 0.75, 0.5, 0.25])
_FILLS = {"NV": _NVLINK, "PIX": _SWITCH, "PXB": _SWITCH, "PHB": _HOST, "NODE": _HOST, "SYS": _BETWEEN}
# A label per colour: PXB has that of PIX, and NODE that of PHB.
_LABELS = {"NV": "NVLink", "PIX": "PCIe switch", "PHB": "PCIe and CPU", "SYS": "between CPUs"}
_WORD_Y = 0.35  # in a cell, from its top: what connects the pair, …
_RATE_Y = 0.72  # … and below it the rate
_TICK_EVERY = 8  # GPUs of a box whose cells are too small for words, and whose numbers would touch


def draw_topology(box: Topology, title: str | None = None) -> Plot:
    """Draw the path between each pair of GPUs, as ``nvidia-smi topo -m`` names it, and its rate in one direction.

    Squares of a large box are too small for the rate, and of an even larger one for the name.
    """
    num_gpus = box.num_gpus
    src, dst = np.nonzero(~np.eye(num_gpus, dtype=bool))  # all pairs of different GPUs
    words = [box.ways[a][b] for a, b in zip(src, dst, strict=True)]
    kinds = ["NV" if word.startswith("NV") else word for word in words]  # without the number of NVLinks
    fills = [_FILLS[kind] for kind in kinds]
    rates = [rate_words(box.gb_per_s[a, b] * 1e9) for a, b in zip(src, dst, strict=True)]
    inks = [ink_on(fill) for fill in fills]
    texts = []
    if num_gpus <= _MOST_GPUS_WITH_WORDS:
        texts.append(Texts(dst + 0.5, src + _WORD_Y, words, inks))
    if num_gpus <= _MOST_GPUS_WITH_RATES:
        texts.append(Texts(dst + 0.5, src + _RATE_Y, rates, inks))
    tick_every = 1 if num_gpus <= _MOST_GPUS_WITH_WORDS else _TICK_EVERY
    ticks = [(gpu + 0.5, f"{gpu}") for gpu in range(0, num_gpus, tick_every)]
    side_px = min(num_gpus * _CELL_PX, _MOST_SIDE_PX)
    gpu_name = box.gpu.upper().replace("_", " ")
    return Plot(
        title=title or f"{num_gpus} {gpu_name}: what connects each pair, and GB/s one way",
        x_label="to GPU",
        y_label="from GPU",
        width=num_gpus,
        height=num_gpus,
        size_px=(side_px, side_px),
        rects=(Rects(dst, src, fills),),
        texts=texts,
        x_ticks=ticks,
        y_ticks=ticks,
        legend=[Key(label, _FILLS[kind]) for kind, label in _LABELS.items() if _FILLS[kind] in fills],
    )
