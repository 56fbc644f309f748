"""What to measure, how often, and in which order. It does not load torch, as the launching process needs none.

A `PointKey` stands for a point that has not been measured yet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ...cluster import Cluster, Link
from ...collectives import ALGORITHMS, build
from ...collectives.algorithms import algorithm_of
from ...common.checks import check_field, each, number, of_type, one_of, optional, several, truth, whole
from ...common.units import bytes_words
from ..fit import LEAST_SIZES
from ..profile import NATIVE, TRANSFERS, PointKey, Profile

MEASURED = ("allreduce", "allgather", "reduce_scatter", "broadcast", "all_to_all")
ITEM_BYTES = 4  # bytes of a float32
SEGMENT_BYTES = 2**19  # fits into cache for the sum, and is worth a message
MOST_SEGMENTS = 256  # more gain nothing and take long to plan
MOST_BYTES = 2**40
LEAST_LINK_BYTES = 256  # of a message between two ranks
MOST_LINK_BYTES = 2**24
LEAST_MEMORY_BYTES = 4096  # of a sum or copy in memory
MOST_MEMORY_BYTES = 2**26
# Of the free memory, for all buffers. They are all that a rank needs: with 4 ranks and Gloo, which count 18 buffers of
# 32 MiB, a rank grew by at most 17. As much is left for other processes, and because `free_bytes` does not know the
# limit of a container.
MEMORY_SHARE = 0.5
COMMON_BUFFERS = 4  # that the methods of a collective share: the pattern, the input, the output, the expected result
TRANSFER_METHODS = ("pageable", "pinned", "pageable_non_blocking", "pinned_non_blocking")
ON_THE_FLY = ("pin_on_the_fly", "pin_on_the_fly_cached")
NUM_PIECES = 256  # equal parts of a copy
LEAST_PIECE_BYTES = 4096
Name = TypeVar("Name", bound=Hashable)
Sample = TypeVar("Sample")
_ANY_LINK = Link(alpha_s=0.0, bytes_per_s=1.0)  # where only the arrangement of a cluster matters
IN_A_ROW = 3  # counted iterations per turn of a method


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    sizes = several(name, value)
    if not sizes:
        raise ValueError(f"{name} must be one or more whole numbers of bytes, got {value!r}")
    for size in sizes:
        if whole(name, size, ITEM_BYTES, MOST_BYTES) % ITEM_BYTES:
            raise ValueError(f"{name} must be multiples of {ITEM_BYTES} bytes, an element's, got {size!r}")
    return tuple(sorted(set(sizes)))


class Protocol(msgspec.Struct, frozen=True):
    """What to measure, and how often.

    Methods that are compared take turns; the first `warm_up` iterations of each turn do not count. A point has
    `iterations` iterations, or fewer if they would take more than `budget_s`, but at least six (or `iterations`). If
    `real_time` is true, the ranks run at real-time priority, above everything else on the machine (Linux, root only).

    `sizes` are in bytes; None stands for powers of two. Each of `collectives` is measured with each of `algorithms`.
    "native" is the backend's own algorithm; None stands for all collectives, or all algorithms, that send messages.
    `in_place` lists the variants of an allreduce to measure: in place (True), out of place (False), or both. If
    `transfers` is true, copies to and from the GPU of rank 0 are measured, if it has one.

    Raises ValueError if a value is out of range or a name is unknown.

    >>> Protocol(iterations=0)
    Traceback (most recent call last):
    ValueError: iterations must be a whole number from 1 to 10000, got 0
    >>> Protocol(sizes=[1022])
    Traceback (most recent call last):
    ValueError: sizes must be multiples of 4 bytes, an element's, got 1022
    """

    warm_up: int = 1
    iterations: int = 60
    budget_s: float = 0.4
    real_time: bool = False
    sizes: Sequence[int] | None = None
    collectives: Sequence[str] = ("allreduce",)
    algorithms: Sequence[str] | None = None
    in_place: Sequence[bool] = (True,)
    transfers: bool = True

    def __post_init__(self) -> None:
        check_field(self, "warm_up", whole, 0, 1000)
        check_field(self, "iterations", whole, 1, 10_000)
        check_field(self, "budget_s", number, above=0, high=3600)
        check_field(self, "real_time", truth)
        check_field(self, "sizes", optional, _sizes)
        check_field(self, "collectives", each, one_of, MEASURED)
        check_field(self, "algorithms", optional, each, of_type, str)
        check_field(self, "in_place", each, truth)
        check_field(self, "transfers", truth)
        known = [NATIVE]
        for collective in self.collectives:
            known += [name for name in ALGORITHMS[collective] if name not in known]
        for name in self.algorithms or ():
            one_of("algorithms", name, tuple(known))

    def check_algorithms(self, num_ranks: int) -> None:
        """Raise ValueError if none of the collectives supports one of the algorithms on this number of ranks."""
        large_bytes = ITEM_BYTES * 2**20 * num_ranks  # so that no chunk lacks an element
        for name in self.algorithms or ():
            if name == NATIVE:  # which works on any number of ranks
                continue
            collectives = [collective for collective in self.collectives if name in ALGORITHMS[collective]]
            is_supported = False
            for collective in collectives:
                # As if all were on one node: the nodes are known only after the ranks have started.
                if _fitting_options(collective, name, large_bytes, [num_ranks]) is not None:
                    is_supported = True
            if not is_supported:
                build(collectives[0], name, num_ranks)  # raises the builder's own error

    def turns(self, seconds: float) -> int:
        """Return the number of turns of a method whose iterations take `seconds` each, including the wait to start.

        They are as many as the budget allows, but at least two, and no more than the iterations need.
        """
        needed = math.ceil(self.iterations / IN_A_ROW)
        in_budget = int(self.budget_s / (seconds * (self.warm_up + IN_A_ROW)))
        return min(needed, max(2, in_budget))  # the iterations of one turn would be too few to have a spread

    def in_turns(self, expected_s: Mapping[Name, float], once: Callable[[Name], Sample]) -> dict[Name, list[Sample]]:
        """Call `once` for each name alternately, and return its results per name, without the warm-up.

        Each turn begins with the next name, so that no name always comes first, or last, in a turn. `expected_s` maps
        each name to its expected seconds per iteration.
        """
        names = list(expected_s)
        turns = {name: self.turns(seconds) for name, seconds in expected_s.items()}
        counted: dict[Name, list[Sample]] = {name: [] for name in names}
        for turn in range(max(turns.values(), default=0)):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                if turn < turns[name]:
                    samples = [once(name) for _ in range(self.warm_up + IN_A_ROW)]
                    counted[name] += samples[self.warm_up :]
        # Whole turns have up to IN_A_ROW - 1 samples more than asked for.
        return {name: samples[: self.iterations] for name, samples in counted.items()}


def powers_of_two(low: int, high: int, factor: int = 2) -> tuple[int, ...]:
    """Return `low`, `factor` · `low` and so on, up to `high`.

    >>> powers_of_two(256, 2048)
    (256, 512, 1024, 2048)
    """
    sizes = []
    size = low
    while size <= high:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


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
    """Return a short description of a key, for the progress of a run, without its lesser options.

    >>> words_of(key_of("allreduce", 2**20, algorithm="ring", in_place=True)), words_of(key_of("add", 4096))
    ('allreduce by ring, 1 MiB', 'add, 4 KiB')
    """
    options: dict[str, Any] = dict(key.options)
    what = key.what
    if "direction" in options:
        what += f" {options['direction']}, {options['method']}"
    elif "algorithm" in options:
        what += f" by {options['algorithm']}"
    elif "link" in options:
        what += f" ({options['link']})"
    return f"{what}, {bytes_words(key.num_bytes)}"


# ---- keys


def keys_of(
    protocol: Protocol, sizes: Sequence[int], ranks_per_node: Sequence[int], free_bytes: int, through_host: bool = False
) -> tuple[list[PointKey], tuple[int, ...]]:
    """Return the keys of links, memory and collectives in order, and the sizes that are left out.

    Those are the sizes at which the buffers of some collective need more than half of a rank's free memory. With
    `through_host` (Gloo on a GPU) there are only native or named collectives, and no messages between two ranks. A
    single rank has only native collectives. Raises ValueError if no size fits.
    """
    ranks_of_links = [1] if through_host else ranks_per_node  # a single rank has only sums and copies in memory
    planned = link_keys(ranks_of_links, max(sizes))
    left_out: set[int] = set()
    fits_any = False
    only_native = protocol.algorithms is None and (through_host or sum(ranks_per_node) == 1)
    algorithms = (NATIVE,) if only_native else protocol.algorithms
    for collective in protocol.collectives:
        for size in sizes:
            keys = collective_keys(collective, size, ranks_per_node, algorithms, protocol.in_place)
            num_buffers = COMMON_BUFFERS + len(keys)  # each method has its own scratch memory
            if size * num_buffers > MEMORY_SHARE * free_bytes:
                left_out.add(size)
            else:
                fits_any = True
                planned += keys
    if left_out and not fits_any:
        raise ValueError(f"sizes must fit into half of the {bytes_words(free_bytes)} a rank has, got {tuple(sizes)}")
    distinct = list(dict.fromkeys(planned))  # two sizes may be the same after rounding down to equal parts
    return distinct, tuple(sorted(left_out))


def link_keys(ranks_per_node: Sequence[int], most_bytes: int) -> list[PointKey]:
    """Return the messages between ranks, within and between nodes if possible, and sums and copies in memory."""
    links = []
    if max(ranks_per_node) > 1:
        links.append("intra")
    if len(ranks_per_node) > 1:
        links.append("inter")
    keys = []
    fitted_bytes = LEAST_LINK_BYTES * 2 ** (LEAST_SIZES - 1)  # up to here there are enough sizes for a fit
    for size in powers_of_two(LEAST_LINK_BYTES, max(fitted_bytes, min(most_bytes, MOST_LINK_BYTES))):
        for what in ("ping_pong", "together"):
            keys += [key_of(what, size, link=link) for link in links]
    most_memory_bytes = max(LEAST_MEMORY_BYTES, min(most_bytes, MOST_MEMORY_BYTES))  # so that there is a size
    # Only a slope is fitted to sums (`Profile.gamma_s_per_byte`), so every second power of two is enough.
    for size in powers_of_two(LEAST_MEMORY_BYTES, most_memory_bytes, factor=4):
        keys += [key_of("add", size), key_of("copy", size)]
    return keys


def collective_keys(
    collective: str,
    num_bytes: int,
    ranks_per_node: Sequence[int],
    algorithms: Iterable[str] | None = None,
    in_place: Iterable[bool] = (True,),
) -> list[PointKey]:
    """Return the native collective and every algorithm in which each rank has something to do.

    `algorithms` names some of these, "native" for the native one; None stands for all. The size is that of the whole
    buffer, rounded down to equal parts if each rank has a part. Only allreduce can run in place, and has a key for each
    variant in `in_place`; the others return a new tensor.

    >>> [dict(key.options) for key in collective_keys("allreduce", 2**21, [4], ["native", "segmented_ring"])]
    [{'algorithm': 'native', 'in_place': True}, {'algorithm': 'segmented_ring', 'in_place': True, 'num_segments': 1}]
    >>> [key.num_bytes for key in collective_keys("allgather", 1000, [3], ["ring"])]
    [996]
    """
    elements = num_elements(collective, num_bytes, sum(ranks_per_node))
    variants: tuple[bool, ...] = (False,)
    if collective == "allreduce":
        variants = tuple(in_place)
    if algorithms is None:
        algorithms = [NATIVE, *ALGORITHMS[collective]]
    keys = []
    for name in algorithms:
        options = _fitting_options(collective, name, num_bytes, ranks_per_node)
        if options is None:
            continue
        for is_in_place in variants:
            keys.append(key_of(collective, elements * ITEM_BYTES, algorithm=name, in_place=is_in_place, **options))
    return keys


def num_elements(collective: str, num_bytes: int, num_ranks: int) -> int:
    """Return the number of elements in the whole buffer: a multiple of the ranks if each rank has a part."""
    parts = 1 if collective in ("allreduce", "broadcast") else num_ranks
    return max(num_bytes // ITEM_BYTES // parts * parts, parts)


def builder_options(collective: str, name: str, num_bytes: int, ranks_per_node: Sequence[int]) -> dict[str, Any]:
    """Return the builder's arguments for this size and machine: its arrangement by nodes, and its segments.

    Raises ValueError if a builder with segments does not work for so many ranks.

    >>> builder_options("allreduce", "torus_2d", 2**20, [4, 4])
    {'shape': (2, 4)}
    >>> builder_options("allreduce", "hierarchical_ring", 2**20, [1, 1, 1, 1])
    {'gpus_per_node': 1}
    """
    if name == NATIVE:
        return {}
    algorithm = algorithm_of(collective, name)
    options: dict[str, Any] = {}
    if len(set(ranks_per_node)) == 1:  # a cluster has equally many ranks on each node
        num_nodes = len(ranks_per_node)
        gpus_per_node = ranks_per_node[0]
        cluster = Cluster(num_nodes, gpus_per_node, _ANY_LINK, _ANY_LINK)
        options = algorithm.arranged(cluster)
        if num_nodes > 1 and "gpus_per_node" in algorithm.options:
            options = {"gpus_per_node": gpus_per_node}  # also 1, since the builder's own default would be another
    if "num_segments" in algorithm.options:
        unsegmented = build(collective, name, sum(ranks_per_node), num_segments=1, **options)
        chunk_bytes = num_bytes // unsegmented.num_chunks
        options["num_segments"] = min(MOST_SEGMENTS, max(1, chunk_bytes // SEGMENT_BYTES))
    return options


def _fitting_options(
    collective: str, name: str, num_bytes: int, ranks_per_node: Sequence[int]
) -> dict[str, Any] | None:
    """Return the builder's arguments; None if it does not work for so many ranks, or has a chunk without an element."""
    if name == NATIVE:
        return {}
    num_ranks = sum(ranks_per_node)
    elements = num_elements(collective, num_bytes, num_ranks)
    if collective == "allgather":  # its schedule is of the share of one rank
        elements //= num_ranks
    try:
        options = builder_options(collective, name, num_bytes, ranks_per_node)
        build(collective, name, num_ranks, **options).chunk_ends(elements)  # raises if a chunk has no element
    except ValueError:
        return None
    return options


