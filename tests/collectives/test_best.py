"""Which algorithm is fastest, with which of its options; and what a record that you add needs."""

from __future__ import annotations

import random
from importlib import import_module

import numpy as np
import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import (
    ALGORITHMS,
    Algorithm,
    Schedule,
    Step,
    best,
    build,
    simulate,
    verify,
)

from .cases import built

LINK = Link(5e-6, 10e9)


def test_small_messages_are_for_latency_and_large_ones_for_bandwidth() -> None:
    cluster = Cluster.uniform(16, LINK)
    assert best(256, cluster).algorithm == "recursive_doubling"
    assert best(256, cluster).seconds == pytest.approx(4 * LINK.seconds(256))
    large = best(1e9, cluster)
    assert large.algorithm in {"halving_doubling", "swing"}
    assert large.seconds == pytest.approx(8 * 5e-6 + 2 * 15 / 16 * 0.1)
    assert large.bound_s == pytest.approx(2 * 15 / 16 * 0.1)
    assert best(1e9, Cluster.uniform(13, LINK)).algorithm in {"ring", "bidirectional_ring", "torus_2d"}  # 13 is no 2^k
    assert best(1e9, Cluster.uniform(13, LINK), algorithms=["halving_doubling", "ring"]).margin > 0.4


@pytest.mark.parametrize("cluster", [Cluster.uniform(6, LINK, 1e-11), Cluster(2, 4, Link(2e-6, 300e9), LINK, 1e-11)])
@pytest.mark.parametrize("size", [0.0, 1e4, 1e7])
def test_every_candidate_takes_what_its_schedule_takes(cluster: Cluster, size: float) -> None:
    """The closed forms that `best` reads are those of the schedules with the very options that it names."""
    ranking = best(size, cluster)
    names = {name for name in ALGORITHMS["allreduce"] if built("allreduce", name, cluster.num_ranks)}
    assert {candidate.algorithm for candidate in ranking.candidates} == names
    times = [candidate.seconds for candidate in ranking.candidates]
    assert times == pytest.approx(sorted(times), rel=1e-9)
    assert times[0] >= ranking.bound_s
    for name, options, seconds in ranking.candidates:
        schedule = build("allreduce", name, cluster.num_ranks, **options)
        assert simulate(schedule, size, cluster).makespan_s == pytest.approx(seconds, rel=1e-9)


def test_shapes_follow_the_nodes() -> None:
    ranking = best(1e8, Cluster(3, 4, Link(2e-6, 300e9), LINK))
    options = {candidate.algorithm: candidate.options for candidate in ranking.candidates}
    assert options["torus_2d"] == {"shape": (3, 4)}
    assert options["hierarchical_ring"] == {"gpus_per_node": 4}
    assert ranking.algorithm == "torus_2d"
    cube = best(1e8, Cluster(4, 3, Link(2e-6, 300e9), LINK), algorithms=["torus_3d"])
    assert cube.candidates[0].options == {"shape": (2, 2, 3)}  # the last axis stays in the nodes


def random_cluster(rng: random.Random) -> Cluster:
    """Up to 6 nodes of up to 3 ranks."""

    def link() -> Link:
        return Link(rng.choice([0.0, 1e-6, 1e-4, 1.0]), rng.choice([1e9, 10e9, 200e9]))

    nodes, gpus = rng.randint(1, 6), rng.choice([1, 1, 2, 3])
    intra = link()
    inter = rng.choice([intra, link(), link()])
    gamma, ports = rng.choice([0.0, 1e-11]), rng.choice([1, 1, 2, None])
    return Cluster(nodes, gpus, intra, inter, gamma, ports, rng.random() < 0.5, rng.random() < 0.5)


@pytest.mark.oracle
def test_times_are_those_of_simulate_and_nothing_beats_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("rankscope.collectives.best")
    monkeypatch.setattr(module, "_MOST_SIMULATED", 32)  # it takes long to simulate many segments
    rng = random.Random(0)
    for _ in range(300):
        cluster = random_cluster(rng)
        collective = rng.choice(["allreduce"] * 8 + list(ALGORITHMS))
        size = rng.choice([0.0, 1e3, 1e7])
        ranking = best(size, cluster, collective)
        assert ranking.seconds >= ranking.bound_s * (1 - 1e-12)
        for name, options, seconds in ranking.candidates:
            schedule = build(collective, name, cluster.num_ranks, **options)
            assert simulate(schedule, size, cluster).makespan_s == pytest.approx(seconds, rel=1e-9, abs=0)


def test_a_switch_that_adds_has_algorithms_of_its_own() -> None:
    link = Link(1e-6, 450e9)
    for nodes, gpus, own in ((1, 4, {"nvls"}), (2, 4, {"nvls_tree"}), (4, 1, set()), (1, 1, {"nvls"})):
        rankings = [best(1e9, Cluster(nodes, gpus, link, link, switch_adds=adds)) for adds in (False, True)]
        without, names = ({candidate.algorithm for candidate in ranking.candidates} for ranking in rankings)
        assert names - without == own
    assert best(1e9, Cluster(1, 8, link, link, switch_adds=True)).algorithm == "nvls"
    assert best(1e9, Cluster(1, 2, link, link, switch_adds=True)).algorithm != "nvls"  # two have nothing to merge


# ---- records that you add


def test_an_algorithm_for_three_ports_without_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a group of four exchange whole sums in a step of three messages each; for powers of four only."""

    def in_fours(num_ranks: int, num_segments: int = 1) -> Schedule:
        if 4 ** (num_ranks.bit_length() // 2) != num_ranks:
            raise ValueError(f"num_ranks must be a power of four, got {num_ranks}")
        ranks = np.arange(num_ranks)
        steps = []
        for distance in 4 ** np.arange(num_ranks.bit_length() // 2):
            peers = [ranks ^ (place * distance) for place in (1, 2, 3)]
            steps.append(Step.of(np.tile(ranks, 3), np.concatenate(peers), 0, num_segments, reduce=True))
        return Schedule("allreduce", "mine", num_ranks, num_segments, steps, ports=3)

    nodes = Cluster(3, 4, Link(2e-6, 300e9), LINK)
    record = Algorithm(in_fours, segments=(1, 2), arrange=lambda cluster: None if cluster == nodes else {})
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", record)
    assert verify(build("allreduce", "mine", 64)).most_sends == 3
    cluster = Cluster.uniform(64, LINK, ports=3)
    ranking = best(8.0, cluster, algorithms=["mine", "recursive_doubling"])
    assert ranking.candidates[0] == ("mine", {"num_segments": 1}, pytest.approx(3 * LINK.seconds(8.0)))
    for other in (nodes, Cluster.uniform(12, LINK)):
        assert "mine" not in [candidate.algorithm for candidate in best(8.0, other).candidates]
