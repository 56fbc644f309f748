"""Drawings of measured machines over each other: bus bandwidth or time of the backends' own collectives, by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ...common.checks import of_type, one_of
from ...common.units import bytes_words, rate_words, rates_in_one_unit, round_ticks, times_in_one_unit
from ...figures.marks import Drawing, FloatArray, Key, Lines, Rects, Texts, spread_out
from ...figures.palette import CATEGORIES, FAINT, INK
from .. import Profile
from ..expected import beside
from ..machines import is_sick
from ..profile import busbw_factor

UNITS = {
    "busbw": "bus bandwidth (busbw) [GB/s]",
    "log": "bus bandwidth (busbw) [GB/s]",
    "time": "time [µs]",
}
MOST_LINES = 12
LEAST_BYTES = 1 << 10  # smaller messages take as long, and say nothing of bandwidth
_HUES = [CATEGORIES[place] for place in (0, 5, 2, 1, 3, 4)] * 2  # no yellow: a line has to show on white
_WIDE_PX, _HIGH_PX, _DOT_PX, _LINE_PX, _LETTER_PX = 560.0, 330.0, 5.0, 15.0, 7.0
_END, _NAME = 1.015, 1.05  # where the way to a name begins and ends, as parts of the width


@attrs.frozen(eq=False)
class _Line:
    """What a machine took by size, and the factor to its bus bandwidth."""

    name: str
    seconds: dict[int, float]
    factor: float
    is_sick: bool
    is_yours: bool

    def rate(self, size: int) -> float:
        return self.factor * size / self.seconds[size]

    def values(self, view: str) -> FloatArray:
        values = np.array([s * 1e6 if view == "time" else self.rate(size) / 1e9 for size, s in self.seconds.items()])
        return values if view == "busbw" else np.log10(values)


def draw_boxes(
    profiles: Mapping[str, Profile],
    collectives: str | Sequence[str] = "allreduce",
    view: str = "busbw",
    yours: str = "",
    at_bytes: float = 0.0,
    title: str | None = None,
) -> Drawing:
    """Draw what the backends' own collectives reach on some machines: a line and a dot a size for each.

    The view "busbw" is the bus bandwidth, "log" the same on a logarithmic axis, "time" the time. The profile named
    `yours` is black; dashes are machines that the bank calls sick or suspect. Of several `collectives` each has a line
    of its own. A vertical line marks `at_bytes`. Sizes below 1 KiB are left out where there are larger ones.

    Raises ValueError for an unknown view, for a profile that has none of this, and for no line and more than 12.
    """
    one_of("view", view, tuple(UNITS))
    lines = _lines(profiles, [collectives] if isinstance(collectives, str) else collectives, yours)
    x = [np.log2(list(line.seconds)) for line in lines]
    y = [line.values(view) for line in lines]
    left, right = min(one[0] for one in x), max(one[-1] for one in x)
    low, high = min(one.min() for one in y) - 0.1, max(one.max() for one in y) + 0.1
    if view == "busbw":
        low, high = 0.0, 1.08 * (high - 0.1)
        ticks = list(round_ticks(high))
    else:
        steps = (1, 2, 5) if high - low < 2.5 else (1,)
        powers = [p + math.log10(step) for p in range(math.floor(low), math.ceil(high)) for step in steps]
        ticks = [(power, f"{10.0**power:,.6g}") for power in powers if low <= power <= high]
    wide, tall = max(right - left, 1.0), high - low
    x, y = [one - left for one in x], [high - one for one in y]
    order = sorted(range(len(lines)), key=lambda place: -y[place][-1])
    names = spread_out([1 - y[place][-1] / tall for place in order], _LINE_PX / _HIGH_PX)
    at = dict(sorted((place, (1 - name) * tall) for place, name in zip(order, names, strict=True)))
    dot, hues, rects, drawn = (_DOT_PX * wide / _WIDE_PX, _DOT_PX * tall / _HIGH_PX), iter(_HUES), [], []
    for place, (line, a, b) in enumerate(zip(lines, x, y, strict=True)):
        hue = INK if line.is_yours else next(hues)
        thick = 2.6 if line.is_yours else 1.7
        drawn.append(Lines(a[:-1], b[:-1], a[1:], b[1:], [hue] * (len(a) - 1), line.is_sick, width_px=thick))
        ends, to = [a[-1], _END * wide], [at[place]] * 2
        drawn.append(Lines(ends, [b[-1], to[0]], [_END * wide, _NAME * wide], to, hue, width_px=0.7))
        rects.append(Rects(a - dot[0] / 2, b - dot[1] / 2, hue, width=dot[0], height=dot[1]))
    beside_px = (_NAME - 1) * _WIDE_PX + 8 + _LETTER_PX * max(len(line.name) for line in lines)
    sizes = range(math.ceil(left), math.floor(right) + 1)
    every, mark = max(1, math.ceil(len(sizes) / 11)), math.log2(at_bytes) - left if at_bytes else -1.0
    return Drawing(
        title=title or _finding(lines, view, collectives if isinstance(collectives, str) else "collectives"),
        x_label="size of each rank's buffer",
        y_label=UNITS[view],
        width=wide * (1 + beside_px / _WIDE_PX),
        height=tall,
        size_px=(_WIDE_PX + beside_px, _HIGH_PX),
        rects=rects,
        lines=(*(Lines(0, high - tick, wide, high - tick, FAINT, width_px=0.7) for tick, _ in ticks), *drawn),
        texts=(Texts((_NAME + 0.01) * wide, list(at.values()), [lines[place].name for place in at], anchor="start"),),
        rules=(mark,) if 0 <= mark <= wide else (),
        x_ticks=[(power - left, bytes_words(2.0**power)) for power in sizes if power % every == 0],
        y_ticks=[(high - tick, label) for tick, label in ticks],
        legend=(Key("sick or suspect", INK, line="dashed"),) * any(line.is_sick for line in lines),
    )


def draw_beside(profile: Profile, name: str = "yours", title: str | None = None) -> Drawing:
    """Draw a profile's own collective over those of the machines of the bank that are like it; see `beside`.

    It is that of which the verdict says how far it is below, or else the first. Raises ValueError where none was
    measured.
    """
    box = beside(of_type("profile", profile, Profile))
    row = box.worst and box.worst[2]
    what = row.collective if row else next(iter(profile.native), "allreduce")
    peers = {peer: one for peer, one in list(box.peers.items())[: MOST_LINES - 1] if one.native_s(what)}
    return draw_boxes({name: profile, **peers}, what, "log", name, title=title)


def _lines(profiles: Mapping[str, Profile], collectives: Sequence[str], yours: str) -> list[_Line]:
    lines = []
    for name, profile in profiles.items():
        measured = {what: of_type(f"profiles[{name!r}]", profile, Profile).native_s(what) for what in collectives}
        if not any(measured.values()):
            raise ValueError(f"profiles[{name!r}] must have {' or '.join(collectives)} of the backend, got none")
        for what, seconds in ((what, seconds) for what, seconds in measured.items() if seconds):
            label = ", ".join([name] * (len(profiles) > 1 or len(collectives) == 1) + [what] * (len(collectives) > 1))
            shown = {size: s for size, s in seconds.items() if size >= min(LEAST_BYTES, max(seconds))}
            factor = busbw_factor(what, profile.num_ranks)
            lines.append(_Line(label, shown, factor, is_sick(profile.provenance), name == yours))
    if not 0 < len(lines) <= MOST_LINES:
        raise ValueError(f"profiles must make from 1 to {MOST_LINES} lines, got {len(lines)}")
    return lines


def _finding(lines: Sequence[_Line], view: str, what: str) -> str:
    """Who is fastest and who is slowest at the largest size that all have; what the best of all reaches without one."""
    common = set.intersection(*(set(line.seconds) for line in lines))
    if not common:
        return f"{what}: up to {rate_words(max(line.rate(size) for line in lines for size in line.seconds))}"
    size = max(common)
    ranked = sorted(lines, key=lambda line: line.seconds[size] if view == "time" else -line.rate(size))
    ends = list(dict.fromkeys([ranked[0], ranked[-1]]))
    if view == "time":
        values = times_in_one_unit(*[line.seconds[size] for line in ends])
    else:
        values = rates_in_one_unit(*[line.rate(size) for line in ends])
    pairs = zip(ends, values, strict=True)
    return f"{what} of {bytes_words(size)}: {', '.join(f'{line.name} {value}' for line, value in pairs)}"
