"""`verdict`: a profile in words: what to use when, how good that is, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..values.checks import of_type
from ..values.units import bytes_words, rate_words
from .doubts import DOUBTS
from .folklore import folklore
from .groups import NATIVE, bounds, groups
from .profile import Profile
from .rows import algbw_bytes_per_s

_AS_QUICK = 1.05  # as the sentence says


def verdict(profile: Profile) -> list[str]:
    """Return sentences: of each collective what is quickest, by how much and how near to the bound; then what is wrong.

    >>> from . import Point
    >>> provenance = dict(name="a", date="2030-01-01", backend="gloo", num_ranks=4, num_nodes=1, ranks_per_node=[4])
    >>> times = {"native": 2e-3, "ring": 1e-3}
    >>> points = [Point("allreduce", 1024, [s] * 4, [True] * 4, {"algorithm": name}) for name, s in times.items()]
    >>> for sentence in verdict(Profile(provenance, {}, points)):
    ...     print(sentence)
    allreduce: use ring at 1 KiB; no other is quicker by more than 5 % or the noise.
    allreduce: ring takes 0.50 of native's time at 1 KiB.
    No link was measured, so nothing can be predicted or compared with a bound.
    """
    of_type("profile", profile, Profile)
    return [sentence for rule in (*USES, *DOUBTS) for sentence in rule(profile)]


def quickest(profile: Profile) -> Iterator[str]:
    """Which algorithm at which sizes; one goes on where it is within 5 % of the quickest, or within the noise."""
    for group in groups(profile):
        chosen: list[tuple[str, int]] = []
        for size, points in group.by_size.items():
            best = group.quickest(size)
            last = points.get(chosen[-1][0]) if chosen else None
            stays = last and (last.median_s <= best.median_s * _AS_QUICK or not last.differs(best))
            point = last if last and stays else best
            chosen.append((str(point.options["algorithm"]), size))
        runs = [(name, [size for _, size in run]) for name, run in groupby(chosen, lambda one: one[0])]
        words = ", ".join(f"{name} {_range(sizes)}" for name, sizes in runs)
        yield f"{group.collective}: use {words}; no other is quicker by more than 5 % or the noise."


def against_native(profile: Profile) -> Iterator[str]:
    """How long the quickest of ours takes against the backend's own, where it is best and where it is worst."""
    for group in groups(profile):
        shares: dict[int, tuple[float, str]] = {}
        for size, points in group.by_size.items():
            ours = [(point.median_s, name) for name, point in points.items() if name != NATIVE]
            if ours and NATIVE in points:
                shares[size] = (min(ours)[0] / points[NATIVE].median_s, min(ours)[1])
        if shares:
            least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
            ends = ((*shares[size], bytes_words(size)) for size in dict.fromkeys([least, most]))
            words = (f"{name} takes {share:.2f} of native's time at {size}" for share, name, size in ends)
            yield f"{group.collective}: {', '.join(words)}."


def above_the_bound(profile: Profile) -> Iterator[str]:
    """How far the quickest is from the lower bound at the smallest and at the largest size."""
    try:
        profile.best_link("inter")
    except ValueError:  # no link was measured, or at too few sizes
        return
    for group in groups(profile):
        ends = dict.fromkeys([min(group.by_size), max(group.by_size)])
        bound_s = {size: float(bounds(profile, group.collective, size).seconds) for size in ends}
        times = [(group.quickest(size).median_s / bound_s[size], size) for size in ends if bound_s[size]]
        words = [f"{many:.2f} times the lower bound at {bytes_words(size)}" for many, size in times]
        if words:
            yield f"{group.collective}: the quickest takes {', '.join(words)}."


def copies(profile: Profile) -> Iterator[str]:
    """What copies to and from the GPU reach, and which of the things that are said about them hold."""
    for direction, name in (("h2d", "to the GPU"), ("d2h", "to the host")):
        rates = []
        for method in ("pinned_non_blocking", "pageable"):
            points = profile.select("transfer", direction=direction, method=method, pieces=1, both=False)
            if points:
                point = max(points, key=lambda point: point.num_bytes)
                rate, size = rate_words(algbw_bytes_per_s(point)), bytes_words(point.num_bytes)
                rates.append(f"{rate} with {method.split('_')[0]} memory at {size}")
        if rates:
            yield f"Copies {name}: {', '.join(rates)}."
    for one in folklore(profile):
        if one.holds is not None:
            yield f"That {one.claim}: {'yes' if one.holds else 'no'}; {one.words}."


USES = (quickest, against_native, above_the_bound, copies)


def _range(sizes: list[int]) -> str:
    low, high = bytes_words(sizes[0]), bytes_words(sizes[-1])
    return f"at {low}" if low == high else f"from {low} to {high}"
