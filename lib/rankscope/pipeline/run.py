"""`run`: a pipeline executed for real, by threads and by processes, on the same timeline that `simulate` predicts."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import chain, pairwise, product
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np

from ..common.checks import number, of_type, whole
from ..ranks.errors import WorkerError
from ..ranks.interrupts import Interrupts
from ..ranks.pool import Worker, WorkerPool
from ..ranks.worker import answer
from ..sampling.assignment import Assignment
from ..timeline import Recorder, Timeline
from .items import Items, counted, of_ranks
from .queues import End, Item, Lockstep, Queue, Source, Stopped, Turns
from .stages import Pipeline, Stage, check_lockstep

_now = time.perf_counter_ns
_GRACE_S = 5.0  # for the threads that are in the middle of an item when a run is stopped
Work = Callable[[Item], tuple[Any, int, int]]  # the result, and when it began and ended


def run(
    pipeline: Pipeline,
    items: Iterable[Any] | Assignment,
    seed: int = 0,
    recorder: Recorder | None = None,
    timeout_s: float = 300.0,
) -> Timeline:
    """Pass items through the pipeline for real and return what happened when; what the last stage gives is dropped.

    The timeline has the lanes and kinds of `simulate`, in seconds from the start of the run. Stages without `fn` sleep
    for the very times that `simulate` draws from this seed, and pass items on as they are; `items` must then have a
    length. Spans go to `recorder` where one is given, and carry its rank.

    An `Assignment` is run on all of its ranks at once, each with workers of its own, in lock-step as `simulate` has it.
    The first stage is given a rank's indices or, where the assignment has a loader, the indices of each batch as an
    array; spans carry the rank.

    Each worker is a thread; where the stage has `processes`, the thread hands its items to a process of its own. What
    goes there, `fn` first, is pickled, by value where it is of a notebook or a script; arrays and tensors pass through
    shared memory, see `ranks.shared.SharedMemoryEnd`. A process that needs more than `timeout_s` for an item is an
    error.

    An error in a stage stops everything and surfaces as StageError, which names stage and item, with the error as its
    cause; so does an error of `items` or of the recorder, and a worker process that dies or hangs. After that, and
    after Ctrl-C, no process is left, and no thread but one that is still inside a `fn` or inside `items` 5 s later;
    else `items`, where it is a generator, is closed. However this process ends, its workers end with it, and what they
    have started. Raises ValueError for what cannot be run.
    """
    of_type("pipeline", pipeline, Pipeline)
    seed = whole("seed", seed, -(2**63), 2**64 - 1)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    spans = Recorder() if recorder is None else of_type("recorder", recorder, Recorder)
    prepared = [_PipelineExecution(pipeline, items, seed, spans)]
    del spans
    with_processes = any(stage.processes and stage.fn for stage in pipeline.stages)
    with WorkerPool("torch" if "torch" in sys.modules else "") if with_processes else nullcontext() as pool:
        if pool:
            prepared[0].start_processes(pool, timeout_s)
        with Interrupts() as interrupts:  # until all that belongs to the run alone, its recorder say, is gone
            return _executed(prepared.pop(), interrupts)


def _executed(running: _PipelineExecution, interrupts: Interrupts) -> Timeline:
    begin_s = running.to_the_end(interrupts)
    spans = running.recorder.timeline().select(between_s=(begin_s, time.perf_counter()))
    mine = spans.take(np.flatnonzero(np.isin(spans.rank, [path.recorder.rank for path in running.paths])))
    lanes = [lane for stage in running.stages for lane in stage.lanes()]
    return mine.shifted(-begin_s).named(lanes, [stage.name for stage in running.stages])


class StageError(RuntimeError):
    """A stage failed: `stage` is its name, `item` the number of the item it worked on, None where it had none."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


class _Path:
    """One rank's way through the stages: its items, the queues between, and how many workers have not ended."""

    def __init__(
        self,
        stages: Sequence[Stage],
        items: Iterable[Any] | Items,
        seed: int,
        recorder: Recorder,
        step: Lockstep | None,
    ) -> None:
        own = items if isinstance(items, Items) else counted(len(items)) if isinstance(items, Sized) else None
        self.times_s: list[list[float]] = []
        for place, stage in enumerate(stages):
            if stage.fn:
                self.times_s.append([])
            elif own is not None:
                self.times_s.append(stage.times_s(own, seed, recorder.rank, place).tolist())
            else:
                where = f"where a stage sleeps, as {stage.name!r} does"
                raise ValueError(f"items must have a length {where}, got {items!r}")
        self.recorder, self.num_workers = recorder, sum(stage.num_workers for stage in stages)
        self.items = Source(items.values, items.numbers.tolist()) if isinstance(items, Items) else Source(items)
        queues = [Queue(stage.capacity, after.num_workers) for stage, after in pairwise(stages)]
        self.sources: list[Source | Queue] = [self.items, *queues]
        self.targets: list[Queue | Lockstep | None] = [*queues, step]
        self.left = [stage.num_workers for stage in stages]


