"""Machines over each other: every marker is at what was measured, and each line has its name."""

from __future__ import annotations

import numpy as np

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.judging.picture import draw_with_peers
from rankscope.box.points import Point
from rankscope.drawing.palette import INK
from tests.figures.shown import artist, labels, named, points

SIZES = [2**power for power in range(8, 30)]


def box(start_s: float, rate: float, sick: bool = False) -> Profile:
    about = {"name": "made up", "backend": "nccl", "num_ranks": 8}
    about |= {"source": {"notes": "sick: no reason"}} if sick else {}
    options = {"algorithm": "native", "in_place": True}
    return Profile(about, {}, [Point("allreduce", size, (start_s + size / rate,), (True,), options) for size in SIZES])


TWO = {"quick": box(1e-5, 200e9), "slow": box(2e-5, 10e9, sick=True)}


def test_every_marker_is_at_what_was_measured() -> None:
    ax = figures.profile(TWO)
    for name, one in TWO.items():
        sizes = np.array([size for size in SIZES if size >= 2**10])
        took_s = np.array([point.median_s for point in one.points if point.num_bytes >= 2**10])
        np.testing.assert_allclose(points(ax, name), np.stack([sizes, 1.75 * sizes / took_s / 1e9], axis=1))
    assert set(TWO) <= set(named(ax))


def test_yours_is_black_and_faulty_ones_are_dashed() -> None:
    ax = figures.profile({"quick": TWO["quick"], "yours": TWO["slow"]})
    assert artist(ax, "yours").get_color() == INK != artist(ax, "quick").get_color()
    assert artist(ax, "quick").get_linestyle() == "-" != artist(ax, "yours").get_linestyle()
    one_size = Profile(TWO["quick"].provenance, {}, TWO["quick"].points[-1:])
    assert len(points(figures.profile({"one": one_size}), "one")) == 1


def test_a_profile_is_drawn_over_those_of_the_bank_that_are_like_it() -> None:
    ax = draw_with_peers(Profile.load("bank:runpod_a100_2_no_p2p"))
    assert labels(ax) == ["a100_80gb_2", "runpod_a100_2", "yours"], "yours lies on top"
    assert artist(ax, "yours").get_color() == INK
    assert labels(draw_with_peers(TWO["quick"])) == ["yours"], "no GPU is like one that is not named"
