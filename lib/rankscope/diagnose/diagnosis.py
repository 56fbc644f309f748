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

from ..timeline.timeline import Intervals, Timeline, merge
from ..values.checks import count_of, of_type, several
from ..values.frozen import frozen
from .join import Joined, join, listed
from .trace import Ints, Trace

Seconds = NDArray[np.float64]

PHASES = ("loader", "h2d", "zero_grad", "forward", "backward", "optimizer", "host")
_HOST = PHASES.index("host")  # what no span covers
_NONE = np.zeros(0), np.zeros(0)
_LEAST_S, _LEAST_SHARE, _HELD = 0.004, 0.1, 0.6  # see `culprits_of`
_ODD_SHARE, _ODD_NOISE, _NOISE = 0.2, 2.0, 0.9  # late in a step: of it, and times this quantile of the other ranks
_SECOND = 0.4  # of what the first cause costs
_ALIKE, _ALL = 0.6, 0.8  # a starved rank stretches phases of most of a step, each by this share of what it is late
_WORDS = {"h2d": "its copies to the GPU take", "host": "Python after its {after} takes"}  # others: its … takes
_HINTS = {
    "loader": "Look at its storage, and give its DataLoader more workers.",
    "h2d": "Look at its PCIe link, and at whether its batches lie in pinned memory.",
    "zero_grad": "Look for other work on its device.",
    "forward": "Look for longer samples, other input shapes or a slower device there.",
    "backward": "Look for longer samples, other input shapes or a slower device there.",
    "optimizer": "Look for parameters or states that only this rank has.",
    "host": "Look for logging, checkpoints, .item() and garbage collection on this rank.",
    "starved": "Look for other processes on its cores or its GPU.",
}


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


# ---- the rule


class Culprit(NamedTuple):
    """A rank that the others wait for, the phase that it loses its time in, and what that costs per step, in seconds.

    The cause is one of `PHASES`, or "starved" where all of them take longer alike: the rank has too little of its core.
    """

    rank: int
    cause: str
    cost_s: float


def culprits_of(
    ranks: Sequence[int], window_s: Seconds, phase_s: Seconds, starved_s: Seconds | None = None
) -> list[Culprit]:
    """Return the culprits in the order in which to mend them, the latest rank first; none where ranks are balanced.

    `window_s` and `starved_s` have a row per step and a column per rank, `phase_s` a last axis for `PHASES` too; see
    `own_times`. In each step the rank with the most own time is late, by what that is more than the median of the
    others'. A rank is a culprit if what it is late in all steps but its worst is, per step, more than `_LEAST_S` and
    `_LEAST_SHARE` of a step, and `_HELD` of what all ranks are late. Its causes are the phase that takes longest in
    comparison with the others, in the median of the steps in which it is very late, and any that takes `_SECOND` of
    that. The cost is what the last rank would arrive earlier if that took as long as on the others, once those before
    it in the list are mended: costs add up.
    """
    found, left_s = list[Culprit](), phase_s.astype(float)
    step_s = float(np.median(window_s)) if window_s.size else 0.0
    while len(ranks) > 1 and len(left_s) and len(found) < len(ranks):
        own_s = left_s.sum(axis=2)
        is_last = own_s.argmax(axis=1)[:, None] == np.arange(len(ranks))
        lost_s = np.where(is_last, np.maximum(own_s - _of_others(own_s), 0), 0)
        steady_s = lost_s.sum(axis=0) - (lost_s.max(axis=0) if len(lost_s) > 1 else 0)
        place, num_steps = int(steady_s.argmax()), max(len(lost_s) - 1, 1)
        least_s = max(_LEAST_S, _LEAST_SHARE * step_s) * num_steps
        if steady_s[place] <= least_s or steady_s[place] < _HELD * steady_s.sum():
            break
        usual_s = _of_others(left_s)[:, place]
        rows = lost_s[:, place] >= np.quantile(lost_s[lost_s[:, place] > 0, place], 0.75) / 2
        starved = 0.0
        if starved_s is not None:
            starved = float((starved_s - _of_others(starved_s))[rows, place].sum())
        excess_s = np.maximum(np.median(left_s[rows, place] - usual_s[rows], axis=0), 0)
        for cause, columns in _causes(excess_s, usual_s[rows].mean(axis=0), starved / rows.sum()):
            before_s = left_s.sum(axis=2).max(axis=1)
            left_s[:, place, columns] = np.minimum(left_s[:, place, columns], usual_s[:, columns])
            cost_s = float((before_s - left_s.sum(axis=2).max(axis=1)).mean())
            found.append(Culprit(int(ranks[place]), cause, cost_s))
        left_s[:, place] = np.minimum(left_s[:, place], usual_s)
    return found


