"""`run`: a pipeline executed for real, by threads and processes; the timeline is of the same kind as `simulate`'s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import count
from queue import SimpleQueue
from types import GeneratorType
from typing import Any

from ..common.checks import number, of_type, whole
from ..sampling.permutation import SEEDS
from ..timeline import Recorder, Timeline
from .lines import Channel, Item, Lines, Stopped, Turn, round_of_turns
from .processes import Process, WorkResult
from .stages import Pipeline, Stage

_now_ns = time.perf_counter_ns
_GRACE_S = 5.0  # for the threads that are in the middle of an item when a run is stopped

Work = Callable[[Item], WorkResult]


def run(
    pipeline: Pipeline,
    items: Iterable[Any],
    seed: int = 0,
    recorder: Recorder | None = None,
    timeout_s: float = 300.0,
) -> Timeline:
    """Run the pipeline on real items and return its timeline. The results of the last stage are discarded.

    The timeline has the lanes and kinds of `simulate`, in seconds from the start of the run. Stages without `fn` sleep
    for the times that `simulate` draws from the same seed, and pass items on unchanged; `items` must then have a
    length. Spans are written to `recorder`, if there is one, and have its rank.

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
    if not isinstance(items, Iterable):
        raise ValueError(f"items must be something that can be iterated over, got {items!r}")
    times_of_stages = []
    for position, stage in enumerate(pipeline.stages):
        times_s: list[float] = []
        if stage.fn is None:
            if not isinstance(items, Sized):
                raise ValueError(
                    f"items must have a length where a stage sleeps, as {stage.name!r} does, got {items!r}"
                )
            rank = 0 if recorder is None else recorder.rank
            times_s = stage.times_s(len(items), whole("seed", seed, *SEEDS), rank, position).tolist()
        times_of_stages.append(times_s)
    recorder = Recorder() if recorder is None else of_type("recorder", recorder, Recorder)
    execution = _Execution(recorder, number("timeout_s", timeout_s, above=0, high=10**6))
    begin_s = execution.run(pipeline, items, times_of_stages)
    # Only the spans of this run; the recorder may also have those of other runs and ranks.
    spans = recorder.timeline().select(rank=recorder.rank, between_s=(begin_s, time.perf_counter()))
    lanes = [lane for stage in pipeline.stages for lane in stage.lanes()]
    kinds = [stage.name for stage in pipeline.stages]
    return spans.shifted(-begin_s).named(lanes, kinds)  # in the order of the stages, also those without a span


class StageError(RuntimeError):
    """A stage failed. `stage` is its name, and `item` is the number of the item that it worked on, or None."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item


class _Execution:
    """One run: its queues, threads and processes."""

    def __init__(self, recorder: Recorder, timeout_s: float) -> None:
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._lines = Lines()
        self._processes: list[Process] = []
        self._over: SimpleQueue[StageError | None] = SimpleQueue()  # gets an entry at the end, or at an error

    def run(self, pipeline: Pipeline, items: Iterable[Any], times_of_stages: list[list[float]]) -> float:
        """Run everything, and return when it began, in seconds of `time.perf_counter`."""
        values = iter(items)
        threads = []
        source: Iterator[Item] = map(Item, count(), values)
        try:
            for stage, times_s in zip(pipeline.stages, times_of_stages, strict=True):
                channel = Channel(self._lines, stage.capacity)
                target = None if stage is pipeline.stages[-1] else channel
                to_take = round_of_turns(self._lines, stage.num_workers)
                to_leave = round_of_turns(self._lines, stage.num_workers)
                if not stage.ordered:  # one worker at a time takes an item, and each leaves when it wants
                    to_take = round_of_turns(self._lines, 1) * stage.num_workers
                    to_leave = [round_of_turns(self._lines, 1)[0] for _ in to_leave]
                ended = count(1)
                for place, lane in enumerate(stage.lanes()):
                    work = self._work_of(stage, times_s)
                    arguments = (stage, lane, work, source, target, to_take[place], to_leave[place], ended)
                    threads.append(threading.Thread(target=self._work, args=arguments, name=lane, daemon=True))
                source = channel
            begin_s = time.perf_counter()
            for thread in threads:
                thread.start()
            error = self._over.get()
            if error is not None:
                raise error
        finally:
            error = None  # its traceback refers to this frame, so a reference from here would be a cycle
            self._lines.stop()
            for process in self._processes:
                process.end()
            deadline_s = time.monotonic() + _GRACE_S
            for thread in threads:
                if thread.ident:  # it was started
                    thread.join(max(deadline_s - time.monotonic(), 0))
            if isinstance(values, GeneratorType) and not values.gi_running:
                values.close()
        return begin_s

    def _work_of(self, stage: Stage, times_s: list[float]) -> Work:
        """Return what a worker does with each item: ask its process, call the stage's function, or sleep."""
        if stage.fn is None:
            return _work_of_sleeping(times_s)
        if not stage.processes:
            return _work_of_function(stage.fn)
        process = Process(stage.fn, self._timeout_s)  # forked before there are threads
        self._processes.append(process)
        return lambda item: process.call(item.value)

    def _work(
        self,
        stage: Stage,
        lane: str,
        work: Work,
        source: Iterator[Item],
        target: Channel | None,
        to_take: Turn,
        to_leave: Turn,
        ended: count[int],
    ) -> None:
        """Be the thread of a worker: work on items until there are no more, or until the run is stopped.

        The last stage has no target. `ended` counts the workers of the stage that have ended.
        """
        item: Item | None = None
        try:
            while True:
                self._lines.get(to_take.mine)
                item = None
                try:
                    item = next(source, None)
                finally:
                    to_take.next.put(None)
                if item is None:
                    break
                result = work(item)
                self._recorder.add(lane, stage.name, item.number, result.start_ns, result.stop_ns)
                _, had_to_wait = self._lines.get(to_leave.mine)
                if target is not None:
                    had_to_wait |= target.put(item._replace(value=result.value))
                to_leave.next.put(None)
                if had_to_wait:
                    self._recorder.add(lane, "blocked", item.number, result.stop_ns, _now_ns())
            if next(ended) < stage.num_workers:
                return
            if target is None:
                self._over.put(None)
            else:
                target.end()
        except Stopped:
            pass
        except BaseException as cause:
            problem = f"{type(cause).__name__}: {cause}"
            error = StageError(f"items failed: {problem}", "items", None)
            if item is not None:
                where = f"stage {stage.name!r} failed on item {item.number}"
                error = StageError(f"{where}: {problem}", stage.name, item.number)
            error.__cause__ = cause
            self._over.put(error)
            del error  # its traceback refers to this frame


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
        due_ns = start_ns + round(times_s[item.number] * 1e9) - late_ns
        if due_ns > start_ns:
            time.sleep((due_ns - start_ns) / 1e9)
        stop_ns = _now_ns()
        late_ns = stop_ns - due_ns
        return WorkResult(item.value, start_ns, stop_ns)

    return work
