"""Charts of measured machines over each other: bus bandwidth of the backends' own collectives, by size."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from ...common.checks import of_type
from ...drawing.charts import chart, dash, explain, name_ends, plain_ticks
from ...drawing.palette import INK, LINES, Look
from ..machines import PREFIX, is_sick
from ..profile import Profile
from .peers import peers_of

_HUES = LINES[:-1]  # the last one is the ink
_LEAST_BYTES = 1 << 10  # smaller messages take as long, and say nothing of bandwidth


def profile(
    profiles: Mapping[str, Profile],
    collective: str = "allreduce",
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the bus bandwidth of the backends' own collectives on one or several machines, by size.

    `profiles` are the machines by name; the one named “yours” is black. Machines with a known or suspected fault are
    dashed. Sizes below 1 KiB are omitted.

    Raises ValueError if a profile has no bus bandwidths of the collective, as on one rank, or if there are no profiles
    or more than 7.
    """
    if not 0 < len(of_type("profiles", profiles, dict)) <= len(_HUES):
        raise ValueError(f"profiles must make from 1 to {len(_HUES)} lines, got {len(profiles)}")
    lines = {}
    for name, one in profiles.items():
        rates = of_type(f"profiles[{name!r}]", one, Profile).busbw(collective)
        lines[name] = {size: rate / 1e9 for size, rate in rates.items() if size >= _LEAST_BYTES}
        if not lines[name]:
            raise ValueError(f"profiles[{name!r}] must have bus bandwidths of {collective} from 1 KiB on, got none")
    sizes = sorted({size for rates in lines.values() for size in rates})
    ax = chart(
        ax,
        title or f"{collective}: bus bandwidth by size",
        "size of each rank's buffer",
        "bus bandwidth (busbw) [GB/s]",
        inches=4.4,
        x=sizes,
    )
    ends = {}
    for (name, rates), hue in zip(lines.items(), _HUES, strict=False):
        look = Look(INK if name == "yours" else hue, is_sick(profiles[name].provenance))
        ax.plot(
            list(rates),
            list(rates.values()),
            marker="s",
            markersize=5,
            color=look.color,
            linewidth=1.8,
            linestyle=dash(look),
            label=name,
        )
        ends[name] = rates[max(rates)], look
        if look.dashed:
            explain(ax, {"known or suspected fault": {"linestyle": dash(look)}})
    ax.set_yscale("log")
    plain_ticks(ax.yaxis, ax.get_ylim())
    name_ends(ax, ends)
    return ax


def draw_with_peers(mine: Profile, title: str | None = None) -> Axes:
    """Draw a profile's own collective together with those of similar machines of the bank; see `peers_of`.

    The collective is the one with the highest bus bandwidth. Raises ValueError if none has a bus bandwidth, as on one
    rank.
    """
    native = of_type("profile", mine, Profile).native
    highest = {collective: max(mine.busbw(collective).values(), default=0.0) for collective in native}
    if not any(highest.values()):
        raise ValueError("there is nothing to draw: the profile has no bus bandwidth, as on one rank")
    collective = max(highest, key=highest.__getitem__)
    peers = {key.removeprefix(PREFIX): peer for key, peer in peers_of(mine).items() if peer.native_s(collective)}
    return profile({**peers, "yours": mine}, collective, title=title)
