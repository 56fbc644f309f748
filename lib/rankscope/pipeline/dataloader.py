"""`record_dataloader`: any torch DataLoader's workers, waits and training loop as a `Timeline`, its batches unchanged.

A copy of the loader deals numbered indices. In its workers, and only there, torch's fetcher is wrapped in one that
measures times. Batches travel in an envelope, which is opened before the user sees them. The dataset, the sampler, the
collate_fn and the loader itself stay the user's own. The workers get all of it by fork or by pickle.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy import random as _random  # noqa: F401  # torch's workers seed it, and otherwise each would import it
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import dataloader as torchs
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.worker import _worker_loop

from ..common.checks import of_type
from ..ranks import host
from ..timeline import Recorder, Timeline
from .advice import COLUMNS, LoaderProfile, LoaderSettings, PinningCosts
from .loader_model import LOOP, PIN_THREAD, worker_lane

T = TypeVar("T")
_DEFAULT_PREFETCH_FACTOR = 2  # torch's, for a loader without workers, which has none
# This file of Linux has three numbers: the nanoseconds on a core, those of waiting for a core, and a count.
_SCHEDSTAT = "/proc/thread-self/schedstat"
_SCHEDSTAT_BYTES = 64  # enough for the three numbers
_NO_ITEM = -1  # of a span that belongs to no batch
_now = time.perf_counter_ns
_tokens = itertools.count()  # which identify iterators, also in workers
_pin_as_torch_does: Callable[[Any], Any] = pin_memory


def record_dataloader(loader: DataLoader[T], recorder: Recorder | None = None) -> RecordedLoader[T]:
    """Return a loader that replaces `loader`, yields the same batches and records them.

    `loader` itself is not changed. Epochs, map-style and iterable datasets, samplers, workers and their start methods
    work as in torch. Spans are written to `recorder`, by default a new one. Two loaders that share a recorder need
    different ranks.

    Raises ValueError if `loader` is not a DataLoader; RuntimeError if the internals of this version of torch differ
    from the known ones.

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
    request), "start" (making the iterator; in a worker, from then to its first read) and "stop" (ending the workers).
    Items number the batches in the order in which they are dealt, continuing over the epochs; numbers of an epoch that
    was left early are not used again. Without workers, reads and collates are on the lane of the training loop, and
    there are no waits. A step in which the loop is left has no span, because its end is unknown. An iterator that
    begins before another one has ended has its own lanes.
    """

    def __init__(self, loader: DataLoader[T], recorder: Recorder) -> None:
        _check_torch()
        self.loader = loader
        self._recording = _Recording(loader, recorder)
        self._clone = copy.copy(loader)
        attributes = self._clone.__dict__  # DataLoader does not allow some attributes to be set
        sampler_name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        attributes[sampler_name] = _Numbering(getattr(loader, sampler_name))
        attributes["worker_init_fn"] = self._recording.hook
        attributes["_iterator"] = None  # the user's persistent workers stay with the user's loader
        # `DataLoader.__iter__` calls `_get_iterator`. The reference to the copy is weak, or it would be a cycle.
        attributes["_get_iterator"] = functools.partial(_recorded_iterator, weakref.ref(self._clone), self._recording)

    def __iter__(self) -> Iterator[T]:
        return iter(self._clone)

    def __len__(self) -> int:
        return len(self._clone)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self.loader, name)

    def timeline(self) -> Timeline:
        """Return the spans so far, also those of workers that are still running, in seconds of `time.perf_counter`."""
        return self._recording.recorder.timeline()

    def profile(self) -> LoaderProfile:
        """Return the measurements so far, for `advise`. A batch counts once its step has ended.

        Cores are those that this process may use; a limit on its CPU time is not taken into account. On a machine with
        an accelerator, it measures pinned and pageable copies of the size of a batch. Raises ValueError if no batch has
        been recorded.
        """
        return self._recording.profile()


# ---- in the process of the training loop


class _Recording:
    """The state that all iterators of a loader share, and their measurements."""

    def __init__(self, loader: DataLoader[Any], recorder: Recorder) -> None:
        self.loader = loader
        self.recorder = recorder
        self.hook = _Hook(loader.worker_init_fn, recorder)
        self.rows: list[BatchRow] = []  # of batches whose step has ended
        # By token and worker: the nanoseconds from when making the iterator began to the worker's first read.
        self.startups: dict[tuple[int, int], int] = {}
        self.creations: list[int] = []  # of each iterator: the nanoseconds to make its workers
        self.batch_bytes: int | None = None  # of the tensors in the first batch; None before it
        self.pinning: PinningCosts | None = None
        self.epochs = itertools.count()  # their numbers
        self.running: weakref.WeakSet[_RecordedIterator] = weakref.WeakSet()

    def profile(self) -> LoaderProfile:
        if not self.rows:
            raise ValueError("no batch has been recorded: iterate over the recorded loader first")
        loader = self.loader
        startup_each_s = 0.0  # to make one worker
        if loader.num_workers and self.creations:  # the number may have been set to 0 since
            startup_each_s = float(np.mean(self.creations)) / loader.num_workers / 1e9
        startup_s = 0.0  # from when all workers have been made to the first read
        if self.startups:
            to_first_read_s = float(np.mean([*self.startups.values()])) / 1e9
            # At least 0: a worker may read while its iterator is still being made.
            startup_s = max(to_first_read_s - startup_each_s * loader.num_workers, 0.0)
        has_accelerator = torch.accelerator.is_available()
        if has_accelerator and self.batch_bytes and self.pinning is None:
            with contextlib.suppress(RuntimeError):  # for example, if the device is full
                self.pinning = pinning_costs(self.batch_bytes)
        settings = LoaderSettings(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or _DEFAULT_PREFETCH_FACTOR,
            in_order=loader.in_order,
            pin_memory=bool(loader.pin_memory and has_accelerator),
            persistent_workers=loader.persistent_workers,
        )
        return LoaderProfile(
            settings=settings,
            num_batches=max(Counter(row.epoch for row in self.rows).values()),  # of the longest epoch
            num_cores=host.num_cores(),
            accelerator=has_accelerator,
            startup_s=startup_s,
            startup_each_s=startup_each_s,
            pinning=self.pinning,
            **profile_columns(self.rows),
        )


class BatchRow(NamedTuple):
    """The measurements of a batch, in nanoseconds; after the first two fields they are `COLUMNS`."""

    number: int
    epoch: int
    read: int
    collate: int
    cpu: int
    receive: int
    pin: int
    wait: int
    step: int
    step_cpu: int
    handover: int  # -1 if the training loop did not wait for the batch


def profile_columns(rows: Iterable[tuple[int, ...]]) -> dict[str, NDArray[np.float64]]:
    """Return the columns of a `LoaderProfile` from `BatchRow`s, with the batches in the order they were dealt in."""
    row_per_batch = np.array(sorted(rows))
    measurements_s = row_per_batch.T[2:] / 1e9  # without number and epoch; one row per name in COLUMNS
    columns = dict(zip(COLUMNS, measurements_s, strict=True))
    handover_s = columns["handover_s"]
    columns["handover_s"] = handover_s[handover_s >= 0]  # the others are of batches that nobody waited for
    return columns


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


def _recorded_iterator(clone: weakref.ref[DataLoader[Any]], recording: _Recording) -> _RecordedIterator:
    """Return a new iterator, in place of the loader's `_get_iterator`."""
    loader = clone()
    assert loader is not None  # its `__iter__` has called this
    return _RecordedIterator(loader, recording)


