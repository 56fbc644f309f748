"""Exercises of notebook 08: how a batch gets onto the GPU."""

from __future__ import annotations

from typing import Any

from .. import transfer
from ..machine.link_facts import pcie_bytes_per_s
from ..pipeline import Pipeline, Stage, simulate
from .answers import Check, is_near


def _half_the_lanes(answer: Any) -> str | None:
    """What eight lanes of PCIe 3 carry before headers, in GB/s."""
    right = pcie_bytes_per_s(3, 8) / 1e9
    return None if is_near(answer, right) else f"8 lanes of 8 GT/s, 128 bits in 130, are not {answer!r} GB/s"


def _staged(answer: Any) -> str | None:
    """When the last of four chunks is on the GPU, by a staging copy of 3 s each and a link that takes 1 s each."""
    right = simulate(Pipeline([Stage("staging", 3.0, capacity=1), Stage("link", 1.0)]), 4).end_s
    return None if is_near(answer, right) else f"the last chunk is not there at {answer!r} s"


def _share_in_turn(answer: Any) -> str | None:
    """The share of max(copy, compute) that a loop achieves whose copies of 6 ms and steps of 9 ms take turns."""
    right = transfer.overlap_share(transfer.simulate(1000, load_s=0.0, copy_s=0.006, step_s=0.009, prefetched=False))
    return None if is_near(answer, right) else f"a share between 0 and 1 is asked for, and it is not {answer!r}"


EXERCISES: dict[str, Check] = {
    "08.1": _half_the_lanes,
    "08.2": _staged,
    "08.3": _share_in_turn,
}
