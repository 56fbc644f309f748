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
from .join import Joined, join
from .late_ranks import SHARE_OF_STEP, Culprit, Lateness, Seconds, lateness
from .own_times import OwnTimes, own_times
from .trace import PHASES, Trace
from .verdict import in_ms, sentences

_ROUNDING_S = 1e-9  # times below this are what differences of floats leave


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
    last axis for `PHASES`, and so has `host_s`, the time of "host" by the phase before it. `missing` are ranks of the
    job without a trace. `problems` are sentences on traces that do not fit together. `joined` has the calls, matched
    over the ranks, and their clocks.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    window_s: Seconds
    phase_s: Seconds
    host_s: Seconds
    waiting_s: Seconds
    covered_s: Seconds
    idle_s: Seconds
    lateness: Lateness
    buckets: tuple[CallCost, ...]
    problems: tuple[str, ...]
    missing: tuple[int, ...]
    joined: Joined

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
        return "\n".join([*self.problems, *self._verdict(), *self._communication()])

    def _verdict(self) -> list[str]:
        lines = self._waits_for_missing()
        if len(self.ranks) == 1:
            return [*lines, "There is only one rank. Finding the late rank requires the traces of all ranks."]
        if self.steps:
            lines += sentences(self.lateness, self.steps, self.host_s, is_complete=not self.missing)
        return lines

    def _waits_for_missing(self) -> list[str]:
        """A sentence if all ranks with a trace wait for long, as a rank without one may be the late one."""
        if not self.missing or not self.steps:
            return []
        # of the ranks with a trace, the one that arrives last in a step waits the shortest time
        last_rank_waits_s = float(self.waiting_s.min(axis=1).mean())
        if last_rank_waits_s <= SHARE_OF_STEP * self.step_s:
            return []
        recorded = listed("Rank", self.ranks)
        wait = "waits" if len(self.ranks) == 1 else "wait"
        missing = listed("rank", self.missing)
        is_missing = "traces are missing" if len(self.missing) > 1 else "trace is missing"
        return [f"{recorded} {wait} {in_ms(self.exposed_s)} per step, perhaps for {missing}, whose {is_missing}."]

    def _communication(self) -> list[str]:
        """Return a sentence on the mean step and its communication; none without steps."""
        if not self.steps:
            return []
        step = f"The mean step takes {in_ms(self.step_s)}."
        if not self.buckets:
            return [f"{step} No collective ended in these steps."]
        share = self.exposed_s / self.step_s
        exposed = f"Of this, {in_ms(self.exposed_s)} ({percent_words(share)}) is exposed communication"
        sentence = f"{step} {exposed}, which includes waiting for other ranks"
        if self.hidden_s < _ROUNDING_S:  # `watch` cannot see hidden communication
            return [f"{sentence}."]
        return [f"{sentence}; another {in_ms(self.hidden_s)} of communication is hidden under work."]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row per step and rank: its seconds by phase, and the other times."""
        import pandas as pd

        columns: dict[str, Any] = {
            "step": np.repeat(np.array(self.steps, np.int64), len(self.ranks)),
            "rank": np.tile(np.array(self.ranks, np.int64), len(self.steps)),
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
    traces or two for one rank, or if a trace has no steps.
    """
    traces = [of_type("a trace", trace, Trace) for trace in several("traces", traces)]
    traces.sort(key=lambda trace: trace.rank)
    ranks = tuple(trace.rank for trace in traces)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"traces must be of different ranks, at least one, got those of ranks {list(ranks)}")
    joined = join(traces)
    num_ranks = _num_ranks(traces)
    missing = tuple(sorted(set(range(num_ranks)) - set(ranks)))
    times_of_ranks = [own_times(trace) for trace in traces]
    steps = sorted(set.intersection(*(set(times.steps.tolist()) for times in times_of_ranks)))
    rows_of_ranks = [_rows_of_steps(times, steps) for times in times_of_ranks]

    def stacked(name: str) -> Seconds:
        """Return a field of `OwnTimes` with a row per common step and a column per rank."""
        columns = [getattr(times, name)[rows] for times, rows in zip(times_of_ranks, rows_of_ranks, strict=True)]
        return np.stack(columns, axis=1)

    window_s = stacked("window_s")
    phase_s = stacked("phase_s")
    return JobDiagnosis(
        ranks=ranks,
        steps=tuple(steps),
        window_s=window_s,
        phase_s=phase_s,
        host_s=stacked("host_s"),
        waiting_s=stacked("exposed_s"),
        covered_s=stacked("hidden_s"),
        idle_s=stacked("idle_s"),
        lateness=lateness(ranks, window_s, phase_s, stacked("starved_s")),
        buckets=_buckets(traces, times_of_ranks, steps),
        problems=tuple(_problems(joined, num_ranks, missing, times_of_ranks, steps)),
        missing=missing,
        joined=joined,
    )


