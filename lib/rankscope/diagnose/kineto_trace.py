"""`to_trace`: the events of one trace of torch.profiler become a `Trace`, with its collectives and its lanes."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..timeline.timeline import Span, Timeline, Times
from .kineto_events import EventColumns, KinetoEvents, Places, Role
from .trace import Calls, Ints, Trace

_STEP_PARTS = ("step", "loader", "forward", "zero_grad", "optimizer")
_PAUSE_S = 1e-4  # between copies out of buckets: in a longer one the rank waits for the next bucket


def to_trace(events: KinetoEvents, rank: int, source: str, group_ranks: Mapping[str, tuple[int, ...]]) -> Trace:
    """Return the trace of a rank; `group_ranks` are the ranks of its groups, in the order in which they were made."""
    calls = _calls(events, tuple(group_ranks))
    gradients = events.of("evaluate", "gradient")
    return Trace(
        rank,
        _timeline(events, rank, calls, gradients),
        calls.calls,
        events.num_others,
        source,
        _gradient_bytes(events, gradients),
        group_ranks,
    )


def _gradient_bytes(events: KinetoEvents, gradients: EventColumns) -> Ints:
    """The bytes of each gradient, -1 if the trace does not say it."""
    num_bytes = np.full(gradients.place.size, -1)
    operators = events.of("sizes")
    for place, gradient in zip(operators.place.tolist(), _around(gradients, operators).tolist(), strict=True):
        if gradient >= 0 and place in events.details:
            num_bytes[gradient] = events.details[place].num_bytes
    return num_bytes


# ---- the timeline

# the sides of a rank, in the order of its lanes
_CPU = 0
_GPU = 1
_GLOO = 2
_AUTOGRAD = 3
_SIDES = {"kernel": _GPU, "nccl": _GPU, "gloo": _GLOO, "evaluate": _AUTOGRAD}  # by role; others are on the CPU
_NOT_DRAWN = ("comms", "label", "sizes", "evaluate", "unpack")  # roles


class _Lanes(NamedTuple):
    """For each event the place of its lane in `names`."""

    lane: Ints
    names: tuple[str, ...]


def _timeline(events: KinetoEvents, rank: int, calls: _EventCalls, gradients: EventColumns) -> Timeline:
    roles = events.roles
    is_drawn = np.array([role.role not in _NOT_DRAWN for role in roles])[events.columns.code]
    is_drawn[gradients.place] = True
    rows = events.columns.take(np.flatnonzero(is_drawn))
    main = _main_thread(events)
    lanes = _lanes(events, rows, main)

    # a call has the kind that all of its events state together, the others that of their roles
    is_call = np.array([role.role in ("nccl", "gloo") for role in roles])[rows.code]
    kind_code = rows.code.copy()
    kind_code[is_call] = len(roles) + calls.calls.kind[calls.call_of[rows.place[is_call]]]
    words = ["launch" if role.role == "launch" else role.kind for role in roles] + list(calls.calls.kinds)
    used_codes, kind = np.unique(kind_code, return_inverse=True)
    kinds = tuple(words[code] for code in used_codes)

    items = _items(events, calls.call_of, gradients)[rows.place]
    ranks = np.full(rows.place.size, rank)
    spans = Timeline(ranks, lanes.lane, kind, items, rows.start_s, rows.stop_s, lanes.names, kinds)
    timeline = Timeline.concat([spans, Timeline.of(_hull_spans(events, rank, main))])
    return timeline.take(np.argsort(timeline.start_s, kind="stable"))


def _main_thread(events: KinetoEvents) -> int:
    """The thread that has the steps, or without steps their parts; -1 if there are none."""
    steps = events.of("span", *_STEP_PARTS)
    if any(role.kind == "step" for role in events.roles):
        steps = events.of("span", "step")
    return int(np.bincount(steps.thread).argmax()) if steps.place.size else -1


def _items(events: KinetoEvents, call_of: Ints, gradients: EventColumns) -> Ints:
    """The item of each event: a step's number, the place of a call or of a gradient, the bytes of a copy, or -1."""
    codes = events.columns.code
    items = np.array([role.item for role in events.roles])[codes]
    items = np.where(call_of >= 0, call_of, items)
    items[gradients.place] = np.arange(gradients.place.size)
    for place, details in events.details.items():
        if events.roles[codes[place]].role == "kernel":  # with details, it is a copy
            items[place] = details.num_elements * details.item_bytes if details.num_elements >= 0 else -1
    return items


