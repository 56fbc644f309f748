"""`run`: a pipeline executed for real, by threads and processes; the timeline is of the same kind as `simulate`'s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sized
from queue import SimpleQueue
from typing import Any, NamedTuple

from ..common.checks import number, of_type, whole
from ..sampling.assignment import Assignment
from ..sampling.permutation import SEEDS
from ..timeline import Recorder, Timeline
from .items import Items, counted, of_ranks
from .lines import Barrier, Channel, End, Item, Lines, Nowhere, Source, Stopped, Target, Turns, UserItems
from .processes import Process, WorkResult
from .stages import Pipeline, Stage, check_lockstep

_now_ns = time.perf_counter_ns
_GRACE_S = 5.0  # for the threads that are in the middle of an item when a run is stopped

Work = Callable[[Item], WorkResult]


def run(
    pipeline: Pipeline,
    items: Iterable[Any] | Assignment,
    seed: int = 0,
    recorder: Recorder | None = None,
    timeout_s: float = 300.0,
) -> Timeline:
    """Run the pipeline on real items and return its timeline. The results of the last stage are discarded.

    The timeline has the lanes and kinds of `simulate`, in seconds from the start of the run. Stages without `fn` sleep
    for the times that `simulate` draws from the same seed, and pass items on unchanged; `items` must then have a
    length. Spans are written to `recorder`, if there is one, and have its rank.

    An `Assignment` is run on all of its ranks at once, each with its own workers, in lock-step as in `simulate`. The
    argument of the first stage is an index of the rank or, if the assignment has a loader, an array with the indices of
    a batch. Spans have the rank.

    Each worker is a thread. If the stage has `processes`, the thread hands its items to a process of its own, which is
    forked from this one. Items are pickled; arrays, of at most 1 GiB per item, pass through shared memory. A process
    that needs more than `timeout_s` for an item is an error.

    An error in a stage stops the run. It is raised as StageError, which names the stage and the item, with the error
    itself as its cause. So are errors of `items`, and processes that die or hang. After an error or Ctrl-C, no process
    is left, and no thread except one that is still inside `fn` or `items` 5 s later; otherwise `items` is closed if it
    is a generator. However this process ends, those of the stages end with it. Raises ValueError if the arguments
    cannot be run.
    """
    of_type("pipeline", pipeline, Pipeline)
    seed = whole("seed", seed, *SEEDS)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    recorder = Recorder() if recorder is None else of_type("recorder", recorder, Recorder)
    execution = _Execution(timeout_s)
    if isinstance(items, Assignment):
        items_of_ranks = of_ranks(items)
        check_lockstep(pipeline, len(items_of_ranks))
        target: Target = Nowhere()
        if len(items_of_ranks) > 1:
            target = Barrier(execution.lines, len(items_of_ranks))
        for rank, rank_items in enumerate(items_of_ranks):
            source = UserItems(rank_items.values, rank_items.numbers.tolist())
            execution.add_path(pipeline, source, rank_items, target, seed, recorder.for_rank(rank))
        ranks = range(len(items_of_ranks))
    else:
        values = iter(_iterable(items))
        known_items = counted(len(items)) if isinstance(items, Sized) else None
        execution.add_path(pipeline, UserItems(values), known_items, Nowhere(), seed, recorder)
        execution.values = values
        ranks = range(recorder.rank, recorder.rank + 1)
    begin_s = execution.run()
    # Only the spans of this run; the recorder may also have those of other runs and ranks.
    spans = recorder.timeline().select(rank=ranks, between_s=(begin_s, time.perf_counter()))
    lanes = [lane for stage in pipeline.stages for lane in stage.lanes()]
    kinds = [stage.name for stage in pipeline.stages]
    return spans.shifted(-begin_s).named(lanes, kinds)  # in the order of the stages, also those without a span


def _iterable(items: Any) -> Iterable[Any]:
    if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
        raise ValueError(f"items must be something that can be iterated over, got {items!r}")
    return items  # type: ignore[no-any-return]


class StageError(RuntimeError):
    """A stage failed. `stage` is its name, and `item` is the number of the item that it worked on, or None."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would call the class with the message alone
        return type(self), (str(self), self.stage, self.item), self.__dict__