def _num_ranks(traces: Sequence[Trace]) -> int:
    """Return the size of the job, that of the largest group that a trace describes; 0 if none describes its groups."""
    return max((len(members) for trace in traces for members in trace.group_ranks.values()), default=0)


def _rows_of_steps(times: OwnTimes, steps: Sequence[int]) -> list[int]:
    """Return the rows of these steps in a rank's own times.

    Of rows with the same number the first counts: a trace may have several steps without a number, which are all -1.
    """
    row_of: dict[int, int] = {}
    for row, number in enumerate(times.steps.tolist()):
        row_of.setdefault(number, row)
    return [row_of[number] for number in steps]


def _problems(
    joined: Joined, num_ranks: int, missing: Sequence[int], times_of_ranks: Sequence[OwnTimes], steps: Sequence[int]
) -> list[str]:
    """Return sentences on traces that do not fit together, and on steps and ranks that are missing."""
    problems = [f"{words[0].upper()}{words[1:]}." for words in joined.problems]
    if missing:
        problems.append(f"The job has {num_ranks} ranks; there is no trace of {listed('rank', missing)}.")
    if not steps:
        problems.append("The ranks recorded no step in common that ends with a collective.")
    elif any(len(times.steps) > len(steps) for times in times_of_ranks):
        were = "was" if len(steps) == 1 else "were"
        problems.append(f"Only {count_of(len(steps), 'step')} {were} recorded by all ranks; others are left out.")
    return problems


# ---- what each collective costs


class _BucketKey(NamedTuple):
    """How a collective of one step is recognised in another: where it is launched, and its number among those alike."""

    phase: str
    kind: str
    group: str
    of_gradients: bool
    is_joint: bool
    order: int


class _BucketCall(NamedTuple):
    """A call of a bucket on one rank, in one step."""

    rank: int
    step: int
    seconds: float
    exposed_s: float
    hidden_s: float
    num_bytes: int


def _buckets(traces: Sequence[Trace], times_of_ranks: Sequence[OwnTimes], steps: Sequence[int]) -> tuple[CallCost, ...]:
    """Return the collectives of these steps, by where they are launched, kind, group and number there in the step."""
    calls_of = _calls_of_buckets(traces, times_of_ranks, steps)
    # other libraries reduce and scatter, too, and DDP next to FSDP
    is_sharded = any(kind.startswith("range: FSDP::") for trace in traces for kind in trace.timeline.kinds)
    has_joint = any(trace.joint_calls.size for trace in traces)
    buckets = []
    for key, calls in calls_of.items():
        if key.is_joint:
            # A step has a second such call if it has a second backward that reduces gradients.
            is_only_one = key.order == 0 and key._replace(order=1) not in calls_of
            name = "DDP buckets, together" if is_only_one else f"DDP buckets of backward {key.order}, together"
        else:
            name = _bucket_name(key, is_sharded, has_joint)
        buckets.append(_call_cost(name, key, calls, len(traces), len(steps)))
    return tuple(buckets)


