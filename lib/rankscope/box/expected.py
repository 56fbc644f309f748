"""What a machine should reach: what its hardware carries, what its log states, and what similar machines reach."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .fit import LEAST_SIZES
from .machines import PREFIX, is_sick, provenances
from .pcie import GPU_GENERATIONS, pcie_bytes_per_s
from .profile import Profile, busbw_factor

SMALL_BYTES = 2**15  # up to this size, latency decides
LARGE_BYTES = 2**24  # from this size on, bandwidth decides
LOW = 0.75  # of the slowest similar machine: below it there is a cause (healthy machines reach 91 % or more)
RINGS = (
    "allreduce",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "reduce",
)  # a ring fills the links of the slowest node


class Hardware(NamedTuple):
    """Bytes/s one way: of a GPU's NVLink (0 if it has none), its PCIe slot, and a network card of its time.

    `switch_adds` says whether an NVLink switch adds on the way (NVLS), which halves what each GPU sends.
    """

    nvlink: float
    slot: float
    card: float
    switch_adds: bool = False


_SLOT = {generation: pcie_bytes_per_s(generation, direction="h2d") for generation in (3, 4, 5)}
HARDWARE = {  # by GPU; source: NVIDIA's data sheets
    **{name: Hardware(0.0, _SLOT[generation], 0.0) for name, generation in GPU_GENERATIONS.items()},
    **dict.fromkeys(("V100 SXM2", "V100 SXM3"), Hardware(150e9, _SLOT[3], 12.5e9)),
    "A100 SXM4": Hardware(300e9, _SLOT[4], 25e9),
    "A800 SXM4": Hardware(200e9, _SLOT[4], 25e9),
    "H800": Hardware(200e9, _SLOT[5], 50e9, switch_adds=True),
    **dict.fromkeys(("H100", "H200", "H20"), Hardware(450e9, _SLOT[5], 50e9, switch_adds=True)),
    "GH200": Hardware(450e9, _SLOT[5], 50e9),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), Hardware(900e9, _SLOT[5], 50e9, switch_adds=True)),
}
_NO_MODEL = re.compile(r"NVIDIA|TESLA|GEFORCE|QUADRO|\b\d+ ?GB\b|\bHBM\d\w*|BLACKWELL|\b\w+ EDITION")
_FABRIC = re.compile(  # the kinds of network, by words that descriptions of hardware and NCCL's log have for them
    r"(?P<efa>EFA|AWS)|(?P<slingshot>Slingshot|CXI)|(?P<ethernet>GbE|RoCE)|(?P<ib>InfiniBand|\bIB\b)|(?P<opa>Omni)"
)


def gpu_of(about: Mapping[str, Any]) -> str:
    """Return the GPU model without memory size and vendor; "" if it is not stated or the GPUs differ.

    >>> gpu_of({"gpus": [{"name": "NVIDIA A100-SXM4-80GB"}, {"name": "A100-SXM4-40GB"}]})
    'A100 SXM4'
    """
    models = set()
    for gpu in about.get("gpus", ()):
        model = _NO_MODEL.sub(" ", gpu.get("name", "").upper().replace("-", " "))
        models.add(" ".join(model.split()))
    return models.pop() if len(models) == 1 else ""


def _hardware(about: Mapping[str, Any]) -> Hardware:
    """Return what the GPUs have; zeros if that is not known."""
    return HARDWARE.get(gpu_of(about), Hardware(0.0, 0.0, 0.0))


# ---- what the log states

# Networks as NCCL's log names them. A description such as "4 × HDR200 InfiniBand" says nothing about what NCCL uses.
_NETWORK = re.compile(r"NET/(?!Socket)\w|\bIB(?:ext\w*)?\b|Libfabric|\bOFI\b|\bUCX\b|FasTrak|\bgIB\b")
_CARD = re.compile(r"\bcard (\w+)(?: (\d+) Gbit/s)?")
# Variables that turn something off; the level LOC, or 0, means "never".
_P2P_FORBIDDEN = re.compile(r"(NCCL_P2P_DISABLE)=1|(NCCL_P2P_LEVEL)=(?:0|LOC)")
_GPUDIRECT_FORBIDDEN = re.compile(r"NCCL_NET_GDR_LEVEL=(?:0|LOC)")
# Whole names of cards: neither those that it excludes by ^, nor the beginning of several names, such as mlx5.
_LISTED_CARDS = re.compile(r"NCCL_IB_HCA==?((?:(?!mlx\d\b)\w+\d(?::\d+)?,?)+)(?=\s|$)")


class Stated(msgspec.Struct, frozen=True):
    """What a log states about how its ranks communicate; None, or nothing, for what it does not state.

    Rules ask here first. Figures decide only where nothing is stated, so no rule contradicts the log.
    """

    uses_sockets: bool | None = None
    is_p2p_off: bool | None = None
    p2p_variable: str = ""  # that turns peer-to-peer access off
    is_gpudirect_off: bool | None = None
    cards: tuple[str, ...] = ()  # of the network, on a node
    cards_bytes_per_s: float = 0.0  # of all cards together
    has_nvls: bool | None = None


def stated(about: Mapping[str, Any]) -> Stated:
    """Return what a provenance states: its `network` holds what NCCL printed, its `environment` NCCL's variables.

    >>> stated({"network": "NET/Socket, P2P"}).is_p2p_off
    False
    """
    network = str(about.get("network", ""))
    environment = str(about.get("environment", ""))
    has_sockets = "Socket" in network
    has_other_network = _NETWORK.search(network) is not None
    # A log that has both does not say which of them carries the data.
    uses_sockets = has_sockets if has_sockets != has_other_network else None

    forbidden = _P2P_FORBIDDEN.search(environment)
    has_shared_memory_instead = "SHM" in network and _hardware(about).nvlink > 0
    is_p2p_off = None
    if "P2P" in network:  # What NCCL used counts, whatever its variables are.
        is_p2p_off = False
    elif forbidden or has_shared_memory_instead:
        is_p2p_off = True

    is_gpudirect_off = None
    if "without GDRDMA" in network:
        is_gpudirect_off = True
    elif "GDRDMA" in network or "RDMA Enabled" in network:  # "Disabled" may stand for other pairs of GPU and card
        is_gpudirect_off = False
    elif "RDMA Disabled" in network or _GPUDIRECT_FORBIDDEN.search(environment):
        is_gpudirect_off = True

    named = _CARD.findall(network)
    listed = _LISTED_CARDS.search(environment)
    cards = listed[1].split(",") if listed else [name for name, _ in named]
    fastest_gbits = max((int(gbits) for _, gbits in named if gbits), default=0)
    return Stated(
        uses_sockets,
        is_p2p_off,
        "" if forbidden is None else forbidden[1] or forbidden[2],
        is_gpudirect_off,
        tuple(cards),
        len(cards) * fastest_gbits / 8 * 1e9,
        "no NVLS" not in network if "NVLS" in network else None,
    )


# ---- similar machines


class ComparedSize(NamedTuple):
    """A collective at one size: the busbw reached, and that of the slowest and fastest similar machine, in bytes/s."""

    collective: str
    num_bytes: int
    rate: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The busbw as a share of that of the slowest similar machine."""
        return self.rate / self.low


