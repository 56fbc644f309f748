"""Drawings of DDP's buckets: which gradients share an allreduce, and the time of a step with other caps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...common.checks import of_type
from ...common.units import bytes_unit, bytes_words, percent_words, round_ticks, three_digits, time_unit
from ...common.words import count_of
from ...figures.palette import INK, MEMORY, PAPER, WORK, WorkLook
from ...figures.plots import Key, Lines, Plot, Rects, Texts, frame, numbers_on, stacked, whole_ticks
from ..ddp.buckets import Bucket, DDPBuckets
from ..ddp.recommend import CapCandidate, Recommendation

_WIDE_PX = 640.0
_ROW_PX = 22.0  # of a bucket with numbers and a size
_LOW_ROW_PX = 4.0  # of a bucket without
_MARGIN = 0.1  # above and below a bucket, as a share of its row
_ROOM_FOR_SIZE = 0.16  # right of the widest bucket, as a share of its width
_GAP_BEFORE_SIZE = 0.012  # between a bucket and its size, as a share of the widest bucket
_FAR_CAP = 1.5  # a cap of this many times the largest bucket or more is not drawn
_CAPS_WIDE_PX = 560.0
_CAPS_ROW_PX = 19.0
_CAPS_MARGIN = 0.12  # above and below a bar, as a share of its row
_ROOM_FOR_TIME = 0.34  # right of the longest step, as a share of it
_GAP_BEFORE_TIME = 0.01  # between a bar and its time, as a share of the drawing's width
_DIGIT_PX = 6.4  # the width of a digit of a parameter's number
_MARGIN_PX = 3  # what a number leaves free in its piece, on both sides together
_MOST_BUCKETS = 256
_MOST_LABELLED = 32  # with more buckets, rows are too low for numbers and sizes
# The parts of a step, each with its colour and whether it is hatched.
PARTS = {
    "computing alone": WORK["compute"],
    "held up by allreduces": WorkLook(WORK["compute"].hue, True),
    "waiting for allreduces": WORK["wait"],
}


def until_alike(recommendation: Recommendation, least_mb: float = 0.0) -> tuple[CapCandidate, ...]:
    """Return the candidates up to the cap from which larger ones change nothing, but at least up to `least_mb`."""
    candidates = recommendation.candidates
    num_shown = len(candidates)
    while num_shown > 1:  # the last one that is shown is like the largest; drop it if the next smaller one is, too
        next_smaller = candidates[num_shown - 2]
        cap_mb = next_smaller.bucket_cap_mb or 0.0  # for the type: only DDP's default has None, and is not among them
        if cap_mb < least_mb or _outcome(next_smaller) != _outcome(candidates[-1]):
            break
        num_shown -= 1
    return candidates[:num_shown]


def _outcome(candidate: CapCandidate) -> tuple[int, float, float]:
    """Everything about a candidate except its cap."""
    return candidate.num_buckets, candidate.step_s, candidate.wait_s


def draw_buckets(buckets: DDPBuckets, iteration: int | None = None, title: str | None = None) -> Plot:
    """Draw the gradients that share an allreduce, in launch order, and the cap of each bucket.

    The buckets are those of an `iteration`, by default those after the rebuild; the first is on top. Each piece is the
    gradient of one parameter. Its width is proportional to its bytes, and it contains the parameter's number if there
    is space. Dashed lines mark the caps at which buckets are closed, and the text after a row states its bytes. Sparse
    gradients are hatched.

    Raises ValueError if there are more than 256 buckets.
    """
    of_type("buckets", buckets, DDPBuckets)
    shown = buckets.rebuilt if iteration is None else buckets.at(iteration)
    if len(shown) > _MOST_BUCKETS:
        raise ValueError(f"a drawing has at most {_MOST_BUCKETS} buckets, got {len(shown)}: take a larger cap")
    labelled = len(shown) <= _MOST_LABELLED
    num_bytes = np.array([bucket.num_bytes for bucket in shown])
    extent = _extent(shown)
    if labelled:
        width = (1 + _ROOM_FOR_SIZE) * extent
        row_px = _ROW_PX
    else:
        width = float(extent)
        row_px = _LOW_ROW_PX
    scale, unit = bytes_unit(extent)  # of the ticks; x itself counts bytes
    pieces, numbers = _pieces(buckets, shown, width)
    texts: list[Texts] = []
    if labelled:
        words = [bytes_words(size) for size in num_bytes.tolist()]
        lefts = num_bytes + _GAP_BEFORE_SIZE * extent
        middles = np.arange(len(shown)) + 0.5
        sizes = Texts(lefts, middles, words, anchor="start", halo=PAPER)  # the line of a cap may run through a size
        texts = [*numbers, sizes]
    return Plot(
        title=title or _title(buckets, len(shown), int(num_bytes.sum()), iteration),
        x_label=f"bytes of gradients [{unit}]",
        y_label="bucket",
        width=width,
        height=len(shown),
        size_px=(_WIDE_PX, row_px * len(shown)),
        rects=(pieces,),
        lines=(_cap_lines(shown, extent),),
        texts=texts,
        x_ticks=[(tick * scale, label) for tick, label in round_ticks(extent / scale)],
        y_ticks=whole_ticks(len(shown), most=_MOST_LABELLED),
        legend=_bucket_keys(shown, extent, labelled),
    )


def _extent(shown: Sequence[Bucket]) -> int:
    """The largest bucket or cap in bytes, leaving out caps that are far beyond the largest bucket.

    It is at least 1, because a drawing has a width even if all parameters are empty.
    """
    widest = max([1, *(bucket.num_bytes for bucket in shown)])
    caps = [bucket.cap_bytes for bucket in shown if bucket.cap_bytes is not None]
    near_caps = [cap for cap in caps if cap < _FAR_CAP * widest]
    return max([widest, *near_caps])


def _pieces(buckets: DDPBuckets, shown: Sequence[Bucket], width: float) -> tuple[Rects, tuple[Texts, ...]]:
    """Return a rectangle for each gradient, and texts with the parameters' numbers where these fit.

    Each bucket is a row, along which its gradients follow one another, each as wide as its number of bytes. `width` is
    that of the whole drawing, in bytes too.
    """
    # Arrays with an entry for each gradient, bucket by bucket.
    parameter = np.concatenate([bucket.indices for bucket in shown])
    row = np.repeat(np.arange(len(shown)), [len(bucket.indices) for bucket in shown])
    is_sparse = np.repeat([bucket.closed == "sparse" for bucket in shown], [len(bucket.indices) for bucket in shown])
    num_bytes = np.array([spec.num_bytes for spec in buckets.parameters])[parameter]
    bytes_before = np.concatenate([_starts(num_bytes[row == number]) for number in range(len(shown))])  # in its row

    fill = MEMORY["gradients"].hue
    height = 1 - 2 * _MARGIN
    pieces = Rects(bytes_before, row + _MARGIN, fill, width=num_bytes, height=height, hatched=is_sparse)
    piece_px = pieces.width / width * _WIDE_PX
    number_px = np.array([_DIGIT_PX * len(str(number)) + _MARGIN_PX for number in parameter.tolist()])
    # A number on hatching gets a halo. Here every number needs one, because the line of a cap may run through it.
    for_halos = replace(pieces, hatched=np.ones(row.size, dtype=bool))
    return pieces, numbers_on(for_halos, parameter, wanted=piece_px >= number_px)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where pieces of these lengths begin that follow one another from 0 on."""
    return np.cumsum(lengths) - lengths


