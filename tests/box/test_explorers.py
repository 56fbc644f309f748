"""What is particular to each explorer of `box`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import pytest

from rankscope.common.units import time_words
from rankscope.explorers import machine, transfers
from rankscope.figures.palette import INK

from ..explorers.cases import report, svg
from .explorer_cases import CASES, gpu
from .made import links, point, profile

MACHINE = CASES["machine"].made()
TRANSFERS = CASES["transfers"].made()
MEASURED = CASES["transfers of a profile"].made()
BOXES = CASES["boxes"].made()
BOXES_OF_YOURS = CASES["boxes of yours"].made()

# ---- boxes


def test_boxes_shows_yours_first_and_passes_over_machines_without_the_collective() -> None:
    panel = CASES["boxes of yours"].open().controls
    assert panel["first"].value == "mine"
    assert {INK} in [set(rects.fill) for rects in BOXES_OF_YOURS.draw(BOXES_OF_YOURS.at())[0].rects]
    assert [name for name, _ in panel["second"].options[:3]] == ["none", "mine", "a100_40gb_8"]
    assert not [name for name in panel["first"].options if "copies" in name or "pairs" in name]
    picture = svg(BOXES, first="dgx_h100_8", second="h100_8", third="none", collective="all_to_all")
    assert "dgx_h100_8" not in picture
    with pytest.raises(ValueError, match="all_to_all"):
        svg(BOXES, first="dgx_h100_8", second="none", third="none", collective="all_to_all")


# ---- machine


def test_machine_shows_native_by_its_curve_at_sizes_that_were_not_measured() -> None:
    native = [point("allreduce", 2**power, 1e-9 * 2**power, algorithm="native") for power in range(9, 24, 2)]
    box = machine({"made": profile([*links(), *native])})
    low, high = map(time_words, profile(native).curve("allreduce").interval_s(2**18))
    assert f"262 µs ({low} to {high})" in box.shown.value
    box.controls["num_ranks"].value = 8
    assert "262 µs" not in box.shown.value


def test_ranks_that_do_not_fill_their_nodes_are_refused_and_nothing_is_drawn() -> None:
    box = machine({"two nodes": profile(links(), num_nodes=2, ranks_per_node=[2, 2])})
    assert "<svg" in box.shown.value
    box.controls["num_ranks"].value = 3
    assert "<svg" not in box.shown.value
    assert "num_ranks" in box.shown.value


# ---- transfers


def test_with_a_profile_times_are_the_measured_ones() -> None:
    box = transfers(gpu())
    assert box.controls["link"].value == "measured: made up"
    copied = report(MEASURED)[0]
    assert time_words(2**26 / 8e9) in copied
    assert "8 GB/s" in copied
    assert svg(MEASURED).count("pin_on_the_fly") == 0


def test_what_was_not_measured_is_said() -> None:
    for now in ({"method": "pin_on_the_fly"}, {"direction": "d2h"}):
        (said,) = report(MEASURED, **now)
        assert "5 sizes" in said
    assert svg(MEASURED, method="pin_on_the_fly").count("<svg") == 1  # no loop
