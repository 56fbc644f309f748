"""Part files for real: the same rows however they are loaded, bounded queues, and dead workers that are named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import forkserver, resource_tracker

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rankscope.pipeline import (
    AsyncPartDataset,
    PartError,
    SyncPartDataset,
    in_step,
    simulate_parts,
    write_parts,
)
from rankscope.pipeline.parts.files import load_part
from rankscope.ranks import in_threads
from rankscope.timeline import Recorder
from tests.processes import NOT_HANGING_S, alive, children, gone, server_pid, soon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
NUM_ROWS = 34


@pytest.fixture
def files(tmp_path):
    """Parts of 4 rows, and a last one of 2; the third is empty: rows 0 … 33."""
    rows = np.arange(NUM_ROWS)
    image = rows[:, None, None] * np.ones((2, 3), np.float32)
    files = write_parts(tmp_path / "parts", 4, x=rows, image=image)
    np.savez(tmp_path / "parts" / "part-00009.npz", x=rows[:0], image=image[:0])
    return [*files, tmp_path / "parts" / "part-00009.npz"]


def equal(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            assert batch[name].dtype == other[name].dtype
            assert torch.equal(batch[name], other[name])


def workers():
    """The processes that load parts; another test may have left the server of ranks, or multiprocessing's own."""
    others = {server_pid(), resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    return sorted({*children(os.getpid())} - others)


# ---- the same batches


def load_tensors(path):
    return {name: torch.from_numpy(rows) for name, rows in load_part(path).items()}


@pytest.mark.parametrize(
    ("queue_size", "num_loaders", "load"),
    [(1, 1, load_part), (2, 3, lambda path: load_part(path)), (4, 2, load_tensors)],
)
def test_loading_ahead_changes_no_bit_of_any_epoch(files, queue_size, num_loaders, load):
    now = SyncPartDataset(files, 3, 2, 1, 7, load=load)
    ahead = AsyncPartDataset(files, 3, 2, 1, 7, queue_size=queue_size, num_loaders=num_loaders, load=load)
    orders = []
    for epoch in (0, 1, 5):
        now.set_epoch(epoch)
        ahead.set_epoch(epoch)
        batches = list(DataLoader(ahead, batch_size=None))
        equal(batches, list(now))
        orders.append([batch["x"].tolist() for batch in batches])
    batches[0]["x"] += 1000  # a batch may be written to, and kept
    equal(list(ahead), list(now))
    assert orders[0] != orders[1] != orders[2]
    assert not workers()


@pytest.mark.parametrize("kind", [SyncPartDataset, AsyncPartDataset])
def test_drop_last_leaves_out_the_short_last_batch_of_each_part(files, kind):
    batches = [batch["x"].tolist() for batch in kind(files, 3, drop_last=True)]
    assert sorted(batches) == [[row, row + 1, row + 2] for row in range(0, 32, 4)]


@pytest.mark.parametrize(("queue_size", "num_loaders", "ahead"), [(2, 1, 3), (1, 3, 6)])
def test_loaders_run_ahead_as_far_as_is_said_and_no_further(files, tmp_path, queue_size, num_loaders, ahead):
    def load(path):
        (tmp_path / os.path.basename(path)).touch()
        return load_part(path)

    recorder = Recorder()
    options = {"queue_size": queue_size, "num_loaders": num_loaders, "recorder": recorder, "load": load}
    for taken, _ in enumerate(AsyncPartDataset(files[:-1], 100, **options), start=1):
        num_expected = min(taken + ahead, 9)
        assert soon(lambda: len([*tmp_path.glob("*.npz")]) >= num_expected)  # noqa: B023
        time.sleep(0.02)  # in which no other may follow
        assert len([*tmp_path.glob("*.npz")]) == num_expected
    loads = recorder.timeline().select(kind="load")
    assert sorted(span.item for span in loads if span.lane == f"loader {span.item % num_loaders}") == list(range(9))


# ---- errors and deaths


@pytest.mark.parametrize(
    ("kind", "error"), [(SyncPartDataset, OSError), (AsyncPartDataset, OSError), (AsyncPartDataset, SystemExit)]
)
def test_an_error_while_loading_comes_in_its_turn_with_file_and_cause(files, kind, error):
    second = SyncPartDataset(files[:-1], 100).shard[1]

    def load(path):
        if path == second:
            raise error("the disk is gone")
        return load_part(path)

    batches = iter(kind(files[:-1], 100, load=load))
    next(batches)
    with pytest.raises(PartError, match=rf"{re.escape(second)} .*the disk is gone") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_worker_that_is_stopped_or_killed_is_named_with_the_file_that_did_not_arrive(files, number):
    second = SyncPartDataset(files[:-1], 100).shard[1]

    def load(path):
        if path == second:
            os.kill(os.getpid(), number)
        return load_part(path)

    batches = iter(AsyncPartDataset(files[:-1], 100, load=load, timeout_s=5))
    next(batches)
    (pid,) = workers()
    with pytest.raises(PartError, match=rf"{re.escape(second)} .*{pid}.*(5 s|SIGKILL)"):
        next(batches)
    assert gone([pid])


SCRIPT = """
import os, signal, sys, time
from rankscope.pipeline import AsyncPartDataset, write_parts

files = write_parts(sys.argv[1], 1, x=range(4))

def load(path):
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

batches = iter(AsyncPartDataset(files, 1, load=load))
if sys.argv[2] == "exit":
    import threading
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
next(batches)
"""


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_no_stopped_worker_outlives_its_trainer_and_none_delays_its_exit(tmp_path, ending):
    command = [sys.executable, "-c", SCRIPT, tmp_path / "parts", ending]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trainer:
        pid = int(trainer.stdout.readline())
        assert alive(pid)
        if ending == "kill":
            trainer.kill()
        trainer.wait(NOT_HANGING_S)
        assert gone([pid])


def test_workers_end_with_their_iteration(files):
    dataset = AsyncPartDataset(files, 3)
    good = list(SyncPartDataset(files, 3))
    pairs = list(zip(dataset, dataset, strict=True))  # two at once do not mix
    equal([one for one, _ in pairs], good)
    equal([other for _, other in pairs], good)
    batches = iter(dataset)
    next(batches)
    assert len(workers()) == 1
    del batches
    assert gone(workers())


# ---- lock-step


@pytest.mark.parametrize(("kind", "num_files"), [(SyncPartDataset, 10), (AsyncPartDataset, 3)])
def test_uneven_trainers_take_the_same_steps_and_read_all(files, kind, num_files):
    def run(rank, group):
        batches = in_step(kind(files[:num_files], 2, 4, rank), group)
        return [None if batch is None else batch["x"].tolist() for batch in batches]

    ranks = in_threads(4, run)
    (num_steps,) = {len(batches) for batches in ranks}
    for rank, batches in enumerate(ranks):
        own = [batch["x"].tolist() for batch in SyncPartDataset(files[:num_files], 2, 4, rank)]
        assert batches == own + [None] * (num_steps - len(own))
    assert any(batches[-1] is not None for batches in ranks)


def test_a_batch_that_is_none_does_not_end_the_steps():
    def run(rank, group):
        return list(in_step([None, 1, None][: 3 - rank], group))

    assert in_threads(2, run) == [[None, 1, None], [None, 1, None]]


@pytest.mark.parametrize(("kind", "setting"), [(SyncPartDataset, {}), (AsyncPartDataset, {"queue_size": 2})])
def test_a_run_has_the_spans_of_its_twin_and_takes_as_long_or_longer(tmp_path, kind, setting):
    """Sleeps are never shorter. How much longer is up to the machine: profiles/part_files.json shows a quiet one."""
    files = write_parts(tmp_path, 3, x=np.arange(26))
    load_s, step_s = 0.2, 0.05
    steps = [[len(load_part(file)["x"]) for file in SyncPartDataset(files, 1, 2, rank).shard] for rank in range(2)]
    expected = simulate_parts(load_s, steps, step_s, **setting)

    def load(path):
        time.sleep(load_s)
        return load_part(path)

    def run(rank, group, recorder):
        record = recorder.for_rank(rank)
        dataset = kind(files, 1, 2, rank, load=load, recorder=recorder, **setting)
        for step, batch in enumerate(in_step(dataset, group, record)):
            if batch is not None:
                with record.span("trainer", "step", step):
                    time.sleep(step_s)

    recorder = Recorder()
    in_threads(2, partial(run, recorder=recorder))
    timeline = recorder.timeline()
    timeline.check()
    assert sorted(span[:4] for span in timeline) == sorted(span[:4] for span in expected)
    assert timeline.makespan_s > expected.makespan_s - 1e-6