class _RecordedIterator:
    """torch's own iterator, recorded.

    `lane_suffix` is added to the names of lanes if another iterator is running with the plain names. `free_ns` is the
    time since which the receiver of batches, the training loop or the pin thread, has been waiting. `epoch_start_ns` is
    when making the iterator began or, with persistent workers, when a later epoch began.
    """

    def __init__(self, loader: DataLoader[Any], recording: _Recording) -> None:
        self._recording = recording
        self._clock = Clock()
        used_numbers = {other.lanes_number for other in recording.running}
        # The lowest number that no running iterator has; 0 stands for lanes without a suffix.
        self.lanes_number: int = next(number for number in itertools.count() if number not in used_numbers)
        self.lane_suffix = f", iterator {self.lanes_number + 1}" if self.lanes_number else ""
        self.token = next(_tokens)
        self.epoch_start_ns = _now()
        hook = recording.hook  # the workers, which are made now, get a copy with these values
        hook.token = self.token
        hook.lane_suffix = self.lane_suffix
        hook.iterator_start_ns = self.epoch_start_ns
        inner = type(loader)._get_iterator(loader)  # torch's own, which the loader's attribute hides
        if not isinstance(inner, torchs._BaseDataLoaderIter):
            raise _unknown(f"what a {type(loader).__name__} makes iterators of")
        self._inner: Any = inner
        self._has_workers = loader.num_workers > 0
        self._pins = bool(self._inner._pin_memory)
        _receivers[self.token] = self
        if self._has_workers:
            recording.creations.append(_now() - self.epoch_start_ns)
        else:
            hook.iterator_start_ns = -1  # so that the first batch has no span of a worker's start
            self._time_fetches(hook)
        self._begin_epoch()

    def _time_fetches(self, hook: _Hook) -> None:
        """Wrap the fetcher of an iterator without workers, as `_Hook` does in each worker."""
        fetcher = self._inner._dataset_fetcher
        lane = LOOP + self.lane_suffix
        self._inner._dataset_fetcher = _TimedFetcher(fetcher, hook, worker=0, lane=lane, in_worker=False)

    def _begin_epoch(self) -> None:
        """Begin to record an epoch, once torch has made or reset its iterator."""
        self._recording.running.add(self)
        self._epoch = next(self._recording.epochs)
        self.free_ns = 0  # the receiver has waited since before the first fetch
        self._batch: _Batch | None = None  # whose step is running
        # Until now, no batch could be requested. This time delays the first one, so it is added to the wait for it.
        self._startup_ns = _now() - self.epoch_start_ns
        if self._has_workers:
            self.add("start", _NO_ITEM, self.epoch_start_ns, self.epoch_start_ns + self._startup_ns)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin a later epoch with persistent workers; `DataLoader.__iter__` calls this."""
        self.epoch_start_ns = _now()
        self._inner._reset(loader, first_iter)
        self._begin_epoch()

    def add(self, kind: str, number: int, start_ns: int, stop_ns: int, lane: str = LOOP) -> None:
        """Record a span of this process."""
        if not self._has_workers:
            lane = LOOP  # the only thread
        self._recording.recorder.add(lane + self.lane_suffix, kind, number, start_ns, stop_ns)

    def __iter__(self) -> _RecordedIterator:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # before __init__ has set it, or after it has failed
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        """Return the next batch. The request for it ends the step of the batch before."""
        request = self._clock.read()
        self._end_step(request)
        if not self._pins:  # otherwise the pin thread receives the batches, and sets this
            self.free_ns = request.wall
        try:
            batch: _Batch = next(self._inner)
        except StopIteration:
            if self in self._recording.running:  # a user may ask again after the end
                self._recording.running.discard(self)
                if self._has_workers:
                    self.add("stop", _NO_ITEM, request.wall, _now())
            raise
        if not isinstance(batch, _Batch):
            raise _unknown(f"how {type(self._inner).__name__} changes batches")
        arrived_ns = _now()
        self._wait_ns = self._startup_ns + arrived_ns - request.wall
        self._startup_ns = 0
        recording = self._recording
        if recording.batch_bytes is None:
            tensors = filter(torch.is_tensor, tree_leaves(batch.data))
            recording.batch_bytes = sum(tensor.nbytes for tensor in tensors)
        if batch.fetched.startup >= 0:  # it is the first batch of its worker
            recording.startups[self.token, batch.fetched.worker] = batch.fetched.startup
        self._step_start = self._clock.read()
        if self._has_workers:
            self.add("wait", batch.number, request.wall, arrived_ns)
        self._batch = batch
        data = batch.data
        batch.data = None  # so that only the user keeps it alive
        return data

    def _end_step(self, request: _Reading) -> None:
        """Record the step of the last batch, if there is one, and with it all measurements of the batch."""
        batch = self._batch
        if batch is None:
            return
        self._batch = None
        self.add("step", batch.number, self._step_start.wall, request.wall)
        row = BatchRow(
            number=batch.number,
            epoch=self._epoch,
            read=batch.fetched.read,
            collate=batch.fetched.collate,
            cpu=batch.fetched.cpu,
            receive=batch.receive_ns,
            pin=batch.pin_ns,
            wait=self._wait_ns,
            step=request.worked_since(self._step_start),
            step_cpu=request.cpu - self._step_start.cpu,
            handover=batch.handover_ns,
        )
        self._recording.rows.append(row)


def _check_torch() -> None:
    """Raise RuntimeError if torch does not have the private parts that this module uses.

    Workers must look up `create_fetcher` when they begin, because `_Hook` replaces it.
    """
    with contextlib.suppress(AttributeError):  # a part that is missing, as is one that is not as expected
        names = _worker_loop.__code__.co_names
        parts = (DataLoader._get_iterator, torchs._DatasetKind.create_fetcher, torch.accelerator.is_available)
        if "create_fetcher" in names and all(map(callable, parts)):
            return
    raise _unknown("how its DataLoader works inside")


def _unknown(what: str) -> RuntimeError:
    return RuntimeError(f"record_dataloader does not know {what} in torch {torch.__version__}")


# ---- in the workers, and on the way


class _NumberedIndex(NamedTuple):
    """The index, or the list of indices, of a batch, and the number of the batch."""

    number: int
    index: Any


class _Numbering:
    """A sampler whose indices are numbered, continuing over the epochs."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler
        self.numbers = itertools.count()

    def __iter__(self) -> Iterator[_NumberedIndex]:
        # Not a generator, whose body would run only at the first index: the user's `__iter__` must be called now. The
        # sampler is the first argument, because `map` would take a number before it finds that the sampler has ended.
        return map(lambda index, number: _NumberedIndex(number, index), self.sampler, self.numbers)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class _Reading(NamedTuple):
    """The readings of a thread's clocks at one moment, in nanoseconds."""

    wall: int
    cpu: int  # of all threads of the process
    queued: int  # for how long the thread was ready and had no core
    thread: int  # the number of the thread

    def worked_since(self, earlier: _Reading) -> int:
        """Return the nanoseconds since an earlier reading, less those in which the thread waited for a core.

        If another thread took the earlier reading, its waits are unknown, and none are subtracted.
        """
        elapsed = self.wall - earlier.wall
        if self.thread == earlier.thread:
            elapsed -= self.queued - earlier.queued
        return max(elapsed, 0)  # a wait between reading the two clocks counts in one of them only


