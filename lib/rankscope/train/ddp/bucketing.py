"""Gradients, and which of them share an allreduce: as DDP itself says (`observed`), or as `assign` models it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ...common.checks import check_field, whole
from ...common.units import bytes_words
from ...common.words import count_of

MIB = 2**20
DEFAULT_CAPS_MB = (1, 25)  # DDP's caps of the first bucket and of all others, if the user sets none

Buckets = tuple[tuple[int, ...], ...]  # the gradients of each bucket, by their numbers, in the order of launch


class Gradient(msgspec.Struct, frozen=True, array_like=True):
    """What decides about a gradient's bucket. A sparse gradient has a bucket to itself.

    >>> Gradient("fc.weight", 4 * 10 * 10)
    Gradient(name='fc.weight', num_bytes=400, dtype='float32', sparse=False)
    """

    name: str
    num_bytes: int
    dtype: str = "float32"
    sparse: bool = False

    def __post_init__(self) -> None:
        check_field(self, "num_bytes", whole, 0)


def caps_bytes(bucket_cap_mb: float | None) -> tuple[int, int]:
    """Return the cap of the first bucket and that of all others; None is DDP's default."""
    first_mb, others_mb = DEFAULT_CAPS_MB if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb)
    return int(first_mb * MIB), int(others_mb * MIB)


def assign(gradients: Sequence[Gradient], order: Iterable[int], bucket_cap_mb: float | None = None) -> Buckets:
    """Return the buckets that DDP fills in this order, as it does once it has seen in which order gradients get ready.

    A gradient goes into the open bucket of its dtype, which is closed as soon as it holds its cap or more. Those that
    are open at the end come last. This is `_compute_bucket_assignment_by_size` in torch's reducer.cpp, except for the
    order of open buckets of three or more dtypes, which there is that of a hash table.

    >>> assign([Gradient(str(number), MIB) for number in range(5)], [4, 3, 2, 1, 0], bucket_cap_mb=2)
    ((4, 3), (2, 1), (0,))
    """
    first_cap, cap = caps_bytes(bucket_cap_mb)
    buckets: list[tuple[int, ...]] = []
    open_buckets: dict[str, list[int]] = {}
    left_bytes: dict[str, int] = {}  # until the open buckets are full
    for index in order:
        gradient = gradients[index]
        dtype = gradient.dtype
        if gradient.sparse:
            buckets.append((index,))
            continue
        open_buckets.setdefault(dtype, []).append(index)
        left_bytes[dtype] = left_bytes.get(dtype, first_cap) - gradient.num_bytes
        if left_bytes[dtype] <= 0:
            buckets.append(tuple(open_buckets[dtype]))
            open_buckets[dtype] = []
            left_bytes[dtype] = cap
    for indices in reversed(open_buckets.values()):
        if indices:
            buckets.append(tuple(indices))
    return tuple(buckets)


class DDPBuckets(msgspec.Struct, frozen=True):
    """DDP's buckets in each of three iterations, by the numbers of gradients, and the caps at which they close.

    Gradients have the numbers that DDP's own error messages use. `caps_bytes` are those of the first bucket and of all
    others. Only iterations that synchronise count, not those under ``no_sync()``.
    """

    gradients: tuple[Gradient, ...]
    iterations: tuple[Buckets, ...]
    caps_bytes: tuple[int, int]

    @property
    def first(self) -> Buckets:
        """The buckets of the first iteration, before DDP knows in which order gradients get ready."""
        return self.iterations[0]

    @property
    def rebuilt(self) -> Buckets:
        """The buckets that DDP keeps."""
        return self.iterations[-1]

    def num_bytes(self, bucket: tuple[int, ...]) -> int:
        return sum(self.gradients[index].num_bytes for index in bucket)

    def __str__(self) -> str:
        """The number of buckets and their bytes in the first iteration, and in those after the rebuild."""
        lines = []
        for iteration in sorted({0, self.iterations.index(self.rebuilt)}):
            used = self.iterations[iteration]
            sizes = ", ".join([bytes_words(self.num_bytes(bucket)) for bucket in used])
            lines.append(f"from iteration {iteration}: {count_of(len(used), 'bucket')} of {sizes}")
        return "\n".join(lines)

    __repr__ = __str__  # for a notebook, which shows the last value of a cell
