"""What to measure, how often, and in which order. It does not load torch, as the launching process needs none.

A `PointKey` stands for a point that has not been measured yet.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ...collectives import ALGORITHMS, build
from ...common.checks import check_field, each, number, of_type, one_of, optional, whole
from ...common.units import bytes_words
from ..points import NATIVE, Point, PointKey

MEASURED = ("allreduce", "allgather", "reduce_scatter")
FEW_ALGORITHMS = (NATIVE, "ring", "recursive_doubling", "halving_doubling", "binomial_tree")
ITEM_BYTES = 4  # bytes of a float32
MOST_BYTES = {"gloo": 2**24, "nccl": 2**30}  # of a collective, unless sizes are named
SUMMED_BYTES = 2**20  # of a sum in memory
METHODS = ("pageable", "pinned", "pin_on_the_fly")  # of copies
DIRECTIONS = {"h2d": "to the GPU", "d2h": "to the host"}  # of copies
WARM_UP = 1  # iterations of each turn that do not count
IN_A_ROW = 3  # counted iterations of each turn
# For guesses of how long it will take.
_ITERATION_S = 2e-2  # of few bytes, ten times in a row, of four ranks that share two cores
_BYTES_PER_S = {"gloo": 2.5e8, "nccl": 2e10}


class Protocol(msgspec.Struct, frozen=True):
    """What to measure, and how often.

    A point has `iterations` iterations, or fewer if they would take more than `budget_s`, but at least six (or
    `iterations`). Each of `collectives` is measured with each of `algorithms` at each of `sizes` in bytes; "native" is
    the backend's own algorithm. By default these are `FEW_ALGORITHMS` and powers of four; if `thorough`, they are all
    algorithms that send messages, and powers of two.

    Raises ValueError if a value is out of range.

    >>> Protocol(iterations=0)
    Traceback (most recent call last):
    ValueError: iterations must be a whole number from 1 to 10000, got 0
    """

    iterations: int = 40
    budget_s: float = 0.3
    thorough: bool = False
    sizes: Sequence[int] | None = None
    collectives: Sequence[str] = ("allreduce",)
    algorithms: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_field(self, "iterations", whole, 1, 10_000)
        check_field(self, "budget_s", number, above=0)
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

    @property
    def most_turns(self) -> int:
        """The number of turns that `iterations` need."""
        return math.ceil(self.iterations / IN_A_ROW)


def measure_in_turns(
    keys: Sequence[PointKey],
    seconds: Callable[[PointKey], float],
    protocol: Protocol,
    slowest: Callable[[list[float]], list[float]] = list,
) -> list[Point]:
    """Return a point for each key. `seconds` runs an iteration, and returns what it took on this rank.

    Keys take turns, and each round begins with the next one, so that none always comes first. `slowest` returns the
    maximum over the ranks: an iteration has the seconds of its slowest rank.
    """
    samples_s: dict[PointKey, list[float]] = {key: [] for key in keys}
    begin_s = time.monotonic()
    for turn in range(protocol.most_turns):
        first = turn % len(keys)
        for key in [*keys[first:], *keys[:first]]:
            in_a_row_s = [seconds(key) for _ in range(WARM_UP + IN_A_ROW)]
            samples_s[key] += in_a_row_s[WARM_UP:]
        (spent_s,) = slowest([time.monotonic() - begin_s])  # so that all ranks stop after the same turn
        if turn > 0 and spent_s > protocol.budget_s * len(keys):  # one turn is too little to have a spread
            break
    points = []
    for key, own_s in samples_s.items():
        counted_s = slowest(own_s[: protocol.iterations])  # whole turns may have more
        points.append(Point(key.what, key.num_bytes, tuple(counted_s), (True,) * len(counted_s), dict(key.options)))
    return points


def key_of(what: str, num_bytes: int, **options: Any) -> PointKey:
    """Return the key of the point with these properties.

    >>> key_of("together", 256, link="intra")
    PointKey(what='together', num_bytes=256, options=(('link', 'intra'),))
    """
    return PointKey(what, num_bytes, tuple(sorted(options.items())))


def words_of(key: PointKey) -> str:
    """Return a short description of a key.

    >>> words_of(key_of("allreduce", 2**20, algorithm="ring", in_place=True)), words_of(key_of("add", 4096))
    ('allreduce ring, 1 MiB', 'add, 4 KiB')
    """
    names = [value for _, value in key.options if isinstance(value, str)]
    return f"{' '.join([key.what, *names])}, {bytes_words(key.num_bytes)}"


def guess_s(keys: Iterable[PointKey], protocol: Protocol, backend: str) -> float:
    """Return a rough guess of the seconds that measuring these keys takes, on a machine of usual speed."""
    total_s = 0.0
    for key in keys:
        turn_s = (WARM_UP + IN_A_ROW) * (_ITERATION_S + key.num_bytes / _BYTES_PER_S[backend])
        total_s += min(protocol.most_turns * turn_s, max(2 * turn_s, protocol.budget_s))
    return total_s


# ---- keys


def keys_of(protocol: Protocol, backend: str, ranks_per_node: Sequence[int], has_gpu: bool) -> list[PointKey]:
    """Return the keys of memory, links, collectives and copies in order; those that take turns are adjacent.

    Raises ValueError if an algorithm is named that does not work for a collective, a size or so many ranks.
    """
    sizes = sorted(protocol.sizes or protocol.powers(2**10, MOST_BYTES[backend]))
    keys = [key_of("add", SUMMED_BYTES)]
    for size in protocol.powers(2**8, max(2**16, sizes[-1])):  # enough sizes for a fit
        if max(ranks_per_node) > 1:
            keys.append(key_of("together", size, link="intra"))
        if len(ranks_per_node) > 1:
            keys.append(key_of("together", size, link="inter"))
    for collective, size in itertools.product(protocol.collectives, sizes):
        keys += collective_keys(protocol, collective, size, sum(ranks_per_node))
    if has_gpu:
        for size, way, method in itertools.product(protocol.powers(2**12, max(2**12, sizes[-1])), DIRECTIONS, METHODS):
            keys.append(key_of("transfer", size, direction=way, method=method, pieces=1, both=False))
    return list(dict.fromkeys(keys))  # two sizes may be the same after rounding down to equal parts


def collective_keys(protocol: Protocol, collective: str, num_bytes: int, num_ranks: int) -> list[PointKey]:
    """Return the keys of those algorithms in which each rank has something to do.

    The size is that of the whole buffer, rounded down to equal parts. An allreduce runs in place, the native one also
    out of place; other collectives return a new tensor. A single rank has only native ones. Builders have their default
    options.

    >>> protocol = Protocol(algorithms=["native", "ring"])
    >>> for key in collective_keys(protocol, "allreduce", 2**21, 4):
    ...     print(dict(key.options))
    {'algorithm': 'native', 'in_place': True}
    {'algorithm': 'native', 'in_place': False}
    {'algorithm': 'ring', 'in_place': True}
    """
    is_in_place = collective == "allreduce"
    parts = 1 if is_in_place else num_ranks
    elements = max(num_bytes // ITEM_BYTES // parts, 1) * parts
    size = elements * ITEM_BYTES
    names: Iterable[str] = FEW_ALGORITHMS
    if num_ranks == 1:
        names = (NATIVE,)
    elif protocol.algorithms is not None:
        names = protocol.algorithms
    elif protocol.thorough:
        names = (NATIVE, *ALGORITHMS[collective])
    keys = []
    for name in names:
        if name == NATIVE:
            keys.append(key_of(collective, size, algorithm=NATIVE, in_place=is_in_place))
            if is_in_place:
                keys.append(key_of(collective, size, algorithm=NATIVE, in_place=False))
            continue
        try:
            schedule = build(collective, name, num_ranks)
            schedule.chunk_ends(elements // parts if collective == "allgather" else elements)
        except ValueError:  # it does not exist for so many ranks, or has a chunk without an element
            if protocol.algorithms is not None:
                raise
        else:
            keys.append(key_of(collective, size, algorithm=name, in_place=is_in_place))
    return keys
