"""What the drawings of a step, and of a collective that plays, show."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.picture import draw_schedule
from rankscope.collectives.player.model import Playback, playback
from rankscope.collectives.player.picture import draw_play, play_svg
from rankscope.collectives.verify import holdings
from rankscope.drawing.marks import RIGHT_PX, Line
from rankscope.drawing.palette import ADDED, rank_colors
from tests.figures.shown import boxes, words_of

LINK = Link(5e-6, 25e9)
TITLE = "Six ring steps"


@pytest.mark.parametrize("step", range(6))
def test_stripes_are_the_shares_that_each_chunk_has(step: int) -> None:
    ring = build("allreduce", "ring", 4)
    stripes = {box for box in boxes(draw_schedule(ring, step)) if box.fill in rank_colors(4)}
    assert len(stripes) == holdings(ring, step).sum() + holdings(ring, step + 1).sum()


@pytest.mark.parametrize(("collective", "algorithm"), [("allreduce", "halving_doubling"), ("allgather", "ring")])
def test_arrows_are_the_messages_and_framed_chunks_those_that_they_carry(collective: str, algorithm: str) -> None:
    schedule = build(collective, algorithm, 8)
    for number, step in enumerate(schedule.steps()):
        drawing = draw_schedule(schedule, number)
        sent = list(zip(*(column.tolist() for column in step), strict=True))
        arrows = [mark for mark in drawing.marks if isinstance(mark, Line) and mark.arrow]
        rows = sorted({box.y + box.height / 2 for box in boxes(drawing) if not box.edge})
        shown = {
            (rows.index(arrow.points[0][1]), rows.index(arrow.points[-1][1]), arrow.tone == ADDED) for arrow in arrows
        }
        assert shown == {(src, dst, reduce) for src, dst, _, _, reduce in sent}
        assert len(arrows) == len(shown)
        frames = [box for box in boxes(drawing) if box.edge == "ink"]
        assert len(frames) == 2 * sum(count for _, _, _, count, _ in sent)


def test_lines_part_the_nodes() -> None:
    nodes = playback(build("allreduce", "ring", 8), 2.0**20, Cluster(2, 4, LINK, LINK))
    whole_width = [RIGHT_PX - 8]
    for plays, num_lines in (([nodes], 1), ([nodes, nodes], 2)):
        lines = [mark for mark in draw_play(plays, 0.0, TITLE).marks if isinstance(mark, Line)]
        widths = [line.points[-1][0] - line.points[0][0] for line in lines if line.tone == "mute"]
        assert [width for width in widths if width > 500] == whole_width * num_lines


# ---- the player


@pytest.fixture(scope="module")
def ring() -> Playback:
    return playback(build("allreduce", "ring", 4), 2.0**20, Cluster.uniform(4, LINK))


def test_a_moment_shows_what_each_rank_holds_and_what_is_on_its_way(ring: Playback) -> None:
    for share in (0.0, 0.3, 0.5, 0.77, 1.0):
        at_s = share * ring.finish_s
        drawing = draw_play([ring], at_s, TITLE)
        assert share or "step 1 of 6: 4 messages" in words_of(drawing)
        chunks = [box for box in boxes(drawing) if box.text]
        cells = [box for box in chunks if not box.edge]
        assert [int(box.text) for box in cells] == ring.held(at_s).ravel().tolist()
        rows = sorted({box.y + box.height / 2 for box in cells})
        wanted = []
        for message in ring.on_the_way(at_s).tolist():
            part = (at_s - ring.start_s[message]) / (ring.end_s[message] - ring.start_s[message])
            src, dst = (rows[rank] for rank in (ring.src[message], ring.dst[message]))
            wanted.append(src + min(part, 1) * (dst - src))
        packets = [box.y + box.height / 2 for box in chunks if box.edge]
        assert sorted(packets) == pytest.approx(sorted(wanted))
    assert any(word.startswith("finished after") for word in words_of(drawing))
    assert "0 µs" in words_of(drawing)


def test_a_race_has_one_axis_of_time(ring: Playback) -> None:
    other = playback(build("allreduce", "halving_doubling", 4), 2.0**20, Cluster.uniform(4, LINK))
    drawing = draw_play([ring, other], 4e-5, TITLE)
    now = [box.x for box in boxes(drawing) if box.fill == "ink"]
    assert now[0] == now[1]


def test_a_movie_moves_each_packet_from_its_sender_to_its_receiver(ring: Playback) -> None:
    svg = play_svg([ring], TITLE)
    root = ElementTree.fromstring(svg)
    moves = [node for node in root.iter() if node.tag.endswith("animateTransform")]
    assert {move.get("begin") for move in moves} == {"indefinite"}
    assert svg.count("onclick") == svg.count("tabindex") == 3
    row_px = 40.0
    ends = sorted(round(float(move.get("values").split(";")[-1].split()[1]) / row_px) for move in moves)
    wanted = [dst - src for src, dst in zip(ring.src.tolist(), ring.dst.tolist(), strict=True)]
    assert ends == sorted([*wanted, *wanted, 0])  # the chunk, its ground, and the moment
    for animation in root.iter():
        times = [float(time) for time in (animation.get("keyTimes") or "0;1").split(";")]
        assert times == sorted(times)
        assert len(times) == len((animation.get("values") or "0;1").split(";"))
    assert TITLE in svg
