"""From the facts in logs to the ranks that hold a job up, or to the words that the text cannot tell.

Every rule names a rank only if the lines themselves support it, whatever lines are missing, doubled or out of order:
facts are sets, and what has no line is never taken for what did not happen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..common.checks import one_line
from ..common.words import and_joined, listed
from .log_lines import (
    AddressWait,
    BarrierMissed,
    BarrierReached,
    CallFrame,
    CallMismatch,
    CallPrint,
    CommunicationError,
    DesyncLag,
    JoinCount,
    KilledProcess,
    LogProcess,
    OwnError,
    QueueStatus,
    WatchdogTimeout,
)
from .logs import HangLogs

DEFAULT_GROUP = "default_pg"
UNKNOWN = "unknown"
_MOST_RANKS_LISTED = 64  # of a sentence that lists what each did
_MOST_ERRORS = 16  # ranks that are named for an error of their own
_MOST_MISMATCHES = 2048  # reports of two ranks that differ
_MOST_WAITS = 8  # sentences on what ranks waited in
# Collectives that no rank leaves before all have come, by their names in torch.distributed.
_ALL_WAIT = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_reduce_coalesced": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}
# In these a rank may be done, or wait, long before others come.
_SOME_WAIT = ("broadcast", "reduce", "gather", "scatter", "send", "recv", "isend", "irecv", "batch_isend_irecv")
_OWN_SIZES_IN = ("SCATTER", "ALLTOALL", "ALLTOALL_BASE")  # whose inputs may differ in size
_OWN_SIZES_OUT = ("GATHER", "ALLTOALL", "ALLTOALL_BASE")
_NOT_NUMBERED = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")  # which old versions count with the collectives


class HangFinding(NamedTuple):
    """Why a group stops at its `call`-th collective: the cause, the ranks to look at, those that came, a verdict.

    `group` is empty and `call` 0 if the finding is from logs whose text does not state them.
    """

    cause: str
    ranks: tuple[int, ...]
    group: str
    call: int
    came: tuple[int, ...]
    words: str


class StuckQueue(NamedTuple):
    """What another source, a dump, says of a rank's queue in a group: the last call in it, and the one that waits."""

    rank: int
    group: str
    failed: int | None
    enqueued: int


def explain_logs(logs: HangLogs, queues: Sequence[StuckQueue] = ()) -> list[HangFinding]:
    """Return findings, by how directly the text states them; a single one of cause "unknown" if it names no rank."""
    evidence = _Evidence(logs, queues)
    findings: list[HangFinding] = []
    named: set[int] = set()
    for rule in _RULES:
        for finding in rule(evidence):
            if {*finding.ranks} - named:
                findings.append(finding)
                named.update(finding.ranks)
    return findings or [_unknown(evidence)]


# ---- which rank a line is of


class _Timeout(NamedTuple):
    """A collective of NCCL that a rank waited in."""

    rank: int
    group: str | None
    sequence: int | None
    call: tuple[Any, ...]  # what must be the same on all ranks
    words: str


