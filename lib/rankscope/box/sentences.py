"""`verdict`: a profile in sentences: how good the machine is, what looks wrong, and which algorithm to use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..common.checks import of_type
from ..common.units import bytes_words
from .expected import compare_with_peers
from .machines import origin_of
from .points import NATIVE, Point
from .profile import Profile
from .rules import findings

_CLEARLY = 1.05  # times as long


def verdict(profile: Profile) -> list[str]:
    """Return the verdict as sentences, the most important one first; the source if there is nothing to say.

    >>> provenance = dict(name="a", date="2030-01-01", backend="gloo", num_ranks=4, num_nodes=1, ranks_per_node=[4])
    >>> times = {"native": 2e-3, "ring": 1e-3}
    >>> points = [Point("allreduce", 1024, [s] * 4, [True] * 4, {"algorithm": name}) for name, s in times.items()]
    >>> for sentence in verdict(Profile(provenance, {}, points)):
    ...     print(sentence)
    allreduce: use ring at 1 KiB.
    """
    of_type("profile", profile, Profile)
    found = [str(finding) for finding in findings(compare_with_peers(profile))]
    source = origin_of(profile.provenance.get("source", {}))
    return [*found, *fastest(profile)] or ["There is nothing to compare these measurements with.", *source]


BySize = dict[int, dict[str, Point]]  # points by size (ascending) and algorithm


def groups(profile: Profile) -> dict[str, BySize]:
    """Return the points of each collective, except those of pairs of nodes.

    Of several points of an algorithm at a size, the fastest one in place counts, or the fastest one if none is.
    """
    points = [point for point in profile.points if "algorithm" in point.options and "src" not in point.options]
    collectives: dict[str, BySize] = {point.what: {} for point in points}
    # Of the same algorithm, later ones replace earlier ones.
    for point in sorted(points, key=lambda one: (one.num_bytes, bool(one.options.get("in_place")), -one.median_s)):
        by_algorithm = collectives[point.what].setdefault(point.num_bytes, {})
        by_algorithm[str(point.options["algorithm"])] = point
    return collectives


def fastest_of(points: dict[str, Point]) -> str:
    """Return the algorithm of the shortest time."""
    return min(points, key=lambda algorithm: points[algorithm].median_s)


def fastest(profile: Profile) -> Iterator[str]:
    """Which algorithm to use at which sizes, if others than the native one were measured."""
    for collective, by_size in groups(profile).items():
        if all(points.keys() == {NATIVE} for points in by_size.values()):
            continue
        used = {size: _to_use(points) for size, points in by_size.items()}
        ranges = []
        for name, sizes in groupby(used, used.__getitem__):  # sizes in a row with the same algorithm
            low, *rest = map(bytes_words, sizes)
            ranges.append(f"{name} from {low} to {rest[-1]}" if rest else f"{name} at {low}")
        yield f"{collective}: use {', '.join(ranges)}."


def _to_use(points: dict[str, Point]) -> str:
    """Return the native algorithm, or another one that is clearly faster; "any" if none is."""
    best = fastest_of(points)
    equal = [name for name in points if not _is_clearly_slower(points[name], points[best])]
    if NATIVE in equal:
        return NATIVE
    return "any" if len(equal) == len(points) > 1 else best


def _is_clearly_slower(point: Point, best: Point) -> bool:
    """Return whether a point takes 5 % longer than the best one, and by more than the spread of the iterations."""
    is_known = point.has_spread and best.has_spread
    return is_known and point.median_s > _CLEARLY * best.median_s and point.differs(best)
