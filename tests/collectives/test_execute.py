"""`execute` on real Gloo groups, a thread or a process each rank, against `run_local` and against Gloo's own."""

from __future__ import annotations

import gc
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankscope.collectives import ALGORITHMS, Schedule, build, execute, run_local
from rankscope.ranks import RankError, in_threads, launch
from tests.extents import first_in_test
from tests.processes import NOT_HANGING_S

from .cases import NAMES, ROOTED, schedules
from .execute_job import check_with_the_default_group, numbers
from .test_local import DTYPES, OPS, assert_equal, fitting, has_op, small_numbers

pytestmark = pytest.mark.slow


def check_alike(cases: Iterable[tuple[Schedule, list[Tensor]]], op: str = "sum") -> None:
    """Each schedule on its ranks' tensors gives what `run_local` gives; all on one group of ranks."""
    cases = list(cases)

    def work(rank: int, group: Any) -> list[Tensor | None]:
        return [execute(schedule, tensors[rank].clone(), group, op) for schedule, tensors in cases]

    results_of_ranks = in_threads(cases[0][0].num_ranks, work)
    for place, (schedule, tensors) in enumerate(cases):
        assert_equal([results[place] for results in results_of_ranks], run_local(schedule, tensors, op))


# ---- every algorithm


def everything(num_ranks: int) -> Iterator[tuple[Schedule, list[Tensor]]]:
    """Every algorithm at some sizes and shapes, from two roots, on megabytes, with uneven runs and with none."""
    for seed, schedule in enumerate(schedules(num_ranks)):
        for size in (0, 1030):
            yield schedule, numbers(num_ranks, (fitting(schedule, size),), seed)
        for shape in ((), (12, 3), (4, 3, 5)):
            if math.prod(shape) >= schedule.num_chunks and fitting(schedule, math.prod(shape)) == math.prod(shape):
                yield schedule, numbers(num_ranks, shape)
    for collective, name in NAMES:
        if collective in ROOTED:
            yield build(collective, name, num_ranks, root=num_ranks - 1), numbers(num_ranks, (37,))
    for name in ALGORITHMS["allreduce"] if num_ranks == 4 else ():
        yield build("allreduce", name, 4), numbers(4, (1 << 17,))


@pytest.mark.parametrize("num_ranks", first_in_test(3, [1, 3, 4, 2, 5, 8]))
def test_every_algorithm_equals_run_local_bit_for_bit(num_ranks: int) -> None:
    check_alike(everything(num_ranks))


@pytest.mark.parametrize("op", OPS)
def test_every_op_and_dtype(op: str) -> None:
    names = [("allreduce", "halving_doubling"), ("reduce", "binomial"), ("reduce_scatter", "ring")]
    dtypes = [dtype for dtype in DTYPES if has_op(dtype, op)]
    check_alike(((build(*name, 4), small_numbers(4, (37,), dtype, seed=3)) for dtype in dtypes for name in names), op)


# ---- tensors that stay, and turns that ranks take


def test_allreduce_is_in_place_and_all_else_leaves_what_was_passed() -> None:
    cases = list(schedules(4))

    def work(rank: int, group: Any) -> None:
        for schedule in cases:
            tensor = torch.full((64,), float(rank), requires_grad=True)
            result = execute(schedule, tensor, group)
            if schedule.collective == "allreduce":
                assert result is tensor
                assert tensor.tolist() == [6.0] * 64
            else:
                assert tensor.tolist() == [float(rank)] * 64
                assert result is None or (result.data_ptr() != tensor.data_ptr() and not result.requires_grad)

    in_threads(4, work)


@pytest.mark.parametrize("num_turns", first_in_test(1, [40, 300]))
def test_again_and_again_and_two_at_a_time(num_turns: int) -> None:
    """Two schedules on one group take turns, among the group's own collectives, at ranks' own pace."""
    ring = build("allreduce", "segmented_ring", 4)
    bruck = build("all_to_all", "bruck", 4)

    def work(rank: int, group: Any) -> None:
        for turn in range(num_turns):
            if (turn + rank) % 67 == 0:
                time.sleep(0.002)
            assert execute(ring, torch.full((50,), float(turn)), group).tolist() == [4.0 * turn] * 50
            assert execute(bruck, torch.full((8,), float(rank)), group).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
            assert execute(ring, torch.ones(16), group, "max").tolist() == [1.0] * 16
            if turn % 50 == 0:
                total = torch.tensor([rank])
                group.allreduce([total]).wait()
                assert total.item() == 6

    in_threads(4, work)


