"""Drawings of DDP's buckets: which gradients share an allreduce, and what a step takes with other caps."""

from __future__ import annotations

import attrs
import numpy as np

from ...common.checks import count_of, of_type
from ...common.units import bytes_unit, bytes_words, round_ticks, three_digits, time_unit
from ...figures.marks import Drawing, Key, Lines, Rects, Texts, frame, numbers_on, stacked, whole_ticks
from ...figures.palette import INK, PAPER, WORK, rank_colors
from ..ddp.buckets import DDPBuckets
from ..ddp.recommend import CapCandidate, Recommendation

_WIDE_PX = 640.0
_MOST_BUCKETS = 256
PARTS = {  # of a step, with the look of such work in `palette.WORK`: computing, computing hatched, waiting
    "computing alone": WORK["compute"],
    "held up by allreduces": (WORK["compute"][0], True),
    "waiting for allreduces": WORK["wait"],
}


def until_alike(recommendation: Recommendation, least_mb: float = 0.0) -> tuple[CapCandidate, ...]:
    """Return the candidates by cap up to the first of those at the end that are all alike, but at least up to a cap."""
    found = recommendation.candidates
    alike = {one[1:] for one in found[-1:]}  # buckets, step and wait
    stop = len(found)
    while stop > 1 and found[stop - 2][1:] in alike and (found[stop - 2].bucket_cap_mb or 0) >= least_mb:
        stop -= 1
    return found[:stop]


def draw_buckets(buckets: DDPBuckets, iteration: int | None = None, title: str | None = None) -> Drawing:
    """Draw which gradients share an allreduce, in launch order, and the cap they met.

    The buckets are those of an `iteration`, by default those after the rebuild; the first is on top. Each piece is the
    gradient of one parameter, as wide as it has bytes, with the parameter's number where it fits; a colour is a bucket.
    A dashed line is the cap at which the bucket is closed, the number behind a row its bytes. A sparse gradient is
    hatched. Raises ValueError for more than 256 buckets.
    """
    of_type("buckets", buckets, DDPBuckets)
    shown = buckets.rebuilt if iteration is None else buckets.at(iteration)
    if len(shown) > _MOST_BUCKETS:
        raise ValueError(f"a drawing has at most {_MOST_BUCKETS} buckets, got {len(shown)}: take a larger cap")
    roomy = len(shown) <= 32
    totals = np.array([bucket.num_bytes for bucket in shown])
    widest = max(1, int(totals.max()))
    extent = max([widest, *(cap for bucket in shown if (cap := bucket.cap_bytes or 0) < 1.5 * widest)])
    width = 1.16 * extent if roomy else extent
    scale, unit = bytes_unit(extent)

    sizes = [[buckets.parameters[place].num_bytes for place in bucket.indices] for bucket in shown]
    rows = np.repeat(np.arange(len(shown)), [len(row) for row in sizes])
    left = np.concatenate([np.cumsum([0, *row[:-1]]) for row in sizes])
    fill = np.array(rank_colors(len(shown)))[rows].tolist()
    sparse = np.array([bucket.closed == "sparse" for bucket in shown])
    pieces = Rects(left, rows + 0.1, fill, width=np.concatenate(sizes), height=0.8, hatched=sparse[rows])
    places = np.concatenate([bucket.indices for bucket in shown])
    legible = pieces.width / width * _WIDE_PX >= np.array([6.4 * len(str(place)) + 3 for place in places.tolist()])
    haloed = attrs.evolve(pieces, hatched=np.ones(rows.size, dtype=bool))  # as a cap may run through a number
    numbers = numbers_on(haloed, places, wanted=legible)
    words = [bytes_words(total) for total in totals.tolist()]
    ends = Texts(totals + 0.012 * extent, np.arange(len(shown)) + 0.5, words, anchor="start", halo=PAPER)

    caps = {row: bucket.cap_bytes for row, bucket in enumerate(shown) if bucket.cap_bytes is not None}
    drawn = [row for row, cap in caps.items() if cap <= extent]
    at, tops = [caps[row] for row in drawn], np.array(drawn, dtype=float)
    keys = [Key(f"cap of {bytes_words(cap)}", INK, line="dashed") for cap in sorted({*at})]
    beyond = sorted({cap for cap in caps.values() if cap > extent})
    keys += [Key(f"cap of {bytes_words(cap)}, beyond the picture", PAPER) for cap in beyond]
    keys += [Key("number in a piece: its parameter", PAPER, line="none")] * roomy
    if sparse.any():
        keys.append(Key("sparse gradient, always alone", PAPER, hatched=True))
    return Drawing(
        title=title or _title(buckets, len(shown), int(totals.sum()), iteration),
        x_label=f"bytes of gradients [{unit}]",
        y_label="bucket",
        width=width,
        height=len(shown),
        size_px=(_WIDE_PX, 22.0 * len(shown) if roomy else 4.0 * len(shown)),
        rects=(pieces,),
        lines=(Lines(at, tops, at, tops + 1.0, INK, dashed=True),),
        texts=(*numbers, ends) if roomy else (),
        x_ticks=[(tick * scale, label) for tick, label in round_ticks(extent / scale)],
        y_ticks=whole_ticks(len(shown), most=32),
        legend=keys,
    )


