"""From the facts in logs to the ranks that hold a job up, or to the words that the log cannot tell.

Every rule names a rank only if the lines themselves support it, whatever lines are missing, doubled or out of order:
facts are sets, and what has no line is never taken for what did not happen. `log_evidence` sorts the facts, and
`log_unknown` says what the log shows if no rule names a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..common.words import and_joined, listed, one_line
from .log_evidence import NOT_NUMBERED, Event, Evidence, GroupRecords, StuckQueue, Timeout
from .log_findings import MOST_LISTED, HangFinding, group_words, odd_ranks, sentence
from .log_lines import DEFAULT_GROUP, JoinCount
from .log_mismatches import mismatch_findings
from .log_unknown import call_words, unknown_finding
from .logs import HangLogs

_MOST_ERRORS = 16  # ranks that are named for an error of their own
_MOST_JOB_RANKS = 1 << 16  # a larger number of ranks is a damaged digit
# Store-based barriers whose missing ranks are looked for. One of 60,000 ranks takes 13 ms, so all together take less
# than a second, even if a log has lines of thousands.
_MOST_BARRIERS = 64
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
            if not named.issuperset(finding.ranks):  # else a rule before says the same more directly
                findings.append(finding)
                named.update(finding.ranks)
    return findings or [unknown_finding(evidence)]


# ---- what a single line or report states


def _killed(evidence: Evidence) -> Iterator[HangFinding]:
    """The process that was killed, if no other node's torchrun reports an earlier failure."""
    # the texts of these times, such as "2026-01-31_23:59:59", are in the order of time
    first_time = min((failure.time for failure in evidence.first_failures), default="")
    signals: dict[int, str] = {}  # of the ranks that a signal killed first of all
    for failure in evidence.first_failures:
        if failure.rank is None:
            return  # its report is damaged, and it may have been the first one
        if failure.signal and failure.time == first_time:
            signals[failure.rank] = failure.signal
    for rank, signal in sorted(signals.items()):
        words = (
            f"Rank {rank} was killed by {signal}, the first failure that torchrun reports.\n"
            "  See dmesg, and the limits of memory: the kernel kills a process that needs too much."
        )
        yield HangFinding("dead", (rank,), group="", call=0, came=(), words=words)


def _own_errors(evidence: Evidence) -> Iterator[HangFinding]:
    """Ranks that an error of their own ended, while others report that they lost a rank or waited."""
    victims = set(evidence.communication_errors) | evidence.waiting_ranks
    if not victims and not evidence.errors_without_rank and not any(evidence.timeouts()):
        return  # no line shows that a rank was held up by these errors
    others = tuple(sorted(victims))
    consequence = f", and {listed('rank', others)} lost the connection to a rank, or timed out" if others else ""
    ranks = sorted(set(evidence.own_errors) - victims)  # an error of a victim may be a consequence
    for rank in ranks[:_MOST_ERRORS]:
        first_error = evidence.own_errors[rank][0]  # Python prints the error that caused the others first
        words = f"Rank {rank} ended with {one_line(first_error).rstrip('.')}{consequence}."
        words = f"{words}\n  See the traceback of rank {rank}."
        if evidence.restarts:
            words = f"{words} torchrun started the ranks again, so this may be of an earlier attempt."
        yield HangFinding("error", (rank,), group="", call=0, came=others, words=words)


def _barrier(evidence: Evidence) -> Iterator[HangFinding]:
    """The ranks that did not come to a ``monitored_barrier``, as its rank 0 reports."""
    if evidence.subgroup_barriers:
        return  # the reports may be of several groups, in which a number stands for different ranks
    missed: set[int] = set()
    for report in evidence.barrier_reports:
        missed.update(report.ranks)
    # a rank that prints that it came is not missing: rank 0's report is of another barrier
    missed -= evidence.reached_barrier
    # a rank whose call differed from the others' stopped there, before the barrier: `mismatch_findings` explains it
    missed -= evidence.mismatched_ranks
    if not missed:
        return
    came = tuple(sorted({0, *evidence.reached_barrier}))  # rank 0 came, or it could not report
    words = f"{listed('Rank', missed)} did not reach monitored_barrier in time, as its rank 0 reports.\n  {_IN_GROUP}"
    yield HangFinding("missing", tuple(sorted(missed)), group="", call=0, came=came, words=words)


