"""What a queue holds over time, read from a timeline."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.pipeline import Lognormal, Pipeline, Stage, queue_fill, simulate
from rankscope.timeline import Span, Timeline

from ..distributions import Exponential


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("capacity", [1, 3, 16])
def test_a_queue_holds_from_nothing_up_to_its_capacity(capacity, ordered):
    path = Pipeline(
        [
            Stage("read", Lognormal(0.1, 1.0), num_workers=3, capacity=capacity, ordered=ordered),
            Stage("train", Exponential(0.04)),
        ]
    )
    times_s, number = queue_fill(simulate(path, 300), "read", "train")
    assert number.min() == 0
    assert number.max() == capacity
    assert number[-1] == 0
    assert (np.diff(times_s) > 0).all()
    assert (np.diff(number) != 0).all()


def test_an_item_is_counted_from_its_last_work_of_the_one_kind_to_its_first_of_the_other():
    spans = [
        Span(0, "w", "read", 0, 0.0, 1.0),
        Span(0, "w", "read", 0, 1.0, 2.0),
        Span(0, "t", "train", 0, 5.0, 6.0),
        Span(1, "w", "read", 0, 0.0, 3.0),
        Span(0, "w", "read", 1, 2.0, 3.0),
        Span(0, "w", "blocked", 1, 3.0, 4.0),
        Span(0, "t", "blocked", 0, 6.0, 9.0),
    ]
    times_s, number = queue_fill(Timeline.of(spans), "read", "train")
    assert (times_s.tolist(), number.tolist()) == ([2.0, 4.0, 5.0], [1, 2, 1])
    assert queue_fill(Timeline.of(spans), "read", "train", rank=1)[0].tolist() == [3.0]
    with pytest.raises(ValueError, match="after and before must be one of 'read', 'train', 'blocked', got 'decode'"):
        queue_fill(Timeline.of(spans), "decode", "train")
    with pytest.raises(ValueError, match="timeline must be a Timeline, got None"):
        queue_fill(None, "read", "train")


def test_it_is_never_negative_whatever_spans_there_are():
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = rng.integers(0, 20, 30)
        items, kinds = rng.integers(-1, 6, 30), rng.choice(["read", "train", "blocked", "other"], 30)
        spans = [
            Span(0, kind, str(kind), int(item), float(start), float(start) + rng.integers(5))
            for kind, item, start in zip(kinds, items, starts, strict=True)
        ]
        _, number = queue_fill(Timeline.of(spans).named([], ["read", "train"]), "read", "train")
        assert (number >= 0).all()


def test_an_item_leaves_once_and_what_is_no_item_is_left_out():
    spans = [Span(0, "w", "read", 0, 0.0, 1.0), Span(0, "t", "train", 0, 3.0, 4.0), Span(0, "t", "train", 0, 2.0, 3.0)]
    assert [column.tolist() for column in queue_fill(Timeline.of(spans), "read", "train")] == [[1.0, 2.0], [1, 0]]
    nameless = [span._replace(item=-1) for span in spans]
    assert [column.tolist() for column in queue_fill(Timeline.of(nameless), "read", "train")] == [[], []]