class _Evidence:
    """The facts by rank, for those facts whose rank is certain."""

    def __init__(self, logs: HangLogs, queues: Sequence[StuckQueue]) -> None:
        self.logs = logs
        self._wrong_labels = {
            fact.process.label_kind
            for fact in logs.facts
            if None not in (fact.process.rank, fact.process.label) and fact.process.rank != fact.process.label
        }
        self.own_errors: dict[int, list[str]] = defaultdict(list)
        self.communication: dict[int, set[str]] = defaultdict(set)  # kinds of errors
        self.num_nameless = 0  # communication errors of no rank that is known
        self.size_ranks: set[int] = set()
        self.functions: dict[int, set[str]] = defaultdict(set)
        self.killed: dict[int, str] = {}
        self.missed: list[BarrierMissed] = []
        self.reached: set[int] = set()
        self.has_part_barrier = False  # of a group whose ranks have other numbers than the job's
        self.mismatches: list[CallMismatch] = []
        self.failed_elsewhere: set[int] = set()  # ranks whose own call is known to differ from another one's
        self.lags: list[DesyncLag] = []
        self.awaited: dict[int, set[int | None]] = defaultdict(set)  # by rank: those that waited for its address
        self.has_agent = False  # torchrun keeps the store, so that no rank serves it
        self.joins: list[JoinCount] = []
        self.joined: set[int] = set()
        self.statuses: list[StuckQueue] = [*queues]
        self.timeouts: list[_Timeout] = []
        raw_timeouts: list[WatchdogTimeout] = []
        for fact in logs.facts:
            if isinstance(fact, WatchdogTimeout):
                raw_timeouts.append(fact)
            elif isinstance(fact, QueueStatus):
                rank = self._rank_in(fact.process, fact.rank_in_group, fact.group)
                if rank is not None:
                    self.statuses.append(StuckQueue(rank, fact.group, fact.failed, fact.enqueued))
            else:
                self._take(fact)
        self._take_timeouts(raw_timeouts)

    def rank_of(self, process: LogProcess) -> int | None:
        """Return the rank of a process: as torch states it, else by a label that is never wrong in this text."""
        if process.rank is not None:
            return process.rank
        return None if process.label_kind in self._wrong_labels else process.label

    def _rank_in(self, process: LogProcess, rank_in_group: int, group: str | None) -> int | None:
        """Return the job's rank of a process that states its rank in a group; None if that is not certain."""
        rank = self.rank_of(process)
        if rank is None:
            return rank_in_group if group in (None, DEFAULT_GROUP) else None
        if group == DEFAULT_GROUP and rank != rank_in_group:
            return rank_in_group if process.rank is None else None
        return rank

    def _take(self, fact: Any) -> None:
        if isinstance(fact, KilledProcess):
            self.killed[fact.rank] = fact.signal
            return
        rank = self.rank_of(fact.process)
        if isinstance(fact, BarrierMissed):
            if rank in (None, fact.reporter):
                self.missed.append(fact)
            else:
                self.has_part_barrier = True
        elif isinstance(fact, BarrierReached):
            if rank in (None, fact.rank_in_group):
                self.reached.add(fact.rank_in_group)
            else:
                self.has_part_barrier = True
        elif isinstance(fact, CallMismatch):
            if len(self.mismatches) < _MOST_MISMATCHES:
                self.mismatches.append(fact)
            if rank is not None:
                self.failed_elsewhere.add(rank)
        elif isinstance(fact, DesyncLag):
            self.lags.append(fact)
        elif isinstance(fact, JoinCount):
            self.joins.append(fact)
        elif isinstance(fact, AddressWait):
            self.awaited[fact.awaited].add(rank)
            self.has_agent = self.has_agent or fact.process.label_kind == "torchrun"
        elif rank is None:
            self.num_nameless += isinstance(fact, CommunicationError)
        elif isinstance(fact, CommunicationError):
            self.communication[rank].add(fact.kind)
            if fact.kind == "size":
                self.size_ranks.add(rank)
        elif isinstance(fact, OwnError):
            self.own_errors[rank].append(fact.error)
        elif isinstance(fact, CallFrame):
            self.functions[rank].add(fact.function)
        if rank is not None and isinstance(fact, JoinCount | AddressWait):
            self.joined.add(rank)

    def _take_timeouts(self, raw: Iterable[WatchdogTimeout]) -> None:
        """Find the group of each timeout: the one in which the same rank reports that this number failed."""
        groups_of: dict[tuple[int, int | None], set[str]] = defaultdict(set)
        for status in self.statuses:
            groups_of[status.rank, status.failed].add(status.group)
        for fact in raw:
            rank = self._rank_in(fact.process, fact.rank_in_group, fact.group)
            if rank is None:
                continue
            group = fact.group
            groups = groups_of.get((rank, fact.sequence), set())
            if group is None and len(groups) == 1:
                (group,) = groups
            if group is None and fact.rank_in_group != rank:
                continue
            self.timeouts.append(_Timeout(rank, group, fact.sequence, _signature(fact), _call_words(fact)))

    @property
    def has_subgroups(self) -> bool:
        groups = {status.group for status in self.statuses} | {timeout.group for timeout in self.timeouts}
        return bool(groups - {None, DEFAULT_GROUP}) or any("new_group" in names for names in self.functions.values())


def _signature(fact: WatchdogTimeout) -> tuple[Any, ...]:
    num_in = None if fact.collective in _OWN_SIZES_IN else fact.num_in
    num_out = None if fact.collective in _OWN_SIZES_OUT else fact.num_out
    return fact.collective, num_in, num_out


