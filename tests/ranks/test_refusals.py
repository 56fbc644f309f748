"""What `launch` and `in_threads` refuse: one error that names the argument."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankscope.ranks import in_threads, launch
from rankscope.ranks.errors import MachineError
from tests.processes import NOT_HANGING_S

from . import functions

BAD = [
    *({"num_ranks": number} for number in (0, 257, None, 1.5)),
    *({"timeout_s": seconds} for seconds in (0, float("nan"), "1")),
    {"backend": "tcp"},
]


@pytest.mark.parametrize("wrong", BAD)
def test_launch(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        launch(**{"fn": functions.rank, "num_ranks": 2, **wrong})


@pytest.mark.parametrize("wrong", [{"num_ranks": 0}, {"num_ranks": 1.5}, {"timeout_s": -1}])
def test_in_threads(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        in_threads(**{"work": lambda rank, group: rank, "num_ranks": 2, **wrong})


def test_more_nccl_ranks_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="num_ranks must be at most 2"):
        launch(functions.rank, 3, backend="nccl")


def test_a_deleted_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(MachineError, match="ranks cannot be started"):
        launch(functions.rank, 1)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_server_that_cannot_start_leaves_nothing(tmp_path, monkeypatch):
    """In a process of its own: the one of the tests has a server. The last one hangs up, but ends late."""
    late = tmp_path / "late"
    late.write_text("#!/bin/sh\nexec sleep 10000 <&-\n")
    late.chmod(0o700)
    (tmp_path / "place").mkdir()
    text = f"""
import os, sys, tempfile
from pathlib import Path
from rankscope.ranks import launch
from tests.ranks.test_refusals import open_descriptors
tempfile.tempdir = {str(tmp_path / "place")!r}
before = open_descriptors()
python = sys.executable
for wrong in ("/nothing/here", "/bin/false", {str(late)!r}):
    sys.executable = wrong
    for _ in range(3):
        try:
            launch(int, 2)
        except RuntimeError as error:
            print(type(error).__name__)
print(open_descriptors() - before <= 3, os.listdir(tempfile.tempdir))
sys.executable = python
print(launch(int, 2))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=NOT_HANGING_S)
    assert done.stdout == "MachineError\n" * 9 + "True []\n[0, 0]\n", done.stderr
