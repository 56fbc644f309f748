"""The explorer of uneven inputs, driven without a browser: every control reaches the picture and the report."""

from __future__ import annotations

import sys
from html import escape

import pytest

from rankscope.explorers import uneven

from .controls import parts

module = sys.modules["rankscope.explorers.uneven"]  # its function has the same name

OTHER = {"rank_0": 4, "rank_1": 7, "rank_2": 1, "handling": "pad", "allreduce_ms": 90, "divide_by_initial": False}


def test_it_opens_on_its_defaults():
    controls, shown, told = parts(uneven(), module._LABELS)
    assert {name: control.value for name, control in controls.items()} == module.DEFAULTS
    assert shown.value == module.picture()
    assert escape(module.report()) in told.value


@pytest.mark.parametrize("name", module.DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    controls, shown, told = parts(uneven(handling="join"), module._LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    now = {"handling": "join", name: OTHER[name]}
    assert shown.value == module.picture(**now)
    assert escape(module.report(**now)) in told.value
    assert (shown.value, told.value) != before


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"handling": "drop"}, ["80 samples: 32 lost, 0 repeated", "up to 1, 1", "0.00 to 1.67 times"]),
        ({"handling": "pad"}, ["80 samples: 0 lost, 40 repeated", "up to 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
        ({"handling": "join"}, ["0 lost, 0 repeated", "up to 1, 1, 0.667, 0.333, 0.333", "1.00 to 1.00 times"]),
        ({"handling": "join", "divide_by_initial": False}, ["0 lost", "up to 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
    ],
)
def test_it_says_what_becomes_of_the_samples(settings, lines):
    for line, found in zip(lines, module.report(**settings).splitlines(), strict=True):
        assert line in found


def test_it_says_who_cannot_go_on():
    assert "hang: ranks 1 and 2 cannot go on" in module.picture()
    assert "hang: rank 0 cannot go on" in module.picture(rank_0=4, rank_1=2, rank_2=2)
    for settings in ({"handling": "join"}, {"rank_0": 5, "rank_1": 5}):
        assert "the epoch comes to its end" in module.picture(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 2}, "settings are rank_0, .*; got ranks"),
        ({"rank_1": 0}, "rank_1 must be a whole number from 1 to 12, got 0"),
        ({"handling": "wait"}, "handling must be one of 'hang', .*, got 'wait'"),
        ({"divide_by_initial": 1}, "divide_by_initial must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (module.picture, module.report, lambda **now: uneven(**now)):
        with pytest.raises(ValueError, match=message):
            function(**settings)
