"""Expected, got, why: compare a GPU box with similar machines of the bank, and explain the gap."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..common.units import bytes_words, percent_words, rate_words
from ..common.words import and_joined
from .curve import Curve
from .fit import LEAST_SIZES
from .machines import PREFIX, is_sick, provenances
from .pcie import GPU_GENERATIONS, pcie_bytes_per_s
from .profile import Profile, busbw_factor

LARGE_BYTES = 2**24  # from this size on, bandwidth decides
SMALL_BYTES = 2**15  # up to this size, latency decides
LOW = 0.75  # of the slowest similar machine: below it there is a cause (healthy machines reach 91 % or more)
_SOCKETS = 0.25  # of similar machines' rate: sockets reach less
_LATE = 0.6  # of similar machines' speed at small sizes: below it, nodes seem to talk through sockets
_AS_QUICK = 0.85  # of similar machines' speed at small sizes: from here on, small sizes count as equally fast
_NEAR = 0.25  # relative tolerance around 1 / number of network cards
_MOST_THROUGH_HOST = 40e9  # bytes/s that copies through the host's memory can reach
_HALF = 0.5  # of similar machines' rate: GPUs that copy through the host's memory reach less
_SLOW_GPUS = 0.5  # of the median pair of GPUs: of healthy ones, some may have one NVLink where others have two
_SLOW_NODES = 0.9  # of the median pair of nodes (in the bank, healthy pairs reach 96 % or more)
_MOST_OF = 0.6  # share of the slow pairs that include one node
_FEW = 1 / 3  # of the pairs of GPUs: of the eight V100s of a DGX-1, 24 of 56 pairs have no NVLink, and are slow
_DROP = 0.92  # of the bandwidth at the size before: at most this is a drop
_EVEN = 0.9  # of the fastest similar machine's bandwidth: before and after a drop, at least this
_SLOW_START = 0.6  # of similar machines' speed at small sizes: 1.7 times their time

NVLINK = {  # bytes/s from one GPU to the others, one way; source: NVIDIA's data sheets
    "V100 SXM2": 150e9,
    "A100 SXM4": 300e9,
    **dict.fromkeys(("H100", "H200", "GH200"), 450e9),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), 900e9),
}
WIRE = NVLINK | {model: pcie_bytes_per_s(generation) for model, generation in GPU_GENERATIONS.items()}
_NO_MODEL = re.compile(r"NVIDIA|TESLA|GEFORCE|QUADRO|\b\d+ ?GB\b|\bHBM\d\w*|BLACKWELL|\b\w+ EDITION")
_FABRIC = re.compile(  # the kinds of network, by words that descriptions of hardware and NCCL's log have for them
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
# NCCL's variables that turn something off; the level LOC, or 0, means "never".
_P2P_FORBIDDEN = re.compile(r"(NCCL_P2P_DISABLE)=1|(NCCL_P2P_LEVEL)=(?:0|LOC)")
_GPUDIRECT_FORBIDDEN = re.compile(r"NCCL_NET_GDR_LEVEL=(?:0|LOC)")


class Stated(msgspec.Struct, frozen=True):
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
    network = str(about.get("network", ""))
    environment = str(about.get("environment", ""))
    has_sockets = bool(_SOCKETS_STATED.search(network))
    has_other = bool(_NETWORK_STATED.search(network))
    uses_sockets: bool | None = None
    if has_sockets != has_other:  # A log that names both does not say which of them carries the data.
        uses_sockets = has_sockets
    # GPUs with NVLink communicate through shared memory only if peer-to-peer access is off.
    has_shared_memory_instead = _SHM_STATED.search(network) and gpu_of(about) in NVLINK
    is_p2p_off: bool | None = None
    if _P2P_STATED.search(network):  # What NCCL used counts, whatever its variables are.
        is_p2p_off = False
    elif _P2P_FORBIDDEN.search(environment) or has_shared_memory_instead:
        is_p2p_off = True
    is_gpudirect_off: bool | None = None
    if _GPUDIRECT_ON.search(network):  # NCCL states it for each pair of GPU and card, and distant pairs are "Disabled"
        is_gpudirect_off = False
    elif _GPUDIRECT_OFF.search(network) or _GPUDIRECT_FORBIDDEN.search(environment):
        is_gpudirect_off = True
    return Stated(uses_sockets, is_p2p_off, is_gpudirect_off)


def _decided(is_stated: bool | None, is_seen: bool) -> bool:
    """Return what is stated or, if that is None, what the figures suggest."""
    return is_seen if is_stated is None else is_stated


class RuleFinding(msgspec.Struct, frozen=True):
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
    rate: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The busbw as a share of that of the slowest similar machine."""
        return self.rate / self.low

    @property
    def expected(self) -> str:
        """The busbw of similar machines in words, from the slowest to the fastest."""
        low = rate_words(self.low)
        high = rate_words(self.high)
        return low if low == high else f"{low} to {high}"