class Clock:
    """Reads the clocks of the calling thread. If the system does not count waits for a core, `queued` is 0."""

    def __init__(self) -> None:
        self._thread = -1  # whose file is open
        self._file = -1  # a descriptor, or -1 if there is no such file
        self._close: Callable[[], object] | None = None

    def read(self) -> _Reading:
        """Return a reading; it takes a few microseconds."""
        thread = threading.get_native_id()
        queued = 0
        try:
            if thread != self._thread:
                self._open(thread)
            if self._file >= 0:
                queued = int(os.pread(self._file, _SCHEDSTAT_BYTES, 0).split()[1])
        except (OSError, IndexError):  # the open file is that of a thread that had this number and has ended
            thread = -1  # so that `worked_since` does not use `queued`
            self._thread = -1
        return _Reading(_now(), time.process_time_ns(), queued, thread)

    def _open(self, thread: int) -> None:
        if self._close is not None:
            self._close()
        self._thread = thread
        self._file = -1
        self._close = None
        with contextlib.suppress(OSError):
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._file)  # also once the clock is deleted


class _Fetched(NamedTuple):
    """The costs of a batch in its worker, in nanoseconds, and when it was done.

    `startup` is the time to the worker's first read, or -1 for any batch but its first.
    """

    worker: int
    read: int
    collate: int
    cpu: int
    stop: int
    startup: int


