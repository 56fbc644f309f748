"""`run`: a pipeline executed for real, by threads; the timeline is of the same kind as `simulate`'s."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack
from itertools import count, islice
from queue import SimpleQueue
from typing import Any

from ...common.checks import of_type, whole
from ...common.words import error_words
from ...sampling.samplers.permutation import SEEDS
from ...timeline import Recorder, Timeline
from .stages import Pipeline, Stage

_now_ns = time.perf_counter_ns
_GRACE_S = 5.0  # for the threads that are in the middle of an item when a run is stopped


def run(pipeline: Pipeline, items: Iterable[Any], seed: int = 0) -> Timeline:
    """Run the pipeline on real items and return its timeline. The results of the last stage are discarded.

    The timeline has the lanes and kinds of `simulate`, in seconds from the start of the run. Stages without `fn` sleep
    for the times that `simulate` draws from the same seed, and pass items on unchanged; `items` must then have a
    length.

    Each worker is a thread. An error in a stage stops the run. It is raised as StageError, which names the stage and
    the item, with the error itself as its cause. So are errors of `items`. After an error or Ctrl-C, no thread is left
    except one that is still inside `fn` or `items` 5 s later. Raises ValueError if the arguments cannot be run.
    """
    stages = of_type("pipeline", pipeline, Pipeline).stages
    if not isinstance(items, Iterable):
        raise ValueError(f"items must be iterable, such as range({items!r}), got {items!r}")
    for stage in stages:
        if stage.fn is None and not isinstance(items, Sized):
            raise ValueError(f"items must have a length where a stage sleeps, as {stage.name!r} does, got {items!r}")
    seed = whole("seed", seed, *SEEDS)
    num_items = len(items) if isinstance(items, Sized) else 0  # which only stages that sleep need
    source: Iterator[tuple[int, Any]] = enumerate(items)
    outcome = _Queue()  # gets an error of any stage, or None at the end
    recorder = Recorder()
    threads: list[threading.Thread] = []
    with ExitStack() as at_end:
        at_end.callback(_join, threads)
        for position, stage in enumerate(stages):
            num_items = stage.num_results(num_items)
            times_s = [] if stage.fn else stage.times_s(num_items, seed, 0, position).tolist()
            workers = _Workers(stage, times_s, source, outcome, recorder, is_last=stage is stages[-1])
            at_end.callback(workers.stop)
            source = workers.arrivals()
            for lane in stage.lanes():
                threads.append(threading.Thread(target=workers.work, args=(lane,), name=lane, daemon=True))
        begin_s = time.perf_counter()
        for thread in threads:
            thread.start()
        error = outcome.get()
        try:
            if error is not None:
                raise error
        finally:
            error = None  # its traceback refers to this frame, so a reference from here would be a cycle
    lanes = [lane for stage in stages for lane in stage.lanes()]
    # In the order of the stages, also those without a span.
    return recorder.timeline().shifted(-begin_s).named(lanes, [stage.name for stage in stages])


def _join(threads: Iterable[threading.Thread]) -> None:
    deadline_s = time.monotonic() + _GRACE_S
    for thread in threads:
        if thread.ident:  # it was started
            thread.join(max(deadline_s - time.monotonic(), 0))


class StageError(RuntimeError):
    """A stage failed. `stage` is its name, and `item` is the number of the item that it worked on, or None."""

    def __init__(self, message: str, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item


class _Stopped(Exception):
    """The run was stopped: a thread that gets this ends."""


class _Queue(SimpleQueue[Any]):
    """A queue in which nobody waits any more, or takes anything, once it is stopped.

    SimpleQueue is written in C, so a hand-over takes a few microseconds; with `queue.Queue` and its condition variables
    it would take tens of them.
    """

    is_stopped = False

    def take(self) -> Any:
        """Wait for the next entry and return it. Raises _Stopped after `stop`."""
        entry = self.get()
        if self.is_stopped:
            self.put(None)  # so that the next thread that waits here wakes, too
            raise _Stopped
        return entry

    def wait(self) -> bool:
        """Take an entry, and return whether it was not there yet."""
        had_to_wait = self.empty()
        self.take()
        return had_to_wait

    def stop(self) -> None:
        self.is_stopped = True  # before the entry, so that a woken thread sees it
        self.put(None)


class _Turns:
    """Lets the workers of a stage hand on their results in the order of their tickets.

    An entry in the queue of a ticket, modulo the number of workers, is its turn. At most that many items are in hand,
    so no two of them wait in one queue.
    """

    def __init__(self, num_workers: int) -> None:
        self.queues = [_Queue() for _ in range(num_workers)]
        self.queues[0].put(None)

    def wait(self, ticket: int) -> bool:
        """Wait for the turn of this ticket, and return whether it had not come yet."""
        return self.queues[ticket % len(self.queues)].wait()

    def pass_on(self, ticket: int) -> None:
        """Let the ticket after this one have its turn."""
        self.queues[(ticket + 1) % len(self.queues)].put(None)


class _Workers:
    """The workers of a stage, and the queue of their results; those of the last stage are discarded."""

    def __init__(
        self,
        stage: Stage,
        times_s: Sequence[float],
        source: Iterator[tuple[int, Any]],
        outcome: _Queue,
        recorder: Recorder,
        is_last: bool,
    ) -> None:
        self.stage = stage
        self.times_s = times_s  # of the items, if the stage sleeps
        self.source = source  # of items, with their numbers
        self.outcome = outcome
        self.recorder = recorder
        self.is_last = is_last
        self.results = outcome if is_last else _Queue()  # None is the end
        self.free_slots = _Queue()  # of the results
        for _ in range(stage.capacity):
            self.free_slots.put(None)
        self.turns = _Turns(stage.num_workers)
        self.next_ticket = _Queue()  # whoever has it takes from the source; tickets count what is taken
        self.next_ticket.put(0)
        self.num_ended = count(1)

    def stop(self) -> None:
        """Let every thread end that waits, or comes to wait."""
        for queue in (self.next_ticket, *self.turns.queues, self.free_slots, self.results):
            queue.stop()

    def arrivals(self) -> Iterator[tuple[int, Any]]:
        """Yield the results at the next stage, and free their slots."""
        for result in iter(self.results.take, None):
            self.free_slots.put(None)
            yield result

    def work(self, lane: str) -> None:
        """Be the thread of a worker: work on items until there are no more, or until the run is stopped."""
        name = self.stage.name
        number: int | None = None
        try:
            while taken := self._take():
                ticket, number, value = taken
                start_ns = _now_ns()
                result = value
                if self.stage.fn is None:
                    time.sleep(self.times_s[number])
                else:
                    result = self.stage.fn(value)
                stop_ns = _now_ns()
                self.recorder.add(lane, name, number, start_ns, stop_ns)
                had_to_wait = self._hand_on(ticket, number, result)
                if had_to_wait:
                    self.recorder.add(lane, "blocked", number, stop_ns, _now_ns())
                number = None
            if next(self.num_ended) == self.stage.num_workers:
                self.results.put(None)
        except _Stopped:
            pass
        except BaseException as cause:
            problem = error_words(cause)
            error = StageError(f"items failed: {problem}", "items", None)
            if number is not None:
                error = StageError(f"stage {name!r} failed on item {number}: {problem}", name, number)
            error.__cause__ = cause
            self.outcome.put(error)
            del error  # its traceback refers to this frame

    def _take(self) -> tuple[int, int, Any] | None:
        """Return a ticket, and the next item or batch with its number; None if there are no more."""
        ticket = self.next_ticket.take()
        items = list(islice(self.source, self.stage.batch_size or 1))
        self.next_ticket.put(ticket + 1)
        if not items:
            return None
        if self.stage.batch_size:
            return ticket, ticket, [value for _, value in items]
        return ticket, *items[0]

    def _hand_on(self, ticket: int, number: int, result: Any) -> bool:
        """Hand a result to the next stage once that is possible, and return whether it was not at once."""
        had_to_wait = False
        if self.stage.ordered:
            had_to_wait = self.turns.wait(ticket)
        if not self.is_last:
            had_to_wait |= self.free_slots.wait()
            self.results.put((number, result))
        if self.stage.ordered:
            self.turns.pass_on(ticket)
        return had_to_wait
