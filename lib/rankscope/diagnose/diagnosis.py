"""`diagnose` names the rank that the others wait for, the phase that it is slow in, and the cost.

The ranks' own times, see `own_times`, say who is late; see `late_ranks` for the rule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..common.checks import of_type, several
from ..common.units import percent_words
from ..common.words import count_of, listed
from .late_causes import Culprit, Seconds
from .late_ranks import SHARE_OF_STEP, Lateness, lateness
from .own_times import OwnTimes, own_times
from .trace import PHASES, Trace
from .verdict import in_ms, sentences

_END_TOGETHER = ("allreduce", "allgather", "reduce_scatter", "alltoall", "barrier")  # on all ranks at once


class CallCost(NamedTuple):
    """A collective of the compared steps, and its cost in seconds per step, the mean over ranks.

    Time in which it queues behind another call is neither exposed nor hidden. `last_rank` is the rank that it waits for
    most often, by `late_s` in the median; None if there is only one rank.
    """

    name: str
    kind: str
    group: str
    num_bytes: int  # -1 where the traces do not say
    exposed_s: float
    hidden_s: float
    last_rank: int | None
    late_s: float


class JobDiagnosis(msgspec.Struct, frozen=True, eq=False):
    """Why a job's steps take as long as they do. ``str()`` says it in words.

    `window_s`, `waiting_s` (exposed communication), `covered_s` (hidden communication) and `idle_s` (the GPU does
    nothing, because the host is late) have a row per step of `steps` and a column per rank of `ranks`. `phase_s` has a
    last axis for `PHASES`. `missing` are ranks of the job without a trace. `problems` are sentences on traces that do
    not fit together. `offset_s`, by rank, turns seconds of its trace into those of the first one.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    window_s: Seconds
    phase_s: Seconds
    waiting_s: Seconds
    covered_s: Seconds
    idle_s: Seconds
    lateness: Lateness
    buckets: tuple[CallCost, ...]
    problems: tuple[str, ...]
    missing: tuple[int, ...]
    is_complete: bool  # whether each rank has a trace, as far as the traces say
    offset_s: tuple[float, ...]

    @property
    def culprits(self) -> list[Culprit]:
        """The late ranks with their causes, in the order in which to mend them; see `late_ranks.lateness`."""
        return self.lateness.culprits

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return self.lateness.step_s

    @property
    def exposed_s(self) -> float:
        """Seconds per step in which a rank only communicates, waiting for late ranks included: the mean over ranks."""
        return _mean(self.waiting_s)

    @property
    def hidden_s(self) -> float:
        """Seconds per step in which a rank works and communicates at once: the mean over ranks."""
        return _mean(self.covered_s)

    @property
    def late_s(self) -> Seconds:
        """How much more own time each rank has in each step than the median of the other ranks that are not late."""
        return self.lateness.late_s

    def __repr__(self) -> str:
        return f"<JobDiagnosis: {count_of(len(self.ranks), 'rank')}, {count_of(len(self.steps), 'step')}>"

    def __str__(self) -> str:
        lines = [*self.problems]
        if not self.steps:
            return "\n".join(lines)
        # of the ranks with a trace, the one that arrives last in a step waits the shortest time
        if self.missing and self.waiting_s.min(axis=1).mean() > SHARE_OF_STEP * self.step_s:
            ranks = listed("Rank", self.ranks)
            missing = listed("rank", self.missing)
            lines.append(f"{ranks} wait {in_ms(self.exposed_s)} per step, perhaps for {missing} without a trace.")
        if len(self.ranks) == 1:
            lines.append("There is only one rank. Finding the late rank requires the traces of all ranks.")
        else:
            lines += sentences(self.lateness, self.steps, self.is_complete)
        step = f"The mean step takes {in_ms(self.step_s)}."
        if not self.buckets:
            return "\n".join([*lines, f"{step} No collective ended in these steps."])
        share = percent_words(self.exposed_s / self.step_s)
        exposed = f"{in_ms(self.exposed_s)} ({share}) is exposed communication, which includes waiting for other ranks"
        lines.append(f"{step} Of this, {exposed}; another {in_ms(self.hidden_s)} is hidden under work.")
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row per step and rank: its seconds by phase, and the other times."""
        import pandas as pd

        columns: dict[str, Any] = {
            "step": np.repeat(self.steps, len(self.ranks)),
            "rank": np.tile(self.ranks, len(self.steps)),
            "window_s": self.window_s.ravel(),
            "own_s": self.phase_s.sum(axis=2).ravel(),
        }
        for index, phase in enumerate(PHASES):
            columns[f"{phase}_s"] = self.phase_s[:, :, index].ravel()
        columns["exposed_s"] = self.waiting_s.ravel()
        columns["hidden_s"] = self.covered_s.ravel()
        columns["idle_s"] = self.idle_s.ravel()
        columns["late_s"] = self.late_s.ravel()
        return pd.DataFrame(columns)


def diagnose(traces: Sequence[Trace]) -> JobDiagnosis:
    """Find the rank whose late arrival the others wait for, why, and the cost. See `late_ranks` for the rule.

    `traces` are those of all ranks, from `read_traces`. The steps are those that all ranks recorded, except the first,
    because a step counts from the last gradient collective of the previous step. Raises ValueError if there are no
    traces, or two of one rank.
    """
    traces = [of_type("a trace", trace, Trace) for trace in several("traces", traces)]
    traces.sort(key=lambda trace: trace.rank)
    ranks = tuple(trace.rank for trace in traces)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"traces must be of different ranks, at least one, got those of ranks {list(ranks)}")
    times_of_ranks = [own_times(trace) for trace in traces]
    steps = sorted(set.intersection(*(set(times.steps.tolist()) for times in times_of_ranks)))

    def stacked(name: str) -> Seconds:
        """Return a field of `OwnTimes` with a row per common step and a column per rank."""
        columns = []
        for times in times_of_ranks:
            row_of = {number: row for row, number in enumerate(times.steps.tolist())}
            columns.append(getattr(times, name)[[row_of[step] for step in steps]])
        return np.stack(columns, axis=1)

    num_ranks = max(trace.num_ranks for trace in traces)
    missing = tuple(sorted(set(range(num_ranks)) - set(ranks)))
    problems = [f"Left out {error}." for trace in traces for error in trace.left_out]
    if missing:
        problems.append(f"The job has {num_ranks} ranks; there is no trace of {listed('rank', missing)}.")
    if not steps:
        problems.append("The ranks recorded no step in common that ends with a collective.")
    elif any(times.steps.size > len(steps) for times in times_of_ranks):
        problems.append(f"Only {count_of(len(steps), 'step')} of all ranks can be compared; others are left out.")
    window_s = stacked("window_s")
    phase_s = stacked("phase_s")
    calls_of = _calls_of_buckets(traces, times_of_ranks, steps)
    return JobDiagnosis(
        ranks=ranks,
        steps=tuple(steps),
        window_s=window_s,
        phase_s=phase_s,
        waiting_s=stacked("exposed_s"),
        covered_s=stacked("hidden_s"),
        idle_s=stacked("idle_s"),
        lateness=lateness(ranks, window_s, phase_s),
        buckets=tuple(_call_cost(traces, key, calls, len(steps)) for key, calls in calls_of.items()),
        problems=tuple(problems),
        missing=missing,
        is_complete=not missing and not any(trace.left_out for trace in traces),
        offset_s=_offsets(traces, calls_of),
    )


# ---- what each collective costs


class _BucketKey(NamedTuple):
    """How a collective of one step is recognised in another: where it is launched, and its number among those alike."""

    phase: str
    kind: str
    group: str
    of_gradients: bool
    order: int


class _BucketCall(NamedTuple):
    """A call of a bucket on one rank, as a column, in one step; `place` is that in the calls of the rank's trace."""

    column: int
    step: int
    place: int
    total_s: float
    exposed_s: float
    hidden_s: float


