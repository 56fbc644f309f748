"""`best`: which algorithm is fastest at a size on a cluster, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from ..cluster import Cluster
from ..values.checks import number, of_type, one_of, whole
from .builders import ALGORITHMS, build, builders_of, is_shipped
from .builders.rings import shape_of
from .cost import NoClosedForm, closed_form, lower_bounds
from .schedule import MOST_RANKS
from .simulate import simulate
from .verify import verify

_EQUAL = 1e-9  # a relative difference that is rounding


class Candidate(NamedTuple):
    """One algorithm with its options, and what it takes."""

    algorithm: str
    options: dict[str, Any]
    seconds: float


class Best(NamedTuple):
    """All algorithms by time, the fastest first, and the lower bound were all links as good as the best of each."""

    candidates: tuple[Candidate, ...]
    bound_s: float

    @property
    def algorithm(self) -> str:
        return self.candidates[0].algorithm

    @property
    def seconds(self) -> float:
        return self.candidates[0].seconds

    @property
    def margin(self) -> float:
        """How much longer the next algorithm takes, as a share of the fastest one's time; infinite if there is none."""
        if len(self.candidates) == 1:
            return math.inf
        after = self.candidates[1].seconds
        return after / self.seconds - 1 if self.seconds else math.inf if after else 0.0

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.candidates[0].options.items())
        more = f"{self.margin:.0%} more" if self.margin > _EQUAL else "as fast"
        after = f", then {self.candidates[1].algorithm}, {more}" if len(self.candidates) > 1 else ""
        return f"{self.algorithm}({options}) takes {self.seconds:.4g} s{after}; lower bound {self.bound_s:.4g} s"


def best(
    num_bytes: float, cluster: Cluster, collective: str = "allreduce", algorithms: Iterable[str] | None = None
) -> Best:
    """Return the algorithms of `ALGORITHMS[collective]`, or those named, by what they take on the cluster.

    Where all links are alike and a closed form is stated, it decides; else `simulate` does. Shapes follow the cluster's
    nodes, numbers of segments the size. Of equal times the algorithm registered first comes first. An algorithm that
    does not exist for this number of ranks is left out. "nvls", within a node, and "nvls_tree", over nodes, take part
    where the cluster's switch adds. Builders other than rankscope's are verified, and simulated.

    Raises ValueError for an unknown collective or algorithm, where none of those named exists for so many ranks, and
    for a builder that makes something else than it should.

    >>> from ..cluster import Link
    >>> print(best(1e6, Cluster.uniform(8, Link(1e-6, 1e10))))
    halving_doubling() takes 0.000181 s, then torus_3d, as fast; lower bound 0.000175 s
    """
    size = number("num_bytes", num_bytes, 0)
    one_of("collective", collective, tuple(ALGORITHMS))
    whole("num_ranks of cluster", of_type("cluster", cluster, Cluster).num_ranks, 1, MOST_RANKS)
    known = tuple(builders_of(collective) if cluster.switch_adds else ALGORITHMS[collective])
    if isinstance(algorithms, str) or not (algorithms is None or isinstance(algorithms, Iterable)):
        raise ValueError(f"algorithms must be names of algorithms of {collective}, got {algorithms!r}")
    names = known if algorithms is None else [one_of(f"algorithm of {collective}", name, known) for name in algorithms]
    found = [_candidate(collective, name, size, cluster) for name in known if name in names]
    ranked: list[Candidate] = []
    for candidate in filter(None, found):
        place = len(ranked)  # those that differ by rounding only stay in the order in which they come
        while place and candidate.seconds < ranked[place - 1].seconds * (1 - _EQUAL):
            place -= 1
        ranked.insert(place, candidate)
    if not ranked:
        raise ValueError(f"algorithms must exist for {cluster.num_ranks} ranks, got {', '.join(names) or 'none'}")
    return Best(tuple(ranked), _bound_s(collective, size, cluster))


