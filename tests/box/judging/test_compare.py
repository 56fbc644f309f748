"""Comparing two profiles: what differs by more than noise is said, and what has no noise is judged over its sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.box import Profile, read_log
from rankscope.box.judging.compare import change, compare
from rankscope.box.points import Point
from rankscope.cli import main
from tests.box.made import collective, links, profile
from tests.measurements import MEASUREMENTS

CASES = (MEASUREMENTS or Path()).parent / "cases" / "14_compare_two_logs"
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
    assert "B takes 2 times as long" in change(swing)
    assert [row.before.num_bytes for row in swing] == sorted(row.before.num_bytes for row in swing)


@pytest.mark.parametrize(("seconds", "differs"), [([2e-3, 3e-3, 4e-3, 5e-3], False), ([4e-3, 5e-3, 6e-3, 7e-3], True)])
def test_a_difference_within_the_spread_is_none(seconds: list[float], differs: bool) -> None:
    one = profile([Point("copy", 8, [1e-3, 2e-3, 3e-3, 4e-3], [True] * 4)])
    rows = compare(one, profile([Point("copy", 8, seconds, [True] * 4)]))
    assert [row.differs for row in rows] == [differs]


CHANGES = {  # the factor by size, and whether a change of means may be stated
    "none": (lambda size: 1.0, False),
    "slower by 4 %": (lambda size: 1.04, False),
    "slower by 60 %": (lambda size: 1.6, True),
    "170 times slower": (lambda size: 170.0, True),
    "one size disturbed": (lambda size: 9.0 if size == 2**22 else 1.0, False),
    "slower at all sizes but one": (lambda size: 1.0 if size == 2**22 else 1.6, False),
    "slower only in the latency range": (lambda size: 1.6 if size < 2**12 else 1.0, False),
}


@pytest.mark.parametrize("case", CHANGES)
def test_means_are_judged_over_all_sizes(case: str) -> None:
    factor, is_change = CHANGES[case]
    sentence = change(compare(means(), means(factor)))
    assert (" on; all sizes" in sentence) == is_change
    assert "e+" not in sentence


def test_few_sizes_of_means_show_nothing() -> None:
    sentence = change(compare(means(sizes=SIZES[-5:]), means(lambda size: 1.6, sizes=SIZES[-5:])))
    assert "1.6 times as long; too few sizes agree" in sentence


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
    assert "allreduce native (in place compared with out of place): B takes " in printed
    assert "NCCL 2.29.2" in printed


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this checkout")
def test_two_public_logs_of_two_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, new = (read_log(CASES / f"nccl_2_{minor}.txt")[0] for minor in (18, 20))
    sentence = change(compare(old, new))
    assert re.search(r"1\.6 to 1\.7 times as long from 1 MiB on", sentence), sentence
    paths = [str(one.save(tmp_path / f"{name}.json")) for name, one in (("a", old), ("b", new))]
    assert main(["compare", *paths]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "NCCL 2.18.5" in printed
    assert "NCCL 2.20.5" in printed
    assert "mean of 20 iterations" in printed
