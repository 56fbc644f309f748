"""Expected, got, why: each rule speaks of its published case, and of no machine that is as it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest

from rankscope.box import Profile, bank, verdict
from rankscope.box.expected import PeerComparison, compare_with_peers, gpu_of, is_like
from rankscope.box.machines import is_sick, provenances
from rankscope.box.profile import Point, busbw_factor
from rankscope.cli import main

CASES = {  # the sick, its healthy twin, the rule, and figures that its sentence has
    "peer-to-peer off": ("runpod_a100_2_no_p2p", "runpod_a100_2", "p2p_off", ("13.6 GB/s", "187 GB/s", "7 %")),
    "no plug-in": ("alps_gh200_2x4_no_plugin", "alps_gh200_2x4", "plug_in_missing", ("5.41 GB/s", "123 GB/s", "4 %")),
    "no GPUDirect": ("v100_25gbe_2x1_no_gdr", "abci_v100_2x4", "no_gpudirect", ("2.16 GB/s",)),
    "pairs of 8": ("h100_fleet_a_pairs_2x8", "h100_fleet_b_pairs_2x8", "degraded_pair", ("50 of 131 pairs", "7.62")),
    "pairs of 1": ("h100_fleet_a_pairs_2x1", "h100_fleet_b_pairs_2x1", "degraded_pair", ("8 of 134 pairs", "27 GB/s")),
    "8 nodes": ("abci_a100_8x8", "abci_a100_4x8", "degraded_node", ("15.2 GB/s", "26.4 GB/s to 31.3 GB/s")),
    "NCCL 2.29 on 8": ("b200_8", "b200_nccl_2_28_8", "switch_costs", ("166 GB/s at 8 MiB", "141 GB/s", "276 GB/s")),
    "NCCL 2.29 on 4": ("b200_4", "b200_nccl_2_28_4", "switch_costs", ("176 GB/s at 4 MiB", "148 GB/s", "259 GB/s")),
    "NVLS": ("dgx_h100_8", "h100_fleet_4", "switch_adds", ("480 GB/s", "450 GB/s")),
    "latency": ("snellius_h100_4", "h100_4", "slow_start", ("allgather takes 2.3 times as long", "32 KiB")),
}
OBSERVATIONS = {"switch_adds", "slow_start"}  # rules that report no fault
SWITCHES = {"b200_8", "b200_4"}  # healthy, and by NCCL's choice slow at a few sizes


def found(profile: Profile, peers: Mapping[str, Profile] | None = None) -> dict[str, str]:
    return {finding.rule: finding.sentence for finding in compare_with_peers(profile, peers).findings}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_speaks_of_its_published_case_and_not_of_the_healthy_twin(case: str) -> None:
    sick, healthy, rule, figures = CASES[case]
    one = compare_with_peers(Profile.load(f"bank:{sick}"))
    (finding, *_) = [finding for finding in one.findings if finding.rule == rule]
    assert all(figure in finding.sentence for figure in figures), finding.sentence
    assert finding.is_fault == (rule not in OBSERVATIONS)
    assert {f.rule for f in one.findings if f.is_fault} <= {rule}
    assert rule not in found(Profile.load(f"bank:{healthy}"))
    assert f"{finding.sentence} (rule {rule})" in verdict(one.profile)


def test_nothing_is_wrong_with_the_healthy_machines_of_the_bank() -> None:
    healthy = [name for name in bank() if not is_sick(provenances()[name]) and name not in SWITCHES]
    boxes = {name: compare_with_peers(Profile.load(f"bank:{name}")) for name in healthy}
    assert {name: f for name, box in boxes.items() for f in box.findings if f.is_fault} == {}
    # Each of these has others to be compared with.
    assert sum(box.worst.row is not None for box in boxes.values()) >= 20
    assert sum("reaches" in {f.rule for f in box.findings} for box in boxes.values()) >= 20


def test_none_is_beside_itself_or_beside_a_sick_one() -> None:
    for name in bank():
        profile = Profile.load(f"bank:{name}")
        again = Profile({**profile.provenance, "name": "read anew"}, profile.protocol, profile.points[::-1])
        for box in (compare_with_peers(profile), compare_with_peers(again)):
            assert name not in box.peers
            assert not any(is_sick(peer.provenance) for peer in box.peers.values())


# ---- machines made up: two nodes of four GPUs, under five settings


def made(alpha_s: float, busbw: float, nodes: int = 2, each: int = 4, **said: object) -> Profile:
    number = nodes * each
    about = {"name": "made up", "backend": "nccl", "num_ranks": number, "num_nodes": nodes}
    about |= {"ranks_per_node": [each] * nodes, "gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * number, **said}
    by = busbw_factor("allreduce", number)
    points = [
        Point("allreduce", size, (alpha_s + size * by / busbw,), (True,), {"algorithm": "native", "in_place": True})
        for size in (2**power for power in range(10, 29))
    ]
    return Profile(about, {}, points)


HEALTHY = made(25e-6, 36.8e9)
SETTINGS = {
    "plug_in_missing": made(80e-6, 4.3e9),
    "no_gpudirect": made(35e-6, 20e9),
    "one_nic": made(25e-6, 36.8e9 / 8),
    "p2p_off": made(27e-6, 12e9, environment="NCCL_P2P_DISABLE=1"),
    "reaches": made(26e-6, 35e9),
}


@pytest.mark.parametrize("rule", SETTINGS)
def test_the_same_gpus_under_five_settings_have_a_rule_each(rule: str) -> None:
    assert list(found(SETTINGS[rule], {"others": HEALTHY})) == [rule]


def test_one_card_of_two_and_of_four_are_told_apart_and_a_third_stays_unexplained() -> None:
    for cards in (2, 4, 8):
        assert f"where they use {cards}." in found(made(25e-6, 36.8e9 / cards), {"others": HEALTHY})["one_nic"]
    assert list(found(made(25e-6, 36.8e9 / 2.83), {"others": HEALTHY})) == ["unexplained"]


def test_what_a_log_says_counts_without_any_machine_to_compare_with() -> None:
    for rule, said in {
        "p2p_off": {"environment": "NCCL_P2P_DISABLE=1"},
        "plug_in_missing": {"network": "Socket, NET/Socket"},
        "no_gpudirect": {"network": "GPU Direct RDMA Disabled, NET/IB"},
    }.items():
        assert list(found(made(25e-6, 5e9, **said), {})) == [rule]
        assert rule not in found(made(25e-6, 36e9, **said), {"others": HEALTHY})


@pytest.mark.parametrize("network", ["NET/Socket", "GPU Direct RDMA Disabled, NET/IB"])
def test_a_network_that_a_log_names_is_no_cause_unless_there_are_several_nodes(network: str) -> None:
    one_node = made(80e-6, 4.3e9, nodes=1, each=8, network=network)
    about = {name: value for name, value in one_node.provenance.items() if name not in ("num_nodes", "ranks_per_node")}
    unknown_nodes = Profile(about, {}, one_node.points)
    assert unknown_nodes.num_nodes is None
    for profile in (one_node, unknown_nodes):
        for others in ({}, {"others": HEALTHY}):
            assert not {"plug_in_missing", "no_gpudirect"} & set(found(profile, others))


NODE = made(20e-6, 200e9, nodes=1, each=8)
STATED = {  # what a log states, figures that suggest something else, similar machines, and the rules that may speak
    "sockets, as profiles stored them": (made(35e-6, 20e9, network="Socket"), HEALTHY, ["plug_in_missing"]),
    "sockets": (made(35e-6, 20e9, network="NET/Socket, SHM"), HEALTHY, ["p2p_off", "plug_in_missing"]),
    "sockets of a part": (made(25e-6, 18e9, network="NET/Socket, P2P"), HEALTHY, ["plug_in_missing"]),
    "peer-to-peer": (made(20e-6, 20e9, nodes=1, each=8, network="NET/Socket, P2P"), NODE, ["unexplained"]),
    "InfiniBand": (made(80e-6, 4.3e9, network="NET/IB"), HEALTHY, ["unexplained"]),
    "GPUDirect": (
        made(35e-6, 20e9, network="NET/IB, GPU Direct RDMA Enabled, GPU Direct RDMA Disabled"),
        HEALTHY,
        ["unexplained"],
    ),
    "nothing": (made(35e-6, 20e9, network="4 × HDR200 InfiniBand"), HEALTHY, ["no_gpudirect"]),
}


@pytest.mark.parametrize("name", STATED)
def test_no_rule_contradicts_what_the_log_states(name: str) -> None:
    profile, other, rules = STATED[name]
    findings = found(profile, {"others": other})
    assert list(findings) == rules
    if profile.provenance["network"] != "4 × HDR200 InfiniBand":
        assert "nvidia-peermem" not in " ".join(findings.values())


def test_small_sizes_at_twice_the_time_are_mentioned_without_a_cause() -> None:
    findings = found(made(50e-6, 36.8e9), {"others": HEALTHY})
    assert list(findings) == ["reaches", "slow_start"]
    assert "32 KiB" in findings["slow_start"]
    assert "2.0 times" in findings["slow_start"]
    assert list(found(made(35e-6, 36.8e9), {"others": HEALTHY})) == ["reaches"]


@pytest.mark.parametrize("variable", ["NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL=0"])
def test_the_variable_that_turns_peer_to_peer_off_is_the_one_to_unset(variable: str) -> None:
    sentence = found(made(27e-6, 12e9, environment=f"NCCL_IB_HCA=mlx5 {variable}"))["p2p_off"]
    assert sentence.endswith(f" Unset {variable.partition('=')[0]}.")


def test_peer_to_peer_is_seen_to_be_off_by_the_figures_alone() -> None:
    sick = Profile.load("bank:runpod_a100_2_no_p2p")
    about = {name: one for name, one in sick.provenance.items() if name not in ("environment", "network", "source")}
    sentence = found(Profile(about, sick.protocol, sick.points))["p2p_off"]
    assert "nvidia-smi topo -m" in sentence


def copies(rate: Callable[[int, int], float]) -> Profile:
    points = [
        Point(
            "transfer",
            2**26,
            (2**26 / rate(src, dst),),
            (True,),
            {"direction": "p2p", "method": "device", "pieces": 1, "both": False, "src": src, "dst": dst},
        )
        for src, dst in product(range(8), range(8))
        if src != dst
    ]
    return Profile({"name": "made up", "backend": "nccl", "num_ranks": 8, "num_nodes": 1}, {}, points)


def test_slow_pairs_of_gpus_are_named_and_a_gpu_that_all_have_in_common() -> None:
    assert found(copies(lambda src, dst: 240e9)) == {}
    two = found(copies(lambda src, dst: 12e9 if {src, dst} in ({2, 5}, {3, 4}) else 240e9))["degraded_pair"]
    assert "4 of 56 pairs reach less than 50 % of the median 240 GB/s, the slowest 12 GB/s (2 and 5)" in two
    assert "none is in most of them" in two
    assert "3 is in 14 of them" in found(copies(lambda src, dst: 12e9 if 3 in (src, dst) else 240e9))["degraded_pair"]


def test_many_slow_pairs_without_an_end_in_common_may_be_as_built() -> None:
    """Of the eight V100s of a DGX-1, each has two NVLinks to two others, one to two more, and none to three."""

    def dgx_1(src: int, dst: int) -> float:
        apart = src ^ dst
        if src // 4 != dst // 4 and apart != 4:
            return 9e9
        return {1: 24e9, 2: 24e9, 3: 48e9, 4: 48e9}[apart]

    (finding,) = compare_with_peers(copies(dgx_1)).findings
    assert finding.rule == "degraded_pair"
    assert not finding.is_fault
    assert "24 of 56 pairs" in finding.sentence
    sick = compare_with_peers(copies(lambda src, dst: 12e9 if 3 in (src, dst) else 240e9))
    assert [found.is_fault for found in sick.findings] == [True]
    # If the box is also slow, such pairs are no cause, so it is said that none is known.
    peer = made(20e-6, 230e9, nodes=1, each=8)
    slow = made(20e-6, 100e9, nodes=1, each=8)
    with_pairs = Profile(slow.provenance, {}, [*slow.points, *copies(dgx_1).points])
    rules = {finding.rule: finding.is_fault for finding in compare_with_peers(with_pairs, {"peer": peer}).findings}
    assert rules == {"degraded_pair": False, "unexplained": True}


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert found(made(25e-6, 1e9, backend="gloo")) == {}
    assert found(made(25e-6, 1e9, gpus=[{"name": "A card of tomorrow"}] * 8)) == {}
    assert found(made(25e-6, 1e9, gpus=[])) == {}
    nameless = {name: one for name, one in HEALTHY.provenance.items() if name not in ("num_nodes", "ranks_per_node")}
    assert found(Profile(nameless, {}, HEALTHY.points)) == {}
    assert isinstance(compare_with_peers(Profile(nameless, {}, ())), PeerComparison)


def test_networks_of_another_kind_and_other_nodes_are_no_measure() -> None:
    known = set(compare_with_peers(made(25e-6, 1e9, nodes=2, each=8)).peers)
    assert {"abci_a100_2x8", "aws_p4d_2x8"} == known
    assert set(compare_with_peers(made(25e-6, 1e9, nodes=2, each=8, network="AWS Libfabric")).peers) == {"aws_p4d_2x8"}
    assert set(compare_with_peers(made(25e-6, 1e9, nodes=8, each=8)).peers) == {"abci_a100_4x8", "abci_a100_16x8"}
    assert not compare_with_peers(made(25e-6, 1e9, nodes=64, each=8)).peers


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


def test_points_in_place_count_and_pairs_of_a_fleet_do_not() -> None:
    both = Profile.load("bank:dgx_h100_8").native["allreduce"]
    assert all(point.options["in_place"] for point in both.values())
    assert Profile.load("bank:h100_fleet_b_pairs_2x8").native == {}


def test_profiles_are_compared_as_far_as_they_say_what_they_are() -> None:
    nameless = {name: one for name, one in HEALTHY.provenance.items() if name in ("name", "backend", "num_ranks")}
    assert is_like(HEALTHY, Profile(nameless, {}, HEALTHY.points))
    assert is_like(HEALTHY, made(1e-5, 1e9))
    for other in (made(1e-5, 1e9, nodes=1, each=8), made(1e-5, 1e9, backend="mpi"), made(1e-5, 1e9, each=2)):
        assert not is_like(HEALTHY, other)
    assert not is_like(HEALTHY, made(1e-5, 1e9, gpus=[{"name": "NVIDIA H100 80GB HBM3"}] * 8))


def test_a_log_is_judged_when_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(
        f"{size:12} {size // 4:11} float sum -1 {us:.2f} {size / us / 1e3:.2f} {size / us / 1e3:.2f} 0"
        f" {us:.2f} {size / us / 1e3:.2f} {size / us / 1e3:.2f} 0"
        for size, us in ((2**power, 10 + 2**power / 12e3) for power in range(20, 29))
    )
    ranks = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid   {900 + rank} on node device {rank:2} [0000:0{rank}:00] NVIDIA A100-SXM4-80GB"
        for rank in range(2)
    )
    columns = "redop root time algbw busbw #wrong time algbw busbw #wrong"
    log = tmp_path / "all_reduce.log"
    log.write_text(f"# Collective test starting: all_reduce_perf\n{ranks}\n#  size count type {columns}\n{rows}\n")
    assert main(["import", str(log)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "12 GB/s, 6 % of the 187 GB/s to 188 GB/s of bank:a100_80gb_2 and bank:runpod_a100_2" in printed
    assert "(rule p2p_off)" in printed
