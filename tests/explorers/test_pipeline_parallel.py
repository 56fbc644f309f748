"""The explorer of pipelines, driven without a browser: every control reaches the picture and the report."""

from __future__ import annotations

import sys
from fractions import Fraction
from html import escape

import pytest

from rankscope.explorers import pipeline_parallel
from rankscope.pipeline_parallel import bubble_share, gpipe, simulate, traffic

from .controls import parts

module = sys.modules["rankscope.explorers.pipeline_parallel"]  # its function has the same name

OTHER = {"schedule": "gpipe", "num_ranks": 6, "num_microbatches": 12, "num_chunks": 3, "forward_ms": 20,
         "backward_percent": 100, "link": "1 GB/s, 50 µs", "activation_mb": 40}  # fmt: skip
SLOW = {"link": "1 GB/s, 50 µs"}  # where links are free, the bubble's share depends on no time
START = {"num_chunks": {"schedule": "interleaved_1f1b"}} | dict.fromkeys(
    ("forward_ms", "backward_percent", "activation_mb"), SLOW
)


def test_it_opens_on_its_defaults():
    controls, shown, told = parts(pipeline_parallel(), module._LABELS)
    assert {name: control.value for name, control in controls.items()} == module.DEFAULTS
    assert shown.value == module.picture()
    assert escape(module.report()) in told.value


@pytest.mark.parametrize("name", module.DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    start = START.get(name, {})
    controls, shown, told = parts(pipeline_parallel(**start), module._LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    now = {**start, name: OTHER[name]}
    assert shown.value == module.picture(**now) != before[0]
    assert escape(module.report(**now)) in told.value
    assert told.value != before[1]


def test_it_says_what_the_schedule_does():
    lines = module.report(schedule="gpipe", num_ranks=3, num_microbatches=5, activation_mb=2).splitlines()
    assert lines == [
        "gpipe ranks=3 microbatches=5 chunks=1",
        "bubble: 28.6% of the step; 2/7 = 28.6% where links are free",
        "activations kept, in microbatches of a whole rank: 5, 5, 5",
        "a rank sends 20 MB a step at most",
    ]
    assert bubble_share("gpipe", 3, 5) == Fraction(2, 7)
    assert max(traffic(gpipe(3, 5), 2e6)) == 20e6


def test_a_link_that_is_not_free_makes_the_step_longer():
    link = module.LINKS["1 GB/s, 50 µs"]
    step = module.predicted(schedule="gpipe", num_ranks=2, num_microbatches=1, link="1 GB/s, 50 µs")
    assert step.makespan_s == simulate(gpipe(2, 1), 0.010, 0.020, link, 4e6).makespan_s
    assert step.makespan_s == pytest.approx(0.060 + 2 * (50e-6 + 4e-3))
    assert "bubble: 55.9% of the step; 1/2 = 50.0%" in module.report(
        schedule="gpipe", num_ranks=2, num_microbatches=1, link="1 GB/s, 50 µs"
    )


def test_microbatches_that_rounds_do_not_fit_are_the_next_that_they_do():
    now = {"schedule": "interleaved_1f1b", "num_ranks": 4, "num_microbatches": 9}
    assert module.planned(**now).num_microbatches == 10
    assert module.report(**now).endswith("(its rounds do not fit 9 microbatches)")


def test_every_position_of_the_sliders_paints():
    for num_ranks in range(1, 9):
        for num_microbatches in (1, 2, 7, 13, 31, 32):
            now = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "schedule": "interleaved_1f1b"}
            assert "bubble" in module.report(**now, num_chunks=3, backward_percent=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 2}, "settings are schedule, .*; got ranks"),
        ({"num_ranks": 9}, "num_ranks must be a whole number from 1 to 8, got 9"),
        ({"schedule": "1f1b"}, "schedule must be one of 'gpipe', .*, got '1f1b'"),
        ({"link": None}, "link must be one of 'free', .*, got None"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (module.picture, module.report, module.planned, lambda **now: pipeline_parallel(**now)):
        with pytest.raises(ValueError, match=message):
            function(**settings)
