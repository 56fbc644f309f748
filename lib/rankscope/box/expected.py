"""Expected, got, why: compare a GPU box with similar machines of the bank, and explain the gap."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import attrs
import numpy as np

from ..common.units import bytes_words, rate_words
from .fit import LEAST_SIZES
from .machines import PREFIX, is_sick, provenances
from .pcie import GPU_GENERATIONS, pcie_bytes_per_s
from .profile import Profile, busbw_factor

LARGE_BYTES, SMALL_BYTES = 2**24, 2**15  # at least this: bandwidth-bound; at most this: latency-bound
LOW = 0.75  # of the slowest similar machine: below it we look for a cause (healthy machines reach 91 % or more)
_SOCKETS, _LATE, _AS_QUICK = 0.25, 0.6, 0.85  # of bandwidth; of small sizes' speed: far lower, hardly lower
_NEAR = 0.25  # tolerance around 1 / number of network cards
_HOST, _HALF = 40e9, 0.5  # maximum bytes/s through the host's memory; share of similar machines' rate
_SLOW_GPUS, _SLOW_NODES = 0.5, 0.9  # of the median pair
_MOST_OF = 0.6  # share of the slow pairs that include one node
_FALLS, _EVEN = 0.92, 0.9  # at a dip, of the size before; around it, of the peers' best
_SLOW_START = 0.6  # of similar machines' speed at small sizes: 1.7 times their time

NVLINK = {  # bytes/s from one GPU to the others, one way; source: NVIDIA's data sheets
    "V100 SXM2": 150e9,
    "A100 SXM4": 300e9,
    **dict.fromkeys(("H100", "H200", "GH200"), 450e9),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), 900e9),
}
WIRE = NVLINK | {model: pcie_bytes_per_s(generation) for model, generation in GPU_GENERATIONS.items()}
_NO_MODEL = re.compile(r"NVIDIA|TESLA|GEFORCE|QUADRO|\b\d+ ?GB\b|\bHBM\d\w*|BLACKWELL|\b\w+ EDITION")
_FABRIC = re.compile(
    r"(?P<efa>EFA|AWS)|(?P<slingshot>Slingshot|CXI)|(?P<ethernet>GbE|RoCE)|(?P<ib>InfiniBand|\bIB\b)|(?P<opa>Omni)"
)


# Networks as NCCL's log names them, and what else the log states of how ranks communicate. A description of the
# hardware, such as "4 × HDR200 InfiniBand", says nothing about what NCCL uses.
_SOCKETS_STATED = re.compile(r"\bSocket\b")
_NETWORK_STATED = re.compile(r"NET/(?!Socket)\w|\bIB(?:ext\w*)?\b|Libfabric|\bOFI\b|\bUCX\b|FasTrak|\bgIB\b")
_P2P_STATED = re.compile(r"\bP2P\b")
_SHM_STATED = re.compile(r"\bSHM\b")
_GPUDIRECT_ON = re.compile(r"GPU Direct RDMA Enabled")
_GPUDIRECT_OFF = re.compile(r"GPU Direct RDMA Disabled")
_P2P_FORBIDDEN = re.compile(r"NCCL_P2P_DISABLE=1|NCCL_P2P_LEVEL=LOC")
_GPUDIRECT_FORBIDDEN = re.compile(r"NCCL_NET_GDR_LEVEL=(?:0|LOC)")


@attrs.frozen
class Stated:
    """What the log of a machine states about how its ranks communicate; None for what it does not state.

    Rules ask here first. Figures decide only where nothing is stated, so no rule contradicts the log.
    """

    uses_sockets: bool | None
    is_p2p_off: bool | None
    is_gpudirect_off: bool | None


def stated(about: Mapping[str, Any]) -> Stated:
    """Return what a provenance states: its `network` holds what NCCL printed, its `environment` NCCL's variables.

    >>> stated({"network": "NET/Socket, P2P"})
    Stated(uses_sockets=True, is_p2p_off=False, is_gpudirect_off=None)
    """
    network, environment = str(about.get("network", "")), str(about.get("environment", ""))
    has_sockets, has_other = bool(_SOCKETS_STATED.search(network)), bool(_NETWORK_STATED.search(network))
    uses_sockets = has_sockets if has_sockets != has_other else None
    is_p2p_off: bool | None = None
    if _P2P_STATED.search(network):
        is_p2p_off = False
    elif _P2P_FORBIDDEN.search(environment) or (_SHM_STATED.search(network) and gpu_of(about) in NVLINK):
        is_p2p_off = True
    is_gpudirect_off: bool | None = None
    if _GPUDIRECT_ON.search(network):  # NCCL states it for each pair of GPU and card, and distant pairs are "Disabled"
        is_gpudirect_off = False
    elif _GPUDIRECT_OFF.search(network) or _GPUDIRECT_FORBIDDEN.search(environment):
        is_gpudirect_off = True
    return Stated(uses_sockets, is_p2p_off, is_gpudirect_off)


def _decided(is_stated: bool | None, is_seen: bool) -> bool:
    """Return what is stated, or else what the figures suggest."""
    return is_seen if is_stated is None else is_stated


@attrs.frozen
class RuleFinding:
    """One result of a rule: the rule's name, a sentence with the figures, and whether it reports a fault."""

    rule: str
    sentence: str
    is_fault: bool = True

    def __str__(self) -> str:
        return f"{self.sentence} (rule {self.rule})"


