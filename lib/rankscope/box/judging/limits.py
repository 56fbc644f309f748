"""The limits that a table may have: what the links carry that its ranks may use, in bytes/s of bus bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...common.words import count_of
from ..nccl.topology import Topology
from ..profile import Profile
from .hardware import BRIDGES, GPUS, MESH, SWITCH_OR_BOARD, UNKNOWN, Gpu, gpu_of, stated

NVLINK = "NVLink"
FEW_NVLINKS = "NVLink of two GPUs, or in a mesh"
PCIE = "PCIe"
NETWORK = "network"
MESSAGES = ("together", "gather", "scatter")  # between two ranks at a time, or all with the root
_BOTH_WAYS = ("allreduce", "allgather", "reduce_scatter")
_MOST_IN_RACK = 72  # GPUs that NVLink joins across nodes


class Limit(NamedTuple):
    """Some links, and the busbw that a ring, or messages from all to all, reaches if they are always busy.

    No algorithm exceeds `most`. It is more than `rate` if a switch adds, or if each byte need cross the network only
    once. `kind` is one of the kinds of links above. `is_guess` says that nothing states whether there are such links.
    """

    kind: str
    rate: float
    most: float
    words: str
    is_guess: bool = False


def limits(profile: Profile, collective: str, topology: Topology | None = None) -> list[Limit]:
    """Return the limits that are possible by what the profile and the topology of a node state, the lowest first.

    There are none if the GPUs, or their number on each node, are not known, or if the ranks use sockets.
    """
    gpu = GPUS.get(gpu_of(profile.provenance), UNKNOWN)
    num_nodes = profile.num_nodes or 0
    found: list[Limit] = []
    if num_nodes > 1 and not stated(profile.provenance).uses_sockets:
        found += _of_cards(profile, collective, gpu, num_nodes)
    is_in_rack = gpu.spans_nodes and profile.num_ranks <= _MOST_IN_RACK
    if gpu.slot and (num_nodes == 1 or (num_nodes > 1 and is_in_rack)):
        found += _of_gpus(gpu, collective, profile.num_ranks, topology)
    return sorted(found, key=lambda limit: limit.rate)


def _of_gpus(gpu: Gpu, collective: str, num_gpus: int, topology: Topology | None) -> Iterator[Limit]:
    """Yield what the GPUs' NVLinks carry, and their PCIe slots if those may have to."""
    num_targets = 1 if collective == "together" else num_gpus - 1
    rates = _rates_of_links(gpu, num_targets)
    if topology is not None:  # it states the links between each two GPUs
        numbers = topology.nvlinks
        fewest = {min(numbers, default=0)}
        rates = [
            min(gpu.nvlink, gpu.link * number * num_targets) for number in (numbers if num_targets == 1 else fewest)
        ]
    kind = NVLINK if num_gpus > 2 and gpu.joined_by != MESH else FEW_NVLINKS
    for rate in rates:
        if rate == 0:
            yield Limit(PCIE, gpu.slot, gpu.slot, "a GPU's PCIe slot")
            continue
        most = rate
        if gpu.switch_adds and collective == "allreduce":  # a GPU sends its bytes once, and the sum of its part
            most *= max(1.0, 2 * (num_gpus - 1) / (num_gpus + 1))
        yield Limit(kind, rate, most, f"{rate / gpu.link:.3g} NVLinks of a GPU")


def _rates_of_links(gpu: Gpu, num_targets: int) -> Iterable[float]:
    """Return what a GPU's links to so many others may carry; 0 stands for the PCIe slot."""
    if gpu.joined_by == BRIDGES:
        num_bridges = max(1, int(gpu.nvlink / 100e9))
        return [gpu.nvlink * number / num_bridges for number in range(num_bridges + 1)] if num_targets == 1 else [0.0]
    if gpu.joined_by == SWITCH_OR_BOARD and num_targets < 3:
        return [gpu.nvlink * num_targets / 3, gpu.nvlink]
    return [gpu.nvlink]


def _of_cards(profile: Profile, collective: str, gpu: Gpu, num_nodes: int) -> Iterator[Limit]:
    """Yield what a node's network cards carry: of each number and rate that is possible, up to one card per GPU."""
    num_gpus = profile.num_ranks // num_nodes
    log = stated(profile.provenance)
    rates = [gpu.card / 4, gpu.card / 2, gpu.card]
    note = " (assumed)"
    if log.cards_bytes_per_s:
        rates = [log.cards_bytes_per_s / len(log.cards)]
        note = ""
    numbers = [2**power for power in range(num_gpus.bit_length())]
    if log.cards:
        numbers = [min(len(log.cards), num_gpus)]
    if collective in MESSAGES:
        numbers = [1]  # the nearest one of a rank
    # A node's GPUs need to send only those bytes to other nodes that these do not have.
    once = num_nodes / (num_nodes - 1) * (profile.num_ranks - 1) / profile.num_ranks
    for card in filter(None, rates):
        for number in numbers:
            rate = number * card
            if collective == "all_to_all":
                rate *= once / num_gpus
            elif num_gpus > 1 and gpu.joined_by in ("", BRIDGES) and gpu.slot:  # a ring leads through each GPU's slot
                rate = min(rate, gpu.slot)
            most = rate * (once if collective in _BOTH_WAYS else 1.0)
            words = f"{count_of(number, 'network card')} of {card * 8e-9:g} Gbit/s{note} on each node"
            yield Limit(NETWORK, rate, most, words, is_guess=not log.cards)