class WorstCollective(NamedTuple):
    """The slowest collective: its median share at large and at small sizes (nan if none), and its largest size.

    Shares are those of `ComparedSize`.
    """

    share: float = math.nan
    small_share: float = math.nan
    row: ComparedSize | None = None


class _PeerCurve(NamedTuple):
    """The times of a collective on a similar machine, and the factor from algbw to busbw."""

    times: Curve
    busbw_factor: float

    def rate(self, num_bytes: int) -> float:
        """Return the busbw in bytes/s."""
        return num_bytes * self.busbw_factor / self.times.seconds(num_bytes)


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


class PeerComparison(msgspec.Struct, frozen=True, dict=True):
    """A profile and similar machines, its peers, by name.

    If `is_series` is true, no similar machine has as many nodes, and the peers have fewer and more. The time of small
    sizes depends on the number of nodes, so rules that compare small sizes do not apply then.
    """

    profile: Profile
    peers: Mapping[str, Profile]
    is_series: bool = False

    @property
    def gpu(self) -> str:
        return gpu_of(self.profile.provenance)

    @property
    def names(self) -> str:
        return and_joined([f"{PREFIX}{name}" if name in provenances() else name for name in self.peers])

    @property
    def wire_bytes_per_s(self) -> float | None:
        """Bytes/s that a GPU can send to the others of its node; None if unknown or if there are several nodes."""
        return WIRE.get(self.gpu) if self.profile.num_nodes == 1 else None

    @property
    def has_network(self) -> bool:
        """Whether there are known to be several nodes."""
        return (self.profile.num_nodes or 1) > 1

    @cached_property
    def rates(self) -> dict[str, dict[int, float]]:
        """The busbw of the native backend in bytes/s, by collective and size."""
        rates = {}
        for collective, points in self.profile.native.items():
            num_ranks = self.profile.num_ranks
            rates[collective] = {size: point.busbw_bytes_per_s(num_ranks) for size, point in points.items()}
        return rates

    @cached_property
    def rows(self) -> tuple[ComparedSize, ...]:
        """What the native backend reached, at the sizes that lie within a similar machine's measured range."""
        rows = []
        for collective, rates in self.rates.items():
            curves = self._peer_curves(collective)
            for num_bytes, rate in rates.items():
                peer_rates = [curve.rate(num_bytes) for curve in curves if curve.times.covers(num_bytes)]
                if peer_rates and rate > 0:  # busbw may be 0 on one rank; it is nan where it has no meaning
                    rows.append(ComparedSize(collective, num_bytes, rate, min(peer_rates), max(peer_rates)))
        return tuple(rows)

    def _peer_curves(self, collective: str) -> list[_PeerCurve]:
        """Return the curves of the similar machines that were measured at enough sizes."""
        curves = []
        for peer in self.peers.values():
            if len(peer.native.get(collective, ())) >= LEAST_SIZES:
                curves.append(_PeerCurve(peer.curve(collective), busbw_factor(collective, peer.num_ranks)))
        return curves

    @cached_property
    def worst(self) -> WorstCollective:
        """The collective with the lowest median share at large sizes; its share is nan if none has large sizes."""
        worst = WorstCollective()
        for collective in self.rates:
            rows = [row for row in self.rows if row.collective == collective]
            large = [row.share for row in rows if row.num_bytes >= LARGE_BYTES]
            small = [row.share for row in rows if row.num_bytes <= SMALL_BYTES]
            if not large:
                continue
            share = float(np.median(large))
            if worst.row is None or share < worst.share:
                small_share = float(np.median(small)) if small else math.nan
                largest = rows[-1]  # sizes ascend in `Profile.native`
                worst = WorstCollective(share, small_share, largest)
        return worst

    @cached_property
    def stated(self) -> Stated:
        """What the profile states about how its ranks communicate."""
        return stated(self.profile.provenance)

    @cached_property
    def figures(self) -> str:
        """A sentence with the rate reached and the expected one; without the latter if no machine is similar."""
        row = self.worst.row
        if row is not None:
            where = f"{row.collective} at {bytes_words(row.num_bytes)} reaches {rate_words(row.rate)}"
            return f"{where}, {percent_words(row.share)} of the {row.expected} of {self.names}."
        rates = []
        for collective, by_size in self.rates.items():
            for num_bytes, rate in by_size.items():
                if rate > 0:  # see `rows`
                    rates.append((rate, collective, num_bytes))
        if not rates:
            return ""
        rate, collective, num_bytes = max(rates)  # by rate
        return f"{collective} reaches {rate_words(rate)} at most, at {bytes_words(num_bytes)}."

    @cached_property
    def findings(self) -> tuple[RuleFinding, ...]:
        """What each rule found. Below `LOW` there is at least one cause, or a sentence that none is known."""
        share = self.worst.share  # nan if there is nothing to compare: then it is neither at least LOW nor below it
        findings = []
        if share >= LOW:
            findings.append(RuleFinding("reaches", self.figures, is_fault=False))
        # At any share: a pair may be slow although the rate is reached. The other rules test the share themselves.
        causes = [finding for rule in CAUSES for finding in rule(self)]
        if share < LOW and not any(cause.is_fault for cause in causes):  # pairs that may be as built explain nothing
            words = f"{self.figures} No known cause fits; compare the NCCL versions and the output of topo -m."
            causes.append(RuleFinding("unexplained", words))
        return (*findings, *causes, *slow_start(self), *switch_costs(self), *switch_adds(self))


