"""`record_dataloader`: any torch DataLoader's workers, waits and training loop as a `Timeline`, its batches unchanged.

A copy of the loader has a dataset and a collate_fn that note when they are called. Each batch brings the times of its
worker with it, in an envelope that is opened before the user sees the batch. The user's own loader does not change.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from ..common.checks import of_type
from ..ranks import host
from ..timeline import Recorder, Timeline
from .clock import Clock, Reading
from .epoch import LOOP, PIN_THREAD, worker_lane
from .fetched import UNKNOWN, Fetched, TimedCollate, TimedDataset, TimedQueue, WorkerInit
from .profile import COLUMNS, LoaderProfile, LoaderSettings, PinningCosts

T = TypeVar("T")
_DEFAULT_PREFETCH_FACTOR = 2  # torch's, for a loader without workers, which has none
_NO_ITEM = -1  # of a span that belongs to no batch
_now = time.perf_counter_ns


def record_dataloader(loader: DataLoader[T], recorder: Recorder | None = None) -> RecordedLoader[T]:
    """Return a loader that replaces `loader`, yields the same batches and records them.

    `loader` itself is not changed. Epochs, map-style and iterable datasets, samplers, workers and their start methods
    work as in torch. Spans are written to `recorder`, by default a new one. Two loaders that share a recorder need
    different ranks. Raises ValueError if `loader` is not a DataLoader.

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
    """A DataLoader that is recorded; made by `record_dataloader`. It has all attributes of `loader`.

    Lanes are "worker 0", "worker 1", …, "pin thread" and "training loop". Kinds are "read" (dataset access) and
    "collate" (collate_fn), "pin", "wait" (from the request for a batch to its arrival), "step" (until the next
    request) and "start" (making the iterator; in a worker, from then to its first read).
    Items number the batches as they are handed over, continuing over the epochs; the spans of a batch are recorded at
    that moment. Without workers, reads and collates are on the lane of the training loop, and there are no waits. A
    step in which the loop is left has no span, because its end is unknown. Iterate once at a time: iterators that run
    at the same time share the lanes.
    """

    def __init__(self, loader: DataLoader[T], recorder: Recorder) -> None:
        self.loader = loader
        self._recording = _Recording(loader, recorder)
        self._clone = copy.copy(loader)
        attributes = self._clone.__dict__  # DataLoader does not allow some attributes to be set
        attributes["_iterator"] = None  # the user's persistent workers stay with the user's loader
        # `DataLoader.__iter__` calls `_get_iterator`. The reference to the copy is weak, or it would be a cycle.
        attributes["_get_iterator"] = functools.partial(_RecordedIterator, weakref.ref(self._clone), self._recording)

    def __iter__(self) -> Iterator[T]:
        return iter(self._clone)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self.loader, name)

    def timeline(self) -> Timeline:
        """Return the spans so far in seconds of `time.perf_counter`."""
        return self._recording.recorder.timeline()

    def profile(self) -> LoaderProfile:
        """Return the measurements so far, for `advise`. A batch counts once its step has ended.

        Cores are those that this process may use; a limit on its CPU time is not taken into account. On a machine with
        an accelerator, it measures pinned and pageable copies of the size of a batch. Raises ValueError if no batch has
        been recorded.
        """
        return self._recording.profile()


