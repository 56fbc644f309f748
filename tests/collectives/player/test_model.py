"""What each rank holds at any moment, against the shares that `verify` follows and against a count in plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.player.model import Playback, playback
from rankscope.collectives.verify import holdings

from ..cases import schedules

ALIKE = Link(1.0, 2.0)


def cluster(num_ranks: int) -> Cluster:
    """Two nodes where that goes, with a slow network, and adding that takes time."""
    nodes = 2 if num_ranks % 2 == 0 else 1
    return Cluster(nodes, num_ranks // nodes, Link(1.0, 50.0), Link(3.0, 10.0), 0.013)


def played(num_ranks: int) -> list[Playback]:
    moving = [schedule for schedule in schedules(num_ranks) if schedule.collective != "barrier"]
    return [playback(schedule, 96.0, cluster(num_ranks)) for schedule in moving]


def counted(play: Playback, at_s: float) -> list[list[int]]:
    """Shares in each chunk of each rank: what every message carries is found by all steps in order, one transfer at a
    time; then only those messages that are done by this time take effect."""
    schedule = play.schedule
    done = {(step, src, dst): at for step, src, dst, at in zip(play.step, play.src, play.dst, play.done_s, strict=True)}
    start = {(rank, chunk): Counter({rank: 1}) for rank, chunk in np.argwhere(schedule.initial_chunks()).tolist()}
    everything, then = dict(start), dict(start)
    for nth, step in enumerate(schedule.steps()):
        rows = list(zip(*(column.tolist() for column in step.by_chunk()), strict=True))
        sent = [everything[src, chunk] for src, _, chunk, _, _ in rows]
        for (src, dst, chunk, _, adds), bag in zip(rows, sent, strict=True):
            everything[dst, chunk] = bag + (everything[dst, chunk] if adds else Counter())
            if done[nth, src, dst] <= at_s:
                then[dst, chunk] = bag + (then[dst, chunk] if adds else Counter())
    chunks = range(schedule.num_chunks)
    return [
        [sum(then.get((rank, chunk), Counter()).values()) for chunk in chunks] for rank in range(schedule.num_ranks)
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_it_begins_with_the_input_and_ends_with_the_result(num_ranks: int) -> None:
    for play in played(num_ranks):
        schedule, end = play.schedule, play.finish_s
        assert (play.held(-1.0) == schedule.initial_chunks()).all()
        assert (play.held(end) == holdings(schedule, schedule.num_steps).sum(axis=2)).all()
        assert play.on_the_way(end).size == 0
        assert (play.held(10 * end) == play.held(end)).all()


@pytest.mark.parametrize("num_ranks", [3, 4, 6])
def test_at_any_moment_it_holds_what_a_count_in_plain_python_says(num_ranks: int) -> None:
    draw = np.random.default_rng(num_ranks)
    for play in played(num_ranks):
        moments = draw.uniform(0, play.finish_s, 4).tolist()
        if play.done_s.size:
            moments += [float(draw.choice(play.done_s)), float(draw.choice(play.start_s))]
        for at_s in moments:
            assert play.held(at_s).tolist() == counted(play, at_s), (play.schedule, at_s)


def test_one_rank_finishes_at_once() -> None:
    assert playback(build("allreduce", "ring", 1), 8.0, Cluster.uniform(1, ALIKE)).finish_s == 0.0
