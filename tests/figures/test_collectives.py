"""What the pictures of schedules, messages and costs show, read back from the drawing and from both painters."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, Step, build, closed_form, simulate, traffic, winners
from rankscope.collectives.best import Winners
from rankscope.collectives.verify import holdings
from rankscope.figures.axes import to_axes
from rankscope.figures.cost_lines import lowest
from rankscope.figures.marks import Drawing, Key, Lines
from rankscope.figures.palette import CATEGORIES, INK, looks, ramp, rank_colors
from rankscope.figures.rankings import draw_ranking, draw_winners
from rankscope.figures.schedules import draw_link_load, draw_schedule, messages
from rankscope.figures.svg import to_svg
from rankscope.values.units import bytes_words, time_words

SVG = "{http://www.w3.org/2000/svg}"
LINK = Link(alpha_s=5e-6, bytes_per_s=25e9)


def words_of(drawing):
    return [text for texts in drawing.texts for text in texts.text]


def arrows_of(drawing):
    """{(src, dst): dashed} of a step's arrows, each put to the ranks that it is nearest to."""
    (lines,) = drawing.lines
    ranks = {at: int(label) for at, label in drawing.y_ticks}

    def rank(y):
        return ranks[min(ranks, key=lambda at: abs(at - y))]

    ends = zip(lines.y0.tolist(), lines.y1.tolist(), lines.dashed.tolist(), strict=True)
    return {(rank(y0), rank(y1)): dashed for y0, y1, dashed in ends}


def cell_at(drawing, num_ranks, num_chunks):
    """The (rank, chunk) of a place in either grid, from the ticks."""
    ticks = [at for at, _ in drawing.x_ticks]
    rows = [at for at, _ in drawing.y_ticks]
    assert len(rows) == num_ranks
    assert len(ticks) in (num_chunks, 2 * num_chunks)

    def where(x, y):
        column = int(np.argmin(np.abs(np.array(ticks) - x)))
        return column // num_chunks, int(np.argmin(np.abs(np.array(rows) - y))), column % num_chunks

    return where


# ---- a step of a schedule


@pytest.mark.parametrize("step", [0, 1, 3])
def test_stripes_say_whose_shares_are_where_before_and_after_the_step(step):
    ring = build("allreduce", "ring", 4)
    drawing = draw_schedule(ring, step)
    where, colors = cell_at(drawing, 4, 4), rank_colors(4)
    shown = np.zeros((2, 4, 4, 4), dtype=bool)
    for stripes in (drawing.rects[2], drawing.rects[5]):
        for x, y, w, h, fill in zip(stripes.x, stripes.y, stripes.width, stripes.height, stripes.fill, strict=True):
            shown[(*where(x + w / 2, y + h / 2), colors.index(fill))] = True
    assert np.array_equal(shown[0], holdings(ring, step))
    assert np.array_equal(shown[1], holdings(ring, step + 1))


@pytest.mark.parametrize(("name", "num_ranks"), [("ring", 4), ("swing", 8), ("bidirectional_ring", 12), ("flat", 5)])
def test_arrows_are_the_messages_and_frames_their_chunks(name, num_ranks):
    schedule = build("allreduce", name, num_ranks)
    for step, transfers in enumerate(schedule.steps()):
        drawing = draw_schedule(schedule, step)
        sent = messages(transfers)
        assert arrows_of(drawing) == {(m.src, m.dst): not m.reduce for m in sent}
        where = cell_at(drawing, num_ranks, schedule.num_chunks)
        layers = len(drawing.rects) // 2
        framed = [
            {where(x + w / 2, y + h / 2) for x, y, w, h in zip(f.x, f.y, f.width, f.height, strict=True)}
            for f in (drawing.rects[0], drawing.rects[layers])
        ]
        assert framed[0] == {(0, m.src, chunk) for m in sent for chunk in m.chunks}
        assert framed[1] == {(1, m.dst, chunk) for m in sent for chunk in m.chunks}


