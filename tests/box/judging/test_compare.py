"""Comparing two profiles: what differs by more than noise is said, and what has no noise is judged over its sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.box import Profile, read_log
from rankscope.box.judging.compare import Change, change, compare
from rankscope.box.points import Point
from rankscope.cli import main
from tests.box.made import collective, links, profile
from tests.measurements import MEASUREMENTS

FALL = (MEASUREMENTS or Path()).parent / "cases" / "10_compare_drop_at_1mb"
SIZES = [2**power for power in range(3, 30)]
ALGORITHMS = {"ring": lambda size: 1e-4 + size / 1e9, "swing": lambda size: 2e-4 + size / 1e9}
BEFORE = collective(profile(links()), ALGORITHMS, noise=0.02)


def means(factor: Callable[[int], float] = lambda size: 1.0, sizes: list[int] = SIZES, **options: object) -> Profile:
    """A log: one mean for each size, so many times as long as usual."""
    options = {"algorithm": "native", "in_place": False, **options}
    points = [Point("allreduce", s, (factor(s) * (45e-6 + s / 5e9),), (True,), options) for s in sizes]
    return Profile({"name": "a log", "backend": "nccl", "num_ranks": 8}, {}, points)


def test_what_takes_twice_as_long_differs_and_nothing_else() -> None:
    twice = BEFORE
    for one in BEFORE.select(algorithm="swing"):
        twice = twice.add(Point(one.what, one.num_bytes, [2 * s for s in one.seconds], one.clean, one.options))
    rows = compare(BEFORE, twice)
    assert {row.before.options.get("algorithm") for row in rows if row.differs} == {"swing"}
    np.testing.assert_allclose([row.ratio for row in rows if row.differs], 2, rtol=1e-4)
    swing = [row for row in rows if row.differs]
    assert change(swing).ratio == pytest.approx(2, rel=1e-4)
    assert [row.before.num_bytes for row in swing] == sorted(row.before.num_bytes for row in swing)


@pytest.mark.parametrize(("seconds", "differs"), [([2e-3, 3e-3, 4e-3, 5e-3], False), ([4e-3, 5e-3, 6e-3, 7e-3], True)])
def test_a_difference_within_the_spread_is_none(seconds: list[float], differs: bool) -> None:
    one = profile([Point("copy", 8, [1e-3, 2e-3, 3e-3, 4e-3], [True] * 4)])
    rows = compare(one, profile([Point("copy", 8, seconds, [True] * 4)]))
    assert [row.differs for row in rows] == [differs]


CHANGES: dict[str, tuple[Callable[[int], float], Change]] = {  # the factor by size, and the change
    "none": (lambda size: 1.0, Change(1.0)),
    "slower by 4 %": (lambda size: 1.04, Change(1.04)),
    "slower by 60 %": (lambda size: 1.6, Change(1.6, SIZES[0])),
    "faster": (lambda size: 0.4, Change(0.4, SIZES[0])),
    "one size disturbed": (lambda size: 9.0 if size == 2**22 else 1.0, Change(1.0)),
    "slower from one size on": (lambda size: 2.4 if size >= 2**20 else 1.0, Change(2.4, 2**20, True)),
    "slower from one size on, and less below": (lambda size: 2.4 if size >= 2**20 else 1.2, Change(2.4, 2**20)),
    "slower at all sizes but one": (lambda size: 1.0 if size == 2**18 else 1.6, Change(1.6, 2**19)),
    "slower only in the latency range": (lambda size: 1.6 if size < 2**12 else 1.0, Change(1.0)),
    "slower at the last five sizes": (lambda size: 1.6 if size >= 2**25 else 1.0, Change(1.0)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_means_begins_at_a_size_if_six_sizes_agree(case: str) -> None:
    factor, expected = CHANGES[case]
    found = change(compare(means(), means(factor)))
    assert found.ratio == pytest.approx(expected.ratio)
    assert found.from_bytes == expected.from_bytes
    if case != "slower at all sizes but one":
        assert found.is_equal_below == expected.is_equal_below


def test_the_slower_one_is_named() -> None:
    slower = str(change(compare(means(), means(lambda size: 2.5))))
    faster = str(change(compare(means(), means(lambda size: 0.4))))
    assert slower.startswith("B takes 2.5 times as long as A at 8 B and above")
    assert faster.startswith("A takes 2.5 times as long as B")


@pytest.mark.parametrize(
    ("factor", "limit", "code"), [(1.2, "10%", 1), (1.2, "25 %", 0), (0.5, "10%", 0), (1.0, "ten", 2)]
)
def test_a_change_above_a_limit_has_an_exit_code(tmp_path: Path, factor: float, limit: str, code: int) -> None:
    paths = [
        str(one.save(tmp_path / f"{one.points[0].median_s}.json")) for one in (means(), means(lambda size: factor))
    ]
    assert main(["compare", paths[0], paths[-1], "--fail-above", limit]) == code


def test_nothing_in_common_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(means(sizes=sizes).save(tmp_path / f"{len(sizes)}.json")) for sizes in (SIZES[:5], SIZES[6:])]
    assert main(["compare", *paths]) == 0
    assert main(["compare", *paths, "--fail-above", "10%"]) == 2
    assert "in common" in capsys.readouterr().err


@pytest.mark.skipif(not FALL.is_dir(), reason="the shared cases are not beside this checkout")
def test_a_version_that_is_slower_from_one_size_on() -> None:
    good, bad = (read_log(FALL / f"{name}.txt")[0] for name in ("good", "bad"))
    found = change(compare(good, bad))
    assert (found.from_bytes, found.is_equal_below) == (1_000_000, True)
    assert found.ratio == pytest.approx(2.4, abs=0.05)


def test_points_in_place_and_out_of_place_are_matched_as_there_are() -> None:
    both = Profile(means().provenance, {}, (*means().points, *means(in_place=True).points))
    assert [row.is_mixed for row in compare(both, both)] == [False] * 2 * len(SIZES)
    assert [row.after.options["in_place"] for row in compare(both, means())] == [False] * len(SIZES)
    mixed = compare(means(in_place=True), means())
    assert [row.is_mixed for row in mixed] == [True] * len(SIZES)


def test_the_command_states_the_versions_and_compares_any_profile_with_the_bank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = collective(profile(), {"native": lambda size: 1e-4 + size / 1e9})
    path = box.save(tmp_path / "box.json")
    assert main(["compare", str(path), "bank:h100_8"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("Ranks: 4 in A, 8 in B")  # before any time
    assert (
        "allreduce native (in place compared with out of place): A takes " in printed
        or "out of place): B takes " in printed
    )
    assert "NCCL 2.29.2" in printed
