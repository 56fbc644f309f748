"""Drawings of measured machines over each other: bus bandwidth or time of the backends' own collectives, by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from ...common.checks import number, of_type, one_of
from ...common.units import bytes_words, rate_words, rates_in_one_unit, round_ticks, times_in_one_unit
from ...figures.palette import FAINT, INK, LINES
from ...figures.plots import FloatArray, Key, Lines, Plot, Rects, Texts, spread_out
from .. import Profile
from ..expected import compare_with_peers
from ..machines import is_sick
from ..profile import busbw_factor

UNITS = {
    "busbw": "bus bandwidth (busbw) [GB/s]",
    "log": "bus bandwidth (busbw) [GB/s]",
    "time": "time [µs]",
}
MOST_LINES = 12
LEAST_BYTES = 1 << 10  # smaller messages take as long, and say nothing of bandwidth
_HUES = LINES[:6] * 2  # twice, because there are up to 12 lines
_WIDTH_PX = 420.0  # of the lines, without the names next to them
_HEIGHT_PX = 330.0
_DOT_PX = 5.0
_LINE_PX = 15.0  # from one name to the next
_LETTER_PX = 7.0
_MARGIN_PX = 8.0  # right of the names
_THIN_PX = 0.7  # of grid lines, and of those that lead to names
_CURVE_PX = 1.7
_YOUR_CURVE_PX = 2.6
_LEADER_START = 1.015  # where the line that leads to a name begins, as a part of the width
_NAMES_START = 1.05  # where it ends, and the name begins
_NAME_GAP = 0.01  # between the two, as a part of the width
_MOST_SIZE_TICKS = 7
_LOG_MARGIN = 0.1  # of a decade, below and above the lines
_FEW_DECADES = 2.5  # an axis with fewer needs more ticks than the powers of ten


class _BoxLine(msgspec.Struct, frozen=True, eq=False):
    """The times of a collective on a machine by size, and the factor to its bus bandwidth."""

    name: str
    seconds: dict[int, float]
    factor: float
    is_sick: bool
    is_yours: bool

    def rate(self, num_bytes: int) -> float:
        """Return the bus bandwidth in bytes/s."""
        return self.factor * num_bytes / self.seconds[num_bytes]

    def values(self, view: str) -> FloatArray:
        """Return what a view draws at each size: µs or GB/s, as logarithms except in the view "busbw"."""
        if view == "time":
            return np.log10([seconds * 1e6 for seconds in self.seconds.values()])
        rates = np.array([self.rate(num_bytes) / 1e9 for num_bytes in self.seconds])
        return rates if view == "busbw" else np.log10(rates)


class _BoxAxes(NamedTuple):
    """The axes: log2 of the smallest size, the value at the top, and the extent of both axes.

    Values are those of `_BoxLine.values`. A unit of the width is a factor of two in size.
    """

    left: float
    top: float
    width: float
    height: float
    y_ticks: list[tuple[float, str]]  # distances from the top, with their labels


class _BoxCurve(NamedTuple):
    """A line in the coordinates of the drawing: x from the left, y from the top."""

    line: _BoxLine
    x: FloatArray
    y: FloatArray
    hue: str
    name_y: float  # where its name stands


def draw_boxes(
    profiles: Mapping[str, Profile],
    collective: str = "allreduce",
    view: str = "busbw",
    yours: str = "",
    at_bytes: float = 0.0,
    title: str | None = None,
) -> Plot:
    """Draw the performance of the backends' own collectives on several machines, as lines with a dot at each size.

    The view "busbw" shows the bus bandwidth, "log" the same on a logarithmic axis, "time" the time. The profile named
    `yours` is black. Machines with a known or suspected fault are dashed. A vertical line marks `at_bytes`, unless it
    is 0 or outside the axis. Sizes below 1 KiB are omitted if there are larger ones.

    Raises ValueError if the view is unknown or shows bus bandwidths that the lines do not have, if `at_bytes` is
    negative, if a profile lacks the collective, or if there are no lines or more than 12.
    """
    one_of("view", view, tuple(UNITS))
    number("at_bytes", at_bytes, 0)
    lines = _lines(profiles, collective, yours)
    _check_busbw(lines, view)
    frame = _frame(lines, view)
    curves = _curves(lines, view, frame)
    names_px = _names_px(lines)
    rules = []
    if at_bytes:
        x = math.log2(at_bytes) - frame.left
        if 0 <= x <= frame.width:
            rules.append(x)
    legend = []
    if any(line.is_sick for line in lines):
        legend.append(Key("known or suspected fault", INK, line="dashed"))
    grid_lines = [Lines(0, y, frame.width, y, FAINT, width_px=_THIN_PX) for y, _ in frame.y_ticks]
    drawn_lines = list(grid_lines)
    for curve in curves:
        drawn_lines += _drawn_lines(curve, frame)
    names_x = (_NAMES_START + _NAME_GAP) * frame.width
    names_y = [curve.name_y for curve in curves]
    return Plot(
        title=title or _finding(lines, view, collective),
        x_label="size of each rank's buffer",
        y_label=UNITS[view],
        width=frame.width * (1 + names_px / _WIDTH_PX),  # in the frame's units, with the names
        height=frame.height,
        size_px=(_WIDTH_PX + names_px, _HEIGHT_PX),
        rects=[_dots(curve, frame) for curve in curves],
        lines=drawn_lines,
        texts=[Texts(names_x, names_y, [line.name for line in lines], anchor="start")],
        rules=rules,
        x_axis=(0.0, frame.width),
        x_ticks=_size_ticks(lines, frame.left),
        y_ticks=frame.y_ticks,
        legend=legend,
    )


def _names_px(lines: Sequence[_BoxLine]) -> float:
    """Return the width that the names of the lines need, and the lines that lead to them."""
    leaders_px = (_NAMES_START - 1) * _WIDTH_PX
    longest_name_px = _LETTER_PX * max(len(line.name) for line in lines)
    return leaders_px + _MARGIN_PX + longest_name_px


def draw_with_peers(profile: Profile, name: str = "yours", title: str | None = None) -> Plot:
    """Draw a profile's own collective together with those of similar machines of the bank; see `compare_with_peers`.

    The collective is the one whose shortfall the verdict states, or else the first. Raises ValueError if no collective
    was measured.
    """
    box = compare_with_peers(of_type("profile", profile, Profile))
    collective = next(iter(profile.native), "allreduce")  # without any, `draw_boxes` says what is missing
    if box.worst.row is not None:
        collective = box.worst.row.collective
    shown = {name: profile}
    for peer_name, peer in islice(box.peers.items(), MOST_LINES - 1):
        if peer.native_s(collective):
            shown.setdefault(peer_name, peer)  # a machine of the bank may have the name of the profile
    # On a logarithmic axis a shortfall is as easy to see at small sizes, where latency decides, as at large ones.
    return draw_boxes(shown, collective, "log", name, title=title)


def _lines(profiles: Mapping[str, Profile], collective: str, yours: str) -> list[_BoxLine]:
    """Return a line for each profile. Raises ValueError if one lacks the collective, or if there are none or too many.

    If a profile has sizes of 1 KiB and above, smaller ones are left out.
    """
    lines = []
    for name, profile in profiles.items():
        seconds = of_type(f"profiles[{name!r}]", profile, Profile).native_s(collective)
        if not seconds:
            raise ValueError(f"profiles[{name!r}] must have {collective} of the backend, got none")
        least_bytes = min(LEAST_BYTES, max(seconds))  # without larger sizes, the largest one is drawn
        shown = {num_bytes: time_s for num_bytes, time_s in seconds.items() if num_bytes >= least_bytes}
        factor = busbw_factor(collective, profile.num_ranks)
        lines.append(_BoxLine(name, shown, factor, is_sick(profile.provenance), name == yours))
    if not 0 < len(lines) <= MOST_LINES:
        raise ValueError(f"profiles must make from 1 to {MOST_LINES} lines, got {len(lines)}")
    return lines


def _check_busbw(lines: Sequence[_BoxLine], view: str) -> None:
    """Raise ValueError if a view of the bus bandwidth cannot show the lines.

    The bus bandwidth is 0 on one rank, and nan for an operation for which it has no meaning. An axis from 0 needs one
    line that is above it, a logarithmic axis needs all to be.
    """
    factors = [line.factor for line in lines]
    deciding_factor = np.min(factors) if view == "log" else np.max(factors)  # nan if one of them is
    if view != "time" and not deciding_factor > 0:
        raise ValueError(f"view must be 'time' for profiles without a bus bandwidth, as on one rank, got {view!r}")


def _frame(lines: Sequence[_BoxLine], view: str) -> _BoxAxes:
    """Return axes that all lines fit on; the view "busbw" begins at 0, and the others are logarithmic."""
    smallest = min(min(line.seconds) for line in lines)
    largest = max(max(line.seconds) for line in lines)
    values = np.concatenate([line.values(view) for line in lines])
    if view == "busbw":
        low = 0.0
        high = 1.08 * values.max()  # with a margin
        ticks = list(round_ticks(high))
    else:
        low = values.min() - _LOG_MARGIN
        high = values.max() + _LOG_MARGIN
        ticks = _log_ticks(low, high)
    left = np.log2(smallest)
    width = max(np.log2(largest) - left, 1.0)  # not 0 if there is a single size
    y_ticks = [(high - value, label) for value, label in ticks]
    return _BoxAxes(left, top=high, width=width, height=high - low, y_ticks=y_ticks)


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return the ticks of an axis from 10^low to 10^high: powers of ten, and 2 and 5 times them if there are few."""
    steps = (1, 2, 5) if high - low < _FEW_DECADES else (1,)
    ticks = []
    for power in range(math.floor(low), math.ceil(high)):
        for step in steps:
            value = power + math.log10(step)
            if low <= value <= high:
                ticks.append((value, f"{10.0**value:,.6g}"))
    return ticks


