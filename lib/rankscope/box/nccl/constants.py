"""The constants of NCCL's model, by version, and those of the terms that it lacks.

They are facts read from NCCL v2.30.7, src/graph/tuning.cc and src/enqueue.cc, and from the tags before it
(Apache-2.0): latencies in µs, bandwidths in GB/s (10⁹ bytes), in the order LL, LL128, Simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...common.checks import check_field, number, truth, whole

Row = tuple[float, float, float]  # of LL, LL128, Simple; or of one node, two, more
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES = ("broadcast", "reduce", "allgather", "reduce_scatter", "allreduce")

# ---- NCCL's constants

BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0)}
HOP: dict[str, dict[str, Row]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25), "nvls_tree": (0, 0, 25)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "net": {"tree": (5.0, 8.5, 14), "ring": (2.7, 4.0, 14.0), "nvls_tree": (0, 0, 20.9), "pat": (0, 0, 14)},
}
# By generation; columns are one node, two nodes, more.
LL_MAX = {"volta": (39, 39, 20.4), "ampere": (87.7, 22.5, 19), "hopper": (141, 45, 35), "blackwell": (282, 90, 70)}
CHANNEL_RING_LL128 = {
    "volta": (20, 20, 20),
    "ampere": (20, 20, 20),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40, 40, 40),
}
CHANNEL_TREE_LL128 = CHANNEL_RING_LL128 | {"hopper": (36.7, 36.7, 29), "blackwell": (55.6, 31.67, 20)}
CHANNEL_TREE = {
    "volta": (26.5, 18.5, 10),
    "ampere": (24, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36),
    "blackwell": (70, 42.8, 24),
}
CHANNEL_NVLS_TREE = CHANNEL_TREE | {"hopper": (0, 57.7, 45.5), "blackwell": (0, 96, 80)}
NVLS_EFFICIENCY = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
CORRECTION = np.array(  # of a tree's bandwidth: 64 B, 128 B … 256 MiB, by protocol
    [
        [1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1],
        [0.9] * 7 + [0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9],
    ]
)
NET_OVERHEAD = {"intel": 1.0, "amd": 2.0, "other": 1.0}  # µs, three times as much for Simple
PLATEAU = {"volta": 1.9, "ampere": 1.9, "hopper": 1.4, "blackwell": 1.4}  # of the Simple ring's latency between nodes
THREADS = {"ll": 512, "ll128": 640, "simple": 512}
THRESHOLD = {"ll": 8, "ll128": 8, "simple": 64}  # bytes a thread; times the ranks for the ring's LL
# GB/s that NCCL's search tries, the fastest first (src/graph/search.cc): for several nodes, and for NVLS on one.
_OLD_SPEEDS = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_LOW_SPEEDS = (42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
SPEEDS = {
    "volta": _OLD_SPEEDS,
    "ampere": _OLD_SPEEDS,
    "hopper": (48, 45, *_LOW_SPEEDS),
    "blackwell": (96, 86, 80, 48, 45.1, *_LOW_SPEEDS),
}
NVLS_SPEEDS = {
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
MOST_CHANNELS = 64
NVLS_CHANNELS = {"hopper": 16, "blackwell": 32}
MULTICAST_CHUNKS = ((64, 65536), (8, 32768), (2, 16384))  # below so many rounds, chunks of no more than this
MULTICAST_CHUNK = 131072


_BY_VERSION = ["BASE", "HOP", "LL_MAX", "CHANNEL_RING_LL128", "CHANNEL_TREE_LL128", "CHANNEL_TREE", "CHANNEL_NVLS_TREE"]


class Era(NamedTuple):
    """What is different in older versions: which constants, and which forms of the formulas."""

    since: tuple[int, int, int]
    constants: Mapping[str, Any] = MappingProxyType({})
    is_nvls_by_steps: bool = True  # otherwise 5/6 of the graph
    is_ll_half: bool = True  # otherwise a ring's LL is a third or a quarter of Simple
    ll128_alone: float = 0.92  # a ring's LL128 with one GPU per node, of Simple
    is_hop_more: bool = False  # an allreduce's ring counts two hops between nodes more than it has
    least_traffic: int = 32768  # bytes a channel moves before NCCL adds another; 0 where it does not look


_HOP_14 = {**HOP, "net": {**HOP["net"], "nvls_tree": (0, 0, 14)}}
_HOP_OLD = {link: {**rows, "tree": (*rows["tree"][:2], 28)} for link, rows in _HOP_14.items()}
_HOP_OLD["nvlink"] |= {"nvls": (0, 0, 23), "nvls_tree": (0, 0, 23)}
_B_28 = {"CHANNEL_NVLS_TREE": CHANNEL_NVLS_TREE | {"blackwell": (0, 96, 43.8)}}


def _blackwell_ring(*row: float) -> dict[str, Any]:
    return {"CHANNEL_RING_LL128": CHANNEL_RING_LL128 | {"blackwell": row}}


_RING_28 = _blackwell_ring(73.4, 34.6, 73.4)

ERAS = (
    Era(
        (2, 19, 0),
        {
            "BASE": BASE | {"tree": (6.8, 14.0, 0)},
            "HOP": _HOP_OLD,
            "LL_MAX": LL_MAX | {"hopper": LL_MAX["ampere"]},
            **_RING_28,
        },
        is_nvls_by_steps=False,
        is_ll_half=False,
        ll128_alone=0.7,
        is_hop_more=True,
        least_traffic=0,
    ),
    Era(
        (2, 21, 0),
        {"HOP": _HOP_14, **_RING_28},
        is_nvls_by_steps=False,
        ll128_alone=0.7,
        is_hop_more=True,
        least_traffic=0,
    ),
    Era(
        (2, 22, 0),
        {"HOP": _HOP_14, **_RING_28},
        is_nvls_by_steps=False,
        ll128_alone=0.7,
        is_hop_more=True,
        least_traffic=16384,
    ),
    Era((2, 23, 0), {"HOP": _HOP_14, **_RING_28}, is_nvls_by_steps=False, least_traffic=16384),
    Era((2, 28, 0), {**_B_28, **_RING_28}, least_traffic=16384),
    Era((2, 29, 2), {**_B_28, **_blackwell_ring(34.5, 34.6, 34.5)}),
    Era((2, 29, 7), _B_28),
    Era((2, 30, 3)),
)


class Gpu(NamedTuple):
    """A GPU by its data sheet, and the ring that NCCL's log prints for one node: channels, and GB/s of each."""

    generation: str
    wire: float  # GB/s to the others of the node, one way, as NCCL counts its links (topo.h)
    ring: tuple[int, float]
    nic: float  # GB/s of a network card of such boxes
    link: str = "nvlink"


