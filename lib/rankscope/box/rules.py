"""What limits a machine: rules over what its log states, what its hardware carries and what similar machines reach.

Each rule is a function that yields sentences where it applies; `FAULTS` and `REMARKS` are the table of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, pairwise, takewhile

import msgspec
import numpy as np

from ..common.units import bytes_words, percent_words, rate_words
from ..common.words import and_joined, count_of
from .expected import LOW, SMALL_BYTES, Box
from .profile import NATIVE

FAULT = "fault: "  # how a note of a log's reader begins that states a fault
_SOCKETS = 0.25  # of similar machines' rate: sockets reach less
_LATE = 0.6  # of similar machines' speed at small sizes: below it, nodes seem to talk through sockets
_ROUNDED = 1.03  # a factor: busbw may exceed a link's stated rate by this much
_THROUGH_HOST = 40e9  # bytes/s that copies through the host's memory can reach
_FINE = 0.6  # of what the hardware carries: rings of healthy machines reach 0.6 to 0.95, two GPUs sometimes less
_FULL_BYTES = 2**27  # from this size on, and from _FULL_BYTES_PER_RANK for each rank, machines reach their full rate
_FULL_BYTES_PER_RANK = 2**22
_SLOWEST_CARD, _FASTEST_CARD = 12.5e9, 100e9  # bytes/s of network cards of machines with several GPUs
_SLOW_GPUS = 0.5  # of the median pair of GPUs: of healthy ones, some may have one NVLink where others have two
_SLOW_NODES = 0.9  # of the median pair of nodes (in the bank, healthy pairs reach 96 % or more)
_MOST_OF = 0.6  # share of the slow pairs that include one node
_FEW = 1 / 3  # of the pairs of GPUs: of the eight V100s of a DGX-1, 24 of 56 pairs have no NVLink, and are slow
_DROP = 0.92  # of the bandwidth at the size before: at most this is a drop
_FALLS_TO = 0.7  # of the bandwidth before: at most this is a drop if bandwidth does not recover
_SAME_TIME = 1.1  # times of several sizes within this factor do not depend on the size
_SLOW_START = 0.6  # of similar machines' speed at small sizes: 1.7 times their time


class Finding(msgspec.Struct, frozen=True):
    """One result of a rule: the rule's name, a sentence with the figures, and whether it reports a fault."""

    rule: str
    sentence: str
    is_fault: bool

    def __str__(self) -> str:
        return f"{self.sentence} (rule {self.rule})"


def findings(box: Box) -> list[Finding]:
    """Return what the rules find: faults, and what was reached; then remarks."""
    found = [Finding(rule.__name__, sentence, True) for rule in FAULTS for sentence in rule(box)]
    found += _result(box, has_fault=bool(found))
    return found + [Finding(rule.__name__, sentence, False) for rule in REMARKS for sentence in rule(box)]


def _result(box: Box, has_fault: bool) -> Iterator[Finding]:
    """Yield whether the rate is as expected, if anything says what to expect; a fault explains a low one."""
    of_limit = f"That is {percent_words(box.share_of_limit)} of the {rate_words(box.limit)} that its links carry."
    algorithms = {point.options.get("algorithm", NATIVE) for point in box.profile.points}
    if box.worst.share >= LOW:
        yield Finding("reaches", _figures(box), False)
    elif has_fault or not box.best.rate:
        return
    elif box.worst.row is not None:
        words = "No known cause fits; compare the versions of NCCL, the network cards that NCCL uses and topo -m"
        yield Finding("unexplained", f"{_figures(box)} {words}.", True)
    elif _is_high(box):
        yield Finding("fine", f"{_figures(box)} {of_limit} Healthy machines reach 60 % or more.", False)
    elif box.profile.backend == "nccl" or algorithms == {NATIVE}:  # several algorithms are compared with each other
        reason = "the bank has no measurement of a similar one" if box.hardware.slot else "its GPUs are not known"
        words = f"There is nothing to compare this machine with, because {reason}. {_figures(box)}"
        if box.share_of_limit and box.num_nodes == 1:
            words += f" {of_limit}"
        if box.ranks_per_node > 3 and _is_full(box) and box.num_nodes > 1 and box.best.rate <= box.hardware.card:
            card = f"one network card of {box.hardware.card * 8e-9:g} Gbit/s"
            words += f" For the {box.ranks_per_node} GPUs of a node, that is no more than {card} carries;"
            words += " NCCL_DEBUG=INFO lists the cards that NCCL uses."
        yield Finding("nothing_to_compare", words, False)