def test_arrows_name_their_chunks_without_covering_each_other():
    for name, num_ranks, step in (("halving_doubling", 8, 0), ("bidirectional_ring", 8, 1), ("swing", 16, 0)):
        drawing = draw_schedule(build("allreduce", name, num_ranks), step)
        (labels,) = (texts for texts in drawing.texts if texts.text[:1] == ("chunk",))
        transfers = next(s for number, s in enumerate(build("allreduce", name, num_ranks).steps()) if number == step)
        assert sorted(labels.text[1:]) == sorted(m.words() for m in messages(transfers))
        assert np.diff(np.sort(labels.y)).min() * 27 > 10  # px between two of them, each 10 high
        assert len(set(labels.x.tolist())) == 1
    assert "chunk" not in words_of(draw_schedule(build("allreduce", "flat", 4), 0))  # there is one


def test_the_root_of_a_scatter_names_chunks_where_they_arrive():
    drawing = draw_schedule(build("scatter", "flat", 4), 0)
    (labels,) = (texts for texts in drawing.texts if texts.text[:1] == ("chunk",))
    assert labels.text == ("chunk", "1", "2", "3")
    assert labels.x[0] > drawing.lines[0].x1.max()


def test_more_than_eight_ranks_are_counted():
    schedule = build("allreduce", "recursive_doubling", 16)
    drawing = draw_schedule(schedule, 2)
    counts = holdings(schedule, 2).sum(axis=2).ravel()
    cells = drawing.rects[1]
    assert cells.fill == tuple(ramp(np.sqrt(counts / 16)))
    assert words_of(drawing)[:16] == list(map(str, counts.tolist()))
    assert [key.label for key in drawing.legend] == [
        "1 share",
        "8 shares",
        "all shares",
        "sent, received",
        "is added",
    ]


def test_lines_part_the_nodes():
    drawing = draw_schedule(build("allreduce", "ring", 6), 0, gpus_per_node=2)
    arrows, nodes = drawing.lines
    assert arrows.arrows
    assert not nodes.arrows
    assert nodes.y0.tolist() == nodes.y1.tolist() == [2.8, 4.8]  # after ranks 1 and 3, below the heading
    assert (nodes.x0.tolist(), nodes.x1.tolist()) == ([0, 0], [drawing.width] * 2)
    assert len(draw_schedule(build("allreduce", "ring", 6), 0).lines) == 1


def test_cells_too_small_for_stripes_are_shaded():
    segmented = build("allreduce", "segmented_ring", 8, num_segments=8)
    drawing = draw_schedule(segmented, 20)
    counts = holdings(segmented, 20).sum(axis=2).ravel()
    assert drawing.rects[1].fill == tuple(ramp(np.sqrt(counts / 8)))
    assert "shade" in drawing.x_label


def test_what_is_passed_on_has_the_colour_and_number_of_its_origin():
    allgather = build("allgather", "ring", 4)
    drawing = draw_schedule(allgather, 1)
    _, before, _, after = drawing.rects
    for cells, step in ((before, 1), (after, 2)):
        there = holdings(allgather, step)
        expected = [
            rank_colors(4)[chunk] if there[rank, chunk].any() else "#ececec" for rank in range(4) for chunk in range(4)
        ]
        assert list(cells.fill) == expected
    assert set(arrows_of(drawing).values()) == {True}
    assert drawing.title == "allgather ring, 4 ranks, step 1 of 0–2: 4 messages, copied"
    assert [key.line for key in drawing.legend][-1] == "dashed"


def test_the_end_has_one_grid_and_no_arrows():
    ring = build("allreduce", "ring", 4)
    drawing = draw_schedule(ring, 6)
    assert drawing.lines == ()
    assert len(drawing.rects[2].fill) == 64
    assert drawing.title == "allreduce ring, 4 ranks, after 6 steps"
    assert "in the end" in words_of(drawing)
    assert draw_schedule(build("allreduce", "ring", 1), 0).title == "allreduce ring, 1 rank, after 0 steps"


