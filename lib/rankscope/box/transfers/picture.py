"""The rates of copies to and from a GPU by size, at best and measured."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from ...common.checks import of_type, one_of, optional
from ...common.units import bytes_words, rate_words
from ...drawing.charts import LABEL_PT, curves
from ...drawing.palette import INK, PAPER
from ..measuring.plan import DIRECTIONS, METHODS
from ..profile import Profile
from .link_facts import LinkFacts

_SIZES = tuple(2**power for power in range(10, 31))  # of predictions without measurements


def copies(
    facts: LinkFacts,
    profile: Profile | None = None,
    direction: str = "h2d",
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the rate of copies to or from a GPU by size: from pageable and pinned memory, and pinned for the copy.

    Lines show the limit that follows from the `facts` of the link; markers are the medians measured in
    `profile` from 1 KiB on, if it is given. `direction` is "h2d" or "d2h".

    Raises ValueError if an argument is of another type or if the direction is unknown.
    """
    one_of("direction", direction, tuple(DIRECTIONS))
    of_type("facts", facts, LinkFacts)
    optional("profile", profile, of_type, Profile)
    measured: dict[str, dict[int, float]] = {}
    if profile is not None:
        for method in METHODS:
            points = profile.select("transfer", direction=direction, method=method, pieces=1, both=False)
            measured[method] = {p.num_bytes: p.algbw_bytes_per_s / 1e9 for p in points if p.num_bytes >= _SIZES[0]}
    sizes = sorted({size for rates in measured.values() for size in rates}) or _SIZES
    pairs = {}
    for method in METHODS:
        at_best = [size / facts.seconds(size, direction, method) / 1e9 for size in sizes]
        pairs[method] = at_best, [measured.get(method, {}).get(size, math.nan) for size in sizes]
    title = title or f"Copies {DIRECTIONS[direction]}: {facts.name} carries {rate_words(facts.bytes_per_s(direction))}"
    ax = curves(sizes, pairs, title, "size of the copy", "bandwidth, one way [GB/s]", ax=ax, log="x")
    named = sizes[::3]
    ax.set_xticks(named, map(bytes_words, named))
    ax.set_ylim(bottom=0)
    half_bytes = facts.start_s * facts.bytes_per_s(direction)  # that take as long as the start
    ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":")
    ax.annotate(
        f"predicted half: {bytes_words(half_bytes)}",
        (half_bytes, ax.get_ylim()[1]),
        xytext=(-4, -2),
        textcoords="offset points",
        fontsize=LABEL_PT,
        ha="right",
        va="top",
        bbox={"boxstyle": "square,pad=0.12", "facecolor": PAPER, "edgecolor": "none"},  # covers lines
    )
    return ax
