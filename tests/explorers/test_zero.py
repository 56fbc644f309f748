"""The explorer of a rank's memory, driven without a browser: every control reaches the picture and the report."""

from __future__ import annotations

import sys
from html import escape

import pytest
from torch import nn

from rankscope.explorers import zero
from rankscope.zero.model import memory as zero_memory

from .controls import parts

module = sys.modules["rankscope.explorers.zero"]  # its function has the same name

OTHER = {"model": "70 B", "log2_ranks": 3, "stage": 3, "recipe": "bf16", "optimizer": "sgd", "layer_millions": 500,
         "activations_gb": 20, "buckets": True}  # fmt: skip


def test_it_opens_on_its_defaults():
    controls, shown, told = parts(zero(), module._LABELS)
    assert {name: control.value for name, control in controls.items()} == module.DEFAULTS
    assert shown.value == module.picture()
    assert escape(module.report()) in told.value


@pytest.mark.parametrize("name", module.DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    start = {"stage": 3} if name == "layer_millions" else {}
    controls, shown, told = parts(zero(**start), module._LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    now = {**start, name: OTHER[name]}
    assert shown.value == module.picture(**now) != before[0]
    assert escape(module.report(**now)) in told.value
    assert told.value != before[1]


def test_it_says_what_zero_memory_does():
    settings = {"stage": 2, "layer_millions": 300, "activations_gb": 7, "log2_ranks": 4}
    memory = zero_memory(7.5e9, 16, 2, largest_layer=300_000_000, activation_bytes=7 * 10**9)
    lines = module.report(**settings).splitlines()
    assert lines[: len(memory.words())] == memory.words()
    assert lines[len(memory.words())] == "24 GB: does not fit; 80 GB: fits; 141 GB: fits"
    assert lines[len(memory.words()) + 1].startswith("stage 2, 16 ranks: a rank sends 28.1 GB a step")


def test_a_layer_is_no_larger_than_its_model_and_buckets_are_ddps():
    found = module.memories(model="125 M", layer_millions=2000, buckets=True)
    assert found["stage 3"].terms["largest_layer"] == 125_000_000 * 4
    assert [memory.terms["buckets"] > 0 for memory in found.values()] == [True, True, False, False]


def test_a_module_of_ones_own():
    own = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
    controls, shown, told = parts(zero(own, log2_ranks=1, stage=3), module._LABELS)
    assert controls["model"].value == "your module"
    assert escape(str(zero_memory(own, 2, 3))) in told.value
    controls["model"].value = "1.5 B"
    assert shown.value == module.picture(own, model="1.5 B", log2_ranks=1, stage=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 2}, "settings are model, .*; got ranks"),
        ({"stage": 4}, "stage must be a whole number from 0 to 3, got 4"),
        ({"model": "8 B"}, "model must be one of '125 M', .*, got '8 B'"),
        ({"model": "your module"}, "model must be one of .*, got 'your module'"),
        ({"recipe": "fp8"}, "recipe must be one of 'fp32', 'mixed', 'bf16', got 'fp8'"),
        ({"optimizer": "lion"}, "optimizer must be one of .*, got 'lion'"),
        ({"buckets": 1}, "buckets must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (module.picture, module.report, module.memories, lambda **now: zero(**now)):
        with pytest.raises(ValueError, match=message):
            function(**settings)
