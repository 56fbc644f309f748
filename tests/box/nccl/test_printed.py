"""What NCCL printed on machines of others, held against `nccl.Model`: tables, choices, channels and times.

Only figures are kept, each with its source. A line counts where GPU, GPUs per node, nodes and version are stated or
follow from the log. Lines of an allgather and a reduce-scatter name what one rank brings; here all sizes are of the
whole buffer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import nccl
from rankscope.box.nccl import constants

SCALING = "https://github.com/waynehacking8/nccl-collectives-bench/tree/main/results/scaling_attributed"
THESIS = "https://github.com/C-TC/multi-gpu-programming-models/tree/main/repro/thesis_microbench"
METAL = "https://github.com/oscaralateras/inference-from-the-metal-up/tree/main/topics/t09_interconnects"
PIPELINING = "https://github.com/garv901/cta-pipelining/blob/main/results/phase6_s1.md"
EBPF = "https://github.com/eunomia-bpf/nccl-eBPF/tree/main/docs/tmp"
ISSUES = "https://github.com/NVIDIA/nccl/issues"

H100S = json.loads((Path(__file__).parent / "nccl_2_27_5_h100.json").read_text(encoding="utf-8"))


def num_off() -> tuple[int, int]:
    """How many latencies and bandwidths are not what NCCL printed, to the printed digit."""
    latencies = bandwidths = 0
    for *what, nodes, gpus, latency_us, gb_per_s in H100S["rows"]:
        model = nccl.Model("h100", gpus, nodes, version=(2, 27, 5))
        latencies += round(model.latency_us(*what), 1) != latency_us
        bandwidths += round(model.bandwidth(*what), 1) != gb_per_s
    return latencies, bandwidths


def test_190_latencies_and_190_bandwidths_are_what_nccl_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(H100S["rows"]) == 190
    assert num_off() == (0, 0)
    of_2_27 = constants.VERSIONS[4]
    monkeypatch.setitem(of_2_27.latency_us, ("nvlink", "ring"), (0.6, 1.9, 3.5))  # not 3.4
    latencies, bandwidths = num_off()
    assert latencies > 10
    assert bandwidths == 0


# Tables of one node: µs and GB/s, in the order LL, LL128, Simple; NVLS supports only Simple. What is 0 is not eligible.
H100, H200 = ("h100", (2, 29, 2), SCALING), ("h200", (2, 30, 4), THESIS)
RINGS_OF_ONE = ("broadcast", "reduce"), "ring", ((7.2, 141.0), (15.9, 331.2), (11.8, 360.0))
SPLIT = ("allgather", "reduce_scatter")
TABLES: dict[tuple[tuple[str, tuple[int, ...], str], int], list[tuple[Any, ...]]] = {
    (H100, 2): [
        RINGS_OF_ONE,
        (SPLIT, "ring", ((7.2, 282.0), (15.9, 662.4), (11.8, 720.0))),
        (SPLIT, "nvls", ((25.0, 25.5),)),
        (("allreduce",), "tree", ((8.0, 61.1), (16.5, 180.6), (16.4, 232.2))),
        (("allreduce",), "ring", ((7.8, 141.0), (17.8, 331.2), (15.2, 360.0))),
        (("allreduce",), "nvls", ((25.0, 102.0),)),
    ],
    (H100, 4): [
        RINGS_OF_ONE,
        (SPLIT, "ring", ((8.4, 188.0), (19.7, 441.6), (18.6, 480.0))),
        (SPLIT, "nvls", ((25.0, 114.8),)),
        (("allreduce",), "tree", ((10.4, 43.6), (21.5, 128.8), (32.4, 165.6))),
        (("allreduce",), "ring", ((10.2, 94.0), (25.4, 220.8), (28.8, 240.0))),
        (("allreduce",), "nvls", ((25.0, 160.0),)),
    ],
    (H100, 6): [
        RINGS_OF_ONE,
        (SPLIT, "ring", ((9.6, 169.2), (23.5, 397.4), (25.4, 432.0))),
        (SPLIT, "nvls", ((25.0, 177.1),)),
        (("allreduce",), "tree", ((12.8, 43.6), (26.5, 128.8), (48.4, 165.6))),
        (("allreduce",), "ring", ((12.6, 84.6), (33.0, 198.7), (42.4, 216.0))),
        (("allreduce",), "nvls", ((25.0, 216.0),)),
    ],
    (H200, 8): [
        RINGS_OF_ONE,
        (SPLIT, "ring", ((10.8, 161.1), (27.3, 378.5), (32.2, 411.4))),
        (SPLIT, "nvls", ((25.0, 208.2),)),
        (("allreduce",), "tree", ((15.2, 43.6), (31.5, 128.8), (64.4, 165.6))),
        (("allreduce",), "ring", ((15.0, 80.6), (40.6, 189.3), (56.0, 205.7))),
        (("allreduce",), "nvls", ((25.0, 272.0),)),
    ],
}


@pytest.mark.parametrize(("job", "gpus"), TABLES)
def test_tables_of_one_node_are_what_nccl_printed(job: tuple[str, tuple[int, ...], str], gpus: int) -> None:
    model, named = nccl.Model(job[0], gpus, version=job[1]), set()
    for collectives, algorithm, cells in TABLES[job, gpus]:
        for collective in collectives:
            for protocol, (latency_us, gb_per_s) in zip(("ll", "ll128", "simple")[-len(cells) :], cells, strict=True):
                what = (collective, algorithm, protocol)
                named.add(what)
                assert round(model.latency_us(*what), 1) == latency_us, what
                assert model.bandwidth(*what) == pytest.approx(gb_per_s, abs=0.051), what
    eligible = {(collective, *pair) for collective in constants.COLLECTIVES for pair in model.eligible(collective)}
    assert eligible == named


# Choices: collective, bytes, algorithm, protocol; channels where they are printed; what NCCL expects, in µs, likewise.
MIB = 1 << 20
Line = tuple[str, int, str, str, int | None, float | None]


def ring(size: int, protocol: str, channels: int | None = None, us: float | None = None) -> Line:
    return "allreduce", size, "ring", protocol, channels, us


CHOICES: dict[str, tuple[nccl.Model, list[Line]]] = {
    f"{METAL} A100": (
        nccl.Model("a100", 4, version="2.27.3"),
        [
            *[ring(size, "ll", 1) for size in (4, 1820, 5756, 18208)],
            ring(182092, "ll", 10),
            ring(1820956, "ll128", 23),
            ring(5758372, "ll128", 24),
            *[ring(size, "simple", 24) for size in (18209580, 182095808, 1023999996)],
        ],
    ),
    **{
        f"{SCALING} {gpus} H100": (
            nccl.Model("h100", gpus, version="2.29.2"),
            [
                ("allreduce", size * MIB, "nvls" if gpus == 6 else "ring", "simple", 16 if gpus == 6 else 24, None)
                for size in (256, 512, 1024, 2048, 4096, 8192)
            ],
        )
        for gpus in (2, 4, 6)
    },
    f"{PIPELINING} H100": (nccl.Model("h100", 4, version="2.29.7"), [ring(64 * MIB, "simple", 24)]),
    f"{THESIS} H200": (
        nccl.Model("h200", 8, version="2.30.4"),
        [
            *[ring(size, "ll", 1) for size in (4, 8, 16, 32, 64, 1024)],
            *[ring(size, "ll") for size in (32768, 262144, MIB)],
            *[("allreduce", size * MIB, "nvls", "simple", None, None) for size in (2, 32)],
        ],
    ),
    # The rate of its network cards is not stated: 25 GB/s is what all of these times say.
    f"{ISSUES}/1453 3 × 8 H100": (
        nccl.Model("h100", 8, 3, version="2.22.3", nic_bytes_per_s=25e9),
        [
            ("allreduce", 8, "tree", "ll", None, 25.200924),
            ("allreduce", 256, "tree", "ll", None, 25.229528),
            ("allreduce", 512, "tree", "ll", None, 25.259054),
            ("allreduce", 65536, "tree", "ll", None, 37.798233),
            ("allreduce", 131072, "tree", "ll128", None, 51.603912),
            ("allreduce", 262144, "tree", "ll128", None, 54.707825),
            ("allreduce", MIB, "nvls_tree", "simple", None, 66.107201),
            ("allreduce", 2 * MIB, "nvls_tree", "simple", None, 79.214401),
            ring(8192 * MIB, "simple", None, 86069.96875),
        ],
    ),
    # The GPU is not stated: 24 channels of rings beside 16 of NVLS are Hopper's.
    f"{ISSUES}/1906 8 H100": (
        nccl.Model("h100", 8, version="2.26.2"),
        [
            ("allgather", 8 * 515200, "ring", "ll", 24, None),
            ("allgather", 8 * 579600, "nvls", "simple", 16, None),
        ],
    ),
    # Two ranks that were made to look like two nodes; the rates of the paths follow from the table beside the lines.
    f"{EBPF} sockets": (
        nccl.Model(
            "rtx_pro_6000",
            1,
            2,
            version="2.29.7",
            graphs={"ring": nccl.Graph(2, 1.2, 1.2), "tree": nccl.Graph(2, 2.4, 2.4)},
        ),
        [
            *[ring(size, "ll", 1) for size in (8, 64, 512, 4096)],
            *[ring(size, "ll", channels) for size, channels in ((16384, 2), (32768, 4), (65536, 4))],
            *[ring(size, "simple", 4) for size in (131072, 262144, 524288, MIB, 4 * MIB, 16 * MIB, 128 * MIB)],
            *[(what, 2 * 16 << k, "ring", "ll", 1, None) for what in SPLIT for k in range(9)],
            *[(what, 2 * 8192, "ring", "ll", 2, None) for what in SPLIT],
            *[(what, 2 * 16384, "ring", "ll", 4, None) for what in SPLIT],
            *[(what, 2 * 32768, "pat", "simple", 2, None) for what in SPLIT],
            *[(what, 2 * 65536 << k, "ring", "simple", 4, None) for what in SPLIT for k in range(11)],
            *[("broadcast", 32768 << k, "ring", "simple", min(1 << k, 4), None) for k in range(13)],
        ],
    ),
}


@pytest.mark.parametrize("source", CHOICES, ids=lambda source: source.split("/")[-1])
def test_choices_are_what_nccl_printed(source: str) -> None:
    model, lines = CHOICES[source]
    for collective, size, algorithm, protocol, channels, us in lines:
        choice = model.choose(collective, size)
        assert (choice.algorithm, choice.protocol) == (algorithm, protocol), (collective, size)
        assert channels in (None, choice.channels), (collective, size, choice.channels)
        assert us is None or choice.nccl_s * 1e6 == pytest.approx(us, rel=1e-6), (collective, size)


def test_a_protocol_that_was_forced_takes_what_nccl_printed() -> None:
    """8 H100, NCCL_PROTO=Simple: https://github.com/NVIDIA/nccl/issues/1595; 2.21 to 2.23 agree."""
    compared = nccl.Model("h100", 8, version="2.21.5").compare("allreduce", 805306368)
    (ring_simple,) = [estimate for estimate in compared if estimate[:2] == ("ring", "simple")]
    assert ring_simple.nccl_s * 1e6 == pytest.approx(3970.683594, rel=1e-6)


