"""`own_times`: what one rank did in each step, and how long it waited for others.

The longest backward does not name the late rank. A late rank makes all others wait inside their collectives, most of
which end inside backward, so durations look alike on all ranks. What differs is a rank's own time: the time in which it
does not wait. It is counted per window, from the end of one step's last gradient collective to the end of the next
step's. A window is as long on all ranks, because a collective ends everywhere at once, so no clocks are compared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...timeline import Timeline
from ...timeline.intervals import Intervals, intersect, merge
from .late_causes import Seconds
from .trace import CALL_KINDS, PHASES, Trace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HOST = PHASES.index("host")
_FSDP = ("range: FSDP::", "range: FullyShardedDataParallel")  # how the ranges begin that FSDP records
_FSDP_CALLS = ("range: FSDP::all_gather (", "range: FSDP::post_backward_reduce (")  # that end when their collective has
_FSDP_END = "range: FSDP::root_post_backward_callback"  # which reduces the last gradients, after autograd


class CallTimes(NamedTuple):
    """What each of a rank's calls costs, in seconds."""

    step: Ints  # the number of its step, or -1
    phase: Ints  # in which it was launched, as an index of `PHASES`
    of_fsdp: Bools  # whether it was launched within a range of FSDP
    # The time in which the call is the next one to end, and queues behind no other call: how much of it is exposed, and
    # how much is hidden.
    exposed_s: Seconds
    hidden_s: Seconds


class OwnTimes(NamedTuple):
    """What one rank did in each of its windows, in seconds: arrays with a row per step."""

    steps: Ints  # the numbers of the steps
    window_s: Seconds
    phase_s: Seconds  # own time, in which the rank waited for nobody: steps by `PHASES`
    exposed_s: Seconds  # communication that no work of the rank covers
    hidden_s: Seconds  # communication that work covers
    calls: CallTimes


