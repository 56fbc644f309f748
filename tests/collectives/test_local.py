"""`run_local` against torch's own arithmetic and indexing, and against a real Gloo process group."""

from __future__ import annotations

import functools
import itertools
import math
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankscope.collectives import Schedule, build, execute, run_local
from rankscope.ranks import in_threads

from ..extents import SAMPLE_OR_EVERYTHING
from .cases import NAMES, ROOTED, WITH_COUNTS, built, schedules

Tensors = list[Tensor]

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
WHOLES = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
DTYPES = [*FLOATS, *WHOLES, torch.complex64, torch.bool]
OPS = ("sum", "avg", "min", "max", "prod")
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
    total = stacked.sum(0, dtype=stacked.dtype)
    return total / len(tensors) if op == "avg" else total


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
    if op == "avg":
        return dtype.is_floating_point or dtype.is_complex
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
                with pytest.raises(ValueError, match=f"op '{op}' needs a .*, got {dtype}"):
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


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(WITH_COUNTS), st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
def test_any_counts(case: tuple[str, str], counts: list[int], data: st.DataObject) -> None:
    n = len(counts)
    root = data.draw(st.integers(0, n - 1))
    rooted: dict[str, Any] = {"root": root} if case[0] in ROOTED else {}
    schedule = build(*case, n, counts=counts, **rooted)
    numbers = torch.arange(sum(counts))
    parts = list(numbers.split(counts))
    if case[0] == "scatter":
        others = torch.full_like(numbers, -1)
        assert_equal(run_local(schedule, [numbers if rank == root else others for rank in range(n)]), parts)
    else:
        whole = [numbers if case[0] == "allgather" or rank == root else None for rank in range(n)]
        assert_equal(run_local(schedule, parts), whole)


TOKENS = [[2, 0, 1], [0, 0, 5], [3, 1, 0]]  # what each rank has for each


@pytest.mark.parametrize("row", [(), (4,)])
def test_all_to_all_takes_counts_as_torch_does(row: tuple[int, ...]) -> None:
    tensors = [
        torch.arange(sum(own) * math.prod(row)).reshape(-1, *row) + 100 * rank for rank, own in enumerate(TOKENS)
    ]
    parts = [list(tensor.split(own)) for tensor, own in zip(tensors, TOKENS, strict=True)]
    counts = [[count * math.prod(row) for count in own] for own in TOKENS]
    results = run_local(build("all_to_all", "pairwise", 3, counts=counts), tensors)
    assert_equal(results, [torch.cat([own[rank] for own in parts]) for rank in range(3)])


def test_a_result_has_whole_rows_if_each_run_does() -> None:
    """Each rank's run has two chunks here, which end within rows; in all_to_all each chunk is a run."""
    text = "reduce_scatter mine ranks=2 chunks=4\n0: 0>1:2+ 1>0:0+\n1: 0>1:3+ 1>0:1+\n"
    results = run_local(Schedule.from_text(text), [torch.arange(6).reshape(2, 3)] * 2)
    assert [result is not None and result.tolist() for result in results] == [[[0, 2, 4]], [[6, 8, 10]]]
    uneven = build("all_to_all", "pairwise", 2, counts=[[1, 1], [3, 1]])
    empty = run_local(build("allgather", "ring", 2, counts=[0, 0]), [torch.zeros(3, 0)] * 2)
    assert [result is not None and result.shape for result in empty] == [(0,), (0,)]
    of_rank_0, _ = run_local(uneven, [torch.arange(2).reshape(1, 2), torch.arange(10, 14).reshape(2, 2)])
    assert of_rank_0 is not None
    assert of_rank_0.tolist() == [0, 10, 11, 12]


@pytest.mark.parametrize("shape", [(6, 5), (12, 3), (4, 3, 5), (7, 9), (1, 60), (36,)])
def test_other_dimensions_are_kept(shape: tuple[int, ...]) -> None:
    for num_ranks in (1, 2, 3, 6):
        for schedule in schedules(num_ranks):
            tensors = small_numbers(num_ranks, shape, torch.float32)
            if schedule.collective == "all_to_all" and tensors[0].numel() % num_ranks:
                continue
            assert_equal(run_local(schedule, tensors), expected(schedule, tensors))


