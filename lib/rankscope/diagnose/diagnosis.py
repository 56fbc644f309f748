"""`diagnose` names the rank that the others wait for, the phase that it is slow in, and the cost.

The ranks' own times, see `own_times`, say who is late; see `late_ranks` for the rule.
"""

from __future__ import annotations

from collections import defaultdict
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


class CallCost(NamedTuple):
    """The collectives of a kind that are launched in one phase, and their cost per step: means over steps and ranks.

    Time in which a call queues behind another one is neither exposed nor hidden. FSDP is in the name of those that were
    launched within a range of FSDP.
    """

    name: str
    kind: str
    group: str
    num_calls: float
    exposed_s: float
    hidden_s: float


class JobDiagnosis(msgspec.Struct, frozen=True, eq=False):
    """Why a job's steps take as long as they do. ``str()`` says it in words.

    `window_s`, `waiting_s` (exposed communication) and `covered_s` (hidden communication) have a row per step of
    `steps` and a column per rank of `ranks`. `phase_s` has a last axis for `PHASES`. `missing` are ranks of the job
    without a trace. `problems` are sentences on traces that do not fit together. `offset_s`, by rank, turns seconds of
    its trace into those of the first one.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    window_s: Seconds
    phase_s: Seconds
    waiting_s: Seconds
    covered_s: Seconds
    lateness: Lateness
    calls: tuple[CallCost, ...]
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
        """How much more own time each rank has in each step than the middle one of the ranks that are not late."""
        return self.lateness.late_s

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
        if not self.calls:
            return "\n".join([*lines, f"{step} No collective ended in these steps."])
        share = percent_words(self.exposed_s / self.step_s)
        exposed = f"{in_ms(self.exposed_s)} ({share}) is exposed communication, which includes waiting for other ranks"
        lines.append(f"{step} Of this, {exposed}; another {in_ms(self.hidden_s)} is hidden under work.")
        return "\n".join(lines)

    __repr__ = __str__

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
    end_s = stacked("end_s")  # of the collective that ends a window, on all ranks at once
    return JobDiagnosis(
        ranks=ranks,
        steps=tuple(steps),
        window_s=window_s,
        phase_s=phase_s,
        waiting_s=stacked("exposed_s"),
        covered_s=stacked("hidden_s"),
        lateness=lateness(ranks, window_s, phase_s),
        calls=_call_costs(traces, times_of_ranks, steps),
        problems=tuple(problems),
        missing=missing,
        is_complete=not missing and not any(trace.left_out for trace in traces),
        offset_s=tuple(np.median(end_s[:, :1] - end_s, axis=0).tolist()) if steps else (0.0,) * len(ranks),
    )


def _call_costs(
    traces: Sequence[Trace], times_of_ranks: Sequence[OwnTimes], steps: Sequence[int]
) -> tuple[CallCost, ...]:
    """Return what the collectives of these steps cost, by kind, phase and group, in the order of their first calls."""
    costs = defaultdict[tuple[str, str, str], list[tuple[float, float]]](list)
    for trace, times in zip(traces, times_of_ranks, strict=True):
        numbers = zip(trace.calls, *(field.tolist() for field in times.calls), strict=True)
        for call, step, phase, of_fsdp, exposed_s, hidden_s in numbers:
            if step in steps:  # not a call of a step without a window
                where = "between phases" if PHASES[phase] == "host" else f"in {PHASES[phase]}"
                whose = "FSDP " if of_fsdp else ""
                key = (f"{whose}{call.kind} {where}", call.kind, call.group)
                costs[key].append((exposed_s, hidden_s))
    found = []
    num_windows = len(steps) * len(traces)
    for key, of_calls in costs.items():
        found.append(CallCost(*key, len(of_calls) / num_windows, *(np.sum(of_calls, axis=0) / num_windows).tolist()))
    return tuple(found)


def _mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0