def transfer_keys(num_bytes: int, num_gpus: int = 1) -> list[PointKey]:
    """Return the copies to, from, on and between GPUs, by each method, in one direction and in both; and the pinning.

    >>> options = [dict(key.options) for key in transfer_keys(2**20)]
    >>> [copy["direction"] for copy in options if copy.get("method") == "pinned" and copy["pieces"] == 1]
    ['h2d', 'h2d', 'd2h', 'd2h']
    >>> len(options), len(transfer_keys(2**10)), len(transfer_keys(2**10, num_gpus=2)) - len(transfer_keys(2**10))
    (31, 23, 3)
    """
    can_be_cut = num_bytes % (NUM_PIECES * ITEM_BYTES) == 0 and num_bytes >= NUM_PIECES * LEAST_PIECE_BYTES
    keys = []
    for direction in ("h2d", "d2h"):
        for method in (*TRANSFER_METHODS, *ON_THE_FLY):
            keys.append(_copy_key(num_bytes, direction, method))
        for method in TRANSFER_METHODS:
            keys.append(_copy_key(num_bytes, direction, method, both=True))
        if can_be_cut:
            for method in TRANSFER_METHODS:
                keys.append(_copy_key(num_bytes, direction, method, pieces=NUM_PIECES))
    keys.append(_copy_key(num_bytes, "d2d", "device"))
    for src, dst in itertools.permutations(range(num_gpus), 2):
        keys.append(_copy_key(num_bytes, "p2p", "device", src=src, dst=dst))
        if src < dst:  # both directions at once are the same from either end
            keys.append(_copy_key(num_bytes, "p2p", "device", both=True, src=src, dst=dst))
    return keys + [key_of("pin", num_bytes, cached=cached) for cached in (False, True)]


