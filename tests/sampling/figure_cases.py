"""The public figures of `sampling`: a call of each view, drawings, and what is refused, for `tests/figures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankscope import figures
from rankscope.drawing.drawing import Drawing
from rankscope.sampling import assign
from rankscope.sampling.picture import draw_assignment

LENGTHS = np.random.default_rng(0).integers(1, 400, 512)
UNEQUAL = assign(512, 8, sampler="balanced", lengths=LENGTHS, batch_size=16)

FIGURES: dict[str, Callable[..., Any]] = {
    "assignment": lambda **on: figures.assignment(
        assign(50, 8, drop_last=True).with_loader(2), color_by="position", **on
    ),
    "step_costs": lambda **on: figures.step_costs(assign(512, 8).with_loader(8), LENGTHS, **on),
}

DRAWINGS: dict[str, Drawing] = {
    "assignment": draw_assignment(assign(50, 4).with_loader(4)),
    "dropped": draw_assignment(assign(10, 4, drop_last=True), "position"),
    "out of range": draw_assignment(assign(3, 8, sampler="libtorch_random")),
    "reads nothing": draw_assignment(assign(3, 8, drop_last=True)),
    "no samples": draw_assignment(assign(0, 2)),
    "unequal batches": draw_assignment(UNEQUAL),
    "many ranks": draw_assignment(assign(100_000, 1024).with_loader(8)),
    "many reads": draw_assignment(assign(10**6, 24, drop_last=True).with_loader(16)),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.assignment(None), "assignment"),
    (lambda: figures.assignment(assign(10, 2), color_by="size"), "color_by"),
    (lambda: figures.step_costs(assign(4, 2), [1, 2]), "4, got 2"),
]
