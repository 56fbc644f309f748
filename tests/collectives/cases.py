"""Every algorithm at every number of ranks that it allows, and what is right, decided by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, Step, build
from rankscope.collectives.algorithms import IN_SWITCH, algorithm_of, algorithms_of

NAMES = [(collective, name) for collective in ALGORITHMS for name in algorithms_of(collective)]
WITH_FORM = [case for case in NAMES if algorithm_of(*case).form is not None]
ROOTED = ("broadcast", "reduce", "scatter", "gather")


def built(collective: str, name: str, num_ranks: int, **options: Any) -> Schedule | None:
    """The schedule, or None if the algorithm is not for so many ranks."""
    try:
        return build(collective, name, num_ranks, **options)
    except ValueError as error:
        if "num_ranks" not in str(error):
            raise
        return None


def schedules(num_ranks: int) -> Iterator[Schedule]:
    """Every algorithm that allows so many ranks, with its defaults."""
    for case in NAMES:
        schedule = built(*case, num_ranks)
        if schedule is not None:
            yield schedule


def shapes(num_ranks: int, axes: int) -> list[tuple[int, ...]]:
    """All shapes of so many axes with this product."""
    if axes == 1:
        return [(num_ranks,)]
    divisors = (size for size in range(1, num_ranks + 1) if num_ranks % size == 0)
    return [(size, *other_axes) for size in divisors for other_axes in shapes(num_ranks // size, axes - 1)]


def options(collective: str, name: str, num_ranks: int) -> Iterator[dict[str, Any]]:
    """The settings of an algorithm that are worth a test, besides those it has by itself."""
    names = algorithm_of(collective, name).options
    if "shape" in names:
        two_nodes = algorithm_of(collective, name).arrange(Cluster(2, 2, Link(1.0, 1.0), Link(1.0, 1.0))) or {}
        yield from ({"shape": shape} for shape in shapes(num_ranks, len(two_nodes["shape"])))
    if "gpus_per_node" in names:
        yield from ({"gpus_per_node": size} for _, size in shapes(num_ranks, 2))
    if "num_segments" in names:
        yield from ({"num_segments": segments} for segments in (1, 2, 3, 7))
    if "root" in names:
        yield from ({"root": root} for root in range(1, num_ranks))


def cluster_of(name: str, num_ranks: int, link: Link, gamma: float) -> Cluster:
    """All ranks joined alike: in one node whose switch adds, for the algorithms that are made for one."""
    if name in IN_SWITCH:
        return Cluster(1, num_ranks, link, link, gamma, switch_adds=True)
    return Cluster.uniform(num_ranks, link, gamma)


def is_right(schedule: Schedule) -> bool:
    """Whether the steps do what MPI's chapter 6 specifies for the collective, in plain Python.

    For each rank and chunk, it counts the ranks whose shares are in the rank's copy. It checks the result only: neither
    the number of ports nor whether a message is superfluous. It shares no code with `verify`.
    """
    n, num_chunks = schedule.num_ranks, schedule.num_chunks
    adds_up = schedule.collective in ("allreduce", "reduce", "reduce_scatter", "barrier")
    own: list[dict[int, Counter[Any]]] = [{} for _ in range(n)]
    for rank in range(n):
        for chunk in range(num_chunks):
            if adds_up:
                own[rank][chunk] = Counter([rank])
            elif rank == _origin(schedule, chunk):
                own[rank][chunk] = Counter(["it"])
    for step in schedule.steps():
        rows = _by_chunk(step)
        if any(chunk not in own[src] for src, _, chunk, _ in rows):
            return False
        sent = [own[src][chunk] for src, _, chunk, _ in rows]
        for (_, dst, chunk, reduce), new in zip(rows, sent, strict=True):
            own[dst][chunk] = own[dst].get(chunk, Counter()) + new if reduce else new
    complete = Counter(range(n)) if adds_up else Counter(["it"])
    for rank in range(n):
        for chunk in _expected_chunks(schedule, rank):
            bag = own[rank].get(chunk, Counter())
            if bag != complete and not (schedule.collective == "barrier" and set(bag) == set(complete)):
                return False
    return True


def _by_chunk(step: Step) -> list[tuple[int, int, int, bool]]:
    rows = step.rows()
    return [(s, d, chunk, reduce) for s, d, first, count, reduce in rows for chunk in range(first, first + count)]


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
