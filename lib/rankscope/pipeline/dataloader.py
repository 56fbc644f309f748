"""`record_dataloader`: any torch DataLoader's workers, waits and training loop as a `Timeline`, its batches unchanged.

A copy of the loader deals numbered indices. In its workers, and only there, the fetcher that torch makes is wrapped in
one that takes times. Batches travel in an envelope that is opened before the user sees them. The dataset, the sampler,
the collate_fn and the loader itself stay the user's own. All of it reaches the workers by fork or by pickle.
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
from numpy import random as _random  # noqa: F401  # numpy loads it late: torch's workers must not be the first to ask
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
from .dataloader_model import LOOP, PIN_THREAD, worker_lane

T = TypeVar("T")
_now = time.perf_counter_ns
_tokens = itertools.count()
_pin_as_torch_does: Callable[[Any], Any] = pin_memory


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
        own[dealer] = _Numbering(getattr(loader, dealer))
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

    def profile(self) -> LoaderProfile:
        """Return what has been measured so far, for `advise`; a batch counts once its step has ended.

        Cores are those that this process may use; a limit on CPU time is not seen. Where there is an accelerator,
        copies of as many bytes as a batch has are timed, pinned and not. Raises ValueError where no batch has been
        recorded.
        """
        return self._recording.profile()


# ---- in the process of the training loop


class _Recording:
    """What all iterators of a loader share, and what they have measured."""

    def __init__(self, loader: DataLoader[Any], recorder: Recorder) -> None:
        self.loader, self.recorder = loader, recorder
        self.hook = _Hook(loader.worker_init_fn, recorder)
        self.rows: list[tuple[int, ...]] = []  # of batches whose step has ended: number, epoch, ns of `COLUMNS`
        self.startups: dict[tuple[int, int], int] = {}  # (token, worker): ns to its first read
        self.creations: list[int] = []  # ns to make the workers
        self.batch_bytes: int | None = None
        self.pinning: PinningCosts | None = None
        self.epochs = itertools.count()
        self.running: weakref.WeakSet[_RecordedIterator] = weakref.WeakSet()

    def profile(self) -> LoaderProfile:
        if not self.rows:
            raise ValueError("no batch has been recorded: iterate over the recorded loader first")
        loader, workers = self.loader, self.loader.num_workers
        each_s = float(np.mean(self.creations)) / workers / 1e9 if workers and self.creations else 0.0
        startup_s = float(np.mean([*self.startups.values()])) / 1e9 - each_s * workers if self.startups else 0.0
        accelerator = torch.accelerator.is_available()
        if accelerator and self.batch_bytes and self.pinning is None:
            with contextlib.suppress(RuntimeError):  # no room on the device, say
                self.pinning = pinning_costs(self.batch_bytes)
        pins = bool(loader.pin_memory and accelerator)
        window, in_order = loader.prefetch_factor or 2, loader.in_order
        return LoaderProfile(
            settings=LoaderSettings(workers, window, in_order, pins, loader.persistent_workers),
            num_batches=max(Counter(epoch for _, epoch, *_ in self.rows).values()),
            num_cores=host.num_cores(),
            accelerator=accelerator,
            startup_s=max(startup_s, 0.0),
            startup_each_s=each_s,
            pinning=self.pinning,
            **profile_columns(self.rows),
        )


def profile_columns(rows: Iterable[tuple[int, ...]]) -> dict[str, NDArray[np.float64]]:
    """Return the columns of a `LoaderProfile`, batches in the order that they were dealt in.

    A batch for which nobody waited has a hand-over of -1.
    """
    columns = dict(zip(COLUMNS, np.array(sorted(rows)).T[2:] / 1e9, strict=True))
    return columns | {"handover_s": columns["handover_s"][columns["handover_s"] >= 0]}


def pinning_costs(num_bytes: int, repeats: int = 5) -> PinningCosts:
    """Measure what it takes to copy so many bytes to the device, pageable and pinned, and to pin them: the best times.

    torch keeps pinned memory for the next batch: its first allocation, which takes longer, is not counted.
    """
    plain = torch.zeros(num_bytes, dtype=torch.uint8)
    pinned, device = plain.pin_memory(), torch.accelerator.current_accelerator()

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
        pageable_copy_s=best_s(lambda: plain.to(device)),
        pin_s=best_s(plain.pin_memory),
        pinned_copy_s=best_s(lambda: pinned.to(device, non_blocking=True)),
    )


def _begin(clone: weakref.ref[DataLoader[Any]], recording: _Recording) -> _RecordedIterator:
    """Stand in for the loader's `_get_iterator`, which `DataLoader.__iter__` calls."""
    loader = clone()
    assert loader is not None
    return _RecordedIterator(loader, recording)


