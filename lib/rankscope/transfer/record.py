"""`record_steps`: training steps recorded by us and by torch.profiler, and how well the two agree."""

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

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from ..common.checks import count_of, function, number, of_type, whole
from ..common.frozen import checked, frozen
from ..common.units import time_words
from ..timeline import Recorder, Span, Timeline
from ..timeline.timeline import Times
from .batches import leaves, mapped
from .prefetch import COPY, Prefetched, PrefetchGpu, prefetched

PHASES = ("load", "copy", "forward", "backward", "optimizer")
GPU, GPU_COPIES = "GPU", "GPU copies"  # our lanes: the stream of the steps, and that of the copies
STREAM = "GPU stream "  # plus its number: lanes of the profiler
H2D = "h2d"  # the kind of the profiler's copies from the host
TOLERANCE_S = 1e-4
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
    function("loss", loss, "of outputs and targets")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device != there.device:
            raise ValueError(f"module must be on {str(there.device)!r}, and its {name} is on {str(tensor.device)!r}")
    most = None if num_batches is None else whole("num_batches", num_batches, 1)
    if own is None:
        return _StepsRecording(module, loss, optimizer, there.device, there.cuda).recorded(loader, most, copies=True)
    run = _StepsRecording(module, loss, optimizer, own.device, own.cuda)
    watched = Prefetched(own.loader, own.cuda, own.num_ahead, run.copies if own.cuda else None)
    return run.recorded(watched, most, copies=False)


@dataclass
class _StepsRecording:
    """One recording: what is trained, and what has been recorded so far."""

    module: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    device: torch.device
    cuda: PrefetchGpu | None
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
    def _phase(self, kind: str, item: int, cuda: PrefetchGpu | None) -> Iterator[None]:
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


# ---- how well two recordings agree


class DisagreementError(ValueError):
    """Two recordings of the same steps contradict each other."""


@attrs.frozen
class PhaseAgreement:
    """One phase in both recordings: our spans, and the profiler's range (or GPU work) for each.

    `reach_s` is how far a range extends beyond our span at most, 0 if none does. `coverage` is the share of our spans'
    time that the ranges fill. `unmatched` are the items that one recording lacks or has more than once.
    """

    lane: str
    kind: str
    num_ours: int
    num_profiler: int
    unmatched: tuple[int, ...]
    reach_s: float
    coverage: float

    @property
    def name(self) -> str:
        """The phase, with its lane if that has another name."""
        return self.kind if self.lane == self.kind else f"{self.kind} on lane {self.lane!r}"

    def __str__(self) -> str:
        counts = f"{count_of(self.num_ours, 'span')} and {count_of(self.num_profiler, 'range')}"
        return f"{self.name}: {counts}, which fill {self.coverage * 100:.1f} % of them"


@attrs.frozen
class Agreement:
    """The result of `RecordedSteps.agreement`: one entry per phase and lane."""

    phases: tuple[PhaseAgreement, ...]
    clock_s: float

    def check(self, tolerance_s: float = TOLERANCE_S) -> None:
        """Raise DisagreementError unless each span has exactly one profiler range, which lies inside it.

        A range may extend beyond its span by `tolerance_s` plus the uncertainty of the clocks.
        """
        within_s = number("tolerance_s", tolerance_s, 0) + self.clock_s
        found = []
        for phase in self.phases:
            if phase.unmatched:
                counts = f"{phase.num_ours} and {phase.num_profiler} in all"
                found.append(
                    f"{phase.name}: not one span and one range of {', '.join(map(str, phase.unmatched))}, but {counts}"
                )
            if phase.reach_s > within_s:
                found.append(f"{phase.name}: a range reaches {time_words(phase.reach_s)} out of our span")
        if found:
            raise DisagreementError("; ".join(found))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.phases), f"clocks known to {time_words(self.clock_s)}"])


