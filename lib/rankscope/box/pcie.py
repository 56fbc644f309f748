"""PCI Express: what a link of each generation carries, by its specification."""

from __future__ import annotations

from typing import NamedTuple

from ..common.checks import one_of, whole

HEADER_BYTES = {"h2d": 12, "d2h": 16}  # h2d: the GPU receives completions; d2h: it writes to 64-bit addresses
PAYLOAD_BYTES = 256  # maximum payload of a packet on most machines


class PcieGeneration(NamedTuple):
    """A generation of PCI Express: of a lane its transfers/s, and the share of its bits that carries packets.

    `frame_bytes` frame each packet (PCI Express Base Specification: 128b/130b; since generation 6 flits of 256
    bytes, of which 236 carry packets).
    """

    transfers_per_s: float
    packet_share: float
    frame_bytes: int


PCIE = {
    3: PcieGeneration(8e9, 128 / 130, 8),
    4: PcieGeneration(16e9, 128 / 130, 8),
    5: PcieGeneration(32e9, 128 / 130, 8),
    6: PcieGeneration(64e9, 236 / 256, 0),
}


def pcie_bytes_per_s(generation: int, num_lanes: int = 16, direction: str | None = None) -> float:
    """Return the rate of a PCIe link in one direction, in bytes/s.

    It is the rate of packets or, if `direction` is given, of the data in them. Each packet has at most 256 bytes of
    data, a header and, up to generation 5, a frame (Neugebauer et al.: Understanding PCIe performance for end host
    networking, 2018). Acknowledgements and flow control are left out. Raises ValueError if the generation or direction
    is unknown, or if `num_lanes` is not from 1 to 32.

    >>> round(pcie_bytes_per_s(4) / 1e9, 2), round(pcie_bytes_per_s(5, 16, "d2h") / 1e9, 2)
    (31.51, 57.61)
    """
    facts = PCIE[whole("generation", generation, min(PCIE), max(PCIE))]
    whole("num_lanes", num_lanes, 1, 32)
    packet_bytes_per_s = facts.transfers_per_s * facts.packet_share * num_lanes / 8  # a transfer is a bit
    if direction is None:
        return packet_bytes_per_s
    one_of("direction", direction, tuple(HEADER_BYTES))
    overhead_bytes = HEADER_BYTES[direction] + facts.frame_bytes
    return packet_bytes_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + overhead_bytes)
