"""Part files for real: the same rows however they are loaded, bounded queues, and dead workers that are named."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
import time
import weakref
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rankscope.parts import datasets
from rankscope.parts.datasets import AsyncPartDataset, SyncPartDataset, in_step
from rankscope.parts.files import DelayedLoad, PartError, load_part, write_parts
from rankscope.parts.simulate import idle_share, simulate
from torch.utils.data import DataLoader

from rankscope.pipeline.service import Lognormal
from rankscope.ranks import in_threads
from rankscope.timeline import Recorder

from ..processes import gone, soon
from . import loads as part_loads

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


@pytest.fixture
def files(tmp_path):
    """Ten parts of uneven sizes, one of them empty: rows 0 … 33."""
    rows = np.arange(34)
    sizes = [3, 5, 0, 4, 7, 1, 2, 6, 4, 2]
    return write_parts(tmp_path / "parts", sizes, x=rows, image=rows[:, None, None] * np.ones((2, 3), np.float32))


def equal(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            assert batch[name].dtype == other[name].dtype
            assert torch.equal(batch[name], other[name])


# ---- files


def test_parts_hold_every_row_once_in_order(tmp_path):
    rows = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    cases = [(4, [4, 4, 2]), (5, [5, 5]), (99, [10]), ([1, 0, 9], [1, 0, 9]), (np.array([9, 1]), [9, 1])]
    for number, (rows_per_part, sizes) in enumerate(cases):
        files = write_parts(tmp_path / str(number), rows_per_part, rows=rows, label=torch.arange(10))
        assert [file.name for file in files] == [f"part-{part:05d}.npz" for part in range(len(sizes))]
        parts = [load_part(file) for file in files]
        assert [len(part["rows"]) for part in parts] == sizes
        np.testing.assert_array_equal(np.concatenate([part["rows"] for part in parts]), rows)
        assert np.concatenate([part["label"] for part in parts]).tolist() == list(range(10))
        assert sorted(path.name for path in (tmp_path / str(number)).iterdir()) == [file.name for file in files]


def test_parts_of_two_data_sets_are_not_mixed_and_a_pickle_is_not_read(tmp_path):
    np.savez(tmp_path / "part-00000.npz", x=np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="folder"):
        write_parts(tmp_path, 2, x=[1, 2, 3])
    with pytest.raises(ValueError, match="pickle"):
        load_part(tmp_path / "part-00000.npz")


def test_a_delay_depends_on_seed_and_part_alone(files):
    load = DelayedLoad(Lognormal(0.01, cv=1.0), seed=3)
    delays = [load.delay_s(file) for file in files]
    assert len(set(delays)) == len(files)
    again = pickle.loads(pickle.dumps(load))
    assert [again.delay_s(file.name) for file in reversed(files)] == delays[::-1]
    assert DelayedLoad(Lognormal(0.01, cv=1.0), seed=4).delay_s(files[0]) != delays[0]
    start = time.perf_counter()
    assert load(os.fspath(files[4]))["x"].tolist() == load_part(files[4])["x"].tolist()
    assert time.perf_counter() - start >= delays[4]


DATE = "data_20240131120000.npz"


def test_the_number_in_a_name_may_be_a_date():
    assert DelayedLoad(0.1).delay_s(DATE) == 0.1
    assert DelayedLoad(lambda number: number / 1e15).delay_s(DATE) == 20240131120000 / 1e15


# ---- the same batches


@pytest.mark.parametrize("num_trainers", [1, 4, 12])
def test_every_row_is_read_once_and_batches_stay_in_their_part(files, num_trainers):
    sizes = [len(load_part(file)["x"]) for file in files]
    part_of = np.repeat(np.arange(len(files)), sizes)
    seen = []
    for trainer in range(num_trainers):
        for batch in SyncPartDataset(files, 3, num_trainers, trainer):
            rows = batch["x"].tolist()
            assert len(set(part_of[rows])) == 1
            assert 1 <= len(rows) <= 3
            assert torch.equal(batch["image"][:, 1, 2], batch["x"].float())
            seen += rows
    assert sorted(seen) == list(range(34))


@pytest.mark.parametrize(
    ("queue_size", "num_loaders", "drop_last", "load"),
    [(1, 1, False, load_part), (2, 3, True, load_part), (4, 2, False, part_loads.with_tensors)],
)
def test_loading_ahead_changes_no_bit_of_any_epoch(files, queue_size, num_loaders, drop_last, load):
    arguments = {"drop_last": drop_last, "load": load}
    now = SyncPartDataset(files, 3, 2, 1, 7, **arguments)
    ahead = AsyncPartDataset(files, 3, 2, 1, 7, queue_size=queue_size, num_loaders=num_loaders, **arguments)
    orders = []
    with ahead:
        pids = workers()
        assert len(pids) == num_loaders
        for epoch in (0, 1, 5):
            now.set_epoch(epoch)
            ahead.set_epoch(epoch)
            batches = list(DataLoader(ahead, batch_size=None))
            equal(batches, list(now))
            orders.append([batch["x"].tolist() for batch in batches])
            assert workers() == pids  # the same processes, epoch after epoch
    assert orders[0] != orders[1] != orders[2]
    assert all(len(rows) == 3 for rows in orders[0]) == drop_last
    assert gone(pids)


def workers():
    """The processes that load parts."""
    return sorted(process.pid for process in multiprocessing.active_children())


def test_a_data_loader_worker_is_told_that_it_is_the_wrong_place(files, monkeypatch):
    monkeypatch.setattr(datasets, "get_worker_info", lambda: "that of worker 0")
    for dataset in (SyncPartDataset(files, 3), AsyncPartDataset(files, 3)):
        with pytest.raises(RuntimeError, match="num_workers=0"):
            list(DataLoader(dataset, batch_size=None))


def test_batches_may_be_kept_and_written_to(files):
    with AsyncPartDataset(files, 3, queue_size=1) as dataset:
        kept = list(dataset)
        for batch in kept:
            batch["x"] += 1000
        equal(list(dataset), list(SyncPartDataset(files, 3)))
        assert sorted(x for batch in kept for x in batch["x"].tolist()) == list(range(1000, 1034))
    assert sum(int(batch["x"].sum()) for batch in kept) == 34 * 1000 + 33 * 17  # still there after the end


# ---- the queue


@pytest.mark.parametrize(("queue_size", "num_loaders", "ahead"), [(1, 1, 2), (2, 1, 3), (1, 3, 6), (4, 2, 6)])
def test_loaders_run_ahead_as_far_as_is_said_and_no_further(files, queue_size, num_loaders, ahead):
    recorder = Recorder()
    dataset = AsyncPartDataset(files, 100, queue_size=queue_size, num_loaders=num_loaders, recorder=recorder)
    for taken, _ in enumerate(dataset, start=1):  # a part is a batch, except the empty one
        taken += taken > dataset.shard.index(os.fspath(files[2]))
        expected = list(range(min(taken + ahead, len(files))))
        assert soon(lambda: len(recorder.timeline().select(kind="load")) >= len(expected))  # noqa: B023
        time.sleep(0.02)  # in which no other may follow
        assert sorted(recorder.timeline().select(kind="load").item.tolist()) == expected
    dataset.close()
    timeline = recorder.timeline()
    timeline.check()
    loads = timeline.select(kind="load")
    assert all(span.lane == f"loader {span.item % num_loaders}" for span in loads)
    assert timeline.select(lane="trainer", kind="wait").item.tolist() == list(range(len(files)))


# ---- errors and deaths


@pytest.mark.parametrize("kind", [SyncPartDataset, AsyncPartDataset])
def test_an_error_while_loading_comes_in_its_turn_with_file_and_cause(files, kind):
    dataset = kind(files, 3, load=part_loads.fail_on_two)
    good = list(SyncPartDataset(files, 3))
    before = dataset.shard.index(os.fspath(files[2]))
    num_batches = sum(-(-len(load_part(file)["x"]) // 3) for file in dataset.shard[:before])
    seen = []
    with pytest.raises(PartError, match="part-00002.npz .*the disk is gone") as caught:
        seen.extend(dataset)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == 5
    equal(seen, good[:num_batches])


def test_an_error_that_does_not_survive_a_pickle_still_says_what_it_said(files):
    with pytest.raises(PartError, match="part-.*: Awkward: this and that") as caught:
        list(AsyncPartDataset(files, 3, load=part_loads.fail_awkwardly))
    assert "fail_awkwardly" in "".join(caught.value.__cause__.__notes__)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker gets its load by pickle")
def test_a_load_may_be_of_a_notebook(files):
    equal(list(AsyncPartDataset(files, 3, load=lambda path: load_part(path))), list(SyncPartDataset(files, 3)))


def stuck_after_one(files, **options):
    """A dataset of which all parts but the first take ten minutes to load."""
    first = SyncPartDataset(files, 100).shard[0]
    return AsyncPartDataset(files, 100, load=partial(part_loads.hang_but_on, first), **options)


class CyclicGarbage:
    """What only the garbage collector finalizes. It leaves a file named after the process that does."""

    def __init__(self, folder):
        self.itself = self
        self.folder = folder

    def __del__(self):
        (self.folder / str(os.getpid())).touch()


def load_after_collecting(file):
    gc.collect()
    return load_part(file)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_workers_do_not_finalize_the_garbage_of_the_trainer(files, tmp_path):
    """Such a finalizer may raise, and on Python 3.11 one that is formatted broke `ast.literal_eval` of a header."""
    finalized = tmp_path / "finalized"
    finalized.mkdir()
    gc.disable()  # so that the garbage is still there when the workers are forked
    try:
        CyclicGarbage(finalized)
        equal(
            list(AsyncPartDataset(files, 3, load=load_after_collecting, num_loaders=2)),
            list(SyncPartDataset(files, 3)),
        )
        assert list(finalized.iterdir()) == []
    finally:
        gc.enable()
    gc.collect()
    assert [file.name for file in finalized.iterdir()] == [str(os.getpid())]


def test_a_killed_worker_is_named_with_the_file_that_did_not_arrive(files):
    dataset = stuck_after_one(files)
    batches = iter(dataset)
    next(batches)
    (pid,) = workers()
    with pytest.raises(PartError, match=rf"{re.escape(dataset.shard[1])} .*{pid}"):
        kill_while_waited_for(pid, batches)
    assert gone([pid])
    with AsyncPartDataset(files, 3) as anew:
        equal(list(anew), list(SyncPartDataset(files, 3)))


def kill_while_waited_for(pid, batches):
    timer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    timer.start()
    next(batches)


def test_a_part_that_takes_too_long_is_named(files):
    dataset = stuck_after_one(files, timeout_s=0.5)
    batches = iter(dataset)
    next(batches)
    with pytest.raises(PartError, match=rf"{re.escape(dataset.shard[1])} .* 0.5 s"):
        next(batches)


# ---- the end, however it comes


def test_a_dataset_that_is_collected_takes_its_workers_along(files):
    dataset = AsyncPartDataset(files, 3)
    list(dataset)
    pids, watch = workers(), weakref.ref(dataset)
    assert len(pids) == 1
    del dataset
    gc.collect()
    assert watch() is None
    assert gone(pids)


def test_an_iteration_that_is_not_finished_ends_its_workers(files):
    batches = iter(AsyncPartDataset(files, 3, num_loaders=2))
    next(batches)
    pids = workers()
    assert len(pids) == 2
    batches.close()
    assert gone(pids)


def test_two_iterations_at_once_do_not_mix(files):
    dataset = AsyncPartDataset(files, 3)
    good = list(SyncPartDataset(files, 3))
    pairs = list(zip(dataset, dataset, strict=True))
    equal([one for one, _ in pairs], good)
    equal([other for _, other in pairs], good)
    dataset.close()


def test_a_pickled_dataset_starts_workers_of_its_own(files):
    with AsyncPartDataset(files, 3) as dataset:
        before = workers()
        with pickle.loads(pickle.dumps(dataset)) as copy:
            assert len(workers()) == 2 > len(before)
            equal(list(copy), list(dataset))
        assert workers() == before


# ---- lock-step


@pytest.mark.parametrize("kind", [SyncPartDataset, AsyncPartDataset])
@pytest.mark.parametrize("num_files", [10, 3])
def test_uneven_trainers_take_the_same_steps_and_read_all(files, kind, num_files):
    shards = files[:num_files]

    def run(rank, group):
        dataset = kind(shards, 2, 4, rank)
        batches = [None if batch is None else batch["x"].tolist() for batch in in_step(dataset, group)]
        del dataset
        return batches

    ranks = in_threads(4, run)
    steps = {len(batches) for batches in ranks}
    assert len(steps) == 1
    for rank, batches in enumerate(ranks):
        own = [batch["x"].tolist() for batch in SyncPartDataset(shards, 2, 4, rank)]
        assert batches == own + [None] * (steps.copy().pop() - len(own))
    assert any(batches[-1] is not None for batches in ranks)
    num_rows = sum(len(load_part(file)["x"]) for file in shards)
    assert sorted(row for batches in ranks for batch in batches if batch for row in batch) == list(range(num_rows))


def test_the_default_group_is_the_one_that_is_meant_without_another():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert list(in_step([1, 2])) == [1, 2]
    finally:
        dist.destroy_process_group()


# ---- measured and simulated


def train(files, load, step_s, num_trainers, setting):
    """The spans of lock-step trainers whose steps sleep."""
    recorder = Recorder()

    def run(rank, group):
        record = recorder.for_rank(rank)
        kind = AsyncPartDataset if setting else SyncPartDataset
        dataset = kind(files, 1, num_trainers, rank, load=load, recorder=recorder, **setting)
        with dataset if setting else contextlib.nullcontext():
            group.allreduce([torch.zeros(1)]).wait()
            for step, batch in enumerate(in_step(dataset, group, record)):
                if batch is not None:
                    with record.span("trainer", "step", step):
                        time.sleep(step_s)

    in_threads(num_trainers, run)
    return recorder.timeline()


def test_a_run_has_the_spans_of_its_twin_and_takes_about_as_long(tmp_path):
    """Never less, since sleeps are never shorter; about as long at the best of some, others may use the machine."""
    sizes = [3, 4, 2, 4, 3, 3, 4, 2, 3]
    files = write_parts(tmp_path, sizes, x=np.arange(sum(sizes)))
    load, step_s = DelayedLoad(Lognormal(0.24, cv=1.0), seed=1), 0.06
    shards = [SyncPartDataset(files, 1, 4, rank).shard for rank in range(4)]
    steps = [[len(load_part(file)["x"]) for file in shard] for shard in shards]
    loads = [[load.delay_s(file) for file in shard] for shard in shards]
    idle = {}
    for name, setting in {"sync": {}, "async": {"queue_size": 2, "num_loaders": 1}}.items():
        expected = simulate(loads, steps, step_s, **setting)
        for _ in range(8):
            timeline = train(files, load, step_s, 4, setting)
            timeline.check()
            assert sorted(span[:4] for span in timeline) == sorted(span[:4] for span in expected)
            assert timeline.makespan_s > expected.makespan_s - 1e-6
            idle[name] = idle_share(timeline)
            if timeline.makespan_s < 1.25 * expected.makespan_s:
                break
        assert timeline.makespan_s < 1.25 * expected.makespan_s
        assert abs(idle_share(expected) - idle[name]) < 0.25
    assert idle["sync"] > idle["async"]
