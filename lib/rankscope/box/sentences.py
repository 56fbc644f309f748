"""`verdict`: a profile in sentences: how good the machine is, what looks wrong, and which algorithm to use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..common.checks import of_type
from ..common.units import bytes_words, rate_words, three_digits
from .expected import compare_with_peers
from .link_facts import transfers_of
from .measuring.plan import DIRECTIONS
from .points import NATIVE, Point
from .profile import Profile
from .rules import findings

_CLEARLY = 1.05  # times as long


def verdict(profile: Profile) -> list[str]:
    """Return the verdict as sentences, the most important one first.

    >>> provenance = dict(name="a", date="2030-01-01", backend="gloo", num_ranks=4, num_nodes=1, ranks_per_node=[4])
    >>> times = {"native": 2e-3, "ring": 1e-3}
    >>> points = [Point("allreduce", 1024, [s] * 4, [True] * 4, {"algorithm": name}) for name, s in times.items()]
    >>> for sentence in verdict(Profile(provenance, {}, points)):
    ...     print(sentence)
    allreduce: use ring at 1 KiB, up to 2 times as fast as native.
    """
    of_type("profile", profile, Profile)
    found = [str(finding) for finding in findings(compare_with_peers(profile))]
    sentences = [*found, *fastest(profile), *copies(profile)]
    return sentences or ["There is nothing to compare these measurements with."]


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
    """Which algorithm to use at which sizes: another one than native only where it is clearly faster."""
    for collective, by_size in groups(profile).items():
        used: dict[int, str] = {}  # what to use at each size
        gain = 1.0  # how many times as fast the fastest is as native, at most
        name = ""
        for size, points in by_size.items():
            best = fastest_of(points)
            equal = [other for other in points if not _is_clearly_slower(points[other], points[best])]
            if NATIVE in equal:
                name = NATIVE
            elif len(equal) == len(points) > 1:
                name = "any"
            elif name not in equal:  # else the algorithm of the size before stays
                name = best
            used[size] = name
            if NATIVE in points and name != NATIVE:
                gain = max(gain, points[NATIVE].median_s / points[best].median_s)
        if all(points.keys() == {NATIVE} for points in by_size.values()):  # no other was measured
            continue
        ranges = []
        for name, sizes in groupby(used, used.__getitem__):  # sizes in a row with the same algorithm
            low, *rest = map(bytes_words, sizes)
            ranges.append(f"{name} from {low} to {rest[-1]}" if rest else f"{name} at {low}")
        faster = f", up to {three_digits(gain)} times as fast as native" if gain > 1 else ""
        yield f"{collective}: use {', '.join(ranges)}{faster}."


def _is_clearly_slower(point: Point, best: Point) -> bool:
    """Return whether a point takes 5 % longer than the best one, and by more than the spread of the iterations."""
    is_known = point.has_spread and best.has_spread
    return is_known and point.median_s > _CLEARLY * best.median_s and point.differs(best)


def copies(profile: Profile) -> Iterator[str]:
    """The rates of copies to and from the GPU, at the largest sizes."""
    for direction, name in DIRECTIONS.items():
        rates = {}
        for method in ("pinned", "pinned_non_blocking", "pageable"):
            memory = method.removesuffix("_non_blocking")
            for point in transfers_of(profile, direction, method)[-1:]:
                rate = rate_words(point.algbw_bytes_per_s)
                rates[memory] = f"{rate} with {memory} memory at {bytes_words(point.num_bytes)}"
        if rates:
            yield f"Copies {name}: {', '.join(rates.values())}."
