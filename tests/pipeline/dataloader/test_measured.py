"""A recorded DataLoader gives what the plain one gives, however it is made, and its timeline tells the truth."""

from __future__ import annotations

import gc
import time
from multiprocessing import Queue

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from rankscope.pipeline import record_dataloader
from rankscope.pipeline.dataloader import fetched
from rankscope.pipeline.dataloader.fetched import UNKNOWN
from rankscope.timeline import Recorder
from tests.extents import first_in_test
from tests.processes import NOT_HANGING_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(autouse=True)
def _no_garbage():
    """Iterators of torch that are collected in another test's worker, in the middle of an import say, break that."""
    yield
    gc.collect()


class Augmented(Dataset):
    """Samples that are random, each in its way: from torch's generator of the process."""

    def __init__(self, size=11):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        info = get_worker_info()
        assert info is None or info.dataset is self
        return index, torch.rand(3)


class Many(Augmented):
    def __getitems__(self, indices):
        return [(index, torch.zeros(3)) for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, each = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 11, each))


class Waiting(Augmented):
    def __getitem__(self, index):
        time.sleep(0.02 if index % 4 == 0 else 0.005)
        return index


class Failing(Augmented):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("no sample 5")
        return index


class Divided(IterableDataset):
    """Each worker reads a range that worker_init_fn gives it, as torch's documents do."""

    numbers = range(11)

    def __iter__(self):
        return iter(self.numbers)


def divide(worker):
    get_worker_info().dataset.numbers = range(6 * worker, 6 + 5 * worker)


class Pinnable:
    def __init__(self, index):
        self.index, self.pinned = index, False

    def pin_memory(self):
        self.pinned = True
        return self


