"""`ALGORITHMS`: one record for each algorithm, by collective and name; add your own to it.

Everything else reads these records: `build`, `closed_form`, `best`, the explorers, the figures, and the tests, which
verify, simulate and execute everything registered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import msgspec

from ..cluster import Cluster
from ..common.checks import function, of_type, one_of, whole
from . import forms
from .builders import double_tree, exchange, halving, rings, rooted, switch
from .schedule import COLLECTIVES, Schedule

SEGMENTS = (1, *(factor * 2**power for power in range(13) for factor in (2, 3)))  # 1, 2, 3, 4, 6, 8, 12, …, 12288


def anyhow(cluster: Cluster) -> dict[str, Any] | None:
    """Return no options: the cluster's nodes do not matter."""
    return {}


class Algorithm(msgspec.Struct, frozen=True):
    """An algorithm for a collective. Calling it builds its schedule: ``algorithm(num_ranks, **options)``.

    `builder` is a function of the number of ranks and of options. `form` is its closed form, a function like those of
    `rankscope.collectives.forms`; if it is None, the algorithm is simulated. `paper` names the publication that
    describes the algorithm. `best` tries the numbers of `segments` as ``num_segments``, in ascending order, together
    with the options that `arrange` returns for a cluster: those that follow its nodes, or None if the algorithm is not
    for such a cluster.

    `best` and `closed_form` trust what a record says: compare a form with `simulate`, and `verify` a schedule, as
    ``pytest tests/collectives`` does for all that is registered.

    Raises ValueError if `builder`, `form` or `arrange` is not a function.

    >>> Algorithm(None)
    Traceback (most recent call last):
    ValueError: builder of Algorithm must be a function of the number of ranks, got None
    """

    builder: Callable[..., Schedule]
    form: forms.Form | None = None
    paper: str = ""
    segments: tuple[int, ...] = ()
    arrange: Callable[[Cluster], dict[str, Any] | None] = anyhow

    def __post_init__(self) -> None:
        function("builder of Algorithm", self.builder, "of the number of ranks")
        function("arrange of Algorithm", self.arrange, "of a cluster that returns options, or None")
        if self.form is not None:
            function("form of Algorithm", self.form, "of Terms and options that returns seconds")

    def __call__(self, num_ranks: int, **options: Any) -> Schedule:
        """Build the schedule. Raises ValueError if an option is unknown, or does not fit the number of ranks."""
        num_ranks = whole("num_ranks", num_ranks, 1)
        self.check_options(num_ranks, options)
        return self.builder(num_ranks, **options)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the builder's options."""
        return tuple(signature(self.builder).parameters)[1:]  # the first parameter is the number of ranks

    def check_options(self, num_ranks: int, options: Mapping[str, Any]) -> None:
        """Raise ValueError for an option that the builder does not have, and for a root or segments out of range."""
        for name in options:
            if name not in self.options:
                raise ValueError(f"option must be one of {', '.join(self.options) or 'none'}, got {name!r}")
        whole("root", options.get("root", 0), 0, num_ranks - 1)
        whole("num_segments", options.get("num_segments", 1), 1)

    def tries(self, cluster: Cluster) -> list[dict[str, Any]]:
        """Return the options that `best` tries on a cluster; none if the algorithm is not for such a cluster."""
        arranged = self.arrange(cluster)
        if arranged is None:
            return []
        if not self.segments:
            return [arranged]
        return [{**arranged, "num_segments": num_segments} for num_segments in self.segments]


def _has_levels(cluster: Cluster) -> bool:
    return cluster.num_nodes > 1 and cluster.gpus_per_node > 1


def _by_nodes(cluster: Cluster) -> dict[str, Any] | None:
    return {"gpus_per_node": cluster.gpus_per_node} if _has_levels(cluster) else {}