@frozen(eq=False)
class RecordedSteps:
    """The same steps recorded twice, in seconds from the start of the first step; created by `record_steps`.

    `ours` has a lane and a kind for each of `PHASES` on the host; with a GPU also a lane "GPU" and, if batches are
    prefetched, "GPU copies", with the same kinds. `profiler` has torch.profiler's ranges of the phases on the same
    lanes, and every kernel and copy of the GPU, one lane per stream, such as "GPU stream 7". Items are step numbers;
    the profiler's kernels and copies have none. `clock_s` is the uncertainty of the offset between the two clocks.
    """

    ours: Timeline = checked(Timeline)
    profiler: Timeline = checked(Timeline)
    clock_s: float = checked(number, 0)

    def agreement(self) -> Agreement:
        """Compare the two recordings phase by phase.

        On the host, the profiler's range of a step is compared with our span of it. On the GPU, each kernel and copy
        belongs to our span in which it ran, or to the nearest one; copies from the host go to a span of copies if one
        is near.

        >>> from rankscope.timeline import Span
        >>> ours = Timeline.of([Span(0, "load", "load", 0, 0.0, 8.0), Span(0, "load", "load", 1, 9.0, 17.0)])
        >>> theirs = Timeline.of([Span(0, "load", "load", 0, 2.0, 8.0), Span(0, "load", "load", 1, 11.0, 17.0)])
        >>> print(RecordedSteps(ours, theirs, 0.0).agreement())
        load: 2 spans and 2 ranges, which fill 75.0 % of them
        clocks known to 0 s
        >>> RecordedSteps(ours, theirs.shifted(1.0), 0.0).agreement().check()
        Traceback (most recent call last):
        rankscope.transfer.record.DisagreementError: load: a range reaches 1000 ms out of our span
        """
        ours, theirs = self.ours, self.profiler
        phases = [
            _of_host(ours.select(lane=phase, kind=phase), theirs.select(lane=phase, kind=phase), phase)
            for phase in PHASES
            if phase in ours.lanes or phase in theirs.lanes
        ]
        return Agreement((*phases, *_of_gpu(ours, theirs, self.clock_s + TOLERANCE_S)), self.clock_s)


def _of_host(ours: Timeline, theirs: Timeline, phase: str) -> PhaseAgreement:
    (items, counts), (others, other_counts) = (np.unique(one.item, return_counts=True) for one in (ours, theirs))
    once = np.intersect1d(items[counts == 1], others[other_counts == 1])
    unmatched = np.setdiff1d(np.union1d(items, others), once)
    orders = (np.argsort(spans.item, kind="stable") for spans in (ours, theirs))
    mine, other = (spans.take(o[np.isin(spans.item[o], once)]) for spans, o in zip((ours, theirs), orders, strict=True))
    return _phase(phase, phase, ours, mine, (other.start_s, other.stop_s), len(theirs), unmatched, other.busy_s)


def _of_gpu(ours: Timeline, theirs: Timeline, slack_s: float) -> Iterator[PhaseAgreement]:
    """For each lane and kind: our spans, and the GPU work in each, from the first start to the last end."""
    own = [place for place, lane in enumerate(ours.lanes) if lane in (GPU, GPU_COPIES)]
    streams = [place for place, lane in enumerate(theirs.lanes) if lane.startswith(STREAM)]
    spans = ours.take(np.flatnonzero(np.isin(ours.lane, own)))
    work = theirs.take(np.flatnonzero(np.isin(theirs.lane, streams)))
    if len(work) and not len(spans):
        raise DisagreementError(f"the profiler saw {len(work)} kernels and copies on the GPU, and we nothing")
    owner = _owners(spans, work, slack_s)
    for lane, kind in dict.fromkeys((span.lane, span.kind) for span in spans):
        places = np.flatnonzero((spans.lane == spans.lanes.index(lane)) & (spans.kind == spans.kinds.index(kind)))
        busy = places[np.isin(places, owner)]
        start_s = np.array([work.start_s[owner == place].min() for place in busy])
        stop_s = np.array([work.stop_s[owner == place].max() for place in busy])
        idle = np.setdiff1d(spans.item[places], spans.item[busy])
        run_s = work.take(np.flatnonzero(np.isin(owner, places))).busy_s
        yield _phase(lane, kind, spans.take(places), spans.take(busy), (start_s, stop_s), len(busy), idle, run_s)


def _owners(spans: Timeline, work: Timeline, slack_s: float) -> NDArray[np.int64]:
    """The index of the span that each kernel or copy belongs to: among those within `slack_s`, one of its kind."""
    is_copy = np.array([kind == "copy" for kind in spans.kinds])[spans.kind]
    owner = np.zeros(len(work), dtype=np.int64)
    for place in range(len(work)):
        middle_s = (work.start_s[place] + work.stop_s[place]) / 2
        away_s = np.maximum(np.maximum(spans.start_s - middle_s, middle_s - spans.stop_s), 0.0)
        other_sort = is_copy != (work.kinds[work.kind[place]] == H2D)
        owner[place] = np.lexsort((away_s, other_sort, np.maximum(away_s, slack_s)))[0]
    return owner


def _phase(
    lane: str,
    kind: str,
    ours: Timeline,
    mine: Timeline,
    theirs: tuple[Times, Times],
    num_theirs: int,
    unmatched: NDArray[np.int64],
    busy_s: float,
) -> PhaseAgreement:
    """The figures of our spans (`mine`) and as many of the profiler's, in the same order."""
    reach_s = float(np.max([0.0, *(mine.start_s - theirs[0]), *(theirs[1] - mine.stop_s)]))
    whole_s = float((mine.stop_s - mine.start_s).sum())
    coverage = busy_s / whole_s if whole_s else 1.0
    return PhaseAgreement(lane, kind, len(ours), num_theirs, tuple(unmatched.tolist()), reach_s, coverage)
