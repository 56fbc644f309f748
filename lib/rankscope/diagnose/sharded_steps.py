"""The recorded steps of an FSDP job on Gloo: what each rank did between the parts that settings of FSDP add or move.

`fully_shard` records a range for each thing that it does (torch 2.13, ``_fsdp_param_group.py`` and ``_fsdp_state.py``
in ``torch/distributed/fsdp/_fully_shard``). On the CPU all of it runs on the thread that trains, and a collective
blocks this thread. So a step of a rank is a sequence: own work of the rank, interrupted by all-gathers, copies out of
them, and reductions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..common.checks import count_of
from ..train.fsdp.step import ShardedParameter, StepEvent
from .late_ranks import Seconds
from .trace import Ints, Trace

_RANGE = re.compile(r"range: FSDP::(\w+)(?: \((.*)\))?$")  # the label of the range, and its group
# the ranges of FSDP's parts, the collectives that each part has, and the ranges that begin with an event of the module
_PART_KINDS = {"all_gather": "gather", "all_gather_copy_out": "copy_out", "post_backward_reduce": "reduce"}
_CALLS_OF_PARTS = {"gather": ["allgather"], "copy_out": [], "reduce": ["reduce_scatter"]}
_EVENT_KINDS = {
    "pre_forward": "enter",
    "post_forward": "leave",
    "pre_backward": "pre_backward",
    "post_backward_accumulate": "post_backward",
}
_MOST_GROUPS = 1000  # of parameters: each is compared with all others
# seconds of pieces and parts, over all ranks and steps, so that their arrays have at most 256 MiB: if there are more,
# only the last steps are used
_MOST_VALUES = 1 << 25
_MOST_VALUES_PER_PART = 4  # the times that a `_ShardedStepOfRank` has of each part
_LEAST_STEPS = 2  # of the same shape, so that there is a median


class PartKey(NamedTuple):
    """A part of a step: "gather", "copy_out" or "reduce", its group, and its number among those alike in the step."""

    kind: str
    group: str
    order: int


class PlacedPart(NamedTuple):
    """A collective part of a step, and how many pieces of own work begin before it."""

    kind: str
    group: str
    num_pieces_before: int


class StepShape(NamedTuple):
    """What steps must have in common to be compared: their events, and the parts between them."""

    events: tuple[StepEvent, ...]  # those of a `ModuleStep`, without times
    groups: tuple[str, ...]  # in the order in which forward reaches them, without a root that has no parameters
    trained: tuple[str, ...]  # groups whose gradients are reduced
    placed: tuple[PlacedPart, ...]
    parts: tuple[PartKey, ...]
    num_others: int  # collectives that are not FSDP's


class ShardedSteps(NamedTuple):
    """Recorded steps of one shape. Times are in seconds, and each array of them has the shape steps by ranks.

    A rank begins a step when its last collective of the step before ends. It does its pieces of own work one after the
    other, and FSDP's parts in between. In a part, a rank works, then takes part in a collective, and works again. A
    part without a collective, "copy_out", is only work.
    """

    shape: StepShape
    num_ranks: int
    window_s: Seconds  # the length of each step
    begin_s: Seconds  # when a rank begins a step, as the difference from the mean of all ranks
    piece_s: list[Seconds]  # the own work of each piece
    before_s: dict[PartKey, Seconds]  # the work of each part before its collective, or all its work if it has none
    # From the arrival of the last rank to the end of the collective on each rank. The ends differ, because threads of
    # Gloo wait for a core.
    collective_s: dict[PartKey, Seconds]
    after_s: dict[PartKey, Seconds]  # the work of a part after its collective
    call_bytes: dict[PartKey, int]  # what the collective of a part communicates, -1 if that is unknown
    skipped_steps: tuple[int, ...]  # the numbers of those that cannot be used: of another shape, or not on every rank


def is_sharded(traces: Sequence[Trace]) -> bool:
    """Return whether one of the traces has ranges of FSDP."""
    return any(kind.startswith("range: FSDP::") for trace in traces for kind in trace.timeline.kinds)


def sharded_steps(traces: Sequence[Trace]) -> ShardedSteps:
    """Return the steps of the most common shape, of those that have the same shape on every rank.

    Raises ValueError if there are too few of them, for traces of GPUs, for traces that lack a rank of the job, and for
    a job that what_if cannot replay: HSDP, several groups per module, or a group of several modules.
    """
    _check_supported(traces)
    ranks = [_steps_of_rank(trace) for trace in traces]
    numbers_on_all = set.intersection(*(set(rank.steps) for rank in ranks))
    numbers_on_any = set.union(*({*rank.steps, *rank.unusable} for rank in ranks))
    shape_of: dict[int, StepShape] = {}
    for number in sorted(numbers_on_all):
        shapes = {rank.steps[number].shape for rank in ranks}
        if len(shapes) == 1:
            shape_of[number] = shapes.pop()
    shape = _commonest_shape(shape_of)
    numbers = [number for number, shape_of_step in shape_of.items() if shape_of_step == shape]
    skipped_steps = tuple(sorted(numbers_on_any.difference(numbers)))
    # at most: each piece of own work begins with an event or more
    num_values_per_step = len(ranks) * (len(shape.events) + _MOST_VALUES_PER_PART * len(shape.parts))
    most_steps = max(_MOST_VALUES // num_values_per_step, _LEAST_STEPS)
    # steps[i][r] is the i-th step of rank r
    steps = [[rank.steps[number] for rank in ranks] for number in numbers[-most_steps:]]
    return _stacked(shape, steps, skipped_steps)


def _commonest_shape(shape_of: dict[int, StepShape]) -> StepShape:
    """Return the shape of most steps. Raises ValueError if too few steps have it."""
    num_steps_of = Counter(shape_of.values())
    if num_steps_of:
        shape, num_steps = num_steps_of.most_common(1)[0]
        if num_steps >= _LEAST_STEPS:
            return shape
    # one more than `_LEAST_STEPS`: a step begins where the collectives of the one before end, and the first has none
    wanted = f"at least {_LEAST_STEPS + 1} steps of FSDP with the same collectives on every rank"
    most_alike = max(num_steps_of.values(), default=0)
    raise ValueError(f"traces must have {wanted}, and have {count_of(most_alike, 'such step')} after the first")


def _check_supported(traces: Sequence[Trace]) -> None:
    """Raise ValueError for traces of GPUs, for missing ranks, and for groups of parameters that cannot be replayed."""
    kinds = {kind for trace in traces for kind in trace.timeline.kinds}
    if any(lane.startswith("stream ") for trace in traces for lane in trace.timeline.lanes):
        raise ValueError(
            "what_if supports FSDP only on CPUs, and these traces are of GPUs, whose kernels do not show which group "
            "they belong to"
        )
    # the largest group has all ranks of the job; 0 if the traces do not say who is in a group
    num_ranks = max((len(members) for trace in traces for members in trace.group_ranks.values()), default=0)
    if len(traces) < max(num_ranks, 2):  # a single rank has nothing to shard, and `ShardSettings` refuses it
        wanted = f"all {num_ranks}" if num_ranks > 1 else "at least 2"
        raise ValueError(f"what_if needs the FSDP traces of {wanted} ranks, got {len(traces)}")
    groups = {match[2] or "" for match in map(_RANGE.match, kinds) if match and match[1] == "all_gather"}
    if len(groups) > _MOST_GROUPS:
        raise ValueError(f"traces must have at most {_MOST_GROUPS} groups of FSDP, and have {len(groups)}")
    for group in sorted(groups):
        if ", " in group:  # FSDP names a group after its modules
            raise ValueError(f"what_if supports FSDP only with one module per group, got a group of {group}")
    # FSDP adds "[pg=SIZE]" to the label of a range only if its module has several groups of parameters
    if any(kind.startswith("range: FSDP::") and "[pg=" in kind for kind in kinds):
        raise ValueError("what_if supports FSDP only with one group of FSDP per module, and these traces have several")


# ---- one rank


class _RangeOfRank(NamedTuple):
    """A range of FSDP: its label, its group, and when it was open."""

    label: str
    group: str
    start_s: float
    stop_s: float


class _OtherCall(NamedTuple):
    """A collective that is not FSDP's: the piece of own work in which it was launched, and how long it takes."""

    piece: int
    seconds: float


