"""The facts in logs by rank and by event, for the rules in `log_hangs`.

A log may cover several attempts of a job, or several jobs. Lines that c10 stamped with times far apart, or between
which torchrun started the ranks again, are of different events, and the rules never compare what is of different ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import singledispatchmethod
from typing import Any, NamedTuple

from .log_lines import (
    DEFAULT_GROUP,
    AddressWait,
    BarrierMissed,
    BarrierReached,
    CallMismatch,
    CommunicationError,
    DesyncLag,
    FirstFailure,
    JoinCount,
    LogFact,
    LogOrigin,
    OwnError,
    QueueStatus,
    Restart,
    Stamp,
    UniqueIdWait,
    WatchdogTimeout,
)
from .logs import HangLogs

_QueueFact = QueueStatus | WatchdogTimeout  # facts of the queue of a rank in a group of NCCL
_MOST_MISMATCHES = 2048  # reports of two ranks that differ: each odd rank of them is compared with each usual one
# Ranks that time out in one hang print within seconds of each other, and those that the first one alarms do, too. A
# job that starts again needs time to start, and the whole timeout until it prints that it hangs.
_EVENT_S = 60
# Calls that only some ranks of a group make, and that old versions of torch number together with the collectives. After
# one of these, ranks have different numbers for the same collective.
NOT_NUMBERED = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")


class StuckQueue(NamedTuple):
    """A rank's queue in a group: the last call in it, and the first one that did not end; from a dump or a log.

    `failed` is None if all calls ended, or if no line states which one did not.
    """

    rank: int
    group: str
    failed: int | None
    enqueued: int
    rank_in_group: int | None = None  # if it is stated


class Timeout(NamedTuple):
    """A collective of NCCL in which a process waited in vain. `group` is None if nothing shows it.

    `rank` is None if the text only states the process's rank within its group.
    """

    rank: int | None
    rank_in_group: int
    group: str | None
    sequence: int | None
    collective: str
    num_in: int | None
    num_out: int | None


class GroupRecords(NamedTuple):
    """The queues and timeouts of one group; `name` is None for timeouts of which nothing shows the group."""

    name: str | None
    queues: list[StuckQueue]
    timeouts: list[Timeout]

    def failed_numbers(self) -> dict[int, set[int]]:
        """Return, by rank, the numbers of the calls that did not end."""
        numbers: dict[int, set[int]] = defaultdict(set)
        for queue in self.queues:
            if queue.failed is not None:
                numbers[queue.rank].add(queue.failed)
        for timeout in self.timeouts:
            if timeout.sequence is not None and timeout.rank is not None:
                numbers[timeout.rank].add(timeout.sequence)
        return numbers

    def first_waits(self) -> dict[int, int]:
        """Return, by rank, the number of the call that did not end; without ranks whose lines state several numbers."""
        waits = {}
        for rank, numbers in self.failed_numbers().items():
            if len(numbers) == 1:
                (waits[rank],) = numbers
        return waits


class Event(NamedTuple):
    """Queues and timeouts of one hang, and its time if it is stated.

    `is_mixed` says that the lines may be of several attempts, and must not be compared.
    """

    queues: list[StuckQueue]
    timeouts: list[Timeout]
    stamp: Stamp | None
    is_mixed: bool = False

    def groups(self) -> dict[str | None, GroupRecords]:
        """Return the records by group."""
        groups: dict[str | None, GroupRecords] = {}
        for queue in self.queues:
            groups.setdefault(queue.group, GroupRecords(queue.group, [], [])).queues.append(queue)
        for timeout in self.timeouts:
            groups.setdefault(timeout.group, GroupRecords(timeout.group, [], [])).timeouts.append(timeout)
        return groups

    def waiting_in(self) -> dict[int, set[str | None]]:
        """Return the groups in which each rank waits; None stands for a group that nothing shows."""
        groups: dict[int, set[str | None]] = defaultdict(set)
        for queue in self.queues:
            if queue.failed is not None:
                groups[queue.rank].add(queue.group)
        for timeout in self.timeouts:
            if timeout.rank is not None:
                groups[timeout.rank].add(timeout.group)
        return groups


class _FailedCall(NamedTuple):
    """A call of a rank that failed; its number in its group is None if nothing failed, or if no line states it."""

    rank: int
    number: int | None


class _GroupMember(NamedTuple):
    """A group, and the number that a rank has in it, if it is stated."""

    group: str
    rank_in_group: int | None


class Evidence:
    """The facts of the logs by rank, for those facts whose rank is certain, and by event; see `events`.

    Ranks are those of the job, unless a comment says otherwise.
    """

    def __init__(self, logs: HangLogs, queues: Sequence[StuckQueue]) -> None:
        self.logs = logs
        self._trusted_labels = _trusted_labels(logs.facts)
        self.own_errors: dict[int, list[str]] = defaultdict(list)  # the errors that ended each rank
        self.communication_errors: dict[int, set[str]] = defaultdict(set)  # kinds of lost connections and waits
        self.errors_without_rank: set[str] = set()  # such kinds, of processes whose rank is unknown
        self.first_failures: list[FirstFailure] = []  # one for each node
        self.barrier_reports: list[BarrierMissed] = []  # of monitored_barrier, with the numbers of the job's ranks
        self.reached_barrier: set[int] = set()  # ranks that came to it
        self.subgroup_barriers: set[str] = set()  # sentences on such barriers of groups that number ranks differently
        self.mismatches: list[CallMismatch] = []
        self.mismatched_ranks: set[int] = set()  # ranks that report a call that differs from their own
        self.lags: list[DesyncLag] = []
        self.awaited: set[int] = set()  # ranks for whose address others waited
        self.has_agent = False  # torchrun keeps the store, so that no rank serves it
        self.joins: dict[str, list[JoinCount]] = defaultdict(list)  # by barrier
        self.connected: set[int] = set()  # ranks that waited for others, and so were there
        self.id_waits: set[int | None] = set()  # ranks that waited for NCCL's first collective; None for an unknown one
        self.restarts: list[Restart] = []
        self.shared_names: set[str] = set()  # names that several groups may have
        self._statuses: list[QueueStatus] = []
        self._watchdogs: list[WatchdogTimeout] = []
        for fact in logs.facts:
            self._take(fact)
        self.events = self._events(queues)

    def rank_of(self, origin: LogOrigin) -> int | None:
        """Return the rank of a process: as torch states it, else by a label that can be trusted in this text."""
        if origin.rank is not None:
            return origin.rank
        return origin.label if origin.label_kind in self._trusted_labels else None

    def timeouts(self) -> Iterator[Timeout]:
        for event in self.events:
            yield from event.timeouts

    @property
    def waiting_ranks(self) -> set[int]:
        """The ranks that waited in a collective of NCCL."""
        return {timeout.rank for timeout in self.timeouts() if timeout.rank is not None}

    @property
    def has_subgroups(self) -> bool:
        """Whether some rank has another number in a group than in the job, or some group is not the default one."""
        for timeout in self.timeouts():
            has_other_number = timeout.rank is not None and timeout.rank != timeout.rank_in_group
            is_other_group = timeout.group is not None and timeout.group != DEFAULT_GROUP
            if has_other_number or is_other_group:
                return True
        return any(queue.group != DEFAULT_GROUP for event in self.events for queue in event.queues)

    # ---- one method per kind of fact; `_take` calls the one for the fact's class

    @singledispatchmethod
    def _take(self, fact: Any) -> None:
        raise TypeError(f"no rule reads a {type(fact).__name__}")

    @_take.register
    def _take_status(self, fact: QueueStatus) -> None:
        self._statuses.append(fact)

    @_take.register
    def _take_watchdog(self, fact: WatchdogTimeout) -> None:
        self._watchdogs.append(fact)

    @_take.register
    def _take_missed(self, fact: BarrierMissed) -> None:
        rank = self.rank_of(fact.origin)
        # if the process has another number in the job, the barrier is of a group with numbers of its own
        if rank is None or rank == fact.reporter:
            self.barrier_reports.append(fact)
        else:
            self.subgroup_barriers.add("Ranks of a group did not reach its monitored_barrier, as its rank 0 reports")

    @_take.register
    def _take_reached(self, fact: BarrierReached) -> None:
        rank = self.rank_of(fact.origin)
        # see `_take_missed`
        if rank is None or rank == fact.rank_in_group:
            self.reached_barrier.add(fact.rank_in_group)
        else:
            self.subgroup_barriers.add(
                "A rank reached the monitored_barrier of its group and heard nothing from rank 0"
            )

    @_take.register
    def _take_mismatch(self, fact: CallMismatch) -> None:
        if len(self.mismatches) < _MOST_MISMATCHES:
            self.mismatches.append(fact)
        rank = self.rank_of(fact.origin)
        if rank is not None:
            self.mismatched_ranks.add(rank)

    @_take.register
    def _take_lag(self, fact: DesyncLag) -> None:
        self.lags.append(fact)

    @_take.register
    def _take_join(self, fact: JoinCount) -> None:
        self.joins[fact.barrier].append(fact)
        self._connect(fact.origin)

    @_take.register
    def _take_address(self, fact: AddressWait) -> None:
        self.awaited.add(fact.awaited)
        self.has_agent = self.has_agent or fact.origin.label_kind == "torchrun"
        self._connect(fact.origin)

    @_take.register
    def _take_unique_id(self, fact: UniqueIdWait) -> None:
        self.id_waits.add(self.rank_of(fact.origin))

    @_take.register
    def _take_communication(self, fact: CommunicationError) -> None:
        rank = self.rank_of(fact.origin)
        if rank is None:
            self.errors_without_rank.add(fact.kind)
        else:
            self.communication_errors[rank].add(fact.kind)

    @_take.register
    def _take_own_error(self, fact: OwnError) -> None:
        rank = self.rank_of(fact.origin)
        if rank is not None:
            self.own_errors[rank].append(fact.error)

    @_take.register
    def _take_first_failure(self, fact: FirstFailure) -> None:
        self.first_failures.append(fact)

    @_take.register
    def _take_restart(self, fact: Restart) -> None:
        self.restarts.append(fact)

    def _connect(self, origin: LogOrigin) -> None:
        rank = self.rank_of(origin)
        if rank is not None:
            self.connected.add(rank)

    # ---- events

    def _events(self, queues: Sequence[StuckQueue]) -> list[Event]:
        """Return the events in the order of time; `queues` are those of dumps, which have no time.

        If the log has a single event, and no attempt before it, whatever has no time is of that one. Otherwise it
        becomes an event of its own, which comes last.
        """
        facts: list[_QueueFact] = [*self._statuses, *self._watchdogs]
        for fact in facts:
            if fact.group is not None and fact.group.is_shared:
                self.shared_names.add(fact.group.key)
        dated = sorted((fact for fact in facts if fact.origin.stamp), key=_seconds)
        undated = [fact for fact in facts if not fact.origin.stamp]
        restarts = sorted(restart.origin.stamp.seconds for restart in self.restarts if restart.origin.stamp)
        facts_of_events: list[list[_QueueFact]] = []
        for fact in dated:
            if not facts_of_events or _are_apart(_seconds(facts_of_events[-1][-1]), _seconds(fact), restarts):
                facts_of_events.append([])
            facts_of_events[-1].append(fact)
        if len(facts_of_events) <= 1 and not self.restarts:
            stamp = dated[0].origin.stamp if dated else None
            return [self._event([*undated, *dated], queues, stamp)]
        events = [self._event(dated_facts, (), dated_facts[0].origin.stamp) for dated_facts in facts_of_events]
        if undated or queues:
            # lines without a time may be of any attempt; dumps are all of the last one
            undated_event = self._event(undated, queues, None)
            events.append(undated_event._replace(is_mixed=bool(undated)))
        return events

    def _event(self, facts: Sequence[_QueueFact], queues: Sequence[StuckQueue], stamp: Stamp | None) -> Event:
        """Return these facts of one event, and these queues of dumps, with the job's ranks as far as they are known."""
        all_queues = list(queues)
        for fact in facts:
            if isinstance(fact, QueueStatus):
                group = fact.group.key
                rank = self._job_rank(fact.origin, fact.rank_in_group, group)
                if rank is not None:
                    all_queues.append(StuckQueue(rank, group, fact.failed, fact.enqueued, fact.rank_in_group))
        groups_of_failed: dict[_FailedCall, set[_GroupMember]] = defaultdict(set)
        for queue in all_queues:
            groups_of_failed[_FailedCall(queue.rank, queue.failed)].add(_GroupMember(queue.group, queue.rank_in_group))
        timeouts = []
        for fact in facts:
            if isinstance(fact, WatchdogTimeout):
                timeouts.append(self._timeout(fact, groups_of_failed))
        return Event(all_queues, timeouts, stamp)

    def _timeout(self, fact: WatchdogTimeout, groups_of_failed: Mapping[_FailedCall, set[_GroupMember]]) -> Timeout:
        """Return a timeout with its rank and its group.

        If its line does not state the group, it is the only one in which the same rank, with the same number in the
        group, reports that the call with this number failed. A report that does not state the rank's number in the
        group agrees with any. Without a number of the call, nothing says which queue the call was in.
        """
        group = fact.group.key if fact.group else None
        rank = self._job_rank(fact.origin, fact.rank_in_group, group)
        if group is None and rank is not None and fact.sequence is not None:
            members = groups_of_failed.get(_FailedCall(rank, fact.sequence), set())
            groups = {member.group for member in members if member.rank_in_group in (None, fact.rank_in_group)}
            if len(groups) == 1:
                (group,) = groups
        return Timeout(rank, fact.rank_in_group, group, fact.sequence, fact.collective, fact.num_in, fact.num_out)

    def _job_rank(self, origin: LogOrigin, rank_in_group: int, group: str | None) -> int | None:
        """Return the job's rank of a process that states its rank in a group; None if that is not certain."""
        rank = self.rank_of(origin)
        if group != DEFAULT_GROUP:
            return rank
        # in the default group, ranks have the job's numbers
        if origin.rank is not None and origin.rank != rank_in_group:
            return None  # torch states two different numbers: the line is damaged
        return rank_in_group  # which is more reliable than a launcher's label