def own_times(trace: Trace) -> OwnTimes:
    """Return what a rank did in each window, from its trace alone.

    On the CPU a rank waits from the launch of its last gradient collective to the end of all, and in every other
    collective from launch to end, or until it goes on with another phase. FSDP's collectives block the CPU, in forward
    and in backward, so there a rank waits while one of them runs and it is within a range of FSDP (torch 2.13:
    ``unshard`` and ``post_backward`` in ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``). On a GPU it
    waits while collectives run and nothing else does.
    """
    spans = trace.timeline
    main = spans.select(lane="main")
    steps = main.select(kind="step")
    steps = steps.take(np.argsort(steps.start_s, kind="stable"))
    host = {phase: _merged(main, phase) for phase in PHASES}
    # on all lanes, because autograd has threads of its own; gradients leave their buckets ("unpack") in backward, too
    host["backward"] = _merged(spans, "backward", "unpack", _FSDP_END)
    on_gpu = spans.select(lane="gpu")
    gpu = {phase: _merged(on_gpu, phase) for phase in PHASES}
    streams = spans.select(lane=[lane for lane in spans.lanes if lane.startswith("stream ")])
    gpu_work = _merged(streams, *(kind for kind in streams.kinds if kind not in CALL_KINDS))
    kernels = _merged(streams, "kernel")
    copies = _merged(streams, "memcpy h2d")
    has_gpu = gpu_work[0].size > 0

    calls = _calls(trace, steps, has_gpu)
    in_calls = merge(calls.arrive_s, calls.stop_s)
    windows = _windows(steps, calls)
    blocked = _blocked(spans, calls, host)
    # Cut the time at each edge of anything that the rank does: within such a slice it does one thing only.
    intervals = [*host.values(), *gpu.values(), gpu_work, kernels, copies, in_calls, blocked, windows.at_end]
    intervals.append((windows.begin_s, windows.end_s))
    edge_s = np.unique(np.concatenate([times_s for pair in intervals for times_s in pair]))
    length_s = np.diff(edge_s)
    middle_s = (edge_s[:-1] + edge_s[1:]) / 2  # a slice is inside of what its middle is inside of

    gpu_works = _inside(middle_s, gpu_work)
    in_call = _inside(middle_s, in_calls)
    if has_gpu:
        waits = in_call & ~gpu_works
    else:  # the backward may go on after the launch of its last collective
        waits_at_end = _inside(middle_s, windows.at_end) & ~_inside(middle_s, host["backward"])
        waits = waits_at_end | _inside(middle_s, blocked)
    # What the GPU works on counts before the host's phase, and later phases before earlier ones.
    phase = np.full(middle_s.size, _HOST)
    for index, name in enumerate(PHASES):
        phase[_inside(middle_s, host[name])] = index
    for index, name in enumerate(PHASES):
        phase[gpu_works & _inside(middle_s, gpu[name])] = index
    phase[_inside(middle_s, copies) & ~_inside(middle_s, kernels)] = PHASES.index("h2d")
    window = np.searchsorted(windows.begin_s, middle_s, side="right") - 1  # the last one that has begun
    in_window = _inside(middle_s, (windows.begin_s, windows.end_s))

    def seconds(chosen: Bools) -> Seconds:
        """Return the seconds of the chosen slices, windows by phases."""
        table_s = np.zeros((windows.rows.size, len(PHASES)))
        chosen = chosen & in_window
        np.add.at(table_s, (window[chosen], phase[chosen]), length_s[chosen])
        return table_s

    # Of calls that overlap, only the next one to end counts: a call counts from the end of the one that ended before.
    by_end = np.argsort(calls.stop_s, kind="stable")
    next_end = np.append(by_end, -1)[np.searchsorted(calls.stop_s[by_end], middle_s)]
    has_call = np.append(calls.arrive_s, np.inf)[next_end] <= middle_s

    def of_calls(chosen: Bools) -> Seconds:
        """Return the seconds of the chosen slices, by call."""
        chosen = chosen & has_call
        return np.bincount(next_end[chosen], length_s[chosen], minlength=by_end.size).astype(float)

    # before the first edge the slice is -1, and after the last one their number: both take the appended "host"
    launched_in = np.append(phase, _HOST)[np.searchsorted(edge_s, calls.launch_s, side="right") - 1]
    launched_in[_inside(calls.launch_s, host["backward"])] = PHASES.index("backward")
    return OwnTimes(
        steps=steps.item[windows.rows],
        window_s=windows.end_s - windows.begin_s,
        phase_s=seconds(~waits),
        exposed_s=seconds(waits).sum(axis=1),
        hidden_s=seconds(in_call & ~waits).sum(axis=1),
        calls=CallTimes(
            step=np.append(steps.item, -1)[calls.step],
            phase=launched_in,
            of_fsdp=calls.of_fsdp,
            exposed_s=of_calls(waits),
            hidden_s=of_calls(~waits),
        ),
    )


# ---- a rank's calls, and the windows that they end


class _Calls(NamedTuple):
    """When a rank launched each call, arrived at it and left it, and what the call belongs to."""

    launch_s: Seconds
    arrive_s: Seconds
    stop_s: Seconds
    of_gradients: Bools
    of_fsdp: Bools
    step: Ints  # a row of the steps, -1 for calls before the first


def _calls(trace: Trace, steps: Timeline, has_gpu: bool) -> _Calls:
    """Return the calls; those of gradients are launched as one gets ready, or if none is, in the backward."""
    times_s = np.array([(call.launch_s, call.start_s, call.stop_s) for call in trace.calls]).reshape(-1, 3)
    launch_s, start_s, stop_s = times_s.T
    of_gradients = _inside(launch_s, _merged(trace.timeline, "gradient"))
    if not of_gradients.any():
        of_gradients = _inside(launch_s, _merged(trace.timeline, "backward", _FSDP_END))
    step = np.searchsorted(steps.start_s, launch_s, side="right") - 1
    arrive_s = start_s if has_gpu else launch_s  # Gloo starts a call only when one of its threads is free
    of_fsdp = _inside(launch_s, _named(trace.timeline, _FSDP))
    return _Calls(launch_s, arrive_s, stop_s, of_gradients, of_fsdp, step)