def _call_words(fact: WatchdogTimeout) -> str:
    if fact.num_in is None:
        return fact.collective
    if fact.num_in == fact.num_out:
        return f"{fact.collective} of {fact.num_in:,} elements"
    return f"{fact.collective} of {fact.num_in:,} elements into {fact.num_out:,}"


def _group_words(group: str | None) -> str:
    if group == DEFAULT_GROUP:
        return "the default group"
    return one_line(group) if group else "a group that the text does not name"


# ---- rules


def _killed(evidence: _Evidence) -> Iterable[HangFinding]:
    for rank, signal in sorted(evidence.killed.items()):
        words = (
            f"Rank {rank} was killed by {signal}: torchrun saw its end before that of any other rank.\n"
            "  See dmesg, and the limits of memory: the kernel kills a process that needs too much."
        )
        yield HangFinding("dead", (rank,), "", 0, (), words)


def _own_errors(evidence: _Evidence) -> Iterable[HangFinding]:
    """Ranks that an error of their own ended, while others report that they lost a rank or waited."""
    victims = {rank for rank, kinds in evidence.communication.items() if kinds}
    victims.update(timeout.rank for timeout in evidence.timeouts)
    if not victims and not evidence.num_nameless:
        return
    others = tuple(sorted(victims))
    consequence = f", and {listed('rank', others)} lost the connection to a rank, or waited in vain" if others else ""
    ranks = sorted({*evidence.own_errors} - victims)
    for rank in ranks[:_MOST_ERRORS]:
        words = f"Rank {rank} ended with {one_line(evidence.own_errors[rank][0])}{consequence}."
        yield HangFinding("error", (rank,), "", 0, others, f"{words}\n  See the traceback of rank {rank}.")


def _mismatches(evidence: _Evidence) -> Iterable[HangFinding]:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL reports: two ranks of a group whose calls differ."""
    calls: dict[int, CallPrint] = {}
    for fact in evidence.mismatches:
        calls.setdefault(fact.rank_in_group, fact.own)
        if fact.other.is_known:
            calls.setdefault(fact.other_in_group, fact.other)
    parties = _parties_of(evidence.mismatches, calls)
    rank_of = _ranks_of_group(evidence)
    if not parties or rank_of is None:
        return
    in_job: list[list[int]] = []
    call_of: dict[int, CallPrint] = {}
    for party in parties:
        if any(rank not in rank_of for rank in party) and rank_of:
            return
        in_job.append([rank_of.get(rank, rank) for rank in party])
        call_of |= {rank_of.get(rank, rank): calls[rank] for rank in party if rank in calls}
    yield _mismatch_finding(in_job, call_of, is_default=not rank_of)


def _ranks_of_group(evidence: _Evidence) -> dict[int, int] | None:
    """Return the job's ranks by their numbers in the group that reports a mismatch.

    Empty if nothing contradicts that they are the same; None if there seem to be several groups.
    """
    ranks: dict[int, int] = {}
    for fact in evidence.mismatches:
        rank = evidence.rank_of(fact.process)
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


def _mismatch_finding(
    parties: Sequence[list[int]], call_of: Mapping[int, CallPrint], *, is_default: bool
) -> HangFinding:
    odd, usual = _odd_ranks(parties)
    cause = _difference(list(call_of.values()))
    what = _DIFFERENCES[cause]
    if usual:
        lines = [f"{listed('Rank', odd)} {what} than {listed('rank', usual)}."]
    else:
        lines = [f"{listed('Rank', odd)} disagree: each {what}. The log does not show which of them is wrong."]
    shown = []
    for party in parties[:_MOST_WAITS]:
        calls = [call_of[rank] for rank in party if rank in call_of and call_of[rank].is_known]
        if calls:
            shown.append(f"{listed('rank', party)} called {_print_words(calls[0])}")
    if shown:
        lines.append(f"  {_sentence(and_joined(shown))}")
    if is_default:
        lines.append("  The numbers are those of the ranks in the group that calls: in the default group, of the job.")
    sequences = {call.sequence for call in call_of.values()}
    number = int(sequences.pop()) if len(sequences) == 1 and "" not in sequences else 0
    return HangFinding(cause, tuple(odd), "", number, tuple(sorted({*odd, *usual})), "\n".join(lines))


_DIFFERENCES = {
    "collective": "called another collective",
    "size": "passed another size",
    "dtype": "passed another type",
    "call": "made another call",
}


def _print_words(call: CallPrint) -> str:
    dtype = f" {call.dtype}" if call.dtype else ""
    return one_line(f"{call.collective} {call.shape}{dtype}")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


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


def _odd_ranks(parties: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return the ranks that differ from most, and the others; of equal parties all ranks differ."""
    sizes = sorted((len(party) for party in parties), reverse=True)
    if len(sizes) > 1 and sizes[0] == sizes[1]:
        return sorted(rank for party in parties for rank in party), []
    usual = max(parties, key=len)
    return sorted(rank for party in parties if party is not usual for rank in party), sorted(usual)


