"""`claims`: common claims about copies to and from a GPU, checked against link facts and measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..values.checks import count_of, of_type
from ..values.units import bytes_words, time_words
from .link_facts import LinkFacts, transfers_of
from .profile import Point, Profile

EARLY = 0.5  # share of the copy's time: a call that blocks the host for less has returned early
LARGE_BYTES = 2**22  # from this size the copy takes much longer than its start
ONE_BYTES, TRAP_BYTES, BATCH_BYTES = 2**26, 2**28, 2**23  # sizes of predictions, the same as those measured


class Answer(NamedTuple):
    """Whether a claim holds, and the figures that show it."""

    holds: bool
    words: str


class Claim(NamedTuple):
    """A claim with its predicted and its measured answer, None if there is none. It prints as three lines."""

    claim: str
    predicted: Answer | None
    measured: Answer | None

    def __str__(self) -> str:
        answers = {"predicted": self.predicted, "measured": self.measured}
        words = {name: f"{'yes' if one.holds else 'no'}: {one.words}" for name, one in answers.items() if one}
        lines = (f"  {name:9}  {words.get(name, f'not {name} here')}" for name in answers)
        return "\n".join([self.claim, *lines])


def claims(profile: Profile | None = None, facts: LinkFacts | None = None) -> list[Claim]:
    """Return each claim with the answer measured in `profile` and the one predicted from the link's `facts`.

    A prediction gives times at one size. What a call waits for is documented by NVIDIA (CUDA Driver API, "API
    synchronization behavior"). Raises ValueError if an argument is not a Profile or LinkFacts.

    >>> from rankscope.machine import stated
    >>> provenance = dict(name="a", date="2030-01-01", backend="gloo", num_ranks=1, num_nodes=1, ranks_per_node=[1])
    >>> found = {"method": "pinned_non_blocking", "num_wrong": 16384, "num_looked_at": 16384}
    >>> early = Point("too_early", 2**28, [5e-3] * 5, [True] * 5, found)
    >>> print(claims(Profile(provenance, {}, [early]), stated(4))[2])
    a non_blocking copy to the host that is read too early gives wrong data
      predicted  yes: the call is back after some 10 µs, the last of 256 MiB comes after 9.33 ms
      measured   yes: pinned: 16384 of the last 16384 elements were wrong, in a copy of 256 MiB that takes 5 ms
    """
    if profile is not None:
        of_type("profile", profile, Profile)
    if facts is not None:
        of_type("facts", facts, LinkFacts)
    return [
        Claim(claim, predicted(facts) if facts else None, measured(profile) if profile else None)
        for claim, (predicted, measured) in CLAIMS.items()
    ]


# ---- pin_memory().to() of a tensor that is copied once


def pinning_once_expected(facts: LinkFacts) -> Answer:
    pinned, plain = (facts.seconds(ONE_BYTES, "h2d", method) for method in ("pin_on_the_fly", "pageable"))
    return Answer(
        pinned > plain,
        f"at {bytes_words(ONE_BYTES)} a copy into pinned memory and then the link's take {time_words(pinned)} "
        f"and the pinning itself; .to() does both at once, in {time_words(plain)} at best",
    )


def pinning_once(profile: Profile) -> Answer | None:
    """Holds if slower by more than the noise at most sizes. Cached pinned memory is mentioned but does not count."""
    cold, kept = (_against_pageable(profile, method) for method in ("pin_on_the_fly", "pin_on_the_fly_cached"))
    if not cold:
        return None
    words = _words_of_pairs("memory pinned for it", cold)
    if kept:
        words += f"; {_words_of_pairs('pinned memory that PyTorch has kept', kept)}"
    return Answer(2 * _num_slower(cold) > len(cold), words)


Pair = tuple[Point, Point]


def _against_pageable(profile: Profile, method: str) -> list[Pair]:
    """Copies to the GPU by this method, each paired with the pageable copy of the same size, in ascending order."""
    ours, plain = (_plain(profile, "transfer", "h2d", name) for name in (method, "pageable"))
    return [(ours[size], plain[size]) for size in sorted(set(ours) & set(plain))]


def _plain(profile: Profile, what: str, direction: str, method: str) -> dict[int, Point]:
    """Copies in one piece and one direction, by size."""
    return {point.num_bytes: point for point in transfers_of(profile, direction, method, what)}


def _num_slower(pairs: Sequence[Pair]) -> int:
    return sum(one.differs(plain) and one.median_s > plain.median_s for one, plain in pairs)


def _words_of_pairs(name: str, pairs: Sequence[Pair]) -> str:
    one, plain = pairs[-1]
    times = f"{time_words(one.median_s)} against {time_words(plain.median_s)} at {bytes_words(one.num_bytes)}"
    return f"through {name} slower at {_num_slower(pairs)} of {count_of(len(pairs), 'size')}, {times}"


# ---- non_blocking=True without pinned memory


def pageable_early_expected(facts: LinkFacts) -> Answer:
    return Answer(
        False,
        "to the GPU the call first copies all bytes into pinned memory of the driver's, "
        "to the host it may return only when they are there",
    )


def pageable_early(profile: Profile) -> Answer | None:
    """Holds if the call blocks the host for less than `EARLY` of the copy, for most large copies in both directions."""
    shares = _shares(profile, "pageable_non_blocking")
    if not shares:
        return None
    early = sum(share < EARLY for share in shares)
    words = f"at {early} of {count_of(len(shares), 'large copy').replace('copys', 'copies')}; {_held(shares)}"
    pinned = _shares(profile, "pinned_non_blocking")
    return Answer(2 * early > len(shares), words + (f"; from or to pinned memory {_held(pinned)}" if pinned else ""))


def _shares(profile: Profile, method: str) -> list[float]:
    """The share of each large copy's time for which the call blocked the host."""
    found = []
    for direction in ("h2d", "d2h"):
        copies, held = (_plain(profile, what, direction, method) for what in ("transfer", "transfer_host"))
        sizes = [size for size in sorted(set(copies) & set(held)) if size >= LARGE_BYTES]
        found += [held[size].median_s / copies[size].median_s for size in sizes]
    return found


def _held(shares: Sequence[float]) -> str:
    return f"the call holds the host for {min(shares):.0%} to {max(shares):.0%} of the copy"


# ---- the two traps


def too_early_expected(facts: LinkFacts) -> Answer:
    copy_s = time_words(facts.seconds(TRAP_BYTES, "d2h"))
    last = f"the last of {bytes_words(TRAP_BYTES)} comes after {copy_s}"
    return Answer(True, f"the call is back after some {time_words(facts.start_s)}, {last}")


def changed_source_expected(facts: LinkFacts) -> Answer:
    copy_s = time_words(facts.seconds(TRAP_BYTES, "h2d"))
    return Answer(True, f"the last of {bytes_words(TRAP_BYTES)} is fetched {copy_s} after the call")


def wrong_data(profile: Profile, what: str) -> Answer | None:
    """Holds if, in every try, some elements of the copy from pinned memory, or to it, were wrong."""
    found: dict[str, tuple[bool, str]] = {}
    for point in profile.select(what):
        method, wrong = str(point.options.get("method", "")), point.options.get("num_wrong")
        if method and isinstance(wrong, int):
            elements = f"{wrong} of the last {point.options.get('num_looked_at', '')} elements were wrong"
            copy = f"in a copy of {bytes_words(point.num_bytes)} that takes {time_words(point.median_s)}"
            found[method] = wrong > 0, f"{method.removesuffix('_non_blocking')}: {elements}, {copy}"
    if "pinned_non_blocking" not in found:
        return None
    return Answer(found["pinned_non_blocking"][0], "; ".join(words for _, words in found.values()))


# ---- DataLoader(pin_memory=True)


def pinning_loader_expected(facts: LinkFacts) -> Answer:
    pinned, plain = (facts.seconds(BATCH_BYTES, "h2d", method) for method in ("pinned", "pageable"))
    return Answer(
        pinned < plain,
        f"the loop waits {time_words(pinned)} for {bytes_words(BATCH_BYTES)} instead of {time_words(plain)}; "
        "a thread of the loader's pins them meanwhile, if it has workers",
    )


def pinning_loader(profile: Profile) -> Answer | None:
    """Holds if a batch takes less time, by more than the noise, with every number of workers."""
    on, off = (
        {point.options.get("num_workers"): point for point in profile.select("loader", pin_memory=pin)}
        for pin in (True, False)
    )
    both = [workers for workers in on if workers in off and isinstance(workers, int)]
    pairs = [(count_of(workers, "worker"), on[workers], off[workers]) for workers in both]
    if not pairs:
        return None
    words = (
        f"{workers}: {time_words(with_it.median_s)} per batch with pin_memory, {time_words(without.median_s)} without"
        for workers, with_it, without in pairs
    )
    helps = all(one.differs(without) and one.median_s < without.median_s for _, one, without in pairs)
    return Answer(helps, "; ".join(words))


Rules = tuple[Callable[[LinkFacts], Answer], Callable[[Profile], Answer | None]]
CLAIMS: dict[str, Rules] = {
    "pin_memory().to() is slower than .to() for a tensor that is copied once": (pinning_once_expected, pinning_once),
    "non_blocking=True returns early without pinned memory, too": (pageable_early_expected, pageable_early),
    "a non_blocking copy to the host that is read too early gives wrong data": (
        too_early_expected,
        partial(wrong_data, what="too_early"),
    ),
    "a pinned source that is changed before the copy has ended arrives changed": (
        changed_source_expected,
        partial(wrong_data, what="changed_source"),
    ),
    "DataLoader(pin_memory=True) makes batches arrive faster": (pinning_loader_expected, pinning_loader),
}