def _lags(evidence: Evidence) -> Iterator[HangFinding]:
    """The desync report of TORCH_NCCL_DESYNC_DEBUG; its numbers are those of the ranks in a group."""
    if evidence.has_subgroups:
        return  # then the numbers may stand for other ranks of the job
    for report in evidence.lags:
        reporter = evidence.rank_of(report.origin)
        # a rank prints this report while it waits itself: a report that names its own rank is not reliable
        if reporter not in report.ranks:
            missing = listed("Rank", report.ranks)
            words = f"{missing} did not join collective {report.call}, as torch's desync report says."
            words = f"{words}\n  {_IN_GROUP}"
            yield HangFinding("missing", report.ranks, group="", call=report.call, came=(), words=words)


# ---- numbers of calls in the queues of one event


def _queues(evidence: Evidence) -> Iterator[HangFinding]:
    """The ranks that did not put the call into their queue in which another rank waits, by the numbers of the calls."""
    for event in evidence.events:
        waiting_in = event.waiting_in()
        for group in _comparable_groups(event, evidence):
            finding = _behind(group, waiting_in)
            if finding is not None:
                yield _dated(finding, event, evidence)


def _comparable_groups(event: Event, evidence: Evidence) -> Iterator[GroupRecords]:
    """Yield the groups whose ranks can be compared: the numbers of calls are those of one group in one attempt."""
    if event.is_mixed:
        return
    groups = event.groups()
    group_without_name = groups.pop(None, None)  # its key is None: no line states the group of these timeouts
    if group_without_name is not None and not _counts_collectives_only(group_without_name):
        return  # it may be any of the groups
    for group in groups.values():
        is_one_group = group.name not in evidence.shared_names and _are_of_one_group(group.queues)
        if is_one_group and _counts_collectives_only(group):
            yield group


def _counts_collectives_only(group: GroupRecords) -> bool:
    """Return False if a rank timed out in a message: then the numbers may count messages, which two ranks alone make.

    See `NOT_NUMBERED`.
    """
    return all(timeout.collective not in NOT_NUMBERED for timeout in group.timeouts)


def _are_of_one_group(queues: Sequence[StuckQueue]) -> bool:
    """Return whether these can be the queues of one group in one attempt.

    No two ranks have the same number in the group, and no rank has put fewer calls into its queue than it waited for.
    """
    rank_of_number: dict[int, int] = {}
    last_failed: dict[int, int] = {}  # the last call that a rank waited for
    for queue in queues:
        if queue.rank_in_group is not None:
            rank = rank_of_number.setdefault(queue.rank_in_group, queue.rank)
            if rank != queue.rank:
                return False
        if queue.failed is not None:
            last_failed[queue.rank] = max(queue.failed, last_failed.get(queue.rank, 0))
    return all(queue.enqueued >= last_failed.get(queue.rank, 0) for queue in queues)


def _behind(group: GroupRecords, waiting_in: Mapping[int, set[str | None]]) -> HangFinding | None:
    """Return the ranks that did not reach the first collective of a group that did not end.

    All ranks must have put the call before it into their queues, because it ended; a rank that seems to be further
    behind has a line from another time, or of another group. A rank that waits itself, in whatever group, is not named.
    """
    waits = group.first_waits()
    if not waits:
        return None
    number = min(waits.values())
    last_call: dict[int, int] = {}  # that each rank put into its queue
    for queue in group.queues:
        last_call[queue.rank] = max(queue.enqueued, last_call.get(queue.rank, 0))
    behind = [rank for rank, last in last_call.items() if last == number - 1]
    ranks = tuple(sorted(rank for rank in behind if not waiting_in.get(rank)))
    if not ranks:
        return None
    came = tuple(sorted(waits))
    waiting_there = [rank for rank in came if waits[rank] == number]  # others came, and wait in a later collective
    words = [f"{listed('Rank', ranks)} did not reach collective {number} of {group_words(group.name)}."]
    for rank in ranks[:MOST_LISTED]:
        words.append(f"  {_last_call_words(rank, last_call[rank])}")
    calls = {call_words(timeout) for timeout in group.timeouts if timeout.sequence == number}
    call = f", {calls.pop()}" if len(calls) == 1 else ""
    verb = "was" if len(waiting_there) == 1 else "were"
    words.append(f"  {listed('Rank', waiting_there)} {verb} waiting in that collective{call}.")
    return HangFinding("missing", ranks, group.name or "", call=number, came=came, words="\n".join(words))