def _barrier(evidence: _Evidence) -> Iterable[HangFinding]:
    missed: set[int] = set()
    for fact in evidence.missed:
        missed.update(fact.ranks)
    missed -= evidence.reached | evidence.failed_elsewhere
    if not missed or evidence.has_part_barrier:
        return
    came = tuple(sorted({0, *evidence.reached}))
    words = (
        f"{listed('Rank', missed)} did not reach monitored_barrier in time, as its rank 0 reports.\n"
        "  The numbers are those of the ranks in the barrier's group; in the default group, they are those of the job."
    )
    yield HangFinding("missing", tuple(sorted(missed)), "", 0, came, words)


def _lags(evidence: _Evidence) -> Iterable[HangFinding]:
    """The desync report of TORCH_NCCL_DESYNC_DEBUG; its numbers are those of the ranks in a group."""
    for fact in evidence.lags:
        rank = evidence.rank_of(fact.process)
        if fact.group not in (None, DEFAULT_GROUP) or not fact.ranks or rank in fact.ranks:
            continue
        words = f"{listed('Rank', fact.ranks)} did not join collective {fact.call}, as torch's desync report says."
        if fact.group is None:
            words = (
                f"{words}\n  The numbers are those of the ranks in the group; in the default group, those of the job."
            )
        yield HangFinding("missing", fact.ranks, fact.group or "", fact.call, (), words)


def _queues(evidence: _Evidence) -> Iterable[HangFinding]:
    """By the numbers of calls in each group: who put fewer into the queue than another rank waits for."""
    waits: dict[str, dict[int, int]] = defaultdict(dict)  # by group and rank: the first call that did not end
    enqueued: dict[str, dict[int, int]] = defaultdict(dict)
    for status in evidence.statuses:
        last = enqueued[status.group]
        last[status.rank] = max(status.enqueued, last.get(status.rank, status.enqueued))
        if status.failed is not None:
            _keep_least(waits[status.group], status.rank, status.failed)
    for timeout in evidence.timeouts:
        if timeout.group is not None and timeout.sequence is not None:
            _keep_least(waits[timeout.group], timeout.rank, timeout.sequence)
    uncounted = {timeout.group for timeout in evidence.timeouts if timeout.call[0] in _NOT_NUMBERED}
    waiting_in: dict[int, set[str]] = defaultdict(set)
    for group, waiting in waits.items():
        for rank in waiting:
            waiting_in[rank].add(group)
    nameless = {timeout.rank for timeout in evidence.timeouts if timeout.group is None}
    calls_of: dict[tuple[str | None, int | None], set[str]] = defaultdict(set)
    for timeout in evidence.timeouts:
        calls_of[timeout.group, timeout.sequence].add(timeout.words)
    if None in uncounted:  # of a group that is not known
        return
    for group, waiting in waits.items():
        if group in uncounted or not waiting:
            continue
        number = min(waiting.values())
        missing = [rank for rank, last in enqueued[group].items() if last < number]
        elsewhere = [rank for rank in missing if waiting_in[rank] - {group} or rank in nameless]
        ranks = tuple(sorted({*missing} - {*elsewhere}))
        if not ranks:
            continue
        came = tuple(sorted(rank for rank in waiting if rank not in missing))
        words = [f"{listed('Rank', ranks)} did not reach collective {number} of {_group_words(group)}."]
        for rank in ranks[:_MOST_WAITS]:
            words.append(f"  Rank {rank}'s last call in that group was number {enqueued[group][rank]}.")
        calls = calls_of.get((group, number), set())
        if came:
            call = f" ({next(iter(calls))})" if len(calls) == 1 else ""
            was = "was" if len(came) == 1 else "were"
            words.append(f"  {listed('Rank', came)} {was} waiting in that collective{call}.")
        yield HangFinding("missing", ranks, group, number, came, "\n".join(words))


