"""`to_trace`: the events of one trace of torch.profiler become a `Trace`, with its collectives and its lanes."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..timeline import Span, Timeline
from ..timeline.spans import Times
from .kineto_events import EventColumns, KinetoEvents, Places, Role
from .trace import Calls, Ints, Trace

_STEP_PARTS = ("step", "loader", "forward", "zero_grad", "optimizer")
_GLOO_THREADS_PER_GROUP = 2  # the default of `ProcessGroupGloo::Options::threads`
_PAUSE_S = 1e-4  # between copies out of buckets: in a longer one the rank waits for the next bucket


def to_trace(events: KinetoEvents, rank: int, source: str, group_ranks: Mapping[str, tuple[int, ...]]) -> Trace:
    """Return the trace of a rank; `group_ranks` are the ranks of its groups, in the order in which they were made."""
    calls = _calls(events, tuple(group_ranks))
    gradients = events.of("evaluate", "gradient")
    return Trace(
        rank,
        timeline=_timeline(events, rank, calls, gradients),
        calls=calls.calls,
        source=source,
        group_ranks=group_ranks,
    )


# ---- the timeline

# the sides of a rank, in the order of its lanes; the last two have a single lane for all their threads
_CPU = 0
_GPU = 1
_GLOO = 2
_AUTOGRAD = 3
_SIDES = {"kernel": _GPU, "nccl": _GPU, "gloo": _GLOO, "evaluate": _AUTOGRAD}  # by role; others are on the CPU
_NOT_DRAWN = ("comms", "label", "evaluate", "unpack")  # roles


class _Lanes(NamedTuple):
    """For each event the index of its lane in `names`."""

    lane: Ints
    names: tuple[str, ...]


def _timeline(events: KinetoEvents, rank: int, calls: _EventCalls, gradients: EventColumns) -> Timeline:
    """Return the spans of a rank: one for each event that is drawn, and those that several events make up."""
    roles = events.roles
    is_role_drawn = np.array([role.role not in _NOT_DRAWN for role in roles])
    is_drawn = is_role_drawn[events.columns.code]
    is_drawn[gradients.event] = True  # of all that autograd evaluates, only the gradients
    drawn = events.columns.take(is_drawn)
    main = _main_thread(events)
    lanes = _lanes(events, drawn, main)

    # An event has the kind of its role. An event that is a call has the kind of the call instead, which several events
    # state together: such kinds have the codes behind those of the roles. A launch is called so, because its collective
    # is the kind of its call.
    words = ["launch" if role.role == "launch" else role.kind for role in roles] + list(calls.calls.kinds)
    is_call = np.array([role.role in ("nccl", "gloo") for role in roles])[drawn.code]
    call = calls.call_of[drawn.event[is_call]]  # never -1: each kernel of NCCL and each piece of Gloo's work is a call
    code = drawn.code.copy()
    code[is_call] = len(roles) + calls.calls.kind[call]
    used_codes, kind = np.unique(code, return_inverse=True)
    kinds = tuple(words[used_code] for used_code in used_codes)

    items = _items(events, calls.call_of, gradients)[drawn.event]
    ranks = np.full(drawn.size, rank)
    spans = Timeline(ranks, lanes.lane, kind, items, drawn.start_s, drawn.stop_s, lanes.names, kinds)
    timeline = Timeline.concat([spans, Timeline.of(_hull_spans(events, rank, main))])
    return timeline.take(np.argsort(timeline.start_s, kind="stable"))


def _main_thread(events: KinetoEvents) -> int:
    """Return the thread that has most of the steps, or without steps, of their parts; -1 if there are none."""
    spans = events.of("span", "step")
    if not spans.size:
        spans = events.of("span", *_STEP_PARTS)
    if not spans.size:
        return -1
    return int(np.bincount(spans.thread).argmax())


def _items(events: KinetoEvents, call_of: Ints, gradients: EventColumns) -> Ints:
    """Return the item of each event: a step's number, the index of a call or gradient, the bytes of a copy, or -1."""
    codes = events.columns.code
    items = np.array([role.item for role in events.roles])[codes]
    items = np.where(call_of >= 0, call_of, items)
    items[gradients.event] = np.arange(gradients.size)
    for event, details in events.details.items():
        if events.roles[codes[event]].role == "kernel":  # with details, it is a copy
            items[event] = details.num_bytes
    return items