def _last_call_words(rank: int, number: int) -> str:
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
    """Return the ranks whose first call that did not end is another one than on most ranks, or has another size."""
    number = min(group.first_waits().values(), default=0)  # without any waits, no call is compared below
    calls = _calls_with_number(group, number)
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
        words = f"{listed('Rank', odd)} called {where} with a different {cause} than {listed('rank', usual)}."
    else:
        words = f"{listed('Rank', odd)} disagree on the {cause} of {where}. The log cannot tell which of them is wrong."
    shown = [f"{listed('rank', party)} called {_torch_words(calls[party[0]])}" for party in parties[:MOST_LISTED]]
    words = f"{words}\n  {sentence(and_joined(shown))}"
    came = tuple(sorted(rank for party in parties for rank in party))
    return HangFinding(cause, tuple(odd), group.name or "", call=number, came=came, words=words)


def _calls_with_number(group: GroupRecords, number: int) -> dict[int, Timeout]:
    """Return, by rank, the call with this number in which a rank waits; none if two lines of a rank contradict.

    Ranks whose lines state several numbers are left out, because nothing says in which of these calls they wait.
    """
    waits = group.first_waits()
    calls: dict[int, Timeout] = {}
    for timeout in group.timeouts:
        if timeout.sequence == number and timeout.rank is not None and timeout.rank in waits:
            call = calls.setdefault(timeout.rank, timeout)
            if call != timeout:
                return {}
    return dict(sorted(calls.items()))


def _torch_words(call: Timeout) -> str:
    return call_words(call, name=call.collective)


def _parties(calls: dict[int, Timeout], key: Callable[[Timeout], object]) -> list[list[int]]:
    """Return the ranks in one list for each different key of their calls."""
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
    """Return how many times as large the larger one of a call's two sizes is, or None if they cannot be compared.

    The output of an all-gather is a multiple of the input, by the number of ranks; the input of a reduce-scatter is
    one of the output; and for `_SAME_SIZES` both are the same. A number that lost a digit rarely fits. The result is
    None if the sizes do not fit together or are not stated, and for collectives without such a rule.
    """
    if call.collective in _SCATTERED:
        small, large = call.num_out, call.num_in
    elif call.collective in (*_GATHERED, *_SAME_SIZES):
        small, large = call.num_in, call.num_out
    else:
        return None
    if not small or not large or large % small != 0:
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
    """The ranks that had not connected when the default group was made: others waited for their addresses."""
    missing = evidence.awaited - evidence.connected - set(evidence.communication_errors)  # these ranks were there
    if not evidence.has_agent:
        missing.discard(0)  # it may serve the store, and wait there for the others to join
    if not missing:
        return
    waited = sorted(evidence.connected)
    words = f"{listed('Rank', missing)} did not connect when the default group was made."
    if waited:
        pronoun = "it" if len(missing) == 1 else "them"
        words = f"{words}\n  {listed('Rank', waited)} waited for {pronoun}."
    yield HangFinding("missing", tuple(sorted(missing)), DEFAULT_GROUP, call=0, came=tuple(waited), words=words)


def _joining(evidence: Evidence) -> Iterator[HangFinding]:
    """The ranks that did not come to a store-based barrier of all ranks, if those that came are known."""
    if evidence.restarts:
        return  # the lines may be of several attempts
    for lines in list(evidence.joins.values())[:_MOST_BARRIERS]:
        joined = _joined(lines, evidence)
        if joined is None:
            continue
        num_ranks = lines[0].num_ranks
        missing = set(range(num_ranks)) - joined
        if not missing:
            continue
        others = f"the other {len(joined)} of {num_ranks} ranks did ({listed('rank', joined)})"
        words = f"{listed('Rank', missing)} did not join the group; {others}."
        # the key of a barrier does not state its group; without a key, ranks waited to connect, as the default group
        group = "" if lines[0].barrier else DEFAULT_GROUP
        yield HangFinding("missing", tuple(sorted(missing)), group, call=0, came=tuple(sorted(joined)), words=words)


def _joined(lines: Sequence[JoinCount], evidence: Evidence) -> set[int] | None:
    """Return the ranks that joined a barrier, from the lines that they printed while they waited for the others.

    None if these are not certainly all that joined. Then a rank without a line may have joined, too.
    """
    joined: set[int] = set()
    first_line = lines[0]
    for line in lines:
        rank = evidence.rank_of(line.origin)
        is_same_count = line.joined == first_line.joined and line.num_ranks == first_line.num_ranks
        if rank is None or not is_same_count:  # with other counts, the lines may be of several attempts
            return None
        joined.add(rank)
    if not first_line.barrier:  # the store counts its clients, and ranks that waited for others' addresses are clients
        joined |= evidence.connected
    are_all = len(joined) == first_line.joined and first_line.is_of_all_ranks
    is_legible = first_line.num_ranks <= _MOST_JOB_RANKS and max(joined) < first_line.num_ranks
    return joined if are_all and is_legible else None


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
