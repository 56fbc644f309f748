"""What is particular to each explorer of `box`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import pytest

from rankscope.box import Profile
from rankscope.common.units import time_words, times_in_one_unit
from rankscope.explorers import machine, transfers

from ..explorers.cases import report, svg
from .explorer_cases import CASES, gpu
from .made import links, profile

MACHINE = CASES["machine"].made()
TRANSFERS = CASES["transfers"].made()
MEASURED = CASES["transfers of a profile"].made()
BOXES = CASES["boxes"].made()
BOXES_OF_YOURS = CASES["boxes of yours"].made()

# ---- boxes


def test_boxes_shows_machines_with_as_many_gpus_that_were_measured_at_this_size() -> None:
    lines = report(BOXES, message="64 MiB", num_ranks=2)
    names = [line.partition(":")[0] for line in lines]
    assert "runpod_a100_2_no_p2p" in names
    assert not [name for name in names if name.endswith("_8") or "copies" in name or "pairs" in name]
    seconds = Profile.load("bank:h100_2").native_s("allreduce")[2**26]
    assert times_in_one_unit(seconds, 1e-3)[0] in " ".join(lines)
    assert "runpod_a100_2" not in " ".join(report(BOXES, message="64 MiB", num_ranks=2, collective="allgather"))
    with pytest.raises(ValueError, match="16 GPUs"):
        svg(BOXES, num_ranks=16, collective="all_to_all")
    assert report(BOXES_OF_YOURS)[-1].startswith("mine: ")
    assert "your choice" in svg(BOXES_OF_YOURS)


# ---- machine


def test_machine_shows_what_is_predicted_and_what_was_measured() -> None:
    drawn = svg(MACHINE, message="256 KiB", num_ranks=4)
    assert drawn.count(", measured") == 3  # and native has no prediction
    assert "measured" not in svg(MACHINE, message="256 KiB", num_ranks=8)


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
