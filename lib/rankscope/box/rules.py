"""What limits a machine: rules over what its log states, what its hardware carries and what similar machines reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise

import msgspec
import numpy as np

from ..common.units import bytes_words, percent_words, rate_words
from ..common.words import and_joined, count_of
from .expected import LOW, SMALL_BYTES, Box
from .logs.table import FAULT, SLOW
from .points import NATIVE

_SOCKETS = 0.25  # of similar machines' rate: sockets reach less
_LATE = 0.6  # of similar machines' speed at small sizes: below it, nodes seem to talk through sockets
_ROUNDED = 1.03  # a factor: busbw may exceed a link's stated rate by this much
_THROUGH_HOST = 40e9  # bytes/s that copies through the host's memory can reach
_FINE = 0.6  # of what the hardware carries: rings of healthy machines reach 0.6 to 0.95, two GPUs sometimes less
_FULL_BYTES = 2**27  # from this size on, and from _FULL_BYTES_PER_RANK for each rank, machines reach their full rate
_FULL_BYTES_PER_RANK = 2**22
_SLOWEST_CARD = 12.5e9  # bytes/s of network cards of machines with several GPUs
_FASTEST_CARD = 100e9
_SLOW_GPUS = 0.5  # of the median pair of GPUs: of healthy ones, some may have one NVLink where others have two
_SLOW_NODES = 0.9  # of the median pair of nodes (in the bank, healthy pairs reach 96 % or more)
_MOST_OF = 0.6  # share of the slow pairs that include one node
_FEW = 1 / 3  # of the pairs of GPUs: of the eight V100s of a DGX-1, 24 of 56 pairs have no NVLink, and are slow
_DROP = 0.92  # of the bandwidth at the size before: at most this is a drop
_FALLS_TO = 0.7  # of the bandwidth before: at most this is a drop if bandwidth does not recover
_SAME_TIME = 0.1  # relative difference: so close to each other, times do not depend on the size
_STALL = 5  # times the time of the size before
_SLOW_START = 0.6  # of similar machines' speed at small sizes: 1.7 times their time


class Finding(msgspec.Struct, frozen=True):
    """One result of a rule: the rule's name, a sentence with the figures, and whether it reports a fault."""

    rule: str
    sentence: str
    is_fault: bool = False

    def __str__(self) -> str:
        return f"{self.sentence} (rule {self.rule})"


Rows = tuple[tuple[str, object, str], ...]  # the name of a rule, whether it applies, and what it says


def findings(box: Box) -> list[Finding]:
    """Return what the rules find: faults, and what was reached; then remarks."""
    found = [Finding(rule, sentence.rstrip(), True) for rule, applies, sentence in _faults(box) if applies]
    found += _result(box, has_fault=bool(found))
    return found + [Finding(rule, sentence) for rule, applies, sentence in _remarks(box) if applies]


