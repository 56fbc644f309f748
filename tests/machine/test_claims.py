"""What is said about copies, judged from points made so that it holds, and so that it does not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rankscope.machine import Profile, verdict
from rankscope.machine.claims import CLAIMS, claims
from rankscope.machine.link_facts import facts_of
from rankscope.machine.profile import Point

from .made import point, profile

SIZES = (2**20, 2**22, 2**24, 2**26)
ONCE, EARLY, READ, CHANGED, LOADER = CLAIMS


def copy(method: str, size: int, seconds: float, what: str = "transfer", direction: str = "h2d") -> Point:
    return point(what, size, seconds, direction=direction, method=method, pieces=1, both=False)


def once(times: float, sizes: tuple[int, ...] = SIZES) -> Profile:
    """Copies whose pinning takes so many times as long as a plain one, but at sizes that are not told."""
    plain = [copy("pageable", size, size / 1e9) for size in SIZES]
    pinned = [copy("pin_on_the_fly", size, (times if size in sizes else 1.0) * size / 1e9) for size in SIZES]
    return profile([*plain, *pinned])


def held(share: float, sizes: tuple[int, ...] = SIZES, method: str = "pageable_non_blocking") -> list[Point]:
    """Copies whose call holds the host for such a share of their time at these sizes, and at others for all of it."""
    return [
        copy(method, size, size / 1e9 * (1 if what == "transfer" or size not in sizes else share), what, direction)
        for size in SIZES
        for what in ("transfer", "transfer_host")
        for direction in ("h2d", "d2h")
    ]


def trap(what: str, num_wrong: int, method: str = "pinned_non_blocking") -> Point:
    return point(what, 2**28, 5e-3, method=method, num_wrong=num_wrong, num_looked_at=16384)


def loader(with_s: float, without_s: float, num_workers: int = 2, noise: float = 0.0) -> list[Point]:
    times = {True: with_s, False: without_s}
    return [point("loader", 2**23, s, noise, pin_memory=pin, num_workers=num_workers) for pin, s in times.items()]


def judged(claim: str, found: Profile) -> Any:
    (one,) = [one for one in claims(found) if one.claim == claim]
    return one.measured


@pytest.mark.parametrize(
    ("claim", "found", "holds", "words"),
    [
        (ONCE, once(3.0), True, "slower at 4 of 4 sizes, 201 ms against 67.1 ms at 64 MiB"),
        (ONCE, once(1.0), False, "slower at 0 of 4 sizes"),
        (ONCE, once(3.0, SIZES[:2]), False, "slower at 2 of 4 sizes"),
        (EARLY, profile(held(0.01)), True, "at 6 of 6 large copies; the call holds the host for 1% to 1%"),
        (EARLY, profile(held(0.95)), False, "at 0 of 6 large copies; the call holds the host for 95% to 95%"),
        (READ, profile([trap("too_early", 9)]), True, "pinned: 9 of the last 16384 elements were wrong, in a copy"),
        (READ, profile([trap("too_early", 0)]), False, "of 256 MiB that takes 5 ms"),
        (CHANGED, profile([trap("changed_source", 16384)]), True, "16384 of the last 16384 elements"),
        (CHANGED, profile([trap("changed_source", 0)]), False, "0 of the last"),
        (LOADER, profile(loader(3e-3, 6e-3)), True, "2 workers: 3 ms per batch with pin_memory, 6 ms without"),
        (LOADER, profile(loader(6e-3, 3e-3)), False, "6 ms per batch with pin_memory"),
        (LOADER, profile(loader(3e-3, 6e-3) + loader(6e-3, 3e-3, 0)), False, "0 workers: 6 ms"),
        (LOADER, profile(loader(3e-3, 6e-3) + loader(3e-3, 6e-3, 1)), True, "1 worker: 3 ms"),
        (LOADER, profile(loader(3e-3, 3.06e-3, noise=0.1)), False, ""),
    ],
)
def test_a_claim_holds_or_not_by_its_points(claim: str, found: Profile, holds: bool, words: str) -> None:
    one = judged(claim, found)
    assert one.holds is holds
    assert words in one.words
    assert [other.measured for other in claims(found) if other.claim != claim] == [None] * 4


def test_what_was_kept_pinned_and_what_pinned_copies_do_is_told_beside_it() -> None:
    kept = [copy("pin_on_the_fly_cached", size, 0.5 * size / 1e9) for size in SIZES]
    words = judged(ONCE, profile([*once(3.0).points, *kept])).words
    assert "through pinned memory that PyTorch has kept slower at 0 of 4 sizes, 33.6 ms against 67.1 ms" in words
    pinned = held(0.002, method="pinned_non_blocking")
    words = judged(EARLY, profile(held(0.95) + pinned)).words
    assert words.endswith("from or to pinned memory the call holds the host for 0% to 0% of the copy")
    both = [trap("too_early", 5), trap("too_early", 0, "pageable_non_blocking")]
    assert "pageable: 0 of the last 16384" in judged(READ, profile(both)).words


@pytest.mark.parametrize(
    "points",
    [
        [],
        [copy("pageable", 2**20, 3e-3), copy("pin_on_the_fly", 2**21, 3e-3)],
        held(0.01)[:4],
        [copy("pageable_non_blocking", 2**24, 3e-3)],
        [trap("too_early", 7, "pageable_non_blocking")],
        loader(3e-3, 6e-3)[:1],
        [loader(3e-3, 6e-3)[0], *loader(3e-3, 6e-3, 4)[1:]],
    ],
)
def test_what_was_not_measured_is_not_judged(points: list[Point]) -> None:
    assert [one.measured for one in claims(profile(points))] == [None] * 5


def test_copies_in_pieces_or_both_directions_are_not_mixed_in() -> None:
    def other(**options: Any) -> list[Point]:
        told = {"direction": "h2d", "pieces": 1, "both": False} | options
        methods = {"pin_on_the_fly": 1e-6, "pageable": 1.0}
        return [point("transfer", size, s, method=m, **told) for size in SIZES for m, s in methods.items()]

    found = profile([*once(3.0).points, *other(pieces=256), *other(both=True), *other(direction="d2h")])
    assert judged(ONCE, found) == judged(ONCE, once(3.0))


def test_what_is_no_profile_is_refused() -> None:
    for ask in (claims, facts_of):
        with pytest.raises(ValueError, match="profile must be a Profile, got 3"):
            ask(3)  # type: ignore[arg-type]


def test_verdicts_are_plain_values_and_stand_in_the_profiles_own() -> None:
    found = profile(loader(3e-3, 6e-3))
    assert pickle.loads(pickle.dumps(claims(found))) == claims(found)
    said = [one for one in verdict(found) if one.startswith("That ")]
    assert said == [
        "That DataLoader(pin_memory=True) makes batches arrive faster: yes; "
        "2 workers: 3 ms per batch with pin_memory, 6 ms without."
    ]
