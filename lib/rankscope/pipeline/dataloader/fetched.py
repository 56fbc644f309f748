"""What a recorded DataLoader has in place of its dataset and collate_fn: batches bring their times with them.

The time in which a thread waited for a core can be left out.
"""

from __future__ import annotations

import functools
import itertools
import operator
import queue
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from .model import LOOP, worker_lane

# This file of Linux has three numbers: the nanoseconds on a core, those of waiting for a core, and a count.
_SCHEDSTAT = "/proc/thread-self/schedstat"
UNKNOWN = -1  # instead of a time
_now = time.perf_counter_ns


class Reading(NamedTuple):
    """The readings of a thread's clocks at one moment, in nanoseconds."""

    wall: int
    cpu: int  # of all threads of the process
    queued: int  # for how long the thread was ready and had no core; 0 if the system does not count that

    def worked_since(self, earlier: Reading) -> int:
        """Return the nanoseconds since an earlier reading, less those in which the thread waited for a core."""
        queued = max(self.queued - earlier.queued, 0)
        return max(self.wall - earlier.wall - queued, 0)  # a wait between reading two clocks counts in one only


def reading() -> Reading:
    """Return a reading of the calling thread; it takes about 10 microseconds."""
    queued = 0
    try:
        with open(_SCHEDSTAT, "rb", buffering=0) as file:
            queued = int(file.read().split()[1])
    except (OSError, IndexError):  # the system has no such file, or an empty one
        pass
    return Reading(time.perf_counter_ns(), time.process_time_ns(), queued)


class _Stamp:
    """Notes when torch pins it."""

    ns = 0

    def pin_memory(self) -> _Stamp:
        self.ns = _now()
        return self


class Fetched(NamedTuple):
    """A batch on its way to the training loop. torch pins its fields in turn, so the stamps are before and after it.

    The readings are those of a worker's clock; that of `cpu_start` precedes the sending of the batch before.
    """

    pin_start: _Stamp
    data: Any
    pin_stop: _Stamp
    lane: str  # of its worker
    cpu_start: Reading
    start: Reading
    collate_start: Reading
    stop: Reading
    is_first: bool  # of those that its worker fetches
    receive_ns: int = 0
    handover_ns: int = UNKNOWN  # from the end of the fetch to a receiver that waited


class TimedDataset:
    """The user's dataset; `start` is when the reading of a batch began."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.start: Reading | None = None

    def _read(self, get: Callable[..., Any], *arguments: Any) -> Any:
        if self.start is None:
            self.start = reading()
        return get(*arguments)

    def __getitem__(self, index: Any) -> Any:
        return self._read(operator.getitem, self.dataset, index)

    @property
    def __getitems__(self) -> Callable[[list[Any]], list[Any]]:
        get = self.dataset.__getitems__  # an AttributeError, if the dataset has none, tells torch so
        return functools.partial(self._read, get)

    def __iter__(self) -> Iterator[Any]:
        self.start = None  # that of the end of the epoch before
        return map(self._read, itertools.repeat(next), itertools.repeat(iter(self.dataset)))


class TimedCollate:
    """The user's collate_fn, whose result it puts into an envelope."""

    def __init__(self, collate_fn: Callable[[Any], Any], dataset: TimedDataset) -> None:
        self._collate_fn = collate_fn
        self._dataset = dataset
        self._last_stop: Reading | None = None  # in a worker

    def __call__(self, samples: Any) -> Fetched:
        collate_start = reading()
        data = self._collate_fn(samples)
        stop = reading()
        start = self._dataset.start or collate_start
        self._dataset.start = None
        cpu_start = self._last_stop or start
        is_first = self._last_stop is None
        lane = LOOP
        info = get_worker_info()
        if info is not None:
            lane = worker_lane(info.id)
            self._last_stop = stop
        return Fetched(_Stamp(), data, _Stamp(), lane, cpu_start, start, collate_start, stop, is_first)


class WorkerInit:
    """The user's worker_init_fn, for which ``get_worker_info().dataset`` is the user's own."""

    def __init__(self, init_fn: Callable[[int], object] | None) -> None:
        self._init_fn = init_fn

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # torch forbids plain assignments
        if self._init_fn is not None:
            self._init_fn(worker)


class TimedQueue:
    """The queue from which torch's iterator gets the batches of workers, unless a pin thread does."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def get(self, timeout: float) -> Any:
        asked_ns = _now()
        if not wait([self._results._reader], timeout):
            raise queue.Empty
        start_ns = _now()
        number, batch = self._results.get(timeout=timeout)
        if isinstance(batch, Fetched):
            batch = batch._replace(receive_ns=_now() - start_ns)
            if batch.stop.wall >= asked_ns:  # the loop was waiting when the fetch ended
                batch = batch._replace(handover_ns=start_ns - batch.stop.wall)
        return number, batch