def _copy_key(
    num_bytes: int, direction: str, method: str, pieces: int = 1, both: bool = False, **ends: int
) -> PointKey:
    return key_of("transfer", num_bytes, direction=direction, method=method, pieces=pieces, both=both, **ends)


# ---- how long it may take: a rough guess from what has been measured, for deadlines and for the time left

LAUNCH_S = 8.0  # estimated limit per launch: what an interrupted run loses
OVERHEAD_S = 0.005  # per iteration, mostly to agree on its start
ESTIMATING_ITERATIONS = 2  # before the turns, to estimate how many turns the budget allows
# Of a message, as long as none has been measured: a slow network's.
UNKNOWN_LATENCY_S = 1e-3
UNKNOWN_BYTES_PER_S = 20e6
MEMORY_BYTES_PER_S = 1e9
TRANSFER_BYTES_PER_S = 4e9


def next_launch(missing: Sequence[PointKey], profile: Profile, protocol: Protocol) -> list[PointKey]:
    """Return the keys that the next launch should measure; keys that take turns stay together."""
    chosen: list[PointKey] = []
    seconds = 0.0
    for _, group in itertools.groupby(missing, operation_and_size):
        keys = list(group)
        seconds += guess_s(keys, profile, protocol)
        if chosen and seconds > LAUNCH_S:  # the first group is measured, however long it takes
            break
        chosen += keys
    return chosen


