"""NCCL's model: what NCCL printed, cases worked by hand, what corrupted constants do, the terms, the log's reader."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.box import Profile, bank, nccl
from rankscope.box.nccl import constants, log
from rankscope.box.nccl import model as model_of
from rankscope.box.nccl import public as public_errors
from rankscope.box.profile import Point
from tests.benchmarks.nccl import by_command

TABLES = json.loads((Path(__file__).parent / "nccl_2_27_5_h100.json").read_text(encoding="utf-8"))
MIB = 1 << 20


def off_the_print() -> tuple[int, int]:
    """How many latencies and bandwidths are not what NCCL printed, to the printed digit."""
    latencies = bandwidths = 0
    for collective, algorithm, protocol, nodes, gpus, latency_us, gb_per_s in TABLES["rows"]:
        model = nccl.Model(gpu="h100", gpus_per_node=gpus, num_nodes=nodes, version=(2, 27, 5))
        latencies += round(model.latency_us(collective, algorithm, protocol), 1) != latency_us
        bandwidths += round(model.bandwidth(collective, algorithm, protocol), 1) != gb_per_s
    return latencies, bandwidths


def test_190_latencies_and_190_bandwidths_are_what_nccl_printed() -> None:
    assert len(TABLES["rows"]) == 190
    assert off_the_print() == (0, 0)


# ---- worked by hand

BY_HAND = [  # GPU, GPUs a node, nodes, version; collective, algorithm, protocol; latency [µs], bandwidth [GB/s]
    ("h100", 8, 1, (2, 29), "allreduce", "ring", "ll", 6.6 + 14 * 0.6, 141 * 8 / 14),
    ("h100", 8, 1, (2, 29), "allreduce", "ring", "ll128", 14 + 14 * 1.9, 0.92 * 360 * 8 / 14),
    ("h100", 8, 1, (2, 29), "allreduce", "ring", "simple", 8.4 + 14 * 3.4, 360 * 8 / 14),
    ("h100", 8, 1, (2, 29), "allgather", "ring", "simple", 8.4 + 7 * 3.4, 360 * 8 / 7),
    ("h100", 8, 1, (2, 29), "broadcast", "ring", "simple", 8.4 + 3.4, 360),
    ("h100", 8, 2, (2, 29), "broadcast", "ring", "simple", 8.4 + 16 * 14, 384),
    ("h100", 8, 1, (2, 29), "allreduce", "tree", "ll", 6.8 + 14 * 0.6, 0.92 * 360 / 3.8 / 2),
    ("h100", 8, 1, (2, 29), "allreduce", "tree", "ll128", 14 + 14 * 1.25, 0.92 * 360 * 7 / 9 / 2),
    ("h100", 8, 1, (2, 29), "allreduce", "nvls", "simple", 25, 8 * 40 * 0.85 * 7 / 8 * 2 * 8 / 14),
    ("h100", 8, 1, (2, 27), "allreduce", "nvls", "simple", 25, 8 * 40 * 5 / 6),
    ("h100", 8, 1, (2, 27), "allgather", "nvls", "simple", 25, 8 * 40),
    ("b200", 8, 1, (2, 30), "allreduce", "nvls", "simple", 25, 8 * 90 * 8 / 14),  # the switch's 90, not 80 × 0.74 × 7/4
    ("b200", 8, 1, (2, 29, 2), "allreduce", "ring", "ll128", 14 + 14 * 1.9, 16 * 34.5 * 8 / 14),
    ("h100", 8, 3, (2, 22), "allreduce", "ring", "simple", 8.4 + 40 * 3.4 + 6 * 14, 8 * 48 * 24 / 46),
    ("h100", 8, 3, (2, 23), "allreduce", "ring", "simple", 8.4 + 42 * 3.4 + 4 * 14, 8 * 48 * 24 / 46),
    ("h100", 8, 1, (2, 20), "allreduce", "nvls", "simple", 23, 8 * 40 * 5 / 6),
    ("h100", 8, 1, (2, 20), "allreduce", "ring", "ll", 6.6 + 14 * 0.6, 87.7 * 8 / 14),
    ("h100", 8, 1, (2, 20), "allreduce", "tree", "simple", 14 * 28, 0.92 * 360 / 2),
    ("a100", 8, 1, (2, 20), "allreduce", "ring", "ll", 6.6 + 14 * 0.6, 240 / 4 * 8 / 14),
    ("a100", 8, 1, (2, 20), "allgather", "ring", "ll", 6.6 + 7 * 0.6, 240 / 3 * 8 / 7),
    ("h100", 8, 2, (2, 29), "allreduce", "nvls_tree", "simple", 25 + 2 * 20.9, 8 * 57.7 * 16 / 30),
    # Four paths of 48 GB/s, for which 57.7 is the limit; of 8 paths of 80 GB/s within and 96 between nodes, 96 is.
    ("h100", 4, 2, (2, 29), "allreduce", "nvls_tree", "simple", 25 + 2 * 20.9, 4 * 57.7 * 8 / 14),
    ("b300", 8, 2, (2, 30), "allreduce", "nvls_tree", "simple", 25 + 2 * 20.9, 8 * 96 * 16 / 30),
    ("h100", 1, 4, (2, 29), "allgather", "pat", "simple", 8 + 2 * 14 / 3.5 + 2.8 * 4, 0.75 * 2 * 24),
    ("h100", 1, 2, (2, 21), "allgather", "ring", "ll128", 14 + 8.5, 0.7 * 48 * 2),
    ("h100", 1, 2, (2, 23), "allgather", "ring", "ll128", 14 + 8.5, 0.92 * 48 * 2),
    ("b200", 2, 1, (2, 28, 9), "allreduce", "ring", "ll", 6.6 + 2 * 0.6, 282),
    ("l40s", 2, 1, (2, 27), "allreduce", "ring", "ll", 6.6 + 2 * 1.0, 12),
]


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: " ".join(map(str, case[:7])))
def test_formulas_worked_by_hand(case: tuple[Any, ...]) -> None:
    gpu, gpus, nodes, version, *what, latency_us, gb_per_s = case
    model = nccl.Model(gpu=gpu, gpus_per_node=gpus, num_nodes=nodes, version=version)
    assert model.latency_us(*what) == pytest.approx(latency_us)
    assert model.bandwidth(*what) == pytest.approx(gb_per_s)


def paths(algorithm: str, **settings: Any) -> tuple[int, float, float]:
    """The number of channels, and the GB/s of each within and between nodes."""
    graph = nccl.Model(**settings).graph(algorithm)
    return graph.num_channels, graph.intra, graph.inter


GRAPHS = [  # GPU, GPUs per node, cards per node, GB/s of a card; algorithm; the paths by NCCL's search, by hand
    # 48 GB/s is below the 50 that split more than four channels.
    ("h100", 8, 8, 50, "ring", (8, 48, 48)),
    ("h100", 4, 4, 50, "ring", (8, 24, 24)),
    ("b300", 8, 8, 100, "ring", (16, 48, 48)),
    # A card of 100 GB/s carries two channels, but the links of 8 GPUs only 8 × 48 GB/s × 7/8.
    ("h100", 1, 1, 100, "ring", (4, 24, 24)),
    ("h100", 8, 8, 100, "ring", (8, 48, 48)),
    ("l40s", 8, 8, 25, "ring", (1, 24, 24)),  # PCIe carries no second one
    # Within nodes, trees get up to twice the rate between them, if the links carry it.
    ("h100", 8, 8, 50, "tree", (8, 48, 48)),
    ("h100", 4, 4, 50, "tree", (8, 48, 24)),
    ("h100", 8, 8, 12.5, "tree", (8, 24, 12)),
    ("h100", 8, 8, 20, "tree", (8, 40, 20)),
    ("b200", 8, 8, 50, "tree", (8, 96, 48)),
    ("b300", 8, 8, 100, "tree", (16, 48, 48)),
    ("a100", 8, 8, 25, "tree", (8, 30, 24)),
    ("h100", 4, 4, 43, "tree", (8, 21, 21)),  # 21 is none of the rates that NCCL tries
    # NVLS has one path per card and GPU, never two. Between nodes, it gets up to twice the rate within them.
    ("h100", 8, 8, 50, "nvls", (8, 40, 48)),
    ("h100", 7, 7, 50, "nvls", (7, 45, 48)),
    ("h100", 4, 4, 50, "nvls", (4, 48, 48)),
    ("h100", 8, 4, 50, "nvls", (4, 48, 48)),
    ("h100", 8, 16, 25, "nvls", (8, 24, 24)),
    ("b300", 8, 8, 100, "nvls", (8, 80, 96)),
    ("gb200", 72, 64, 50, "nvls", (32, 20, 40)),
]


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: " ".join(map(str, case[:5])))
def test_paths_between_nodes_worked_by_hand(case: tuple[Any, ...]) -> None:
    gpu, gpus, cards, card_gb_per_s, algorithm, figures = case
    network = {"num_nodes": 2, "nics": cards, "nic_bytes_per_s": card_gb_per_s * 1e9}
    assert paths(algorithm, gpu=gpu, gpus_per_node=gpus, **network) == figures


NVLS_PATHS = [  # GPU, GPUs of the node; the paths by ncclTopoSearchTryNvls, by hand
    # A path takes its rate from each GPU's links once, and from those of its head twice: 9 × 40 GB/s of 370.8.
    ("h100", 8, (8, 40, 60)),
    ("b200", 8, (8, 80, 90)),
    ("h100", 16, (16, 20, 60)),
    ("h100", 24, (24, 12, 60)),
    # At most 32 GPUs are heads (NCCL_MAX_NVLS_ARITY), so links carry at most 33 paths.
    ("h100", 32, (32, 11, 60)),
    ("gb200", 32, (32, 20, 90)),
    ("gb200", 36, (32, 20, 90)),
    ("gb200", 72, (32, 20, 90)),
]


@pytest.mark.parametrize("case", NVLS_PATHS, ids=lambda case: " ".join(map(str, case[:2])))
def test_nvls_paths_of_one_node_worked_by_hand(case: tuple[Any, ...]) -> None:
    gpu, gpus, figures = case
    assert paths("nvls", gpu=gpu, gpus_per_node=gpus) == figures


def test_nvls_needs_two_channels() -> None:
    model = nccl.Model(gpu="h100", num_nodes=2, nics=1)
    assert model.why_not("allreduce", "nvls_tree", "simple") == "NVLS needs at least two channels"
    assert not np.isinf(model.table([MIB]).nccl_s).any()


def test_another_cpu_has_other_limits_between_nodes() -> None:
    intel, amd, arm = (nccl.Model("h100", num_nodes=2, version=(2, 29), cpu=cpu) for cpu in ("intel", "amd", "other"))
    assert arm.bandwidth("allreduce", "ring", "ll") == intel.bandwidth("allreduce", "ring", "ll")
    assert arm.latency_us("allreduce", "ring", "ll") == intel.latency_us("allreduce", "ring", "ll")
    assert intel.bandwidth("allreduce", "ring", "ll") == pytest.approx(39 * 16 / 30)
    assert amd.bandwidth("allreduce", "ring", "ll") == pytest.approx(22.5 * 16 / 30)
    assert intel.latency_us("allreduce", "ring", "ll") == pytest.approx(6.6 + 28 * 1.0 + 2 * 2.7)
    assert amd.latency_us("allreduce", "ring", "ll") == pytest.approx(6.6 + 28 * 2.0 + 2 * 2.7)


def expected_s(model: nccl.Model, size: int, algorithm: str, protocol: str) -> float:
    rows = model.table([size]).query(f"collective == 'allreduce' and algorithm == '{algorithm}'")
    return float(rows.query(f"protocol == '{protocol}'").nccl_s.item())


def test_a_tree_is_corrected_by_size_and_a_ring_between_nodes_has_a_plateau() -> None:
    model = nccl.Model(gpu="h100", gpus_per_node=8, num_nodes=4, version=(2, 29))
    latency, rate = model.latency_us("allreduce", "tree", "ll"), model.bandwidth("allreduce", "tree", "ll")
    assert expected_s(model, 65536, "tree", "ll") == pytest.approx((latency + 65536 / (1000 * rate * 0.6)) * 1e-6)
    assert expected_s(model, 1 << 35, "tree", "ll") == pytest.approx((latency + (1 << 35) / (1000 * rate)) * 1e-6)
    latency, rate = model.latency_us("allreduce", "ring", "simple"), model.bandwidth("allreduce", "ring", "simple")
    assert expected_s(model, MIB, "ring", "simple") == pytest.approx((1.4 * latency + MIB / (1000 * rate)) * 1e-6)
    assert expected_s(model, 8192, "ring", "simple") == pytest.approx((latency + 8192 / (1000 * rate)) * 1e-6)


@pytest.mark.parametrize(
    ("size", "protocol", "channels"),
    [(1024, "ll", 1), (64 * 1024, "ll", 2), (MIB, "ll", 24)],  # 512 threads × 8 bytes × 8 ranks a channel
)
def test_small_messages_use_few_channels(size: int, protocol: str, channels: int) -> None:
    choice = nccl.Model(gpu="h100", version=(2, 29)).choose("allreduce", size)
    assert (choice.protocol, choice.channels) == (protocol, channels)


# ---- choices


@pytest.mark.parametrize(("version", "least"), [((2, 27), 5), ((2, 29), 6)])  # before 2.28, and from there on
def test_h200_takes_nvls_from_5_or_6_gpus_on(version: tuple[int, int], least: int) -> None:
    taken = [
        n
        for n in range(2, 9)
        if nccl.Model("h200", n, version=version).choose("allreduce", 16 << 30).algorithm == "nvls"
    ]
    assert taken[0] == least


def test_b200_took_nvls_from_6_gpus_on() -> None:
    taken = [
        n
        for n in range(2, 9)
        if nccl.Model("b200", n, version=(2, 27)).choose("allreduce", 16 << 30).algorithm == "nvls"
    ]
    assert taken == [6, 7, 8]


def test_several_nodes_take_a_tree_for_small_messages_and_a_ring_or_nvls_for_large_ones() -> None:
    model = nccl.Model(gpu="h100", gpus_per_node=8, num_nodes=16, version=(2, 29))
    assert model.choose("allreduce", 1024).algorithm == "tree"
    assert model.choose("allreduce", 1 << 30).algorithm in ("ring", "nvls_tree")
    assert model.choose("allgather", 1 << 30).algorithm == "ring"


VERSIONS = ((2, 19), (2, 21), (2, 27), (2, 28, 9), "2.29.2", (2, 30, 7))


@pytest.mark.parametrize(("gpu", "version"), [*itertools.product(nccl.GPUS, VERSIONS)])
def test_every_gpu_has_a_table_whose_choice_is_the_least(gpu: str, version: Any) -> None:
    turn = list(nccl.GPUS).index(gpu) + VERSIONS.index(version)
    num_nodes = (1, 2, 5)[turn % 3]  # each version and each GPU is on one, two and five nodes
    model = nccl.Model(gpu=gpu, gpus_per_node=4, num_nodes=num_nodes, version=version)
    table = model.table()
    can = table[table.why_not == ""]
    assert (can[["nccl_s", "time_s"]] > 0).all(axis=None)
    assert table[table.why_not != ""].nccl_s.isna().all()
    least = can.groupby(["collective", "num_bytes"], observed=True).nccl_s.min()
    chosen = table[table.is_chosen].set_index(["collective", "num_bytes"]).nccl_s
    assert len(chosen) == len(constants.COLLECTIVES) * len(model_of.SIZES)
    assert np.allclose(chosen.sort_index(), least.sort_index())
    for collective, size in (("allreduce", 1024), ("reduce_scatter", MIB), ("broadcast", 1 << 30)):
        row = table[table.is_chosen & (table.collective == collective) & (table.num_bytes == size)].iloc[0]
        choice = model.choose(collective, size)
        assert (choice.algorithm, choice.protocol, choice.channels) == (row.algorithm, row.protocol, row.channels)
        assert choice.time_s == pytest.approx(row.time_s) == pytest.approx(sum(choice.terms_s.values()))


def test_a_graph_that_is_given_takes_the_place_of_the_expected_one() -> None:
    slow = nccl.Model(gpu="h100", graphs={"ring": nccl.Graph(2, 12, 12)})
    assert slow.bandwidth("allreduce", "ring", "simple") == pytest.approx(24 * 8 / 14)


def test_nics_bound_what_goes_between_nodes() -> None:
    few = nccl.Model(gpu="a100", num_nodes=4, nics=4, nic_bytes_per_s=25e9)
    assert few.bandwidth("allgather", "ring", "simple") == pytest.approx(4 * 24 * 32 / 31)


# ---- the named terms


def curve_errors(name: str, gpu: str, **settings: Any) -> list[float]:
    """How far the model is off on the half-precision curves of a machine of the bank, as shares."""
    profile = Profile.load(f"bank:{name}")
    version = profile.provenance["gpus"][0]["nccl"]
    model = nccl.Model(gpu=gpu, gpus_per_node=profile.num_ranks, version=version, **settings)
    return [
        abs(model.choose(point.what, point.num_bytes).time_s / point.median_s - 1)
        for what in ("allreduce", "allgather", "reduce_scatter")
        for point in profile.select(what)
        if 1024 <= point.num_bytes <= 512 * MIB
    ]


def test_public_curves_of_one_node_are_met() -> None:
    names = {name: name.split("_")[0] for name in bank() if name.split("_")[0] in ("h100", "b200", "gb200")}
    names = {name: gpu for name, gpu in names.items() if "fleet" not in name} | {
        f"a100_80gb_{n}": "a100" for n in (2, 4, 8)
    }
    off = np.array([error for name, gpu in names.items() for error in curve_errors(name, gpu)])
    assert off.size == 840
    assert np.median(off) < 0.05
    assert np.percentile(off, 90) < 0.12


def test_the_error_to_expect_is_what_the_benchmark_computes() -> None:
    errors_of_kinds = by_command()
    fitted = np.concatenate([ours_off for ours_off, _ in errors_of_kinds.pop("fitted").values()])
    assert round(float(np.median(fitted)), 1) == public_errors.FITTED_ERROR
    assert set(errors_of_kinds) == set(public_errors.PUBLIC_ERRORS)
    for kind, machines in errors_of_kinds.items():
        assert len(machines) >= 5
        ours, bare = ([round(float(np.median(off[place]))) for off in machines.values()] for place in (0, 1))
        expected = public_errors.PublicError((min(ours), max(ours)), (min(bare), max(bare)))
        assert public_errors.PUBLIC_ERRORS[kind] == expected


def profile_of(num_ranks: int, points: dict[tuple[str, int], float]) -> Profile:
    about = {"name": "made", "backend": "nccl", "num_ranks": num_ranks, "num_nodes": 1, "ranks_per_node": [num_ranks]}
    made = [
        Point(what, size, (seconds,), (True,), {"algorithm": "native", "in_place": False})
        for (what, size), seconds in points.items()
    ]
    return Profile(about, {}, tuple(made))


def test_one_reading_gives_the_floor_of_the_host_or_a_quicker_launch() -> None:
    model = nccl.Model(gpu="h100", version=(2, 29))
    slow = model.with_readings(profile_of(8, {("allreduce", 1024): 40e-6}))
    assert slow.choose("allreduce", 1024).time_s == pytest.approx(40e-6)
    assert slow.choose("allreduce", 65536).time_s == pytest.approx(40e-6)
    assert slow.choose("allreduce", 1 << 30).time_s == pytest.approx(model.choose("allreduce", 1 << 30).time_s)
    assert slow.choose("allreduce", 1024).terms_s["minimum"] > 20e-6
    quick = model.with_readings(profile_of(8, {("allreduce", 1024): 12e-6}))
    assert quick.choose("allreduce", 1024).time_s == pytest.approx(12e-6, rel=0.01)


def test_two_readings_give_launch_and_hop() -> None:
    model, points = nccl.Model(gpu="h100", version=(2, 29)), ("allgather", 1024)
    read = model.with_readings(profile_of(8, {points: 17e-6}), profile_of(2, {points: 5e-6}))
    assert read.terms is not None
    assert (read.terms.launch_us, read.terms.hop_us) == (pytest.approx(3), pytest.approx(2))


def test_what_the_terms_do_not_know_is_said() -> None:
    models = [nccl.Model("h100"), nccl.Model("l40s"), nccl.Model("h100", num_nodes=2), nccl.Model("v100")]
    assert [len(model.notes) for model in models] == [0, 1, 1, 1]
    assert nccl.Model("v100", terms=constants.GenerationTerms(9.0, 0.8, 12.0, 10.0)).notes == ()


# ---- NCCL's log


def log_of(model: nccl.Model) -> str:
    """A log as NCCL 2.27 prints it, of what a model says."""
    words = "Tree Ring CollNetDirect CollNetChain NVLS NVLSTree PAT Broadcast Reduce AllGather ReduceScatter AllReduce"
    names = dict(zip((*constants.ALGORITHMS, *constants.COLLECTIVES), words.split(), strict=True))
    lines = [
        "box:1:2 [0] NCCL INFO NCCL version 2.27.5+cuda12.9",
        "#  Rank  0 on box device 0 [0x1b] NVIDIA H100 80GB HBM3",
    ]
    lines += ["box:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"]
    ring = model.graph("ring")
    bw = f"bw {ring.intra:f}/{ring.inter:f}, type NVL/PIX, sameChannels 0"
    lines += [f"box:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels {ring.num_channels}, {bw}"]
    for block in (constants.ALGORITHMS[:3], constants.ALGORITHMS[3:6], constants.ALGORITHMS[6:]):
        head = "".join(f" {'':>14}   {names[algorithm]:>14}   {'':>14} |" for algorithm in block)
        lines += [f"box:1:2 [0] NCCL INFO   Algorithm   |{head}"]
        lines += [
            "box:1:2 [0] NCCL INFO   Protocol    |" + "             LL |          LL128 |         Simple |" * len(block)
        ]
        lines += [
            "box:1:2 [0] NCCL INFO  Max NThreads |" + "            512 |            640 |            512 |" * len(block)
        ]
        for collective in constants.COLLECTIVES:
            cells = []
            for algorithm in block:
                for protocol in constants.PROTOCOLS:
                    no = bool(model.why_not(collective, algorithm, protocol))
                    latency = 0.0 if no else model.latency_us(collective, algorithm, protocol)
                    rate = 0.0 if no else model.bandwidth(collective, algorithm, protocol)
                    cells.append(f"{latency:8.1f}/{rate:6.1f} |")
            lines += [f"box:1:2 [0] NCCL INFO {names[collective]:>13} |{''.join(cells)}"]
    return "\n".join(lines)


def test_a_log_gives_the_model_that_nccl_had(tmp_path: Path) -> None:
    model, path = nccl.Model(gpu="h100", num_nodes=2, version=(2, 27, 5)), tmp_path / "nccl.log"
    path.write_text(log_of(model))
    read = nccl.Model.from_log(path)
    assert (read.gpu, read.gpus_per_node, read.num_nodes, read.version) == ("h100", 8, 2, (2, 27, 5))
    assert read.graph("ring") == model.graph("ring")
    assert len(read.printed) == 105
    for size in (1024, MIB, 1 << 28):
        chosen, expected = read.choose("allreduce", size), model.choose("allreduce", size)
        assert (chosen.algorithm, chosen.protocol) == (expected.algorithm, expected.protocol)
        assert chosen.nccl_s == pytest.approx(expected.nccl_s, rel=0.01)
    assert read.why_not("allreduce", "nvls", "simple") == "NCCL's log has no bandwidth for it"


def test_lines_of_a_log_that_ran_into_one_are_each_read() -> None:
    ring = "Pattern 4, crossNic 0, nChannels 8, bw 40.0/20.0, "
    tree = "Pattern 1, crossNic 0, nChannels 4, bw 30.0/10.0, type NVL/PIX, sameChannels 0"
    graphs = log._printed_graphs(f"box NCCL INFO Pattern 9, box NCCL INFO {ring}box NCCL INFO {tree}\n")
    assert {name: (graph.num_channels, graph.same_channels) for name, graph in graphs.items()} == {
        "ring": (8, True),
        "tree": (4, False),
    }


def test_the_gpu_that_the_user_states_counts(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(log_of(nccl.Model(gpu="h100", num_nodes=2, version=(2, 27, 5))).replace("H100", "card"))
    assert nccl.Model.from_log(path, "h200").gpu == "h200"
    with pytest.raises(ValueError, match="gpu"):
        nccl.Model.from_log(path)