def _size_ticks(lines: Sequence[_BoxLine], left: float) -> list[tuple[float, str]]:
    """Return ticks at powers of two, so few that their labels do not touch."""
    largest = max(max(line.seconds) for line in lines)
    powers = range(math.ceil(left), math.floor(np.log2(largest)) + 1)
    every = math.ceil(len(powers) / _MOST_SIZE_TICKS)
    return [(power - left, bytes_words(2.0**power)) for power in powers if power % every == 0]


def _curves(lines: Sequence[_BoxLine], view: str, frame: _BoxAxes) -> list[_BoxCurve]:
    """Return each line in the coordinates of the drawing, with its hue and the height of its name."""
    xs = []
    ys = []
    for line in lines:
        sizes = list(line.seconds)  # the keys: bytes in ascending order
        xs.append(np.log2(sizes) - frame.left)
        ys.append(frame.top - line.values(view))
    end_ys = [y[-1] for y in ys]
    name_ys = _name_ys(end_ys, frame.height)
    hues = iter(_HUES)  # of the lines that are not yours, in their order
    curves = []
    for line, x, y, name_y in zip(lines, xs, ys, name_ys, strict=True):
        hue = INK if line.is_yours else next(hues)
        curves.append(_BoxCurve(line, x, y, hue, name_y))
    return curves