class Worst(NamedTuple):
    """The slowest collective: its median share at large and at small sizes (nan if none), and its largest size."""

    share: float = math.nan
    small_share: float = math.nan
    row: ComparedSize | None = None


class Reached(NamedTuple):
    """A busbw in bytes/s: whether it is of large buffers in a ring, so that links decide, and where it was reached."""

    is_of_links: bool = False
    rate: float = 0.0
    collective: str = ""
    num_bytes: int = 0


class Box(msgspec.Struct, frozen=True, dict=True):
    """A profile with what can be expected of it: its hardware, and similar machines (its peers) by name.

    If `is_series` is true, no similar machine has as many nodes, and the peers have fewer and more. The time of small
    sizes depends on the number of nodes, so rules that compare small sizes do not apply then.
    """

    profile: Profile
    peers: Mapping[str, Profile]
    is_series: bool = False

    @property
    def hardware(self) -> Hardware:
        return _hardware(self.profile.provenance)

    @cached_property
    def stated(self) -> Stated:
        return stated(self.profile.provenance)

    @property
    def num_nodes(self) -> int:
        """The number of nodes; 0 if it is not known."""
        return self.profile.num_nodes or 0

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on each node; 0 if it is not known."""
        return self.profile.num_ranks // self.num_nodes if self.num_nodes else 0

    @cached_property
    def rates(self) -> dict[str, dict[int, float]]:
        """The busbw of the native backend in bytes/s, by collective and size, where it is above 0."""
        rates: dict[str, dict[int, float]] = {}
        for collective, points in self.profile.native.items():
            for size, point in points.items():
                rate = point.busbw_bytes_per_s(self.profile.num_ranks)
                if rate > 0:  # not on one rank, nor for a barrier
                    rates.setdefault(collective, {})[size] = rate
        return rates

    @cached_property
    def best(self) -> Reached:
        """The highest busbw of large buffers in rings; of anything if there is none."""
        reached = [Reached()]
        for collective, rates in self.rates.items():
            for size, rate in rates.items():
                reached.append(Reached(collective in RINGS and size >= LARGE_BYTES, rate, collective, size))
        return max(reached)

    @cached_property
    def rows(self) -> tuple[ComparedSize, ...]:
        """What the native backend reached, at the sizes that lie within a similar machine's measured range."""
        rows = []
        for collective, rates in self.rates.items():
            curves = []
            for peer in self.peers.values():
                if len(peer.native.get(collective, ())) >= LEAST_SIZES:
                    curves.append((peer.curve(collective), busbw_factor(collective, peer.num_ranks)))
            for size, rate in rates.items():
                expected = [factor * size / curve.seconds(size) for curve, factor in curves if curve.covers(size)]
                if expected:
                    rows.append(ComparedSize(collective, size, rate, min(expected), max(expected)))
        return tuple(rows)

    @cached_property
    def worst(self) -> Worst:
        """The collective with the lowest median share at large sizes; its share is nan if none has large sizes."""
        known = []
        for collective in self.rates:
            large = [row for row in self.rows if row.collective == collective and row.num_bytes >= LARGE_BYTES]
            if large:
                share = float(np.median([row.share for row in large]))
                known.append(Worst(share, self.small_share(collective), large[-1]))
        return min(known, key=lambda one: one.share, default=Worst())

    def small_share(self, collective: str) -> float:
        """Return the median share of a collective's small sizes; nan if there are none."""
        small = [row.share for row in self.rows if row.collective == collective and row.num_bytes <= SMALL_BYTES]
        return float(np.median(small)) if small else math.nan

    @property
    def limit(self) -> float:
        """Bytes/s of what carries a ring over all ranks: NVLink, PCIe slots or network cards; 0 if it is not known."""
        if self.num_nodes == 1:
            return self.hardware.nvlink or self.hardware.slot
        slots = self.ranks_per_node * self.hardware.slot
        cards = self.stated.cards_bytes_per_s
        return min(slots, cards) or max(slots, cards)

    @property
    def share_of_limit(self) -> float:
        """The best rate as a share of `limit`; 0 if that is not known, or if something else decides."""
        return self.best.rate / self.limit if self.limit and self.best.is_of_links else 0.0


