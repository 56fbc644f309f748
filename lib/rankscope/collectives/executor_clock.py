"""The clock of `execute` on Gloo: receives are posted a step ahead, and a message leaves once its receiver is ready."""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from .messages import Bytes, Messages, Seconds, Times, add_up, latest, pass_cards
from .schedule import Schedule
from .steps import Ints, Step

_LONG = 16_384  # bytes: no ready signal waits behind a longer message, which is posted after it
_NEVER = -3  # as the number of a step that is before all steps under way


class ExecutorClock:
    """`times_s` are when each rank enters its next step, when its ready signals for that step have left, and when its
    sends of the last step have left; and when each card is free to send, and to receive.
    """

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.cluster = cluster
        num_cards = cluster.num_ranks + cluster.num_nodes  # one of each rank, and one that the ranks of a node share
        self.times_s = [np.zeros(cluster.num_ranks) for _ in range(3)] + [np.zeros(num_cards) for _ in range(2)]
        self.number = 0  # of the next step
        self.last_use = np.full(cluster.num_ranks * schedule.num_chunks, _NEVER)  # the step, by rank and chunk
        self.num_chunks = schedule.num_chunks

    def ends_s(self) -> Seconds:
        """Return when each rank is done with all steps so far."""
        return np.maximum(self.times_s[0], self.times_s[2])

    def pass_step(self, each: Messages, step: Step, row_bytes: Bytes) -> Times:
        """Return the times of the messages of the next step."""
        enter_s, signal_s, sent_before_s, *cards_s = self.times_s
        may_start_s = np.maximum(enter_s[each.src], signal_s[each.dst] + each.signal_s)
        queues = each.crosses | (self.cluster.ports is not None)
        card = [
            np.where(each.crosses, self.cluster.num_ranks + self.cluster.node(ranks), ranks)[queues]
            for ranks in (each.src, each.dst)
        ]
        sent_s = may_start_s + each.wire_s
        arrived_s = sent_s.copy()
        free_s = np.array(cards_s)
        sent_s[queues], arrived_s[queues] = pass_cards(*card, may_start_s[queues], each.wire_s[queues], free_s)
        arrived_s += each.alpha_s

        # The signals for the next step travel behind the messages that start as soon as they are posted.
        is_short = np.bincount(each.of_row, row_bytes, each.src.size) <= _LONG
        is_ahead = queues & is_short & (may_start_s <= enter_s[each.src])
        next_signal_s = latest(enter_s, each.src[is_ahead], sent_s[is_ahead])
        added_s = latest(np.maximum(enter_s, sent_before_s), each.dst, arrived_s)
        each = each._replace(adding_s=each.adding_s + self._copying_s(each, step, row_bytes))
        done_s = add_up(each, added_s[each.dst], added_s)
        sent_now_s = latest(np.zeros_like(enter_s), each.src, sent_s)
        self.times_s = [added_s, next_signal_s, sent_now_s, *free_s]
        self.number += 1
        starts_s = _waits_from_s(each.dst, enter_s, arrived_s)
        return Times(starts_s, arrived_s, done_s, each.adding_s, each.send_port, each.receive_port)

    def _copying_s(self, each: Messages, step: Step, row_bytes: Bytes) -> Seconds:
        """Return how long it takes to copy each message that cannot come straight into its place.

        These are messages of several runs of chunks, and of chunks that the receiver uses otherwise while the message
        may be under way: in this step, or one of the two before it.
        """
        rows = step.by_chunk()
        uses = np.r_[rows.dst, rows.src] * self.num_chunks + np.r_[rows.chunk, rows.chunk]
        _, use, num_uses = np.unique(uses, return_inverse=True, return_counts=True)
        is_used = (num_uses[use] > 1) | (self.last_use[uses] >= self.number - 2)
        self.last_use[uses] = self.number
        message = np.repeat(each.of_row, step.num_chunks)
        is_copied = np.bincount(message, is_used[: message.size], each.src.size) > 0
        is_copied |= np.bincount(each.of_row, minlength=each.src.size) > 1
        replaced = np.bincount(each.of_row, row_bytes * ~step.reduce, each.src.size)  # bytes
        return np.asarray(replaced * self.cluster.gamma_s_per_byte * is_copied)


def _waits_from_s(dst: Ints, enter_s: Seconds, arrived_s: Seconds) -> Seconds:
    """Return when a rank begins to wait for each message: after those that have arrived before it."""
    waits_s = enter_s[dst]
    order = np.lexsort((arrived_s, dst))
    follows = np.flatnonzero(np.diff(dst[order]) == 0)  # the places of those that another one of the rank follows
    waits_s[order[follows + 1]] = np.maximum(waits_s[order[follows + 1]], arrived_s[order[follows]])
    return np.minimum(waits_s, arrived_s)  # it need not wait for what came before it entered the step
