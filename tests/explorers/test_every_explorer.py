"""What every explorer keeps to: it draws at every preset, and a control that is disabled has no effect."""

from __future__ import annotations

import inspect
import random
from pathlib import Path
from typing import Any

import pytest

from rankscope import explorers
from rankscope.drawing.drawing import to_svg
from rankscope.explorers import EXPLORERS
from rankscope.panel import widgets as panel_module
from rankscope.panel.explorer import Explorer, Now, Setting, Steps, Typed
from rankscope.panel.widgets import Panel
from tests.figures.readable import svg_problems
from tests.sampling.explorer_cases import in_batches

from .cases import Case, all_cases

CASES = all_cases()
NUM_RANDOM = 4  # settings at which each disabled control is moved


def test_every_explorer_is_a_case() -> None:
    assert {case.name for case in CASES.values()} == {*EXPLORERS}
    assert len({entry.title for entry in EXPLORERS.values()}) == len(EXPLORERS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_explorer_draws_at_every_preset_and_its_panel_shows_that(case: Case) -> None:
    explorer = case.made()
    panel = case.open(**case.start)
    assert panel.now == explorer.at(**case.start)
    seen = set()
    for name, now in panel.presets.items():
        panel.example.value = name
        shown = explorer.shown(now)
        seen.add(shown[1:])
        assert panel.now == now
        line = explorer.line(now)
        assert explorer.line(explorer.at(**eval(f"dict({line})"))) == line
        assert panel.code.value.endswith(f"{line})")
        assert shown.report in panel.shown.value
        assert "<svg" in panel.shown.value
        assert shown.drawings
        for drawing in shown.drawings:
            assert len(drawing.title.replace("*", "")) <= 48
            assert len(drawing.deck) <= 70
            assert svg_problems(to_svg(drawing)) == []
    assert len(seen) >= len(explorer.presets)


@pytest.mark.parametrize("name", EXPLORERS)
def test_shift_tab_lists_settings_with_what_they_are_and_can_be(name: str) -> None:
    function = getattr(explorers, name)
    parameters = inspect.signature(function).parameters
    settings = EXPLORERS[name].make().settings
    for setting in settings:
        assert parameters[setting.name].default == setting.default
        assert f"{setting.name}: {setting.allowed}" in function.__doc__
    assert len(parameters) == len(settings) + len(EXPLORERS[name].inputs())


def moved(explorer: Explorer, now: Now, chance: random.Random) -> Now:
    """Settings of which about half are others."""
    values = {one.name: chance.choice(one.values) for one in explorer.settings if chance.random() < 0.5}
    return now._replace(**values)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_disabled_control_changes_nothing(case: Case) -> None:
    explorer = case.made()
    chance = random.Random(0)
    starts = [explorer.at(**case.start), *[explorer.at(**preset) for preset in explorer.presets.values()]]
    for number in range(NUM_RANDOM):
        now = moved(explorer, starts[number % len(starts)], chance)
        before = explorer.shown(now)[1:]
        for setting in explorer.settings:
            if not setting.when(now):
                other = now._replace(**{setting.name: chance.choice(setting.values)})
                assert explorer.shown(other)[1:] == before, f"{setting.name} at {now}"


@pytest.mark.parametrize("name", CASES)
def test_an_explorer_refuses_what_no_control_offers(name: str) -> None:
    explorer = CASES[name].made()
    for setting in explorer.settings:
        for value in (None, object(), 10**9, "nothing")[: 3 if isinstance(setting.choices, Typed) else 4]:
            with pytest.raises(ValueError, match=setting.name):
                explorer.at(**{setting.name: value})
    with pytest.raises(ValueError, match="speed"):
        explorer.at(speed=1)


def small() -> Explorer:
    """One with each kind of control, which draws nothing."""
    settings = (
        Setting("size", 3, range(1, 10), "size", most=1000),
        Setting("most", 3, Steps((1, 2, 3, 6)), "most", lambda now: now.doubled),
        Setting("doubled", False, (), "doubled"),
    )

    def draw(now: Any) -> list[Any]:
        if now.size > 4:
            raise ValueError(f"{now.size} > 4")
        return []

    return Explorer(settings, draw, lambda now: [f"{now.size} & {now.most}"], {"large": {"size": 9}})


def test_a_number_can_be_typed_and_its_slider_follows() -> None:
    explorer = small()
    panel = Panel(explorer, explorer.at(), "explorer")
    size = panel.controls["size"]
    slider, number = panel.children[1].children[1].children
    assert number is size
    size.value = 500
    assert slider.value == 9
    assert panel.code.value == "explorer(size=500)"
    assert "500 &gt; 4" in panel.shown.value
    slider.value = 4
    assert size.value == 4
    assert "4 &amp; 3" in panel.shown.value
    assert panel.controls["most"].disabled
    panel.controls["doubled"].value = True
    assert not panel.controls["most"].disabled
    assert panel.example.value == ""
    panel.go(explorer.at(size=9))
    assert panel.example.value == "large"
    with pytest.raises(ValueError, match="whole number from 1 to 1000"):
        explorer.at(size=1001)


def test_a_panel_paints_once_for_a_preset_and_keeps_its_height(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorers.pipeline()
    painted: list[Any] = []
    shown = panel.explorer.shown
    monkeypatch.setattr(panel.explorer, "shown", lambda *now: painted.append(now) or shown(*now))
    panel.controls["num_workers"].value = 8
    tall = panel.shown.value.partition(">")[0]
    panel.example.value = "the defaults"
    assert len(painted) == 2
    assert panel.shown.value.partition(">")[0] == tall


def test_a_panel_has_the_line_that_opens_it() -> None:
    panel = explorers.samplers(in_batches, epoch=2)
    assert panel.code.value == "explorers.samplers(in_batches, epoch=2)"


def test_a_picture_is_saved_under_a_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    panel = explorers.samplers()
    Path("samplers_1.svg").write_text("mine")
    panel.saving.click()
    assert Path("samplers_1.svg").read_text() == "mine"
    assert Path("samplers_2.svg").read_text(encoding="utf-8") == to_svg(panel.explorer.draw(panel.now)[0])
    with pytest.raises(ValueError, match="path"):
        panel.explorer.draw(panel.now)[0].save("picture.png")


def test_a_picture_is_stored_unless_it_is_missing_or_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorers.samplers()
    panel.controls["num_ranks"].value = 5
    drawn = to_svg(panel.explorer.draw(panel.now)[0])
    assert panel._repr_mimebundle_()["image/svg+xml"] == drawn
    assert drawn not in panel.shown.value  # it moves from the drawing before it
    monkeypatch.setattr(panel_module, "_MOST_SVG_BYTES", 100)
    assert "image/svg+xml" not in panel._repr_mimebundle_()
    refused = explorers.player(algorithm="allgather recursive_doubling", gpus_per_node=3)  # not for three ranks
    assert "image/svg+xml" not in refused._repr_mimebundle_()
