"""What NCCL expects of an algorithm and a protocol: its src/graph/tuning.cc, and the channels of its src/enqueue.cc."""

from __future__ import annotations

import math
from functools import cached_property

from ...common.checks import one_of
from .constants import COLLECTIVES, CORRECTION, GENERATIONS, MOST_CHANNELS, PROTOCOLS, SPLIT, Graph
from .machine import Machine
from .paths import expected_graphs

_PATHS_OF = {"ring": "ring", "tree": "tree", "pat": "tree", "nvls": "nvls", "nvls_tree": "nvls"}
_BYTES_PER_CHANNEL = {"ll": 512 * 8, "ll128": 640 * 8, "simple": 512 * 64}  # threads × bytes of each
_NO_ROW = (0.0, 0.0, 0.0)  # of what NCCL states no latency for


class Tuner(Machine, frozen=True, dict=True, eq=False):
    """A machine, with what NCCL expects of each algorithm and protocol. Shares and limits are those of its source."""

    @cached_property
    def _graphs(self) -> dict[str, Graph]:
        return {**expected_graphs(self), **self.graphs}

    def graph(self, algorithm: str) -> Graph:
        """Return the paths of an algorithm: those in `graphs`, or else those that NCCL is expected to find."""
        return self._graphs[_PATHS_OF[algorithm]]

    def num_steps(self, collective: str) -> int:
        """Return the number of steps of a ring, as NCCL counts them."""
        if collective in ("broadcast", "reduce"):
            return self.num_ranks
        if collective == "allreduce":
            return 2 * (self.num_ranks - 1)
        return self.num_ranks - 1

    def eligible(self, collective: str) -> list[tuple[str, str]]:
        """Return the pairs of an algorithm and a protocol of which NCCL chooses one; CollNet is off by default.

        Raises ValueError if the collective is not in COLLECTIVES.
        """
        one_of("collective", collective, COLLECTIVES)
        has_nvls = self.is_on_nvlink and self.generation.has_nvls and self.gpus_per_node > 1
        has_nvls = has_nvls and self.graph("nvls").num_channels > 1
        is_alone = self.gpus_per_node == 1 and self.version >= (2, 23)
        is_possible = {
            "tree": collective == "allreduce",
            "ring": True,
            "nvls": has_nvls and self.num_nodes == 1 and collective in ("allreduce", *SPLIT),
            "nvls_tree": has_nvls and self.num_nodes > 1 and collective == "allreduce",
            "pat": is_alone and collective in SPLIT,
        }
        pairs = []
        for name, possible in is_possible.items():
            for protocol in PROTOCOLS:
                supports = protocol == "simple" or name in ("tree", "ring")
                if possible and supports and (self.is_on_nvlink or protocol != "ll128"):
                    pairs.append((name, protocol))
        return pairs

    # ---- latency and bandwidth, which NCCL prints in its log

    def hop_us(self, link: str, algorithm: str, protocol: str) -> float:
        """Return the latency of a step over a link, "nvlink", "pcie" or "net"; also "base" and "overhead"."""
        return self.rules.latency_us.get((link, algorithm), _NO_ROW)[PROTOCOLS.index(protocol)]

    def latency_us(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return the latency in µs of an eligible pair: a base, and hops within nodes and between them."""
        base = self.hop_us("base", algorithm, protocol)
        if algorithm == "ring":
            return base + self._ring_hops_us(collective, protocol)
        intra = self.hop_us(self.facts.link, algorithm, protocol)
        inter = self.hop_us("net", algorithm, protocol)
        depth = math.floor(math.log2(self.num_nodes))  # of a tree of nodes
        if algorithm == "tree":  # up to the root and down again, through the chain of GPUs of each node
            return base + 2 * ((self.gpus_per_node - 1) * intra + depth * inter)
        if algorithm == "pat":
            return base + depth * inter / 3.5 + 2.8 * self.num_ranks
        return base + intra + 2 * depth * inter  # NVLS, with a tree of nodes if there are several

    def _ring_hops_us(self, collective: str, protocol: str) -> float:
        steps = self.num_steps(collective)
        slowest = "net"
        if self.num_nodes == 1:
            slowest = self.facts.link
        if collective in ("broadcast", "reduce"):
            if self.graph("ring").same_channels:  # then NCCL charges for a single step
                return self.hop_us(slowest, "ring", protocol)
            if protocol == "simple":  # NCCL has the tree's latency here, to account for chunks
                return steps * self.hop_us(slowest, "tree", protocol)
            return steps * self.hop_us(slowest, "ring", protocol)
        intra = self.hop_us(self.facts.link, "ring", protocol)
        if self.num_nodes == 1:
            return steps * intra
        # With several nodes, NCCL charges the network's overhead for each step within a node, too.
        intra = max(intra, self.hop_us("overhead", "ring", protocol))
        inter = self.hop_us("net", "ring", protocol)
        if self.gpus_per_node == 1:  # nothing hides latencies, so NCCL has the tree's
            inter = self.hop_us("net", "tree", protocol)
        inter_steps = self.num_nodes - 1
        if collective == "allreduce":
            inter_steps = 2 * inter_steps + self.rules.extra_inter_steps
        return (steps - inter_steps) * intra + inter_steps * inter

    def bandwidth(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return the bandwidth in GB/s of an eligible pair: that of all channels, and how much the buffer has of it."""
        graph = self.graph(algorithm)
        generation = self.generation
        bus = graph.num_channels * self.by_nodes((graph.intra, graph.intra, graph.inter))
        if algorithm == "pat":
            return 0.75 * bus
        if algorithm == "tree":
            bus = min(0.92 * bus, graph.num_channels * self.by_nodes(generation.tree))
            if protocol == "ll":
                bus = min(bus / 3.8, self._most_ll())
            elif protocol == "ll128":
                bus *= self.by_nodes((7 / 9, 120 / 128, 120 / 128))
                bus = min(bus, graph.num_channels * self.by_nodes(generation.tree_ll128))
            if graph.is_plain_tree:
                bus *= 0.85
            return bus / 2
        if algorithm != "ring":
            return graph.num_channels * self._nvls_channel(collective, graph)
        if protocol == "ll":
            share = self.rules.ll_share
            if self.num_nodes == 1 and collective in ("broadcast", *SPLIT):
                share = self.rules.ll_share_one_way
            bus = min(share * bus, self._most_ll())
        elif protocol == "ll128":
            share = 0.92
            if self.gpus_per_node == 1:
                share = self.rules.ll128_alone
            bus = min(share * bus, graph.num_channels * self.by_nodes(generation.ring_ll128))
        return bus * self.num_ranks / self.num_steps(collective)

    def _most_ll(self) -> float:
        """Return the most that LL reaches. For several nodes and an Intel CPU, NCCL chooses the row of Volta."""
        generation = self.generation
        if self.num_nodes > 1:
            generation = GENERATIONS["volta"]
        return self.by_nodes(generation.ll_max)

    def _nvls_channel(self, collective: str, graph: Graph) -> float:
        """Return the bandwidth of the whole buffer on a channel of NVLS or NVLSTree."""
        intra = graph.intra
        inter = graph.inter
        if not self.rules.is_nvls_by_efficiency:
            rate = self.by_nodes((intra, min(intra, inter), min(intra, inter / 2)))
            return rate * 5 / 6 if collective == "allreduce" else rate
        links = intra * self.generation.nvls_efficiency * (1 - 1 / graph.num_channels)
        most = min(self.by_nodes((inter, 2 * inter, inter)), self.by_nodes(self.generation.nvls_tree))
        if collective == "allreduce":
            # The switch adds, so the links carry the buffer once, while bus bandwidth counts it twice.
            return min(2 * links, most) * self.num_ranks / self.num_steps(collective)
        return min(links * (1 - 1 / self.gpus_per_node), most)  # a GPU's own part of the buffer crosses no link

    # ---- by size

    def expected_us(self, collective: str, algorithm: str, protocol: str, num_bytes: int) -> float:
        """Return the µs that NCCL expects."""
        latency = self.latency_us(collective, algorithm, protocol)
        gb_per_s = self.bandwidth(collective, algorithm, protocol)
        if algorithm == "tree":  # NCCL corrects a tree's bandwidth by size; outside the table's sizes it does not
            factors = CORRECTION[protocol]
            column = (num_bytes // 64).bit_length() - 1  # one per power of two
            if 0 <= column < len(factors):
                gb_per_s *= factors[column]
        # NCCL expects a higher latency if each rank's share of a channel is at least 64 bytes.
        is_plateau = num_bytes >= 64 * self.num_channels * self.num_ranks
        if is_plateau and self.num_nodes > 1 and (collective, algorithm, protocol) == ("allreduce", "ring", "simple"):
            latency *= self.generation.plateau
        return latency + num_bytes / (1000 * gb_per_s)  # 1 GB/s is 1000 bytes per µs

    @cached_property
    def num_channels(self) -> int:
        """The number of channels of large collectives: two for each path that NCCL found.

        NCCL uses four between nodes if the GPU has NVLS and its paths are few and fast (src/graph/connect.cc).
        """
        ring = self.graph("ring")
        number = min(2 * min(ring.num_channels, self.graph("tree").num_channels), MOST_CHANNELS)
        if self.generation.has_nvls and self.num_nodes > 1 and number < 16 and ring.intra > 45:
            number *= 2
        return number

    def channels(self, collective: str, algorithm: str, protocol: str, num_bytes: int) -> int:
        """Return the number of channels that a collective uses.

        By one rule each thread must have enough bytes; NVLS has a number of its own instead. By another one, which
        newer versions have, each channel must have enough traffic: NCCL divides a rank's bytes into cells, and gives
        each channel so many cells that its traffic reaches a minimum.
        """
        bytes_per_channel = _BYTES_PER_CHANNEL[protocol]
        if (algorithm, protocol) == ("ring", "ll"):
            bytes_per_channel *= self.num_ranks
        number = min(max(num_bytes // bytes_per_channel, 1), self.num_channels)
        if algorithm.startswith("nvls"):
            number = self.generation.nvls_channels
        least_bytes = self.rules.least_traffic_bytes
        if not least_bytes:
            return number
        own_bytes = num_bytes  # what a rank contributes, or keeps
        traffic_per_byte = 1
        if collective == "allreduce":
            traffic_per_byte = 2
        elif collective in SPLIT:
            own_bytes = math.ceil(num_bytes / self.num_ranks)
            traffic_per_byte = self.num_ranks
        if protocol == "ll":
            traffic_per_byte *= 4
        # A cell is the smallest multiple of 16 bytes whose traffic reaches the minimum.
        cell_bytes = 16 * math.ceil(least_bytes / traffic_per_byte / 16)
        traffic_per_channel = max(own_bytes * traffic_per_byte // number, least_bytes)
        cells_per_channel = math.ceil(traffic_per_channel / (cell_bytes * traffic_per_byte))
        num_cells = math.ceil(own_bytes / cell_bytes)
        return min(math.ceil(num_cells / cells_per_channel), number)