def _keep_least(numbers: dict[int, int], rank: int, number: int) -> None:
    numbers[rank] = min(number, numbers.get(rank, number))


def _other_calls(evidence: _Evidence) -> Iterable[HangFinding]:
    """Ranks that wait in the same number of a group, with different calls."""
    by_group: dict[str | None, list[_Timeout]] = defaultdict(list)
    for timeout in evidence.timeouts:
        if timeout.sequence is not None and timeout.call[0] not in _NOT_NUMBERED:
            by_group[timeout.group].append(timeout)
    has_groups = any(group is not None for group in by_group)
    for group, timeouts in by_group.items():
        number = min(timeout.sequence or 0 for timeout in timeouts)
        first_of: dict[int, int] = {}
        for timeout in timeouts:
            _keep_least(first_of, timeout.rank, timeout.sequence or 0)
        if group is None and (has_groups or {*first_of.values()} != {number}):
            continue  # these lines may be of several groups
        calls: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
        words_of: dict[int, str] = {}
        for timeout in timeouts:
            if timeout.sequence == number:
                calls[timeout.rank].add(timeout.call)
                words_of[timeout.rank] = timeout.words
        if any(len(own) > 1 for own in calls.values()):
            continue
        parties: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for rank in sorted(calls):
            parties[next(iter(calls[rank]))].append(rank)
        if len(parties) > 1:
            yield _odd_call(group, number, list(parties.values()), words_of, len({call[0] for call in parties}) > 1)


def _odd_call(
    group: str | None, number: int, parties: Sequence[list[int]], words_of: Mapping[int, str], other_collective: bool
) -> HangFinding:
    odd, usual = _odd_ranks(parties)
    cause = "collective" if other_collective else "size"
    where = f"call {number} of {_group_words(group)}"
    if usual:
        words = f"{listed('Rank', odd)} made {where} with another {cause} than {listed('rank', usual)}."
    else:
        words = (
            f"{listed('Rank', odd)} disagree on the {cause} of {where}. The log does not show which of them is wrong."
        )
    shown = [f"{listed('rank', party)} called {words_of[party[0]]}" for party in parties[:_MOST_WAITS]]
    came = tuple(sorted(rank for party in parties for rank in party))
    return HangFinding(cause, tuple(odd), group or "", number, came, f"{words}\n  {_sentence(and_joined(shown))}")


def _connecting(evidence: _Evidence) -> Iterable[HangFinding]:
    """Who had not connected when the default group was made."""
    awaited = {rank for rank in evidence.awaited if rank not in evidence.joined and rank not in evidence.communication}
    if not evidence.has_agent:
        awaited.discard(0)  # it may serve the store, and wait there for the others to join
    if awaited:
        waited = sorted({rank for rank in evidence.joined if rank not in awaited})
        words = f"{listed('Rank', awaited)} did not connect when the default group was made."
        if waited:
            words = f"{words}\n  {listed('Rank', waited)} waited for it."
        yield HangFinding("missing", tuple(sorted(awaited)), DEFAULT_GROUP, 0, tuple(waited), words)
        return
    sizes = {fact.num_ranks for fact in evidence.joins}
    if len(sizes) != 1:
        return
    num_ranks = sizes.pop()
    num_joined = max(fact.joined for fact in evidence.joins)
    missing = {*range(min(num_ranks, 1 << 16))} - evidence.joined
    if missing and len(evidence.joined) == num_joined and num_joined + len(missing) == num_ranks:
        words = (
            f"{listed('Rank', missing)} did not join: {num_joined} of {num_ranks} ranks did, and those have lines here."
        )
        yield HangFinding("missing", tuple(sorted(missing)), DEFAULT_GROUP, 0, tuple(sorted(evidence.joined)), words)