class _Lane(NamedTuple):
    """What one worker's thread works with."""

    recorder: Recorder
    stage: str
    name: str
    work: Work
    target: Queue | Lockstep | None


class _PipelineExecution:
    """One run: its queues and threads, its processes, and the error that ended it."""

    def __init__(self, pipeline: Pipeline, items: Iterable[Any] | Assignment, seed: int, recorder: Recorder) -> None:
        self.stages, self.recorder = pipeline.stages, recorder
        given: list[tuple[Recorder, Iterable[Any] | Items]]
        if isinstance(items, Assignment):
            given = [(recorder.for_rank(rank), own) for rank, own in enumerate(of_ranks(items))]
        else:
            given = [(recorder, items)]
        check_lockstep(pipeline, len(given))
        self._step = Lockstep(len(given)) if len(given) > 1 else None
        self.paths = [_Path(self.stages, own, seed, spans, self._step) for spans, own in given]
        self._left = len(self.paths)  # how many of them have not ended
        self._workers: dict[tuple[_Path, int], list[Worker]] = {}  # by path and place of the stage
        self._busy: set[Worker] = set()
        self._lock, self._heard, self._wake = threading.Lock(), *multiprocessing.Pipe(duplex=False)
        self._error: StageError | None = None
        self._stopped = self._finished = False

    def start_processes(self, pool: WorkerPool, timeout_s: float) -> None:
        """Start those of all stages, and wait until they are ready."""
        for place, stage in enumerate(self.stages):
            if stage.processes and stage.fn:
                with _starting(stage):
                    name = pool.pack(partial(answer, stage.fn))
                    labels = [f"worker {worker}" for worker in range(stage.num_workers)]
                    for path in self.paths:
                        self._workers[path, place] = pool.start(name, labels, timeout_s=timeout_s)
        for (_, place), workers in self._workers.items():
            with _starting(self.stages[place]):
                for worker in workers:
                    worker.ready()

    def to_the_end(self, interrupts: Interrupts) -> float:
        """Run all of it; return when it began, in seconds of `time.perf_counter`."""
        with ExitStack() as ends:  # all of which come, the last one first
            interrupts.wake = self._wake_up
            ends.callback(setattr, interrupts, "wake", int)
            ends.callback(self._wake.close)
            ends.callback(self._heard.close)
            threads = list(self._threads())
            ends.callback(self._join, threads)
            ends.callback(self._halt)
            begin_s = time.perf_counter()
            for thread in threads:
                thread.start()
            self._supervise()
        error, self._error = self._error, None
        try:
            if error:
                raise error
        finally:
            del error  # which has this frame: a cycle
        return begin_s

    def _threads(self) -> Iterator[threading.Thread]:
        """A thread for each worker, not started yet."""
        for path, (place, stage) in product(self.paths, enumerate(self.stages)):
            source = path.sources[place]
            turns = Turns(source) if stage.ordered and stage.num_workers > 1 else None
            for lane_number, name in enumerate(stage.lanes()):
                work: Work = _call(stage.fn) if stage.fn else _sleep(path.times_s[place])
                if (path, place) in self._workers:
                    work = partial(self._ask, self._workers[path, place][lane_number])
                lane = _Lane(path.recorder, stage.name, name, work, path.targets[place])
                loop = (self._in_turn, turns) if turns else (self._as_done, source)
                yield threading.Thread(target=self._serve, args=(path, place, *loop, lane), name=name, daemon=True)

    def _ask(self, worker: Worker, item: Item) -> tuple[Any, int, int]:
        self._busy.add(worker)
        answered: tuple[Any, int, int] = worker.ask(item.value)
        self._busy.discard(worker)
        return answered

    def _serve(self, path: _Path, place: int, loop: Callable[[Any, _Lane], None], source: Any, lane: _Lane) -> None:
        """What a thread does until there are no more items or the run is stopped."""
        try:
            loop(source, lane)
        except Stopped:
            pass
        except End:
            with self._lock:
                path.left[place] -= 1
                if path.left[place]:
                    return
                ended = place == len(self.stages) - 1
                self._left -= ended
                self._finished = not self._left
            if lane.target is not None:
                lane.target.end()
            if self._finished:
                self._wake_up()
        except BaseException as error:
            self._fail(_items_failed(error), error)

    def _as_done(self, source: Source | Queue, lane: _Lane) -> None:
        target = lane.target
        while True:
            item, stop_ns = self._done(source.take(), lane)
            if target is not None and target.put(item):
                self._add(lane, target.wait, item.number, stop_ns, _now())

    def _in_turn(self, turns: Turns, lane: _Lane) -> None:
        target = lane.target
        while True:
            taken, before, own = turns.take()
            try:
                item, stop_ns = self._done(taken, lane)
                waits = not before.acquire(False)
                if waits:
                    before.acquire()
                if self._stopped:
                    raise Stopped
                if target is not None and target.put(item):
                    waits = True
                if waits:
                    self._add(lane, "blocked", item.number, stop_ns, _now())
            finally:
                own.release()

    def _done(self, item: Item, lane: _Lane) -> tuple[Item, int]:
        """The item as the stage hands it on, and when it was done."""
        try:
            value, start_ns, stop_ns = lane.work(item)
        except BaseException as error:
            self._fail(self._failed(lane.recorder, lane.stage, item.number, error), error)
            raise Stopped from None
        self._add(lane, lane.stage, item.number, start_ns, stop_ns)
        return Item(item.place, item.number, value), stop_ns

    def _failed(self, recorder: Recorder, stage: str, number: int | None, error: BaseException) -> StageError:
        name = f"stage {stage!r}" + (f" of rank {recorder.rank}" if self._step else "")
        when = "between items" if number is None else f"on item {number}"
        what = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        return StageError(f"{name} failed {when}: {what}", stage, number)

    def _add(self, lane: _Lane, kind: str, number: int, start_ns: int, stop_ns: int) -> None:
        try:
            lane.recorder.add(lane.name, kind, number, start_ns, stop_ns)
        except BaseException as error:
            self._fail(StageError(f"recorder failed: {type(error).__name__}: {error}", "recorder", number), error)
            raise Stopped from None

    def _supervise(self) -> None:
        """Wait for the end, for an error, for Ctrl-C or for the death of a process."""
        alive: dict[Any, tuple[_Path, int]] = {one: key for key, workers in self._workers.items() for one in workers}
        ready: list[Any] = []
        while self._heard not in ready:
            # again each second: a signal that comes just before the waiting begins is heard after it only
            ready = list(wait([self._heard, *alive], 1.0))
            for worker in alive.keys() & ready:
                if worker.listen() and worker.code is not None:
                    path, place = alive.pop(worker)
                    worker.terminate()  # its thread, if it has an item there, fails on that
                    if worker not in self._busy:
                        error = WorkerError(worker.exit_report())
                        self._fail(self._failed(path.recorder, self.stages[place].name, None, error), error)

    def _fail(self, error: StageError, cause: BaseException | None) -> None:
        """Stop everything; the first error is the one that is raised."""
        with self._lock:
            if self._stopped or self._finished:
                return
            self._stopped = True
            self._error, error.__cause__ = error, cause
        self._stop()
        self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # closed: all is over
            self._wake.send(None)

    def _stop(self) -> None:
        self._stopped = True
        for path in self.paths:
            for source in path.sources:
                source.stop(path.num_workers)
        if self._step:
            self._step.stop()

    def _halt(self) -> None:
        if not self._finished:
            self._stop()
            for worker in chain(*self._workers.values()):
                worker.terminate()

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + _GRACE_S
        for thread in threads:
            if thread.ident:
                thread.join(max(deadline - time.monotonic(), 0))
        try:
            for path in self.paths:
                path.items.close()
        except BaseException as error:
            self._fail(_items_failed(error), error)


