"""What timelines and recorders refuse: the error names the argument and the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from rankscope.timeline import Recorder, Span, Timeline

PAIR = Timeline.of([Span(0, "b", "y", 0, 0.0, 1.0), Span(0, "a", "x", 1, 1.0, 2.0)])
COLUMNS = {"rank": [0], "lane": [0], "kind": [0], "item": [0], "start_s": [1.0], "stop_s": [2.0]}
NAMES = {"lanes": ("a",), "kinds": ("b",)}


def timeline(**change: Any) -> Timeline:
    return Timeline(**{**NAMES, **COLUMNS, **change})


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: timeline(rank=[0, 0]), "length"),
    (lambda: timeline(lane=[1]), "lane"),
    (lambda: timeline(kind=[-1]), "kind"),
    (lambda: timeline(stop_s=[0.5]), "start_s=1.0, stop_s=0.5"),
    (lambda: timeline(start_s=[math.nan]), "finite"),
    (lambda: timeline(item=[0.5]), "item"),
    (lambda: timeline(item=[2**63]), "item"),
    (lambda: timeline(lanes=(3,)), "lanes"),
    (lambda: PAIR.overlap_s("x", "stop"), "stop"),
    (lambda: PAIR.throughput_per_s("stop"), "stop"),
    (lambda: PAIR.select(rank=[0, "1"]), "rank"),  # type: ignore[list-item]
    (lambda: PAIR.select(between_s=(2, 1)), "between_s"),
    (lambda: PAIR.select(between_s=(math.nan, 1)), "between_s"),
    (lambda: PAIR.shifted(None), "seconds"),  # type: ignore[arg-type]
    (lambda: PAIR.check(math.inf), "tolerance_s"),
    (lambda: Recorder(rank=1.5), "rank"),  # type: ignore[arg-type]
    (lambda: Recorder().add("a", "b", 1, 10, 5), "10 to 5"),
    (lambda: Recorder().add("a", "b", 2**63, 0, 5), "64 bits"),
    (lambda: Recorder().add(5, "b", 1, 0, 5), "lane"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "word"), REFUSED)
def test_what_is_wrong_is_named(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


def test_the_largest_item_and_an_open_window_are_right() -> None:
    assert timeline(item=[2**63 - 1])[0].item == 2**63 - 1
    assert len(PAIR.select(between_s=(-math.inf, math.inf))) == 2