def _of_others(values: Seconds) -> Seconds:
    """For each rank, on axis 1, the median of the other ranks."""
    return np.stack([np.median(np.delete(values, place, axis=1), axis=1) for place in range(values.shape[1])], axis=1)


def _causes(excess_s: Seconds, usual_s: Seconds, starved_s: float) -> list[tuple[str, list[int]]]:
    """Why a rank takes so much longer in each phase than what is usual, and which phases each cause makes longer."""
    alike = excess_s * usual_s.sum() > _ALIKE * excess_s.sum() * usual_s
    all_alike = alike.sum() > 2 and usual_s[alike].sum() > _ALL * usual_s.sum()
    if starved_s > excess_s.sum() / 2 or all_alike:
        return [("starved", [*range(len(PHASES))])]
    largest_first = np.argsort(-excess_s, kind="stable").tolist()
    return [(PHASES[place], [place]) for place in largest_first if excess_s[place] > _SECOND * excess_s.max()]


# ---- the job


class Bucket(NamedTuple):
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
    culprits: list[Culprit]
    buckets: tuple[Bucket, ...]
    problems: tuple[str, ...]
    missing: tuple[int, ...]
    joined: Joined

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return _mean(self.window_s)

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
        """How much more own time than the median of the others each rank has in each step."""
        own_s = self.phase_s.sum(axis=2)
        return own_s - _of_others(own_s) if len(self.ranks) > 1 else np.zeros(own_s.shape)

    def __repr__(self) -> str:
        return f"<JobDiagnosis: {count_of(len(self.ranks), 'rank')}, {count_of(len(self.steps), 'step')}>"

    def __str__(self) -> str:
        return "\n".join([*self.problems, *self._verdict(), *self._communication()])

    def _verdict(self) -> list[str]:
        lines = []
        of_last_s = float(self.waiting_s.min(axis=1).mean()) if self.missing and self.steps else 0.0
        if of_last_s > _LEAST_SHARE * self.step_s:
            they, late = listed("Rank", self.ranks), listed("rank", self.missing)
            wait, are = "waits" if len(self.ranks) == 1 else "wait", "s are" if len(self.missing) > 1 else " is"
            lines.append(f"{they} {wait} {_ms(self.exposed_s)} per step, perhaps for {late}, whose trace{are} missing.")
        if len(self.ranks) == 1:
            return [*lines, "One rank only: who is late needs the traces of all ranks."]
        if self.culprits:
            return lines + [self._said_of(one) for one in self.culprits]
        return lines + self._no_culprit() if self.steps else []

    def _said_of(self, culprit: Culprit) -> str:
        rank, cause, cost_s = culprit
        place = self.ranks.index(rank)
        late_s = self.late_s[:, place]
        rows = late_s > np.sort(late_s)[-2:][0] / 2  # the largest may be of one bad step
        when, there = f"in {rows.sum()} of {len(rows)} steps", " in these"
        if rows.mean() > 0.7 or not rows.any():
            rows[:], when, there = True, "in each step", ""
        own_s = self.phase_s[rows].mean(axis=0)
        usual_s, own_s = _of_others(own_s[None])[0, place], own_s[place]
        if cause == "starved":
            times = own_s.sum() / max(usual_s.sum(), 1e-9)
            why = f"all it does takes {times:.1f} times as long as on the others, as if it had too little of its core"
        else:
            column = PHASES.index(cause)
            why = (
                f"{self._takes(place, column, rows)} {_ms(own_s[column])}{there}, on the others {_ms(usual_s[column])}"
            )
        mean_s = float(late_s[rows].mean())  # not positive where a rank that is named before it is later in all steps
        arrives = f"arrives {_ms(mean_s)} late {when}" if mean_s > 0 else "would be the next that is late"
        costs = f"This costs {_ms(cost_s)} per step, {cost_s / self.step_s:.0%} of it."
        return f"Rank {rank} {arrives}: {why}. {costs} {_HINTS[cause]}"

    def _takes(self, place: int, column: int, rows: NDArray[np.bool_]) -> str:
        after = (self.host_s - _of_others(self.host_s))[rows, place].sum(axis=0).argmax()
        return _WORDS.get(PHASES[column], f"its {PHASES[column]} takes").format(after=PHASES[after])

    def _no_culprit(self) -> list[str]:
        """What is said where nobody is named: who is late in some steps, or that nobody is."""
        late_s, odd = self.late_s, list[str]()
        last = self.phase_s.sum(axis=2).argmax(axis=1)
        for place, rank in enumerate(self.ranks):
            noise_s = float(np.quantile(np.abs(np.delete(late_s, place, axis=1)), _NOISE))
            least_s = max(_LEAST_S, _ODD_SHARE * float(np.median(self.window_s)), _ODD_NOISE * noise_s)
            rows = (late_s[:, place] > least_s) & (last == place)
            if rows.sum() > 1:
                excess_s = (self.phase_s - _of_others(self.phase_s))[rows, place].mean(axis=0)
                why = self._takes(place, int(excess_s.argmax()), rows).removesuffix(" takes").removesuffix(" take")
                mean = _ms(float(late_s[rows, place].mean()))
                odd.append(f"Rank {rank} is late in {rows.sum()} of {len(rows)} steps, by {mean} ({why})")
        if odd:
            first = "No rank makes the others wait in most steps."
            return [" ".join([first, *(f"{one}, which is not steady enough to be named." for one in odd)])]
        noise = _ms(float(np.quantile(np.abs(late_s), _NOISE)))
        first = "None of these ranks" if self.missing else "The job is balanced: no rank"
        return [f"{first} stands out above the noise: nine of ten times a rank is less than {noise} late or early."]

    def _communication(self) -> list[str]:
        if not self.steps:
            return []
        step = f"A step takes {_ms(self.step_s)} in the mean"
        if not self.buckets:
            return [f"{step}. The traces hold no collective."]
        share = self.exposed_s / self.step_s
        said = (
            f"{step}; {_ms(self.exposed_s)} of it ({share:.0%}) is exposed communication, waiting for others included"
        )
        hidden = f"; {_ms(self.hidden_s)} of communication is hidden" if self.hidden_s else ""  # `watch` cannot see it
        return [f"{said}{hidden}."]

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
    """Return whose late arrival the ranks of a job wait for, why, and what it costs; see `culprits_of` for the rule.

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
        culprits=culprits_of(ranks, window_s, phase_s, stacked("starved_s")),
        buckets=_buckets(traces, owns, steps),
        problems=tuple(problems),
        missing=missing,
        joined=joined,
    )


def _buckets(traces: Sequence[Trace], owns: Sequence[OwnTimes], steps: Sequence[int]) -> tuple[Bucket, ...]:
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
        buckets.append(Bucket(name, kind, group, usual, *cost, latest, float(np.median(late_s)) if late_s else 0.0))
    return tuple(buckets)


def _mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _merged(spans: Timeline, *kinds: str) -> Intervals:
    chosen = spans.select(kind=kinds)
    return merge(chosen.start_s, chosen.stop_s)


def _inside(times_s: Seconds, intervals: Intervals) -> NDArray[np.bool_]:
    starts, stops = intervals
    return np.asarray(times_s <= np.append(stops, -np.inf)[np.searchsorted(starts, times_s, side="right") - 1])
