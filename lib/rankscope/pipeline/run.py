"""`run`: a pipeline executed for real, by threads and processes; the timeline is of the same kind as `simulate`'s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, NamedTuple

from ..common.checks import number, of_type, whole
from ..sampling.assignment import Assignment
from ..sampling.permutation import SEEDS
from ..timeline import Recorder, Timeline
from .items import Items, counted, of_ranks
from .processes import Process, WorkResult
from .queues import End, Item, Lockstep, Queue, Source, Stopped, Turns
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
    itself as its cause. So are errors of `items` and of the recorder, and processes that die or hang. After an error or
    Ctrl-C, no process is left, and no thread except one that is still inside `fn` or `items` 5 s later; otherwise
    `items` is closed if it is a generator. However this process ends, those of the stages end with it. Raises
    ValueError if the arguments cannot be run.
    """
    of_type("pipeline", pipeline, Pipeline)
    seed = whole("seed", seed, *SEEDS)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    recorder = Recorder() if recorder is None else of_type("recorder", recorder, Recorder)
    execution = _PipelineExecution(pipeline, items, seed, recorder, timeout_s)
    begin_s = execution.run_all()
    # Only the spans of this run; the recorder may also have those of other runs and ranks.
    spans = recorder.timeline().select(between_s=(begin_s, time.perf_counter()))
    spans = spans.select(rank=[path.recorder.rank for path in execution.paths])
    lanes = [lane for stage in pipeline.stages for lane in stage.lanes()]
    kinds = [stage.name for stage in pipeline.stages]
    return spans.shifted(-begin_s).named(lanes, kinds)  # in the order of the stages, also those without a span


class StageError(RuntimeError):
    """A stage failed. `stage` is its name, and `item` is the number of the item that it worked on, or None."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would call the class with the message alone
        return type(self), (str(self), self.stage, self.item), self.__dict__


class _Path:
    """One rank's path through the stages: its items, the queues between, and how many workers have not ended."""

    def __init__(
        self,
        stages: Sequence[Stage],
        items: Iterable[Any] | Items,
        seed: int,
        recorder: Recorder,
        step: Lockstep | None,
    ) -> None:
        known_items: Items | None = None
        if isinstance(items, Items):
            known_items = items
        elif isinstance(items, Sized):
            known_items = counted(len(items))
        self.times_s: list[list[float]] = []  # for each stage, the times for which it sleeps; none if it has a function
        for position, stage in enumerate(stages):
            if stage.fn:
                self.times_s.append([])
            elif known_items is not None:
                self.times_s.append(stage.times_s(known_items, seed, recorder.rank, position).tolist())
            else:
                where = f"where a stage sleeps, as {stage.name!r} does"
                raise ValueError(f"items must have a length {where}, got {items!r}")
        self.recorder = recorder
        self.num_workers = sum(stage.num_workers for stage in stages)
        self.items = Source(items.values, items.numbers.tolist()) if isinstance(items, Items) else Source(items)
        queues = [Queue(stage.capacity, next_stage.num_workers) for stage, next_stage in pairwise(stages)]
        # Where each stage takes its items from, and where it puts its results; None discards them.
        self.sources: list[Source | Queue] = [self.items, *queues]
        self.targets: list[Queue | Lockstep | None] = [*queues, step]
        self.num_left = [stage.num_workers for stage in stages]  # workers of each stage that have not ended


class _Lane(NamedTuple):
    """One worker: the recorder, stage and lane of its spans, its work, and where it puts its results."""

    recorder: Recorder
    stage: str
    name: str
    work: Work
    target: Queue | Lockstep | None


