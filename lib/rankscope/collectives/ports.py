"""One step's messages through the ports of their ranks, and through the network cards that a node's ranks share."""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from .routes import Routes, Seconds
from .schedule import Ints


def send_all(
    routes: Routes,
    enter_s: Seconds,
    added_s: Seconds,
    alpha_s: Seconds,
    costs_s: Seconds,
    adding_s: Seconds,
    nics: Nics | None,
) -> tuple[Seconds, Seconds, Seconds]:
    """Return when each message of a step starts, ends, and is added up by its receiver.

    `enter_s` is when each rank may begin the step, `added_s` when it is done with all earlier sums. A message waits for
    the port that it takes at each end; a receiver's port is free once what came through it before has been added.
    """
    start_s, end_s, done_s = (np.zeros(routes.num_messages + 1) for _ in range(3))  # the last entry: no message
    adds = bool(adding_s.any())
    added_s = added_s.copy()
    for level in routes.levels:
        src, dst = routes.src[level], routes.dst[level]
        start = np.maximum(enter_s[src], enter_s[dst])
        if level is not routes.levels[0]:
            start = np.maximum(start, end_s[routes.after_send[level]])
            start = np.maximum(start, done_s[routes.after_receive[level]])
        start_s[level] = start
        end = start + costs_s[level]
        if nics is not None:
            end = nics.pass_through(src, dst, start, alpha_s[level], (costs_s - alpha_s)[level])
        end_s[level] = done_s[level] = end
        if adds:
            done_s[level] = _add_up(dst, end, adding_s[level], added_s)
    return start_s[:-1], end_s[:-1], done_s[:-1]


def _add_up(dst: Ints, end_s: Seconds, adding_s: Seconds, added_s: Seconds) -> Seconds:
    """When each sum is done: on each rank one after the other, in the order in which they came in; moves `added_s`."""
    done_s = end_s.copy()
    for turn in _one_each(dst, end_s):
        turn = turn[adding_s[turn] > 0]
        done_s[turn] = np.maximum(end_s[turn], added_s[dst[turn]]) + adding_s[turn]
        added_s[dst[turn]] = done_s[turn]
    return done_s


def _one_each(place: Ints, time_s: Seconds) -> list[Ints]:
    """Groups of entries in which each place comes once: the first in time at each place, then the second, …"""
    order = np.lexsort((time_s, place))  # stable
    ordered = place[order]
    if not (ordered[1:] == ordered[:-1]).any():
        return [np.arange(place.size)]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    turn = np.arange(place.size) - np.maximum.accumulate(np.where(first, np.arange(place.size), 0))
    return [order[turn == now] for now in range(int(turn.max()) + 1)]


class Nics:
    """The network card of each node, shared by its ranks: bytes leave one message after the other, and come in so."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._out_s, self._in_s = np.zeros(cluster.num_nodes), np.zeros(cluster.num_nodes)

    def pass_through(self, src: Ints, dst: Ints, start_s: Seconds, alpha_s: Seconds, wire_s: Seconds) -> Seconds:
        """Return when messages arrive whose bytes take `wire_s`; those within a node pass no card."""
        end_s = start_s + alpha_s + wire_s
        leaves, enters = self._cluster.node(src), self._cluster.node(dst)
        away = np.flatnonzero(leaves != enters)
        gone_s = start_s.copy()
        for turn in _one_each(leaves[away], start_s[away]):
            at = away[turn]
            gone_s[at] = np.maximum(start_s[at], self._out_s[leaves[at]]) + wire_s[at]
            self._out_s[leaves[at]] = gone_s[at]
        for turn in _one_each(enters[away], gone_s[away]):
            at = away[turn]
            come_s = np.maximum(gone_s[at], self._in_s[enters[at]] + wire_s[at])
            self._in_s[enters[at]] = come_s
            end_s[at] = come_s + alpha_s[at]
        return end_s
