"""What the links of a GPU carry, and what the log of a machine states about how its ranks communicate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..pcie import pcie_bytes_per_s

# How the NVLinks of a node's GPUs are joined.
SWITCH = "switch"  # all links of a GPU lead to all others
SWITCH_OR_BOARD = "switch or board"  # a board joins four GPUs, a third of the links to each other one
MESH = "mesh"  # of four or eight GPUs, in which a GPU has one link, two or none to another one
BRIDGES = "bridges"  # between two GPUs, of 100 GB/s one way or less each


class Gpu(NamedTuple):
    """Bytes/s one way: of all NVLinks of a GPU and of one of them, of its PCIe slot, and of a usual network card.

    `nvlink` is 0 if a GPU has none, and `card` if no network card is usual with the GPU.
    """

    nvlink: float
    link: float
    slot: float
    card: float = 0.0
    joined_by: str = ""
    switch_adds: bool = False  # NVLS
    spans_nodes: bool = False  # NVLinks between nodes


_SLOT = {generation: pcie_bytes_per_s(generation, direction="h2d") for generation in (3, 4, 5)}
_AMPERE = Gpu(300e9, 25e9, _SLOT[4], 25e9, SWITCH_OR_BOARD)
_HOPPER = Gpu(450e9, 25e9, _SLOT[5], 50e9, SWITCH_OR_BOARD, switch_adds=True)
_BLACKWELL = Gpu(900e9, 50e9, _SLOT[5], 50e9, SWITCH, switch_adds=True)
GPUS = {  # by model; source: NVIDIA's data sheets
    **dict.fromkeys(("L4", "L20", "L40", "L40S", "A10", "A10G", "RTX 4090", "RTX 6000 ADA"), Gpu(0.0, 0.0, _SLOT[4])),
    **dict.fromkeys(("RTX PRO 6000", "RTX 5090"), Gpu(0.0, 0.0, _SLOT[5])),
    **dict.fromkeys(("A40", "RTX A5000", "RTX A6000", "RTX 3090"), Gpu(56.25e9, 14.0625e9, _SLOT[4], 0.0, BRIDGES)),
    "GB10": Gpu(0.0, 0.0, _SLOT[5], 25e9),
    "A100 PCIE": _AMPERE._replace(joined_by=BRIDGES),
    **dict.fromkeys(("H100 PCIE", "H100 NVL"), Gpu(300e9, 25e9, _SLOT[5], 50e9, BRIDGES)),
    **dict.fromkeys(("V100 SXM2", "V100 SXM3"), Gpu(150e9, 25e9, _SLOT[3], 12.5e9, MESH)),
    **dict.fromkeys(("A100 SXM4", "A100 SXM"), _AMPERE),
    **dict.fromkeys(("A800 SXM4", "A800 SXM"), _AMPERE._replace(nvlink=200e9)),
    "H800": _HOPPER._replace(nvlink=200e9),
    **dict.fromkeys(("H100", "H200", "H20", "H20 3E"), _HOPPER),
    "GH200": _HOPPER._replace(card=25e9, switch_adds=False),
    "B200": _BLACKWELL,
    **dict.fromkeys(("B300", "B300 SXM6 AC"), _BLACKWELL._replace(card=100e9)),
    "GB200": _BLACKWELL._replace(spans_nodes=True),
    "GB300": _BLACKWELL._replace(card=100e9, spans_nodes=True),
}
UNKNOWN = Gpu(0.0, 0.0, 0.0)
_NO_MODEL = re.compile(
    r"NVIDIA|TESLA|GEFORCE|QUADRO|AMD|INSTINCT|\b\d+ ?GB\b|\bHBM\d\w*|BLACKWELL|GENERATION|\b\w+ EDITION"
)


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


# Networks as NCCL's log names them. A description such as "4 × HDR200 InfiniBand" says nothing about what NCCL uses.
_NETWORK = re.compile(r"NET/(?!Socket)\w|\bIB(?:ext\w*)?\b|Libfabric|\bOFI\b|\bUCX\b|FasTrak|\bgIB\b")
_CARD = re.compile(r"\bcard (\w+)(?: (\d+) Gbit/s)?")
_P2P_FORBIDDEN = re.compile(r"NCCL_P2P_(?:DISABLE=1|LEVEL=(?:0|LOC))")  # these levels mean "never"
# Whole names of cards: neither those that it excludes by ^, nor the beginning of several names, such as mlx5.
_LISTED_CARDS = re.compile(r"NCCL_IB_HCA==?((?:(?!mlx\d\b)\w+\d(?::\d+)?,?)+)(?=\s|$)")


class Stated(msgspec.Struct, frozen=True):
    """What a log states about how its ranks communicate; False, or nothing, for what it does not state.

    Rules ask here first. Figures decide only where nothing is stated, so no rule contradicts the log.
    """

    uses_sockets: bool
    is_p2p_off: bool
    is_gpudirect_off: bool
    cards: list[str]  # of the network, on a node
    cards_bytes_per_s: float  # of all cards together


def stated(about: Mapping[str, Any]) -> Stated:
    """Return what a provenance states: its `network` holds what NCCL printed, its `environment` NCCL's variables.

    >>> stated({"network": "NET/Socket, P2P"}).is_p2p_off
    False
    """
    network = str(about.get("network", ""))
    environment = str(about.get("environment", ""))
    has_sockets = "Socket" in network or "NCCL_IB_DISABLE=1" in environment
    has_nvlink = GPUS.get(gpu_of(about), UNKNOWN).joined_by not in ("", BRIDGES)
    is_p2p_forbidden = _P2P_FORBIDDEN.search(environment) is not None
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
        uses_sockets=has_sockets and not _NETWORK.search(network),
        # What NCCL used counts, whatever its variables are.
        is_p2p_off="P2P" not in network and (is_p2p_forbidden or ("SHM" in network and has_nvlink)),
        is_gpudirect_off="without GDRDMA" in network or ("RDMA Disabled" in network and not has_gpudirect),
        cards=cards,
        cards_bytes_per_s=len(cards) * fastest_gbits / 8 * 1e9,
    )
