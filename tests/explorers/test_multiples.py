"""Every explorer has small multiples, which are what the explorer itself shows, and differ from one another."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rankscope import explorers
from rankscope.explorers.catalogue import CATALOGUE, Entry
from rankscope.explorers.multiples import multiples
from rankscope.machine import Profile

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PROFILES = {
    name: Profile.load(NOTEBOOKS / "profiles" / f"{name}_4_ranks.json")
    for name in ("emulated_100mbit_5ms", "loopback_2_cores")
}


def test_the_catalogue_has_every_explorer_once() -> None:
    assert sorted(entry.name for entry in CATALOGUE) == sorted(set(explorers.__all__) - {"gallery"})


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_its_notebook_ends_in_it(entry: Entry) -> None:
    assert f"{entry.name}(" in (NOTEBOOKS / f"{entry.notebook}.ipynb").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_every_explorer_has_pictures_that_differ(name: str) -> None:
    shown = multiples(name, PROFILES)
    assert len(shown) >= 4
    assert all(ET.fromstring(one.svg).tag.endswith("svg") for one in shown)
    assert len({one.svg for one in shown}) == len({one.caption for one in shown}) == len(shown)


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_they_are_what_the_explorer_paints(name: str) -> None:
    arguments = [PROFILES] if name == "machine" else []
    for one in multiples(name, PROFILES):
        box = getattr(explorers, name)(*arguments, **one.settings)
        assert one.svg in box.children[1].value


def test_settings_of_the_explorers_start_are_kept_and_said() -> None:
    shown = multiples("zero", stage=2)
    assert {one.settings["stage"] for one in shown} == {2}
    assert shown[0].caption == "stage=2, model='7.5 B', log2_ranks=3"


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="name must be .*samplers.* got 'nothing'"):
        multiples("nothing")
    with pytest.raises(ValueError, match="profiles must be at least one"):
        multiples("machine")
    with pytest.raises(ValueError, match="settings are .* got speed"):
        multiples("samplers", speed=1)
