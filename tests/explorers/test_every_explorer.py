"""What every explorer keeps to: its controls are its table of settings, and what it shows is a function of them."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from typing import Any

import ipywidgets as widgets
import pytest

from rankscope import explorers
from rankscope.explorers import panel as panel_module
from rankscope.explorers.entries import catalogue
from rankscope.explorers.explorer import Explorer, Setting, Steps
from rankscope.explorers.opening import shows

from ..extents import SAMPLE_OR_EVERYTHING
from .cases import Case, all_cases, controls, others, shown

CASES = all_cases()
KINDS = {range: widgets.IntSlider, Steps: widgets.SelectionSlider}
SLOW = ("num_nodes", "gpus_per_node")  # a search for the best among 64 ranks takes seconds
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def _nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of controls and lines, which do not look at what is shown."""
    monkeypatch.setattr(Explorer, "html", lambda self, now: ("", ""))


def test_every_explorer_is_a_case() -> None:
    assert {case.name for case in CASES.values()} == {entry.name for entry in catalogue()}
    assert {entry.name for entry in catalogue()} == set(explorers.__all__) - {"gallery"}


@each_case
def test_a_panel_has_a_control_for_each_setting_and_opens_on_the_defaults(case: Case) -> None:
    explorer, box = case.made(), case.open()
    assert len({setting.label for setting in explorer.settings}) == len(explorer.settings)
    for setting, (name, control) in zip(explorer.settings, box.controls.items(), strict=True):
        switch = setting.kind is bool
        assert type(control) is (widgets.Checkbox if switch else KINDS.get(type(setting.choices), widgets.Dropdown))
        assert (name, control.description, control.value) == (setting.name, setting.label, setting.default)
        if isinstance(setting.choices, range):
            most = explorer.most(explorer.at()).get(name, setting.choices[-1])
            assert (control.min, control.max) == (setting.choices[0], most)
        elif not switch:
            assert control.options == setting.options
            assert all(label.isprintable() and label for label, _ in setting.options)
    assert shown(box) == explorer.html(explorer.at())
    assert "<svg" in shown(box)[0]


@each_case
def test_no_column_of_controls_is_wider_than_a_telephone(case: Case) -> None:
    """Columns had a fixed least width, so that sliders and lists ran out of a page of 390 px."""
    (grid,) = [child for child in walk(case.open()) if child.layout.display == "grid" and child.children][:1]
    assert re.fullmatch(r"repeat\(auto-fill, minmax\(min\(\d+px, 100%\), 1fr\)\)", grid.layout.grid_template_columns)


def walk(box: widgets.Widget) -> Iterator[widgets.Box]:
    """All boxes of a widget, itself first."""
    if isinstance(box, widgets.Box):
        yield box
        for child in box.children:
            yield from walk(child)


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
    algorithm = "allgather recursive_doubling"  # which does not exist for three ranks
    refused = explorers.player(algorithm=algorithm, gpus_per_node=3)
    assert "image/svg+xml" not in refused._repr_mimebundle_()


@each_case
def test_what_is_asked_for_is_where_it_starts(case: Case) -> None:
    explorer, box = case.made(), case.open(**case.start)
    now = explorer.at(**case.start)
    assert [control.value for control in box.controls.values()] == list(now)
    assert shown(box) == explorer.html(now)
    assert escape("\n".join(explorer.report(now))) in shown(box)[1]
    assert all(line.strip() and "\n" not in line for line in explorer.report(now))


