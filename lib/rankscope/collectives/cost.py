"""`closed_form` and `lower_bounds` of what a collective takes, in the single-port full-duplex Hockney model.

The forms themselves, with their sources, stand in `rankscope.collectives.forms`. Bounds: Chan and others (2007),
Collective communication: theory, practice, and experience.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..cluster import Link
from ..common.checks import number, of_type, one_of, truth, whole
from .algorithms import ALGORITHMS, algorithm_of, check_options
from .forms import NoClosedForm, Terms
from .schedule import ROOTED


def closed_form(
    collective: str,
    algorithm: str,
    num_ranks: int,
    num_bytes: ArrayLike,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    inner: Link | None = None,
    **options: Any,
) -> Any:
    """Return the seconds that the algorithm takes where all ranks are joined by `link`.

    `num_bytes` is each rank's whole buffer, or an array of such sizes; `options` are those of the builder. `inner` is
    the link within a node, for the algorithms that distinguish nodes: the ranks of a node are those along the last axis
    of a torus or mesh, or the `gpus_per_node` of the hierarchical ring. Those of "nvls" and "nvls_tree" are for nodes
    whose switch adds (`Cluster.switch_adds`), all others for links alone.

    Raises ValueError for an unknown name or option, and NoClosedForm, a ValueError, if no closed form is stated for a
    registered algorithm or for so many ranks; `simulate` has no such limit.

    >>> closed_form("allreduce", "ring", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0))
    12.0
    """
    n = whole("num_ranks", num_ranks, 1)
    one_of("collective", collective, tuple(ALGORITHMS))
    record = algorithm_of(collective, algorithm)
    form = record.form
    if form is None:
        raise NoClosedForm(f"no closed form is stated for {algorithm} of {collective}: use simulate")
    if (record.needs_power_of_two or record.form_needs_power_of_two) and n & (n - 1):
        raise NoClosedForm(f"no closed form is stated for {n} ranks, not a power of two: use simulate")
    size = _sizes(num_bytes)
    gamma = number("gamma_s_per_byte", gamma_s_per_byte, 0)
    if collective in ROOTED:  # all ranks being joined alike, it does not matter which is the root
        whole("root", options.pop("root", 0), 0, n - 1)
    check_options(collective, algorithm, options, form)
    of_type("link", link, Link)
    inner = link if inner is None else of_type("inner", inner, Link)
    seconds = form(Terms(n, size, link, gamma, inner), **options) + 0 * size
    return float(seconds) if np.ndim(seconds) == 0 else seconds


class Bounds(NamedTuple):
    """No collective of point-to-point messages takes less than any of these; in-network reduction may."""

    latency_s: float
    bandwidth_s: Any
    adding_s: Any

    @property
    def seconds(self) -> Any:
        """The largest of the three."""
        largest = np.maximum(np.maximum(self.latency_s, self.bandwidth_s), self.adding_s)
        return float(largest) if np.ndim(largest) == 0 else largest


def lower_bounds(
    collective: str,
    num_ranks: int,
    num_bytes: ArrayLike,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    ports: int | None = 1,
    switch_adds: bool = False,
) -> Bounds:
    """Return the lower bounds for point-to-point messages, after Chan and others (2007).

    With p ports what depends on all ranks takes ⌈log₍ₚ₊₁₎N⌉ messages in a row. Some rank must bring out, or take in,
    so many bytes over its p ports: 2(N-1)/N·S for allreduce, S for broadcast and reduce, (N-1)/N·S for the others.

    Where `switch_adds`, one message may carry the sum of all: a single α, no adding, and for allreduce S each way.

    Raises ValueError for an unknown collective and for numbers out of range.

    >>> lower_bounds("allreduce", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0)).seconds
    6.0
    """
    n = whole("num_ranks", num_ranks, 1)
    share = (n - 1) / n
    moved = {"allreduce": 2 * share, "broadcast": float(n > 1), "reduce": float(n > 1), "barrier": 0.0}
    others = ("reduce_scatter", "scatter", "gather", "allgather", "all_to_all")
    one_of("collective", collective, (*moved, *others))
    of_type("link", link, Link)
    size, gamma = _sizes(num_bytes)[()], number("gamma_s_per_byte", gamma_s_per_byte, 0)
    many = n if ports is None else whole("ports", ports, 1)
    adds = share if collective in ("allreduce", "reduce", "reduce_scatter") else 0.0
    moves = moved.get(collective, share)
    if truth("switch_adds", switch_adds):
        moves, adds = min(moves, 1.0), 0.0
    rounds = next(k for k in range(64) if ((n if switch_adds else many) + 1) ** k >= n)
    bandwidth_s = moves * size * link.beta_s_per_byte / (math.inf if ports is None else many)
    return Bounds(rounds * link.alpha_s, bandwidth_s, adds * size * gamma)


def _sizes(num_bytes: ArrayLike) -> Any:
    size = np.asarray(num_bytes)
    numbers = size.dtype != bool and np.can_cast(size.dtype, float, "same_kind")
    if not (numbers and np.isfinite(size).all() and (size >= 0).all()):
        raise ValueError(f"num_bytes must be finite and at least 0, got {num_bytes!r}")
    return size.astype(float)
