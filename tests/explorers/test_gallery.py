"""The gallery, and that explorers need nothing but numpy and ipywidgets."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

import ipywidgets as widgets
import pytest

from rankscope import explorers
from rankscope.explorers import entries as entries_module
from rankscope.explorers.entries import catalogue
from rankscope.explorers.opening import Entry

from ..contributed import contributed
from .bare import explorers_with_numpy_and_ipywidgets_alone, last_error_without_numpy
from .cases import Gallery, controls, picked, shown

GALLERIES: dict[str, Gallery] = {}
REFUSED: list[tuple[dict[str, Any], str]] = []
for module in contributed("explorer_cases"):
    GALLERIES.update(getattr(module, "GALLERIES", {}))
    REFUSED.extend(getattr(module, "REFUSED_BY_GALLERY", []))
each_entry = pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)


@each_entry
def test_what_is_picked_is_what_the_explorer_itself_shows(entry: Entry) -> None:
    box = explorers.gallery()
    box.children[0].value = entry.name
    assert shown(picked(box)) == shown(entry.show())
    assert "<svg" in shown(picked(box))[0]
    assert entry.title in box.children[1].value.replace("&#x27;", "'")
    assert entry.notebook in box.children[1].value


def test_titles_and_names_of_explorers_are_different() -> None:
    assert len({entry.title for entry in catalogue()}) == len(catalogue())
    for entry in catalogue():
        assert entry.show is getattr(explorers, entry.name)


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
    box = explorers.gallery(opened="player")
    assert made == ["player"]
    box.children[0].value = "samplers"
    controls(picked(box))["num_ranks"].value = 7
    before = shown(picked(box))
    box.children[0].value = "player"
    box.children[0].value = "samplers"
    assert made == ["player", "samplers"]
    assert shown(picked(box)) == before
    assert controls(picked(box))["num_ranks"].value == 7


def test_a_page_opens_at_the_state_in_its_address_and_links_to_what_it_shows() -> None:
    state = quote('explorers.allreduce(algorithm="flat", num_nodes=4, message="8 MiB")')
    box = explorers.gallery(address=f"token=1&state={state}")
    assert picked(box).now == picked(box).explorer.at(algorithm="flat", num_nodes=4, message="8 MiB")
    controls(picked(box))["num_nodes"].value = 2
    (state,) = re.findall(r'href="\?state=([^"&]*)"', box.children[3].value)
    assert unquote(state) == 'explorers.allreduce(algorithm="flat", message="8 MiB")'
    box.children[0].value = "player"
    assert "?state=explorers.player%28%29" in box.children[3].value
    box = explorers.gallery(address="state=explorers.samplers(sampler='pray')", opened="player")
    assert "sampler must be one of" in picked(box).refusal.value
    assert box.children[0].value == "samplers"
    assert explorers.gallery(address="state=3").children[0].value == "samplers"
    box = explorers.gallery(address="state=explorers.samplers(size={[]:1})")  # literal_eval raises TypeError
    assert "a line must be like explorers.samplers" in picked(box).refusal.value
    assert picked(box).now == picked(box).explorer.at()
    assert explorers.gallery().children[3].value == ""


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_the_gallery_refuses_what_is_no_profile_and_no_explorer(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explorers.gallery(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", GALLERIES)
def test_all_explorers_open_and_move_with_numpy_and_ipywidgets_alone(name: str) -> None:
    gallery = GALLERIES[name]
    *lines, loaded = explorers_with_numpy_and_ipywidgets_alone(gallery.expression)
    assert [line.split()[0] for line in lines] == [entry.name for entry in catalogue()]
    endings = ("True True",) if gallery.all_have_presets else ("True True", "True no preset")
    still = [line for line in lines if not line.endswith(endings)]
    assert not still, f"Without a picture, or with one that no preset changes, are the explorers of {still}"
    assert "samplers True True" in lines
    assert loaded == "[]", f"Explorers must need numpy and ipywidgets only, and have loaded {loaded}"


@pytest.mark.slow
def test_without_numpy_the_error_says_so() -> None:
    assert "No module named 'numpy'" in last_error_without_numpy()
