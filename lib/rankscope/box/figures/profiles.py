"""What a machine was measured to do, size by size, next to what is predicted from its links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from ...common.checks import of_type, one_of
from ...common.frozen import optional
from ...common.units import bytes_words, rate_unit, rate_words
from ...figures.axes import to_axes
from ...figures.line_axes import Floats, dash, explain, markers, name_ends, note, size_axes
from ...figures.marks import Drawing, Key, shaded
from ...figures.palette import INK, PAPER, Look, looks
from .. import Profile
from ..link_facts import LinkFacts, peer_rates, transfers_of
from ..measuring.plan import LEAST_PIECE_BYTES, NUM_PIECES
from ..profile import NATIVE, Point, busbw_factor
from ..sentences import groups
from .boxes import draw_boxes

_DASHES = (0, (5, 4))  # of what the link itself would give
_GREY, _MOST_NAMED = "#b5b5b5", 5  # of what is not named


# ---- collectives


class MeasuredAlgorithm(NamedTuple):
    """An algorithm's points by size, and what is predicted for each; NaN for the backend's own."""

    points: list[Point]
    predicted_s: list[float]

    @property
    def sizes(self) -> list[int]:
        return [point.num_bytes for point in self.points]


def profile(
    profile: Profile | Mapping[str, Profile],
    view: str = "busbw",
    collective: str | Sequence[str] = "allreduce",
    algorithms: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw what a machine was measured to do, size by size, next to what is predicted from its links.

    The view "busbw" is the bus bandwidth: markers are medians with their quartiles, lines are predicted, dashes the
    link, if one was measured. The line of the backend's own is its curve, and paler is where 90 % of measurements lie;
    see `Profile.curve`. `algorithms` are drawn and named, by default the backend's own and those that are the fastest
    at some size; all others are grey dots.

    The view "residuals" says by how much the prediction is over or under the measured median, in percent. `algorithms`
    are by default the five that are predicted worst; all others are grey lines. Hollow markers are points with few
    iterations in which the host took no time.

    Of several profiles by name (`collective` may then be several, too) the backends' own collectives are drawn over
    each other, a line each, in the views "busbw", "log" (the same on a logarithmic axis) and "time".

    Raises ValueError for an unknown view, and where none of that was measured.
    """
    if isinstance(profile, Mapping):
        return to_axes(draw_boxes(profile, collective, view, title=title), ax)
    draw = _busbw if one_of("view", view, ("busbw", "residuals")) == "busbw" else _residuals
    return draw(of_type("profile", profile, Profile), of_type("collective", collective, str), algorithms, ax, title)


def _busbw(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, ax: Axes | None, title: str | None
) -> Axes:
    found = _measured(profile, collective)
    shown = _shown(found, algorithms)
    factor = busbw_factor(collective, profile.num_ranks)
    rates = {name: [factor * p.num_bytes / p.median_s for p in one.points] for name, one in found.items()}
    peak = max(max(values) for values in rates.values())
    top_rate, best = max((max(rates[name]), name) for name in shown)
    link = 0.0  # not measured
    with suppress(ValueError):
        link = profile.best_link("intra" if profile.num_nodes == 1 else "inter").link.bytes_per_s
    scale, unit = rate_unit(max(peak, link))
    top = 1.12 * max(peak, min(link, 2 * peak)) / scale
    sizes = np.array(sorted({size for one in found.values() for size in one.sizes if size}), dtype=float)
    reached = f"gets {top_rate / link:.0%} of a link's bandwidth" if link else f"reaches {rate_words(top_rate)}"
    y_label = f"bus bandwidth (busbw) [{unit}]"
    ax = size_axes(ax, (9, 4.6), title or f"{best} {reached}", y_label, sizes, x_margin=1.2, y_limits=(0, top))
    kinds: dict[str, dict[str, Any]] = {"measured: median and quartiles": {"marker": "D", "linestyle": "none"}}
    if shown != [NATIVE]:
        kinds["predicted"] = {"linewidth": 1.5}
    if len(found) > len(shown):
        dots: dict[str, Any] = {"color": _GREY, "marker": ".", "markersize": 3, "linestyle": "none"}
        kinds["other algorithms, measured"] = dots
        for name in (name for name in found if name not in shown):
            ax.plot(found[name].sizes, np.array(rates[name]) / scale, zorder=1, **dots)
    for name in shown:
        look, one = looks([name])[name], found[name]
        moved = factor / scale * np.array(one.sizes)
        markers(ax, name, look, one.sizes, *(moved / _percentiles_s(one.points, percent) for percent in (75, 50, 25)))
        if name != NATIVE:
            style: dict[str, Any] = {"color": look.color, "linestyle": dash(look), "linewidth": 1.5}
            ax.plot(one.sizes, moved / np.array(one.predicted_s), label=f"{name}, predicted", **style)
        else:
            _native(ax, profile, collective, look, factor / scale)
            kinds["native: the curve through it, and where 90 % lie"] = {"linewidth": 1.0, "alpha": 0.6}
    if 0 < link / scale < top:
        ax.axhline(link / scale, color=INK, linewidth=1, linestyle=_DASHES, label="link")
        note(ax, f"one link: {rate_words(link)}", (sizes[0], link / scale), (4, 4), va="bottom")
    explain(ax, kinds)
    name_ends(ax, {name: (rates[name][-1] / scale, looks([name])[name]) for name in shown})
    return ax


