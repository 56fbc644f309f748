"""`ALGORITHMS`: one record for each algorithm, by collective and name; add your own to it.

Everything else reads these records: `build`, `closed_form`, `best`, the explorers, the figures, and the tests, which
verify, simulate and execute everything registered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from ..cluster import Cluster, Link
from ..common.checks import number, of_type, one_of, whole
from .cost import Form, NoClosedForm, Terms
from .schedule import COLLECTIVES, Schedule

Builder = TypeVar("Builder", bound=Callable[..., Schedule])

SEGMENTS = (1, *(factor * 2**power for power in range(13) for factor in (2, 3)))  # 1, 2, 3, 4, 6, 8, 12, …, 12288


class Algorithm(msgspec.Struct, frozen=True):
    """An algorithm for a collective. Calling it builds its schedule: ``algorithm(num_ranks, **options)``.

    `builder` is a function of the number of ranks and of options. `form` is its closed form, a function of `Terms` and
    of options that returns seconds; if it is None, the algorithm is simulated. `best` tries the numbers of `segments`
    as ``num_segments``, in ascending order, together with the options that `arrange` returns for a cluster: those that
    follow its nodes, hashable, or None if the algorithm is not for such a cluster.

    `best` and `closed_form` trust what a record says: compare a form with `simulate`, and `verify` a schedule, as
    ``pytest tests/collectives`` does for all that is registered.
    """

    builder: Callable[..., Schedule]
    form: Form | None = None
    segments: tuple[int, ...] = ()
    arrange: Callable[[Cluster], dict[str, Any] | None] = lambda cluster: {}

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

    def seconds(self, terms: Terms, options: Mapping[str, Any]) -> Any:
        """Return the seconds of the closed form, for terms and options that are known to be right.

        Raises NoClosedForm if there is none, or none for these options or so many ranks.
        """
        if self.form is None:
            raise NoClosedForm("no closed form is stated for this algorithm: use simulate")
        options = {name: value for name, value in options.items() if name != "root"}  # all links are equal
        if not options.keys() <= signature(self.form).parameters.keys():
            raise NoClosedForm(f"no closed form is stated with {', '.join(options)}: use simulate")
        return self.form(terms, **options) + 0 * terms.num_bytes  # a form that ignores the size returns one number

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
    """Register a builder by ``@algorithm(…)`` above it, with the other fields of its `Algorithm`: form, …"""

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
    return algorithms[one_of(f"algorithm of {collective}", name, tuple(algorithms))]


def build(collective: str, algorithm: str, num_ranks: int, **options: Any) -> Schedule:
    """Return ``ALGORITHMS[collective][algorithm](num_ranks, **options)``.

    For a cluster whose switch adds (`Cluster.switch_adds`), the algorithm of an allreduce may also be "nvls" or
    "nvls_tree".

    Raises ValueError if the collective or algorithm is unknown (the message lists the valid names), or if the builder
    rejects an option or the number of ranks.
    """
    return algorithm_of(collective, algorithm)(num_ranks, **options)


def closed_form(
    collective: str,
    algorithm: str,
    num_ranks: int,
    num_bytes: ArrayLike,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    **options: Any,
) -> Any:
    """Return the time of an algorithm in seconds, from its closed form, if all ranks are connected by `link`.

    `num_bytes` is the size of each rank's whole buffer, or an array of such sizes; `options` are those of the builder.
    The forms of "nvls" and "nvls_tree" are for nodes whose switch adds (`Cluster.switch_adds`), all others for links
    alone.

    Raises ValueError if a name or an option is unknown, or a number is out of range; NoClosedForm, a ValueError, if a
    registered algorithm has no closed form at all, for this number of ranks, or for an option.
    `simulate` has no such limits.

    >>> closed_form("allreduce", "ring", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0))
    12.0
    """
    num_ranks = whole("num_ranks", num_ranks, 1)
    size = np.asarray(num_bytes, dtype=float)
    if not (np.isfinite(size) & (size >= 0)).all():
        raise ValueError(f"num_bytes must be finite and at least 0, got {num_bytes!r}")
    of_type("link", link, Link)
    record = algorithm_of(collective, algorithm)
    record.check_options(num_ranks, options)
    gamma_s_per_byte = number("gamma_s_per_byte", gamma_s_per_byte, 0)
    seconds = record.seconds(Terms(num_ranks, size, link, gamma_s_per_byte), options)
    return seconds if size.ndim else float(seconds)
