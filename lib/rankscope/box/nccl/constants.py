"""The constants of NCCL's model, by GPU and by version, and those of the terms that it lacks.

NCCL's are facts from v2.30.7 and the tags before it (Apache-2.0): src/graph/tuning.cc, src/graph/search.cc and
src/enqueue.cc. Latencies are in µs and bandwidths in GB/s (10⁹ bytes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES = ("broadcast", "reduce", "allgather", "reduce_scatter", "allreduce")

SPLIT = ("allgather", "reduce_scatter")  # a rank contributes, or keeps, a part of the buffer
MOST_CHANNELS = 64

Row = tuple[float, float, float]  # of LL, LL128 and Simple; or of one node, two nodes, and more

# ---- tables of src/graph/tuning.cc, which depend on the version

# Before the first step ("base"), per step over a link, and the least of a step on several nodes ("overhead"), which
# NCCL doubles if the CPU is AMD's.
LATENCY_US: dict[tuple[str, str], Row] = {
    ("base", "tree"): (6.8, 14.0, 8.4),
    ("base", "ring"): (6.6, 14.0, 8.4),
    ("base", "pat"): (8.0, 8.0, 8.0),
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("nvlink", "nvls"): (0, 0, 25),
    ("nvlink", "nvls_tree"): (0, 0, 25),
    ("pcie", "tree"): (1.0, 1.9, 4.0),
    ("pcie", "ring"): (1.0, 2.5, 5.7),
    ("net", "tree"): (5.0, 8.5, 14),
    ("net", "ring"): (2.7, 4.0, 14.0),
    ("net", "nvls_tree"): (0, 0, 20.9),
    ("net", "pat"): (0, 0, 14),
    ("overhead", "ring"): (1, 1, 3),
}
CORRECTION = {  # factors of a tree's bandwidth at 64 B, 128 B … 256 MiB
    "ll": [1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1],
    "ll128": [1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1],
    "simple": [0.9] * 7 + [0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9],
}


class Terms(msgspec.Struct, frozen=True):
    """What a GPU's generation adds to NCCL's model.

    Fitted to public curves of one NVLink node, 1 KiB to 512 MiB, half precision, out of place;
    `python -m tests.benchmarks.nccl --fit` finds them again. The first four are of a generation, the others of all.
    """

    launch_us: float  # a collective after another on the stream
    hop_us: float  # a step of LL
    simple_launch_us: float  # what a Simple ring adds
    simple_hop_us: float  # the way of a slice, which a step takes with half of its bytes
    ll_tail: float = 1.3  # the last piece of an LL ring, of a step's time
    ll128_launch_us: float = 7.6
    ll128_hop_us: float = 1.21
    ll128_share: float = 0.676  # of a channel's bandwidth
    simple_tail: float = 0.76
    copy: float = 0.19  # of a rank's own part, allgather out of place, of a step
    nvls_hop: float = 7.0  # a round of NVLS, in hops


# GB/s that NCCL's search tries, the fastest first
_OLD_SPEEDS = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_LOW_SPEEDS = (42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)


class Generation(NamedTuple):
    """The constants of a generation of GPUs; a row is of one node, two nodes, and more."""

    terms: Terms
    ll_max: Row  # the most that LL reaches
    tree: Row  # the most that a channel reaches: a tree, and with LL128 a ring and a tree
    ring_ll128: Row
    tree_ll128: Row
    speeds: tuple[float, ...]  # of a channel: what NCCL's search tries between nodes
    plateau: float  # a factor of a Simple ring's latency between nodes
    has_nvls: bool = False
    nvls_speeds: tuple[float, ...] = _OLD_SPEEDS  # what NCCL's search tries for NVLS on one node
    nvls_tree: Row = (math.inf, math.inf, math.inf)  # the most that a channel reaches between nodes
    nvls_efficiency: float = 1.0
    nvls_channels: int = 16


_VOLTA = Generation(
    terms=Terms(8.6, 0.69, 11.7, 9.6),  # of Ampere, because no measurements of Volta were available
    ll_max=(39, 39, 20.4),
    tree=(26.5, 18.5, 10),
    ring_ll128=(20, 20, 20),
    tree_ll128=(20, 20, 20),
    speeds=_OLD_SPEEDS,
    plateau=1.9,
)
GENERATIONS = {
    "volta": _VOLTA,
    "ampere": _VOLTA._replace(ll_max=(87.7, 22.5, 19), tree=(24, 23.6, 17.8)),
    "hopper": Generation(
        terms=Terms(4.2, 0.73, 6.2, 5.9),
        ll_max=(141, 45, 35),
        tree=(38.7, 41.4, 36),
        ring_ll128=(36.7, 36.7, 36.7),
        tree_ll128=(36.7, 36.7, 29),
        speeds=(48, 45, *_LOW_SPEEDS),
        plateau=1.4,
        has_nvls=True,
        nvls_speeds=(60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
        nvls_tree=(math.inf, 57.7, 45.5),
        nvls_efficiency=0.85,
    ),
    "blackwell": Generation(
        terms=Terms(7.85, 1.18, 3.0, 10.6),
        ll_max=(282, 90, 70),
        tree=(70, 42.8, 24),
        ring_ll128=(40, 40, 40),
        tree_ll128=(55.6, 31.67, 20),
        speeds=(96, 86, 80, 48, 45.1, *_LOW_SPEEDS),
        plateau=1.4,
        has_nvls=True,
        nvls_speeds=(90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
        nvls_tree=(math.inf, 96, 80),
        nvls_efficiency=0.74,
        nvls_channels=32,
    ),
}

# ---- what differs between versions


class Version(NamedTuple):
    """What NCCL changed from one version to another; the defaults are of the newest."""

    since: tuple[int, int, int]
    latency_us: Mapping[tuple[str, str], Row] = LATENCY_US
    generations: Mapping[str, Generation] = GENERATIONS
    is_nvls_by_efficiency: bool = True  # otherwise an allreduce has 5/6 of the paths
    ll_share: float = 1 / 2  # a ring's LL, of Simple
    ll_share_one_way: float = 1 / 2  # broadcast, allgather and reduce-scatter on one node
    ll128_alone: float = 0.92  # a ring's LL128 with one GPU per node, of Simple
    extra_inter_steps: int = 0  # steps between nodes that an allreduce's ring counts, but does not have
    least_traffic_bytes: int = 32768  # of a channel, before NCCL adds another; 0 where it does not look


_2_30_3 = Version((2, 30, 3))
_old = GENERATIONS["blackwell"]._replace(nvls_tree=(math.inf, 96, 43.8))
_2_29_7 = _2_30_3._replace(since=(2, 29, 7), generations={**GENERATIONS, "blackwell": _old})
_old = _old._replace(ring_ll128=(34.5, 34.6, 34.5))
_2_29_2 = _2_29_7._replace(since=(2, 29, 2), generations={**GENERATIONS, "blackwell": _old})
_old = _old._replace(ring_ll128=(73.4, 34.6, 73.4))
_2_28 = _2_29_2._replace(since=(2, 28, 0), generations={**GENERATIONS, "blackwell": _old}, least_traffic_bytes=16384)
_2_23 = _2_28._replace(
    since=(2, 23, 0), latency_us={**LATENCY_US, ("net", "nvls_tree"): (0, 0, 14)}, is_nvls_by_efficiency=False
)
_2_22 = _2_23._replace(since=(2, 22, 0), ll128_alone=0.7, extra_inter_steps=2)
_2_21 = _2_22._replace(since=(2, 21, 0), least_traffic_bytes=0)
_old_hopper = GENERATIONS["hopper"]._replace(ll_max=GENERATIONS["ampere"].ll_max)
_2_19 = _2_21._replace(
    since=(2, 19, 0),
    latency_us={
        **_2_21.latency_us,
        ("base", "tree"): (6.8, 14.0, 0),
        ("nvlink", "tree"): (0.6, 1.25, 28),
        ("pcie", "tree"): (1.0, 1.9, 28),
        ("net", "tree"): (5.0, 8.5, 28),
        ("nvlink", "nvls"): (0, 0, 23),
        ("nvlink", "nvls_tree"): (0, 0, 23),
    },
    generations={**_2_21.generations, "hopper": _old_hopper},
    ll_share=1 / 4,
    ll_share_one_way=1 / 3,
)
VERSIONS = (_2_30_3, _2_29_7, _2_29_2, _2_28, _2_23, _2_22, _2_21, _2_19)  # the newest first

# ---- machines


class Gpu(NamedTuple):
    """A GPU by its data sheet, and the ring that NCCL's log prints for one node."""

    generation: str  # one of GENERATIONS
    links_gb_per_s: float  # to the others of the node, one way, as NCCL counts its links (src/graph/topo.h)
    ring_channels: int
    channel_gb_per_s: float
    nic_gb_per_s: float  # a network card of such machines
    link: str = "nvlink"


