"""Training steps recorded twice, by our recorder and by torch.profiler, and how well the two agree."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from ..timeline.timeline import Times
from ..values.checks import count_of, number
from ..values.frozen import checked, frozen
from ..values.units import time_words

PHASES = ("load", "copy", "forward", "backward", "optimizer")
GPU, GPU_COPIES = "GPU", "GPU copies"  # our lanes: the stream of the steps, and that of the copies
STREAM = "GPU stream "  # plus its number: lanes of the profiler
H2D = "h2d"  # the kind of the profiler's copies from the host
TOLERANCE_S = 1e-4


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
        rankscope.transfer.agreement.DisagreementError: load: a range reaches 1000 ms out of our span
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
