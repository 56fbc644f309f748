"""`diagnose` names the rank that the others wait for, the phase that it is slow in, and the cost.

The ranks' own times, see `own_times`, say who is late; see `late_ranks` for the rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ...common.checks import of_type, several
from ...common.units import percent_words
from ...common.words import listed
from .late_causes import Seconds
from .late_ranks import Lateness, lateness, mean
from .own_times import OwnTimes, own_times
from .trace import PHASES, Trace
from .verdict import in_ms, sentences


class CallCost(NamedTuple):
    """The collectives of a kind that are launched in one phase, and their cost per step: means over steps and ranks.

    Time in which a call queues behind another one is neither exposed nor hidden. FSDP is in the name of those that were
    launched within a range of FSDP.
    """

    name: str
    num_calls: float
    exposed_s: float
    hidden_s: float


class JobDiagnosis(Lateness, frozen=True, eq=False, kw_only=True):
    """Why a job's steps take as long as they do. ``str()`` says it in words.

    `steps` are the numbers of the compared steps. `waiting_s` (exposed communication) has a row per step and a
    column per rank, as the times of `Lateness`. `hidden_s` are the seconds per step in which a rank works and
    communicates at once, the mean over ranks. `problems` are sentences on ranks without a trace, and on traces that do
    not fit together.
    """

    steps: tuple[int, ...]
    waiting_s: Seconds
    hidden_s: float
    calls: tuple[CallCost, ...]
    problems: tuple[str, ...]

    @property
    def exposed_s(self) -> float:
        """Seconds per step in which a rank only communicates, waiting for late ranks included: the mean over ranks."""
        return mean(self.waiting_s)

    def __str__(self) -> str:
        lines = [*self.problems]
        if not self.steps:
            return "\n".join(lines)
        if len(self.ranks) == 1:
            lines.append("There is only one rank. Finding the late rank requires the traces of all ranks.")
        else:
            lines += sentences(self, self.steps, is_complete=not self.problems)
        step = f"The mean step takes {in_ms(self.step_s)}."
        if not self.calls:
            return "\n".join([*lines, f"{step} No collective ended in these steps."])
        share = percent_words(self.exposed_s / self.step_s)
        exposed = f"{in_ms(self.exposed_s)} ({share}) is exposed communication, which includes waiting for other ranks"
        lines.append(f"{step} Of this, {exposed}; another {in_ms(self.hidden_s)} is hidden under work.")
        return "\n".join(lines)

    __repr__ = __str__


def diagnose(traces: Sequence[Trace]) -> JobDiagnosis:
    """Find the rank whose late arrival the others wait for, why, and the cost. See `late_ranks` for the rule.

    `traces` are those of all ranks, from `read_traces`. The steps are those that all ranks recorded, except the first,
    because a step counts from the last gradient collective of the previous step. Raises ValueError if there are no
    traces, or two of one rank.
    """
    traces = [
        of_type("a trace", trace, Trace, "read_traces")
        for trace in several("traces", traces, "what read_traces returns")
    ]
    traces.sort(key=lambda trace: trace.rank)
    ranks = tuple(trace.rank for trace in traces)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"traces must be of different ranks, at least one, got those of ranks {list(ranks)}")
    times_of_ranks = [own_times(trace) for trace in traces]
    steps = sorted(set.intersection(*(set(times.steps.tolist()) for times in times_of_ranks)))

    def stacked(name: str) -> Seconds:
        """Return a field of `OwnTimes` with a row per common step and a column per rank."""
        return np.stack([getattr(times, name)[np.isin(times.steps, steps)] for times in times_of_ranks], axis=1)

    num_ranks = max(trace.num_ranks for trace in traces)
    missing = set(range(num_ranks)) - set(ranks)
    problems = [f"Left out {error}." for trace in traces for error in trace.left_out]
    if missing:
        problems.append(f"The job has {num_ranks} ranks; there is no trace of {listed('rank', missing)}.")
    if not steps:
        problems.append("The ranks recorded no step in common that ends with a collective.")
    return JobDiagnosis(
        **msgspec.structs.asdict(lateness(ranks, stacked("window_s"), stacked("phase_s"))),
        steps=tuple(steps),
        waiting_s=stacked("exposed_s"),
        hidden_s=mean(stacked("hidden_s")),
        calls=_call_costs(traces, times_of_ranks, steps),
        problems=tuple(problems),
    )


def _call_costs(
    traces: Sequence[Trace], times_of_ranks: Sequence[OwnTimes], steps: Sequence[int]
) -> tuple[CallCost, ...]:
    """Return what the collectives of these steps cost, by kind and phase, in the order of their first calls."""
    costs = defaultdict[str, list[tuple[float, float]]](list)
    for trace, times in zip(traces, times_of_ranks, strict=True):
        numbers = zip(trace.calls, *(field.tolist() for field in times.calls), strict=True)
        for call, step, phase, of_fsdp, exposed_s, hidden_s in numbers:
            if step in steps:  # not a call of a step without a window
                where = "between phases" if PHASES[phase] == "host" else f"in {PHASES[phase]}"
                whose = "FSDP " if of_fsdp else ""
                costs[f"{whose}{call.kind} {where}"].append((exposed_s, hidden_s))
    found = []
    num_windows = len(steps) * len(traces)
    for name, of_calls in costs.items():
        found.append(CallCost(name, len(of_calls) / num_windows, *(np.sum(of_calls, axis=0) / num_windows).tolist()))
    return tuple(found)
