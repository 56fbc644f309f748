"""`record_dataloader`: any torch DataLoader's workers, waits and training loop as a `Timeline`, its batches unchanged.

A copy of the loader deals numbered indices; in its workers, and only there, the fetcher that torch makes is wrapped in
one that takes times; batches travel in an envelope that is opened before the user sees them. The dataset, the sampler,
the collate_fn and the loader itself stay the user's own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..timeline import Recorder, Timeline
from ..values.checks import of_type, whole
from ..workers import host
from .dataloader_profile import BatchCosts, LoaderProfile, LoaderSettings, PinningCosts, profile_columns
from .dataloader_twin import LOOP
from .dataloader_worker import Batch, Clock, Hook, Numbering, Reading, TimedFetcher, receivers, tensors

T = TypeVar("T")
_now = time.perf_counter_ns
_tokens = itertools.count()


def record_dataloader(loader: DataLoader[T], recorder: Recorder | None = None) -> RecordedLoader[T]:
    """Return what to iterate over in place of `loader`: the same batches, recorded. The loader itself is not changed.

    Any number of epochs, datasets with and without indices, samplers, workers and ways to start them are as in torch.
    `recorder` is where the spans go, by default one of its own; two loaders that share one need different ranks.

    Raises ValueError for what is no DataLoader and RuntimeError for a torch that works in another way inside.

    >>> loader = record_dataloader(DataLoader(range(4), batch_size=2))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3]]
    >>> [(span.kind, span.item) for span in loader.timeline()]
    [('read', 0), ('collate', 0), ('step', 0), ('read', 1), ('collate', 1), ('step', 1)]
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"loader must be a torch.utils.data.DataLoader, got {loader!r}")
    return RecordedLoader(loader, Recorder() if recorder is None else of_type("recorder", recorder, Recorder))


class RecordedLoader(Generic[T]):
    """A DataLoader that is recorded; made by `record_dataloader`. What it lacks itself it takes from `loader`.

    Lanes are "worker 0", "worker 1", …, "pin thread" and "training loop". Kinds are "read" (dataset access) and
    "collate" (collate_fn), "pin", "wait" (from the request for a batch to its arrival), "step" (until the next
    request), "start" (making the iterator; in a worker, from then to its first read) and "stop" (ending the workers).
    Items number the batches as they are dealt, on over the epochs; numbers of an epoch left early are not used again.
    Without workers, reads and collates are the training loop's, and nothing is a wait. A step that ends with the loop
    being left has no span, its end being unknown. An iterator begun while another goes on has lanes of its own.
    """

    def __init__(self, loader: DataLoader[T], recorder: Recorder) -> None:
        _check_torch()
        self.loader = loader
        self._recording = _Recording(loader, recorder)
        self._clone = copy.copy(loader)
        dealer = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        begin = functools.partial(_begin, weakref.ref(self._clone), self._recording)
        own = self._clone.__dict__  # torch forbids to set some attributes
        own[dealer] = Numbering(getattr(loader, dealer))
        own.update(worker_init_fn=self._recording.hook, _iterator=None, _get_iterator=begin)

    def __iter__(self) -> Iterator[T]:
        return iter(self._clone)

    def __len__(self) -> int:
        return len(self._clone)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def timeline(self) -> Timeline:
        """Return what has been recorded so far, also by workers that go on, in seconds of `time.perf_counter`."""
        return self._recording.recorder.timeline()

    def profile(self, pinning: PinningCosts | None = None, num_cores: int | None = None) -> LoaderProfile:
        """Return what has been measured so far, for `advise`; `pinning` as `measure_pinning` gives it.

        `num_cores` is by default the number that this process may use; a limit on CPU time is not seen. Raises
        ValueError where no batch has been recorded; a batch counts once its step has ended.
        """
        return self._recording.profile(pinning, host.num_cores() if num_cores is None else num_cores)


