"""Charts of measured machines over each other: bus bandwidth or time of the backends' own collectives, by size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from ...common.checks import of_type, one_of
from ...common.units import bytes_words, cell_words, rate_words
from ...figures.charts import chart, dash, explain, name_ends, plain_ticks
from ...figures.palette import INK, LINES, Look
from .. import Profile
from ..expected import compare_with_peers
from ..machines import PREFIX, is_sick
from ..points import busbw_factor

_LABELS = {"busbw": "bus bandwidth (busbw) [GB/s]", "time": "time [µs]"}
_HUES = (*LINES[:-1], *LINES[:-1])  # the last one is the ink
_LEAST_BYTES = 1 << 10  # smaller messages take as long, and say nothing of bandwidth


def profile(
    profile: Profile | Mapping[str, Profile],
    view: str = "busbw",
    collective: str = "allreduce",
    yours: str = "",
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the bus bandwidth or the time ("time") of the backends' own collectives on one or several machines, by size.

    `profile` is a profile, or maps names to several; the one named `yours` is black. Machines with a known or suspected
    fault are dashed. Sizes below 1 KiB are omitted.

    Raises ValueError if the view is unknown or shows bus bandwidths that a profile does not have, as on one rank, if a
    profile lacks the collective, or if there are no profiles or more than 14.
    """
    one_of("view", view, tuple(_LABELS))
    if not isinstance(profile, Mapping):
        profile = {of_type("profile", profile, Profile).provenance["name"]: profile}
    if not 0 < len(profile) <= len(_HUES):
        raise ValueError(f"profiles must make from 1 to {len(_HUES)} lines, got {len(profile)}")
    lines = {name: _heights(name, one, collective, view) for name, one in profile.items()}
    sizes = sorted({size for heights in lines.values() for size in heights})
    title = title or _finding(lines, collective, view)
    ax = chart(ax, title, "size of each rank's buffer", _LABELS[view], inches=4.4, x=sizes, x_margin=1.1)
    ends = {}
    for (name, heights), hue in zip(lines.items(), _HUES, strict=False):
        look = Look(INK if name == yours else hue, is_sick(profile[name].provenance), "s")
        style: dict[str, Any] = {"color": look.color, "linestyle": dash(look), "linewidth": 1.8}
        ax.plot(list(heights), list(heights.values()), marker=look.marker, markersize=5, label=name, **style)
        ends[name] = heights[max(heights)], look
        if look.dashed:
            explain(ax, {"known or suspected fault": {"linestyle": dash(look)}})
    ax.set_yscale("log")
    plain_ticks(ax.yaxis, ax.get_ylim())
    name_ends(ax, ends)
    return ax


def _heights(name: str, profile: Profile, collective: str, view: str) -> dict[int, float]:
    """Return the GB/s or µs by size."""
    seconds = of_type(f"profiles[{name!r}]", profile, Profile).native_s(collective)
    shown = {size: time_s for size, time_s in seconds.items() if size >= _LEAST_BYTES}
    if not shown:
        raise ValueError(f"profiles[{name!r}] must have {collective} of the backend from 1 KiB on, got none")
    if view == "time":
        return {size: time_s * 1e6 for size, time_s in shown.items()}
    factor = busbw_factor(collective, profile.num_ranks)
    if not factor > 0:  # 0 on one rank, nan where busbw has no meaning
        raise ValueError(f"view must be 'time' for a profile without a bus bandwidth, as on one rank, got {view!r}")
    return {size: factor * size / time_s / 1e9 for size, time_s in shown.items()}


def _finding(lines: Mapping[str, Mapping[int, float]], collective: str, view: str) -> str:
    """Return the title: the fastest and the slowest machine at the largest size that all have."""
    size = max(set.intersection(*(set(heights) for heights in lines.values())), default=0)
    ranked = sorted((heights.get(size, 0.0), name) for name, heights in lines.items())
    if view == "busbw":
        ranked.reverse()
    words = []
    for height, name in dict.fromkeys([ranked[0], ranked[-1]]):  # once, if there is one machine
        words.append(f"{name} {cell_words(height / 1e6) if view == 'time' else rate_words(height * 1e9)}")
    return f"{collective} of {bytes_words(size)}: {', '.join(words)}" if size else f"{collective} by size"


def draw_with_peers(mine: Profile, title: str | None = None) -> Axes:
    """Draw a profile's own collective together with those of similar machines of the bank; see `compare_with_peers`.

    The collective is the one whose shortfall the verdict states, or else the first. Raises ValueError if no collective
    was measured.
    """
    box = compare_with_peers(of_type("profile", mine, Profile))
    collective = next(iter(mine.native), "allreduce")  # without any, `profile` says what is missing
    if box.worst.row is not None:
        collective = box.worst.row.collective
    peers = {key.removeprefix(PREFIX): peer for key, peer in box.peers.items() if peer.native_s(collective)}
    return profile({**peers, "yours": mine}, collective=collective, yours="yours", title=title)
