"""What TORCH_DISTRIBUTED_DEBUG=DETAIL reports: two ranks of a group whose calls differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..common.checks import one_line
from ..common.words import and_joined, listed
from .log_evidence import Evidence
from .log_findings import MOST_LISTED, HangFinding, odd_ranks, sentence
from .log_lines import CallMismatch, CallPrint

_MOST_RANKS_LISTED = 64  # of a sentence that lists what each did


def mismatch_findings(evidence: Evidence) -> Iterator[HangFinding]:
    """Yield the ranks whose call differs from that of most ranks, if each rank reports a single call."""
    calls = _call_by_rank(evidence.mismatches)
    rank_of = _ranks_of_group(evidence)
    if calls is None or rank_of is None:
        return
    parties = _parties_of(evidence.mismatches, calls)
    if not parties:
        return
    differing = {frozenset((fact.rank_in_group, fact.other_in_group)) for fact in evidence.mismatches}
    in_job: list[list[int]] = []
    call_of: dict[int, CallPrint] = {}
    for party in parties:
        if any(rank not in rank_of for rank in party) and rank_of:
            return
        in_job.append([rank_of.get(rank, rank) for rank in party])
        call_of |= {rank_of.get(rank, rank): calls[rank] for rank in party if rank in calls}
    differing_in_job = {frozenset(rank_of.get(rank, rank) for rank in pair) for pair in differing}
    cause = _confirmed(_difference(list(call_of.values())), evidence.mismatches)
    finding = _mismatch_finding(cause, in_job, call_of, differing_in_job, is_default=not rank_of)
    if finding is not None:
        yield finding


def _call_by_rank(mismatches: Iterable[CallMismatch]) -> dict[int, CallPrint] | None:
    """Return each rank's call, by its number in the group; None if the text has several calls of one rank.

    What a rank says of itself counts: torch misreads another's call if that has another number of dimensions.
    """
    own_calls: dict[int, CallPrint] = {}
    for fact in mismatches:
        if own_calls.setdefault(fact.rank_in_group, fact.own) != fact.own:
            return None
    other_calls: dict[int, CallPrint] = {}
    for fact in mismatches:
        if not fact.other.is_known or fact.other_in_group in own_calls:
            continue
        if other_calls.setdefault(fact.other_in_group, fact.other) != fact.other:
            return None
    return own_calls | other_calls


def _ranks_of_group(evidence: Evidence) -> dict[int, int] | None:
    """Return the job's ranks by their numbers in the group that reports a mismatch.

    Empty if nothing contradicts that they are the same; None if there seem to be several groups.
    """
    ranks: dict[int, int] = {}
    for fact in evidence.mismatches:
        rank = evidence.rank_of(fact.origin)
        if rank is not None and ranks.setdefault(fact.rank_in_group, rank) != rank:
            return None
    return {} if all(number == rank for number, rank in ranks.items()) else ranks


def _parties_of(mismatches: Sequence[CallMismatch], calls: Mapping[int, CallPrint]) -> list[list[int]]:
    """Return ranks by what they call, by their numbers in the group; none if reports are of several collectives."""
    equal = _Parties()
    for fact in mismatches:
        equal.add(fact.rank_in_group)
        equal.add(fact.other_in_group)
    for fact in mismatches:  # the first rank that differs is reported, so those before it do not
        for rank in range(min(fact.other_in_group, _MOST_RANKS_LISTED)):
            if rank != fact.rank_in_group:
                equal.add(rank)
                equal.join(rank, fact.rank_in_group)
    by_call: dict[CallPrint, int] = {}
    for rank, call in calls.items():
        if call.is_known:
            equal.join(rank, by_call.setdefault(call, rank))
    if any(equal.same(fact.rank_in_group, fact.other_in_group) for fact in mismatches):
        return []
    return equal.parties()


def _confirmed(cause: str, mismatches: Iterable[CallMismatch]) -> str:
    """Return the cause if torch's own lists of differences have it; else "call", because a print may lack a digit."""
    stated = [fact.aspects for fact in mismatches if fact.aspects]
    return cause if stated and all(cause in aspects for aspects in stated) else "call"


def _mismatch_finding(
    cause: str,
    parties: Sequence[list[int]],
    call_of: Mapping[int, CallPrint],
    differing: set[frozenset[int]],
    *,
    is_default: bool,
) -> HangFinding | None:
    odd, usual = odd_ranks(parties)
    what = _DIFFERENCES[cause]
    if usual:  # a rank that no report compares with the usual ones may just have a line with a letter missing
        odd = [rank for rank in odd if any(frozenset((rank, other)) in differing for other in usual)]
        if not odd:
            return None
        lines = [f"{listed('Rank', odd)} {what} from {listed('rank', usual)}."]
    else:
        lines = [f"{listed('Rank', odd)} disagree: each {what}. The log cannot tell which of them is wrong."]
    shown = []
    for party in parties[:MOST_LISTED]:
        calls = [call_of[rank] for rank in party if rank in call_of and call_of[rank].is_known]
        if calls:
            shown.append(f"{listed('rank', party)} called {_print_words(calls[0])}")
    if shown:
        lines.append(f"  {sentence(and_joined(shown))}")
    if is_default:
        lines.append(
            "  These are the numbers of the ranks in the group of the call. In the default group, they are the job's."
        )
    sequences = {call.sequence for call in call_of.values()}
    number = int(sequences.pop()) if len(sequences) == 1 and "" not in sequences else 0
    return HangFinding(cause, tuple(odd), "", number, tuple(sorted({*odd, *usual})), "\n".join(lines))


_DIFFERENCES = {
    "collective": "called a different collective",
    "size": "passed a different size",
    "dtype": "passed a different type",
    "call": "made a different call",
}


def _print_words(call: CallPrint) -> str:
    dtype = f" {call.dtype}" if call.dtype else ""
    return one_line(f"{call.collective} {call.shape}{dtype}")


def _difference(calls: Sequence[CallPrint]) -> str:
    known = [call for call in calls if call.is_known]
    if len({call.collective for call in known}) > 1:
        return "collective"
    if len({call.shape for call in known}) > 1:
        return "size"
    if len({call.dtype for call in known}) > 1:
        return "dtype"
    return "call"


class _Parties:
    """Ranks that make the same call are in one party (a disjoint-set forest with path halving)."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def add(self, rank: int) -> None:
        self._parent.setdefault(rank, rank)

    def first(self, rank: int) -> int:
        """Return the lowest rank of the party."""
        parent = self._parent
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    def join(self, rank: int, other: int) -> None:
        low, high = sorted((self.first(rank), self.first(other)))
        self._parent[high] = low

    def same(self, rank: int, other: int) -> bool:
        return self.first(rank) == self.first(other)

    def parties(self) -> list[list[int]]:
        members: dict[int, list[int]] = defaultdict(list)
        for rank in sorted(self._parent):
            members[self.first(rank)].append(rank)
        return list(members.values())
