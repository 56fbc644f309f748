"""What timelines and recorders refuse: the error names the argument and the value."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from rankscope.timeline import Recorder, Span, Timeline

PAIR = Timeline.of([Span(0, "b", "y", 0, 0.0, 1.0), Span(0, "a", "x", 1, 1.0, 2.0)])
SPAN = next(iter(PAIR))

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Timeline.of([SPAN._replace(stop_s=-0.5)]), r"0\.0 to -0\.5"),
    (lambda: Timeline.of([SPAN._replace(start_s=math.nan)]), "finite"),
    (lambda: Timeline.of([SPAN._replace(item=0.5)]), "item"),  # type: ignore[arg-type]
    (lambda: Timeline.of([SPAN._replace(rank="0")]), "rank"),  # type: ignore[arg-type]
    (lambda: PAIR.throughput_per_s("stop"), "stop"),
    (lambda: PAIR.select(rank=[0, "1"]), "rank"),  # type: ignore[list-item]
    (lambda: PAIR.select(between_s=(2, 1)), "between_s"),
    (lambda: PAIR.select(between_s=(math.nan, 1)), "between_s"),
    (lambda: Recorder(rank=1.5), "rank"),  # type: ignore[arg-type]
    (lambda: Recorder().for_rank(-1), "rank"),
    (lambda: Recorder().add("a", "b", 1, 10, 5), "10 to 5"),
    (lambda: Recorder().add(5, "b", 1, 0, 5), "lane"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "word"), REFUSED)
def test_what_is_wrong_is_named(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


def test_a_window_may_be_open() -> None:
    assert len(PAIR.select(between_s=(-math.inf, math.inf))) == 2