def _native(ax: Axes, profile: Profile, collective: str, look: Look, factor: float) -> None:
    """Draw the curve through what the backend itself took, if it was measured at enough sizes."""
    with suppress(ValueError):
        curve = profile.curve(collective)
        sizes = np.geomspace(max(1, min(curve.measured_s)), max(curve.measured_s), 16 * len(curve.measured_s))
        seconds = np.array([(curve.seconds(size), *curve.interval_s(size)) for size in sizes.tolist()])
        middle, high, low = (factor * sizes / seconds.T).tolist()
        ax.plot(sizes, middle, color=look.color, linewidth=1.0, label="native, curve")
        ax.fill_between(sizes, low, high, color=look.color, alpha=0.2, linewidth=0)


def _residuals(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, ax: Axes | None, title: str | None
) -> Axes:
    everything = _measured(profile, collective).items()
    found = {name: one for name, one in everything if not any(map(math.isnan, one.predicted_s))}
    if not found:
        raise ValueError(f"profile must have points of {collective} that can be predicted")
    errors = {n: [100 * (s / p.median_s - 1) for p, s in zip(*one, strict=True)] for n, one in found.items()}
    worst = sorted(found, key=lambda name: -max(map(abs, errors[name])))
    shown = worst[:_MOST_NAMED] if algorithms is None else _shown(found, algorithms)
    others = worst[_MOST_NAMED:] if algorithms is None else []
    off = np.abs(np.concatenate([errors[name] for name in (*shown, *others)]))
    reach = max(5.0, 1.15 * float(off.max()))
    sizes = sorted({size for name in (*shown, *others) for size in found[name].sizes})
    median, p90 = np.percentile(off, [50, 90])
    words = f"Predictions against measurements: half within {median:.1f}%, nine in ten within {p90:.1f}%"
    y_label = "predicted − measured [% of measured]"
    y_limits = -min(reach, 100), reach
    ax = size_axes(ax, (9, 4.6), title or words, y_label, sizes, x_margin=1.2, y_limits=y_limits)
    ax.axhline(0, color=INK, linewidth=1)
    for name in others:
        ax.plot(found[name].sizes, errors[name], color=_GREY, linewidth=0.8, zorder=1, label=f"{name}, other")
    ends, kinds = {}, {"other algorithms": {"color": _GREY, "linewidth": 0.8}} if others else {}
    for name in shown:
        look, one = looks(shown)[name], found[name]
        ax.plot(one.sizes, errors[name], color=look.color, linestyle=dash(look), linewidth=1.2, label=name)
        clean = np.array([point.used_s != point.seconds or all(point.clean) for point in one.points])
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "clip_on": False}
        for which, fill in ((clean, look.color), (~clean, "none")):
            if which.any():
                at = np.array([one.sizes, errors[name]])[:, which]
                ax.plot(*at, markerfacecolor=fill, markersize=6, zorder=3, **style)
        if not clean.all():
            kinds["few iterations in which the host took no time"] = {"marker": "o", "linestyle": "none", "mfc": "none"}
        ends[name] = errors[name][-1], look
    if kinds:
        explain(ax, kinds)
    name_ends(ax, ends)
    return ax


def _percentiles_s(points: Sequence[Point], percent: float) -> Floats:
    return np.array([point.percentile_s(percent) for point in points])


def _measured(profile: Profile, collective: str) -> dict[str, MeasuredAlgorithm]:
    """What was measured of a collective, by algorithm, sizes rising; ValueError where nothing was."""
    group = next((one for one in groups(profile) if one.collective == collective), None)
    if group is None:
        raise ValueError(f"collective must be one that this profile has points of, got {collective!r}")
    seconds, found = profile.model_s, dict[str, MeasuredAlgorithm]()
    for point in (point for points in group.by_size.values() for point in points.values()):
        one = found.setdefault(str(point.options["algorithm"]), MeasuredAlgorithm([], []))
        one.points.append(point)
        one.predicted_s.append(seconds.get(point.key, math.nan))
    return found


