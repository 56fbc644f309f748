"""The simulator against a plain one that takes a message at a time, on schedules of all kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, Step, build, simulate
from tests.extents import SAMPLE_OR_EVERYTHING

from .cases import NAMES, built
from .reference import reference

LINKS = st.builds(Link, st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.5, 2.0, 4.0, math.inf]))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    nodes, gpus = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    gamma, ports = draw(st.sampled_from([0.0, 0.25, 3.0])), draw(st.sampled_from([1, 1, 2, 3, 5, None]))
    shared, adds = draw(st.booleans()), draw(st.booleans())
    return Cluster(nodes, gpus, draw(LINKS), draw(LINKS), gamma, ports, shared, adds)


@st.composite
def any_schedule(draw: st.DrawFn, num_ranks: int) -> Schedule:
    """Any steps at all: the clock does not ask whether they make sense."""
    chunks = draw(st.integers(1, 4))
    ranks = st.integers(0, num_ranks - 1)
    transfer = st.tuples(ranks, ranks, st.integers(0, chunks - 1), st.just(1), st.booleans())
    steps = []
    for rows in draw(st.lists(st.lists(transfer, min_size=1, max_size=8), max_size=6)):
        rows = [row for row in rows if row[0] != row[1]]
        steps.append(Step.of(*zip(*rows, strict=True)) if rows else Step.from_words([]))
    return Schedule("allreduce", "any", num_ranks, chunks, steps, ports=64, lag=draw(st.integers(1, 3)))


def compare(schedule: Schedule, num_bytes: float, cluster: Cluster) -> None:
    """All messages as in the reference, and the end, with and without messages."""
    makespan_s, messages = reference(schedule, num_bytes, cluster)
    timeline = simulate(schedule, num_bytes, cluster, detail="messages")
    last_s = float(max((message.added_s for message in messages), default=0.0))
    assert timeline.end_s == pytest.approx(last_s, rel=1e-12, abs=1e-12)
    without_messages = simulate(schedule, num_bytes, cluster, detail="ranks")
    assert without_messages.makespan_s == pytest.approx(makespan_s, rel=1e-12, abs=1e-12)
    for kind, end in (("send", "src"), ("receive", "dst")):
        ours = sorted((span.item, span.rank, span.start_s, span.stop_s) for span in timeline.select(kind=kind))
        theirs = sorted((m.step, getattr(m, end), float(m.start_s), float(m.end_s)) for m in messages)
        assert np.shape(ours) == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    if cluster.ports is not None:
        timeline.check()


@SAMPLE_OR_EVERYTHING
def test_any_steps_on_any_cluster(everything: bool) -> None:
    @settings(max_examples=300 if everything else 100, deadline=None)
    @given(st.data())
    def compare_drawn(data: st.DataObject) -> None:
        cluster = data.draw(clusters())
        schedule = data.draw(any_schedule(cluster.num_ranks))
        compare(schedule, 6.0, cluster)  # no rounding: ties are ties

    compare_drawn()


@SAMPLE_OR_EVERYTHING
def test_real_schedules_on_any_cluster(everything: bool) -> None:
    @settings(max_examples=150 if everything else 75, deadline=None)
    @given(clusters(), st.sampled_from(NAMES))
    def compare_drawn(cluster: Cluster, case: tuple[str, str]) -> None:
        schedule = built(*case, cluster.num_ranks)
        if schedule is not None:
            compare(schedule, float(schedule.num_chunks), cluster)  # whole chunks: rounding decides nothing

    compare_drawn()


@pytest.mark.slow
@pytest.mark.parametrize("ports", [1, 2, 3])
def test_rounding_decides_nothing(ports: int) -> None:
    """What is ready at the same time stays so where bytes and latencies are changed in their last bits."""
    for nodes, gpus in ((3, 4), (5, 5)):
        for name in ALGORITHMS["allreduce"]:
            schedule = built("allreduce", name, nodes * gpus)
            if schedule is None:
                continue
            times_s = []
            for last_bits in (1.0, 1 + 3e-16, 1 - 2e-16, 1 + 7e-15):
                links = Link(2e-6 * last_bits, 3e11), Link(6e-6, 5e10 * last_bits)
                cluster = Cluster(nodes, gpus, *links, 1e-11, ports, shared_nic=True)
                times_s.append(simulate(schedule, 1e6 * last_bits, cluster).makespan_s)
            assert times_s == pytest.approx([times_s[0]] * 4, rel=1e-12), name


def test_the_comparison_sees_a_difference() -> None:
    cluster, slower = Cluster.uniform(4, Link(1.0, 2.0), 0.5), Cluster.uniform(4, Link(1.0, 1.999), 0.5)
    ring = build("allreduce", "ring", 4)
    assert reference(ring, 6.0, cluster)[0] != pytest.approx(simulate(ring, 6.0, slower).makespan_s, rel=1e-9)


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_the_short_cut_of_steady_steps_loses_nothing(name: str, everything: bool) -> None:
    """Without spans the simulator skips ahead once all ranks move alike; with spans it never does."""
    nearly_equal = Link(1.0, 5.0), Link(1.0, 5.0 * (1 + 1e-9))
    for ranks in (24, 60, 64, 128) if everything else (24, 64):
        for gamma, links in ((0.3, (Link(1.0, 7.0), Link(2.0, 5.0))), (40.0, nearly_equal), (0.0, nearly_equal)):
            cluster = Cluster(ranks // 4, 4, *links, gamma)
            schedule = built("allreduce", name, ranks)
            for executor in (False, True) if schedule else ():
                ends_s = [
                    simulate(schedule, 1e3, cluster, detail, executor=executor).makespan_s
                    for detail in ("messages", "ranks")
                ]
                assert ends_s[0] == pytest.approx(ends_s[1], rel=1e-11)