def _figures(box: Box) -> str:
    """Return a sentence with the rate reached and the expected one; without the latter if no machine is similar."""
    row = box.worst.row
    if row is None:
        where = f"{box.best.collective} at {bytes_words(box.best.num_bytes)}"
        return f"{where} reaches {rate_words(box.best.rate)}." if box.best.rate else ""
    low, high = rate_words(row.low), rate_words(row.high)
    expected = low if low == high else f"{low} to {high}"
    where = f"{row.collective} at {bytes_words(row.num_bytes)} reaches {rate_words(row.rate)}"
    return f"{where}, {percent_words(row.share)} of the {expected} of {and_joined(list(box.peers))}."


def _is_high(box: Box) -> bool:
    """Return whether the rate needs no cause."""
    return box.worst.share >= LOW or (box.worst.row is None and box.share_of_limit >= _FINE)


def _is_full(box: Box) -> bool:
    """Return whether the best rate is of a size at which a healthy machine reaches its full rate."""
    least_bytes = max(_FULL_BYTES, _FULL_BYTES_PER_RANK * box.profile.num_ranks)
    return box.best.is_of_links and box.best.num_bytes >= least_bytes


# ---- faults


def stated_fault(box: Box) -> Iterator[str]:
    """The log itself shows that the figures are not those of a healthy run, such as one of ranks that share a GPU."""
    for note in str(box.profile.provenance.get("source", {}).get("notes", "")).split("; "):
        if note.startswith(FAULT):
            yield f"{note[len(FAULT)].upper()}{note[len(FAULT) + 1 :]}."


def impossible(box: Box) -> Iterator[str]:
    """The bus bandwidth is more than the links carry, so the figures or the stated GPUs are wrong."""
    for collective, rates in box.rates.items():
        most = box.hardware.nvlink * (2 if collective == "allreduce" and _can_switch_add(box) else 1)
        rate = max(rates.values())
        if box.num_nodes == 1 and 0 < most < rate / _ROUNDED:
            yield f"{collective} reaches {rate_words(rate)}, and NVLink carries {rate_words(most)}: the log is wrong."


def _can_switch_add(box: Box) -> bool:
    return box.hardware.switch_adds and box.stated.has_nvls is not False


def p2p_off(box: Box) -> Iterator[str]:
    """The GPUs of a node communicate through the host's memory."""
    is_off = box.stated.is_p2p_off
    if box.ranks_per_node == 1 or _is_high(box) or not (_is_at_pcie_rate(box) if is_off is None else is_off):
        return
    how = "Check whether `nvidia-smi topo -m` shows PHB or SYS between these GPUs"
    if box.stated.p2p_variable:
        how = f"Unset {box.stated.p2p_variable}"
    words = "communicate through host memory, because peer-to-peer access is off"
    if not is_off:
        words = "seem to communicate through host memory, as if peer-to-peer access were off"
    yield f"The GPUs of a node {words}. {how}. {_figures(box)}".rstrip()


def _is_at_pcie_rate(box: Box) -> bool:
    """Return whether GPUs of one node that have NVLink reach no more than PCIe or the host's memory carry."""
    has_nvlink = box.num_nodes == 1 and box.hardware.nvlink > 0
    return has_nvlink and box.best.is_of_links and box.best.rate < min(box.hardware.slot, _THROUGH_HOST)


def nvlink_unused(box: Box) -> Iterator[str]:
    """Peer-to-peer access is on, but at the rate of PCIe."""
    if box.stated.is_p2p_off is False and _is_at_pcie_rate(box):
        words = f"reach only what PCIe carries, and NVLink carries {rate_words(box.hardware.nvlink)}"
        yield f"The GPUs of a node use peer-to-peer access, but {words}. See nvidia-smi nvlink -s. {_figures(box)}"


