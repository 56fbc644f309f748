"""What copies between GPUs show: whether peer-to-peer access is used, and whether it is quicker than the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...common.units import rate_words
from ...common.words import count_of
from ..logs.p2p import HOST
from ..profile import Profile

_SAME = 0.9  # of the rate through the host, or more: runs of the same copy differ by up to 10 %
_FASTER = 1.2


def of_copies(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the kind and the sentence of what pairs of GPUs reach with and without peer-to-peer access."""
    peer: dict[tuple[int, int], float] = {}
    host: dict[tuple[int, int], float] = {}
    for point in profile.select("transfer", direction="p2p", both=False):
        if point.num_bytes:
            rates = host if point.options["method"] == HOST else peer
            pair = (point.options["src"], point.options["dst"])
            rates[pair] = max(point.algbw_bytes_per_s, rates.get(pair, 0.0))
    pairs = [pair for pair in peer if pair in host]
    slow = [pair for pair in pairs if peer[pair] < _SAME * host[pair]]
    fast = [pair for pair in pairs if peer[pair] > _FASTER * host[pair]]

    def words(some: Sequence[tuple[int, int]]) -> str:
        number = count_of(len({frozenset(pair) for pair in some}), "pair")
        through_host = _range([host[pair] for pair in some])
        return f"{number} of GPUs reach {_range([peer[pair] for pair in some])}, and through host memory {through_host}"

    if slow:
        yield (
            "p2p_slow",
            f"Low: peer-to-peer copies between {words(slow)}. So the access is on, but its way is a detour or narrow. "
            "ACS or an IOMMU may send it through the CPU: turn off ACS (lspci -vvv shows ACSCtl), and boot with iommu=pt "
            "or off. Resizable BAR must be on for GPUs without NVLink.",
        )
    if fast:
        yield "p2p_used", f"As expected: peer-to-peer copies between {words(fast)}."
    if pairs and not slow and not fast:
        yield (
            "p2p_unused",
            f"Cannot tell: peer-to-peer copies between {words(pairs)}. They are as quick, so they take the same way. "
            "Where the GPUs or their driver have no peer-to-peer access, that is as expected.",
        )


def _range(rates: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys([rate_words(min(rates)), rate_words(max(rates))]))