def guess_s(keys: Sequence[PointKey], profile: Profile, protocol: Protocol) -> float:
    """Return an estimate, in seconds, of measuring these keys."""
    total_s = 0.0
    for key in keys:
        iteration_s = OVERHEAD_S + _iteration_s(key, profile)
        iterations_in_turns = protocol.turns(iteration_s) * (protocol.warm_up + IN_A_ROW)
        total_s += iteration_s * (ESTIMATING_ITERATIONS + iterations_in_turns)
    return total_s


def _iteration_s(key: PointKey, profile: Profile) -> float:
    """Return the seconds of one iteration, estimated from the largest measured message up to this size.

    This is for deadlines, so it is simple: the bytes of that message scale, a ping-pong or an exchange is two messages,
    and a collective is one message, and one more for each doubling of the ranks.
    """
    if key.what in TRANSFERS:
        return key.num_bytes / TRANSFER_BYTES_PER_S
    if key.what in ("add", "copy") or profile.num_ranks == 1:
        return key.num_bytes / MEMORY_BYTES_PER_S
    message_s = UNKNOWN_LATENCY_S + key.num_bytes / UNKNOWN_BYTES_PER_S
    measured = [point for point in profile.select("together") if point.num_bytes <= key.num_bytes]
    if measured:
        nearest = max(measured, key=lambda point: (point.num_bytes, point.median_s))  # the slower of two links
        message_s = nearest.median_s * key.num_bytes / nearest.num_bytes
    if key.what in ("ping_pong", "together"):
        return 2 * message_s
    return (1 + math.log2(profile.num_ranks)) * message_s