def plug_in_missing(box: Box) -> Iterator[str]:
    """Nodes communicate through sockets: far less bandwidth, and small sizes are much slower, too.

    A log of one node names sockets wherever there is no other network, although the node's ranks do not use them. So
    where the number of nodes is unknown, the rule does not apply.
    """
    is_stated = box.stated.uses_sockets
    is_seen = not box.is_series and box.worst.share < _SOCKETS and box.worst.small_share < _LATE
    if box.num_nodes < 2 or _is_high(box) or not (is_seen if is_stated is None else is_stated):
        return
    words = "Nodes seem to communicate through sockets; NCCL_DEBUG=INFO prints what NCCL uses"
    if is_stated:
        words = "The log states that nodes use sockets (NET/Socket)"
    yield f"{words}. If their network has a plug-in, load it. {_figures(box)}".rstrip()


def no_gpudirect(box: Box) -> Iterator[str]:
    """Data pass through the host's memory on their way to the network.

    A log of one node may state it, too, although the node's ranks do not use the network.
    """
    is_weaker = any(plug_in_missing(box)) or any(p2p_off(box))  # than these, which lower the bandwidth, too
    if box.num_nodes > 1 and box.stated.is_gpudirect_off and not _is_high(box) and not is_weaker:
        words = "The log states that GPUDirect RDMA is off, so bytes pass through the host's memory"
        yield f"{words}. Load nvidia-peermem. {_figures(box)}".rstrip()


def few_cards(box: Box) -> Iterator[str]:
    """The network cards that the log names are one for several GPUs, or carry far more than was reached.

    Where their rate is not stated, that of the slowest cards of such machines decides.
    """
    number = len(box.stated.cards)
    stated_rate = box.stated.cards_bytes_per_s
    most = _ROUNDED * (stated_rate or _FASTEST_CARD)
    if number > 1:
        most = _FINE * (stated_rate or _SLOWEST_CARD * number) if _is_full(box) else 0.0
    if box.num_nodes < 2 or box.ranks_per_node < 2 or not 0 < box.best.rate <= most * bool(number):
        return
    if box.stated.uses_sockets or box.worst.share >= LOW:
        return
    words = f"For the {box.ranks_per_node} GPUs of a node, NCCL uses {count_of(number, 'network card')}"
    carried = stated_rate or number * box.hardware.card
    if carried:
        each = f"{carried / number * 8e-9:g} Gbit/s"
        words += f", and reaches {percent_words(box.best.rate / carried)} of what {number} of {each} carry"
    yield f"{words}. Check NCCL_IB_HCA ({', '.join(box.stated.cards)}) and the rate of each card. {_figures(box)}"


def degraded_pair(box: Box) -> Iterator[str]:
    """At the largest size, where bandwidth decides, some pairs (of nodes or GPUs) are much slower than the median.

    Copies between GPUs through the host's memory do not measure the link of a pair.
    """
    pairs = [point for point in box.profile.points if "src" in point.options and "dst" in point.options]
    num_bytes = max((point.num_bytes for point in pairs), default=0)
    kinds: dict[tuple[str, str], dict[tuple[str, str], float]] = {}  # bytes/s of each pair, by kind of measurement
    for point in pairs:
        options = dict(point.options)
        ends = str(options.pop("src")), str(options.pop("dst"))
        if point.num_bytes == num_bytes and options.get("direction") != "through_host":
            kinds.setdefault((point.what, str(options)), {})[ends] = point.algbw_bytes_per_s
    for (what, _), rates in kinds.items():
        share = _SLOW_GPUS if what == "transfer" else _SLOW_NODES
        median = float(np.median(list(rates.values())))
        slow = sorted((rate, ends) for ends, rate in rates.items() if rate < share * median)
        if not slow or len(rates) < 3:  # the median of two pairs is typical of neither
            continue
        end, number = Counter(chain.from_iterable(ends for _, ends in slow)).most_common(1)[0]
        has_common_end = len(slow) > 1 and number >= _MOST_OF * len(slow)
        if what == "transfer" and len(slow) > _FEW * len(rates) and not has_common_end:  # may be as built
            continue
        words = f"{len(slow)} of {len(rates)} pairs reach less than {percent_words(share)} of the median"
        words += f" {rate_words(median)}, the slowest {rate_words(slow[0][0])} ({' and '.join(slow[0][1])})"
        if has_common_end:
            words += f"; {end} is in {number} of them"
        yield f"{what} of {bytes_words(num_bytes)}, pair by pair: {words}."


