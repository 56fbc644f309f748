"""`to_trace`: the events of one trace of torch.profiler become a `Trace`, with its collectives and its lanes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from ...timeline import Span, Timeline
from .kineto_events import Event, collective_of
from .trace import Call, Trace

_FSDP_FORWARD = ("range: FSDP::root_pre_forward", "range: FSDP::pre_forward", "range: FSDP::post_forward")
_PHASES = ("loader", "forward", "zero_grad", "optimizer")  # those that are events of their own


def to_trace(events: dict[str, list[Event]], rank: int) -> Trace:
    """Return the trace of a rank.

    A trace without steps is one step, from its first event to its last.
    """
    steps = [event for event in events["span"] if event.kind == "step"]
    phases = [event for event in events["span"] if event.kind in _PHASES]
    every = sorted((event for of_role in events.values() for event in of_role), key=attrgetter("start_s"))
    main = Counter(event.thread for event in steps or phases or every[:1]).most_common(1)[0][0]
    if not steps:
        stop_s = max(event.stop_s for event in every)
        steps = [every[0]._replace(kind="step", item=0, thread=main, stop_s=stop_s)]
    phases = [event for event in phases if event.thread == main]
    starts_s = sorted(event.start_s for event in (*steps, *phases))
    backward = _hulls("backward", events["evaluate"], starts_s)  # one ends before the next step or phase begins
    forward = _fsdp_forward(events["span"], main, backward, starts_s)
    launch_of = {event.args.correlation: event for event in events["runtime"]}  # of kernels
    all_phases = sorted([*phases, *forward, *backward], key=attrgetter("start_s"))

    placed = [("main", event) for event in (*steps, *forward)]
    placed += [("backward", event) for event in backward]
    placed += [("backward", event) for event in events["evaluate"] if event.kind == "gradient"]
    placed += [("gpu", event) for event in _gpu_phases(events["kernel"], launch_of, steps, all_phases)]
    placed += [(f"stream {event.thread[1]}", event) for event in events["kernel"]]
    for event in events["span"]:
        if event.kind != "step":
            placed.append(("main" if event.thread == main else f"thread {event.thread[1]}", event))
    spans = [Span(rank, lane, event.kind, event.item, event.start_s, event.stop_s) for lane, event in placed]
    calls = [*_nccl_calls(events, launch_of), *_gloo_calls(events)]
    calls.sort(key=attrgetter("launch_s"))
    for place, call in enumerate(calls):
        spans.append(Span(rank, call.lane, call.kind, place, call.start_s, call.stop_s))
    spans.sort(key=attrgetter("start_s"))
    return Trace(rank, Timeline.of(spans), tuple(calls))


# ---- phases that no single event shows


def _hulls(kind: str, events: Iterable[Event], cuts_s: Sequence[float]) -> list[Event]:
    """Return one event for those that start between two neighbouring cuts, from the first start to the last stop.

    The events and the cuts are in the order of time.
    """
    hulls: list[Event] = []
    last_cut = -1
    for event in events:
        cut = bisect_right(cuts_s, event.start_s)
        if cut == last_cut:
            hulls[-1] = hulls[-1]._replace(stop_s=max(hulls[-1].stop_s, event.stop_s))
        else:
            hulls.append(event._replace(kind=kind, item=-1))
        last_cut = cut
    return hulls


def _fsdp_forward(
    ranges: Iterable[Event], main: Any, backward: Sequence[Event], starts_s: Sequence[float]
) -> list[Event]:
    """Return FSDP's forward of each step, from its first range, "FSDP::pre_forward (layer)", to its last.

    Layers that the backward computes again, in activation checkpointing, are left out.
    """
    in_forward = []
    for event in ranges:
        is_forward = event.kind.startswith(_FSDP_FORWARD) and event.thread == main
        if is_forward and not _is_inside(_last_started(backward, event.start_s), event.start_s):
            in_forward.append(event)
    return _hulls("forward", in_forward, sorted([*starts_s, *(event.stop_s for event in backward)]))


def _gpu_phases(
    kernels: Iterable[Event], launch_of: dict[Any, Event], steps: Sequence[Event], phases: Sequence[Event]
) -> list[Event]:
    """Return when the GPU works on what was launched in each phase on the CPU, and in each gap between phases ("host").

    Phases may overlap, because streams run side by side: the copy of a batch may go on after the forward has started.
    """
    found: dict[Any, Event] = {}
    for kernel in kernels:
        launch = launch_of.get(kernel.args.correlation)
        if launch is None:
            continue
        step = _last_started(steps, launch.start_s)
        if not _is_inside(step, launch.start_s):
            continue
        phase = _last_started(phases, launch.start_s)
        kind = phase.kind if _is_inside(phase, launch.start_s) else "host"
        key = step.start_s, phase and phase.start_s, kind
        hull = found.get(key, kernel)
        stop_s = max(hull.stop_s, kernel.stop_s)
        found[key] = hull._replace(kind=kind, item=step.item, stop_s=stop_s)
    return list(found.values())


def _last_started(events: Sequence[Event], at_s: float) -> Any:
    """Return the last of these events, in the order of their starts, that starts at or before a time; or None."""
    place = bisect_right(events, at_s, key=attrgetter("start_s"))
    return events[place - 1] if place else None


def _is_inside(event: Event | None, at_s: float) -> bool:
    return event is not None and at_s <= event.stop_s


# ---- collectives


def _nccl_calls(events: dict[str, list[Event]], launch_of: dict[Any, Event]) -> Iterator[Call]:
    """Return a call for each kernel, with what it and the ranges around its launch state; the first that does counts.

    The kinds "nccl" and "send_recv" only count if no other is stated: a name may state none, which is read as "nccl",
    and an all-to-all runs in a kernel that is called SendRecv.
    """
    by_thread = defaultdict[Any, list[Event]](list)
    for role in ("comms", "label", "launch"):
        for event in events[role]:
            by_thread[role, event.thread].append(event)
    for kernel in events["nccl"]:
        runtime = launch_of.get(kernel.args.correlation, kernel)
        around = [kernel]
        for role in ("comms", "label", "launch"):  # "record_param_comms", of role "comms", states most
            outer = _last_started(by_thread[role, runtime.thread], runtime.start_s)
            if _is_inside(outer, runtime.start_s):
                around.append(outer)
        kinds = [collective_of(str(event.args.collective)) for event in around] + [event.kind for event in around]
        kind = next((kind for kind in kinds if kind not in ("nccl", "send_recv")), "")
        if not kind:
            kind = "send_recv" if "send_recv" in kinds else "nccl"
        lane = f"stream {kernel.thread[1]}"
        yield Call(kind, runtime.start_s, kernel.start_s, kernel.stop_s, lane)


def _gloo_calls(events: dict[str, list[Event]]) -> Iterator[Call]:
    """Return a call for each piece of Gloo's work; those of a kind are launched in the order in which they start."""
    launches = defaultdict[str, deque[Event]](deque)
    for launch in events["launch"]:
        kind_on_gloo = "allreduce" if launch.kind == "reduce_scatter" else launch.kind  # it has no other
        launches[kind_on_gloo].append(launch)
    for work in events["gloo"]:
        launch = work  # if the trace does not have the launch
        asked = launches[work.kind]
        if asked and asked[0].start_s <= work.start_s:
            launch = asked.popleft()
        yield Call(launch.kind, launch.start_s, work.start_s, work.stop_s, "gloo")
