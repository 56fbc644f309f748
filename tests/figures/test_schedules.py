"""What the pictures of schedules show, read back from the drawings."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np
import pytest

from rankscope.collectives import ALGORITHMS, build
from rankscope.collectives.verify import holdings
from rankscope.figures.marks import Drawing, Rects, Texts
from rankscope.figures.palette import ramp, rank_colors
from rankscope.figures.schedules import draw_schedule, messages
from rankscope.figures.svg import to_svg

from .shown import keys_of, words_of

RING = build("allreduce", "ring", 4)


def arrows_of(drawing: Drawing) -> dict[tuple[int, int], bool]:
    """{(src, dst): dashed} of a step's arrows, each put to the ranks that it is nearest to."""
    (lines,) = drawing.lines
    ranks = {at: int(label) for at, label in drawing.y_ticks}

    def rank(y: float) -> int:
        return ranks[min(ranks, key=lambda at: abs(at - y))]

    ends = zip(lines.y0.tolist(), lines.y1.tolist(), lines.dashed.tolist(), strict=True)
    return {(rank(y0), rank(y1)): dashed for y0, y1, dashed in ends}


def cell_at(drawing: Drawing, num_ranks: int, num_chunks: int) -> Callable[[float, float], tuple[int, int, int]]:
    """The (grid, rank, chunk) of a place in either grid, from the ticks."""
    ticks = [at for at, _ in drawing.x_ticks]
    rows = [at for at, _ in drawing.y_ticks]
    assert len(rows) == num_ranks
    assert len(ticks) in (num_chunks, 2 * num_chunks)

    def where(x: float, y: float) -> tuple[int, int, int]:
        column = int(np.argmin(np.abs(np.array(ticks) - x)))
        return column // num_chunks, int(np.argmin(np.abs(np.array(rows) - y))), column % num_chunks

    return where


def middles(rects: Rects) -> list[tuple[float, float]]:
    return list(zip(rects.x + rects.width / 2, rects.y + rects.height / 2, strict=True))


def chunk_names(drawing: Drawing) -> Texts:
    (texts,) = (texts for texts in drawing.texts if texts.text[:1] == ("chunk",))
    return texts


# ---- a step of a schedule


@pytest.mark.parametrize("step", [0, 1, 3])
def test_stripes_say_whose_shares_are_where_before_and_after_the_step(step: int) -> None:
    drawing = draw_schedule(RING, step)
    where, colors = cell_at(drawing, 4, 4), rank_colors(4)
    shown = np.zeros((2, 4, 4, 4), dtype=bool)
    for stripes in (drawing.rects[2], drawing.rects[5]):
        for (x, y), fill in zip(middles(stripes), stripes.fill, strict=True):
            shown[(*where(x, y), colors.index(fill))] = True
    assert np.array_equal(shown[0], holdings(RING, step))
    assert np.array_equal(shown[1], holdings(RING, step + 1))


@pytest.mark.parametrize(("name", "num_ranks"), [("ring", 4), ("swing", 8), ("bidirectional_ring", 12), ("flat", 5)])
def test_arrows_are_the_messages_and_frames_their_chunks(name: str, num_ranks: int) -> None:
    schedule = build("allreduce", name, num_ranks)
    for step, transfers in enumerate(schedule.steps()):
        drawing = draw_schedule(schedule, step)
        sent = messages(transfers)
        assert arrows_of(drawing) == {(m.src, m.dst): not m.reduce for m in sent}
        where = cell_at(drawing, num_ranks, schedule.num_chunks)
        frames = (drawing.rects[0], drawing.rects[len(drawing.rects) // 2])
        framed = [{where(x, y) for x, y in middles(frame)} for frame in frames]
        assert framed[0] == {(0, m.src, chunk) for m in sent for chunk in m.chunks}
        assert framed[1] == {(1, m.dst, chunk) for m in sent for chunk in m.chunks}


def test_arrows_name_their_chunks_without_covering_each_other() -> None:
    for name, num_ranks, step in (("halving_doubling", 8, 0), ("bidirectional_ring", 8, 1), ("swing", 16, 0)):
        schedule = build("allreduce", name, num_ranks)
        labels = chunk_names(draw_schedule(schedule, step))
        assert sorted(labels.text[1:]) == sorted(m.words() for m in messages(list(schedule.steps())[step]))
        assert np.diff(np.sort(labels.y)).min() * 27 > 10  # px between two of them, each 10 high
        assert len(set(labels.x.tolist())) == 1
    assert "chunk" not in words_of(draw_schedule(build("allreduce", "flat", 4), 0))  # there is one
    root = draw_schedule(build("scatter", "flat", 4), 0)  # which names chunks where they arrive
    assert chunk_names(root).text == ("chunk", "1", "2", "3")
    assert chunk_names(root).x[0] > root.lines[0].x1.max()


def test_more_than_eight_ranks_and_small_cells_are_counted() -> None:
    schedule = build("allreduce", "recursive_doubling", 16)
    drawing = draw_schedule(schedule, 2)
    counts = holdings(schedule, 2).sum(axis=2).ravel()
    assert drawing.rects[1].fill == tuple(ramp(np.sqrt(counts / 16)))
    assert words_of(drawing)[:16] == list(map(str, counts.tolist()))
    assert keys_of(drawing)[:3] == ["1 share", "8 shares", "all shares"]
    segmented = build("allreduce", "segmented_ring", 8, num_segments=8)
    drawing = draw_schedule(segmented, 20)
    assert drawing.rects[1].fill == tuple(ramp(np.sqrt(holdings(segmented, 20).sum(axis=2).ravel() / 8)))


def test_lines_part_the_nodes() -> None:
    schedule = build("allreduce", "ring", 6)
    drawing = draw_schedule(schedule, 0, gpus_per_node=2)
    arrows, nodes = drawing.lines
    assert (arrows.arrows, nodes.arrows) == (True, False)
    assert nodes.y0.tolist() == nodes.y1.tolist() == [2.8, 4.8]  # after ranks 1 and 3, below the heading
    assert (nodes.x0.tolist(), nodes.x1.tolist()) == ([0, 0], [drawing.width] * 2)
    assert len(draw_schedule(schedule, 0).lines) == 1


def test_what_is_passed_on_has_the_colour_and_number_of_its_origin() -> None:
    allgather = build("allgather", "ring", 4)
    drawing = draw_schedule(allgather, 1)
    for layer, step in ((1, 1), (3, 2)):
        there = holdings(allgather, step).any(axis=2)
        expected = np.where(there, np.array(rank_colors(4)), "#ececec")
        assert list(drawing.rects[layer].fill) == expected.ravel().tolist()
    assert set(arrows_of(drawing).values()) == {True}
    assert [key.line for key in drawing.legend][-2:] == ["dashed", "none"]


def test_the_end_has_one_grid_and_no_arrows() -> None:
    drawing = draw_schedule(RING, 6)
    assert drawing.lines == ()
    assert len(drawing.rects[2].fill) == 64
    assert "6 steps" in drawing.title


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_every_allreduce_can_be_drawn(name: str) -> None:
    for num_ranks in (1, 2, 6, 8, 16):
        schedule = build("allreduce", name, num_ranks)
        ElementTree.fromstring(to_svg(draw_schedule(schedule, schedule.num_steps // 2)))


def test_a_step_of_many_ranks_numbers_each_row() -> None:
    drawing = draw_schedule(build("broadcast", "binomial", 100), 0)
    assert [label for _, label in drawing.y_ticks] == [str(rank) for rank in range(100)]
