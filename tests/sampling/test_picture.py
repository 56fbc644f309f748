"""What the pictures of who reads what show, read back from the drawings."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.drawing.drawing import Drawing, to_svg
from rankscope.drawing.marks import Box, Line, Text
from rankscope.drawing.palette import WORK, WorkLook, ramp, rank_colors
from rankscope.sampling import Assignment, assign, audit
from rankscope.sampling.picture import draw_assignment
from rankscope.sampling.work.picture import draw_step_costs
from tests.figures.shown import boxes

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
    assert drawing.tips["sample", 44] == "sample 44: rank 0, read 0; rank 2, read 12 (again);"


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
    def said(assignment: Assignment) -> tuple[str, str]:
        drawing = draw_assignment(assignment)
        return drawing.title, drawing.deck

    assert said(assign(50, 4)) == ("2 of 50 samples are read twice", "4 ranks × 13 reads = 52, of 50 samples")
    assert said(assign(50, 4, drop_last=True))[0] == "2 of 50 samples are *never read*"
    assert said(assign(3, 8))[0] == "3 samples get 8 reads in total"
    assert said(assign(48, 4, epoch=3))[1].endswith("epoch 3")
    assert said(assign(0, 2))[0] == "No rank reads anything"


def test_indices_that_do_not_exist_look_like_nothing_else() -> None:
    assignment = assign(3, 8, sampler="libtorch_random")
    drawing = draw_assignment(assignment)
    strays = [row[0].fill == "alarm" for row in reads(drawing)]
    assert strays == [bool(indices[0] >= 3) for indices in assignment.ranks]
    assert "*outside the dataset*" in drawing.title


def test_colour_by_position_follows_the_dataset() -> None:
    rows = reads(draw_assignment(assign(11, 2, shuffle=False), color_by="position"))
    assert (rows[0][0].fill, rows[0][5].fill) == (ramp(0), ramp(1))


def parts(drawing: Drawing, look: WorkLook) -> list[float]:
    """The widths of a part's boxes in its rows, in units of the axis below them."""
    marks = [mark for mark in boxes(drawing) if (mark.fill, mark.hatched) == look and mark.width != 12]
    ticks = {mark.text: mark.x for mark in drawing.marks if isinstance(mark, Text) and mark.anchor == "middle"}
    return [(box.width + 1) / (ticks["2"] - ticks["0"]) * 2 for box in marks]


def test_step_costs_are_the_mean_and_the_wait_for_the_costliest_rank() -> None:
    assignment = Assignment(4, (np.array([0, 1]), np.array([2, 3]))).with_loader(1)
    drawing = draw_step_costs(assignment, [1, 2, 3, 4])
    assert parts(drawing, WORK["compute"]) == pytest.approx([2, 3])
    assert parts(drawing, WORK["wait"]) == pytest.approx([1, 1])
    assert parts(draw_step_costs(assignment, [1, 2, 3, 4], "quadratic"), WORK["compute"]) == pytest.approx([5, 10])
    assert "29 %" in drawing.title  # 1 - (2 + 3) / (3 + 4)
