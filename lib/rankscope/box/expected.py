"""What a machine should reach: what its hardware carries, what its log states, and what similar machines reach."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..common.words import and_joined
from .fit import LEAST_SIZES
from .machines import PREFIX, is_sick, provenances
from .pcie import GPU_GENERATIONS, pcie_bytes_per_s
from .profile import Profile, busbw_factor

SMALL_BYTES = 2**15  # up to this size, latency decides
LARGE_BYTES = 2**24  # from this size on, bandwidth decides
_FULL_BYTES = 2**27  # from this size on, and from _FULL_BYTES_PER_RANK for each rank, machines reach their full rate
_FULL_BYTES_PER_RANK = 2**22
LOW = 0.75  # of the slowest similar machine: below it there is a cause (healthy machines reach 91 % or more)
RINGS = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")  # a ring fills the links of the slowest node


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


# ---- what the log states

# Networks as NCCL's log names them. A description such as "4 × HDR200 InfiniBand" says nothing about what NCCL uses.
_NETWORK = re.compile(r"NET/(?!Socket)\w|\bIB(?:ext\w*)?\b|Libfabric|\bOFI\b|\bUCX\b|FasTrak|\bgIB\b")
_CARD = re.compile(r"\bcard (\w+)(?: (\d+) Gbit/s)?")
_PATHS = re.compile(r"(\d+) paths (with|without) GDRDMA")
# Variables that turn something off; the level LOC, or 0, means "never".
_P2P_FORBIDDEN = re.compile(r"(NCCL_P2P_DISABLE)=1|(NCCL_P2P_LEVEL)=(?:0|LOC)")
_GPUDIRECT_FORBIDDEN = re.compile(r"NCCL_NET_GDR_LEVEL=(?:0|LOC)")
_LISTED_CARDS = re.compile(r"NCCL_IB_HCA==?([\w:]+(?:,[\w:]+)*)")  # not those that it excludes by ^
_WHOLE_NAME = re.compile(r"\w+\d(:\d+)?")  # not the beginning of several cards' names, such as mlx5


class Stated(NamedTuple):
    """What a log states about how its ranks communicate; None, or nothing, for what it does not state.

    Rules ask here first. Figures decide only where nothing is stated, so no rule contradicts the log.
    """

    uses_sockets: bool | None
    is_p2p_off: bool | None
    p2p_variable: str  # that turns peer-to-peer access off
    is_gpudirect_off: bool | None
    num_paths: tuple[int, int]  # over the network: without GPUDirect RDMA, and all
    cards: tuple[str, ...]  # of the network, on a node
    are_cards_listed: bool  # by NCCL_IB_HCA
    cards_bytes_per_s: float  # of all cards together
    has_nvls: bool | None


def stated(about: Mapping[str, Any]) -> Stated:
    """Return what a provenance states: its `network` holds what NCCL printed, its `environment` NCCL's variables.

    >>> stated({"network": "NET/Socket, P2P"})[:2]
    (True, False)
    """
    network = str(about.get("network", ""))
    environment = str(about.get("environment", ""))
    uses_sockets: bool | None = None
    has_sockets = re.search(r"\bSocket\b", network) is not None
    if has_sockets != (_NETWORK.search(network) is not None):  # A log with both does not say which carries the data.
        uses_sockets = has_sockets
    forbidden = _P2P_FORBIDDEN.search(environment)
    hardware = HARDWARE.get(gpu_of(about))
    is_p2p_off: bool | None = None
    if re.search(r"\bP2P\b", network):  # What NCCL used counts, whatever its variables are.
        is_p2p_off = False
    elif forbidden or ("SHM" in network and hardware is not None and hardware.nvlink):
        is_p2p_off = True  # GPUs with NVLink use shared memory only then
    paths = {kind: int(number) for number, kind in _PATHS.findall(network)}
    num_without = paths.get("without", 0)
    is_gpudirect_off: bool | None = None
    if paths:
        is_gpudirect_off = num_without > 0
    elif "GPU Direct RDMA Enabled" in network:  # stated for each pair of GPU and card; distant pairs are "Disabled"
        is_gpudirect_off = False
    elif "GPU Direct RDMA Disabled" in network or _GPUDIRECT_FORBIDDEN.search(environment):
        is_gpudirect_off = True
    cards = [name for name, _ in _CARD.findall(network)]
    rates = [int(gbits) / 8 * 1e9 for _, gbits in _CARD.findall(network) if gbits]
    listed = _LISTED_CARDS.search(environment)
    are_listed = listed is not None and all(map(_WHOLE_NAME.fullmatch, listed[1].split(",")))
    if listed is not None and are_listed:
        cards = listed[1].split(",")
    has_nvls: bool | None = None
    if "NVLS" in network:
        has_nvls = "no NVLS" not in network
    return Stated(
        uses_sockets,
        is_p2p_off,
        "" if forbidden is None else forbidden[1] or forbidden[2],
        is_gpudirect_off,
        (num_without, sum(paths.values())),
        tuple(cards),
        are_listed,
        len(cards) * max(rates, default=0.0),
        has_nvls,
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


class Reached(NamedTuple):
    """A busbw in bytes/s, and where it was reached."""

    rate: float
    collective: str
    num_bytes: int


class Box(msgspec.Struct, frozen=True, dict=True):
    """A profile with what can be expected of it: its hardware, and similar machines (its peers) by name.

    If `is_series` is true, no similar machine has as many nodes, and the peers have fewer and more. The time of small
    sizes depends on the number of nodes, so rules that compare small sizes do not apply then.
    """

    profile: Profile
    peers: Mapping[str, Profile]
    is_series: bool = False

    @cached_property
    def hardware(self) -> Hardware:
        """What the GPUs have; zeros if that is not known."""
        return HARDWARE.get(gpu_of(self.profile.provenance), Hardware(0.0, 0.0, 0.0))

    @cached_property
    def stated(self) -> Stated:
        return stated(self.profile.provenance)

    @property
    def peer_names(self) -> str:
        return and_joined([f"{PREFIX}{name}" if name in provenances() else name for name in self.peers])

    @property
    def has_network(self) -> bool:
        """Whether there are known to be several nodes."""
        return (self.profile.num_nodes or 1) > 1

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on a node; 0 if the nodes are not known."""
        return self.profile.num_ranks // (self.profile.num_nodes or self.profile.num_ranks + 1)

    @cached_property
    def rates(self) -> dict[str, dict[int, float]]:
        """The busbw of the native backend in bytes/s, by collective and size, where it is above 0."""
        rates = {}
        for collective, points in self.profile.native.items():
            by_size = {size: point.busbw_bytes_per_s(self.profile.num_ranks) for size, point in points.items()}
            rates[collective] = {size: rate for size, rate in by_size.items() if rate > 0}
        return rates

    @cached_property
    def best(self) -> Reached:
        """The highest busbw of large buffers in rings, else the highest one; a rate of 0 if there is none."""
        reached = [Reached(rate, what, size) for what, rates in self.rates.items() for size, rate in rates.items()]
        large = [one for one in reached if one.num_bytes >= LARGE_BYTES and one.collective in RINGS]
        return max(large or reached, default=Reached(0.0, "", 0))

    @property
    def is_full(self) -> bool:
        """Whether the largest size is so large that a healthy machine reaches its full rate."""
        largest = max(self.rates.get(self.best.collective, {0: 0.0}))
        return self.best.collective in RINGS and largest >= max(
            _FULL_BYTES, _FULL_BYTES_PER_RANK * self.profile.num_ranks
        )

    @cached_property
    def rows(self) -> tuple[ComparedSize, ...]:
        """What the native backend reached, at the sizes that lie within a similar machine's measured range."""
        rows = []
        for collective, rates in self.rates.items():
            for num_bytes, rate in rates.items():
                peer_rates = list(self._peer_rates(collective, num_bytes))
                if peer_rates:
                    rows.append(ComparedSize(collective, num_bytes, rate, min(peer_rates), max(peer_rates)))
        return tuple(rows)

    def _peer_rates(self, collective: str, num_bytes: int) -> Iterator[float]:
        for peer in self.peers.values():
            if len(peer.native.get(collective, ())) < LEAST_SIZES:
                continue
            curve = peer.curve(collective)
            if curve.covers(num_bytes):
                yield num_bytes * busbw_factor(collective, peer.num_ranks) / curve.seconds(num_bytes)

    def share(self, collective: str, are_large: bool) -> float:
        """Return the median share of a collective's large or small sizes; nan if no peer was measured there."""
        shares = []
        for row in self.rows:
            is_of_these = row.num_bytes >= LARGE_BYTES if are_large else row.num_bytes <= SMALL_BYTES
            if row.collective == collective and is_of_these:
                shares.append(row.share)
        return float(np.median(shares)) if shares else math.nan

    @cached_property
    def worst(self) -> ComparedSize | None:
        """The largest size of the collective with the lowest share at large sizes; None if none has large sizes."""
        shares = {what: self.share(what, are_large=True) for what in self.rates}
        known = {what: share for what, share in shares.items() if not math.isnan(share)}
        if not known:
            return None
        slowest = min(known, key=known.__getitem__)
        return [row for row in self.rows if row.collective == slowest][-1]  # sizes ascend in `Profile.native`

    @cached_property
    def worst_share(self) -> float:
        """The lowest share of a collective at large sizes; nan if there is none."""
        return math.nan if self.worst is None else self.share(self.worst.collective, are_large=True)

    @cached_property
    def small_share(self) -> float:
        """The share of the same collective at small sizes."""
        return math.nan if self.worst is None else self.share(self.worst.collective, are_large=False)