def _lanes(events: KinetoEvents, drawn: EventColumns, main: int) -> _Lanes:
    """Return the lane of each event: one per thread and stream, one for Gloo and one for autograd, on all threads."""
    num_threads = len(events.threads)
    side = np.array([_SIDES.get(role.role, _CPU) for role in events.roles])[drawn.code]
    has_single_lane = side >= _GLOO
    thread = np.where(has_single_lane, 0, drawn.thread)
    # a number for each pair of side and thread, which sorts lanes by side; `divmod` gives the pair back
    pair_numbers, lane = np.unique(side * num_threads + thread, return_inverse=True)
    names: list[str] = []
    known: set[str] = set()
    for pair_number in pair_numbers.tolist():
        lane_side, lane_thread = divmod(pair_number, num_threads)
        pid, tid = events.threads[lane_thread]
        name = _lane_name(lane_side, tid, lane_thread == main)
        if name in known:  # another process, or another device, has a thread or stream of this number
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
    """Return the phases that no single event shows: backward, FSDP's forward, unpacking, and those of the GPU."""
    parts = events.of("span", *_STEP_PARTS)
    parts = parts.take(parts.thread == main)  # steps and phases that are events
    backward = _hulls(events.of("evaluate"), parts.start_s)  # one ends before the next step or phase begins
    forward = _fsdp_forward(events, parts, backward, main)
    unpack = _unpack(events, parts)

    spans = _spans(rank, "backward", "backward", backward) + _spans(rank, "main", "forward", forward)
    for thread in dict.fromkeys(unpack.thread.tolist()):  # each thread once
        _pid, tid = events.threads[thread]
        lane = _lane_name(_CPU, tid, is_main=thread == main)
        spans += _spans(rank, lane, "unpack", unpack.take(unpack.thread == thread))
    is_step = np.array([events.kind(code) == "step" for code in parts.code.tolist()], bool)
    phases = _phases(events, parts.take(~is_step), forward, backward)
    return spans + _gpu_phases(events, rank, parts.take(is_step), phases)


class _Phases(NamedTuple):
    """The phases of all steps in the order of their starts, and the kind of each."""

    spans: EventColumns
    kinds: list[str]


def _phases(events: KinetoEvents, stated: EventColumns, forward: EventColumns, backward: EventColumns) -> _Phases:
    """Return all phases: those that are events themselves, FSDP's forward, and the backward."""
    columns = zip(stated, forward, backward, strict=True)
    spans = EventColumns(*(np.concatenate(column) for column in columns))
    kinds = [events.kind(code) for code in stated.code.tolist()]
    kinds += ["forward"] * forward.size + ["backward"] * backward.size
    by_start = np.argsort(spans.start_s, kind="stable")
    return _Phases(spans.take(by_start), [kinds[index] for index in by_start.tolist()])


def _spans(rank: int, lane: str, kind: str, events: EventColumns) -> list[Span]:
    """Return a span of this lane and kind for each event; it belongs to no item."""
    times = zip(events.start_s.tolist(), events.stop_s.tolist(), strict=True)
    return [Span(rank, lane, kind, item=-1, start_s=start_s, stop_s=stop_s) for start_s, stop_s in times]


def _unpack(events: KinetoEvents, parts: EventColumns) -> EventColumns:
    """Return when gradients leave buckets: copies in a row as one, as far as the rank does not wait between them.

    A rank may wait before a phase of the step, and for the end of a collective of Gloo. It also waited if there is a
    pause between two copies, because a copy may be recorded before the end of its collective.
    """
    copies = events.of("unpack")
    follows_pause = copies.start_s[1:] - copies.stop_s[:-1] > _PAUSE_S
    starts_after_pause_s = copies.start_s[1:][follows_pause]
    cuts_s = np.sort(np.concatenate([parts.start_s, events.of("gloo").stop_s, starts_after_pause_s]))
    return _hulls(copies, cuts_s)