def _cap_lines(shown: Sequence[Bucket], extent: int) -> Lines:
    """A dashed line through the row of each bucket at its cap, if that is in the picture."""
    rows = []
    caps = []
    for row, bucket in enumerate(shown):
        if bucket.cap_bytes is not None and bucket.cap_bytes <= extent:
            rows.append(row)
            caps.append(bucket.cap_bytes)
    tops = np.array(rows, dtype=float)
    return Lines(caps, tops, caps, tops + 1.0, INK, dashed=True)


def _bucket_keys(shown: Sequence[Bucket], extent: int, labelled: bool) -> list[Key]:
    """Return the legend: each cap, drawn or beyond the `extent` of the drawing, numbers, and hatching."""
    caps = sorted({bucket.cap_bytes for bucket in shown if bucket.cap_bytes is not None})
    keys = [Key(f"cap of {bytes_words(cap)}", INK, line="dashed") for cap in caps if cap <= extent]
    keys += [Key(f"cap of {bytes_words(cap)}, beyond the picture", PAPER) for cap in caps if cap > extent]
    if labelled:
        keys.append(Key("number in a piece: its parameter", PAPER, line="none"))
    if any(bucket.closed == "sparse" for bucket in shown):
        keys.append(Key("sparse gradient, always alone", PAPER, hatched=True))
    return keys


