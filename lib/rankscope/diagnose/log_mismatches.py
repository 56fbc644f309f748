"""What TORCH_DISTRIBUTED_DEBUG=DETAIL reports: two ranks of a group whose calls differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..common.words import and_joined, listed, one_line
from .log_evidence import Evidence
from .log_findings import MOST_LISTED, HangFinding, odd_ranks, sentence
from .log_lines import CallMismatch, CallPrint

_MOST_AGREEING = 64  # ranks that one report shows to agree with the reporter: a damaged number may be in the millions


def mismatch_findings(evidence: Evidence) -> Iterator[HangFinding]:
    """Yield the ranks whose call differs from that of most ranks, if each rank reports a single call.

    The reports number the ranks of a group. These numbers are replaced by those of the job as far as the log shows
    them; if it does not, they are kept, and the finding says so.
    """
    calls = _call_by_rank(evidence.mismatches)
    job_rank_of = _job_ranks_of_group(evidence)
    if calls is None or job_rank_of is None:
        return  # the reports are of several calls, or of several groups
    parties = _parties_of(evidence.mismatches, calls)
    if not parties:
        return
    ranks_of_group = {rank for party in parties for rank in party}
    are_numbers_of_group = not job_rank_of  # the log shows no other numbers than those of the group
    if are_numbers_of_group:
        job_rank_of = {rank: rank for rank in ranks_of_group}
    elif not ranks_of_group <= job_rank_of.keys():
        return  # the numbers that some of them have in the job are unknown
    call_of = {job_rank_of[rank]: calls[rank] for party in parties for rank in party if rank in calls}
    differing_pairs = set()
    for report in evidence.mismatches:
        differing_pairs.add(frozenset((job_rank_of[report.rank_in_group], job_rank_of[report.other_in_group])))
    cause = _confirmed(_difference(list(call_of.values())), evidence.mismatches)
    job_parties = [[job_rank_of[rank] for rank in party] for party in parties]
    finding = _mismatch_finding(cause, job_parties, call_of, differing_pairs, are_numbers_of_group=are_numbers_of_group)
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


def _job_ranks_of_group(evidence: Evidence) -> dict[int, int] | None:
    """Return the job's ranks by their numbers in the group that reports a mismatch.

    Empty if nothing contradicts that they are the same; None if there seem to be several groups.
    """
    job_rank_of: dict[int, int] = {}
    for report in evidence.mismatches:
        rank = evidence.rank_of(report.origin)
        if rank is not None and job_rank_of.setdefault(report.rank_in_group, rank) != rank:
            return None
    are_the_same = all(number == rank for number, rank in job_rank_of.items())
    return {} if are_the_same else job_rank_of


def _parties_of(mismatches: Sequence[CallMismatch], calls: Mapping[int, CallPrint]) -> list[list[int]]:
    """Return ranks by what they call, by their numbers in the group; none if reports are of several collectives."""
    parties = _Parties()
    for report in mismatches:
        parties.add(report.rank_in_group)
        parties.add(report.other_in_group)
        # torch reports the first rank that differs from the reporter, so all ranks before that one agree with it
        for rank in range(min(report.other_in_group, _MOST_AGREEING)):
            if rank != report.rank_in_group:
                parties.add(rank)
                parties.join(rank, report.rank_in_group)
    first_with_call: dict[CallPrint, int] = {}
    for rank, call in calls.items():
        if call.is_known:
            parties.join(rank, first_with_call.setdefault(call, rank))
    for report in mismatches:
        if parties.same(report.rank_in_group, report.other_in_group):
            return []  # one report says that two ranks differ, and others that they agree
    return parties.parties()


def _confirmed(cause: str, mismatches: Iterable[CallMismatch]) -> str:
    """Return the cause if each of torch's own lists of differences has it; else "call", as a print may lack a digit."""
    stated = [fact.aspects for fact in mismatches if fact.aspects]
    return cause if stated and all(cause in aspects for aspects in stated) else "call"


def _mismatch_finding(
    cause: str,
    parties: Sequence[list[int]],
    call_of: Mapping[int, CallPrint],
    differing_pairs: set[frozenset[int]],
    *,
    are_numbers_of_group: bool,
) -> HangFinding | None:
    """Return the ranks outside of the largest party, or all ranks if there is no largest one.

    `parties` are ranks that make the same call; `differing_pairs` are the pairs of ranks that a report compares.
    """
    odd, usual = odd_ranks(parties)
    difference = _DIFFERENCES[cause]
    if usual:
        # a rank that no report compares with the usual ones may just have a line with a letter missing
        odd = [rank for rank in odd if any(frozenset((rank, other)) in differing_pairs for other in usual)]
        if not odd:
            return None
        lines = [f"{listed('Rank', odd)} {difference} from {listed('rank', usual)}."]
    else:
        lines = [f"{listed('Rank', odd)} disagree: each {difference}. The log cannot tell which of them is wrong."]
    shown = []
    for party in parties[:MOST_LISTED]:
        calls = [call_of[rank] for rank in party if rank in call_of and call_of[rank].is_known]
        if calls:
            shown.append(f"{listed('rank', party)} called {_print_words(calls[0])}")
    if shown:
        lines.append(f"  {sentence(and_joined(shown))}")
    if are_numbers_of_group:
        lines.append(
            "  These are the numbers of the ranks in the group of the call. In the default group, they are the job's."
        )
    came = tuple(sorted({*odd, *usual}))
    number = _number_of_call(call_of.values())
    return HangFinding(cause, tuple(odd), group="", call=number, came=came, words="\n".join(lines))


def _number_of_call(calls: Iterable[CallPrint]) -> int:
    """Return the number that all these calls have in their group; 0 if they differ or the text does not have it."""
    sequences = {call.sequence for call in calls}
    if len(sequences) != 1:
        return 0
    (sequence,) = sequences
    return int(sequence) if sequence else 0


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
    """Return in what these calls differ: a key of `_DIFFERENCES`."""
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
