"""`own_times`: what one rank did in each step, and how long it waited for others.

The longest backward does not name the late rank. A late rank makes all others wait inside their collectives, most of
which end inside backward, so durations look alike on all ranks. What differs is a rank's own time: the time in which it
does not wait. It is counted per window, from the end of one step's last gradient collective to the end of the next
step's. A window is as long on all ranks, because a collective ends everywhere at once, so no clocks are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from ..timeline.intervals import Intervals, merge
from .late_ranks import Seconds
from .trace import PHASES, Ints, Trace

Bools = NDArray[np.bool_]

_HOST = PHASES.index("host")
_NO_INTERVALS = np.zeros(0), np.zeros(0)
_FSDP = "range: FSDP::"  # how the ranges begin that FSDP records
_FSDP_CALLS = ("range: FSDP::all_gather", "range: FSDP::post_backward_reduce")  # that end when their collective has
_FSDP_END = "range: FSDP::root_post_backward_callback"  # which reduces the last gradients, after autograd


class OwnTimes(NamedTuple):
    """What one rank did in each of its windows, in seconds, and what each of its calls cost.

    Arrays have a row per step; `phase_s` and `host_s` also have a column for each of `PHASES`. The `call_` columns have
    an entry for each of the trace's calls.
    """

    steps: Ints  # the numbers of the steps
    window_s: Seconds
    phase_s: Seconds  # own time, in which the rank waited for nobody
    host_s: Seconds  # the column "host" of `phase_s`, by the phase that began last before
    exposed_s: Seconds  # communication that no work of the rank covers
    hidden_s: Seconds  # communication that work covers
    idle_s: Seconds  # own time in which its GPU did nothing; 0 without one
    starved_s: Seconds  # the time that the host waited for a core, if it was recorded
    call_row: Ints  # the row of the call's step, or -1
    call_phase: Ints  # the index in `PHASES` of the phase in which it was launched
    call_of_gradients: Bools
    call_s: Seconds  # from its arrival to its end
    # The time in which the call is the next one to end, and queues behind no other call: how much of it is exposed, and
    # how much is hidden.
    call_exposed_s: Seconds
    call_hidden_s: Seconds


def own_times(trace: Trace) -> OwnTimes:
    """Return what a rank did in each window, from its trace alone.

    On the CPU a rank waits from the launch of its last gradient collective to the end of all, and in every other
    collective from launch to end, or until it goes on with another phase. FSDP's collectives block the CPU, in forward
    and in backward, so there a rank waits while one of them runs and it is within a range of FSDP (torch 2.13:
    ``unshard`` and ``post_backward`` in ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``). On a GPU it
    waits while collectives run and nothing else does. Raises ValueError for a trace without steps.
    """
    steps = trace.timeline.select(lane="main", kind="step")
    if not len(steps):
        raise ValueError(
            f"{trace.source} has no steps: give torch.profiler.profile a schedule, and call its step() after each step"
        )
    steps = steps.take(np.argsort(steps.start_s, kind="stable"))
    work = _work(trace.timeline, trace.calls.kinds)
    calls = _call_times(trace, steps, work.is_on_gpu)
    windows = _windows(steps, calls)
    slices = _slices(work, calls, windows)

    is_own = ~slices.waits
    is_host = is_own & (slices.phase == _HOST)
    is_idle = is_own & ~slices.gpu_works & work.is_on_gpu
    step_numbers = steps.item[windows.rows]
    exposed_s, hidden_s = _exposed_and_hidden(calls, slices)
    return OwnTimes(
        steps=step_numbers,
        window_s=windows.end_s - windows.begin_s,
        phase_s=slices.seconds_by_phase(is_own, slices.phase),
        host_s=slices.seconds_by_phase(is_host, slices.last_started),
        exposed_s=slices.seconds(slices.waits),
        hidden_s=slices.seconds(slices.in_call & is_own),
        idle_s=slices.seconds(is_idle),
        starved_s=_starved(trace.timeline, step_numbers),
        call_row=_row_of_each_call(calls, windows, len(steps)),
        call_phase=_phase_of_each_call(calls, work, slices),
        call_of_gradients=calls.of_gradients,
        call_s=np.where(calls.has_ended, calls.stop_s - calls.arrive_s, np.nan),
        call_exposed_s=np.where(calls.has_ended, exposed_s, np.nan),
        call_hidden_s=np.where(calls.has_ended, hidden_s, np.nan),
    )


# ---- when the rank works


class _WorkTimes(NamedTuple):
    """When a rank works: by phase, on the host and on the GPU, and by what the streams of the GPU run."""

    host: dict[str, Intervals]
    gpu: dict[str, Intervals]
    streams: Intervals  # everything but collectives
    kernels: Intervals
    copies: Intervals  # from the host to the GPU
    fsdp: Intervals  # the ranges that FSDP records
    fsdp_calls: Intervals  # those of a collective
    is_on_gpu: bool


def _work(spans: Timeline, collectives: Sequence[str]) -> _WorkTimes:
    """Return when a rank works; `collectives` are the kinds of spans that are not its own work."""
    main = spans.select(lane="main")
    host = {phase: _merged(main, phase) for phase in PHASES}
    # on all lanes, because autograd has threads of its own; gradients leave their buckets ("unpack") in backward, too
    host["backward"] = _merged(spans, "backward", "unpack", _FSDP_END)
    on_gpu = spans.select(lane="gpu")
    gpu = {phase: _merged(on_gpu, phase) for phase in PHASES}
    streams = spans.select(lane=[lane for lane in spans.lanes if lane.startswith("stream ")])
    computing = streams.select(kind=[kind for kind in streams.kinds if kind not in collectives])
    return _WorkTimes(
        host=host,
        gpu=gpu,
        streams=_merged(computing, *computing.kinds),
        kernels=_merged(computing, "kernel"),
        copies=_merged(computing, "memcpy h2d"),
        fsdp=_merged(spans, *(kind for kind in spans.kinds if kind.startswith(_FSDP))),
        # the name of a range is followed by its group, as in "range: FSDP::all_gather (layer)"
        fsdp_calls=_merged(spans, *(kind for kind in spans.kinds if kind.partition(" (")[0] in _FSDP_CALLS)),
        is_on_gpu=len(computing) > 0,
    )


def _starved(spans: Timeline, step_numbers: Ints) -> Seconds:
    """Return how long the rank waited for a core in each of these steps."""
    starved = spans.select(kind="starved")
    seconds_of = dict(zip(starved.item.tolist(), (starved.stop_s - starved.start_s).tolist(), strict=True))
    return np.array([seconds_of.get(number, 0.0) for number in step_numbers.tolist()])


# ---- its calls, and the windows that they end


class _CallTimes(NamedTuple):
    """When a rank launched each call, arrived at it and left it, and what the call belongs to."""

    launch_s: Seconds
    arrive_s: Seconds
    stop_s: Seconds
    has_ended: Bools  # within the trace, so that its arrival and its end are known
    of_gradients: Bools
    step: Ints  # -1 for calls before the first step


def _call_times(trace: Trace, steps: Timeline, is_on_gpu: bool) -> _CallTimes:
    """Return the times of each call, and whether it reduces gradients: whether it is launched as one gets ready.

    If the trace has joint calls, these do. If no call is launched so, all that are launched in the backward do.
    """
    calls = trace.calls
    launch_s = np.where(np.isfinite(calls.launch_s), calls.launch_s, calls.start_s)
    arrive_s = calls.start_s if is_on_gpu else launch_s  # Gloo starts a call only when one of its threads is free
    has_ended = np.isfinite(arrive_s) & np.isfinite(calls.stop_s)
    of_gradients = has_ended & _inside(launch_s, _merged(trace.timeline, "gradient"))
    if trace.joint_calls.size:
        of_gradients = has_ended & np.isin(np.arange(len(calls)), trace.joint_calls)
    elif not of_gradients.any():
        of_gradients = has_ended & _inside(launch_s, _merged(trace.timeline, "backward", _FSDP_END))
    step = np.searchsorted(steps.start_s, launch_s, side="right") - 1
    return _CallTimes(launch_s, arrive_s, calls.stop_s, has_ended, of_gradients, step)


class _Windows(NamedTuple):
    """The windows that have a begin and an end, in order; the steps that these belong to, as rows of the steps."""

    rows: Ints
    begin_s: Seconds
    end_s: Seconds
    at_end: Intervals  # from the arrival at the last collective to the end of the window; none without collectives


def _windows(steps: Timeline, calls: _CallTimes) -> _Windows:
    """Return the windows of a rank: each ends with the last collective of gradients of its step.

    Without collectives of gradients, the last collective of any kind ends it; without any, the steps are the windows.
    """
    ends_windows = calls.of_gradients if calls.of_gradients.any() else calls.has_ended
    ends_windows = ends_windows & (calls.step >= 0)
    if not ends_windows.any():
        return _Windows(np.arange(len(steps)), steps.start_s, steps.stop_s, at_end=_NO_INTERVALS)

    # By step, when the rank arrives at the last such call, and when that ends; NaN in a step without one, which fmax
    # ignores. DDP waits for all calls of gradients at once, at the end.
    arrive_s = np.full(len(steps), np.nan)
    end_s = np.full(len(steps), np.nan)
    np.fmax.at(arrive_s, calls.step[ends_windows], calls.arrive_s[ends_windows])
    np.fmax.at(end_s, calls.step[ends_windows], calls.stop_s[ends_windows])
    begin_s = np.append(np.nan, end_s[:-1])  # a window begins where that of the step before ends
    if np.isfinite(end_s).sum() == 1:  # no step before it has an end, so its window begins where the step does
        begin_s = steps.start_s
    rows = np.flatnonzero(np.isfinite(begin_s) & np.isfinite(end_s))
    return _Windows(rows, begin_s[rows], end_s[rows], at_end=merge(arrive_s[rows], end_s[rows]))


# ---- slices of time


class _Slices(NamedTuple):
    """The time between two neighbouring edges of any spans; within such a slice a rank does one thing only."""

    edge_s: Seconds  # one more than there are slices
    length_s: Seconds
    window: Ints  # `num_windows` for a slice outside of all
    num_windows: int
    phase: Ints  # index in PHASES
    last_started: Ints  # the phase that started last before the slice
    gpu_works: Bools
    in_call: Bools
    waits: Bools

    def seconds(self, chosen: Bools) -> Seconds:
        """Return the seconds of the chosen slices by window."""
        totals = np.bincount(self.window[chosen], self.length_s[chosen], self.num_windows + 1)
        in_windows = totals[:-1]  # the last total is that of slices outside of all windows
        return in_windows.astype(float)  # bincount returns whole numbers if no slice is chosen

    def seconds_by_phase(self, chosen: Bools, phase: Ints) -> Seconds:
        """Return the seconds of the chosen slices, windows by phases."""
        num_rows = self.num_windows + 1  # the last row is that of slices outside of all windows
        cell = self.window * len(PHASES) + phase  # a number for each pair of window and phase
        totals = np.bincount(cell[chosen], self.length_s[chosen], num_rows * len(PHASES))
        return totals.astype(float).reshape(num_rows, len(PHASES))[:-1]


def _slices(work: _WorkTimes, calls: _CallTimes, windows: _Windows) -> _Slices:
    """Cut the time at each edge of anything that the rank does, and return what it does in each slice."""
    start_s, started_phase = _starts_of_phases(work.host)
    waits = _call_intervals(calls, work, start_s)
    intervals = [*work.host.values(), *work.gpu.values(), work.streams, work.kernels, work.copies, work.fsdp]
    intervals += [*waits, windows.at_end, (windows.begin_s, windows.end_s)]
    edge_s = np.unique(np.concatenate([times_s for pair in intervals for times_s in pair]))
    middle_s = (edge_s[:-1] + edge_s[1:]) / 2  # a slice is inside of what its middle is inside of

    gpu_works = _inside(middle_s, work.streams)
    in_call = _inside(middle_s, waits.any_call)
    if work.is_on_gpu:
        is_waiting = in_call & ~gpu_works
    else:
        # the backward may go on after the launch of its last collective
        waits_at_end = _inside(middle_s, windows.at_end) & ~_inside(middle_s, work.host["backward"])
        waits_in_fsdp = _inside(middle_s, waits.fsdp) & _inside(middle_s, work.fsdp)
        is_waiting = waits_at_end | waits_in_fsdp | _inside(middle_s, waits.blocked)

    num_windows = windows.rows.size
    begun_window = np.searchsorted(windows.begin_s, middle_s, side="right") - 1  # the last one that has begun
    is_in_window = _inside(middle_s, (windows.begin_s, windows.end_s))
    last_start = np.searchsorted(start_s, middle_s, side="right") - 1  # -1 before the first one, which takes "host"
    return _Slices(
        edge_s=edge_s,
        length_s=np.diff(edge_s),
        window=np.where(is_in_window, begun_window, num_windows),
        num_windows=num_windows,
        phase=_phases(middle_s, work, gpu_works),
        last_started=np.append(started_phase, _HOST)[last_start],
        gpu_works=gpu_works,
        in_call=in_call,
        waits=is_waiting,
    )


class _CallIntervals(NamedTuple):
    """When calls run, and in which of them the host of a rank without a GPU is blocked."""

    any_call: Intervals
    blocked: Intervals  # in calls that block the host, outside of FSDP
    fsdp: Intervals  # in FSDP's calls, until the host is back; only a rank within a range of FSDP waits for them


def _call_intervals(calls: _CallTimes, work: _WorkTimes, phase_start_s: Seconds) -> _CallIntervals:
    """Return these intervals; `phase_start_s` has when phases start on the host, in order."""
    is_of_fsdp = calls.has_ended & _inside(calls.launch_s, work.fsdp)
    # A collective that is not waited for at the end blocks the host, until that goes on with another phase.
    blocks = calls.has_ended & ~calls.of_gradients & ~is_of_fsdp
    next_phase = np.searchsorted(phase_start_s, calls.arrive_s, side="right")
    next_start_s = np.append(phase_start_s, np.inf)[next_phase]
    blocked_until_s = np.minimum(calls.stop_s, next_start_s)
    back_s = _fsdp_back_s(calls, work.fsdp_calls)
    return _CallIntervals(
        any_call=merge(calls.arrive_s[calls.has_ended], calls.stop_s[calls.has_ended]),
        blocked=merge(calls.arrive_s[blocks], blocked_until_s[blocks]),
        fsdp=merge(calls.arrive_s[is_of_fsdp], back_s[is_of_fsdp]),
    )


def _fsdp_back_s(calls: _CallTimes, ranges: Intervals) -> Seconds:
    """Return when the host is back from each call of FSDP: at the end of the range in which the call ends.

    A thread that has waited gets its core late on a busy machine. That is no work, and there are so many collectives in
    a step that it would hide a late rank. A call that ends in no range has its own end.
    """
    starts_s, stops_s = ranges
    last_range = np.searchsorted(starts_s, calls.launch_s, side="right") - 1  # -1 before the first one
    range_stop_s = np.append(stops_s, -np.inf)[last_range]
    return np.where(calls.stop_s <= range_stop_s, range_stop_s, calls.stop_s)


def _starts_of_phases(host: dict[str, Intervals]) -> tuple[Seconds, Ints]:
    """Return when phases start on the host, in order of time, and for each start the index of its phase."""
    starts_of_phases = []
    for phase in PHASES:
        start_s, _stop_s = host[phase]
        starts_of_phases.append(start_s)
    all_start_s = np.concatenate(starts_of_phases)
    phase_of_start = np.repeat(np.arange(len(PHASES)), [start_s.size for start_s in starts_of_phases])
    order = np.argsort(all_start_s, kind="stable")
    return all_start_s[order], phase_of_start[order]


def _phases(middle_s: Seconds, work: _WorkTimes, gpu_works: Bools) -> Ints:
    """Return the phase of each slice, as an index of `PHASES`; "host" if it is in none.

    The last assignment decides: what the GPU works on counts before the host's, and later phases before earlier ones.
    """
    phase = np.full(middle_s.size, _HOST)
    for index, name in enumerate(PHASES):
        phase[_inside(middle_s, work.host[name])] = index
    for index, name in enumerate(PHASES):
        phase[gpu_works & _inside(middle_s, work.gpu[name])] = index
    phase[_inside(middle_s, work.copies) & ~_inside(middle_s, work.kernels)] = PHASES.index("h2d")
    return phase


# ---- what each call costs


def _row_of_each_call(calls: _CallTimes, windows: _Windows, num_steps: int) -> Ints:
    """Return the window of the step that each call belongs to, or -1."""
    row_of_step = np.full(num_steps + 1, -1)  # the last entry serves step -1, that of calls before the first step
    row_of_step[windows.rows] = np.arange(windows.rows.size)
    return np.where(calls.has_ended, row_of_step[calls.step], -1)


def _phase_of_each_call(calls: _CallTimes, work: _WorkTimes, slices: _Slices) -> Ints:
    """Return the phase in which each call was launched; the backward counts before others that run at once."""
    slice_of_launch = np.searchsorted(slices.edge_s, calls.launch_s, side="right") - 1
    # before the first edge this is -1, and after the last one the number of slices: both take the appended "host"
    phase = np.append(slices.phase, _HOST)[slice_of_launch]
    phase[_inside(calls.launch_s, work.host["backward"])] = PHASES.index("backward")
    return phase


def _exposed_and_hidden(calls: _CallTimes, slices: _Slices) -> tuple[Seconds, Seconds]:
    """Return for how many seconds each call is exposed, and for how many it is hidden; nan if it did not end.

    Of calls that overlap, only the next one to end counts: a call counts from the end of the call that ended before it.
    """
    # Calls that did not end, or whose arrival is unknown, come last: none is the previous one of a call that counts.
    by_end = np.argsort(np.where(calls.has_ended, calls.stop_s, np.inf), kind="stable")
    previous_end_s = np.empty(by_end.size)
    previous_end_s[by_end] = np.append(-np.inf, calls.stop_s[by_end][:-1])
    since_s = np.maximum(calls.arrive_s, previous_end_s)
    # how long the rank has waited up to each edge; between two edges this grows evenly, or not at all
    waited_s = np.append(0.0, np.cumsum(slices.length_s * slices.waits))
    waited_until_stop_s = np.interp(calls.stop_s, slices.edge_s, waited_s)
    exposed_s = waited_until_stop_s - np.interp(since_s, slices.edge_s, waited_s)
    hidden_s = calls.stop_s - since_s - exposed_s
    return exposed_s, hidden_s


# ---- intervals


def _merged(spans: Timeline, *kinds: str) -> Intervals:
    chosen = spans.select(kind=kinds)
    return merge(chosen.start_s, chosen.stop_s)


def _inside(times_s: Seconds, intervals: Intervals) -> Bools:
    """Return which of the times are within one of the intervals, which are sorted and do not overlap."""
    starts, stops = intervals
    last_started = np.searchsorted(starts, times_s, side="right") - 1  # -1, before the first, takes the appended stop
    return np.asarray(times_s <= np.append(stops, -np.inf)[last_started])