def test_titles_count_what_is_added_and_copied():
    mixed = Step.of([0, 1], [1, 2], [0, 1], 1, [True, False])
    mine = Schedule.of_steps([mixed, Step.of([], [], [], [])], collective="allreduce", algorithm="mine", num_ranks=3,
                             num_chunks=2)  # fmt: skip
    assert draw_schedule(mine, 0).title == "allreduce mine, 3 ranks, step 0 of 0–1: 2 messages, 1 added, 1 copied"
    assert draw_schedule(mine, 1).title.endswith("step 1 of 0–1: no messages")
    assert draw_schedule(build("scatter", "flat", 3), 0).title.endswith("its only step: 2 messages, copied")


def test_steps_that_cannot_be_drawn():
    ring = build("allreduce", "ring", 4)
    with pytest.raises(ValueError, match="step must be a whole number from 0 to 6, got 7"):
        draw_schedule(ring, 7)
    with pytest.raises(ValueError, match="at most 4096 cells, ranks × chunks, got 4225: take fewer"):
        draw_schedule(build("allreduce", "ring", 65), 0)
    with pytest.raises(ValueError, match="gpus_per_node must be a whole number of at least 1, got -2"):
        draw_schedule(ring, 0, gpus_per_node=-2)
    with pytest.raises(ValueError, match="schedule must be a Schedule, got 'ring'"):
        draw_schedule("ring", 0)


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_every_allreduce_can_be_drawn_by_both_painters(name):
    for num_ranks in (1, 2, 6, 8, 16):
        schedule = build("allreduce", name, num_ranks)
        drawing = draw_schedule(schedule, schedule.num_steps // 2)
        ElementTree.fromstring(to_svg(drawing))
    figures.schedule(schedule, 0).figure.canvas.draw()


def test_the_same_step_gives_the_same_picture():
    first, second = (to_svg(draw_schedule(build("allreduce", "swing", 8), 2)) for _ in range(2))
    assert first == second


# ---- lines, in both painters


LINES = Drawing("t", "x", "y", 10.0, 5.0, (100.0, 50.0), legend=(Key("adds", INK, line="solid"),),
                lines=(Lines([0, 1], [0, 1], [10, 5], [0, 4], ["#0072b2", "#d55e00"], dashed=[False, True],
                                arrows=True),
                       Lines(0, 2, 10, 2, INK, width_px=3.0)))  # fmt: skip


def test_lines_in_svg_end_where_they_should():
    root = ElementTree.fromstring(to_svg(LINES))
    arrows, plain = (group for group in root.iter(f"{SVG}g") if group.get("class") == "lines")
    first, second = arrows.findall(f"{SVG}line")
    assert [first.get(name) for name in ("x1", "y1", "y2", "stroke", "stroke-dasharray")] == [
        "0",
        "0",
        "0",
        "#0072b2",
        None,
    ]
    assert float(first.get("x2")) == 91  # the rest is its head
    assert second.get("stroke-dasharray") == "5 4"
    heads = arrows.findall(f"{SVG}path")
    assert [head.get("d").split("L")[0] for head in heads] == ["M100 0", "M50 40"]
    assert [head.get("fill") for head in heads] == ["#0072b2", "#d55e00"]
    assert plain.get("stroke-width") == "3"
    assert not plain.findall(f"{SVG}path")
    legend = next(group for group in root.iter(f"{SVG}g") if group.get("class") == "legend")
    assert legend.find(f"{SVG}path").get("stroke") == INK


def test_lines_on_axes_end_where_they_should():
    ax = to_axes(LINES)
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert [patch._posA_posB for patch in arrows] == [[(0.0, 0.0), (10.0, 0.0)], [(1.0, 1.0), (5.0, 4.0)]]
    assert [patch.get_linestyle() for patch in arrows] == ["-", "--"]
    assert [to_hex(patch.get_edgecolor()) for patch in arrows] == ["#0072b2", "#d55e00"]
    (plain,) = (c for c in ax.collections if isinstance(c, LineCollection) and c.get_gid() == "lines")
    assert [segment.tolist() for segment in plain.get_segments()] == [[[0, 2], [10, 2]]]
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["adds"]


def test_lines_need_a_colour_each():
    with pytest.raises(ValueError, match="2 lines need 2 colours, got 1"):
        Lines([0, 1], 0, 1, 1, [INK])


def test_panels_of_one_figure_share_one_legend():
    ring = build("allreduce", "ring", 4)
    _, axes = plt.subplots(1, 2, layout="constrained")
    for step, ax in zip((0, 5), axes, strict=True):
        assert figures.schedule(ring, step, ax=ax, title=f"step {step}") is ax
    (legend,) = axes[0].figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*(f"rank {rank}" for rank in range(4)), "sent, received", "is added", "replaces"]
    assert [ax.get_title(loc="left") for ax in axes] == ["step 0", "step 5"]


