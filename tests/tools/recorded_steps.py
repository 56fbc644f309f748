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
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities
from torch.utils._pytree import tree_leaves, tree_map_only

from rankscope.common.checks import count_of, function, number, of_type, whole
from rankscope.common.frozen import checked, frozen
from rankscope.common.units import time_words
from rankscope.timeline import Recorder, Span, Timeline
from rankscope.timeline.timeline import Times
from rankscope.transfer.prefetch import COPY, Prefetched, PrefetchGpu, prefetched

PHASES = ("load", "copy", "forward", "backward", "optimizer")
GPU = "GPU"  # our lane of the stream of the steps
GPU_COPIES = "GPU copies"  # our lane of the copy stream
STREAM = "GPU stream "  # plus its number: lanes of the profiler
H2D = "h2d"  # the kind of the profiler's copies from the host
TOLERANCE_S = 1e-4  # by which the two recordings of a phase may differ, plus the uncertainty of the clocks
_now = time.perf_counter_ns
_NUM_READINGS = 5  # readings of the profiler's clock before and after the steps
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_LOG_ERRORS = "6"  # at a lower level the profiler logs each start and stop on stderr
_NO_BATCH = object()
PREFIX = "rankscope: "  # of our ranges in the profiler's trace
CLOCK = f"{PREFIX}clock"
_WORK = {"kernel": "kernel", "gpu_memset": "memset"}  # kinds, by the trace's categories
_COPIES = {"Memcpy HtoD": H2D, "Memcpy DtoH": "d2h"}  # kinds, by the beginnings of the trace's names


class TraceClockReading(NamedTuple):
    """Our clock in seconds before a range "rankscope: clock" of the profiler, in it, and after it."""

    before_s: float
    inside_s: float
    after_s: float


class _PhaseEvents(NamedTuple):
    """A phase of a step on the GPU, with the CUDA events before and after it."""

    kind: str
    item: int
    begin: Any
    end: Any


def record_steps(
    loader: Iterable[Any],
    module: torch.nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    device: str | torch.device = "cpu",
    num_batches: int | None = None,
) -> RecordedSteps:
    """Train on the loader's batches, all or the first `num_batches`, and return both recordings.

    A batch is a pair of inputs and targets. A step has five phases: "load" gets the batch from the loader, "copy" moves
    it to the device, "forward" is ``loss(module(inputs), targets)``, "backward" computes the gradients, "optimizer" is
    its step and `zero_grad`. Each phase is a torch.profiler range inside one of our spans. Because a GPU runs behind
    the host, CUDA events before and after each phase also time it on the GPU.

    If `loader` is `prefetched` for the device, its batches have already been copied, so there is no phase "copy", and
    on a GPU the copies have their own lane. The loader's iterator is created, and its workers started, before the
    recording.

    Raises ValueError if an argument is invalid, the module is not on the device, or the loader has no batches. Errors
    of loader, module, loss and optimizer are passed on.

    >>> module = torch.nn.Linear(4, 1)
    >>> batches = [(torch.ones(8, 4), torch.ones(8, 1))] * 3
    >>> sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> recorded = record_steps(batches, module, torch.nn.functional.mse_loss, sgd)
    >>> [len(recorded.ours.select(kind=kind)) for kind in ("load", "copy", "forward", "backward", "optimizer")]
    [3, 3, 3, 3, 3]
    >>> recorded.agreement().check()
    """
    on_device = prefetched(loader, device)  # which checks both arguments
    if isinstance(loader, Prefetched) and loader.device != on_device.device:
        raise ValueError(f"device must be that of the prefetched loader, {str(loader.device)!r}, got {device!r}")
    of_type("module", module, torch.nn.Module)
    of_type("optimizer", optimizer, torch.optim.Optimizer)
    function("loss", loss, "of outputs and targets")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device != on_device.device:
            expected = f"module must be on {str(on_device.device)!r}"
            raise ValueError(f"{expected}, and its {name} is on {str(tensor.device)!r}")
    if num_batches is not None:
        num_batches = whole("num_batches", num_batches, 1)
    if isinstance(loader, Prefetched):
        recording = _StepsRecording(module, loss, optimizer, loader.device, loader.cuda)
        copies = recording.copies if loader.cuda else None
        recorded_loader = Prefetched(loader.loader, loader.cuda, loader.num_ahead, copies)
        return recording.recorded(recorded_loader, num_batches, copies=False)
    recording = _StepsRecording(module, loss, optimizer, on_device.device, on_device.cuda)
    return recording.recorded(loader, num_batches, copies=True)


