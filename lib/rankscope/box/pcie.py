"""PCI Express: what a link of each generation carries, by its specification and as NCCL counts it."""

from __future__ import annotations

from typing import NamedTuple

from ..common.checks import one_of, whole

HEADER_BYTES = {"h2d": 12, "d2h": 16}  # h2d: the GPU receives completions; d2h: it writes to 64-bit addresses
PAYLOAD_BYTES = 256  # maximum payload of a packet on most machines


class PcieGeneration(NamedTuple):
    """A generation of PCI Express: of a lane its transfers/s, and the share of its bits that carries packets.

    `frame_bytes` frame each packet (PCI Express Base Specification: 8b/10b, 128b/130b; since generation 6 flits of 256
    bytes, of which 236 carry packets). `nccl_gb_per_s` is what NCCL counts for a lane one way, in GB/s (its
    src/graph/topo.cc).
    """

    transfers_per_s: float
    packet_share: float
    frame_bytes: int
    nccl_gb_per_s: float


PCIE = {
    1: PcieGeneration(2.5e9, 8 / 10, 8, 0.1875),
    2: PcieGeneration(5e9, 8 / 10, 8, 0.375),
    3: PcieGeneration(8e9, 128 / 130, 8, 0.75),
    4: PcieGeneration(16e9, 128 / 130, 8, 1.5),
    5: PcieGeneration(32e9, 128 / 130, 8, 3.0),
    6: PcieGeneration(64e9, 236 / 256, 0, 6.0),
}
GPU_GENERATIONS = {  # the generation of PCIe by which a GPU without NVLink talks to the others
    "L40S": 4,
    "RTX 4090": 4,
    "A100 PCIE": 4,
    "H100 PCIE": 5,
    "RTX PRO 6000": 5,
    "RTX 5090": 5,
}
ARCHITECTURE_GENERATIONS = {"volta": 3, "ampere": 4, "hopper": 5, "blackwell": 5}  # of a data-centre GPU's slot


def pcie_bytes_per_s(generation: int, num_lanes: int = 16, direction: str | None = None) -> float:
    """Return the rate of a PCIe link in one direction, in bytes/s.

    It is the rate of packets or, if `direction` is given, of the data in them. Each packet has at most 256 bytes of
    data, a header and, up to generation 5, a frame (Neugebauer et al.: Understanding PCIe performance for end host
    networking, 2018). Acknowledgements and flow control are left out. Raises ValueError if the generation or direction
    is unknown, or if `num_lanes` is not from 1 to 32.

    >>> round(pcie_bytes_per_s(4) / 1e9, 2), round(pcie_bytes_per_s(5, 16, "d2h") / 1e9, 2)
    (31.51, 57.61)
    """
    facts = PCIE[whole("generation", generation, 1, max(PCIE))]
    whole("num_lanes", num_lanes, 1, 32)
    packet_bytes_per_s = facts.transfers_per_s * facts.packet_share * num_lanes / 8  # a transfer is a bit
    if direction is None:
        return packet_bytes_per_s
    one_of("direction", direction, tuple(HEADER_BYTES))
    overhead_bytes = HEADER_BYTES[direction] + facts.frame_bytes
    return packet_bytes_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + overhead_bytes)


def nccl_lane_gb_per_s(link_speed: str) -> float:
    """Return what NCCL counts for a lane of a link whose speed its topology file states, 0 for an unknown speed.

    >>> nccl_lane_gb_per_s("16.0 GT/s PCIe"), nccl_lane_gb_per_s("16 GT/s"), nccl_lane_gb_per_s("Unknown")
    (1.5, 1.5, 0.0)
    """
    stated = link_speed.split(" ")[0].removesuffix(".0")
    for generation in PCIE.values():
        if stated == f"{generation.transfers_per_s / 1e9:g}":
            return generation.nccl_gb_per_s
    return 0.0
