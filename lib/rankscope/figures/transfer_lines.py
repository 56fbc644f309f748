"""Copies between host and GPU over their size: what facts of the link bound, what a profile measured, by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..machine import Point, Profile
from ..machine.link_facts import METHODS, LinkFacts, transfers_of
from ..machine.measuring.plan import LEAST_PIECE_BYTES, NUM_PIECES
from ..values.checks import of_type, one_of
from ..values.units import bytes_words, rate_words
from .crossings import Floats
from .palette import INK, Look, looks
from .size_lines import LABEL_PT, dash, dress, name_ends, note

SHOWN = ("pinned_non_blocking", "pageable", "pin_on_the_fly")
QUANTITIES = ("rate", "time")
_SIZES = tuple(2**power for power in range(10, 31))
_TWO = {"pinned": ("pinned_non_blocking", "s"), "pageable": ("pageable", "d")}
_LINK = "the link alone"
_CALLED = {"h2d": "to the GPU", "d2h": "to the host"}


class Way(NamedTuple):
    """A way to copy: how it looks, and the options of its points."""

    look: Look
    options: Mapping[str, Any]


def to_copies(
    facts: LinkFacts | None,
    profile: Profile | None = None,
    direction: str = "h2d",
    quantity: str = "rate",
    methods: Sequence[str] = SHOWN,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the "rate" [GB/s] or the "time" [µs] of copies in one direction, "h2d" or "d2h", over their size.

    Lines are what the `facts` allow at best, markers what the `profile` measured: medians with their quartiles. Dashes
    across are the link itself. Either may be None. Raises ValueError where both are, for no method, and for
    unknown words.
    """
    if not methods:
        raise ValueError(f"methods must be at least one of {', '.join(METHODS)}, got none")
    for method in methods:
        one_of("methods", method, METHODS)
    one_of("direction", direction, tuple(_CALLED))
    ways = {method: Way(looks([method])[method], {"direction": direction, "method": method}) for method in methods}
    ax = _draw(ways, facts, profile, one_of("quantity", quantity, QUANTITIES), ax, direction)
    ax.set_title(title or _finding(ways, facts, profile, direction), loc="left", fontsize=11, fontweight="bold")
    return ax


