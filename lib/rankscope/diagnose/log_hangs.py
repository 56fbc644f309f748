"""From the facts in logs to the ranks that hold a job up, or to the words that the log cannot tell.

Every rule names a rank only if the lines themselves support it, whatever lines are missing, doubled or out of order:
facts are sets, and what has no line is never taken for what did not happen. `log_evidence` sorts the facts, and
`log_unknown` says what the log shows if no rule names a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..common.checks import one_line
from ..common.words import and_joined, listed
from .log_evidence import DEFAULT_GROUP, NOT_NUMBERED, Event, Evidence, GroupRecords, StuckQueue, Timeout
from .log_findings import MOST_LISTED, HangFinding, group_words, odd_ranks, sentence
from .log_lines import JoinCount
from .log_mismatches import mismatch_findings
from .log_unknown import call_words, unknown_finding
from .logs import HangLogs

_MOST_ERRORS = 16  # ranks that are named for an error of their own
_MOST_JOB_RANKS = 1 << 16
_MOST_BARRIERS = 64  # store-based ones, of which it is tried who did not come
_IN_GROUP = "These are the numbers of the ranks in the group. In the default group, they are the job's."
# Collectives whose sizes can be compared: a lost digit shows, because one size follows from the other.
_SAME_SIZES = ("ALLREDUCE", "BROADCAST", "REDUCE")
_GATHERED = ("ALLGATHER", "_ALLGATHER_BASE")
_SCATTERED = ("REDUCE_SCATTER", "_REDUCE_SCATTER_BASE")


def explain_logs(logs: HangLogs, queues: Sequence[StuckQueue] = ()) -> list[HangFinding]:
    """Return findings, by how directly the text states them; a single one of cause "unknown" if it names no rank."""
    evidence = Evidence(logs, queues)
    findings: list[HangFinding] = []
    named: set[int] = set()
    for rule in _RULES:
        for finding in rule(evidence):
            if {*finding.ranks} - named:
                findings.append(finding)
                named.update(finding.ranks)
    return findings or [unknown_finding(evidence)]


# ---- what a single line or report states


def _killed(evidence: Evidence) -> Iterator[HangFinding]:
    """The process that was killed, if no other node's torchrun reports an earlier failure."""
    failures = evidence.first_failures
    if any(failure.rank is None for failure in failures):
        return  # a damaged report may be of an earlier one
    first = min((failure.time for failure in failures), default="")
    killed = {failure.rank: failure.signal for failure in failures if failure.signal and failure.time == first}
    for rank, signal in sorted(killed.items(), key=lambda item: item[0] or 0):
        words = (
            f"Rank {rank} was killed by {signal}, the first failure that torchrun reports.\n"
            "  See dmesg, and the limits of memory: the kernel kills a process that needs too much."
        )
        yield HangFinding("dead", (rank or 0,), "", 0, (), words)


def _own_errors(evidence: Evidence) -> Iterator[HangFinding]:
    """Ranks that an error of their own ended, while others report that they lost a rank or waited."""
    victims = {rank for rank, kinds in evidence.communication.items() if kinds} | evidence.waiting_ranks
    if not victims and not evidence.nameless and not any(evidence.timeouts()):
        return
    others = tuple(sorted(victims))
    consequence = f", and {listed('rank', others)} lost the connection to a rank, or timed out" if others else ""
    ranks = sorted({*evidence.own_errors} - victims)
    for rank in ranks[:_MOST_ERRORS]:
        words = f"Rank {rank} ended with {one_line(evidence.own_errors[rank][0]).rstrip('.')}{consequence}."
        words = f"{words}\n  See the traceback of rank {rank}."
        if evidence.restarts:
            words = f"{words} torchrun started the ranks again, so this may be of an earlier attempt."
        yield HangFinding("error", (rank,), "", 0, others, words)


def _barrier(evidence: Evidence) -> Iterator[HangFinding]:
    missed: set[int] = set()
    for fact in evidence.missed:
        missed.update(fact.ranks)
    missed -= evidence.reached | evidence.failed_elsewhere
    if not missed or evidence.part_barrier:
        return
    came = tuple(sorted({0, *evidence.reached}))
    words = f"{listed('Rank', missed)} did not reach monitored_barrier in time, as its rank 0 reports.\n  {_IN_GROUP}"
    yield HangFinding("missing", tuple(sorted(missed)), "", 0, came, words)


def _lags(evidence: Evidence) -> Iterator[HangFinding]:
    """The desync report of TORCH_NCCL_DESYNC_DEBUG; its numbers are those of the ranks in a group."""
    if evidence.has_subgroups:
        return
    for fact in evidence.lags:
        if fact.ranks and evidence.rank_of(fact.origin) not in fact.ranks:
            words = f"{listed('Rank', fact.ranks)} did not join collective {fact.call}, as torch's desync report says."
            yield HangFinding("missing", fact.ranks, "", fact.call, (), f"{words}\n  {_IN_GROUP}")


