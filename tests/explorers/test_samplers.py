"""The samplers explorer, driven without a browser: every control reaches the picture and the audit."""

from __future__ import annotations

import ipywidgets as widgets
import pytest

from rankscope.explorers import samplers
from rankscope.explorers.samplers import DEFAULTS, epochs, picture, report
from rankscope.figures.samplers import draw_assignment
from rankscope.figures.svg import to_svg
from rankscope.sampling import assign

OTHER = {
    "sampler": "libtorch_sequential",
    "num_ranks": 5,
    "size": 47,
    "batch_size": 3,
    "epoch": 2,
    "seed": 4,
    "shuffle": False,
    "drop_last": True,
    "forget_set_epoch": True,
    "color_by": "position",
}


def parts(box):
    """The controls by name, the picture and the audit."""
    controls, shown, told = box.children
    return dict(zip(DEFAULTS, _in_order(controls.children), strict=True)), shown, told


def _in_order(controls):
    names = {
        "sampler": "sampler", "ranks": "num_ranks", "samples": "size", "batch size": "batch_size", "epoch": "epoch",
        "seed": "seed", "colour by": "color_by", "shuffle": "shuffle", "drop_last": "drop_last",
        "forget set_epoch": "forget_set_epoch",
    }  # fmt: skip
    by_name = {names[control.description]: control for control in controls}
    return [by_name[name] for name in DEFAULTS]


def test_it_opens_on_the_defaults():
    _, shown, told = parts(samplers())
    assert isinstance(shown, widgets.HTML)
    assert shown.value == picture(**DEFAULTS) == to_svg(draw_assignment(assign(50, 4).with_loader(4)))
    assert report(**DEFAULTS).splitlines()[0] in told.value


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    start = {"epoch": 1} if name == "forget_set_epoch" else {}
    controls, shown, told = parts(samplers(**start))
    before = shown.value
    controls[name].value = OTHER[name]
    settings = DEFAULTS | start | {name: OTHER[name]}
    assert shown.value == picture(**settings) != before
    assert report(**settings).splitlines()[-1].replace(">", "&gt;") in told.value


def test_moving_everything_and_back_ends_where_it_began():
    controls, shown, _ = parts(samplers())
    before = shown.value
    for values in (OTHER, DEFAULTS):
        for name, value in values.items():
            controls[name].value = value
    assert shown.value == before


def test_what_libtorch_does_not_have_is_switched_off():
    controls, _, _ = parts(samplers())
    controls["sampler"].value = "libtorch_random"
    assert controls["seed"].disabled
    assert controls["shuffle"].disabled
    assert controls["drop_last"].description == "no allow_duplicates"
    controls["sampler"].value = "torch"
    assert not controls["seed"].disabled
    assert controls["drop_last"].description == "drop_last"


def test_the_audit_covers_the_epochs_so_far():
    assert [assignment.epoch for assignment in epochs(**DEFAULTS | {"epoch": 3})] == [0, 1, 2, 3]
    assert [a.epoch for a in epochs(**DEFAULTS | {"epoch": 2, "forget_set_epoch": True})] == [0, 0, 0]
    assert "was set_epoch forgotten?" in report(epoch=2, forget_set_epoch=True)
    assert "was set_epoch forgotten?" not in report(epoch=2)


@pytest.mark.parametrize("extreme", ["min", "max"])
def test_every_slider_reaches_its_ends(extreme):
    controls, shown, _ = parts(samplers())
    for control in controls.values():
        if isinstance(control, widgets.IntSlider):
            control.value = getattr(control, extreme)
            assert shown.value.startswith("<svg")


@pytest.mark.parametrize("show", [samplers, picture, report])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world_size": 3}, "settings are sampler, num_ranks, .*; got world_size"),
        ({"num_ranks": 128}, "num_ranks must be a whole number from 1 to 64, got 128"),
        ({"epoch": -1}, "epoch must be a whole number from 0 to 9, got -1"),
        ({"sampler": "grain"}, "sampler must be one of 'torch', .*, got 'grain'"),
        ({"color_by": "size"}, "color_by must be one of 'rank', 'position', got 'size'"),
    ],
)
def test_a_setting_that_no_slider_has_is_refused(show, settings, message):
    with pytest.raises(ValueError, match=message):
        show(**settings)