class _RecordedIterator:
    """torch's own iterator, recorded. `lanes` adds to the names of lanes where another iterator has the plain ones.

    `free_ns` is since when it has been waiting for a batch.
    """

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
        if not isinstance(inner, torchs._BaseDataLoaderIter):
            raise _unknown(f"what a {type(loader).__name__} makes iterators of")
        self._inner: Any = inner
        self._multi, self._pins = loader.num_workers > 0, bool(self._inner._pin_memory)
        _receivers[self.token] = self
        if self._multi:
            recording.creations.append(_now() - self.begun_ns)
        else:
            hook.begun_ns = -1
            own = vars(inner)
            own["_dataset_fetcher"] = _TimedFetcher(own["_dataset_fetcher"], hook, 0, LOOP + self.lanes)
        self._start()

    def _start(self) -> None:
        recording = self._recording
        recording.running.add(self)
        self._epoch, self.free_ns = next(recording.epochs), 0
        self._batch: _Batch | None = None
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
            batch: _Batch = next(self._inner)
        except StopIteration:
            if self in self._recording.running:  # the first time
                self._recording.running.discard(self)
                if self._multi:
                    self.add("stop", -1, request.wall, _now())
            raise
        if not isinstance(batch, _Batch):
            raise _unknown(f"how {type(self._inner).__name__} changes batches")
        arrived_ns, recording = _now(), self._recording
        wait_ns, self._pause_ns = self._pause_ns + arrived_ns - request.wall, 0
        if recording.batch_bytes is None:
            leaves = filter(torch.is_tensor, tree_leaves(batch.data))
            recording.batch_bytes = sum(tensor.nbytes for tensor in leaves)
        if batch.fetched.startup >= 0:
            recording.startups[self.token, batch.fetched.worker] = batch.fetched.startup
        self._handed = self._clock.read()
        if self._multi:
            self.add("wait", batch.number, request.wall, arrived_ns)
        self._batch, self._wait_ns = batch, wait_ns
        data, batch.data = batch.data, None  # not kept alive beyond the user's own use
        return data

    def _end_step(self, request: _Reading) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        self.add("step", batch.number, self._handed.wall, request.wall)
        took = batch.fetched.read, batch.fetched.collate, batch.fetched.cpu, batch.receive_ns, batch.pin_ns
        step = request.worked_since(self._handed), request.cpu - self._handed.cpu
        row = (batch.number, self._epoch, *took, self._wait_ns, *step, batch.handover_ns)
        self._recording.rows.append(row)


def _check_torch() -> None:
    """Raise RuntimeError where torch is not made as this module takes it to be."""
    with contextlib.suppress(AttributeError):
        names = _worker_loop.__code__.co_names
        parts = (DataLoader._get_iterator, torchs._DatasetKind.create_fetcher, torch.accelerator.is_available)
        if "create_fetcher" in names and all(map(callable, parts)):
            return
    raise _unknown("how its DataLoader works inside")


def _unknown(what: str) -> RuntimeError:
    return RuntimeError(f"record_dataloader does not know {what} in torch {torch.__version__}")


# ---- in the workers, and on the way


class _NumberedIndex(NamedTuple):
    """What the dataset is asked for, and the number of the batch that it makes."""

    number: int
    index: Any


class _Numbering:
    """A sampler whose indices are numbered, on over the epochs."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler, self.numbers = sampler, itertools.count()

    def __iter__(self) -> Iterator[_NumberedIndex]:  # takes the sampler's iterator at once, as torch does
        return map(lambda index, number: _NumberedIndex(number, index), self.sampler, self.numbers)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class _Reading(NamedTuple):
    """The time, what CPU time the process has used, and how long `thread` was ready without a core: nanoseconds."""

    wall: int
    cpu: int
    queued: int
    thread: int

    def worked_since(self, earlier: _Reading) -> int:
        """Return the nanoseconds since an earlier reading, less those without a core if one thread took both."""
        queued = self.queued - earlier.queued if self.thread == earlier.thread else 0
        return max(self.wall - earlier.wall - queued, 0)


class Clock:
    """Reads the clocks of the thread that asks; where the system keeps no account, `queued` is 0."""

    def __init__(self) -> None:
        self._thread, self._file = -1, -1
        self._close: Callable[[], object] = int

    def read(self) -> _Reading:
        """Return a reading; it takes a few microseconds."""
        thread, queued = threading.get_native_id(), 0
        try:
            if thread != self._thread:
                self._open(thread)
            if self._file >= 0:
                queued = int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, IndexError):  # of a thread of this number that has ended
            self._thread = thread = -1
        return _Reading(_now(), time.process_time_ns(), queued, thread)

    def _open(self, thread: int) -> None:
        self._close()
        self._thread, self._file, self._close = thread, -1, int
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._file)
        except OSError:
            pass


class _Fetched(NamedTuple):
    """What a batch cost its worker, in nanoseconds, and when it was done; `startup` is -1 except for a first batch."""

    worker: int
    read: int
    collate: int
    cpu: int
    stop: int
    startup: int


# the iterators that batches come back to, by token
_receivers: weakref.WeakValueDictionary[int, _RecordedIterator] = weakref.WeakValueDictionary()


class _Batch:
    """A batch on its way. `handover_ns` is the way to a receiver that waited (else -1), `receive_ns` the unpacking."""

    handover_ns, receive_ns, pin_ns = -1, 0, 0

    def __init__(self, number: int, data: Any, fetched: _Fetched, token: int) -> None:
        self.number, self.data, self.fetched, self.token = number, data, fetched, token

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (_UnpackingBegins(), self.number, self.data, self.fetched, self.token)

    def pin_memory(self) -> _Batch:
        """Pin the data as torch would; called by torch's pin thread or, without workers, its iterator."""
        start_ns = _now()
        self.data = _pin_as_torch_does(self.data)
        stop_ns = _now()
        self.pin_ns = stop_ns - start_ns
        receiver = _receivers.get(self.token)
        if receiver is not None:
            receiver.add("pin", self.number, start_ns, stop_ns, PIN_THREAD)
            receiver.free_ns = stop_ns
        return self


