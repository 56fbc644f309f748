"""NCCL's model: what NCCL printed, cases worked by hand, what corrupted constants do, the terms, the log's reader."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from rankscope.box import Profile, bank, nccl
from rankscope.box.nccl import constants, log, tuner
from rankscope.box.nccl import model as model_of
from rankscope.box.nccl import public as public_errors
from rankscope.box.profile import Point
from tests.benchmarks.nccl import by_command
from tests.box.nccl import nccl_plugin

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


def places(rows: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in a table of tables."""
    if isinstance(rows, dict | tuple):
        for key, part in rows.items() if isinstance(rows, dict) else enumerate(rows):
            yield from places(part, (*at, key))
    elif rows:
        yield at


def changed(rows: Any, at: tuple[Any, ...], factor: float) -> Any:
    if not at:
        return rows * factor
    if isinstance(rows, tuple):
        return tuple(changed(part, at[1:], factor) if k == at[0] else part for k, part in enumerate(rows))
    return {key: changed(part, at[1:], factor) if key == at[0] else part for key, part in rows.items()}


_, CONSTANTS = constants.constants((2, 27, 5))
USED = [  # by the job of the tables: LL, LL128 and Simple of rings and trees, NVLSTree; Hopper; 2 nodes and more; Intel
    *[("BASE", algorithm, k) for algorithm in ("tree", "ring") for k in range(3)],
    *[("HOP", link, algorithm, k) for link in ("nvlink", "net") for algorithm in ("tree", "ring") for k in range(1, 3)],
    *[("HOP", "net", algorithm, 0) for algorithm in ("tree", "ring")],  # LL's in the node is below the network's 1 µs
    *[("HOP", link, "nvls_tree", 2) for link in ("nvlink", "net")],
    *[("LL_MAX", "volta", k) for k in (1, 2)],
    *[("CHANNEL_TREE", "hopper", k) for k in (1, 2)],
    *[("CHANNEL_TREE_LL128", "hopper", k) for k in (1, 2)],
    *[("CHANNEL_RING_LL128", "hopper", k) for k in (1, 2)],
]


@pytest.mark.parametrize("at", USED, ids=lambda at: " ".join(map(str, at)))
def test_a_corrupted_constant_is_caught(at: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert at in list(places(CONSTANTS))
    era, right = constants.constants((2, 27, 5))
    factor = 0.5 if at[0] == "CHANNEL_RING_LL128" else 0.9  # a ring of H100 is far below it: 24 of 36.7 GB/s
    wrong = changed(copy.deepcopy(right), at, factor)
    monkeypatch.setattr(model_of, "constants", lambda version: (era, wrong))
    assert sum(off_the_print())


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


@pytest.mark.parametrize("gpus_per_node", [1, 2, 3, 33, 72])
@pytest.mark.parametrize("num_nodes", [2, 4096])
@pytest.mark.parametrize("gpu", ["v100", "b200", "l40s"])
def test_boxes_of_any_size_have_a_choice_at_any_size(gpu: str, gpus_per_node: int, num_nodes: int) -> None:
    model = nccl.Model(gpu, gpus_per_node, num_nodes)
    for size in (1, 100, 1 << 50):
        choice = model.choose("allreduce", size)
        assert 0 < choice.nccl_s < np.inf
        assert 0 < choice.time_s < np.inf
        assert 1 <= choice.channels <= 64


def test_a_graph_that_is_given_takes_the_place_of_the_expected_one() -> None:
    slow = nccl.Model(gpu="h100", graphs={"ring": nccl.Graph(2, 12, 12)})
    assert slow.bandwidth("allreduce", "ring", "simple") == pytest.approx(24 * 8 / 14)


def test_nics_bound_what_goes_between_nodes() -> None:
    few = nccl.Model(gpu="a100", num_nodes=4, nics=4, nic_bytes_per_s=25e9)
    assert few.bandwidth("allgather", "ring", "simple") == pytest.approx(4 * 24 * 32 / 31)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gpu": "h300"}, "gpu must be one of 'v100'"),
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number from 1 to 72, got 0"),
        ({"gpus_per_node": 1}, "gpus_per_node must be at least 2 on one node, got 1"),
        ({"num_nodes": 1.5}, "num_nodes must be a whole number from 1 to 4096, got 1.5"),
        ({"version": "new"}, "version must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got 'new'"),
        ({"version": (2, 18)}, "version must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got (2, 18)"),
        ({"version": 2.29}, "version must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got 2.29"),
        ({"version": "3.0"}, "version must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got '3.0'"),
        ({"version": "2.100"}, "version must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got '2.100'"),
        ({"version": "2.29.100"}, "version must be from NCCL 2.19 to 2.99"),
        ({"version": "2." + "1" * 5000}, "version must be from NCCL 2.19 to 2.99"),
        ({"cpu": "arm"}, "cpu must be one of 'intel', 'amd', 'other', got 'arm'"),
        ({"nics": 0}, "nics must be a whole number from 1 to 64, got 0"),
        ({"nic_bytes_per_s": 0}, "nic_bytes_per_s must be a finite number above 0, got 0"),
        ({"graphs": {"ring": 24}}, "must be a Graph, got 24"),
        ({"graphs": {"star": nccl.Graph(1, 1, 1)}}, "must be one of 'tree'"),
    ],
)
def test_bad_input_gives_one_sentence(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="must be") as error:
        nccl.Model(**wrong)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bad_question_gives_one_sentence() -> None:
    model = nccl.Model()
    with pytest.raises(ValueError, match="collective must be one of"):
        model.choose("all_to_all", 1024)
    with pytest.raises(ValueError, match="num_bytes must be a whole number from 1"):
        model.choose("allreduce", 0)
    with pytest.raises(ValueError, match="size must be a whole number from 1"):
        model.table([0])


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


