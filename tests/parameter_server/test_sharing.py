"""Tensors passed between real processes, and processes that count on the same memory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.parameter_server import count_together, measure_passing, train
from rankscope.parameter_server.sharing import PASSED_BY, _read

from ..processes import soon
from .test_parameter_server import WORK

pytestmark = pytest.mark.slow

MEMORY = Path("/dev/shm")


def left_behind() -> set[str]:
    """Files of torch's in shared memory whose process has ended."""
    found = [re.match(r"torch_(\d+)_", name) for name in (os.listdir(MEMORY) if MEMORY.is_dir() else ())]
    return {one.string for one in found if one and not os.path.exists(f"/proc/{one[1]}/cwd")}


def test_all_ways_bring_the_tensor_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    sizes, before = (1, 5000, 2**20), left_behind()
    found = measure_passing(sizes, iterations=3)
    assert [(one.way, one.num_bytes) for one in found] == [(way, size) for way in PASSED_BY for size in sizes]
    assert all(len(one.seconds) == 3 and one.bytes_per_s > 0 for one in found)
    assert not list(tmp_path.glob("pymp-*"))
    assert soon(lambda: not left_behind() - before)  # torch's own watchman deletes them


def test_a_tensor_that_arrives_wrong_is_caught() -> None:
    _read(torch.ones(9000, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="3 pages must have arrived as they were sent, got a sum of 2"):
        _read(torch.ones(9000, dtype=torch.uint8).index_fill_(0, torch.tensor([4096]), 0))


def test_counts_that_are_lost_and_not() -> None:
    in_step = count_together("in_step", 3, 20, 5)
    assert in_step.counts.tolist() == [20] * 5
    assert in_step.lost == pytest.approx(2 / 3)
    locked = count_together("locked", 3, 200, 5)
    assert (locked.counts.tolist(), locked.lost) == ([600] * 5, 0.0)
    free = count_together("free", 2, 500, 5)
    assert ((free.counts >= 1) & (free.counts <= 1000)).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: measure_passing([0]), "num_bytes must be a whole number from 1 to 4294967296, got 0"),
        (lambda: measure_passing([]), "num_bytes must be 1 or more different whole numbers, got []"),
        (lambda: measure_passing(4096), "num_bytes must be a list of whole numbers, got 4096"),
        (lambda: measure_passing([1], "ring"), "ways must be a list, got 'ring'"),
        (lambda: measure_passing([1], []), "ways must be at least one, got none"),
        (lambda: measure_passing([1], ["post"]), "ways must be one of 'pickle', 'file_descriptor', 'file_system'"),
        (lambda: measure_passing([1], iterations=0), "iterations must be a whole number from 1"),
        (lambda: count_together("fast"), "how must be one of 'free', 'in_step', 'locked', got 'fast'"),
        (lambda: count_together("free", 0), "num_processes must be a whole number from 1 to 64, got 0"),
        (lambda: count_together(num_counters=0), "num_counters must be a whole number from 1"),
    ],
)
def test_wrong_input_is_one_clear_error(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("call", [lambda: measure_passing([1]), count_together, lambda: train(WORK)])
def test_under_torchrun_nothing_is_started(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match="not under torchrun"):
        call()
