"""`run_local` against torch's own arithmetic and indexing, and against a real Gloo process group."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
import torch
from torch import Tensor

from rankscope.collectives import Schedule, build, run_local
from tests.extents import SAMPLE_OR_EVERYTHING

from .cases import NAMES, ROOTED, schedules

Tensors = list[Tensor]

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
WHOLES = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
DTYPES = [*FLOATS, *WHOLES, torch.complex64, torch.bool]
OPS = ("sum", "min", "max", "prod")
SUMS = ("allreduce", "reduce", "reduce_scatter")


def small_numbers(
    num_ranks: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, device: str = "cpu"
) -> list[Tensor]:
    """For each rank whole numbers so small that their sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype in (torch.uint8, torch.bool) else -4
    numbers = torch.randint(low, 5 if dtype != torch.bool else 2, (num_ranks, *shape), generator=generator)
    if dtype.is_complex:
        return list((numbers + 1j * numbers.flip(0)).to(device, dtype))
    return list(numbers.to(device, dtype))


def combined(tensors: list[Tensor], op: str) -> Tensor:
    """What torch makes of one tensor for each rank."""
    stacked = torch.stack(tensors)
    if op == "min":
        return stacked.amin(0)
    if op == "max":
        return stacked.amax(0)
    if op == "prod":
        return functools.reduce(torch.mul, tensors)
    if stacked.dtype == torch.bool:
        return stacked.any(0)
    return stacked.sum(0, dtype=stacked.dtype)


def cut(whole: Tensor, num_parts: int) -> list[Tensor]:
    """The runs of a tensor, as even as can be: whole rows where they come out even, else flat."""
    if whole.ndim and whole.shape[0] % num_parts == 0:
        return list(whole.chunk(num_parts))
    flat = whole.flatten()
    ends = [part * flat.numel() // num_parts for part in range(num_parts + 1)]
    return [flat[start:end] for start, end in itertools.pairwise(ends)]


def expected(schedule: Schedule, tensors: list[Tensor], op: str = "sum") -> list[Tensor | None]:
    """Return what MPI's chapter 6 specifies for each rank."""
    n, root, collective = schedule.num_ranks, schedule.root, schedule.collective
    if collective == "barrier":
        return [None] * n
    if collective == "broadcast":
        return [tensors[root]] * n
    if collective == "scatter":
        return list(cut(tensors[root], n))
    if collective in ("gather", "allgather"):
        joined = torch.cat([tensor.reshape(1) if tensor.ndim == 0 else tensor for tensor in tensors])
        return [joined if collective == "allgather" or rank == root else None for rank in range(n)]
    if collective == "all_to_all":
        parts = [tensor.flatten().chunk(n) for tensor in tensors]
        return [torch.cat([parts[src][dst] for src in range(n)]).reshape(tensors[0].shape) for dst in range(n)]
    total = combined(tensors, op)
    if collective == "reduce_scatter":
        return list(cut(total, n))
    return [total if collective == "allreduce" or rank == root else None for rank in range(n)]


def assert_equal(results: list[Tensor | None], expectations: list[Tensor | None]) -> None:
    assert len(results) == len(expectations)
    for result, expectation in zip(results, expectations, strict=True):
        if expectation is None:
            assert result is None
        else:
            assert result is not None
            assert result.dtype == expectation.dtype
            assert result.shape == expectation.shape
            assert result.device == expectation.device
            assert torch.equal(result, expectation)


def fitting(schedule: Schedule, num_elements: int) -> int:
    """So many elements or more, that each chunk gets one, and in all_to_all each rank as many."""
    if schedule.collective == "all_to_all":
        return max(1, -(-num_elements // schedule.num_ranks)) * schedule.num_ranks
    return max(num_elements, schedule.num_chunks)


# ---- every algorithm


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
def test_every_algorithm_equals_torch(num_ranks: int, everything: bool) -> None:
    """Each algorithm in one floating dtype and in one drawn at random, or in all; from the first root and the last."""
    draw = random.Random(num_ranks)
    rooted = (build(*case, num_ranks, root=num_ranks - 1) for case in NAMES if case[0] in ROOTED)
    for schedule in (*schedules(num_ranks), *rooted):
        dtypes = DTYPES if everything else [torch.float32, draw.choice(DTYPES)]
        for size, dtype in itertools.product((0, 67), dtypes):
            tensors = small_numbers(num_ranks, (fitting(schedule, size),), dtype)
            assert_equal(run_local(schedule, tensors), expected(schedule, tensors))


def has_op(dtype: torch.dtype, op: str) -> bool:
    """Whether the op means something in this dtype."""
    return op not in ("min", "max") or not dtype.is_complex


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("op", OPS)
def test_every_op_equals_torch(op: str, everything: bool) -> None:
    """In every dtype, by an algorithm of each collective that adds, drawn at random, or by all of them."""
    draw = random.Random(op)
    adding = [schedule for schedule in schedules(4) if schedule.collective in SUMS]
    for dtype in DTYPES:
        if not has_op(dtype, op):
            for name in ("flat", "ring"):
                with pytest.raises(RuntimeError, match="complex"):
                    run_local(build("allreduce", name, 4), small_numbers(4, (8,), dtype), op)
            continue
        tensors = small_numbers(4, (37,), dtype, seed=3)
        if dtype.is_complex and op == "prod":
            tensors = [tensor.real.to(dtype) for tensor in tensors]
        chosen = adding
        if not everything:
            chosen = [draw.choice([schedule for schedule in adding if schedule.collective == name]) for name in SUMS]
        for schedule in chosen:
            assert_equal(run_local(schedule, tensors, op), expected(schedule, tensors, op))


@pytest.mark.parametrize("shape", [(6, 5), (12, 3), (4, 3, 5), (7, 9), (1, 60), (36,)])
def test_other_dimensions_are_kept(shape: tuple[int, ...]) -> None:
    for num_ranks in (1, 2, 3, 6):
        for schedule in schedules(num_ranks):
            tensors = small_numbers(num_ranks, shape, torch.float32)
            if schedule.collective == "all_to_all" and tensors[0].numel() % num_ranks:
                continue
            assert_equal(run_local(schedule, tensors), expected(schedule, tensors))


# ---- other properties of the results


def test_what_is_passed_stays_and_what_is_returned_is_new() -> None:
    for schedule in schedules(4):
        tensors = small_numbers(4, (64,), torch.float32)
        if schedule.collective in ("broadcast", "scatter"):  # which read only the root's
            tensors[1:] = torch.full((3, 64), 99.0)
        before = [tensor.clone() for tensor in tensors]
        results = [result for result in run_local(schedule, tensors) if result is not None]
        for result in results:
            result.fill_(77)
        assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True)), schedule
        assert len({result.data_ptr() for result in results}) == len(results)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_algorithm_on_a_gpu(dtype: torch.dtype) -> None:
    for num_ranks in (1, 3, 8):
        for schedule in schedules(num_ranks):
            tensors = small_numbers(num_ranks, (fitting(schedule, 67),), dtype, device="cuda")
            assert_equal(run_local(schedule, tensors), expected(schedule, tensors))