class _Execution:
    """One run: its threads, its processes, and the error that ended it."""

    def __init__(self, timeout_s: float) -> None:
        self.lines = Lines()
        self.values: Iterable[Any] = ()
        self._timeout_s = timeout_s
        self._processes: list[Process] = []
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._num_left = 0  # threads that have not ended
        self._over: SimpleQueue[StageError | None] = SimpleQueue()  # gets an entry at the end, or at an error

    def add_path(
        self,
        pipeline: Pipeline,
        source: Source,
        items: Items | None,
        last_target: Target,
        seed: int,
        recorder: Recorder,
    ) -> None:
        """Add the workers of all stages for the items of a rank; `items` is None if their number is unknown."""
        for position, stage in enumerate(pipeline.stages):
            times_s: list[float] = []
            if stage.fn is None:
                if items is None:
                    raise ValueError(f"items must have a length where a stage sleeps, as {stage.name!r} does, got none")
                times_s = stage.times_s(items, seed, recorder.rank, position).tolist()
            channel = Channel(self.lines, stage.capacity)
            is_last = position == len(pipeline.stages) - 1
            station = _Station(stage, recorder, self.lines, source, last_target if is_last else channel)
            source = channel
            for worker, lane in enumerate(stage.lanes()):
                self._workers.append(_Worker(station, worker, lane, times_s))

    def run(self) -> float:
        """Run everything, and return when it began, in seconds of `time.perf_counter`."""
        self._num_left = len(self._workers)
        try:
            for worker in self._workers:  # processes are forked before there are threads
                arguments = (worker, self._work_of(worker))
                self._threads.append(threading.Thread(target=self._work, args=arguments, name=worker.lane, daemon=True))
            begin_s = time.perf_counter()
            for thread in self._threads:
                thread.start()
            error = self._over.get()
            if error is not None:
                raise error
        finally:
            error = None  # its traceback refers to this frame, so a reference from here would be a cycle
            self._end()
        return begin_s

    def _end(self) -> None:
        """Stop what still runs, and wait for the threads, `_GRACE_S` for all of them."""
        self.lines.stop()
        for process in self._processes:
            process.end()
        deadline_s = time.monotonic() + _GRACE_S
        for thread in self._threads:
            if thread.ident:  # it was started
                thread.join(max(deadline_s - time.monotonic(), 0))
        if isinstance(self.values, Generator) and not self.values.gi_running:
            self.values.close()

    def _work(self, worker: _Worker, work: Work) -> None:
        """Be the thread of a worker: work on items until there are no more, or until the run is stopped."""
        try:
            worker.station.work_through(worker, work)
        except Stopped:
            pass
        except BaseException as error:
            failed = error
            if not isinstance(error, StageError):
                failed = StageError(f"recorder failed: {type(error).__name__}: {error}", "recorder", None)
                failed.__cause__ = error
            self._over.put(failed)
            del failed
        with self._lock:
            self._num_left -= 1
            if self._num_left == 0:
                self._over.put(None)

    def _work_of(self, worker: _Worker) -> Work:
        """Return what a worker does with each item: ask its process, call the stage's function, or sleep."""
        stage = worker.station.stage
        if stage.fn is None:
            return _work_of_sleeping(worker.times_s)
        if not stage.processes:
            return _work_of_function(stage.fn)
        process = Process(stage.fn, self._timeout_s)
        self._processes.append(process)
        return lambda item: process.call(item.value)


class _Worker(NamedTuple):
    """A worker of a stage: its number, the lane of its spans, and the times for which it sleeps."""

    station: _Station
    number: int
    lane: str
    times_s: list[float]


class _Station:
    """A stage on one rank: where its items come from and go to, and how many of its workers have not ended."""

    def __init__(self, stage: Stage, recorder: Recorder, lines: Lines, source: Source, target: Target) -> None:
        self.stage = stage
        self._recorder = recorder
        self._source = source
        self._target = target
        self._turns = None  # a single worker keeps the order without them
        if stage.ordered and stage.num_workers > 1:
            self._turns = Turns(lines, stage.num_workers)
        self._lock = threading.Lock()
        self._num_left = stage.num_workers

    def work_through(self, worker: _Worker, work: Work) -> None:
        """Work on items until their end. The last worker tells the next stage that there are no more."""
        while True:
            try:
                item = self._take(worker.number)
            except End:
                break
            result = self._result(item, work)
            self._recorder.add(worker.lane, self.stage.name, item.number, result.start_ns, result.stop_ns)
            item = item._replace(value=result.value)
            if self._turns is None:
                had_to_wait = self._target.put(item)
            else:
                had_to_wait = self._turns.put(worker.number, item, self._target)
            if had_to_wait:
                self._recorder.add(worker.lane, self._target.wait, item.number, result.stop_ns, _now_ns())
        with self._lock:
            self._num_left -= 1
            if self._num_left == 0:
                self._target.end()

    def _take(self, worker: int) -> Item:
        try:
            if self._turns is None:
                return self._source.take()
            return self._turns.take(worker, self._source)
        except (End, Stopped):
            raise
        except BaseException as error:
            raise StageError(f"items failed: {type(error).__name__}: {error}", "items", None) from error

    def _result(self, item: Item, work: Work) -> WorkResult:
        try:
            return work(item)
        except BaseException as error:
            where = f"stage {self.stage.name!r} failed on item {item.number} of rank {self._recorder.rank}"
            message = f"{where}: {type(error).__name__}: {error}"
            raise StageError(message, self.stage.name, item.number) from error


def _work_of_function(fn: Callable[[Any], Any]) -> Work:
    """Return work that calls a function."""

    def work(item: Item) -> WorkResult:
        start_ns = _now_ns()
        value = fn(item.value)
        return WorkResult(value, start_ns, _now_ns())

    return work


def _work_of_sleeping(times_s: list[float]) -> Work:
    """Return work that sleeps for these times.

    Threads wake late, by 0.1 ms or more, so a worker sleeps that much less the next time.
    """
    late_ns = 0  # by which the last sleep was too long

    def work(item: Item) -> WorkResult:
        nonlocal late_ns
        start_ns = _now_ns()
        due_ns = start_ns + round(times_s[item.place] * 1e9) - late_ns
        if due_ns > start_ns:
            time.sleep((due_ns - start_ns) / 1e9)
        stop_ns = _now_ns()
        late_ns = stop_ns - due_ns
        return WorkResult(item.value, start_ns, stop_ns)

    return work