class _Recording:
    """The state that all iterators of a loader share, and their measurements."""

    def __init__(self, loader: DataLoader[Any], recorder: Recorder) -> None:
        self.loader = loader
        self.recorder = recorder
        self.numbers = itertools.count()  # of batches
        self.rows: list[tuple[int, ...]] = []  # `COLUMNS` in nanoseconds, of batches whose step has ended
        self.epochs: list[int] = []  # how many batches of each have been recorded
        self.startups: list[int] = []  # of each worker: nanoseconds from when all workers were made to its reading
        self.creations: list[int] = []  # of each iterator: the nanoseconds to make its workers
        self.batch_bytes = 0  # of the tensors in the last batch
        self.pinning: PinningCosts | None = None

    def profile(self) -> LoaderProfile:
        if not self.rows:
            raise ValueError("no batch has been recorded: iterate over the recorded loader first")
        loader = self.loader
        startup_each_s = 0.0  # to make one worker
        startup_s = 0.0  # from when all workers have been made to the first read
        if loader.num_workers and self.startups:
            startup_each_s = float(np.mean(self.creations)) / loader.num_workers / 1e9
            startup_s = float(np.mean(self.startups)) / 1e9
        has_accelerator = torch.accelerator.is_available()
        if has_accelerator and self.batch_bytes and self.pinning is None:
            with contextlib.suppress(RuntimeError):  # for example, if the device is full
                self.pinning = pinning_costs(self.batch_bytes)
        return LoaderProfile(
            settings=LoaderSettings(
                num_workers=loader.num_workers,
                prefetch_factor=loader.prefetch_factor or _DEFAULT_PREFETCH_FACTOR,
                in_order=loader.in_order,
                pin_memory=bool(loader.pin_memory and has_accelerator),
                persistent_workers=loader.persistent_workers,
            ),
            num_batches=max(self.epochs),
            num_cores=host.num_cores(),
            startup_s=max(startup_s, 0.0),  # a worker may read while its iterator is still being made
            startup_each_s=startup_each_s,
            pinning=self.pinning,
            **dict(zip(COLUMNS, np.array(self.rows).T / 1e9, strict=True)),
        )


def pinning_costs(num_bytes: int, repeats: int = 5) -> PinningCosts:
    """Measure the time to copy this many bytes to the device, pageable and pinned, and to pin them: the best times.

    torch keeps pinned memory for the next batch, so its first allocation, which takes longer, does not count.
    """
    plain = torch.zeros(num_bytes, dtype=torch.uint8)
    pinned = plain.pin_memory()
    device = torch.accelerator.current_accelerator()

    def best_s(work: Callable[[], object]) -> float:
        times_s = []
        for _ in range(repeats + 1):
            torch.accelerator.synchronize()
            start_s = time.perf_counter()
            work()
            torch.accelerator.synchronize()
            times_s.append(time.perf_counter() - start_s)
        return min(times_s[1:])

    return PinningCosts(
        pageable_copy_s=best_s(lambda: plain.to(device)),
        pin_s=best_s(plain.pin_memory),
        pinned_copy_s=best_s(lambda: pinned.to(device, non_blocking=True)),
    )


