"""`peers_of`: the machines of the bank that are like a machine; `compared`: what it reaches next to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from ..fit import LEAST_SIZES
from ..machines import PREFIX, is_sick, provenances
from ..points import busbw_factor
from ..profile import Profile
from .hardware import gpu_of

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


def compared(profile: Profile, peers: Mapping[str, Profile]) -> list[ComparedSize]:
    """Return what the native backend reached, at the sizes that lie within a similar machine's measured range."""
    rows = []
    for collective in profile.native:
        curves = []
        for peer in peers.values():
            if len(peer.native.get(collective, ())) >= LEAST_SIZES:
                curves.append((peer.curve(collective), busbw_factor(collective, peer.num_ranks)))
        for size, rate in profile.busbw(collective).items():
            expected = [factor * size / curve.seconds(size) for curve, factor in curves if curve.covers(size)]
            if expected:
                rows.append(ComparedSize(collective, size, rate, min(expected), max(expected)))
    return rows


def peers_of(profile: Profile) -> dict[str, Profile]:
    """Return the healthy bank machines with the same GPUs, ranks per node and nodes, by name.

    If none has as many nodes, they are the next smaller and the next larger cluster of such nodes. A profile is never
    its own peer, and neither is a machine whose network is known to be of another kind.
    """
    num_nodes = profile.num_nodes or 0
    if profile.backend != "nccl" or not num_nodes or not gpu_of(profile.provenance):
        return {}
    by_nodes: dict[int, dict[str, Profile]] = {}
    for name, about in provenances().items():
        if _is_peer(profile, about):
            machine = _loaded(PREFIX + name)
            is_profile_itself = set(profile.points) <= set(machine.points)  # or a part of it, such as one of its logs
            has_curve = any(len(points) >= LEAST_SIZES for points in machine.native.values())
            if has_curve and not is_profile_itself:
                by_nodes.setdefault(int(about.get("num_nodes", 0)), {})[PREFIX + name] = machine
    smaller = [number for number in by_nodes if 1 < number < num_nodes]  # a single node has no network
    larger = [number for number in by_nodes if number > num_nodes]
    if num_nodes not in by_nodes and smaller and larger:
        return by_nodes[max(smaller)] | by_nodes[min(larger)]
    return by_nodes.get(num_nodes, {})


def _is_peer(profile: Profile, about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is healthy, and has the same GPUs, ranks per node and kind of network.

    A kind of network that is not known counts as the same, and none matters on one node.
    """
    own = profile.provenance
    num_nodes = profile.num_nodes or 1
    # Compared without a division, because a number of nodes that is not stated is 0.
    has_same_ranks_per_node = about["num_ranks"] * num_nodes == profile.num_ranks * int(about.get("num_nodes", 0))
    fabrics = [_FABRIC.search(each.get("network", "")) for each in (own, about)]
    kinds = {fabric.lastgroup for fabric in fabrics if fabric}
    has_same_network = num_nodes == 1 or len(kinds) < 2
    return gpu_of(about) == gpu_of(own) and has_same_ranks_per_node and has_same_network and not is_sick(about)


_loaded = cache(Profile.load)