def compare_with_peers(profile: Profile, peers: Mapping[str, Profile] | None = None) -> PeerComparison:
    """Return a profile and its peers: by default the healthy bank machines with the same GPUs, ranks and nodes.

    If none has as many nodes, the peers are the next smaller and the next larger cluster of such nodes. A profile is
    never compared with itself, nor with a machine whose network is known to be of another kind.
    """
    num_nodes = profile.num_nodes or 0
    if peers is not None:
        return PeerComparison(profile, peers)
    is_stated = num_nodes > 0 and gpu_of(profile.provenance) != ""
    if profile.backend != "nccl" or not is_stated or not profile.native:  # no machine of the bank can be compared
        return PeerComparison(profile, peers={})
    by_nodes: dict[int, dict[str, Profile]] = {}
    for name, about in provenances().items():
        if _is_peer(profile, name, about):
            by_nodes.setdefault(int(about.get("num_nodes", 0)), {})[name] = _loaded(name)
    smaller = [number for number in by_nodes if 1 < number < num_nodes]  # a single node has no network
    larger = [number for number in by_nodes if number > num_nodes]
    if num_nodes not in by_nodes and smaller and larger:
        return PeerComparison(profile, by_nodes[max(smaller)] | by_nodes[min(larger)], is_series=True)
    return PeerComparison(profile, by_nodes.get(num_nodes, {}))


