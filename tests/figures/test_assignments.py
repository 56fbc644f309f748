"""What the pictures of who reads what show, read back from the drawings."""

from __future__ import annotations

import numpy as np

from rankscope.figures.assignments import draw_assignment, draw_coverage, draw_lengths, draw_step_costs
from rankscope.figures.marks import Drawing
from rankscope.figures.palette import ALARM, PAPER, ramp, rank_colors
from rankscope.sampling import Assignment, assign

from .shown import cells, keys_of, placed


def numbers(drawing: Drawing) -> dict[tuple[float, float], int]:
    """{(x, y): number} of the texts, at the top left corner of their cells."""
    return {(x - 0.5, y - 0.5): int(text) for (x, y), text in placed(drawing).items()}


def test_each_cell_shows_its_read() -> None:
    assignment = assign(10, 4, seed=3)
    drawing = draw_assignment(assignment)
    reads = {(step, rank): i for rank, row in enumerate(assignment.ranks) for step, i in enumerate(row.tolist())}
    assert numbers(drawing) == reads
    colors = rank_colors(4)
    assert {place: fill for place, (fill, _) in cells(drawing).items()} == {place: colors[place[1]] for place in reads}
    assert {place for place, (_, hatched) in cells(drawing).items() if hatched} == {(2, 2), (2, 3)}
    assert "2 read again" in drawing.title


def test_dropped_samples_stand_below_in_their_own_row() -> None:
    assignment = assign(10, 4, drop_last=True)
    drawing = draw_assignment(assignment)
    left = sorted(set(range(10)) - {i for row in assignment.ranks for i in row.tolist()})
    assert [numbers(drawing)[x, 4.5] for x in (0, 1)] == left
    assert drawing.rects[2].edge == ALARM
    assert drawing.y_ticks[-1][1] == "nobody"
    assert "2 never read" in drawing.title
    many = draw_assignment(assign(70, 64, drop_last=True).with_loader(2, drop_last=True))
    assert len(cells(many, 2)) == 24


def test_indices_that_do_not_exist_look_like_nothing_else() -> None:
    assignment = assign(3, 8, sampler="libtorch_random")
    drawing = draw_assignment(assignment)
    assert "2 out of range" in drawing.title
    strays = {(0.0, float(rank)) for rank, indices in enumerate(assignment.ranks) if indices[0] >= 3}
    assert set(cells(drawing, 1)) == strays
    assert {fill for fill, _ in cells(drawing, 1).values()} == {PAPER}
    assert drawing.rects[1].edge == ALARM
    assert not strays & set(cells(drawing, 0))
    assert "not in the dataset" in keys_of(drawing)


def test_ranks_that_read_nothing_say_so() -> None:
    assert draw_assignment(assign(3, 8, drop_last=True)).texts[-1].text == ("reads nothing",) * 8


def test_lines_part_the_batches_and_end_where_the_reading_does() -> None:
    assert draw_assignment(assign(40, 4).with_loader(4)).rules == (4.0, 8.0)
    assert draw_assignment(assign(40, 4)).rules == ()
    assert draw_assignment(assign(1024, 1).with_loader(4)).rules == ()  # closer than eight pixels
    drawing = draw_assignment(assign(1000, 64, drop_last=True).with_loader(4))
    assert drawing.rules_to == 64 < drawing.height
    assert max(place for place, _ in drawing.x_ticks) < 15 < drawing.width


def test_colour_by_position_follows_the_dataset() -> None:
    fills = cells(draw_assignment(assign(11, 2, shuffle=False), color_by="position"))
    assert (fills[0, 0][0], fills[5, 0][0]) == (ramp(0)[0], ramp(1)[0])


def test_coverage_shows_the_reader_of_each_sample() -> None:
    epochs = [assign(10, 4, sampler="libtorch_random", drop_last=True, epoch=epoch) for epoch in range(3)]
    drawing = draw_coverage(epochs)
    colors = rank_colors(4)
    for row, assignment in enumerate(epochs):
        expected = {
            (float(i), float(row)): colors[rank] for rank, indices in enumerate(assignment.ranks) for i in indices
        }
        assert {place: fill for place, (fill, _) in cells(drawing, 2 * row).items()} == expected
        assert [x for x, _ in cells(drawing, 2 * row + 1)] == [8, 9]
    read = {
        (i, row): str(rank) for row, a in enumerate(epochs) for rank, indices in enumerate(a.ranks) for i in indices
    }
    assert placed(drawing) == {(i + 0.5, row + 0.46): text for (i, row), text in read.items()}
    assert not draw_coverage([assign(200, 4)]).texts  # no room
    assert [x for x, _ in cells(drawing, 7)] == [8, 9]
    assert keys_of(drawing) == ["rank 0", "rank 1", "rank 2", "rank 3", "never read"]
    assert "2 of 10" in drawing.title
    assert [label for _, label in drawing.y_ticks] == ["0", "1", "2", "any"]


def test_lengths_are_counted_with_their_share_of_the_tokens() -> None:
    drawing = draw_lengths([1, 1, 1, 7])
    (bars,) = drawing.rects
    assert [label for _, label in drawing.y_ticks] == [str(length) for length in range(8)]
    assert bars.width.tolist() == [0, 3, 0, 0, 0, 0, 0, 1]
    assert list(drawing.texts[0].text) == ["30%", "70%"]
    grouped = draw_lengths(np.arange(100))
    assert [label for _, label in grouped.y_ticks][:2] == ["0 to 4", "5 to 9"]
    assert grouped.rects[0].width.tolist() == [5] * 20


def test_step_costs_are_the_mean_and_the_wait_for_the_costliest_rank() -> None:
    assignment = Assignment(4, (np.array([0, 1]), np.array([2, 3]))).with_loader(1)
    drawing = draw_step_costs(assignment, [1, 2, 3, 4])
    mean, wait = drawing.rects
    assert mean.width.tolist() == [2, 3]
    assert wait.x.tolist() == [2, 3]
    assert (mean.width + wait.width).tolist() == [3, 4]
    quadratic = draw_step_costs(assignment, [1, 2, 3, 4], "quadratic")
    assert quadratic.rects[0].width.tolist() == [5, 10]
    assert "29 %" in drawing.title  # 1 - (2 + 3) / (3 + 4)


def test_coverage_hatches_what_is_read_twice() -> None:
    fills = cells(draw_coverage([Assignment(3, (np.array([0, 1]), np.array([1])))]))
    assert (fills[1, 0], fills[0, 0]) == ((rank_colors(2)[0], True), (rank_colors(2)[0], False))
