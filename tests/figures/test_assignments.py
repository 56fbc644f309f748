"""What the pictures of who reads what show, read back from the drawings."""

from __future__ import annotations

import numpy as np

from rankscope.figures.assignments import draw_assignment, draw_coverage, draw_label_counts
from rankscope.figures.marks import Drawing
from rankscope.figures.palette import ALARM, PAPER, diverging, ramp, rank_colors
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
    assert drawing.title == "10 samples over 4 ranks, epoch 0: 2 read again"
    assert keys_of(drawing) == ["read again"]


def test_dropped_samples_stand_below_in_their_own_row() -> None:
    assignment = assign(10, 4, drop_last=True)
    drawing = draw_assignment(assignment)
    left = sorted(set(range(10)) - {i for row in assignment.ranks for i in row.tolist()})
    assert [numbers(drawing)[x, 4.5] for x in (0, 1)] == left
    assert drawing.rects[2].edge == ALARM
    assert drawing.y_ticks[-1][1] == "nobody"
    assert "2 never read" in drawing.title
    many = draw_assignment(assign(70, 64, drop_last=True).with_loader(2, drop_last=True))
    assert keys_of(many)[-1] == "never read (first 24 of 70)"
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
    assert draw_assignment(assign(0, 2)).title == "0 samples over 2 ranks, epoch 0: nothing to read"
    assert draw_assignment(assign(1, 1)).title == "1 sample over 1 rank, epoch 0: each read exactly once"


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
    assert drawing.title == "2 of 10 samples never read in 3 epochs"
    assert [label for _, label in drawing.y_ticks] == ["0", "1", "2", "any"]


def test_coverage_hatches_what_is_read_twice() -> None:
    fills = cells(draw_coverage([Assignment(3, (np.array([0, 1]), np.array([1])))]))
    assert (fills[1, 0], fills[0, 0]) == ((rank_colors(2)[0], True), (rank_colors(2)[0], False))


def test_label_counts_write_and_shade_the_counts() -> None:
    drawing = draw_label_counts([[1, 2], [3, 4]], "digit")
    assert numbers(drawing) == {(0, 0): 1, (1, 0): 2, (0, 1): 3, (1, 1): 4}
    assert (cells(drawing)[0, 0][0], cells(drawing)[1, 1][0]) == diverging([-1, 1])
    assert keys_of(drawing) == ["1 sample", "mean 2.5", "4 samples"]
    assert drawing.title == "Each rank reads 1 to 4 samples of each digit"
    spread, close = (draw_label_counts(counts, limits=(0, 10)) for counts in ([[0, 5, 10]], [[4, 5, 6]]))
    assert cells(spread)[1, 0] == cells(close)[1, 0] == (diverging(0)[0], False)
    assert (cells(spread)[0, 0][0], cells(spread)[2, 0][0]) == diverging([-1, 1])
    assert (cells(close)[0, 0][0], cells(close)[2, 0][0]) == diverging([-0.2, 0.2])
    alike = draw_label_counts([[3, 3]])
    assert cells(alike)[0, 0][0] == diverging(0)[0]
