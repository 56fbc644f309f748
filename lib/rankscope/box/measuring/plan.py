"""What to measure, how often, and in which order. It does not load torch, as the launching process needs none.

A `PointKey` stands for a point that has not been measured yet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from ...cluster import Cluster, Link
from ...collectives import ALGORITHMS, build
from ...collectives.algorithms import algorithm_of
from ...common.checks import check_field, each, number, of_type, one_of, optional, truth, whole
from ...common.units import bytes_words
from ..fit import LEAST_SIZES
from ..points import NATIVE, TRANSFERS, PointKey

MEASURED = ("allreduce", "allgather", "reduce_scatter", "broadcast", "all_to_all")
FEW_ALGORITHMS = (NATIVE, "ring", "recursive_doubling", "halving_doubling", "binomial_tree")
ITEM_BYTES = 4  # bytes of a float32
NUM_PIECES = 256  # equal parts of a copy, where a profile has copies in pieces
LEAST_BYTES = 2**10
MOST_BYTES = {"gloo": 2**24, "nccl": 2**30}  # of a collective, unless sizes are named
MOST_THOROUGH_BYTES = {"gloo": 2**26, "nccl": 2**30}
SEGMENT_BYTES = 2**19  # fits into cache for the sum, and is worth a message
MOST_SEGMENTS = 256  # more gain nothing and take long to plan
LEAST_LINK_BYTES = 2**8  # of a message between two ranks
MOST_LINK_BYTES = 2**24
MEMORY_BYTES = (2**12, 2**16, 2**20, 2**24)  # of a sum in memory
# Of the free memory, for all buffers. As much is left for other processes, and because the free memory does not show
# the limit of a container.
MEMORY_SHARE = 0.5
COMMON_BUFFERS = 4  # that the methods of a collective share: the pattern, the input, the output, the expected result
TRANSFER_METHODS = ("pageable", "pinned", "pageable_non_blocking", "pinned_non_blocking")
ON_THE_FLY = ("pin_on_the_fly", "pin_on_the_fly_cached")
IN_A_ROW = 3  # counted iterations per turn of a method
Name = TypeVar("Name")
Sample = TypeVar("Sample")
_ANY_LINK = Link(alpha_s=0.0, bytes_per_s=1.0)  # where only the arrangement of a cluster matters


class Protocol(msgspec.Struct, frozen=True):
    """What to measure, and how often.

    Methods that are compared take turns; the first `warm_up` iterations of each turn do not count. A point has
    `iterations` iterations, or fewer if they would take more than `budget_s`, but at least six (or `iterations`). If
    `real_time` is true, the ranks run at real-time priority, above everything else on the machine (Linux, root only).

    Each of `collectives` is measured with each of `algorithms` at each of `sizes` in bytes; "native" is the backend's
    own algorithm. By default these are `FEW_ALGORITHMS` and powers of four; if `thorough`, they are all algorithms that
    send messages, and powers of two. If `transfers` is true, copies to and from the GPU of rank 0 are measured, if it
    has one.

    Raises ValueError if a value is out of range or a name is unknown.

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

    @property
    def factor(self) -> int:
        """The factor from one size to the next."""
        return 2 if self.thorough else 4

    def sizes_for(self, backend: str) -> Sequence[int]:
        """Return the sizes of collectives in ascending order."""
        if self.sizes is not None:
            return sorted(set(self.sizes))
        most = MOST_THOROUGH_BYTES if self.thorough else MOST_BYTES
        return powers(LEAST_BYTES, most[backend], self.factor)

    def algorithms_for(self, collective: str) -> Iterable[str]:
        """Return the names of the algorithms to measure."""
        if self.algorithms is not None:
            return self.algorithms
        return (NATIVE, *ALGORITHMS[collective]) if self.thorough else FEW_ALGORITHMS

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


def powers(low: int, high: int, factor: int) -> tuple[int, ...]:
    """Return `low`, `factor` · `low` and so on, up to `high`.

    >>> powers(256, 2048, 2)
    (256, 512, 1024, 2048)
    """
    count = int(math.log(high / low, factor) + 1e-9) + 1
    return tuple(low * factor**power for power in range(count))


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
    """Return a short description of a key, for the progress of a run.

    >>> words_of(key_of("allreduce", 2**20, algorithm="ring", in_place=True)), words_of(key_of("add", 4096))
    ('allreduce ring, 1 MiB', 'add, 4 KiB')
    """
    options = dict(key.options)
    names = [options[name] for name in ("algorithm", "link", "direction", "method") if name in options]
    return f"{' '.join([key.what, *names])}, {bytes_words(key.num_bytes)}"