def _calls_of_buckets(
    traces: Sequence[Trace], times_of_ranks: Sequence[OwnTimes], steps: Sequence[int]
) -> dict[_BucketKey, list[_BucketCall]]:
    """Return the calls of these steps on all ranks, by what makes them the same collective in each step."""
    calls_of = defaultdict[_BucketKey, list[_BucketCall]](list)
    common_steps = {*steps}
    for column, (trace, times) in enumerate(zip(traces, times_of_ranks, strict=True)):
        num_alike = Counter[tuple[int, _BucketKey]]()  # calls of a step so far that differ from each other in nothing
        costs = zip(*(field.tolist() for field in times.calls), strict=True)
        for place, (row, phase, of_gradients, *seconds) in enumerate(costs):
            step = times.steps[row] if row >= 0 else None  # None for calls of steps without a window
            if step not in common_steps:
                continue
            call = trace.calls[place]
            first_key = _BucketKey(PHASES[phase], call.kind, call.group, of_gradients, order=0)
            key = first_key._replace(order=num_alike[step, first_key])
            num_alike[step, first_key] += 1
            calls_of[key].append(_BucketCall(column, int(step), place, *seconds))
    return calls_of


def _call_cost(traces: Sequence[Trace], key: _BucketKey, calls: list[_BucketCall], num_steps: int) -> CallCost:
    """Return what a bucket costs, from its calls on all ranks in all steps."""
    calls_of_step = defaultdict[int, list[_BucketCall]](list)
    for call in calls:
        calls_of_step[call.step].append(call)
    num_last = Counter[int]()  # by rank, the steps in which it came last
    late_s = []
    for in_step in calls_of_step.values():
        if len(in_step) == len(traces) > 1:  # else the last rank may be one without this call
            # the call ends everywhere at once, so it takes the shortest time on the rank that came last
            last = min(in_step, key=lambda call: call.total_s)
            num_last[traces[last.column].rank] += 1
            late_s.append(float(np.median([call.total_s for call in in_step])) - last.total_s)
    where = "between phases" if key.phase == "host" else f"in {key.phase}"
    name = f"{key.kind} {key.order} {where}"
    kinds = {kind for trace in traces for kind in trace.timeline.kinds}
    is_sharded = any("FSDP::" in kind or "FullyShardedDataParallel" in kind for kind in kinds)
    if is_sharded and key.kind in ("allgather", "reduce_scatter"):
        name = f"FSDP {name}"
    elif key.of_gradients and key.phase == "backward" and key.kind == "allreduce":
        name = f"DDP bucket {key.order}"
    sizes = Counter(traces[call.column].calls[call.place].num_bytes for call in calls)  # may differ between steps
    return CallCost(
        name=name,
        kind=key.kind,
        group=key.group,
        num_bytes=sizes.most_common(1)[0][0],
        exposed_s=float(np.sum([call.exposed_s for call in calls])) / (num_steps * len(traces)),
        hidden_s=float(np.sum([call.hidden_s for call in calls])) / (num_steps * len(traces)),
        last_rank=num_last.most_common(1)[0][0] if num_last else None,
        late_s=float(np.median(late_s)) if late_s else 0.0,
    )


def _offsets(traces: Sequence[Trace], calls_of: dict[_BucketKey, list[_BucketCall]]) -> tuple[float, ...]:
    """Return by rank the seconds to add to its clock; 0 for one that shares no call with the first.

    A collective ends on all ranks at once, so it is the median of how far the ends are from each other.
    """
    differences_s = defaultdict[int, list[float]](list)
    for key, calls in calls_of.items():
        stop_s = {(call.column, call.step): traces[call.column].calls[call.place].stop_s for call in calls}
        for (column, step), at_s in stop_s.items():
            if key.kind in _END_TOGETHER and (0, step) in stop_s:
                differences_s[column].append(stop_s[0, step] - at_s)
    return tuple(float(np.median(differences_s[column] or 0.0)) for column in range(len(traces)))


def _mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0
