"""Causes of a low rate that the log itself states."""

from __future__ import annotations

from collections.abc import Iterator

from ...common.words import count_of
from ..logs.table import FAULT
from ..profile import Profile
from .hardware import stated


def causes(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the name and the sentence of each cause, the strongest first.

    A log of one node names a network that its ranks do not use, so networks count only between nodes.
    """
    if profile.disturbed:
        yield (
            "busy",
            f"The machine was busy: {len(profile.disturbed)} of {count_of(len(profile.points), 'point')} vary by more "
            "than 50 %, which quiet machines do not. Nothing is called the fastest; measure when nothing else runs.",
        )
    log = stated(profile.provenance)
    num_nodes = profile.num_nodes or 1
    ranks_per_node = profile.num_ranks // num_nodes
    for note in dict.fromkeys(str(profile.provenance.get("source", {}).get("notes", "")).split("; ")):
        if note.startswith(FAULT):
            fault = note.partition(": ")[2]
            yield "stated_fault", f"{fault[:1].upper()}{fault[1:]}."
    if log.is_p2p_off and ranks_per_node > 1:
        yield (
            "p2p_off",
            "The GPUs of a node communicate through host memory, because peer-to-peer access is off. "
            "Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, or check nvidia-smi topo -m for PHB or SYS.",
        )
    if num_nodes == 1:
        return
    if log.uses_sockets:
        yield (
            "sockets",
            "The log states NET/Socket or NCCL_IB_DISABLE=1: nodes use sockets, unless a plug-in is loaded. If they "
            "have InfiniBand or RoCE, unset NCCL_IB_DISABLE; if their network has a plug-in, load it.",
        )
    elif log.is_gpudirect_off:
        yield (
            "no_gpudirect",
            "The log states that GPUDirect RDMA is off, so bytes pass through the host's memory. Load nvidia-peermem.",
        )
    if len(log.cards) == 1 and ranks_per_node > 1:
        yield (
            "one_card",
            f"For the {count_of(ranks_per_node, 'GPU')} of a node, NCCL uses one network card, {log.cards[0]}. If the "
            "node has more, check NCCL_IB_HCA.",
        )