class _RecordedIterator:
    """torch's own iterator, recorded."""

    def __init__(self, clone: weakref.ref[DataLoader[Any]], recording: _Recording) -> None:
        loader = clone()
        assert loader is not None  # its `__iter__` has called this
        self._recording = recording
        self._clock = Clock()
        self._start_ns = _now()
        dataset = TimedDataset(recording.loader.dataset)
        collate_fn = TimedCollate(recording.loader.collate_fn, dataset)
        init_fn = WorkerInit(recording.loader.worker_init_fn)
        vars(loader).update(dataset=dataset, collate_fn=collate_fn, worker_init_fn=init_fn)
        inner: Any = type(loader)._get_iterator(loader)  # torch's own, which the loader's attribute hides
        self._inner = inner
        self._has_workers = loader.num_workers > 0
        self._started = set[int]()  # workers that have sent a batch
        if self._has_workers and not inner._pin_memory:
            inner._data_queue = TimedQueue(inner._data_queue)
        self._begin_epoch()
        recording.creations.append(self._ready_ns - self._start_ns)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin a later epoch with persistent workers; `DataLoader.__iter__` calls this."""
        self._start_ns = _now()
        self._inner._reset(loader, first_iter)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """Begin to record an epoch, once torch has made or reset its iterator."""
        self._recording.epochs.append(0)
        self._fetched: Fetched | None = None  # the batch whose step is running, without its data
        self._ready_ns = _now()
        self._pinned_ns = self._ready_ns  # since when the pin thread has been free
        # Until now, no batch could be requested. This time delays the first one, so it is added to the wait for it.
        self._wait_ns = self._ready_ns - self._start_ns
        if self._has_workers:
            self._add(LOOP, "start", _NO_ITEM, self._start_ns, self._ready_ns)

    def _add(self, lane: str, kind: str, number: int, start_ns: int, stop_ns: int) -> None:
        if not self._has_workers:
            lane = LOOP  # the only thread
        self._recording.recorder.add(lane, kind, number, start_ns, stop_ns)

    def __iter__(self) -> _RecordedIterator:
        return self

    def __next__(self) -> Any:
        """Return the next batch. The request for it ends the step of the batch before."""
        request = self._clock.read()
        self._end_step(request)
        fetched = next(self._inner)
        if not isinstance(fetched, Fetched):
            raise RuntimeError(f"record_dataloader does not know how a {type(self._inner).__name__} changes batches")
        arrived_ns = _now()
        self._number = next(self._recording.numbers)
        self._wait_ns += arrived_ns - request.wall
        self._fetched = self._recorded(fetched)._replace(data=None)  # so that only the user keeps the data alive
        if self._has_workers:
            self._add(LOOP, "wait", self._number, request.wall, arrived_ns)
        self._recording.batch_bytes = sum(leaf.nbytes for leaf in filter(torch.is_tensor, tree_leaves(fetched.data)))
        self._step_start = self._clock.read()
        return fetched.data

    def _recorded(self, fetched: Fetched) -> Fetched:
        """Record the spans of a batch before its arrival; return it with the times of its hand-over."""
        lane = worker_lane(fetched.worker)
        pin_start_ns = fetched.pin_start.ns
        if pin_start_ns:
            self._add(PIN_THREAD, "pin", self._number, pin_start_ns, fetched.pin_stop.ns)
            # If the pin thread was waiting, it is not known which part of the hand-over was receiving.
            if fetched.stop.wall < self._pinned_ns:
                fetched = fetched._replace(receive_ns=pin_start_ns - self._pinned_ns)
            else:
                fetched = fetched._replace(handover_ns=pin_start_ns - fetched.stop.wall)
            self._pinned_ns = fetched.pin_stop.ns
        if self._has_workers and fetched.worker not in self._started:
            self._started.add(fetched.worker)
            self._recording.startups.append(fetched.start.wall - self._ready_ns)
            self._add(lane, "start", _NO_ITEM, self._start_ns, fetched.start.wall)
            # Not a typical one: multiprocessing starts threads for it in the worker.
            fetched = fetched._replace(handover_ns=UNKNOWN)
        self._add(lane, "read", self._number, fetched.start.wall, fetched.collate_start.wall)
        self._add(lane, "collate", self._number, fetched.collate_start.wall, fetched.stop.wall)
        return fetched

    def _end_step(self, request: Reading) -> None:
        """Record the step of the last batch, if there is one, and with it all measurements of the batch."""
        fetched = self._fetched
        if fetched is None:
            return
        self._add(LOOP, "step", self._number, self._step_start.wall, request.wall)
        self._recording.epochs[-1] += 1
        row = (  # in the order of COLUMNS
            fetched.collate_start.worked_since(fetched.start),
            fetched.stop.worked_since(fetched.collate_start),
            fetched.stop.cpu - fetched.cpu_start.cpu,
            fetched.receive_ns,
            fetched.pin_stop.ns - fetched.pin_start.ns,
            self._wait_ns,
            request.worked_since(self._step_start),
            request.cpu - self._step_start.cpu,
            fetched.handover_ns,
        )
        self._recording.rows.append(row)
        self._fetched = None
        self._wait_ns = 0
