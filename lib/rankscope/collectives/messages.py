"""The messages of a step, and their times: what the clocks of `simulate` are given, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster, Link
from .steps import Bools, Ints, Step, number_among_equal

Seconds = NDArray[np.float64]
Bytes = NDArray[np.float64]
LinkAt = Callable[[int, int, float], Link]


class Messages(NamedTuple):
    """All that each rank sends to each other in a step: a message per pair, in the order of their first transfers.

    `of_row` is the message of each transfer. A message takes `alpha_s`, and its bytes take `wire_s`; to add up what the
    receiver adds takes `adding_s`. Those that `queues` tells leave a network card, `out`, and arrive at another one,
    `into`, one after the other.
    """

    of_row: Ints
    src: Ints
    dst: Ints
    alpha_s: Seconds
    wire_s: Seconds
    adding_s: Seconds
    signal_s: Seconds  # of an empty message from the receiver to the sender, for an executor
    queues: Bools
    out: Ints
    into: Ints
    send_port: Ints  # how many messages before it have the same sender
    receive_port: Ints  # likewise, the same receiver
    most_at_a_rank: int  # messages that a rank sends, or receives
    most_at_a_card: int  # likewise, a card


class Times(NamedTuple):
    """When each message starts, has arrived, and has been added up, which takes `adding_s`, and on which ports."""

    src: Ints
    dst: Ints
    start_s: Seconds
    end_s: Seconds
    done_s: Seconds
    adding_s: Seconds
    send_port: Ints
    receive_port: Ints


def messages(num_ranks: int, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Return the message of each transfer, and the first transfer of each message, in the order of those.

    >>> of_row, first = messages(3, np.array([2, 0, 2]), np.array([1, 1, 1]))
    >>> of_row.tolist(), first.tolist()
    ([0, 1, 0], [0, 1])
    """
    _, first, pair = np.unique(src * num_ranks + dst, return_index=True, return_inverse=True)
    in_order = np.argsort(first)
    number_of_pair = np.empty_like(in_order)
    number_of_pair[in_order] = np.arange(in_order.size)
    return number_of_pair[pair], first[in_order]


def messages_of(step: Step, row_bytes: Bytes, cluster: Cluster, link_at: LinkAt | None, executor: bool) -> Messages:
    """Return the messages of a step, whose transfers have these bytes.

    The ranks of a node may share a card, through which they reach other nodes. An executor has a card of its own, too,
    which sends one message at a time, unless `Cluster.ports` is None.
    """
    of_row, first = messages(cluster.num_ranks, step.src, step.dst)
    src = step.src[first]
    dst = step.dst[first]
    sent = np.bincount(of_row, row_bytes, first.size).astype(float)
    added = np.bincount(of_row, row_bytes * step.reduce, first.size).astype(float)
    alpha_s, beta_s_per_byte = costs_of(cluster, link_at, src, dst, sent)
    crosses = (cluster.node(src) != cluster.node(dst)) & cluster.shared_nic
    out, into = (np.where(crosses, cluster.num_ranks + cluster.node(ranks), ranks) for ranks in (src, dst))
    ports = number_among_equal(src), number_among_equal(dst)
    return Messages(
        of_row,
        src,
        dst,
        alpha_s,
        wire_s=sent * beta_s_per_byte,
        adding_s=added * cluster.gamma_s_per_byte,
        signal_s=costs_of(cluster, link_at, dst, src, 0.0 * sent)[0] if executor else alpha_s,
        queues=crosses | (executor and cluster.ports is not None),
        out=out,
        into=into,
        send_port=ports[0],
        receive_port=ports[1],
        most_at_a_rank=1 + int(np.max(ports, initial=-1)),
        most_at_a_card=max(int(np.bincount(cards).max(initial=0)) for cards in (out, into)),
    )


def costs_of(
    cluster: Cluster, link_at: LinkAt | None, src: Ints, dst: Ints, num_bytes: Bytes
) -> tuple[Seconds, Seconds]:
    """Return the seconds per message and the seconds per byte of each message's link."""
    if link_at is None:
        return cluster.costs(src, dst)
    links = [link_at(*message) for message in zip(src.tolist(), dst.tolist(), num_bytes.tolist(), strict=True)]
    return np.array([link.alpha_s for link in links]), np.array([link.beta_s_per_byte for link in links])


def latest(times_s: Seconds, ranks: Ints, new_s: Seconds) -> Seconds:
    """Return the time of each rank, or that of the latest of its messages if it is later."""
    result = times_s.copy()
    np.maximum.at(result, ranks, new_s)
    return result