def _in_grid(cluster: Cluster, num_axes: int) -> dict[str, Any] | None:
    """The last axis is within a node."""
    if not _has_levels(cluster):
        return {}
    return {"shape": (*rings.shape_of(cluster.num_nodes, None, num_axes - 1), cluster.gpus_per_node)}


def _switch_of_a_node(cluster: Cluster) -> dict[str, Any] | None:
    return {} if cluster.switch_adds and cluster.num_nodes == 1 else None


def _switches_of_nodes(cluster: Cluster) -> dict[str, Any] | None:
    return _by_nodes(cluster) if cluster.switch_adds and cluster.num_nodes > 1 else None


_MPICH = "Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication operations in MPICH"
_HALVING = "Rabenseifner (2004), Optimization of collective reduction operations"
_RING = "Patarasuk and Yuan (2009), Bandwidth optimal all-reduce algorithms"
_TORUS = "Mikami and others (2018), Massively distributed SGD: ImageNet/ResNet-50 training in a flash"
_TREES = "Sanders, Speck and Träff (2009), Two-tree algorithms for full bandwidth broadcast, reduction and scan"
_SWING = "De Sensi and others (2024), Swing: short-cutting rings for higher bandwidth allreduce"
_BRUCK = "Bruck and others (1997), Efficient algorithms for all-to-all communications in multiport systems"
_PAT = "Jeaugey (2025), PAT: a new algorithm for all-gather and reduce-scatter operations at scale (arXiv 2506.20252)"
_BARRIER = "Hensgen, Finkel and Manber (1988), Two algorithms for barrier synchronization"
_MULTIMEM = "NVIDIA's PTX ISA: multimem.ld_reduce and multimem.st"

_GRID_2D = partial(_in_grid, num_axes=2)
_GRID_3D = partial(_in_grid, num_axes=3)

# The algorithms of each collective, by name. One that you add is verified, drawn, simulated and ranked like the others.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "allreduce": {
        "flat": Algorithm(rooted.allreduce_flat, forms.flat),
        "binomial_tree": Algorithm(rooted.binomial_tree, forms.binomial_tree, _MPICH),
        "recursive_doubling": Algorithm(halving.recursive_doubling, forms.recursive_doubling, _MPICH),
        "halving_doubling": Algorithm(halving.halving_doubling, forms.halving_doubling, _HALVING),
        "ring": Algorithm(rings.ring, forms.ring, _RING),
        "segmented_ring": Algorithm(rings.segmented_ring, forms.segmented_ring, _RING, SEGMENTS),
        "hierarchical_ring": Algorithm(rings.hierarchical_ring, forms.hierarchical_ring, _RING, arrange=_by_nodes),
        "torus_2d": Algorithm(rings.torus_2d, forms.torus_2d, _TORUS, arrange=_GRID_2D),
        "mesh_2d": Algorithm(rings.mesh_2d, forms.mesh_2d, _TORUS, arrange=_GRID_2D),
        "torus_3d": Algorithm(rings.torus_3d, forms.torus_3d, _TORUS, arrange=_GRID_3D),
        "double_binary_tree": Algorithm(double_tree.double_binary_tree, forms.double_binary_tree, _TREES, SEGMENTS),
        "bidirectional_ring": Algorithm(rings.bidirectional_ring, forms.ring, _RING),  # with one port it is the ring
        "swing": Algorithm(halving.swing, forms.halving_doubling, _SWING),
    },
    "reduce": {
        "flat": Algorithm(partial(rooted.flat, "reduce"), forms.added_whole_buffers),
        "binomial": Algorithm(partial(rooted.binomial, "reduce"), forms.added_tree, _MPICH),
        "reduce_scatter_gather": Algorithm(halving.reduce_scatter_gather, forms.reduce_scatter_gather, _HALVING),
    },
    "broadcast": {
        "flat": Algorithm(partial(rooted.flat, "broadcast"), forms.whole_buffers),
        "binomial": Algorithm(partial(rooted.binomial, "broadcast"), forms.tree, _MPICH),
        "scatter_allgather": Algorithm(rooted.broadcast_scatter_allgather, forms.scatter_allgather, _MPICH),
        "chain": Algorithm(rooted.broadcast_chain, forms.chain, _MPICH, SEGMENTS),
    },
    "scatter": {
        "flat": Algorithm(partial(rooted.flat_parts, "scatter"), forms.parts),
        "binomial": Algorithm(partial(rooted.binomial_parts, "scatter"), forms.halves_of_powers, _MPICH),
    },
    "gather": {
        "flat": Algorithm(partial(rooted.flat_parts, "gather"), forms.parts),
        "binomial": Algorithm(partial(rooted.binomial_parts, "gather"), forms.halves_of_powers, _MPICH),
    },
    "allgather": {
        "ring": Algorithm(exchange.allgather_ring, forms.parts, _MPICH),
        "recursive_doubling": Algorithm(exchange.allgather_recursive_doubling, forms.halves_of_powers, _MPICH),
        "bruck": Algorithm(exchange.allgather_bruck, forms.halves, _BRUCK),
        "pat": Algorithm(exchange.allgather_pat, forms.halves, _PAT),
    },
    "reduce_scatter": {
        "ring": Algorithm(exchange.reduce_scatter_ring, forms.added_parts, _RING),
        "recursive_halving": Algorithm(
            partial(exchange.reduce_scatter, "recursive_halving", exchange.allgather_recursive_doubling),
            forms.added_halves_of_powers,
            _MPICH,
        ),
        "pairwise": Algorithm(exchange.reduce_scatter_pairwise, forms.added_parts, _MPICH),
        "bruck": Algorithm(
            partial(exchange.reduce_scatter, "bruck", exchange.allgather_bruck), forms.added_halves, _BRUCK
        ),
        "pat": Algorithm(partial(exchange.reduce_scatter, "pat", exchange.allgather_pat), forms.added_halves, _PAT),
    },
    "all_to_all": {
        "pairwise": Algorithm(exchange.all_to_all_pairwise, forms.parts, _MPICH),
        "bruck": Algorithm(exchange.all_to_all_bruck, forms.all_to_all_bruck, _BRUCK),
    },
    "barrier": {"dissemination": Algorithm(exchange.barrier_dissemination, forms.latencies, _BARRIER)},
}

