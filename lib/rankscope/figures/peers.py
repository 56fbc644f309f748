"""Drawing of how quick copies between GPUs are: a matrix of sources and targets."""

from __future__ import annotations

import numpy as np

from ..machine import Profile
from ..values.checks import of_type
from ..values.units import bytes_words, rate_words, three_digits
from .marks import Drawing, Rects, numbers_on, whole_ticks
from .palette import EMPTY, ramp

_CELL_PX, _LEAST_PX = 46.0, 400.0  # a title has to fit


def draw_peers(profile: Profile, title: str | None = None) -> Drawing:
    """Draw the bandwidth of copies from each GPU to each other at the largest size that a profile has; paler is more.

    Copies go one at a time. Raises ValueError for a profile without copies between GPUs.
    """
    found = of_type("profile", profile, Profile).select("transfer", direction="p2p", both=False)
    size = max((point.num_bytes for point in found), default=0)
    points = [point for point in found if point.num_bytes == size]
    if not points:
        raise ValueError("profile must have copies between GPUs (direction 'p2p'), got none")
    number = 1 + max(int(point.options[end]) for point in points for end in ("src", "dst"))
    rates = np.zeros((number, number))
    for point in points:
        rates[int(point.options["src"]), int(point.options["dst"])] = size / point.median_s
    there = rates > 0
    shades = ramp(rates / rates.max())
    fill = [shade if known else EMPTY for shade, known in zip(shades, there.ravel().tolist(), strict=True)]
    src, dst = np.indices(rates.shape)
    rects = Rects.of(dst, src, fill)
    words = np.array([three_digits(rate / 1e9) for rate in rates.ravel().tolist()])
    slow, quick = float(rates[there].min()), float(rates.max())
    return Drawing(
        title=title or f"{bytes_words(size)} from GPU to GPU: {rate_words(slow)} to {rate_words(quick)}",
        x_label="target [GPU; number: GB/s]",
        y_label="source [GPU]",
        width=number,
        height=number,
        size_px=(max(_CELL_PX * number, _LEAST_PX), 26.0 * number),
        rects=(rects,),
        texts=numbers_on(rects, words, wanted=there.ravel()),
        x_ticks=whole_ticks(number),
        y_ticks=whole_ticks(number),
    )
