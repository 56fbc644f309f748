"""`closed_form` and `lower_bounds` of the time of a collective, in the single-port full-duplex Hockney model.

The forms themselves stand in the records of `rankscope.collectives.builders`. Bounds: Chan and others (2007),
Collective communication: theory, practice, and experience.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..cluster import Link
from ..common.checks import number, of_type, one_of, optional, whole
from .algorithms import Algorithm, algorithm_of
from .forms import NoClosedForm, Terms
from .schedule import COLLECTIVES, SUMS


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
    registered algorithm has no closed form at all, for this number of ranks, or for an option such as `counts`.
    `simulate` has no such limits.

    >>> closed_form("allreduce", "ring", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0))
    12.0
    """
    num_ranks = whole("num_ranks", num_ranks, 1)
    size = np.asarray(num_bytes)
    if size.dtype.kind not in "iuf" or not (np.isfinite(size) & (size >= 0)).all():
        raise ValueError(f"num_bytes must be finite and at least 0, got {num_bytes!r}")
    record = algorithm_of(collective, algorithm)
    record.check_options(num_ranks, options)
    gamma_s_per_byte = number("gamma_s_per_byte", gamma_s_per_byte, 0)
    terms = Terms(num_ranks, size.astype(float), of_type("link", link, Link), gamma_s_per_byte)
    seconds = form_s(record, terms, options)
    return seconds if size.ndim else float(seconds)


def form_s(record: Algorithm, terms: Terms, options: Mapping[str, Any]) -> Any:
    """Return the seconds of a record's closed form, for terms and options that are known to be right.

    Raises NoClosedForm if there is none, or none for these options or so many ranks.
    """
    if record.form is None:
        raise NoClosedForm("no closed form is stated for this algorithm: use simulate")
    options = {name: value for name, value in options.items() if name != "root"}  # all links are equal
    for name in options:
        if name not in signature(record.form).parameters:
            raise NoClosedForm(f"no closed form is stated with {name}: use simulate")
    return record.form(terms, **options) + 0 * terms.num_bytes  # a form that ignores the size returns one number


class Bounds(NamedTuple):
    """No collective of point-to-point messages takes less than any of these; in-network reduction may."""

    latency_s: float
    bandwidth_s: float
    adding_s: float

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self)


def lower_bounds(
    collective: str,
    num_ranks: int,
    num_bytes: float,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    ports: int | None = 1,
    switch_adds: bool = False,
) -> Bounds:
    """Return the lower bounds for point-to-point messages, after Chan and others (2007).

    With p `ports`, a result that depends on all ranks requires ⌈log₍ₚ₊₁₎N⌉ messages in a row. At least one rank must
    send or receive 2(N-1)/N·S bytes over its p ports for allreduce, S for broadcast and reduce, none for a barrier, and
    (N-1)/N·S for the others. If `ports` is None, one message in a row is enough, and bytes take no time. Where sums are
    made, (N-1)S bytes are added up in all, so at least one of the N ranks adds up (N-1)/N·S.

    If `switch_adds` is true, one message may carry the sum of all ranks, and the switch may copy it to all of them. So
    an allreduce requires a single α, no additions, and S bytes in each direction. The bounds of the other collectives
    are at most these.

    Raises ValueError if the collective is unknown or a number is out of range.

    >>> lower_bounds("allreduce", 4, 8.0, Link(alpha_s=1.0, bytes_per_s=2.0)).seconds
    6.0
    """
    num_ranks = whole("num_ranks", num_ranks, 1)
    one_of("collective", collective, COLLECTIVES)
    of_type("link", link, Link)
    num_bytes = number("num_bytes", num_bytes, 0)
    gamma_s_per_byte = number("gamma_s_per_byte", gamma_s_per_byte, 0)
    # Without a limit on ports, a rank sends to all others in one step, and bytes take no time.
    num_ports = optional("ports", ports, whole, 1) or math.inf
    receivers_per_step = min(num_ports, num_ranks - 1)
    buffers_moved = _buffers_moved(collective, num_ranks)
    buffers_added = 0.0
    if collective in SUMS:
        buffers_added = (num_ranks - 1) / num_ranks
    if switch_adds:
        receivers_per_step = num_ranks - 1
        buffers_moved = min(buffers_moved, 1.0)
        buffers_added = 0.0
    num_messages = 0
    while (1 + receivers_per_step) ** num_messages < num_ranks:  # ranks that one rank's data has reached by then
        num_messages += 1
    bandwidth_s = buffers_moved * num_bytes * link.beta_s_per_byte / num_ports
    return Bounds(num_messages * link.alpha_s, bandwidth_s, buffers_added * num_bytes * gamma_s_per_byte)


def _buffers_moved(collective: str, num_ranks: int) -> float:
    """Return how much some rank must send or receive, as a share of the whole buffer."""
    if num_ranks == 1 or collective == "barrier":
        return 0.0
    share_of_others = (num_ranks - 1) / num_ranks  # the part of a buffer that belongs to the other ranks
    buffers = {"allreduce": 2 * share_of_others, "broadcast": 1.0, "reduce": 1.0}
    return buffers.get(collective, share_of_others)
