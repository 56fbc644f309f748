"""`compare`: two profiles, size by size; `comparison` says what changed, as far as the measurements can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, product, takewhile
from statistics import median
from typing import NamedTuple

from ...common.units import bytes_words
from ..points import LEAST_CLEAN, Point
from ..profile import Profile

_SAME = 0.05  # relative difference of means that counts as none
_LEAST_SIZES = 6  # by chance, six signs agree once in 32 times
_AS_STRONG = 0.5  # of the change at the largest size: smaller sizes that change less are not in the stated range


class ComparedPoint(NamedTuple):
    """An operation at one size in two profiles."""

    operation: str
    before: Point
    after: Point

    @property
    def is_mixed(self) -> bool:
        """Whether one is in place and the other is not."""
        return bool(self.before.options.get("in_place")) != bool(self.after.options.get("in_place"))

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
    for key in sorted(old.keys() & new.keys()):
        rows = [ComparedPoint(key[0], *pair) for pair in product(old[key], new[key])]
        compared += [row for row in rows if not row.is_mixed] or rows
    return compared


def _by_operation(profile: Profile) -> dict[tuple[str, int], list[Point]]:
    """Return points by operation and size: one in place, one out of place, or both."""
    points: dict[tuple[str, int], list[Point]] = {}
    for point in profile.points:
        options = [str(value) for name, value in sorted(point.options.items()) if name != "in_place"]
        points.setdefault((" ".join([point.what, *options]), point.num_bytes), []).append(point)
    return points


class Change(NamedTuple):
    """How much longer an operation takes in B than in A, as a factor; `from_bytes` is 0 if too few sizes agree."""

    ratio: float
    from_bytes: int = 0
    is_equal_below: bool = False

    def __str__(self) -> str:
        if not self.from_bytes and abs(self.ratio - 1) <= _SAME:
            return "no change"
        slower, other = ("B", "A") if self.ratio > 1 else ("A", "B")
        words = f"{slower} takes {max(self.ratio, 1 / self.ratio):.3g} times as long as {other}"
        if not self.from_bytes:
            return f"{words} in the median; too few sizes agree to state a change"
        below = "; below, they are equal" if self.is_equal_below else ""
        return f"{words} at {bytes_words(self.from_bytes)} and above{below}"


def change(rows: Sequence[ComparedPoint]) -> Change:
    """Return how the times of an operation differ, from its points in ascending order of size.

    A change counts if the last six sizes or more differ in one direction. It begins where it is half as large as at the
    last size.
    """
    last = rows[-1].ratio - 1
    one_way = _tail(rows, lambda row: row.differs and (row.ratio - 1) * last > 0)
    if len({row.after.num_bytes for row in one_way}) < _LEAST_SIZES:
        return Change(median(row.ratio for row in rows))
    strong = _tail(one_way, lambda row: abs(row.ratio - 1) >= _AS_STRONG * abs(last))
    weak = rows[: len(rows) - len(strong)]
    is_equal_below = bool(weak) and not any(row.differs for row in weak)
    return Change(median(row.ratio for row in strong), strong[0].after.num_bytes, is_equal_below)


def _tail(rows: Sequence[ComparedPoint], has: Callable[[ComparedPoint], bool]) -> list[ComparedPoint]:
    """Return the last rows, all of which have a property."""
    return list(takewhile(has, reversed(rows)))[::-1]


def changes(before: Profile, after: Profile) -> dict[str, Change]:
    """Return the change of each operation that two profiles have in common."""
    found = {}
    for operation, group in groupby(compare(before, after), key=lambda row: row.operation):
        rows = list(group)
        mixed = " (in place compared with out of place)" if any(row.is_mixed for row in rows) else ""
        found[f"{operation}{mixed}"] = change(rows)
    return found


def comparison(before: Profile, after: Profile, found: Mapping[str, Change]) -> Iterator[str]:
    """Yield the `changes` from `before` (A) to `after` (B), operation by operation, and what A and B are."""
    if before.num_ranks != after.num_ranks:
        yield f"Ranks: {before.num_ranks} in A, {after.num_ranks} in B, so equal times are not expected."
    if not found:
        yield "A and B have no operation at the same size in common."
    for operation, one in found.items():
        yield f"{operation}: {one}."
    yield f"A: {before}"
    yield f"B: {after}"