_HOPPER = Gpu("hopper", 370.8, 12, 30, 50)
_BLACKWELL = Gpu("blackwell", 721.8, 16, 45, 50)
GPUS = {
    "v100": Gpu("volta", 120, 6, 20, 12.5),
    "a100": Gpu("ampere", 240, 12, 20, 25),
    "h100": _HOPPER,
    "h200": _HOPPER,
    "b200": _BLACKWELL,
    "b300": _BLACKWELL._replace(nic_gb_per_s=100),
    "gb200": _BLACKWELL,
    "gb300": _BLACKWELL._replace(nic_gb_per_s=100),
    "l40s": Gpu("ampere", 24, 1, 24, 25, "pcie"),
    "rtx_pro_6000": Gpu("blackwell", 48, 2, 24, 50, "pcie"),
}


class Graph(msgspec.Struct, frozen=True):
    """The paths of an algorithm: the number of channels, and the GB/s of each within and between nodes.

    NCCL's log states them, as in "Pattern 4, crossNic 0, nChannels 24, bw 15.000000/15.000000".
    """

    num_channels: int
    intra: float
    inter: float
    is_plain_tree: bool = True  # neither balanced nor split between GPUs
    same_channels: bool = True  # all channels go through the GPUs in the same order


# ---- how far the model is from measurements

# A machine's error is the median of its allreduces, allgathers and reduce-scatters of 1 KiB and more. The figures are
# of the best and the worst public machine; `python -m tests.benchmarks.nccl` computes them, and a test compares them.
LIMITS = {
    "NVLink": "On other public nodes with NVLink, the model's median error is 4 to 34 %, and that of NCCL's own "
    "estimate 3 to 57 %.",
    "PCIe": "No published rate predicts times over PCIe, so our time is NCCL's own estimate plus a launch. On public "
    "nodes without NVLink, its median error is 21 to 60 %, and that of NCCL's own estimate 18 to 61 %.",
    "InfiniBand": "Times between nodes assume InfiniBand with GPUDirect and Intel's CPUs. On public InfiniBand "
    "clusters, the model's median error is 2 to 59 %, and that of NCCL's own estimate 2 to 58 %.",
}