@dataclass
class _StepsRecording:
    """One recording: the objects that are trained, and the recordings so far."""

    module: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    device: torch.device
    cuda: PrefetchGpu | None
    host: Recorder = field(default_factory=Recorder)
    copies: Recorder = field(default_factory=Recorder)  # of a prefetcher
    events: list[_PhaseEvents] = field(default_factory=list)
    readings: list[TraceClockReading] = field(default_factory=list)

    def recorded(self, loader: Iterable[Any], num_batches: int | None, copies: bool) -> RecordedSteps:
        """Train and return both recordings; with `copies`, a step has a phase "copy"."""
        batches = iter(loader)
        read = self.cuda.clock() if self.cuda else None
        activities = {ProfilerActivity.CPU}
        if self.cuda:
            activities.add(ProfilerActivity.CUDA)
        activities &= supported_activities()  # type: ignore[no-untyped-call]
        with contextlib.ExitStack() as ends:
            if not self.cuda and _LOG_LEVEL not in os.environ:
                os.environ[_LOG_LEVEL] = _LOG_ERRORS
                ends.callback(os.environ.pop, _LOG_LEVEL, None)
            profiler = ends.enter_context(profile(activities=activities, acc_events=True))
            self._read_clock()
            num_steps = self._train(batches, num_batches, copies)
            self._read_clock()
        if not num_steps:
            raise ValueError("loader must give at least one batch, got none")
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "trace.json"))
            profiler.export_chrome_trace(path)
            theirs, clock_s = read_steps(path, self.readings)
        timelines = [self.host.timeline()]
        if read is not None:
            timelines += self._on_gpu(read)
        ours = Timeline.concat(timelines)
        begin_s = ours.begin_s
        return RecordedSteps(
            ours=_without_end(ours, num_steps).shifted(-begin_s),
            profiler=_without_end(theirs, num_steps).shifted(-begin_s),
            clock_s=clock_s,
        )

    def _train(self, batches: Iterator[Any], num_batches: int | None, copies: bool) -> int:
        """Train, wait for the device, and return the number of steps."""
        num_steps = 0
        try:
            while num_steps != num_batches:
                with self._phase("load", num_steps, None):
                    batch = next(batches, _NO_BATCH)
                if batch is _NO_BATCH:
                    break
                self._step(num_steps, batch, copies)
                num_steps += 1
        finally:
            if hasattr(batches, "close"):
                batches.close()
        if self.events:
            self.events[-1].end.synchronize()
        return num_steps

    def _step(self, item: int, batch: Any, copies: bool) -> None:
        if not isinstance(batch, Sequence) or len(batch) != 2:
            raise ValueError(f"a batch must be a pair of inputs and targets, got {type(batch).__name__}")
        inputs, targets = batch
        if copies:
            with self._phase("copy", item, self.cuda):
                inputs, targets = tree_map_only(torch.Tensor, self._moved, (inputs, targets))
            if self.cuda and all(map(operator.is_, tree_leaves((inputs, targets)), tree_leaves(tuple(batch)))):
                self.events.pop()  # nothing had to be copied
        with self._phase("forward", item, self.cuda):
            loss = self.loss(self.module(inputs), targets)
        with self._phase("backward", item, self.cuda):
            loss.backward()  # type: ignore[no-untyped-call]
        with self._phase("optimizer", item, self.cuda):
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    @contextlib.contextmanager
    def _phase(self, kind: str, item: int, cuda: PrefetchGpu | None) -> Iterator[None]:
        begin = cuda.mark(True) if cuda else None
        with self.host.span(kind, kind, item), record_function(f"{PREFIX}{kind}"):
            yield
        if cuda:
            self.events.append(_PhaseEvents(kind, item, begin, cuda.mark(True)))

    def _read_clock(self) -> None:
        """Record the position of profiler ranges on our clock."""
        for _ in range(_NUM_READINGS):
            before_ns = _now()
            with record_function(CLOCK):
                inside_ns = _now()
            self.readings.append(TraceClockReading(before_ns / 1e9, inside_ns / 1e9, _now() / 1e9))

    def _on_gpu(self, read: Callable[[Any], int]) -> list[Timeline]:
        """Return the phases as the device ran them, and the copies of a prefetcher."""
        steps = []
        for events in self.events:
            begin_s = read(events.begin) / 1e9
            end_s = read(events.end) / 1e9
            steps.append(Span(0, GPU, events.kind, events.item, begin_s, max(begin_s, end_s)))
        copies = (span._replace(lane=GPU_COPIES) for span in self.copies.timeline().select(kind=COPY))
        return [Timeline.of(steps), Timeline.of(copies)]