class _ShardedStepOfRank(NamedTuple):
    """A step of one rank, on its own clock; the fields have the meanings that they have in `ShardedSteps`.

    There is one difference: `collective_s` counts from the arrival of this rank, which is at `launch_s`.
    """

    shape: StepShape
    begin_s: float
    window_s: float
    piece_s: list[float]
    before_s: dict[PartKey, float]
    launch_s: dict[PartKey, float]
    collective_s: dict[PartKey, float]
    after_s: dict[PartKey, float]
    call_bytes: dict[PartKey, int]
    others: list[_OtherCall]


class _ShardedColumns(NamedTuple):
    """What steps are read from: the ranges of FSDP by their starts, and the calls that ended by their launches."""

    ranges: list[_RangeOfRank]
    range_start_s: list[float]
    launch_s: list[float]
    stop_s: list[float]
    num_bytes: Ints
    kinds: list[str]


class _ShardedStepsOfRank(NamedTuple):
    """The steps of one rank by their numbers, and the numbers of those with a part that has unexpected collectives."""

    steps: dict[int, _ShardedStepOfRank]
    unusable: set[int]


def _steps_of_rank(trace: Trace) -> _ShardedStepsOfRank:
    """Return the steps of a rank that follow one with reductions.

    Such a step begins where the last reduction of the step before ends, and ends where its own last reduction does.
    """
    columns = _columns(trace)
    step_spans = trace.timeline.select(lane="main", kind="step")
    steps: dict[int, _ShardedStepOfRank] = {}
    unusable: set[int] = set()
    previous_end_s: float | None = None  # of the reductions of the step before; None if it had none
    for index in np.argsort(step_spans.start_s, kind="stable").tolist():
        span = step_spans[index]
        first_range = bisect_left(columns.range_start_s, span.start_s)
        end_of_ranges = bisect_left(columns.range_start_s, span.stop_s)
        ranges = columns.ranges[first_range:end_of_ranges]
        end_s = _end_of_reductions(columns, ranges)
        # a late stamp of the step before may lie behind the end of this one
        if previous_end_s is not None and end_s is not None and previous_end_s < end_s:
            step = _step_of_rank(columns, ranges, previous_end_s, end_s)
            if step is None:
                unusable.add(span.item)
            elif span.item not in steps:  # steps without a number are all -1: the first of them counts
                steps[span.item] = step
        previous_end_s = end_s
    return _ShardedStepsOfRank(steps, unusable)


