"""What the pictures of who reads what show, read back from the drawings."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.figures.assignments import draw_assignment, draw_coverage, finding
from rankscope.figures.marks import Box, Drawing, Line
from rankscope.figures.palette import ALARM, ramp, rank_colors
from rankscope.figures.steps import draw_lengths, draw_step_costs
from rankscope.figures.svg import to_svg
from rankscope.sampling import Assignment, assign, audit

from .shown import boxes, words_of

TOP_PX = 104.0  # of the ranks


def reads(drawing: Drawing) -> list[list[Box]]:
    """The cells of each rank, from left to right."""
    rows: dict[float, list[Box]] = {}
    for box in boxes(drawing):
        if box.y >= TOP_PX:
            rows.setdefault(box.y, []).append(box)
    return [sorted(rows[y]) for y in sorted(rows)]


@pytest.mark.parametrize(("size", "num_ranks"), [(10, 4), (50, 4), (40, 8), (3, 8)])
def test_each_cell_shows_its_read_and_repeats_are_hatched(size: int, num_ranks: int) -> None:
    assignment = assign(size, num_ranks, seed=3)
    rows = reads(draw_assignment(assignment))
    assert [[int(cell.text) for cell in row] for row in rows] == [indices.tolist() for indices in assignment.ranks]
    assert [[cell.fill for cell in row] for row in rows] == [
        [color] * indices.size for color, indices in zip(rank_colors(num_ranks), assignment.ranks, strict=True)
    ]
    hatched = [[cell.hatched for cell in row] for row in rows]
    assert hatched == [repeats.tolist() for repeats in assignment.repeats()]


def test_the_dataset_is_in_its_own_order_in_the_colours_of_its_readers() -> None:
    assignment = assign(10, 4, drop_last=True)
    strip = sorted(box for box in boxes(draw_assignment(assignment)) if box.y == 0)
    colors = rank_colors(4)
    fill_of = {sample: colors[rank] for rank, indices in enumerate(assignment.ranks) for sample in indices.tolist()}
    assert [box.fill for box in strip] == [fill_of.get(sample, "alarm") for sample in range(10)]
    dropped = audit(assignment).epochs[0].dropped.tolist()
    assert [int(box.text) for box in boxes(draw_assignment(assignment)) if box.y == 48] == dropped


def test_a_sample_keeps_its_key_where_it_goes_so_that_it_moves() -> None:
    kept, cut = (draw_assignment(assign(50, 4, drop_last=drop_last)) for drop_last in (False, True))
    for sample in audit(assign(50, 4, drop_last=True)).epochs[0].dropped.tolist():  # from its rank to "nobody"
        ys = [[box.y for box in boxes(drawing) if box.key == ("sample", sample)] for drawing in (kept, cut)]
        assert [len(places) for places in ys] == [2, 2]
        assert ys[0][1] >= TOP_PX > ys[1][1] == 48
    assert 'class="mv"' in to_svg(cut, kept)


def test_the_pointer_shows_where_a_sample_is_read_again() -> None:
    drawing = draw_assignment(assign(50, 4))
    arcs = {mark.key for mark in drawing.marks if isinstance(mark, Line) and mark.key}
    assert arcs == {("sample", sample) for sample in audit(assign(50, 4)).epochs[0].duplicated.tolist()}
    assert drawing.tips["sample", 44] == "sample 44: rank 0, step 0; rank 2, step 12 (again);"


def test_batches_are_groups() -> None:
    (row, *_) = reads(draw_assignment(assign(40, 4).with_loader(4)))
    gaps = np.diff([cell.x for cell in row])
    assert np.flatnonzero(gaps > gaps.min() + 1).tolist() == [3, 7]


@pytest.mark.parametrize("num_ranks", [1, 5, 64, 65, 1024])
def test_the_height_is_the_same_for_any_number_of_ranks(num_ranks: int) -> None:
    drawing = draw_assignment(assign(10**5, num_ranks).with_loader(8))
    assert drawing.height_px == draw_assignment(assign(50, 4)).height_px
    assert max(box.y + box.height for box in boxes(drawing)) <= TOP_PX + 240
    assert len(drawing.marks) < 1300


def test_the_words_are_those_of_the_audit() -> None:
    assert finding(assign(50, 4)) == ("2 of 50 samples are read twice", "4 ranks × 13 reads = 52, so 2 are read again")
    assert finding(assign(50, 4, drop_last=True))[0] == "2 of 50 samples are *never read*"
    assert finding(assign(3, 8))[0] == "3 samples are read 8 times"
    assert finding(assign(48, 4, epoch=3))[1].endswith("epoch 3")
    assert finding(assign(0, 2))[0] == "No rank reads anything"


def test_indices_that_do_not_exist_look_like_nothing_else() -> None:
    assignment = assign(3, 8, sampler="libtorch_random")
    drawing = draw_assignment(assignment)
    strays = [row[0].fill == "alarm" for row in reads(drawing)]
    assert strays == [bool(indices[0] >= 3) for indices in assignment.ranks]
    assert "*outside the dataset*" in drawing.title


def test_ranks_that_read_nothing_say_so() -> None:
    assert words_of(draw_assignment(assign(3, 8, drop_last=True))).count("reads nothing") == 8


def test_colour_by_position_follows_the_dataset() -> None:
    rows = reads(draw_assignment(assign(11, 2, shuffle=False), color_by="position"))
    assert (rows[0][0].fill, rows[0][5].fill) == (ramp(0)[0], ramp(1)[0])


def test_coverage_shows_the_reader_of_each_sample() -> None:
    epochs = [assign(10, 4, sampler="libtorch_random", drop_last=True, epoch=epoch) for epoch in range(3)]
    drawing = draw_coverage(epochs)
    for row, assignment in enumerate(epochs):
        reader = {sample: str(rank) for rank, indices in enumerate(assignment.ranks) for sample in indices.tolist()}
        assert drawing.texts[row].text == tuple(reader[sample] for sample in sorted(reader))
        fills = drawing.rects[row].fill
        assert [fill == ALARM for fill in fills] == [sample not in reader for sample in range(10)]
    assert [fill == ALARM for fill in drawing.rects[-1].fill] == [False] * 8 + [True] * 2
    assert drawing.title == "2 of 10 samples *never read* in 3 epochs"
    twice = draw_coverage([Assignment(3, (np.array([0, 1]), np.array([1])))])
    assert twice.rects[0].hatched.tolist() == [False, True, False]


def test_lengths_are_counted_with_their_share_of_the_tokens() -> None:
    drawing = draw_lengths([1, 1, 1, 7])
    assert [label for _, label in drawing.y_ticks] == [str(length) for length in range(8)]
    assert drawing.rects[0].width.tolist() == [0, 3, 0, 0, 0, 0, 0, 1]
    assert [word for word in drawing.texts[0].text if word] == ["30%", "70%"]
    assert draw_lengths(np.arange(100)).rects[0].width.tolist() == [5] * 20


def test_step_costs_are_the_mean_and_the_wait_for_the_costliest_rank() -> None:
    assignment = Assignment(4, (np.array([0, 1]), np.array([2, 3]))).with_loader(1)
    mean, wait = draw_step_costs(assignment, [1, 2, 3, 4]).rects
    assert mean.width.tolist() == [2, 3]
    assert (mean.width + wait.width).tolist() == [3, 4]
    quadratic = draw_step_costs(assignment, [1, 2, 3, 4], "quadratic")
    assert quadratic.rects[0].width.tolist() == [5, 10]
    assert "29 %" in draw_step_costs(assignment, [1, 2, 3, 4]).title  # 1 - (2 + 3) / (3 + 4)
