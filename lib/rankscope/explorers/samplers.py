"""The explorer of notebook 01: which rank reads which sample, for any sampler and setting."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from ..figures.samplers import draw_assignment
from ..figures.svg import to_svg
from ..sampling import Assignment, assign, audit
from ..values.checks import one_of
from .panel import choice, chosen, panel, slider, switch

SAMPLERS = {
    "torch DistributedSampler": "torch",
    "libtorch DistributedRandomSampler": "libtorch_random",
    "libtorch DistributedSequentialSampler": "libtorch_sequential",
}

DEFAULTS: dict[str, Any] = {
    "sampler": "torch",
    "num_ranks": 4,
    "size": 50,
    "batch_size": 4,
    "epoch": 0,
    "seed": 0,
    "shuffle": True,
    "drop_last": False,
    "forget_set_epoch": False,
    "color_by": "rank",
}


RANGES = {"num_ranks": (1, 64), "size": (0, 2048), "batch_size": (1, 64), "epoch": (0, 9), "seed": (0, 20)}
COLORINGS = ("rank", "position")


def epochs(
    *,
    sampler: str,
    num_ranks: int,
    size: int,
    batch_size: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    drop_last: bool,
    forget_set_epoch: bool,
    color_by: str = "rank",
) -> list[Assignment]:
    """Return what is read in epochs 0 … `epoch` under these settings; all of them epoch 0 where set_epoch is forgotten.

    libtorch's samplers take neither seed nor shuffle, so these two settings do nothing there. `color_by` does nothing
    here: it is one of the picture's settings.
    """
    recipe: dict[str, Any] = {"seed": seed, "shuffle": shuffle} if sampler == "torch" else {}
    return [
        assign(
            size, num_ranks, sampler=sampler, epoch=0 if forget_set_epoch else number, drop_last=drop_last, **recipe
        ).with_loader(batch_size)
        for number in range(epoch + 1)
    ]


def picture(**settings: Any) -> str:
    """Return the grid of the last of the `epochs` as SVG; the settings are those of `DEFAULTS`, where not given."""
    current = _chosen(settings)
    return _picture(epochs(**current)[-1], current["color_by"])


def report(**settings: Any) -> str:
    """Return the audit of the `epochs` as text; the settings are those of `DEFAULTS`, where not given."""
    return str(audit(epochs(**_chosen(settings))))


def samplers(**settings: Any) -> widgets.VBox:
    """Return sliders for `DEFAULTS` (`settings` replaces some) over the picture and the audit of all epochs so far.

    Raises ValueError for a setting that does not exist or lies outside its slider.
    """
    controls = _controls(_chosen(settings))

    def paint(current: dict[str, Any]) -> tuple[str, str]:
        is_torch = current["sampler"] == "torch"
        controls["drop_last"].description = "drop_last" if is_torch else "no allow_duplicates"
        for name in ("seed", "shuffle"):
            controls[name].disabled = not is_torch
        run = epochs(**current)
        return _picture(run[-1], current["color_by"]), str(audit(run))

    return panel(controls, paint)


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    current = chosen(settings, DEFAULTS, RANGES)
    one_of("sampler", current["sampler"], tuple(SAMPLERS.values()))
    one_of("color_by", current["color_by"], COLORINGS)
    return current


def _picture(assignment: Assignment, color_by: str) -> str:
    return to_svg(draw_assignment(assignment, color_by))


def _controls(initial: dict[str, Any]) -> dict[str, Any]:
    def numbers(name: str, label: str) -> widgets.IntSlider:
        return slider(initial[name], RANGES[name], label)

    return {
        "sampler": choice(initial["sampler"], list(SAMPLERS.items()), "sampler"),
        "num_ranks": numbers("num_ranks", "ranks"),
        "size": numbers("size", "samples"),
        "batch_size": numbers("batch_size", "batch size"),
        "epoch": numbers("epoch", "epoch"),
        "seed": numbers("seed", "seed"),
        "color_by": choice(initial["color_by"], list(COLORINGS), "colour by"),
        "shuffle": switch(initial["shuffle"], "shuffle"),
        "drop_last": switch(initial["drop_last"], "drop_last"),
        "forget_set_epoch": switch(initial["forget_set_epoch"], "forget set_epoch"),
    }
