"""Who is late and why: `diagnose` names the rank that the others wait for, the phase that it is slow in, and the cost.

The longest backward does not name it. A late rank makes all others wait inside their collectives, most of which end
inside backward, so that durations look alike on all ranks. What differs is a rank's own time: its time without what it
waits. A window from the end of one step's last gradient collective to that of the next one is as long on all ranks,
since a collective ends everywhere at once: no clocks are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, of_type, several
from ..common.frozen import frozen
from ..common.words import listed
from ..timeline.timeline import Intervals, Timeline, merge
from .join import Joined, join
from .late_ranks import SHARE_OF_STEP, Culprit, Lateness, Seconds, lateness
from .trace import PHASES, Ints, Trace
from .verdict import in_ms, sentences

_HOST = PHASES.index("host")
_NONE = np.zeros(0), np.zeros(0)


class OwnTimes(NamedTuple):
    """What one rank did in each of its windows, a row per step, in seconds.

    `phase_s` has a column for each of `PHASES`: own time, in which the rank waited for nobody. `exposed_s` is
    communication that no work of the rank covers, `hidden_s` what work covers, `idle_s` own time in which its GPU did
    nothing (0 without one), `starved_s` what the host waited for a core, where that was recorded. `host_s` is the
    column "host" of `phase_s` by the phase that began last before.

    The `call_` columns have an entry for each of the trace's calls: the row of its step, or -1; the place in `PHASES`
    where it was launched; whether it reduces gradients; the seconds from its arrival to its end; and of those in which
    it is the next to end, and queues behind no other call, what is exposed and what is hidden.
    """

    steps: Ints
    window_s: Seconds
    phase_s: Seconds
    host_s: Seconds
    exposed_s: Seconds
    hidden_s: Seconds
    idle_s: Seconds
    starved_s: Seconds
    call_row: Ints
    call_phase: Ints
    call_of_gradients: NDArray[np.bool_]
    call_s: Seconds
    call_exposed_s: Seconds
    call_hidden_s: Seconds


def own_times(trace: Trace) -> OwnTimes:
    """Return what a rank did in each window, from its trace alone.

    On the CPU a rank waits from the launch of its last gradient collective to the end of all, and in every other
    collective from launch to end, or until it goes on with another phase. On a GPU it waits while collectives run and
    nothing else does. Raises ValueError for a trace without steps.
    """
    spans, calls = trace.timeline, trace.calls
    main = spans.select(lane="main")
    steps = main.select(kind="step")
    steps = steps.take(np.argsort(steps.start_s, kind="stable"))
    if not len(steps):
        raise ValueError(
            f"{trace.source} has no steps: give torch.profiler.profile a schedule, and call its step() after each step"
        )
    hosts = {kind: _merged(main, kind) for kind in PHASES}
    hosts["backward"] = _merged(spans, "backward", "unpack")
    streams = spans.select(lane=[lane for lane in spans.lanes if lane.startswith("stream ")])
    work = streams.select(kind=[kind for kind in streams.kinds if kind not in calls.kinds])
    on_gpu = len(work) > 0
    busy, kernels, copies = _merged(work, *work.kinds), _merged(work, "kernel"), _merged(work, "memcpy h2d")
    device = spans.select(lane="gpu")
    on_device = {kind: _merged(device, kind) for kind in PHASES if len(device)}

    # calls, and the windows that they end
    launch_s = np.where(np.isfinite(calls.launch_s), calls.launch_s, calls.start_s)
    arrive_s = calls.start_s if on_gpu else launch_s  # what Gloo calls its start is when one of its threads is free
    ended = np.isfinite(arrive_s) & np.isfinite(calls.stop_s)
    of_gradients = np.zeros(len(calls), bool)  # DDP waits for all of these at once, at the end
    for kind in ("gradient", "backward"):
        if not of_gradients.any():
            of_gradients = ended & _inside(launch_s, _merged(spans, kind))
    step = np.searchsorted(steps.start_s, launch_s, side="right") - 1
    last_s, end_s = np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    chosen = (of_gradients if of_gradients.any() else ended) & (step >= 0)
    np.fmax.at(last_s, step[chosen], arrive_s[chosen])
    np.fmax.at(end_s, step[chosen], calls.stop_s[chosen])
    begin_s = np.append(np.nan, end_s[:-1])
    if not chosen.any():
        begin_s, end_s = steps.start_s, steps.stop_s
    elif np.isfinite(end_s).sum() == 1:  # there is no end before it
        begin_s = np.where(np.isfinite(end_s), steps.start_s, np.nan)
    rows = np.flatnonzero(np.isfinite(begin_s) & np.isfinite(end_s))
    begin_s, end_s, last_s = begin_s[rows], end_s[rows], last_s[rows]

    # what the rank does in each piece of time between two edges of any span
    starts_s = np.concatenate([hosts[kind][0] for kind in PHASES])
    order = np.argsort(starts_s, kind="stable")
    starts_s, begun = (
        starts_s[order],
        np.repeat(np.arange(len(PHASES)), [hosts[kind][0].size for kind in PHASES])[order],
    )
    goes_on_s = np.append(starts_s, np.inf)[np.searchsorted(starts_s, arrive_s, side="right")]
    blocking = ended & ~of_gradients
    blocked = merge(arrive_s[blocking], np.minimum(calls.stop_s, goes_on_s)[blocking])
    at_end = merge(last_s, end_s) if chosen.any() else _NONE
    any_call = merge(arrive_s[ended], calls.stop_s[ended])
    every = [*hosts.values(), *on_device.values(), busy, kernels, copies, blocked, at_end, any_call]
    time_s = np.unique(np.concatenate([begin_s, end_s, *(times for pair in every for times in pair)]))
    middle_s, length_s = (time_s[:-1] + time_s[1:]) / 2, np.diff(time_s)
    working, in_call = _inside(middle_s, busy), _inside(middle_s, any_call)
    phase = np.full(middle_s.size, _HOST)
    for place, kind in enumerate(PHASES):
        phase[_inside(middle_s, hosts[kind])] = place
    for kind, there in on_device.items():
        phase[working & _inside(middle_s, there)] = PHASES.index(kind)
    phase[_inside(middle_s, copies) & ~_inside(middle_s, kernels)] = PHASES.index("h2d")
    if on_gpu:
        waits = in_call & ~working
    else:
        waits = _inside(middle_s, at_end) & ~_inside(middle_s, hosts["backward"]) | _inside(middle_s, blocked)

    before = np.append(begun, _HOST)[np.searchsorted(starts_s, middle_s, side="right") - 1]
    row = np.searchsorted(begin_s, middle_s, side="right") - 1
    row = np.where((row >= 0) & (middle_s < np.append(end_s, -np.inf)[row]), row, rows.size)

    def summed(chosen: NDArray[np.bool_], column: Any = 0, num_columns: int = 1) -> Seconds:
        place, size = (row * num_columns + column)[chosen], (rows.size + 1) * num_columns
        totals: Seconds = np.bincount(place, length_s[chosen], size).astype(float)  # whole numbers where none is chosen
        return totals.reshape(-1, num_columns)[:-1]

    waited_s = np.append(0.0, np.cumsum(length_s * waits))  # up to each of time_s
    order = np.argsort(np.where(ended, calls.stop_s, np.inf), kind="stable")
    before_s = np.empty(len(calls))
    before_s[order] = np.append(-np.inf, calls.stop_s[order][:-1])  # one call counts at a time: the next to end
    since_s = np.fmax(arrive_s, before_s)
    call_exposed_s = np.interp(calls.stop_s, time_s, waited_s) - np.interp(since_s, time_s, waited_s)
    place_of = np.append(np.full(len(steps), -1), -1)
    place_of[rows] = np.arange(rows.size)
    launched = np.append(phase, _HOST)[np.searchsorted(time_s, launch_s, side="right") - 1]
    launched[_inside(launch_s, hosts["backward"])] = PHASES.index("backward")
    starved = spans.select(kind="starved")
    starved_of = {
        item: stop - start for item, start, stop in zip(starved.item, starved.start_s, starved.stop_s, strict=True)
    }
    return OwnTimes(
        steps=steps.item[rows],
        window_s=end_s - begin_s,
        phase_s=summed(~waits, phase, len(PHASES)),
        host_s=summed((phase == _HOST) & ~waits, before, len(PHASES)),
        exposed_s=summed(waits)[:, 0],
        hidden_s=summed(in_call & ~waits)[:, 0],
        idle_s=summed(~waits & ~working & on_gpu)[:, 0],
        starved_s=np.array([starved_of.get(item, 0.0) for item in steps.item[rows]]),
        call_row=np.where(ended, place_of[step], -1),
        call_phase=launched,
        call_of_gradients=of_gradients,
        call_s=np.where(ended, calls.stop_s - arrive_s, np.nan),
        call_exposed_s=np.where(ended, call_exposed_s, np.nan),
        call_hidden_s=np.where(ended, calls.stop_s - since_s - call_exposed_s, np.nan),
    )


# ---- the job


class CallCost(NamedTuple):
    """A collective that comes in each step, and what it costs: seconds per step, the mean over ranks.

    Time in which it queues behind another call is neither exposed nor hidden. `last_rank` is the one that it waits for
    most often, by `late_s` in the median; None with one rank.
    """

    name: str
    kind: str
    group: str
    num_bytes: int  # -1 where the traces do not say
    exposed_s: float
    hidden_s: float
    last_rank: int | None
    late_s: float


@frozen(eq=False)
class JobDiagnosis:
    """What makes a job's steps as long as they are. ``str()`` says it in words.

    `window_s`, `waiting_s` (exposed communication), `covered_s` (hidden communication) and `idle_s` (the GPU works on
    nothing, as the host is late) have a row per step of `steps` and a column per rank of `ranks`; `phase_s` has a last
    axis for `PHASES`, and so has `host_s`, the time of "host" by the phase before it. `missing` are ranks of the job
    without a trace. `problems` are sentences on what does not fit together. `joined` has the calls, matched over the
    ranks, and their clocks.
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
        lines = []
        of_last_s = float(self.waiting_s.min(axis=1).mean()) if self.missing and self.steps else 0.0
        if of_last_s > SHARE_OF_STEP * self.step_s:
            they = listed("Rank", self.ranks)
            late = listed("rank", self.missing)
            wait = "waits" if len(self.ranks) == 1 else "wait"
            is_missing = "traces are missing" if len(self.missing) > 1 else "trace is missing"
            lines.append(f"{they} {wait} {in_ms(self.exposed_s)} per step, perhaps for {late}, whose {is_missing}.")
        if len(self.ranks) == 1:
            return [*lines, "One rank only: who is late needs the traces of all ranks."]
        if self.steps:
            lines += sentences(self.lateness, self.steps, self.host_s, is_complete=not self.missing)
        return lines

    def _communication(self) -> list[str]:
        if not self.steps:
            return []
        step = f"The mean step takes {in_ms(self.step_s)}."
        if not self.buckets:
            return [f"{step} The traces contain no collective."]
        share = self.exposed_s / self.step_s
        exposed = f"Of this, {in_ms(self.exposed_s)} ({share:.0%}) is exposed communication"
        said = f"{step} {exposed}, which includes waiting for other ranks"
        if not self.hidden_s:  # `watch` cannot see it
            return [f"{said}."]
        return [f"{said}; another {in_ms(self.hidden_s)} of communication is hidden under work."]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row per step and rank: seconds by phase, and what is said of them above."""
        import pandas as pd

        columns: dict[str, Any] = {
            "step": np.repeat(np.array(self.steps, np.int64), len(self.ranks)),
            "rank": np.tile(np.array(self.ranks, np.int64), len(self.steps)),
            "window_s": self.window_s.ravel(),
            "own_s": self.phase_s.sum(axis=2).ravel(),
        }
        columns |= {f"{kind}_s": self.phase_s[:, :, place].ravel() for place, kind in enumerate(PHASES)}
        for name, values in (("exposed_s", self.waiting_s), ("hidden_s", self.covered_s), ("idle_s", self.idle_s)):
            columns[name] = values.ravel()
        return pd.DataFrame(columns | {"late_s": self.late_s.ravel()})


def diagnose(traces: Sequence[Trace]) -> JobDiagnosis:
    """Return whose late arrival the ranks of a job wait for, why, and what it costs; see `late_ranks` for the rule.

    `traces` are what `read_traces` returns, of all ranks. The steps are those that all ranks recorded, without the
    first: a step counts from the last gradient collective of the step before. Raises ValueError for no traces, two of
    one rank, and a trace without steps.
    """
    traces = sorted((of_type("a trace", one, Trace) for one in several("traces", traces)), key=lambda one: one.rank)
    ranks = tuple(trace.rank for trace in traces)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"traces must be of different ranks, at least one, got those of ranks {list(ranks)}")
    joined = join(traces)
    problems = [f"{words[0].upper()}{words[1:]}." for words in joined.problems]
    size = max((len(members) for trace in traces for members in trace.group_ranks.values()), default=0)
    missing = tuple(sorted(set(range(size)) - set(ranks)))
    if missing:
        problems.append(f"The job has {size} ranks; there is no trace of {listed('rank', missing)}.")
    owns = [own_times(trace) for trace in traces]
    steps = sorted(set.intersection(*(set(own.steps.tolist()) for own in owns)))
    rows = []
    for own in owns:
        row_of = {number: row for row, number in reversed([*enumerate(own.steps.tolist())])}  # the first of a number
        rows.append([row_of[number] for number in steps])
    if not steps:
        problems.append("The ranks recorded no step in common that ends with a collective.")
    elif any(len(own.steps) > len(steps) for own in owns):
        problems.append(f"Only {count_of(len(steps), 'step')} were recorded by all ranks; others are left out.")

    def stacked(name: str) -> Seconds:
        return np.stack([getattr(own, name)[chosen] for own, chosen in zip(owns, rows, strict=True)], axis=1)

    window_s, phase_s = stacked("window_s"), stacked("phase_s")
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
        buckets=_buckets(traces, owns, steps),
        problems=tuple(problems),
        missing=missing,
        joined=joined,
    )


def _buckets(traces: Sequence[Trace], owns: Sequence[OwnTimes], steps: Sequence[int]) -> tuple[CallCost, ...]:
    """The collectives of these steps, by where they are launched, kind, group and number there in the step."""
    sharded = any("reduce_scatter" in trace.calls.kinds for trace in traces)
    watched = all(trace.source == "watch" for trace in traces)
    found = defaultdict[Any, list[tuple[float, ...]]](list)
    common = {*steps}
    for trace, own in zip(traces, owns, strict=True):
        calls, counts = trace.calls, Counter[Any]()
        for place in np.flatnonzero(own.call_row >= 0).tolist():
            number = int(own.steps[own.call_row[place]])
            kind, group = calls.kinds[calls.kind[place]], calls.groups[calls.group[place]]
            key = PHASES[own.call_phase[place]], kind, group, bool(own.call_of_gradients[place])
            if number in common:
                took_s = tuple(float(one[place]) for one in (own.call_s, own.call_exposed_s, own.call_hidden_s))
                found[*key, counts[key, number]].append((trace.rank, number, *took_s, int(calls.num_bytes[place])))
                counts[key, number] += 1
    buckets = []
    for (phase, kind, group, of_gradients, order), seen in found.items():
        ranks, numbers, call_s, exposed_s, hidden_s, num_bytes = map(np.array, zip(*seen, strict=True))
        share = len(steps) * len(traces)
        last = Counter[int]()
        late_s = []
        by_step = np.argsort(numbers, kind="stable")
        for here in np.split(by_step, np.flatnonzero(np.diff(numbers[by_step])) + 1):  # the calls of a step
            if len(traces) > 1 and here.size == len(traces):
                last[int(ranks[here][call_s[here].argmin()])] += 1
                late_s.append(float(np.median(call_s[here]) - call_s[here].min()))
        where = "between phases" if phase == "host" else f"in {phase}"
        name = f"{kind} {order} {where}"
        if sharded and kind in ("allgather", "reduce_scatter"):
            name = f"FSDP {name}"
        elif of_gradients and phase == "backward" and kind == "allreduce":
            together = watched and (phase, kind, group, of_gradients, 1) not in found
            name = "DDP buckets, together" if together else f"DDP bucket {order}"
        cost = float(exposed_s.sum()) / share, float(hidden_s.sum()) / share
        usual = Counter(num_bytes.tolist()).most_common(1)[0][0]
        latest = last.most_common(1)[0][0] if last else None
        buckets.append(CallCost(name, kind, group, usual, *cost, latest, float(np.median(late_s)) if late_s else 0.0))
    return tuple(buckets)


def _mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0


def _merged(spans: Timeline, *kinds: str) -> Intervals:
    chosen = spans.select(kind=kinds)
    return merge(chosen.start_s, chosen.stop_s)


def _inside(times_s: Seconds, intervals: Intervals) -> NDArray[np.bool_]:
    starts, stops = intervals
    return np.asarray(times_s <= np.append(stops, -np.inf)[np.searchsorted(starts, times_s, side="right") - 1])
