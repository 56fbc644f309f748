"""Is a measured bus bandwidth what the links carry? The share of each possible limit, and one of three verdicts.

A log seldom states all links, so a table has several possible limits. A rate refutes those that it exceeds. The verdict
is "as expected" or "low" only if it holds for each of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...common.units import bytes_words, percent_words, rate_words
from ..nccl.topology import Topology
from ..profile import Profile
from .hardware import GPUS, gpu_of, stated
from .limits import FEW_NVLINKS, MESSAGES, NETWORK, NVLINK, PCIE, Limit, limits

EXPECTED = "as expected"
LOW = "low"
UNKNOWN = "cannot tell"

FULL_BYTES = 2**27  # from this size on, and from FULL_BYTES_PER_RANK for each rank, machines reach their full rate
FULL_BYTES_PER_RANK = 2**22
_ABOVE = 1.1  # of what links carry: more means that there are other links
_NEAR = 0.9  # of the lowest share of healthy machines: it is as good as that
SLOW = {NVLINK: 0.8, NETWORK: 0.7}  # of that: less is low. Of other links, too few sources have published tables
_THROUGH_HOST = 40e9  # bytes/s that copies through the host's memory can reach


class Band(NamedTuple):
    """The lowest and the highest share of their links that healthy machines reach."""

    lowest: float
    highest: float


# By kind of links and collective; "" stands for the other collectives. Of the tables of the bank with full rates:
# `python -m tests.benchmarks.shares --calibrate` prints them, and without it, how each source fares by all others.
HEALTHY: Mapping[str, Mapping[str, Band]] = {
    NVLINK: {
        "": Band(0.510, 1.074),
        "allreduce": Band(0.693, 1.074),
        "allgather": Band(0.619, 0.813),
        "reduce_scatter": Band(0.610, 0.811),
    },
    FEW_NVLINKS: {"": Band(0.347, 0.832), "allreduce": Band(0.579, 0.832)},
    PCIE: {"": Band(0.157, 0.763)},
    NETWORK: {"": Band(0.874, 1.231)},
}
_CHECKS = {
    NVLINK: "nvidia-smi nvlink -s and topo -m show the links; NCCL_DEBUG=INFO shows whether NCCL uses P2P and NVLS.",
    PCIE: "nvidia-smi topo -m shows the paths, and lspci -vv the width of a slot and ACS; NCCL_DEBUG=INFO shows "
    "whether NCCL uses P2P or SHM.",
    NETWORK: "NCCL_DEBUG=INFO shows the network cards (NCCL_IB_HCA chooses them), and GDRDMA where GPUDirect is used; "
    "ibstat shows their rates.",
}
_CHECKS[FEW_NVLINKS] = _CHECKS[NVLINK]


class Share(NamedTuple):
    """A collective's highest busbw in bytes/s with large buffers, the possible limits, and what follows from them."""

    collective: str
    num_bytes: int
    rate: float
    limits: Sequence[Limit]
    verdict: str = UNKNOWN
    reason: str = ""

    def __str__(self) -> str:
        what = "sendrecv" if self.collective == "together" else self.collective
        where = f"{what} at {bytes_words(self.num_bytes)}"
        parts = [f"{self.verdict.capitalize()}: {where} reaches {rate_words(self.rate)}"]
        for limit in self.shown:
            parts.append(f"{percent_words(self.rate / limit.rate)} of the {rate_words(limit.rate)} of {limit.words}")
        if self.shown and self.collective not in MESSAGES:
            band = band_of(self.shown[-1], self.collective)
            machines = "healthy machines" if self.shown[-1].kind in SLOW else "the few known machines"
            parts.append(f"where {machines} reach {100 * band.lowest:.0f} to {100 * band.highest:.0f} %")
        return f"{', '.join(parts)}. {self.reason}".rstrip()

    @property
    def shown(self) -> list[Limit]:
        """The lowest limit that explains the rate and, if the limits do not agree, the highest one."""
        explaining = [limit for limit in self.limits if self.rate <= limit.rate] or self.limits[-1:]
        if self.verdict == UNKNOWN:
            return list(dict.fromkeys([*explaining[:1], *explaining[-1:]]))
        return list(explaining[:1])