# Allreduce on 4 nodes of 8 H200 and of one, NCCL 2.30.4 on AWS P5en, 1 KiB to 1 GiB in powers of two, each algorithm
# and protocol forced: how many channels. A report read through an index of public code that gives no address for it.
# What its plug-in chose itself is not here: aws-ofi-nccl's tuner overrides NCCL's choice, not the channels.
CHANNELS = {
    8: {
        ("ring", "ll"): [1] * 8 + [2, 4, 8] + [16] * 10,
        ("ring", "ll128"): [1] * 5 + [2, 4, 8] + [16] * 13,
        ("ring", "simple"): [1] * 6 + [2, 4, 8] + [16] * 12,
        ("tree", "ll"): [1] * 3 + [2, 4, 8] + [16] * 15,
        ("tree", "ll128"): [1] * 5 + [2, 4, 8] + [16] * 13,
        ("tree", "simple"): [1] * 6 + [2, 4, 8] + [16] * 12,
    },
    1: {
        ("ring", "ll"): [1] * 5 + [2] + [4] * 15,
        ("ring", "ll128"): [1] * 5 + [2] + [4] * 15,
        ("ring", "simple"): [1] * 6 + [2] + [4] * 14,
        ("tree", "ll"): [1] * 3 + [2] + [4] * 17,
        ("tree", "ll128"): [1] * 5 + [2] + [4] * 15,
        ("tree", "simple"): [1] * 6 + [2] + [4] * 14,
    },
}


@pytest.mark.parametrize("gpus", CHANNELS)
def test_252_counts_of_channels_are_what_nccl_printed(gpus: int) -> None:
    model = nccl.Model("h200", gpus, 4, version="2.30.4")
    assert sum(len(counts) for counts in CHANNELS[gpus].values()) == 126
    for pair, counts in CHANNELS[gpus].items():
        assert [model.channels("allreduce", *pair, 1 << power) for power in range(10, 31)] == counts, pair
