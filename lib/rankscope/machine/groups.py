"""The collectives of a profile: of every algorithm the quickest point at each size, and the lower bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..cluster import Link
from ..collectives import lower_bounds
from ..collectives.cost import Bounds
from .fit import LinkFit
from .points import Point
from .profile import Profile

NATIVE = "native"


@dataclass(frozen=True)
class Group:
    """One collective: by size, small to large, the quickest point of each algorithm; in place where there are any."""

    collective: str
    by_size: Mapping[int, Mapping[str, Point]]

    def quickest(self, num_bytes: int) -> Point:
        """Return the quickest point of a size."""
        return min(self.by_size[num_bytes].values(), key=lambda point: point.median_s)


def groups(profile: Profile) -> list[Group]:
    """Return the collectives that were measured, in the order of their first points."""
    found = []
    named = [point for point in profile.points if "algorithm" in point.options]
    for collective in dict.fromkeys(point.what for point in named):
        points = [point for point in named if point.what == collective]
        points = [point for point in points if point.options.get("in_place")] or points
        by_size: dict[int, dict[str, Point]] = {}
        for point in sorted(points, key=lambda point: -point.median_s):  # the quickest comes last, and stays
            by_size.setdefault(point.num_bytes, {})[str(point.options["algorithm"])] = point
        found.append(Group(collective, dict(sorted(by_size.items()))))
    return found


def joining(profile: Profile) -> dict[str, LinkFit]:
    """Return the links that ranks of the profile are joined by, "inter" and "intra", where there are any.

    Raises ValueError where none was measured.
    """
    several = {"inter": profile.num_nodes > 1, "intra": max(profile.provenance["ranks_per_node"]) > 1}
    return {where: profile.best_link(where) for where, there in several.items() if there}


def bounds(profile: Profile, collective: str, num_bytes: int, num_ranks: int | None = None) -> Bounds:
    """Return the lower bounds were all links as good as the best, whose pieces say what it does at this size.

    They are for the profile's ranks, or for another number of them.

    Raises ValueError where no link was measured.
    """
    fits = list(joining(profile).values()) or [profile.best_link("intra")]
    alpha_s, rate = min(fit.at(0).alpha_s for fit in fits), max(fit.at(num_bytes).bytes_per_s for fit in fits)
    number = profile.num_ranks if num_ranks is None else num_ranks
    return lower_bounds(collective, number, num_bytes, Link(alpha_s, rate), profile.gamma_s_per_byte)
