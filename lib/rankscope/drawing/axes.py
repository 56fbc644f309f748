"""Paint a drawing on matplotlib Axes, for papers and for pictures that must be PNG: the plain marks, in light."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..common.words import printable
from .drawing import Drawing, page
from .marks import SIZES_PX, WIDTH_PX, Box, Text, moved_down
from .palette import INK, PAPER, TONES, mixed
from .svg import HATCH_OPACITY, OPACITY, hatching, text_of

_ALIGN = {"start": "left", "middle": "center", "end": "right"}


def to_axes(drawing: Drawing, ax: Axes) -> Axes:
    """Draw on Axes, in pixels of the drawing, y down; return them."""
    head, top, height = page(drawing)
    ax.set(xlim=(0, WIDTH_PX), ylim=(height, 0))
    ax.set_axis_off()
    points_per_px = ax.bbox.width / ax.figure.dpi * 72 / WIDTH_PX
    marks = [*head, *[moved_down(mark, top) for mark in drawing.marks]]
    texts = [text_of(mark) for mark in marks if isinstance(mark, Box) and mark.text]
    for mark in [*marks, *texts]:
        if isinstance(mark, Text):
            ax.text(
                mark.x,
                mark.y,
                printable(mark.text.replace("*", "")),
                fontsize=SIZES_PX[mark.size] * points_per_px,
                weight="bold" if mark.size == "title" else "normal",
                color=TONES[mark.tone],
                ha=_ALIGN[mark.anchor],
                parse_math=False,
            )
        elif isinstance(mark, Box):
            fill = mixed(TONES.get(mark.fill, mark.fill), PAPER, OPACITY[mark.look])
            style: dict[str, Any] = {
                "facecolor": fill,
                "edgecolor": TONES.get(mark.edge, "none"),
                "linewidth": 1.5 * points_per_px,
            }
            ax.add_patch(Rectangle((mark.x, mark.y), mark.width, mark.height, **style))
            for x0, y0, x1, y1 in hatching(mark):
                ax.plot([x0, x1], [y0, y1], color=INK, alpha=HATCH_OPACITY, linewidth=points_per_px)
        elif mark.key is None:  # the others show only under a pointer
            style = {"color": TONES.get(mark.tone, mark.tone), "linewidth": mark.width * points_per_px}
            if mark.dash:
                style["linestyle"] = (0, [float(length) for length in mark.dash.split()])
            ax.plot(*zip(*mark.points, strict=True), **style)
            if mark.arrow:
                ax.annotate("", mark.points[-1], mark.points[-2], arrowprops={"arrowstyle": "->", **style})
    return ax