def _columns(trace: Trace) -> _ShardedColumns:
    """Return the ranges of FSDP and the finished calls of a trace, each in the order of time."""
    spans = trace.timeline
    matches = [_RANGE.match(kind) for kind in spans.kinds]
    ranges = []
    for index in np.argsort(spans.start_s, kind="stable").tolist():
        match = matches[spans.kind[index]]
        if match is not None:
            start_s = float(spans.start_s[index])
            stop_s = float(spans.stop_s[index])
            ranges.append(_RangeOfRank(label=match[1], group=match[2] or "", start_s=start_s, stop_s=stop_s))
    calls = trace.calls
    # a call counts from its start if the trace does not show its launch
    launch_s = np.where(np.isfinite(calls.launch_s), calls.launch_s, calls.start_s)
    finished = np.flatnonzero(np.isfinite(launch_s) & np.isfinite(calls.stop_s))
    by_launch = finished[np.argsort(launch_s[finished], kind="stable")]
    return _ShardedColumns(
        ranges=ranges,
        range_start_s=[span.start_s for span in ranges],
        launch_s=launch_s[by_launch].tolist(),
        stop_s=calls.stop_s[by_launch].tolist(),
        num_bytes=calls.num_bytes[by_launch],
        kinds=[calls.kinds[kind] for kind in calls.kind[by_launch].tolist()],
    )


def _calls_in(columns: _ShardedColumns, span: _RangeOfRank) -> range:
    """Return the indices of the calls that were launched in a range."""
    return range(bisect_left(columns.launch_s, span.start_s), bisect_left(columns.launch_s, span.stop_s))


def _end_of_reductions(columns: _ShardedColumns, ranges: Sequence[_RangeOfRank]) -> float | None:
    """Return when the last reduction of a step ends; None if the step has none."""
    ends_s = []
    for span in ranges:
        if span.label == "post_backward_reduce":
            ends_s += [columns.stop_s[call] for call in _calls_in(columns, span)]
    return max(ends_s, default=None)


class _StepPoint(NamedTuple):
    """A moment with events of the module, at which a piece of own work begins; the piece ends at the next point."""

    at_s: float
    events: tuple[StepEvent, ...]
    kind: str  # of the own work that follows: "forward" or "backward"
    group: str  # the module that does this work, "" for the root