# ---- numbers of calls in the queues of one event


def _queues(evidence: Evidence) -> Iterator[HangFinding]:
    """By the numbers of calls in each group: who did not put the one into the queue that another rank waits for."""
    for event in evidence.events:
        waiting_in = event.waiting_in()
        for group in _comparable_groups(event, evidence):
            finding = _behind(group, waiting_in)
            if finding is not None:
                yield _dated(finding, event, evidence)


def _comparable_groups(event: Event, evidence: Evidence) -> Iterator[GroupRecords]:
    """Yield the groups of which ranks can be compared: the numbers are those of one group in one attempt."""
    groups = event.groups()
    nameless = groups.pop(None, None)
    if event.is_mixed or (nameless is not None and not _is_numbered(nameless)):
        return
    for group in groups.values():
        if group.name not in evidence.shared_names and _is_numbered(group) and _is_of_one(group.queues):
            yield group


def _is_numbered(group: GroupRecords) -> bool:
    return all(timeout.collective not in NOT_NUMBERED for timeout in group.timeouts)


def _is_of_one(queues: Sequence[StuckQueue]) -> bool:
    """Whether these can be the queues of one group in one attempt.

    No two ranks have the same number in the group, and no rank has put fewer calls into its queue than it waited for.
    """
    rank_of: dict[int, int] = {}
    failed: dict[int, int] = {}
    for queue in queues:
        if queue.rank_in_group is not None and rank_of.setdefault(queue.rank_in_group, queue.rank) != queue.rank:
            return False
        if queue.failed is not None:
            failed[queue.rank] = max(queue.failed, failed.get(queue.rank, queue.failed))
    return all(queue.enqueued >= failed.get(queue.rank, queue.enqueued) for queue in queues)


def _behind(group: GroupRecords, waiting_in: Mapping[int, set[str | None]]) -> HangFinding | None:
    """Return the ranks that did not reach the first collective of a group that did not end.

    All ranks must have put the call before it into their queues, because it ended; a rank that seems to be further
    behind has a line from another time, or of another group. A rank that waits itself, in whatever group, is not named.
    """
    waits = group.first_waits()
    if not waits:
        return None
    number = min(waits.values())
    last: dict[int, int] = {}
    for queue in group.queues:
        last[queue.rank] = max(queue.enqueued, last.get(queue.rank, queue.enqueued))
    behind = [rank for rank, enqueued in last.items() if enqueued == number - 1]
    ranks = tuple(sorted(rank for rank in behind if not waiting_in.get(rank)))
    if not ranks:
        return None
    came = tuple(sorted(waits))
    words = [f"{listed('Rank', ranks)} did not reach collective {number} of {group_words(group.name)}."]
    for rank in ranks[:MOST_LISTED]:
        words.append(f"  {last_call_words(rank, last[rank])}")
    calls = {call_words(timeout) for timeout in group.timeouts if timeout.sequence == number}
    call = f", {calls.pop()}" if len(calls) == 1 else ""
    verb = "was" if len(came) == 1 else "were"
    words.append(f"  {listed('Rank', came)} {verb} waiting in that collective{call}.")
    return HangFinding("missing", ranks, group.name or "", number, came, "\n".join(words))


def last_call_words(rank: int, number: int) -> str:
    if number == 0:
        return f"Rank {rank} had made no call in that group."
    return f"Rank {rank}'s last call in that group was number {number}."


def _other_calls(evidence: Evidence) -> Iterator[HangFinding]:
    """Ranks that wait in the same number of a group, with different calls."""
    for event in evidence.events:
        for group in _comparable_groups(event, evidence):
            finding = _odd_call(group)
            if finding is not None:
                yield _dated(finding, event, evidence)


def _odd_call(group: GroupRecords) -> HangFinding | None:
    waits = group.first_waits()
    number = min(waits.values(), default=0)
    timeouts_of: dict[int, list[Timeout]] = defaultdict(list)
    for timeout in group.timeouts:
        if timeout.sequence == number and timeout.rank is not None and timeout.rank in waits:
            timeouts_of[timeout.rank].append(timeout)
    if len(timeouts_of) < 2:
        return None
    calls = {}
    for rank, timeouts in sorted(timeouts_of.items()):
        if len({(timeout.collective, timeout.num_in, timeout.num_out) for timeout in timeouts}) > 1:
            return None  # two lines of one rank contradict each other
        calls[rank] = timeouts[0]
    cause = "collective"
    parties = _parties(calls, lambda call: call.collective)
    if len(parties) == 1:
        cause = "size"
        parties = _parties(_with_sizes(calls), lambda call: (call.num_in, call.num_out))
    if len(parties) < 2:
        return None
    odd, usual = odd_ranks(parties)
    where = f"call {number} of {group_words(group.name)}"
    if usual:
        words = f"{listed('Rank', odd)} made {where} with another {cause} than {listed('rank', usual)}."
    else:
        words = f"{listed('Rank', odd)} disagree on the {cause} of {where}. The log cannot tell which of them is wrong."
    shown = [f"{listed('rank', party)} called {_torch_words(calls[party[0]])}" for party in parties[:MOST_LISTED]]
    came = tuple(sorted(rank for party in parties for rank in party))
    return HangFinding(cause, tuple(odd), group.name or "", number, came, f"{words}\n  {sentence(and_joined(shown))}")