def _fsdp_forward(events: KinetoEvents, parts: EventColumns, backward: EventColumns, main: int) -> EventColumns:
    """Return FSDP's forward of each step, from its first range to its last.

    Layers that the backward computes again, in activation checkpointing, are left out.
    """
    ranges = events.of("span")
    is_forward = np.array([_is_fsdp_forward(role) for role in events.roles], bool)[ranges.code]
    in_backward = _within(ranges.start_s, backward).is_inside
    ranges = ranges.take(is_forward & ~in_backward & (ranges.thread == main))
    # no forward extends over the start of a step or of a phase, or over the end of a backward
    cuts_s = np.sort(np.concatenate([parts.start_s, backward.stop_s]))
    return _hulls(ranges, cuts_s)


def _is_fsdp_forward(role: Role) -> bool:
    """Return whether this is the range "FSDP::pre_forward (layer)" or "FSDP::post_forward (layer)"."""
    label = role.kind.partition(" (")[0]
    return label.startswith("range: FSDP::") and label.endswith("_forward")


def _gpu_phases(events: KinetoEvents, rank: int, steps: EventColumns, phases: _Phases) -> list[Span]:
    """Return when the GPU works on what was launched in each phase on the CPU, and in each gap between phases ("host").

    Collectives wait for others, and are left out. Phases may overlap, because streams run side by side: the copy of a
    batch, on its own stream, may go on after the first kernel of the forward has started. `own_times` decides which
    phase such a time counts to.
    """
    kernels = _starts_on_cpu(events.of("kernel"), events.of("runtime"))
    launched = kernels.take(np.isfinite(kernels.start_s))
    step = _within(launched.start_s, steps)
    phase = _within(launched.start_s, phases.spans)
    # A number for each interval of launches: for each step and phase, and for the gap behind each phase. Before the
    # first phase, `phase.row` is -1. Launches outside of steps share -1.
    phase_number = step.row * (phases.spans.size + 1) + phase.row + 1
    interval = np.where(step.is_inside, phase_number * 2 + phase.is_inside, -1)
    spans = []
    for rows in _rows_by_value(interval):
        first = rows[0]
        if not step.is_inside[first]:
            continue
        kind = phases.kinds[phase.row[first]] if phase.is_inside[first] else "host"
        step_number = events.roles[steps.code[step.row[first]]].item
        work = events.columns.take(launched.event[rows])  # with the times on the GPU
        spans.append(Span(rank, "gpu", kind, step_number, float(work.start_s.min()), float(work.stop_s.max())))
    return spans


def _rows_by_value(values: Ints) -> list[Ints]:
    """Return the indices of each different value, by rising value."""
    by_value = np.argsort(values, kind="stable")
    edges = np.flatnonzero(np.diff(values[by_value])) + 1
    return [rows for rows in np.split(by_value, edges) if rows.size]  # numpy splits nothing into one empty array


# ---- collectives


class _CallRow(NamedTuple):
    """A call, as in a row of `Calls`, and the numbers of the events that belong to it."""

    group: str
    kind: str
    num_bytes: int
    launch_s: float
    start_s: float
    stop_s: float
    events: list[int]


class _EventCalls(NamedTuple):
    """The collectives, and for each event the index of its call, or -1."""

    calls: Calls
    call_of: Ints


