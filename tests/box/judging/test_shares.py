"""The verdict on machines of the bank, on these at half their rate, and on machines made up; stated causes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rankscope.box import Profile, bank, nccl, verdict
from rankscope.box.judging.hardware import gpu_of
from rankscope.box.judging.peers import peers_of
from rankscope.box.judging.shares import EXPECTED, HEALTHY, LOW, UNKNOWN, shares
from rankscope.box.judging.verdict import fall, judge
from rankscope.box.machines import is_sick, provenances
from rankscope.box.points import Point, busbw_factor
from tests.benchmarks.shares import calibrated, left_out, tables

SIZES = tuple(2**power for power in range(10, 31))
VERDICTS = {EXPECTED, LOW, UNKNOWN}


def kinds(profile: Profile) -> list[str]:
    return [finding.kind for finding in judge(profile)]


# ---- the bank


def test_no_healthy_machine_of_the_bank_is_accused_and_sick_ones_are() -> None:
    found = {name: set(kinds(Profile.load(f"bank:{name}"))) for name in bank()}
    healthy = {name for name in found if not is_sick(provenances()[name])}
    assert {name: found[name] for name in healthy if found[name] - {EXPECTED, UNKNOWN}} == {}
    assert sum(EXPECTED in found[name] for name in healthy) >= 30
    assert found["runpod_a100_2_no_p2p"] == {"p2p_off", LOW}
    assert found["v100_25gbe_2x1_no_gdr"] == {"no_gpudirect", UNKNOWN}
    assert found["alps_gh200_2x4_no_plugin"] == {LOW}, "by its peer: its log says nothing about the network"


@pytest.mark.slow
def test_the_bands_are_those_of_the_bank_and_hold_for_each_source_that_is_left_out() -> None:
    known = tables()
    assert calibrated(known) == HEALTHY
    verdicts = left_out(known)
    healthy = sum((counts for what, counts in verdicts.items() if ": healthy" in what), start=Counter[str]())
    assert healthy.total() > 200
    assert healthy[LOW] == 0
    halved = verdicts["NVLink: half of a healthy rate, as logged"]
    halved += verdicts["network: half of a healthy rate, cards stated"]
    assert halved[LOW] >= 0.9 * halved.total()
    assert halved[EXPECTED] == 0


# ---- machines made up


def made(
    busbw: float, nodes: int = 1, each: int = 8, gpu: str = "H100", what: str = "allreduce", **said: Any
) -> Profile:
    """Return a machine whose large buffers reach a busbw, or messages an algbw, in bytes/s."""
    number = nodes * each
    about = {"name": "made up", "backend": "nccl", "num_ranks": number, "num_nodes": nodes}
    about |= {"ranks_per_node": [each] * nodes, "gpus": [{"name": f"NVIDIA {gpu}"}] * number, **said}
    factor = busbw_factor(what, number)
    options: dict[str, Any] = {"link": "intra"} if what == "together" else {"algorithm": "native", "in_place": True}
    points = [Point(what, size, (20e-6 + size * factor / busbw,), (True,), options) for size in SIZES]
    return Profile(about, {}, points)


def cards(number: int, gbits: int = 0) -> str:
    return ", ".join(f"card mlx5_{card}{f' {gbits} Gbit/s' if gbits else ''}" for card in range(number))


MADE: dict[str, tuple[Profile, str, float]] = {  # a machine, the verdict, and the first limit that it states in GB/s
    "NVLS exceeds the NVLinks": (made(480e9), EXPECTED, 450),
    "half of that": (made(240e9), LOW, 450),
    "rings without NVLS": (made(365e9), EXPECTED, 450),
    "more than NVLS can": (made(950e9), UNKNOWN, 450),
    "switches of A100s do not add": (made(420e9, gpu="A100-SXM4-40GB"), UNKNOWN, 300),
    "the rate of PCIe": (made(20e9, each=2), LOW, 150),
    "two GPUs of four on a board": (made(120e9, each=2), UNKNOWN, 150),
    "GPUs that nobody knows": (made(1e9, gpu="A card of tomorrow"), UNKNOWN, 0),
    "a pair with one link of a mesh": (made(22e9, each=2, gpu="Tesla V100-SXM2-16GB"), UNKNOWN, 150),
    "all to all on a mesh": (made(20e9, gpu="Tesla V100-SXM2-16GB", what="all_to_all"), UNKNOWN, 150),
    "bridges": (made(240e9, each=2, gpu="H100 PCIe"), EXPECTED, 300),
    "PCIe": (made(12e9, each=4, gpu="L40S"), EXPECTED, 29.2),
    "slow PCIe, of which few machines are known": (made(3e9, each=4, gpu="L40S"), UNKNOWN, 29.2),
    "eight cards of stated rates": (made(370e9, 2, network=cards(8, 400)), EXPECTED, 400),
    "half of these": (made(190e9, 2, network=cards(8, 400)), LOW, 400),
    "eight cards at the rate of one": (made(46.8e9, 2, network=cards(8)), LOW, 100),
    "eight cards of some rate": (made(180e9, 2, network=cards(8)), UNKNOWN, 200),
    "four cards of some rate": (made(86e9, 2, gpu="A100-SXM4-80GB", network=cards(4)), EXPECTED, 100),
    "messages, of which few tables are known": (made(13e9, 2, 1, what="together", network=cards(1, 400)), UNKNOWN, 50),
    "all to all exceeds a card": (made(88e9, 2, what="all_to_all", network=cards(8, 400)), EXPECTED, 93.75),
    "half of all to all": (made(44e9, 2, what="all_to_all", network=cards(8, 400)), LOW, 93.75),
    "a tree on two nodes exceeds the cards": (made(95e9, 2, network=cards(1, 400)), EXPECTED, 50),
    "more than the cards carry": (made(120e9, 2, network=cards(1, 400)), UNKNOWN, 50),
    "one GPU on each node, and two cards": (made(48e9, 2, 1, network=cards(2, 400)), EXPECTED, 50),
    "no word about the network": (made(5e9, 2), UNKNOWN, 12.5),
    "sockets, of whatever rate": (made(5e9, 2, network="NET/Socket"), UNKNOWN, 0),
    "NVLink across nodes": (made(800e9, 18, 4, "GB200"), EXPECTED, 900),
    "not across so many": (made(800e9, 20, 4, "GB200"), UNKNOWN, 200),
}


@pytest.mark.parametrize("name", MADE)
def test_a_verdict_states_the_limit(name: str) -> None:
    profile, expected, limit = MADE[name]
    (share,) = shares(profile)
    assert share.verdict == expected, str(share)
    first = share.shown[0].rate if share.limits else 0
    assert first / 1e9 == pytest.approx(limit, rel=0.01), str(share)


def test_small_buffers_accuse_nobody() -> None:
    slow = made(240e9)
    small = Profile(slow.provenance, {}, [point for point in slow.points if point.num_bytes < 2**27])
    assert kinds(small) == [UNKNOWN]
    assert "128 MiB" in verdict(small)[0]


def topology(*rows: str) -> nccl.Topology:
    return nccl.Topology([row.split() for row in rows], [])


def test_a_topology_says_which_links_there_are() -> None:
    bridged = topology("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")
    board = topology(*[" ".join("X" if one == two else "NV4" for two in range(4)) for one in range(4)])
    for links, each, limits in ((board, 2, [100]), (board, 4, [300]), (bridged, 4, [29.2]), (bridged, 2, [29.2, 100])):
        (share,) = shares(made(25e9, each=each, gpu="A100-SXM4-40GB"), links)
        assert [limit.rate / 1e9 for limit in share.limits] == pytest.approx(limits, rel=0.01)
    assert shares(made(45e9, each=4, gpu="A100-SXM4-40GB"), board)[0].verdict == LOW


# ---- causes


CAUSES: dict[str, tuple[Profile, list[str]]] = {
    "one card for eight GPUs": (made(46.8e9, 2, network=f"NET/IB, {cards(1)}"), ["one_card", EXPECTED]),
    "one of eight listed cards": (
        made(46.8e9, 2, network=cards(1), environment="NCCL_IB_HCA=mlx5_0,mlx5_3"),
        ["one_card", EXPECTED],
    ),
    "paths without GPUDirect": (made(20e9, 2, network="NET/IB, paths without GDRDMA: 4"), ["no_gpudirect", UNKNOWN]),
    "GPUDirect for some pairs": (
        made(370e9, 2, network="NET/IB, GPU Direct RDMA Enabled, GPU Direct RDMA Disabled"),
        [EXPECTED],
    ),
    "sockets and host memory": (made(5e9, 2, network="NET/Socket, SHM"), ["p2p_off", "sockets", UNKNOWN]),
    "InfiniBand forbidden": (made(5e9, 2, environment="NCCL_IB_DISABLE=1"), ["sockets", UNKNOWN]),
    "InfiniBand forbidden, and another network": (
        made(370e9, 2, network="NET/OFI", environment="NCCL_IB_DISABLE=1"),
        [EXPECTED],
    ),
    "peer-to-peer off": (made(13e9, environment="NCCL_P2P_DISABLE=1"), ["p2p_off", LOW]),
    "peer-to-peer not off": (made(365e9, environment="NCCL_P2P_DISABLE=0 NCCL_P2P_LEVEL=1"), [EXPECTED]),
    "ranks that share a GPU": (
        made(5e9, source={"notes": "inferred; fault: 4 ranks share a GPU"}),
        ["stated_fault", LOW],
    ),
    "a network that one node does not use": (made(365e9, network="NET/Socket, card mlx5_0"), [EXPECTED]),
}


@pytest.mark.parametrize("name", CAUSES)
def test_what_a_log_states_comes_first(name: str) -> None:
    profile, expected = CAUSES[name]
    assert kinds(profile) == expected


# ---- sizes at which a rate falls


def falling(factor: float, sizes: tuple[int, ...]) -> dict[int, float]:
    return {size: 400e9 * (factor if size in sizes else 1.0) for size in SIZES}


def test_a_rate_that_falls_by_half_and_stays_there_is_stated() -> None:
    assert fall(falling(0.55, SIZES[-2:])) == [(SIZES[-3], SIZES[-2])]
    assert fall(falling(0.55, SIZES[-1:])) == [], "one size is disturbed"
    assert fall(falling(0.55, SIZES[5:8])) == [], "it recovers"
    assert fall(falling(0.7, SIZES[-4:])) == []
    assert fall({}) == []


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert kinds(Profile(made(1e9).provenance, {}, ())) == []
    assert kinds(made(1e9, backend="gloo")) == []  # ranks on CPUs have no links


# ---- what is known of a machine


def test_machines_of_other_gpus_or_nodes_are_no_peers() -> None:
    def peers(nodes: int = 2, **about: Any) -> set[str]:
        return {name.removeprefix("bank:") for name in peers_of(made(1e9, nodes, 8, "A100-SXM4-40GB", **about))}

    assert peers() == {"abci_a100_2x8", "aws_p4d_2x8"}
    assert peers(nodes=4) == {"abci_a100_4x8"}
    assert not peers(nodes=64)
    assert not peers(gpus=[])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIE"),
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("", ""),
    ],
)
def test_a_gpu_is_known_by_its_model(name: str, model: str) -> None:
    assert gpu_of({"gpus": [{"name": name}]}) == model
    assert gpu_of({"gpus": [{"name": name}, {"name": "another"}]}) == ""