def _stacks(evidence: _Evidence) -> Iterable[HangFinding]:
    """Ranks whose stacks show that they waited in different collectives of the default group, the only one."""
    if evidence.has_subgroups:
        return
    functions: dict[int, str] = {}
    for rank, kinds in evidence.communication.items():
        if "timeout" not in kinds:
            continue  # what a rank was in when it lost a connection may be a later call
        called = {function for function in evidence.functions.get(rank, ()) if function in {*_ALL_WAIT, *_SOME_WAIT}}
        if called & {*_SOME_WAIT}:
            return
        if len(called) == 1:
            functions[rank] = _ALL_WAIT[called.pop()]
    parties: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(functions):
        parties[functions[rank]].append(rank)
    if len(parties) < 2:
        return
    odd, usual = _odd_ranks(list(parties.values()))
    calls = [f"{listed('rank', party)} waited in {function}" for function, party in parties.items()]
    if usual:
        words = f"{listed('Rank', odd)} called another collective than {listed('rank', usual)}."
    else:
        words = f"{listed('Rank', odd)} disagree on the collective. The log does not show which of them is wrong."
    words = f"{words}\n  {_sentence(and_joined(calls))}"
    yield HangFinding("collective", tuple(odd), "", 0, tuple(sorted(functions)), words)


_RULES = (_killed, _own_errors, _mismatches, _barrier, _lags, _queues, _other_calls, _connecting, _stacks)


# ---- nothing names a rank


def _unknown(evidence: _Evidence) -> HangFinding:
    """What the text does say, where it supports no rule."""
    lines = []
    waits: dict[tuple[str, str], list[int]] = defaultdict(list)
    for timeout in evidence.timeouts:
        number = "" if timeout.sequence is None else f", number {timeout.sequence} of {_group_words(timeout.group)}"
        waits[timeout.words, number].append(timeout.rank)
    for (call, number), ranks in [*waits.items()][:_MOST_WAITS]:
        lines.append(f"{listed('Rank', ranks)} waited in {call}{number}.")
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, kinds in sorted(evidence.communication.items()):
        called = sorted({*evidence.functions.get(rank, ())} & {*_ALL_WAIT, *_SOME_WAIT, "monitored_barrier"})
        where = f" in {and_joined(called)}" if called else ""
        for kind in sorted(kinds & {*_KIND_WORDS}):
            ranks_of[f"{_KIND_WORDS[kind]}{where}"].append(rank)
    for what, ranks in [*ranks_of.items()][:_MOST_WAITS]:
        lines.append(f"{listed('Rank', ranks)} {what}.")
    if evidence.num_nameless and not lines:
        lines.append("Lines about lost connections or timeouts do not say which rank printed them.")
    if evidence.reached:
        reached = listed("Rank", evidence.reached)
        lines.append(
            f"{reached} reached monitored_barrier. Its rank 0 names those that did not: see the log of rank 0."
        )
    if evidence.size_ranks:
        lines.append("So two ranks called collectives of different sizes, or different collectives.")
    silent = {*evidence.logs.file_ranks} - {*evidence.communication} - {timeout.rank for timeout in evidence.timeouts}
    if lines and silent and len(silent) < len(evidence.logs.file_ranks):
        logs = "log" if len(silent) == 1 else "logs"
        has = "has" if len(silent) == 1 else "have"
        lines.append(
            f"The {logs} of {listed('rank', silent)} {has} no such line, which alone does not explain the hang."
        )
    if not lines:
        words = "The log does not show the cause: it has no line about a timeout, a lost connection or a mismatch."
        return HangFinding(UNKNOWN, (), "", 0, (), words)
    verdict = "The log does not show which rank failed to reach the collective or called a different one."
    advice = (
        "Pass the logs of all ranks, or run the job with TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares their calls."
    )
    if evidence.timeouts:
        advice = "Pass the logs of all ranks, or their flight-recorder dumps (TORCH_NCCL_DUMP_ON_TIMEOUT=1)."
    return HangFinding(UNKNOWN, (), "", 0, (), "\n  ".join([verdict, *lines, advice]))


_KIND_WORDS = {
    "timeout": "waited in vain for a message",
    "closed": "lost the connection to another rank",
    "size": "received a message of another length than expected",
    "connect": "could not connect to another rank",
    "store": "waited in vain for the others to connect",
}
