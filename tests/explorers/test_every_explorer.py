"""What every explorer keeps to: its controls are its table of settings, and what it shows is a function of them."""

from __future__ import annotations

import inspect
import random
from html import escape
from typing import Any

import ipywidgets as widgets
import pytest

from rankscope import explorers
from rankscope.explorers import panel as panel_module
from rankscope.explorers.catalogue import CATALOGUE
from rankscope.explorers.panel import Explorer, Setting, shows

from .cases import CASES, Case, controls, others, shown

KINDS = {int: widgets.IntSlider, bool: widgets.Checkbox, str: widgets.Dropdown}
SLOW = ("num_nodes", "gpus_per_node")  # a search for the best among 64 ranks takes seconds
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_explorer_is_a_case() -> None:
    assert {case.name for case in CASES.values()} == {entry.name for entry in CATALOGUE}
    assert {entry.name for entry in CATALOGUE} == set(explorers.__all__) - {"gallery"}


@each_case
def test_a_panel_has_a_control_for_each_setting_and_opens_on_the_defaults(case: Case) -> None:
    explorer, box = case.made(), case.open()
    assert [type(child) for child in box.children] == [widgets.Box, widgets.HTML, widgets.HTML]
    assert len({setting.label for setting in explorer.settings}) == len(explorer.settings)
    for setting, control in zip(explorer.settings, box.children[0].children, strict=True):
        assert type(control) is KINDS[setting.kind]
        assert control.description == setting.label != ""
        assert control.value == setting.default
        if setting.kind is int:
            assert (control.min, control.max) == setting.choices or setting.name == "step"  # as far as there are steps
        if setting.kind is str:
            assert list(control.options) == list(setting.choices)
    assert shown(box) == explorer.html(explorer.at())
    assert "<svg" in shown(box)[0]


@each_case
def test_a_panel_gives_its_first_picture_to_readers_without_a_kernel(case: Case) -> None:
    explorer, box = case.made(), case.open(**case.start)
    bundle = box._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "application/vnd.jupyter.widget-view+json", "image/svg+xml"}
    assert bundle["image/svg+xml"] == explorer.svg(next(iter(explorer.pictures)), explorer.at(**case.start))


def test_a_picture_that_is_missing_or_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    box = explorers.allreduce(num_nodes=8, gpus_per_node=8)  # too many cells: the second picture stands for it
    assert "<title>1 MiB on 8 nodes of 8 GPUs" in box._repr_mimebundle_()["image/svg+xml"]
    monkeypatch.setattr(panel_module, "MOST_SVG_BYTES", 100)
    assert "image/svg+xml" not in box._repr_mimebundle_()
    assert (
        "image/svg+xml"
        not in explorers.boxes(
            first="dgx_h100_8", second="none", third="none", collective="all_to_all"
        )._repr_mimebundle_()
    )


@each_case
def test_what_is_asked_for_is_where_it_starts(case: Case) -> None:
    explorer, box = case.made(), case.open(**case.start)
    now = explorer.at(**case.start)
    assert [control.value for control in box.children[0].children] == list(now)
    assert shown(box) == explorer.html(now)
    assert escape("\n".join(explorer.report(now))) in shown(box)[1]
    assert all(line.strip() and "\n" not in line for line in explorer.report(now))


