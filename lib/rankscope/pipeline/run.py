"""`run`: a pipeline executed for real, by threads and by processes, on the same timeline that `simulate` predicts."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ..timeline import Recorder, Timeline
from ..values.checks import of_type, one_of, whole
from ..workers.interrupts import Interrupts
from ..workers.lifelines import Lifeline
from ..workers.shared import delete_folder, shared_folder
from .processes import StageError, Worker
from .queues import End, Item, Queue, Source, Stopped, Turns
from .service import draw
from .stages import Pipeline, Stage

_now = time.perf_counter_ns
_GRACE_S = 5.0  # for the threads that are in the middle of an item when a run is stopped
Work = Callable[[int, Any], tuple[Any, int, int]]


def run(
    pipeline: Pipeline,
    items: Iterable[Any],
    seed: int = 0,
    recorder: Recorder | None = None,
    start_method: str | None = None,
) -> Timeline:
    """Pass items through the pipeline for real and return what happened when; what the last stage gives is dropped.

    The timeline has the lanes and kinds of `simulate`, in seconds from the start of the run. Stages without `fn` sleep
    for the very times that `simulate` draws from this seed, and pass items on as they are; `items` must then have a
    length. Spans go to `recorder` where one is given, and carry its rank.

    Each worker is a thread; where the stage has `processes`, the thread hands its items to a process of its own. Those
    are started by `start_method`, "fork", "forkserver" or "spawn", by default the one that Python prefers; as with a
    DataLoader's workers, "fork" alone takes a `fn` that is no function of a module. Arrays and tensors pass to and from
    processes through shared memory; see `shared.Exchange`.

    An error in a stage stops everything and surfaces as StageError, which names stage and item, with the error as its
    cause; so does an error of `items` or of the recorder. A worker process that dies surfaces as WorkerDied. After
    that, and after Ctrl-C, no process is left, and no thread but one that is still inside a `fn` or inside `items` 5 s
    later; else `items`, where it is a generator, is closed. However this process ends, its workers end with it. Raises
    ValueError for what cannot be run.
    """
    of_type("pipeline", pipeline, Pipeline)
    seed = whole("seed", seed, -(2**63), 2**64 - 1)
    if start_method is not None:
        one_of("start_method", start_method, tuple(multiprocessing.get_all_start_methods()))
    context = multiprocessing.get_context(start_method)
    spans = None if recorder is None else of_type("recorder", recorder, Recorder)
    prepared = [_Run(pipeline, items, seed, spans)]
    with Interrupts() as interrupts:  # until all that belongs to the run alone, its recorder say, is gone
        return _executed(prepared.pop(), context, interrupts)


def _executed(running: _Run, context: Any, interrupts: Interrupts) -> Timeline:
    begin_s = running.to_the_end(context, interrupts)
    spans, stages = running.recorder, running.stages
    mine = spans.timeline().select(rank=spans.rank, between_s=(begin_s, time.perf_counter()))
    lanes = [lane for stage in stages for lane in stage.lanes()]
    return mine.shifted(-begin_s).named(lanes, [stage.name for stage in stages])


class _Run:
    """One run: its queues and threads, its processes, and the error that ended it."""

    def __init__(self, pipeline: Pipeline, items: Iterable[Any], seed: int, recorder: Recorder | None) -> None:
        self.stages, self.recorder = pipeline.stages, recorder or Recorder()
        self._times_s = [_times(stage, items, seed, self.recorder.rank, n) for n, stage in enumerate(self.stages)]
        takers = [stage.num_workers for stage in self.stages]
        queues = [Queue(stage.capacity, num) for stage, num in zip(self.stages, takers[1:], strict=False)]
        self._items = Source(items)
        self._sources: list[Source | Queue] = [self._items, *queues]
        self._targets: list[Queue | None] = [*queues, None]
        self._left = takers  # how many workers of each stage have not ended
        self._workers: list[Worker] = []
        self._lifeline: Lifeline | None = None
        self._lock, self._heard, self._wake = threading.Lock(), *multiprocessing.Pipe(duplex=False)
        self._error: StageError | None = None
        self._stopped = self._finished = False

    def to_the_end(self, context: Any, interrupts: Interrupts) -> float:
        """Run all of it; return when it began, in seconds of `time.perf_counter`."""
        threads: list[threading.Thread] = []
        with ExitStack() as ends:  # all of which come, the last one first
            folder, interrupts.wake = None, self._wake_up
            ends.callback(setattr, interrupts, "wake", int)
            if any(stage.processes and stage.fn for stage in self.stages):
                folder = shared_folder()
                ends.callback(delete_folder, folder)
            ends.callback(self._close)
            ends.callback(self._join, threads)
            ends.callback(self._halt)
            for thread in self._threads(context, folder):
                threads.append(thread)
                if interrupts.raised:
                    return 0.0
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

    def _threads(self, context: Any, folder: Path | None) -> Iterator[threading.Thread]:
        """A thread for each worker, not started yet; the processes are: one should not fork beside running threads."""
        lifeline = self._lifeline = Lifeline(folder) if folder else None
        for place, (stage, source) in enumerate(zip(self.stages, self._sources, strict=True)):
            turns = Turns(source) if stage.ordered and stage.num_workers > 1 else None
            for number, lane in enumerate(stage.lanes()):
                work: Work = _call(stage.fn) if stage.fn else _sleep(self._times_s[place])
                if stage.processes and stage.fn and folder and lifeline:
                    own = folder / f"{place}-{number}"
                    work = Worker(context, stage.name, number, stage.fn, own, lifeline, self._workers)
                    self._workers.append(work)
                loop = (self._in_turn, turns) if turns else (self._as_done, source)
                arguments = (place, *loop, stage.name, lane, work, self._targets[place])
                yield threading.Thread(target=self._serve, args=arguments, name=lane, daemon=True)

    def _serve(self, place: int, loop: Callable[..., None], *arguments: Any) -> None:
        """What a thread does until there are no more items or the run is stopped."""
        try:
            loop(*arguments)
        except Stopped:
            pass
        except End:
            with self._lock:
                self._left[place] -= 1
                last = not self._left[place]
            if last:
                self._end(self._targets[place])
        except BaseException as error:
            self._fail(_items_failed(error), error)

    def _as_done(self, source: Source | Queue, name: str, lane: str, work: Work, target: Queue | None) -> None:
        add = self._add
        while True:
            number, value = source.take()
            try:
                value, start_ns, stop_ns = work(number, value)
            except BaseException as error:
                self._fail(_failed(name, number, error), error)
                raise Stopped from None
            add(lane, name, number, start_ns, stop_ns)
            if target is not None and not target.put_at_once(Item(number, value)):
                target.put(Item(number, value))
                add(lane, "blocked", number, stop_ns, _now())

    def _in_turn(self, turns: Turns, name: str, lane: str, work: Work, target: Queue | None) -> None:
        add = self._add
        while True:
            (number, value), before, own = turns.take()
            try:
                try:
                    value, start_ns, stop_ns = work(number, value)
                except BaseException as error:
                    self._fail(_failed(name, number, error), error)
                    raise Stopped from None
                add(lane, name, number, start_ns, stop_ns)
                at_once = before.acquire(False)
                if not at_once:
                    before.acquire()
                if self._stopped:
                    raise Stopped
                if target is not None and not target.put_at_once(Item(number, value)):
                    at_once = False
                    target.put(Item(number, value))
                if not at_once:
                    add(lane, "blocked", number, stop_ns, _now())
            finally:
                own.release()

    def _add(self, lane: str, kind: str, number: int, start_ns: int, stop_ns: int) -> None:
        try:
            self.recorder.add(lane, kind, number, start_ns, stop_ns)
        except BaseException as error:
            self._fail(StageError(f"recorder failed: {type(error).__name__}: {error}", "recorder", number), error)
            raise Stopped from None

    def _supervise(self) -> None:
        """Wait for the end, for an error, for Ctrl-C or for the death of a process."""
        workers: dict[Any, Worker] = {worker.death: worker for worker in self._workers}
        # again each second: a signal that comes just before the waiting begins is heard after it only
        while self._heard not in (ready := wait([self._heard, *workers], 1.0)):
            for death in ready:
                self._fail(workers[death].died(), None)

    def _end(self, target: Queue | None) -> None:
        if target is not None:
            target.end()
        else:
            self._finished = True
            self._wake_up()

    def _fail(self, error: StageError, cause: BaseException | None) -> None:
        """Stop everything; the first error is the one that is told."""
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
        for source in self._sources:
            source.stop(sum(stage.num_workers for stage in self.stages))

    def _halt(self) -> None:
        if not self._finished:
            self._stop()
            for worker in self._workers:
                worker.kill()

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + _GRACE_S
        for thread in threads:
            if thread.ident:
                thread.join(max(deadline - time.monotonic(), 0))
        try:
            self._items.close()
        except BaseException as error:
            self._fail(_items_failed(error), error)

    def _close(self) -> None:
        with ExitStack() as ends:
            ends.callback(self._wake.close)
            ends.callback(self._heard.close)
            if self._lifeline:
                ends.callback(self._lifeline.cut)
            for worker in self._workers:
                ends.callback(worker.close)


def _call(fn: Callable[[Any], Any]) -> Work:
    def work(number: int, value: Any) -> tuple[Any, int, int]:
        start_ns = _now()
        result = fn(value)
        return result, start_ns, _now()

    return work


def _times(stage: Stage, items: Iterable[Any], seed: int, rank: int, place: int) -> list[float]:
    """How long a stage without fn sleeps for each item."""
    if stage.fn:
        return []
    if not isinstance(items, Sized):
        raise ValueError(f"items must have a length where a stage sleeps, as {stage.name!r} does, got {items!r}")
    times_s: list[float] = draw(
        f"service_s of stage {stage.name!r}", stage.known_service_s, len(items), seed, rank, place
    ).tolist()
    return times_s


def _sleep(times_s: list[float]) -> Work:
    """Sleep for these times. Threads wake late, by 0.1 ms or more: a worker sleeps the less the next time."""
    late_ns = 0

    def work(number: int, value: Any) -> tuple[Any, int, int]:
        nonlocal late_ns
        start_ns = _now()
        due_ns = start_ns + round(times_s[number] * 1e9) - late_ns
        if due_ns > start_ns:
            time.sleep((due_ns - start_ns) / 1e9)
        stop_ns = _now()
        late_ns = stop_ns - due_ns
        return value, start_ns, stop_ns

    return work


def _items_failed(error: BaseException) -> StageError:
    return StageError(f"items failed: {type(error).__name__}: {error}", "items", None)


def _failed(name: str, number: int, error: BaseException) -> StageError:
    if isinstance(error, StageError):
        return error
    return StageError(f"stage {name!r} failed on item {number}: {type(error).__name__}: {error}", name, number)