def test_counts_of_whole_rows_keep_the_other_dimensions() -> None:
    rows = torch.arange(12).reshape(4, 3)
    scatter = build("scatter", "binomial", 3, counts=[3, 0, 9])
    assert_equal(run_local(scatter, [rows] * 3), [rows[:1], rows[1:1], rows[1:]])
    for gather in (build("gather", "binomial", 3, counts=[3, 0, 9]), build("allgather", "ring", 3, counts=[3, 0, 9])):
        assert_equal(run_local(gather, [rows[:1], rows[1:1], rows[1:]])[:1], [rows])
    uneven = build("scatter", "flat", 2, counts=[5, 7])
    assert_equal(run_local(uneven, [rows] * 2), [rows.flatten()[:5], rows.flatten()[5:]])


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


def test_whole_numbers_wrap_round_bools_add_up_and_nan_comes_through() -> None:
    hundreds = [torch.tensor([100], dtype=torch.int8)] * 3
    assert_equal(run_local(build("allreduce", "flat", 3), hundreds), [torch.tensor([44], dtype=torch.int8)] * 3)
    bools = [torch.tensor([True, False])] * 2
    assert_equal(run_local(build("allreduce", "ring", 2), bools), [bools[0] + bools[1]] * 2)

    tensors = [torch.tensor([1.0, float("nan"), float("inf")]), torch.tensor([float("inf"), 1.0, 5.0])]
    for op, right in (("sum", tensors[0] + tensors[1]), ("max", torch.maximum(*tensors))):
        result = run_local(build("allreduce", "ring", 2), tensors, op)[1]
        assert torch.equal(torch.nan_to_num(result, 9.0), torch.nan_to_num(right, 9.0))


def test_a_real_process_group_says_the_same() -> None:
    """Gloo, for what Gloo itself offers."""
    n, root = 3, 1
    tensors = small_numbers(n, (48,), torch.float32, seed=5)

    def run_gloo(rank: int, group: Any) -> dict[str, Tensor | None]:
        tensor = tensors[rank].clone()
        parts = [torch.empty(48) for _ in range(n)]
        results = {
            "scatter": torch.empty(16),
            "all_to_all": torch.empty(48),
            "broadcast": tensor.clone(),
            "allreduce": tensor.clone(),
        }
        group.allgather([parts], [tensor]).wait()
        group.alltoall_base(results["all_to_all"], tensor, [], []).wait()
        group.allreduce([results["allreduce"]]).wait()
        scatter = dist.ScatterOptions()
        scatter.rootRank = root
        group.scatter([results["scatter"]], [list(tensor.chunk(n))] if rank == root else [], scatter).wait()
        broadcast = dist.BroadcastOptions()
        broadcast.rootRank = root
        group.broadcast([results["broadcast"]], broadcast).wait()
        return {**results, "allgather": torch.cat(parts)}

    results_of_ranks = in_threads(n, run_gloo)
    for collective, name in NAMES:
        rooted = {"root": root} if collective in ROOTED else {}
        schedule = built(collective, name, n, **rooted)
        if collective in results_of_ranks[0] and schedule is not None:
            assert_equal(run_local(schedule, tensors), [of_rank[collective] for of_rank in results_of_ranks])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_algorithm_on_a_gpu(dtype: torch.dtype) -> None:
    for num_ranks in (1, 3, 8):
        for schedule in schedules(num_ranks):
            tensors = small_numbers(num_ranks, (fitting(schedule, 67),), dtype, device="cuda")
            assert_equal(run_local(schedule, tensors), expected(schedule, tensors))


def test_a_result_of_an_uneven_all_to_all_has_the_shape_that_its_rank_passed_if_it_fits() -> None:
    """As `execute`, which knows the tensor of its own rank only."""
    uneven = build("all_to_all", "pairwise", 2, counts=[[1, 3], [1, 7]])
    tensors = [torch.arange(4).reshape(2, 2), torch.arange(10, 18).reshape(4, 2)]
    results = run_local(uneven, tensors)
    assert [result is not None and result.tolist() for result in results] == [[0, 10], [1, 2, 3, *range(11, 18)]]
    swapped = build("all_to_all", "pairwise", 2, counts=[[1, 3], [7, 1]])
    results = run_local(swapped, tensors)
    assert [result is not None and tuple(result.shape) for result in results] == [(8,), (4,)]
    executed = in_threads(2, lambda rank, group: execute(swapped, tensors[rank], group))
    assert_equal(results, executed)
