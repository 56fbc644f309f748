"""What the picture of DDP's buckets shows, read back from the drawing and from both painters."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rankscope import figures
from rankscope.ddp.buckets import DDPBuckets, ddp_buckets
from rankscope.ddp.local_step import ParameterSpec
from rankscope.figures.ddp import draw_buckets
from rankscope.figures.marks import Drawing
from rankscope.figures.palette import rank_colors
from rankscope.figures.svg import to_svg

MIB = 2**20


def five() -> DDPBuckets:
    """1 MiB and 25 MiB caps: 4 | 3 2 | 1, and 0 alone."""
    sizes = [3, 2, 10, 20, 1]
    return ddp_buckets([ParameterSpec(f"{n}", size * MIB, sparse=n == 0) for n, size in enumerate(sizes)])


def pieces(drawing: Drawing) -> list[tuple[float, float, float, str, bool]]:
    (rects,) = drawing.rects
    columns = rects.x / MIB, rects.y, rects.width / MIB, rects.fill, rects.hatched
    return [(float(x), float(y), float(w), fill, bool(h)) for x, y, w, fill, h in zip(*columns, strict=True)]


def test_a_row_holds_the_gradients_of_a_bucket_by_their_bytes() -> None:
    blue, orange, green, pink = rank_colors(4)
    assert pieces(draw_buckets(five())) == [
        (0, 0.1, 1, blue, False),
        (0, 1.1, 20, orange, False),
        (20, 1.1, 10, orange, False),
        (0, 2.1, 3, green, True),
        (0, 3.1, 2, pink, False),
    ]
    numbers, totals = draw_buckets(five()).texts[-2:]
    assert numbers.text == ("4", "3", "2", "0", "1")
    assert totals.text == ("1 MiB", "30 MiB", "3 MiB", "2 MiB")


def test_caps_are_drawn_where_they_closed_a_bucket() -> None:
    drawing = draw_buckets(five())
    (caps,) = drawing.lines
    assert (caps.x0 / MIB).tolist() == [1, 25, 25]
    assert caps.y0.tolist() == [0, 1, 3]
    labels = [key.label for key in drawing.legend]
    assert labels == ["cap of 1 MiB", "cap of 25 MiB", "sparse gradient, always alone"]


def test_a_cap_far_away_is_named_and_does_not_squeeze_the_rows() -> None:
    drawing = draw_buckets(ddp_buckets([ParameterSpec("weight", MIB)], 1000))
    assert [key.label for key in drawing.legend] == ["cap of 1000 MiB, beyond the picture"]
    assert drawing.lines[0].x0.size == 0
    assert drawing.width < 2 * MIB


def test_titles_say_when() -> None:
    assert draw_buckets(five()).title == "36 MiB of gradients, 5 parameters: 4 allreduces from iteration 1 on"
    before = draw_buckets(five(), iteration=0)
    assert before.title == "36 MiB of gradients, 5 parameters: 2 allreduces before the rebuild at iteration 1"
    assert before.lines[0].x0.size == 0
    never = ddp_buckets(five().parameters, find_unused_parameters=True)
    assert draw_buckets(never).title.endswith("4 allreduces at every iteration")


def test_parameters_without_elements_are_drawn_without_an_error() -> None:
    drawing = draw_buckets(ddp_buckets([ParameterSpec("none", 0)]))
    assert pieces(drawing) == [(0, 0.1, 0, "#0072b2", False)]
    to_svg(drawing)
    figures.buckets(ddp_buckets([ParameterSpec("none", 0)]))


def test_many_buckets_are_thin_and_too_many_refused() -> None:
    specs = [ParameterSpec(f"{n}", 100) for n in range(256)]
    drawing = draw_buckets(ddp_buckets(specs, 0))
    assert drawing.texts == ()
    assert len(pieces(drawing)) == 256
    more = ddp_buckets([*specs, ParameterSpec("more", 100)], 0)
    with pytest.raises(ValueError, match="^a drawing has at most 256 buckets, got 257: take a larger cap$"):
        draw_buckets(more)
    with pytest.raises(ValueError, match=r"buckets must be a DDPBuckets, got \[\]"):
        draw_buckets([])  # type: ignore[arg-type]


def test_both_painters_draw_all_pieces() -> None:
    ax = figures.buckets(five())
    (rects,) = (one for one in ax.collections if one.get_gid() == "rects")
    corners = np.array([path.get_extents().extents for path in rects.get_paths()])
    assert (corners[:, 2] - corners[:, 0]).tolist() == [MIB * width for width in (1, 20, 10, 3, 2)]
    svg = ElementTree.fromstring(to_svg(draw_buckets(five())))
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"30 MiB", "cap of 25 MiB", "bucket"} <= set(texts)