def compare_with_peers(profile: Profile, peers: Mapping[str, Profile] | None = None) -> Box:
    """Return a profile and its peers: by default the healthy bank machines with the same GPUs, ranks and nodes.

    If none has as many nodes, the peers are the next smaller and the next larger cluster of such nodes. A profile is
    never compared with itself, nor with a machine whose network is known to be of another kind.
    """
    box = Box(profile, peers or {})
    if peers is not None or profile.backend != "nccl" or not box.num_nodes or not gpu_of(profile.provenance):
        return box
    by_nodes: dict[int, dict[str, Profile]] = {}
    for name, about in provenances().items():
        if _is_peer(box, about):
            machine = _loaded(PREFIX + name)
            is_profile_itself = set(profile.points) <= set(machine.points)  # or a part of it, such as one of its logs
            has_curve = any(len(points) >= LEAST_SIZES for points in machine.native.values())
            if has_curve and not is_profile_itself:
                by_nodes.setdefault(int(about.get("num_nodes", 0)), {})[PREFIX + name] = machine
    smaller = [number for number in by_nodes if 1 < number < box.num_nodes]  # a single node has no network
    larger = [number for number in by_nodes if number > box.num_nodes]
    if box.num_nodes not in by_nodes and smaller and larger:
        return Box(profile, by_nodes[max(smaller)] | by_nodes[min(larger)], is_series=True)
    return Box(profile, by_nodes.get(box.num_nodes, {}))


def _is_peer(box: Box, about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is healthy, and has the same GPUs, ranks per node and kind of network.

    A kind of network that is not known counts as the same, and none matters on one node.
    """
    own = box.profile.provenance
    has_same_gpus = gpu_of(about) == gpu_of(own)
    # Compared without a division, because a number of nodes that is not stated is 0.
    has_same_ranks_per_node = about["num_ranks"] == box.ranks_per_node * int(about.get("num_nodes", 0))
    fabrics = [_FABRIC.search(each.get("network", "")) for each in (own, about)]
    kinds = {fabric.lastgroup for fabric in fabrics if fabric}
    has_same_network = box.num_nodes == 1 or len(kinds) < 2
    return has_same_gpus and has_same_ranks_per_node and has_same_network and not is_sick(about)


_loaded = cache(Profile.load)