def _points(ranges: Sequence[_RangeOfRank], begin_s: float, trained: Sequence[str]) -> list[_StepPoint]:
    """Return the points of a step in the order of time, the first at `begin_s`.

    FSDP records no ranges for a root without parameters. Such a root is entered at the begin of the step, and left when
    the backward begins.
    """
    has_root = any(span.label == "pre_forward" and not span.group for span in ranges)
    callback_s = _callback_s(ranges)
    first_events = () if has_root else (StepEvent("enter", ""),)
    # What a rank does before forward, as in the optimizer and the loader, counts as work of the root in forward.
    points = [_StepPoint(begin_s, first_events, "forward", "")]
    is_forward = True
    groups_with_gradient = set()  # groups of which autograd had finished the gradients before the callback
    for span in ranges:
        event_kind = _EVENT_KINDS.get(span.label)
        if event_kind is None:  # one of FSDP's parts, or the callback
            continue
        if event_kind == "leave":
            # The root goes on after it, until it enters the next module. FSDP records this in the forward only: what
            # activation checkpointing computes again in the backward has no such range.
            points.append(_StepPoint(span.start_s, (StepEvent("leave", span.group),), "forward", ""))
            continue
        if event_kind == "post_backward" and span.start_s > callback_s:
            # The callback does this for groups of which autograd did not. It is one point, which is added below: their
            # gradients are there when it begins.
            continue
        events = []
        if event_kind == "post_backward":
            groups_with_gradient.add(span.group)
            if span.group in trained:
                events.append(StepEvent("gradient", parameter_name(span.group)))
        is_of_backward = event_kind in ("pre_backward", "post_backward")
        if is_forward and is_of_backward:
            is_forward = False  # and it stays so: what activation checkpointing enters again belongs to the backward
            if not has_root:
                events.append(StepEvent("leave", ""))
        events.append(StepEvent(event_kind, span.group))
        points.append(_StepPoint(span.start_s, tuple(events), "forward" if is_forward else "backward", span.group))
    if np.isfinite(callback_s):  # FSDP recorded it
        groups_of_callback = [group for group in trained if group not in groups_with_gradient]
        gradients = tuple(StepEvent("gradient", parameter_name(group)) for group in groups_of_callback)
        points.append(_StepPoint(callback_s, gradients, "backward", ""))
    return points


def _callback_s(ranges: Sequence[_RangeOfRank]) -> float:
    """Return when autograd is done, and FSDP reduces the remaining gradients; infinity without such a range."""
    return min([span.start_s for span in ranges if span.label == "root_post_backward_callback"], default=np.inf)


def parameter_name(group: str) -> str:
    """Return the name of the one parameter that stands for all parameters of a group."""
    return f"{group}.parameters" if group else "parameters"


def parameters_of(shape: StepShape, num_ranks: int) -> tuple[ShardedParameter, ...]:
    """Return a parameter for each group, of one element per rank: the replay needs no sizes, as times are recorded."""
    parameters = []
    for group in shape.groups:
        parameters.append(ShardedParameter((parameter_name(group),), (num_ranks,), trainable=group in shape.trained))
    return tuple(parameters)


def _step_of_rank(
    columns: _ShardedColumns, ranges: Sequence[_RangeOfRank], begin_s: float, end_s: float
) -> _ShardedStepOfRank | None:
    """Return the step between the ends of two reductions; None if a part has other collectives than it must have."""
    parts = _recorded_parts(columns, ranges)
    if parts is None:
        return None
    groups = _each_once(span.group for span in ranges if span.label == "pre_forward")
    trained = _each_once(part.key.group for part in parts if part.key.kind == "reduce")
    points = _points(ranges, begin_s, trained)
    point_s = [point.at_s for point in points]
    piece_s = _own_pieces(point_s, [part.span for part in parts], end_s)
    others = _other_calls(columns, parts, point_s, begin_s, end_s)
    events: list[StepEvent] = []
    for point in points:
        events += [*point.events, StepEvent(point.kind, point.group)]
    shape = StepShape(
        events=tuple(events),
        groups=groups,
        trained=trained,
        placed=_placed_parts(parts, point_s, _callback_s(ranges)),
        parts=tuple(part.key for part in parts),
        num_others=len(others),
    )
    step = _ShardedStepOfRank(
        shape=shape,
        begin_s=begin_s,
        window_s=end_s - begin_s,
        piece_s=piece_s,
        before_s={},
        launch_s={},
        collective_s={},
        after_s={},
        call_bytes={},
        others=others,
    )
    for part in parts:
        _add_times(step, part, columns)  # fills the dictionaries, which are empty so far
    return step