# ---- keys


def keys_of(
    protocol: Protocol, backend: str, ranks_per_node: Sequence[int], free_bytes: int
) -> tuple[list[PointKey], tuple[int, ...]]:
    """Return the keys of links, memory and collectives in order, and the sizes that are left out.

    Those are the sizes at which the buffers of some collective need more than half of a rank's free memory. Raises
    ValueError if an algorithm is named that works at no size on so many ranks.
    """
    sizes = protocol.sizes_for(backend)
    planned = link_keys(ranks_per_node, sizes[-1], protocol.factor)
    planned += [key_of("add", size) for size in MEMORY_BYTES if size <= max(sizes[-1], MEMORY_BYTES[0])]
    left_out: set[int] = set()
    for collective, size in itertools.product(protocol.collectives, sizes):
        keys = collective_keys(collective, size, ranks_per_node, protocol.algorithms_for(collective))
        if size * (COMMON_BUFFERS + len(keys)) > MEMORY_SHARE * free_bytes:  # each method has its own scratch memory
            left_out.add(size)
        else:
            planned += keys
    works = {dict(key.options).get("algorithm") for key in planned}
    for name in protocol.algorithms or ():
        if name not in works:
            raise ValueError(f"algorithms must be those that {sum(ranks_per_node)} ranks can run, got {name!r}")
    distinct = list(dict.fromkeys(planned))  # two sizes may be the same after rounding down to equal parts
    return distinct, tuple(sorted(left_out))


def link_keys(ranks_per_node: Sequence[int], most_bytes: int, factor: int) -> list[PointKey]:
    """Return the messages between ranks, within and between nodes if possible."""
    links = []
    if max(ranks_per_node) > 1:
        links.append("intra")
    if len(ranks_per_node) > 1:
        links.append("inter")
    fitted_bytes = LEAST_LINK_BYTES * factor ** (LEAST_SIZES - 1)  # up to here there are enough sizes for a fit
    sizes = powers(LEAST_LINK_BYTES, max(fitted_bytes, min(most_bytes, MOST_LINK_BYTES)), factor)
    return [key_of(what, size, link=link) for size in sizes for what in ("ping_pong", "together") for link in links]