# ---- messages over time


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring", "flat", "halving_doubling", "double_binary_tree"])
def test_each_message_runs_from_its_sender_to_its_receiver(name):
    schedule = build("allreduce", name, 8)
    spans = simulate(schedule, 1e6, Cluster(2, 4, Link(1e-6, 1e11), LINK, gamma_s_per_byte=1e-11))
    drawing = draw_schedule(schedule, timeline=spans)
    (lines,) = drawing.lines
    sent = [m for step in schedule.steps() for m in messages(step)]
    assert (lines.y0 - 0.5).tolist() == [m.src for m in sent]
    assert (lines.y1 - 0.5).tolist() == [m.dst for m in sent]
    assert lines.dashed.tolist() == [not m.reduce for m in sent]
    assert lines.color == tuple(CATEGORIES[0] if m.reduce else CATEGORIES[5] for m in sent)
    scale = {"µs": 1e-6, "ms": 1e-3}[drawing.x_label.split("[")[1].rstrip("]")]
    assert np.allclose(lines.x0 * scale, spans.select(kind="send").start_s)
    assert np.allclose(lines.x1 * scale, spans.select(kind="receive").stop_s)
    assert drawing.width * scale == pytest.approx(spans.makespan_s)
    adding = spans.select(kind="reduce")
    bars = drawing.rects[1]
    assert np.allclose(bars.x * scale, adding.start_s)
    assert np.allclose(bars.width * scale, adding.stop_s - adding.start_s)
    assert [key.label for key in drawing.legend] == ["message, is added", "message, replaces", "adding"]


def test_messages_name_their_chunks_where_there_is_room():
    ring = build("allreduce", "ring", 4)
    drawing = draw_schedule(ring, timeline=simulate(ring, 1e6, Cluster.uniform(4, LINK)))
    assert sorted(words_of(drawing)) == sorted(m.words() for step in ring.steps() for m in messages(step))
    assert drawing.title == "allreduce ring, 4 ranks: 24 messages in 90 µs"
    (labels,) = drawing.texts
    across, down = drawing.size_px[0] / drawing.width, drawing.size_px[1] / drawing.height
    apart = np.maximum(np.abs(np.subtract.outer(labels.x, labels.x)) * across,
                       np.abs(np.subtract.outer(labels.y, labels.y)) * down)  # fmt: skip
    assert apart[~np.eye(len(labels.text), dtype=bool)].min() > 10
    whole = build("allreduce", "recursive_doubling", 4)
    assert words_of(draw_schedule(whole, timeline=simulate(whole, 1e6, Cluster.uniform(4, LINK)))) == []
    many = build("allreduce", "ring", 16)
    assert words_of(draw_schedule(many, timeline=simulate(many, 1e6, Cluster.uniform(16, LINK)))) == []


