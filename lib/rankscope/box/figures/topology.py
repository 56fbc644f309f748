"""A drawing of what connects the GPUs of a box: a square for each pair, with its word and its rate."""

from __future__ import annotations

import numpy as np

from ...common.units import rate_words
from ...figures.marks import Drawing, Key, Rects, Texts
from ...figures.palette import ink_on, ramp
from ..nccl.topology import Topology

_CELL_PX = 62.0
# From the shortest way to the longest: as in other figures, paler is faster.
_NVLINK, _SWITCH, _HOST, _BETWEEN = ramp([1.0, 0.75, 0.5, 0.25])
_FILLS = {"NV": _NVLINK, "PIX": _SWITCH, "PXB": _SWITCH, "PHB": _HOST, "NODE": _HOST, "SYS": _BETWEEN}
_LABELS = {"NV": "NVLink", "PIX": "PCIe switch", "PHB": "PCIe and CPU", "SYS": "between CPUs"}


def draw_topology(box: Topology, title: str | None = None) -> Drawing:
    """Draw the path between each pair of GPUs, as ``nvidia-smi topo -m`` names it, and its rate in one direction."""
    count = box.num_gpus
    src, dst = np.divmod(np.flatnonzero(~np.eye(count, dtype=bool)), count)
    words = [box.ways[a][b] for a, b in zip(src, dst, strict=True)]
    kinds = ["NV" if word.startswith("NV") else word for word in words]
    fills = [_FILLS[kind] for kind in kinds]
    rates = [rate_words(box.gb_per_s[a, b] * 1e9) for a, b in zip(src, dst, strict=True)]
    inks = [ink_on(fill) for fill in fills]
    texts = []
    if count <= 16:
        texts.append(Texts(dst + 0.5, src + 0.35, words, inks, 12.0))
    if count <= 10:
        texts.append(Texts(dst + 0.5, src + 0.72, rates, inks, 10.0))
    ticks = [(k + 0.5, f"{k}") for k in range(0, count, 1 if count <= 16 else 8)]
    keys = [Key(label, _FILLS[kind]) for kind, label in _LABELS.items() if _FILLS[kind] in fills]
    side = min(count * _CELL_PX, 560.0)
    named = title or f"{box.num_gpus} {box.gpu.upper().replace('_', ' ')}: what connects each pair, and GB/s one way"
    return Drawing(
        named,
        "to GPU",
        "from GPU",
        count,
        count,
        (side, side),
        rects=(Rects(dst, src, fills),),
        texts=texts,
        x_ticks=ticks,
        y_ticks=ticks,
        legend=keys,
    )
