"""`folklore`: what is said about copies to and from a GPU, held to the points of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..values.checks import count_of, of_type
from ..values.units import bytes_words, time_words
from .points import Point
from .profile import Profile

EARLY = 0.5  # of the copy's time: a call that holds the host for less has returned early
LARGE_BYTES = 2**22  # from here on a copy takes much longer than to start it
ON, OFF = "with pin_memory", "without"


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds (None where it was not measured), and the figures that say so."""

    claim: str
    holds: bool | None
    words: str


def folklore(profile: Profile) -> list[Verdict]:
    """Return a verdict on each of `CLAIMS`, from the points alone.

    >>> from . import Point
    >>> told = dict(name="a", date="2030-01-01", backend="gloo", num_ranks=1, num_nodes=1, ranks_per_node=[1])
    >>> found = {"method": "pinned_non_blocking", "num_wrong": 16384, "num_looked_at": 16384}
    >>> early = Point("too_early", 2**28, [5e-3] * 5, [True] * 5, found)
    >>> for verdict in folklore(Profile(told, {}, [early]))[1:3]:
    ...     print(verdict.holds, verdict.words)
    None not measured
    True pinned: 16384 of the last 16384 elements were wrong, in a copy of 256 MiB that takes 5 ms
    """
    of_type("profile", profile, Profile)
    return [Verdict(claim, *(rule(profile) or (None, "not measured"))) for claim, rule in CLAIMS.items()]


def pinning_does_not_pay_once(profile: Profile) -> tuple[bool, str] | None:
    """Slower, by more than the noise, at most of the sizes; with memory that PyTorch kept it is only told."""
    cold, kept = (_against_pageable(profile, method) for method in ("pin_on_the_fly", "pin_on_the_fly_cached"))
    if not cold:
        return None
    words = _words_of_pairs("memory pinned for it", cold)
    if kept:
        words += f"; {_words_of_pairs('pinned memory that PyTorch has kept', kept)}"
    return 2 * _num_slower(cold) > len(cold), words


def pageable_returns_early(profile: Profile) -> tuple[bool, str] | None:
    """The call holds the host for less than `EARLY` of the copy at most of the large sizes, of both directions."""
    shares = _shares(profile, "pageable_non_blocking")
    if not shares:
        return None
    early = sum(share < EARLY for share, _ in shares)
    words = f"at {early} of {count_of(len(shares), 'large copy').replace('copys', 'copies')}; {_held(shares)}"
    pinned = _shares(profile, "pinned_non_blocking")
    return 2 * early > len(shares), words + (f"; from or to pinned memory {_held(pinned)}" if pinned else "")


def too_early_is_wrong(profile: Profile) -> tuple[bool, str] | None:
    """Some of what was read right after the call was wrong, in each try."""
    return _wrong(profile, "too_early")


def changed_source_arrives(profile: Profile) -> tuple[bool, str] | None:
    """Some of what arrived was what the source was set to after the call, in each try."""
    return _wrong(profile, "changed_source")


def loader_pinning_helps(profile: Profile) -> tuple[bool, str] | None:
    """A batch takes less, by more than the noise, with each number of workers."""
    found = {
        pin: {p.options["num_workers"]: p for p in profile.select("loader", pin_memory=pin)} for pin in (True, False)
    }
    pairs = [
        (workers, found[True][workers], found[False][workers]) for workers in found[True] if workers in found[False]
    ]
    if not pairs:
        return None
    helps = [on.differs(off) and on.median_s < off.median_s for _, on, off in pairs]
    words = [
        f"{count_of(int(workers), 'worker')}: {time_words(on.median_s)} a batch {ON}, {time_words(off.median_s)} {OFF}"
        for workers, on, off in pairs
    ]
    return all(helps), "; ".join(words)


CLAIMS = {
    "pin_memory().to() is slower than .to() for a tensor that is copied once": pinning_does_not_pay_once,
    "non_blocking=True returns early without pinned memory, too": pageable_returns_early,
    "a non_blocking copy to the host that is read too early gives wrong data": too_early_is_wrong,
    "a pinned source that is changed before the copy has ended arrives changed": changed_source_arrives,
    "DataLoader(pin_memory=True) makes batches quicker": loader_pinning_helps,
}

Pair = tuple[Point, Point]


def _plain(profile: Profile, what: str, direction: str, method: str) -> dict[int, Point]:
    """The copies in one piece and one direction at a time, by size."""
    points = profile.select(what, direction=direction, method=method, pieces=1, both=False)
    return {point.num_bytes: point for point in points}


def _against_pageable(profile: Profile, method: str) -> list[Pair]:
    """Copies to the GPU by this method beside those from pageable memory, small to large."""
    ours, plain = (_plain(profile, "transfer", "h2d", name) for name in (method, "pageable"))
    return [(ours[size], plain[size]) for size in sorted(set(ours) & set(plain))]


def _num_slower(pairs: Sequence[Pair]) -> int:
    return sum(one.differs(plain) and one.median_s > plain.median_s for one, plain in pairs)


def _words_of_pairs(name: str, pairs: Sequence[Pair]) -> str:
    one, plain = pairs[-1]
    times = f"{time_words(one.median_s)} against {time_words(plain.median_s)} at {bytes_words(one.num_bytes)}"
    return f"through {name} slower at {_num_slower(pairs)} of {count_of(len(pairs), 'size')}, {times}"


def _shares(profile: Profile, method: str) -> list[tuple[float, Point]]:
    """Of each large copy the share of its time for which the call held the host."""
    found = []
    for direction in ("h2d", "d2h"):
        copies, held = (_plain(profile, what, direction, method) for what in ("transfer", "transfer_host"))
        sizes = [size for size in sorted(set(copies) & set(held)) if size >= LARGE_BYTES]
        found += [(held[size].median_s / copies[size].median_s, copies[size]) for size in sizes]
    return found


def _held(shares: Sequence[tuple[float, Point]]) -> str:
    low, high = min(share for share, _ in shares), max(share for share, _ in shares)
    return f"the call holds the host for {low:.0%} to {high:.0%} of the copy"


def _wrong(profile: Profile, what: str) -> tuple[bool, str] | None:
    points = {str(point.options["method"]): point for point in profile.select(what)}
    if "pinned_non_blocking" not in points:
        return None
    words = []
    for method, point in points.items():
        wrong, looked_at = point.options["num_wrong"], point.options.get("num_looked_at", "")
        copy = f"in a copy of {bytes_words(point.num_bytes)} that takes {time_words(point.median_s)}"
        elements = f"{wrong} of the last {looked_at} elements were wrong"
        words.append(f"{method.removesuffix('_non_blocking')}: {elements}, {copy}")
    return int(points["pinned_non_blocking"].options["num_wrong"]) > 0, "; ".join(words)
