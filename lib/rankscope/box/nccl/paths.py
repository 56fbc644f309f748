"""The paths that NCCL's search is expected to find (src/graph/search.cc)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .constants import MOST_CHANNELS, Graph
from .machine import Machine

_MOST_HEADS = 32  # NCCL_MAX_NVLS_ARITY: the paths of NVLS in a node


def expected_graphs(machine: Machine) -> dict[str, Graph]:
    """Return the paths of "ring", "tree" and "nvls"."""
    if machine.num_nodes > 1:
        return _between_nodes(machine)
    gpu = machine.facts
    rate = gpu.channel_gb_per_s
    tree_rate = rate
    if machine.gpus_per_node == 2:  # as NCCL's log prints it for a pair
        tree_rate = 2 * rate
    speeds = machine.generation.nvls_speeds
    num_heads = min(machine.gpus_per_node, _MOST_HEADS)
    return {
        "ring": Graph(gpu.ring_channels, rate, rate),
        # A plain tree would have less bandwidth than NCCL's logs of one node state.
        "tree": Graph(gpu.ring_channels, tree_rate, rate, is_plain_tree=False),
        # NCCL's formula for NVLS is bounded by `inter` also on one node, where it is the fastest rate of the list.
        "nvls": Graph(num_heads, _head_rate(machine, num_heads, speeds), speeds[0]),
    }


def _between_nodes(machine: Machine) -> dict[str, Graph]:
    """Return the paths of several nodes, as ncclTopoCompute finds them.

    NCCL looks for the fastest rate that channels can have both within and between nodes. If it is fast, each channel
    becomes two of half the rate, but not those of NVLS (ncclTopoDupChannels). Then NCCL raises one of both rates, while
    it is below twice the other: for trees that within nodes, and for NVLS that between nodes.
    """
    gpu = machine.facts
    speeds = machine.generation.speeds
    nic_rate = gpu.nic_gb_per_s
    if machine.nic_bytes_per_s:
        nic_rate = machine.nic_bytes_per_s / 1e9
    nic_rate = min(nic_rate, gpu.links_gb_per_s)  # on PCIe, the link of a GPU may be slower than the card
    rate = _fastest(speeds, nic_rate)
    num_nics = machine.nics or machine.gpus_per_node
    num_channels = num_nics * int(nic_rate // rate)  # each card has as many as it can carry
    most_tree = math.inf
    # A channel is a chain of a node's GPUs, so its data leave all of them but the last over their links.
    share_of_links = (machine.gpus_per_node - 1) / machine.gpus_per_node
    if share_of_links:
        num_channels = min(num_channels, max(int(gpu.links_gb_per_s / (share_of_links * rate)), 1))
    inter = rate
    is_fast = rate >= 25
    if machine.generation.has_nvls and num_channels > 4:
        is_fast = rate >= 50
    if is_fast:
        num_channels *= 2
        inter = rate / 2
    num_channels = min(num_channels, MOST_CHANNELS)
    if share_of_links:
        most_tree = gpu.links_gb_per_s / max(share_of_links * num_channels, 1)
    num_heads = min(num_nics, machine.gpus_per_node, _MOST_HEADS)  # the GPUs that have a network card of their own
    head_rate = min(_head_rate(machine, num_heads, speeds), rate)
    return {
        # Each channel begins at a card of its own, so NCCL's logs of several nodes deny the same order of GPUs.
        "ring": Graph(num_channels, inter, inter, same_channels=False),
        "tree": Graph(num_channels, _raised(inter, speeds, most_tree), inter),
        "nvls": Graph(num_heads, head_rate, _raised(head_rate, speeds, nic_rate)),
    }


def _head_rate(machine: Machine, num_heads: int, speeds: Sequence[float]) -> float:
    """Return the GB/s of a path of NVLS within a node: the fastest that a GPU's links can carry.

    A path has a GPU as its head. Its data cross the links of each GPU once, and those of the head twice, so NCCL counts
    one path more than there are heads (ncclTopoSearchTryNvls).
    """
    return _fastest(speeds, machine.facts.links_gb_per_s / (num_heads + 1))


def _fastest(speeds: Sequence[float], most: float) -> float:
    """Return the fastest of `speeds`, which fall, that is at most `most`; `most` if none is."""
    return next((speed for speed in speeds if speed <= most), most)


def _raised(rate: float, speeds: Sequence[float], most: float) -> float:
    """Return the slowest of `speeds` that is at least twice the rate, or before it the fastest that is at most `most`.

    A rate that is none of the speeds, such as 21, half of 42, stays as it is.
    """
    faster = [speed for speed in reversed(speeds) if rate < speed <= most]
    if rate not in speeds or not faster:
        return rate
    return next((speed for speed in faster if speed >= 2 * rate), faster[-1])