def _faults(box: Box) -> Rows:
    """Return the table of causes, the strongest first. Figures decide only where the log states nothing.

    A log of one node names a network that the node's ranks do not use, so networks count only between nodes.
    """
    stated = box.stated
    hardware = box.hardware
    best = box.best
    figures = _figures(box)
    is_in_node = box.ranks_per_node != 1 and not _is_high(box)
    is_between = box.num_nodes > 1 and not _is_high(box)
    nvlink = hardware.nvlink if box.num_nodes == 1 else 0.0
    most = nvlink * (2 if _can_switch_add(box) else 1)

    is_at_pcie_rate = nvlink > 0 and best.is_of_links and best.rate < min(hardware.slot, _THROUGH_HOST)
    is_p2p_off = is_in_node and (is_at_pcie_rate if stated.is_p2p_off is None else stated.is_p2p_off)
    p2p = "communicate through host memory, because peer-to-peer access is off"
    if not stated.is_p2p_off:
        p2p = "seem to communicate through host memory, as if peer-to-peer access were off"
    check = f"Unset {stated.p2p_variable}" if stated.p2p_variable else "Check nvidia-smi topo -m for PHB or SYS"

    seems_sockets = not box.is_series and box.worst.share < _SOCKETS and box.worst.small_share < _LATE
    uses_sockets = is_between and (seems_sockets if stated.uses_sockets is None else stated.uses_sockets)
    sockets = "The log states that nodes use sockets (NET/Socket)"
    if not stated.uses_sockets:
        sockets = "Nodes seem to communicate through sockets; NCCL_DEBUG=INFO prints what NCCL uses"

    is_ib_off = is_between and stated.is_ib_forbidden and stated.uses_sockets is not False

    # Where the rate of cards is not stated, that of the slowest ones decides. Some machines have several slow cards for
    # each GPU.
    number = len(stated.cards)
    carried = stated.cards_bytes_per_s or number * hardware.card
    most_bytes_per_s = 0.0
    if number == 1:
        most_bytes_per_s = _ROUNDED * (carried or _FASTEST_CARD)
    elif _is_full(box) and (stated.cards_bytes_per_s or number <= box.ranks_per_node):
        most_bytes_per_s = _FINE * (stated.cards_bytes_per_s or _SLOWEST_CARD * number)
    is_several = box.num_nodes > 1 and box.ranks_per_node > 1
    has_few_cards = is_several and 0 < best.rate <= most_bytes_per_s and not uses_sockets
    cards = f"For the {box.ranks_per_node} GPUs of a node, NCCL uses {count_of(number, 'network card')}"
    if carried:
        cards += f" and reaches {percent_words(best.rate / carried)} of the {rate_words(carried)}"
        cards += f" that {number} of {carried / number * 8e-9:g} Gbit/s carry"

    notes = dict.fromkeys(str(box.profile.provenance.get("source", {}).get("notes", "")).split("; "))
    return (
        *[("stated_fault", note.startswith((FAULT, SLOW)), f"{note.partition(': ')[2]}.") for note in notes],
        (
            "impossible",
            0 < most < best.rate / _ROUNDED,
            f"{figures} NVLink carries {rate_words(most)}, so the log is wrong.",
        ),
        ("p2p_off", is_p2p_off, f"The GPUs of a node {p2p}. {check}. {figures}"),
        (
            "nvlink_unused",
            is_at_pcie_rate and stated.is_p2p_off is False,
            f"The GPUs of a node use peer-to-peer access, but reach only what PCIe carries, and NVLink carries "
            f"{rate_words(nvlink)}. Check nvidia-smi nvlink -s. {figures}",
        ),
        (
            "infiniband_off",
            is_ib_off,
            "NCCL_IB_DISABLE=1 forbids InfiniBand and RoCE, so nodes use sockets, unless they have a plug-in. Unset it "
            f"if they have such a network. {figures}",
        ),
        (
            "plug_in_missing",
            uses_sockets and not is_ib_off,
            f"{sockets}. If their network has a plug-in, load it. {figures}",
        ),
        (
            "no_gpudirect",
            is_between and stated.is_gpudirect_off and not uses_sockets and not is_p2p_off,
            "The log states that GPUDirect RDMA is off, so bytes pass through the host's memory. Load nvidia-peermem. "
            f"{figures}",
        ),
        (
            "few_cards",
            has_few_cards and (box.worst.row is None or box.worst.share < LOW),
            f"{cards}. Check NCCL_IB_HCA ({', '.join(stated.cards)}) and the rate of each card. {figures}",
        ),
        (
            "degraded_node",
            box.is_series and box.worst.share < LOW,
            "Smaller and larger clusters of such nodes do better; measure the nodes in pairs to find a slow one. "
            f"{figures}",
        ),
        *[("degraded_pair", True, sentence) for sentence in _slow_pairs(box)],
    )


def _result(box: Box, has_fault: bool) -> Iterator[Finding]:
    """Yield whether the rate is as expected, if anything says what to expect; a fault explains a low one."""
    figures = _figures(box)
    of_limit = f"That is {percent_words(box.share_of_limit)} of the {rate_words(box.limit)} that its links carry."
    if box.share_of_limit > _ROUNDED:
        of_limit = f"That is more than the {rate_words(box.limit)} that its known links carry."
    algorithms = {point.options.get("algorithm", NATIVE) for point in box.profile.points}
    if box.worst.share >= LOW:
        yield Finding("reaches", figures)
    elif has_fault or not box.best.rate:
        return
    elif box.worst.row is not None:
        words = "No known cause fits; compare the versions of NCCL, the network cards that NCCL uses and topo -m"
        yield Finding("unexplained", f"{figures} {words}.", is_fault=True)
    elif _is_high(box):
        yield Finding("fine", f"{figures} {of_limit} Healthy machines reach 60 % or more.")
    elif box.profile.backend == "nccl" or algorithms == {NATIVE}:  # several algorithms are compared with each other
        reason = "the bank has no measurement of a similar one"
        if box.rows:
            reason = "no buffer is so large that bandwidth decides"
        elif not box.hardware.slot:
            reason = "the links of its GPUs are not known"
        words = f"There is nothing to compare this machine with, because {reason}. {figures}"
        if box.share_of_limit and box.num_nodes == 1:
            words += f" {of_limit}"
        if box.ranks_per_node > 3 and _is_full(box) and box.num_nodes > 1 and box.best.rate <= box.hardware.card:
            card = f"one network card of {box.hardware.card * 8e-9:g} Gbit/s"
            words += f" For the {box.ranks_per_node} GPUs of a node, that is no more than {card} carries;"
            words += " NCCL_DEBUG=INFO lists the cards that NCCL uses."
        yield Finding("nothing_to_compare", words)


