"""NCCL's model: formulas and paths worked by hand, the least of all estimates, and the terms."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from rankscope.box import nccl
from rankscope.box.nccl.constants import COLLECTIVES, LIMITS
from rankscope.box.nccl.explorer import nccl as panel
from tests.benchmarks.nccl import by_kind
from tests.figures.shown import boxes

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
    # A card of 100 GB/s carries two channels, but the links of 8 GPUs only 8 × 48 GB/s × 7/8.
    ("h100", 1, 1, 100, 2, "ring", (4, 24, 24)),
    # Within nodes, trees get up to twice the rate between them, if the links carry it.
    ("a100", 8, 8, 25, 2, "tree", (8, 30, 24)),
    ("h100", 4, 4, 43, 2, "tree", (8, 21, 21)),  # 21 is none of the rates that NCCL tries
    # NVLS has one path per card and GPU, never two. Between nodes, it gets up to twice the rate within them.
    ("h100", 7, 7, 50, 2, "nvls", (7, 45, 48)),
    ("gb200", 72, 64, 50, 2, "nvls", (32, 20, 40)),
    # A path takes its rate from each GPU's links once, and from those of its head twice: 9 × 40 GB/s of 370.8.
    ("h100", 8, 8, 50, 1, "nvls", (8, 40, 60)),
    # At most 32 GPUs are heads (NCCL_MAX_NVLS_ARITY), so links carry at most 33 paths.
    ("gb200", 72, 8, 50, 1, "nvls", (32, 20, 90)),
]


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: " ".join(map(str, case[:6])))
def test_paths_worked_by_hand(case: tuple[Any, ...]) -> None:
    gpu, gpus, cards, card_gb_per_s, nodes, algorithm, figures = case
    graph = nccl.Model(gpu, gpus, nodes, nics=cards, nic_bytes_per_s=card_gb_per_s * 1e9).graph(algorithm)
    assert (graph.num_channels, graph.intra, graph.inter) == figures


VERSIONS = ((2, 19), (2, 21), (2, 27), (2, 28, 9), "2.29.2", (2, 30, 7))


@pytest.mark.parametrize(("gpu", "version"), [*itertools.product(nccl.GPUS, VERSIONS)])
def test_the_choice_is_the_least_estimate_and_terms_add_up(gpu: str, version: Any) -> None:
    turn = list(nccl.GPUS).index(gpu) + VERSIONS.index(version)
    num_nodes = (1, 2, 5)[turn % 3]  # each version and each GPU is on one, two and five nodes
    model = nccl.Model(gpu, 4, num_nodes, version)
    for collective, size in itertools.product(COLLECTIVES, (1, 1024, MIB, 1 << 30)):
        choice = model.choose(collective, size)
        compared = model.compare(collective, size)
        assert choice == compared[0]
        assert choice.nccl_s == min(estimate.nccl_s for estimate in compared)
        assert sorted(estimate[:2] for estimate in compared) == sorted(model.eligible(collective))
        for estimate in compared:
            assert 1 <= estimate.channels <= 64
            assert 0 < estimate.time_s == pytest.approx(sum(estimate.terms_s.values()))


# ---- against measurements


def test_the_panel_has_what_the_bank_measured_and_the_model_is_grey() -> None:
    of_h100s = "4 4 6 6 25 20 18 14 5 −6 −9 17 25 41 41 35 19 12 8 6"  # h100_8, 1 KiB to 512 MiB; l40s_8 is faulty
    for gpu, measured in {"l40s": "", "h100": of_h100s}.items():
        (drawing,) = panel().draw(panel().at(gpu=gpu))
        coloured = [box.text for box in boxes(drawing) if box.text and box.fill != "rule"]
        assert " ".join(coloured[21:]) == measured
    assert drawing.title == "ring LL below 2 MiB, NVLS from 2 MiB"


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
