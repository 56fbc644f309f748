"""What a GPU's hardware carries, and what the log of a machine states about how its ranks communicate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..pcie import pcie_bytes_per_s


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
    **dict.fromkeys(("L40S", "RTX 4090", "A100 PCIE"), Hardware(0.0, _SLOT[4], 0.0)),
    **dict.fromkeys(("H100 PCIE", "RTX PRO 6000", "RTX 5090"), Hardware(0.0, _SLOT[5], 0.0)),
    **dict.fromkeys(("V100 SXM2", "V100 SXM3"), Hardware(150e9, _SLOT[3], 12.5e9)),
    "A100 SXM4": Hardware(300e9, _SLOT[4], 25e9),
    "A800 SXM4": Hardware(200e9, _SLOT[4], 25e9),
    "H800": Hardware(200e9, _SLOT[5], 50e9, switch_adds=True),
    **dict.fromkeys(("H100", "H200", "H20"), Hardware(450e9, _SLOT[5], 50e9, switch_adds=True)),
    "GH200": Hardware(450e9, _SLOT[5], 50e9),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), Hardware(900e9, _SLOT[5], 50e9, switch_adds=True)),
}
_NO_MODEL = re.compile(r"NVIDIA|TESLA|GEFORCE|QUADRO|\b\d+ ?GB\b|\bHBM\d\w*|BLACKWELL|\b\w+ EDITION")


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


def hardware_of(about: Mapping[str, Any]) -> Hardware:
    """Return what the GPUs have; zeros if that is not known."""
    return HARDWARE.get(gpu_of(about), Hardware(0.0, 0.0, 0.0))


# Networks as NCCL's log names them. A description such as "4 × HDR200 InfiniBand" says nothing about what NCCL uses.
_NETWORK = re.compile(r"NET/(?!Socket)\w|\bIB(?:ext\w*)?\b|Libfabric|\bOFI\b|\bUCX\b|FasTrak|\bgIB\b")
_CARD = re.compile(r"\bcard (\w+)(?: (\d+) Gbit/s)?")
_P2P_FORBIDDEN = re.compile(r"NCCL_P2P_(?:DISABLE=1|LEVEL=(?:0|LOC))")  # these levels mean "never"
# Whole names of cards: neither those that it excludes by ^, nor the beginning of several names, such as mlx5.
_LISTED_CARDS = re.compile(r"NCCL_IB_HCA==?((?:(?!mlx\d\b)\w+\d(?::\d+)?,?)+)(?=\s|$)")


class Stated(msgspec.Struct, frozen=True):
    """What a log states about how its ranks communicate; None, or nothing, for what it does not state.

    Rules ask here first. Figures decide only where nothing is stated, so no rule contradicts the log.
    """

    uses_sockets: bool | None = None
    is_p2p_off: bool | None = None
    is_gpudirect_off: bool = False
    cards: tuple[str, ...] = ()  # of the network, on a node
    cards_bytes_per_s: float = 0.0  # of all cards together


def stated(about: Mapping[str, Any]) -> Stated:
    """Return what a provenance states: its `network` holds what NCCL printed, its `environment` NCCL's variables.

    >>> stated({"network": "NET/Socket, P2P"}).is_p2p_off
    False
    """
    network = str(about.get("network", ""))
    environment = str(about.get("environment", ""))
    has_sockets = "Socket" in network or "NCCL_IB_DISABLE=1" in environment
    has_other_network = _NETWORK.search(network) is not None
    is_p2p_off = None
    if "P2P" in network:  # What NCCL used counts, whatever its variables are.
        is_p2p_off = False
    elif _P2P_FORBIDDEN.search(environment) or ("SHM" in network and hardware_of(about).nvlink):
        is_p2p_off = True
    # "Disabled" may stand for some pairs of GPU and card only.
    has_gpudirect = "with GDRDMA" in network or "RDMA Enabled" in network
    named = _CARD.findall(network)
    listed = _LISTED_CARDS.search(environment)
    cards = [name for name, _ in named]
    if listed and not cards:  # the cards that NCCL found count, and a listed one may be down
        cards = listed[1].split(",")
    fastest_gbits = max((int(gbits) for _, gbits in named if gbits), default=0)
    return Stated(
        # A log that has both does not say which of them carries the data.
        uses_sockets=has_sockets if has_sockets != has_other_network else None,
        is_p2p_off=is_p2p_off,
        is_gpudirect_off="without GDRDMA" in network or ("RDMA Disabled" in network and not has_gpudirect),
        cards=tuple(cards),
        cards_bytes_per_s=len(cards) * fastest_gbits / 8 * 1e9,
    )
