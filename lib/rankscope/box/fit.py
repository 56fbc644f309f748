"""`fit_link`: the latency and bandwidth of a link, fitted to messages of many sizes, with intervals and errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..cluster import Link
from ..common.checks import each, is_scalar, number, several, whole
from ..common.units import bytes_words, cell_words, percent_words, rate_words, times_in_one_unit
from ..common.words import count_of

LEAST_SIZES = 5  # of a fit
MOST_PIECES = 3
LEAST_SIZES_PER_PIECE = 3
_LEAST_NOISE = 0.005  # share of a time: smaller differences are not resolved and need no piece
_HUBER = 1.345  # multiple of the noise: residuals above it are outliers and weigh less (Huber's usual tuning constant)
_ROUNDS = 50  # of reweighting
_SINGULAR = 1e-12  # share of the first term of a determinant: at most this means that sizes cannot separate α from β
_LEAST_FITTED = 1e-3  # share of a measured time: fitted times below it would make relative errors without bound
_DRAWS = 400  # of the bootstrap
_SEED = 0
_MOSTLY = 0.5  # share of a time
_PARAMETERS_PER_PIECE = 4  # that BIC counts: α, β, the start, and one because the noise is itself an estimate
_NOISE_PERCENTILE = 30  # of the distances from neighbours
_PERCENTILE_OF_NORMAL = 0.385  # that percentile of the absolute values of a standard normal distribution
_DEVIATION_PER_MEDIAN = 1.4826  # a normal distribution's standard deviation, by the median of its absolute values

Times = NDArray[np.float64]


class FitPiece(NamedTuple):
    """The line of a range of sizes, and the first byte that it is for."""

    first_byte: float
    link: Link


class FitInterval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


class SizeEnd(NamedTuple):
    """The smallest or the largest size, and the share of its time that its bytes take."""

    num_bytes: float
    bytes_share: float


class SizeEnds(NamedTuple):
    smallest: SizeEnd
    largest: SizeEnd


class LinkFit(msgspec.Struct, frozen=True):
    """The fit of a link to every second size; the sizes in between are held out.

    `link` is one line over all sizes. There is more than one of the `pieces` if the protocol switches. The intervals
    are 95 % intervals of `link`. `held_out_error` is the median relative error of `seconds` over the `num_held_out`
    sizes that were not fitted. `ends` are the smallest and the largest size; the shares of their bytes are estimated
    from the slope to their neighbours.
    """

    link: Link
    pieces: tuple[FitPiece, ...]
    alpha_s_interval: FitInterval
    bytes_per_s_interval: FitInterval
    held_out_error: float
    num_held_out: int
    ends: SizeEnds

    def at(self, num_bytes: float) -> Link:
        """Return the line of the piece that `num_bytes` lies in."""
        number("num_bytes", num_bytes, 0)
        link = self.pieces[0].link
        for piece in self.pieces:
            if num_bytes >= piece.first_byte:
                link = piece.link
        return link

    def seconds(self, num_bytes: float) -> float:
        """Return the time of a message of `num_bytes` in seconds."""
        return self.at(num_bytes).seconds(num_bytes)

    def gap(self, num_bytes: float) -> str:
        """Return which of α and B is unknown, and why, so that the time of `num_bytes` is uncertain; "" if none is.

        α is known if the smallest message is mostly latency. B beyond the largest message is known if that is mostly
        bytes.
        """
        smallest, largest = self.ends
        if smallest.bytes_share > _MOSTLY:
            size = bytes_words(int(smallest.num_bytes))
            return f"α could not be determined, because bytes dominate even at {size}, the smallest message"
        if num_bytes > largest.num_bytes and largest.bytes_share < _MOSTLY:
            size = bytes_words(int(largest.num_bytes))
            return f"B could not be determined, because latency dominates even at {size}, the largest message"
        return ""

    def __str__(self) -> str:
        alpha, low, high = times_in_one_unit(self.link.alpha_s, *self.alpha_s_interval)
        rate, least, most = map(_rate, (self.link.bytes_per_s, *self.bytes_per_s_interval))
        words = f"α {alpha} ({low} to {high}), B {rate} ({least} to {most})"
        if len(self.pieces) > 1:
            lines = [f"at {bytes_words(piece.first_byte)} and above {_words(piece.link)}" for piece in self.pieces]
            words += f"; in pieces: {', '.join(lines)}"
        words += f"; {percent_words(self.held_out_error, 1)} off on {count_of(self.num_held_out, 'held-out size')}"
        gap = self.gap(0)  # for 0 bytes it can only say that α is unknown; B's gap depends on the predicted size
        if gap:
            words += f"; {gap}"
        return words


def fit_link(num_bytes: Sequence[int], seconds: Sequence[Any]) -> LinkFit:
    """Fit latency and bandwidth to the times of messages.

    `seconds` contains, for each size in `num_bytes`, one time or a sequence of samples. Sizes may come in any order;
    samples of equal sizes are merged. The fit uses the median per size and relative errors, so microseconds weigh as
    much as seconds. Every second size is held out. BIC chooses between 1, 2 and 3 pieces; the noise is estimated from
    the distances of sizes from the line through their neighbours and from one line over all sizes, whichever is
    smaller. Intervals come from the residuals or, if there are samples and theirs is wider, from a bootstrap.

    Raises ValueError if there are fewer than 5 sizes or if a time is outside 1e-12 to 1e9 s.

    >>> sizes = [4**power for power in range(5, 13)]
    >>> print(fit_link(sizes, [5e-3 + size / 12.5e6 for size in sizes]))  # 5 ms and 100 Mbit/s
    α 5 ms (5 ms to 5 ms), B 12.5 MB/s (12.5 MB/s to 12.5 MB/s); 0.0 % off on 4 held-out sizes
    """
    measured = _by_size(num_bytes, seconds)
    sizes = measured.sizes
    medians_s = measured.medians_s
    fitted = sizes[::2]
    fitted_s = medians_s[::2]
    noise = _noise(fitted, fitted_s)
    line = _lines(fitted, fitted_s[None], noise)[0]  # α and β, as are low and high
    low, high = _interval(fitted, fitted_s, line, noise)
    if any(times_s.size > 1 for times_s in measured.samples_s):
        drawn = _lines(fitted, _drawn(measured.samples_s[::2]), noise)  # a row per draw
        low = np.minimum(low, np.percentile(drawn, 2.5, axis=0))
        high = np.maximum(high, np.percentile(drawn, 97.5, axis=0))
    # At each size but the last, the share of its time that its bytes take, by the slope to the next size. The largest
    # size has no next one, so the share of the size before it stands for it.
    shares = np.diff(medians_s) / medians_s[:-1] * sizes[:-1] / np.diff(sizes)
    fit = LinkFit(
        link=_link(line),
        pieces=_pieces(fitted, fitted_s, noise),
        alpha_s_interval=FitInterval(float(low[0]), float(high[0])),
        bytes_per_s_interval=FitInterval(_inverse(high[1]), _inverse(low[1])),  # the higher β, the lower the bandwidth
        held_out_error=np.nan,  # until the fit predicts
        num_held_out=sizes.size // 2,
        ends=SizeEnds(SizeEnd(float(sizes[0]), float(shares[0])), SizeEnd(float(sizes[-1]), float(shares[-1]))),
    )
    predicted_s = np.array([fit.seconds(size) for size in sizes[1::2]])
    error = float(np.median(np.abs(predicted_s / medians_s[1::2] - 1)))
    return replace(fit, held_out_error=error)


def slope_s_per_byte(num_bytes: Sequence[int], seconds: Sequence[Any]) -> float:
    """Return the seconds per byte, robustly fitted. One size is enough; then bytes take all of its time."""
    measured = _by_size(num_bytes, seconds, least=1)
    sizes = measured.sizes
    medians_s = measured.medians_s
    if sizes.size < LEAST_SIZES_PER_PIECE:  # too few for a line
        return float(np.median(medians_s / np.maximum(sizes, 1)))  # a size may be 0
    _, s_per_byte = _lines(sizes, medians_s[None], _noise(sizes, medians_s))[0]
    return float(s_per_byte)


class _MeasuredSizes(NamedTuple):
    """The distinct sizes in ascending order, and the samples of each."""

    sizes: Times
    samples_s: list[Times]

    @property
    def medians_s(self) -> Times:
        return np.array([np.median(times_s) for times_s in self.samples_s])


def _by_size(num_bytes: Any, seconds: Any, least: int = LEAST_SIZES) -> _MeasuredSizes:
    """Check the arguments of `fit_link`, and return the samples of equal sizes together.

    Raises ValueError if there are fewer than `least` different sizes, and as `fit_link` does.
    """
    sizes = several("num_bytes", num_bytes)
    times = several("seconds", seconds)
    if len(sizes) != len(times):
        raise ValueError(f"seconds must be for each of {len(sizes)} sizes, got {len(times)}")
    by_size: dict[int, list[float]] = {}
    for size, samples in zip(sizes, times, strict=True):
        of_size = by_size.setdefault(whole("num_bytes", size, 0), [])
        if is_scalar(samples) or not hasattr(samples, "__len__"):
            samples = [samples]  # one time instead of several; the check below refuses anything that is no number
        of_size += each("seconds", samples, number, 1e-12, 1e9)
        if not of_size:
            raise ValueError(f"seconds must have a time of each size, got none of {size!r} bytes")
    ordered = sorted(by_size)
    if len(ordered) < least:
        raise ValueError(f"num_bytes must be at least {least} different sizes, got {ordered}")
    return _MeasuredSizes(np.array(ordered, dtype=float), [np.array(by_size[size]) for size in ordered])


def _noise(sizes: Times, seconds: Times) -> float:
    """Return the relative noise of times: its standard deviation, as a share of the time.

    Two estimates exist, and each is too large in another case, so the smaller one counts. The distances from one line
    over all sizes also contain a protocol switch, which no single line follows. The distances from the line through the
    two neighbours do not, but with few sizes an outlier enters most of them.
    """
    return max(min(_noise_by_neighbours(sizes, seconds), _noise_by_line(sizes, seconds)), _LEAST_NOISE)


def _noise_by_neighbours(sizes: Times, seconds: Times) -> float:
    """Return the noise by how far each inner size is off the line through the size before and the size after it."""
    inner_s = seconds[1:-1]
    weight_before = (sizes[2:] - sizes[1:-1]) / (sizes[2:] - sizes[:-2])
    before_s = weight_before * seconds[:-2]
    after_s = (1 - weight_before) * seconds[2:]
    off_s = np.abs(before_s + after_s - inner_s)
    # Each of the three times has independent noise in proportion to itself, so this times the noise is the standard
    # deviation of the distance.
    scale_s = np.sqrt(inner_s**2 + before_s**2 + after_s**2)
    # An outlier spoils three distances, its own and those of both neighbours. So a low percentile replaces the median.
    return float(np.percentile(off_s / scale_s, _NOISE_PERCENTILE)) / _PERCENTILE_OF_NORMAL


def _noise_by_line(sizes: Times, seconds: Times) -> float:
    """Return the noise by how far the sizes are off one line over all of them."""
    # The noise is not known yet. With the least one, every size that is off by more counts as an outlier, so this comes
    # close to the line of least absolute errors.
    line = _lines(sizes, seconds[None], _LEAST_NOISE)[0]
    off = np.sort(np.abs(_seconds_on(line, sizes) / seconds - 1))
    # Such a line has two parameters and passes through about two of the sizes, which say nothing about the noise.
    return _DEVIATION_PER_MEDIAN * float(np.median(off[2:]))


def _seconds_on(line: Times, sizes: Times) -> Times:
    """Return the seconds of sizes on a line, an array of α and β."""
    alpha_s, s_per_byte = line
    return np.asarray(alpha_s + sizes * s_per_byte)


def _lines(sizes: Times, seconds: Times, noise: float, chosen: NDArray[np.bool_] | None = None) -> Times:
    """Return α and β, both at least 0, per row of `seconds`: least squares of relative errors, outliers downweighted.

    `seconds` has a column for each of the `sizes`; its rows are fitted independently. A row of `chosen` selects the
    sizes that count. The result has the columns α and β.

    Each round divides the errors by the times that the round before fitted, and gives an outlier a lower weight
    (iteratively reweighted least squares with Huber's weights).
    """
    fitted_s = seconds
    weight = np.ones_like(seconds)
    for _ in range(_ROUNDS):
        if chosen is not None:
            weight = weight * chosen
        # Find α and β so that α x + β y is close to z, by the normal equations.
        x = 1 / fitted_s
        y = sizes / fitted_s
        z = seconds / fitted_s
        xx = (weight * (x * x)).sum(-1)
        xy = (weight * (x * y)).sum(-1)
        yy = (weight * (y * y)).sum(-1)
        xz = (weight * (x * z)).sum(-1)
        yz = (weight * (y * z)).sum(-1)
        determinant = xx * yy - xy * xy
        is_singular = determinant <= _SINGULAR * xx * yy
        divisor = np.where(is_singular, 1.0, determinant)
        alpha_s = (yy * xz - xy * yz) / divisor
        beta = (xx * yz - xy * xz) / divisor
        # Neither can be negative. If one would be, it is 0, and only the other is fitted. Sizes so similar that they
        # cannot separate the two take equally long, which α alone describes.
        has_only_alpha = is_singular | (beta <= 0)
        has_only_beta = ~is_singular & (alpha_s <= 0)
        alpha_s = np.where(has_only_beta, 0.0, np.where(has_only_alpha, xz / xx, alpha_s))
        beta = np.where(has_only_alpha, 0.0, np.where(has_only_beta, yz / yy, beta))
        fitted_s = np.maximum(alpha_s[:, None] + sizes * beta[:, None], seconds * _LEAST_FITTED)
        off = np.maximum(np.abs(seconds / fitted_s - 1), 1e-12)  # not 0, so that it can be a divisor
        weight = np.minimum(1.0, _HUBER * noise / off)
    return np.stack([alpha_s, beta], axis=-1)


def _interval(sizes: Times, seconds: Times, line: Times, noise: float) -> tuple[Times, Times]:
    """Return the lower ends of the 95 % intervals of α and β, and the upper ends.

    They are those of Student's t with the variance of Huber's estimator (Huber 1981, chapter 7): outliers count as if
    they were off by no more than the limit, and the variance grows with their share.
    """
    fitted_s = np.maximum(_seconds_on(line, sizes), seconds * _LEAST_FITTED)
    off = np.minimum(np.abs(seconds / fitted_s - 1), _HUBER * noise)
    # The share of sizes that are no outliers; of one at least, because it is a divisor.
    inside = max(float((off < _HUBER * noise).mean()), 1 / sizes.size)
    freedom = sizes.size - 2  # degrees of freedom: two parameters are fitted
    factor = (1 + 2 / sizes.size * (1 - inside) / inside) / inside  # Huber's correction
    x = 1 / fitted_s
    y = sizes / fitted_s
    xx = x @ x
    xy = x @ y
    yy = y @ y
    determinant = max(xx * yy - xy * xy, _SINGULAR * xx * yy)  # not 0, because it is a divisor
    # Of α and β: the diagonal of the normal equations' inverse, times the variance of the residuals.
    variance = factor**2 * (off @ off) / freedom * np.array([yy, xx]) / determinant
    half_width = _student(freedom) * np.sqrt(variance)
    return np.maximum(line - half_width, 0.0), line + half_width


def _student(freedom: int) -> float:
    """Return the 97.5th percentile of Student's t: Cornish and Fisher's expansion, right from 3 degrees of freedom."""
    exact = {1: 12.706, 2: 4.303}
    return exact.get(freedom, 1.960 + 2.372 / freedom + 2.822 / freedom**2 + 2.556 / freedom**3)


def _drawn(samples: list[Times]) -> Times:
    """Return the medians of samples drawn with replacement (bootstrap): a row per draw, a column per size."""
    random = np.random.default_rng(_SEED)
    columns = [np.median(random.choice(times_s, (_DRAWS, times_s.size)), axis=1) for times_s in samples]
    return np.stack(columns, axis=1)


_Run = tuple[int, int]  # a range of adjacent sizes: the index of its first size, and the index after its last


def _pieces(sizes: Times, seconds: Times, noise: float) -> tuple[FitPiece, ...]:
    """Return the lines of one, two or three runs of adjacent sizes.

    Every way to split the sizes into runs is compared by its BIC: the misfit of all runs, plus a penalty per piece.
    """
    num_sizes = sizes.size
    runs = []
    for first in range(num_sizes):
        for end in range(first + LEAST_SIZES_PER_PIECE, num_sizes + 1):
            runs.append((first, end))
    # Fit all runs at once. The arrays have a row per run and a column per size.
    indices = np.arange(num_sizes)
    chosen = np.array([(first <= indices) & (indices < end) for first, end in runs])
    lines = _lines(sizes, np.repeat(seconds[None], len(runs), axis=0), noise, chosen)
    predicted_s = lines[:, :1] + sizes * lines[:, 1:]
    off = np.abs(predicted_s / seconds - 1) / noise
    huber_loss = np.where(off < _HUBER, off**2, _HUBER * (2 * off - _HUBER))  # quadratic, but linear for outliers
    misfit = dict(zip(runs, (huber_loss * chosen).sum(axis=1), strict=True))
    line_of = dict(zip(runs, lines, strict=True))

    def bic(split: list[_Run]) -> float:
        penalty = _PARAMETERS_PER_PIECE * np.log(num_sizes) * (len(split) - 1)
        return float(sum(misfit[run] for run in split) + penalty)

    splits = []
    for num_cuts in range(MOST_PIECES):
        for cuts in combinations(range(num_sizes), num_cuts):
            split = list(pairwise((0, *cuts, num_sizes)))
            if all(run in misfit for run in split):  # otherwise a run is too short
                splits.append(split)
    best = min(splits, key=bic)
    pieces = [FitPiece(0.0, _link(line_of[best[0]]))]
    for before, after in pairwise(best):
        start = _start(sizes, line_of[before], line_of[after], after[0])
        pieces.append(FitPiece(start, _link(line_of[after])))
    return tuple(pieces)


def _start(sizes: Times, before: Times, after: Times, first: int) -> float:
    """Return where a piece starts: where the lines cross if that is between its first size and the one before.

    Otherwise it starts at its first size.
    """
    alpha_before_s, beta_before = before
    alpha_after_s, beta_after = after
    if beta_before != beta_after:  # parallel lines do not cross
        crossing = (alpha_after_s - alpha_before_s) / (beta_before - beta_after)
        if sizes[first - 1] < crossing < sizes[first]:
            return float(crossing)
    return float(sizes[first])


def _link(line: Times) -> Link:
    alpha_s, s_per_byte = line
    return Link(float(alpha_s), _inverse(s_per_byte))


def _inverse(s_per_byte: float) -> float:
    """Return the bytes/s of a slope: without bound if bytes cost no time."""
    return float(1 / s_per_byte) if s_per_byte else np.inf


def _words(link: Link) -> str:
    return f"α {cell_words(link.alpha_s)}, B {_rate(link.bytes_per_s)}"


def _rate(bytes_per_s: float) -> str:
    return rate_words(bytes_per_s) if np.isfinite(bytes_per_s) else "unlimited"