def measure_pinning(batch: Any, device: str | torch.device = "cuda", repeats: int = 5) -> PinningCosts:
    """Measure what it takes to copy this batch to the device, pageable and pinned, and to pin it: best of `repeats`.

    torch keeps pinned memory for the next batch: its first allocation, which is dearer, is not counted. Raises
    ValueError for less than 1 repeat, and RuntimeError, from torch, where there is no such device.
    """
    repeats = whole("repeats", repeats, 1)
    plain = list(tensors(batch))
    pinned = [tensor.pin_memory() for tensor in plain]

    def best_s(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(repeats + 1):
            torch.accelerator.synchronize()
            start = time.perf_counter()
            work()
            torch.accelerator.synchronize()
            taken.append(time.perf_counter() - start)
        return min(taken[1:])

    return PinningCosts(
        pageable_copy_s=best_s(lambda: [tensor.to(device) for tensor in plain]),
        pin_s=best_s(lambda: [tensor.pin_memory() for tensor in plain]),
        pinned_copy_s=best_s(lambda: [tensor.to(device, non_blocking=True) for tensor in pinned]),
    )


# ---- in the process of the training loop


class _Recording:
    """What all iterators of a loader share, and what they have measured."""

    def __init__(self, loader: DataLoader[Any], recorder: Recorder) -> None:
        self.loader, self.recorder = loader, recorder
        self.hook = Hook(loader.worker_init_fn, recorder)
        self.rows: list[BatchCosts] = []
        self.startups: dict[tuple[int, int], int] = {}  # (token, worker): ns to its first read
        self.creations: list[int] = []  # ns to make the workers
        self.batch_bytes: int | None = None
        self.epochs = itertools.count()
        self.running: weakref.WeakSet[_RecordedIterator] = weakref.WeakSet()

    def profile(self, pinning: PinningCosts | None, num_cores: int) -> LoaderProfile:
        if not self.rows:
            raise ValueError("no batch has been recorded: iterate over the recorded loader first")
        loader, workers = self.loader, self.loader.num_workers
        each_s = float(np.mean(self.creations)) / workers / 1e9 if workers and self.creations else 0.0
        startup_s = float(np.mean([*self.startups.values()])) / 1e9 - each_s * workers if self.startups else 0.0
        accelerator = torch.accelerator.is_available()
        pins = bool(loader.pin_memory and accelerator)
        window, in_order = loader.prefetch_factor or 2, loader.in_order
        return LoaderProfile(
            settings=LoaderSettings(workers, window, in_order, pins, loader.persistent_workers),
            num_batches=max(Counter(row.epoch for row in self.rows).values()),
            num_cores=num_cores,
            batch_bytes=self.batch_bytes or 0,
            accelerator=accelerator,
            startup_s=max(startup_s, 0.0),
            startup_each_s=each_s,
            pinning=pinning,
            **profile_columns(self.rows),
        )


def _begin(clone: weakref.ref[DataLoader[Any]], recording: _Recording) -> _RecordedIterator:
    """Stand in for the loader's `_get_iterator`, which `DataLoader.__iter__` calls."""
    loader = clone()
    assert loader is not None
    return _RecordedIterator(loader, recording)


class _RecordedIterator:
    """torch's own iterator, recorded. `lanes` adds to the names of lanes where another iterator has the plain ones."""

    def __init__(self, loader: DataLoader[Any], recording: _Recording) -> None:
        self._recording, self._clock = recording, Clock()
        taken = {other.place for other in recording.running}
        self.place: int = next(place for place in itertools.count() if place not in taken)
        self.lanes = f", iterator {self.place + 1}" if self.place else ""
        self.token = next(_tokens)
        self.begun_ns = _now()
        hook = recording.hook
        hook.token, hook.lanes, hook.begun_ns = self.token, self.lanes, self.begun_ns
        inner = type(loader)._get_iterator(loader)
        if not isinstance(inner, _BaseDataLoaderIter):
            raise _unknown(f"what a {type(loader).__name__} makes iterators of")
        self._inner: Any = inner
        self._multi, self._pins = loader.num_workers > 0, bool(self._inner._pin_memory)
        receivers[self.token] = self
        if self._multi:
            recording.creations.append(_now() - self.begun_ns)
        else:
            hook.begun_ns = -1
            own = vars(inner)
            own["_dataset_fetcher"] = TimedFetcher(own["_dataset_fetcher"], hook, 0, LOOP + self.lanes)
        self._start()

    def _start(self) -> None:
        recording = self._recording
        recording.running.add(self)
        self._epoch, self.free_ns = next(recording.epochs), 0
        self._batch: Batch | None = None
        self._pause_ns = _now() - self.begun_ns  # before the first request, but the loop waits all the same
        if self._multi:
            self.add("start", -1, self.begun_ns, self.begun_ns + self._pause_ns)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self.begun_ns = _now()
        self._inner._reset(loader, first_iter)
        self._start()

    def add(self, kind: str, number: int, start_ns: int, stop_ns: int, lane: str = LOOP) -> None:
        lane = lane if self._multi else LOOP  # there is no other thread
        self._recording.recorder.add(lane + self.lanes, kind, number, start_ns, stop_ns)

    def __iter__(self) -> _RecordedIterator:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # making it has failed
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        request = self._clock.read()
        self._end_step(request)
        if not self._pins:
            self.free_ns = request.wall
        try:
            batch: Batch = next(self._inner)
        except StopIteration:
            if self in self._recording.running:  # the first time
                self._recording.running.discard(self)
                if self._multi:
                    self.add("stop", -1, request.wall, _now())
            raise
        if not isinstance(batch, Batch):
            raise _unknown(f"what {type(self._inner).__name__} makes of batches")
        arrived_ns, recording = _now(), self._recording
        wait_ns, self._pause_ns = self._pause_ns + arrived_ns - request.wall, 0
        if recording.batch_bytes is None:
            recording.batch_bytes = sum(tensor.nbytes for tensor in tensors(batch.data))
        if batch.fetched.startup >= 0:
            recording.startups[self.token, batch.fetched.worker] = batch.fetched.startup
        self._handed = self._clock.read()
        if self._multi:
            self.add("wait", batch.number, request.wall, arrived_ns)
        self._batch, self._wait_ns = batch, wait_ns
        data, batch.data = batch.data, None  # not kept alive beyond the user's own use
        return data

    def _end_step(self, request: Reading) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        self.add("step", batch.number, self._handed.wall, request.wall)
        took, step_cpu = batch.fetched, request.cpu - self._handed.cpu
        step_ns = request.worked_since(self._handed)
        self._recording.rows.append(
            BatchCosts(batch.number, self._epoch, self._wait_ns, step_ns, step_cpu, took.read, took.collate, took.cpu,
                       batch.handover_ns, batch.receive_ns, batch.pin_ns)
        )  # fmt: skip


def _check_torch() -> None:
    """Raise RuntimeError where torch is not made as this module takes it to be."""
    from torch.utils.data import _utils, dataloader

    with contextlib.suppress(AttributeError):
        names = _utils.worker._worker_loop.__code__.co_names
        parts = (DataLoader._get_iterator, dataloader._DatasetKind.create_fetcher, torch.accelerator.is_available)
        if "create_fetcher" in names and all(map(callable, parts)):
            return
    raise _unknown("how its DataLoader works inside")


def _unknown(what: str) -> RuntimeError:
    return RuntimeError(f"record_dataloader does not know {what} in torch {torch.__version__}")
