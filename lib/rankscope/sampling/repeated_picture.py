"""How two epochs begin that read in the same order, side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..drawing.drawing import Drawing
from ..drawing.marks import LEFT_PX, Box, Mark, Text, row_name, with_text
from ..drawing.palette import rank_colors
from .assignment import Assignment

_CELL_PX = 25.0
_MOST = 10  # ranks, and reads of each
_BESIDE_PX = 298.0  # from one epoch to the other


def draw_repeated(both: Sequence[Assignment], last: int) -> Drawing:
    """Draw the first reads of two epochs, of which the second has the number `last`; a sample is one key in both."""
    marks: list[Mark] = []
    tips: dict[Hashable, str] = {}
    y = 20.0
    for again, epoch in enumerate(both):
        left = LEFT_PX + _BESIDE_PX * again
        marks.append(Text(left, 12, f"epoch {last - 1 + again}"))
        for rank, color in enumerate(rank_colors(epoch.num_ranks)[:_MOST]):
            y = 20 + _CELL_PX * rank
            marks.append(row_name(y + 16, "=" if again else f"rank {rank}", left=left))
            for place, sample in enumerate(epoch.ranks[rank][:_MOST].tolist()):
                x = left + _CELL_PX * place
                cell = Box(x, y, _CELL_PX - 2, _CELL_PX - 2, color, "tint", again == 1, key=sample)
                marks.append(with_text(cell, str(sample)))
                tips[sample] = f"sample {sample}"
    title = f"Epoch {last} *repeats the order* of epoch {last - 1}"
    return Drawing(title, marks, y + _CELL_PX, "the first reads of each rank", tips)
