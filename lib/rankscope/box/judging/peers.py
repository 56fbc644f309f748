"""`peers_of`: the machines of the bank that are like a machine; `reached_by`: what they reach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..fit import LEAST_SIZES
from ..machines import PREFIX, is_sick, provenances
from ..points import busbw_factor
from ..profile import Profile
from .hardware import gpu_of

_FABRIC = re.compile(  # the kinds of network, by words that descriptions of hardware and NCCL's log have for them
    r"(?P<efa>EFA|AWS)|(?P<slingshot>Slingshot|CXI)|(?P<ethernet>GbE|RoCE)|(?P<ib>InfiniBand|\bIB\b)|(?P<opa>Omni)"
)


def reached_by(peers: Mapping[str, Profile], collective: str, num_bytes: int) -> dict[str, float]:
    """Return the busbw in bytes/s of each machine that has measured a collective below and above a size."""
    rates = {}
    for name, peer in peers.items():
        if len(peer.native.get(collective, ())) >= LEAST_SIZES:
            curve = peer.curve(collective)
            if curve.covers(num_bytes):
                rates[name] = busbw_factor(collective, peer.num_ranks) * num_bytes / curve.seconds(num_bytes)
    return rates


def peers_of(profile: Profile) -> dict[str, Profile]:
    """Return the healthy bank machines with the same GPUs, ranks and nodes, by name.

    A profile is never its own peer, and neither is a machine whose network is known to be of another kind.
    """
    peers = {}
    for name, about in provenances().items():
        if profile.backend == "nccl" and gpu_of(profile.provenance) and _is_peer(profile, about):
            machine = _loaded(PREFIX + name)
            if not set(profile.points) <= set(machine.points):  # or it is the machine itself, or one of its logs
                peers[PREFIX + name] = machine
    return peers


def _is_peer(profile: Profile, about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is healthy, and has the same GPUs, ranks, nodes and kind of network.

    A kind of network that is not known counts as the same, and none matters on one node.
    """
    own = profile.provenance
    fabrics = [_FABRIC.search(each.get("network", "")) for each in (own, about)]
    has_same_network = profile.num_nodes == 1 or len({fabric.lastgroup for fabric in fabrics if fabric}) < 2
    sizes = [(gpu_of(each), each["num_ranks"], each.get("num_nodes")) for each in (own, about)]
    return sizes[0] == sizes[1] and has_same_network and not is_sick(about)


_loaded = cache(Profile.load)
