"""What limits a machine: rules over what its log states, what its hardware carries and what similar machines reach."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from ...common.units import bytes_words, percent_words, rate_words, time_words
from ...common.words import and_joined, count_of
from ..logs.table import FAULT, SLOW
from .expected import LOW, Box

_SOCKETS = 0.25  # of similar machines' rate: sockets reach less
_LATE = 0.6  # of similar machines' speed at small sizes: below it, nodes seem to talk through sockets
_ROUNDED = 1.03  # a factor: busbw may exceed a link's stated rate by this much
_THROUGH_HOST = 40e9  # bytes/s that copies through the host's memory can reach
_FINE = 0.6  # of what the hardware carries: rings of healthy machines reach 0.6 to 0.95, two GPUs sometimes less
_FULL_BYTES = 2**27  # from this size on, and from _FULL_BYTES_PER_RANK for each rank, machines reach their full rate
_FULL_BYTES_PER_RANK = 2**22
_SAME_TIME = 0.1  # relative difference: so close to each other, times do not depend on the size
_FALL = 2.5  # the busbw of the size before is so many times as high; on healthy machines of the bank, at most 1.6


class Finding(msgspec.Struct, frozen=True):
    """One result of a rule: the rule's name, a sentence with the figures, and whether it reports a fault."""

    rule: str
    sentence: str
    is_fault: bool = False

    def __str__(self) -> str:
        return f"{self.sentence} (rule {self.rule})"


def findings(box: Box) -> list[Finding]:
    """Return what the rules find: faults, and what was reached; then sizes at which the rate falls."""
    found = [Finding(rule, sentence.rstrip(), True) for rule, applies, sentence in _faults(box) if applies]
    found += _result(box, has_fault=bool(found))
    found += _falls(box)
    return found


def _faults(box: Box) -> tuple[tuple[str, object, str], ...]:
    """Return the table of causes, the strongest first: a rule's name, whether it applies, and what it says.

    Figures decide only where the log states nothing. A log of one node names a network that the node's ranks do not
    use, so networks count only between nodes.
    """
    stated = box.stated
    best = box.best
    figures = _figures(box)
    is_in_node = box.ranks_per_node != 1 and not _is_high(box)
    is_between = box.num_nodes > 1 and not _is_high(box)
    nvlink = box.hardware.nvlink if box.num_nodes == 1 else 0.0
    most = nvlink * (2 if _can_switch_add(box) else 1)
    is_at_pcie_rate = nvlink > 0 and best.is_of_links and best.rate < min(box.hardware.slot, _THROUGH_HOST)

    uses_sockets = stated.uses_sockets
    sockets = "The log states NET/Socket or NCCL_IB_DISABLE=1: nodes use sockets, unless a plug-in is loaded"
    if uses_sockets is None:
        uses_sockets = not box.is_series and box.worst.share < _SOCKETS and box.worst.small_share < _LATE
        sockets = "Nodes seem to communicate through sockets; NCCL_DEBUG=INFO prints what NCCL uses"

    notes = dict.fromkeys(str(box.profile.provenance.get("source", {}).get("notes", "")).split("; "))
    return (
        *[("stated_fault", note.startswith((FAULT, SLOW)), f"{note.partition(': ')[2]}.") for note in notes],
        (
            "impossible",
            0 < most < best.rate / _ROUNDED,
            f"{figures} NVLink carries {rate_words(most)}, so the log is wrong.",
        ),
        (
            "p2p_off",
            is_in_node and stated.is_p2p_off,
            "The GPUs of a node communicate through host memory, because peer-to-peer access is off. "
            f"Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, or check nvidia-smi topo -m for PHB or SYS. {figures}",
        ),
        (
            "nvlink_unused",
            is_at_pcie_rate and not stated.is_p2p_off,
            f"The GPUs of a node reach only what PCIe or host memory carries, and NVLink carries {rate_words(nvlink)}. "
            f"Check nvidia-smi nvlink -s, and topo -m for PHB or SYS. {figures}",
        ),
        (
            "sockets",
            is_between and uses_sockets,
            f"{sockets}. If they have InfiniBand or RoCE, unset NCCL_IB_DISABLE; "
            f"if their network has a plug-in, load it. {figures}",
        ),
        (
            "no_gpudirect",
            is_between and stated.is_gpudirect_off and not uses_sockets and not stated.is_p2p_off,
            "The log states that GPUDirect RDMA is off, so bytes pass through the host's memory. Load nvidia-peermem. "
            f"{figures}",
        ),
        *[("few_cards", not uses_sockets, f"{sentence} {figures}") for sentence in _few_cards(box)],
    )