class _RecordedPart(NamedTuple):
    """A part of a step, the range that it was recorded as, and the index of its collective, None if it has none."""

    key: PartKey
    span: _RangeOfRank
    call: int | None


def _recorded_parts(columns: _ShardedColumns, ranges: Sequence[_RangeOfRank]) -> list[_RecordedPart] | None:
    """Return the parts of a step in the order of time; None if one has other collectives than its kind must have.

    Raises ValueError for HSDP, whose reductions have an allreduce between the copies of a shard as well.
    """
    parts = []
    num_recorded: Counter[tuple[str, str]] = Counter()  # parts of a kind and group, so far
    for span in ranges:
        kind = _PART_KINDS.get(span.label)
        if kind is None:
            continue
        key = PartKey(kind, span.group, num_recorded[kind, span.group])
        num_recorded[kind, span.group] += 1
        calls = _calls_in(columns, span)
        call_kinds = [columns.kinds[call] for call in calls]
        if call_kinds == ["reduce_scatter", "allreduce"]:
            raise ValueError("what_if supports FSDP only on one mesh dimension, and these traces are of HSDP")
        if call_kinds != _CALLS_OF_PARTS[kind]:
            return None
        parts.append(_RecordedPart(key, span, calls[0] if calls else None))
    return parts


def _each_once(groups: Iterable[str]) -> tuple[str, ...]:
    """Return each group once, in the order in which they first appear."""
    return tuple(dict.fromkeys(groups))


def _placed_parts(
    parts: Sequence[_RecordedPart], point_s: Sequence[float], callback_s: float
) -> tuple[PlacedPart, ...]:
    """Return the parts with a collective, each with the number of pieces of own work that begin before it."""
    placed = []
    for part in parts:
        if part.call is None:
            continue
        if part.span.start_s < callback_s:
            # A part is caused by an event of the last point before it. FSDP does the part first, and then the work that
            # begins at that point. So the piece of that point comes after the part.
            num_points_before = bisect_left(point_s, part.span.start_s)
            num_pieces_before = num_points_before - 1
        else:
            num_pieces_before = len(point_s)  # the callback runs after all work of the step
        placed.append(PlacedPart(part.key.kind, part.key.group, num_pieces_before))
    return tuple(placed)


def _other_calls(
    columns: _ShardedColumns, parts: Sequence[_RecordedPart], point_s: Sequence[float], begin_s: float, end_s: float
) -> list[_OtherCall]:
    """Return the calls launched between the begin and the end of a step that are in none of FSDP's parts."""
    calls_of_parts = {part.call for part in parts}
    others = []
    for call in range(bisect_left(columns.launch_s, begin_s), bisect_left(columns.launch_s, end_s)):
        if call not in calls_of_parts:
            launch_s = columns.launch_s[call]
            # The piece begins at the last point before the launch. No point is before a launch at the begin of the
            # step, where the first point is, so that launch is in the first piece.
            piece = max(bisect_left(point_s, launch_s) - 1, 0)
            others.append(_OtherCall(piece, columns.stop_s[call] - launch_s))
    return others


def _add_times(step: _ShardedStepOfRank, part: _RecordedPart, columns: _ShardedColumns) -> None:
    """Add the times of a part to its step. Stamps of different threads may overlap, so no time is taken below 0."""
    key = part.key
    if part.call is None:
        step.before_s[key] = part.span.stop_s - part.span.start_s
        return
    launch_s = columns.launch_s[part.call]
    stop_s = columns.stop_s[part.call]
    step.before_s[key] = max(launch_s - part.span.start_s, 0.0)
    step.launch_s[key] = launch_s
    step.collective_s[key] = max(stop_s - launch_s, 0.0)
    step.after_s[key] = max(part.span.stop_s - stop_s, 0.0)
    step.call_bytes[key] = int(columns.num_bytes[part.call])


def _own_pieces(point_s: Sequence[float], parts: Sequence[_RangeOfRank], end_s: float) -> list[float]:
    """Return the seconds from each point to the next, and from the last to the end, without FSDP's parts in between.

    `parts` are in the order of time, one after the other. There is at least one, the reduction that ends the step.
    """
    # How many seconds of the step were spent in parts, up to a moment: this grows only within a part. So it is known at
    # the edges of the parts, and linear in between.
    edge_s: list[float] = []
    in_parts_at_edge_s: list[float] = []
    in_parts_so_far_s = 0.0
    for span in parts:
        edge_s.append(span.start_s)
        in_parts_at_edge_s.append(in_parts_so_far_s)
        in_parts_so_far_s = in_parts_so_far_s + span.stop_s - span.start_s
        edge_s.append(span.stop_s)
        in_parts_at_edge_s.append(in_parts_so_far_s)
    border_s = np.array([*point_s, end_s])
    in_parts_at_border_s = np.interp(border_s, edge_s, in_parts_at_edge_s)
    # below 0 only by the stamps, which may overlap between threads; see `_add_times`
    own_s: list[float] = np.maximum(np.diff(border_s) - np.diff(in_parts_at_border_s), 0.0).tolist()
    return own_s