def compare_with_peers(profile: Profile, peers: Mapping[str, Profile] | None = None) -> Box:
    """Return a profile and its peers: by default the healthy bank machines with the same GPUs, ranks and nodes.

    If none has as many nodes, the peers are the next smaller and the next larger cluster of such nodes. A profile is
    never compared with itself, nor with a machine whose network is known to be of another kind.
    """
    num_nodes = profile.num_nodes or 0
    if peers is not None:
        return Box(profile, peers)
    is_stated = num_nodes > 0 and gpu_of(profile.provenance) != ""
    if profile.backend != "nccl" or not is_stated or not profile.native:  # no machine of the bank can be compared
        return Box(profile, peers={})
    by_nodes: dict[int, dict[str, Profile]] = {}
    for name, about in provenances().items():
        if _is_peer(profile, name, about):
            by_nodes.setdefault(int(about.get("num_nodes", 0)), {})[name] = _loaded(name)
    smaller = [number for number in by_nodes if 1 < number < num_nodes]  # a single node has no network
    larger = [number for number in by_nodes if number > num_nodes]
    if num_nodes not in by_nodes and smaller and larger:
        return Box(profile, by_nodes[max(smaller)] | by_nodes[min(larger)], is_series=True)
    return Box(profile, by_nodes.get(num_nodes, {}))


