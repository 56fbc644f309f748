"""The gallery shows profiles. `tests/explorers/test_gallery.py` tests what it refuses and that all of it opens."""

from __future__ import annotations

from pathlib import Path

from rankscope import explorers
from rankscope.box import Profile

from ..explorers.cases import controls, picked
from .explorer_cases import gpu

PROFILES = {
    name: Profile.load(Path(__file__).parents[2] / "notebooks" / "profiles" / f"{name}_4_ranks.json")
    for name in ("emulated_100mbit_5ms", "loopback_2_cores")
}


def test_profiles_are_for_those_that_take_them() -> None:
    box = explorers.gallery(opened="machine")
    assert controls(picked(box))["profile"].value == "h100_fleet_8"
    assert picked(box)._repr_mimebundle_()["image/svg+xml"] == box._repr_mimebundle_()["image/svg+xml"]
    box.children[0].value = "transfers"
    assert controls(picked(box))["link"].value == "PCIe 5 x16"
    box = explorers.gallery(PROFILES, gpu(), "transfers")
    assert controls(picked(box))["link"].value == "measured: made up"
    box.children[0].value = "machine"
    assert [name for _, name in controls(picked(box))["profile"].options] == list(PROFILES)
