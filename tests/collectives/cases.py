"""Every algorithm at every number of ranks that it allows, and what is right, decided by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, Step, build
from rankscope.collectives.algorithms import IN_SWITCH, algorithm_of, algorithms_of

RANKS = [*range(1, 18), 24, 31, 32, 33, 64, 100]
ALL_RANKS = [*range(1, 34), 64, 100]
NAMES = [(collective, name) for collective in ALGORITHMS for name in algorithms_of(collective)]
WITH_FORM = [(collective, name) for collective, name in NAMES if algorithms_of(collective)[name].form is not None]
ROOTED = ("broadcast", "reduce", "scatter", "gather")
WITH_COUNTS = [
    (collective, name)
    for collective, name in NAMES
    if "counts" in algorithm_of(collective, name).options and collective != "all_to_all"  # which has a row per rank
]


def allows(collective: str, name: str, num_ranks: int) -> bool:
    return not algorithm_of(collective, name).needs_power_of_two or num_ranks & (num_ranks - 1) == 0


def shapes(num_ranks: int, axes: int) -> list[tuple[int, ...]]:
    """All shapes of so many axes with this product."""
    if axes == 1:
        return [(num_ranks,)]
    divisors = (size for size in range(1, num_ranks + 1) if num_ranks % size == 0)
    return [(size, *other_axes) for size in divisors for other_axes in shapes(num_ranks // size, axes - 1)]


def options(collective: str, name: str, num_ranks: int) -> Iterator[dict[str, Any]]:
    """The settings of an algorithm that are worth a test, besides those it has by itself."""
    algorithm = algorithm_of(collective, name)
    if "shape" in algorithm.options:
        yield from ({"shape": shape} for shape in shapes(num_ranks, algorithm.num_axes))
    if "gpus_per_node" in algorithm.options:
        yield from ({"gpus_per_node": size} for _, size in shapes(num_ranks, 2))
    if "num_segments" in algorithm.options:
        yield from ({"num_segments": segments} for segments in (1, 2, 3, 7))
    if "root" in algorithm.options:
        yield from ({"root": root} for root in range(1, num_ranks))
    if "counts" in algorithm.options and collective == "all_to_all":
        yield {"counts": [[(rank + 2 * peer) % 4 for peer in range(num_ranks)] for rank in range(num_ranks)]}
    elif "counts" in algorithm.options:
        uneven = [rank * 5 % 4 for rank in range(num_ranks)]  # 0, 1, 2, 3, 0, …
        yield from ({"counts": counts} for counts in (uneven, uneven[::-1], [0] * num_ranks))


def cluster_of(collective: str, name: str, num_ranks: int, link: Link, gamma: float) -> Cluster:
    """All ranks joined alike: in one node whose switch adds, for the algorithms that are made for one."""
    if name in IN_SWITCH.get(collective, {}):
        return Cluster(1, num_ranks, link, link, gamma, switch_adds=True)
    return Cluster.uniform(num_ranks, link, gamma)


def schedules(num_ranks: int) -> Iterator[Schedule]:
    """Every algorithm that allows so many ranks, with its defaults."""
    for collective, name in NAMES:
        if allows(collective, name, num_ranks):
            yield build(collective, name, num_ranks)


def is_right(schedule: Schedule, steps: list[Step]) -> bool:
    """Whether these steps do what MPI's chapter 6 specifies for the collective of `schedule`, in plain Python.

    For each rank and chunk, it counts the ranks whose shares are in the rank's copy. It checks the result only: neither
    the number of ports nor whether a message is superfluous. It shares no code with `verify`.
    """
    n, num_chunks = schedule.num_ranks, schedule.num_chunks
    own: list[dict[int, Counter[int]]] = [{} for _ in range(n)]
    for rank in range(n):
        for chunk in range(num_chunks):
            if schedule.collective in ("allreduce", "reduce", "reduce_scatter", "barrier"):
                own[rank][chunk] = Counter([rank])
            elif rank == _origin(schedule, chunk):
                own[rank][chunk] = Counter(["it"])
    for step in steps:
        rows = list(zip(*(column.tolist() for column in step.by_chunk()), strict=True))
        if any(chunk not in own[src] for src, _, chunk, _, _ in rows):
            return False
        sent = [own[src][chunk] for src, _, chunk, _, _ in rows]
        for (_, dst, chunk, _, reduce), new in zip(rows, sent, strict=True):
            own[dst][chunk] = own[dst].get(chunk, Counter()) + new if reduce else new
    return all(
        _is_whole(schedule, own[rank].get(chunk)) for rank in range(n) for chunk in _expected_chunks(schedule, rank)
    )


def _is_whole(schedule: Schedule, bag: Counter[Any] | None) -> bool:
    if schedule.collective == "barrier":
        return bag is not None and set(bag) == set(range(schedule.num_ranks))
    if schedule.collective in ("allreduce", "reduce", "reduce_scatter"):
        return bag == Counter(range(schedule.num_ranks))
    return bag == Counter(["it"])


def _origin(schedule: Schedule, chunk: int) -> int:
    rooted = schedule.collective in ("broadcast", "scatter")
    return schedule.root if rooted else chunk // (schedule.num_chunks // schedule.num_ranks)


def _expected_chunks(schedule: Schedule, rank: int) -> list[int]:
    """Return the chunks that a rank must have in the end."""
    n, num_chunks = schedule.num_ranks, schedule.num_chunks
    if schedule.collective in ("reduce", "gather"):
        return list(range(num_chunks)) if rank == schedule.root else []
    if schedule.collective in ("scatter", "reduce_scatter"):
        return list(range(rank * num_chunks // n, (rank + 1) * num_chunks // n))
    if schedule.collective == "all_to_all":
        return [chunk for chunk in range(num_chunks) if chunk % (num_chunks // n) // (num_chunks // n // n) == rank]
    return list(range(num_chunks))
