"""What the executor is predicted to take: against sums by hand, the textbook's model, and packets one by one."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import torch

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, build, execute, simulate, simulate_executor
from rankscope.collectives.wire import plan
from rankscope.collectives.wire.run import executor
from rankscope.ranks import in_threads
from rankscope.timeline import Recorder, Timeline

from ..extents import SAMPLE_OR_EVERYTHING
from .cases import schedules
from .packets import ticks

LINK = Link(alpha_s=5e-3, bytes_per_s=12.5e6)
ONE_FLOW = [
    "recursive_doubling",
    "halving_doubling",
    "ring",
    "segmented_ring",
    "torus_2d",
    "torus_3d",
    "mesh_2d",
    "swing",
]


def took_s(algorithm: str, num_ranks: int, num_bytes: int, cluster: Cluster, **options: Any) -> float:
    return simulate_executor(build("allreduce", algorithm, num_ranks, **options), num_bytes, cluster).makespan_s


# ---- by hand


@pytest.mark.parametrize("algorithm", ONE_FLOW)
def test_one_message_at_a_time_takes_what_texts_say_and_one_latency_more(algorithm: str) -> None:
    """The first message waits for the ready signal; later signals always arrive before the bytes are due."""
    for num_ranks, num_bytes in itertools.product((2, 4, 8), (1024, 2**16, 2**22)):
        cluster = Cluster.uniform(num_ranks, LINK)
        texts_s = simulate(build("allreduce", algorithm, num_ranks), num_bytes, cluster).makespan_s
        assert took_s(algorithm, num_ranks, num_bytes, cluster) == pytest.approx(texts_s + LINK.alpha_s, rel=1e-9)


def test_incast_queues_and_latencies_overlap() -> None:
    num_bytes, alpha_s = 125_000, LINK.alpha_s
    wire_s = 3 * num_bytes / LINK.bytes_per_s
    # word, three messages into the root at once, and out of it: its receivers' words have come long before
    expected = alpha_s + 2 * (wire_s + alpha_s)
    assert took_s("flat", 4, num_bytes, Cluster.uniform(4, LINK)) == pytest.approx(expected, rel=1e-9)


def test_ranks_of_a_node_share_its_card() -> None:
    schedule, quick = build("allreduce", "recursive_doubling", 4), Link(1e-9, 1e15)
    wire_s = 1_250_000 / LINK.bytes_per_s
    for shared, times in ((False, 1), (True, 2)):
        cluster = Cluster(2, 2, quick, LINK, shared_nic=shared)
        predicted_s = simulate_executor(schedule, 1_250_000, cluster).makespan_s
        assert predicted_s == pytest.approx(2 * LINK.alpha_s + times * wire_s, rel=1e-3)  # ready signal and bytes


def test_adding_delays_only_what_needs_it() -> None:
    cluster = Cluster.uniform(2, LINK, gamma_s_per_byte=1e-6)
    timeline = simulate_executor(build("allreduce", "recursive_doubling", 2), 1000, cluster)
    assert timeline.makespan_s == pytest.approx(2 * LINK.alpha_s + 1000 / LINK.bytes_per_s + 1e-3)
    reduce = timeline.select(kind="reduce")
    assert len(reduce) == 2
    assert (reduce.stop_s - reduce.start_s).tolist() == pytest.approx([1e-3, 1e-3])


def test_the_spans_of_a_ring_of_two() -> None:
    """The first message waits 1 s for the ready signal, takes 2 s for 8 bytes and 1 s to arrive, and 4 s to add."""
    ring, cluster = build("allreduce", "ring", 2), Cluster.uniform(2, Link(1.0, 4.0), gamma_s_per_byte=0.5)
    expected = [("receive", 0, 0, 4), ("reduce", 0, 4, 8), ("receive", 1, 8, 11), ("copy", 1, 11, 15)]
    spans = simulate_executor(ring, 16, cluster)
    for rank in (0, 1):
        of_rank = [(span.kind, span.item, span.start_s, span.stop_s) for span in spans.select(rank=rank)]
        assert of_rank == expected
    ends = simulate_executor(ring, 16, cluster, detail="ranks")
    assert [(span.rank, span.kind, span.item, span.start_s, span.stop_s) for span in ends] == [
        (0, "collective", -1, 0, 15),
        (1, "collective", -1, 0, 15),
    ]


# ---- packets


@pytest.mark.parametrize("algorithm", ALGORITHMS["allreduce"])
def test_packets_one_by_one_say_the_same(algorithm: str) -> None:
    alpha = 37
    for num_ranks in (1, 2, 3, 4, 5, 8):
        schedule = build("allreduce", algorithm, num_ranks)
        num_elements = 16 * max(schedule.num_chunks, 24)
        cluster = Cluster.uniform(num_ranks, Link(float(alpha), 4.0))  # an element of 4 bytes takes a second
        twin_s = simulate_executor(schedule, 4 * num_elements, cluster).makespan_s
        assert twin_s == pytest.approx(ticks(schedule, num_elements, alpha), rel=0.02), num_ranks


def test_packets_notice_a_latency_that_is_left_out() -> None:
    schedule = build("allreduce", "ring", 4)
    textbook_s = simulate(schedule, 4 * 96, Cluster.uniform(4, Link(37.0, 4.0))).makespan_s
    assert textbook_s != pytest.approx(ticks(schedule, 96, 37), rel=0.02)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_other_collectives(collective: str) -> None:
    cluster = Cluster.uniform(8, LINK)
    for name in ALGORITHMS[collective]:
        assert simulate_executor(build(collective, name, 8), 32_000, cluster).makespan_s > LINK.alpha_s
        assert simulate_executor(build(collective, name, 1), 32_000, Cluster.uniform(1, LINK)).makespan_s == 0


@pytest.mark.parametrize("num_ranks", [1, 5, 16])
def test_one_span_per_rank_ends_when_its_last_one_does(num_ranks: int) -> None:
    cluster = Cluster.uniform(num_ranks, LINK, gamma_s_per_byte=1e-9)
    for schedule in schedules(num_ranks):
        if schedule.collective != "allreduce":
            continue
        ranks = simulate_executor(schedule, 4096 * num_ranks, cluster, detail="ranks")
        messages = simulate_executor(schedule, 4096 * num_ranks, cluster)
        assert ranks.rank.tolist() == list(range(num_ranks))
        last_s = [messages.stop_s[messages.rank == rank].max(initial=0) for rank in range(num_ranks)]
        assert ranks.stop_s.tolist() == last_s


def test_a_barrier_takes_its_latencies() -> None:
    took = simulate_executor(build("barrier", "dissemination", 4), 0, Cluster.uniform(4, LINK)).makespan_s
    assert took == pytest.approx(3 * LINK.alpha_s, rel=1e-3)


# ---- the same spans from a real run


def items(timeline: Timeline, rank: int, kind: str) -> list[int]:
    return [span.item for span in timeline if span.rank == rank and span.kind == kind]


@pytest.mark.parametrize("algorithm", ["ring", "flat", "double_binary_tree"])
def test_a_real_run_has_the_spans_that_were_predicted(algorithm: str) -> None:
    schedule, num_ranks = build("allreduce", algorithm, 4), 4
    recorder = Recorder()

    def work(rank: int, group: Any) -> None:
        tensor = torch.ones(96)
        execute(schedule, tensor, group, recorder=recorder.for_rank(rank))
        assert tensor.tolist() == [4.0] * 96
        executor(schedule, tensor, group)(tensor)  # and without a recorder nothing is recorded

    in_threads(num_ranks, work)
    real = recorder.timeline()
    twin = simulate_executor(schedule, 384, Cluster.uniform(4, Link(1.0, 1.0), gamma_s_per_byte=1.0))
    assert {real.lanes[lane] for lane in real.lane} == {"executor"}
    for rank in range(num_ranks):
        for kind in ("reduce", "copy"):
            assert items(real, rank, kind) == items(twin, rank, kind)
        waits = set(items(twin, rank, "receive"))
        assert waits <= set(items(real, rank, "receive"))  # the twin leaves out waits that take no time
    real.check()


# ---- ranks that do the same are simulated once


@pytest.mark.slow
@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_ranks_that_do_the_same_take_what_they_take_one_by_one(
    collective: str, everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even and uneven chunks, one node and several, sums that cost: the timeline is that of all ranks."""
    links = Link(1e-6, 4e9), Link(2e-5, 1e9)
    sizes = [(16, 16, 0), (18, 18, 3), (16, 4, 0)]
    if not everything:
        sizes = [(8, 8, 0), (10, 10, 3), (8, 4, 0)]
    for name, (num_ranks, gpus, extra_elements) in itertools.product(ALGORITHMS[collective], sizes):
        cluster = Cluster(num_ranks // gpus, gpus, *links, gamma_s_per_byte=1e-10)
        timelines: list[Timeline] = []
        for least in (2, 1000):
            monkeypatch.setattr(plan, "LEAST_RANKS", least)
            with contextlib.suppress(ValueError):  # no such algorithm for so many ranks, or no element for each chunk
                schedule = build(collective, name, num_ranks)
                schedule.cache.clear()
                timelines.append(simulate_executor(schedule, 4 * num_ranks * (num_ranks + extra_elements), cluster))
        for once, each in itertools.pairwise(timelines):
            assert (once.lanes, once.kinds) == (each.lanes, each.kinds)
            for column in ("rank", "lane", "kind", "item"):
                assert getattr(once, column).tolist() == getattr(each, column).tolist(), (name, num_ranks, column)
            assert once.start_s == pytest.approx(each.start_s, rel=1e-9, abs=1e-15)
            assert once.stop_s == pytest.approx(each.stop_s, rel=1e-9, abs=1e-15)
