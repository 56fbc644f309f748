"""NCCL's model: formulas and paths worked by hand, the least of all estimates, the terms, readings and a log."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.box import Profile, nccl
from rankscope.box.explorers.nccl import nccl as explorer
from rankscope.box.figures.choices import draw_nccl_choices, pair_words
from rankscope.box.nccl.constants import COLLECTIVES, LIMITS
from rankscope.box.points import Point
from rankscope.common.units import time_words
from rankscope.figures.marks import Box
from tests.benchmarks.nccl import by_kind

MIB = 1 << 20
BY_HAND = [  # GPU, GPUs a node, nodes, version; collective, algorithm, protocol; latency [µs], bandwidth [GB/s]
    ("h100", 8, 2, (2, 29), "broadcast", "ring", "simple", 8.4 + 16 * 14, 384),
    ("b200", 8, 1, (2, 30), "allreduce", "nvls", "simple", 25, 8 * 90 * 8 / 14),  # the switch's 90, not 80 × 0.74 × 7/4
    ("b200", 8, 1, (2, 29, 2), "allreduce", "ring", "ll128", 14 + 14 * 1.9, 16 * 34.5 * 8 / 14),
    ("h100", 8, 3, (2, 22), "allreduce", "ring", "simple", 8.4 + 40 * 3.4 + 6 * 14, 8 * 48 * 24 / 46),
    ("h100", 8, 3, (2, 23), "allreduce", "ring", "simple", 8.4 + 42 * 3.4 + 4 * 14, 8 * 48 * 24 / 46),
    ("h100", 8, 1, (2, 20), "allreduce", "nvls", "simple", 23, 8 * 40 * 5 / 6),
    ("h100", 8, 1, (2, 20), "allreduce", "ring", "ll", 6.6 + 14 * 0.6, 87.7 * 8 / 14),
    ("h100", 8, 1, (2, 20), "allreduce", "tree", "simple", 14 * 28, 0.92 * 360 / 2),
    ("a100", 8, 1, (2, 20), "allreduce", "ring", "ll", 6.6 + 14 * 0.6, 240 / 4 * 8 / 14),
    ("a100", 8, 1, (2, 20), "allgather", "ring", "ll", 6.6 + 7 * 0.6, 240 / 3 * 8 / 7),
    # Four paths of 48 GB/s, for which 57.7 is the limit; of 8 paths of 80 GB/s within and 96 between nodes, 96 is.
    ("h100", 4, 2, (2, 29), "allreduce", "nvls_tree", "simple", 25 + 2 * 20.9, 4 * 57.7 * 8 / 14),
    ("b300", 8, 2, (2, 30), "allreduce", "nvls_tree", "simple", 25 + 2 * 20.9, 8 * 96 * 16 / 30),
    ("h100", 1, 4, (2, 29), "allgather", "pat", "simple", 8 + 2 * 14 / 3.5 + 2.8 * 4, 0.75 * 2 * 24),
    ("h100", 1, 2, (2, 21), "allgather", "ring", "ll128", 14 + 8.5, 0.7 * 48 * 2),
    ("l40s", 2, 1, (2, 27), "allreduce", "ring", "ll", 6.6 + 2 * 1.0, 12),
]


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: " ".join(map(str, case[:7])))
def test_formulas_worked_by_hand(case: tuple[Any, ...]) -> None:
    gpu, gpus, nodes, version, *what, latency_us, gb_per_s = case
    model = nccl.Model(gpu, gpus, nodes, version)
    assert model.latency_us(*what) == pytest.approx(latency_us)
    assert model.bandwidth(*what) == pytest.approx(gb_per_s)


GRAPHS = [  # GPU, GPUs and cards per node, GB/s of a card, nodes; algorithm; the paths by NCCL's search, by hand
    # 48 GB/s is below the 50 that split more than four channels.
    ("h100", 8, 8, 50, 2, "ring", (8, 48, 48)),
    ("h100", 4, 4, 50, 2, "ring", (8, 24, 24)),
    # A card of 100 GB/s carries two channels, but the links of 8 GPUs only 8 × 48 GB/s × 7/8.
    ("h100", 1, 1, 100, 2, "ring", (4, 24, 24)),
    ("l40s", 8, 8, 25, 2, "ring", (1, 24, 24)),  # PCIe carries no second one
    # Within nodes, trees get up to twice the rate between them, if the links carry it.
    ("a100", 8, 8, 25, 2, "tree", (8, 30, 24)),
    ("h100", 4, 4, 43, 2, "tree", (8, 21, 21)),  # 21 is none of the rates that NCCL tries
    # NVLS has one path per card and GPU, never two. Between nodes, it gets up to twice the rate within them.
    ("h100", 7, 7, 50, 2, "nvls", (7, 45, 48)),
    ("h100", 8, 16, 25, 2, "nvls", (8, 24, 24)),
    ("gb200", 72, 64, 50, 2, "nvls", (32, 20, 40)),
    # A path takes its rate from each GPU's links once, and from those of its head twice: 9 × 40 GB/s of 370.8.
    ("h100", 8, 8, 50, 1, "nvls", (8, 40, 60)),
    ("h100", 24, 8, 50, 1, "nvls", (24, 12, 60)),
    # At most 32 GPUs are heads (NCCL_MAX_NVLS_ARITY), so links carry at most 33 paths.
    ("gb200", 72, 8, 50, 1, "nvls", (32, 20, 90)),
]


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: " ".join(map(str, case[:6])))
def test_paths_worked_by_hand(case: tuple[Any, ...]) -> None:
    gpu, gpus, cards, card_gb_per_s, nodes, algorithm, figures = case
    graph = nccl.Model(gpu, gpus, nodes, nics=cards, nic_bytes_per_s=card_gb_per_s * 1e9).graph(algorithm)
    assert (graph.num_channels, graph.intra, graph.inter) == figures


def test_another_cpu_has_other_limits_between_nodes() -> None:
    amd = nccl.Model("h100", num_nodes=2, version=(2, 29), cpu="amd")
    assert amd.bandwidth("allreduce", "ring", "ll") == pytest.approx(22.5 * 16 / 30)
    assert amd.latency_us("allreduce", "ring", "ll") == pytest.approx(6.6 + 28 * 2.0 + 2 * 2.7)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "size", "latencies", "share"),
    [
        ("tree", "ll", 65536, 1, 0.6),
        ("tree", "ll", 1 << 35, 1, 1),
        ("ring", "simple", MIB, 1.4, 1),
        ("ring", "simple", 8192, 1, 1),
    ],
)
def test_a_tree_is_corrected_by_size_and_a_ring_between_nodes_has_a_plateau(
    algorithm: str, protocol: str, size: int, latencies: float, share: float
) -> None:
    model = nccl.Model("h100", num_nodes=4, version=(2, 29))
    what = "allreduce", algorithm, protocol
    (found,) = [one for one in model.compare("allreduce", size) if one[:2] == (algorithm, protocol)]
    expected_us = latencies * model.latency_us(*what) + size / (1000 * share * model.bandwidth(*what))
    assert found.nccl_s == pytest.approx(expected_us * 1e-6)


VERSIONS = ((2, 19), (2, 21), (2, 27), (2, 28, 9), "2.29.2", (2, 30, 7))


@pytest.mark.parametrize(("gpu", "version"), [*itertools.product(nccl.GPUS, VERSIONS)])
def test_the_choice_is_the_least_estimate_and_terms_add_up(gpu: str, version: Any) -> None:
    turn = list(nccl.GPUS).index(gpu) + VERSIONS.index(version)
    num_nodes = (1, 2, 5)[turn % 3]  # each version and each GPU is on one, two and five nodes
    model = nccl.Model(gpu, 4, num_nodes, version)
    for collective, size in itertools.product(COLLECTIVES, (1, 1024, MIB, 1 << 30)):
        choice = model.choose(collective, size)
        compared = model.compare(collective, size)
        assert choice in compared
        assert choice.nccl_s == min(estimate.nccl_s for estimate in compared)
        assert [estimate[:2] for estimate in compared] == model.eligible(collective)
        for estimate in compared:
            assert 1 <= estimate.channels <= 64
            assert 0 < estimate.time_s == pytest.approx(sum(estimate.terms_s.values()))


def test_nvls_needs_switches_that_add_and_two_channels() -> None:
    assert ("nvls", "simple") in nccl.Model("h100").eligible("allreduce")
    assert ("nvls", "simple") not in nccl.Model("a100").eligible("allreduce")
    assert ("nvls_tree", "simple") in nccl.Model("h100", num_nodes=2).eligible("allreduce")
    assert ("nvls_tree", "simple") not in nccl.Model("h100", num_nodes=2, nics=1).eligible("allreduce")


# ---- against measurements


def test_the_errors_that_are_stated_are_what_the_benchmark_computes() -> None:
    kinds = by_kind()
    fitted = np.concatenate([*kinds.pop("fitted").values()])
    assert round(float(np.median(fitted[:, 0])), 1) == 3.5
    assert kinds.keys() == LIMITS.keys()
    for kind, machines in kinds.items():
        assert len(machines) >= 5
        medians = np.array([np.median(errors, axis=0) for errors in machines.values()])
        (ours_low, nccls_low), (ours_high, nccls_high) = medians.min(axis=0), medians.max(axis=0)
        computed = [(f"{ours_low:.0f}", f"{ours_high:.0f}"), (f"{nccls_low:.0f}", f"{nccls_high:.0f}")]
        assert re.findall(r"(\d+) to (\d+) %", LIMITS[kind]) == computed


def profile_of(num_ranks: int, num_bytes: int, seconds: float) -> Profile:
    about = {"name": "made", "backend": "nccl", "num_ranks": num_ranks, "num_nodes": 1, "ranks_per_node": [num_ranks]}
    options = {"algorithm": "native", "in_place": False}
    return Profile(about, {}, (Point("allreduce", num_bytes, (seconds,), (True,), options),))


def test_a_reading_gives_the_minimum_of_the_host_or_a_quicker_launch() -> None:
    model = nccl.Model("h100", version=(2, 29))
    slow = model.with_readings(profile_of(8, 1024, 40e-6))
    assert slow.choose("allreduce", 1024).time_s == pytest.approx(40e-6)
    assert slow.choose("allreduce", 65536).time_s == pytest.approx(40e-6)
    assert slow.choose("allreduce", 1 << 30).time_s == pytest.approx(model.choose("allreduce", 1 << 30).time_s)
    quick = model.with_readings(profile_of(8, 1024, 12e-6))
    assert quick.choose("allreduce", 1024).time_s == pytest.approx(12e-6)
    for wrong in (profile_of(4, 1024, 1e-5), profile_of(8, 512, 1e-5)):
        with pytest.raises(ValueError, match="profile"):
            model.with_readings(wrong)


LOG = """\
box:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
#  Rank  0 on box device 0 [0x1b] NVIDIA H100 80GB HBM3
box:1 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
box:1 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 48.000000/48.000000, type NVL/PIX, sameChannels 0
box:1 [0] NCCL INFO   Algorithm   |                Tree |                Ring |
box:1 [0] NCCL INFO   Protocol    |   LL | LL128 | Simple |   LL | LL128 | Simple |
box:1 [0] NCCL INFO     AllReduce | 26.8/44.9 | 55.5/140.8 | 92.4/150.1 | 40.0/19.5 | 74.6/157.0 | 140.0/204.8 |
"""


def test_a_log_gives_the_model_that_nccl_had(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(LOG)
    read = nccl.Model.from_log(path)
    assert (read.gpu, read.gpus_per_node, read.num_nodes, read.version) == ("h100", 8, 2, (2, 27, 5))
    assert read.graph("ring") == nccl.Graph(8, 48, 48, same_channels=False)
    assert read.choose("allreduce", 1024)[:2] == ("tree", "ll")
    assert read.choose("allreduce", 1 << 30).nccl_s == pytest.approx(1e-6 * (140.0 * 1.4 + (1 << 30) / 204800))
    with pytest.raises(ValueError, match="allgather"):
        read.choose("allgather", 1024)


# ---- shown


def test_every_size_has_a_band_of_its_choice() -> None:
    models = {"one node": nccl.Model("a100"), "sixteen": nccl.Model("h100", 8, 16)}
    drawing = draw_nccl_choices(models)
    bands = [mark for mark in drawing.marks if isinstance(mark, Box)]
    for row, (name, model) in enumerate(models.items()):
        for column, power in enumerate(range(10, 31)):
            choice = model.choose("allreduce", 1 << power)
            started = [band for band in bands if band.key[0] == row and band.key[1] <= column]  # type: ignore[index]
            assert drawing.tips[started[-1].key].startswith(f"{name}: {pair_words(*choice[:2])} ")
            assert started[-1].hatched == (choice.algorithm == "tree")


def test_the_explorer_says_what_the_model_chooses() -> None:
    choice = nccl.Model("a100", 8, 4, "2.27", nics=4).choose("allreduce", MIB)
    made = explorer()
    now = made.at(gpu="a100", num_nodes=4, version="2.27", nics=4)
    first, second, *notes = made.report(now)
    assert first.startswith(f"1 MiB: {pair_words(*choice[:2])} on {choice.channels} of ")
    assert second.startswith(f"NCCL expects {time_words(choice.nccl_s)}; ")
    assert notes == [LIMITS["InfiniBand"]]