class _PipelineExecution:
    """One run: its queues and threads, its processes, and the error that ended it."""

    def __init__(
        self,
        pipeline: Pipeline,
        items: Iterable[Any] | Assignment,
        seed: int,
        recorder: Recorder,
        timeout_s: float,
    ) -> None:
        self.stages = pipeline.stages
        ranks: list[tuple[Recorder, Iterable[Any] | Items]]
        if isinstance(items, Assignment):
            ranks = [(recorder.for_rank(rank), rank_items) for rank, rank_items in enumerate(of_ranks(items))]
        else:
            ranks = [(recorder, items)]
        check_lockstep(pipeline, len(ranks))
        self._step = Lockstep(len(ranks)) if len(ranks) > 1 else None
        self.paths = [_Path(self.stages, rank_items, seed, spans, self._step) for spans, rank_items in ranks]
        self._num_left = len(self.paths)  # paths that have not ended
        self._timeout_s = timeout_s
        self._processes: list[Process] = []
        self._lock = threading.Lock()
        self._over: SimpleQueue[None] = SimpleQueue()  # gets an entry when all items have passed, or at an error
        self._error: StageError | None = None
        self._stopped = False  # by an error or by Ctrl-C
        self._finished = False  # all items have passed all stages

    def run_all(self) -> float:
        """Run everything, and return when it began, in seconds of `time.perf_counter`."""
        threads: list[threading.Thread] = []
        with ExitStack() as cleanup:  # its callbacks run in any case, the last one first
            cleanup.callback(self._join, threads)
            cleanup.callback(self._halt)
            threads += self._threads()
            begin_s = time.perf_counter()
            for thread in threads:
                thread.start()
            self._over.get()
        error = self._error
        self._error = None
        try:
            if error:
                raise error
        finally:
            del error  # its traceback refers to this frame, so a reference from here would be a cycle
        return begin_s

    def _threads(self) -> Iterator[threading.Thread]:
        """Yield a thread for each worker, not started yet, and start the processes."""
        for path in self.paths:
            for position, stage in enumerate(self.stages):
                source = path.sources[position]
                turns = None  # a single worker keeps the order without them
                if stage.ordered and stage.num_workers > 1:
                    turns = Turns(source)
                for name in stage.lanes():
                    work = self._work(path, position)
                    lane = _Lane(path.recorder, stage.name, name, work, path.targets[position])
                    if turns is None:
                        loop = partial(self._work_as_done, source, lane)
                    else:
                        loop = partial(self._work_in_turn, turns, lane)
                    arguments = (path, position, loop, lane)
                    yield threading.Thread(target=self._run_worker, args=arguments, name=name, daemon=True)

    def _work(self, path: _Path, position: int) -> Work:
        """Return what a worker does with each item: ask its process, call the stage's function, or sleep."""
        stage = self.stages[position]
        if stage.fn is None:
            return _work_of_sleeping(path.times_s[position])
        if not stage.processes:
            return _work_of_function(stage.fn)
        try:
            process = Process(stage.fn, self._timeout_s)
        except OSError as error:
            problem = f"stage {stage.name!r} failed before its first item: {error}"
            raise StageError(problem, stage.name, None) from error
        self._processes.append(process)
        return lambda item: process.call(item.value)

    def _run_worker(self, path: _Path, position: int, loop: Callable[[], None], lane: _Lane) -> None:
        """Run a worker's loop until there are no more items or the run is stopped."""
        try:
            loop()
        except Stopped:
            pass
        except End:
            self._end_worker(path, position, lane)
        except BaseException as error:  # of `items`: those of the work and of the recorder arrive here as Stopped
            self._stop_with(_items_failed(error), error)

    def _end_worker(self, path: _Path, position: int, lane: _Lane) -> None:
        """Note that a worker has no more items. The last one of a stage ends the next stage, or else the path."""
        with self._lock:
            path.num_left[position] -= 1
            if path.num_left[position]:
                return
            is_last_stage = position == len(self.stages) - 1
            if is_last_stage:
                self._num_left -= 1
            self._finished = self._num_left == 0
        if lane.target is not None:
            lane.target.end()
        if self._finished:
            self._over.put(None)

    def _work_as_done(self, source: Source | Queue, lane: _Lane) -> None:
        """Work on items, and hand each on when it is done, until the source raises End or something Stopped."""
        target = lane.target
        while True:
            item, stop_ns = self._work_on(source.take(), lane)
            if target is None:
                continue
            had_to_wait = target.put(item)
            if had_to_wait:
                self._add_span(lane, target.wait, item.number, stop_ns, _now_ns())

    def _work_in_turn(self, turns: Turns, lane: _Lane) -> None:
        """Work on items, and hand each on after those that were taken before it, until End or Stopped is raised."""
        target = lane.target
        while True:
            turn = turns.take()
            try:
                item, stop_ns = self._work_on(turn.item, lane)
                is_its_turn = turn.previous_has_left.acquire(blocking=False)  # tried first, to know if this waits
                if not is_its_turn:
                    turn.previous_has_left.acquire()
                if self._stopped:  # then the item before has perhaps not left, because its worker failed
                    raise Stopped
                waited_for_slot = target is not None and target.put(item)
                if waited_for_slot or not is_its_turn:
                    # Never at a barrier: in lock-step, the last stage has one worker, which takes no turns.
                    self._add_span(lane, "blocked", item.number, stop_ns, _now_ns())
            finally:  # also after an error, or the worker with the next item would wait for ever
                turn.has_left.release()

    def _work_on(self, item: Item, lane: _Lane) -> tuple[Item, int]:
        """Work on an item; return its result as an item, and when it was done."""
        try:
            result = lane.work(item)
        except BaseException as error:
            self._stop_with(self._stage_error(lane.recorder, lane.stage, item.number, error), error)
            raise Stopped from None
        self._add_span(lane, lane.stage, item.number, result.start_ns, result.stop_ns)
        return Item(item.position, item.number, result.value), result.stop_ns

    def _stage_error(self, recorder: Recorder, stage: str, number: int, error: BaseException) -> StageError:
        name = f"stage {stage!r}"
        if self._step:
            name += f" of rank {recorder.rank}"
        return StageError(f"{name} failed on item {number}: {type(error).__name__}: {error}", stage, number)

    def _add_span(self, lane: _Lane, kind: str, number: int, start_ns: int, stop_ns: int) -> None:
        try:
            lane.recorder.add(lane.name, kind, number, start_ns, stop_ns)
        except BaseException as error:
            self._stop_with(StageError(f"recorder failed: {type(error).__name__}: {error}", "recorder", number), error)
            raise Stopped from None

    def _stop_with(self, error: StageError, cause: BaseException) -> None:
        """Stop everything; the first error is the one that is raised, unless all items have passed before it."""
        with self._lock:
            if self._stopped or self._finished:
                return
            self._stopped = True
            self._error = error
            error.__cause__ = cause
        self._stop()
        self._over.put(None)

    def _stop(self) -> None:
        """Wake all threads that wait for an item, a slot or other ranks; they end at once, the others after an item."""
        self._stopped = True
        for path in self.paths:
            for source in path.sources:
                source.stop(path.num_workers)  # no more threads than these can wait for it
        if self._step:
            self._step.stop()

    def _halt(self) -> None:
        """Stop the threads, unless all items have passed, and end the processes."""
        if not self._finished:
            self._stop()
        for process in self._processes:
            process.end()

    def _join(self, threads: list[threading.Thread]) -> None:
        """Wait for the threads, `_GRACE_S` for all of them, and close `items` if they are a generator.

        A generator that still has items may raise an error when it is closed. By then `_halt` has stopped the run, and
        `_stop_with` would drop the error. So it is a note on the error that stopped the run or, if there is none, as
        after Ctrl-C, the error of the run.
        """
        deadline = time.monotonic() + _GRACE_S
        for thread in threads:
            if thread.ident:  # it was started; starting one of them can fail
                thread.join(max(deadline - time.monotonic(), 0))
        try:
            # Only one can fail: if there are several paths, their items are sequences of an assignment, not generators.
            for path in self.paths:
                path.items.close()
        except BaseException as error:
            items_error = _items_failed(error)
            if self._error is None:
                self._error = items_error
                self._error.__cause__ = error
            else:
                self._error.add_note(str(items_error))
            del items_error  # the traceback of its cause refers to this frame, so a reference would be a cycle


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
        due_ns = start_ns + round(times_s[item.position] * 1e9) - late_ns
        if due_ns > start_ns:
            time.sleep((due_ns - start_ns) / 1e9)
        stop_ns = _now_ns()
        late_ns = stop_ns - due_ns
        return WorkResult(item.value, start_ns, stop_ns)

    return work


def _items_failed(error: BaseException) -> StageError:
    return StageError(f"items failed: {type(error).__name__}: {error}", "items", None)
