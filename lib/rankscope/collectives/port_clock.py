"""The clock of `simulate`: a message holds a port of both its ranks for alpha_s + bytes / bytes_per_s."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from ..cluster import Cluster
from ..common.checks import number
from .messages import Bytes, Messages, Seconds, Times, latest, messages_of, switch_sums
from .schedule import Schedule
from .steps import Ints, Step
from .verify import check_places

_ROUNDING = 8 * float(np.finfo(float).eps)  # relative: more than the few additions of a step round, each by eps / 2


class PortClock:
    """`times_s` are when each rank is ready for its next step, and done with all sums up to each of the last steps.

    There are as many of the latter as the schedule's lag, the oldest first. The last one is when the rank is done with
    all. Raises ValueError for arguments that do not fit together.
    """

    def __init__(self, schedule: Schedule, num_bytes: float, cluster: Cluster, executor: bool = False) -> None:
        if schedule.num_ranks != cluster.num_ranks:
            raise ValueError(f"cluster must have the schedule's {schedule.num_ranks} ranks, got {cluster.num_ranks}")
        self.schedule = schedule
        self.cluster = cluster
        self.executor = executor
        self.chunk_bytes = schedule.chunk_bytes(number("num_bytes", num_bytes, 0))
        self.times_s = [np.zeros(cluster.num_ranks) for _ in range(1 + schedule.lag)]
        # when each rank's own card, and the one that the ranks of each node share, is free to send, and to receive
        self.cards_s = np.zeros((2, cluster.num_ranks + cluster.num_nodes))
        # of the step before: when each rank has entered it, and which chunks it has sent or received there
        self.before_s = np.zeros(cluster.num_ranks)
        self.used_before = np.zeros((cluster.num_ranks, schedule.num_chunks), dtype=bool)

    def passes(self, is_short: bool = False) -> Iterator[tuple[Step, Messages, Times]]:
        """Pass all steps, and yield each with its messages and their times.

        If `is_short`, a step like the one before it, which has moved the times of all ranks alike, is passed at once,
        and is not yielded. Raises ScheduleError if a rank or chunk does not exist.
        """
        # Steps with the same columns take as long, if a switch need not look at which chunks they move.
        may_repeat = not self.cluster.switch_adds
        # The times of cards are not among those compared.
        is_short = is_short and not self.cluster.shared_nic and not self.executor
        last: Step | None = None
        shift_s: float | None = None  # by which the last step moved the times of all ranks
        for step_number, step in enumerate(self.schedule.steps()):
            # Those of a ring differ in their chunks only.
            is_repeated = may_repeat and last is not None and all(step[i] is last[i] for i in (0, 1, 3, 4))
            last = step
            if is_repeated and shift_s is not None:
                self.times_s = [times_s + shift_s for times_s in self.times_s]
                continue
            if not is_repeated:
                check_places(self.schedule, step_number, step)
                row_bytes = step.num_chunks * self.chunk_bytes[0]
                each = messages_of(step, row_bytes, self.cluster, self.executor)
            before_s = np.array(self.times_s)
            yield step, each, self._pass_step(step_number, each, step, row_bytes)
            if is_short:
                moved_s = np.array(self.times_s) - before_s
                is_alike = np.ptp(moved_s) <= _ROUNDING * np.max(self.times_s)
                shift_s = float(moved_s[0, 0]) if is_alike else None

    def _pass_step(self, step_number: int, each: Messages, step: Step, row_bytes: Bytes) -> Times:
        ready_s, *sums_s = self.times_s
        enter_s = np.maximum(ready_s, sums_s[0])
        added_s = sums_s[-1].copy()
        start_s = np.maximum(enter_s[each.src], enter_s[each.dst])
        merged = None
        if self.executor:
            signal_s, _ = self.cluster.costs(each.dst, each.src)
            start_s = np.maximum(start_s, self.before_s[each.dst] + signal_s)
            self.before_s = enter_s
            later_s = each.adding_s + self._copying_s(each, step, row_bytes)
            each = each._replace(adding_s=0.0 * later_s)  # not as each message arrives, but after the last one
        elif self.cluster.switch_adds and each.ports.any():  # else there is nothing to merge
            merged = switch_sums(self.cluster, each, step, row_bytes, start_s)
        ports = each.ports
        if merged is None and each.may_wait:
            start_s, end_s, done_s, ports = wait_in_queues(each, start_s, added_s, self.cards_s)
        else:
            end_s = start_s + each.alpha_s + each.wire_s
            if merged is not None:
                end_s, adding_s = merged
                each = each._replace(adding_s=adding_s)
            elif each.queues.any():  # each card has one message, but may not be free yet
                rows = np.flatnonzero(each.queues)
                out, into = each.cards[:, rows]
                wire_s = each.wire_s[rows]
                out_s, into_s = self.cards_s
                out_s[out] = np.maximum(start_s[rows], out_s[out]) + wire_s
                into_s[into] = np.maximum(out_s[out], into_s[into] + wire_s)
                end_s[rows] = into_s[into] + each.alpha_s[rows]
            done_s = _add_up(each, end_s, added_s)
        if self.executor:  # it adds once all messages of a step have come
            each = each._replace(adding_s=later_s)
            done_s = _add_up(each, latest(enter_s, each.dst, end_s)[each.dst], added_s)
            start_s = _waits_from_s(each.dst, enter_s, end_s)
        ready_s = latest(latest(enter_s, each.src, end_s), each.dst, end_s)
        # A rank adds nothing before its next messages arrive: with this, the times of all ranks can move alike.
        self.times_s = [ready_s, *sums_s[1:], np.maximum(added_s, ready_s)]
        step_of_message = np.full(each.src.size, step_number)
        return Times(step_of_message, each.src, each.dst, each.reduce, start_s, end_s, done_s, each.adding_s, ports)

    def _copying_s(self, each: Messages, step: Step, row_bytes: Bytes) -> Seconds:
        """How long an executor copies messages that cannot come straight into their place.

        It still uses that in the step before, in which it posts the receive.
        """
        rows = step.by_chunk()
        is_used = self.used_before[rows.dst, rows.chunk]
        self.used_before[:] = False
        self.used_before[rows.src, rows.chunk] = self.used_before[rows.dst, rows.chunk] = True
        copied = np.bincount(np.repeat(each.of_row, np.intp(step.num_chunks)), is_used, each.src.size) > 0
        replaced = np.bincount(each.of_row, row_bytes * ~step.reduce, each.src.size)  # bytes
        return np.asarray(copied * replaced * self.cluster.gamma_s_per_byte)


def _add_up(each: Messages, arrived_s: Seconds, added_s: Seconds) -> Seconds:
    """Return when each message is added up; `added_s`, when each rank is free to add, is brought up to date.

    A rank adds up one message after the other, in the order in which they arrive.
    """
    done_s = arrived_s.copy()
    adds = np.flatnonzero(each.adding_s)
    turns = adds[None]  # all at once
    if each.ports.any():
        turns = adds[np.argsort(arrived_s[adds], kind="stable")][:, None]
    for turn in turns:
        rank = each.dst[turn]
        done_s[turn] = added_s[rank] = np.maximum(arrived_s[turn], added_s[rank]) + each.adding_s[turn]
    return done_s


def _waits_from_s(dst: Ints, enter_s: Seconds, arrived_s: Seconds) -> Seconds:
    """Return when a rank begins to wait for each message: after those that have arrived before it."""
    waits_s = enter_s[dst]
    order = np.lexsort((arrived_s, dst))
    follows = np.flatnonzero(np.diff(dst[order]) == 0)  # the places of those that another one of the rank follows
    waits_s[order[follows + 1]] = arrived_s[order[follows]]
    return waits_s


_SAME = 1e-12  # times that differ by less, relative to the later one, are the same instant

# Kinds of events. Those of one instant take effect in this order, because rounding must not decide which message takes
# which of several free ports, or which comes first to a card.
_ENDED, _ADDED, _STARTS, _LEFT = range(4)


def wait_in_queues(
    each: Messages, enter_s: Seconds, added_s: Seconds, cards_s: Seconds
) -> tuple[Seconds, Seconds, Seconds, Ints]:
    """Return when messages that wait for ports or cards start, have arrived and are added up, and their ports.

    `enter_s` is when both ranks of each message have entered the step.

    The messages of a rank get its ports in the order of the step, each the first that is free. Those that queue at
    cards leave one, and arrive at another, one after the other. `added_s`, when each rank is free to add, and
    `cards_s`, when the cards are free to send and to receive, are brought up to date.
    """
    rank_of = each.src.tolist(), each.dst.tolist()
    out, into = each.cards.tolist()
    alpha_s, wire_s, adding_s = each.alpha_s.tolist(), each.wire_s.tolist(), each.adding_s.tolist()
    start_s, end_s, done_s = np.zeros((3, each.src.size))
    port_of = np.zeros_like(each.ports)
    has_one_port = [False] * each.src.size
    waiting: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # messages by side, 0 to send, and rank
    for side, ranks in enumerate(rank_of):
        for message, rank in enumerate(ranks):
            waiting[side, rank].append(message)
    free = {end: list(range(min(each.num_ports, len(queue)))) for end, queue in waiting.items()}  # a heap of ports
    events: list[tuple[float, int, int]] = []  # a heap of times, kinds and messages
    instant: list[tuple[int, int]] = []  # a heap of the kinds and messages of one instant, `now_s`
    now_s = 0.0

    def give_ports(side: int, rank: int) -> None:
        """Give free ports to the messages that wait for them; a message starts once it has one at both its ranks."""
        while free[side, rank] and waiting[side, rank]:
            message = waiting[side, rank].popleft()
            port_of[side, message] = heappop(free[side, rank])
            if has_one_port[message]:
                heappush(events, (max(now_s, enter_s[message]), _STARTS, message))
            has_one_port[message] = True

    def release(side: int, message: int) -> None:
        rank = rank_of[side][message]
        heappush(free[side, rank], port_of[side, message])
        give_ports(side, rank)

    for side, rank in waiting:
        give_ports(side, rank)
    while events or instant:
        if not instant:
            now_s = events[0][0]
        while events and events[0][0] - now_s <= _SAME * now_s:
            heappush(instant, heappop(events)[1:])
        kind, message = heappop(instant)
        if kind == _STARTS:
            start_s[message] = now_s
            if each.queues[message]:
                cards_s[0, out[message]] = max(now_s, cards_s[0, out[message]]) + wire_s[message]
                heappush(events, (cards_s[0, out[message]], _LEFT, message))
            else:
                heappush(events, (now_s + alpha_s[message] + wire_s[message], _ENDED, message))
        elif kind == _LEFT:
            # The first bytes arrive while the others still leave, so a receiving card that is free adds no time.
            cards_s[1, into[message]] = max(now_s, cards_s[1, into[message]] + wire_s[message])
            heappush(events, (cards_s[1, into[message]] + alpha_s[message], _ENDED, message))
        elif kind == _ENDED:
            end_s[message] = done_s[message] = now_s
            release(0, message)
            if adding_s[message]:
                rank = rank_of[1][message]
                added_s[rank] = done_s[message] = max(now_s, added_s[rank]) + adding_s[message]
            heappush(events, (done_s[message], _ADDED, message))
        else:
            release(1, message)
    return start_s, end_s, done_s, port_of
