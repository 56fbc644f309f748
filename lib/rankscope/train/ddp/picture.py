"""Drawings of DDP's buckets: which gradients share an allreduce, and the time of a step with other caps."""

from __future__ import annotations

import math
from collections.abc import Hashable

from ...common.checks import of_type
from ...common.units import bytes_words, three_digits, time_words
from ...common.words import count_of
from ...drawing.bars import draw_bars
from ...drawing.drawing import Drawing
from ...drawing.marks import LEFT_PX, RIGHT_PX, Box, Line, Mark, Text, row_name, with_text
from ...drawing.palette import MEMORY
from .bucketing import DDPBuckets, caps_bytes
from .recommend import Recommendation

_ROW_PX = 24.0
_BOX_PX = 20.0
_SIZE_PX = 80.0  # right of the largest bucket, for its size
_MOST_BARS = 16


def draw_buckets(buckets: DDPBuckets, title: str | None = None) -> Drawing:
    """Draw the gradients that share an allreduce, in launch order, and the cap of each bucket.

    The buckets are those that DDP keeps; the first is on top. Each piece is the gradient of one parameter, as wide as
    its bytes, with its number if there is space. Dashed lines mark the caps at which buckets close after the rebuild,
    for each dtype the first one and then the others. Sparse gradients are hatched.
    """
    of_type("buckets", buckets, DDPBuckets)
    shown = buckets.rebuilt
    widest_bytes = max([1, *map(buckets.num_bytes, shown)])
    px_per_byte = (RIGHT_PX - _SIZE_PX - LEFT_PX) / widest_bytes
    marks: list[Mark] = []
    tips: dict[Hashable, str] = {}
    dtypes: list[str] = []  # of the buckets so far
    for row, bucket in enumerate(shown):
        y = row * _ROW_PX
        marks.append(row_name(y + 15, f"bucket {row}"))
        x = LEFT_PX
        for index in bucket:
            gradient = buckets.gradients[index]
            width = gradient.num_bytes * px_per_byte
            box = Box(x, y, width, _BOX_PX, MEMORY["gradients"].hue, "work", gradient.sparse, key=index)
            marks.append(with_text(box, str(index)))
            tips[index] = f"{index}: {gradient.name}, {bytes_words(gradient.num_bytes)}"
            x += width
        marks.append(Text(x + 6, y + 15, bytes_words(buckets.num_bytes(bucket))))
        dtype = buckets.gradients[bucket[0]].dtype
        cap_bytes = buckets.caps_bytes[min(dtypes.count(dtype), 1)]
        dtypes.append(dtype)
        if shown != buckets.first and cap_bytes <= widest_bytes:
            cap_x = LEFT_PX + cap_bytes * px_per_byte
            marks.append(Line(((cap_x, y - 2), (cap_x, y + _ROW_PX - 2)), "ink", dash="3 2"))
    total_bytes = sum(map(buckets.num_bytes, shown))
    caps = " and then ".join(dict.fromkeys(map(bytes_words, buckets.caps_bytes)))
    return Drawing(
        title or f"{bytes_words(total_bytes)} of gradients in {count_of(len(shown), 'allreduce')}",
        marks,
        len(shown) * _ROW_PX + 4,
        f"number: parameter; dashed: cap of {caps}",
        tips,
    )


def draw_caps(
    recommendation: Recommendation,
    bucket_cap_mb: float | None = None,
    title: str | None = None,
    job: str = "One step",
) -> Drawing:
    """Draw the predicted step with DDP's default and with each cap: computing, and waiting for allreduces.

    Of many caps, powers of two, the recommended one and `bucket_cap_mb` are shown. Computing includes the time by which
    allreduces slow it down. `job` says what trains, and where.
    """
    chosen = of_type("recommendation", recommendation, Recommendation).chosen
    default = recommendation.default
    rows = {}
    behind = []
    candidates = sorted((default, *recommendation.candidates), key=lambda one: caps_bytes(one.bucket_cap_mb)[1])
    for candidate in candidates:
        cap_mb = candidate.bucket_cap_mb
        is_few = len(recommendation.candidates) <= _MOST_BARS
        if is_few or cap_mb in (None, chosen.bucket_cap_mb, bucket_cap_mb) or math.log2(cap_mb or 1) % 1 == 0:
            name = candidate.name
            if bucket_cap_mb is not None and cap_mb == bucket_cap_mb:
                name += ", yours"
            rows[name] = {"compute": 1e3 * (candidate.step_s - candidate.wait_s), "wait": 1e3 * candidate.wait_s}
            behind.append(f"{three_digits(1e3 * candidate.step_s)}{'  ← recommended' * (candidate is chosen)}")
    found = f"Take {chosen.name}: {time_words(chosen.step_s)} per step"
    compared = "no other cap saves 1 %" if chosen is default else f"default {time_words(default.step_s)}"
    deck = f"{job}: {time_words(chosen.wait_s)} waiting; {compared}"
    return draw_bars(rows, "predicted step [ms]", title or found, deck, behind)
