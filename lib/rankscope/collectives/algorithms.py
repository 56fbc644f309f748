"""`ALGORITHMS`: one record for each algorithm, by collective and name; add your own to it.

Everything else reads these records: `build`, `closed_form`, `best`, the explorers, the figures, and the tests, which
verify, simulate and execute everything registered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from inspect import signature
from typing import Any

from ..cluster import Cluster
from ..common.checks import function, of_type, one_of, truth, whole
from ..common.frozen import checked, frozen
from . import forms
from .builders import double_tree, exchange, halving, rings, rooted, switch
from .schedule import COLLECTIVES, Schedule

Builder = Callable[..., Schedule]
_MOST_AXES = 8  # of a torus; its default shape is found by recursion, an axis at a time


def _in_record(field: str, value: Any, check: Callable[..., Any], *limits: Any) -> Any:
    """Check a field of an `Algorithm`; the error names the record and the field."""
    return check(f"{field} of Algorithm", value, *limits)


def _form(name: str, value: Any) -> Any:
    return None if value is None else function(name, value, "of Terms and options that returns seconds, or None")


def _num_axes(name: str, value: Any) -> int:
    number = whole(name, value, 0, _MOST_AXES)
    if number == 1:
        raise ValueError(f"{name} must be 0, for no shape, or from 2 to {_MOST_AXES}, got 1")
    return number


@frozen
class Algorithm:
    """An algorithm for a collective. Calling it builds its schedule: ``algorithm(num_ranks, **options)``.

    `form` is its closed form, a function like those of `rankscope.collectives.forms`; if it is None, the algorithm is
    simulated. `best` and `closed_form` trust the form of your own record as they trust rankscope's, so compare it with
    `simulate` first. `paper` names the publication that describes the algorithm. Some algorithms, and some forms,
    support only powers of two. The options of a builder follow from its parameters: `shape` (`num_axes` numbers, at
    least two) and `gpus_per_node` arrange it by the nodes, `num_segments` cuts the buffer, and `root` and `counts` are
    as in MPI.

    Raises ValueError, which names the field, if `builder` or `form` is not a function or if a number is out of range.

    >>> Algorithm(None)
    Traceback (most recent call last):
    ValueError: builder of Algorithm must be a function of the number of ranks, got None
    """

    builder: Builder = checked(_in_record, function, "of the number of ranks")
    form: forms.Form | None = checked(_in_record, _form, default=None)
    paper: str = checked(_in_record, of_type, str, default="")
    num_axes: int = checked(_in_record, _num_axes, default=0)
    needs_power_of_two: bool = checked(_in_record, truth, default=False)
    form_needs_power_of_two: bool = checked(_in_record, truth, default=False)
    within_a_node: bool = checked(_in_record, truth, default=True)
    across_nodes: bool = checked(_in_record, truth, default=True)

    def __call__(self, num_ranks: int, **options: Any) -> Schedule:
        return self.builder(num_ranks, **options)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the builder's options."""
        return tuple(signature(self.builder).parameters)[1:]  # the first parameter is the number of ranks

    @property
    def is_record(self) -> bool:
        """Whether it is registered as a record, which states its properties, and not as a plain function."""
        return True

    @property
    def has_segments(self) -> bool:
        """Whether `best` and the player may choose its number of segments."""
        return self.is_record and "num_segments" in self.options

    def arranged(self, cluster: Cluster) -> dict[str, Any]:
        """Return the options that arrange it by the cluster's nodes.

        They are {} if it cannot be arranged, or if the cluster has one node, or nodes of one rank.
        """
        nodes = cluster.num_nodes
        gpus = cluster.gpus_per_node
        if nodes == 1 or gpus == 1:
            return {}
        if "gpus_per_node" in self.options:
            return {"gpus_per_node": gpus}
        if self.num_axes:
            axes_of_nodes = rings.shape_of(nodes, shape=None, axes=self.num_axes - 1)  # the last axis is within a node
            return {"shape": (*axes_of_nodes, gpus)}
        return {}

    def fits(self, cluster: Cluster) -> bool:
        """Return whether the algorithm supports the cluster's number of nodes."""
        if cluster.num_nodes > 1:
            return self.across_nodes
        return self.within_a_node