def _torch_words(call: Timeout) -> str:
    return call_words(call, name=call.collective)


def _parties(calls: dict[int, Timeout], key: Callable[[Timeout], object]) -> list[list[int]]:
    """Return the ranks by what they called."""
    parties: dict[object, list[int]] = defaultdict(list)
    for rank, call in calls.items():
        parties[key(call)].append(rank)
    return list(parties.values())


def _with_sizes(calls: dict[int, Timeout]) -> dict[int, Timeout]:
    """Return the calls whose sizes can be compared; none if the sizes of some do not follow from each other."""
    ratios = set()
    for call in calls.values():
        ratio = _ratio(call)
        if ratio is None:
            return {}
        ratios.add(ratio)
    return calls if len(ratios) == 1 else {}


def _ratio(call: Timeout) -> int | None:
    """Return how many times larger one size is than the other, as the collective demands; None if it is not."""
    small, large = call.num_in, call.num_out
    if call.collective in _SCATTERED:
        small, large = large, small
    if call.collective not in (*_SAME_SIZES, *_GATHERED, *_SCATTERED) or not small or not large or large % small:
        return None
    if call.collective in _SAME_SIZES and small != large:
        return None
    return large // small


def _dated(finding: HangFinding, event: Event, evidence: Evidence) -> HangFinding:
    """Say which event a finding explains, if the log has several."""
    if len(evidence.events) == 1:
        return finding
    when = f"of {event.stamp}" if event.stamp else "without a time"
    note = f"This explains the lines {when}. The log has lines from other times, too, perhaps of other attempts."
    return finding._replace(words=f"{finding.words}\n  {note}")


# ---- the start


def _connecting(evidence: Evidence) -> Iterator[HangFinding]:
    """Who had not connected when the default group was made."""
    awaited = {*evidence.awaited} - evidence.connected - {*evidence.communication}
    if not evidence.has_agent:
        awaited.discard(0)  # it may serve the store, and wait there for the others to join
    if not awaited:
        return
    waited = sorted(evidence.connected)
    words = f"{listed('Rank', awaited)} did not connect when the default group was made."
    if waited:
        pronoun = "it" if len(awaited) == 1 else "them"
        words = f"{words}\n  {listed('Rank', waited)} waited for {pronoun}."
    yield HangFinding("missing", tuple(sorted(awaited)), DEFAULT_GROUP, 0, tuple(waited), words)


def _joining(evidence: Evidence) -> Iterator[HangFinding]:
    """Who did not come to a store-based barrier of all ranks, if those that came are known."""
    if evidence.restarts:
        return  # the lines may be of several attempts
    for joins in [*evidence.joins.values()][:_MOST_BARRIERS]:
        missing, joined = _not_joined(joins, evidence)
        if not missing:
            continue
        num_ranks = len(missing) + len(joined)
        others = f"the other {len(joined)} of {num_ranks} ranks did ({listed('rank', joined)})"
        words = f"{listed('Rank', missing)} did not join the group; {others}."
        group = "" if joins[0].barrier else DEFAULT_GROUP
        yield HangFinding("missing", tuple(sorted(missing)), group, 0, tuple(sorted(joined)), words)


def _not_joined(joins: Sequence[JoinCount], evidence: Evidence) -> tuple[set[int], set[int]]:
    """Return the ranks that did not join and those that did; none if the counts and the lines do not fit together."""
    counts = {(fact.joined, fact.num_ranks) for fact in joins}
    ranks = {evidence.rank_of(fact.origin) for fact in joins}
    if not joins[0].barrier and None not in ranks:  # ranks that waited for the others' addresses are clients, too
        ranks |= evidence.connected
    joined = {rank for rank in ranks if rank is not None}
    if len(counts) != 1 or len(joined) != len(ranks) or not joins[0].is_of_all_ranks:
        return set(), set()
    ((num_joined, num_ranks),) = counts
    if num_joined != len(joined) or num_ranks > _MOST_JOB_RANKS or max(joined) >= num_ranks:
        return set(), set()
    return {*range(num_ranks)} - joined, joined


_RULES = (
    _killed,
    _own_errors,
    mismatch_findings,
    _barrier,
    _lags,
    _queues,
    _other_calls,
    _connecting,
    _joining,
)