class ComparedSize(NamedTuple):
    """A collective at one size: the busbw reached, and that of the slowest and fastest similar machine, in bytes/s."""

    collective: str
    num_bytes: int
    got: float
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.got / self.low

    @property
    def expected(self) -> str:
        low, high = rate_words(self.low), rate_words(self.high)
        return low if low == high else f"{low} to {high}"


def gpu_of(about: Mapping[str, Any]) -> str:
    """Return the GPU model without memory size and vendor; "" if it is not stated or the GPUs differ.

    >>> gpu_of({"gpus": [{"name": "NVIDIA A100-SXM4-80GB"}, {"name": "A100-SXM4-40GB"}]})
    'A100 SXM4'
    """
    names = {_NO_MODEL.sub(" ", one.get("name", "").upper().replace("-", " ")) for one in about.get("gpus", ())}
    models = {" ".join(name.split()) for name in names}
    return models.pop() if len(models) == 1 else ""


@attrs.frozen(slots=False)
class Beside:
    """A profile and similar machines. `is_series`: none has as many nodes, so these have fewer and more."""

    profile: Profile
    peers: Mapping[str, Profile]
    is_series: bool = False

    @property
    def gpu(self) -> str:
        return gpu_of(self.profile.provenance)

    @property
    def names(self) -> str:
        return " and ".join(f"{PREFIX}{name}" if name in provenances() else name for name in self.peers)

    @property
    def wire_bytes_per_s(self) -> float | None:
        """Bytes/s that a GPU can send to the others of its node; None if unknown or if there are several nodes."""
        return WIRE.get(self.gpu) if self.profile.num_nodes == 1 else None

    @property
    def has_network(self) -> bool:
        """Whether there are several nodes."""
        return (self.profile.num_nodes or 1) > 1

    @cached_property
    def rates(self) -> dict[str, dict[int, float]]:
        """The busbw of the native backend in bytes/s, by collective and size."""
        return {
            what: {size: point.busbw_bytes_per_s(self.profile.num_ranks) for size, point in points.items()}
            for what, points in self.profile.native.items()
        }

    @cached_property
    def rows(self) -> tuple[ComparedSize, ...]:
        """What the native backend reached, at the sizes that lie within a similar machine's measured range."""
        found = []
        for what, rates in self.rates.items():
            swept = [peer for peer in self.peers.values() if len(peer.native.get(what, ())) >= LEAST_SIZES]
            curves = [(peer.curve(what), busbw_factor(what, peer.num_ranks)) for peer in swept]
            for size, got in rates.items():
                others = [size * factor / curve.seconds(size) for curve, factor in curves if curve.covers(size)]
                found += [ComparedSize(what, size, got, min(others), max(others))] if others and got > 0 else []
        return tuple(found)

    @cached_property
    def worst(self) -> tuple[float, float, ComparedSize | None]:
        """For the slowest collective: median share at large and at small sizes (nan if none), and its largest row."""
        found: list[tuple[float, float, ComparedSize | None]] = []
        for what in self.rates:
            rows = [row for row in self.rows if row.collective == what]
            large, small = (
                [row.share for row in rows if sign * row.num_bytes >= sign * ends]
                for sign, ends in ((1, LARGE_BYTES), (-1, SMALL_BYTES))
            )
            found += [(float(np.median(large)), float(np.median(small or [np.nan])), rows[-1])] if large else []
        return min(found, key=lambda one: one[0], default=(np.nan, np.nan, None))

    @cached_property
    def stated(self) -> Stated:
        """What the profile states about how its ranks communicate."""
        return stated(self.profile.provenance)

    @cached_property
    def figures(self) -> str:
        """A sentence with the rate reached and the expected one; without the latter if no machine is similar."""
        if row := self.worst[2]:
            where = f"{row.collective} at {bytes_words(row.num_bytes)} reaches {rate_words(row.got)}"
            return f"{where}, {row.share:.0%} of the {row.expected} of {self.names}."
        rates = [(rate, what, size) for what, by_size in self.rates.items() for size, rate in by_size.items()]
        rate, what, size = max(rates, default=(0.0, "", 0))
        return f"{what} reaches {rate_words(rate)} at most, at {bytes_words(size)}." if rates else ""

    @cached_property
    def findings(self) -> tuple[RuleFinding, ...]:
        share, *_ = self.worst
        enough = [RuleFinding("reaches", self.figures, False)] if share >= LOW else []
        causes = [found for rule in CAUSES for found in rule(self)]
        if share < LOW and not causes:
            causes = [
                RuleFinding("unexplained", f"{self.figures} No known cause fits: compare NCCL version and topo -m.")
            ]
        return (*enough, *causes, *slow_start(self), *switch_costs(self), *switch_adds(self))