class Moving(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield "moved", batch


def collate_as_list(samples):
    return [sample[0] for sample in samples]


def pinnable(samples):
    return Pinnable(samples[0][0])


def init_worker(worker):
    torch.manual_seed(100 + worker)


def plain(value):
    """Something to compare by: tensors as lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def epochs(loader, count=2):
    torch.manual_seed(7)
    return [plain(list(loader)) for _ in range(count)]


WAYS = {
    "persistent": lambda: DataLoader(Augmented(), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True),
    "collate_fn and worker_init_fn": lambda: DataLoader(
        Augmented(), batch_size=2, num_workers=2, collate_fn=collate_as_list, worker_init_fn=init_worker
    ),
    "subclass": lambda: Moving(Augmented(), batch_size=2, num_workers=1),
    "no batches": lambda: DataLoader(Augmented(), batch_size=None, num_workers=1),
    "getitems": lambda: DataLoader(Many(), batch_size=4, num_workers=1),
    "iterable": lambda: DataLoader(Stream(), batch_size=2),
    "iterable, persistent": lambda: DataLoader(Stream(), batch_size=2, num_workers=2, persistent_workers=True),
    "spawn": lambda: few("spawn"),
    "divided by worker_init_fn": lambda: DataLoader(Divided(), num_workers=2, worker_init_fn=divide),
}


def few(context):
    return DataLoader(Augmented(4), batch_size=2, num_workers=1, multiprocessing_context=context)


@pytest.mark.parametrize("way", first_in_test(6, list(WAYS)))
def test_batches_are_those_of_the_plain_loader(way):
    slow = way == "spawn"  # to start, so that those of a forked worker have to do as the plain ones
    loader, plain_loader = WAYS[way](), few("fork") if slow else WAYS[way]()
    before = dict(vars(loader))
    recorded = record_dataloader(loader)
    assert epochs(recorded, 1 if slow else 2) == epochs(plain_loader, 1 if slow else 2)
    assert vars(loader) == before
    timeline, multi = recorded.timeline(), loader.num_workers > 0
    timeline.check()
    steps = sorted(timeline.select(kind="step").item.tolist())
    assert steps
    for kind in ("read", "collate", *(["wait"] if multi else [])):
        assert sorted(timeline.select(kind=kind).item.tolist()) == steps
    readers = {span.lane for span in timeline.select(kind="read")}
    assert readers <= ({f"worker {n}" for n in range(loader.num_workers)} if multi else {"training loop"})
    profile = recorded.profile()
    assert profile.read_s.size == len(steps)
    assert (profile.startup_s > 0 or profile.startup_each_s > 0) is multi


def test_spans_are_where_the_time_went():
    recorded = record_dataloader(DataLoader(Waiting(), num_workers=1))
    start = time.perf_counter()
    for _ in recorded:
        time.sleep(0.003)
    stop = time.perf_counter()
    timeline = recorded.timeline()
    reads, steps, waits = (timeline.select(kind=kind) for kind in ("read", "step", "wait"))
    assert reads.busy_s >= 3 * 0.02 + 8 * 0.005
    assert steps.busy_s >= 11 * 0.003
    assert start <= timeline.begin_s <= timeline.end_s <= stop
    assert (waits.stop_s >= reads.stop_s[reads.item.argsort()]).all()  # no batch is there before it was read
    profile = recorded.profile()
    assert profile.cpu_s.sum() < reads.busy_s  # they wait
    assert profile.num_batches == 11
    assert 11 * 0.003 < profile.epoch_s <= stop - start


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_are_the_plain_loaders_and_the_loop_can_go_on(num_workers):
    def outcome(loader):
        seen, batches = [], iter(loader)
        while True:
            try:
                seen.append(plain(next(batches)))
            except StopIteration:
                return seen
            except KeyError as error:
                seen.append(str(error).strip().splitlines()[-1])

    recorded = record_dataloader(DataLoader(Failing(), num_workers=num_workers))
    seen = outcome(recorded)
    assert seen == outcome(DataLoader(Failing(), num_workers=num_workers))
    assert "no sample 5" in seen[5]
    assert recorded.timeline().select(kind="step").item.tolist() == list(range(10))


@pytest.mark.parametrize(("stop_ns", "handover_ns"), [(90, UNKNOWN), (100, 200), (250, 50)])
def test_a_handover_is_timed_only_if_the_loop_was_waiting(monkeypatch, stop_ns, handover_ns):
    clock = iter([100, 300, 340])  # when the loop asks, sees that there is a batch, and has it
    monkeypatch.setattr(fetched, "_now", lambda: next(clock))
    stop = fetched.Reading(stop_ns, 0, 0)
    results = Queue()
    results.put((7, fetched.Fetched(None, "batch", None, "worker 0", stop, stop, stop, stop, True)))
    number, batch = fetched.TimedQueue(results).get(NOT_HANGING_S)
    assert (number, batch.data, batch.receive_ns, batch.handover_ns) == (7, "batch", 40, handover_ns)


def test_an_epoch_left_early_spoils_nothing():
    recorded = record_dataloader(DataLoader(Waiting(), num_workers=2, persistent_workers=True))
    for batch in recorded:
        if batch == 3:
            break
    assert [batch.item() for batch in recorded] == list(range(11))
    timeline = recorded.timeline()
    timeline.check()
    steps = timeline.select(kind="step").item.tolist()
    assert steps[:3] == [0, 1, 2]
    assert len(steps) == len(set(steps)) == 3 + 11
    assert recorded.profile().num_batches == 11


def test_it_stands_in_for_the_loader_and_its_workers_go_with_its_last_user():
    loader = DataLoader(Augmented(), batch_size=2, num_workers=1, persistent_workers=True)
    recorded = record_dataloader(loader, Recorder(rank=3))
    assert (len(recorded), recorded.dataset) == (6, loader.dataset)
    batches = iter(recorded)
    list(batches)
    assert set(recorded.timeline().rank.tolist()) == {3}
    worker = batches._inner._workers[0]
    gc.disable()
    try:
        del recorded, batches  # without the garbage collector
        worker.join(NOT_HANGING_S)
        assert not worker.is_alive()
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pinning_is_recorded_where_it_happens(monkeypatch, num_workers):
    """The pin thread of torch, on a machine that says it has an accelerator."""
    accelerator = {"is_available": True, "current_accelerator": torch.device("cpu")}
    accelerator |= {"current_device_index": 0, "set_device_index": None}
    for name, answer in accelerator.items():
        monkeypatch.setattr(torch.accelerator, name, lambda *_, answer=answer: answer)
    loader = DataLoader(Augmented(), num_workers=num_workers, pin_memory=True, collate_fn=pinnable)
    recorded = record_dataloader(loader)
    batches = list(recorded)
    assert [batch.index for batch in batches] == list(range(11))
    assert all(batch.pinned for batch in batches)
    timeline = recorded.timeline()
    timeline.check()
    pins = timeline.select(kind="pin", lane="pin thread" if num_workers else "training loop")
    assert pins.item.tolist() == list(range(11))
    assert recorded.profile().settings.pin_memory
    assert (recorded.profile().pin_s > 0).all()
