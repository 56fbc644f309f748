"""`Link`, `Cluster`: the parameters of the cost model of collectives."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from .common.checks import check_field, number, of_type, optional, truth, whole

__all__ = ["Cluster", "Link"]

_DAY_S = 86400.0  # no latency is longer, but a bandwidth in its place is


class Link(msgspec.Struct, frozen=True):
    """One direction between two ranks: a message of m bytes takes ``alpha_s + m / bytes_per_s`` (Hockney, 1994).

    Raises ValueError if the latency is negative or more than a day, or the bandwidth is 0 or less; an infinite
    bandwidth takes no time.

    >>> Link(alpha_s=5e-6, bytes_per_s=10e9).seconds(1e6)
    0.000105
    """

    alpha_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        check_field(self, "alpha_s", number, 0)
        check_field(self, "bytes_per_s", number, above=0, high=math.inf)
        if self.alpha_s > _DAY_S:
            raise ValueError(f"a Link has its latency in seconds before its bandwidth in bytes per second, got {self}")

    @property
    def beta_s_per_byte(self) -> float:
        return 1.0 / self.bytes_per_s

    def seconds(self, num_bytes: float) -> float:
        """Return the time of a message of `num_bytes` in seconds. Raises ValueError if the size is negative."""
        number("num_bytes", num_bytes, 0)
        return self.alpha_s + num_bytes / self.bytes_per_s


class Cluster(msgspec.Struct, frozen=True):
    """`num_nodes` nodes of `gpus_per_node` ranks each, rank r on node r // gpus_per_node.

    `intra` connects ranks on the same node, `inter` ranks on different nodes. A sum takes `gamma_s_per_byte` per byte;
    each rank computes one sum at a time.

    A rank sends `ports` messages at once and receives as many; further messages wait. None removes the limit, as in
    formulas that ignore incast. With `shared_nic` the ranks of a node share one `inter` link out and one in: messages
    pass it one at a time, but their latencies overlap.

    With `switch_adds`, if several ranks send into the same run of chunks of one rank in one step, the switch of their
    node adds the messages: their sum arrives once, and adding takes no time. A run that one rank copies to several
    ranks leaves it once. The receiver's own share of a sum, and the sender's own copy of a run that it sends out, also
    cross their links, as with NVLink's multimem.ld_reduce and multimem.st. In a step in which this happens, and in
    which no message leaves its node, ports do not limit messages: a message ends alpha_s + bytes / bytes_per_s after
    the latest start of the messages merged with it. The bytes are all those that cross the sender's link outwards or
    the receiver's link inwards, whichever is more. All other steps are simulated as without such a switch.

    Raises ValueError if a number is out of range.

    >>> Cluster(2, 4, Link(2e-6, 300e9), Link(6e-6, 50e9)).num_ranks
    8
    """

    num_nodes: int
    gpus_per_node: int
    intra: Link
    inter: Link
    gamma_s_per_byte: float = 0.0
    ports: int | None = 1
    shared_nic: bool = False
    switch_adds: bool = False

    def __post_init__(self) -> None:
        check_field(self, "num_nodes", whole, 1)
        check_field(self, "gpus_per_node", whole, 1)
        check_field(self, "intra", of_type, Link)
        check_field(self, "inter", of_type, Link)
        check_field(self, "gamma_s_per_byte", number, 0)
        check_field(self, "ports", optional, whole, 1)
        check_field(self, "shared_nic", truth)
        check_field(self, "switch_adds", truth)

    @classmethod
    def uniform(cls, num_ranks: int, link: Link, gamma_s_per_byte: float = 0.0, ports: int | None = 1) -> Cluster:
        """Return a cluster in which all pairs of ranks have the same link."""
        return cls(whole("num_ranks", num_ranks, 1), 1, link, link, gamma_s_per_byte, ports)

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs of ranks have the same link and no switch performs sums."""
        several_per_node = self.gpus_per_node > 1
        several_nodes = self.num_nodes > 1
        if several_per_node and self.switch_adds:  # it adds what ranks of one node send
            return False
        if several_per_node and several_nodes:
            return self.intra == self.inter and not self.shared_nic
        return True  # all pairs of ranks are within a node, or none is

    @property
    def fastest_link(self) -> Link:
        """A link with the lowest latency and the highest bandwidth of all links, for lower bounds."""
        if self.num_nodes == 1:
            return self.intra
        if self.gpus_per_node == 1:
            return self.inter
        return Link(min(self.intra.alpha_s, self.inter.alpha_s), max(self.intra.bytes_per_s, self.inter.bytes_per_s))

    def node(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the node of each rank."""
        return rank // self.gpus_per_node

    def costs(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds per message and the seconds per byte of each pair's link."""
        between_nodes = self.node(src) != self.node(dst)
        alpha_s = np.where(between_nodes, self.inter.alpha_s, self.intra.alpha_s)
        beta_s_per_byte = np.where(between_nodes, self.inter.beta_s_per_byte, self.intra.beta_s_per_byte)
        return alpha_s, beta_s_per_byte
