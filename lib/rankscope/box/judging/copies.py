"""What copies between GPUs show: whether peer-to-peer access is used, and whether it is quicker than the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...common.units import rate_words
from ...common.words import count_of
from ..logs.log import COPY_BYTES
from ..logs.p2p import HOST
from ..profile import Profile
from .shares import EXPECTED, LOW, UNKNOWN

_SAME = 0.9  # of the rate through the host: runs of the same copy differ by up to 10 %


def of_copies(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the kind and the sentence of what pairs of GPUs reach with and without peer-to-peer access."""
    peer: dict[tuple[int, int], float] = {}
    host: dict[tuple[int, int], float] = {}
    for point in profile.select("transfer", COPY_BYTES, direction="p2p", both=False):
        rates = host if point.options["method"] == HOST else peer
        pair = (point.options.get("src", 0), point.options.get("dst", 0))
        rates[pair] = max(point.algbw_bytes_per_s, rates.get(pair, 0.0))
    groups: dict[str, list[tuple[int, int]]] = {LOW: [], UNKNOWN: [], EXPECTED: []}
    for pair in peer.keys() & host.keys():
        ratio = peer[pair] / host[pair]
        groups[LOW if ratio < _SAME else UNKNOWN if ratio < 1 / _SAME else EXPECTED].append(pair)
    for verdict, pairs in groups.items():
        if pairs:
            number = count_of(len({frozenset(pair) for pair in pairs}), "pair")
            reached = [_range([rates[pair] for pair in pairs]) for rates in (peer, host)]
            yield (
                verdict,
                f"{verdict.capitalize()}: peer-to-peer copies between {number} of GPUs reach {reached[0]}, and through "
                f"host memory {reached[1]}.{_REASONS[verdict]}",
            )


_REASONS = {
    LOW: " So the access is on, but its way is a detour or narrow. ACS or an IOMMU may send it through the CPU: turn "
    "off ACS (lspci -vvv shows ACSCtl), and boot with iommu=pt or off. GPUs without NVLink also need a resizable BAR.",
    UNKNOWN: " They are as quick, so they take the same way; GPUs without peer-to-peer access have no other.",
    EXPECTED: "",
}


def _range(rates: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys([rate_words(min(rates)), rate_words(max(rates))]))