class _Windows(NamedTuple):
    """The windows that have a begin and an end, in order; the steps that these belong to, as rows of the steps."""

    rows: Ints
    begin_s: Seconds
    end_s: Seconds
    at_end: Intervals  # from the arrival at the last collective to the end of the window; none without collectives


def _windows(steps: Timeline, calls: _Calls) -> _Windows:
    """Return the windows of a rank: each ends with the last collective of gradients of its step.

    Without collectives of gradients, the last collective of any kind ends it; without any, the steps are the windows.
    """
    ends_window = calls.step >= 0
    if calls.of_gradients.any():
        ends_window = ends_window & calls.of_gradients
    if not ends_window.any():
        nothing = np.zeros(0)
        return _Windows(np.arange(len(steps)), steps.start_s, steps.stop_s, at_end=(nothing, nothing))

    # By step, when the rank arrives at the last such call, and when that ends; nan in a step without one, which fmax
    # ignores. DDP waits for all calls of gradients at once, at the end.
    arrive_s = np.full(len(steps), np.nan)
    end_s = np.full(len(steps), np.nan)
    np.fmax.at(arrive_s, calls.step[ends_window], calls.arrive_s[ends_window])
    np.fmax.at(end_s, calls.step[ends_window], calls.stop_s[ends_window])
    # a window begins where that before it ends, perhaps some steps earlier, where gradients are accumulated
    begin_s = np.append(np.nan, np.fmax.accumulate(end_s)[:-1])
    if np.isfinite(end_s).sum() == 1:  # no step before it has an end, so its window begins where the step does
        begin_s = steps.start_s
    rows = np.flatnonzero(np.isfinite(begin_s) & np.isfinite(end_s))
    return _Windows(rows, begin_s[rows], end_s[rows], at_end=merge(arrive_s[rows], end_s[rows]))


def _blocked(spans: Timeline, calls: _Calls, host: dict[str, Intervals]) -> Intervals:
    """Return when the host of a rank without a GPU is blocked in calls, apart from the wait at the end of a window."""
    # A collective that is not waited for at the end blocks the host, until that goes on with another phase.
    blocks = ~calls.of_gradients & ~calls.of_fsdp
    phase_start_s = np.sort(np.concatenate([starts_s for starts_s, _ in host.values()]))
    next_phase = np.searchsorted(phase_start_s, calls.arrive_s, side="right")
    until_s = np.minimum(calls.stop_s, np.append(phase_start_s, np.inf)[next_phase])
    # Of FSDP's calls, only a rank within a range of FSDP waits. It is back at the end of the range in which the call
    # ends: a thread that has waited gets its core late on a busy machine. That is no work, and there are so many
    # collectives in a step that it would hide a late rank.
    starts_s, stops_s = _named(spans, _FSDP_CALLS)
    last_range = np.searchsorted(starts_s, calls.launch_s, side="right") - 1  # -1 before the first one
    back_s = np.maximum(calls.stop_s, np.append(stops_s, -np.inf)[last_range])
    in_fsdp = intersect(_named(spans, _FSDP), merge(calls.arrive_s[calls.of_fsdp], back_s[calls.of_fsdp]))
    return merge(np.append(calls.arrive_s[blocks], in_fsdp[0]), np.append(until_s[blocks], in_fsdp[1]))


# ---- intervals


def _merged(spans: Timeline, *kinds: str) -> Intervals:
    chosen = spans.select(kind=kinds)
    return merge(chosen.start_s, chosen.stop_s)


def _named(spans: Timeline, begins: tuple[str, ...]) -> Intervals:
    """Return the intervals of ranges whose names begin so; the group follows, as in "FSDP::all_gather (layer)"."""
    return _merged(spans, *(kind for kind in spans.kinds if f"{kind} (".startswith(begins)))


def _inside(times_s: Seconds, intervals: Intervals) -> Bools:
    """Return which of the times are within one of the intervals, which are sorted and do not overlap."""
    starts, stops = intervals
    last_started = np.searchsorted(starts, times_s, side="right") - 1  # -1, before the first, takes the appended stop
    return np.asarray(times_s <= np.append(stops, -np.inf)[last_started])