@each_case
def test_each_control_repaints_once_and_all_its_values_can_be_shown(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one control is set to, the panel shows what a new one would show, and something else than before."""
    painted = []
    html = Explorer.html
    monkeypatch.setattr(Explorer, "html", lambda self, now: painted.append(now) or html(self, now))
    explorer = case.made()
    start = explorer.at(**case.start)
    for setting in explorer.settings:
        box = case.open(**case.start)
        control, different = controls(box)[setting.label], {shown(box)}
        for value in others(setting, getattr(start, setting.name)):
            painted.clear()
            before, control.value = control.value, value
            now = start._replace(**{setting.name: control.value})  # which is less where the control ends before
            assert painted == [now] * (control.value != before)
            assert shown(box) == html(explorer, now)
            assert "<svg" in shown(box)[0]
            assert "<p>" not in shown(box)[0]
            different.add(shown(box))
        assert len(different) > 1, setting.name


@each_case
def test_a_walk_ends_where_a_new_panel_begins(case: Case) -> None:
    """What is shown depends on where controls are, and not on how they came there."""
    explorer, box, draw = case.made(), case.open(), random.Random(case.name)
    by_label = controls(box)
    start = shown(box)
    settings = [setting for setting in explorer.settings if setting.name not in SLOW]
    for _ in range(12):
        setting = draw.choice(settings)
        by_label[setting.label].value = draw.choice([setting.default, *others(setting, setting.default)])
        values = {one.name: by_label[one.label].value for one in explorer.settings}
        assert shown(box) == explorer.html(explorer.at(**values)) == shown(case.open(**values))
    for setting in explorer.settings:
        by_label[setting.label].value = setting.default
    assert shown(box) == start


WRONG: dict[type, list[Any]] = {int: [0.5, "3", True, None], bool: [1, "yes", None], str: ["nothing", 3, None]}
LISTED = ("profile", "first", "second", "third")  # machines, which are not known before it is opened


@each_case
def test_what_no_control_offers_is_refused(case: Case) -> None:
    explorer = case.made()
    for setting in explorer.settings:
        wrong = list(WRONG[setting.kind])
        if setting.kind is int:
            low, high = setting.choices
            wrong += [low - 1, high + 1]
            words = f"{setting.name} must be a whole number from {low} to {high}, got "
        elif setting.kind is bool:
            words = f"{setting.name} must be True or False, got "
        else:
            words = f"{setting.name} must be one of {', '.join(map(repr, setting.words))}, got "
        for value in wrong:
            for take in (explorer.at, case.open):
                with pytest.raises(ValueError) as caught:  # noqa: PT011 (its words are compared)
                    take(**{setting.name: value})
                assert str(caught.value) == f"{words}{value!r}"
    names = ", ".join(setting.name for setting in explorer.settings)
    with pytest.raises(ValueError, match=f"^settings are {names}; got nodes, speed$"):
        case.open(speed=1, nodes=2)


@each_case
def test_its_signature_and_its_help_say_what_can_be_set(case: Case) -> None:
    function = getattr(explorers, case.name)
    parameters = inspect.signature(function).parameters
    text = inspect.getdoc(function) or ""
    for setting in Case(case.name, case.inputs if case.name == "machine" else ()).made().settings:
        parameter = parameters[setting.name]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (parameter.default == setting.default and setting.allowed in text) or setting.name in LISTED
    assert len(parameters) == len(case.made().settings) + (case.name in ("machine", "transfers", "zero", "boxes"))


def test_a_table_makes_a_panel() -> None:
    """What the others rest on: a control that moves another one, what cannot be drawn, and inputs by keyword."""
    settings = (Setting("size", 3, (0, 9), "size"), Setting("most", 3, (0, 9), "most"))

    def nothing(now: Any) -> None:
        if now.size > 4:
            raise ValueError(f"{now.size} > 4")

    def report(now: Any) -> list[str]:
        reported.append(tuple(now))
        return [f"{now.size} & {now.most}"]

    def follow(panel: dict[str, Any], now: Any) -> None:
        panel["size"].max = now.most

    @shows(settings)
    def small(factor: int) -> Explorer:
        """Return a small one."""
        return Explorer(settings, {"nothing": nothing}, report, follow)

    reported: list[tuple[int, ...]] = []
    box = small(factor=2, most=6, size=5)
    assert shown(box) == ("<p>5 &gt; 4</p>", "<pre style='line-height:1.35;font-family:monospace'>5 &amp; 6</pre>")
    controls(box)["most"].value = 2
    assert controls(box)["size"].value == 2
    assert shown(box)[0] == ""
    assert reported == [(5, 6), (2, 2)]
    assert list(inspect.signature(small).parameters) == ["factor", "size", "most"]
    assert "Return a small one.\n" in (small.__doc__ or "")
    assert "- `most`: 0 to 9 (“most”)" in (small.__doc__ or "")
    with pytest.raises(TypeError, match="factor"):
        small(size=2)
