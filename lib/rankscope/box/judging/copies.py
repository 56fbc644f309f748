"""What copies between GPUs show: whether peer-to-peer access is used, and whether it is quicker than the host."""

from __future__ import annotations

from collections.abc import Iterator

from ...common.units import rate_range_words
from ..logs.log import COPY_BYTES
from ..logs.p2p import HOST
from ..profile import Profile
from .shares import LOW

_SAME = 0.9  # of the rate through the host: runs of the same copy differ by up to 10 %
_CHECK = (
    "So the access is on, but its way is a detour or narrow. ACS or an IOMMU may send it through the CPU: turn off ACS "
    "(lspci -vvv shows ACSCtl), and boot with iommu=pt or off. GPUs without NVLink also need a resizable BAR."
)


def of_copies(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the kind and the sentence of what pairs of GPUs reach with and without peer-to-peer access."""
    peer: dict[tuple[int, int], float] = {}
    host: dict[tuple[int, int], float] = {}
    for point in profile.select("transfer", COPY_BYTES, direction="p2p", both=False):
        rates = host if point.options["method"] == HOST else peer
        pair = (point.options.get("src", 0), point.options.get("dst", 0))
        rates[pair] = max(point.algbw_bytes_per_s, rates.get(pair, 0.0))
    pairs = peer.keys() & host.keys()
    slow = [pair for pair in pairs if peer[pair] < _SAME * host[pair]]
    if pairs:
        with_peer, through_host = (rate_range_words([rates[pair] for pair in slow or pairs]) for rates in (peer, host))
        words = f"peer-to-peer copies between GPUs reach {with_peer}, and through host memory {through_host}"
        yield (LOW, f"Low: {words}. {_CHECK}") if slow else ("copies", f"{words[:1].upper()}{words[1:]}.")