def _few_cards(box: Box) -> Iterator[str]:
    """The GPUs of a node reach what one network card carries, or clearly less than all cards of stated rates."""
    number = len(box.stated.cards)
    carried = box.stated.cards_bytes_per_s or number * box.hardware.card
    if not carried or box.num_nodes < 2 or box.ranks_per_node < 2 or box.worst.share >= LOW:
        return
    most = _ROUNDED * carried / number
    is_clear = number <= box.ranks_per_node  # some machines have several slow cards for each GPU
    if number > 1 and box.stated.cards_bytes_per_s:
        most = _FINE * carried
        is_clear = True
    if is_clear and (number == 1 or _is_full(box)) and 0 < box.best.rate <= most:
        yield (
            f"For the {box.ranks_per_node} GPUs of a node, NCCL uses {count_of(number, 'network card')} and reaches "
            f"{percent_words(box.best.rate / carried)} of the {rate_words(carried)} that {number} of "
            f"{carried / number * 8e-9:g} Gbit/s carry. Check NCCL_IB_HCA ({', '.join(box.stated.cards)}) and the rate "
            "of each card."
        )


def _result(box: Box, has_fault: bool) -> Iterator[Finding]:
    """Yield whether the rate is as expected, if anything says what to expect; a fault explains a low one."""
    figures = _figures(box)
    of_limit = f"That is {percent_words(box.share_of_limit)} of the {rate_words(box.limit)} that its known links carry."
    if box.share_of_limit > 1 and _can_switch_add(box):
        of_limit += " The switch reduces (NVLS), so each GPU sends its bytes only once."
    if box.worst.share >= LOW:
        yield Finding("reaches", figures)
    elif has_fault or not box.best.rate:
        return
    elif box.worst.row is not None:
        words = "No known cause fits; compare the versions of NCCL, the network cards that NCCL uses and topo -m"
        if box.is_series:
            words = "Smaller and larger clusters do better; measure the nodes in pairs to find a slow one"
        yield Finding("unexplained", f"{figures} {words}.", is_fault=True)
    elif _is_high(box):
        yield Finding("fine", f"{figures} {of_limit} Healthy machines reach 60 % or more.")
    elif box.profile.backend == "nccl":
        reason = "no buffer of 16 MiB or more was measured both here and on a similar machine of the bank"
        if not box.hardware.slot:
            reason = "the links of its GPUs are not known"
        words = f"There is nothing to compare this machine with, because {reason}. {figures}"
        if box.share_of_limit and box.num_nodes == 1:
            words += f" {of_limit}"
        if box.num_nodes > 1 and box.ranks_per_node > 3 and _is_full(box) and box.best.rate <= box.hardware.card:
            words += f" That is no more than one network card of {box.hardware.card * 8e-9:g} Gbit/s carries, for all "
            words += f"{box.ranks_per_node} GPUs of a node; NCCL_DEBUG=INFO lists the cards that NCCL uses."
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
    return box.hardware.switch_adds and box.best.collective == "allreduce"


def _falls(box: Box) -> Iterator[Finding]:
    """The busbw falls far from one size to the next; if several sizes then take equally long, that is a stall."""
    for collective, rates in box.rates.items():
        times_s = box.profile.native_s(collective)
        for before, size in pairwise(rates):
            if rates[before] <= _FALL * rates[size]:
                continue
            equal = []
            for other in rates:
                if other < size:
                    continue
                if abs(times_s[other] / times_s[size] - 1) > _SAME_TIME:
                    break
                equal.append(other)
            yield Finding(
                "falls",
                f"{collective} falls from {rate_words(rates[before])} at {bytes_words(before)} to "
                f"{rate_words(rates[size])} at {bytes_words(size)}.",
            )
            if len(equal) > 2:
                yield Finding(
                    "stall",
                    f"{collective} takes {time_words(times_s[size])} from {bytes_words(size)} to "
                    f"{bytes_words(equal[-1])}, which is a stall, such as a timeout.",
                )
