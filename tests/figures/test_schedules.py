"""What the pictures of schedules, messages and links show, read back from the drawings."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import combinations

import attrs
import numpy as np
import pytest
from matplotlib import pyplot as plt

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, Step, build, simulate
from rankscope.collectives.verify import holdings
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing, Rects, Texts
from rankscope.figures.palette import ADDED, COPIED, ramp, rank_colors
from rankscope.figures.schedules import draw_schedule, messages
from rankscope.figures.svg import to_svg

from .shown import keys_of, words_of

LINK = Link(alpha_s=5e-6, bytes_per_s=25e9)
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
    assert keys_of(drawing) == [
        *("1 share", "8 shares", "all shares", "sent, received", "message: the receiver adds it"),
        "shade and number: how many shares are in the chunk",
    ]
    segmented = build("allreduce", "segmented_ring", 8, num_segments=8)
    drawing = draw_schedule(segmented, 20)
    assert drawing.rects[1].fill == tuple(ramp(np.sqrt(holdings(segmented, 20).sum(axis=2).ravel() / 8)))
    assert "shade" in keys_of(drawing)[-1]


@pytest.mark.parametrize(
    ("num_ranks", "keys"),
    [(1, ["all shares"]), (3, ["1 share", "all shares"]), (4, ["1 share", "2 shares", "all shares"])],
)
def test_the_legend_has_each_number_of_shares_once(num_ranks: int, keys: list[str]) -> None:
    mine = Schedule.of_steps([], collective="allreduce", algorithm="mine", num_ranks=num_ranks, num_chunks=125)
    assert keys_of(draw_schedule(mine, 0)) == [*keys, "shade and number: how many shares are in the chunk"]


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
    assert drawing.title == "allgather ring, 4 ranks, step 1 of 0–2: 4 messages, copied"
    assert [key.line for key in drawing.legend][-2:] == ["dashed", "none"]
    assert keys_of(drawing)[-1] == "colour and number: the rank that the chunk comes from"


def test_the_legend_names_only_ranks_whose_colours_can_be_seen_and_few_of_them() -> None:
    one_color = draw_schedule(build("broadcast", "binomial", 8), 1)
    assert keys_of(one_color)[:-1] == ["rank 0", "sent, received", "message: the receiver copies it"]
    last_step = draw_schedule(build("gather", "flat", 3), 0)
    assert keys_of(last_step)[:2] == ["rank 0", "rank 2"]
    stripes = draw_schedule(build("allreduce", "ring", 8), 1)
    assert keys_of(stripes)[:4] == ["rank 0", "rank 7", "sent, received", "message: the receiver adds it"]
    assert keys_of(stripes)[-1].endswith("; rank 0 at the left")
    two = draw_schedule(build("allreduce", "ring", 2), 1)
    assert keys_of(two)[:2] == ["rank 0", "rank 1"]
    assert not keys_of(two)[-1].endswith("left")


def test_the_end_has_one_grid_and_no_arrows() -> None:
    drawing = draw_schedule(RING, 6)
    assert drawing.lines == ()
    assert len(drawing.rects[2].fill) == 64
    assert drawing.title == "allreduce ring, 4 ranks, after 6 steps"
    assert "in the end" in words_of(drawing)
    assert draw_schedule(build("allreduce", "ring", 1), 0).title == "allreduce ring, 1 rank, after 0 steps"


def test_titles_count_what_is_added_and_copied() -> None:
    steps = [Step.of([0, 1], [1, 2], [0, 1], 1, [True, False]), Step.of([], [], [], [])]
    mine = Schedule.of_steps(steps, collective="allreduce", algorithm="mine", num_ranks=3, num_chunks=2)
    assert draw_schedule(mine, 0).title == "allreduce mine, 3 ranks, step 0 of 0–1: 2 messages, 1 added, 1 copied"
    assert draw_schedule(mine, 1).title.endswith("step 1 of 0–1: no messages")
    assert draw_schedule(build("scatter", "flat", 3), 0).title.endswith("its only step: 2 messages, copied")


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_every_allreduce_can_be_drawn(name: str) -> None:
    for num_ranks in (1, 2, 6, 8, 16):
        schedule = build("allreduce", name, num_ranks)
        ElementTree.fromstring(to_svg(draw_schedule(schedule, schedule.num_steps // 2)))


# ---- messages over time


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring", "flat", "halving_doubling", "double_binary_tree"])
def test_each_message_runs_from_its_sender_to_its_receiver(name: str) -> None:
    schedule = build("allreduce", name, 8)
    spans = simulate(schedule, 1e6, Cluster(2, 4, Link(1e-6, 1e11), LINK, gamma_s_per_byte=1e-11))
    drawing = draw_schedule(schedule, timeline=spans)
    (lines,) = drawing.lines
    sent = [m for step in schedule.steps() for m in messages(step)]
    assert (lines.y0 - 0.5).tolist() == [m.src for m in sent]
    assert (lines.y1 - 0.5).tolist() == [m.dst for m in sent]
    assert lines.dashed.tolist() == [not m.reduce for m in sent]
    assert lines.color == tuple(ADDED if m.reduce else COPIED for m in sent)
    scale = {"µs": 1e-6, "ms": 1e-3}[drawing.x_label.split("[")[1].rstrip("]")]
    assert np.allclose(lines.x0 * scale, spans.select(kind="send").start_s)
    assert np.allclose(lines.x1 * scale, spans.select(kind="receive").stop_s)
    assert drawing.width * scale == pytest.approx(spans.makespan_s)
    adding, bars = spans.select(kind="reduce"), drawing.rects[1]
    assert np.allclose(bars.x * scale, adding.start_s)
    assert np.allclose(bars.width * scale, adding.stop_s - adding.start_s)
    assert keys_of(drawing) == ["message that is added", "message that replaces", "adding"]


def over_time(name: str, num_ranks: int) -> Drawing:
    schedule = build("allreduce", name, num_ranks)
    return draw_schedule(schedule, timeline=simulate(schedule, 1e6, Cluster.uniform(num_ranks, LINK)))


def nearest_px(drawing: Drawing) -> list[float]:
    """How far from the middle of each text the nearest line of another message is."""
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height
    (lines,), (labels,) = drawing.lines, drawing.texts
    part = np.linspace(0, 1, 500)[:, None]
    x, y = lines.x0 + part * (lines.x1 - lines.x0), lines.y0 + part * (lines.y1 - lines.y0)
    numbers = []
    for at_x, at_y in zip(labels.x, labels.y, strict=True):
        own, other = np.partition(np.hypot((x - at_x) * across, (y - at_y) * down).min(axis=0), 1)[:2]
        assert own < 1
        numbers.append(float(other))
    return numbers


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "bidirectional_ring"])
def test_no_chunk_is_named_where_lines_cross(name: str) -> None:
    drawing = over_time(name, 8)
    (labels,) = drawing.texts
    needed = np.array([6.4 * len(text) + 4 for text in labels.text]) / 2 + 4
    assert (np.array(nearest_px(drawing)) > needed - 1).all()
    corner = Texts(drawing.lines[0].x1[:1], drawing.lines[0].y1[:1], ["0"])
    moved = attrs.evolve(drawing, texts=(corner,))
    assert min(nearest_px(moved)) < 1  # where another begins


def test_narrow_axes_name_fewer_chunks() -> None:
    drawing = over_time("ring", 8)
    _, panels = plt.subplots(1, 3, figsize=(12, 3.2))
    narrow, wide = to_axes(drawing, panels[1]), to_axes(drawing)
    assert len(wide.texts) == len(words_of(drawing)) > 2 * len(narrow.texts) > 0
    boxes = [text.get_window_extent() for text in narrow.texts]
    assert not any(box.overlaps(other) for box, other in combinations(boxes, 2))


def test_messages_name_their_chunks_where_there_is_room() -> None:
    drawing = over_time("ring", 4)
    assert sorted(words_of(drawing)) == sorted(m.words() for step in RING.steps() for m in messages(step))
    assert drawing.title == "allreduce ring, 4 ranks: 24 messages in 90 µs"
    (labels,) = drawing.texts
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height
    x_px, y_px = np.subtract.outer(labels.x, labels.x) * across, np.subtract.outer(labels.y, labels.y) * down
    apart = np.maximum(np.abs(x_px), np.abs(y_px))
    assert apart[~np.eye(len(labels.text), dtype=bool)].min() > 10
    assert words_of(over_time("recursive_doubling", 4)) == []  # one chunk
    assert words_of(over_time("ring", 16)) == []  # too many
    alone = over_time("ring", 1)
    assert alone.title == "allreduce ring, 1 rank: 0 messages in 0 s"
    to_svg(alone)


def test_a_step_of_many_ranks_numbers_each_row() -> None:
    drawing = draw_schedule(build("broadcast", "binomial", 100), 0)
    assert [label for _, label in drawing.y_ticks] == [str(rank) for rank in range(100)]
