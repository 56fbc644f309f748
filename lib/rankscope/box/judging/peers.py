"""`peers_of`: the machines of the bank that are like a machine; `reached_by`: what they reach."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ..fit import LEAST_SIZES
from ..machines import PREFIX, is_sick, provenances
from ..points import busbw_factor
from ..profile import Profile
from .hardware import gpu_of


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
    """Return the healthy bank machines with the same GPUs, ranks and nodes, by name, without the profile itself."""
    own = profile.provenance
    peers = {}
    for name, about in provenances().items():
        sizes = [(gpu_of(each), each["num_ranks"], each.get("num_nodes"), each["backend"]) for each in (own, about)]
        if gpu_of(own) and sizes[0] == sizes[1] and not is_sick(about):
            machine = _loaded(PREFIX + name)
            if not set(profile.points) <= set(machine.points):  # or it is the machine itself, or one of its logs
                peers[PREFIX + name] = machine
    return peers


_loaded = cache(Profile.load)
