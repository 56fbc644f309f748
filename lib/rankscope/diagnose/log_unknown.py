"""What a log shows, where it does not show which rank holds the job up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..common.words import and_joined, listed, one_line
from .log_evidence import Evidence, StuckQueue, Timeout
from .log_findings import MOST_LISTED, UNKNOWN, HangFinding, group_words
from .log_lines import CallPrint

_KIND_WORDS = {  # by the kind of a `CommunicationError`; "other" says nothing that a reader could use
    "timeout": "timed out waiting for a message",
    "closed": "lost the connection to another rank",
    "size": "received a message of an unexpected length",
    "connect": "could not connect to another rank",
    "store": "timed out waiting for the others to connect",
    "nccl": "reports an NCCL error, which can occur because another rank ended",
}
_OP_NAMES = {
    "ALLREDUCE": "an allreduce",
    "ALLREDUCE_COALESCED": "a coalesced allreduce",
    "BROADCAST": "a broadcast",
    "REDUCE": "a reduce",
    "ALLGATHER": "an all-gather",
    "_ALLGATHER_BASE": "an all-gather",
    "REDUCE_SCATTER": "a reduce-scatter",
    "_REDUCE_SCATTER_BASE": "a reduce-scatter",
    "GATHER": "a gather",
    "SCATTER": "a scatter",
    "ALLTOALL": "an all-to-all",
    "ALLTOALL_BASE": "an all-to-all",
    "BARRIER": "a barrier",
    "SEND": "a send",
    "RECV": "a receive",
}


def call_words(call: Timeout, name: str = "") -> str:
    """Return a call with its size, by a name for it, or else in plain words."""
    name = name or _OP_NAMES.get(call.collective, call.collective)
    if call.num_in is None:
        return name
    elements = "1 element" if call.num_in == 1 else f"{call.num_in:,} elements"
    if call.num_in == call.num_out:
        return f"{name} of {elements}"
    return f"{name} of {elements} into {call.num_out:,}"


def unknown_finding(evidence: Evidence) -> HangFinding:
    """Say that the log names no rank, list what it does show, and say what else would help."""
    lines = list(_observations(evidence))
    if not lines:
        words = (
            "The log does not show which rank failed to reach the collective or called a different one.\n"
            "  rankscope cannot tell: it recognises no line of this log. It looks for lines about timeouts, lost "
            "connections and calls that differ."
        )
        return HangFinding(UNKNOWN, ranks=(), group="", call=0, came=(), words=words)
    verdict = (
        "The log does not show which rank failed to reach the collective or called a different one.\n"
        "  rankscope cannot tell; the log shows only this:"
    )
    words = "\n  ".join([verdict, *lines, _advice(evidence)])
    return HangFinding(UNKNOWN, ranks=(), group="", call=0, came=(), words=words)


def _advice(evidence: Evidence) -> str:
    if any(evidence.timeouts()):
        return "Logs of more ranks may show it, or flight-recorder dumps (TORCH_NCCL_DUMP_ON_TIMEOUT=1)."
    return "Logs of more ranks may show it, or a run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares all calls."


def _observations(evidence: Evidence) -> Iterator[str]:
    yield from _timeouts(evidence)
    yield from _queues(evidence)
    yield from _messages(evidence)
    yield from _start(evidence)
    yield from _reports(evidence)
    yield from _silent(evidence)


def _timeouts(evidence: Evidence) -> Iterator[str]:
    """Who waited in which collective of NCCL."""
    waits: dict[str, set[int]] = defaultdict(set)
    waits_in_group: dict[str, set[int]] = defaultdict(set)  # by processes of which only the rank in a group is known
    for timeout in evidence.timeouts():
        number = "" if timeout.sequence is None else f", number {timeout.sequence} of {group_words(timeout.group)}"
        words = f"waited in {call_words(timeout)}{number}"
        if timeout.rank is None:
            waits_in_group[words].add(timeout.rank_in_group)
        else:
            waits[words].add(timeout.rank)
    for words, ranks in list(waits.items())[:MOST_LISTED]:
        yield f"{listed('Rank', ranks)} {words}."
    for words, ranks in list(waits_in_group.items())[:MOST_LISTED]:
        yield f"{listed('Rank', ranks)}, as numbered in a group, {words}."
    if len(evidence.events) > 1:  # at least one of these has a time
        times = [str(event.stamp) for event in evidence.events if event.stamp]
        yield f"The lines are of several attempts or jobs, at {and_joined(times[:MOST_LISTED])}."
    elif any(event.is_mixed for event in evidence.events):
        yield "The lines may be of several attempts, because torchrun started the ranks again."


def _queues(evidence: Evidence) -> Iterator[str]:
    """The last call in each queue of the ranks that did not wait."""
    waiting = evidence.waiting_ranks
    queue_of: dict[tuple[int, str], StuckQueue] = {}  # by rank and group; that of the last event counts
    for event in evidence.events:
        for queue in event.queues:
            if queue.rank not in waiting:
                queue_of[queue.rank, queue.group] = queue
    for (rank, group), queue in sorted(queue_of.items())[:MOST_LISTED]:
        failed = "" if queue.failed is None else f", and number {queue.failed} failed"
        yield f"Rank {rank}'s last call in {group_words(group)} was number {queue.enqueued}{failed}."
    if evidence.shared_names:
        names = and_joined([one_line(name) for name in sorted(evidence.shared_names)[:MOST_LISTED]])
        yield f"Several groups of a job can be called {names}, so their ranks cannot be compared."


def _messages(evidence: Evidence) -> Iterator[str]:
    """Whose messages and connections failed."""
    ranks_of: dict[str, list[int]] = defaultdict(list)  # by the words for what happened to them
    for rank, kinds in sorted(evidence.communication_errors.items()):
        for kind in sorted(kinds):
            if kind in _KIND_WORDS:
                ranks_of[_KIND_WORDS[kind]].append(rank)
    for words, ranks in list(ranks_of.items())[:MOST_LISTED]:
        yield f"{listed('Rank', ranks)} {words}."
    words_without_rank = [_KIND_WORDS[kind] for kind in evidence.errors_without_rank if kind in _KIND_WORDS]
    for words in sorted(words_without_rank):
        yield f"A rank that the log does not name {words}."
    all_kinds = evidence.errors_without_rank.union(*evidence.communication_errors.values())
    if "size" in all_kinds:
        yield "So two ranks called collectives of different sizes, or different collectives."


def _start(evidence: Evidence) -> Iterator[str]:
    """Who waited for others to join a group."""
    for lines in list(evidence.joins.values())[:MOST_LISTED]:
        last_line = max(lines, key=lambda line: line.joined)  # the count only grows
        where = "the store" if not last_line.barrier else f"the group with the key {one_line(last_line.barrier)}"
        yield f"{last_line.joined} of {last_line.num_ranks} ranks joined {where} in time."
    awaited = [rank for rank in sorted(evidence.awaited) if rank not in evidence.connected]
    if awaited:
        yield f"The address of {listed('rank', awaited)} was not there when the default group was made."
    waiting = {rank for rank in evidence.id_waits if rank is not None}
    if evidence.id_waits:
        who = listed("Rank", waiting) if waiting else "A rank"
        yield f"{who} waited for rank 0 of a group to begin its first collective of NCCL."


def _reports(evidence: Evidence) -> Iterator[str]:
    """What torch's own reports say of ranks by their numbers in a group, and torchrun's of ranks that failed."""
    for words in sorted(evidence.subgroup_barriers):  # at most the two sentences that there are
        yield f"{words}."
    if evidence.reached_barrier:
        reached = listed("Rank", evidence.reached_barrier)
        yield f"{reached} reached monitored_barrier. Its rank 0 names those that did not: see the log of rank 0."
    if evidence.barrier_reports:
        missed = {rank for fact in evidence.barrier_reports for rank in fact.ranks}
        yield f"Rank 0 of a monitored_barrier reports that {listed('rank', missed)} did not reach it."
    for lag in evidence.lags[:MOST_LISTED]:
        yield (
            f"torch's desync report says that {listed('rank', lag.ranks)}, as numbered in a group, did not join "
            f"collective {lag.call}."
        )
    for mismatch in evidence.mismatches[:MOST_LISTED]:
        yield (
            f"Ranks {mismatch.rank_in_group} and {mismatch.other_in_group} of a group made different calls: "
            f"{_collective_words(mismatch.own)} and {_collective_words(mismatch.other)}."
        )
    for rank, errors in sorted(evidence.own_errors.items())[:MOST_LISTED]:
        yield f"Rank {rank} ended with {one_line(errors[0])}."
    failures = [failure for failure in evidence.first_failures if failure.rank is not None]
    for failure in failures[:MOST_LISTED]:
        how = f"was killed by {failure.signal}" if failure.signal else "ended"
        yield f"Rank {failure.rank} {how}, the first failure on its node, at {failure.time}."


def _collective_words(call: CallPrint) -> str:
    return one_line(call.collective) or "one that is not legible"


def _silent(evidence: Evidence) -> Iterator[str]:
    """The ranks whose log files have no line about a timeout, a failed message or an error, if other files have one."""
    files = set(evidence.logs.file_ranks)
    speaking = set(evidence.communication_errors) | evidence.waiting_ranks | set(evidence.own_errors)
    silent = files - speaking
    if silent and len(silent) < len(files):
        logs, have = ("log", "has") if len(silent) == 1 else ("logs", "have")
        yield f"The {logs} of {listed('rank', silent)} {have} no such line, but that alone does not show the cause."