def beside(profile: Profile, peers: Mapping[str, Profile] | None = None) -> Beside:
    """Return a profile and its peers: by default the healthy bank machines with the same GPUs, ranks and nodes.

    If none has as many nodes, the peers are the next smaller and the next larger cluster of such nodes. A profile is
    never compared with itself, nor with a machine whose network is known to be of another kind.
    """
    about, nodes = profile.provenance, profile.num_nodes or 0
    if peers is not None or not (profile.backend == "nccl" and nodes and gpu_of(about) and profile.native):
        return Beside(profile, peers or {})
    by_nodes: dict[int, dict[str, Profile]] = {}
    for name, other in provenances().items():
        others = int(other.get("num_nodes", 0))
        alike = gpu_of(other) == gpu_of(about) and other["num_ranks"] * nodes == profile.num_ranks * others
        fabrics = {found.lastgroup for one in (about, other) if (found := _FABRIC.search(one.get("network", "")))}
        if alike and not is_sick(other) and (nodes == 1 or len(fabrics) < 2) and not _has(name, profile):
            by_nodes.setdefault(others, {})[name] = _loaded(name)
    fewer, more = [one for one in by_nodes if 1 < one < nodes], [one for one in by_nodes if one > nodes]
    if nodes not in by_nodes and fewer and more and nodes > 1:
        return Beside(profile, by_nodes[max(fewer)] | by_nodes[min(more)], True)
    return Beside(profile, by_nodes.get(nodes, {}))


@cache
def _loaded(name: str) -> Profile:
    return Profile.load(PREFIX + name)


def _has(name: str, profile: Profile) -> bool:
    """Whether a bank machine is the profile itself, or has too few sizes to compare with."""
    points = _loaded(name).points
    return set(profile.points) <= set(points) or all(len(some) < LEAST_SIZES for some in _loaded(name).native.values())


def is_like(profile: Profile, other: Profile) -> bool:
    """Return whether both profiles use NCCL with the same GPU model, ranks and nodes; unstated facts count as equal."""
    sides = [(one.backend, one.num_ranks, one.num_nodes, gpu_of(one.provenance)) for one in (profile, other)]
    return profile.backend == "nccl" and all(a == b or not (a and b) for a, b in zip(*sides, strict=True))


# ---- why: each rule yields a finding only if it applies


