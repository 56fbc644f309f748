"""What the pictures of who reads what show, read back from the drawing and from both painters."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from rankscope import figures
from rankscope.figures.assignments import draw_assignment, draw_coverage, draw_label_counts
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing, Rects, whole_ticks
from rankscope.figures.palette import ALARM, CATEGORIES, LEGIBLE, PAPER, contrast, hatch_on, ink_on, ramp, rank_colors
from rankscope.figures.svg import to_svg
from rankscope.sampling import Assignment, assign

SVG = "{http://www.w3.org/2000/svg}"


def cells(drawing, layer=0):
    """{(x, y): (fill, hatched)} of one layer of rectangles."""
    rects = drawing.rects[layer]
    rows = zip(rects.x.tolist(), rects.y.tolist(), rects.fill, rects.hatched.tolist(), strict=True)
    return {(x, y): (fill, hatched) for x, y, fill, hatched in rows}


def numbers(drawing):
    """{(x, y): number} of the texts, at the top left corner of their cells."""
    return {
        (x - 0.5, y - 0.5): int(text)
        for texts in drawing.texts
        for x, y, text in zip(texts.x.tolist(), texts.y.tolist(), texts.text, strict=True)
    }


def test_each_cell_shows_its_read():
    assignment = assign(10, 4, seed=3)
    drawing = draw_assignment(assignment)
    reads = {(step, rank): i for rank, row in enumerate(assignment.ranks) for step, i in enumerate(row.tolist())}
    assert numbers(drawing) == reads
    colors = rank_colors(4)
    assert {place: fill for place, (fill, _) in cells(drawing).items()} == {place: colors[place[1]] for place in reads}
    assert {place for place, (_, hatched) in cells(drawing).items() if hatched} == {(2, 2), (2, 3)}
    assert drawing.title == "10 samples over 4 ranks, epoch 0: 2 read again"
    assert [key.label for key in drawing.legend] == ["read again"]


def test_dropped_samples_stand_below_in_their_own_row():
    assignment = assign(10, 4, drop_last=True)
    drawing = draw_assignment(assignment)
    left = sorted(set(range(10)) - {i for row in assignment.ranks for i in row.tolist()})
    assert [numbers(drawing)[x, 4.5] for x in (0, 1)] == left
    assert drawing.rects[2].edge == ALARM
    assert drawing.y_ticks[-1][1] == "nobody"
    assert "2 read by nobody" in drawing.title


def test_more_dropped_than_fit_are_counted_in_the_legend():
    drawing = draw_assignment(assign(70, 64, drop_last=True).with_loader(2, drop_last=True))
    assert drawing.legend[-1].label == "read by nobody (first 24 of 70)"
    assert len(cells(drawing, 2)) == 24


def test_indices_that_do_not_exist_look_like_nothing_else():
    assignment = assign(3, 8, sampler="libtorch_random")
    drawing = draw_assignment(assignment)
    assert "2 out of range" in drawing.title
    strays = {(0.0, float(rank)) for rank, indices in enumerate(assignment.ranks) if indices[0] >= 3}
    assert set(cells(drawing, 1)) == strays
    assert {fill for fill, _ in cells(drawing, 1).values()} == {PAPER}
    assert drawing.rects[1].edge == ALARM
    assert not strays & set(cells(drawing, 0))
    assert "not in the dataset" in [key.label for key in drawing.legend]


def test_ranks_that_read_nothing_say_so():
    drawing = draw_assignment(assign(3, 8, drop_last=True))
    assert drawing.texts[-1].text == ("reads nothing",) * 8
    assert draw_assignment(assign(0, 2)).title == "0 samples over 2 ranks, epoch 0: nothing to read"
    assert draw_assignment(assign(1, 1)).title == "1 sample over 1 rank, epoch 0: each read exactly once"


def test_lines_and_steps_end_where_the_reading_does():
    drawing = draw_assignment(assign(1000, 64, drop_last=True).with_loader(4))
    assert drawing.rules_to == 64 < drawing.height
    assert max(place for place, _ in drawing.x_ticks) < 15 < drawing.width


def test_hatching_is_light_on_dark_and_dark_on_light():
    rects = draw_assignment(Assignment(8, tuple(np.array([0]) for _ in range(8)))).rects[0]
    svg = to_svg(draw_assignment(Assignment(8, tuple(np.array([0]) for _ in range(8)))))
    assert rects.fill[7] == "#000000"
    dark = sum(hatch_on(fill) == "#222222" for fill in rects.fill[1:])
    assert svg.count("url(#rankscope-hatch-dark)") == dark + 1  # and the legend's
    assert svg.count("url(#rankscope-hatch-white)") == 7 - dark


def test_colour_by_position_follows_the_dataset():
    assignment = assign(11, 2, shuffle=False)
    fills = cells(draw_assignment(assignment, color_by="position"))
    assert fills[0, 0][0] == ramp(0)[0]
    assert fills[5, 0][0] == ramp(1)[0]


def test_lines_part_the_batches():
    assert draw_assignment(assign(40, 4).with_loader(4)).rules == (4.0, 8.0)
    assert draw_assignment(assign(40, 4)).rules == ()
    assert draw_assignment(assign(1024, 1).with_loader(4)).rules == ()  # closer than eight pixels


def test_coverage_shows_the_reader_of_each_sample():
    epochs = [assign(10, 4, sampler="libtorch_random", drop_last=True, epoch=epoch) for epoch in range(3)]
    drawing = draw_coverage(epochs)
    colors = rank_colors(4)
    for row, assignment in enumerate(epochs):
        expected = {
            (float(i), float(row)): colors[rank] for rank, indices in enumerate(assignment.ranks) for i in indices
        }
        assert {place: fill for place, (fill, _) in cells(drawing, 2 * row).items()} == expected
        assert [x for x, _ in cells(drawing, 2 * row + 1)] == [8, 9]
    words = {(x, y): text for t in drawing.texts for x, y, text in zip(t.x, t.y, t.text, strict=True)}
    read = {
        (i, row): str(rank) for row, a in enumerate(epochs) for rank, indices in enumerate(a.ranks) for i in indices
    }
    assert words == {(i + 0.5, row + 0.46): text for (i, row), text in read.items()}
    assert not draw_coverage([assign(200, 4)]).texts  # no room
    assert [x for x, _ in cells(drawing, 7)] == [8, 9]
    assert [key.label for key in drawing.legend] == ["rank 0", "rank 1", "rank 2", "rank 3", "read by nobody"]
    assert drawing.title == "2 of 10 samples never read in 3 epochs"
    assert [label for _, label in drawing.y_ticks] == ["0", "1", "2", "any"]


def test_coverage_hatches_what_is_read_twice():
    fills = cells(draw_coverage([Assignment(3, (np.array([0, 1]), np.array([1])))]))
    assert fills[1, 0] == (rank_colors(2)[0], True)
    assert fills[0, 0] == (rank_colors(2)[0], False)


def test_label_counts_write_and_shade_the_counts():
    drawing = draw_label_counts([[1, 2], [3, 4]], "digit", title="rank 1 has more")
    assert numbers(drawing) == {(0, 0): 1, (1, 0): 2, (0, 1): 3, (1, 1): 4}
    assert cells(drawing)[0, 0][0] == ramp(0)[0]
    assert cells(drawing)[1, 1][0] == ramp(1)[0]
    assert [key.label for key in drawing.legend] == ["1 samples", "4 samples"]


def test_label_counts_share_their_shades_where_limits_are_given():
    one, other = (draw_label_counts(counts, limits=(0, 10)) for counts in ([[0, 5]], [[5, 10]]))
    assert cells(one)[1, 0] == cells(other)[0, 0]
    assert cells(one)[0, 0][0] == ramp(0)[0]
    assert cells(other)[1, 0][0] == ramp(1)[0]


DRAWINGS = [
    draw_assignment(assign(50, 4).with_loader(4)),
    draw_assignment(assign(10, 4, drop_last=True), "position"),
    draw_assignment(assign(3, 8, drop_last=True)),
    draw_assignment(assign(0, 2)),
    draw_coverage([assign(30, 12, epoch=epoch) for epoch in range(2)]),
    draw_label_counts([[1, 2], [3, 4]], title="<&>"),
]


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_both_painters_paint_the_same(drawing):
    ax = to_axes(drawing)
    painted = [c for c in ax.collections if isinstance(c, PolyCollection) and c.get_gid() == "rects"]
    assert len(painted) == len(drawing.rects)
    root = ElementTree.fromstring(to_svg(drawing))
    assert root.find(f"{SVG}title").text == drawing.title == ax.get_title(loc="left")
    groups = [g for g in root.find(f"{SVG}g[@class='marks']").findall(f"{SVG}g[@stroke]") if not g.get("text-anchor")]
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height
    for rects, collection, group in zip(drawing.rects, painted, groups, strict=True):
        corners = [path.vertices[0] for path in collection.get_paths()]
        boxes = [box for box in group if not box.get("fill").startswith("url")]
        assert np.allclose(corners, np.stack([rects.x, rects.y], axis=1)) if corners else not boxes
        assert np.allclose([float(box.get("x")) for box in boxes], rects.x * across, rtol=1e-5)
        assert np.allclose([float(box.get("y")) for box in boxes], rects.y * down, rtol=1e-5)
        assert [box.get("fill") for box in boxes] == list(rects.fill)
        assert [to_hex(color) for color in collection.get_facecolors()] == list(rects.fill)
        assert sum(box.get("fill").startswith("url") for box in group) == rects.hatched.sum()
    hatched = [c for c in ax.collections if c.get_gid() == "hatched"]
    assert sum(len(c.get_paths()) for c in hatched) == sum(rects.hatched.sum() for rects in drawing.rects)
    words = [text for texts in drawing.texts for text in texts.text]
    assert [text.get_text() for text in ax.texts] == words
    written = [text.text for text in root.find(f"{SVG}g[@class='marks']").iter(f"{SVG}text")]
    assert written == words
    assert ax.get_xlabel() == drawing.x_label
    assert ax.yaxis_inverted()
    legend = [text.get_text() for box in ax.figure.legends for text in box.get_texts()]
    assert legend == [key.label for key in drawing.legend]


def test_the_same_drawing_is_the_same_string():
    assert to_svg(draw_assignment(assign(100, 8))) == to_svg(draw_assignment(assign(100, 8)))
    assert to_svg(draw_assignment(assign(100, 8))) != to_svg(draw_assignment(assign(100, 8, epoch=1)))


def test_figure_functions_draw_on_the_axes_they_are_given():
    _, axes = plt.subplots(3)
    epoch = assign(10, 4)
    assert figures.assignment(epoch, ax=axes[0]) is axes[0]
    assert figures.coverage([epoch], ax=axes[1]) is axes[1]
    assert figures.label_counts([[1]], ax=axes[2]) is axes[2]
    assert axes[0].get_title(loc="left") == "10 samples over 4 ranks, epoch 0: 2 read again"


def test_numbers_can_be_read_on_every_colour():
    for fill in (*CATEGORIES, *ramp(np.linspace(0, 1, 64))):
        assert contrast(fill, ink_on(fill)) >= LEGIBLE, fill


def simulated(color, matrix):
    """A colour as a colour-blind person sees it (Machado, Oliveira and Fernandes, 2009; severity 1)."""
    linear = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]) ** 2.2
    return np.clip(np.array(matrix) @ linear, 0, 1) ** (1 / 2.2)


PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]


def closest(colors, matrix):
    seen = [simulated(color, matrix) for color in colors]
    return min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.parametrize("matrix", [PROTANOPIA, DEUTERANOPIA])
def test_eight_ranks_stay_apart_for_the_colour_blind(matrix):
    assert closest(rank_colors(8), matrix) > 0.1
    grey_for_black = [*rank_colors(7), "#999999"]  # what other palettes do: the grey meets the purple or the green
    assert closest(grey_for_black, matrix) < closest(rank_colors(8), matrix)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_assignment(assign(10, 2), color_by="size"), "color_by must be one of 'rank', 'position'"),
        (lambda: draw_assignment(assign(100_000, 2)), "at most 65536 cells, got 100000"),
        (lambda: draw_assignment(None), "assignment must be an Assignment, got None"),
        (lambda: draw_coverage(3), "epochs must be a sequence of Assignments, got 3"),
        (lambda: draw_coverage([assign(4, 2), "x"]), r"epochs\[1\] must be an Assignment, got 'x'"),
        (lambda: draw_label_counts(np.ones((300, 300), int)), "at most 65536 cells, got 90000"),
        (lambda: draw_label_counts([[1, 2]], limits=(1,)), r"limits must be two whole numbers, got \(1,\)"),
        (lambda: draw_label_counts([[1, 2]], limits=(0, np.nan)), "limits must be a whole number, got nan"),
        (lambda: draw_coverage([]), "at least one epoch"),
        (lambda: draw_coverage([assign(40_000, 2)]), "at most 65536 cells"),
        (lambda: draw_label_counts([1, 2]), r"ranks by labels, got int64 of shape \(2,\)"),
        (lambda: draw_label_counts([[0.5]]), "whole numbers"),
        (lambda: Rects([0, 1], 0, ["#000000"]), "2 rectangles need 2 fills, got 1"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize("count", [0, 1, 7, 13, 64, 1024, 100_000])
def test_ticks_are_few_and_round(count):
    ticks = whole_ticks(count)
    assert len(ticks) <= 12
    assert all(label == str(int(place - 0.5)) for place, label in ticks)


def test_a_drawing_says_what_it_is():
    for drawing in DRAWINGS:
        assert isinstance(drawing, Drawing)
        assert drawing.title
        assert drawing.x_label
        assert drawing.y_label