def collective_keys(
    collective: str, num_bytes: int, ranks_per_node: Sequence[int], algorithms: Iterable[str]
) -> list[PointKey]:
    """Return the keys of those algorithms in which each rank has something to do.

    The size is that of the whole buffer, rounded down to equal parts if each rank has a part. An allreduce runs in
    place, the native one also out of place; other collectives return a new tensor. A single rank has only native ones.

    >>> [dict(key.options) for key in collective_keys("allreduce", 2**21, [4], ["segmented_ring"])]
    [{'algorithm': 'segmented_ring', 'in_place': True, 'num_segments': 1}]
    >>> [dict(key.options)["in_place"] for key in collective_keys("allreduce", 2**21, [4], ["native"])]
    [True, False]
    >>> [key.num_bytes for key in collective_keys("allgather", 1000, [3], ["ring"])]
    [996]
    """
    num_ranks = sum(ranks_per_node)
    parts = 1 if collective in ("allreduce", "broadcast") else num_ranks
    elements = max(num_bytes // ITEM_BYTES // parts * parts, parts)
    keys = []
    for name in algorithms:
        options: dict[str, Any] | None = {}
        places = [collective == "allreduce"]
        if name != NATIVE:
            own_elements = elements // parts if collective == "allgather" else elements  # its schedule is of a share
            options = _fitting_options(collective, name, num_bytes, own_elements, ranks_per_node)
        elif collective == "allreduce":
            places = [True, False]
        if options is not None:
            size = elements * ITEM_BYTES
            keys += [key_of(collective, size, algorithm=name, in_place=place, **options) for place in places]
    return keys


def _fitting_options(
    collective: str, name: str, num_bytes: int, elements: int, ranks_per_node: Sequence[int]
) -> dict[str, Any] | None:
    """Return the builder's arguments; None if it does not work for so many ranks, or has a chunk without an element."""
    if name not in ALGORITHMS[collective] or sum(ranks_per_node) == 1:
        return None
    try:
        options = builder_options(collective, name, num_bytes, ranks_per_node)
        build(collective, name, sum(ranks_per_node), **options).chunk_ends(elements)
    except ValueError:
        return None
    return options


def builder_options(collective: str, name: str, num_bytes: int, ranks_per_node: Sequence[int]) -> dict[str, Any]:
    """Return the builder's arguments for this size and machine: its arrangement by nodes, and its segments.

    Raises ValueError if a builder with segments does not work for so many ranks.

    >>> builder_options("allreduce", "torus_2d", 2**20, [4, 4])
    {'shape': (2, 4)}
    >>> builder_options("allreduce", "hierarchical_ring", 2**20, [1, 1, 1, 1])
    {'gpus_per_node': 1}
    """
    algorithm = algorithm_of(collective, name)
    options: dict[str, Any] = {}
    if len(set(ranks_per_node)) == 1:  # a cluster has equally many ranks on each node
        num_nodes = len(ranks_per_node)
        gpus_per_node = ranks_per_node[0]
        options = algorithm.arrange(Cluster(num_nodes, gpus_per_node, _ANY_LINK, _ANY_LINK)) or {}
        if num_nodes > 1 and "gpus_per_node" in algorithm.options:
            options = {"gpus_per_node": gpus_per_node}  # also 1, since the builder's own default would be another
    if "num_segments" in algorithm.options:
        unsegmented = build(collective, name, sum(ranks_per_node), num_segments=1, **options)
        chunk_bytes = num_bytes // unsegmented.num_chunks
        options["num_segments"] = min(MOST_SEGMENTS, max(1, chunk_bytes // SEGMENT_BYTES))
    return options


def transfer_keys(num_bytes: int) -> list[PointKey]:
    """Return the copies to and from a GPU by each method, and the pinning.

    >>> len(transfer_keys(2**20))
    14
    """
    keys = [key_of("pin", num_bytes, cached=cached) for cached in (False, True)]
    for direction in ("h2d", "d2h"):
        for method in (*TRANSFER_METHODS, *ON_THE_FLY):
            keys.append(key_of("transfer", num_bytes, direction=direction, method=method, pieces=1, both=False))
    return keys


# ---- how long it may take

LAUNCH_S = 10.0  # estimated limit per launch: what an interrupted run loses
_OVERHEAD_S = 6e-3  # of an iteration, mostly to agree on its start; of a copy it is far less
_BYTES_PER_S = {"gloo": 2.5e8, "nccl": 2e10}
_COPIED_BYTES_PER_S = 5e9  # to and from a GPU
_ESTIMATING_ITERATIONS = 2  # before the turns, to estimate how many turns the budget allows


def guess_s(keys: Iterable[PointKey], protocol: Protocol, backend: str) -> float:
    """Return a rough guess of the seconds that measuring these keys takes, on a machine of usual speed."""
    total_s = 0.0
    for key in keys:
        iteration_s = _OVERHEAD_S + key.num_bytes / _BYTES_PER_S[backend]
        if key.what in TRANSFERS:
            iteration_s = _OVERHEAD_S / 10 + key.num_bytes / _COPIED_BYTES_PER_S
        iterations = _ESTIMATING_ITERATIONS + protocol.turns(iteration_s) * (protocol.warm_up + IN_A_ROW)
        total_s += iteration_s * iterations
    return total_s


def next_launch(missing: Sequence[PointKey], seconds: Callable[[Sequence[PointKey]], float]) -> list[PointKey]:
    """Return the keys that the next launch should measure; keys that take turns stay together.

    `seconds` says how long it will take to measure some keys.
    """
    chosen: list[PointKey] = []
    for _, group in itertools.groupby(missing, operation_and_size):
        keys = list(group)
        if chosen and seconds([*chosen, *keys]) > LAUNCH_S:  # the first group is measured, however long it takes
            break
        chosen += keys
    return chosen