def _is_peer(profile: Profile, name: str, about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is another, healthy one with the same GPUs, ranks per node and kind of network.

    `about` is its provenance. A kind of network that is not known counts as the same, and none matters on one node. A
    machine that was measured at too few sizes for a curve is no peer.
    """
    num_nodes = profile.num_nodes or 0
    has_same_gpus = gpu_of(about) == gpu_of(profile.provenance)
    # Compared without a division, because a number of nodes that is not stated is 0.
    has_same_ranks_per_node = about["num_ranks"] * num_nodes == profile.num_ranks * int(about.get("num_nodes", 0))
    if not has_same_gpus or not has_same_ranks_per_node or is_sick(about):
        return False
    fabrics = {_fabric(profile.provenance), _fabric(about)} - {""}
    if num_nodes > 1 and len(fabrics) > 1:
        return False
    machine = _loaded(name)  # only now, because it takes longer than the provenance
    is_profile_itself = set(profile.points) <= set(machine.points)  # or a part of it, such as one of its logs
    has_enough_sizes = any(len(points) >= LEAST_SIZES for points in machine.native.values())
    return has_enough_sizes and not is_profile_itself


def _fabric(about: Mapping[str, Any]) -> str:
    """Return the kind of network that a provenance names; "" if it names none that is known."""
    fabric = _FABRIC.search(about.get("network", ""))
    return str(fabric.lastgroup) if fabric else ""


@cache
def _loaded(name: str) -> Profile:
    return Profile.load(PREFIX + name)


def is_like(profile: Profile, other: Profile) -> bool:
    """Return whether both profiles use NCCL with the same GPU model, ranks and nodes; unstated facts count as equal."""
    pairs = (
        (profile.num_ranks, other.num_ranks),
        (profile.num_nodes, other.num_nodes),
        (gpu_of(profile.provenance), gpu_of(other.provenance)),
    )
    has_same_backend = profile.backend == other.backend == "nccl"
    return has_same_backend and all(not one or not two or one == two for one, two in pairs)