def p2p_off(box: Beside) -> Iterator[RuleFinding]:
    """The GPUs of a node communicate through the host's memory."""
    share, _, row = box.worst
    is_seen = bool(box.gpu in NVLINK and box.profile.num_nodes == 1 and share < _HALF and row and row.got < _HOST)
    if _decided(box.stated.is_p2p_off, is_seen) and not share >= LOW:
        is_set = _P2P_FORBIDDEN.search(str(box.profile.provenance.get("environment", "")))
        how = "NCCL_P2P_DISABLE is set: unset it" if is_set else "See if `nvidia-smi topo -m` has PHB or SYS there"
        words = "The GPUs of a node talk through the host's memory: peer-to-peer access is off"
        yield RuleFinding("p2p_off", f"{box.figures} {words}. {how}.")


def plug_in_missing(box: Beside) -> Iterator[RuleFinding]:
    """Nodes communicate through sockets: far less bandwidth, and small sizes are much slower, too.

    A log of one node names sockets wherever there is no other network, although the node's ranks do not use them.
    """
    share, small, _ = box.worst
    is_seen = box.has_network and not box.is_series and share < _SOCKETS and small < _LATE
    if box.profile.num_nodes == 1 or share >= LOW or not _decided(box.stated.uses_sockets, is_seen):
        return
    if box.stated.uses_sockets:
        words = "The log states that nodes talk through sockets (NET/Socket). If their network has a plug-in, load it"
    else:
        words = "Nodes seem to talk through sockets, as without the network's plug-in: see which NCCL_DEBUG=INFO names"
    yield RuleFinding("plug_in_missing", f"{box.figures} {words}.")


def no_gpudirect(box: Beside) -> Iterator[RuleFinding]:
    """Data pass through the host's memory on their way to the network: less bandwidth, slower small sizes."""
    if box.stated.uses_sockets:  # which know no GPUDirect
        return
    share, small, _ = box.worst
    is_seen = box.has_network and not box.is_series and _SOCKETS <= share < LOW and small < _AS_QUICK
    is_off = _decided(box.stated.is_gpudirect_off, is_seen) and not share >= LOW
    if is_off and not any((*plug_in_missing(box), *p2p_off(box))):
        how = "The log states that" if box.stated.is_gpudirect_off else "It looks as if"
        words = "GPUDirect RDMA is off, so bytes pass through the host's memory: load nvidia-peermem"
        yield RuleFinding("no_gpudirect", f"{box.figures} {how} {words}.")


def one_nic(box: Beside) -> Iterator[RuleFinding]:
    """Bandwidth is a half, a quarter or an eighth of the peers', but small sizes are as fast."""
    if box.stated.uses_sockets:  # which are a cause of their own
        return
    share, small, _ = box.worst
    cards = min((2, 4, 8), key=lambda number: abs(np.log(share * number)))
    is_part = share < LOW and abs(share * cards - 1) < _NEAR
    if box.has_network and not box.is_series and is_part and small >= _AS_QUICK:
        words = f"Small sizes are as fast: NCCL seems to use one network card where others use {cards}"
        yield RuleFinding("one_nic", f"{box.figures} {words}. Look at NCCL_IB_HCA and what NCCL_DEBUG=INFO lists.")


def degraded_node(box: Beside) -> Iterator[RuleFinding]:
    """Both smaller and larger clusters of the same nodes reach more."""
    if box.is_series and box.worst[0] < LOW:
        words = "Smaller and larger clusters of such nodes do better: measure the nodes in pairs to find a slow one"
        yield RuleFinding("degraded_node", f"{box.figures} {words}.")


