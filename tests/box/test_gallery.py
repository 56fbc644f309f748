"""The gallery shows profiles. `tests/explorers/test_gallery.py` tests what it refuses and that all of it opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope import explorers
from rankscope.box import Profile
from rankscope.explorers.entries import catalogue
from rankscope.explorers.opening import Entry

from ..explorers.cases import controls, picked, shown
from .explorer_cases import gpu
from .made import links, profile

PROFILES = {
    name: Profile.load(Path(__file__).parents[2] / "notebooks" / "profiles" / f"{name}_4_ranks.json")
    for name in ("emulated_100mbit_5ms", "loopback_2_cores")
}


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_with_a_profile_what_is_picked_is_what_the_explorer_itself_shows(entry: Entry) -> None:
    machines = {"a machine": profile(links())}
    box = explorers.gallery(machines)
    box.children[0].value = entry.name
    assert shown(picked(box)) == shown(entry.show(*([machines] if entry.name == "machine" else [])))


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
