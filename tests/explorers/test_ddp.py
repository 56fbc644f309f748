"""The explorer of DDP's buckets, driven without a browser: every control reaches picture, caps or report."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets
import pytest

from rankscope.ddp.architectures import ARCHITECTURES
from rankscope.explorers import ddp
from rankscope.explorers.ddp import _LABELS, DEFAULTS, RANGES, caps, picture, report, timeline

from .controls import parts

OTHER = {"model": "GPT-2", "num_samples": 64, "tflops": 10, "log2_ranks": 8, "alpha_us": 5, "gb_per_s": 2,
         "slower": 80, "accumulation": 3, "default_cap": False, "overlap": False}  # fmt: skip


def test_it_opens_on_the_defaults():
    controls, shown, told = parts(ddp(), _LABELS)
    assert {name: control.value for name, control in controls.items()} == DEFAULTS
    assert isinstance(shown, widgets.HTML)
    assert shown.value == picture() + caps()
    assert escape(report()) in told.value


@pytest.mark.parametrize("name", OTHER)
def test_each_control_repaints_what_it_says(name):
    controls, shown, told = parts(ddp(), _LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    changed = {name: OTHER[name]}
    assert shown.value == picture(**changed) + caps(**changed) != before[0]
    assert escape(report(**changed)) in told.value != before[1]


def test_the_cap_counts_once_the_default_is_left():
    controls, shown, _ = parts(ddp(), _LABELS)
    before = shown.value
    controls["log2_cap_mb"].value = 6
    assert shown.value == before
    controls["default_cap"].value = False
    assert shown.value == picture(default_cap=False, log2_cap_mb=6) + caps(default_cap=False, log2_cap_mb=6)
    assert "a cap of 64 MiB" in shown.value


def test_the_report_is_of_the_step_that_is_drawn():
    step = timeline(slower=50)
    assert report(slower=50).splitlines()[1].startswith(f"{step.makespan_s * 1e3:.3g} ms a step: computing alone ")
    lines = report().splitlines()
    assert lines[0].startswith("ResNet-50: 161 gradients of 97.5 MiB, 13.1 ms of backward a micro-batch; 32 ranks")
    assert f"waiting {timeline().select(kind='wait').busy_s * 1e3:.3g} ms (exposed communication)" in lines[1]
    assert lines[3].startswith("write DistributedDataParallel(module, bucket_cap_mb=32)")
    assert "held up 0 s" in lines[1]


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_every_model_is_drawn_at_the_ends_of_all_sliders(model):
    for end in (0, 1):
        settings = {name: limits[end] for name, limits in RANGES.items()}
        assert "<svg" in picture(model=model, default_cap=False, **settings)
        assert "<svg" in caps(model=model, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 2}, "settings are model, .*; got ranks"),
        ({"num_samples": 0}, "num_samples must be a whole number from 1 to 256, got 0"),
        ({"model": "GPT-5"}, "model must be one of 'small CNN', .*, got 'GPT-5'"),
        ({"overlap": 1}, "overlap must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (picture, caps, report, timeline, ddp):
        with pytest.raises(ValueError, match=message):
            function(**settings)