def _without_end(timeline: Timeline, num_steps: int) -> Timeline:
    """Return all spans except the load that found no further batch."""
    is_load = np.array([kind == "load" for kind in timeline.kinds], dtype=bool)[timeline.kind]
    return timeline.take(np.flatnonzero(~(is_load & (timeline.item == num_steps))))


# ---- the profiler's trace


def read_steps(path: str | os.PathLike[str], readings: Sequence[TraceClockReading]) -> tuple[Timeline, float]:
    """Return the phases and the GPU's work from a trace, on the clock of `readings`, and the clock's uncertainty.

    A range "rankscope: clock" starts between the first and the second time of its reading, and ends between the second
    and the third. Together these ranges bound how far the trace's clock is ahead. Raises RuntimeError if the trace does
    not have as many of these ranges as there are readings, ValueError if it cannot be read.
    """
    by_category = Timeline.from_chrome_trace(path, kind="category")
    by_name = Timeline.from_chrome_trace(path, kind="name")  # the same spans in the same order
    category = np.array(by_category.kinds, dtype=object)[by_category.kind]
    name = np.array(by_name.kinds, dtype=object)[by_name.kind]
    ranges = np.flatnonzero(category == "user_annotation")
    ranges = ranges[np.argsort(by_category.start_s[ranges], kind="stable")]
    offset_s, clock_s = _offset_s(by_category.take(ranges[name[ranges] == CLOCK]), readings)
    spans = []
    for phase in PHASES:
        for item, place in enumerate(ranges[name[ranges] == f"{PREFIX}{phase}"]):
            spans.append(Span(0, phase, phase, item, by_category.start_s[place], by_category.stop_s[place]))
    for place in range(len(by_category)):
        kind = _gpu_kind(category[place], name[place])
        if kind is not None:
            lane = STREAM + by_category[place].lane.rpartition("stream")[2].strip()
            spans.append(Span(0, lane, kind, -1, by_category.start_s[place], by_category.stop_s[place]))
    return Timeline.of(spans).shifted(offset_s), clock_s


def _gpu_kind(category: str, name: str) -> str | None:
    """Return the kind of an event of the profiler's trace if it is work of the GPU."""
    if category != "gpu_memcpy":
        return _WORK.get(category)
    for beginning, kind in _COPIES.items():
        if name.startswith(beginning):
            return kind
    return "d2d"


def _offset_s(ranges: Timeline, readings: Sequence[TraceClockReading]) -> tuple[float, float]:
    """Return the offset to add to the trace's times, and its uncertainty.

    Each range begins between the first two of three readings of our clock, and ends between the last two.
    """
    if len(ranges) != len(readings) or not readings:
        raise RuntimeError(f"torch.profiler recorded {len(ranges)} of {len(readings)} ranges that set its clock")
    before_s, inside_s, after_s = np.array(sorted(readings)).T
    least_s = np.max([before_s - ranges.start_s, inside_s - ranges.stop_s])
    most_s = np.min([inside_s - ranges.start_s, after_s - ranges.stop_s])
    return float(least_s + most_s) / 2, abs(float(most_s - least_s)) / 2


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
        if self.lane == self.kind:
            return self.kind
        return f"{self.kind} on lane {self.lane!r}"

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
        problems = []
        for phase in self.phases:
            if phase.unmatched:
                items = ", ".join(map(str, phase.unmatched))
                counts = f"{phase.num_ours} and {phase.num_profiler} in all"
                problems.append(f"{phase.name}: not one span and one range of {items}, but {counts}")
            if phase.reach_s > within_s:
                problems.append(f"{phase.name}: a range reaches {time_words(phase.reach_s)} out of our span")
        if problems:
            raise DisagreementError("; ".join(problems))

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
        tests.tools.recorded_steps.DisagreementError: load: a range reaches 1000 ms out of our span
        """
        ours = self.ours
        theirs = self.profiler
        phases = []
        for phase in PHASES:
            if phase in ours.lanes or phase in theirs.lanes:
                our_spans = ours.select(lane=phase, kind=phase)
                their_ranges = theirs.select(lane=phase, kind=phase)
                phases.append(_on_host(our_spans, their_ranges, phase))
        phases += _on_gpu(ours, theirs, self.clock_s + TOLERANCE_S)
        return Agreement(tuple(phases), self.clock_s)


def _on_host(ours: Timeline, theirs: Timeline, phase: str) -> PhaseAgreement:
    """Compare our spans of a phase with the profiler's ranges of it."""
    our_items, our_counts = np.unique(ours.item, return_counts=True)
    their_items, their_counts = np.unique(theirs.item, return_counts=True)
    matched = np.intersect1d(our_items[our_counts == 1], their_items[their_counts == 1])
    unmatched = np.setdiff1d(np.union1d(our_items, their_items), matched)
    spans = _by_item(ours, matched)
    ranges = _by_item(theirs, matched)
    return PhaseAgreement(
        lane=phase,
        kind=phase,
        num_ours=len(ours),
        num_profiler=len(theirs),
        unmatched=tuple(unmatched.tolist()),
        reach_s=_reach_s(spans, ranges.start_s, ranges.stop_s),
        coverage=_coverage(spans, ranges.busy_s),
    )


