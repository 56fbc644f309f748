"""What to measure, how often, and in which order. It does not load torch, as the launching process needs none.

A `PointKey` stands for a point that has not been measured yet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from ...cluster import Cluster, Link
from ...collectives import ALGORITHMS, build
from ...common.checks import check_field, each, number, of_type, one_of, optional, truth, whole
from ...common.units import bytes_words
from ..points import NATIVE, TRANSFERS, PointKey

MEASURED = ("allreduce", "allgather", "reduce_scatter", "broadcast", "all_to_all")
FEW_ALGORITHMS = (NATIVE, "ring", "recursive_doubling", "halving_doubling", "binomial_tree")
ITEM_BYTES = 4  # bytes of a float32
MOST_BYTES = {"gloo": 2**24, "nccl": 2**30}  # of a collective, unless sizes are named
MEMORY_BYTES = (2**12, 2**16, 2**20, 2**24)  # of a sum in memory
SEGMENT_BYTES = 2**19  # fits into cache for the sum, and is worth a message
MOST_SEGMENTS = 256  # more gain nothing and take long to plan
TRANSFER_METHODS = ("pageable", "pinned", "pageable_non_blocking", "pinned_non_blocking")
ON_THE_FLY = ("pin_on_the_fly", "pin_on_the_fly_cached")
METHODS = (*TRANSFER_METHODS, *ON_THE_FLY)
DIRECTIONS = {"h2d": "to the GPU", "d2h": "to the host"}  # of copies
IN_A_ROW = 3  # counted iterations per turn of a method
Name = TypeVar("Name")
Sample = TypeVar("Sample")
_ANY_LINK = Link(alpha_s=0.0, bytes_per_s=1.0)  # where only the arrangement of a cluster matters
# For guesses of how long it will take.
_ITERATION_S = 6e-3  # of no bytes, mostly to agree on its start
_COPY_S = 5e-4
_BYTES_PER_S = {"gloo": 2.5e8, "nccl": 2e10}
_COPIED_BYTES_PER_S = 5e9


class Protocol(msgspec.Struct, frozen=True):
    """What to measure, and how often.

    Methods that are compared take turns; the first `warm_up` iterations of each turn do not count. A point has
    `iterations` iterations, or fewer if they would take more than `budget_s`, but at least six (or `iterations`). If
    `real_time` is true, the ranks run at real-time priority, above everything else on the machine (Linux, root only).

    Each of `collectives` is measured with each of `algorithms` at each of `sizes` in bytes; "native" is the backend's
    own algorithm. By default these are `FEW_ALGORITHMS` and powers of four; if `thorough`, they are all algorithms that
    send messages, and powers of two. If `transfers` is true, copies to and from the GPU of rank 0 are measured, if it
    has one.

    Raises ValueError if a value is out of range.

    >>> Protocol(iterations=0)
    Traceback (most recent call last):
    ValueError: iterations must be a whole number from 1 to 10000, got 0
    """

    warm_up: int = 1
    iterations: int = 40
    budget_s: float = 0.3
    real_time: bool = False
    thorough: bool = False
    sizes: Sequence[int] | None = None
    collectives: Sequence[str] = ("allreduce",)
    algorithms: Sequence[str] | None = None
    transfers: bool = True

    def __post_init__(self) -> None:
        check_field(self, "warm_up", whole, 0, 1000)
        check_field(self, "iterations", whole, 1, 10_000)
        check_field(self, "budget_s", number, above=0)
        check_field(self, "real_time", truth)
        check_field(self, "thorough", truth)
        check_field(self, "sizes", optional, each, whole, ITEM_BYTES)
        check_field(self, "collectives", each, one_of, MEASURED)
        check_field(self, "algorithms", optional, each, of_type, str)

    def powers(self, low: int, high: int) -> list[int]:
        """Return sizes from `low` to `high`, each twice or, if not `thorough`, four times the one before.

        >>> Protocol().powers(256, 5000)
        [256, 1024, 4096]
        """
        step = 1 if self.thorough else 2
        return [low << power for power in range(0, (high // low).bit_length(), step)]

    def turns(self, iteration_s: float) -> int:
        """Return the number of turns of a method whose iterations take so long, including the wait to start.

        They are as many as the budget allows, but at least two, and no more than the iterations need.
        """
        needed = math.ceil(self.iterations / IN_A_ROW)
        in_budget = int(self.budget_s / (iteration_s * (self.warm_up + IN_A_ROW)))
        return min(needed, max(2, in_budget))  # the iterations of one turn would be too few to have a spread

    def in_turns(
        self,
        names: Sequence[Name],
        once: Callable[[Name], Sample],
        clock: Callable[[], float],
        slowest: Callable[[list[float]], list[float]] = lambda seconds: seconds,
    ) -> dict[Name, list[Sample]]:
        """Call `once` for each name alternately, and return its results per name, without the warm-up.

        Each turn begins with the next name, so that no name always comes first, or last, in a turn. The number of turns
        depends on the time of a second round, by the `clock` of the `slowest` rank; the first round warms up.
        """
        for name in names:
            once(name)
        begin = clock()
        for name in names:
            once(name)
        (round_s,) = slowest([clock() - begin])
        samples: dict[Name, list[Sample]] = {name: [] for name in names}
        for turn in range(self.turns(round_s / len(names))):
            first = turn % len(names)
            for name in [*names[first:], *names[:first]]:
                in_a_row = [once(name) for _ in range(self.warm_up + IN_A_ROW)]
                samples[name] += in_a_row[self.warm_up :]
        return {name: some[: self.iterations] for name, some in samples.items()}  # whole turns may have more


def key_of(what: str, num_bytes: int, **options: Any) -> PointKey:
    """Return the key of the point with these properties.

    >>> key_of("together", 256, link="intra")
    PointKey(what='together', num_bytes=256, options=(('link', 'intra'),))
    """
    return PointKey(what, num_bytes, tuple(sorted(options.items())))


def operation_and_size(key: PointKey) -> tuple[str, int]:
    """Return what keys that take turns have in common."""
    return key.what, key.num_bytes


def words_of(key: PointKey) -> str:
    """Return a short description of a key.

    >>> words_of(key_of("allreduce", 2**20, algorithm="ring", in_place=True)), words_of(key_of("add", 4096))
    ('allreduce ring, 1 MiB', 'add, 4 KiB')
    """
    options = dict(key.options)
    names = [options[name] for name in ("algorithm", "link", "direction", "method") if name in options]
    return f"{' '.join([key.what, *names])}, {bytes_words(key.num_bytes)}"


def guess_s(keys: Iterable[PointKey], protocol: Protocol, backend: str) -> float:
    """Return a rough guess of the seconds that measuring these keys takes, on a machine of usual speed."""
    total_s = 0.0
    for key in keys:
        iteration_s = _ITERATION_S + key.num_bytes / _BYTES_PER_S[backend]
        if key.what in TRANSFERS:
            iteration_s = _COPY_S + key.num_bytes / _COPIED_BYTES_PER_S
        # Two iterations are before the turns.
        total_s += iteration_s * (2 + protocol.turns(iteration_s) * (protocol.warm_up + IN_A_ROW))
    return total_s


# ---- keys


def keys_of(protocol: Protocol, backend: str, ranks_per_node: Sequence[int], has_gpu: bool) -> list[PointKey]:
    """Return the keys of links, memory, collectives and copies in order.

    Raises ValueError if an algorithm is named that works at no size on so many ranks.
    """
    sizes = sorted(protocol.sizes or protocol.powers(2**10, MOST_BYTES[backend]))
    keys = [key_of("add", size) for size in MEMORY_BYTES]
    for size in protocol.powers(2**8, max(2**16, sizes[-1])):  # enough sizes for a fit
        if max(ranks_per_node) > 1:
            keys.append(key_of("together", size, link="intra"))
        if len(ranks_per_node) > 1:
            keys.append(key_of("together", size, link="inter"))
    for collective, size in itertools.product(protocol.collectives, sizes):
        keys += collective_keys(protocol, collective, size, ranks_per_node)
    works = {dict(key.options).get("algorithm") for key in keys}
    for name in protocol.algorithms or ():
        if name not in works:
            raise ValueError(f"algorithms must be those that {sum(ranks_per_node)} ranks can run, got {name!r}")
    if has_gpu and protocol.transfers:
        keys += [key for size in protocol.powers(2**12, max(2**12, sizes[-1])) for key in transfer_keys(size)]
    return list(dict.fromkeys(keys))  # two sizes may be the same after rounding down to equal parts


def collective_keys(
    protocol: Protocol, collective: str, num_bytes: int, ranks_per_node: Sequence[int]
) -> list[PointKey]:
    """Return the keys of those algorithms in which each rank has something to do.

    The size is that of the whole buffer, rounded down to equal parts. An allreduce runs in place, the native one also
    out of place; other collectives return a new tensor. A single rank has only native ones.

    >>> protocol = Protocol(algorithms=["native", "segmented_ring"])
    >>> for key in collective_keys(protocol, "allreduce", 2**21, [4]):
    ...     print(dict(key.options))
    {'algorithm': 'native', 'in_place': True}
    {'algorithm': 'native', 'in_place': False}
    {'algorithm': 'segmented_ring', 'in_place': True, 'num_segments': 1}
    """
    num_ranks = sum(ranks_per_node)
    parts = 1 if collective in ("allreduce", "broadcast") else num_ranks
    elements = max(num_bytes // ITEM_BYTES // parts * parts, parts)
    size = elements * ITEM_BYTES
    names: Iterable[str] = FEW_ALGORITHMS
    if protocol.algorithms is not None:
        names = protocol.algorithms
    elif protocol.thorough:
        names = (NATIVE, *ALGORITHMS[collective])
    is_in_place = collective == "allreduce"
    keys = []
    for name in names:
        if name == NATIVE:
            keys.append(key_of(collective, size, algorithm=NATIVE, in_place=is_in_place))
            if is_in_place:
                keys.append(key_of(collective, size, algorithm=NATIVE, in_place=False))
        elif name in ALGORITHMS[collective] and num_ranks > 1:
            with suppress(ValueError):  # it does not work for so many ranks, or has a chunk without an element
                options = builder_options(collective, name, num_bytes, ranks_per_node)
                schedule = build(collective, name, num_ranks, **options)
                schedule.chunk_ends(elements // parts if collective == "allgather" else elements)
                keys.append(key_of(collective, size, algorithm=name, in_place=is_in_place, **options))
    return keys


def builder_options(collective: str, name: str, num_bytes: int, ranks_per_node: Sequence[int]) -> dict[str, Any]:
    """Return the builder's arguments for this size and machine: its arrangement by nodes, and its segments.

    >>> builder_options("allreduce", "torus_2d", 2**20, [4, 4]), builder_options("allreduce", "torus_2d", 2**20, [3, 5])
    ({'shape': (2, 4)}, {})
    """
    algorithm = ALGORITHMS[collective][name]
    options: dict[str, Any] = {}
    if len(set(ranks_per_node)) == 1:  # a cluster has equally many ranks on each node
        options |= algorithm.arrange(Cluster(len(ranks_per_node), ranks_per_node[0], _ANY_LINK, _ANY_LINK)) or {}
    if "num_segments" in algorithm.options:
        segments_of_a_share = num_bytes // sum(ranks_per_node) // SEGMENT_BYTES
        options["num_segments"] = min(MOST_SEGMENTS, max(1, segments_of_a_share))
    return options


def transfer_keys(num_bytes: int) -> list[PointKey]:
    """Return the copies to and from a GPU by each method, and the pinning."""
    keys = [key_of("pin", num_bytes, cached=cached) for cached in (False, True)]
    for direction in DIRECTIONS:
        for method in METHODS:
            keys.append(key_of("transfer", num_bytes, direction=direction, method=method, pieces=1, both=False))
    return keys
