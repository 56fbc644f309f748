"""What copies between host and GPU take at least, from published facts of the link and the rate of host memory."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from ..values.checks import number, of_type, one_of, truth, whole
from ..values.frozen import checked, frozen
from ..values.storage import read_bytes
from .measuring.plan import ON_THE_FLY, TRANSFER_METHODS
from .profile import FORMAT, WHAT, Point, Profile

# transfers/s of a lane, the share of its bits that is packets, and the bytes that frame one (PCI Express Base
# Specification: 8b/10b, 128b/130b; from 6 on flits of 256 bytes, of which 236 are packets)
PCIE = {
    1: (2.5e9, 8 / 10, 8),
    2: (5e9, 8 / 10, 8),
    3: (8e9, 128 / 130, 8),
    4: (16e9, 128 / 130, 8),
    5: (32e9, 128 / 130, 8),
    6: (64e9, 236 / 256, 0),
}
HEADER_BYTES = {"h2d": 12, "d2h": 16}  # a GPU reads from the host by completions, and writes to 64-bit addresses
PAYLOAD_BYTES = 256  # of a packet, at most, on most machines
START_S = 10e-6  # ASSUMED: from the call to the first byte; a profile tells better
HOST_COPY_BYTES_PER_S = 10e9  # ASSUMED: one thread that copies memory of the host
METHODS = (*TRANSFER_METHODS, *ON_THE_FLY)
MOST_GPUS = 72  # that copy to each other: of a GB200 NVL72; also as large as a matrix can be read


@frozen
class LinkFacts:
    """The rates that bound a copy: of the link each way, and of a copy in the host's memory.

    `seconds` is what a copy takes at least. Raises ValueError for rates that are not above 0 and a negative `start_s`.

    >>> facts = stated(4, 16)
    >>> print(facts.name, round(facts.bytes_per_s("h2d") / 1e9, 1), round(facts.bytes_per_s("d2h") / 1e9, 1))
    PCIe 4 x16 29.2 28.8
    >>> [round(facts.seconds(2**26, "h2d", method) * 1e3, 2) for method in ("pinned", "pageable", "pin_on_the_fly")]
    [2.31, 6.72, 9.02]
    """

    name: str = checked(str)
    h2d_bytes_per_s: float = checked(number, above=0, high=math.inf)
    d2h_bytes_per_s: float = checked(number, above=0, high=math.inf)
    host_copy_bytes_per_s: float = checked(number, above=0, high=math.inf, default=HOST_COPY_BYTES_PER_S)
    start_s: float = checked(number, 0, default=START_S)

    def bytes_per_s(self, direction: str) -> float:
        """Return what no copy in this direction, "h2d" or "d2h", can exceed."""
        one_of("direction", direction, tuple(HEADER_BYTES))
        return self.h2d_bytes_per_s if direction == "h2d" else self.d2h_bytes_per_s

    def seconds(
        self, num_bytes: float, direction: str, method: str = "pinned", pieces: int = 1, both: bool = False
    ) -> float:
        """Return what a copy takes at least, by the options of a "transfer" point (see `measure_transfers`).

        From and to pinned memory the link brings all bytes, after one start a piece. Pageable memory is copied by a
        thread of the host into or out of pinned memory as well, at best while the link brings other bytes: the slower
        of the two counts. Memory that is pinned on the fly is copied first and sent then, and to pin what comes from
        the system takes time that nothing here tells. `both` ways at once, pinned memory takes no longer, a link being
        two lanes, and pageable memory as long as both, one thread doing them in turn.
        """
        num_bytes, both = number("num_bytes", num_bytes, 0), truth("both", both)
        link_s = num_bytes / self.bytes_per_s(direction)
        started_s = whole("pieces", pieces, 1) * self.start_s
        host_s, back = num_bytes / self.host_copy_bytes_per_s, "d2h" if direction == "h2d" else "h2d"
        if one_of("method", method, METHODS) in ON_THE_FLY:
            return started_s + link_s + (host_s if direction == "h2d" else 0.0)
        if method.startswith("pinned"):
            return started_s + (max(link_s, num_bytes / self.bytes_per_s(back)) if both else link_s)
        back_s = self.seconds(num_bytes, back, method, pieces) if both else 0.0
        return started_s + max(link_s, host_s) + back_s


def pcie_bytes_per_s(generation: int, num_lanes: int = 16, direction: str | None = None) -> float:
    """Return what so many lanes of a PCIe generation carry one way: packets or, of a direction, the data in them.

    Each packet has a header, and up to generation 5 a frame, in addition to at most 256 bytes of data (Neugebauer et
    al.: Understanding PCIe performance for end host networking, 2018). What links send each other on top, replies
    and credits, is left out. Raises ValueError for a generation or a direction that is not there.

    >>> round(pcie_bytes_per_s(4) / 1e9, 2), round(pcie_bytes_per_s(5, 16, "d2h") / 1e9, 2)
    (31.51, 57.61)
    """
    transfers_per_s, share, frame_bytes = PCIE[whole("generation", generation, 1, max(PCIE))]
    packets_per_s = transfers_per_s * share * whole("num_lanes", num_lanes, 1, 32) / 8
    if direction is None:
        return packets_per_s
    overhead = HEADER_BYTES[one_of("direction", direction, tuple(HEADER_BYTES))] + frame_bytes
    return packets_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + overhead)


def stated(generation: int, num_lanes: int = 16, host_copy_bytes_per_s: float = HOST_COPY_BYTES_PER_S) -> LinkFacts:
    """Return the facts of a PCIe link; raises ValueError as `pcie_bytes_per_s` and `LinkFacts` do.

    >>> stated(5).name
    'PCIe 5 x16'
    """
    h2d, d2h = (pcie_bytes_per_s(generation, num_lanes, direction) for direction in ("h2d", "d2h"))
    return LinkFacts(f"PCIe {generation} x{num_lanes}", h2d, d2h, host_copy_bytes_per_s)


def facts_of(profile: Profile) -> LinkFacts | None:
    """Return the facts of the machine that a profile is of, None where it does not say how its GPU is joined.

    The link is what its topology says of GPU 0. The host's memory is taken to be as fast as the profile's largest copy
    into memory that was pinned before, if it has one.
    """
    of_type("profile", profile, Profile)
    found = re.search(r"^GPU0: PCIe (\d+) x(\d+)", profile.provenance.get("topology", ""), re.MULTILINE)
    if found is None or int(found[1]) not in PCIE or not 1 <= int(found[2]) <= 32:
        return None
    pins = sorted(profile.select("pin", cached=True), key=lambda point: point.num_bytes)
    host = pins[-1].algbw_bytes_per_s if pins else HOST_COPY_BYTES_PER_S
    return stated(int(found[1]), int(found[2]), host)


def transfers_of(
    profile: Profile, direction: str, method: str, what: str = "transfer", pieces: int = 1, both: bool = False
) -> Sequence[Point]:
    """Return a profile's points of one way to copy, small to large."""
    points = profile.select(what, direction=direction, method=method, pieces=pieces, both=both)
    return sorted(points, key=lambda point: point.num_bytes)