def _is_peer(profile: Profile, name: str, about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is another, healthy one with the same GPUs, ranks per node and kind of network.

    `about` is its provenance. A kind of network that is not known counts as the same, and none matters on one node. A
    machine that was measured at too few sizes for a curve is no peer.
    """
    num_nodes = profile.num_nodes or 0
    has_same_gpus = gpu_of(about) == gpu_of(profile.provenance)
    # Compared without a division, because a number of nodes that is not stated is 0.
    has_same_ranks_per_node = about["num_ranks"] * num_nodes == profile.num_ranks * int(about.get("num_nodes", 0))
    if not has_same_gpus or not has_same_ranks_per_node or is_sick(about):
        return False
    fabrics = {_fabric(profile.provenance), _fabric(about)} - {""}
    if num_nodes > 1 and len(fabrics) > 1:
        return False
    machine = _loaded(name)  # only now, because it takes longer than the provenance
    is_profile_itself = set(profile.points) <= set(machine.points)  # or a part of it, such as one of its logs
    has_enough_sizes = any(len(points) >= LEAST_SIZES for points in machine.native.values())
    return has_enough_sizes and not is_profile_itself


def _fabric(about: Mapping[str, Any]) -> str:
    """Return the kind of network that a provenance names; "" if it names none that is known."""
    fabric = _FABRIC.search(about.get("network", ""))
    return str(fabric.lastgroup) if fabric else ""


@cache
def _loaded(name: str) -> Profile:
    return Profile.load(PREFIX + name)


def is_like(profile: Profile, other: Profile) -> bool:
    """Return whether both profiles use NCCL with the same GPU model, ranks and nodes; unstated facts count as equal."""
    if profile.backend != "nccl":
        return False
    pairs = (
        (profile.backend, other.backend),
        (profile.num_ranks, other.num_ranks),
        (profile.num_nodes, other.num_nodes),
        (gpu_of(profile.provenance), gpu_of(other.provenance)),
    )
    for own_fact, other_fact in pairs:
        are_stated = bool(own_fact) and bool(other_fact)
        if are_stated and own_fact != other_fact:
            return False
    return True


# ---- why: each rule yields a finding only if it applies


def _is_high(share: float) -> bool:
    """Return whether a share is known (not nan) and so high that nothing needs a cause."""
    return not math.isnan(share) and share >= LOW


def _after_figures(box: PeerComparison, words: str) -> str:
    """Return words after the machine's figures; a rule may apply to what the log states without any figures."""
    return f"{box.figures} {words}" if box.figures else words


def p2p_off(box: PeerComparison) -> Iterator[RuleFinding]:
    """The GPUs of a node communicate through the host's memory."""
    worst = box.worst
    # Between nodes, the network may be what limits the rate, so figures show it only on one node.
    is_seen = (
        box.gpu in NVLINK
        and box.profile.num_nodes == 1
        and worst.share < _HALF
        and worst.row is not None
        and worst.row.rate < _MOST_THROUGH_HOST
    )
    if _is_high(worst.share) or not _decided(box.stated.is_p2p_off, is_seen):
        return
    forbidden = _P2P_FORBIDDEN.search(str(box.profile.provenance.get("environment", "")))
    how = "Check whether `nvidia-smi topo -m` shows PHB or SYS between these GPUs"
    if forbidden is not None:
        variable = forbidden[1] or forbidden[2]
        how = f"Unset {variable}"
    words = "The GPUs of a node communicate through host memory, because peer-to-peer access is off"
    if not box.stated.is_p2p_off:
        words = "The GPUs of a node seem to communicate through host memory, as if peer-to-peer access were off"
    yield RuleFinding("p2p_off", _after_figures(box, f"{words}. {how}."))


def plug_in_missing(box: PeerComparison) -> Iterator[RuleFinding]:
    """Nodes communicate through sockets: far less bandwidth, and small sizes are much slower, too.

    A log of one node names sockets wherever there is no other network, although the node's ranks do not use them. So
    where the number of nodes is unknown, the rule does not apply.
    """
    worst = box.worst
    if not box.has_network or _is_high(worst.share):
        return
    is_seen = not box.is_series and worst.share < _SOCKETS and worst.small_share < _LATE
    if not _decided(box.stated.uses_sockets, is_seen):
        return
    if box.stated.uses_sockets:
        words = "The log states that nodes use sockets (NET/Socket). If their network has a plug-in, load it"
    else:
        words = "Nodes seem to communicate through sockets, as if the network's plug-in were missing"
        words += ". NCCL_DEBUG=INFO prints what NCCL uses"
    yield RuleFinding("plug_in_missing", _after_figures(box, f"{words}."))


def no_gpudirect(box: PeerComparison) -> Iterator[RuleFinding]:
    """Data pass through the host's memory on their way to the network: less bandwidth, slower small sizes.

    A log of one node may state it, too, although the node's ranks do not use the network.
    """
    if not box.has_network or box.stated.uses_sockets:  # sockets have no GPUDirect
        return
    worst = box.worst
    is_seen = not box.is_series and _SOCKETS <= worst.share < LOW and worst.small_share < _AS_QUICK
    is_off = _decided(box.stated.is_gpudirect_off, is_seen) and not _is_high(worst.share)
    stronger_causes = [*plug_in_missing(box), *p2p_off(box)]  # which would lower the bandwidth, too
    if is_off and not stronger_causes:
        how = "The log states that" if box.stated.is_gpudirect_off else "It looks as if"
        words = "GPUDirect RDMA is off, so bytes pass through the host's memory. Load nvidia-peermem"
        yield RuleFinding("no_gpudirect", _after_figures(box, f"{how} {words}."))


def one_nic(box: PeerComparison) -> Iterator[RuleFinding]:
    """Bandwidth is a half, a quarter or an eighth of the peers', but small sizes are as fast."""
    if box.stated.uses_sockets:  # which are a cause of their own
        return
    share = box.worst.share
    # With one card of 2, 4 or 8, the share would be 1/2, 1/4 or 1/8: find the nearest of these, by ratio.
    cards = min((2, 4, 8), key=lambda number: abs(np.log(share * number)))
    is_part = abs(share * cards - 1) < _NEAR  # at most 1.25 / 2, which is below LOW
    if box.has_network and not box.is_series and is_part and box.worst.small_share >= _AS_QUICK:
        words = f"Small sizes are as fast as on others, so NCCL seems to use one network card where they use {cards}"
        yield RuleFinding(
            "one_nic", f"{box.figures} {words}. Check NCCL_IB_HCA and the cards that NCCL_DEBUG=INFO lists."
        )


def degraded_node(box: PeerComparison) -> Iterator[RuleFinding]:
    """Both smaller and larger clusters of the same nodes reach more."""
    if box.is_series and box.worst.share < LOW:
        words = "Smaller and larger clusters of such nodes do better; measure the nodes in pairs to find a slow one"
        yield RuleFinding("degraded_node", f"{box.figures} {words}.")


_Pair = tuple[str, str]  # of nodes or GPUs: the sender and the receiver


def degraded_pair(box: PeerComparison) -> Iterator[RuleFinding]:
    """At the largest size, where bandwidth decides, some pairs (of nodes or GPUs) are much slower than the median."""
    for operation, by_size in _pair_rates(box.profile):
        num_bytes = max(by_size)
        rates = by_size[num_bytes]
        share = _SLOW_NODES
        name = operation
        if operation == "transfer":  # between GPUs of one node
            share = _SLOW_GPUS
            name = "copies"
        elif operation == "together":  # nccl-tests' sendrecv: the two ends send to each other at the same time
            name = "sends"
        median = float(np.median(list(rates.values())))
        slow = {pair: rate for pair, rate in rates.items() if rate < share * median}
        if not slow or len(rates) < 3:  # the median of two pairs is typical of neither
            continue
        worst = min(slow, key=slow.__getitem__)
        typical = f"{percent_words(share)} of the median {rate_words(median)}"
        where = f"{len(slow)} of {len(rates)} pairs reach less than {typical}"
        least = f"the slowest {rate_words(slow[worst])} ({worst[0]} and {worst[1]})"
        words = f"{where}, {least}, the fastest {rate_words(max(rates.values()))}"
        num_pairs = Counter(chain.from_iterable(slow))  # by the node or GPU that is an end of them
        most = max(num_pairs.values())
        has_common_end = most >= _MOST_OF * len(slow)
        if not has_common_end:
            words += "; none is in most of them"
        elif len(slow) > 1:  # the ends of a single slow pair are named already
            ends = [end for end, number in num_pairs.items() if number == most]
            verb = "is" if len(ends) == 1 else "are"
            words += f"; {and_joined(ends)} {verb} in {most} of them"
        may_be_as_built = operation == "transfer" and len(slow) > _FEW * len(rates) and not has_common_end
        sentence = f"{name} of {bytes_words(num_bytes)}, pair by pair: {words}."
        if may_be_as_built:
            sentence += " So many may have slower links by design: nvidia-smi topo -m shows the links."
        yield RuleFinding("degraded_pair", sentence, is_fault=not may_be_as_built)


def _pair_rates(profile: Profile) -> Iterator[tuple[str, dict[int, dict[_Pair, float]]]]:
    """Yield, for each kind of measurement of pairs, its operation and its bytes/s by size and pair.

    Measurements are of the same kind if the operation and the options that are not of the pair agree. Copies between
    GPUs through the host's memory are left out, because they do not measure the link of the pair.
    """
    by_kind: dict[tuple[Any, ...], dict[int, dict[_Pair, float]]] = {}
    for point in profile.points:
        options = point.options
        if "src" not in options or "dst" not in options or options.get("direction") == "through_host":
            continue
        kind = (point.what, *(options.get(name) for name in ("direction", "method", "both", "in_place")))
        by_size = by_kind.setdefault(kind, {})
        pair = str(options["src"]), str(options["dst"])
        by_size.setdefault(point.num_bytes, {})[pair] = point.algbw_bytes_per_s
    for (operation, *_), by_size in by_kind.items():
        yield operation, by_size


def slow_start(box: PeerComparison) -> Iterator[RuleFinding]:
    """Small sizes take much longer than on similar machines, although large sizes reach what they should."""
    if box.is_series or box.worst.share < LOW:  # nan, if no large sizes were compared, is not below it
        return
    slow = []
    for collective in box.rates:
        rows = [row for row in box.rows if row.collective == collective and row.num_bytes <= SMALL_BYTES]
        if not rows:
            continue
        share = float(np.median([row.share for row in rows]))
        if share < _SLOW_START:
            slow.append(f"{collective} takes {1 / share:.1f} times as long")
    if slow:
        words = f"In the median of sizes up to {bytes_words(SMALL_BYTES)}, {', '.join(slow)} as on {box.names}"
        why = "Latency decides there, not bandwidth; compare NCCL's version, the CPU and what else runs on it"
        yield RuleFinding("slow_start", f"{words}. {why}.", is_fault=False)


def switch_costs(box: PeerComparison) -> Iterator[RuleFinding]:
    """Bandwidth drops at a size and recovers later; a fault if similar machines show no such drop."""
    for collective, rates in box.rates.items():
        rows = {row.num_bytes: row for row in box.rows if row.collective == collective}
        # Sizes at which the machine keeps up with the fastest similar one.
        even = [size for size, row in rows.items() if row.rate >= _EVEN * row.high]
        odd: Mapping[int, float] = {}
        if len(rates) >= LEAST_SIZES:  # otherwise there is no curve
            odd = box.profile.curve(collective).odd
        for before, size in pairwise(size for size in rates if size > SMALL_BYTES):
            if rates[size] > _DROP * rates[before]:
                continue
            if before in odd or size in odd:  # one disturbed measurement, not a switch
                continue
            row = rows.get(size)
            if row is None:
                # No similar machine was measured at this size, so only the machine's own rates show a drop.
                recovered = [other for other in rates if rates[other] > rates[before]]
                comparison = ""
            else:
                # Of the fastest similar machine, as in `even`: the slowest one may have the same drop.
                is_drop_of_this_machine = before in even and row.rate <= LOW * row.high
                if not is_drop_of_this_machine:
                    continue
                recovered = even
                comparison = f", where others reach {rate_words(row.high)}"
            later = [other for other in recovered if other > size]
            if not later:
                continue
            falls = f"falls from {rate_words(rates[before])} at {bytes_words(before)} to {rate_words(rates[size])}"
            words = f"{falls} at {bytes_words(size)}{comparison}; it recovers at {bytes_words(min(later))}"
            cause = "The measurements do not show why"
            if box.profile.backend == "nccl":
                cause = "NCCL seems to switch its algorithm too early: try another NCCL_ALGO, NCCL_PROTO or version"
            yield RuleFinding("switch_costs", f"{collective}: busbw {words}. {cause}.", is_fault=row is not None)


def switch_adds(box: PeerComparison) -> Iterator[RuleFinding]:
    """The busbw of an allreduce exceeds the link rate; this takes a switch that reduces (NVLS)."""
    rates = box.rates.get("allreduce", {})
    wire = box.wire_bytes_per_s
    if not rates or not wire:
        return
    size = max(rates, key=rates.__getitem__)
    if rates[size] > wire:
        words = f"busbw is {rate_words(rates[size])}, more than the {rate_words(wire)} of a GPU's links"
        why = "This is expected: the switch reduces (NVLS), so each GPU sends its bytes only once"
        yield RuleFinding("switch_adds", f"allreduce at {bytes_words(size)}: {words}. {why}.", is_fault=False)


CAUSES: Sequence[Callable[[PeerComparison], Iterator[RuleFinding]]] = (
    p2p_off,
    plug_in_missing,
    no_gpudirect,
    one_nic,
    degraded_pair,
    degraded_node,
)