def test_messages_that_cannot_be_drawn():
    ring, cluster = build("allreduce", "ring", 4), Cluster.uniform(4, LINK)
    with pytest.raises(ValueError, match=r"simulate's of this schedule, with its 24 messages .*, got 0 sends"):
        draw_schedule(ring, timeline=simulate(ring, 1e6, cluster, detail="ranks"))
    with pytest.raises(ValueError, match="with its 24 messages .*, got 8 sends and 8 receives of others"):
        draw_schedule(ring, timeline=simulate(build("allreduce", "recursive_doubling", 4), 1e6, cluster))
    many = build("allreduce", "ring", 64)
    with pytest.raises(ValueError, match="at most 5000 messages, got 8064: take fewer ranks"):
        draw_schedule(many, timeline=simulate(many, 1e6, Cluster.uniform(64, LINK)))
    with pytest.raises(ValueError, match="schedule must be a Schedule, got None"):
        draw_schedule(None, timeline=simulate(ring, 1e6, cluster))
    with pytest.raises(ValueError, match="timeline must be a Timeline, got 3"):
        draw_schedule(ring, timeline=3)


def test_nothing_to_send_can_be_drawn():
    alone = build("allreduce", "ring", 1)
    drawing = draw_schedule(alone, timeline=simulate(alone, 1e6, Cluster.uniform(1, LINK)))
    assert drawing.title == "allreduce ring, 1 rank: 0 messages in 0 s"
    to_axes(drawing)
    to_svg(drawing)


# ---- load


def test_each_link_has_its_bytes():
    load = traffic(build("allreduce", "halving_doubling", 4), 2**20).link_bytes
    drawing = draw_link_load(load)
    (cells,) = drawing.rects
    assert cells.fill[0] == "#ececec"
    assert cells.fill[1] == ramp(1)[0]  # 0 to 1 carries most: 1 MiB
    assert cells.fill[2] == ramp(0.5)[0]
    assert (cells.x[2], cells.y[2]) == (2, 0)  # senders down, receivers to the right
    assert words_of(drawing) == ["1", "0.5", "1", "0.5", "0.5", "1", "0.5", "1"]
    assert drawing.x_label == "receiver [rank; number: MiB]"
    assert drawing.title == "8 of 12 links in use, at most 1 MiB over one"
    assert [key.label for key in drawing.legend] == ["512 KiB", "1 MiB", "nothing"]
    assert draw_link_load(traffic(build("allreduce", "ring", 4), 2**20).link_bytes).title.endswith("1.5 MiB over each")
    assert draw_link_load(np.zeros((3, 3))).title == "no link carries anything"
    assert words_of(draw_link_load(np.ones((17, 17)))) == []
    figures.link_load(load)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (np.ones(4), r"a square matrix, senders by receivers, got shape \(4,\)"),
        (np.ones((2, 3)), r"got shape \(2, 3\)"),
        (np.ones((0, 0)), r"got shape \(0, 0\)"),
        (np.full((2, 2), np.nan), "finite numbers of at least 0"),
        (-np.ones((2, 2)), "finite numbers of at least 0"),
        (np.ones((257, 257)), "at most 256 ranks, got 257"),
    ],
)
def test_loads_that_cannot_be_drawn(load, message):
    with pytest.raises(ValueError, match=message):
        draw_link_load(load)


# ---- units and looks


def test_units():
    assert [bytes_words(n) for n in (0, 1, 1023, 1024, 1.5 * 2**20, 1023 * 2**10, 2**50)] == [
        "0 B", "1 B", "1023 B", "1 KiB", "1.5 MiB", "1023 KiB", "1024 TiB"]  # fmt: skip
    assert [time_words(s) for s in (0, 1.2345e-6, 1.5e-3, 3.0)] == ["0 s", "1234 ns", "1500 µs", "3 s"]


