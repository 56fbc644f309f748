"""`Link`, `Cluster`: the parameters of the cost model of collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .common.checks import number, of_type, truth, whole
from .common.frozen import ReadOnly, checked, frozen, optional

__all__ = ["Cluster", "Link"]


@frozen
class Link:
    """One direction between two ranks: a message of m bytes takes ``alpha_s + m / bytes_per_s`` (Hockney, 1994).

    Raises ValueError for a negative latency and for a bandwidth of 0 or less; an infinite bandwidth costs no time.

    >>> Link(alpha_s=5e-6, bytes_per_s=10e9).seconds(1e6)
    0.000105
    """

    alpha_s: float = checked(number, 0)
    bytes_per_s: float = checked(number, above=0, high=math.inf)

    @property
    def beta_s_per_byte(self) -> float:
        return 1.0 / self.bytes_per_s

    def seconds(self, num_bytes: float) -> float:
        """Return the time of a message of `num_bytes` in seconds. Raises ValueError for a negative size."""
        number("num_bytes", num_bytes, 0)
        return self.alpha_s + num_bytes / self.bytes_per_s


def _links_of_pairs(name: str, value: Any) -> ReadOnly:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must map pairs (src, dst) to links, got {value!r}")
    for pair, link in value.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(f"{name} must be for pairs (src, dst) of two ranks, got {pair!r}")
        of_type(f"{name}[{pair}]", link, Link)
    return ReadOnly(value)


@frozen
class Cluster:
    """`num_nodes` nodes of `gpus_per_node` ranks each, rank r on node r // gpus_per_node.

    `intra` connects ranks on the same node, `inter` ranks on different nodes; `overrides` gives single pairs (src, dst)
    their own link. A sum takes `gamma_s_per_byte` per byte; each rank computes one sum at a time.

    A rank sends `ports` messages at once and receives as many; further messages wait. None removes the limit, as in
    formulas that ignore incast. With `shared_nic` the ranks of a node share one `inter` link out and one in: messages
    pass it one at a time, but their latencies overlap.

    With `switch_adds` the switch of a node adds what several ranks send into the same run of chunks of one rank in one
    step: it arrives once, already added, and costs no gamma. What one rank copies to several leaves it once. The own
    share of the rank that takes a sum, and its own copy of what it sends out, cross its link, too, as NVLink's
    multimem.ld_reduce and multimem.st do. In a step in which that happens, and in which no message leaves its node,
    there are no ports: a message ends alpha_s + bytes / bytes_per_s after the latest start of those merged with it, the
    bytes being all that cross the sender's link outwards or the receiver's inwards, whichever are more. All other steps
    are as without such a switch.

    Raises ValueError for numbers out of range and for overrides between ranks that do not exist.

    >>> Cluster(2, 4, Link(2e-6, 300e9), Link(6e-6, 50e9)).num_ranks
    8
    """

    num_nodes: int = checked(whole, 1)
    gpus_per_node: int = checked(whole, 1)
    intra: Link = checked(Link)
    inter: Link = checked(Link)
    gamma_s_per_byte: float = checked(number, 0, default=0.0)
    ports: int | None = checked(optional, whole, 1, default=1)
    shared_nic: bool = checked(truth, default=False)
    overrides: Mapping[tuple[int, int], Link] = checked(_links_of_pairs, factory=dict, hash=False)
    switch_adds: bool = checked(truth, default=False)

    def __attrs_post_init__(self) -> None:
        for src, dst in self.overrides:
            whole("overrides: src", src, 0, self.num_ranks - 1)
            whole("overrides: dst", dst, 0, self.num_ranks - 1)

    @classmethod
    def uniform(cls, num_ranks: int, link: Link, gamma_s_per_byte: float = 0.0, ports: int | None = 1) -> Cluster:
        """Return a cluster in which all pairs of ranks have the same link."""
        return cls(whole("num_ranks", num_ranks, 1), 1, link, link, gamma_s_per_byte, ports)

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs of ranks have the same link, and no switch adds for some of them."""
        inside, outside = self.gpus_per_node > 1, self.num_nodes > 1
        links = {self.intra} if not outside else {self.inter} if not inside else {self.intra, self.inter}
        return (
            len(links) == 1
            and not self.overrides
            and not (inside and (self.switch_adds or (self.shared_nic and outside)))
        )

    @property
    def quickest(self) -> Link:
        """A link with the lowest latency and the highest bandwidth of any pair of ranks, for lower bounds."""
        links = [*([self.intra] if self.gpus_per_node > 1 else []), *([self.inter] if self.num_nodes > 1 else [])]
        links = [*links, *self.overrides.values()] or [self.intra]
        return Link(min(link.alpha_s for link in links), max(link.bytes_per_s for link in links))

    def node(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the node of each rank."""
        return rank // self.gpus_per_node

    def link(self, src: int, dst: int) -> Link:
        """Return the link from one rank to another."""
        same = src // self.gpus_per_node == dst // self.gpus_per_node
        return self.overrides.get((src, dst)) or (self.intra if same else self.inter)

    def costs(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds per message and the seconds per byte of each pair's link."""
        outside = self.node(src) != self.node(dst)
        alpha_s = np.where(outside, self.inter.alpha_s, self.intra.alpha_s)
        beta = np.where(outside, self.inter.beta_s_per_byte, self.intra.beta_s_per_byte)
        if self.overrides:
            own, own_alpha_s, own_beta = self._own
            key = src * self.num_ranks + dst
            place = np.minimum(np.searchsorted(own, key), own.size - 1)
            found = own[place] == key
            alpha_s[found], beta[found] = own_alpha_s[place[found]], own_beta[place[found]]
        return alpha_s, beta

    @cached_property
    def _own(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The overrides as columns: src · num_ranks + dst (sorted), seconds per message, seconds per byte."""
        rows = sorted(
            ((src * self.num_ranks + dst, link) for (src, dst), link in self.overrides.items()), key=itemgetter(0)
        )
        keys, links = zip(*rows, strict=True)
        seconds = np.array([(link.alpha_s, link.beta_s_per_byte) for link in links])
        return np.array(keys), seconds[:, 0], seconds[:, 1]


def node_sizes(nodes: Sequence[int]) -> list[int]:
    """Return the number of ranks on each node.

    >>> node_sizes([0, 0, 1])
    [2, 1]
    """
    return [list(nodes).count(node) for node in range(max(nodes) + 1)]
