"""`record_steps`: training steps on one device, from loader to optimizer, recorded by us and by torch.profiler."""

from __future__ import annotations

import contextlib
import operator
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from ..timeline import Recorder, Span, Timeline
from ..values.checks import of_type, whole
from .agreement import GPU, GPU_COPIES, H2D, PHASES, STREAM, RecordedSteps
from .batches import leaves, mapped
from .prefetch import COPY, Cuda, Prefetched, prefetched

_now = time.perf_counter_ns
_NUM_READINGS = 5  # readings of the profiler's clock before and after the steps
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_NONE = object()
PREFIX = "rankscope: "
CLOCK = f"{PREFIX}clock"
_WORK = {"kernel": "kernel", "gpu_memset": "memset"}  # by the trace's categories
_COPIES = {"Memcpy HtoD": H2D, "Memcpy DtoH": "d2h"}  # by how the trace's names begin
Reading = tuple[float, float, float]  # seconds before a range "rankscope: clock", in it, and after it


def record_steps(
    loader: Iterable[Any],
    module: torch.nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    device: str | torch.device = "cpu",
    num_batches: int | None = None,
) -> RecordedSteps:
    """Train on the loader's batches, all or the first `num_batches`, and return what both recorders saw.

    A batch is a pair of inputs and targets. A step has five phases: "load" gets the batch from the loader, "copy" moves
    it to the device, "forward" is ``loss(module(inputs), targets)``, "backward" computes the gradients, "optimizer" is
    its step and `zero_grad`. Each phase is a torch.profiler range inside a span of ours. A GPU runs behind the host, so
    CUDA events before and after each phase time it there, too.

    If `loader` is `prefetched` for the device, its batches have already been copied: there is no phase "copy", and on a
    GPU the copies have their own lane. The loader's iterator is created, and its workers started, before the recording.

    Raises ValueError for invalid arguments, for a module that is not on the device and for a loader without batches.
    Errors of loader, module, loss and optimizer are passed on.

    >>> module = torch.nn.Linear(4, 1)
    >>> batches = [(torch.ones(8, 4), torch.ones(8, 1))] * 3
    >>> sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> recorded = record_steps(batches, module, torch.nn.functional.mse_loss, sgd)
    >>> [len(recorded.ours.select(kind=kind)) for kind in ("load", "copy", "forward", "backward", "optimizer")]
    [3, 3, 3, 3, 3]
    >>> recorded.agreement().check()
    """
    there = prefetched(loader, device)  # which checks them both
    own = loader if isinstance(loader, Prefetched) else None
    if own is not None and own.device != there.device:
        raise ValueError(f"device must be that of the prefetched loader, {str(own.device)!r}, got {device!r}")
    of_type("module", module, torch.nn.Module)
    of_type("optimizer", optimizer, torch.optim.Optimizer)
    if not callable(loss):
        raise ValueError(f"loss must be a function of outputs and targets, got {loss!r}")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device != there.device:
            raise ValueError(f"module must be on {str(there.device)!r}, and its {name} is on {str(tensor.device)!r}")
    most = None if num_batches is None else whole("num_batches", num_batches, 1)
    if own is None:
        return _Run(module, loss, optimizer, there.device, there.cuda).recorded(loader, most, copies=True)
    run = _Run(module, loss, optimizer, own.device, own.cuda)
    watched = Prefetched(own.loader, own.cuda, own.num_ahead, run.copies if own.cuda else None)
    return run.recorded(watched, most, copies=False)