def _lanes(events: KinetoEvents, rows: EventColumns, main: int) -> _Lanes:
    """Return the lane of each event: one per thread and stream, one for Gloo and one for autograd, on all threads."""
    num_threads = len(events.threads)
    side = np.array([_SIDES.get(role.role, _CPU) for role in events.roles])[rows.code]
    thread = np.where(side >= _GLOO, 0, rows.thread)
    side_and_thread = side * num_threads + thread  # a number for each pair
    lane_numbers, lane = np.unique(side_and_thread, return_inverse=True)
    names: list[str] = []
    known: set[str] = set()
    for lane_number in lane_numbers.tolist():
        lane_side, lane_thread = divmod(lane_number, num_threads)
        pid, tid = events.threads[lane_thread]
        name = _lane_name(lane_side, tid, lane_thread == main)
        if name in known:
            name = f"{name} of {pid}"
        names.append(name)
        known.add(name)
    return _Lanes(lane, tuple(names))


def _lane_name(side: int, tid: Any, is_main: bool) -> str:
    if side == _GPU:
        return f"stream {tid}"
    if side == _GLOO:
        return "gloo"
    if side == _AUTOGRAD:
        return "backward"
    return "main" if is_main else f"thread {tid}"


# ---- spans around several events


def _hull_spans(events: KinetoEvents, rank: int, main: int) -> list[Span]:
    """The phases that no single event shows: backward, FSDP's forward, unpacking, and the phases of the GPU."""
    steps = events.of("span", *_STEP_PARTS)
    steps = steps.take(steps.thread == main)
    backward = _hulls(events.of("evaluate"), steps.start_s)
    forward = _fsdp_forward(events, steps, backward, main)
    unpack = _unpack(events, steps)
    phases = EventColumns(*(np.concatenate(pair) for pair in zip(steps, forward, strict=True)))

    spans = [Span(rank, "backward", "backward", -1, *times) for times in _times(backward)]
    spans += [Span(rank, "main", "forward", -1, *times) for times in _times(forward)]
    for thread, times in zip(unpack.thread.tolist(), _times(unpack), strict=True):
        _, tid = events.threads[thread]
        spans.append(Span(rank, _lane_name(_CPU, tid, thread == main), "unpack", -1, *times))
    return spans + _gpu_phases(events, rank, phases, backward)


def _times(events: EventColumns) -> list[tuple[float, float]]:
    return list(zip(events.start_s.tolist(), events.stop_s.tolist(), strict=True))


def _unpack(events: KinetoEvents, steps: EventColumns) -> EventColumns:
    """When gradients leave buckets: copies in a row as one, as far as the rank does not wait between them."""
    copies = events.of("unpack")
    follows_pause = copies.start_s[1:] - copies.stop_s[:-1] > _PAUSE_S
    starts_after_pause_s = copies.start_s[1:][follows_pause]  # a copy may be recorded before the end of its collective
    cuts_s = np.sort(np.concatenate([steps.start_s, events.of("gloo").stop_s, starts_after_pause_s]))
    return _hulls(copies, cuts_s)


def _fsdp_forward(events: KinetoEvents, steps: EventColumns, backward: EventColumns, main: int) -> EventColumns:
    """FSDP's forward of each step, from its first range to its last, without layers that backward computes again."""
    kinds = [role.kind for role in events.roles if role.kind.startswith("range: FSDP::")]
    ranges = events.of("span", *kinds)
    is_forward = np.array([_is_fsdp_forward(role) for role in events.roles], bool)[ranges.code]
    in_backward = _within(ranges.start_s, backward).is_inside
    ranges = ranges.take(is_forward & ~in_backward & (ranges.thread == main))
    # no forward extends over the start of a step or the end of a backward
    cuts_s = np.sort(np.concatenate([steps.start_s, backward.stop_s]))
    return _hulls(ranges, cuts_s)


