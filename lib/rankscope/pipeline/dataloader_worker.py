"""What `record_dataloader` puts into a DataLoader: numbered indices, fetchers that take times, batches that carry them.

All of it travels to the workers by fork or by pickle.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from numpy import random as _random  # noqa: F401  # numpy loads it late: torch's workers must not be the first to ask
from torch.utils.data import dataloader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ..timeline import Recorder
from .dataloader_twin import PIN_THREAD, worker_lane

_now = time.perf_counter_ns
_pin_as_torch_does: Callable[[Any], Any] = pin_memory


class Numbered(NamedTuple):
    """What the dataset is asked for, and the number of the batch that it makes."""

    number: int
    index: Any


class Numbering:
    """A sampler whose indices are numbered, on over the epochs."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler, self.numbers = sampler, itertools.count()

    def __iter__(self) -> Iterator[Numbered]:  # takes the sampler's iterator at once, as torch does
        return map(lambda index, number: Numbered(number, index), self.sampler, self.numbers)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class Reading(NamedTuple):
    """The time, what CPU time the process has used, and how long `thread` was ready without a core: nanoseconds."""

    wall: int
    cpu: int
    queued: int
    thread: int

    def worked_since(self, earlier: Reading) -> int:
        """Return the nanoseconds since an earlier reading, less those without a core, which two threads do not tell."""
        queued = self.queued - earlier.queued if self.thread == earlier.thread else 0
        return max(self.wall - earlier.wall - queued, 0)


class Clock:
    """Reads the clocks of the thread that asks; where the system keeps no account, `queued` is 0."""

    def __init__(self) -> None:
        self._thread, self._file = -1, -1
        self._close: Callable[[], object] = int

    def read(self) -> Reading:
        """Return a reading; it takes a few microseconds."""
        thread, queued = threading.get_native_id(), 0
        try:
            if thread != self._thread:
                self._open(thread)
            if self._file >= 0:
                queued = int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, IndexError):  # of a thread of this number that has ended
            self._thread = thread = -1
        return Reading(_now(), time.process_time_ns(), queued, thread)

    def _open(self, thread: int) -> None:
        self._close()
        self._thread, self._file, self._close = thread, -1, int
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._file)
        except OSError:
            pass


class Fetched(NamedTuple):
    """What a batch has cost its worker, in nanoseconds, and when it was done; `startup` is -1 but for a first batch."""

    worker: int
    read: int
    collate: int
    cpu: int
    stop: int
    startup: int


class Receiver(Protocol):
    """The iterator that a batch comes back to; `free_ns` is since when it has been waiting for one."""

    free_ns: int

    def add(self, kind: str, number: int, start_ns: int, stop_ns: int, lane: str) -> None: ...


receivers: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()


class Batch:
    """A batch on its way. `handover_ns` is the way to a receiver that waited (else -1), `receive_ns` the unpacking."""

    handover_ns, receive_ns, pin_ns = -1, 0, 0

    def __init__(self, number: int, data: Any, fetched: Fetched, token: int) -> None:
        self.number, self.data, self.fetched, self.token = number, data, fetched, token

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (_UnpackingBegins(), self.number, self.data, self.fetched, self.token)

    def pin_memory(self) -> Batch:
        """Pin the data as torch would; called by torch's pin thread or, without workers, its iterator."""
        start_ns = _now()
        self.data = _pin_as_torch_does(self.data)
        stop_ns = _now()
        self.pin_ns = stop_ns - start_ns
        receiver = receivers.get(self.token)
        if receiver is not None:
            receiver.add("pin", self.number, start_ns, stop_ns, PIN_THREAD)
            receiver.free_ns = stop_ns
        return self


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, those in its lists, tuples and dicts, each container once."""
    known: set[int] = set()
    waiting = [batch]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict) and id(value) not in known:
            known.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)


class _UnpackingBegins:
    """Unpickled, this is the time: it lies in front of the data."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return _now, ()


def _unpack(begun_ns: int, number: int, data: Any, fetched: Fetched, token: int) -> Batch:
    batch, receiver, stop_ns = Batch(number, data, fetched, token), receivers.get(token), _now()
    batch.receive_ns = stop_ns - begun_ns
    if receiver is not None:
        if fetched.stop >= receiver.free_ns and fetched.startup < 0:  # it, and no start-up, was waited for
            batch.handover_ns = begun_ns - fetched.stop
        receiver.free_ns = stop_ns
    return batch


class TimedFetcher:
    """One of torch's fetchers, recorded: dataset access and collate_fn."""

    def __init__(self, fetcher: Any, hook: Hook, worker: int, lane: str) -> None:
        self._fetcher, self._hook, self._worker, self._lane, self._clock = fetcher, hook, worker, lane, Clock()
        self._collate_fn, fetcher.collate_fn = fetcher.collate_fn, self._collate
        self._token, self._middle = hook.token, self._clock.read()
        self._last = self._middle

    def fetch(self, numbered: Numbered) -> Batch:
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
        fetched = Fetched(
            worker=self._worker,
            read=middle.worked_since(start),
            collate=stop.worked_since(middle),
            cpu=stop.cpu - self._last.cpu,  # sending the batch before is part of it
            stop=stop.wall,
            startup=start.wall - begun_ns if begun_ns >= 0 else -1,
        )
        self._last = stop
        return Batch(numbered.number, data, fetched, self._token)

    def _collate(self, data: Any) -> Any:
        self._middle = self._clock.read()
        return self._collate_fn(data)


class Hook:
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
        dataset_kind: Any = dataloader._DatasetKind
        info: Any = get_worker_info()
        plain = dataset_kind.create_fetcher

        def create_fetcher(kind: Any, dataset: Any, *arguments: Any) -> Any:
            fetcher = plain(kind, dataset, *arguments)
            if dataset is not info.dataset:  # of a loader inside the dataset
                return fetcher
            return TimedFetcher(fetcher, self, worker, worker_lane(worker) + self.lanes)

        dataset_kind.create_fetcher = staticmethod(create_fetcher)