@pytest.mark.parametrize("text", ["", "barrier pair ranks=5 chunks=2 ports=4\n"])
def test_a_barrier_keeps_everybody_until_all_are_there(text: str) -> None:
    """One of several chunks, too, on tensors of any size."""
    step = " ".join(f"{src}>{dst}:0-1+" for src in range(5) for dst in range(5) if src != dst)
    barrier = Schedule.from_text(f"{text}0: {step}\n") if text else build("barrier", "dissemination", 5)
    arrived: list[float] = []

    def work(rank: int, group: Any) -> float:
        execute(barrier, torch.zeros(rank), group)
        time.sleep(0.05 * (rank == 3))
        arrived.append(time.monotonic())
        assert execute(barrier, torch.zeros(rank), group) is None
        return time.monotonic()

    left = in_threads(5, work)
    assert min(left) >= max(arrived)


def num_large_memories() -> int:
    gc.collect()
    alive = [value.untyped_storage() for value in gc.get_objects() if type(value) is Tensor]
    return len({storage.data_ptr() for storage in alive if storage.nbytes() >= 200_000})


def test_calls_of_many_sizes_keep_the_memory_of_the_largest() -> None:
    schedule = build("scatter", "flat", 2)

    def work(rank: int, group: Any) -> Any:
        for extra in range(20):
            execute(schedule, torch.zeros(50_000 + 2 * extra), group)
        return group

    before = num_large_memories()
    groups = in_threads(2, work)
    assert num_large_memories() - before <= len(groups)


# ---- nothing is written where a message may be read