def test_the_error_to_expect_is_in_words_with_its_command() -> None:
    words = {
        nccl.Model(gpu="h100"): "the median error is 3.5 % on the nodes used for fitting, and 4 to 34 % on other",
        nccl.Model(gpu="h100", num_nodes=4): "on public InfiniBand clusters the median error is 2 to 59 %, no better",
        nccl.Model(gpu="l40s"): "on public nodes without NVLink the median error is 21 to 60 %",
        nccl.Model(gpu="h100", minimum_s=1e-5): "the median error before calibration is 3.5 %",
    }
    for model, expected in words.items():
        assert expected in public_errors.error_words(model)
        assert public_errors.error_words(model).endswith("(python -m tests.benchmarks.nccl).")


def test_a_wrong_term_is_seen_on_public_curves() -> None:
    right = constants.TERMS["blackwell"]
    for field in ("launch_us", "hop_us", "simple_hop_us"):
        wrong = attrs.evolve(right, **{field: 2 * getattr(right, field)})
        assert np.mean(curve_errors("b200_8", "b200", terms=wrong)) > 1.15 * np.mean(curve_errors("b200_8", "b200"))


def test_the_terms_are_no_more_than_20_constants() -> None:
    fields = attrs.fields(constants.GenerationTerms)
    of_all = [field for field in fields if field.default is not attrs.NOTHING]
    assert 3 * (len(fields) - len(of_all)) + len(of_all) <= 20
    for field in of_all:
        assert len({getattr(terms, field.name) for terms in constants.TERMS.values()}) == 1


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


