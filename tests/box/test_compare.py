"""Comparing two profiles: what differs by more than noise is marked, what only one has is there."""

from __future__ import annotations

import numpy as np

from rankscope.box import Profile
from rankscope.box.compare import compare
from rankscope.box.profile import Point
from tests.box.made import collective, links, point, profile

BEFORE = collective(
    profile(links()), {"ring": lambda size: 1e-4 + size / 1e9, "swing": lambda size: 2e-4 + size / 1e9}, noise=0.02
)


def test_against_itself_nothing_differs() -> None:
    frame = compare(BEFORE, BEFORE)
    assert len(frame) == len(BEFORE.points)
    assert (frame.ratio == 1).all()
    assert not frame.beyond_noise.any()
    assert (frame.only_in == "").all()


def test_what_takes_twice_as_long_is_marked_and_nothing_else() -> None:
    twice = BEFORE
    for one in BEFORE.select(algorithm="swing"):
        twice = twice.add(Point(one.what, one.num_bytes, [2 * s for s in one.seconds], one.clean, one.options))
    frame = compare(BEFORE, twice).set_index("algorithm")
    np.testing.assert_allclose(frame.ratio["swing"], 2, rtol=1e-4)
    assert frame.beyond_noise["swing"].all()
    assert not frame.beyond_noise["ring"].any()
    assert np.allclose(compare(twice, BEFORE).set_index("algorithm").ratio["swing"], 0.5, rtol=1e-4)


def test_a_difference_within_the_spread_is_not_marked() -> None:
    one = profile([Point("copy", 8, [1e-3, 2e-3, 3e-3, 4e-3], [True] * 4)])
    other = profile([Point("copy", 8, [2e-3, 3e-3, 4e-3, 5e-3], [True] * 4)])
    apart = profile([Point("copy", 8, [4e-3, 5e-3, 6e-3, 7e-3], [True] * 4)])
    assert compare(one, other).beyond_noise.tolist() == [False]
    assert compare(one, apart).beyond_noise.tolist() == [True]


def test_without_a_spread_nothing_differs_by_more_than_noise() -> None:
    def of(*seconds: float) -> Profile:
        return profile([Point("copy", 8, seconds, [True] * len(seconds))])

    several = (1e-3, 1.1e-3, 1.2e-3, 1.3e-3)
    for one, other in (
        (of(1e-3), of(1.001e-3)),
        (of(1e-3), of(9e-3)),
        (of(*several), of(9e-3)),
        (of(1e-3), of(*several)),
    ):
        frame = compare(one, other)
        assert frame.has_spread.tolist() == [False]
        assert frame.beyond_noise.tolist() == [False]
    twice = compare(of(*several), of(*(2 * one for one in several)))
    assert (twice.has_spread.tolist(), twice.beyond_noise.tolist()) == ([True], [True])


def test_what_only_one_has_is_listed() -> None:
    one = profile([point("copy", 8, 1.0), point("add", 8, 1.0)])
    other = profile([point("copy", 16, 1.0), point("add", 8, 1.0)])
    frame = compare(one, other)
    assert list(zip(frame.what, frame.num_bytes, frame.only_in, strict=True)) == [
        ("copy", 8, "before"),
        ("add", 8, ""),
        ("copy", 16, "after"),
    ]
    assert np.isnan(frame.ratio[[0, 2]]).all()
    assert not frame.beyond_noise.any()
