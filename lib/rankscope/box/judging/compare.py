"""`compare`: two profiles, size by size; `comparison` says what changed, as far as the measurements can tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ...common.units import bytes_words
from ..points import LEAST_CLEAN, Point
from ..profile import Profile

_SAME = 0.05  # relative difference of means that counts as none
_LEAST_SIZES = 6  # by chance, six signs agree once in 32 times
_LATENCY = 2  # above this multiple of the shortest time, bandwidth counts
_AS_STRONG = 0.8  # of the change at the largest size: smaller sizes that change less are not in the stated range


class ComparedPoint(NamedTuple):
    """An operation at one size in two profiles. `is_mixed` says that one is in place and the other is not."""

    operation: str
    num_bytes: int
    before: Point
    after: Point
    is_mixed: bool

    @property
    def ratio(self) -> float:
        """The time in `after` as a multiple of that in `before`."""
        return self.after.median_s / self.before.median_s

    @property
    def differs(self) -> bool:
        """Whether the middle halves of the iterations do not overlap, or means of iterations differ by 5 %."""
        num_iterations = min(len(self.before.used_s), len(self.after.used_s))
        return self.before.differs(self.after) if num_iterations >= LEAST_CLEAN else abs(self.ratio - 1) > _SAME


def compare(before: Profile, after: Profile) -> list[ComparedPoint]:
    """Return the points that two profiles have in common, by operation and in ascending order of size.

    Points in place are compared with each other, and those out of place; at a size that has neither pair, one is
    compared with the other.
    """
    old = _by_operation(before)
    new = _by_operation(after)
    compared = []
    for operation, num_bytes in sorted(old.keys() & new.keys()):
        ways_before = old[operation, num_bytes]
        ways_after = new[operation, num_bytes]
        ways = [(way, way) for way in ways_before if way in ways_after]
        for one, other in ways or [(min(ways_before), min(ways_after))]:
            compared.append(ComparedPoint(operation, num_bytes, ways_before[one], ways_after[other], one != other))
    return compared


def _by_operation(profile: Profile) -> dict[tuple[str, int], dict[bool, Point]]:
    """Return points by operation and size, in place and out of place."""
    points: dict[tuple[str, int], dict[bool, Point]] = {}
    for point in profile.points:
        options = [str(value) for name, value in sorted(point.options.items()) if name != "in_place"]
        by_way = points.setdefault((" ".join([point.what, *options]), point.num_bytes), {})
        by_way[bool(point.options.get("in_place"))] = point
    return points


def change(rows: Sequence[ComparedPoint]) -> str:
    """Say how the times of an operation differ, if they do, from its points in ascending order of size.

    A change counts if all sizes above the latency range have it.
    """
    shortest_s = min(row.before.median_s for row in rows)
    large = [row for row in rows if row.before.median_s > _LATENCY * shortest_s]
    has_one_sign = len({row.ratio > 1 for row in large}) == 1 and all(row.differs for row in large)
    if has_one_sign and len({row.num_bytes for row in large}) >= _LEAST_SIZES:
        strong = large
        while abs(strong[0].ratio - 1) < _AS_STRONG * abs(large[-1].ratio - 1):
            strong = strong[1:]
        return (
            f"B takes {_ratios(strong)} times as long from {bytes_words(strong[0].num_bytes)} on; "
            "all sizes above the latency range agree"
        )
    return f"B takes {_ratios(rows)} times as long; too few sizes agree to state a change"


def _ratios(rows: Sequence[ComparedPoint]) -> str:
    ratios = [row.ratio for row in rows]
    return " to ".join(dict.fromkeys(f"{float(f'{end:.2g}'):g}" for end in (min(ratios), max(ratios))))


def comparison(before: Profile, after: Profile) -> Iterator[str]:
    """Yield what changed from `before` (A) to `after` (B), operation by operation, and what A and B are."""
    compared = compare(before, after)
    if before.num_ranks != after.num_ranks:
        yield f"Ranks: {before.num_ranks} in A, {after.num_ranks} in B, so equal times are not expected."
    if not compared:
        yield "A and B have no operation at the same size in common."
    for operation, group in groupby(compared, key=lambda row: row.operation):
        rows = list(group)
        mixed = " (in place compared with out of place)" if any(row.is_mixed for row in rows) else ""
        yield f"{operation}{mixed}: {change(rows)}."
    yield f"A: {before}"
    yield f"B: {after}"
