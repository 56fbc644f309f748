"""Machines as networks that explorers offer: the bank's, NCCL's model, and those that we measured over Gloo."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..networks import Network
from .machines import PREFIX, bank, is_sick
from .nccl.networks import of_the_model
from .profile import Profile

RECORDED = Path(__file__).parent / "recorded"
# A curve that explorers can use at any bucket cap: it must reach from latency to bandwidth.
_SMALLEST_BYTES = 64 * 2**10
_LARGEST_BYTES = 16 * 2**20


def offered() -> tuple[Network, ...]:
    """Return all networks, in the order in which explorers list them; their names differ."""
    return (*of_the_bank(), *of_the_model(), *recorded())


def of_the_bank() -> tuple[Network, ...]:
    """Return the machines of the bank whose allreduce was measured from 64 KiB or less to 16 MiB or more.

    A label is the beginning of the machine's description, and its name in the bank.
    """
    networks = []
    for name, description in bank().items():
        profile = Profile.load(f"{PREFIX}{name}")
        sizes = profile.native_s("allreduce")
        if sizes and min(sizes) <= _SMALLEST_BYTES and max(sizes) >= _LARGEST_BYTES:
            network = profile.network(name)
            fault = ", faulty" if is_sick(profile.provenance) else ""
            networks.append(network.relabelled(f"{description.partition(',')[0]}{fault} ({name})"))
    return tuple(networks)


def recorded() -> tuple[Network, ...]:
    """Return the networks on which rankscope's authors measured Gloo's allreduce, as profiles in `RECORDED`."""
    profiles = [Profile.load(path) for path in sorted(RECORDED.glob("*.json"))]
    return tuple([profile.network(str(profile.provenance["name"])) for profile in profiles])


@cache
def registered() -> dict[str, Network]:
    """Return the networks that are offered by name, in the order in which explorers list them."""
    return {network.name: network for network in offered()}
