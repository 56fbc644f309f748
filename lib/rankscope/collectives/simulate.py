"""`simulate`: when each message of a schedule starts and ends on a cluster, by the model of papers or of `execute`."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ..cluster import Cluster
from ..common.checks import of_type, one_of
from ..timeline import Timeline
from .messages import Seconds, Times, joined
from .port_clock import PortClock
from .schedule import Schedule
from .steps import Ints


def simulate(
    schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str = "messages", *, executor: bool = False
) -> Timeline:
    """Simulate the schedule and return the timeline of its messages and sums. All ranks start at time 0.

    `num_bytes` is each rank's whole buffer, the total array for allgather and reduce_scatter. A message starts when
    both ranks have finished their earlier steps, including the sums of up to `schedule.lag` steps before, and it has a
    port at both. The messages of a rank get its ports in the order of the step, each the first that is free. A message
    holds its ports for alpha_s + bytes / bytes_per_s, and the receiver's until it is added up. A receiver adds one
    message after the other, as they arrive. A shared network card serves the messages of earlier steps first, and those
    of one step in the order in which they are ready; if they are ready at once, in the order of the step. `Cluster`
    describes a switch that adds. Whether a schedule is right is for `verify` to say.

    That is the model of the papers. With `executor`, the model follows `execute` on Gloo, which posts receives one step
    ahead: a message also waits for the signal that its receiver is ready, which takes alpha_s and leaves when the
    receiver enters the step before. A rank sends and receives any number of messages at once, but each rank has a card
    that sends one at a time, so they queue, while their latencies overlap; `Cluster.ports` None lets no message wait
    for another one. It adds once all messages of a step have come, and copies, at the same rate, those that cannot come
    straight into their place. `cluster.switch_adds` has no effect. On a network of 100 Mbit/s and 5 ms this is within
    5 % of what was measured, except for a double binary tree of several segments, for which it is up to 17 % too short.

    Lanes and kinds are "send", "receive" and "reduce" ("send 1", … for further ports), items are steps. An executor's
    spans are on a lane "executor": "receive" while it waits for a message, and "reduce" while it adds or copies one.
    `detail` is "messages", which takes about 150 bytes for each, or "ranks" for a single span per rank, from 0 to its
    end, which also is much faster for rings of many ranks.

    Raises ScheduleError if a rank or chunk does not exist, ValueError if the cluster has a different number of ranks,
    `num_bytes` is not a finite number of at least 0, or `detail` is unknown.

    >>> from ..cluster import Link
    >>> from . import ALGORITHMS
    >>> cluster = Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))
    >>> simulate(ALGORITHMS["allreduce"]["ring"](4), 8.0, cluster).makespan_s
    12.0
    >>> simulate(ALGORITHMS["allreduce"]["ring"](4), 8.0, cluster, executor=True).makespan_s  # and the first signal
    13.0
    """
    of_type("schedule", schedule, Schedule)
    of_type("cluster", cluster, Cluster)
    clock = PortClock(schedule, num_bytes, cluster, executor)
    if one_of("detail", detail, ("messages", "ranks")) == "messages":
        return _timeline_of_messages(joined(times for _, _, times in clock.passes()), executor)
    for _ in clock.passes(is_short=True):
        pass  # only the end of all counts
    ends_s = clock.times_s[-1]
    ranks = np.arange(ends_s.size)
    zeros = np.zeros_like(ranks)
    return Timeline(ranks, zeros, zeros, zeros - 1, 0.0 * ends_s, ends_s, ("collective",), (schedule.collective,))


def _timeline_of_messages(times: Times, executor: bool) -> Timeline:
    """A span for each message at its sender, one at its receiver, and one for adding if that takes time."""
    adds = np.flatnonzero(times.adding_s)

    def spans(kind: str, rank: Ints, port: Ints, item: Ints, start_s: Seconds, stop_s: Seconds) -> Timeline:
        lanes = [f"{kind} {number}" if number else kind for number in range(1 + port.max(initial=0))]
        return Timeline(rank, port, 0 * port, item, start_s, stop_s, tuple(lanes), (kind,))

    sending = spans("send", times.src, times.ports[0], times.step, times.start_s, times.end_s)
    receiving = spans("receive", times.dst, times.ports[1], times.step, times.start_s, times.end_s)
    begin_s = (times.done_s - times.adding_s)[adds]
    adding = spans("reduce", times.dst[adds], 0 * adds, times.step[adds], begin_s, times.done_s[adds])
    if not executor:
        return Timeline.concat([sending, receiving, adding])
    own = Timeline.concat([receiving, adding])  # it does one thing after another, except that it sends meanwhile
    return replace(own, lane=0 * own.lane, lanes=("executor",))