class _PlainFunction(Algorithm):
    """A function that is registered without a record."""

    @property
    def is_record(self) -> bool:
        return False


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

# The algorithms of each collective, by name. An algorithm that you add is verified, drawn, simulated and ranked like
# the others. It is an `Algorithm`, or a plain builder, which has no closed form and is built without options.
ALGORITHMS: dict[str, dict[str, Builder]] = {
    "allreduce": {
        "flat": Algorithm(rooted.flat, forms.flat),
        "binomial_tree": Algorithm(rooted.binomial_tree, forms.binomial_tree, _MPICH),
        "recursive_doubling": Algorithm(halving.recursive_doubling, forms.recursive_doubling, _MPICH),
        "halving_doubling": Algorithm(halving.halving_doubling, forms.halving_doubling, _HALVING),
        "ring": Algorithm(rings.ring, forms.ring, _RING),
        "segmented_ring": Algorithm(rings.segmented_ring, forms.segmented_ring, _RING),
        "hierarchical_ring": Algorithm(rings.hierarchical_ring, forms.hierarchical_ring, _RING),
        "torus_2d": Algorithm(rings.torus_2d, forms.torus_2d, _TORUS, num_axes=2),
        "mesh_2d": Algorithm(rings.mesh_2d, forms.mesh_2d, _TORUS, num_axes=2),
        "torus_3d": Algorithm(rings.torus_3d, forms.torus_3d, _TORUS, num_axes=3),
        "double_binary_tree": Algorithm(
            double_tree.double_binary_tree, forms.double_binary_tree, _TREES, form_needs_power_of_two=True
        ),
        "bidirectional_ring": Algorithm(rings.bidirectional_ring, forms.ring, _RING),  # with one port it is the ring
        "swing": Algorithm(halving.swing, forms.halving_doubling, _SWING),
    },
    "reduce": {
        "flat": Algorithm(rooted.reduce_flat, forms.added_whole_buffers),
        "binomial": Algorithm(rooted.reduce_binomial, forms.added_tree, _MPICH),
        "reduce_scatter_gather": Algorithm(
            halving.reduce_scatter_gather, forms.reduce_scatter_gather, _HALVING, form_needs_power_of_two=True
        ),
    },
    "broadcast": {
        "flat": Algorithm(rooted.broadcast_flat, forms.whole_buffers),
        "binomial": Algorithm(rooted.broadcast_binomial, forms.tree, _MPICH),
        "scatter_allgather": Algorithm(
            rooted.broadcast_scatter_allgather, forms.scatter_allgather, _MPICH, form_needs_power_of_two=True
        ),
        "chain": Algorithm(rooted.broadcast_chain, forms.chain, _MPICH),
    },
    "scatter": {
        "flat": Algorithm(rooted.scatter_flat, forms.parts),
        "binomial": Algorithm(rooted.scatter_binomial, forms.halves, _MPICH, form_needs_power_of_two=True),
    },
    "gather": {
        "flat": Algorithm(rooted.gather_flat, forms.parts),
        "binomial": Algorithm(rooted.gather_binomial, forms.halves, _MPICH, form_needs_power_of_two=True),
    },
    "allgather": {
        "ring": Algorithm(exchange.allgather_ring, forms.parts, _MPICH),
        "recursive_doubling": Algorithm(
            exchange.allgather_recursive_doubling,
            forms.halves,
            _MPICH,
            needs_power_of_two=True,
        ),
        "bruck": Algorithm(exchange.allgather_bruck, forms.halves, _BRUCK),
        "pat": Algorithm(exchange.allgather_pat, forms.halves, _PAT),
    },
    "reduce_scatter": {
        "ring": Algorithm(exchange.reduce_scatter_ring, forms.added_parts, _RING),
        "recursive_halving": Algorithm(
            exchange.reduce_scatter_recursive_halving,
            forms.added_halves,
            _MPICH,
            needs_power_of_two=True,
        ),
        "pairwise": Algorithm(exchange.reduce_scatter_pairwise, forms.added_parts, _MPICH),
        "bruck": Algorithm(exchange.reduce_scatter_bruck, forms.added_halves, _BRUCK),
        "pat": Algorithm(exchange.reduce_scatter_pat, forms.added_halves, _PAT),
    },
    "all_to_all": {
        "pairwise": Algorithm(exchange.all_to_all_pairwise, forms.parts, _MPICH),
        "bruck": Algorithm(exchange.all_to_all_bruck, forms.all_to_all_bruck, _BRUCK),
    },
    "barrier": {"dissemination": Algorithm(exchange.barrier_dissemination, forms.latencies, _BARRIER)},
}


