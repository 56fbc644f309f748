"""The pipeline explorer, driven without a browser: every control reaches the picture and the report."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets
import numpy as np
import pytest

from rankscope.explorers import pipeline
from rankscope.explorers.pipeline import _LABELS, DEFAULTS, RANGES, picture, report, road
from rankscope.pipeline import simulate

from .controls import parts

OTHER = {"read_ms": 20, "decode_ms": 11, "copy_ms": 17, "train_ms": 25, "num_workers": 3, "capacity": 5, "jitter": 90,
         "num_ranks": 2, "seed": 4, "ordered": False}  # fmt: skip


def test_it_opens_on_the_defaults():
    controls, shown, told = parts(pipeline(), _LABELS)
    assert {name: control.value for name, control in controls.items()} == DEFAULTS
    assert isinstance(shown, widgets.HTML)
    assert shown.value == picture()
    assert escape(report()) in told.value


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    controls, shown, told = parts(pipeline(), _LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    assert shown.value == picture(**{name: OTHER[name]}) != before[0]
    assert escape(report(**{name: OTHER[name]})) in told.value != before[1]


def test_the_report_names_the_bottleneck_and_the_next_one():
    lines = report(jitter=0).splitlines()
    assert lines[0] == "bottleneck: decode, which bounds the pipeline to 66.7 batches/s; next is train, at 83.3"
    assert lines[1] == "delivered over 500 batches: 66.4 batches/s, 100% of that bound"
    assert report(jitter=0, num_workers=4).startswith("bottleneck: train, which bounds the pipeline to 83.3")
    assert "at the barrier" in report(num_ranks=2)
    assert report(read_ms=0, decode_ms=0, copy_ms=0).splitlines()[0].endswith("next is read, at any rate")
    nothing = dict.fromkeys(["read_ms", "decode_ms", "copy_ms", "train_ms"], 0)
    assert report(**nothing) == "every stage takes no time: nothing bounds this pipeline"


def test_only_reading_and_decoding_vary():
    for ranks in (1, 4):
        timeline = simulate(road(jitter=150, num_ranks=ranks), 20, num_ranks=ranks)
        spread = {kind: np.ptp(spans.stop_s - spans.start_s) for kind in ("read", "decode", "copy", "train")
                  for spans in [timeline.select(kind=kind)]}  # fmt: skip
        assert {kind for kind, seconds in spread.items() if seconds > 1e-9} == {"read", "decode"}


def test_what_the_notebook_says_to_look_for():
    settings = [{"jitter": 0}, {}, {"capacity": 16}, {"capacity": 16, "ordered": False}]
    lines = [report(**{"num_workers": 3, "jitter": 150, **changed}).splitlines()[1] for changed in settings]
    assert [line.split(", ")[-1] for line in lines] == [f"{share}% of that bound" for share in (99, 70, 74, 100)]


def test_the_shares_of_the_report_are_those_of_the_simulation():
    timeline = simulate(road(), 500)
    train = timeline.select(kind="train").busy_s / timeline.makespan_s
    assert f"{'train':<7}{train:>5.0%} at work" in report()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 2}, "settings are read_ms, .*; got workers"),
        ({"num_workers": 9}, "num_workers must be a whole number from 1 to 8, got 9"),
        ({"jitter": 0.5}, r"jitter must be a whole number from 0 to 200, got 0\.5"),
        ({"ordered": "yes"}, "ordered must be True or False, got 'yes'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (pipeline, picture, report):
        with pytest.raises(ValueError, match=message):
            function(**settings)


def test_the_extremes_of_every_slider_can_be_drawn():
    for name, ends in RANGES.items():
        for value in ends:
            assert "<svg" in picture(**{name: value})
            assert report(**{name: value})