# ---- all ranks


def _stacked(
    shape: StepShape, steps: Sequence[Sequence[_ShardedStepOfRank]], skipped_steps: tuple[int, ...]
) -> ShardedSteps:
    """Return the steps of one shape as arrays of steps by ranks, with the clocks of all ranks set to the first one's.

    ``steps[i][r]`` is step i of rank r.
    """

    def by_step_and_rank(value: Callable[[_ShardedStepOfRank], float]) -> Seconds:
        return np.array([[value(of_rank) for of_rank in step] for step in steps])

    def of_part(times: Callable[[_ShardedStepOfRank], dict[PartKey, float]], key: PartKey) -> Seconds:
        return by_step_and_rank(lambda of_rank: times(of_rank)[key])

    clock_s = _clocks(steps)
    before_s: dict[PartKey, Seconds] = {}
    collective_s: dict[PartKey, Seconds] = {}
    after_s: dict[PartKey, Seconds] = {}
    for key in shape.parts:
        before_s[key] = of_part(lambda of_rank: of_rank.before_s, key)
        if _CALLS_OF_PARTS[key.kind]:
            after_s[key] = of_part(lambda of_rank: of_rank.after_s, key)
            # each rank's time counts from its own arrival: count it from the arrival of the last rank
            launch_s = of_part(lambda of_rank: of_rank.launch_s, key) - clock_s
            stop_s = launch_s + of_part(lambda of_rank: of_rank.collective_s, key)
            collective_s[key] = np.maximum(stop_s - launch_s.max(axis=1, keepdims=True), 0.0)
    begin_s = by_step_and_rank(lambda of_rank: of_rank.begin_s) - clock_s
    return ShardedSteps(
        shape=shape,
        num_ranks=len(steps[0]),
        window_s=by_step_and_rank(lambda of_rank: of_rank.window_s),
        begin_s=begin_s - begin_s.mean(axis=1, keepdims=True),
        piece_s=_pieces_without_waiting(steps, shape.num_others),
        before_s=before_s,
        collective_s=collective_s,
        after_s=after_s,
        call_bytes=steps[-1][0].call_bytes,  # of any step and rank: FSDP pads the shards of a parameter to one size
        skipped_steps=skipped_steps,
    )


def _pieces_without_waiting(steps: Sequence[Sequence[_ShardedStepOfRank]], num_others: int) -> list[Seconds]:
    """Return the own work of each piece, steps by ranks, without the time that ranks wait for others in it.

    A collective that is not FSDP's counts as own work, but only from the arrival of the last rank. The last rank is the
    one on which the collective takes the shortest time.
    """
    piece_s = np.array([[of_rank.piece_s for of_rank in step] for step in steps])  # steps by ranks by pieces
    for row, step in enumerate(steps):
        for index in range(num_others):
            shortest_s = min(of_rank.others[index].seconds for of_rank in step)
            for column, of_rank in enumerate(step):
                call = of_rank.others[index]
                piece_s[row, column, call.piece] -= call.seconds - shortest_s
    # A collective may last beyond the piece that launched it, so the wait may be longer than the piece.
    own_s = np.maximum(piece_s, 0.0)
    return list(np.moveaxis(own_s, 2, 0))  # pieces by steps by ranks


def _clocks(steps: Sequence[Sequence[_ShardedStepOfRank]]) -> Seconds:
    """Return by how much the clock of each rank is ahead of the first one's.

    It is a median over collectives, which end everywhere at once, except where a thread has to wait for a core.
    """
    ends_s = []  # collectives by ranks
    for step in steps:
        for key in step[0].launch_s:
            ends_s.append([of_rank.launch_s[key] + of_rank.collective_s[key] for of_rank in step])
    stop_s = np.array(ends_s)
    return np.asarray(np.median(stop_s - stop_s[:, :1], axis=0))
