"""The gallery, driven without a browser: every explorer is in it, made when it is picked and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import nbformat
import pytest

from rankscope import explorers
from rankscope.explorers.catalogue import CATALOGUE
from rankscope.explorers.gallery import NEEDS_PROFILES
from rankscope.machine import Profile

from ..machine.made import links, profile

ROOT = Path(__file__).parents[2]
NAMES = [entry.name for entry in CATALOGUE]


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return {"one": profile(links())}


def shown(box: widgets.VBox) -> Any:
    (explorer,) = box.children[2].children
    return explorer


def fresh(name: str, profiles: dict[str, Profile]) -> Any:
    return getattr(explorers, name)(*([profiles] if name == "machine" else []))


def uncatalogued(names: list[str]) -> set[str]:
    """The explorers among the names of the room, which are those with a module of their own and settings."""
    modules = {name: sys.modules.get(f"rankscope.explorers.{name}") for name in names}
    return {name for name, module in modules.items() if hasattr(module, "DEFAULTS")} - set(NAMES)


def test_every_explorer_is_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uncatalogued(explorers.__all__) == set()
    assert set(NAMES) <= set(explorers.__all__)
    monkeypatch.setitem(sys.modules, "rankscope.explorers.newest", sys.modules["rankscope.explorers.zero"])
    assert uncatalogued([*explorers.__all__, "newest"]) == {"newest"}


def test_each_is_of_a_notebook_that_shows_it() -> None:
    for entry in CATALOGUE:
        notebook = nbformat.read(ROOT / "notebooks" / f"{entry.notebook}.ipynb", as_version=4)
        assert any(f"{entry.name}(" in cell.source for cell in notebook.cells if cell.cell_type == "code"), entry
    assert len({entry.title for entry in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_picked_is_what_the_explorer_itself_shows(name: str, profiles: dict[str, Profile]) -> None:
    box = explorers.gallery(profiles)
    box.children[0].value = name
    picked, expected = shown(box), fresh(name, profiles)
    assert [part.value for part in picked.children[1:]] == [part.value for part in expected.children[1:]]
    assert "<svg" in picked.children[1].value
    (entry,) = (entry for entry in CATALOGUE if entry.name == name)
    assert entry.notebook in box.children[1].value


def test_it_opens_with_one_explorer_and_makes_the_others_when_they_are_picked(
    profiles: dict[str, Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for name in NAMES:
        module: Any = sys.modules[f"rankscope.explorers.{name}"]
        make = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, make=make: (made.append(name), make(*given))[1])
    box = explorers.gallery(profiles, opened="zero")
    assert made == ["zero"]
    box.children[0].value = "parts"
    assert made == ["zero", "parts"]
    box.children[0].value = "zero"
    assert made == ["zero", "parts"]


def test_an_explorer_that_was_left_keeps_its_settings() -> None:
    box = explorers.gallery()
    slider = next(one for one in shown(box).children[0].children if one.description == "ranks")
    slider.value = 7
    before = shown(box).children[1].value
    box.children[0].value = "zero"
    box.children[0].value = "samplers"
    assert shown(box).children[1].value == before
    assert next(one for one in shown(box).children[0].children if one.description == "ranks").value == 7


def test_without_profiles_the_one_that_needs_them_says_so() -> None:
    box = explorers.gallery(opened="machine")
    assert NEEDS_PROFILES.replace("'", "&#x27;") in shown(box).value
    box.children[0].value = "transfers"
    assert "<svg" in shown(box).children[1].value


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="opened must be one of 'samplers', .*, got 'abacus'"):
        explorers.gallery(opened="abacus")
    with pytest.raises(ValueError, match=r"profiles\['a'\] must be a Profile, got 3"):
        explorers.gallery({"a": 3})  # type: ignore[dict-item]
    for opens in (explorers.gallery, explorers.machine):
        with pytest.raises(ValueError, match="profiles must be Profiles by name, got 'box.json'"):
            opens("box.json")  # type: ignore[operator]
    with pytest.raises(ValueError, match="gpu must be a Profile, got 'gpu.json'"):
        explorers.gallery(gpu="gpu.json")  # type: ignore[arg-type]


def test_the_dashboards_notebook_runs_where_it_lies() -> None:
    path = ROOT / "notebooks" / "dashboard" / "explorers.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
    script = f"{code.rsplit('explorers.gallery', 1)[0]}print(sorted(explorers.gallery(recorded).children[0].options))"
    done = subprocess.run([sys.executable, "-c", script], cwd=path.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted((entry.title, entry.name) for entry in CATALOGUE))
