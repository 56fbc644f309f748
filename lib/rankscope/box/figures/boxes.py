"""Charts of measured machines over each other: bus bandwidth or time of the backends' own collectives, by size."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from ...common.checks import number, of_type, one_of
from ...common.units import bytes_words, cell_words, rate_words
from ...figures.charts import chart, dash, explain, name_ends, plain_ticks
from ...figures.palette import INK, LINES, TONES, Look
from .. import Profile
from ..expected import compare_with_peers
from ..machines import PREFIX, is_sick
from ..profile import busbw_factor

UNITS = {"busbw": "bus bandwidth (busbw) [GB/s]", "time": "time [µs]"}  # of each view
_HUES = (*LINES[:-1], *LINES[:-1])  # the last one is the ink
MOST_LINES = len(_HUES)
_LEAST_BYTES = 1 << 10  # smaller messages take as long, and say nothing of bandwidth


def draw_boxes(
    profiles: Mapping[str, Profile],
    collective: str = "allreduce",
    view: str = "busbw",
    yours: str = "",
    at_bytes: float = 0.0,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the bus bandwidth or the time ("time") of the backends' own collectives on several machines, by size.

    The profile named `yours` is black. Machines with a known or suspected fault are dashed. A vertical line marks
    `at_bytes`, unless it is 0. Sizes below 1 KiB are omitted if there are larger ones.

    Raises ValueError if the view is unknown or shows bus bandwidths that a profile does not have, as on one rank, if
    `at_bytes` is negative, if a profile lacks the collective, or if there are no profiles or more than 14.
    """
    one_of("view", view, tuple(UNITS))
    number("at_bytes", at_bytes, 0)
    if not 0 < len(profiles) <= MOST_LINES:
        raise ValueError(f"profiles must make from 1 to {MOST_LINES} lines, got {len(profiles)}")
    lines = {name: _heights(name, profile, collective, view) for name, profile in profiles.items()}
    sizes = sorted({size for heights in lines.values() for size in heights})
    title = title or _finding(lines, collective, view)
    ax = chart(ax, title, "size of each rank's buffer", UNITS[view], inches=4.4, x=sizes, x_margin=1.1)
    ends = {}
    for (name, heights), hue in zip(lines.items(), _HUES, strict=False):
        has_fault = is_sick(profiles[name].provenance)
        look = Look(INK if name == yours else hue, has_fault, "s")
        width = 2.4 if name == yours else 1.6
        style = {"marker": look.marker, "markersize": 5, "linestyle": dash(look), "linewidth": width}
        ax.plot(list(heights), list(heights.values()), color=look.color, label=name, **style)
        ends[name] = heights[max(heights)], look
        if has_fault:
            explain(ax, {"known or suspected fault": {"linestyle": dash(look)}})
    ax.set_yscale("log")
    plain_ticks(ax.yaxis, ax.get_ylim())
    if at_bytes:
        ax.axvline(at_bytes, color=TONES["mute"], linewidth=1)
    name_ends(ax, ends)
    return ax


def _heights(name: str, profile: Profile, collective: str, view: str) -> dict[int, float]:
    """Return the GB/s or µs by size; without sizes below 1 KiB, if there are larger ones."""
    seconds = of_type(f"profiles[{name!r}]", profile, Profile).native_s(collective)
    if not seconds:
        raise ValueError(f"profiles[{name!r}] must have {collective} of the backend, got none")
    least_bytes = min(_LEAST_BYTES, max(seconds))
    shown = {size: time_s for size, time_s in seconds.items() if size >= least_bytes}
    if view == "time":
        return {size: time_s * 1e6 for size, time_s in shown.items()}
    factor = busbw_factor(collective, profile.num_ranks)
    if not factor > 0:  # 0 on one rank, nan where busbw has no meaning
        raise ValueError(f"view must be 'time' for a profile without a bus bandwidth, as on one rank, got {view!r}")
    return {size: factor * size / time_s / 1e9 for size, time_s in shown.items()}


def _finding(lines: Mapping[str, Mapping[int, float]], collective: str, view: str) -> str:
    """Return the title: the fastest and the slowest machine at the largest size that all have."""
    common = set.intersection(*(set(heights) for heights in lines.values()))
    if not common:
        return f"{collective} on {len(lines)} machines"
    size = max(common)
    ranked = sorted(lines, key=lambda name: lines[name][size], reverse=view == "busbw")
    ends = dict.fromkeys([ranked[0], ranked[-1]])  # once, if there is one machine
    heights = {name: lines[name][size] for name in ends}
    if view == "time":
        words = [f"{name} {cell_words(height / 1e6)}" for name, height in heights.items()]
    else:
        words = [f"{name} {rate_words(height * 1e9)}" for name, height in heights.items()]
    return f"{collective} of {bytes_words(size)}: {', '.join(words)}"


def draw_with_peers(profile: Profile, name: str = "yours", title: str | None = None) -> Axes:
    """Draw a profile's own collective together with those of similar machines of the bank; see `compare_with_peers`.

    The collective is the one whose shortfall the verdict states, or else the first. Raises ValueError if no collective
    was measured.
    """
    box = compare_with_peers(of_type("profile", profile, Profile))
    collective = next(iter(profile.native), "allreduce")  # without any, `draw_boxes` says what is missing
    if box.worst.row is not None:
        collective = box.worst.row.collective
    peers = {key.removeprefix(PREFIX): peer for key, peer in box.peers.items() if peer.native_s(collective)}
    return draw_boxes({name: profile, **peers}, collective, yours=name, title=title)
