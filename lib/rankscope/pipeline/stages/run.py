"""`run`: a pipeline executed for real, by threads and processes; the timeline is of the same kind as `simulate`'s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import count
from queue import SimpleQueue
from typing import Any

from ...common.checks import of_type, whole
from ...common.words import error_words
from ...sampling.samplers.permutation import SEEDS
from ...timeline import Recorder, Timeline
from ..processes import Process
from .stages import Pipeline, Stage

_now_ns = time.perf_counter_ns
_GRACE_S = 5.0  # for the threads that are in the middle of an item when a run is stopped


def run(pipeline: Pipeline, items: Iterable[Any], seed: int = 0, timeout_s: float = 300.0) -> Timeline:
    """Run the pipeline on real items and return its timeline. The results of the last stage are discarded.

    The timeline has the lanes and kinds of `simulate`, in seconds from the start of the run. Stages without `fn` sleep
    for the times that `simulate` draws from the same seed, and pass items on unchanged; `items` must then have a
    length.

    Each worker is a thread. If the stage has `processes`, the thread hands its items to a process of its own, which is
    forked from this one. Items are pickled; arrays, of at most 1 GiB per item, pass through shared memory. A process
    that needs more than `timeout_s` for an item is an error.

    An error in a stage stops the run. It is raised as StageError, which names the stage and the item, with the error
    itself as its cause. So are errors of `items`, and processes that die or hang. After an error or Ctrl-C, no process
    is left, and no thread except one that is still inside `fn` or `items` 5 s later. However this process ends, those
    of the stages end with it. Raises ValueError if the arguments cannot be run.
    """
    stages = of_type("pipeline", pipeline, Pipeline).stages
    if not isinstance(items, Iterable):
        raise ValueError(f"items must be iterable, such as range({items!r}), got {items!r}")
    for stage in stages:
        if stage.fn is None and not isinstance(items, Sized):
            raise ValueError(f"items must have a length where a stage sleeps, as {stage.name!r} does, got {items!r}")
    execution = _Execution(items, whole("seed", seed, *SEEDS), timeout_s)
    begin_s = execution.run(stages)
    lanes = [lane for stage in stages for lane in stage.lanes()]
    # In the order of the stages, also those without a span.
    return execution.recorder.timeline().shifted(-begin_s).named(lanes, [stage.name for stage in stages])


class StageError(RuntimeError):
    """A stage failed. `stage` is its name, and `item` is the number of the item that it worked on, or None."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item


class _Stopped(Exception):
    """The run was stopped: a thread that gets this ends."""


class _Crew:
    """The workers of a stage, and the queue to the next one. One at a time takes an item, with its number."""

    def __init__(self, stage: Stage, source: Iterator[tuple[int, Any]]) -> None:
        self.stage = stage
        self.source = source
        self.taking = threading.Lock()
        self.tickets = count()  # of the items, in the order in which they are taken
        # If the stage is ordered, a worker leaves once there is an entry in the queue of its ticket, modulo the number
        # of workers. At most that many items are in hand, so no two of them wait in one queue.
        self.turns: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(stage.num_workers)]
        self.turns[0].put(None)
        # None is the end. The results of the last stage are discarded; its queue gets an error of any stage instead.
        self.results: SimpleQueue[Any] = SimpleQueue()
        self.free_slots: SimpleQueue[Any] = SimpleQueue()  # of the results
        for _ in range(stage.capacity):
            self.free_slots.put(None)
        self.ended = count(1)  # how many workers have ended


