"""What the executor is predicted to take: against sums by hand, the textbook's model, and measured allreduces."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate

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
PROFILES = Path(__file__).parents[2] / "notebooks" / "profiles"


def took_s(algorithm: str, num_ranks: int, num_bytes: float, cluster: Cluster) -> float:
    return simulate(build("allreduce", algorithm, num_ranks), num_bytes, cluster, executor=True).makespan_s


@pytest.mark.parametrize("algorithm", ONE_FLOW)
def test_one_message_at_a_time_takes_what_texts_say_and_one_latency_more(algorithm: str) -> None:
    """The first message waits for the ready signal; later signals always arrive before the bytes are due."""
    for num_ranks, num_bytes in itertools.product((2, 4, 8), (1024, 2**16, 2**22)):
        cluster = Cluster.uniform(num_ranks, LINK)
        texts_s = simulate(build("allreduce", algorithm, num_ranks), num_bytes, cluster).makespan_s
        assert took_s(algorithm, num_ranks, num_bytes, cluster) == pytest.approx(texts_s + LINK.alpha_s, rel=1e-9)


def test_ranks_of_a_node_share_its_card() -> None:
    for shared, times in ((False, 1), (True, 2)):
        cluster = Cluster(2, 2, Link(1e-9, 1e15), LINK, shared_nic=shared)
        expected = 2 * LINK.alpha_s + times * 1_250_000 / LINK.bytes_per_s  # ready signal and bytes
        assert took_s("recursive_doubling", 4, 1_250_000, cluster) == pytest.approx(expected, rel=1e-3)


def test_the_spans_of_a_ring_of_two() -> None:
    """The first message waits 1 s for the ready signal, takes 2 s for 8 bytes and 1 s to arrive, and 4 s to add.

    The second replaces a chunk that was just sent, so it is copied, which takes as long.
    """
    ring, cluster = build("allreduce", "ring", 2), Cluster.uniform(2, Link(1.0, 4.0), gamma_s_per_byte=0.5)
    spans = simulate(ring, 16, cluster, executor=True)
    assert [(span.lane, span.kind, span.item, span.start_s, span.stop_s) for span in spans.select(rank=0)] == [
        ("executor", "receive", 0, 0, 4),
        ("executor", "receive", 1, 8, 11),
        ("executor", "reduce", 0, 4, 8),
        ("executor", "reduce", 1, 11, 15),
    ]
    spans.check()


@pytest.mark.parametrize("num_ranks", [4, 8])
def test_measured_on_an_emulated_network(num_ranks: int) -> None:
    """A network of 100 Mbit/s and 5 ms: within 5 %, and without the ready signals more than 10 % too little."""
    box = pytest.importorskip("rankscope.box")
    measured = box.Profile.load(PROFILES / f"emulated_100mbit_5ms_{num_ranks}_ranks.json")
    worst_of_texts = 0.0
    for point in measured.select("allreduce"):
        algorithm = point.options["algorithm"]
        if algorithm in ("native", "double_binary_tree"):
            continue
        assert measured.predict(point).makespan_s == pytest.approx(point.median_s, rel=0.05), (algorithm, point)
        schedule = build("allreduce", algorithm, num_ranks, **point.builder_options)
        texts_s = simulate(schedule, point.num_bytes, measured.cluster()).makespan_s
        worst_of_texts = min(worst_of_texts, texts_s / point.median_s - 1)
    assert worst_of_texts < -0.1
