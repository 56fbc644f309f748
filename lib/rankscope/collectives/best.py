"""`best`: which algorithm is quickest at a size on a cluster, by how much, and where that changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import number, one_of
from ..cluster import Cluster
from .closed_forms import FORMS
from .cost import closed_form, lower_bounds
from .registry import ALGORITHMS, build
from .simulate import simulate

_EQUAL = 1e-9  # a relative difference that is rounding


class Candidate(NamedTuple):
    """One algorithm with its options, and what it takes."""

    algorithm: str
    options: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Best:
    """All algorithms by time, the quickest first, and the lower bound on the quickest link of the cluster."""

    candidates: tuple[Candidate, ...]
    bound_s: float

    @property
    def algorithm(self) -> str:
        return self.candidates[0].algorithm

    @property
    def options(self) -> dict[str, Any]:
        return self.candidates[0].options

    @property
    def seconds(self) -> float:
        return self.candidates[0].seconds

    @property
    def margin(self) -> float:
        """How much longer the next algorithm takes, as a share of the quickest's time; infinite if there is none."""
        if len(self.candidates) == 1:
            return math.inf
        return self.candidates[1].seconds / self.seconds - 1 if self.seconds else 0.0

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        more = f"{self.margin:.0%} more" if self.margin > _EQUAL else "as quick"
        after = f", then {self.candidates[1].algorithm}, {more}" if len(self.candidates) > 1 else ""
        return f"{self.algorithm}({options}) takes {self.seconds:.4g} s{after}; no less than {self.bound_s:.4g} s"


def best(
    num_bytes: float, cluster: Cluster, collective: str = "allreduce", algorithms: Iterable[str] | None = None
) -> Best:
    """Return the algorithms of `ALGORITHMS[collective]`, or those named, by what they take on the cluster.

    Where all links are alike and a closed form is stated, it says; else `simulate` does. Shapes follow the cluster's
    nodes, numbers of segments the size. Of equal times the algorithm registered first comes first. An algorithm that
    does not exist for this number of ranks is left out.

    Raises ValueError for an unknown collective or algorithm, and where none of those named exists for so many ranks.

    >>> from ..cluster import Link
    >>> print(best(1e6, Cluster.uniform(8, Link(1e-6, 1e10))))
    halving_doubling() takes 0.000181 s, then torus_3d, as quick; no less than 0.000175 s
    """
    size = number("num_bytes", num_bytes, 0)
    one_of("collective", collective, tuple(ALGORITHMS))
    names = tuple(ALGORITHMS[collective]) if algorithms is None else tuple(algorithms)
    for name in names:
        one_of(f"algorithm of {collective}", name, tuple(ALGORITHMS[collective]))
    found = [_candidate(collective, name, size, cluster) for name in ALGORITHMS[collective] if name in names]
    ranked = _ranked([candidate for candidate in found if candidate is not None])
    if not ranked:
        raise ValueError(f"algorithms must exist for {cluster.num_ranks} ranks, got {', '.join(names) or 'none'}")
    quickest = max((cluster.intra, cluster.inter), key=lambda link: link.bytes_per_s)
    bounds = lower_bounds(collective, cluster.num_ranks, size, quickest, cluster.gamma_s_per_byte)
    return Best(tuple(ranked), float(bounds.seconds))


class Winners(NamedTuple):
    """The quickest algorithm by cluster (rows) and size (columns): places in `algorithms`, seconds, margin."""

    algorithms: tuple[str, ...]
    num_ranks: NDArray[np.int64]
    num_bytes: NDArray[np.float64]
    winner: NDArray[np.int64]
    seconds: NDArray[np.float64]
    margin: NDArray[np.float64]


def winners(
    num_bytes: Sequence[float],
    clusters: Sequence[Cluster],
    collective: str = "allreduce",
    algorithms: Iterable[str] | None = None,
) -> Winners:
    """Return who is quickest at each size on each cluster, as `best` says."""
    names = tuple(ALGORITHMS[collective]) if algorithms is None else tuple(algorithms)
    table = [[best(size, cluster, collective, names) for size in num_bytes] for cluster in clusters]
    return Winners(
        names,
        np.array([cluster.num_ranks for cluster in clusters]),
        np.array(num_bytes, dtype=float),
        np.array([[names.index(cell.algorithm) for cell in row] for row in table]),
        np.array([[cell.seconds for cell in row] for row in table]),
        np.array([[cell.margin for cell in row] for row in table]),
    )


def _ranked(found: list[Candidate]) -> list[Candidate]:
    """By time; those that differ by rounding only stay in the order in which they come."""
    ranked: list[Candidate] = []
    for candidate in found:
        place = len(ranked)
        while place and candidate.seconds < ranked[place - 1].seconds * (1 - _EQUAL):
            place -= 1
        ranked.insert(place, candidate)
    return ranked


def _candidate(collective: str, name: str, num_bytes: float, cluster: Cluster) -> Candidate | None:
    """The quickest of an algorithm's options, None where it does not exist for so many ranks."""
    tried = []
    for options in _options(name, num_bytes, cluster):
        try:
            seconds = _seconds(collective, name, num_bytes, cluster, options)
        except ValueError:
            continue
        tried.append(Candidate(name, options, seconds))
    return min(tried, key=lambda candidate: candidate.seconds, default=None)


def _seconds(collective: str, name: str, num_bytes: float, cluster: Cluster, options: dict[str, Any]) -> float:
    n = cluster.num_ranks
    if cluster.is_uniform and cluster.ports == 1 and name in FORMS.get(collective, {}):
        link = cluster.inter if cluster.num_nodes > 1 else cluster.intra
        try:
            seconds = closed_form(collective, name, n, num_bytes, link, cluster.gamma_s_per_byte, **options)
            return float(seconds)
        except ValueError:
            pass  # none is stated for so many ranks, or the algorithm is the user's own
    return simulate(build(collective, name, n, **options), num_bytes, cluster, detail="ranks").makespan_s


def _options(name: str, num_bytes: float, cluster: Cluster) -> list[dict[str, Any]]:
    """What to try: shapes that follow the nodes, and segments on both sides of the best number."""
    nodes, gpus = cluster.num_nodes, cluster.gpus_per_node
    if name == "double_binary_tree":
        # least (2m + 2log₂N - 3)(2α + S/(2m)·(2β + γ)) over m
        link = cluster.inter if nodes > 1 else cluster.intra
        deep = max(1, 2 * (cluster.num_ranks - 1).bit_length() - 3)
        wire = num_bytes * (2 * link.beta_s_per_byte + cluster.gamma_s_per_byte)
        ideal = math.sqrt(deep * wire / (8 * link.alpha_s)) if link.alpha_s else 1024
        low = 1 << max(0, min(10, int(math.log2(max(1.0, ideal)))))
        return [{"num_segments": low}, {"num_segments": 2 * low}]
    if name == "segmented_ring":
        return [{"num_segments": segments} for segments in (2, 4)]
    if nodes > 1 and gpus > 1:
        if name in ("torus_2d", "mesh_2d"):
            return [{"shape": (nodes, gpus)}]
        if name == "torus_3d":
            return [{"shape": (*_two(nodes), gpus)}]
        if name == "hierarchical_ring":
            return [{"gpus_per_node": gpus}]
    return [{}]


def _two(number: int) -> tuple[int, int]:
    low = max(d for d in range(1, math.isqrt(number) + 1) if number % d == 0)
    return low, number // low