def _bound_s(collective: str, num_bytes: float, cluster: Cluster) -> float:
    """The larger of two lower bounds: of ranks joined by the fastest link, and of nodes joined by their links out.

    A node counts as one rank whose links out work in parallel, or take turns where they share a card.
    """
    ports, per_node = cluster.ports, cluster.gpus_per_node
    model = cluster.quickest, cluster.gamma_s_per_byte, ports, cluster.switch_adds
    ranks = lower_bounds(collective, cluster.num_ranks, num_bytes, *model)
    if cluster.overrides or 1 in (cluster.num_nodes, per_node):
        return float(ranks.seconds)
    out = None if ports is None else ports * per_node
    leaves = num_bytes * (per_node if collective == "all_to_all" else 1)
    nodes = lower_bounds(collective, cluster.num_nodes, leaves, cluster.inter, ports=1 if cluster.shared_nic else out)
    latency_s = lower_bounds(collective, cluster.num_nodes, 0.0, cluster.inter, ports=out).latency_s
    return max(float(ranks.seconds), latency_s, float(nodes.bandwidth_s))


def _candidate(collective: str, name: str, num_bytes: float, cluster: Cluster) -> Candidate | None:
    """The fastest of an algorithm's options, None where it does not exist for so many ranks."""
    tried, ours = [], is_shipped(collective, name)
    if ours and name == ("nvls" if cluster.num_nodes > 1 else "nvls_tree"):
        return None
    for options in _options(collective, name, num_bytes, cluster) if ours else [{}]:
        try:
            schedule = build(collective, name, cluster.num_ranks, **options)
        except ValueError:
            continue
        if not ours:
            made = schedule.collective, schedule.num_ranks
            if made != (collective, cluster.num_ranks):
                wanted = f"{collective} for {cluster.num_ranks} ranks"
                raise ValueError(f"{name} must build {wanted}, and built {made[0]} for {made[1]}")
            verify(schedule)
        seconds = None
        if ours and cluster.is_uniform and cluster.ports == 1:
            link, gamma = cluster.inter if cluster.num_nodes > 1 else cluster.intra, cluster.gamma_s_per_byte
            with suppress(NoClosedForm):
                seconds = closed_form(collective, name, cluster.num_ranks, num_bytes, link, gamma, **options)
        if seconds is None:
            seconds = simulate(schedule, num_bytes, cluster, detail="ranks").makespan_s
        tried.append(Candidate(name, options, seconds))
    return min(tried, key=lambda candidate: candidate.seconds, default=None)


def _options(collective: str, name: str, num_bytes: float, cluster: Cluster) -> list[dict[str, Any]]:
    """What to try: shapes that follow the nodes, and numbers of segments on both sides of the best one."""
    nodes, gpus, n = cluster.num_nodes, cluster.gpus_per_node, cluster.num_ranks
    link = cluster.inter if nodes > 1 else cluster.intra
    beta, stated = link.beta_s_per_byte, cluster.is_uniform and cluster.ports == 1
    if (collective, name) == ("allreduce", "double_binary_tree"):
        # least (2m + 2log₂N - 3)(2α + S/(2m)·(2β + γ)) over m
        deep = 2 * (n - 1).bit_length() - 3 if n > 3 else 0  # up to three ranks nothing is passed on
        return _segments(deep * num_bytes * (2 * beta + cluster.gamma_s_per_byte), 8 * link.alpha_s, stated)
    if name == "nvls":
        return _segments((1 - 1 / n) * num_bytes * beta, link.alpha_s, stated)
    if (collective, name) == ("broadcast", "chain"):
        return _segments((n - 2) * num_bytes * beta, link.alpha_s, stated)  # least (N - 2 + m)(α + S/m·β)
    if (collective, name) == ("allreduce", "segmented_ring"):
        return [{"num_segments": segments} for segments in (1, 2, 4, 8)]
    if collective == "allreduce" and nodes > 1 and gpus > 1:
        if name in ("torus_2d", "mesh_2d"):
            return [{"shape": (nodes, gpus)}]
        if name == "torus_3d":
            return [{"shape": (*shape_of(nodes, None, 2), gpus)}]
        if name == "hierarchical_ring":
            return [{"gpus_per_node": gpus}]
        if name == "nvls_tree":
            segments = _segments((nodes - 1).bit_length() * num_bytes / gpus * beta, link.alpha_s, stated)
            return [{"gpus_per_node": gpus, **more} for more in segments]
    return [{}]


def _segments(gain: float, cost: float, stated: bool) -> list[dict[str, Any]]:
    """The powers of two on both sides of the root of gain / cost, up to 16,384; up to 256 where each is simulated."""
    most = 2.0 ** (13 if stated else 7)
    low = 1 << int(math.log2(min(math.sqrt(max(1.0, gain / cost)) if cost else most, most)))
    return [{"num_segments": 1}] if gain <= 0 else [{"num_segments": low}, {"num_segments": 2 * low}]
