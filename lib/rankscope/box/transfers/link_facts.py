"""Lower bounds of copies between host and GPU, from published facts of the link and the rate of host memory."""

from __future__ import annotations

import msgspec

from ...common.checks import number, one_of
from ..measuring.plan import DIRECTIONS, METHODS
from ..pcie import pcie_bytes_per_s

START_S = 10e-6  # ASSUMED: from the call to the first byte; measure it in a profile
HOST_COPY_BYTES_PER_S = 10e9  # ASSUMED: one thread that copies host memory


class LinkFacts(msgspec.Struct, frozen=True):
    """The rates that bound a copy: the link in each direction, and a copy within host memory.

    `seconds` gives the lower bound of a copy.

    >>> facts = stated(4, 16)
    >>> print(facts.name, round(facts.bytes_per_s("h2d") / 1e9, 1), round(facts.bytes_per_s("d2h") / 1e9, 1))
    PCIe 4 x16 29.2 28.8
    >>> [round(facts.seconds(2**26, "h2d", method) * 1e3, 2) for method in ("pinned", "pageable", "pin_on_the_fly")]
    [2.31, 6.72, 9.02]
    """

    name: str
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    host_copy_bytes_per_s: float = HOST_COPY_BYTES_PER_S
    start_s: float = START_S

    def bytes_per_s(self, direction: str) -> float:
        """Return the maximum rate of a copy in this direction, "h2d" or "d2h"."""
        one_of("direction", direction, tuple(DIRECTIONS))
        return self.h2d_bytes_per_s if direction == "h2d" else self.d2h_bytes_per_s

    def seconds(self, num_bytes: float, direction: str, method: str = "pinned") -> float:
        """Return the lower bound of a copy in seconds, for the options of a "transfer" point (see `transfer_points`).

        Pinned memory: the link carries all bytes after the start. Pageable memory: a host thread also copies the bytes
        into or out of pinned memory, at best while the link carries others, so the slower of the two counts. Pinned on
        the fly: the bytes are copied first and sent afterwards; the time of pinning new memory is not included.
        """
        number("num_bytes", num_bytes, 0)
        one_of("method", method, METHODS)
        host_s = num_bytes / self.host_copy_bytes_per_s
        bytes_s = num_bytes / self.bytes_per_s(direction)
        if method.startswith("pageable"):
            bytes_s = max(bytes_s, host_s)
        elif method == "pin_on_the_fly" and direction == "h2d":  # else the new memory receives them
            bytes_s += host_s
        return self.start_s + bytes_s


def stated(generation: int, num_lanes: int = 16) -> LinkFacts:
    """Return the facts of a PCIe link.

    Raises ValueError if the generation is unknown, or if `num_lanes` is out of range.

    >>> stated(5).name
    'PCIe 5 x16'
    """
    h2d = pcie_bytes_per_s(generation, num_lanes, "h2d")
    d2h = pcie_bytes_per_s(generation, num_lanes, "d2h")
    return LinkFacts(f"PCIe {generation} x{num_lanes}", h2d, d2h)
