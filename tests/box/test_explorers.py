"""What is particular to each explorer of `box`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import pytest

from rankscope.box import Profile, stated
from rankscope.common.units import time_words

from ..explorers.cases import report, svg
from .explorer_cases import CASES

TRANSFERS = CASES["transfers"].made()
BOXES = CASES["boxes"].made()


def test_boxes_shows_machines_with_as_many_gpus_that_were_measured_at_this_size() -> None:
    lines = report(BOXES, message="64 MiB", num_ranks=2)
    names = [line.partition(":")[0] for line in lines]
    assert "runpod_a100_2_no_p2p" in names
    assert not [name for name in names if name.endswith("_8") or "copies" in name or "pairs" in name]
    seconds = Profile.load("bank:h100_2").native_s("allreduce")[2**26]
    assert time_words(seconds) in " ".join(lines)
    assert "runpod_a100_2" not in " ".join(report(BOXES, message="64 MiB", num_ranks=2, collective="allgather"))
    with pytest.raises(ValueError, match="16 GPUs"):
        svg(BOXES, num_ranks=16, collective="all_to_all")


def test_transfers_shows_the_bound_of_the_link() -> None:
    copied, loop = report(TRANSFERS, link="PCIe 4 x16", size="64 MiB", method="pinned")
    assert time_words(stated(4).seconds(2**26, "h2d", "pinned")) in copied
    assert time_words(stated(4).seconds(2**26, "h2d", "pinned") + 8e-3) in loop  # a step takes 8 ms