# The GPUs that `Model` knows, by name, with the facts of the machines that they are in.
GPUS = {
    "v100": Gpu("volta", 120, (6, 20), 12.5),
    "a100": Gpu("ampere", 240, (12, 20), 25),
    "h100": Gpu("hopper", 370.8, (12, 30), 50),
    "h200": Gpu("hopper", 370.8, (12, 30), 50),
    "b200": Gpu("blackwell", 721.8, (16, 45), 50),
    "b300": Gpu("blackwell", 721.8, (16, 45), 100),
    "gb200": Gpu("blackwell", 721.8, (16, 45), 50),
    "gb300": Gpu("blackwell", 721.8, (16, 45), 100),
    "l40s": Gpu("ampere", 24, (1, 24), 25, "pcie"),
    "rtx_pro_6000": Gpu("blackwell", 48, (2, 24), 50, "pcie"),
}


class Graph(msgspec.Struct, frozen=True):
    """The paths of an algorithm: the number of channels, and the GB/s of each channel within and between nodes.

    NCCL's log states them, as in "Pattern 4, crossNic 0, nChannels 24, bw 15.000000/15.000000". Raises ValueError if a
    figure is out of range.
    """

    num_channels: int
    intra: float
    inter: float
    is_plain_tree: bool = True  # neither balanced nor split between GPUs
    same_channels: bool = True  # all channels go through the GPUs in the same order

    def __post_init__(self) -> None:
        check_field(self, "num_channels", whole, 1, MOST_CHANNELS)
        check_field(self, "intra", number, above=0)
        check_field(self, "inter", number, above=0)
        check_field(self, "is_plain_tree", truth)
        check_field(self, "same_channels", truth)


def constants(version: tuple[int, ...]) -> tuple[Era, dict[str, Any]]:
    """Return the era of a version, and all constants as that version has them."""
    era = max((era for era in ERAS if era.since <= version), key=lambda era: era.since)
    newest = {name: globals()[name] for name in _BY_VERSION}
    return era, {**newest, **era.constants}


# ---- the terms that NCCL's model lacks


class GenerationTerms(msgspec.Struct, frozen=True):
    """What a GPU generation adds to NCCL's model. `python -m tests.benchmarks.nccl --fit` finds the constants again.

    They were fitted to public curves of one NVLink node, 1 KiB to 512 MiB, half precision, out of place. The first
    four are of a generation, the others of all. Volta was not measured: it has Ampere's.
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


TERMS = {
    "volta": GenerationTerms(8.6, 0.69, 11.7, 9.6),
    "ampere": GenerationTerms(8.6, 0.69, 11.7, 9.6),
    "hopper": GenerationTerms(4.2, 0.73, 6.2, 5.9),
    "blackwell": GenerationTerms(7.85, 1.18, 3.0, 10.6),
}
SIMPLE_CHUNK_BYTES = 1 << 21  # of a channel: two slices
