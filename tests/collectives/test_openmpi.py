"""Our allreduce on real ranks against Open MPI's with its algorithm forced: equal, on numbers that do not round."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.collectives import ALGORITHMS
from rankscope.ranks import launch

from . import openmpi
from .openmpi import Case, TimedResult

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(bool(openmpi.missing()), reason=openmpi.missing() or "all is there"),
]

KINDS = product(("float32", "int32"), ("sum", "min", "max", "prod"), (67, 3000))
CASES = [Case(*kind, seed) for seed, kind in enumerate(KINDS)]
REDUCTIONS: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return openmpi.compiled(tmp_path_factory.mktemp("mpi"))


def differences(cases: list[Case], expected: list[TimedResult], names: list[str]) -> list[str]:
    """On one rank: where the result of one of these algorithms is not Open MPI's."""
    import torch
    import torch.distributed as dist

    from rankscope.collectives import build, execute

    wrong = []
    for name in names:
        schedule = build("allreduce", name, dist.get_world_size())
        for case, theirs in zip(cases, expected, strict=True):
            ours = torch.from_numpy(openmpi.numbers(case, dist.get_rank()))
            execute(schedule, ours, op=case.op)
            unlike = openmpi.difference(ours.numpy(), theirs.result)
            wrong += [f"{name}, {case}: {unlike}"] if unlike else []
    return wrong


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8])
def test_every_algorithm_equals_open_mpi(num_ranks: int, program: Path) -> None:
    theirs = openmpi.allreduce(program, num_ranks, "ring", CASES)
    ours = launch(differences, num_ranks, args=(CASES, theirs, [*ALGORITHMS["allreduce"]]), timeout_s=400)
    assert ours == [[]] * num_ranks


def test_a_wrong_result_is_noticed_on_every_rank(program: Path) -> None:
    case = Case("float32", "sum", 67, 0)
    right = openmpi.allreduce(program, 2, "ring", [case])[0].result
    wrong = right.copy()
    wrong[5] += 1
    reports = launch(differences, 2, args=([case], [TimedResult(wrong, [])], ["ring", "flat"]))
    unlike = f"{case}: 1 of 67 differ, first element 5: {right[5]}, not {wrong[5]}"
    assert reports == [[f"{name}, {unlike}" for name in ("ring", "flat")]] * 2
    for other in (wrong, right[:-1], right.astype("int32"), -right):
        assert openmpi.difference(right, other)