@dataclass
class _Run:
    """One recording: what is trained, and what has been recorded so far."""

    module: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    device: torch.device
    cuda: Cuda | None
    host: Recorder = field(default_factory=Recorder)
    copies: Recorder = field(default_factory=Recorder)  # a prefetcher's
    events: list[tuple[str, int, Any, Any]] = field(default_factory=list)  # before and after a phase
    readings: list[Reading] = field(default_factory=list)

    def recorded(self, loader: Iterable[Any], most: int | None, copies: bool) -> RecordedSteps:
        batches = iter(loader)
        read = self.cuda.clock() if self.cuda else None
        wanted = {ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])}
        activities = wanted & supported_activities()  # type: ignore[no-untyped-call]
        with contextlib.ExitStack() as ends:
            if not self.cuda and _LOG_LEVEL not in os.environ:
                os.environ[_LOG_LEVEL] = "6"  # otherwise the profiler logs each start and stop on stderr
                ends.callback(os.environ.pop, _LOG_LEVEL, None)
            profiler = ends.enter_context(profile(activities=activities, acc_events=True))
            self._read_clock()
            num_steps = self._train(batches, most, copies)
            self._read_clock()
        if not num_steps:
            raise ValueError("loader must give at least one batch, got none")
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "trace.json"))
            profiler.export_chrome_trace(path)
            theirs, clock_s = read_steps(path, self.readings)
        ours = Timeline.concat([self.host.timeline(), *(self._on_gpu(read) if read else [])])
        ours, theirs = (_without_end(spans, num_steps).shifted(-ours.begin_s) for spans in (ours, theirs))
        return RecordedSteps(ours, theirs, clock_s)

    def _train(self, batches: Iterator[Any], most: int | None, copies: bool) -> int:
        """Train, wait for the device, and return the number of batches."""
        num_steps = 0
        try:
            while num_steps != most:
                with self._phase("load", num_steps, None):
                    batch = next(batches, _NONE)
                if batch is _NONE:
                    break
                self._step(num_steps, batch, copies)
                num_steps += 1
        finally:
            if hasattr(batches, "close"):
                batches.close()
        if self.events:
            self.events[-1][-1].synchronize()
        return num_steps

    def _step(self, item: int, batch: Any, copies: bool) -> None:
        if not isinstance(batch, Sequence) or len(batch) != 2:
            raise ValueError(f"a batch must be a pair of inputs and targets, got {type(batch).__name__}")
        inputs, targets = batch
        if copies:
            with self._phase("copy", item, self.cuda):
                inputs, targets = mapped((inputs, targets), lambda leaf: leaf.to(self.device, non_blocking=True))
            if self.cuda and all(map(operator.is_, leaves((inputs, targets)), leaves(tuple(batch)))):
                self.events.pop()  # nothing had to be copied
        with self._phase("forward", item, self.cuda):
            value = self.loss(self.module(inputs), targets)
        with self._phase("backward", item, self.cuda):
            value.backward()  # type: ignore[no-untyped-call]
        with self._phase("optimizer", item, self.cuda):
            self.optimizer.step()
            self.optimizer.zero_grad()

    @contextlib.contextmanager
    def _phase(self, kind: str, item: int, cuda: Cuda | None) -> Iterator[None]:
        begin = cuda.mark(True) if cuda else None
        with self.host.span(kind, kind, item), record_function(f"{PREFIX}{kind}"):
            yield
        if cuda:
            self.events.append((kind, item, begin, cuda.mark(True)))

    def _read_clock(self) -> None:
        """Record the position of profiler ranges on our clock."""
        for _ in range(_NUM_READINGS):
            before_ns = _now()
            with record_function(CLOCK):
                inside_ns = _now()
            self.readings.append((before_ns / 1e9, inside_ns / 1e9, _now() / 1e9))

    def _on_gpu(self, read: Callable[[Any], int]) -> list[Timeline]:
        """The phases as the device ran them, and the copies of a prefetcher."""
        steps = []
        for kind, item, begin, end in self.events:
            begin_s, end_s = read(begin) / 1e9, read(end) / 1e9
            steps.append(Span(0, GPU, kind, item, begin_s, max(begin_s, end_s)))
        copies = (span._replace(lane=GPU_COPIES) for span in self.copies.timeline().select(kind=COPY))
        return [Timeline.of(steps), Timeline.of(copies)]


def _without_end(timeline: Timeline, num_steps: int) -> Timeline:
    """All spans except the load that found no further batch."""
    is_load = np.array([kind == "load" for kind in timeline.kinds], dtype=bool)[timeline.kind]
    return timeline.take(np.flatnonzero(~(is_load & (timeline.item == num_steps))))


# ---- the profiler's trace


def read_steps(path: str | os.PathLike[str], readings: Sequence[Reading]) -> tuple[Timeline, float]:
    """Return the phases and the GPU's work from a trace, on the clock of `readings`, and the clock's uncertainty.

    A range "rankscope: clock" starts between the first and the second time of its reading, and ends between the second
    and the third. Together these ranges bound how far the trace's clock is ahead. Raises RuntimeError if the trace does
    not have as many of these ranges as there are readings, ValueError if it cannot be read.
    """
    spans, names = (Timeline.from_chrome_trace(path, kind) for kind in ("category", "name"))  # same spans, same order
    sort, words = (np.array(one.kinds, dtype=object)[one.kind] for one in (spans, names))
    ranges = np.flatnonzero(sort == "user_annotation")
    ranges = ranges[np.argsort(spans.start_s[ranges], kind="stable")]
    ahead_s, clock_s = _offset_s(spans.take(ranges[words[ranges] == CLOCK]), readings)
    rows = []
    for phase in PHASES:
        for item, place in enumerate(ranges[words[ranges] == f"{PREFIX}{phase}"]):
            rows.append(Span(0, phase, phase, item, spans.start_s[place], spans.stop_s[place]))
    for place in range(len(spans)):
        kind = _WORK.get(sort[place])
        if sort[place] == "gpu_memcpy":
            kind = next((kind for begin, kind in _COPIES.items() if words[place].startswith(begin)), "d2d")
        if kind:
            lane = STREAM + spans[place].lane.rpartition("stream")[2].strip()
            rows.append(Span(0, lane, kind, -1, spans.start_s[place], spans.stop_s[place]))
    return Timeline.of(rows).shifted(ahead_s), clock_s


def _offset_s(ranges: Timeline, readings: Sequence[Reading]) -> tuple[float, float]:
    """The offset to add to the trace's times, and its uncertainty."""
    if len(ranges) != len(readings) or not readings:
        raise RuntimeError(f"torch.profiler recorded {len(ranges)} of {len(readings)} ranges that set its clock")
    before_s, inside_s, after_s = np.array(sorted(readings)).T
    least = np.max([before_s - ranges.start_s, inside_s - ranges.stop_s])
    most = np.min([inside_s - ranges.start_s, after_s - ranges.stop_s])
    return float(least + most) / 2, abs(float(most - least)) / 2