def _is_fsdp_forward(role: Role) -> bool:
    return role.kind.partition(" (")[0].endswith("_forward")


def _gpu_phases(events: KinetoEvents, rank: int, ranges: EventColumns, backward: EventColumns) -> list[Span]:
    """The time in which the GPU works on what was launched in each phase on the CPU, and in each gap between phases.

    Collectives wait for others, and are left out.
    """
    kinds = [events.kind(code) for code in ranges.code.tolist()]
    is_step = np.array([kind == "step" for kind in kinds], bool)
    steps = ranges.take(is_step)
    phases = ranges.take(~is_step)
    words = ["forward" if kind.startswith("range") else kind for kind in kinds if kind != "step"]
    words += ["backward"] * backward.place.size
    phases = EventColumns(*(np.concatenate(pair) for pair in zip(phases, backward, strict=True)))
    order = np.argsort(phases.start_s, kind="stable")

    started = _starts_on_cpu(events.of("kernel"), events.of("runtime"))
    started = started.take(np.flatnonzero(np.isfinite(started.start_s)))
    step = _within(started.start_s, steps)
    phase = _within(started.start_s, phases.take(order))
    # a number for each step, phase in it, and whether the launch is in the phase or in the gap behind it
    phase_number = step.row * (len(words) + 1) + phase.row + 1
    group = np.where(step.is_inside, phase_number * 2 + phase.is_inside, -1)
    by_group = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[by_group])) + 1
    spans = []
    for rows in np.split(by_group, edges):
        if not rows.size or not step.is_inside[rows[0]]:
            continue
        first = rows[0]
        kind = words[order[phase.row[first]]] if phase.is_inside[first] else "host"
        number = events.roles[steps.code[step.row[first]]].item
        work = events.columns.take(started.place[rows])
        spans.append(Span(rank, "gpu", kind, number, float(work.start_s.min()), float(work.stop_s.max())))
    return spans


# ---- collectives


class _CallParts(NamedTuple):
    group: str
    kind: str
    num_bytes: int
    launch_s: float
    start_s: float
    stop_s: float
    places: list[int]  # of its events


class _EventCalls(NamedTuple):
    """The collectives, and for each event the place of its call, or -1."""

    calls: Calls
    call_of: Ints


def _calls(events: KinetoEvents, groups: tuple[str, ...]) -> _EventCalls:
    kernels = events.of("nccl")
    started = _starts_on_cpu(kernels, events.of("runtime"))
    launches = _launches_without_kernels(events, started)
    gloo = events.of("gloo")
    launch_of = _launches_of(events, gloo, launches)
    parts = _nccl_calls(events, kernels, started)
    parts += _gloo_calls(events, gloo, launches, launch_of, groups)
    if not kernels.place.size:
        without_work = sorted({*range(launches.place.size)} - {*launch_of.tolist()})
        parts += _calls_without_work(events, launches.take(np.array(without_work, np.int64)), groups)

    parts.sort(key=lambda call: call.start_s if math.isnan(call.launch_s) else call.launch_s)
    call_of = np.full(events.columns.place.size, -1)
    for number, call in enumerate(parts):
        call_of[call.places] = number
    group_places = Places()
    kind_places = Places()
    calls = Calls(
        np.array([group_places[call.group] for call in parts], np.int64),
        np.array([kind_places[call.kind] for call in parts], np.int64),
        np.array([call.num_bytes for call in parts], np.int64),
        np.array([call.launch_s for call in parts], float),
        np.array([call.start_s for call in parts], float),
        np.array([call.stop_s for call in parts], float),
        tuple(group_places),
        tuple(kind_places),
    )
    return _EventCalls(calls, call_of)