@pytest.mark.slow
@each_case
@SAMPLE_OR_EVERYTHING
def test_each_control_repaints_once_and_all_its_values_can_be_shown(
    case: Case, everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one control is set to, the panel shows what a new one would show, and something else than before.

    The sample draws each state once. That an explorer draws a state alike a second time, whatever it drew before, is
    tested there by `test_a_walk_ends_where_a_new_panel_begins`, and here with everything.
    """
    painted = []
    drawings = dict[Any, tuple[str, str]]()
    html = Explorer.html

    def paint(self: Explorer, now: Any) -> tuple[str, str]:
        painted.append(now)
        if everything or now not in drawings:
            drawings[now] = html(self, now)
        return drawings[now]

    monkeypatch.setattr(Explorer, "html", paint)
    explorer = case.made()
    start = explorer.at(**case.start)
    for setting in explorer.settings:
        box = case.open(**case.start)
        control, different = controls(box)[setting.name], {shown(box)}
        for value in others(setting, getattr(start, setting.name), everything):
            painted.clear()
            before = box.now
            control.value = value  # which is less if the control ends before it
            now = explorer.at(**before._replace(**{setting.name: control.value})._asdict())
            assert painted == [now] * (now != before)
            assert shown(box) == (html(explorer, now) if everything else drawings[now])
            assert "<svg" in shown(box)[0]
            assert "<p>" not in shown(box)[0]
            different.add(shown(box))
        assert (len(different) > 1) != control.disabled, setting.name


@pytest.mark.slow
@each_case
@SAMPLE_OR_EVERYTHING
def test_a_walk_ends_where_a_new_panel_begins(case: Case, everything: bool) -> None:
    """What is shown depends on where controls are, and not on how they came there."""
    explorer, box, draw = case.made(), case.open(), random.Random(case.name)
    by_name = controls(box)
    start = shown(box)
    settings = [setting for setting in explorer.settings if setting.name not in SLOW]
    for _ in range(12 if everything else 3):
        setting = draw.choice(settings)
        by_name[setting.name].value = draw.choice([setting.default, *others(setting, setting.default)])
        values = {setting.name: by_name[setting.name].value for setting in explorer.settings}
        assert shown(box) == shown(case.open(**values))
        assert not everything or shown(box) == explorer.html(explorer.at(**values))
    for setting in explorer.settings:
        by_name[setting.name].value = setting.default
    assert shown(box) == start


WRONG: dict[type, list[Any]] = {
    int: [0.5, "3", -1, 10**9, True, None],
    bool: [1, "yes", None],
    str: ["nothing", 3, None],
}
OF_MACHINES = (
    "profile",
    "network",
    "first",
    "second",
    "third",
    "num_ranks",
    "message",
)  # which are not known before it is opened


@each_case
def test_what_no_control_offers_is_refused(case: Case) -> None:
    explorer = case.made()
    for setting in explorer.settings:
        words = (
            f"{setting.name} must be {'True or False' if setting.kind is bool else f'one of {setting.allowed}'}, got "
        )
        for value in WRONG[setting.kind]:
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
    parameters = dict(inspect.signature(function).parameters)
    text = inspect.getdoc(function) or ""
    for setting in Case(case.name).made().settings:
        parameter = parameters.pop(setting.name)
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (parameter.default == setting.default and setting.allowed in text) or setting.name in OF_MACHINES
    assert len(case.inputs) <= len(parameters) <= 1  # an explorer has at most one input, and no other setting
    assert all(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())


@each_case
@SAMPLE_OR_EVERYTHING
def test_a_control_changes_something_or_says_why_not(case: Case, everything: bool) -> None:
    """At the defaults and at others drawn by chance; an enabled control has a value that changes what is shown."""
    explorer, draw = case.made(), random.Random(case.name)
    settings = [setting for setting in explorer.settings if setting.name not in SLOW]
    for number in range(5 if everything else 1):
        drawn = {setting.name: draw.choice(setting.values) for setting in settings if number and draw.random() < 0.6}
        now = explorer.at(**drawn)
        now = now._replace(**{name: min(high, getattr(now, name)) for name, high in explorer.most(now).items()})
        here, reasons, most = explorer.html(now), explorer.without_effect(now), explorer.most(now)
        assert reasons.keys() <= set(now._fields)
        for setting in explorer.settings:
            name = setting.name
            values = [value for value in setting.values if value != getattr(now, name)]
            if name in most:
                values = [value for value in values if value <= most[name]]
            draw.shuffle(values)
            tried = values[:2] if name in reasons else values
            changes = any(explorer.html(now._replace(**{name: value})) != here for value in tried)
            assert changes != (name in reasons), f"{name}: {explorer.line(now)}"


@pytest.mark.usefixtures("_nothing_is_drawn")
@each_case
def test_a_disabled_control_says_why(case: Case) -> None:
    explorer, box = case.made(), case.open()
    for preset in [{}, *explorer.presets.values()]:
        now = explorer.at(**preset)
        box.go(now)
        reasons = explorer.without_effect(now)
        for setting in explorer.settings:
            control = box.controls[setting.name]
            assert control.disabled == (setting.name in reasons)
            assert (control.tooltip or "") == reasons.get(setting.name, setting.hint)


@pytest.mark.slow
@each_case
def test_presets_go_where_they_say_whatever_was_set_before(case: Case) -> None:
    explorer, box = case.made(), case.open(**case.start)
    buttons = {button.description: button for button in box.presets}
    assert list(buttons) == [*explorer.presets, "reset"]
    outputs = set()
    for label, button in buttons.items():
        to = explorer.at(**explorer.presets.get(label, {}))
        button.click()
        assert box.now == to
        assert shown(box) == explorer.html(to)
        if label != "reset":
            outputs.add(shown(box))
    assert len(outputs) == len(explorer.presets)


@pytest.mark.usefixtures("_nothing_is_drawn")
@each_case
def test_the_line_is_the_state_both_ways(case: Case) -> None:
    explorer, box, draw = case.made(), case.open(), random.Random(case.name)
    settings = [setting for setting in explorer.settings if setting.name not in SLOW]
    assert box.line.value == f"explorers.{case.name}({', '.join(explorer.inputs)})"
    for _ in range(4):
        now = explorer.at(**{setting.name: draw.choice(setting.values) for setting in settings})
        line = explorer.line(now)
        assert explorer.read(line) == explorer.read(f"  {line.removeprefix('explorers.')} ") == now
        box.line.value = line
        assert (box.line.value, box.refusal.value) == (explorer.line(box.now), "")
        assert box.now == now._replace(**{name: getattr(box.now, name) for name in explorer.most(now)})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "a line must be like explorers.samplers"),
        ("explorers.parts(queue_size=1)", "a line must be like explorers.samplers"),
        ("explorers.samplers(num_ranks=__import__('os').getpid())", "a line must be like explorers.samplers"),
        ("explorers.samplers(**{})", "settings are .*; got None"),
        ("samplers(num_ranks=8); 1", "a line must be like explorers.samplers"),
        ("samplers(" * 5000, "a line must be like explorers.samplers"),
        ("samplers(num_ranks=65)", "num_ranks must be one of 1 to 64, got 65"),
        ("samplers(ranks=8)", "settings are sampler, .*; got ranks"),
    ],
)
def test_a_line_that_says_nothing_is_refused_and_changes_nothing(line: str, message: str) -> None:
    box = explorers.samplers(color_by="position", num_ranks=8)
    before = shown(box)
    box.line.value = line or " "
    with pytest.raises(ValueError, match=message):
        box.explorer.read(line)
    assert box.refusal.value.startswith("<p>")
    assert shown(box) == before
    box.controls["num_ranks"].value = 16
    assert (box.line.value, box.refusal.value) == ('explorers.samplers(num_ranks=16, color_by="position")', "")


ODD_LITERALS = (
    "{[]: 1}",
    "{{}: 1}",
    "{[]}",
    "[[[]]]",
    "b''",
    "1j",
    "-True",
    "1e999",
    "~1",
    "'\\ud800'",
    "...",
    "()",
    "9" * 900,
)


@each_case
def test_a_line_with_odd_literals_is_refused_with_a_value_error(case: Case) -> None:
    """`literal_eval` raises more than ValueError: TypeError for a dictionary whose key is a list."""
    explorer = case.made()
    for setting in explorer.settings:
        for literal in ODD_LITERALS:
            with pytest.raises(ValueError, match="a line must be like|must be one of|must be"):
                explorer.read(f"explorers.{case.name}({setting.name}={literal})")


@each_case
def test_a_line_of_any_words_is_read_or_refused_with_a_value_error(case: Case) -> None:
    explorer = case.made()
    chance = random.Random(29)
    names = [setting.name for setting in explorer.settings]
    words = [*names, *"()[]{}=,:'.*-~\0\n2", "lambda", "f''", "1e9", case.name]
    for _ in range(300):
        line = f"explorers.{case.name}({''.join(chance.choices(words, k=chance.randrange(12)))})"
        with suppress(ValueError):
            explorer.read(line)


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
    assert "Return a small one.\n" in (small.__doc__ or "")
    assert "- `most`: 1 to 3, 6 (“most”)" in (small.__doc__ or "")
    with pytest.raises(TypeError, match="factor"):
        small(size=2)