class _Execution:
    """One run: its queues, threads and processes.

    All waiting is inside `queue.SimpleQueue`, which is written in C. So a hand-over takes a few microseconds; with
    `queue.Queue` and its condition variables it would take tens of them.
    """

    def __init__(self, items: Any, seed: int, timeout_s: float) -> None:
        self.recorder = Recorder()
        self._items = items
        self._seed = seed
        self._timeout_s = timeout_s
        self._crews: list[_Crew] = []
        self._processes: list[Process] = []
        self._is_stopped = False

    def run(self, stages: Iterable[Stage]) -> float:
        """Run everything, and return when it began, in seconds of `time.perf_counter`."""
        threads = []
        source: Iterator[tuple[int, Any]] = enumerate(self._items)
        try:
            for position, stage in enumerate(stages):
                crew = _Crew(stage, source)
                self._crews.append(crew)
                source = self._arrivals(crew)
                for lane in stage.lanes():
                    arguments = (crew, lane, self._work_of(stage, position))
                    threads.append(threading.Thread(target=self._work, args=arguments, name=lane, daemon=True))
            begin_s = time.perf_counter()
            for thread in threads:
                thread.start()
            error = crew.results.get()  # None at the end
            if error is not None:
                raise error
        finally:
            error = None  # its traceback refers to this frame, so a reference from here would be a cycle
            self._stop()
            deadline_s = time.monotonic() + _GRACE_S
            for thread in threads:
                if thread.ident:  # it was started
                    thread.join(max(deadline_s - time.monotonic(), 0))
        return begin_s

    def _stop(self) -> None:
        """End the processes, and let every thread end that waits, or comes to wait."""
        self._is_stopped = True  # before the entries below, so that a woken thread sees it
        for crew in self._crews:
            for queue in (*crew.turns, crew.results, crew.free_slots):
                queue.put(None)
        for process in self._processes:
            process.end()

    def _get(self, queue: SimpleQueue[Any]) -> tuple[Any, bool]:
        """Return the next entry of a queue, and whether it was not there yet. Raises _Stopped after `_stop`."""
        had_to_wait = queue.empty()
        entry = queue.get()
        if self._is_stopped:
            queue.put(None)  # so that the next thread that waits here wakes, too
            raise _Stopped
        return entry, had_to_wait

    def _arrivals(self, crew: _Crew) -> Iterator[tuple[int, Any]]:
        """Yield the results of a crew, and free their slots."""
        while True:
            item, _ = self._get(crew.results)
            if item is None:
                return
            crew.free_slots.put(None)
            yield item

    def _work_of(self, stage: Stage, position: int) -> Callable[[int, Any], Any]:
        """Return what a worker does with each item: ask its process, call the stage's function, or sleep."""
        fn = stage.fn
        if fn is None:
            rank = 0
            times_s = stage.times_s(len(self._items), self._seed, rank, position).tolist()
            return lambda number, value: _sleep(times_s[number], value)
        if stage.processes:
            process = Process(fn, self._timeout_s)  # forked before there are threads
            self._processes.append(process)
            fn = process.call
        return lambda number, value: fn(value)

    def _work(self, crew: _Crew, lane: str, work: Callable[[int, Any], Any]) -> None:
        """Be the thread of a worker: work on items until there are no more, or until the run is stopped."""
        stage = crew.stage
        number: int | None = None
        try:
            while True:
                number = None
                with crew.taking:
                    if self._is_stopped:
                        return
                    item = next(crew.source, None)
                    ticket = next(crew.tickets)
                if item is None:
                    break
                number, value = item
                start_ns = _now_ns()
                result = work(number, value)
                stop_ns = _now_ns()
                self.recorder.add(lane, stage.name, number, start_ns, stop_ns)
                had_to_wait = False
                if stage.ordered:
                    _, had_to_wait = self._get(crew.turns[ticket % stage.num_workers])
                if crew is not self._crews[-1]:
                    had_to_wait |= self._get(crew.free_slots)[1]
                    crew.results.put((number, result))
                if stage.ordered:
                    crew.turns[(ticket + 1) % stage.num_workers].put(None)
                if had_to_wait:
                    self.recorder.add(lane, "blocked", number, stop_ns, _now_ns())
            if next(crew.ended) == stage.num_workers:
                crew.results.put(None)
        except _Stopped:
            pass
        except BaseException as cause:
            problem = error_words(cause)
            error = StageError(f"items failed: {problem}", "items", None)
            if number is not None:
                where = f"stage {stage.name!r} failed on item {number}"
                error = StageError(f"{where}: {problem}", stage.name, number)
            error.__cause__ = cause
            self._crews[-1].results.put(error)
            del error  # its traceback refers to this frame


def _sleep(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value