def _call(events: KinetoEvents, place: int, around: list[int], launch_s: float) -> _CallParts:
    """Return the call that an event works on.

    Its facts are stated by that event and by those `around` its launch; the first that states a fact counts.
    """
    places = [place, *around]
    details = [events.details[place] for place in places if place in events.details]
    kinds = [detail.kind for detail in details] + [events.kind(events.columns.code[place]) for place in places]
    general_kind = kinds[-1] if details else kinds[0]  # if none is more specific
    return _CallParts(
        group=next((detail.group for detail in details if detail.group), ""),
        kind=next((kind for kind in kinds if kind not in ("nccl", "send_recv")), general_kind),
        num_bytes=next((detail.num_bytes for detail in details if detail.num_bytes >= 0), -1),
        launch_s=launch_s,
        start_s=float(events.columns.start_s[place]),
        stop_s=float(events.columns.stop_s[place]),
        places=places,
    )


def _nccl_calls(events: KinetoEvents, kernels: EventColumns, started: EventColumns) -> list[_CallParts]:
    """A call for each kernel, with what the ranges around its launch say of it."""
    ranges = [events.of("comms"), events.of("label"), events.of("launch")]
    rows_around = [_around(spans, started).tolist() for spans in ranges]
    calls = []
    for row, kernel in enumerate(kernels.place.tolist()):
        around = [spans.place[rows[row]] for spans, rows in zip(ranges, rows_around, strict=True) if rows[row] >= 0]
        calls.append(_call(events, kernel, around, float(started.start_s[row])))
    return calls


def _launches_without_kernels(events: KinetoEvents, started: EventColumns) -> EventColumns:
    """The launches in which NCCL had no part: Gloo's, and those whose work the trace does not have."""
    launches = events.of("launch")
    is_nccl = np.zeros(launches.place.size, bool)
    for inner in (started, events.of("comms"), events.of("label")):
        row = _around(launches, inner)
        is_nccl[row[row >= 0]] = True
    return launches.take(np.flatnonzero(~is_nccl))


def _gloo_calls(
    events: KinetoEvents, gloo: EventColumns, launches: EventColumns, launch_of: Ints, groups: tuple[str, ...]
) -> list[_CallParts]:
    group_of = _gloo_groups(events, gloo, launches, groups)
    calls = []
    for row, work in enumerate(gloo.place.tolist()):
        call = _call(events, work, [], math.nan)._replace(group=group_of[row])
        launch = int(launch_of[row])
        if launch >= 0:
            call = call._replace(
                kind=events.kind(launches.code[launch]),
                launch_s=float(launches.start_s[launch]),
                places=[work, int(launches.place[launch])],
            )
        calls.append(call)
    return calls


def _calls_without_work(events: KinetoEvents, launches: EventColumns, groups: tuple[str, ...]) -> list[_CallParts]:
    """Calls that were launched and did not end within the trace."""
    group = groups[0] if len(groups) == 1 else ""
    calls = []
    for place, launch_s in zip(launches.place.tolist(), launches.start_s.tolist(), strict=True):
        call = _call(events, place, [], launch_s)
        calls.append(call._replace(group=group, num_bytes=-1, start_s=math.nan, stop_s=math.nan))
    return calls


def _launches_of(events: KinetoEvents, gloo: EventColumns, launches: EventColumns) -> Ints:
    """For each piece of Gloo's work its launch, or -1. Launches that are alike are worked on in their order.

    First those count as alike that have the same kind and size, then those of the same kind; at last, a reduce_scatter
    is worked on as an allreduce, because Gloo has no other.
    """

    def kind(columns: EventColumns, row: int) -> Any:
        return events.kind(columns.code[row])

    def kind_and_size(columns: EventColumns, row: int) -> Any:
        details = events.details.get(int(columns.place[row]))
        return kind(columns, row), -1 if details is None else details.num_elements

    def kind_on_gloo(columns: EventColumns, row: int) -> Any:
        word = kind(columns, row)
        return "allreduce" if word == "reduce_scatter" else word

    launch_of = np.full(gloo.place.size, -1)
    for key in (kind_and_size, kind, kind_on_gloo):
        _assign_launches(launch_of, gloo, launches, key)
    return launch_of