def shares(profile: Profile, topology: Topology | None = None) -> list[Share]:
    """Return the share of each collective of NCCL, the worst verdict first.

    `topology` states the NVLinks of a node.
    """
    if profile.backend != "nccl" or profile.protocol.get("clock") == "cpu":  # of calls, which do not wait for the GPU
        return []
    found = [_share(profile, collective, rates, topology) for collective, rates in rates_of(profile).items()]
    return sorted(found, key=lambda one: (LOW, UNKNOWN, EXPECTED).index(one.verdict))


def rates_of(profile: Profile) -> dict[str, dict[int, float]]:
    """Return the busbw by collective and size in bytes/s; that of messages ("together") is their algbw."""
    rates = {collective: profile.busbw(collective) for collective in profile.native}
    messages = [point for point in profile.select("together") if "src" not in point.options and point.num_bytes]
    rates["together"] = {point.num_bytes: point.algbw_bytes_per_s for point in messages}
    return {collective: by_size for collective, by_size in rates.items() if by_size}


def band_of(limit: Limit, collective: str) -> Band:
    """Return what healthy machines reach of such a limit."""
    return HEALTHY[limit.kind].get(collective, HEALTHY[limit.kind][""])


def _share(profile: Profile, collective: str, rates: Mapping[int, float], topology: Topology | None) -> Share:
    least_bytes = max(FULL_BYTES, FULL_BYTES_PER_RANK * profile.num_ranks)
    large = [size for size in rates if size >= least_bytes]
    num_bytes = max(large or rates, key=rates.__getitem__)
    rate = rates[num_bytes]
    known = limits(profile, collective, topology)
    possible = [limit for limit in known if rate <= _ABOVE * limit.most]
    share = Share(collective, num_bytes, rate, possible or known[-1:])
    if not known:
        return share._replace(reason=_nothing_known(profile))
    if not possible:
        return share._replace(reason="That is more than these links carry, so the bytes take others, too.")
    verdicts = {_verdict(limit, collective, rate) for limit in possible}
    kinds = {limit.kind for limit in possible}
    check = _CHECKS[possible[-1].kind]
    if verdicts == {EXPECTED}:
        reason = "Each byte crosses the links once (NVLS, or a tree), so more than 100 % is possible."
        return share._replace(verdict=EXPECTED, reason=reason if rate > possible[-1].rate else "")
    if not large:
        return share._replace(reason=f"Only buffers of {bytes_words(least_bytes)} or more reach the full rate.")
    if kinds <= {NVLINK, FEW_NVLINKS} and rate < min(GPUS[gpu_of(profile.provenance)].slot, _THROUGH_HOST):
        return share._replace(verdict=LOW, reason=f"NVLink seems to be unused, as PCIe carries as much. {check}")
    if verdicts == {LOW}:
        return share._replace(verdict=LOW, reason=check)
    why = "Healthy machines do better, but the difference proves no fault."
    if any(limit.is_guess for limit in possible):
        why = "The log names no network cards."
    elif len(possible) > 1:
        why = "Which of these links there are decides."
    elif not kinds & SLOW.keys() or collective in MESSAGES:
        why = "Too few such tables have been published."
    return share._replace(reason=f"{why} {check}")


def _nothing_known(profile: Profile) -> str:
    """Return why no limit is known."""
    if not profile.num_nodes:
        return "Its ranks are not listed, so their nodes and GPUs are not known; keep the lines that begin with Rank."
    if profile.num_nodes > 1 and stated(profile.provenance).uses_sockets:
        return "The nodes use sockets, and the rate of their interface is not stated."
    return f"The links of {gpu_of(profile.provenance) or 'its GPUs'} are not known."


def _verdict(limit: Limit, collective: str, rate: float) -> str:
    """Return the verdict on a rate, if this is the limit."""
    share = rate / limit.rate
    lowest, highest = band_of(limit, collective)
    if share >= max(_NEAR * lowest, min(highest, 1.0) / 2):
        return EXPECTED
    is_low = share < SLOW.get(limit.kind, 0.0) * lowest
    return LOW if is_low and not limit.is_guess and collective not in MESSAGES else UNKNOWN