def _by_item(spans: Timeline, items: NDArray[np.int64]) -> Timeline:
    """Return the spans of these items, sorted by item."""
    order = np.argsort(spans.item, kind="stable")
    return spans.take(order[np.isin(spans.item[order], items)])


def _on_gpu(ours: Timeline, theirs: Timeline, slack_s: float) -> Iterator[PhaseAgreement]:
    """Compare our spans with the GPU's work in each of them, from its first start to its last end."""
    our_lanes = [place for place, lane in enumerate(ours.lanes) if lane in (GPU, GPU_COPIES)]
    streams = [place for place, lane in enumerate(theirs.lanes) if lane.startswith(STREAM)]
    spans = ours.take(np.flatnonzero(np.isin(ours.lane, our_lanes)))
    work = theirs.take(np.flatnonzero(np.isin(theirs.lane, streams)))
    if len(work) and not len(spans):
        raise DisagreementError(
            f"the profiler recorded {len(work)} kernels and copies on the GPU, but we recorded none"
        )
    owner = _owners(spans, work, slack_s)
    for lane, kind in dict.fromkeys((span.lane, span.kind) for span in spans):
        of_phase = (spans.lane == spans.lanes.index(lane)) & (spans.kind == spans.kinds.index(kind))
        places = np.flatnonzero(of_phase)
        with_work = places[np.isin(places, owner)]
        start_s = np.array([work.start_s[owner == place].min() for place in with_work])
        stop_s = np.array([work.stop_s[owner == place].max() for place in with_work])
        busy_s = work.take(np.flatnonzero(np.isin(owner, places))).busy_s
        spans_with_work = spans.take(with_work)
        without_work = np.setdiff1d(spans.item[places], spans.item[with_work])
        yield PhaseAgreement(
            lane=lane,
            kind=kind,
            num_ours=places.size,
            num_profiler=with_work.size,
            unmatched=tuple(without_work.tolist()),
            reach_s=_reach_s(spans_with_work, start_s, stop_s),
            coverage=_coverage(spans_with_work, busy_s),
        )


def _owners(spans: Timeline, work: Timeline, slack_s: float) -> NDArray[np.int64]:
    """Return the place of the span that each kernel or copy belongs to.

    That is the nearest one. If several are within `slack_s`, it is one of the same kind: a copy or not.
    """
    span_is_copy = np.array([kind == "copy" for kind in spans.kinds])[spans.kind]
    owner = np.zeros(len(work), dtype=np.int64)
    for place in range(len(work)):
        middle_s = (work.start_s[place] + work.stop_s[place]) / 2
        distance_s = np.maximum(np.maximum(spans.start_s - middle_s, middle_s - spans.stop_s), 0.0)
        work_is_copy = work.kinds[work.kind[place]] == H2D
        is_other_kind = span_is_copy != work_is_copy
        # lexsort's last key comes first: the distance beyond the slack, then the kind, then the distance
        owner[place] = np.lexsort((distance_s, is_other_kind, np.maximum(distance_s, slack_s)))[0]
    return owner


def _reach_s(spans: Timeline, start_s: Times, stop_s: Times) -> float:
    """Return by how much the furthest range, from `start_s` to `stop_s`, extends beyond its span."""
    return float(np.max([0.0, *(spans.start_s - start_s), *(stop_s - spans.stop_s)]))


def _coverage(spans: Timeline, busy_s: float) -> float:
    """Return the share of the spans' time that is busy."""
    whole_s = float((spans.stop_s - spans.start_s).sum())
    return busy_s / whole_s if whole_s else 1.0
