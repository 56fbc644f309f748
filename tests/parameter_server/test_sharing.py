"""Tensors passed between real processes, and processes that train and count on the same memory."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rankscope import parameter_server
from rankscope.gradients import Work
from rankscope.parameter_server import count_together, measure_passing, train_alone, train_hogwild
from rankscope.parameter_server.sharing import PASSED_BY, Passing, _read
from rankscope.ranks import RankError

from ..small import CROSS, batch, mlp

pytestmark = pytest.mark.slow

WORK = Work(mlp(), *batch(40), CROSS)
SETTING: dict[str, Any] = {"num_batches": 12, "batch_size": 4, "learning_rate": 0.2, "seed": 3}
MEMORY = Path("/dev/shm")


def left_behind() -> list[str]:
    """Files of torch's in shared memory whose process has ended."""
    found = [re.match(r"torch_(\d+)_", name) for name in os.listdir(MEMORY)]
    return [one.string for one in found if one and not os.path.exists(f"/proc/{one[1]}/cwd")]


def test_all_ways_bring_the_tensor_and_nothing_stays_in_memory() -> None:
    sizes = (1, 5000, 2**20)
    before = set(left_behind()) if MEMORY.is_dir() else set()
    found = measure_passing(sizes, iterations=3)
    assert [(one.way, one.num_bytes) for one in found] == [(way, size) for way in PASSED_BY for size in sizes]
    assert all(len(one.seconds) == 3 and one.bytes_per_s > 0 for one in found)
    end = time.monotonic() + 30  # torch's own watchman deletes them
    while MEMORY.is_dir() and set(left_behind()) - before and time.monotonic() < end:
        time.sleep(0.1)
    assert not MEMORY.is_dir() or not set(left_behind()) - before


def test_no_folder_of_sockets_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    measure_passing([1], ["file_descriptor"], iterations=1)
    assert not list(tmp_path.glob("pymp-*"))


def test_a_tensor_that_arrives_wrong_is_caught() -> None:
    _read(torch.ones(9000, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="3 pages must have arrived as they were sent, got a sum of 2"):
        _read(torch.ones(9000, dtype=torch.uint8).index_fill_(0, torch.tensor([4096]), 0))


def test_one_process_without_a_lock_is_plain_sgd() -> None:
    run = train_hogwild(WORK, 1, **SETTING)
    np.testing.assert_array_equal(run.parameters, train_alone(WORK, 1, **SETTING))


def test_processes_without_a_lock_train_the_same_parameters() -> None:
    """A loss with a constant gradient: as long as nothing is lost, order does not matter; what is lost is missing."""
    inputs = torch.arange(48, dtype=torch.float64).reshape(8, 6)
    work = Work(torch.nn.Linear(6, 1, dtype=torch.float64), inputs, torch.zeros(8), lambda out, _: out.mean())
    alone, run = train_alone(work, 1, **SETTING), train_hogwild(work, 3, **SETTING)
    assert sorted(run.timeline.item.tolist()) == list(range(12))
    assert set(run.timeline.rank.tolist()) == {0, 1, 2}
    run.timeline.check()
    start = np.concatenate([one.detach().numpy().ravel() for one in work.module.parameters()])
    assert (run.parameters <= start).all()  # each step goes down, by any process
    assert (run.parameters >= alone - 1e-9).all()  # and no step counts twice


def test_counts_that_are_lost_and_not() -> None:
    in_step = count_together("in_step", 3, 20, 5)
    assert in_step.counts.tolist() == [20] * 5
    assert in_step.lost == pytest.approx(2 / 3)
    locked = count_together("locked", 3, 200, 5)
    assert (locked.counts.tolist(), locked.lost) == ([600] * 5, 0.0)
    free = count_together("free", 2, 500, 5)
    assert ((free.counts >= 1) & (free.counts <= 1000)).all()


def test_a_killed_process_is_named() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return CROSS(outputs, targets)

    with pytest.raises(RankError, match="rank 1 .*was killed by SIGKILL"):
        train_hogwild(Work(WORK.module, WORK.inputs, WORK.targets, loss), 2, **SETTING)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: measure_passing([0]), "num_bytes must be a whole number from 1 to 4294967296, got 0"),
    (lambda: measure_passing([]), "num_bytes must be 1 or more different whole numbers, got []"),
    (lambda: measure_passing(4096), "num_bytes must be a list of whole numbers, got 4096"),
    (lambda: measure_passing([1], "ring"), "ways must be one or more of 'pickle', 'file_descriptor'"),
    (lambda: measure_passing([1], ["post"]), "ways must be one of 'pickle', 'file_descriptor', 'file_system'"),
    (lambda: measure_passing([1], iterations=0), "iterations must be a whole number from 1"),
    (lambda: Passing("ring", 1, ()), "seconds must be those of at least one tensor, got ()"),
    (lambda: Passing("ring", 1, (0.0,)), "seconds must be a finite number above 0, got 0.0"),
    (lambda: count_together("fast"), "how must be one of 'free', 'in_step', 'locked', got 'fast'"),
    (lambda: count_together("free", 0), "num_processes must be a whole number from 1 to 64, got 0"),
    (lambda: count_together(num_counters=0), "num_counters must be a whole number from 1"),
    (lambda: train_hogwild(mlp()), "work must be a Work"),
    (lambda: train_hogwild(WORK, batch_size=41), "batch_size must be a whole number from 1 to 40, got 41"),
    (lambda: train_hogwild(WORK, learning_rate=-1), "learning_rate must be a finite number above 0, got -1"),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_wrong_input_is_one_clear_error(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize(
    "call",
    [lambda: measure_passing([1]), count_together, lambda: train_hogwild(WORK), lambda: parameter_server.train(WORK)],
    ids=["passing", "counting", "hogwild", "workers"],
)
def test_under_torchrun_nothing_is_started(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match="not under torchrun"):
        call()
