"""What the bars of the caps show, read back from the marks."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.cluster import Link
from rankscope.ddp.local_step import Contention, LocalStep
from rankscope.ddp.recommend import Recommendation, recommend_bucket_cap
from rankscope.figures.ddp import PARTS, draw_caps


def recommendation(backward_s: float = 0.064) -> Recommendation:
    local = LocalStep.modelled([1 << 20] * 64, backward_s)
    return recommend_bucket_cap(local, Link(50e-6, 2e9), num_ranks=8, contention=Contention(1.3, 1.2))


def test_each_bar_is_a_step_in_its_parts() -> None:
    found = recommendation()
    drawn = draw_caps(found, bucket_cap_mb=8)
    rows = [found.default, *found.candidates]
    frame, alone, held, wait = drawn.rects
    assert [name for _, name in drawn.y_ticks][:3] == ["default", "1 MiB", "2 MiB"]
    np.testing.assert_allclose(alone.width, found.alone_s * 1e3)
    np.testing.assert_allclose(held.x + held.width, wait.x)
    np.testing.assert_allclose(wait.width, [row.wait_s * 1e3 for row in rows], atol=1e-12)
    np.testing.assert_allclose(wait.x + wait.width, [row.step_s * 1e3 for row in rows])
    assert [key.label for key in drawn.legend] == list(PARTS)
    assert frame.y.round().tolist() == [[row.bucket_cap_mb for row in rows].index(8)]
    assert drawn.texts[0].text[0] == f"{found.default.step_s * 1e3:.3g} · {found.default.num_buckets}"
    assert drawn.title == f"Best: 4 MiB, {found.gain:.1%} less than the default"
    assert drawn.width > max(row.step_s for row in rows) * 1e3


def test_the_default_is_framed_where_no_cap_is_chosen_and_a_cap_that_is_not_there_frames_none() -> None:
    assert draw_caps(recommendation()).rects[0].y.round().tolist() == [0]
    assert draw_caps(recommendation(), bucket_cap_mb=3).rects[0].y.size == 0


def test_a_step_without_anything_is_drawn_too() -> None:
    nothing = recommend_bucket_cap(LocalStep((), np.empty(0), 0.0, 0.0), Link(0.0, 1e9), num_ranks=2)
    assert draw_caps(nothing).title == "Best: default"
    with pytest.raises(ValueError, match="recommendation must be a Recommendation, got None"):
        draw_caps(None)  # type: ignore[arg-type]
