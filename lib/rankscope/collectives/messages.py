"""The messages of a step, and their times: what the clock of `simulate` is given, and what it returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from .steps import Bools, Ints, Step, number_among_equal

Seconds = NDArray[np.float64]
Bytes = NDArray[np.float64]


class Messages(NamedTuple):
    """All that each rank sends to each other in a step: a message per pair, in the order of their first transfers.

    `of_row` is the message of each transfer. A message takes `alpha_s`, and its bytes take `wire_s`; to add up what the
    receiver adds takes `adding_s`. Those that `queues` tells leave a network card and arrive at another one, one after
    the other. `cards` and `ports` have a row for senders and one for receivers.
    """

    of_row: Ints
    src: Ints
    dst: Ints
    reduce: Bools  # whether some of its chunks are added
    alpha_s: Seconds
    wire_s: Seconds
    adding_s: Seconds
    queues: Bools
    cards: Ints
    ports: Ints  # how many messages before it have the same sender; likewise, the same receiver
    num_ports: int  # of each rank
    may_wait: bool  # some for others, because there are more of them than ports of a rank, or several at a card


class Times(NamedTuple):
    """When each message starts, has arrived, and has been added up, which takes `adding_s`, and on which ports."""

    step: Ints
    src: Ints
    dst: Ints
    reduce: Bools  # whether some of its chunks are added
    start_s: Seconds
    end_s: Seconds
    done_s: Seconds
    adding_s: Seconds
    ports: Ints


def messages_of(step: Step, row_bytes: Bytes, cluster: Cluster, executor: bool) -> Messages:
    """Return the messages of a step, whose transfers have these bytes.

    The ranks of a node may share a card, through which they reach other nodes. An executor has any number of ports, and
    a card of its own, too, which sends one message at a time, unless `Cluster.ports` is None.
    """
    _, first, pair = np.unique(step.src * cluster.num_ranks + step.dst, return_index=True, return_inverse=True)
    in_order = np.argsort(first)
    of_row = np.argsort(in_order)[pair]
    ends = np.array([step.src, step.dst])[:, first[in_order]]
    src, dst = ends
    alpha_s, beta_s_per_byte = cluster.costs(src, dst)
    crosses = (cluster.node(src) != cluster.node(dst)) & cluster.shared_nic
    queues = crosses | (executor and cluster.ports is not None)
    cards = np.where(crosses, cluster.num_ranks + cluster.node(ends), ends)
    most_at_a_card = max(np.bincount(np.intp(card_of_message)).max(initial=0) for card_of_message in cards)
    ports = np.array([number_among_equal(ranks) for ranks in ends])
    num_ports = cluster.ports or src.size
    if executor:
        num_ports = src.size
    return Messages(
        of_row,
        src,
        dst,
        np.bincount(of_row, step.reduce, src.size) > 0,
        alpha_s,
        wire_s=np.bincount(of_row, row_bytes, src.size) * beta_s_per_byte,
        adding_s=np.bincount(of_row, row_bytes * step.reduce, src.size).astype(float) * cluster.gamma_s_per_byte,
        queues=queues,
        cards=cards,
        ports=ports,
        num_ports=num_ports,
        may_wait=bool((ports >= num_ports).any() or (queues.any() and most_at_a_card > 1)),
    )


def joined(parts: Iterable[Times]) -> Times:
    """Return the messages of several steps, in their order."""
    none: Any = np.empty(0, dtype=np.int64)
    empty = Times(none, none, none, none > 0, none, none, none, none, np.stack([none, none]))
    return Times(*[np.concatenate(columns, axis=-1) for columns in zip(empty, *parts, strict=True)])


def latest(times_s: Seconds, ranks: Ints, new_s: Seconds) -> Seconds:
    """Return the time of each rank, or that of the latest of its messages if it is later."""
    result = times_s.copy()
    np.maximum.at(result, ranks, new_s)
    return result


# ---- a step over a switch that adds


def switch_sums(
    cluster: Cluster, each: Messages, step: Step, row_bytes: Bytes, start_s: Seconds
) -> tuple[Seconds, Seconds] | None:
    """Return when each message ends, and how long its receiver adds; None if the switch has nothing to merge.

    The switch adds what several ranks send into the same run of chunks of one rank, and copies a run that one rank
    sends to several. That one rank is the hub of a transfer. Transfers with the same hub, direction and run are a
    group, which is sent once the last of its messages may start. It merges nothing in a step in which a message leaves
    its node.
    """
    if not np.array_equal(cluster.node(each.src), cluster.node(each.dst)):
        return None
    groups: dict[tuple[int, bool, int, int], list[int]] = defaultdict(list)  # of transfers
    for row, (src, dst, chunk, count, reduce) in enumerate(step.rows()):
        groups[dst if reduce else src, reduce, chunk, count].append(row)

    link_bytes = np.zeros((2, cluster.num_ranks))  # over each rank's link to the switch, outwards and inwards
    np.add.at(link_bytes[0], step.src, row_bytes)
    np.add.at(link_bytes[1], step.dst, row_bytes)
    is_merged = np.zeros(step.src.size, dtype=bool)
    sent_s = start_s.copy()
    for (hub, reduce, _, _), rows in groups.items():
        messages = each.of_row[rows]
        if len(set(messages.tolist())) > 1:
            is_merged[rows] = True
            # A merged group crosses the hub's link once. The hub takes part in it as the others do: its own share of a
            # sum goes out to the switch, and its own copy of what it sends comes back.
            link_bytes[int(reduce), hub] -= row_bytes[rows[1:]].sum()
            link_bytes[1 - int(reduce), hub] += row_bytes[rows[0]]
            sent_s[messages] = np.maximum(sent_s[messages], start_s[messages].max())
    if not is_merged.any():
        return None
    crossing = np.maximum(link_bytes[0, each.src], link_bytes[1, each.dst])
    added = np.bincount(each.of_row, row_bytes * (step.reduce & ~is_merged), each.src.size)
    _, beta_s_per_byte = cluster.costs(each.src, each.dst)
    return sent_s + each.alpha_s + crossing * beta_s_per_byte, np.asarray(added * cluster.gamma_s_per_byte)
