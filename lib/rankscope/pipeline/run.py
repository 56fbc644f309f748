"""`run`: a pipeline executed for real, by threads and by processes, on the same timeline that `simulate` predicts."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Sized
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ..checks import whole
from ..timeline import Recorder, Timeline
from .processes import StageError, Worker
from .queues import End, Item, Queue, Source, Stopped, Turns
from .service import draw
from .shared import delete_folder, shared_folder
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
    cause; so does an error of `items`. A worker process that dies surfaces as WorkerDied. After that, and after Ctrl-C,
    no process is left, and no thread but one that is still inside a `fn` 5 s later. Raises ValueError for what cannot
    be run.
    """
    seed = whole("seed", seed, -(2**63), 2**64 - 1)
    spans = Recorder() if recorder is None else recorder
    running = _Run(pipeline, items, seed, spans)
    begin_s = running.to_the_end(multiprocessing.get_context(start_method))
    mine = spans.timeline().select(rank=spans.rank, between_s=(begin_s, time.perf_counter()))
    lanes = [lane for stage in pipeline.stages for lane in stage.lanes()]
    return mine.shifted(-begin_s).named(lanes, [stage.name for stage in pipeline.stages])


class _Run:
    """One run: its queues and threads, its processes, and the error that ended it."""

    def __init__(self, pipeline: Pipeline, items: Iterable[Any], seed: int, recorder: Recorder) -> None:
        self._stages, self._add = pipeline.stages, recorder.add
        self._times_s = [_times(stage, items, seed, recorder.rank, n) for n, stage in enumerate(self._stages)]
        takers = [stage.num_workers for stage in self._stages]
        queues = [Queue(stage.capacity, num) for stage, num in zip(self._stages, takers[1:], strict=False)]
        self._sources: list[Source | Queue] = [Source(items), *queues]
        self._targets: list[Queue | None] = [*queues, None]
        self._left = takers  # how many workers of each stage have not ended
        self._workers: list[Worker] = []
        self._lock, self._heard, self._wake = threading.Lock(), *multiprocessing.Pipe(duplex=False)
        self._error: StageError | None = None
        self._stopped = self._finished = False

    def to_the_end(self, context: Any) -> float:
        """Run all of it; return when it began, in seconds of `time.perf_counter`."""
        with_processes = any(stage.processes and stage.fn for stage in self._stages)
        folder = shared_folder() if with_processes else None
        threads: list[threading.Thread] = []
        try:
            threads += self._threads(context, folder)
            begin_s = time.perf_counter()
            for thread in threads:
                thread.start()
            self._supervise()
        finally:
            self._halt(threads)
            if folder:
                delete_folder(folder)
        if self._error:
            raise self._error
        return begin_s

    def _threads(self, context: Any, folder: Path | None) -> list[threading.Thread]:
        """A thread for each worker, not started yet; the processes are: one should not fork beside running threads."""
        threads = []
        for place, (stage, source) in enumerate(zip(self._stages, self._sources, strict=True)):
            turns = Turns(source) if stage.ordered and stage.num_workers > 1 else None
            for number, lane in enumerate(stage.lanes()):
                work: Work = _call(stage.fn) if stage.fn else _sleep(self._times_s[place])
                if stage.processes and stage.fn and folder:
                    own = folder / f"{place}-{number}"
                    work = Worker(context, stage.name, number, stage.fn, own, self._workers)
                    self._workers.append(work)
                loop = (self._in_turn, turns) if turns else (self._as_done, source)
                arguments = (place, *loop, stage.name, lane, work, self._targets[place])
                threads.append(threading.Thread(target=self._serve, args=arguments, name=lane, daemon=True))
        return threads

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
            self._fail(StageError(f"items failed: {type(error).__name__}: {error}", "items", None), error)

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
                value, start_ns, stop_ns = work(number, value)
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
            except Stopped:
                raise
            except BaseException as error:
                self._fail(_failed(name, number, error), error)
                raise Stopped from None
            finally:
                own.release()

    def _supervise(self) -> None:
        """Wait for the end, for an error or for the death of a process."""
        processes = {worker.process.sentinel: worker for worker in self._workers}
        while self._heard not in (ready := wait([self._heard, *processes])):
            for sentinel in ready:
                self._fail(processes[sentinel].died(), None)

    def _end(self, target: Queue | None) -> None:
        if target is not None:
            target.end()
        else:
            self._finished = True
            self._wake.send(None)

    def _fail(self, error: StageError, cause: BaseException | None) -> None:
        """Stop everything; the first error is the one that is told."""
        with self._lock:
            if self._stopped or self._finished:
                return
            self._error, error.__cause__ = error, cause
        self._stop()
        self._wake.send(None)

    def _stop(self) -> None:
        self._stopped = True
        for source in self._sources:
            source.stop(sum(stage.num_workers for stage in self._stages))

    def _halt(self, threads: list[threading.Thread]) -> None:
        if not self._finished:
            self._stop()
            for worker in self._workers:
                worker.process.kill()
        deadline = time.monotonic() + _GRACE_S
        for thread in threads:
            if thread.ident:
                thread.join(max(deadline - time.monotonic(), 0))
        for worker in self._workers:
            worker.close()
        self._heard.close()
        self._wake.close()


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


def _failed(name: str, number: int, error: BaseException) -> StageError:
    if isinstance(error, StageError):
        return error
    return StageError(f"stage {name!r} failed on item {number}: {type(error).__name__}: {error}", name, number)