# Only for a cluster whose switch adds: `build` knows them, and `best` tries them there.
IN_SWITCH: dict[str, dict[str, Builder]] = {
    "allreduce": {
        "nvls": Algorithm(switch.nvls, forms.nvls, _MULTIMEM, across_nodes=False),
        "nvls_tree": Algorithm(switch.nvls_tree, forms.nvls_tree, _MULTIMEM, within_a_node=False),
    }
}


def algorithms_of(collective: str) -> dict[str, Algorithm]:
    """Return the algorithms of a collective by name: those of `ALGORITHMS`, and those for a switch that adds.

    A plain function becomes an `Algorithm` without a closed form. Raises ValueError for an entry that is neither.
    """
    return {name: _record(collective, name, builder) for name, builder in _builders_of(collective).items()}


def algorithm_of(collective: str, name: str) -> Algorithm:
    """Return one of `algorithms_of`. Raises ValueError for a name that is not there, naming those that are."""
    builders = _builders_of(collective)
    one_of(f"algorithm of {collective}", name, tuple(builders))
    return _record(collective, name, builders[name])


def _builders_of(collective: str) -> dict[str, Builder]:
    """Return the records and builders of a collective by name; yours take the place of those for a switch."""
    builders = dict(ALGORITHMS[collective])
    for name, builder in IN_SWITCH.get(collective, {}).items():
        builders.setdefault(name, builder)
    return builders


def _record(collective: str, name: str, builder: Builder) -> Algorithm:
    if isinstance(builder, Algorithm):
        return builder
    entry = f"ALGORITHMS[{collective!r}][{name!r}]"
    return _PlainFunction(function(entry, builder, "of the number of ranks, or an Algorithm"))


# As they are when this module is imported, before anybody adds or replaces one.
_SHIPPED = {collective: algorithms_of(collective) for collective in ALGORITHMS}


def build(collective: str, algorithm: str, num_ranks: int, **options: Any) -> Schedule:
    """Return ``ALGORITHMS[collective][algorithm](num_ranks, **options)``; the latest of rankscope's own are cached.

    For a cluster whose switch adds (`Cluster.switch_adds`), the algorithm of an allreduce may also be "nvls" or
    "nvls_tree".

    Raises ValueError if the collective or algorithm is unknown (the message lists the valid names), or if the builder
    rejects an option or the number of ranks.
    """
    one_of("collective", collective, COLLECTIVES)
    builder = algorithm_of(collective, algorithm).builder
    arguments = (num_ranks, *options.values())
    can_be_cached = is_shipped(collective, algorithm) and all(map(_is_plain, arguments))
    try:
        if can_be_cached:
            return _cached_schedule(builder, num_ranks, **options)
        return builder(num_ranks, **options)
    except TypeError:  # an option that the builder does not have, or a fault in a builder of yours
        check_options(collective, algorithm, options, builder)
        raise


def check_options(collective: str, algorithm: str, options: Iterable[str], callee: Callable[..., Any]) -> None:
    """Raise ValueError for an option that a builder, or a closed form, does not take."""
    known_options = list(signature(callee).parameters)[1:]  # the first one is the number of ranks, or a form's terms
    for name in options:
        if name not in known_options:
            raise ValueError(f"{algorithm} of {collective} has no option {name!r}")


def is_shipped(collective: str, algorithm: str) -> bool:
    """Return whether this is rankscope's own, and not one that somebody has put in its place."""
    shipped = _SHIPPED.get(collective, {}).get(algorithm)
    return shipped is not None and algorithm_of(collective, algorithm).builder is shipped.builder


@lru_cache(maxsize=128)
def _cached_schedule(builder: Builder, num_ranks: int, **options: Any) -> Schedule:
    return builder(num_ranks, **options)


def _is_plain(value: Any) -> bool:
    """Whether a value is None, an int, or a tuple of those, and so may be part of the cache's key.

    The cache takes 2.0 and True for 2 and 1, but builders refuse them.
    """
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) is int