def _figures(box: Box) -> str:
    """Return a sentence with the rate reached and the expected one; without the latter if no machine is similar."""
    row = box.worst.row
    if row is None:
        where = f"{box.best.collective} at {bytes_words(box.best.num_bytes)}"
        return f"{where} reaches {rate_words(box.best.rate)}." if box.best.rate else ""
    expected = " to ".join(dict.fromkeys([rate_words(row.low), rate_words(row.high)]))
    where = f"{row.collective} at {bytes_words(row.num_bytes)} reaches {rate_words(row.rate)}"
    return f"{where}, {percent_words(row.share)} of the {expected} of {and_joined(list(box.peers))}."


def _is_high(box: Box) -> bool:
    """Return whether the rate needs no cause."""
    return box.worst.share >= LOW or (box.worst.row is None and box.share_of_limit >= _FINE)


def _is_full(box: Box) -> bool:
    """Return whether the best rate is of a size at which a healthy machine reaches its full rate."""
    least_bytes = max(_FULL_BYTES, _FULL_BYTES_PER_RANK * box.profile.num_ranks)
    return box.best.is_of_links and box.best.num_bytes >= least_bytes


def _can_switch_add(box: Box) -> bool:
    is_possible = box.hardware.switch_adds and box.stated.has_nvls is not False
    return is_possible and box.best.collective == "allreduce"


def _slow_pairs(box: Box) -> Iterator[str]:
    """Some pairs (of nodes or GPUs) are much slower than the median.

    Copies between GPUs through the host's memory do not measure the link of a pair.
    """
    kinds: dict[tuple[str, int, str], dict[tuple[str, str], float]] = {}  # bytes/s of each pair, by what was measured
    for point in box.profile.points:
        options = dict(point.options)
        ends = str(options.pop("src", "")), str(options.pop("dst", ""))
        if all(ends) and options.get("direction") != "through_host":
            kinds.setdefault((point.what, point.num_bytes, str(options)), {})[ends] = point.algbw_bytes_per_s
    for (what, num_bytes, _), rates in kinds.items():
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


def _dips(box: Box) -> Iterator[str]:
    """Bandwidth drops at a size above the latency range, unless similar machines show the same."""
    rows = {(row.collective, row.num_bytes): row for row in box.rows}
    for collective, rates in box.rates.items():
        times_s = box.profile.native_s(collective)
        sizes = [size for size in rates if size > SMALL_BYTES]
        for before, size in pairwise(sizes):
            later = [other for other in sizes if other >= size]
            recovers = max(rates[other] for other in later) >= rates[before]
            is_drop = recovers or rates[sizes[-1]] <= _FALLS_TO * rates[before]
            row = rows.get((collective, size))
            if rates[size] > _DROP * rates[before] or not is_drop or (row and row.rate > LOW * row.high):
                continue
            fall = f"from {rate_words(rates[before])} at {bytes_words(before)} to {rate_words(rates[size])}"
            words = f"{collective}: busbw falls {fall} at {bytes_words(size)}"
            words += ", and recovers later" if recovers else ", and does not recover"
            equal = [other for other in later if abs(times_s[other] / times_s[size] - 1) < _SAME_TIME]
            if len(equal) > 2 and times_s[size] > _STALL * times_s[before]:
                words += f". Sizes up to {bytes_words(equal[-1])} take as long, which is a stall, such as a timeout"
            elif row:
                others = f"Similar machines reach {rate_words(row.high)}"
                words += f". {others}; try another NCCL_ALGO, NCCL_PROTO or version"
            yield f"{words}."


def _remarks(box: Box) -> Rows:
    """Return the table of what may surprise, and is no fault."""
    nvlink = box.hardware.nvlink
    shares = {collective: box.small_share(collective) for collective in box.rates}
    slow = [f"{what} takes {1 / share:.1f} times as long" for what, share in shares.items() if share < _SLOW_START]
    return (
        *[("dips", True, sentence) for sentence in _dips(box)],
        (
            "slow_start",
            slow and not box.is_series and box.worst.share >= LOW,
            f"In the median of sizes up to {bytes_words(SMALL_BYTES)}, {', '.join(slow)} as on "
            f"{and_joined(list(box.peers))}. Compare NCCL's version, the CPU and what else runs on it.",
        ),
        (
            "switch_adds",
            box.num_nodes == 1 and _can_switch_add(box) and nvlink < box.best.rate <= 2 * nvlink,
            f"allreduce reaches {rate_words(box.best.rate)}, more than the {rate_words(nvlink)} of a GPU's NVLink. "
            "This is expected: the switch reduces (NVLS), so each GPU sends its bytes only once.",
        ),
    )
