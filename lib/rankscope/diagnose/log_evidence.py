"""The facts in logs by rank and by event, for the rules in `log_hangs`.

A log may cover several attempts of a job, or several jobs. Lines that c10 stamped with times far apart, or between
which torchrun started the ranks again, are of different events, and the rules never compare what is of different ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatchmethod
from typing import Any, NamedTuple

from .log_lines import (
    AddressWait,
    BarrierMissed,
    BarrierReached,
    CallFrame,
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

DEFAULT_GROUP = "default_pg"
_MOST_MISMATCHES = 2048  # reports of two ranks that differ
# Ranks that time out in one hang print within seconds of each other, and those that the first one alarms do, too. A
# job that starts again needs time to start, and the whole timeout until it prints that it hangs.
_EVENT_S = 60
NOT_NUMBERED = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")  # which old versions count with the collectives


class StuckQueue(NamedTuple):
    """A rank's queue in a group: the last call in it, and the first one that did not end; from a dump or a log."""

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
        """Return, by rank, the call that did not end; without ranks whose lines state several numbers."""
        numbers = self.failed_numbers()
        return {rank: min(failed) for rank, failed in numbers.items() if len(failed) == 1}


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
        """Return the groups in which each rank waits."""
        groups: dict[int, set[str | None]] = defaultdict(set)
        for queue in self.queues:
            if queue.failed is not None:
                groups[queue.rank].add(queue.group)
        for timeout in self.timeouts:
            if timeout.rank is not None:
                groups[timeout.rank].add(timeout.group)
        return groups


