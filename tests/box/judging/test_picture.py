"""Machines next to each other: each cell has the rate at its size, and the title compares the first with the others."""

from __future__ import annotations

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.judging.picture import SIZES, draw_with_peers
from rankscope.box.points import Point
from rankscope.drawing.marks import Box, Text

BYTES = [2**power for power in range(8, 30)]


def box(start_s: float, rate: float, sizes: list[int] = BYTES) -> Profile:
    about = {"name": "made up", "backend": "nccl", "num_ranks": 8}
    options = {"algorithm": "native", "in_place": True}
    return Profile(about, {}, [Point("allreduce", size, (start_s + size / rate,), (True,), options) for size in sizes])


TWO = {"quick": box(1e-5, 200e9), "slow": box(2e-5, 10e9)}


def cells(drawing: figures.Drawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, Box) and mark.look == "tint"]


def test_each_cell_has_the_rate_at_its_size() -> None:
    drawing = figures.profile(TWO, size="1 MiB")
    rows = []
    for name, one in TWO.items():
        times_s = one.native_s("allreduce")
        sizes = [4**power for power in range(5, 15)]  # the largest that both have
        rates = [1.75 * size / times_s[size] / 1e9 if size in times_s else None for size in sizes]
        rows += ["" if rate is None else f"{rate:.3g}" for rate in rates]
        assert name in [mark.text for mark in drawing.marks if isinstance(mark, Text)]
    assert cells(drawing) == rows
    assert len(SIZES) == 13
    quick, slow = (1.75 * 2**20 / one.native_s("allreduce")[2**20] / 1e9 for one in TWO.values())
    assert drawing.title == f"quick: {quick:.3g} vs {slow:.3g} GB/s"
    assert f"{slow:.3g} GB/s" in drawing.deck


def test_a_profile_is_drawn_with_those_of_the_bank_that_are_like_it() -> None:
    drawing = draw_with_peers(Profile.load("bank:runpod_a100_2_no_p2p"))
    named = [mark.text for mark in drawing.marks if isinstance(mark, Text)]
    assert named[1] == "yours", "below what yellow is"
    assert (drawing.title, "187 GB/s to 188 GB/s" in drawing.deck) == ("yours: 13.6 vs 188 GB/s", True)
    alone = draw_with_peers(box(1e-5, 200e9, [2**power for power in range(8, 15)]))
    assert "others" not in alone.deck, "no GPU is like one that is not named"
    assert " GB/s" in alone.title
