"""A drawing of DDP's buckets: a row an allreduce, its gradients side by side by their bytes, and the cap they met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..ddp.buckets import Bucket, DDPBuckets
from ..values.checks import count_of, of_type
from ..values.units import bytes_unit, bytes_words, round_ticks
from .marks import Drawing, Key, Lines, Rects, Texts, numbers_on, whole_ticks
from .palette import INK, PAPER, rank_colors

_WIDE_PX = 640.0
_MOST_BUCKETS = 256


def draw_buckets(buckets: DDPBuckets, iteration: int | None = None, title: str | None = None) -> Drawing:
    """Draw the buckets of an `iteration`, of those after the rebuild by default, in launch order from the top.

    Each piece is the gradient of one parameter, as wide as it has bytes, with the parameter's number where it fits; a
    colour is a bucket. A dashed line is the cap at which the bucket is closed, the number behind a row its bytes. A
    sparse gradient is hatched. Raises ValueError for more than 256 buckets.
    """
    of_type("buckets", buckets, DDPBuckets)
    shown = buckets.rebuilt if iteration is None else buckets.at(iteration)
    if len(shown) > _MOST_BUCKETS:
        raise ValueError(f"a drawing has at most {_MOST_BUCKETS} buckets, got {len(shown)}: take a larger cap")
    sizes = [[buckets.parameters[place].num_bytes for place in bucket.indices] for bucket in shown]
    widest = max(1, *(bucket.num_bytes for bucket in shown))
    extent = max([widest, *(cap for bucket in shown if (cap := bucket.cap_bytes or 0) < 1.5 * widest)])
    roomy = len(shown) <= 32
    pieces, places = _pieces(shown, sizes), np.concatenate([bucket.indices for bucket in shown])
    width = 1.16 * extent if roomy else extent
    legible = pieces.width / width * _WIDE_PX >= np.array([6.4 * len(str(place)) + 3 for place in places.tolist()])
    scale, unit = bytes_unit(extent)
    return Drawing(
        title=title or _title(buckets, shown, iteration),
        x_label=f"bytes of gradients [{unit}]{'; in a piece its parameter' if roomy else ''}",
        y_label="bucket",
        width=width,
        height=len(shown),
        size_px=(_WIDE_PX, 22.0 * len(shown) if roomy else 4.0 * len(shown)),
        rects=(pieces,),
        lines=(_caps(shown, extent),),
        texts=(*_numbers(pieces, places, legible), _totals(shown, extent)) if roomy else (),
        x_ticks=tuple((tick * scale, label) for tick, label in round_ticks(extent / scale)),
        y_ticks=whole_ticks(len(shown), most=32),
        legend=_legend(shown, extent),
    )


def _pieces(shown: tuple[Bucket, ...], sizes: list[list[int]]) -> Rects:
    colors = rank_colors(len(shown))
    rows = np.repeat(np.arange(len(shown)), [len(row) for row in sizes])
    left = np.concatenate([np.cumsum([0, *row[:-1]]) for row in sizes])
    fill = [colors[row] for row in rows.tolist()]
    sparse = np.array([bucket.closed == "sparse" for bucket in shown])[rows]
    return Rects.of(left, rows + 0.1, fill, width=np.concatenate(sizes), height=0.8, hatched=sparse)


def _caps(shown: tuple[Bucket, ...], extent: float) -> Lines:
    rows = [row for row, bucket in enumerate(shown) if bucket.cap_bytes is not None and bucket.cap_bytes <= extent]
    at = [shown[row].cap_bytes or 0 for row in rows]
    return Lines.of(at, rows, at, np.array(rows) + 1.0, INK, dashed=True)


def _numbers(pieces: Rects, places: NDArray[np.int64], legible: NDArray[np.bool_]) -> tuple[Texts, ...]:
    """Which parameter each piece is, with a halo, as a cap may run through the number."""
    return numbers_on(replace(pieces, hatched=np.ones(len(pieces.fill), dtype=bool)), places, wanted=legible)


def _totals(shown: tuple[Bucket, ...], extent: float) -> Texts:
    x = np.array([bucket.num_bytes + 0.012 * extent for bucket in shown])
    words = tuple(bytes_words(bucket.num_bytes) for bucket in shown)
    ink, halo = (INK,) * len(shown), (PAPER,) * len(shown)
    return Texts(x, np.arange(len(shown)) + 0.5, words, ink, anchor="start", halo=halo)


def _legend(shown: tuple[Bucket, ...], extent: float) -> tuple[Key, ...]:
    caps = sorted({bucket.cap_bytes for bucket in shown if bucket.cap_bytes is not None})
    keys = [Key(f"cap of {bytes_words(cap)}", INK, line="dashed") for cap in caps if cap <= extent]
    keys += [Key(f"cap of {bytes_words(cap)}, beyond the picture", PAPER) for cap in caps if cap > extent]
    if any(bucket.closed == "sparse" for bucket in shown):
        keys.append(Key("sparse gradient, always alone", PAPER, hatched=True))
    return tuple(keys)


def _title(buckets: DDPBuckets, shown: tuple[Bucket, ...], iteration: int | None) -> str:
    if buckets.rebuilt_at is None:
        when = "at every iteration"
    elif iteration is not None and iteration < buckets.rebuilt_at:
        when = f"before the rebuild at iteration {buckets.rebuilt_at}"
    else:
        when = f"from iteration {buckets.rebuilt_at} on"
    num_bytes = bytes_words(sum(bucket.num_bytes for bucket in shown))
    what = f"{num_bytes} of gradients, {count_of(len(buckets.parameters), 'parameter')}"
    return f"{what}: {count_of(len(shown), 'allreduce')} {when}"
