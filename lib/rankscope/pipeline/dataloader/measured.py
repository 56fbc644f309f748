"""`record_dataloader`: any torch DataLoader's workers, waits and training loop as a `Timeline`, its batches unchanged.

A copy of the loader has a dataset and a collate_fn that note when they are called. Each batch brings the times of its
worker with it, in an envelope that is opened before the user sees the batch. The user's own loader does not change.
"""

from __future__ import annotations

import copy
import itertools
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from ...common.checks import of_type
from ...ranks import host
from ...timeline import Recorder, Timeline
from .fetched import UNKNOWN, Fetched, TimedCollate, TimedDataset, TimedQueue, WorkerInit, reading
from .model import LOOP, PIN_THREAD
from .profile import COLUMNS, LoaderProfile, LoaderSettings

_DEFAULT_PREFETCH_FACTOR = 2  # torch's, for a loader without workers, which has none
_NO_ITEM = -1  # of a span that belongs to no batch
_now = time.perf_counter_ns


def record_dataloader(loader: DataLoader[Any], recorder: Recorder | None = None) -> RecordedLoader:
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
    of_type("loader", loader, DataLoader)
    return RecordedLoader(loader, recorder or Recorder())


class RecordedLoader:
    """A DataLoader that is recorded; made by `record_dataloader`. It has all attributes of `loader`.

    Lanes are "worker 0", "worker 1", …, "pin thread" and "training loop". Kinds are "read" (dataset access) and
    "collate" (collate_fn), "pin", "wait" (from the request for a batch to its arrival), "step" (until the next
    request) and "start" (making the iterator; in a worker, from then to its first read).
    Items number the batches as they are handed over, continuing over the epochs; the spans of a batch are recorded at
    that moment. Without workers, reads and collates are on the lane of the training loop, and there are no waits. A
    step in which the loop is left has no span, because its end is unknown. Iterate once at a time: iterators that run
    at the same time share the lanes.
    """

    def __init__(self, loader: DataLoader[Any], recorder: Recorder) -> None:
        self.loader = loader
        self._recording = _Recording(loader, recorder)
        self._clone = copy.copy(loader)
        # `DataLoader.__iter__` calls `_get_iterator`. The reference to the copy is weak, or it would be a cycle.
        make_iterator = partial(_RecordedIterator, weakref.ref(self._clone), self._recording)
        # DataLoader does not allow some attributes to be set. Persistent workers stay with the user's loader.
        vars(self._clone).update(_get_iterator=make_iterator, _iterator=None)

    def __iter__(self) -> Iterator[Any]:
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

        Cores are those that this process may use; a limit on its CPU time is not taken into account. Raises ValueError
        if no batch has been recorded.
        """
        recording = self._recording
        loader = self.loader
        if not recording.rows:
            raise ValueError("no batch has been recorded: iterate over the recorded loader first")
        startup_each_s = 0.0  # to make one worker
        startup_s = 0.0  # from when all workers have been made to the first read
        if recording.startups:
            startup_each_s = float(np.mean(recording.creations)) / loader.num_workers / 1e9
            # A worker may read before the last one is made.
            startup_s = max(float(np.mean(recording.startups)) / 1e9, 0.0)
        return LoaderProfile(
            settings=LoaderSettings(
                num_workers=loader.num_workers,
                prefetch_factor=loader.prefetch_factor or _DEFAULT_PREFETCH_FACTOR,
                in_order=loader.in_order,
                pin_memory=bool(loader.pin_memory and torch.accelerator.is_available()),
                persistent_workers=loader.persistent_workers,
            ),
            num_batches=max(recording.epochs),
            num_cores=host.num_cores(),
            startup_s=startup_s,
            startup_each_s=startup_each_s,
            **dict(zip(COLUMNS, np.array(recording.rows).T / 1e9, strict=True)),
        )


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


class _Failure(NamedTuple):
    """An error of the loader, which yields further batches if it is asked again."""

    error: Exception


class _RecordedIterator:
    """torch's own iterator, recorded."""

    def __init__(self, clone: weakref.ref[DataLoader[Any]], recording: _Recording) -> None:
        loader = clone()
        assert loader is not None  # its `__iter__` has called this
        start_ns = _now()
        dataset = TimedDataset(recording.loader.dataset)
        vars(loader).update(
            dataset=dataset,
            collate_fn=TimedCollate(recording.loader.collate_fn, dataset),
            worker_init_fn=WorkerInit(recording.loader.worker_init_fn),
        )
        inner: Any = type(loader)._get_iterator(loader)  # torch's own, which the loader's attribute hides
        if loader.num_workers and not inner._pin_memory:
            inner._data_queue = TimedQueue(inner._data_queue)
        recording.creations.append(_now() - start_ns)
        self._recording = recording
        self._inner = inner
        self._batches = _epoch(recording, inner, start_ns, _now())

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin a later epoch with persistent workers; `DataLoader.__iter__` calls this."""
        start_ns = _now()
        self._inner._reset(loader, first_iter)
        self._batches = _epoch(self._recording, self._inner, start_ns, _now())

    def __iter__(self) -> _RecordedIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if isinstance(batch, _Failure):
            raise batch.error
        return batch


def _epoch(recording: _Recording, inner: Any, start_ns: int, ready_ns: int) -> Iterator[Any]:
    """Yield the batches of an epoch, and record them; errors of the loader are yielded as a `_Failure`.

    torch has made or reset its iterator, `inner`, from `start_ns` to `ready_ns`.
    """
    has_workers = recording.loader.num_workers > 0
    add = recording.recorder.add
    if has_workers:
        add(LOOP, "start", _NO_ITEM, start_ns, ready_ns)
    recording.epochs.append(0)
    pinned_ns = ready_ns  # since when the pin thread has been free
    # Until now, no batch could be requested. This time delays the first one, so it is added to the wait for it.
    wait_ns = ready_ns - start_ns
    request = reading()
    while True:
        try:
            fetched = next(inner)
        except StopIteration:
            return
        except Exception as error:
            yield _Failure(error)
            request = reading()
            continue
        if not isinstance(fetched, Fetched):
            raise RuntimeError(f"record_dataloader does not know how a {type(inner).__name__} changes batches")
        arrived_ns = _now()
        wait_ns += arrived_ns - request.wall
        number = next(recording.numbers)
        data = [fetched.data]
        fetched = fetched._replace(data=None)
        if has_workers:
            add(LOOP, "wait", number, request.wall, arrived_ns)
        pin_start_ns = fetched.pin_start.ns
        if pin_start_ns:
            add(PIN_THREAD if has_workers else LOOP, "pin", number, pin_start_ns, fetched.pin_stop.ns)
            # If the pin thread was waiting, it is not known which part of the hand-over was receiving.
            if fetched.stop.wall < pinned_ns:
                fetched = fetched._replace(receive_ns=pin_start_ns - pinned_ns)
            else:
                fetched = fetched._replace(handover_ns=pin_start_ns - fetched.stop.wall)
            pinned_ns = fetched.pin_stop.ns
        if has_workers and fetched.is_first:
            recording.startups.append(fetched.start.wall - ready_ns)
            add(fetched.lane, "start", _NO_ITEM, start_ns, fetched.start.wall)
            # Not a typical one: multiprocessing starts threads for it in the worker.
            fetched = fetched._replace(handover_ns=UNKNOWN)
        add(fetched.lane, "read", number, fetched.start.wall, fetched.collate_start.wall)
        add(fetched.lane, "collate", number, fetched.collate_start.wall, fetched.stop.wall)
        step_start = reading()
        yield data.pop()  # only the user keeps it alive
        request = reading()
        add(LOOP, "step", number, step_start.wall, request.wall)
        recording.epochs[-1] += 1
        row = (  # in the order of COLUMNS
            fetched.collate_start.worked_since(fetched.start),
            fetched.stop.worked_since(fetched.collate_start),
            fetched.stop.cpu - fetched.cpu_start.cpu,
            fetched.receive_ns,
            fetched.pin_stop.ns - pin_start_ns,
            wait_ns,
            request.worked_since(step_start),
            request.cpu - step_start.cpu,
            fetched.handover_ns,
            wait_ns + request.wall - step_start.wall,
        )
        recording.rows.append(row)
        wait_ns = 0
