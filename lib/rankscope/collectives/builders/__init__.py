"""`ALGORITHMS`: every builder of a schedule, by collective and name; add your own to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from inspect import signature
from typing import Any

from ...common.checks import one_of
from ..schedule import COLLECTIVES, Schedule
from . import double_tree, exchange, halving, rings, rooted, switch

Builder = Callable[..., Schedule]

# builder(num_ranks, **options): what you add here is verified, drawn, simulated and chosen from like the rest.
ALGORITHMS: dict[str, dict[str, Builder]] = {
    "allreduce": {
        "flat": rooted.flat,
        "binomial_tree": rooted.binomial_tree,
        "recursive_doubling": halving.recursive_doubling,
        "halving_doubling": halving.halving_doubling,
        "ring": rings.ring,
        "segmented_ring": rings.segmented_ring,
        "hierarchical_ring": rings.hierarchical_ring,
        "torus_2d": rings.torus_2d,
        "mesh_2d": rings.mesh_2d,
        "torus_3d": rings.torus_3d,
        "double_binary_tree": double_tree.double_binary_tree,
        "bidirectional_ring": rings.bidirectional_ring,
        "swing": halving.swing,
    },
    "reduce": {
        "flat": rooted.reduce_flat,
        "binomial": rooted.reduce_binomial,
        "reduce_scatter_gather": halving.reduce_scatter_gather,
    },
    "broadcast": {
        "flat": rooted.broadcast_flat,
        "binomial": rooted.broadcast_binomial,
        "scatter_allgather": rooted.broadcast_scatter_allgather,
        "chain": rooted.broadcast_chain,
    },
    "scatter": {"flat": rooted.scatter_flat, "binomial": rooted.scatter_binomial},
    "gather": {"flat": rooted.gather_flat, "binomial": rooted.gather_binomial},
    "allgather": {
        "ring": exchange.allgather_ring,
        "recursive_doubling": exchange.allgather_recursive_doubling,
        "bruck": exchange.allgather_bruck,
        "pat": exchange.allgather_pat,
    },
    "reduce_scatter": {
        "ring": exchange.reduce_scatter_ring,
        "recursive_halving": exchange.reduce_scatter_recursive_halving,
        "pairwise": exchange.reduce_scatter_pairwise,
        "bruck": exchange.reduce_scatter_bruck,
        "pat": exchange.reduce_scatter_pat,
    },
    "all_to_all": {"pairwise": exchange.all_to_all_pairwise, "bruck": exchange.all_to_all_bruck},
    "barrier": {"dissemination": exchange.barrier_dissemination},
}


# Only for a cluster whose switch adds: `build` knows them, and `best` tries them there.
IN_SWITCH: dict[str, dict[str, Builder]] = {"allreduce": {"nvls": switch.nvls, "nvls_tree": switch.nvls_tree}}


def builders_of(collective: str) -> dict[str, Builder]:
    """Return the builders of a collective by name: those of `ALGORITHMS`, and those for a switch that adds."""
    return {**ALGORITHMS[collective], **IN_SWITCH.get(collective, {}), **ALGORITHMS[collective]}  # yours go first


SHIPPED = {collective: builders_of(collective) for collective in ALGORITHMS}


def build(collective: str, algorithm: str, num_ranks: int, **options: Any) -> Schedule:
    """Return ``ALGORITHMS[collective][algorithm](num_ranks, **options)``; the latest of rankscope's own are kept.

    An allreduce may be "nvls" or "nvls_tree", too, for a cluster whose switch adds (`Cluster.switch_adds`).

    Raises ValueError for a name that is not there, naming those that are, for an option that the builder does not take,
    and for what it refuses.
    """
    one_of("collective", collective, tuple(c for c in COLLECTIVES if c in ALGORITHMS))
    known = builders_of(collective)
    one_of(f"algorithm of {collective}", algorithm, tuple(known))
    builder = known[algorithm]
    kept = is_shipped(collective, algorithm) and all(map(_is_plain, (num_ranks, *options.values())))
    try:
        return _kept(builder, num_ranks, **options) if kept else builder(num_ranks, **options)
    except TypeError as error:
        check_options(collective, algorithm, options, builder)
        raise error


def check_options(collective: str, algorithm: str, options: Iterable[str], made_by: Callable[..., Any]) -> None:
    """Raise ValueError for an option that a builder, or a closed form, does not take."""
    for name in options:
        if name not in list(signature(made_by).parameters)[1:]:
            raise ValueError(f"{algorithm} of {collective} takes no option {name!r}")


def is_shipped(collective: str, algorithm: str) -> bool:
    """Return whether this is rankscope's own, and not one that somebody has put in its place."""
    return builders_of(collective)[algorithm] is SHIPPED.get(collective, {}).get(algorithm)


@lru_cache(maxsize=128)
def _kept(builder: Builder, num_ranks: int, **options: Any) -> Schedule:
    return builder(num_ranks, **options)


def _is_plain(value: Any) -> bool:
    """Whether only equal values of its type have its hash: builders refuse 2.0 and True, which are equal to 2 and 1."""
    return all(map(_is_plain, value)) if type(value) is tuple else value is None or type(value) is int