def to_both_ways(
    facts: LinkFacts | None, profile: Profile | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the rate [GB/s] of copies to the GPU, each direction alone and while as much goes the other way.

    Lines and markers are as in `to_copies`. Raises ValueError where neither facts nor a profile are given.
    """
    ways = _pairs("", ", both ways", {"both": True})
    ax = _draw(ways, facts, profile, "rate", ax, "h2d")
    words = title or "A link has lanes each way: to the GPU, alone and while as much goes back"
    ax.set_title(words, loc="left", fontsize=11, fontweight="bold")
    return ax


def to_pieces(
    facts: LinkFacts | None, profile: Profile | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the time [µs] of one copy to the GPU beside that of as many bytes in 256 equal copies.

    Lines and markers are as in `to_copies`. Raises ValueError where neither facts nor a profile are given.
    """
    ways = _pairs(", one copy", f", {NUM_PIECES} copies", {"pieces": NUM_PIECES})
    ax = _draw(ways, facts, profile, "time", ax, "h2d", least=NUM_PIECES * LEAST_PIECE_BYTES)
    words = title or f"{NUM_PIECES} small copies pay for {NUM_PIECES} starts"
    ax.set_title(words, loc="left", fontsize=11, fontweight="bold")
    return ax


def _pairs(words: str, again: str, options: Mapping[str, Any]) -> dict[str, Way]:
    """Two ways to the GPU from each kind of memory: the plain one, and dashed the one with these options."""
    found = {}
    for name, (method, marker) in _TWO.items():
        look, plain = looks([method])[method], {"direction": "h2d", "method": method}
        found[f"{name}{words}"] = Way(look, plain)
        found[f"{name}{again}"] = Way(Look(look.color, True, marker), {**plain, **options})
    return found


def _draw(
    ways: Mapping[str, Way], facts: LinkFacts | None, profile: Profile | None, quantity: str, ax: Axes | None,
    direction: str, least: int = 0,
) -> Axes:  # fmt: skip
    """Lines, markers and the link, and what they are; without a title."""
    points = _checked_points(ways, facts, profile, least)
    measured = sorted({point.num_bytes for some in points.values() for point in some})
    sizes = np.array([size for size in measured or _SIZES if size >= least], dtype=float)
    lines = {name: _predicted(way, facts, sizes) for name, way in ways.items()} if facts else {}
    if ax is None:
        _, ax = plt.subplots(figsize=(9, 4.4), layout="constrained")
    bound = _link(facts, direction, quantity, sizes)
    ends = _ends(ways, lines, points, sizes, quantity) | _bound_end(bound)
    heights = [float(_value(quantity, p.num_bytes, p.median_s)) for some in points.values() for p in some]
    heights += [float(y) for line in lines.values() for y in _value(quantity, sizes, line)]
    high = max([*heights, *bound.tolist()])
    low, high = (0.0, 1.12 * high) if quantity == "rate" else (min(heights) / 2, 2 * high)
    ax.set(xscale="log", xlim=(sizes[0] / 1.2, sizes[-1] * 1.2), yscale="linear" if quantity == "rate" else "log")
    ax.set(ylim=(low, high), ylabel="bandwidth, one way [GB/s]" if quantity == "rate" else "time [µs]")
    if bound.size:
        ax.plot(sizes, bound, color=INK, linewidth=1, linestyle=(0, (5, 4)), label=_LINK)
    for name, line in lines.items():
        style: dict[str, Any] = {"color": ways[name].look.color, "linestyle": dash(ways[name].look)}
        ax.plot(sizes, _value(quantity, sizes, line), linewidth=1.6, label=f"{name}, predicted", **style)
    for name, some in points.items():
        _draw_points(ax, name, ways[name].look, some, quantity)
    dress(ax, sizes, "")
    ax.set_xlabel("size of the copy")
    if facts and not least and quantity == "rate":
        half = facts.start_s * facts.bytes_per_s(direction)
        ax.axvline(half, color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(ax, f"n½ = {bytes_words(half)}", (half, high), (4, -2), va="top")
    _explain(ax, bool(lines), bool(points), "center left" if quantity == "rate" else "upper left")
    name_ends(ax, ends)
    return ax


def _checked_points(
    ways: Mapping[str, Way], facts: LinkFacts | None, profile: Profile | None, least: int
) -> dict[str, list[Point]]:
    """What the profile has; ValueError where neither it nor facts have anything to draw."""
    if facts is None and profile is None:
        raise ValueError("facts or profile must be given, got None for both")
    if facts is not None:
        of_type("facts", facts, LinkFacts)
    if profile is not None:
        of_type("profile", profile, Profile)
    points = _points(ways, profile, least)
    if facts is None and not points:
        raise ValueError(f"profile must have copies by {', '.join(ways)}, as no facts are given, got none")
    return points


def _points(ways: Mapping[str, Way], profile: Profile | None, least: int) -> dict[str, list[Point]]:
    if profile is None:
        return {}
    found = {name: transfers_of(profile, **way.options) for name, way in ways.items()}
    return {name: kept for name, some in found.items() if (kept := [p for p in some if p.num_bytes >= least])}


def _predicted(way: Way, facts: LinkFacts, sizes: Floats) -> Floats:
    return np.array([facts.seconds(size, **way.options) for size in sizes.tolist()])


def _value(quantity: str, num_bytes: Any, seconds: Any) -> Any:
    """Decimal GB/s, or µs."""
    return num_bytes / seconds / 1e9 if quantity == "rate" else seconds * 1e6


def _link(facts: LinkFacts | None, direction: str, quantity: str, sizes: Floats) -> Floats:
    """What the link alone would give; nothing where it is not known."""
    return _value(quantity, sizes, sizes / facts.bytes_per_s(direction)) if facts else np.empty(0)


def _bound_end(bound: Floats) -> dict[str, tuple[float, Look]]:
    return {_LINK: (float(bound[-1]), Look(INK, True, ""))} if bound.size else {}


def _ends(
    ways: Mapping[str, Way], lines: Mapping[str, Floats], points: Mapping[str, list[Point]], sizes: Floats,
    quantity: str,
) -> dict[str, tuple[float, Look]]:  # fmt: skip
    """Where each way's line ends, or its markers do where it has none."""
    ends = {name: (some[-1].num_bytes, some[-1].median_s) for name, some in points.items()}
    ends |= {name: (sizes[-1], line[-1]) for name, line in lines.items()}
    return {name: (float(_value(quantity, *ends[name])), ways[name].look) for name in ways if name in ends}


def _draw_points(ax: Axes, name: str, look: Look, points: Sequence[Point], quantity: str) -> None:
    sizes = np.array([point.num_bytes for point in points], dtype=float)
    quartiles = [np.array([point.percentile_s(percent) for point in points]) for percent in (25, 50, 75)]
    low, middle, high = sorted((_value(quantity, sizes, one) for one in quartiles), key=lambda values: values[0])
    spread = np.stack([np.abs(middle - low), np.abs(high - middle)])
    style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "zorder": 3}
    ax.errorbar(sizes, middle, spread, label=f"{name}, measured", markersize=6, elinewidth=1, clip_on=False, **style)


def _explain(ax: Axes, predicted: bool, measured: bool, place: str) -> None:
    """Say what lines and markers are."""
    style: dict[str, Any] = {"loc": place, "frameon": False, "fontsize": LABEL_PT}
    kinds: dict[str, dict[str, Any]] = {}
    if predicted:
        kinds["predicted from facts: at best"] = {"linewidth": 1.6}
    if measured:
        kinds["measured: median and quartiles"] = {"marker": "o", "linestyle": "none"}
    handles = [Line2D([], [], color=INK, label=label, **look) for label, look in kinds.items()]
    ax.legend(handles=handles, **style)


def _finding(ways: Mapping[str, Way], facts: LinkFacts | None, profile: Profile | None, direction: str) -> str:
    """What the first two ways reach at the largest size, measured where that was, and of how much."""
    points = _points(ways, profile, 0)
    rates = {name: some[-1].num_bytes / some[-1].median_s for name, some in points.items()}
    how = "Measured" if rates else "Predicted"
    if not rates and facts:
        rates = {name: _SIZES[-1] / facts.seconds(_SIZES[-1], **way.options) for name, way in ways.items()}
    told = {name.removesuffix("_non_blocking"): rate_words(rate) for name, rate in rates.items()}
    words = ", ".join(f"{name} {rate}" for name, rate in list(told.items())[:2])
    link = f"; {facts.name} carries {rate_words(facts.bytes_per_s(direction))}" if facts else ""
    return f"{how}, {_CALLED[direction]}: {words or 'nothing'}{link}"