def _title(buckets: DDPBuckets, num_buckets: int, num_bytes: int, iteration: int | None) -> str:
    """Return how many allreduces the gradients need, and in which iterations; None is any after the rebuild."""
    if buckets.rebuilt_at is None:
        when = "at every iteration"
    elif iteration is not None and iteration < buckets.rebuilt_at:
        when = f"before the rebuild at iteration {buckets.rebuilt_at}"
    else:
        when = "after the first iteration"
        if buckets.rebuilt_at > 1:  # with a static graph
            when = f"after the first {buckets.rebuilt_at} iterations"
    gradients = f"{bytes_words(num_bytes)} of gradients, {count_of(len(buckets.parameters), 'parameter')}"
    return f"{gradients}: {count_of(num_buckets, 'allreduce')} {when}"


def draw_caps(recommendation: Recommendation, bucket_cap_mb: float | None = None) -> Plot:
    """Draw a bar for DDP's default and for each cap, from computing alone to the end of the step.

    Next to each bar are its time and its number of buckets. Caps beyond which nothing changes share the last bar. The
    bar of `bucket_cap_mb` (None is the default) is framed.
    """
    of_type("recommendation", recommendation, Recommendation)
    shown = until_alike(recommendation)
    alike_mb = [candidate.bucket_cap_mb for candidate in recommendation.candidates[len(shown) :]]  # as the last shown
    rows = [recommendation.default, *shown]
    names = _cap_names(rows, last_has_more=bool(alike_mb))
    longest_s = max(row.step_s for row in rows)
    scale, unit = time_unit(longest_s)  # x counts this unit, of `scale` seconds
    width = 1.0  # a drawing has a width even if no step takes any time
    x_ticks: tuple[tuple[float, str], ...] = ()
    if longest_s > 0:
        width = (1 + _ROOM_FOR_TIME) * longest_s / scale
        x_ticks = round_ticks(longest_s / scale)
    ends = np.array([row.step_s for row in rows]) / scale
    parts = _parts_of_steps(rows, recommendation.alone_s, scale)
    keys = list(parts)
    framed = [index for index, row in enumerate(rows) if row.bucket_cap_mb == bucket_cap_mb]
    if bucket_cap_mb in alike_mb:  # it shares the last bar
        framed = [len(rows) - 1]
    if framed:
        keys.append(Key("your cap", PAPER, edge=INK))
    words = [f"{three_digits(row.step_s / scale)} {unit}, {count_of(row.num_buckets, 'bucket')}" for row in rows]
    recommended = names[rows.index(recommendation.chosen)]  # always shown: of caps that are alike, the first is chosen
    gain = ""
    if recommendation.gain:  # 0 for the default itself
        gain = f", {percent_words(recommendation.gain, 1)} less than the default"
    return Plot(
        title=f"Recommended: {recommended}{gain}",
        x_label=f"time per step [{unit}]",
        y_label="bucket_cap_mb",
        width=width,
        height=len(rows),
        size_px=(_CAPS_WIDE_PX, _CAPS_ROW_PX * len(rows)),
        rects=(frame(framed, ends[framed], width), *stacked(parts, margin=_CAPS_MARGIN)),
        texts=(Texts(ends + _GAP_BEFORE_TIME * width, np.arange(len(rows)) + 0.5, words, anchor="start"),),
        x_axis=(0.0, longest_s / scale) if longest_s else None,
        x_ticks=x_ticks,
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=keys,
    )


def _parts_of_steps(rows: Sequence[CapCandidate], alone_s: float, scale: float) -> dict[Key, NDArray[np.float64]]:
    """Return each of `PARTS` with its length in all rows, in units of `scale` seconds."""
    step_ends = np.array([row.step_s for row in rows]) / scale
    wait_starts = step_ends - np.array([row.wait_s for row in rows]) / scale
    alone = np.minimum(alone_s / scale, wait_starts)  # rounding may make the first one larger
    lengths = (alone, wait_starts - alone, step_ends - wait_starts)
    parts = {}
    for (name, look), length in zip(PARTS.items(), lengths, strict=True):
        parts[Key(name, look.hue, hatched=look.hatched)] = length
    return parts


def _cap_names(rows: Sequence[CapCandidate], last_has_more: bool) -> list[str]:
    """Return the label of each bar; `last_has_more` says whether the last one also stands for larger caps."""
    names = []
    for row in rows:
        names.append("default" if row.bucket_cap_mb is None else f"{row.bucket_cap_mb:g} MiB")
    if last_has_more:
        names[-1] += " and more"
    return names