def test_every_algorithm_has_a_look_of_its_own_in_its_collective():
    for builders in ALGORITHMS.values():
        style = looks(builders)
        assert len({(look.color, look.dashed) for look in style.values()}) == len(builders)
        assert len({look.marker for look in style.values()}) == len(builders)
        assert "#f0e442" not in {look.color for look in style.values()}  # too pale for a line
    assert looks(["ring"])["ring"] == looks(ALGORITHMS["allreduce"])["ring"]
    added = looks([*ALGORITHMS["allreduce"], "mine", "yours"])
    assert len({(look.color, look.dashed) for look in added.values()}) == 15


# ---- costs


SIZES = 2.0 ** np.arange(10, 31, 2)
TIMES = {name: closed_form("allreduce", name, 8, SIZES, LINK) for name in ("recursive_doubling", "ring", "swing")}


def drawn(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_lines_are_the_times_in_a_unit_that_is_named():
    ax = figures.costs(SIZES, TIMES, bound_s=TIMES["swing"] / 2, half_bytes=125_000)
    lines = drawn(ax)
    assert list(lines) == ["lower bound", *TIMES, "crossover", "n½"]
    for name, seconds in TIMES.items():
        assert np.allclose(lines[name].get_ydata(), seconds * 1e6)
        assert lines[name].get_xdata().tolist() == SIZES.tolist()
        assert lines[name].get_color() == looks([name])[name].color
    assert lines["swing"].get_linestyle() == "--"
    assert lines["ring"].get_linestyle() == "-"
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == ("log", "log", "time [µs]")
    assert ax.get_xlabel() == "size of each rank's buffer"
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert ticks == ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"]
    assert set(lines["n½"].get_xdata()) == {125_000}
    words = [text.get_text() for text in ax.texts]
    assert set(words) >= {*TIMES, "lower bound", "n½ = 122 KiB"}


def test_the_crossover_is_where_the_lines_cross():
    ax = figures.costs(SIZES, TIMES)
    dots = drawn(ax)["crossover"]
    first, changes = lowest(SIZES, np.stack(list(TIMES.values())))
    assert [list(TIMES)[n] for n in (first, *(c.leader for c in changes))] == ["recursive_doubling", "swing"]
    assert dots.get_xdata() == pytest.approx([changes[0].x])
    # 3(α + Sβ) = 6α + 14/8·Sβ, at S = 12/5·αB, as far as straight lines between the sizes can tell
    assert changes[0].x == pytest.approx(12 / 5 * 5e-6 * 25e9, rel=0.1)
    assert ax.get_title(loc="left") == "Quickest, from small to large: recursive_doubling, swing"
    alone = figures.costs(SIZES, {"ring": TIMES["ring"]})
    assert alone.get_title(loc="left") == "ring is the quickest at every size"


def test_lines_that_coincide_do_not_cross():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    wobble = np.array([1 + 1e-13, 1 - 1e-13, 1 + 1e-13, 1 - 1e-13])
    assert lowest(x, np.stack([x, x * wobble, 2 * x])) == (0, [])
    first, changes = lowest(x, np.array([[1.0, 2, 4, 8], [4, 4, 4, 4], [3, 3, 3, 3]]))
    assert (first, [c.leader for c in changes]) == (0, [2])
    assert changes[0].x == pytest.approx(3)
    # within one interval two lines take the lead one after the other
    first, changes = lowest(np.array([1.0, 100.0]), np.array([[1.0, 1e4], [2.0, 50.0], [10.0, 10.0]]))
    assert (first, [c.leader for c in changes]) == (0, [1, 2])


def test_names_do_not_cover_each_other():
    every = {name: closed_form("allreduce", name, 8, SIZES, LINK) for name in ALGORITHMS["allreduce"]}
    ax = figures.costs(SIZES, every, bound_s=every["swing"] / 2)
    ax.figure.canvas.draw()
    names = {text.get_text(): text.get_window_extent() for text in ax.texts if text.get_text() in every}
    assert set(names) == set(every)
    boxes = sorted(names.values(), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert boxes[-1].y1 <= ax.bbox.y1 + 10


def test_measurements_are_markers_with_their_spread():
    repeats = np.stack([TIMES["ring"][::5] * factor for factor in (1.0, 1.5, 3.0)], axis=1)
    ax = figures.costs(SIZES, TIMES, measured={"ring": (SIZES[::5], repeats), "swing": (SIZES[:1], [1e-3])})
    ring, swing = ax.containers
    assert np.allclose(ring.lines[0].get_ydata(), TIMES["ring"][::5] * 1.5e6)
    (bars,) = ring.lines[2]
    assert np.allclose([segment[:, 1] for segment in bars.get_segments()], repeats[:, [0, 2]] * 1e6)
    assert ring.lines[0].get_color() == drawn(ax)["ring"].get_color()
    assert ring.lines[0].get_linestyle() == "None"
    assert ring.lines[0].get_marker() != swing.lines[0].get_marker()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ring, measured", "swing, measured"]


@pytest.mark.parametrize(
    ("sizes", "seconds", "more", "message"),
    [
        ([1], {"ring": [1]}, {}, "at least two sizes that rise from above 0"),
        ([0, 1], {"ring": [1, 1]}, {}, "at least two sizes that rise from above 0"),
        ([2, 1], {"ring": [1, 1]}, {}, "at least two sizes that rise from above 0"),
        ([1, np.inf], {"ring": [1, 1]}, {}, "at least two sizes that rise from above 0"),
        ([1, 2], {}, {}, "at least one algorithm, by name, got {}"),
        ([1, 2], [1, 2], {}, r"at least one algorithm, by name, got \[1, 2\]"),
        ([1, 2], {"ring": [1]}, {}, r"ring: \(1,\) values over sizes of shape \(2,\)"),
        ([1, 2], {"ring": [[1], [1]]}, {}, r"ring: \(2, 1\) values"),
        ([1, 2], {"ring": [0, 1]}, {}, "ring: times must be finite and above 0"),
        ([1, 2], {"ring": [1, 1]}, {"bound_s": [1]}, r"bound_s: \(1,\) values over sizes of shape \(2,\)"),
        ([1, 2], {"ring": [1, 1]}, {"bound_s": [1, np.nan]}, "bound_s: times must be finite and at least 0"),
        ([1, 2], {"ring": [1, 1]}, {"half_bytes": -1}, "half_bytes must be a finite number above 0, got -1"),
        ([1, 2], {"ring": [1, 1]}, {"measured": {"ring": ([], [])}}, "ring, measured: sizes must be finite and above"),
        ([1, 2], {"ring": [1, 1]}, {"measured": {"ring": ([1], [[]])}}, r"ring, measured: \(1, 0\) values over"),
        ([1, 2], {"ring": [1, 1]}, {"measured": {"ring": ([1], [1, 2])}}, r"ring, measured: \(2,\) values over"),
        ([1, 2], {"ring": [1, 1]}, {"measured": {"ring": ([1], [-1])}}, "ring, measured: times must be finite"),
    ],
)
def test_costs_that_cannot_be_drawn(sizes, seconds, more, message):
    with pytest.raises(ValueError, match=message):
        figures.costs(sizes, seconds, **more)


def test_figures_draw_on_the_axes_they_are_given():
    ring = build("allreduce", "ring", 4)
    spans = simulate(ring, 1e6, Cluster.uniform(4, LINK))
    table = winners([1e3, 1e6], [Cluster.uniform(4, LINK)])
    for draw in (
        lambda ax: figures.costs(SIZES, TIMES, ax=ax, title="mine"),
        lambda ax: figures.schedule(ring, timeline=spans, ax=ax, title="mine"),
        lambda ax: figures.link_load(np.ones((2, 2)), ax=ax, title="mine"),
        lambda ax: figures.winners(table, ax=ax, title="mine"),
    ):
        _, ax = plt.subplots()
        assert draw(ax) is ax
        assert ax.get_title(loc="left") == "mine"


# ---- who wins


def test_the_map_shows_the_winner_and_by_how_much():
    table = winners([2.0**10, 2.0**20], [Cluster.uniform(n, LINK) for n in (4, 6)])
    drawing = draw_winners(table)
    (cells,) = drawing.rects
    rows = {label: at - 0.5 for at, label in drawing.y_ticks}
    assert rows == {"4": 1, "6": 0}  # more ranks further up
    columns = {label: at - 0.5 for at, label in drawing.x_ticks}
    assert columns == {"1 KiB": 0, "1 MiB": 1}
    style = looks(table.algorithms)
    shown = {(x, y): (fill, hatched) for x, y, fill, hatched in zip(cells.x, cells.y, cells.fill, cells.hatched,
                                                                    strict=True)}  # fmt: skip
    for row, ranks in enumerate((4, 6)):
        for column in range(2):
            look = style[table.algorithms[table.winner[row, column]]]
            assert shown[column, rows[str(ranks)]] == (look.color, look.dashed)
    assert len(words_of(drawing)) == 4
    letters = {key.label.split(": ")[1]: key.label[0] for key in drawing.legend}  # tell them apart without colour
    assert set(letters) == {table.algorithms[place] for place in table.winner.ravel()}
    assert len(set(letters.values())) == len(letters)
    words = {(x, y): text for texts in drawing.texts for x, y, text in zip(texts.x, texts.y, texts.text, strict=True)}
    for row, ranks in enumerate((4, 6)):
        for column in range(2):
            text = words[column + 0.5, rows[str(ranks)] + 0.5]
            assert text[:2] == letters[table.algorithms[table.winner[row, column]]] + " "


def test_margins_are_short():
    margins = np.array([[0.0, 0.001, 0.4, 20.0, 5e4, np.inf]])
    table = Winners(("ring", "swing"), np.array([8]), 2.0 ** np.arange(6), np.array([[0, 0, 0, 1, 1, 1]]),
                    np.ones((1, 6)), margins)  # fmt: skip
    drawing = draw_winners(table)
    words = {x: text for texts in drawing.texts for x, text in zip(texts.x.tolist(), texts.text, strict=True)}
    assert [words[x] for x in sorted(words)] == ["a =", "a <1%", "a 40%", "b 21×", "b >999", "b"]
    assert drawing.title == "Most often quickest: ring, in 3 of 6 cells"
    wide = table._replace(num_bytes=2.0 ** np.arange(0, 60, 0.5), winner=np.zeros((1, 120), int),
                          margin=np.zeros((1, 120)))  # fmt: skip
    drawing = draw_winners(wide)
    assert words_of(drawing) == []  # no room
    assert 2 <= len(drawing.x_ticks) <= 15
    with pytest.raises(ValueError, match="from 1 to 16384 cells, sizes × ranks, got 0 × 1"):
        draw_winners(table._replace(winner=np.zeros((1, 0), int)))
    with pytest.raises(ValueError, match="table must be a Winners, got None"):
        draw_winners(None)


def test_the_ranking_is_in_order_and_cuts_what_is_far_off():
    drawing = draw_ranking({"flat": 1e-3, "ring": 2e-6, "swing": 1e-6}, bound_s=0.5e-6, chosen="ring")
    frame, bars = drawing.rects
    assert [label for _, label in drawing.y_ticks] == ["swing", "ring", "flat"]
    assert np.allclose(bars.width, [1, 2, 4])  # [µs], cut at four times the quickest
    assert drawing.x_label == "time [µs]; the line: lower bound; framed: yours; …: cut"
    assert drawing.rules == (0.5,)
    assert words_of(drawing) == ["1", "2", "… 1,000"]
    assert frame.y.tolist() == [1.04]
    assert bars.hatched.tolist() == [True, False, False]
    assert drawing.title == "swing is the quickest"
    assert draw_ranking({"ring": 0.0}).title == "none takes any time"
    for bad in ({}, {"ring": np.inf}, {"ring": -1.0}):
        with pytest.raises(ValueError, match="finite, at least 0 and of at least one algorithm"):
            draw_ranking(bad)
