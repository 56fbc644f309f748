"""What every public function of the package refuses: one clear error that names the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankscope.cluster import Cluster, Link
from rankscope.collectives import (
    Schedule,
    ScheduleError,
    Step,
    best,
    build,
    closed_form,
    lower_bounds,
    run_local,
    simulate,
    simulate_executor,
    verify,
)
from rankscope.collectives.schedule import Phase

from .cases import NAMES, ROOTED, WITH_COUNTS, allows

LINK = Link(1.0, 2.0)
SIX = Cluster.uniform(6, LINK)
RING, RING_2 = build("allreduce", "ring", 4), build("allreduce", "ring", 2)
ZEROS = [torch.zeros(8)] * 4

Ask = Callable[[], object]


def header(**changed: Any) -> Ask:
    good = {"collective": "allreduce", "algorithm": "mine", "num_ranks": 3, "num_chunks": 6}
    return lambda: Schedule.of_steps([], **{**good, **changed})


def allreduce(name: str, **options: Any) -> Ask:
    return lambda: build("allreduce", name, 8, **options)


def form(name: str = "ring", num_ranks: Any = 6, num_bytes: Any = 1.0, gamma: Any = 0.0, **options: Any) -> Ask:
    collective = "broadcast" if name == "flat" else "allreduce"
    return lambda: closed_form(collective, name, num_ranks, num_bytes, LINK, gamma, **options)


def local(*last: Any, schedule: Any = RING, op: Any = "sum") -> Ask:
    """The last of four tensors are these."""
    return lambda: run_local(schedule, [*ZEROS[: 4 - len(last)], *last], op)


def simulated(num_bytes: Any = 8.0, cluster: Any = None, **options: Any) -> Ask:
    return lambda: simulate(RING_2, num_bytes, cluster or Cluster.uniform(2, LINK), **options)


def executed(num_bytes: Any, num_ranks: int = 4, link_at: Any = None) -> Ask:
    return lambda: simulate_executor(RING, num_bytes, Cluster.uniform(num_ranks, LINK), link_at)


GROUPS: dict[str, list[tuple[Ask, str]]] = {
    "schedules": [
        (header(collective="sum"), "collective must be one of .*, got 'sum'"),
        (header(algorithm="my ring"), "algorithm must be a name without spaces, got 'my ring'"),
        (header(num_ranks=0), "num_ranks must be a whole number from 1 to 65536, got 0"),
        (header(num_chunks=0), "num_chunks must be a whole number from 1 to 67108864, got 0"),
        (header(root=3), "root must be a whole number from 0 to 2, got 3"),
        (header(lag=0), "lag must be a whole number from 1 to 1024, got 0"),
        (header(weights=(1, 2)), "weights must be 6, one per chunk, got 2"),
        (header(weights=6), "weights must be a list, got 6"),
        (header(weights=(1,) * 5 + (-1,)), "weights must be a whole number from 0 to 9007199254740992, got -1"),
        (header(weights=(1,) * 5 + (2**53 + 1,)), "weights must be .* to 9007199254740992, got 9007199254740993"),
        (header(ports=2**16 + 1), "ports must be a whole number from 1 to 65536, got 65537"),
        (header(collective="scatter", num_chunks=4), "num_chunks of scatter must be a multiple of 3, got 4"),
        (header(collective="all_to_all"), "num_chunks of all_to_all must be a multiple of 9, got 6"),
        (lambda: Schedule("allreduce", "mine", 3, 6, None), "phases must be a function that returns them, got None"),
        *((lambda c=c: Step.of(*c), "must be whole numbers, got") for c in ((0.9, 1, 0), (0, 1.7, 0), (0, 1, 0.2))),
        *((lambda r=r: Step.of(0, 1, 0, 1, r), "reduce must be True or False, one or a column") for r in ("no", 1)),
        (lambda: Phase(0, 1, 0, num_steps=-2), "num_steps must be a whole number of at least 0, got -2"),
        (lambda: verify(None), "schedule must be a Schedule, got None"),
        (lambda: RING.traffic(math.nan), "num_bytes must be a finite number of at least 0, got nan"),
    ],
    "builders": [
        (lambda: build("allsum", "ring", 4), "collective must be one of 'allreduce', 'reduce', .*, got 'allsum'"),
        (lambda: build("barrier", "ring", 4), "algorithm of barrier must be one of 'dissemination', got 'ring'"),
        (allreduce("torus_2d", shape=(3, 3)), "shape must be 2 numbers whose product is num_ranks = 8: 1×8, .*got 3×3"),
        (allreduce("torus_2d", shape=(-1, -1)), "shape must be 2 numbers .*got -1×-1"),
        (allreduce("torus_2d", shape=(2, 4.0)), "shape must be a whole number of at least -1, got 4.0"),
        (allreduce("torus_3d", shape=(2, 4)), "shape must be 3 numbers whose product is num_ranks = 8: 1×1×8, .*2×4"),
        (allreduce("torus_2d", shape=8), "shape must be a list, got 8"),
        (allreduce("hierarchical_ring", gpus_per_node=3), "gpus_per_node must divide num_ranks = 8, got 3"),
        (lambda: build("allreduce", "nvls", 1025), "num_ranks of nvls must be a whole number from 1 to 1024, got 1025"),
        (allreduce("nvls_tree", gpus_per_node=3), "gpus_per_node must divide num_ranks = 8, got 3"),
        (
            lambda: build("allreduce", "nvls_tree", 1025, gpus_per_node=1025),
            "gpus_per_node of nvls_tree must be a whole number from 1 to 1024, got 1025",
        ),
        (allreduce("ring", num_segments=2), "ring of allreduce has no option 'num_segments'"),
        (allreduce("segmented_ring", num_segments=0), "num_segments must be a whole number from 1 to 65536, got 0"),
        (lambda: build("scatter", "flat", 4, counts=4), "counts must be a list, got 4"),
    ],
    "costs": [
        (form(num_ranks=0), "num_ranks must be a whole number of at least 1, got 0"),
        (form(num_bytes=-1.0), "num_bytes must be finite and at least 0, got -1.0"),
        (form(num_bytes=math.nan), "num_bytes must be finite and at least 0, got nan"),
        (form("rung"), "algorithm of allreduce must be one of 'flat', .*got 'rung'"),
        (lambda: closed_form("allsum", "ring", 4, 1.0, LINK), "collective must be one of 'allreduce', .*got 'allsum'"),
        (form(gamma=-1), "gamma_s_per_byte must be a finite number of at least 0, got -1"),
        (form(shape=(2, 3)), "ring of allreduce has no option 'shape'"),
        (form("torus_2d", shape=(2, 2)), "shape must be 2 numbers whose product is num_ranks = 6: 1×6, .*got 2×2"),
        (form("flat", root=6), "root must be a whole number from 0 to 5, got 6"),
        (lambda: lower_bounds("allreduce", 6, 1.0, None), "link must be a Link, got None"),
        (lambda: lower_bounds("allreduce", 4, 8.0, LINK, -1), "gamma_s_per_byte must be a finite number .*, got -1"),
        *(
            (lambda size=size: lower_bounds("allreduce", 4, size, LINK), "num_bytes must be finite and at least 0, got")
            for size in (-8.0, math.nan, "8", True)
        ),
    ],
    "simulators": [
        *(
            (simulated(size), "num_bytes must be a finite number of at least 0, got")
            for size in (-1, math.nan, math.inf, "8", True, None)
        ),
        (simulated(cluster=SIX), "cluster must have the schedule's 2 ranks, got 6"),
        (simulated(cluster="alike"), "cluster must be a Cluster, got 'alike'"),
        (simulated(detail="all"), "detail must be one of 'messages', 'ranks', got 'all'"),
        (lambda: simulate("ring", 8.0, SIX), "schedule must be a Schedule, got 'ring'"),
        (executed(64, num_ranks=3), "cluster must have the schedule's 4 ranks, got 3"),
        (executed(65), "num_bytes must be a multiple of 4, got 65"),
        (executed(-4), "num_bytes must be a finite number of at least 0, got -4"),
        (executed(8), "at least 4 elements"),
        (executed(64, link_at=5), "link_at must be a function of src, dst and num_bytes, got 5"),
        (lambda: simulate_executor("ring", 8, SIX), "schedule must be a Schedule, got 'ring'"),
    ],
    "best": [
        (lambda: best(1e6, SIX, algorithms=["rung"]), "algorithm of allreduce must be one of 'flat', .*got 'rung'"),
        (lambda: best(1e6, SIX, "allsum"), "collective must be one of 'allreduce', .*got 'allsum'"),
        (
            lambda: best(1e6, SIX, "allgather", ["recursive_doubling"]),
            "algorithms must exist for 6 ranks, got recursive_doubling",
        ),
        (lambda: best(-1, SIX), "num_bytes must be a finite number of at least 0, got -1"),
        (lambda: best(1e6, None), "cluster must be a Cluster, got None"),
        *(
            (
                lambda n=n: best(1e6, SIX, algorithms=n),
                f"algorithms must be a list of algorithms of allreduce, got {n!r}",
            )
            for n in ("ring", 3)
        ),
    ],
    "run_local": [
        (lambda: run_local("ring", ZEROS), "schedule must be a Schedule, got 'ring'"),
        *((local(op=op), "op must be one of 'sum', 'avg', 'min', 'max', 'prod', got") for op in ("mean", None, "SUM")),
        (lambda: run_local(RING, None), "tensors must be a list of one per rank, got None"),
        (lambda: run_local(RING, []), "tensors must be 4, one per rank, got 0"),
        (lambda: run_local(RING, [*ZEROS, ZEROS[0]]), "tensors must be 4, one per rank, got 5"),
        (local([0.0] * 8), r"tensors must be torch tensors, got \[0.0, .*\] for rank 3"),
        (local(torch.zeros(9), ZEROS[0]), r"of one shape, got \(8,\) for rank 0 and \(9,\) for rank 2"),
        (local(torch.zeros(2, 4)), r"of one shape, got \(8,\) for rank 0 and \(2, 4\) for rank 3"),
        (
            local(torch.zeros(8, dtype=torch.int8)),
            "of one dtype, got torch.float32 .* torch.int8 for rank 3",
        ),
        (local(torch.zeros(8, device="meta")), "of one device, got cpu for rank 0 and meta for rank 3"),
        (local(*[torch.zeros(3)] * 4), "tensors must have at least 4 elements, one for each chunk, got 3"),
        (
            local(*[torch.zeros(6)] * 4, schedule=build("all_to_all", "bruck", 4)),
            "tensors of all_to_all must have a multiple of 4 elements, got 6",
        ),
        (
            local(*[torch.zeros(2)] * 4, schedule=build("all_to_all", "bruck", 4)),
            "at least 4 elements, one for each chunk, got 2",
        ),
        (
            local(*[torch.zeros(0)] * 4, schedule=build("allgather", "ring", 4)),
            "at least 1 element, one for each chunk, got 0",
        ),
        (
            lambda: run_local(build("scatter", "flat", 3, root=2, counts=[1, 2, 3]), [torch.zeros(5)] * 3),
            "rank 2 must pass the 6 elements that the counts add up to, got 5",
        ),
        *(
            (
                lambda case=case: run_local(build(*case, 3, counts=[1, 2, 3]), [torch.zeros(n) for n in (1, 2, 2)]),
                "rank 2 must pass the 3 elements that the counts add up to, got 2",
            )
            for case in (("gather", "flat"), ("allgather", "ring"))
        ),
        (
            lambda: run_local(build("gather", "flat", 2, counts=[3, 8]), [torch.zeros(1, 3), torch.zeros(2, 4)]),
            r"of one shape except in the first dimension, got \(3,\) for rank 0 and \(4,\)",
        ),
    ],
}


@pytest.mark.parametrize("group", GROUPS)
def test_what_does_not_fit_is_refused(group: str) -> None:
    for ask, message in GROUPS[group]:
        with pytest.raises(ValueError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_every_builder_refuses_wrong_ranks_roots_and_counts(collective: str, name: str) -> None:
    build(collective, name, 4)
    for ranks in (0, -1, 4.0, 2.5, True, "4", None, math.nan, [4]):  # 4.0 is equal to a number asked for
        with pytest.raises(ValueError, match=r"num_ranks must be a whole number from 1 to 65536, got"):
            build(collective, name, ranks)  # type: ignore[arg-type]
    if not allows(collective, name, 6):
        with pytest.raises(ValueError, match=f"num_ranks of {name} must be a power of two, such as 4 or 8, got 6"):
            build(collective, name, 6)
    for root in (-1, 4, 0.5, True, None) if collective in ROOTED else ():
        with pytest.raises(ValueError, match=r"root must be a whole number from 0 to 3, got"):
            build(collective, name, 4, root=root)
    if (collective, name) == ("all_to_all", "pairwise"):
        for counts, problem in (
            ([[1, 2]] * 2, "counts must be 3 whole numbers, one per rank, got 2 of them"),
            ([[1, 2, 3]] * 2, "counts must be 3 rows of 3 whole numbers, one per rank, got 2 rows"),
            ([[1, 2, -1]] * 3, "counts must be a whole number from 0 to 9007199254740992, got -1"),
        ):
            with pytest.raises(ValueError, match=problem):
                build(collective, name, 3, counts=counts)
    if (collective, name) in WITH_COUNTS:
        with pytest.raises(ValueError, match="counts must be 3 whole numbers, one per rank, got 2 of them"):
            build(collective, name, 3, counts=[1, 2])
        with pytest.raises(ValueError, match="counts must be a whole number from 0 to 9007199254740992, got -1"):
            build(collective, name, 3, counts=[1, 2, -1])


@pytest.mark.parametrize(
    "text",
    [
        "allreduce short ranks=4 chunks=1\n",
        "allreduce twice ranks=4 chunks=1 ports=3\n0: 1>0:0+ 1>0:0+\n",
        "allgather early ranks=4 chunks=4\n0: 0>1:2=\n",
    ],
)
def test_a_schedule_that_does_not_verify_is_not_run(text: str) -> None:
    with pytest.raises(ScheduleError):
        run_local(Schedule.from_text(text), ZEROS)