class SlowWork:
    """A send that is done late: until somebody has waited for it, nobody may touch its elements."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self.work, self.tensor, self.sent = work, tensor, tensor.clone()

    def wait(self) -> None:
        time.sleep(0.001)
        assert torch.equal(self.tensor, self.sent), "the elements changed while they were being sent"
        self.work.wait()


class SlowGroup:
    """A Gloo group whose sends read at the last moment: the data leaves when the wait for it ends."""

    def __init__(self, group: Any) -> None:
        self._group = group
        for name in ("recv", "allgather", "rank", "size", "name"):
            setattr(self, name, getattr(group, name))

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> SlowWork:
        return SlowWork(self._group.send([tensors[0].clone()], peer, tag), tensors[0])


@pytest.mark.parametrize("num_ranks", first_in_test(2, [3, 4, 2, 8]))
def test_nothing_is_written_where_a_message_is_still_read(num_ranks: int) -> None:
    cases = list(schedules(num_ranks))

    def work(rank: int, group: Any) -> None:
        slow = SlowGroup(group)
        for schedule in cases:
            execute(schedule, torch.arange(1, 1 + fitting(schedule, 64)) * (rank + 1), slow)

    in_threads(num_ranks, work)


@st.composite
def chains(draw: st.DrawFn) -> Schedule:
    """An allreduce in which each chunk is added up along the ranks in an order of its own, and passed back."""
    num_ranks = draw(st.integers(2, 4))
    orders = draw(st.lists(st.permutations(range(num_ranks)), min_size=1, max_size=5))
    num_hops = num_ranks - 1
    lines = [f"allreduce chains ranks={num_ranks} chunks={len(orders)} ports={num_ranks}"]
    for step in range(2 * num_hops):
        words = []
        for chunk, order in enumerate(orders):
            if step < num_hops:
                words.append(f"{order[step]}>{order[step + 1]}:{chunk}+")
            else:
                hop = 2 * num_hops - step
                words.append(f"{order[hop]}>{order[hop - 1]}:{chunk}=")
        lines.append(f"{step}: {' '.join(words)}")
    return Schedule.from_text("\n".join(lines))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(chains(), st.integers(5, 40))
def test_any_schedule_on_slow_ranks_equals_run_local(schedule: Schedule, num_elements: int) -> None:
    tensors = numbers(schedule.num_ranks, (num_elements,))

    def work(rank: int, group: Any) -> Tensor | None:
        return execute(schedule, tensors[rank].clone(), SlowGroup(group))

    assert_equal(in_threads(schedule.num_ranks, work), run_local(schedule, tensors))


def test_the_slow_group_sees_what_is_written_too_early() -> None:
    """The check above, seen to fail."""

    def work(rank: int, group: Any) -> None:
        tensor = torch.arange(8.0)
        if rank:
            group.recv([tensor], 0, 1).wait()
            return
        sending = SlowGroup(group).send([tensor], 1, 1)
        tensor[3] = 0
        with pytest.raises(AssertionError, match="changed while they were being sent"):
            sending.wait()
        sending.work.wait()

    in_threads(2, work)


# ---- ranks that do not agree, that die, that stay away


UNLIKE: list[dict[str, Any]] = [
    {"tensor": torch.ones(9)},
    {"tensor": torch.ones(8).double()},
    {"op": "max"},
    {"schedule": build("allreduce", "flat", 3)},
    {"schedule": build("allreduce", "ring", 3), "tensor": torch.ones(3)},
]


@pytest.mark.parametrize("change", UNLIKE)
def test_ranks_that_do_not_agree_all_say_so(change: dict[str, Any]) -> None:
    def work(rank: int, group: Any) -> None:
        passed = {"schedule": build("allreduce", "ring", 3), "tensor": torch.ones(8), "group": group}
        others = [0, 1] if rank == 2 else [2]
        with pytest.raises(ValueError, match=rf"ranks {re.escape(str(others))} do not have"):
            execute(**{**passed, **(change if rank == 2 else {})})
        assert execute(passed["schedule"], torch.ones(8), group).tolist() == [3.0] * 8, "the group is still of use"

    in_threads(3, work)


REJECTED: list[dict[str, Any]] = [
    {"tensor": torch.ones(2)},
    {"tensor": torch.ones(8, 2)[:, 0]},
    {"tensor": torch.tensor([1 + 2j] * 8).conj()},
    {"tensor": torch.ones(8, device="meta")},
    {"op": "mean"},
]


@pytest.mark.parametrize("change", REJECTED)
def test_a_rank_that_rejects_its_input_ends_the_others(change: dict[str, Any]) -> None:
    start = time.monotonic()

    def work(rank: int, group: Any) -> None:
        passed = {"schedule": build("allreduce", "ring", 3), "tensor": torch.ones(8), "group": group}
        execute(**{**passed, **(change if rank == 2 else {})})

    with pytest.raises(RankError, match="rank 2 failed: ValueError"):
        in_threads(3, work, timeout_s=NOT_HANGING_S)
    assert time.monotonic() - start < NOT_HANGING_S / 2, "they waited for the timeout"


def test_a_rank_that_stays_away_is_named_at_the_timeout() -> None:
    num_elements = 1 << 20
    schedule, over = build("allreduce", "recursive_doubling", 2), threading.Event()

    def work(rank: int, group: Any) -> float:
        execute(schedule, torch.ones(num_elements), group)
        if rank:
            over.wait(NOT_HANGING_S)
            return 0.0
        start = time.monotonic()
        try:
            with pytest.raises(RuntimeError, match="step 0: (sending to|receiving from) rank 1 failed: .*"):
                execute(schedule, torch.ones(num_elements), group)
        finally:
            over.set()
        return time.monotonic() - start

    assert in_threads(2, work, timeout_s=5.0)[0] > 4.9


def test_a_rank_that_does_not_begin_ends_the_others_at_the_timeout() -> None:
    over = threading.Event()

    def work(rank: int, group: Any) -> None:
        if rank == 0:
            with pytest.raises(RuntimeError, match="not all ranks began"):
                execute(build("allreduce", "ring", 2), torch.ones(8), group)
            over.set()
        else:
            assert over.wait(NOT_HANGING_S)

    in_threads(2, work, timeout_s=5.0)


# ---- real processes


def test_processes_of_launch_use_the_default_group() -> None:
    launch(check_with_the_default_group, 4, timeout_s=120)


@pytest.mark.oracle
def test_processes_under_torchrun(tmp_path: Path) -> None:
    """The same without `launch`; then a rank is killed, and the others report an error."""
    script = tmp_path / "ranks.py"
    script.write_text("""
import os, signal, time, torch, torch.distributed as dist
from datetime import timedelta
from rankscope.collectives import build, execute
from tests.collectives.execute_job import check_with_the_default_group
dist.init_process_group("gloo", timeout=timedelta(seconds=10_000))
rank = dist.get_rank()
check_with_the_default_group()
print("right", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends them too: let them hear of it first
dist.barrier()
if rank == 2:
    os.kill(os.getpid(), 9)
try:
    while True:
        execute(build("allreduce", "ring", 4), torch.ones(100_000))
except RuntimeError as error:
    assert "rank" in str(error)
    print("told", flush=True)
""")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(script)]
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root / 'lib'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=NOT_HANGING_S, env=env)
    assert done.stdout.count("right") == 4, done.stderr
    assert done.stdout.count("told") == 3, done.stderr