class Evidence:
    """The facts by rank, for those facts whose rank is certain."""

    def __init__(self, logs: HangLogs, queues: Sequence[StuckQueue]) -> None:
        self.logs = logs
        self._trusted = _trusted_labels(logs.facts)
        self.own_errors: dict[int, list[str]] = defaultdict(list)
        self.communication: dict[int, set[str]] = defaultdict(set)  # kinds of errors
        self.nameless: set[str] = set()  # kinds of errors of no rank that is known
        self.functions: dict[int, set[str]] = defaultdict(set)
        self.first_failures: list[FirstFailure] = []
        self.missed: list[BarrierMissed] = []
        self.reached: set[int] = set()
        self.part_barrier: set[str] = set()  # what is said of a barrier whose ranks have other numbers than the job's
        self.mismatches: list[CallMismatch] = []
        self.failed_elsewhere: set[int] = set()  # ranks whose own call is known to differ from another one's
        self.lags: list[DesyncLag] = []
        self.awaited: dict[int, set[int | None]] = defaultdict(set)  # by rank: those that waited for its address
        self.has_agent = False  # torchrun keeps the store, so that no rank serves it
        self.joins: dict[str, list[JoinCount]] = defaultdict(list)  # by barrier
        self.connected: set[int] = set()  # ranks that waited for others, and so were there
        self.id_waits: set[int | None] = set()
        self.restarts: list[Restart] = []
        self.shared_names: set[str] = set()  # of groups
        self._statuses: list[QueueStatus] = []
        self._watchdogs: list[WatchdogTimeout] = []
        for fact in logs.facts:
            self._take(fact)
        self.events = self._events(queues)

    def rank_of(self, origin: LogOrigin) -> int | None:
        """Return the rank of a process: as torch states it, else by a label that can be trusted in this text."""
        if origin.rank is not None:
            return origin.rank
        return origin.label if origin.label_kind in self._trusted else None

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
            if timeout.group not in (None, DEFAULT_GROUP) or timeout.rank not in (None, timeout.rank_in_group):
                return True
        return any(queue.group != DEFAULT_GROUP for event in self.events for queue in event.queues)

    # ---- one method per kind of fact

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
        if self.rank_of(fact.origin) in (None, fact.reporter):
            self.missed.append(fact)
        else:
            self.part_barrier.add("Ranks of a group did not reach its monitored_barrier, as its rank 0 reports")

    @_take.register
    def _take_reached(self, fact: BarrierReached) -> None:
        if self.rank_of(fact.origin) in (None, fact.rank_in_group):
            self.reached.add(fact.rank_in_group)
        else:
            self.part_barrier.add("A rank reached the monitored_barrier of its group and heard nothing from rank 0")

    @_take.register
    def _take_mismatch(self, fact: CallMismatch) -> None:
        if len(self.mismatches) < _MOST_MISMATCHES:
            self.mismatches.append(fact)
        rank = self.rank_of(fact.origin)
        if rank is not None:
            self.failed_elsewhere.add(rank)

    @_take.register
    def _take_lag(self, fact: DesyncLag) -> None:
        self.lags.append(fact)

    @_take.register
    def _take_join(self, fact: JoinCount) -> None:
        self.joins[fact.barrier].append(fact)
        self._connect(fact.origin)

    @_take.register
    def _take_address(self, fact: AddressWait) -> None:
        self.awaited[fact.awaited].add(self.rank_of(fact.origin))
        self.has_agent = self.has_agent or fact.origin.label_kind == "torchrun"
        self._connect(fact.origin)

    @_take.register
    def _take_unique_id(self, fact: UniqueIdWait) -> None:
        self.id_waits.add(self.rank_of(fact.origin))

    @_take.register
    def _take_communication(self, fact: CommunicationError) -> None:
        rank = self.rank_of(fact.origin)
        if rank is None:
            self.nameless.add(fact.kind)
        else:
            self.communication[rank].add(fact.kind)

    @_take.register
    def _take_own_error(self, fact: OwnError) -> None:
        rank = self.rank_of(fact.origin)
        if rank is not None:
            self.own_errors[rank].append(fact.error)

    @_take.register
    def _take_frame(self, fact: CallFrame) -> None:
        rank = self.rank_of(fact.origin)
        if rank is not None:
            self.functions[rank].add(fact.function)

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
        """Return what is of one hang each, by time; what has no time is of the only one, or else of an own one."""
        facts: list[QueueStatus | WatchdogTimeout] = [*self._statuses, *self._watchdogs]
        dated = sorted((fact for fact in facts if fact.origin.stamp), key=_seconds)
        undated = [fact for fact in facts if not fact.origin.stamp]
        restarts = sorted(restart.origin.stamp.seconds for restart in self.restarts if restart.origin.stamp)
        pieces: list[list[QueueStatus | WatchdogTimeout]] = []
        for fact in dated:
            if not pieces or _are_apart(_seconds(pieces[-1][-1]), _seconds(fact), restarts):
                pieces.append([])
            pieces[-1].append(fact)
        if len(pieces) <= 1 and not self.restarts:
            merged = [*undated, *(fact for piece in pieces for fact in piece)]
            stamp = pieces[0][0].origin.stamp if pieces else None
            return [self._event(merged, queues, stamp)]
        events = [self._event(piece, (), piece[0].origin.stamp) for piece in pieces]
        if undated or queues:
            rest = self._event(undated, queues, None)
            events.append(rest._replace(is_mixed=bool(undated)))
        return events

    def _event(
        self, facts: Iterable[QueueStatus | WatchdogTimeout], queues: Sequence[StuckQueue], stamp: Stamp | None
    ) -> Event:
        statuses = [fact for fact in facts if isinstance(fact, QueueStatus)]
        watchdogs = [fact for fact in facts if isinstance(fact, WatchdogTimeout)]
        all_queues = [*queues]
        for status in statuses:
            if status.group.is_shared:
                self.shared_names.add(status.group.key)
            rank = self._rank_in(status.origin, status.rank_in_group, status.group.key)
            if rank is not None:
                all_queues.append(
                    StuckQueue(rank, status.group.key, status.failed, status.enqueued, status.rank_in_group)
                )
        groups_of: dict[tuple[int, int | None], set[tuple[str, int | None]]] = defaultdict(set)
        for queue in all_queues:
            groups_of[queue.rank, queue.failed].add((queue.group, queue.rank_in_group))
        timeouts = []
        for fact in watchdogs:
            group = fact.group.key if fact.group else None
            rank = self._rank_in(fact.origin, fact.rank_in_group, group)
            if group is None and rank is not None:
                group = self._group_of(fact, groups_of.get((rank, fact.sequence), set()))
            if fact.group is not None and fact.group.is_shared:
                self.shared_names.add(fact.group.key)
            timeouts.append(
                Timeout(rank, fact.rank_in_group, group, fact.sequence, fact.collective, fact.num_in, fact.num_out)
            )
        return Event(all_queues, timeouts, stamp)

    def _group_of(self, fact: WatchdogTimeout, groups: set[tuple[str, int | None]]) -> str | None:
        """Return the only group in which the same rank reports that this number failed."""
        if len(groups) != 1:
            return None
        ((group, rank_in_group),) = groups
        return group if rank_in_group in (None, fact.rank_in_group) else None

    def _rank_in(self, origin: LogOrigin, rank_in_group: int, group: str | None) -> int | None:
        """Return the job's rank of a process that states its rank in a group; None if that is not certain."""
        rank = self.rank_of(origin)
        if group != DEFAULT_GROUP:
            return rank
        if rank in (None, rank_in_group):
            return rank_in_group
        return rank_in_group if origin.rank is None else None


def _trusted_labels(facts: Iterable[LogFact]) -> set[str]:
    """Return the kinds of labels that are ranks of the job.

    torchrun's prefix counts the processes of a node, so some line must show that this node's are the first ones.
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
    trusted = {"srun", "mpirun", "file"} | (confirmed & {"torchrun"})
    return trusted - wrong


def _seconds(fact: QueueStatus | WatchdogTimeout) -> int:
    return fact.origin.stamp.seconds if fact.origin.stamp else 0


def _are_apart(before: int, after: int, restarts: Sequence[int]) -> bool:
    """Whether two times, of which none lies in between, are of two events; `restarts` are sorted."""
    if after - before > _EVENT_S:
        return True
    place = bisect_left(restarts, before)
    return before < after and place < len(restarts) and restarts[place] <= after