def _calls(events: KinetoEvents, groups: tuple[str, ...]) -> _EventCalls:
    """Return the collectives in the order of their launches, of NCCL's kernels and of Gloo's work.

    In a trace without kernels of NCCL, launches without work are calls that did not end. In one with kernels, they may
    be launches whose kernel the trace lacks, and are left out.
    """
    kernels = events.of("nccl")
    launched_kernels = _starts_on_cpu(kernels, events.of("runtime"))
    launches = _launches_without_kernels(events, launched_kernels)
    gloo = events.of("gloo")
    launch_of_work = _launches_of_work(events, gloo, launches)
    rows = _nccl_calls(events, kernels, launched_kernels)
    rows += _gloo_calls(events, gloo, launches, launch_of_work, groups)
    if not kernels.size:
        is_without_work = ~np.isin(np.arange(launches.size), launch_of_work)
        rows += _calls_without_work(events, launches.take(is_without_work), groups)

    rows.sort(key=lambda row: row.start_s if math.isnan(row.launch_s) else row.launch_s)
    call_of = np.full(events.columns.size, -1)
    for index, row in enumerate(rows):
        call_of[row.events] = index
    group_places = Places()
    kind_places = Places()
    calls = Calls(
        group=np.array([group_places[row.group] for row in rows], np.int64),
        kind=np.array([kind_places[row.kind] for row in rows], np.int64),
        num_bytes=np.array([row.num_bytes for row in rows], np.int64),
        launch_s=np.array([row.launch_s for row in rows], float),
        start_s=np.array([row.start_s for row in rows], float),
        stop_s=np.array([row.stop_s for row in rows], float),
        groups=tuple(group_places),
        kinds=tuple(kind_places),
    )
    return _EventCalls(calls, call_of)


def _call(events: KinetoEvents, event: int, around: list[int], launch_s: float) -> _CallRow:
    """Return the call that an event works on; its start and stop are the event's.

    Its group, kind and bytes are stated by that event and by those `around` its launch; the first that states one
    counts. The kinds "nccl" and "send_recv" only count if no other is stated: an event of any collective may have a
    name that states none, which is read as "nccl", and an all-to-all runs in a kernel that is called SendRecv.
    """
    all_events = [event, *around]
    details = [events.details[number] for number in all_events if number in events.details]
    kinds = [detail.kind for detail in details]
    kinds += [events.kind(events.columns.code[number]) for number in all_events]
    kind = "send_recv" if "send_recv" in kinds else "nccl"
    for stated_kind in kinds:
        if stated_kind not in ("nccl", "send_recv"):
            kind = stated_kind
            break
    return _CallRow(
        group=next((detail.group for detail in details if detail.group), ""),
        kind=kind,
        num_bytes=next((detail.num_bytes for detail in details if detail.num_bytes >= 0), -1),
        launch_s=launch_s,
        start_s=float(events.columns.start_s[event]),
        stop_s=float(events.columns.stop_s[event]),
        events=all_events,
    )


def _nccl_calls(events: KinetoEvents, kernels: EventColumns, launched: EventColumns) -> list[_CallRow]:
    """Return a call for each kernel, with what the ranges around its launch state of it.

    `launched` are the same kernels with start and thread of their launch; see `_starts_on_cpu`.
    """
    # in the order in which `_call` believes them: record_param_comms, of role "comms", states most
    ranges = [events.of("comms"), events.of("label"), events.of("launch")]
    rows_around = [_around(spans, launched).tolist() for spans in ranges]
    calls = []
    for row, kernel in enumerate(kernels.event.tolist()):
        around = []
        for spans, rows in zip(ranges, rows_around, strict=True):
            if rows[row] >= 0:
                around.append(int(spans.event[rows[row]]))
        calls.append(_call(events, kernel, around, float(launched.start_s[row])))
    return calls


def _launches_without_kernels(events: KinetoEvents, launched_kernels: EventColumns) -> EventColumns:
    """Return the launches in which NCCL had no part: Gloo's, and those whose work the trace does not have."""
    launches = events.of("launch")
    is_nccl = np.zeros(launches.size, bool)
    for inner in (launched_kernels, events.of("comms"), events.of("label")):
        row = _around(launches, inner)
        is_nccl[row[row >= 0]] = True
    return launches.take(~is_nccl)


