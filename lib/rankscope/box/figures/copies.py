"""The rates of copies to and from a GPU by size, at best and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...common.checks import of_type, one_of, optional
from ...common.units import bytes_words, rate_words
from ...figures.charts import chart, dash, explain, markers, name_ends, note
from ...figures.palette import INK, looks
from .. import Profile
from ..link_facts import LinkFacts, transfers_of
from ..measuring.plan import DIRECTIONS

_METHODS = {"pinned_non_blocking": "pinned", "pinned": "pinned", "pageable": "pageable", "pin_on_the_fly": "new pinned"}
_SIZES = tuple(2**power for power in range(10, 31))  # of predictions without measurements


def copies(
    facts: LinkFacts,
    profile: Profile | None = None,
    direction: str = "h2d",
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the rate of copies to or from a GPU by size: from pinned, pageable, and for the copy pinned memory.

    Lines show the limit that follows from the `facts` of the link; markers are the medians and quartiles measured in
    `profile`, if it is given. `direction` is "h2d" or "d2h".

    Raises ValueError if an argument is of another type or if the direction is unknown.
    """
    one_of("direction", direction, tuple(DIRECTIONS))
    of_type("facts", facts, LinkFacts)
    optional("profile", profile, of_type, Profile)
    measured = {}
    for method, name in _METHODS.items():
        points = transfers_of(profile, direction, method) if profile else ()
        if points:
            measured[name] = [point for point in points if point.num_bytes >= _SIZES[0]]
    sizes = sorted({point.num_bytes for points in measured.values() for point in points}) or _SIZES
    words = [f"{name} {rate_words(points[-1].algbw_bytes_per_s)}" for name, points in measured.items()]
    words.append(f"{facts.name} carries {rate_words(facts.bytes_per_s(direction))}")
    title = title or f"Copies {DIRECTIONS[direction]}: {', '.join(words)}"
    ax = chart(ax, title, "size of the copy", "bandwidth, one way [GB/s]", inches=4.4, x=sizes, x_margin=1.2)
    kinds: dict[str, dict[str, Any]] = {"predicted from facts: at best": {}}
    look_of = looks(dict.fromkeys(_METHODS.values()))
    ends = {}
    for method, name in _METHODS.items():
        rates = [size / facts.seconds(size, direction, method) / 1e9 for size in sizes]
        ax.plot(sizes, rates, color=look_of[name].color, linestyle=dash(look_of[name]), label=f"{name}, predicted")
        ends[name] = rates[-1], look_of[name]
    for name, points in measured.items():
        seconds = np.array([[point.percentile_s(percent) for point in points] for percent in (75, 50, 25)])
        own_sizes = np.array([point.num_bytes for point in points])
        markers(ax, name, look_of[name], own_sizes, *(own_sizes / seconds / 1e9))
        kinds["measured: median and quartiles"] = {"marker": "o", "linestyle": "none"}
    ax.set_ylim(bottom=0)
    half_bytes = facts.start_s * facts.bytes_per_s(direction)  # that take as long as the start
    ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":")
    note(ax, f"half of the link: {bytes_words(half_bytes)}", (half_bytes, ax.get_ylim()[1]), (4, -2), va="top")
    explain(ax, kinds)
    name_ends(ax, ends)
    return ax
