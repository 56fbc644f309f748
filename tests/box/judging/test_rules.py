"""Each rule speaks of its case, published or made up, and of no machine that is as it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rankscope.box import Profile, bank
from rankscope.box.judging.expected import Box, compare_with_peers
from rankscope.box.judging.hardware import gpu_of
from rankscope.box.judging.rules import findings
from rankscope.box.machines import is_sick, provenances
from rankscope.box.points import Point, busbw_factor

PUBLISHED = {  # the sick, its healthy twin, the rule, and figures that its sentence has
    "peer-to-peer off": ("runpod_a100_2_no_p2p", "runpod_a100_2", "p2p_off", ("13.6 GB/s", "187 GB/s", "7 %")),
    "no plug-in": ("alps_gh200_2x4_no_plugin", "alps_gh200_2x4", "sockets", ("5.41 GB/s", "123 GB/s", "4 %")),
    "no GPUDirect": ("v100_25gbe_2x1_no_gdr", "abci_v100_2x4", "no_gpudirect", ("1.74 GB/s",)),
    "8 nodes": ("abci_a100_8x8", "abci_a100_4x8", "unexplained", ("15.2 GB/s", "26.4 GB/s to 31.3 GB/s")),
}
SIZES = tuple(2**power for power in range(10, 31))


def found(profile: Profile, peers: Mapping[str, Profile] | None = None) -> dict[str, str]:
    return {finding.rule: finding.sentence for finding in findings(compare_with_peers(profile, peers))}


def faults(profile: Profile, peers: Mapping[str, Profile] | None = None) -> set[str]:
    return {finding.rule for finding in findings(compare_with_peers(profile, peers)) if finding.is_fault}


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_rule_speaks_of_its_published_case_and_not_of_the_healthy_twin(case: str) -> None:
    sick, healthy, rule, figures = PUBLISHED[case]
    profile = Profile.load(f"bank:{sick}")
    sentence = next(one.sentence for one in findings(compare_with_peers(profile)) if one.rule == rule)
    assert all(figure in sentence for figure in figures), sentence
    assert faults(profile) == {rule}
    assert rule not in found(Profile.load(f"bank:{healthy}"))


def test_nothing_is_wrong_with_the_healthy_machines_of_the_bank() -> None:
    healthy = [name for name in bank() if not is_sick(provenances()[name])]
    results = {name: found(Profile.load(f"bank:{name}")) for name in healthy}
    names = {"reaches", "fine", "nothing_to_compare"}
    assert {name: rules for name, rules in results.items() if not set(rules) <= names} == {}
    assert sum("reaches" in rules for rules in results.values()) >= 20
    assert sum("fine" in rules for rules in results.values()) >= 8


def test_the_sick_machines_of_the_bank_have_a_fault() -> None:
    """Nothing says what the L40S's PCIe should reach next to that of eight, and no rule judges pairs of nodes."""
    sick = {name for name in bank() if is_sick(provenances()[name])}
    healthy = {name for name in sick if not faults(Profile.load(f"bank:{name}"))}
    assert {name for name in healthy if "pairs" not in name} == {"l40s_8"}


# ---- machines made up