def _gloo_calls(
    events: KinetoEvents, gloo: EventColumns, launches: EventColumns, launch_of_work: Ints, groups: tuple[str, ...]
) -> list[_CallRow]:
    """Return a call for each piece of Gloo's work.

    Its kind is that of its launch, if it has one, because Gloo works on a reduce_scatter as an allreduce.
    """
    group_of_work = _gloo_groups(events, gloo, launches, groups)
    calls = []
    for row, work in enumerate(gloo.event.tolist()):
        call = _call(events, work, around=[], launch_s=math.nan)._replace(group=group_of_work[row])
        launch = int(launch_of_work[row])
        if launch >= 0:
            call = call._replace(
                kind=events.kind(launches.code[launch]),
                launch_s=float(launches.start_s[launch]),
                events=[work, int(launches.event[launch])],
            )
        calls.append(call)
    return calls


def _calls_without_work(events: KinetoEvents, launches: EventColumns, groups: tuple[str, ...]) -> list[_CallRow]:
    """Return the calls of these launches, which did not end within the trace."""
    group = groups[0] if len(groups) == 1 else ""  # a launch does not state its group
    calls = []
    for launch, launch_s in zip(launches.event.tolist(), launches.start_s.tolist(), strict=True):
        call = _call(events, launch, around=[], launch_s=launch_s)
        # A launch states the shapes of all its inputs, and some operators, such as `_allgather_base_`, have their
        # output first. So its size need not be what the rank puts in, and counts as unknown.
        calls.append(call._replace(group=group, num_bytes=-1, start_s=math.nan, stop_s=math.nan))
    return calls


def _launches_of_work(events: KinetoEvents, gloo: EventColumns, launches: EventColumns) -> Ints:
    """Return for each piece of Gloo's work its launch, or -1. Launches that are alike are worked on in their order.

    First those count as alike that have the same kind and size, then those of the same kind; at last, a reduce_scatter
    is worked on as an allreduce, because Gloo has no other.
    """

    def kind(columns: EventColumns, row: int) -> Any:
        return events.kind(columns.code[row])

    def kind_and_size(columns: EventColumns, row: int) -> Any:
        details = events.details.get(int(columns.event[row]))
        return kind(columns, row), -1 if details is None else details.num_elements

    def kind_on_gloo(columns: EventColumns, row: int) -> Any:
        word = kind(columns, row)
        return "allreduce" if word == "reduce_scatter" else word

    launch_of_work = np.full(gloo.size, -1)
    for key in (kind_and_size, kind, kind_on_gloo):
        _assign_launches(launch_of_work, gloo, launches, key)
    return launch_of_work


def _assign_launches(
    launch_of_work: Ints, gloo: EventColumns, launches: EventColumns, key: Callable[[EventColumns, int], Any]
) -> None:
    """Set the launch of each piece of work in `launch_of_work` that has none yet.

    It is the first launch with the same key that has no work, unless that starts later than the work.
    """
    free_launches = defaultdict[Any, deque[int]](deque)  # by key, in the order of time
    for launch in np.setdiff1d(np.arange(launches.size), launch_of_work).tolist():
        free_launches[key(launches, launch)].append(launch)
    for work in np.flatnonzero(launch_of_work < 0).tolist():
        candidates = free_launches[key(gloo, work)]
        if candidates and launches.start_s[candidates[0]] <= gloo.start_s[work]:
            launch_of_work[work] = candidates.popleft()


