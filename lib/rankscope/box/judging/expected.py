"""What a machine should reach: what its hardware carries, and what similar machines of the bank reach."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..fit import LEAST_SIZES
from ..machines import PREFIX, is_sick, provenances
from ..points import busbw_factor
from ..profile import Profile
from .hardware import Hardware, Stated, gpu_of, hardware_of, stated

SMALL_BYTES = 2**15  # up to this size, latency decides
LARGE_BYTES = 2**24  # from this size on, bandwidth decides
LOW = 0.75  # of the slowest similar machine: below it there is a cause (healthy machines reach 91 % or more)
_RINGS = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")  # a ring fills all links of a node


_FABRIC = re.compile(  # the kinds of network, by words that descriptions of hardware and NCCL's log have for them
    r"(?P<efa>EFA|AWS)|(?P<slingshot>Slingshot|CXI)|(?P<ethernet>GbE|RoCE)|(?P<ib>InfiniBand|\bIB\b)|(?P<opa>Omni)"
)


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
        return hardware_of(self.profile.provenance)

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
        """The busbw of the native backend in bytes/s, by collective and size, where it has one."""
        return {collective: self.profile.busbw(collective) for collective in self.profile.native}

    @cached_property
    def best(self) -> Reached:
        """The highest busbw of large buffers in rings; of anything if there is none."""
        reached = [Reached()]
        for collective, rates in self.rates.items():
            for size, rate in rates.items():
                reached.append(Reached(collective in _RINGS and size >= LARGE_BYTES, rate, collective, size))
        return max(reached)

    @cached_property
    def rows(self) -> list[ComparedSize]:
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
        return rows

    @cached_property
    def worst(self) -> Worst:
        """The collective with the lowest median share at large sizes; its share is nan if none has large sizes."""
        known = []
        for collective in self.rates:
            rows = [row for row in self.rows if row.collective == collective]
            small = [row for row in rows if row.num_bytes <= SMALL_BYTES]
            large = [row for row in rows if row.num_bytes >= LARGE_BYTES]
            if large:
                known.append(Worst(_median_share(large), _median_share(small), large[-1]))
        return min(known, key=lambda one: one.share, default=Worst())

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


def _median_share(rows: Sequence[ComparedSize]) -> float:
    return float(np.median([row.share for row in rows])) if rows else math.nan


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