def _name_ys(end_ys: Sequence[float], height: float) -> list[float]:
    """Return where the name of each line stands, from the top: next to its end, but so that no two names touch."""
    indices = sorted(range(len(end_ys)), key=lambda index: -end_ys[index])  # of the lines, the lowest end first
    ends_from_bottom = [1 - end_ys[index] / height for index in indices]  # as shares of the height
    names_from_bottom = spread_out(ends_from_bottom, _LINE_PX / _HEIGHT_PX)
    name_ys = [0.0] * len(end_ys)
    for index, share in zip(indices, names_from_bottom, strict=True):
        name_ys[index] = (1 - share) * height
    return name_ys


def _dots(curve: _BoxCurve, frame: _BoxAxes) -> Rects:
    """Return a small square at each size; its pixels are converted into the units of the axes."""
    width = _DOT_PX * frame.width / _WIDTH_PX
    height = _DOT_PX * frame.height / _HEIGHT_PX
    return Rects(curve.x - width / 2, curve.y - height / 2, curve.hue, width=width, height=height)


def _drawn_lines(curve: _BoxCurve, frame: _BoxAxes) -> tuple[Lines, Lines]:
    """Return the line through the dots, and the one from its end to its name."""
    x = curve.x
    y = curve.y
    width_px = _YOUR_CURVE_PX if curve.line.is_yours else _CURVE_PX
    hues = [curve.hue] * (len(x) - 1)  # of each piece; a single size has no piece, and no hue
    through = Lines(x[:-1], y[:-1], x[1:], y[1:], hues, dashed=curve.line.is_sick, width_px=width_px)
    start_x = _LEADER_START * frame.width
    end_x = _NAMES_START * frame.width
    leader = Lines(
        [x[-1], start_x], [y[-1], curve.name_y], [start_x, end_x], [curve.name_y] * 2, curve.hue, width_px=_THIN_PX
    )
    return through, leader


def _finding(lines: Sequence[_BoxLine], view: str, collective: str) -> str:
    """Return the fastest and the slowest line at the largest size that all have; without one, the best rate of all."""
    common = set.intersection(*(set(line.seconds) for line in lines))
    if not common:
        best = max(line.rate(num_bytes) for line in lines for num_bytes in line.seconds)
        return f"{collective}: up to {rate_words(best)}"
    num_bytes = max(common)
    if view == "time":
        ranked = sorted(lines, key=lambda line: line.seconds[num_bytes])
    else:
        ranked = sorted(lines, key=lambda line: -line.rate(num_bytes))
    ends = [ranked[0]]  # the fastest line and the slowest
    if len(ranked) > 1:
        ends.append(ranked[-1])
    if view == "time":
        values = times_in_one_unit(*[line.seconds[num_bytes] for line in ends])
    else:
        values = rates_in_one_unit(*[line.rate(num_bytes) for line in ends])
    words = [f"{line.name} {value}" for line, value in zip(ends, values, strict=True)]
    return f"{collective} of {bytes_words(num_bytes)}: {', '.join(words)}"