@contextlib.contextmanager
def _starting(stage: Stage) -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        raise StageError(f"stage {stage.name!r} failed before its first item: {error}", stage.name, None) from error
    except Exception as error:  # whatever pickling raises
        problem = f"fn of stage {stage.name!r} must be a function that can be sent to a process, got {stage.fn!r}"
        raise ValueError(f"{problem}: {error}") from error


def _call(fn: Callable[[Any], Any]) -> Work:
    def work(item: Item) -> tuple[Any, int, int]:
        start_ns = _now()
        result = fn(item.value)
        return result, start_ns, _now()

    return work


def _sleep(times_s: list[float]) -> Work:
    """Sleep for these times. Threads wake late, by 0.1 ms or more: a worker sleeps the less the next time."""
    late_ns = 0

    def work(item: Item) -> tuple[Any, int, int]:
        nonlocal late_ns
        start_ns = _now()
        due_ns = start_ns + round(times_s[item.place] * 1e9) - late_ns
        if due_ns > start_ns:
            time.sleep((due_ns - start_ns) / 1e9)
        stop_ns = _now()
        late_ns = stop_ns - due_ns
        return item.value, start_ns, stop_ns

    return work


def _items_failed(error: BaseException) -> StageError:
    return StageError(f"items failed: {type(error).__name__}: {error}", "items", None)