# The iterators that batches return to, by token.
_receivers: weakref.WeakValueDictionary[int, _RecordedIterator] = weakref.WeakValueDictionary()


class _Batch:
    """A batch on its way to the training loop, as an envelope around its data."""

    def __init__(self, number: int, data: Any, fetched: _Fetched, token: int) -> None:
        self.number = number
        self.data = data
        self.fetched = fetched
        self.token = token
        self.handover_ns = -1  # from the end of the fetch to a receiver that waited, or -1 if none did
        self.receive_ns = 0  # to unpack the batch
        self.pin_ns = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle stores: a function, and its arguments, which are unpickled in this order."""
        return _unpack, (_UnpackingStart(), self.number, self.data, self.fetched, self.token)

    def pin_memory(self) -> _Batch:
        """Pin the data as torch would; torch's pin thread calls this or, without workers, its iterator."""
        start_ns = _now()
        self.data = _pin_as_torch_does(self.data)
        stop_ns = _now()
        self.pin_ns = stop_ns - start_ns
        receiver = _receivers.get(self.token)
        if receiver is not None:
            receiver.add("pin", self.number, start_ns, stop_ns, PIN_THREAD)
            receiver.free_ns = stop_ns
        return self


class _UnpackingStart:
    """Unpickling this returns the time. It precedes the data, so it is the time before the data are unpickled."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return _now, ()


def _unpack(start_ns: int, number: int, data: Any, fetched: _Fetched, token: int) -> _Batch:
    """Make the batch in the process that receives it, with the times of its hand-over; `start_ns` is that of unpacking.

    The hand-over of a batch is only known if the receiver was waiting when it was fetched. Otherwise the batch itself
    waited for the receiver. Nor is that of a worker's first batch, for which multiprocessing starts the queue's thread
    and the server of file descriptors in the worker: it took 8 ms where later ones took 0.5 ms.
    """
    batch = _Batch(number, data, fetched, token)
    receiver = _receivers.get(token)
    stop_ns = _now()
    batch.receive_ns = stop_ns - start_ns
    if receiver is not None:
        was_awaited = fetched.stop >= receiver.free_ns
        is_first = fetched.startup >= 0
        if was_awaited and not is_first:
            batch.handover_ns = start_ns - fetched.stop
        receiver.free_ns = stop_ns
    return batch


class _TimedFetcher:
    """One of torch's fetchers, recorded: dataset access and collate_fn."""

    def __init__(self, fetcher: Any, hook: _Hook, worker: int, lane: str, in_worker: bool) -> None:
        self._fetcher = fetcher
        self._collate_fn = fetcher.collate_fn
        fetcher.collate_fn = self._collate
        self._hook = hook
        self._token = hook.token  # of the iterator for which the fetcher was made
        self._worker = worker
        self._lane = lane
        self._in_worker = in_worker
        self._clock = Clock()
        self._collate_start = self._clock.read()  # of the last batch, once there is one
        self._last_stop = self._collate_start

    def fetch(self, numbered: _NumberedIndex) -> _Batch:
        """Fetch as torch would. An error passes unchanged and leaves no span."""
        hook = self._hook
        start = self._clock.read()
        iterator_start_ns = hook.iterator_start_ns
        hook.iterator_start_ns = -1
        is_first = iterator_start_ns >= 0
        data = self._fetcher.fetch(numbered.index)  # calls `_collate`, which sets `_collate_start`
        collate_start = self._collate_start
        stop = self._clock.read()
        if is_first:
            hook.recorder.add(self._lane, "start", _NO_ITEM, iterator_start_ns, start.wall)
            self._last_stop = start  # the CPU time before belongs to the worker's start
        elif not self._in_worker:
            self._last_stop = start  # the CPU time before is that of the training step, which has a column of its own
        hook.recorder.add(self._lane, "read", numbered.number, start.wall, collate_start.wall)
        hook.recorder.add(self._lane, "collate", numbered.number, collate_start.wall, stop.wall)
        fetched = _Fetched(
            worker=self._worker,
            read=collate_start.worked_since(start),
            collate=stop.worked_since(collate_start),
            cpu=stop.cpu - self._last_stop.cpu,  # in a worker, this includes sending the batch before
            stop=stop.wall,
            startup=start.wall - iterator_start_ns if is_first else -1,
        )
        self._last_stop = stop
        return _Batch(numbered.number, data, fetched, self._token)

    def _collate(self, data: Any) -> Any:
        self._collate_start = self._clock.read()
        return self._collate_fn(data)


