"""`Model`: which algorithm and protocol NCCL chooses, what it expects of them, and what machines then take."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...common.checks import check_field, number, of_type, one_of, optional, several, whole
from .constants import (
    ALGORITHMS,
    COLLECTIVES,
    CORRECTION,
    GPUS,
    MOST_CHANNELS,
    MULTICAST_CHUNK,
    MULTICAST_CHUNKS,
    NET_OVERHEAD,
    NVLS_CHANNELS,
    NVLS_EFFICIENCY,
    NVLS_SPEEDS,
    PLATEAU,
    PROTOCOLS,
    SIMPLE_CHUNK_BYTES,
    SPEEDS,
    TERMS,
    THREADS,
    THRESHOLD,
    Era,
    GenerationTerms,
    Graph,
    constants,
)
from .log import read_log

if TYPE_CHECKING:
    import pandas as pd

    from .. import Profile

Floats = NDArray[np.float64]
SIZES = tuple(2**power for power in range(10, 40))  # 1 KiB to 512 GiB

_AT_MOST_TWO_DIGITS = re.compile(r"[0-9]{1,2}")  # of each number: NCCL_VERSION_CODE has room for two
_UNSTATED_PATCH = 99  # of a version without its third number: the latest
_MOST_SIZE = 1 << 50
_MOST_HEADS = 32  # of NVLS, the paths of a node at most (NCCL_MAX_NVLS_ARITY)
_LEAST_READING_BYTES = 1024  # the smallest size of the curves that the terms were fitted to


def _version(name: str, value: Any) -> tuple[int, int, int]:
    """Return a version of NCCL, a text or numbers, as three numbers."""
    parts = value.split(".") if isinstance(value, str) else value
    is_version = (
        isinstance(parts, tuple | list)
        and len(parts) in (2, 3)
        and all(_AT_MOST_TWO_DIGITS.fullmatch(str(part)) for part in parts)
    )
    if is_version:
        numbers = [int(part) for part in parts]
        if len(numbers) == 2:
            numbers.append(_UNSTATED_PATCH)
        major, minor, patch = numbers
        if major == 2 and minor >= 19:  # `ERAS` begins at 2.19, and has only constants of NCCL 2
            return major, minor, patch
    raise ValueError(f"{name} must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got {value!r}")


class Choice(msgspec.Struct, frozen=True):
    """NCCL's choice for a collective at a size: the algorithm, the protocol, and the number of channels.

    `nccl_s` is the time that NCCL expects. `time_s` is the time that a machine needs by this package's model, which is
    the sum of its named terms, `terms_s`.
    """

    collective: str
    num_bytes: int
    algorithm: str
    protocol: str
    channels: int
    nccl_s: float
    time_s: float
    terms_s: Mapping[str, float]


class Compared(NamedTuple):
    """An algorithm and a protocol by size: the channels, the seconds that NCCL expects, and those of the model."""

    channels: Floats
    nccl_s: Floats
    time_s: Floats


def _graphs(name: str, value: Any) -> dict[str, Graph]:
    """Return graphs by algorithm, after checking both."""
    graphs = dict(of_type(name, value, dict))
    for algorithm, graph in graphs.items():
        one_of(f"{name}: algorithm", algorithm, ALGORITHMS)
        of_type(f"{name}[{algorithm!r}]", graph, Graph)
    return graphs


class Model(msgspec.Struct, frozen=True, dict=True):
    """NCCL's cost model of a cluster: the algorithm and protocol that it chooses for a collective, and their times.

    `gpu` is one of GPUS, `version` is NCCL's, and `cpu` is "intel", "amd" or "other". Each node has `nics` network
    cards of `nic_bytes_per_s` each; by default one card per GPU, at the usual rate of such machines. `graphs` replaces
    the paths that NCCL is expected to find, by algorithm ("ring", "tree", "nvls"). `terms` are the constants that
    NCCL's model omits, by default those of the GPU's generation; `minimum_s` is the minimum host time per collective.
    `with_readings` determines both from measurements. `printed` contains the figures of NCCL's log; see `from_log`.

    Raises ValueError if an argument is out of range or unknown.

    >>> model = Model(gpu="h100", gpus_per_node=8, version=(2, 29))
    >>> choice = model.choose("allreduce", 1 << 30)
    >>> choice.algorithm, choice.protocol, f"{choice.nccl_s * 1e3:.2f} ms"
    ('nvls', 'simple', '3.97 ms')
    """

    gpu: str = "h100"
    gpus_per_node: int = 8
    num_nodes: int = 1
    version: tuple[int, ...] = (2, 30)
    cpu: str = "intel"
    nics: int | None = None
    nic_bytes_per_s: float | None = None
    graphs: Mapping[str, Graph] = {}
    terms: GenerationTerms | None = None
    minimum_s: float = 0.0
    printed: Mapping[tuple[str, str, str], tuple[float, float]] = {}

    def __post_init__(self) -> None:
        check_field(self, "gpu", one_of, tuple(GPUS))
        check_field(self, "gpus_per_node", whole, 1, 72)
        check_field(self, "num_nodes", whole, 1, 4096)
        check_field(self, "version", _version)
        check_field(self, "cpu", one_of, tuple(NET_OVERHEAD))
        check_field(self, "nics", optional, whole, 1, 64)
        check_field(self, "nic_bytes_per_s", optional, number, above=0)
        check_field(self, "graphs", _graphs)
        check_field(self, "terms", optional, of_type, GenerationTerms)
        check_field(self, "minimum_s", number, 0)
        if self.num_ranks < 2:
            raise ValueError("gpus_per_node must be at least 2 on one node, got 1")

    def __hash__(self) -> int:  # of what can be hashed, unlike `graphs` and `printed`
        return hash((self.gpu, self.gpus_per_node, self.num_nodes, self.version, self.cpu))

    @property
    def num_ranks(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def notes(self) -> tuple[str, ...]:
        """The limitations of `time_s`, one sentence each."""
        gpu = GPUS[self.gpu]
        notes = []
        if gpu.link == "pcie":
            notes.append("No published rate predicts times over PCIe, so time_s is NCCL's own estimate plus a launch.")
        if gpu.generation == "volta" and self.terms is None:
            notes.append("No measurements of Volta were available to fit, so the terms are those of Ampere.")
        if self.num_nodes > 1 and not (self.terms or self.minimum_s):
            notes.append(
                "Inter-node times assume InfiniBand with GPUDirect. For other networks, calibrate with `with_readings`."
            )
        if self.version > (2, 30, _UNSTATED_PATCH):  # 2.31 or later
            notes.append("The constants are those of NCCL 2.30.7, the latest known version.")
        return tuple(notes)

    def choose(self, collective: str, num_bytes: int) -> Choice:
        """Return NCCL's choice for a collective on `num_bytes` (the whole buffer, as nccl-tests counts them).

        Raises ValueError if the collective is not in COLLECTIVES, if NCCL's log states no bandwidth for it, or if
        `num_bytes` is below 1 or above 2**50.
        """
        one_of("collective", collective, COLLECTIVES)
        whole("num_bytes", num_bytes, 1, _MOST_SIZE)
        sizes = np.array([float(num_bytes)])
        expected_us = {}
        for pair in self._eligible(collective):
            expected_us[pair] = float(self._nccl_us(collective, *pair, sizes)[0])
        if not expected_us:  # only a log can exclude all of them; otherwise, the ring is always possible
            raise ValueError(f"collective must be one with a bandwidth in NCCL's log, got {collective!r}")
        algorithm, protocol = min(expected_us, key=expected_us.__getitem__)
        channels = self._channels(collective, algorithm, protocol, sizes)
        terms_s = {}
        for name, term_us in self._terms_us(collective, algorithm, protocol, sizes).items():
            terms_s[name] = float(term_us[0]) * 1e-6
        return Choice(
            collective=collective,
            num_bytes=num_bytes,
            algorithm=algorithm,
            protocol=protocol,
            channels=int(channels[0]),
            nccl_s=expected_us[algorithm, protocol] * 1e-6,
            time_s=sum(terms_s.values()),
            terms_s=terms_s,
        )

    def why_not(self, collective: str, algorithm: str, protocol: str) -> str:
        """Return the reason why NCCL cannot choose this algorithm and protocol, or "" if it can."""
        if self.printed:
            _, bandwidth = self.printed.get((collective, algorithm, protocol), (0.0, 0.0))
            return "" if bandwidth > 0 else "NCCL's log has no bandwidth for it"
        if algorithm.startswith("collnet"):
            return "CollNet is off unless NCCL_COLLNET_ENABLE is set"
        if collective in ("broadcast", "reduce") and algorithm != "ring":
            return f"{collective} supports only the ring"
        if algorithm == "pat" and (collective == "allreduce" or self.gpus_per_node > 1 or self.version < (2, 23)):
            return "PAT is for allgather and reduce_scatter of one GPU per node, in 2.23 and later"
        if algorithm.startswith("nvls"):
            reason = self._why_not_nvls(collective, algorithm)
            if reason:
                return reason
        if algorithm == "tree" and collective != "allreduce":
            return "the tree is for allreduce"
        if protocol != "simple" and algorithm not in ("tree", "ring"):
            return f"{algorithm} supports only Simple"
        if protocol == "ll128" and GPUS[self.gpu].link != "nvlink":
            return "LL128 needs NVLink"
        return ""

    def _why_not_nvls(self, collective: str, algorithm: str) -> str:
        """Return the reason why NCCL cannot choose "nvls" or "nvls_tree", or "" if it can."""
        gpu = GPUS[self.gpu]
        if gpu.generation not in ("hopper", "blackwell") or gpu.link != "nvlink" or self.gpus_per_node < 2:
            return "NVLS needs NVSwitch and Hopper or later"
        if self.graph("nvls").num_channels < 2:
            return "NVLS needs at least two channels"
        if algorithm == "nvls" and self.num_nodes > 1:
            return "NVLS between nodes needs CollNet"
        if algorithm == "nvls_tree" and (self.num_nodes == 1 or collective != "allreduce"):
            return "NVLSTree is for allreduce of several nodes"
        return ""

    def latency_us(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return the latency in µs that NCCL prints in its log.

        The formulas are those of NCCL's src/graph/tuning.cc: a base latency, and one per step ("hop") of a message on
        its way within a node ("intra") and between nodes ("inter").
        """
        if (collective, algorithm, protocol) in self.printed:
            return self.printed[collective, algorithm, protocol][0]
        if algorithm == "ring":
            return self._ring_latency_us(collective, protocol)
        base = self._base_us(algorithm, protocol)
        intra_hop = self._hop_us(GPUS[self.gpu].link, algorithm, protocol)
        inter_hop = max(self._hop_us("net", algorithm, protocol), self._net_overhead_us(protocol))
        depth = math.floor(math.log2(self.num_nodes))  # of a tree of nodes
        if algorithm == "tree":  # up to the root and down again, through the chain of GPUs of each node
            return base + 2 * ((self.gpus_per_node - 1) * intra_hop + depth * inter_hop)
        if algorithm == "nvls_tree":
            return base + intra_hop + 2 * depth * inter_hop
        if algorithm == "pat":
            return base + depth * inter_hop / 3.5 + 2.8 * self.num_ranks  # both factors are NCCL's
        return base + intra_hop  # of NVLS; 0 of CollNet, which is off by default and has no constants here

    def _base_us(self, algorithm: str, protocol: str) -> float:
        """Return NCCL's latency before the first step; 0 if it states none for an algorithm."""
        by_protocol = self._constants["BASE"].get(algorithm, (0, 0, 0))
        return float(by_protocol[PROTOCOLS.index(protocol)])

    def _hop_us(self, link: str, algorithm: str, protocol: str) -> float:
        """Return NCCL's latency of a step over a link, "nvlink", "pcie" or "net"; 0 if it states none."""
        by_protocol = self._constants["HOP"][link].get(algorithm, (0, 0, 0))
        return float(by_protocol[PROTOCOLS.index(protocol)])

    def _net_overhead_us(self, protocol: str) -> float:
        """Return the least that a step between nodes takes; 0 on one node."""
        if self.num_nodes == 1:
            return 0
        factor = 3 if protocol == "simple" else 1  # both are those of NCCL
        return NET_OVERHEAD[self.cpu] * factor

    def _ring_latency_us(self, collective: str, protocol: str) -> float:
        """Return the latency of a ring as NCCL calculates it, in µs."""
        base = self._base_us("ring", protocol)
        link = GPUS[self.gpu].link
        num_steps = _num_steps(collective, self.num_ranks)
        if collective in ("broadcast", "reduce"):
            # NCCL charges the same for every step here: with several nodes the network's latency, without its overhead.
            # It charges for a single step if all channels go through the GPUs in the same order, otherwise for all.
            slowest_link = link if self.num_nodes == 1 else "net"
            if self.graph("ring").same_channels:
                return base + self._hop_us(slowest_link, "ring", protocol)
            # For Simple, NCCL has the tree's latency here, to account for chunks.
            algorithm = "tree" if protocol == "simple" else "ring"
            return base + num_steps * self._hop_us(slowest_link, algorithm, protocol)
        net_overhead = self._net_overhead_us(protocol)
        # With several nodes, NCCL charges the network's overhead for each step, also for those within a node.
        intra_hop = max(self._hop_us(link, "ring", protocol), net_overhead)
        if self.num_nodes == 1:
            num_inter_steps = 0
        elif collective == "allreduce":
            num_inter_steps = 2 * (self.num_nodes - 1)
            if self._era.is_hop_more:  # older versions count two more than there are
                num_inter_steps += 2
        else:
            num_inter_steps = self.num_nodes - 1
        # With one GPU per node, NCCL has the tree's latency of the network, because nothing hides latencies there.
        inter_algorithm = "tree" if self.gpus_per_node == 1 else "ring"
        inter_hop = max(self._hop_us("net", inter_algorithm, protocol), net_overhead)
        return base + (num_steps - num_inter_steps) * intra_hop + num_inter_steps * inter_hop

    def bandwidth(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return the bandwidth of the whole buffer in GB/s that NCCL prints in its log."""
        if (collective, algorithm, protocol) in self.printed:
            return self.printed[collective, algorithm, protocol][1]
        graph = self.graph(algorithm)
        if algorithm == "ring":
            return self._ring_bandwidth(collective, protocol, graph)
        if algorithm == "tree":
            return self._tree_bandwidth(protocol, graph)
        if algorithm == "pat":
            return 0.75 * self._bus(graph)  # the share is NCCL's
        return self._nvls_bandwidth(collective, graph)  # also for CollNet, which `why_not` excludes

    def _bus(self, graph: Graph) -> float:
        """Return the GB/s of all channels together; NCCL has the rate between nodes only for three nodes and more."""
        return graph.num_channels * (graph.intra if self.num_nodes <= 2 else graph.inter)

    def _by_nodes(self, name: str, row: str | None = None) -> float:
        """Return a constant that NCCL states for one node, for two, and for more.

        `row` is the generation of GPUs whose constant it is, by default that of the model.
        """
        if row is None:
            row = GPUS[self.gpu].generation
        column = min(self.num_nodes - 1, 2)
        return float(self._constants[name][row][column])

    @property
    def _ll_max(self) -> float:
        """The most that LL reaches in GB/s. For several nodes, NCCL chooses the row of its table by CPU, not by GPU."""
        if self.num_nodes == 1:
            return self._by_nodes("LL_MAX")
        return self._by_nodes("LL_MAX", "ampere" if self.cpu == "amd" else "volta")

    def _ring_bandwidth(self, collective: str, protocol: str, graph: Graph) -> float:
        """Return the bandwidth of the whole buffer on a ring, in GB/s.

        "simple" has all of the bus. "ll" and "ll128" have a share of it, up to a limit of their own. The shares are
        those of NCCL's src/graph/tuning.cc.
        """
        bus = self._bus(graph)
        if protocol == "ll":
            if self._era.is_ll_half:
                share = 0.5
            elif self.num_nodes > 1 or collective in ("allreduce", "reduce"):
                share = 1 / 4
            else:
                share = 1 / 3
            bus = min(self._ll_max, bus * share)
        elif protocol == "ll128":
            share = 0.92 if self.gpus_per_node > 1 else self._era.ll128_alone
            bus = min(share * bus, graph.num_channels * self._by_nodes("CHANNEL_RING_LL128"))
        # In each step, 1 / num_ranks of the buffer goes over the bus.
        buffers_per_bus_traffic = self.num_ranks / _num_steps(collective, self.num_ranks)
        return float(bus * buffers_per_bus_traffic)

    def _tree_bandwidth(self, protocol: str, graph: Graph) -> float:
        """Return the bandwidth of the whole buffer on a tree, in GB/s: a share of the bus, up to NCCL's limits.

        The shares are those of NCCL's src/graph/tuning.cc. An allreduce sends the buffer up and down, hence the half.
        """
        bus = min(0.92 * self._bus(graph), graph.num_channels * self._by_nodes("CHANNEL_TREE"))
        if protocol == "ll":
            bus = min(bus / 3.8, self._ll_max)
        elif protocol == "ll128":
            share = 7 / 9 if self.num_nodes == 1 else 120 / 128
            bus = min(bus * share, graph.num_channels * self._by_nodes("CHANNEL_TREE_LL128"))
        if graph.is_plain_tree:
            bus *= 0.85
        return float(bus / 2)

    def _nvls_bandwidth(self, collective: str, graph: Graph) -> float:
        """Return the bandwidth of the whole buffer by NVLS or NVLSTree, in GB/s, as NCCL of this version calculates it.

        All factors and limits are those of NCCL's src/graph/tuning.cc. Only for an allreduce does NCCL convert the rate
        of the bus into that of the buffer.
        """
        num_nodes = self.num_nodes
        num_channels = graph.num_channels
        if not self._era.is_nvls_by_steps:
            channel_rate = graph.intra
            if num_nodes == 2:
                channel_rate = min(graph.intra, graph.inter)
            elif num_nodes > 2:
                channel_rate = min(graph.intra, graph.inter / 2)
            bus = num_channels * channel_rate
            return bus * (5 / 6) if collective == "allreduce" else bus
        # How much bus bandwidth the rate of a GPU's links is worth. In an allgather or a reduce-scatter, a GPU's own
        # part of the buffer crosses no link. In an allreduce the switch reduces, so the links carry the buffer once,
        # while bus bandwidth counts it twice.
        bus_per_link = (self.gpus_per_node - 1) / self.gpus_per_node
        if collective == "allreduce":
            bus_per_link = 2.0
        efficiency = NVLS_EFFICIENCY[GPUS[self.gpu].generation]
        channel_rate = graph.intra * efficiency * (num_channels - 1) / num_channels * bus_per_link
        # NCCL also has this bound on one node; see `_expected_graphs`.
        channel_rate = min(channel_rate, 2 * graph.inter if num_nodes == 2 else graph.inter)
        if num_nodes > 1:
            channel_rate = min(channel_rate, self._by_nodes("CHANNEL_NVLS_TREE"))
        bus = num_channels * channel_rate
        if collective == "allreduce":
            bus *= self.num_ranks / _num_steps(collective, self.num_ranks)
        return bus

    def graph(self, algorithm: str) -> Graph:
        """Return the paths of an algorithm: those in `graphs`, or else those that NCCL is expected to find."""
        kind = _GRAPH_KINDS[algorithm]
        return self.graphs.get(kind) or self._expected_graphs[kind]

    @cached_property
    def _expected_graphs(self) -> dict[str, Graph]:
        """The paths that NCCL is expected to find, by kind."""
        if self.num_nodes > 1:
            return self._graphs_between_nodes()
        gpu = GPUS[self.gpu]
        num_channels, rate = gpu.ring
        tree_rate = 2 * rate if self.gpus_per_node == 2 else rate  # as NCCL's log prints it for a pair
        num_heads = min(self.gpus_per_node, _MOST_HEADS)
        head_rates = NVLS_SPEEDS.get(gpu.generation, (gpu.wire,))  # the default is for GPUs without NVLS: never used
        return {
            "ring": Graph(num_channels, intra=rate, inter=rate),
            # A plain tree would have less bandwidth than NCCL's logs of one node state.
            "tree": Graph(num_channels, intra=tree_rate, inter=rate, is_plain_tree=False),
            # NCCL's formula for NVLS is bounded by `inter` also on one node, where it is the fastest rate of the list.
            "nvls": Graph(num_heads, intra=self._head_rate(num_heads, head_rates), inter=head_rates[0]),
        }

    def _head_rate(self, num_heads: int, speeds: Sequence[float]) -> float:
        """Return the GB/s of an NVLS path within a node: the fastest of `speeds` that a GPU's links can carry.

        An NVLS path has a GPU as its head. Its data cross the links of each GPU once, and those of the head twice. So a
        head's links carry one path more than there are heads; NCCL's ncclTopoSearchTryNvls counts them like this. GPUs
        that are no heads, of more than 32 per node, have one path less.
        """
        return _fastest(speeds, most=GPUS[self.gpu].wire / (num_heads + 1))

    def _graphs_between_nodes(self) -> dict[str, Graph]:
        """Return the expected paths of several nodes, as NCCL's ncclTopoCompute finds them (src/graph/search.cc).

        NCCL first looks for the fastest rate that paths can have both within and between nodes. If it is fast, each
        channel becomes two of half the rate, but not those of NVLS. Then NCCL raises one of both rates, while it is
        below twice the other: for trees that within nodes, and for NVLS that between nodes.
        """
        gpu = GPUS[self.gpu]
        speeds = SPEEDS[gpu.generation]
        nic = gpu.nic
        if self.nic_bytes_per_s is not None:
            nic = self.nic_bytes_per_s / 1e9
        nic = min(nic, gpu.wire)  # on PCIe, the link of a GPU may be slower than the card
        rate = _fastest(speeds, most=nic)  # GB/s of a channel
        num_nics = self.nics or self.gpus_per_node
        num_channels = num_nics * int(nic // rate)  # each card has as many as it can carry
        # A channel is a chain of a node's GPUs, so its data leave all of them but the last over their links.
        share_of_links = (self.gpus_per_node - 1) / self.gpus_per_node
        if share_of_links > 0:
            num_channels = min(num_channels, max(int(gpu.wire / (share_of_links * rate)), 1))
        inter = rate
        if self._splits_channels(rate, num_channels):
            num_channels *= 2
            inter = rate / 2
        num_channels = min(num_channels, MOST_CHANNELS)
        tree_most = gpu.wire / max(share_of_links * num_channels, 1) if share_of_links > 0 else math.inf
        tree_intra = _raised(inter, speeds, enough=2 * inter, most=tree_most)
        num_heads = min(num_nics, self.gpus_per_node, _MOST_HEADS)  # the GPUs that have a network card of their own
        head_rate = min(self._head_rate(num_heads, speeds), rate)
        head_inter = _raised(head_rate, speeds, enough=2 * head_rate, most=nic)
        return {
            # Each channel begins at a card of its own, so NCCL's logs of several nodes deny the same order of GPUs.
            "ring": Graph(num_channels, intra=inter, inter=inter, same_channels=False),
            # A plain tree, because NCCL's logs of 2 to 32 nodes state its bandwidth.
            "tree": Graph(num_channels, intra=tree_intra, inter=inter, is_plain_tree=True),
            "nvls": Graph(num_heads, intra=head_rate, inter=head_inter),
        }

    def _splits_channels(self, rate: float, channels: int) -> bool:
        """Return whether NCCL makes each channel between nodes two of half the bandwidth (ncclTopoDupChannels).

        It does so for 25 GB/s or more; on Hopper and Blackwell only with at most 4 channels, or for 50 GB/s or more.
        """
        if GPUS[self.gpu].generation in ("hopper", "blackwell"):
            return rate >= 50 or (rate >= 25 and channels <= 4)
        return rate >= 25

    @property
    def num_channels(self) -> int:
        """The number of channels of collectives on this cluster: two for each path that NCCL found.

        NCCL uses four between nodes, on Hopper and Blackwell, if its paths are few and fast (src/graph/connect.cc).
        """
        ring = self.graph("ring")
        num_paths = min(ring.num_channels, self.graph("tree").num_channels)
        num_channels = min(2 * num_paths, MOST_CHANNELS)
        is_new = GPUS[self.gpu].generation in ("hopper", "blackwell")
        if is_new and self.num_nodes > 1 and num_channels < 16 and ring.intra > 45:
            return 2 * num_channels
        return num_channels

    @cached_property
    def _era(self) -> Era:
        return constants(self.version)[0]

    @cached_property
    def _constants(self) -> dict[str, Any]:
        return constants(self.version)[1]

    def _eligible(self, collective: str) -> list[tuple[str, str]]:
        return [pair for pair in _PAIRS if not self.why_not(collective, *pair)]

    def _nccl_us(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> Floats:
        """Return the µs that NCCL expects, by size."""
        latency_us = np.full(sizes.shape, self.latency_us(collective, algorithm, protocol))
        gb_per_s = np.full(sizes.shape, self.bandwidth(collective, algorithm, protocol))
        if algorithm == "tree":
            # NCCL lowers a tree's bandwidth by a factor of the size; outside the table's sizes it does not.
            num_columns = CORRECTION.shape[1]
            column = np.log2(np.maximum(sizes / 64, 1)).astype(int)  # one per power of two, from 64 B
            is_inside = (column < num_columns) & (sizes >= 64)
            factors = CORRECTION[PROTOCOLS.index(protocol)][np.minimum(column, num_columns - 1)]
            gb_per_s = gb_per_s * np.where(is_inside, factors, 1)
        if algorithm == "ring" and protocol == "simple" and collective == "allreduce" and self.num_nodes > 1:
            # NCCL expects a higher latency if each rank's share of a channel is at least 64 bytes.
            is_plateau = sizes / (self.num_channels * self.num_ranks) >= 64
            latency_us = latency_us * np.where(is_plateau, PLATEAU[GPUS[self.gpu].generation], 1)
        return np.asarray(latency_us + sizes / (1000 * gb_per_s))  # 1 GB/s is 1000 bytes per µs

    # ---- what machines take

    def times_s(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> Floats:
        """Return the time in seconds of each size, including the terms that NCCL omits.

        Sizes are of 1 byte and more. NCCL need not choose this algorithm and protocol.
        """
        terms_us = self._terms_us(collective, algorithm, protocol, sizes)
        return np.asarray(sum(terms_us.values())) * 1e-6

    def _channels(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> Floats:
        """Return the number of channels by size.

        Two rules of NCCL's src/enqueue.cc limit it. By the first, each thread must have enough bytes; NVLS has a limit
        of its own instead. By the second, which newer versions have, each channel must have enough traffic: NCCL
        divides a rank's bytes into cells, and gives each channel so many cells that its traffic reaches a minimum.
        """
        if algorithm.startswith("nvls"):
            # The default is for a log with NVLS that the user says is of a GPU without it.
            most_channels = np.full(sizes.shape, NVLS_CHANNELS.get(GPUS[self.gpu].generation, self.num_channels))
        else:
            bytes_per_channel = THREADS[protocol] * THRESHOLD[protocol]
            if algorithm == "ring" and protocol == "ll":
                bytes_per_channel *= self.num_ranks  # NCCL's factor
            most_channels = np.clip(sizes // bytes_per_channel, 1, self.num_channels)
        least_traffic = self._era.least_traffic
        if not least_traffic:
            return most_channels
        own_bytes = sizes  # what a rank contributes, or keeps
        if collective in ("allgather", "reduce_scatter"):
            own_bytes = np.ceil(sizes / self.num_ranks)
        traffic_per_byte = {
            "broadcast": 1,
            "reduce": 1,
            "allgather": self.num_ranks,
            "reduce_scatter": self.num_ranks,
            "allreduce": 2,
        }[collective]
        if protocol == "ll":
            traffic_per_byte *= 4  # NCCL's factor
        # A cell is the smallest multiple of 16 bytes whose traffic reaches the minimum.
        cell_bytes = 16 * math.ceil(math.ceil(least_traffic / traffic_per_byte) / 16)
        num_cells = np.ceil(own_bytes / cell_bytes)
        traffic_per_channel = np.maximum(own_bytes * traffic_per_byte // most_channels, least_traffic)
        cells_per_channel = np.ceil(traffic_per_channel / (cell_bytes * traffic_per_byte))
        return np.asarray(np.minimum(np.ceil(num_cells / cells_per_channel), most_channels))

    def _terms_us(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> dict[str, Floats]:
        """Return the named terms of the time, in µs; their sum is the time that a machine takes."""
        gpu = GPUS[self.gpu]
        terms = self.terms or TERMS[gpu.generation]
        by_name = {"launch": np.full(sizes.shape, terms.launch_us)}
        is_ring_on_nvlink = algorithm == "ring" and gpu.link == "nvlink" and self.num_nodes == 1
        if algorithm == "nvls":
            by_name |= self._nvls_us(terms, collective, sizes)
        elif is_ring_on_nvlink and collective not in ("broadcast", "reduce"):
            by_name |= self._ring_us(terms, collective, protocol, sizes)
        else:  # No measurement shows better terms than NCCL's own. Our launch replaces its base latency.
            latency_us = self.latency_us(collective, algorithm, protocol)
            base_us = self._base_us(algorithm, protocol)
            hops_us = max(latency_us - base_us, 0.0)  # a log may state less than the base
            by_name["hops"] = np.full(sizes.shape, hops_us)
            by_name["bytes"] = self._nccl_us(collective, algorithm, protocol, sizes) - latency_us
        if self.minimum_s:
            missing_us = self.minimum_s * 1e6 - sum(by_name.values())
            by_name["minimum"] = np.maximum(missing_us, 0)
        return by_name

    def _ring_us(self, terms: GenerationTerms, collective: str, protocol: str, sizes: Floats) -> dict[str, Floats]:
        """Return the terms of a ring within a node of GPUs that NVLink connects, in µs, by name.

        Channels work in parallel; in each step of a ring, a rank sends a piece of the buffer on each.
        """
        graph = self.graph("ring")
        num_steps = _num_steps(collective, self.num_ranks)
        wire = GPUS[self.gpu].wire  # GB/s of a GPU's links
        if protocol == "simple":  # large buffers reach what NCCL itself expects of the paths
            wire = graph.num_channels * graph.intra
        # LL sends 4 bytes of data with 4 bytes of flag.
        data_share = {"ll": 0.5, "ll128": terms.ll128_share, "simple": 1.0}[protocol]
        channel_bytes_per_us = data_share * 1000 * wire / self.num_channels
        num_channels = self._channels(collective, "ring", protocol, sizes)
        piece_bytes = sizes / self.num_ranks / num_channels  # what a rank sends on a channel in a step
        step_us = piece_bytes / channel_bytes_per_us
        tail_us: Floats | None = None
        if protocol == "ll":
            hops_us = np.full(sizes.shape, num_steps * terms.hop_us)
            tail_us = terms.ll_tail * step_us
        elif protocol == "ll128":  # without a tail: the few sizes at which NCCL uses it on public curves show none
            hops_us = np.full(sizes.shape, terms.ll128_launch_us + num_steps * terms.ll128_hop_us)
        else:
            # Simple sends a piece chunk by chunk, each in two slices. A chunk takes as long as both slices at the
            # bandwidth, or as one slice and a hop, whichever is longer. The 4-norm is their maximum with a soft corner.
            num_chunks = np.ceil(piece_bytes / SIMPLE_CHUNK_BYTES)
            chunk_us = step_us / num_chunks
            longer_us = (chunk_us**4 + (chunk_us / 2 + terms.simple_hop_us) ** 4) ** 0.25
            # `longer_us` includes the bytes, which are a term of their own.
            hops_us = terms.simple_launch_us + num_chunks * num_steps * (longer_us - chunk_us)
            last_chunk_share = np.minimum(1, SIMPLE_CHUNK_BYTES / piece_bytes)
            tail_us = terms.simple_tail * last_chunk_share * step_us
        by_name = {"hops": hops_us, "bytes": num_steps * step_us}
        if tail_us is not None:
            by_name["tail"] = tail_us
        if collective == "allgather":
            by_name["copy"] = terms.copy * step_us
        return by_name

    def _nvls_us(self, terms: GenerationTerms, collective: str, sizes: Floats) -> dict[str, Floats]:
        """Return the terms of NVLS in µs, by name.

        In each round, every GPU sends a chunk on each channel. Chunks shrink if the buffer is too small for full ones.
        """
        gpu = GPUS[self.gpu]
        num_streams = self._channels(collective, "nvls", "simple", sizes) * self.gpus_per_node
        chunk_bytes = np.full(sizes.shape, float(MULTICAST_CHUNK))
        for least_rounds, most_bytes in MULTICAST_CHUNKS:
            is_short = sizes < least_rounds * num_streams * chunk_bytes
            chunk_bytes = np.where(is_short, np.minimum(chunk_bytes, most_bytes), chunk_bytes)
        num_rounds = sizes / (num_streams * chunk_bytes) + 2  # two to fill and drain the pipeline
        bytes_per_us = 1000 * gpu.wire * NVLS_EFFICIENCY[gpu.generation]
        return {
            "hops": num_rounds * terms.nvls_hop * terms.hop_us,
            "bytes": num_rounds * num_streams * chunk_bytes / bytes_per_us,
        }

    # ---- from a machine of one's own

    def with_readings(self, profile: Profile, fewer: Profile | None = None) -> Model:
        """Return the model with the host's minimum, or with launch and hop, as measured on the machine itself.

        A profile with the model's number of ranks determines the minimum: the time of its smallest allreduce, allgather
        or reduce-scatter of at least 1 KiB. If the model is slower than that, the launch becomes shorter instead. If
        `fewer` is a profile of fewer GPUs on one node, launch and hop of LL follow from the smallest allgather of each.

        Raises ValueError if an argument is not a profile, or has no native collectives or the wrong number of ranks.
        """
        from ..profile import Profile

        of_type("profile", profile, Profile)
        optional("fewer", fewer, of_type, Profile)
        if profile.num_ranks != self.num_ranks:
            raise ValueError(f"profile must be of {self.num_ranks} ranks, got {profile.num_ranks}")
        terms = self.terms or TERMS[GPUS[self.gpu].generation]
        if fewer is None:
            reading = _smallest(profile, ("allreduce", "allgather", "reduce_scatter"))  # those with terms of our own
            modelled = replace(self, minimum_s=0.0).choose(reading.collective, reading.num_bytes)
            missing_s = reading.seconds - modelled.time_s
            if missing_s >= 0:
                return replace(self, minimum_s=reading.seconds)
            # The machine is faster than the model, which no minimum can express: shorten the launch.
            launch = max(terms.launch_us + missing_s * 1e6, 0.0)
            return replace(self, minimum_s=0.0, terms=replace(terms, launch_us=launch))
        # The time of a small allgather is a launch and a hop per further rank, so two numbers of ranks determine both.
        if self.num_nodes > 1 or not 2 <= fewer.num_ranks < profile.num_ranks:
            raise ValueError(f"fewer must be of 2 to {self.num_ranks - 1} ranks of one node, got {fewer.num_ranks}")
        many_s = _smallest(profile, ("allgather",)).seconds
        few_s = _smallest(fewer, ("allgather",)).seconds
        hop = max((many_s - few_s) * 1e6 / (profile.num_ranks - fewer.num_ranks), 0.01)  # µs; it must be above 0
        launch = max(few_s * 1e6 - (fewer.num_ranks - 1) * hop, 0.0)
        return replace(self, minimum_s=0.0, terms=replace(terms, launch_us=launch, hop_us=hop))

    @classmethod
    def from_log(cls, path: str | os.PathLike[str], gpu: str | None = None, **arguments: Any) -> Model:
        """Return the model of a job from its log, with the latencies and bandwidths that NCCL itself printed.

        The job runs with ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING``. `gpu` is required if the log does not
        name exactly one GPU of GPUS. `arguments` are further arguments of `Model`; they override the log.

        Raises ValueError if the log does not contain NCCL's tuning table; OSError if it cannot be opened.
        """
        stated = read_log(path, gpu)
        return cls(**{**stated, **arguments})

    def compared(self, collective: str, sizes: Sequence[int] = SIZES) -> dict[tuple[str, str], Compared]:
        """Return the options that NCCL compares, with their channels, NCCL's expected times and our estimates by size.

        Keys are pairs of algorithm and protocol. Raises ValueError if a size is below 1 or the collective is unknown.
        """
        one_of("collective", collective, COLLECTIVES)
        num_bytes = np.array([whole("size", size, 1, _MOST_SIZE) for size in several("sizes", sizes)], float)
        compared = {}
        for pair in self._eligible(collective):
            channels = self._channels(collective, *pair, num_bytes)
            nccl_s = 1e-6 * self._nccl_us(collective, *pair, num_bytes)
            compared[pair] = Compared(channels, nccl_s, self.times_s(collective, *pair, num_bytes))
        return compared

    def table(self, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
        """Return a DataFrame with one row per collective, algorithm, protocol and size, and mark NCCL's choices.

        `why_not` states why a row is not eligible; its figures are NaN. Raises ValueError if a size is below 1 or above
        2**50.
        """
        import pandas as pd

        num_bytes = np.array([whole("size", size, 1, _MOST_SIZE) for size in several("sizes", sizes)], np.int64)
        unknown = np.full(num_bytes.shape, np.nan)
        blocks = []

        def repeated(text: str) -> NDArray[np.object_]:
            return np.full(num_bytes.shape, text, dtype=object)  # texts of any length, as pandas stores them

        for collective in COLLECTIVES:
            compared = self.compared(collective, num_bytes.tolist())
            # A row for each pair of algorithm and protocol, infinite if NCCL cannot choose it; a column for each size.
            expected_s = np.full((len(_PAIRS), len(num_bytes)), np.inf)
            for row, pair in enumerate(_PAIRS):
                if pair in compared:
                    expected_s[row] = compared[pair].nccl_s
            fastest_row = expected_s.argmin(axis=0)
            for row, pair in enumerate(_PAIRS):
                algorithm, protocol = pair
                why_not = self.why_not(collective, algorithm, protocol)
                figures = compared.get(pair, Compared(unknown, unknown, unknown))
                block = {
                    "collective": repeated(collective),
                    "algorithm": repeated(algorithm),
                    "protocol": repeated(protocol),
                    "why_not": repeated(why_not),
                    "num_bytes": num_bytes,
                    "channels": figures.channels,
                    "nccl_s": figures.nccl_s,
                    "time_s": figures.time_s,
                    # If NCCL can choose no row at all, `fastest_row` is row 0 nevertheless.
                    "is_chosen": (fastest_row == row) & (why_not == ""),
                }
                blocks.append(block)
        return pd.DataFrame({name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]})


class _SmallestReading(NamedTuple):
    """The median time of a native collective at a size."""

    collective: str
    num_bytes: int
    seconds: float


def _smallest(profile: Profile, collectives: tuple[str, ...]) -> _SmallestReading:
    """Return the native measurement of these collectives at the smallest size of at least `_LEAST_READING_BYTES`.

    If several have that size, it is that of the first of them.
    """
    smallest: _SmallestReading | None = None
    for collective in collectives:
        for num_bytes, points in profile.native_points(collective).items():
            if num_bytes < _LEAST_READING_BYTES:
                continue
            if smallest is None or num_bytes < smallest.num_bytes:
                seconds = float(np.median([point.median_s for point in points]))
                smallest = _SmallestReading(collective, num_bytes, seconds)
    if smallest is None:
        raise ValueError(f"profile must have native points of {' or '.join(collectives)}, of 1 KiB and more")
    return smallest


_PAIRS = tuple((algorithm, protocol) for algorithm in ALGORITHMS for protocol in PROTOCOLS)
_GRAPH_KINDS = {  # whose paths an algorithm takes
    "ring": "ring",
    "collnet_direct": "ring",
    "collnet_chain": "ring",
    "tree": "tree",
    "pat": "tree",
    "nvls": "nvls",
    "nvls_tree": "nvls",
}


def _fastest(speeds: Sequence[float], most: float) -> float:
    """Return the fastest of `speeds`, in GB/s and the fastest first, that is at most `most`; `most` if none is."""
    return next((speed for speed in speeds if speed <= most), most)


def _raised(rate: float, speeds: Sequence[float], enough: float, most: float) -> float:
    """Return a rate after NCCL has raised it from one of `speeds` to the next, as long as it is below `enough`.

    `speeds` are in GB/s, the fastest first. No rate above `most` is possible. A rate that is none of the speeds, such
    as 21, half of 42, stays as it is.
    """
    if rate not in speeds:
        return rate
    faster = speeds[: speeds.index(rate)]
    for speed in reversed(faster):
        if rate >= enough or speed > most:
            break
        rate = speed
    return rate


def _num_steps(collective: str, num_ranks: int) -> int:
    """Return the number of steps of a ring, as NCCL counts them."""
    if collective == "allreduce":
        return 2 * (num_ranks - 1)
    if collective in ("allgather", "reduce_scatter"):
        return num_ranks - 1
    return num_ranks  # of a broadcast or reduce
