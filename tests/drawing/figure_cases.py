"""The public figures of `drawing`: a call of each view, drawings, and what is refused, for `tests/figures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankscope import figures
from rankscope.drawing.bars import draw_bars
from rankscope.drawing.drawing import Drawing
from rankscope.drawing.ranking import draw_ranking

PAIRS = {"one": ([1, 2, 3, 4], [1, 2, 3, 5]), "two": (None, [2, 2, 2, 2])}


def curves(**on: Any) -> Any:
    return figures.curves([1, 2, 4, 8], PAIRS, **{"title": "Two", "x_label": "ranks", "y_label": "time [ms]"} | on)


FIGURES: dict[str, Callable[..., Any]] = {
    "bars": lambda **on: figures.bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}, **on),
    "curves": curves,
    "ranking": lambda **on: figures.ranking({"ring": 3e-3, "flat": 1.0}, chosen="ring", **on),
}

DRAWINGS: dict[str, Drawing] = {
    "bars": draw_bars({"<&>": {"backward": 60, "loader": 0.01}, "b" * 99: {"allreduce": 5}}, behind=["", "b"]),
    "ranking": draw_ranking({"ring": 3e-3, "flat" * 20: 1.0, "swing": 2e-3}, 1e-3, "ring"),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.bars({}), "rows"),
    (lambda: figures.bars({"a": {"read": -1}}), "a, read"),
    (lambda: figures.bars({"a": {"read": 1}}, limits=[("now", -1)]), "limit now"),
    (lambda: draw_ranking({}), "at least one"),
    (lambda: figures.curves([1], {"a": (None, None)}, "", "", ""), "a: must"),
    (lambda: curves(log="yx"), "log"),
]