def _title(buckets: DDPBuckets, number: int, num_bytes: int, iteration: int | None) -> str:
    if buckets.rebuilt_at is None:
        when = "at every iteration"
    elif iteration is not None and iteration < buckets.rebuilt_at:
        when = f"before the rebuild at iteration {buckets.rebuilt_at}"
    else:
        when = f"from iteration {buckets.rebuilt_at} on"
    what = f"{bytes_words(num_bytes)} of gradients, {count_of(len(buckets.parameters), 'parameter')}"
    return f"{what}: {count_of(number, 'allreduce')} {when}"


def draw_caps(recommendation: Recommendation, bucket_cap_mb: float | None = None) -> Drawing:
    """Draw a bar for DDP's default and for each cap, from computing alone to the end of the step.

    Next to a bar stand its time and its number of buckets. Caps that change nothing any more share the last bar. The
    bar of `bucket_cap_mb`, the default where it is None, is framed.
    """
    found = of_type("recommendation", recommendation, Recommendation)
    caps = until_alike(found)
    rows = [found.default, *caps]
    names = ["default" if row.bucket_cap_mb is None else f"{row.bucket_cap_mb:g} MiB" for row in rows]
    same = [one.bucket_cap_mb for one in found.candidates[len(caps) :]]
    names[-1] += " and more" * bool(same)
    longest = max(row.step_s for row in rows)
    scale, unit = time_unit(longest)
    width = 1.34 * longest / scale or 1.0
    ends = np.array([row.step_s for row in rows]) / scale
    waits = ends - np.array([row.wait_s for row in rows]) / scale
    alone = np.minimum(found.alone_s / scale, waits)
    keys = [Key(name, hue, hatched=hatched) for name, (hue, hatched) in PARTS.items()]
    bars = stacked(dict(zip(keys, (alone, waits - alone, ends - waits), strict=True)), margin=0.12)
    framed = [row for row, one in enumerate(rows) if one.bucket_cap_mb == bucket_cap_mb]
    framed = framed or [len(rows) - 1] * (bucket_cap_mb in same)
    words = [f"{three_digits(row.step_s / scale)} {unit}, {count_of(row.num_buckets, 'bucket')}" for row in rows]
    gain = f", {found.gain:.1%} less than the default" if found.gain else ""
    return Drawing(
        title=f"Best: {names[rows.index(found.chosen)]}{gain}",
        x_label=f"time per step [{unit}]",
        y_label="bucket_cap_mb",
        width=width,
        height=len(rows),
        size_px=(560.0, 19.0 * len(rows)),
        rects=(frame(framed, ends[framed], width), *bars),
        texts=(Texts(ends + 0.01 * width, np.arange(len(rows)) + 0.5, words, anchor="start"),),
        x_ticks=round_ticks(longest / scale) if longest else (),
        y_ticks=[(place + 0.5, name) for place, name in enumerate(names)],
        legend=(*keys, *[Key("your cap", PAPER, edge=INK)] * bool(framed)),
    )