def _assign_launches(
    launch_of: Ints, gloo: EventColumns, launches: EventColumns, key: Callable[[EventColumns, int], Any]
) -> None:
    """Give work that has no launch yet the first one with the same key that has no work and does not start later."""
    waiting = defaultdict[Any, deque[int]](deque)
    for launch in np.setdiff1d(np.arange(launches.place.size), launch_of).tolist():
        waiting[key(launches, launch)].append(launch)
    for work in np.flatnonzero(launch_of < 0).tolist():
        candidates = waiting[key(gloo, work)]
        if candidates and launches.start_s[candidates[0]] <= gloo.start_s[work]:
            launch_of[work] = candidates.popleft()


def _gloo_groups(
    events: KinetoEvents, gloo: EventColumns, launches: EventColumns, groups: tuple[str, ...]
) -> Sequence[str]:
    """Return the group of each piece of Gloo's work, "" if it is unclear.

    A group has two threads, which start when it is created, so their numbers are in the order of the groups.
    """
    if len(groups) == 1:
        return [groups[0]] * gloo.place.size
    threads_of_gloo = np.setdiff1d(gloo.thread, launches.thread).tolist()
    tids = {events.threads[thread][1] for thread in threads_of_gloo}
    if len(tids) != 2 * len(groups) or not all(isinstance(tid, int) for tid in tids):
        return [""] * gloo.place.size
    group_of = {tid: groups[place // 2] for place, tid in enumerate(sorted(tids))}
    return [group_of.get(events.threads[thread][1], "") for thread in gloo.thread.tolist()]


# ---- which events belong together


def _starts_on_cpu(kernels: EventColumns, runtime: EventColumns) -> EventColumns:
    """The kernels, with start and thread of the call of CUDA that launched each: nan and -1 if there is none."""
    runtime = runtime.take(np.argsort(runtime.correlation, kind="stable"))
    runtime = runtime.take(np.flatnonzero(runtime.correlation >= 0))
    place = np.searchsorted(runtime.correlation, kernels.correlation)
    # one entry more, for kernels behind the last call
    is_known = np.append(runtime.correlation, -2)[place] == kernels.correlation
    start_s = np.append(runtime.start_s, np.nan)[place]
    thread = np.append(runtime.thread, -1)[place]
    return kernels._replace(start_s=np.where(is_known, start_s, np.nan), thread=np.where(is_known, thread, -1))


class _EnclosingSpans(NamedTuple):
    """For each time the last span that starts before it, -1 for none, and whether the time is within that."""

    row: Ints
    is_inside: NDArray[np.bool_]


def _within(at_s: Times, spans: EventColumns) -> _EnclosingSpans:
    """`spans` are in the order of their starts."""
    row = np.searchsorted(spans.start_s, at_s, "right") - 1
    return _EnclosingSpans(row, (row >= 0) & (at_s <= np.append(spans.stop_s, -np.inf)[row]))


def _around(spans: EventColumns, inner: EventColumns) -> Ints:
    """For each inner event the span of its thread in which it starts, as a row of `spans`, or -1."""
    num_spans = spans.place.size
    enclosing = np.full(inner.place.size, -1)
    if not num_spans:
        return enclosing
    # spans and inner events in one order, by threads and starts: the last span before an inner event may enclose it
    thread = np.concatenate([spans.thread, inner.thread])
    start_s = np.concatenate([spans.start_s, inner.start_s])
    order = np.lexsort((start_s, thread))  # stable: of events that start at the same time, a span comes first
    is_span = order < num_spans
    last_span = np.maximum.accumulate(np.where(is_span, np.arange(order.size), -1))
    event = order[~is_span]
    place_of_span = last_span[~is_span]
    span = np.where(place_of_span >= 0, order[place_of_span], 0)
    same_thread = (place_of_span >= 0) & (thread[event] == thread[span])
    is_inside = same_thread & (start_s[event] <= spans.stop_s[np.where(same_thread, span, 0)])
    enclosing[event[is_inside] - num_spans] = span[is_inside]
    return enclosing


def _hulls(events: EventColumns, cuts_s: Times) -> EventColumns:
    """One event for those between two neighbouring cuts, from the start of the first to the end of the last."""
    group = np.searchsorted(cuts_s, events.start_s, "right")
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    stops_s = np.maximum.reduceat(events.stop_s, firsts) if firsts.size else events.stop_s
    return events.take(firsts)._replace(stop_s=stops_s)
