"""What every explorer keeps to: it draws at every preset and control, and its report is not empty."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import pytest

from rankscope import explorers
from rankscope.explorers import panel as panel_module
from rankscope.explorers.entries import EXPLORERS
from rankscope.explorers.explorer import Explorer, Setting, Steps
from rankscope.explorers.opening import shows

from ..figures.readable import svg_problems
from .cases import Case, all_cases, another, controls, shown

CASES = all_cases()


def test_every_explorer_is_a_case() -> None:
    assert {case.name for case in CASES.values()} == {*EXPLORERS}
    assert len({entry.title for entry in EXPLORERS.values()}) == len(EXPLORERS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_explorer_draws_at_every_preset_and_each_control_repaints(case: Case) -> None:
    explorer = case.made()
    box = case.open(**case.start)
    assert box.now == explorer.at(**case.start)
    assert shown(box) == explorer.html(box.now)
    assert box._repr_mimebundle_()["image/svg+xml"] == explorer.still(box.now)
    pictures = set()
    for button in box.presets:
        to = explorer.at(**explorer.presets.get(button.description, {}))
        button.click()
        assert box.now == to
        assert box.line.value == explorer.line(to)
        assert shown(box) == explorer.html(to)
        assert explorer.report(to)
        assert all(line.strip() and "\n" not in line for line in explorer.report(to))
        assert explorer.still(to)
        for picture in explorer.pictures:
            with suppress(ValueError):  # a sentence stands there
                svg = explorer.svg(picture, to)
                assert not svg or svg_problems(svg) == []
        pictures.add(shown(box))
    assert len(pictures) >= len(explorer.presets)
    for setting in explorer.settings:
        box.go(explorer.at(**case.start))
        before = shown(box)
        control = controls(box)[setting.name]
        assert control.disabled == (setting.name in explorer.without_effect(box.now))
        control.value = another(setting, getattr(box.now, setting.name))  # which is less if the control ends before it
        assert shown(box) == explorer.html(box.now)
        assert "<svg" in shown(box)[0]
        if control.disabled:
            assert shown(box) == before, setting.name


@pytest.mark.parametrize("name", CASES)
def test_an_explorer_refuses_what_no_control_offers(name: str) -> None:
    case = CASES[name]
    for setting in case.made().settings:
        for value in (None, object(), 10**9, "nothing"):
            with pytest.raises(ValueError, match=setting.name):
                case.made().at(**{setting.name: value})
    with pytest.raises(ValueError, match="speed"):
        case.open(speed=1)


def test_a_picture_that_is_missing_or_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    box = explorers.allreduce(num_nodes=8, gpus_per_node=8)  # too many cells: the second picture stands for it
    assert "image/svg+xml" in box._repr_mimebundle_()
    monkeypatch.setattr(panel_module, "MOST_SVG_BYTES", 100)
    assert "image/svg+xml" not in box._repr_mimebundle_()
    refused = explorers.player(algorithm="allgather recursive_doubling", gpus_per_node=3)  # not for three ranks
    assert "image/svg+xml" not in refused._repr_mimebundle_()


def test_a_table_makes_a_panel() -> None:
    """What the others rest on: a slider that ends earlier, what cannot be drawn, and inputs by keyword."""
    settings = (Setting("size", 3, range(10), "size"), Setting("most", 3, Steps((1, 2, 3, 6)), "most"))

    def nothing(now: Any) -> None:
        if now.size > 4:
            raise ValueError(f"{now.size} > 4")

    def report(now: Any) -> list[str]:
        reported.append(tuple(now))
        return [f"{now.size} & {now.most}"]

    @shows(settings)
    def small(factor: int) -> Explorer:
        """Return a small one."""
        return Explorer(settings, {"nothing": nothing}, report, most=lambda now: {"size": now.most})

    reported: list[tuple[int, ...]] = []
    box = small(factor=2, most=6, size=5)
    assert shown(box)[0] == "<p>5 &gt; 4</p>"
    assert shown(box)[1].endswith(">5 &amp; 6</pre>")
    assert box.line.value == "explorers.small(factor, size=5, most=6)"
    controls(box)["most"].value = 2
    assert controls(box)["size"].value == 2
    assert shown(box)[0] == ""
    assert reported == [(5, 6), (2, 2)]
    assert list(inspect.signature(small).parameters) == ["factor", "size", "most"]
    assert "- `most`: 1 to 3, 6" in (small.__doc__ or "")
    with pytest.raises(TypeError, match="factor"):
        small(size=2)


def test_the_gallery_makes_explorers_when_they_are_picked_and_keeps_their_settings() -> None:
    box = explorers.gallery(opened="player")
    assert list(box.panels) == ["player"]
    box.picked.value = "samplers"
    controls(box.panel)["num_ranks"].value = 7
    before = shown(box.panel)
    box.picked.value = "player"
    box.picked.value = "samplers"
    assert list(box.panels) == ["player", "samplers"]
    assert shown(box.panel) == before
    assert box.panel_box.children == (box.panel,)
    assert "01_who_reads_what" in box.heading.value
    assert box.still() == box.panel.still()
    with pytest.raises(ValueError, match="abacus"):
        explorers.gallery(opened="abacus")