class _Hook:
    """The loader's worker_init_fn: it calls the user's own, then arranges that the worker's fetchers are timed.

    `token` identifies the iterator, and `lane_suffix` is added to the names of lanes. `iterator_start_ns` is when
    making the iterator began, or -1 after the worker's first read. Each new iterator sets these three.
    """

    def __init__(self, init_fn: Callable[[int], object] | None, recorder: Recorder) -> None:
        self.init_fn = init_fn
        self.recorder = recorder
        self.token = -1
        self.lane_suffix = ""
        self.iterator_start_ns = -1

    def __call__(self, worker: int) -> None:
        """Run in the worker, before torch looks up `create_fetcher`, which is replaced in the worker's process only."""
        if self.init_fn is not None:
            self.init_fn(worker)
        dataset_kind: Any = torchs._DatasetKind
        info: Any = get_worker_info()
        torchs_create_fetcher = dataset_kind.create_fetcher

        def create_fetcher(kind: Any, dataset: Any, *arguments: Any) -> Any:
            fetcher = torchs_create_fetcher(kind, dataset, *arguments)
            if dataset is not info.dataset:  # it is for another loader, which the dataset uses
                return fetcher
            return _TimedFetcher(fetcher, self, worker, worker_lane(worker) + self.lane_suffix, in_worker=True)

        dataset_kind.create_fetcher = staticmethod(create_fetcher)
