"""Training steps on one timeline twice, by our recorder and by torch.profiler, and how far the two agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from ..timeline.timeline import Times
from ..values.checks import count_of, number, of_type
from ..values.units import time_words

PHASES = ("load", "copy", "forward", "backward", "optimizer")
GPU, GPU_COPIES = "GPU", "GPU copies"  # lanes of ours: the stream of the steps, and the one that brings batches
STREAM = "GPU stream "  # and its number: lanes of the profiler's
H2D = "h2d"  # the kind of the profiler's copies from the host
TOLERANCE_S = 1e-4
Places = NDArray[np.int64]


class DisagreementError(ValueError):
    """Two recordings of the same steps contradict each other."""


@dataclass(frozen=True)
class RecordedSteps:
    """The same steps recorded twice, in seconds from the start of the first; made by `record_steps`.

    `ours` has a lane and a kind for each of `PHASES`, as the host spends its time; with a GPU also lanes "GPU" and,
    where batches are prefetched, "GPU copies", with the same kinds. `profiler` has torch.profiler's ranges of the
    phases on the same lanes, and of a GPU every kernel and copy, a lane a stream, such as "GPU stream 7". Items number
    the steps; the profiler's kernels and copies have none. `clock_s` is the doubt about how the two clocks stand to
    each other.
    """

    ours: Timeline
    profiler: Timeline
    clock_s: float

    def __post_init__(self) -> None:
        of_type("ours", self.ours, Timeline)
        of_type("profiler", self.profiler, Timeline)
        number("clock_s", self.clock_s, 0)


@dataclass(frozen=True)
class PhaseAgreement:
    """One phase by both: our spans, and the profiler's range of each, or what it saw run on the GPU meanwhile.

    `later_s` is how much later the profiler's starts than ours, `shorter_s` how much shorter it is: the median, and the
    value furthest from 0. `reach_s` is how far one of the profiler's reaches out of our span at most, 0 where none
    does. `coverage` is the share of our spans' time that the profiler's fill. `unmatched` are the items that one of the
    two lacks, or has more than once.
    """

    lane: str
    kind: str
    num_ours: int
    num_profiler: int
    unmatched: tuple[int, ...]
    later_s: tuple[float, float]
    shorter_s: tuple[float, float]
    reach_s: float
    coverage: float

    def __str__(self) -> str:
        later = f"{_signed(self.later_s[0])} later (at worst {_signed(self.later_s[1])})"
        shorter = f"{_signed(self.shorter_s[0])} less ({_signed(self.shorter_s[1])})"
        counts = f"{count_of(self.num_ours, 'span')} and {count_of(self.num_profiler, 'range')}"
        return f"{_name(self)}: {counts}, which start {later}, last {shorter} and fill {self.coverage * 100:.1f} %"


@dataclass(frozen=True)
class Agreement:
    """What `agree` finds, a phase a lane."""

    phases: tuple[PhaseAgreement, ...]
    clock_s: float

    def check(self, tolerance_s: float = TOLERANCE_S, least_coverage: float = 0.0) -> None:
        """Raise DisagreementError unless each span has one range of the profiler's, and that lies inside it.

        It may reach out by `tolerance_s` and the doubt about the clocks. With `least_coverage` the profiler's must also
        fill that share of the time of our spans, in each phase.
        """
        within_s = number("tolerance_s", tolerance_s, 0) + self.clock_s
        least = number("least_coverage", least_coverage, 0, 1)
        found = [problem for phase in self.phases for problem in _problems(phase, within_s, least)]
        if found:
            raise DisagreementError("; ".join(found))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.phases), f"clocks known to {time_words(self.clock_s)}"])


def agree(recorded: RecordedSteps) -> Agreement:
    """Compare the two recordings phase by phase.

    On the host the profiler's range of a step is held against our span of it. On the GPU each kernel and copy is given
    to the span of ours in which it ran, or to the nearest; copies from the host to those of copies where they can be.

    >>> from rankscope.timeline import Span
    >>> ours = Timeline.of([Span(0, "load", "load", 0, 0.0, 2.0), Span(0, "load", "load", 1, 3.0, 5.0)])
    >>> theirs = Timeline.of([Span(0, "load", "load", 0, 0.5, 2.0), Span(0, "load", "load", 1, 3.5, 5.0)])
    >>> print(agree(RecordedSteps(ours, theirs, 0.0)))
    load: 2 spans and 2 ranges, which start 500 ms later (at worst 500 ms), last 500 ms less (500 ms) and fill 75.0 %
    clocks known to 0 s
    >>> agree(RecordedSteps(ours, theirs.shifted(1.0), 0.0)).check()
    Traceback (most recent call last):
    rankscope.transfer.agreement.DisagreementError: load: a range reaches 1000 ms out of our span
    """
    of_type("recorded", recorded, RecordedSteps)
    ours, theirs = recorded.ours, recorded.profiler
    phases = [
        _of_host(ours.select(lane=phase, kind=phase), theirs.select(lane=phase, kind=phase), phase)
        for phase in PHASES
        if phase in ours.lanes or phase in theirs.lanes
    ]
    return Agreement((*phases, *_of_gpu(ours, theirs, recorded.clock_s + TOLERANCE_S)), recorded.clock_s)


def _of_host(ours: Timeline, theirs: Timeline, phase: str) -> PhaseAgreement:
    times = Counter(ours.item.tolist()), Counter(theirs.item.tolist())
    unmatched = {item for item in times[0] | times[1] if not times[0][item] == times[1][item] == 1}
    mine, other = (_by_item(spans, unmatched) for spans in (ours, theirs))
    return _phase(phase, phase, ours, mine, (other.start_s, other.stop_s), len(theirs), unmatched, other.busy_s)


def _by_item(spans: Timeline, without: set[int]) -> Timeline:
    order = np.argsort(spans.item, kind="stable")
    return spans.take(order[~np.isin(spans.item[order], list(without))])


def _of_gpu(ours: Timeline, theirs: Timeline, slack_s: float) -> Iterator[PhaseAgreement]:
    """For each lane and kind: our spans, and what ran from the first start to the last end in each of them."""
    spans = _on(ours, lambda lane: lane in (GPU, GPU_COPIES))
    work = _on(theirs, lambda lane: lane.startswith(STREAM))
    if len(work) and not len(spans):
        raise DisagreementError(f"the profiler saw {len(work)} kernels and copies on the GPU, and we nothing")
    owner = _owners(spans, work, slack_s)
    for lane, kind in dict.fromkeys((span.lane, span.kind) for span in spans):
        places = np.flatnonzero((spans.lane == spans.lanes.index(lane)) & (spans.kind == spans.kinds.index(kind)))
        busy = np.array([place for place in places if (owner == place).any()], dtype=np.int64)
        start_s = np.array([work.start_s[owner == place].min() for place in busy])
        stop_s = np.array([work.stop_s[owner == place].max() for place in busy])
        idle = set(spans.item[places].tolist()) - set(spans.item[busy].tolist())
        run_s = work.take(np.flatnonzero(np.isin(owner, places))).busy_s
        yield _phase(lane, kind, spans.take(places), spans.take(busy), (start_s, stop_s), len(busy), idle, run_s)


def _on(timeline: Timeline, chosen: Callable[[str], bool]) -> Timeline:
    lanes = [place for place, lane in enumerate(timeline.lanes) if chosen(lane)]
    return timeline.take(np.flatnonzero(np.isin(timeline.lane, lanes)))


def _owners(spans: Timeline, work: Timeline, slack_s: float) -> Places:
    """The place of the span that each kernel or copy belongs to: of all within `slack_s`, the one of its sort."""
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
    unmatched: set[int],
    busy_s: float,
) -> PhaseAgreement:
    """The figures of spans of `mine` and as many of theirs, in the same order."""
    later_s, earlier_s = theirs[0] - mine.start_s, mine.stop_s - theirs[1]
    reach_s = float(np.max([0.0, *-later_s, *-earlier_s]))
    whole_s = float((mine.stop_s - mine.start_s).sum())
    coverage = busy_s / whole_s if whole_s else 1.0
    ends = (_spread(later_s), _spread(later_s + earlier_s))
    return PhaseAgreement(lane, kind, len(ours), num_theirs, tuple(sorted(unmatched)), *ends, reach_s, coverage)


def _spread(values_s: Times) -> tuple[float, float]:
    """The median, and the value furthest from 0."""
    return (float(np.median(values_s)), float(values_s[np.abs(values_s).argmax()])) if values_s.size else (0.0, 0.0)


def _problems(phase: PhaseAgreement, within_s: float, least_coverage: float) -> Iterator[str]:
    name = _name(phase)
    if phase.unmatched:
        items = ", ".join(map(str, phase.unmatched))
        yield f"{name}: not one span and one range of {items}, but {phase.num_ours} and {phase.num_profiler} in all"
    if phase.reach_s > within_s:
        yield f"{name}: a range reaches {time_words(phase.reach_s)} out of our span"
    if phase.coverage < least_coverage:
        yield f"{name}: the ranges fill {phase.coverage * 100:.1f} % of our spans"


def _name(phase: PhaseAgreement) -> str:
    return phase.kind if phase.lane == phase.kind else f"{phase.kind} on lane {phase.lane!r}"


def _signed(seconds: float) -> str:
    return f"-{time_words(-seconds)}" if seconds < 0 else time_words(seconds)
