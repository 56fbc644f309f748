"""The limits that a table may have: what the links carry that its ranks may use, in bytes/s of bus bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...common.words import count_of
from ..nccl.topology import Topology
from ..profile import Profile
from .hardware import BRIDGES, EACH_TO_EACH, GPUS, MESH, SWITCH_OR_BOARD, UNKNOWN, Gpu, gpu_of, stated

NVLINK = "NVLink"
PAIR = "NVLink of two GPUs"
XGMI = "xGMI"
PCIE = "PCIe"
NETWORK = "network"
OMNI_PATH = "Omni-Path"

RINGS = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
MESSAGES = ("together", "gather", "scatter")  # between two ranks at a time, or all with the root
_MOST_IN_RACK = 72  # GPUs that NVLink joins across nodes
_MESH_SHARES = (1 / 6, 1 / 3, 2 / 3, 1.0)  # of a GPU's links that lead to some of the other seven


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
    is_in_rack = num_nodes > 1 and gpu.spans_nodes and profile.num_ranks <= _MOST_IN_RACK
    if gpu.slot and (num_nodes == 1 or is_in_rack):
        found += _of_gpus(gpu, collective, profile.num_ranks, topology)
    return sorted(found, key=lambda limit: limit.rate)


def _of_gpus(gpu: Gpu, collective: str, num_gpus: int, topology: Topology | None) -> Iterator[Limit]:
    """Yield what the GPUs' direct links carry, and their PCIe slots if those may have to."""
    num_targets = 1 if collective == "together" else num_gpus - 1
    rates = _rates_of_links(gpu, num_targets)
    if gpu.joined_by == MESH and num_gpus > 4 and collective not in RINGS:  # some of the pairs have no link
        return
    if topology is not None:
        rates = _rates_by_topology(gpu, topology, num_targets)
    kind = NVLINK if num_gpus > 2 else PAIR
    if gpu.joined_by == EACH_TO_EACH:
        kind = XGMI
    for rate in rates:
        if not rate:
            yield Limit(PCIE, gpu.slot, gpu.slot, "a GPU's PCIe slot")
            continue
        most = rate
        if gpu.switch_adds and collective == "allreduce":  # a GPU sends its bytes once, and the sum of its part
            most *= max(1.0, 2 * (num_gpus - 1) / (num_gpus + 1))
        links = f"a GPU's {kind.partition(' ')[0]}s"
        if rate < gpu.nvlink:
            links = f"{rate / gpu.link:.3g} of {links}"
        yield Limit(kind, rate, most, links)


def _rates_of_links(gpu: Gpu, num_targets: int) -> list[float]:
    """Return what a GPU's links to so many others may carry; 0 stands for the PCIe slot."""
    if not gpu.nvlink or (gpu.joined_by == BRIDGES and num_targets > 1):
        return [0.0]
    if gpu.joined_by == BRIDGES:
        bridges = range(1, gpu.num_bridges + 1)
        return [0.0, *[gpu.nvlink * number / gpu.num_bridges for number in bridges]]
    if gpu.joined_by == EACH_TO_EACH:
        return [gpu.link * min(num_targets, 7)]
    if gpu.joined_by == MESH and num_targets < 7:
        return [gpu.nvlink * share for share in _MESH_SHARES]
    if gpu.joined_by == SWITCH_OR_BOARD and num_targets < 3:
        return [gpu.nvlink * num_targets / 3, gpu.nvlink]
    return [gpu.nvlink]


def _rates_by_topology(gpu: Gpu, topology: Topology, num_targets: int) -> list[float]:
    """Return what the links that topo -m states carry to so many others: for one, those of each kind of pair."""
    by_gpu = topology.nvlinks
    if num_targets == 1:
        return sorted({min(gpu.nvlink, gpu.link * number) for row in by_gpu for number in row})
    if any(sum(number > 0 for number in row) < 2 for row in by_gpu):  # no ring leads over NVLinks alone
        return [0.0]
    links = min(sum(row) for row in by_gpu) / len(by_gpu[0]) * num_targets
    return [min(gpu.nvlink, gpu.link * links)]


def _of_cards(profile: Profile, collective: str, gpu: Gpu, num_nodes: int) -> Iterator[Limit]:
    """Yield what a node's network cards carry: of each number and rate that is possible, up to one card per GPU."""
    num_gpus = profile.num_ranks // num_nodes
    log = stated(profile.provenance)
    network = str(profile.provenance.get("network", ""))
    rates = [gpu.card / 4, gpu.card / 2, gpu.card]
    note = " (assumed)"
    if log.cards_bytes_per_s:
        rates = [log.cards_bytes_per_s / len(log.cards)]
        note = ""
    numbers = [2**power for power in range(num_gpus.bit_length())]
    if collective in MESSAGES:
        numbers = [1]  # the nearest one of a rank
    elif log.cards:
        numbers = sorted({min(len(log.cards), num_gpus), len(log.cards)})  # a GPU may use several
    # A node's GPUs need to send only those bytes to other nodes that these do not have.
    once = num_nodes / (num_nodes - 1) * (profile.num_ranks - 1) / profile.num_ranks
    for card in filter(None, rates):
        for number in numbers:
            rate = number * card
            if collective == "all_to_all":
                rate *= once / num_gpus
            elif gpu.slot:  # a ring without NVLink leads through each GPU's slot
                has_nvlink = gpu.joined_by not in ("", BRIDGES)
                rate = min(rate, gpu.slot * num_gpus if has_nvlink else gpu.slot)
            most = rate
            if collective in ("allreduce", "allgather", "reduce_scatter"):
                most *= once
            kind = OMNI_PATH if "Omni-Path" in network or "hfi" in network else NETWORK
            words = f"{count_of(number, 'network card')} of {card * 8e-9:g} Gbit/s{note} on each node"
            yield Limit(kind, rate, most, words, is_guess=not log.cards)
