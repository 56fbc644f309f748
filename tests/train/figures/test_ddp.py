"""The pictures of DDP's buckets and of bucket caps, read back from drawings and artists."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rankscope import figures
from rankscope.cluster import Link
from rankscope.figures.marks import Drawing
from rankscope.figures.palette import MEMORY, WORK
from rankscope.figures.svg import to_svg
from rankscope.train import ddp
from rankscope.train.ddp import Contention, LocalStep
from rankscope.train.ddp.buckets import DDPBuckets, ParameterSpec
from rankscope.train.ddp.recommend import Recommendation
from rankscope.train.figures.ddp import PARTS, draw_buckets, draw_caps, until_alike

from ...figures.shown import artist, bars, keys_of, labels, named, points, words_of

MIB = 2**20


def five() -> DDPBuckets:
    """1 MiB and 25 MiB caps: 4 | 3 2 | 1, and 0 alone."""
    sizes = [3, 2, 10, 20, 1]
    return ddp.buckets([ParameterSpec(f"{n}", size * MIB, sparse=n == 0) for n, size in enumerate(sizes)])


def pieces(drawing: Drawing) -> list[tuple[float, float, float, str, bool]]:
    (rects,) = drawing.rects
    columns = rects.x / MIB, rects.y, rects.width / MIB, rects.fill, rects.hatched
    return [(float(x), float(y), float(w), fill, bool(h)) for x, y, w, fill, h in zip(*columns, strict=True)]


def test_a_row_holds_the_gradients_of_a_bucket_by_their_bytes() -> None:
    red = MEMORY["gradients"].hue
    assert pieces(draw_buckets(five())) == [
        (0, 0.1, 1, red, False),
        (0, 1.1, 20, red, False),
        (20, 1.1, 10, red, False),
        (0, 2.1, 3, red, True),
        (0, 3.1, 2, red, False),
    ]
    numbers, totals = draw_buckets(five()).texts[-2:]
    assert numbers.text == ("4", "3", "2", "0", "1")
    assert totals.text == ("1 MiB", "30 MiB", "3 MiB", "2 MiB")
    empty = draw_buckets(ddp.buckets([ParameterSpec("none", 0)]))
    assert pieces(empty) == [(0, 0.1, 0, red, False)]
    to_svg(empty)


def test_caps_are_drawn_where_they_closed_a_bucket() -> None:
    drawing = draw_buckets(five())
    (caps,) = drawing.lines
    assert (caps.x0 / MIB).tolist() == [1, 25, 25]
    assert caps.y0.tolist() == [0, 1, 3]
    number = "number in a piece: its parameter"
    assert keys_of(drawing) == ["cap of 1 MiB", "cap of 25 MiB", number, "sparse gradient, always alone"]
    far = draw_buckets(ddp.buckets([ParameterSpec("weight", MIB)], 1000))  # does not squeeze the rows
    assert keys_of(far)[0] == "cap of 1000 MiB, beyond the picture"
    assert far.lines[0].x0.size == 0
    assert far.width < 2 * MIB


# ---- steps by cap


@cache
def recommendation(rate: float = 2e9) -> Recommendation:
    local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064, unpack_s=0.004)
    return ddp.recommend(local, ddp.cost(Link(50e-6, rate), num_ranks=8), contention=Contention(1.3, 1.2))


def test_each_bar_is_a_step_in_its_parts() -> None:
    recommended = recommendation()
    drawn = draw_caps(recommended, bucket_cap_mb=8)
    rows = [recommended.default, *until_alike(recommended)]
    frame, alone, held, wait = drawn.rects
    assert [name for _, name in drawn.y_ticks][:3] == ["default", "1 MiB", "2 MiB"]
    np.testing.assert_allclose(alone.width, recommended.alone_s * 1e3)
    np.testing.assert_allclose(held.x + held.width, wait.x)
    np.testing.assert_allclose(wait.width, [row.wait_s * 1e3 for row in rows], atol=1e-12)
    np.testing.assert_allclose(wait.x + wait.width, [row.step_s * 1e3 for row in rows])
    assert keys_of(drawn) == [*PARTS, "your cap"]
    assert (held.hatched.all(), wait.hatched.any(), wait.fill[0]) == (True, False, WORK["wait"][0])
    assert frame.y.round().tolist() == [[row.bucket_cap_mb for row in rows].index(8)]
    assert words_of(drawn)[0] == f"{recommended.default.step_s * 1e3:.3g} ms, {recommended.default.num_buckets} buckets"
    assert recommended.bucket_cap_mb == 8
    assert "8 MiB" in drawn.title
    assert drawn.width > max(row.step_s for row in rows) * 1e3
    assert draw_caps(recommended).rects[0].y.round().tolist() == [0]  # the default is framed where no cap is chosen
    assert draw_caps(recommended, bucket_cap_mb=3).rects[0].y.size == 0  # and none by a cap that is not there
    nothing = ddp.recommend(LocalStep((), np.empty(0), 0.0, 0.0), ddp.cost(Link(0.0, 1e9), num_ranks=2))
    assert "default" in draw_caps(nothing).title


def test_a_sweep_stops_where_larger_caps_change_nothing() -> None:
    local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    caps = [2.0**power for power in range(16)]  # 64 MiB hold all
    recommended = ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), caps_mb=caps)
    drawn = draw_caps(recommended, bucket_cap_mb=32768)
    assert [name for _, name in drawn.y_ticks][-2:] == ["32 MiB", "64 MiB and more"]
    assert words_of(drawn)[-1].endswith(", 1 bucket")
    assert drawn.rects[0].y.round().tolist() == [len(drawn.y_ticks) - 1]  # the last bar stands for it
    assert len(until_alike(recommended)) == 7 == len(drawn.y_ticks) - 1
    assert [candidate.bucket_cap_mb for candidate in until_alike(recommended, 200)][-2:] == [128, 256]
    assert points(figures.bucket_caps(recommended), "step, predicted")[-1, 0] == 128  # one more shows that it stays
    few = ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), caps_mb=[1, 2])
    assert until_alike(few) == few.candidates
    assert [name for _, name in draw_caps(few).y_ticks] == ["default", "1 MiB", "2 MiB"]


def test_the_curve_is_the_predicted_step_and_the_areas_are_its_parts() -> None:
    recommended = recommendation()
    ax = figures.bucket_caps(recommended)
    shown = recommended.candidates[: len(until_alike(recommended)) + 1]
    expected = np.array([(candidate.bucket_cap_mb, candidate.step_s * 1e3) for candidate in shown], dtype=float)
    np.testing.assert_allclose(points(ax, "step, predicted"), expected)
    assert (ax.get_xscale(), ax.get_ylim()[0], ax.get_ylabel()) == ("log", 0.0, "step [ms]")
    assert {"1", "2", "4", "8"} <= {label.get_text() for label in ax.get_xticklabels()}
    four = recommended.candidates[2]
    edges = np.array([0, recommended.alone_s, four.step_s - four.wait_s, four.step_s]) * 1e3
    for name, low, high in zip(PARTS, edges[:-1], edges[1:], strict=True):
        corners = artist(ax, name).get_paths()[0].vertices
        y = corners[np.isclose(corners[:, 0], 4), 1]
        assert (y.min(), y.max()) == pytest.approx((low, high))


def test_default_and_recommended_are_marked_and_named() -> None:
    recommended = recommendation()
    ax = figures.bucket_caps(recommended)
    np.testing.assert_allclose(points(ax, "DDP's default, predicted"), [(25, recommended.default.step_s * 1e3)])
    np.testing.assert_allclose(points(ax, "recommended"), [(8, recommended.chosen.step_s * 1e3)])
    assert "recommended: 8 MiB" in named(ax)
    free = figures.bucket_caps(recommendation(rate=1e15))
    assert "recommended" not in labels(free)


def test_measured_steps_stand_at_their_cap_with_their_quartiles() -> None:
    measured = {8.0: [0.10, 0.12, 0.14, 0.16, 0.5], 64: [0.2, 0.2], None: [0.3, 0.4]}
    ax = figures.bucket_caps(recommendation(), measured)
    np.testing.assert_allclose(points(ax, "measured: median and quartiles"), [(8, 140), (64, 200)])
    np.testing.assert_allclose(points(ax, "DDP's default, measured"), [(25, 350)])
    np.testing.assert_allclose(bars(ax, "measured: median and quartiles")[0], (120, 160))
    assert ax.get_ylim()[1] > 375
