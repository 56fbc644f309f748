"""`Terms`, in which closed forms are written, and `lower_bounds`, in the single-port full-duplex Hockney model.

The form of an algorithm stands in its record, above its builder. Sources: Thakur, Rabenseifner and Gropp (2005),
Optimization of collective communication operations in MPICH; Rabenseifner (2004); Patarasuk and Yuan (2009); Chan and
others (2007), Collective communication: theory, practice, and experience. Where texts differ, the test that compares
each form with `simulate` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..cluster import Cluster, Link
from ..common.checks import number, of_type, one_of
from .schedule import COLLECTIVES, SUMS

Form = Callable[..., Any]  # form(terms, **options) → seconds


class NoClosedForm(ValueError):
    """No closed form is stated for this algorithm, number of ranks or option; `simulate` has no such limit."""


class Terms(NamedTuple):
    """N ranks with S bytes in each rank's whole buffer. A message of m bytes takes α + mβ, and adding it takes mγ."""

    num_ranks: int
    num_bytes: Any
    link: Link
    gamma_s_per_byte: float

    def takes(self, messages: float, sent: float, added: float = 0.0) -> Any:
        """The seconds of so many messages in a row, of so many buffers in all, of which so many are added up."""
        per_buffer_s = self.num_bytes * (sent * self.link.beta_s_per_byte + added * self.gamma_s_per_byte)
        return messages * self.link.alpha_s + per_buffer_s

    @property
    def log(self) -> int:
        """⌈log₂N⌉."""
        return (self.num_ranks - 1).bit_length()

    @property
    def num_others(self) -> int:
        """N-1."""
        return self.num_ranks - 1

    @property
    def others(self) -> float:
        """(N-1)/N, the share of a buffer that belongs to the other ranks."""
        return self.num_others / self.num_ranks

    @property
    def core(self) -> Terms:
        """The terms of the largest power of two of ranks."""
        return self._replace(num_ranks=1 << (self.num_ranks.bit_length() - 1))

    @property
    def fold_s(self) -> Any:
        """The whole buffer to a rank of the core and back again, if N is not a power of two."""
        return self.takes(2, 2, 1) if self.core != self else 0.0

    def if_power_of_two(self, seconds: Any) -> Any:
        """Return the seconds. Raises NoClosedForm unless N is a power of two."""
        if self.core.num_ranks != self.num_ranks:
            raise NoClosedForm(f"no closed form is stated for {self.num_ranks}, not a power of two: use simulate")
        return seconds


# ---- forms of several algorithms, in which each rank gets, or passes on, the shares of all others


def one_by_one_s(t: Terms) -> Any:
    """N-1 messages in a row, a share in each."""
    return t.takes(t.num_others, t.others)


def one_by_one_added_s(t: Terms) -> Any:
    """The same, where each is added up."""
    return t.takes(t.num_others, t.others, t.others)


def doubling_s(t: Terms) -> Any:
    """⌈log₂N⌉ messages in a row, of 1, 2, 4, … shares."""
    return t.takes(t.log, t.others)


def doubling_added_s(t: Terms) -> Any:
    """The same, where each is added up."""
    return t.takes(t.log, t.others, t.others)


def doubling_of_powers_s(t: Terms) -> Any:
    """`doubling_s` of an algorithm whose messages are of other sizes unless N is a power of two."""
    return t.if_power_of_two(doubling_s(t))


# ---- lower bounds


class Bounds(NamedTuple):
    """No collective of point-to-point messages takes less than any of these; in-network reduction may."""

    latency_s: float
    bandwidth_s: float
    adding_s: float

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self)


def lower_bounds(num_bytes: float, cluster: Cluster, collective: str = "allreduce") -> Bounds:
    """Return the lower bounds for point-to-point messages on the cluster's fastest link, after Chan and others (2007).

    With p ports, a result that depends on all ranks requires ⌈log₍ₚ₊₁₎N⌉ messages in a row. At least one rank must
    send or receive 2(N-1)/N·S bytes over its p ports for allreduce, S for broadcast and reduce, none for a barrier, and
    (N-1)/N·S for the others. If the cluster's ports are None, one message in a row is enough, and bytes take no time.
    Where sums are made, (N-1)S bytes are added up in all, so at least one of the N ranks adds up (N-1)/N·S.

    If the cluster's switch adds, one message may carry the sum of all ranks, and the switch may copy it to all of them.
    So an allreduce requires a single α, no additions, and S bytes in each direction. The bounds of the other
    collectives are at most these.

    Raises ValueError if the collective is unknown or a number is out of range.

    >>> lower_bounds(8.0, Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))).seconds
    6.0
    """
    one_of("collective", collective, COLLECTIVES)
    num_bytes = number("num_bytes", num_bytes, 0)
    num_ranks = of_type("cluster", cluster, Cluster).num_ranks
    link = cluster.fastest_link
    # Without a limit on ports, a rank sends to all others in one step, and bytes take no time.
    num_ports = cluster.ports or math.inf
    receivers_per_step = min(num_ports, num_ranks - 1)
    share_of_others = (num_ranks - 1) / num_ranks  # the part of a buffer that belongs to the other ranks
    # how much some rank must send or receive
    buffers = {"allreduce": 2 * share_of_others, "broadcast": 1.0, "reduce": 1.0, "barrier": 0.0}
    buffers_moved = buffers.get(collective, share_of_others) * (num_ranks > 1)
    buffers_added = share_of_others * (collective in SUMS)
    if cluster.switch_adds:
        receivers_per_step = num_ranks - 1
        buffers_moved = min(buffers_moved, 1.0)
        buffers_added = 0.0
    num_messages = 0
    while (1 + receivers_per_step) ** num_messages < num_ranks:  # ranks that one rank's data has reached by then
        num_messages += 1
    bandwidth_s = buffers_moved * num_bytes * link.beta_s_per_byte / num_ports
    return Bounds(num_messages * link.alpha_s, bandwidth_s, buffers_added * num_bytes * cluster.gamma_s_per_byte)