def degraded_pair(box: Beside) -> Iterator[RuleFinding]:
    """Some pairs (of nodes or GPUs) are much slower than the median pair."""
    by_kind: dict[tuple[Any, ...], dict[int, dict[tuple[str, str], float]]] = {}
    for point in box.profile.points:
        options = point.options
        if {"src", "dst"} <= set(options) and options.get("direction") != "through_host":
            kind = point.what, *(options.get(name) for name in ("direction", "method", "both", "in_place"))
            pair = str(options["src"]), str(options["dst"])
            by_kind.setdefault(kind, {}).setdefault(point.num_bytes, {})[pair] = point.algbw_bytes_per_s
    for (what, *_), by_size in by_kind.items():
        size, rates = max(by_size.items())
        median, share = float(np.median(list(rates.values()))), _SLOW_GPUS if what == "transfer" else _SLOW_NODES
        name = {"transfer": "copies", "together": "sends"}.get(what, what)
        slow = {pair: rate for pair, rate in rates.items() if rate < share * median}
        if slow and len(rates) > 2:
            worst = min(slow, key=slow.__getitem__)
            [(node, number)] = Counter(end for pair in slow for end in pair).most_common(1)
            who = f"{node} is in {number} of them" if 1 < len(slow) * _MOST_OF <= number else "none is in most of them"
            where = f"{len(slow)} of {len(rates)} pairs reach less than {share:.0%} of the median {rate_words(median)}"
            least = f"the slowest {rate_words(slow[worst])} ({worst[0]} and {worst[1]})"
            words = f"{where}, {least}, the fastest {rate_words(max(rates.values()))}; {who}"
            yield RuleFinding("degraded_pair", f"{name} of {bytes_words(size)}, pair by pair: {words}.")


def slow_start(box: Beside) -> Iterator[RuleFinding]:
    """Small sizes take much longer than on similar machines, although large sizes reach what they should."""
    if box.is_series or box.worst[0] < LOW:
        return
    slow = []
    for what in box.rates:
        shares = [row.share for row in box.rows if row.collective == what and row.num_bytes <= SMALL_BYTES]
        share = float(np.median(shares)) if shares else 1.0
        if share < _SLOW_START:
            slow.append(f"{what} takes {1 / share:.1f} times as long")
    if slow:
        words = f"At sizes up to {bytes_words(SMALL_BYTES)}, {', '.join(slow)} as on {box.names}, in the median"
        why = "Latency decides there, not bandwidth: compare NCCL's version, the CPU and what else it runs"
        yield RuleFinding("slow_start", f"{words}. {why}.", False)


def switch_costs(box: Beside) -> Iterator[RuleFinding]:
    """Bandwidth drops at a size and recovers later; a fault if similar machines show no such drop."""
    for what, rates in box.rates.items():
        rows = {row.num_bytes: row for row in box.rows if row.collective == what}
        odd = box.profile.curve(what).odd if len(rates) >= LEAST_SIZES else {}
        for before, size in pairwise(size for size in rates if size > SMALL_BYTES):
            even = [one for one, row in rows.items() if row.got >= _EVEN * row.high]
            back = even if rows.get(size) else [one for one in rates if rates[one] > rates[before]]
            later, others = [one for one in back if one > size], ""
            if not later or rates[size] > _FALLS * rates[before] or {before, size} & set(odd):
                continue
            if row := rows.get(size):
                if before not in even or row.got > LOW * row.high:
                    continue
                others = f", where others reach {rate_words(row.high)}"
            falls = f"falls from {rate_words(rates[before])} at {bytes_words(before)} to {rate_words(rates[size])}"
            words = f"{falls} at {bytes_words(size)}{others}; from {bytes_words(later[0])} on it is back"
            cause = "The figures do not tell why"
            if box.profile.backend == "nccl":
                cause = "NCCL seems to switch its algorithm too early: try another NCCL_ALGO, NCCL_PROTO or version"
            yield RuleFinding("switch_costs", f"{what}: busbw {words}. {cause}.", bool(row))


def switch_adds(box: Beside) -> Iterator[RuleFinding]:
    """The busbw of an allreduce exceeds the link rate; this takes a switch that reduces (NVLS)."""
    rates, wire = box.rates.get("allreduce", {}), box.wire_bytes_per_s
    size = max(rates, key=rates.__getitem__, default=0)
    if wire and rates and rates[size] > wire:
        words = f"busbw is {rate_words(rates[size])}, more than the {rate_words(wire)} of a GPU's links"
        why = "This is expected: the switch reduces (NVLS), so each GPU sends its bytes only once"
        yield RuleFinding("switch_adds", f"allreduce at {bytes_words(size)}: {words}. {why}.", False)


CAUSES: Sequence[Callable[[Beside], Iterator[RuleFinding]]] = (
    *(p2p_off, plug_in_missing, no_gpudirect, one_nic, degraded_pair, degraded_node),
)
RULES = ("reaches", "unexplained", *(rule.__name__ for rule in (*CAUSES, slow_start, switch_costs, switch_adds)))