def made(alpha_s: float, busbw: float, nodes: int = 2, each: int = 4, what: str = "allreduce", **said: Any) -> Profile:
    number = nodes * each
    about = {"name": "made up", "backend": "nccl", "num_ranks": number, "num_nodes": nodes}
    about |= {"ranks_per_node": [each] * nodes, "gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * number, **said}
    by = busbw_factor(what, number)
    options = {"algorithm": "native", "in_place": True}
    points = [Point(what, size, (alpha_s + size * by / busbw,), (True,), options) for size in SIZES]
    return Profile(about, {}, points)


def h100(busbw: float, nodes: int = 2, each: int = 8, **said: Any) -> Profile:
    return made(30e-6, busbw, nodes, each, gpus=[{"name": "NVIDIA H100 80GB HBM3"}], **said)


HEALTHY = made(25e-6, 36.8e9)
NODE = made(20e-6, 200e9, nodes=1, each=8)
ONE_CARD = "NET/IB, card mlx5_0"
EIGHT = "NCCL_IB_HCA=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"
WITH_PEERS = {  # a profile, similar machines, and the rules that speak
    "sockets by figures": (made(80e-6, 4.3e9), HEALTHY, ["sockets"]),
    "peer-to-peer by its variable": (made(27e-6, 12e9, environment="NCCL_P2P_DISABLE=1"), HEALTHY, ["p2p_off"]),
    "all is well": (made(26e-6, 35e9), HEALTHY, ["reaches"]),
    "a third of the rate": (made(25e-6, 36.8e9 / 2.83), HEALTHY, ["unexplained"]),
    "sockets, as profiles stored them": (made(35e-6, 20e9, network="Socket"), HEALTHY, ["sockets"]),
    "sockets": (made(35e-6, 20e9, network="NET/Socket, SHM"), HEALTHY, ["p2p_off", "sockets"]),
    "peer-to-peer at the rate of PCIe": (made(20e-6, 20e9, 1, 8, network="P2P"), NODE, ["nvlink_unused"]),
    "InfiniBand at the rate of sockets": (made(80e-6, 4.3e9, network="NET/IB"), HEALTHY, ["unexplained"]),
    "one card, as others have": (made(25e-6, 24e9, network=ONE_CARD), made(25e-6, 24e9), ["reaches"]),
    "GPUDirect for some pairs": (
        made(35e-6, 20e9, network="NET/IB, GPU Direct RDMA Enabled, GPU Direct RDMA Disabled"),
        HEALTHY,
        ["unexplained"],
    ),
    "small sizes at twice the time": (made(50e-6, 36.8e9), HEALTHY, ["reaches"]),
}
ALONE: dict[str, tuple[Profile, str]] = {  # without similar machines: a profile, and the rule that speaks first
    "one card for eight GPUs": (h100(46.8e9, network=ONE_CARD), "few_cards"),
    "one card, but more than it carries": (h100(300e9, network=ONE_CARD), "fine"),
    "eight cards at the rate of one": (h100(46.8e9, environment=EIGHT), "few_cards"),
    "eight cards of 200 Gbit/s": (h100(180e9, environment=EIGHT), "nothing_to_compare"),
    "cards by the beginning of their names": (h100(46.8e9, environment="NCCL_IB_HCA=mlx5"), "nothing_to_compare"),
    "cards with stated rates": (h100(370e9, network="card mlx5_0 400 Gbit/s, " * 8), "fine"),
    "cards at half of their stated rates": (h100(190e9, network="card mlx5_0 400 Gbit/s, " * 8), "few_cards"),
    "more cards than GPUs": (
        h100(200e9, network=", ".join(f"card rdmap{i}s6" for i in range(32))),
        "nothing_to_compare",
    ),
    "a bridge that the model does not tell": (
        made(30e-6, 220e9, 1, 2, gpus=[{"name": "NVIDIA H100 PCIe"}]),
        "fine",
    ),
    "one GPU a node": (h100(48e9, each=1, environment="NCCL_IB_HCA=mlx5_0,mlx5_3"), "fine"),
    "paths without GPUDirect": (h100(20e9, network="NET/IB, paths without GDRDMA: 4"), "no_gpudirect"),
    "sockets": (h100(5e9, network="NET/Socket"), "sockets"),
    "InfiniBand forbidden": (h100(5e9, environment="NCCL_IB_DISABLE=1"), "sockets"),
    "InfiniBand forbidden, and another network": (
        h100(5e9, network="NET/OFI", environment="NCCL_IB_DISABLE=1"),
        "nothing_to_compare",
    ),
    "one of eight listed cards": (h100(46.8e9, network=ONE_CARD, environment=EIGHT), "few_cards"),
    "peer-to-peer off": (h100(13e9, 1, environment="NCCL_P2P_DISABLE=1"), "p2p_off"),
    "peer-to-peer not off": (h100(150e9, 1, environment="NCCL_P2P_DISABLE=0 NCCL_P2P_LEVEL=1"), "nothing_to_compare"),
    "host memory by figures": (h100(13e9, 1), "nvlink_unused"),
    "NVLink unused": (h100(20e9, 1, network="P2P"), "nvlink_unused"),
    "NVLink": (h100(350e9, 1), "fine"),
    "too fast for host memory": (h100(48e9, 1), "nothing_to_compare"),
    "more than NVLS can": (h100(950e9, 1), "impossible"),
    "A100s, whose switches do not reduce": (made(20e-6, 420e9, 1, 8), "impossible"),
    "a V100 pair with one link": (
        made(20e-6, 22e9, 1, 2, gpus=[{"name": "Tesla V100-SXM2-16GB"}]),
        "nothing_to_compare",
    ),
    "unknown GPUs": (made(25e-6, 1e9, gpus=[{"name": "A card of tomorrow"}] * 8), "nothing_to_compare"),
    "ranks that share a GPU": (h100(5e9, source={"notes": "inferred; fault: 4 ranks share a GPU"}), "stated_fault"),
}


@pytest.mark.parametrize("case", WITH_PEERS)
def test_figures_and_the_log_decide_next_to_similar_machines(case: str) -> None:
    profile, other, rules = WITH_PEERS[case]
    assert list(found(profile, {"others": other})) == rules


@pytest.mark.parametrize("case", ALONE)
def test_the_log_and_the_hardware_decide_without_similar_machines(case: str) -> None:
    profile, rule = ALONE[case]
    first = findings(Box(profile, {}))[0]
    assert first.rule == rule, first.sentence
    assert first.is_fault == (rule not in ("fine", "nothing_to_compare"))


def test_a_rule_that_speaks_states_the_figures() -> None:
    one = found(ALONE["one card for eight GPUs"][0], {})["few_cards"]
    assert "8 GPUs" in one
    assert "1 network card" in one
    assert "94 %" in one
    eight = found(ALONE["eight cards at the rate of one"][0], {})["few_cards"]
    assert "8 network cards" in eight
    assert "12 %" in eight
    assert "46.8 GB/s at 1 GiB" in eight.replace("allreduce at 1 GiB reaches 46.8 GB/s", "46.8 GB/s at 1 GiB")
    doubtful = found(h100(13e9), {})["nothing_to_compare"]
    assert "one network card of 400 Gbit/s" in doubtful
    small = Profile(NODE.provenance, {}, NODE.points[:10])
    assert "no buffer of 16 MiB or more was measured both here" in found(small, {"others": NODE})["nothing_to_compare"]


@pytest.mark.parametrize("network", ["NET/Socket", "GPU Direct RDMA Disabled, NET/IB", ONE_CARD])
def test_a_network_that_a_log_names_is_no_cause_unless_there_are_several_nodes(network: str) -> None:
    one_node = made(80e-6, 4.3e9, nodes=1, each=8, network=network)
    about = {name: value for name, value in one_node.provenance.items() if name not in ("num_nodes", "ranks_per_node")}
    for profile in (one_node, Profile(about, {}, one_node.points)):
        for others in ({}, {"others": HEALTHY}):
            assert not {"sockets", "no_gpudirect", "few_cards"} & set(found(profile, others))


def test_sizes_in_a_row_that_take_equally_long_are_a_stall() -> None:
    def said(times_s: dict[int, float]) -> dict[str, str]:
        options = {"algorithm": "native"}
        points = [Point("allreduce", size, (time_s,), (True,), options) for size, time_s in times_s.items()]
        return found(Profile(HEALTHY.provenance, {}, points), {})

    line = {size: 1e-4 + size / 10e9 for size in (*SIZES[:10], *range(2**24, 2**25, 2**19))}
    assert "from 32 KiB to 128 KiB" in said(line | dict.fromkeys(SIZES[5:8], 70e-3))["stall"]
    assert list(said(line | {SIZES[5]: line[2**24 + 2**20]}))[1:] == ["falls"]  # one is disturbed


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert found(Profile(HEALTHY.provenance, {}, ())) == {}
    assert found(made(25e-6, 1e9, backend="gloo")) == {}  # ranks on CPUs have no links


# ---- what is known of a machine


def test_networks_of_another_kind_and_other_nodes_are_no_measure() -> None:
    def peers(**about: Any) -> set[str]:
        return {name.removeprefix("bank:") for name in compare_with_peers(made(25e-6, 1e9, each=8, **about)).peers}

    assert peers() == {"abci_a100_2x8", "aws_p4d_2x8"}
    assert peers(network="AWS Libfabric") == {"aws_p4d_2x8"}
    assert peers(nodes=8) == {"abci_a100_4x8", "abci_a100_16x8"}
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
        ("", ""),
    ],
)
def test_a_gpu_is_known_by_its_model(name: str, model: str) -> None:
    assert gpu_of({"gpus": [{"name": name}]}) == model
    assert gpu_of({"gpus": [{"name": name}, {"name": "another"}]}) == ""
