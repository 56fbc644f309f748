"""A drawing of what connects the GPUs and network cards of a box: a cell for each GPU and each other device."""

from __future__ import annotations

from ...figures.marks import LEFT_PX, LETTER_PX, RIGHT_PX, Box, Drawing, Mark, Text, row_name
from ...figures.palette import ramp
from ..nccl.topology import WAYS, Topology, kind_of

_FILLS = dict(zip(WAYS, ramp([1.0, 0.85, 0.7, 0.5, 0.3, 0.1]), strict=True))  # paler is faster
_HEAD_PX = 20.0
_ROW_PX = 26.0


def draw_topology(box: Topology, title: str | None = None) -> Drawing:
    """Draw how each GPU reaches each other GPU and network card, by the words of ``nvidia-smi topo -m``.

    Cells that are too narrow contain no word.
    """
    num_gpus = len(box.ways)
    names = [*[f"{gpu}" for gpu in range(num_gpus)], *box.nics]
    cell_px = min((RIGHT_PX - LEFT_PX) / len(names), 56.0)
    marks: list[Mark] = []

    def fitting(words: str) -> str:
        return words if cell_px >= LETTER_PX * len(words) + 4 else ""

    for column, name in enumerate(names):
        marks.append(Text(LEFT_PX + (column + 0.5) * cell_px, 12, fitting(name), "number", "mute", "middle"))
    for row, ways in enumerate(box.ways):
        y = _HEAD_PX + row * _ROW_PX
        marks.append(row_name(y + 16, f"GPU {row}"))
        for column, way in enumerate(ways):
            if way != "X":
                x = LEFT_PX + column * cell_px
                marks.append(Box(x, y, cell_px - 2, _ROW_PX - 2, _FILLS[kind_of(way)], text=fitting(way)))
    title = title or f"{num_gpus} GPUs and {len(box.nics)} network cards"
    return Drawing(title, marks, _HEAD_PX + num_gpus * _ROW_PX, "from each GPU to GPUs and network cards")
