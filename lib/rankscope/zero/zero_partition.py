"""Who holds what: whole tensors dealt out greedily, as ZeroRedundancyOptimizer does it, and how even that is."""

from __future__ import annotations

from collections.abc import Sequence

from ..values.checks import several, whole

_MOST_RANKS = 1_000_000


def zero_redundancy_partition(sizes: Sequence[int], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the places in `sizes` of the tensors that each rank updates, in the order in which it got them.

    The largest tensor comes first, each goes to the rank that has the fewest elements so far, the first of several: as
    ``ZeroRedundancyOptimizer._partition_parameters`` (torch 2.6 to 2.13) deals out one parameter group.

    Raises ValueError for sizes that are no whole numbers of at least 0, and for no ranks.

    >>> zero_redundancy_partition([5, 30, 20, 10], 2)
    ((1, 0), (2, 3))
    """
    num_ranks = whole("num_ranks", num_ranks, 1, _MOST_RANKS)
    counts = [whole("sizes", size, 0) for size in several("sizes", sizes, "numbers of elements")]
    held: list[list[int]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for place in sorted(range(len(counts)), key=lambda place: -counts[place]):
        rank = load.index(min(load))
        held[rank].append(place)
        load[rank] += counts[place]
    return tuple(map(tuple, held))


def partition_imbalance(sizes: Sequence[int], partition: Sequence[Sequence[int]]) -> float:
    """Return by which share the fullest rank holds more than an even split would give it.

    Raises ValueError for places that are none of `sizes`.

    >>> partition_imbalance([10, 10, 10], zero_redundancy_partition([10, 10, 10], 4))  # three tensors, four ranks
    0.33333333333333326
    """
    counts = [whole("sizes", size, 0) for size in several("sizes", sizes, "numbers of elements")]
    held = [
        several("partition", places, "places") for places in several("partition", partition, "a rank's places each")
    ]
    if not held:
        raise ValueError(f"partition must be of at least one rank, got {partition!r}")
    loads = [sum(counts[whole("partition", place, 0, len(counts) - 1)] for place in places) for places in held]
    return max(loads) * len(loads) / sum(loads) - 1 if sum(loads) else 0.0