def _shown(found: dict[str, MeasuredAlgorithm], algorithms: Sequence[str] | None) -> list[str]:
    if algorithms is None:
        times = [(point.num_bytes, point.median_s, name) for name, one in found.items() for point in one.points]
        fastest = {size: name for size, _, name in sorted(times, reverse=True)}
        return [name for name in found if name == NATIVE or name in fastest.values()]
    if not algorithms or not set(algorithms) <= set(found):
        raise ValueError(f"algorithms must be some of {', '.join(found)}, got {', '.join(algorithms) or 'none'}")
    return list(algorithms)


# ---- copies


_SHOWN = ("pinned_non_blocking", "pageable", "pin_on_the_fly")
_SIZES = tuple(2**power for power in range(10, 31))
_TWO = {"pinned": "s", "pageable": "d"}  # and the marker of the dashed line
_CALLED = {"h2d": "to the GPU", "d2h": "to the host"}


class CopyStyle(NamedTuple):
    """A way to copy: how it looks, and the options of its points."""

    look: Look
    options: dict[str, Any]


def copies(
    facts: LinkFacts | None,
    profile: Profile | None = None,
    view: str = "rate",
    direction: str = "h2d",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw how fast copies to and from a GPU are, over their size.

    Lines are what the `facts` of the link allow at best, markers what the `profile` measured: medians with their
    quartiles. Dashes are the link itself. Either may be None. The `direction` is "h2d" or "d2h". The view is

    - "rate" [GB/s]: of pinned memory, of pageable memory, and of memory that is pinned for the copy;
    - "both_ways" [GB/s]: alone, and while as much goes the other way;
    - "pieces" [µs]: the time of one copy next to that of as many bytes in 256 equal copies;
    - "peers" [GB/s]: of the `profile`, from each GPU to each other, one at a time, at the largest size; paler is more.

    Raises ValueError where there is nothing to draw, and for an unknown view or direction.
    """
    one_of("view", view, ("rate", "both_ways", "pieces", "peers"))
    one_of("direction", direction, tuple(_CALLED))
    if view == "peers":
        return to_axes(draw_peers(of_type("profile", profile, Profile), title), ax)
    if facts is None and profile is None:
        raise ValueError("facts or profile must be given, got None for both")
    optional("facts", facts, of_type, LinkFacts)
    optional("profile", profile, of_type, Profile)
    known = {point.options.get("method") for point in profile.points} if profile else set()
    plain = "pinned" if "pinned" in known and _SHOWN[0] not in known else _SHOWN[0]
    ways, in_rates = _ways(view, plain), view != "pieces"
    least = _SIZES[0] if in_rates else NUM_PIECES * LEAST_PIECE_BYTES
    found = {name: transfers_of(profile, direction, **way.options) for name, way in ways.items()} if profile else {}
    kept = {name: [point for point in some if point.num_bytes >= least] for name, some in found.items()}
    points = {name: some for name, some in kept.items() if some}
    if facts is None and not points:
        raise ValueError(f"profile must have copies by {', '.join(ways)}, as no facts are given, got none")
    measured = {point.num_bytes for some in points.values() for point in some}
    sizes = np.array([size for size in sorted(measured) or _SIZES if size >= least], dtype=float)

    def shown(num_bytes: Any, seconds: Any) -> Any:
        return num_bytes / seconds / 1e9 if in_rates else seconds * 1e6

    def of_points(some: Sequence[Point], percent: float) -> Floats:
        height: Floats = shown(np.array([point.num_bytes for point in some]), _percentiles_s(some, percent))
        return height

    lines: dict[str, Floats] = {}
    if facts is not None:
        for name, way in ways.items():
            seconds = [facts.seconds(size, direction, **way.options) for size in sizes.tolist()]
            lines[name] = shown(sizes, np.array(seconds))
    bound = shown(sizes, sizes / facts.bytes_per_s(direction)) if facts else np.empty(0)
    medians = {name: of_points(some, 50) for name, some in points.items()}
    heights = np.concatenate([*lines.values(), *medians.values()])
    high = max([float(heights.max()), *bound.tolist()])
    low, high = (0.0, 1.12 * high) if in_rates else (float(heights.min()) / 2, 2 * high)

    ax = size_axes(
        ax,
        (9, 4.4),
        title or _finding(view, direction, facts, points),
        "bandwidth, one way [GB/s]" if in_rates else "time [µs]",
        sizes,
        "size of the copy",
        x_margin=1.2,
        y_limits=(low, high),
        log_y=not in_rates,
    )
    if bound.size:
        ax.plot(sizes, bound, color=INK, linewidth=1, linestyle=_DASHES, label="the link alone")
    for name, line in lines.items():
        look = ways[name].look
        ax.plot(sizes, line, color=look.color, linestyle=dash(look), linewidth=1.6, label=f"{name}, predicted")
    for name, some in points.items():
        first, last = (of_points(some, percent) for percent in ((75, 25) if in_rates else (25, 75)))
        markers(ax, name, ways[name].look, [point.num_bytes for point in some], first, medians[name], last)
    if facts is not None and in_rates:
        half = facts.start_s * facts.bytes_per_s(direction)
        ax.axvline(half, color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(ax, f"n½ = {bytes_words(half)}", (half, high), (4, -2), va="top")
    if lines:
        explain(ax, {"predicted from facts: at best": {"linewidth": 1.6}})
    if points:
        explain(ax, {"measured: median and quartiles": {"marker": "o", "linestyle": "none"}})
    drawn = medians | lines
    ends = {name: (float(drawn[name][-1]), way.look) for name, way in ways.items() if name in drawn}
    if bound.size:
        ends["the link alone"] = float(bound[-1]), Look(INK, True, "")
    name_ends(ax, ends)
    return ax


def _ways(view: str, plain: str) -> dict[str, CopyStyle]:
    """The ways to copy that a view compares: methods, or the plain one and, dashed, one with an option."""
    if view == "rate":
        return {method: CopyStyle(look, {"method": method}) for method, look in looks((plain, *_SHOWN[1:])).items()}
    compared: dict[str, tuple[str, str, dict[str, Any]]] = {
        "both_ways": ("", ", both ways", {"both": True}),
        "pieces": (", one copy", f", {NUM_PIECES} copies", {"pieces": NUM_PIECES}),
    }
    alone, other, option = compared[view]
    found = {}
    for name, marker in _TWO.items():
        method = plain if name == "pinned" else name
        look = looks([method])[method]
        found[name + alone] = CopyStyle(look, {"method": method})
        found[name + other] = CopyStyle(Look(look.color, True, marker), {"method": method, **option})
    return found


def _finding(view: str, direction: str, facts: LinkFacts | None, points: Mapping[str, Sequence[Point]]) -> str:
    """What a view is about; of methods, what the first two reach at the largest size, and of how much."""
    if view == "both_ways":
        return f"A link has lanes each way: {_CALLED[direction]}, alone and while as much goes back"
    if view == "pieces":
        return f"{NUM_PIECES} small copies pay for {NUM_PIECES} starts"
    rates = {name: some[-1].num_bytes / some[-1].median_s for name, some in points.items()}
    if facts is not None and not rates:
        rates = {method: _SIZES[-1] / facts.seconds(_SIZES[-1], direction, method) for method in _SHOWN}
    words = [f"{name.removesuffix('_non_blocking')} {rate_words(rate)}" for name, rate in rates.items()]
    link = f"; {facts.name} carries {rate_words(facts.bytes_per_s(direction))}" if facts else ""
    return f"{'Measured' if points else 'Predicted'}, {_CALLED[direction]}: {', '.join(words[:2])}{link}"


_CELL_PX, _LEAST_PX = 46.0, 400.0  # a title has to fit


def draw_peers(profile: Profile, title: str | None = None) -> Drawing:
    """Draw the bandwidth of copies from each GPU to each other at the largest size of a profile; paler is more.

    Raises ValueError as `peer_rates` does.
    """
    size, rates = peer_rates(profile)
    gpus = sorted(set(chain.from_iterable(rates)))
    cells, numbers = shaded(np.array([[rates.get((src, dst), 0.0) for dst in gpus] for src in gpus]), 1e9)
    ticks = tuple((place + 0.5, str(gpu)) for place, gpu in enumerate(gpus))
    slow, fast = rate_words(min(rates.values())), rate_words(max(rates.values()))
    return Drawing(
        title=title or f"{bytes_words(size)} from GPU to GPU: {slow} to {fast}",
        x_label="target [GPU]",
        y_label="source [GPU]",
        width=len(gpus),
        height=len(gpus),
        size_px=(max(_CELL_PX * len(gpus), _LEAST_PX), 26.0 * len(gpus)),
        rects=(cells,),
        texts=numbers,
        x_ticks=ticks,
        y_ticks=ticks,
        legend=(Key("numbers: GB/s", PAPER, line="none"),),
    )
