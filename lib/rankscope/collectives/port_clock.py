"""The clock of the papers' model: a message holds a port of both its ranks for alpha_s + bytes / bytes_per_s."""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from .event_queue import in_queues
from .messages import Bytes, Messages, Seconds, Times, add_up, latest, pass_cards
from .schedule import Schedule
from .steps import Step
from .switch_sums import switch_sums


class PortClock:
    """`times_s` are when each rank is ready for its next step, and done with all sums up to each of the last steps.

    There are as many of these as the schedule's lag, the oldest first.
    """

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.cluster = cluster
        self.times_s = [np.zeros(cluster.num_ranks) for _ in range(1 + schedule.lag)]
        self.cards_s = np.zeros((2, cluster.num_nodes))  # when the network card of each node is free to send, receive

    def ends_s(self) -> Seconds:
        """Return when each rank is done with all steps so far."""
        return np.maximum(self.times_s[0], self.times_s[-1])

    def pass_step(self, each: Messages, step: Step, row_bytes: Bytes) -> Times:
        """Return the times of the messages of the next step."""
        ready_s, *sums_s = self.times_s
        enter_s = np.maximum(ready_s, sums_s[0])
        added_s = sums_s[-1].copy()
        node_of_src = self.cluster.node(each.src)
        node_of_dst = self.cluster.node(each.dst)
        crosses = (node_of_src != node_of_dst) & self.cluster.shared_nic
        start_s = np.maximum(enter_s[each.src], enter_s[each.dst])
        merged = None
        if self.cluster.switch_adds and each.most_at_a_rank > 1 and np.array_equal(node_of_src, node_of_dst):
            merged = switch_sums(self.cluster, each, step, row_bytes, start_s)
        if merged is not None:
            end_s, adding_s = merged
            times = _on_own_ports(each._replace(adding_s=adding_s), start_s, end_s, added_s)
        elif self.cluster.ports is not None and each.most_at_a_rank > self.cluster.ports:
            times = in_queues(self.cluster, each, crosses, enter_s, added_s, self.cards_s)
        else:
            end_s = start_s + each.alpha_s + each.wire_s
            if crosses.any():
                out, into = node_of_src[crosses], node_of_dst[crosses]
                _, arrived_s = pass_cards(out, into, start_s[crosses], each.wire_s[crosses], *self.cards_s)
                end_s[crosses] = arrived_s + each.alpha_s[crosses]
            times = _on_own_ports(each, start_s, end_s, added_s)
        ready_s = latest(latest(enter_s, each.src, times.end_s), each.dst, times.end_s)
        # A rank adds nothing before its next messages arrive: with this, the times of all ranks can move alike.
        self.times_s = [ready_s, *sums_s[1:], np.maximum(added_s, ready_s)]
        return times


def _on_own_ports(each: Messages, start_s: Seconds, end_s: Seconds, added_s: Seconds) -> Times:
    """Return the times of messages each of which has a port of its own; `added_s` is as for `add_up`."""
    done_s = add_up(each, end_s, added_s)
    return Times(start_s, end_s, start_s, end_s, done_s, each.adding_s, each.send_port, each.receive_port)
