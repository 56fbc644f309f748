"""When in its backward a rank launches which buckets, before anything holds it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..values.checks import count_of, of_type, whole
from .buckets import cap_bytes, ddp_buckets
from .local_step import LocalStep, Seconds

Buckets = Sequence[Sequence[int]]


class Launches(NamedTuple):
    """The seconds of the backward after which each bucket is launched, in that order, and its bytes."""

    launch_s: Seconds
    num_bytes: NDArray[np.int64]


def default_buckets(local: LocalStep, bucket_cap_mb: float | None = None) -> Buckets:
    """Return the buckets, in launch order, that DDP has once it has rebuilt them as gradients get ready.

    Where a parameter gets no gradient they are those of ``find_unused_parameters``, which are never rebuilt.

    >>> default_buckets(LocalStep.modelled([1 << 20] * 4, backward_s=1.0), bucket_cap_mb=2)
    [(3, 2), (1, 0)]
    """
    if not of_type("local", local, LocalStep).parameters:
        return []
    order = local.ready_order
    unused = len(order) < len(local.parameters)
    buckets = ddp_buckets(local.parameters, bucket_cap_mb, ready_order=order, find_unused_parameters=unused)
    return [bucket.indices for bucket in buckets.rebuilt]


def bucket_places(buckets: Any) -> tuple[tuple[int, ...], ...]:
    """Return buckets as tuples of places of parameters; ValueError where they are no lists of such lists."""
    try:
        return tuple(tuple(whole("buckets", place, 0) for place in bucket) for bucket in buckets)
    except TypeError:
        raise ValueError(f"buckets must be lists of places of parameters, got {buckets!r}") from None


def launches(local: LocalStep, buckets: Buckets) -> Launches:
    """Return when buckets are launched: each after those before it, when all its gradients that come at all are ready.

    Raises ValueError for buckets that do not hold every parameter once.
    """
    buckets = bucket_places(buckets)
    if sorted(place for bucket in buckets for place in bucket) != list(range(len(local.parameters))):
        raise ValueError(
            f"buckets must hold each of {count_of(len(local.parameters), 'parameter')} once, got {buckets!r}"
        )
    if not all(map(len, buckets)):
        raise ValueError(f"buckets must hold at least one parameter each, got {buckets!r}")
    if not len(buckets):
        return Launches(np.empty(0), np.empty(0, dtype=np.int64))
    places = np.fromiter((place for bucket in buckets for place in bucket), dtype=np.int64)
    firsts = np.cumsum([0, *(len(bucket) for bucket in buckets[:-1])])
    last_s = np.maximum.reduceat(np.nan_to_num(local.ready_s, nan=0.0)[places], firsts)
    return Launches(np.maximum.accumulate(last_s), np.add.reduceat(local.sizes[places], firsts))


def default_launches(local: LocalStep, bucket_cap_mb: float | None = None) -> Launches:
    """Return `launches` of the `default_buckets`, without making lists of parameters where all gradients are alike."""
    if not local.alike:
        return launches(local, default_buckets(local, bucket_cap_mb))
    caps = cap_bytes(bucket_cap_mb)
    order = np.array(local.ready_order)
    reached = np.cumsum(local.sizes[order])
    ends, start, held, cap = [], 0, 0, caps[0]
    while start < order.size:
        last = min(max(int(np.searchsorted(reached, held + cap)), start), order.size - 1)
        ends.append(last)
        start, held, cap = last + 1, int(reached[last]), caps[-1]
    return Launches(local.ready_s[order][ends], np.diff(reached[ends], prepend=0))