def _gloo_groups(
    events: KinetoEvents, gloo: EventColumns, launches: EventColumns, groups: tuple[str, ...]
) -> Sequence[str]:
    """Return the group of each piece of Gloo's work, "" if it is unclear.

    Threads of Gloo start when their group is created, so their numbers are in the order of the groups.
    """
    if len(groups) == 1:
        return [groups[0]] * gloo.size
    # a thread that launches collectives itself does not belong to Gloo
    threads_of_gloo = np.setdiff1d(gloo.thread, launches.thread).tolist()
    tid_of_thread = {thread: tid for thread, (_pid, tid) in enumerate(events.threads)}
    tids = {tid_of_thread[thread] for thread in threads_of_gloo}
    if len(tids) != _GLOO_THREADS_PER_GROUP * len(groups) or not all(isinstance(tid, int) for tid in tids):
        return [""] * gloo.size
    group_of_tid = {tid: groups[index // _GLOO_THREADS_PER_GROUP] for index, tid in enumerate(sorted(tids))}
    return [group_of_tid.get(tid_of_thread[thread], "") for thread in gloo.thread.tolist()]


# ---- which events belong together


def _starts_on_cpu(kernels: EventColumns, runtime: EventColumns) -> EventColumns:
    """Return the kernels with start and thread of the call of CUDA that launched each; nan and -1 if there is none.

    The two share a correlation number.
    """
    runtime = runtime.take(np.argsort(runtime.correlation, kind="stable"))
    runtime = runtime.take(runtime.correlation >= 0)
    row = np.searchsorted(runtime.correlation, kernels.correlation)
    # one entry more, with a number that no kernel has, for kernels whose number is larger than that of all calls
    is_known = np.append(runtime.correlation, -2)[row] == kernels.correlation
    start_s = np.append(runtime.start_s, np.nan)[row]
    thread = np.append(runtime.thread, -1)[row]
    return kernels._replace(start_s=np.where(is_known, start_s, np.nan), thread=np.where(is_known, thread, -1))


class _EnclosingSpans(NamedTuple):
    """For each time the last span that starts before it, -1 for none, and whether the time is within that."""

    row: Ints
    is_inside: NDArray[np.bool_]


def _within(at_s: Times, spans: EventColumns) -> _EnclosingSpans:
    """Return for each time the last span that starts at or before it; `spans` are in the order of their starts."""
    row = np.searchsorted(spans.start_s, at_s, "right") - 1
    stop_s = np.append(spans.stop_s, -np.inf)[row]  # row -1 is the appended one
    return _EnclosingSpans(row, (row >= 0) & (at_s <= stop_s))


def _around(spans: EventColumns, inner: EventColumns) -> Ints:
    """Return for each inner event the span of its thread in which it starts, as a row of `spans`, or -1.

    Only the last span that starts before it counts, because the spans of a thread follow each other.
    """
    num_spans = spans.size
    enclosing = np.full(inner.size, -1)
    if num_spans == 0:
        return enclosing
    # Spans and inner events in one list, sorted by threads and starts. The sort is stable, so of events that start at
    # the same time a span comes first.
    thread = np.concatenate([spans.thread, inner.thread])
    start_s = np.concatenate([spans.start_s, inner.start_s])
    order = np.lexsort((start_s, thread))
    is_span = order < num_spans
    # the position in this order of the last span up to each entry, -1 if there is none
    last_span_position = np.maximum.accumulate(np.where(is_span, np.arange(order.size), -1))
    # of each inner event: its row, and the row of that span
    inner_row = order[~is_span] - num_spans
    position = last_span_position[~is_span]
    has_span = position >= 0
    span_row = np.where(has_span, order[position], 0)
    is_same_thread = has_span & (inner.thread[inner_row] == spans.thread[span_row])
    is_inside = is_same_thread & (inner.start_s[inner_row] <= spans.stop_s[span_row])
    enclosing[inner_row[is_inside]] = span_row[is_inside]
    return enclosing


def _hulls(events: EventColumns, cuts_s: Times) -> EventColumns:
    """Return one event for those that start between two neighbouring cuts, from the first start to the last stop.

    `events` are in the order of their starts, and so are `cuts_s`. Other columns are those of the first event.
    """
    num_cuts_before = np.searchsorted(cuts_s, events.start_s, "right")
    firsts = np.flatnonzero(np.diff(num_cuts_before, prepend=-1))  # with -1 before it, the first event counts, too
    if not firsts.size:  # there are no events, and `reduceat` does not take empty columns
        return events
    return events.take(firsts)._replace(stop_s=np.maximum.reduceat(events.stop_s, firsts))