def _calls_of_buckets(
    traces: Sequence[Trace], times_of_ranks: Sequence[OwnTimes], steps: Sequence[int]
) -> dict[_BucketKey, list[_BucketCall]]:
    """Return the calls of these steps on all ranks, by what makes them the same collective in each step."""
    calls_of = defaultdict[_BucketKey, list[_BucketCall]](list)
    common_steps = {*steps}
    for trace, times in zip(traces, times_of_ranks, strict=True):
        calls = trace.calls
        joint_calls = set(trace.joint_calls.tolist())
        num_alike = Counter[tuple[int, _BucketKey]]()  # calls of a step so far that differ from each other in nothing
        is_in_window = times.call_row >= 0  # -1 for calls that did not end, and for those of steps without a window
        for index in np.flatnonzero(is_in_window).tolist():
            step = int(times.steps[times.call_row[index]])
            if step not in common_steps:
                continue
            first_key = _BucketKey(
                phase=PHASES[times.call_phase[index]],
                kind=calls.kinds[calls.kind[index]],
                group=calls.groups[calls.group[index]],
                of_gradients=bool(times.call_of_gradients[index]),
                is_joint=index in joint_calls,
                order=0,
            )
            key = first_key._replace(order=num_alike[step, first_key])
            num_alike[step, first_key] += 1
            call = _BucketCall(
                rank=trace.rank,
                step=step,
                seconds=float(times.call_s[index]),
                exposed_s=float(times.call_exposed_s[index]),
                hidden_s=float(times.call_hidden_s[index]),
                num_bytes=int(calls.num_bytes[index]),
            )
            calls_of[key].append(call)
    return calls_of


def _bucket_name(key: _BucketKey, is_sharded: bool, has_joint: bool) -> str:
    """Return what a collective that is no joint call is called.

    `is_sharded` says whether the job has ranges of FSDP; `has_joint` whether joint calls stand for
    all of DDP's buckets, so that other allreduces are not of DDP.
    """
    if is_sharded and key.kind in ("allgather", "reduce_scatter"):
        return f"FSDP {_plain_name(key)}"
    if key.of_gradients and key.phase == "backward" and key.kind == "allreduce" and not has_joint:
        return f"DDP bucket {key.order}"
    return _plain_name(key)


def _plain_name(key: _BucketKey) -> str:
    where = "between phases" if key.phase == "host" else f"in {key.phase}"
    return f"{key.kind} {key.order} {where}"


def _call_cost(name: str, key: _BucketKey, calls: list[_BucketCall], num_ranks: int, num_steps: int) -> CallCost:
    """Return what a bucket costs, from its calls on all ranks in all steps."""
    calls_of_step = defaultdict[int, list[_BucketCall]](list)
    for call in calls:
        calls_of_step[call.step].append(call)
    num_last = Counter[int]()  # by rank, the steps in which it came last
    late_s = []
    for step in sorted(calls_of_step):  # of ranks that come last equally often, `num_last` puts the earliest first
        in_step = calls_of_step[step]
        are_all_there = len(in_step) == num_ranks  # else the last rank may be one without this call
        if num_ranks > 1 and are_all_there:
            # the call ends everywhere at once, so it takes the shortest time on the rank that came last
            last = min(in_step, key=lambda call: call.seconds)
            num_last[last.rank] += 1
            late_s.append(float(np.median([call.seconds for call in in_step]) - last.seconds))
    return CallCost(
        name=name,
        kind=key.kind,
        group=key.group,
        num_bytes=_most_common(Counter(call.num_bytes for call in calls)),  # which may differ between steps
        exposed_s=float(np.sum([call.exposed_s for call in calls])) / (num_steps * num_ranks),
        hidden_s=float(np.sum([call.hidden_s for call in calls])) / (num_steps * num_ranks),
        last_rank=_most_common(num_last) if num_last else None,
        late_s=float(np.median(late_s)) if late_s else 0.0,
    )


def _most_common(counts: Counter[int]) -> int:
    return counts.most_common(1)[0][0]


def _mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0
