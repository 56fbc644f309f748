"""An independent simulator agrees, once told to leave out its own corrections for TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate

from .simgrid import MISSING, build_peer, run_peer

pytestmark = pytest.mark.oracle

CLUSTERS = {
    "alike": Cluster.uniform(16, Link(1e-4, 1e8)),
    "nodes": Cluster(4, 4, Link(2e-5, 1e9), Link(1e-4, 1e8)),
}
ALGORITHMS = [
    "ring",
    "recursive_doubling",
    "halving_doubling",
    "binomial_tree",
    "torus_2d",
    "double_binary_tree",
    "swing",
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = build_peer(tmp_path_factory.mktemp("simgrid"))
    if program is None:
        pytest.skip(MISSING)
    return program


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("links", CLUSTERS)
def test_simgrid_agrees(peer: Path, name: str, links: str) -> None:
    schedule, cluster = build("allreduce", name, 16), CLUSTERS[links]
    for num_bytes in (16_384, 16_777_216):
        theirs, _ = run_peer(peer, schedule, num_bytes, cluster)
        assert simulate(schedule, num_bytes, cluster).makespan_s == pytest.approx(theirs, rel=0.02)


def test_the_comparison_can_fail(peer: Path) -> None:
    schedule = build("allreduce", "ring", 16)
    theirs, _ = run_peer(peer, schedule, 16_384, CLUSTERS["alike"])
    later = Cluster.uniform(16, Link(2e-4, 1e8))
    assert simulate(schedule, 16_384, later).makespan_s != pytest.approx(theirs, rel=0.02)
