"""`fit_link`: the latency and bandwidth of a link, fitted to messages of many sizes, with intervals and errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..cluster import Link
from ..common.checks import count_of, is_scalar, number, several, whole
from ..common.frozen import each
from ..common.units import bytes_words, cell_words, rate_words, times_in_one_unit

LEAST_SIZES = 5
MOST_PIECES, LEAST_A_PIECE = 3, 3
_LEAST_NOISE = 0.005  # share of a time: smaller differences are not resolved and need no piece
_HUBER = 1.345  # multiple of the noise: residuals above it are outliers and weigh less
_ROUNDS, _DRAWS, _SEED = 50, 400, 0
_MOSTLY = 0.5  # share of a time

Times = NDArray[np.float64]


@attrs.frozen
class LinkFit:
    """The fit of a link to every second size; the sizes in between are held out.

    `link` is one line over all sizes. `pieces` are (first byte, line), more than one if the protocol switches. The
    intervals are 95 % intervals of `link`. `held_out_error` is the median relative error of `seconds` over the
    `num_held_out` sizes that were not fitted. `ends` are the smallest and the largest size, each with the share of its
    time that its bytes take, estimated from the slope to its neighbour.
    """

    link: Link
    pieces: tuple[tuple[float, Link], ...]
    alpha_s_interval: tuple[float, float]
    bytes_per_s_interval: tuple[float, float]
    held_out_error: float
    num_held_out: int
    ends: tuple[tuple[float, float], tuple[float, float]]

    def at(self, num_bytes: float) -> Link:
        """Return the line of the piece that `num_bytes` lies in."""
        number("num_bytes", num_bytes, 0)
        return next((link for start, link in reversed(self.pieces) if num_bytes >= start), self.pieces[0][1])

    def seconds(self, num_bytes: float) -> float:
        """Return the time of a message of `num_bytes` in seconds."""
        return self.at(num_bytes).seconds(num_bytes)

    def gap(self, num_bytes: float) -> str:
        """Return which of α and B is unknown, and why, so that the time of `num_bytes` is uncertain; "" if none is.

        α is known if the smallest message is mostly latency. B beyond the largest message is known if that is mostly
        bytes.
        """
        (least, least_share), (most, most_share) = self.ends
        if least_share > _MOSTLY:
            return f"α is not known: the smallest message, {bytes_words(int(least))}, is mostly bytes"
        if num_bytes > most and most_share < _MOSTLY:
            return f"B is not known: the largest message, {bytes_words(int(most))}, is mostly latency"
        return ""

    def __str__(self) -> str:
        alpha, low, high = times_in_one_unit(self.link.alpha_s, *self.alpha_s_interval)
        rate, least, most = map(_rate, (self.link.bytes_per_s, *self.bytes_per_s_interval))
        line = f"α {alpha} ({low} to {high}), B {rate} ({least} to {most})"
        each = (f"from {bytes_words(start)} on {_words(link)}" for start, link in self.pieces)
        pieces = f"; in pieces: {', '.join(each)}" if len(self.pieces) > 1 else ""
        held_out = f"{self.held_out_error:.1%} off on {count_of(self.num_held_out, 'size')} held out"
        return "; ".join(filter(None, [f"{line}{pieces}", held_out, self.gap(0)]))


def fit_link(num_bytes: Sequence[int], seconds: Sequence[Any]) -> LinkFit:
    """Fit latency and bandwidth to messages of `num_bytes` that took `seconds`: per size one time, or its samples.

    Sizes may come in any order; the samples of equal sizes are merged. The fit uses the median per size and relative
    errors, so microseconds weigh as much as seconds. Every second size is held out. BIC chooses between 1, 2 and 3
    pieces; the noise is estimated from how far sizes lie off the line through their neighbours. The intervals are the
    wider of those from the residuals and, if there are samples, from a bootstrap.

    Raises ValueError for fewer than 5 sizes, and for times outside 1e-12 to 1e9 s.

    >>> sizes = [4**power for power in range(5, 13)]
    >>> print(fit_link(sizes, [5e-3 + size / 12.5e6 for size in sizes]))  # 5 ms and 100 Mbit/s
    α 5 ms (5 ms to 5 ms), B 12.5 MB/s (12.5 MB/s to 12.5 MB/s); 0.0% off on 4 sizes held out
    """
    sizes, samples = _by_size(num_bytes, seconds)
    medians_s = np.array([np.median(one) for one in samples])
    fitted, fitted_s = sizes[::2], medians_s[::2]
    noise = _noise(fitted, fitted_s)
    line = _lines(fitted, fitted_s[None], noise)[0]
    low, high = _interval(fitted, fitted_s, line, noise)
    if any(one.size > 1 for one in samples):
        drawn = _lines(fitted, _drawn(samples[::2]), noise)
        low = np.minimum(low, np.percentile(drawn, 2.5, axis=0))
        high = np.maximum(high, np.percentile(drawn, 97.5, axis=0))
    pieces = _pieces(fitted, fitted_s, noise)
    alpha_s, rate = (float(low[0]), float(high[0])), (_inverse(high[1]), _inverse(low[1]))
    share = np.diff(medians_s) / medians_s[:-1] * sizes[:-1] / np.diff(sizes)
    ends = (float(sizes[0]), float(share[0])), (float(sizes[-1]), float(share[-1]))
    found = LinkFit(_link(line), pieces, alpha_s, rate, np.nan, sizes.size // 2, ends)
    predicted_s = np.array([found.seconds(size) for size in sizes[1::2]])
    return attrs.evolve(found, held_out_error=float(np.median(np.abs(predicted_s / medians_s[1::2] - 1))))


def slope_s_per_byte(num_bytes: Sequence[int], seconds: Sequence[Any]) -> float:
    """Return the seconds per byte, robustly fitted; one size is enough."""
    sizes, samples = _by_size(num_bytes, seconds, least=1)
    medians_s = np.array([np.median(one) for one in samples])
    if sizes.size < LEAST_A_PIECE:
        return float(np.median(medians_s / np.maximum(sizes, 1)))
    return float(_lines(sizes, medians_s[None], _noise(sizes, medians_s))[0, 1])


def _by_size(num_bytes: Any, seconds: Any, least: int = LEAST_SIZES) -> tuple[Times, list[Times]]:
    """The distinct sizes in ascending order, and the samples of each."""
    sizes, times = several("num_bytes", num_bytes), several("seconds", seconds)
    if len(sizes) != len(times):
        raise ValueError(f"seconds must be for each of {len(sizes)} sizes, got {len(times)}")
    found: dict[int, list[float]] = {}
    for size, samples in zip(sizes, times, strict=True):
        of_size = found.setdefault(whole("num_bytes", size, 0), [])
        one = is_scalar(samples) or not hasattr(samples, "__len__")
        of_size += each("seconds", [samples] if one else samples, number, 1e-12, 1e9)
        if not of_size:
            raise ValueError(f"seconds must have a time of each size, got none of {size!r} bytes")
    if len(found) < least:
        raise ValueError(f"num_bytes must be at least {least} different sizes, got {sorted(found)}")
    return np.array(sorted(found), dtype=float), [np.array(found[size]) for size in sorted(found)]


def _noise(sizes: Times, seconds: Times) -> float:
    """The relative noise of times, not counting outliers and protocol switches.

    The smaller of two estimates: how far sizes are off the line through their neighbours, and off one line over all.
    """
    share = (sizes[2:] - sizes[1:-1]) / (sizes[2:] - sizes[:-2])
    before_s, after_s = share * seconds[:-2], (1 - share) * seconds[2:]
    off_s = np.abs(before_s + after_s - seconds[1:-1])
    off = off_s / np.sqrt(seconds[1:-1] ** 2 + before_s**2 + after_s**2)  # all three sizes have noise
    line = _lines(sizes, seconds[None], _LEAST_NOISE)[0]
    off_line = np.sort(np.abs((line[0] + sizes * line[1]) / seconds - 1))[2:]  # two lie on the line
    return max(min(float(np.percentile(off, 30)) / 0.385, 1.4826 * float(np.median(off_line))), _LEAST_NOISE)


def _lines(sizes: Times, seconds: Times, noise: float, chosen: NDArray[np.bool_] | None = None) -> Times:
    """α and β per row of `seconds`: least squares of the relative errors, with outliers downweighted.

    A row of `chosen` selects the sizes that count.
    """
    fitted_s, weight = seconds, np.ones_like(seconds)
    for _ in range(_ROUNDS):
        if chosen is not None:
            weight = weight * chosen
        x, y, z = 1 / fitted_s, sizes / fitted_s, seconds / fitted_s
        xx, xy, yy, xz, yz = ((weight * one).sum(-1) for one in (x * x, x * y, y * y, x * z, y * z))
        least = xx * yy - xy * xy
        alike = least <= 1e-12 * xx * yy  # sizes too close to separate α from β
        alpha_s, beta = (yy * xz - xy * yz, xx * yz - xy * xz) / np.where(alike, 1.0, least)
        flat, free = alike | (beta <= 0), ~alike & (alpha_s <= 0)
        alpha_s, beta = np.where(flat, xz / xx, alpha_s), np.where(free & ~flat, yz / yy, beta)
        alpha_s, beta = np.where(free, 0.0, alpha_s), np.where(flat, 0.0, beta)
        fitted_s = np.maximum(alpha_s[:, None] + sizes * beta[:, None], seconds * 1e-3)
        weight = np.minimum(1.0, _HUBER * noise / np.maximum(np.abs(seconds / fitted_s - 1), 1e-12))
    return np.stack([alpha_s, beta], axis=-1)


def _interval(sizes: Times, seconds: Times, line: Times, noise: float) -> tuple[Times, Times]:
    """The lower and upper ends of the 95 % intervals of α and β: Student's t, Huber's variance (1981, ch. 7)."""
    fitted_s = np.maximum(line[0] + sizes * line[1], seconds * 1e-3)
    off = np.minimum(np.abs(seconds / fitted_s - 1), _HUBER * noise)
    inside = max(float((off < _HUBER * noise).mean()), 1 / sizes.size)
    freedom = sizes.size - 2
    factor = (1 + 2 / sizes.size * (1 - inside) / inside) / inside
    x, y = 1 / fitted_s, sizes / fitted_s
    xx, xy, yy = x @ x, x @ y, y @ y
    variance = factor**2 * (off @ off) / freedom * np.array([yy, xx]) / max(xx * yy - xy * xy, 1e-12 * xx * yy)
    wide = _student(freedom) * np.sqrt(variance)
    return np.maximum(line - wide, 0.0), line + wide


def _student(freedom: int) -> float:
    """The 97.5th percentile of Student's t (Cornish and Fisher's expansion, accurate from 3 degrees of freedom)."""
    exact = {1: 12.706, 2: 4.303}
    return exact.get(freedom, 1.960 + 2.372 / freedom + 2.822 / freedom**2 + 2.556 / freedom**3)


def _drawn(samples: list[Times]) -> Times:
    """The medians of samples drawn with replacement (bootstrap), one row per draw."""
    draw = np.random.default_rng(_SEED)
    return np.stack([np.median(draw.choice(one, (_DRAWS, one.size)), axis=1) for one in samples], axis=1)


def _pieces(sizes: Times, seconds: Times, noise: float) -> tuple[tuple[float, Link], ...]:
    """The lines of one, two or three runs of sizes, chosen by BIC (parameters: α, β, a start, and half the noise)."""
    n = sizes.size
    runs = [(a, b) for a in range(n) for b in range(a + LEAST_A_PIECE, n + 1)]
    places = np.arange(n)
    chosen = np.array([(a <= places) & (places < b) for a, b in runs])
    lines = _lines(sizes, np.repeat(seconds[None], len(runs), axis=0), noise, chosen)
    off = np.abs((lines[:, :1] + sizes * lines[:, 1:]) / seconds - 1) / noise
    huber = np.where(off < _HUBER, off**2, _HUBER * (2 * off - _HUBER))
    misfit = dict(zip(runs, (huber * chosen).sum(axis=1), strict=True))
    line = dict(zip(runs, lines, strict=True))

    def cost(cuts: tuple[int, ...]) -> float:
        return float(sum(misfit[run] for run in _runs(cuts, n)) + 4 * np.log(n) * len(cuts))

    ways = [cuts for k in range(MOST_PIECES) for cuts in combinations(range(n), k)
            if all(run in misfit for run in _runs(cuts, n))]  # fmt: skip
    found = _runs(min(ways, key=cost), n)
    starts = [0.0, *(_start(sizes, line[one], line[two], two[0]) for one, two in pairwise(found))]
    return tuple((start, _link(line[run])) for start, run in zip(starts, found, strict=True))


def _runs(cuts: tuple[int, ...], n: int) -> list[tuple[int, int]]:
    return list(pairwise((0, *cuts, n)))


def _start(sizes: Times, before: Times, after: Times, first: int) -> float:
    """The start of a piece: where the lines cross if that lies between the two adjacent sizes, else its first size."""
    crossing = (after[0] - before[0]) / (before[1] - after[1]) if before[1] != after[1] else np.inf
    return float(crossing if sizes[first - 1] < crossing < sizes[first] else sizes[first])


def _link(line: Times) -> Link:
    return Link(float(line[0]), _inverse(line[1]))


def _inverse(beta: float) -> float:
    return float(1 / beta) if beta else np.inf


def _words(link: Link) -> str:
    return f"α {cell_words(link.alpha_s)}, B {_rate(link.bytes_per_s)}"


def _rate(bytes_per_s: float) -> str:
    return rate_words(bytes_per_s) if np.isfinite(bytes_per_s) else "unlimited"