# Only for a cluster whose switch adds: `build` knows them, and `best` tries them there.
IN_SWITCH = {
    "nvls": Algorithm(switch.nvls, forms.nvls, _MULTIMEM, SEGMENTS, _switch_of_a_node),
    "nvls_tree": Algorithm(switch.nvls_tree, forms.nvls_tree, _MULTIMEM, SEGMENTS, _switches_of_nodes),
}


def algorithms_of(collective: str) -> dict[str, Algorithm]:
    """Return the algorithms of a collective by name: those of `ALGORITHMS`, and those for a switch that adds."""
    one_of("collective", collective, COLLECTIVES)
    in_switch = IN_SWITCH if collective == "allreduce" else {}
    return {**ALGORITHMS[collective], **in_switch}


def algorithm_of(collective: str, name: str) -> Algorithm:
    """Return one of `algorithms_of`. Raises ValueError for a name that is not there, naming those that are."""
    algorithms = algorithms_of(collective)
    one_of(f"algorithm of {collective}", name, tuple(algorithms))
    return of_type(f"ALGORITHMS[{collective!r}][{name!r}]", algorithms[name], Algorithm)


def build(collective: str, algorithm: str, num_ranks: int, **options: Any) -> Schedule:
    """Return ``ALGORITHMS[collective][algorithm](num_ranks, **options)``.

    For a cluster whose switch adds (`Cluster.switch_adds`), the algorithm of an allreduce may also be "nvls" or
    "nvls_tree".

    Raises ValueError if the collective or algorithm is unknown (the message lists the valid names), or if the builder
    rejects an option or the number of ranks.
    """
    return algorithm_of(collective, algorithm)(num_ranks, **options)