def degraded_node(box: Box) -> Iterator[str]:
    """Both smaller and larger clusters of the same nodes reach more."""
    if box.is_series and box.worst.share < LOW:
        words = "Smaller and larger clusters of such nodes do better; measure the nodes in pairs to find a slow one"
        yield f"{words}. {_figures(box)}"


# ---- remarks


def dips(box: Box) -> Iterator[str]:
    """Bandwidth drops at a size above the latency range, unless similar machines show the same."""
    rows = {(row.collective, row.num_bytes): row for row in box.rows}
    for collective, rates in box.rates.items():
        for before, *low in _drops({size: rate for size, rate in rates.items() if size > SMALL_BYTES}):
            row = rows.get((collective, low[0]))
            recovers = low[-1] < max(rates)
            is_small = not recovers and rates[low[-1]] > _FALLS_TO * rates[before]
            if is_small or (row and row.rate > LOW * row.high):
                continue
            fall = f"from {rate_words(rates[before])} at {bytes_words(before)} to {rate_words(rates[low[0]])}"
            words = f"{collective}: busbw falls {fall} at {bytes_words(low[0])}"
            words += ", and recovers later" if recovers else ", and does not recover"
            times_s = {size: box.profile.native[collective][size].median_s for size in low}
            equal = [size for size in low if times_s[size] <= _SAME_TIME * times_s[low[0]]]
            if len(equal) > 2:
                words += f". Sizes up to {bytes_words(equal[-1])} take as long, which is a stall, such as a timeout"
            elif row:
                words += (
                    f". Similar machines reach {rate_words(row.high)}; try another NCCL_ALGO, NCCL_PROTO or version"
                )
            yield f"{words}."


def _drops(rates: dict[int, float]) -> Iterator[list[int]]:
    """Yield the size before each drop of the rate, and then the sizes in a row that have less than it."""
    sizes = list(rates)
    last = 0  # size of the drop before
    for before, size in pairwise(sizes):
        if size > last and rates[size] <= _DROP * rates[before]:
            low = list(takewhile(lambda other: rates[other] < rates[before], sizes[sizes.index(size) :]))  # noqa: B023
            last = low[-1]
            yield [before, *low]


def slow_start(box: Box) -> Iterator[str]:
    """Small sizes take much longer than on similar machines, although large sizes reach what they should."""
    if box.is_series or not box.worst.share >= LOW:  # nan, if no large sizes were compared
        return
    shares = {collective: box.small_share(collective) for collective in box.rates}
    slow = [f"{what} takes {1 / share:.1f} times as long" for what, share in shares.items() if share < _SLOW_START]
    if slow:
        words = f"In the median of sizes up to {bytes_words(SMALL_BYTES)}, {', '.join(slow)}"
        yield f"{words} as on {and_joined(list(box.peers))}. Compare NCCL's version, the CPU and what else runs on it."


def switch_adds(box: Box) -> Iterator[str]:
    """The busbw of an allreduce exceeds the link rate; this takes a switch that reduces (NVLS)."""
    rate = max(box.rates.get("allreduce", {0: 0.0}).values())
    nvlink = box.hardware.nvlink
    if box.num_nodes == 1 and _can_switch_add(box) and nvlink < rate <= 2 * nvlink:
        words = f"allreduce reaches {rate_words(rate)}, more than the {rate_words(nvlink)} of a GPU's NVLink"
        yield f"{words}. This is expected: the switch reduces (NVLS), so each GPU sends its bytes only once."


Rule = Callable[[Box], Iterator[str]]
FAULTS: tuple[Rule, ...] = (
    stated_fault,
    impossible,
    p2p_off,
    nvlink_unused,
    plug_in_missing,
    no_gpudirect,
    few_cards,
    degraded_pair,
    degraded_node,
)
REMARKS: tuple[Rule, ...] = (dips, slow_start, switch_adds)