def test_readings_of_other_machines_are_refused() -> None:
    model, reading = nccl.Model(gpu="h100"), {("allgather", 1024): 17e-6}
    with pytest.raises(ValueError, match="profile must be of 8 ranks, got 4"):
        model.with_readings(profile_of(4, reading))
    with pytest.raises(ValueError, match="fewer must be of 2 to 7 ranks of one node, got 8"):
        model.with_readings(profile_of(8, reading), profile_of(8, reading))
    with pytest.raises(ValueError, match="profile must have native points"):
        model.with_readings(profile_of(8, {("all_to_all", 1024): 1e-6}))
    with pytest.raises(ValueError, match="profile must be a Profile"):
        model.with_readings({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fewer must be a Profile"):
        model.with_readings(profile_of(8, reading), {})  # type: ignore[arg-type]


def test_what_the_terms_do_not_know_is_said() -> None:
    assert nccl.Model(gpu="h100").notes == ()
    assert "PCIe" in nccl.Model(gpu="l40s").notes[0]
    assert "InfiniBand" in nccl.Model(gpu="h100", num_nodes=2).notes[0]
    assert "Volta" in nccl.Model(gpu="v100").notes[0]
    own_terms = constants.GenerationTerms(9.0, 0.8, 12.0, 10.0)
    assert nccl.Model(gpu="v100", terms=own_terms).notes == ()


# ---- NCCL's log


def log_of(model: nccl.Model) -> str:
    """A log as NCCL 2.27 prints it, of what a model says."""
    names = {algorithm: name for name, algorithm in log._LOG_NAMES.items()}
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


def test_a_log_without_the_table_or_the_gpu_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text("box:1:2 [0] NCCL INFO NCCL version 2.27.5\n")
    with pytest.raises(ValueError, match="has no table of latencies and bandwidths"):
        nccl.Model.from_log(path, "h100")
    path.write_text(log_of(nccl.Model(gpu="h100", num_nodes=2, version=(2, 27, 5))).replace("H100", "card"))
    with pytest.raises(ValueError, match="gpu must be given"):
        nccl.Model.from_log(path)
    assert nccl.Model.from_log(path, "h200").gpu == "h200"
    with pytest.raises(ValueError, match="gpu must be one of"):  # also a name without letters is the user's
        nccl.Model.from_log(path, "")


# ---- the tuner


def test_a_quicker_choice_is_found_where_the_measurement_says_so() -> None:
    model = nccl.Model(gpu="h100", version=(2, 29))
    table = model.table([1 << power for power in range(10, 31)])
    table = table[(table.collective == "allreduce") & (table.why_not == "")]
    took = {("allreduce", int(row.num_bytes)): row.time_s for row in table[table.is_chosen].itertuples()}
    slow = dict(took)
    slow["allreduce", 1 << 30] *= 3  # the model does not know why: nothing is said of it
    for measured in (took, slow):
        lines = tuner.tuner_csv(model, profile_of(8, measured)).splitlines()
        assert tuple(lines[: len(tuner.COMMENTS)]) == tuner.COMMENTS
        rows = lines[len(tuner.COMMENTS) :]
        for row in rows:
            what, low, high, *pair = row.split(",")[:5]
            for (collective, size), seconds in measured.items():
                if collective == what and int(low) <= size <= int(high):
                    assert model.times_s(what, *pair, np.array([float(size)]))[0] < tuner.LEAST_GAIN * seconds
        assert not any(row.split(",")[2] == str(1 << 30) for row in rows)
    graphs = {"ring": nccl.Graph(12, 30, 30), "nvls": nccl.Graph(8, 60, 90)}  # NVLS from 1 MiB on
    worse = attrs.evolve(model, graphs=graphs)
    at = int(worse.table([1 << 20]).query("is_chosen and collective == 'allreduce'").num_bytes.iloc[0])
    assert worse.choose("allreduce", at).algorithm == "nvls"
    written = tuner.tuner_csv(worse, profile_of(8, {("allreduce", at): worse.choose("allreduce", at).time_s}))
    channels = int(worse.compared("allreduce", [at])["ring", "ll"][0][0])
    assert channels > 1
    assert written.splitlines()[len(tuner.COMMENTS) :] == [f"allreduce,{at},{at},ring,ll,{channels},1,8,-1,-1"]
    assert tuner.num_choices(written) == 1


def slow_machine() -> tuple[nccl.Model, dict[tuple[str, int], float]]:
    """A model that chooses its slow NVLS, and measured times of three collectives, a little above the model's."""
    graphs = {"ring": nccl.Graph(12, 30, 30), "nvls": nccl.Graph(8, 90, 90)}
    model = nccl.Model(gpu="h100", version=(2, 29), graphs=graphs)
    sizes = [1 << power for power in range(10, 27)]
    kinds = ("allreduce", "allgather", "reduce_scatter")
    return model, {(kind, size): 1.14 * model.choose(kind, size).time_s for kind in kinds for size in sizes}


def test_the_plug_in_steers_the_collectives_that_were_slow_and_no_others() -> None:
    model, measured = slow_machine()
    written = tuner.tuner_csv(model, profile_of(8, measured))
    changed = dict.fromkeys((collective for collective, _ in measured), 0)
    for (collective, size), took_s in measured.items():
        word = collective.replace("_", "")
        choice = nccl_plugin.steered(written, word, size, 1, 8)
        for pipe_ops, buff in ((1, 1), (4, 0)):
            assert nccl_plugin.steered(written, word, size, 1, 8, pipe_ops, buff) == choice
        assert nccl_plugin.steered(written, word, size, 2, 8).algorithm == ""
        assert nccl_plugin.steered(written, word, size, 1, 4).algorithm == ""
        compared = model.compared(collective, [size])
        if choice.algorithm:
            channels, _, times_s = compared[choice.algorithm, choice.protocol]
            changed[collective] += 1
            assert times_s[0] < tuner.LEAST_GAIN * took_s
            assert choice.channels == channels[0]
        else:
            known = [float(times_s[0]) for (name, _), (*_, times_s) in compared.items() if name in ("ring", "nvls")]
            assert min(known) >= tuner.LEAST_GAIN * took_s
    assert min(changed.values()) > 0, changed


def test_the_plug_in_reads_every_line_as_it_is_meant() -> None:
    model, measured = slow_machine()
    written = tuner.tuner_csv(model, profile_of(8, measured))
    rules = nccl_plugin.rules(written)
    lines = [line for line in written.splitlines() if not line.startswith("#")]
    assert len(rules) == len(lines) == tuner.num_choices(written) > 2
    assert all(len(line) <= nccl_plugin.LINE_BYTES for line in written.splitlines())
    for rule, line in zip(rules, lines, strict=True):
        assert ",".join(map(str, rule)) == line
        assert (rule.num_pipe_ops, rule.has_registered_buffers) == (nccl_plugin.ANY, nccl_plugin.ANY)
        for size in (rule.min_bytes, rule.max_bytes):
            first = next(candidate for candidate in rules if candidate.matches(rule.collective, size, 1, 8, 1, 0))
            assert first == rule  # no line stands in the way of another


def test_a_choice_holds_between_the_sizes_that_were_measured() -> None:
    model, measured = slow_machine()
    written = tuner.tuner_csv(model, profile_of(8, measured))
    sizes = sorted({size for _, size in measured})
    for collective, word in (("allreduce", "allreduce"), ("reduce_scatter", "reducescatter")):
        for size, larger in itertools.pairwise(sizes):
            low, high = (nccl_plugin.steered(written, word, end, 1, 8) for end in (size, larger))
            if low.algorithm and low[:2] == high[:2]:
                assert nccl_plugin.steered(written, word, larger - 1, 1, 8) == low, (collective, size)


@pytest.mark.parametrize("excluded", ["ring", ""])
def test_a_log_without_rings_or_without_a_collective_has_no_other_choice(excluded: str) -> None:
    """As of a job with NCCL_ALGO=tree, or with an algorithm that the collective does not have."""
    model = nccl.Model(gpu="h100", gpus_per_node=4, version=(2, 29))
    printed = {}
    for row in model.table([MIB]).query("why_not == ''").itertuples():
        name = (row.collective, row.algorithm, row.protocol)
        if row.collective == "allreduce" and excluded in row.algorithm:
            printed[name] = (0.0, 0.0)
        else:
            printed[name] = (model.latency_us(*name), model.bandwidth(*name))
    logged = attrs.evolve(model, printed=printed)
    measured = {("allreduce", MIB): 1.0, ("allgather", MIB): 1.05 * model.choose("allgather", MIB).time_s}
    assert tuner.num_choices(tuner.tuner_csv(logged, profile_of(4, measured))) == 0


def test_words_that_the_plug_in_does_not_know_steer_another_collective() -> None:
    """What was written before: the plug-in took reduce_scatter for allreduce, and -1 for one channel."""
    written = "reduce_scatter,1024,4096,ring,ll,-1,1,8,-1,-1\nallreduce,1024,4096,nvls,simple,16,1,8,-1,-1\n"
    assert nccl_plugin.steered(written, "reducescatter", 2048, 1, 8).algorithm == ""
    assert nccl_plugin.steered(written, "allreduce", 2048, 1, 8) == ("ring", "ll", 1)
    assert set(tuner.PLUGIN_WORDS.values()) == set(nccl_plugin.COLLECTIVES)
    assert set(nccl.constants.ALGORITHMS) == set(nccl_plugin.ALGORITHMS)
    assert set(nccl.constants.PROTOCOLS) == set(nccl_plugin.PROTOCOLS)
