"""`ALGORITHMS`: one record for each algorithm, by collective and name; add your own to it.

Everything else reads these records: `build`, `closed_form`, `best`, the explorers, the figures, and the tests, which
verify, simulate and execute everything registered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, TypeVar

import msgspec

from ..cluster import Cluster
from ..common.checks import function, of_type, one_of, optional, whole
from .forms import Form
from .schedule import COLLECTIVES, Schedule

Builder = TypeVar("Builder", bound=Callable[..., Schedule])

SEGMENTS = (1, *(factor * 2**power for power in range(13) for factor in (2, 3)))  # 1, 2, 3, 4, 6, 8, 12, …, 12288


class Algorithm(msgspec.Struct, frozen=True):
    """An algorithm for a collective. Calling it builds its schedule: ``algorithm(num_ranks, **options)``.

    `builder` is a function of the number of ranks and of options. `form` is its closed form, a function of `Terms` and
    of options that returns seconds; if it is None, the algorithm is simulated. `paper` names the publication that
    describes the algorithm. `best` tries the numbers of `segments` as ``num_segments``, in ascending order, together
    with the options that `arrange` returns for a cluster: those that follow its nodes, or None if the algorithm is not
    for such a cluster.

    `best` and `closed_form` trust what a record says: compare a form with `simulate`, and `verify` a schedule, as
    ``pytest tests/collectives`` does for all that is registered.

    Raises ValueError if `builder` or `form` is not a function.
    """

    builder: Callable[..., Schedule]
    form: Form | None = None
    paper: str = ""
    segments: tuple[int, ...] = ()
    arrange: Callable[[Cluster], dict[str, Any] | None] = lambda cluster: {}

    def __post_init__(self) -> None:
        function("builder of Algorithm", self.builder, "of the number of ranks")
        optional("form of Algorithm", self.form, function, "of Terms and options that returns seconds")

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
        return [{**arranged, "num_segments": number} for number in self.segments] or [arranged]


# The algorithms of each collective, by name. One that you add is verified, drawn, simulated and ranked like the others.
_ORDER = "allreduce reduce broadcast scatter gather allgather reduce_scatter all_to_all barrier"
ALGORITHMS: dict[str, dict[str, Algorithm]] = {collective: {} for collective in _ORDER.split()}

# Allreduces for a cluster whose switch adds: `build` knows them, and `best` tries them there.
IN_SWITCH: dict[str, Algorithm] = {}


def algorithm(collective: str, name: str, *record: Any, **options: Any) -> Callable[[Builder], Builder]:
    """Register a builder by ``@algorithm(…)`` above it, with the other fields of its `Algorithm`: form, paper, …"""

    def register(builder: Builder) -> Builder:
        ALGORITHMS[collective][name] = Algorithm(builder, *record, **options)
        return builder

    return register


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
