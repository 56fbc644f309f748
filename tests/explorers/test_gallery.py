"""The gallery, and that explorers need nothing but numpy and ipywidgets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import ipywidgets as widgets
import nbformat
import pytest

from rankscope import explorers
from rankscope.box import Profile
from rankscope.explorers import entries as entries_module
from rankscope.explorers.entries import catalogue
from rankscope.explorers.opening import Entry

from ..box.made import links, profile
from .cases import CASES, controls, shown

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
PROFILES = {
    name: Profile.load(NOTEBOOKS / "profiles" / f"{name}_4_ranks.json")
    for name in ("emulated_100mbit_5ms", "loopback_2_cores")
}
each_entry = pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)


def inside(box: widgets.VBox) -> Any:
    """The explorer that was picked."""
    (explorer,) = box.children[2].children
    return explorer


# ---- the catalogue and the gallery


@each_entry
def test_each_is_of_a_notebook_that_shows_it(entry: Entry) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{entry.notebook}.ipynb", as_version=4)
    assert any(f"{entry.name}(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert entry.show is getattr(explorers, entry.name)
    assert len({entry.title for entry in catalogue()}) == len(catalogue())


@each_entry
def test_what_is_picked_is_what_the_explorer_itself_shows(entry: Entry) -> None:
    one = {"one": profile(links())}
    box = explorers.gallery(one)
    box.children[0].value = entry.name
    assert shown(inside(box)) == shown(entry.show(*([one] if entry.name == "machine" else [])))
    assert "<svg" in shown(inside(box))[0]
    assert entry.title in box.children[1].value.replace("&#x27;", "'")
    assert entry.notebook in box.children[1].value


def test_it_makes_explorers_when_they_are_picked_and_keeps_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(entry: Entry) -> Entry:
        def show(*inputs: Any) -> widgets.VBox:
            made.append(entry.name)
            return entry.show(*inputs)

        show.__name__ = entry.name
        return entry._replace(show=show)

    entries = tuple([counted(entry) for entry in catalogue()])
    monkeypatch.setattr(entries_module, "catalogue", lambda: entries)
    box = explorers.gallery(opened="zero")
    assert made == ["zero"]
    box.children[0].value = "samplers"
    controls(inside(box))["num_ranks"].value = 7
    before = shown(inside(box))
    box.children[0].value = "zero"
    box.children[0].value = "samplers"
    assert made == ["zero", "samplers"]
    assert shown(inside(box)) == before
    assert controls(inside(box))["num_ranks"].value == 7


def test_profiles_are_for_those_that_take_them() -> None:
    box = explorers.gallery(opened="machine")
    assert controls(inside(box))["profile"].value == "h100_fleet_8"
    assert inside(box)._repr_mimebundle_()["image/svg+xml"] == box._repr_mimebundle_()["image/svg+xml"]
    box.children[0].value = "transfers"
    assert controls(inside(box))["link"].value == "PCIe 5 x16"
    (gpu,) = CASES["transfers of a profile"].inputs
    box = explorers.gallery(PROFILES, gpu, "transfers")
    assert controls(inside(box))["link"].value == "measured: made up"
    box.children[0].value = "machine"
    assert [name for _, name in controls(inside(box))["profile"].options] == list(PROFILES)


def test_a_page_opens_at_the_state_in_its_address_and_links_to_what_it_shows() -> None:
    state = quote('explorers.ddp(network="nccl:h100", num_ranks=8, cap="8 MiB")')
    box = explorers.gallery(address=f"token=1&state={state}")
    assert inside(box).now == inside(box).explorer.at(network="nccl:h100", num_ranks=8, cap="8 MiB")
    controls(inside(box))["num_ranks"].value = 32
    (state,) = re.findall(r'href="\?state=([^"&]*)"', box.children[3].value)
    assert unquote(state) == 'explorers.ddp(network="nccl:h100", cap="8 MiB")'
    box.children[0].value = "zero"
    assert "?state=explorers.zero%28%29" in box.children[3].value
    box = explorers.gallery(address="state=explorers.uneven(handling='pray')", opened="zero")
    assert "handling must be one of" in inside(box).refusal.value
    assert box.children[0].value == "uneven"
    assert explorers.gallery(address="state=3").children[0].value == "samplers"
    box = explorers.gallery(address="state=explorers.zero(stage={[]:1})")  # literal_eval raises TypeError
    assert "a line must be like explorers.zero" in inside(box).refusal.value
    assert inside(box).now == inside(box).explorer.at()
    assert explorers.gallery().children[3].value == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"opened": "abacus"}, "opened must be one of 'samplers', .*, got 'abacus'"),
        ({"profiles": {"a": 3}}, r"profiles\['a'\] must be a Profile, got 3"),
        ({"profiles": "box.json"}, "profiles must be Profiles by name, got 'box.json'"),
        ({"gpu": "gpu.json"}, "gpu must be a Profile, got 'gpu.json'"),
    ],
)
def test_the_gallery_refuses_what_is_no_profile_and_no_explorer(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explorers.gallery(**given)


def test_the_dashboards_notebook_runs_where_it_lies() -> None:
    path = NOTEBOOKS / "dashboard" / "explorers.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
    script = f"{code.rsplit('explorers.gallery', 1)[0]}print(sorted(explorers.gallery(recorded).children[0].options))"
    done = subprocess.run([sys.executable, "-c", script], cwd=path.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted((entry.title, entry.name) for entry in catalogue()))


# ---- with numpy and ipywidgets alone

BARE = """
import sys

MISSING = {"torch", "pandas", "matplotlib", "cloudpickle", "typer", "rich", "sklearn", "scipy"}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

from rankscope import explorers
from rankscope.box import Profile

box = explorers.gallery({"a machine": Profile.load(sys.argv[1])})
for _, name in box.children[0].options:
    box.children[0].value = name
    (panel,) = box.children[2].children
    before = panel.pictures.value
    panel.presets[-2].click()
    print(name, "<svg" in before, before != panel.pictures.value)
print(sorted(MISSING & set(sys.modules)))
"""


def test_all_explorers_open_and_move_with_numpy_and_ipywidgets_alone() -> None:
    machine = NOTEBOOKS / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
    command = [sys.executable, "-c", BARE, str(machine)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*(f"{entry.name} True True" for entry in catalogue()), "[]"]
    hidden = BARE.replace('{"torch"', '{"numpy", "torch"')
    done = subprocess.run([*command[:2], hidden, *command[3:]], capture_output=True, text=True, timeout=200)
    assert "No module named 'numpy'" in done.stderr
