"""The part-file explorer, driven without a browser: every control reaches the picture and the report."""

from __future__ import annotations

from html import escape

import pytest

from rankscope.explorers import parts
from rankscope.explorers.parts import _LABELS, DEFAULTS, RANGES, picture, predicted, report
from rankscope.parts import idle_share

OTHER = {"load_ms": 90, "step_ms": 30, "steps_per_part": 7, "jitter": 20, "num_trainers": 2, "queue_size": 3,
         "num_loaders": 2, "seed": 5, "aligned": True}  # fmt: skip


def controls_of(box):
    controls, shown, told = box.children
    names = {label: name for name, label in _LABELS.items()}
    return {names[control.description]: control for control in controls.children}, shown, told


def test_it_opens_on_the_defaults():
    controls, shown, told = controls_of(parts())
    assert {name: control.value for name, control in controls.items()} == DEFAULTS
    assert shown.value == picture()
    assert escape(report()) in told.value


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    start = {"queue_size": 1} if name == "num_loaders" else {}  # loaders are there for a queue only
    controls, shown, told = controls_of(parts(**start))
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    settings = start | {name: OTHER[name]}
    assert shown.value == picture(**settings) != before[0]
    assert escape(report(**settings)) in told.value != before[1]


def test_the_report_counts_what_the_simulation_gives():
    lines = report(queue_size=2).splitlines()
    share = idle_share(predicted(60, queue_size=2))
    assert lines[0] == f"over 60 parts each, 4 trainers: {share:.0%} of the time without a step"
    assert lines[1] == ("loading ahead, the loaders bring a part every 160 ms, it lasts 200 ms: "
                        "bound by training, if the queue is long enough")  # fmt: skip
    assert f"  queue of 2  {share:>5.0%} idle" in lines
    assert report(load_ms=300).splitlines()[1].endswith("by loading: in the long run no queue gets below 33%")
    assert "every 150 ms" in report(load_ms=300, num_loaders=2)
    assert "every 53.3 ms" in report(load_ms=160, num_loaders=3)


def test_what_no_queue_gets_below_is_what_a_long_one_comes_near_to():
    share = idle_share(predicted(300, load_ms=300, queue_size=8, jitter=20))
    assert 1 - 200 / 300 < share < 1 - 200 / 300 + 0.02


def test_parts_end_together_or_apart():
    def firsts(**settings):
        steps = predicted(2, jitter=0, load_ms=100, **settings).select(kind="load", item=1)
        return sorted(round(start, 3) for start in steps.start_s.tolist())

    assert len(set(firsts(aligned=True))) == 1
    assert len(set(firsts(aligned=False))) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue": 2}, "settings are load_ms, .*; got queue"),
        ({"num_trainers": 17}, "num_trainers must be a whole number from 1 to 16, got 17"),
        ({"aligned": 1}, "aligned must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (parts, picture, report):
        with pytest.raises(ValueError, match=message):
            function(**settings)


def test_the_extremes_of_every_slider_can_be_drawn():
    for name, ends in RANGES.items():
        for value in ends:
            assert "<svg" in picture(**{name: value})
            assert report(**{name: value})