def peer_rates(profile: Profile) -> tuple[int, dict[tuple[int, int], float]]:
    """Return the largest size of a copy from GPU to GPU, and the bytes per second that each (source, target) reached.

    Copies go one at a time. Raises ValueError for a profile without them, and of more than `MOST_GPUS`.
    """
    found = profile.select("transfer", direction="p2p", both=False)
    ends = [(point.options.get("src"), point.options.get("dst"), point) for point in found]
    known = [(src, dst, one) for src, dst, one in ends if isinstance(src, int) and isinstance(dst, int)]
    size = max((point.num_bytes for *_, point in known), default=0)
    rates = {(src, dst): size / one.median_s for src, dst, one in known if one.num_bytes == size}
    if not rates:
        raise ValueError("profile must have copies between GPUs (direction 'p2p'), got none")
    if (number := len(set(chain.from_iterable(rates)))) > MOST_GPUS:
        raise ValueError(f"profile must have copies between at most {MOST_GPUS} GPUs, got {number}")
    return size, rates


def recorded(
    folder: str | os.PathLike[str], what: str = "transfer", otherwise: str | os.PathLike[str] | None = None
) -> Profile | None:
    """Return the latest profile of GPUs in a folder that has points of `what`: copies, or a collective.

    Where there is none, it is that of `otherwise`, a file or one of the bank like "bank:h100_8", or None. Files of
    other kinds are passed over. Raises StorageError for a damaged profile, OSError for a folder that cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(recorded(folder), recorded(folder, "allreduce", "bank:h100_8").num_ranks)
    None 8
    """
    head, point = f'{{"format": "{FORMAT}"'.encode(), f'{{"what":"{one_of("what", what, WHAT)}"'.encode()
    found = []
    for path in sorted(Path(folder, name) for name in os.listdir(folder) if name.endswith(".json")):
        if path.is_file():  # no folder, and no link that leads nowhere
            with suppress(ValueError):  # empty, or larger than any profile
                raw = read_bytes(path)
                found += [path] if raw.startswith(head) and point in raw else []
    profiles = [one for one in map(Profile.load, found) if what == "transfer" or one.provenance.get("gpus")]
    latest = max(profiles, key=lambda profile: str(profile.provenance.get("date", "")), default=None)
    return Profile.load(otherwise) if latest is None and otherwise is not None else latest
