"""What every public function of the package refuses: the error names the argument, or the value."""

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
    execute,
    lower_bounds,
    run_local,
    simulate,
)
from rankscope.collectives.player.model import playback

from .cases import NAMES, ROOTED

LINK = Link(1.0, 2.0)
SIX, FOUR = Cluster.uniform(6, LINK), Cluster.uniform(4, LINK)
RING = build("allreduce", "ring", 4)
ZEROS = [torch.zeros(8)] * 4
HEAD = "allreduce mine ranks=4 chunks=2"
IDLE = Schedule("allreduce", "idle", 4, 1, [])
Call = Callable[[], object]


def header(**changed: Any) -> Call:
    good = {"collective": "allreduce", "algorithm": "mine", "num_ranks": 3, "num_chunks": 6, "source": []}
    return lambda: Schedule(**{**good, **changed})


def local(*last: Any, schedule: Any = RING, op: Any = "sum") -> Call:
    """The last of four tensors are these."""
    return lambda: run_local(schedule, [*ZEROS[: 4 - len(last)], *last], op)


REFUSED: list[tuple[Call, str]] = [
    (header(collective="sum"), "collective"),
    (header(num_ranks=0), "num_ranks"),
    (header(root=3), "root"),
    (header(source=iter(())), "source"),
    (lambda: simulate(Schedule.from_text(f"{HEAD}\n0: 0>7:0="), 8.0, FOUR), "rank 7"),
    (lambda: simulate(Schedule.from_text(f"{HEAD}\n0: 0>1:9="), 8.0, FOUR, executor=True), "chunk 9"),
    (lambda: Schedule.from_text("allreduce ranks=4 chunks=2"), "algorithm"),
    (header(collective="scatter", num_chunks=4), "num_chunks"),
    (lambda: Step.of(0, 1, 0.2), "whole numbers"),
    (lambda: build("allreduce", "ring", 8, num_segments=2), "num_segments"),
    (lambda: build("allreduce", "torus_2d", 8, shape=(3, 3)), "shape"),
    (lambda: build("allreduce", "hierarchical_ring", 8, gpus_per_node=3), "gpus_per_node"),
    (lambda: build("allreduce", "segmented_ring", 8, num_segments=0), "num_segments"),
    (lambda: closed_form("allreduce", "ring", 6, -1.0, LINK), "num_bytes"),
    (lambda: closed_form("allreduce", "rung", 6, 1.0, LINK), "algorithm"),
    (lambda: closed_form("allreduce", "ring", 6, 1.0, LINK, shape=(2, 3)), "shape"),
    (lambda: closed_form("broadcast", "flat", 6, 1.0, LINK, root=6), "root"),
    (lambda: lower_bounds("8", SIX), "num_bytes"),
    (lambda: simulate(RING, math.inf, FOUR), "num_bytes"),
    (lambda: simulate(RING, 8.0, SIX), "4 ranks, got 6"),
    (lambda: simulate(RING, 8.0, FOUR, detail="all"), "detail"),
    (lambda: execute("ring", torch.zeros(8)), "schedule"),  # type: ignore[arg-type]
    (lambda: execute(RING, [0.0] * 8), "tensor"),  # type: ignore[arg-type]
    (lambda: best(1e6, 8), "cluster"),  # type: ignore[arg-type]
    (lambda: best(1e6, SIX, algorithms=["rung"]), "algorithm"),
    (lambda: best(1e6, SIX, algorithms="ring"), "a list"),
    (lambda: best(1e6, SIX, "allgather", ["recursive_doubling"]), "6 ranks"),
    (lambda: playback(build("barrier", "dissemination", 4), 1.0, FOUR), "barrier"),
    (lambda: playback(IDLE, 1.0, FOUR), "rank 0, chunk 0"),
    (local(op="mean"), "op"),
    (lambda: run_local(RING, []), "tensors"),
    (local(torch.zeros(9)), "shape"),
    (local(torch.zeros(8, dtype=torch.int8)), "dtype"),
    (local(*[torch.zeros(3)] * 4), "4 elements"),
    (local(*[torch.zeros(6)] * 4, schedule=build("all_to_all", "bruck", 4)), "multiple of 4"),
]


@pytest.mark.parametrize(("call", "word"), REFUSED)
def test_what_does_not_fit_is_refused(call: Call, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_every_builder_refuses_wrong_ranks_roots(collective: str, name: str) -> None:
    for ranks in (0, 4.0, True, "4"):  # 4.0 is equal to a number asked for
        with pytest.raises(ValueError, match="num_ranks"):
            build(collective, name, ranks)  # type: ignore[arg-type]
    for root in (-1, 4, 0.5) if collective in ROOTED else ():
        with pytest.raises(ValueError, match="root"):
            build(collective, name, 4, root=root)


def test_other_errors() -> None:
    with pytest.raises(ValueError, match="power of two"):
        build("allgather", "recursive_doubling", 6)
    with pytest.raises(ScheduleError, match="rank 0, chunk 0"):
        run_local(IDLE, ZEROS)