def _trusted_labels(facts: Iterable[LogFact]) -> set[str]:
    """Return the kinds of labels that are ranks of the job.

    A label is a number that a launcher or the name of a file adds to a line. A kind of label is not trusted if it
    contradicts a rank that torch states. torchrun's prefix counts the processes of a node, so some line must show that
    this node's are the first ones.
    """
    wrong = set()
    confirmed = set()
    for fact in facts:
        origin = fact.origin
        if origin.rank is None or origin.label is None:
            continue
        if origin.rank == origin.label:
            confirmed.add(origin.label_kind)
        else:
            wrong.add(origin.label_kind)
    trusted = {"srun", "mpirun", "file"}
    if "torchrun" in confirmed:
        trusted.add("torchrun")
    return trusted - wrong


def _seconds(fact: _QueueFact) -> int:
    return fact.origin.stamp.seconds if fact.origin.stamp else 0


def _are_apart(before_s: int, after_s: int, restarts_s: Sequence[int]) -> bool:
    """Return whether two neighbouring lines are of two events: long after each other, or with a restart in between.

    Times are in seconds, and `restarts_s` are sorted.
    """
    if after_s - before_s > _EVENT_S:
        return True
    next_restart = bisect_left(restarts_s, before_s)
    is_restart_between = next_restart < len(restarts_s) and restarts_s[next_restart] <= after_s
    # Stamps are in whole seconds: lines of the same second as the restart may both precede it, or both follow it.
    are_of_different_seconds = before_s < after_s
    return are_of_different_seconds and is_restart_between