class _UnpackingBegins:
    """Unpickled, this is the time: it lies in front of the data."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return _now, ()


def _unpack(begun_ns: int, number: int, data: Any, fetched: _Fetched, token: int) -> _Batch:
    batch, receiver, stop_ns = _Batch(number, data, fetched, token), _receivers.get(token), _now()
    batch.receive_ns = stop_ns - begun_ns
    if receiver is not None:
        if fetched.stop >= receiver.free_ns and fetched.startup < 0:  # it, and no start-up, was waited for
            batch.handover_ns = begun_ns - fetched.stop
        receiver.free_ns = stop_ns
    return batch


class _TimedFetcher:
    """One of torch's fetchers, recorded: dataset access and collate_fn."""

    def __init__(self, fetcher: Any, hook: _Hook, worker: int, lane: str) -> None:
        self._fetcher, self._hook, self._worker, self._lane, self._clock = fetcher, hook, worker, lane, Clock()
        self._collate_fn, fetcher.collate_fn = fetcher.collate_fn, self._collate
        self._token, self._middle = hook.token, self._clock.read()
        self._last = self._middle

    def fetch(self, numbered: _NumberedIndex) -> _Batch:
        """Fetch as torch would; an error leaves no span and goes on as it is."""
        hook, start = self._hook, self._clock.read()
        begun_ns, hook.begun_ns = hook.begun_ns, -1
        data = self._fetcher.fetch(numbered.index)
        middle, stop = self._middle, self._clock.read()
        if begun_ns >= 0:
            hook.recorder.add(self._lane, "start", -1, begun_ns, start.wall)
            self._last = start
        hook.recorder.add(self._lane, "read", numbered.number, start.wall, middle.wall)
        hook.recorder.add(self._lane, "collate", numbered.number, middle.wall, stop.wall)
        fetched = _Fetched(
            worker=self._worker,
            read=middle.worked_since(start),
            collate=stop.worked_since(middle),
            cpu=stop.cpu - self._last.cpu,  # sending the batch before is part of it
            stop=stop.wall,
            startup=start.wall - begun_ns if begun_ns >= 0 else -1,
        )
        self._last = stop
        return _Batch(numbered.number, data, fetched, self._token)

    def _collate(self, data: Any) -> Any:
        self._middle = self._clock.read()
        return self._collate_fn(data)


class _Hook:
    """The loader's worker_init_fn: calls the user's own, then has the worker's fetchers timed.

    `token` names the iterator, `lanes` is added to the names of lanes, `begun_ns` is when the iterator was begun, -1
    once the first batch was read.
    """

    def __init__(self, init_fn: Callable[[int], object] | None, recorder: Recorder) -> None:
        self.init_fn, self.recorder, self.token, self.lanes, self.begun_ns = init_fn, recorder, -1, "", -1

    def __call__(self, worker: int) -> None:
        """Run in the worker, before torch looks up what makes its fetcher."""
        if self.init_fn is not None:
            self.init_fn(worker)
        dataset_kind: Any = torchs._DatasetKind
        info: Any = get_worker_info()
        plain = dataset_kind.create_fetcher

        def create_fetcher(kind: Any, dataset: Any, *arguments: Any) -> Any:
            fetcher = plain(kind, dataset, *arguments)
            if dataset is not info.dataset:  # of a loader inside the dataset
                return fetcher
            return _TimedFetcher(fetcher, self, worker, worker_lane(worker) + self.lanes)

        dataset_kind.create_fetcher = staticmethod(create_fetcher)
