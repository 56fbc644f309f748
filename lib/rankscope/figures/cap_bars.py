"""A drawing of predicted steps by bucket cap: a bar each, in the parts that it is made of."""

from __future__ import annotations

import numpy as np

from ..ddp.recommend import Candidate, Recommendation
from ..values.checks import of_type
from ..values.units import round_ticks, three_digits, time_unit
from .marks import Drawing, Key, Rects, Texts
from .palette import CATEGORIES, INK

PARTS = {"computing alone": "#c9c9c9", "held up by allreduces": CATEGORIES[1], "waiting for allreduces": CATEGORIES[0]}
_ALONE, _HELD, _WAIT = PARTS.values()


def draw_bucket_caps(
    recommendation: Recommendation, bucket_cap_mb: float | None = None, title: str | None = None
) -> Drawing:
    """Draw a bar for DDP's default and for each cap, from computing alone to the end of the step.

    Behind a bar stand its time and its number of buckets. The bar of `bucket_cap_mb`, the default where it is None, is
    framed.
    """
    found = of_type("recommendation", recommendation, Recommendation)
    rows = [found.default, *found.candidates]
    longest = max(row.step_s for row in rows)
    scale, unit = time_unit(longest)
    width = 1.3 * longest / scale or 1.0
    ends = np.array([row.step_s for row in rows]) / scale
    waits = ends - np.array([row.wait_s for row in rows]) / scale
    alone = np.minimum(found.alone_s / scale, waits)
    y = np.arange(len(rows))
    framed = np.flatnonzero([row.bucket_cap_mb == bucket_cap_mb for row in rows])
    frame = Rects.of(-0.003 * width, framed + 0.04, INK, width=ends[framed] + 0.006 * width, height=0.92, edge=INK)
    edges = zip((0.0 * ends, alone, waits), (alone, waits, ends), PARTS.values(), strict=True)
    bars = (
        Rects.of(x, y + 0.12, color, width=to - x, height=0.76, edge=color, hatched=color == _HELD)
        for x, to, color in edges
    )
    words = tuple(f"{three_digits(row.step_s / scale)} · {row.num_buckets}" for row in rows)
    return Drawing(
        title=title or _title(found),
        x_label=f"step [{unit}]; behind it how many buckets; framed: yours",
        y_label="bucket_cap_mb",
        width=width,
        height=len(rows),
        size_px=(560.0, 19.0 * len(rows)),
        rects=(frame, *bars),
        texts=(Texts(ends + 0.01 * width, y + 0.5, words, (INK,) * len(rows), anchor="start"),),
        x_ticks=round_ticks(longest / scale) if longest else (),
        y_ticks=tuple((place + 0.5, _name(row)) for place, row in enumerate(rows)),
        legend=tuple(Key(name, color, hatched=color == _HELD) for name, color in PARTS.items()),
    )


def _name(row: Candidate) -> str:
    return "default" if row.bucket_cap_mb is None else f"{row.bucket_cap_mb:g} MiB"


def _title(found: Recommendation) -> str:
    return f"Best: {_name(found.chosen)}" + (f", {found.gain:.1%} less than the default" if found.gain else "")
