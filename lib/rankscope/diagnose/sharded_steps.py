"""The recorded steps of an FSDP job on Gloo: what each rank did between the parts that settings of FSDP add or move.

`fully_shard` records a range for each thing that it does (torch 2.13, ``_fsdp_param_group.py`` and ``_fsdp_state.py``
in ``torch/distributed/fsdp/_fully_shard``). On the CPU all of it runs on the thread that trains, and a collective
blocks this thread. So a step of a rank is a sequence: own work of the rank, interrupted by all-gathers, copies out of
them, and reductions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..common.checks import count_of
from ..train.fsdp.step import ShardedParameter, StepEvent
from .late_ranks import Seconds
from .trace import Ints, Trace

_RANGE = re.compile(r"range: FSDP::(\w+)(?: \((.*)\))?$")
_PARTS = {"all_gather": "gather", "all_gather_copy_out": "copy_out", "post_backward_reduce": "reduce"}
_CALLS_OF_PARTS = {"gather": ["allgather"], "copy_out": [], "reduce": ["reduce_scatter"]}
_POINTS = {"pre_forward": "enter", "pre_backward": "pre_backward", "post_backward_accumulate": "post_backward"}
_MOST_GROUPS = 1000  # of parameters: each is compared with all others
_MOST_VALUES = 1 << 25  # seconds of pieces, over all ranks and steps; where there are more, the last steps are taken
_LEAST_STEPS = 2


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
    """What steps must have in common to be compared: their events, and the parts between them.

    `events` are those of a `ModuleStep`, without times. `num_calls` has the number of collectives in each part.
    """

    events: tuple[StepEvent, ...]
    groups: tuple[str, ...]  # in the order in which forward reaches them, without a root that has no parameters
    trained: tuple[str, ...]  # groups whose gradients are reduced
    placed: tuple[PlacedPart, ...]
    num_calls: tuple[tuple[PartKey, int], ...]
    num_others: int  # collectives that are not FSDP's


class ShardedSteps(NamedTuple):
    """Recorded steps of one shape. Times are in seconds, steps by ranks.

    `begin_s` is when each rank begins a step, from the mean of the ranks on; that is the end of its last collective of
    the step before. `piece_s` has the own work of each piece. `part_s` has for each part alternately own work, and a
    collective from the arrival of the last rank to its end on each rank. Threads of Gloo that wait for a core make
    these ends differ. `call_bytes` are the bytes that a part communicates, -1 if that is unknown.
    """

    shape: StepShape
    num_ranks: int
    window_s: Seconds
    begin_s: Seconds
    piece_s: list[Seconds]
    part_s: dict[PartKey, list[Seconds]]
    call_bytes: dict[PartKey, int]
    skipped_steps: tuple[int, ...]


def is_sharded(traces: Sequence[Trace]) -> bool:
    """Return whether one of the traces has ranges of FSDP."""
    return any(kind.startswith("range: FSDP::") for trace in traces for kind in trace.timeline.kinds)


def sharded_steps(traces: Sequence[Trace]) -> ShardedSteps:
    """Return the steps of the most common shape, of those that have the same shape on every rank.

    Raises ValueError if there are too few of them, for traces of GPUs, for traces that lack a rank of the job, and for
    a job that what_if cannot replay: HSDP, several groups per module, or a group of several modules.
    """
    _check(traces)
    ranks = [_steps_of_rank(trace) for trace in traces]
    common = set.intersection(*(set(rank) for rank in ranks))
    shape_of: dict[int, StepShape] = {}
    for number in sorted(common):
        shapes = {rank[number].shape for rank in ranks}
        if len(shapes) == 1:
            (shape_of[number],) = shapes
    num_alike = Counter(shape_of.values())
    if not num_alike or num_alike.most_common(1)[0][1] < _LEAST_STEPS:
        wanted = f"at least {_LEAST_STEPS + 1} steps of FSDP with the same collectives on every rank"
        raise ValueError(f"traces must have {wanted}, and have {count_of(len(shape_of), 'such step')}")
    shape = num_alike.most_common(1)[0][0]
    num_values = len(ranks) * (len(shape.events) + 4 * len(shape.num_calls))
    most_steps = max(_MOST_VALUES // num_values, _LEAST_STEPS)
    numbers = [number for number, known in shape_of.items() if known == shape][-most_steps:]
    recorded = set.union(*(set(rank) for rank in ranks))
    steps = [[rank[number] for rank in ranks] for number in numbers]
    return _stacked(shape, steps, tuple(sorted(recorded - set(numbers))))


def _check(traces: Sequence[Trace]) -> None:
    kinds = {kind for trace in traces for kind in trace.timeline.kinds}
    if any(lane.startswith("stream ") for trace in traces for lane in trace.timeline.lanes):
        raise ValueError(
            "what_if supports FSDP only on CPUs, and these traces are of GPUs, whose kernels do not show which group "
            "they belong to"
        )
    num_ranks = max((len(members) for trace in traces for members in trace.group_ranks.values()), default=0)
    if len(traces) < max(num_ranks, 2):
        wanted = f"all {num_ranks}" if num_ranks > 1 else "at least 2"
        raise ValueError(f"what_if needs the FSDP traces of {wanted} ranks, got {len(traces)}")
    groups = {match[2] or "" for match in map(_RANGE.match, kinds) if match and match[1] == "all_gather"}
    if len(groups) > _MOST_GROUPS:
        raise ValueError(f"traces must have at most {_MOST_GROUPS} groups of FSDP, and have {len(groups)}")
    for group in sorted(groups):
        if ", " in group:
            raise ValueError(f"what_if supports FSDP only with one module per group, got a group of {group}")
    if any(kind.startswith("range: FSDP::") and "[pg=" in kind for kind in kinds):
        raise ValueError("what_if supports FSDP only with one group of FSDP per module, and these traces have several")


# ---- one rank


class _RangeOfRank(NamedTuple):
    """A range of FSDP: its label, its group, and when it was open."""

    label: str
    group: str
    start_s: float
    stop_s: float


class _ShardedStepOfRank(NamedTuple):
    """A step of one rank, on its own clock; see `ShardedSteps`.

    The collectives in `part_s` take from the arrival of this rank, at `launch_s`, to their end. `others_s` are other
    collectives, with the place of their piece.
    """

    shape: StepShape
    begin_s: float
    window_s: float
    launch_s: dict[PartKey, list[float]]
    piece_s: list[float]
    part_s: dict[PartKey, list[float]]
    call_bytes: dict[PartKey, int]
    others_s: list[tuple[int, float]]


class _ShardedColumns(NamedTuple):
    """The columns of a trace that steps are read from, in the order of time."""

    ranges: list[_RangeOfRank]
    range_start_s: list[float]
    launch_s: list[float]
    stop_s: Seconds
    num_bytes: Ints
    kinds: list[str]


def _steps_of_rank(trace: Trace) -> dict[int, _ShardedStepOfRank]:
    """Return the steps of a rank that follow one with reductions, by their numbers."""
    columns = _columns(trace)
    steps = trace.timeline.select(lane="main", kind="step")
    read: dict[int, _ShardedStepOfRank] = {}
    previous_end_s: float | None = None
    for place in np.argsort(steps.start_s, kind="stable").tolist():
        step = steps[place]
        first = bisect_left(columns.range_start_s, step.start_s)
        last = bisect_left(columns.range_start_s, step.stop_s)
        ranges = columns.ranges[first:last]
        end_s = _end_of_reductions(columns, ranges)
        if previous_end_s is not None and end_s is not None and previous_end_s < end_s:
            parsed = _step_of_rank(columns, ranges, previous_end_s, end_s)
            if parsed is not None:
                read.setdefault(step.item, parsed)
        previous_end_s = end_s
    return read


def _columns(trace: Trace) -> _ShardedColumns:
    spans = trace.timeline
    matches = [_RANGE.match(kind) for kind in spans.kinds]
    ranges = []
    for place in np.argsort(spans.start_s, kind="stable").tolist():
        match = matches[spans.kind[place]]
        if match is not None:
            ranges.append(
                _RangeOfRank(match[1], match[2] or "", float(spans.start_s[place]), float(spans.stop_s[place]))
            )
    calls = trace.calls
    launch_s = np.where(np.isfinite(calls.launch_s), calls.launch_s, calls.start_s)
    ended = np.flatnonzero(np.isfinite(launch_s) & np.isfinite(calls.stop_s))
    order = ended[np.argsort(launch_s[ended], kind="stable")]
    return _ShardedColumns(
        ranges,
        [span.start_s for span in ranges],
        launch_s[order].tolist(),
        calls.stop_s[order],
        calls.num_bytes[order],
        [calls.kinds[kind] for kind in calls.kind[order].tolist()],
    )


def _calls_in(columns: _ShardedColumns, span: _RangeOfRank) -> range:
    """The places of the calls that were launched in a range."""
    return range(bisect_left(columns.launch_s, span.start_s), bisect_left(columns.launch_s, span.stop_s))


def _end_of_reductions(columns: _ShardedColumns, ranges: Sequence[_RangeOfRank]) -> float | None:
    """When the last reduction of a step ends; None if the step has none."""
    ends_s = []
    for span in ranges:
        if span.label == "post_backward_reduce":
            ends_s += [float(columns.stop_s[place]) for place in _calls_in(columns, span)]
    return max(ends_s, default=None)


class _StepPoint(NamedTuple):
    """A moment at which the module's step goes on to its next event, which begins a piece of own work."""

    at_s: float
    events: tuple[StepEvent, ...]
    kind: str  # of the computing that follows: "forward" or "backward"
    group: str


def _points(ranges: Sequence[_RangeOfRank], begin_s: float, trained: Sequence[str]) -> list[_StepPoint]:
    """The points of a step, the first at the begin of its window."""
    has_root = any(span.label == "pre_forward" and not span.group for span in ranges)
    callback_s = _callback_s(ranges)
    first_events = () if has_root else (StepEvent("enter", ""),)
    points = [_StepPoint(begin_s, first_events, "forward", "")]
    is_forward = True
    for span in ranges:
        if span.label == "post_forward":
            points.append(_StepPoint(span.start_s, (StepEvent("leave", span.group),), "forward", ""))
            continue
        in_callback = span.label == "post_backward_accumulate" and span.start_s > callback_s
        if span.label not in _POINTS or in_callback:  # groups in the callback have their gradients at its begin, below
            continue
        events = [StepEvent(_POINTS[span.label], span.group)]
        if is_forward and span.label != "pre_forward":
            is_forward = False
            if not has_root:
                events.insert(0, StepEvent("leave", ""))
        if span.label == "post_backward_accumulate" and span.group in trained:
            events.insert(0, StepEvent("gradient", parameter_name(span.group)))
        points.append(_StepPoint(span.start_s, tuple(events), "forward" if is_forward else "backward", span.group))
    late = [group for group in trained if not _has_ended(group, points)]
    if np.isfinite(callback_s):
        events = [StepEvent("gradient", parameter_name(group)) for group in late]
        points.append(_StepPoint(callback_s, tuple(events), "backward", ""))
    return points


def _callback_s(ranges: Sequence[_RangeOfRank]) -> float:
    """When autograd is done, and FSDP reduces the remaining gradients; infinity without such a range."""
    return min([span.start_s for span in ranges if span.label == "root_post_backward_callback"], default=np.inf)


def _has_ended(group: str, points: Sequence[_StepPoint]) -> bool:
    return any(event.kind == "post_backward" and event.name == group for point in points for event in point.events)


def parameter_name(group: str) -> str:
    """Return the name of the one parameter that stands for all parameters of a group."""
    return f"{group}.parameters" if group else "parameters"


def parameters_of(shape: StepShape, num_ranks: int) -> tuple[ShardedParameter, ...]:
    """Return a parameter for each group, of one element per rank: what is communicated when is all that counts."""
    parameters = []
    for group in shape.groups:
        parameters.append(ShardedParameter((parameter_name(group),), (num_ranks,), trainable=group in shape.trained))
    return tuple(parameters)


def _step_of_rank(
    columns: _ShardedColumns, ranges: Sequence[_RangeOfRank], begin_s: float, end_s: float
) -> _ShardedStepOfRank | None:
    """Return the step between the ends of two reductions; None if a part of it has no collective where it must."""
    parts = [span for span in ranges if span.label in _PARTS]
    trained = tuple(dict.fromkeys(span.group for span in parts if span.label == "post_backward_reduce"))
    points = _points(ranges, begin_s, trained)
    point_s = [point.at_s for point in points]
    callback_s = _callback_s(ranges)
    order: Counter[tuple[str, str]] = Counter()
    part_s: dict[PartKey, list[float]] = {}
    call_bytes: dict[PartKey, int] = {}
    launch_s: dict[PartKey, list[float]] = {}
    placed = []
    in_parts: set[int] = set()
    for span in parts:
        kind = _PARTS[span.label]
        key = PartKey(kind, span.group, order[kind, span.group])
        order[kind, span.group] += 1
        calls = _calls_in(columns, span)
        in_parts.update(calls)
        kinds = [columns.kinds[place] for place in calls]
        if kinds == ["reduce_scatter", "allreduce"]:
            raise ValueError("what_if supports FSDP only on one mesh dimension, and these traces are of HSDP")
        if kinds != _CALLS_OF_PARTS[kind]:
            return None
        part_s[key] = _pieces_of_part(columns, span, calls)
        launch_s[key] = [columns.launch_s[place] for place in calls]
        if calls:
            call_bytes[key] = int(columns.num_bytes[calls[0]])
            num_before = len(points)  # in the callback at the end of backward, after all points
            if span.start_s < callback_s:
                # it comes from the event of the last point, so it is in front of the piece that begins there
                num_before = bisect_left(point_s, span.start_s) - 1
            placed.append(PlacedPart(kind, span.group, num_before))
    piece_s = _own_pieces(point_s, parts, end_s)
    others_s = []  # collectives of the step that are in none of FSDP's parts
    for place in range(bisect_left(columns.launch_s, begin_s), bisect_left(columns.launch_s, end_s)):
        if place not in in_parts:
            piece = max(bisect_left(point_s, columns.launch_s[place]) - 1, 0)  # in which it was launched
            others_s.append((piece, float(columns.stop_s[place]) - columns.launch_s[place]))
    events = []
    for point in points:
        events += [*point.events, StepEvent(point.kind, point.group)]
    groups = tuple(dict.fromkeys(span.group for span in ranges if span.label == "pre_forward"))
    num_calls = tuple((key, len(launched_s)) for key, launched_s in launch_s.items())
    shape = StepShape(tuple(events), groups, trained, tuple(placed), num_calls, len(others_s))
    return _ShardedStepOfRank(shape, begin_s, end_s - begin_s, launch_s, piece_s, part_s, call_bytes, others_s)


def _pieces_of_part(columns: _ShardedColumns, span: _RangeOfRank, calls: Sequence[int]) -> list[float]:
    """The seconds of a part: own work, then by turns a collective and own work."""
    seconds = []
    at_s = span.start_s
    for place in calls:
        seconds.append(max(columns.launch_s[place] - at_s, 0.0))
        seconds.append(max(float(columns.stop_s[place]) - columns.launch_s[place], 0.0))
        at_s = float(columns.stop_s[place])
    return [*seconds, max(span.stop_s - at_s, 0.0)]


def _own_pieces(point_s: Sequence[float], parts: Sequence[_RangeOfRank], end_s: float) -> list[float]:
    """The seconds from each point to the next, without the parts in between."""
    # The seconds spent in parts since the begin grow only within a part. They are known at the parts' edges, and in
    # between by interpolation; a step has a part, or it would have no reduction to end it.
    edge_s: list[float] = []
    in_parts_at_edge_s: list[float] = []
    in_parts_so_far_s = 0.0
    for span in parts:  # in the order of time, one after the other
        in_parts_at_edge_s.append(in_parts_so_far_s)
        in_parts_so_far_s = in_parts_so_far_s + span.stop_s - span.start_s
        in_parts_at_edge_s.append(in_parts_so_far_s)
        edge_s += [span.start_s, span.stop_s]
    border_s = np.array([*point_s, end_s])
    in_parts_s = np.interp(border_s, edge_s, in_parts_at_edge_s)
    own_s: list[float] = np.maximum(np.diff(border_s) - np.diff(in_parts_s), 0.0).tolist()
    return own_s


# ---- all ranks


def _stacked(
    shape: StepShape, steps: Sequence[Sequence[_ShardedStepOfRank]], skipped_steps: tuple[int, ...]
) -> ShardedSteps:
    """Return the steps of one shape as arrays of steps by ranks, with the clocks of all ranks set to the first one's.

    ``steps[i][r]`` is step i of rank r.
    """
    piece_s = np.array([[rank.piece_s for rank in step] for step in steps])  # steps by ranks by pieces
    # of a collective that is not FSDP's, only the time since the arrival of the last rank is work
    for row, step in enumerate(steps):
        for number in range(shape.num_others):
            shortest_s = min(rank.others_s[number][1] for rank in step)
            for column, rank in enumerate(step):
                piece, seconds = rank.others_s[number]
                piece_s[row, column, piece] -= seconds - shortest_s
    clock_s = _clocks(steps)
    part_s: dict[PartKey, list[Seconds]] = defaultdict(list)
    call_bytes = {}
    for key, num_calls in shape.num_calls:
        for place in range(2 * num_calls + 1):
            length_s = np.array([[rank.part_s[key][place] for rank in step] for step in steps])
            is_collective = place % 2 == 1  # a part is own work, collective, own work and so on
            if is_collective:
                # count it from the arrival of the last rank, not from that of this one
                launch_s = np.array([[rank.launch_s[key][place // 2] for rank in step] for step in steps]) - clock_s
                stop_s = launch_s + length_s
                length_s = np.maximum(stop_s - launch_s.max(axis=1, keepdims=True), 0.0)
            part_s[key].append(length_s)
        if num_calls:
            call_bytes[key] = steps[-1][0].call_bytes[key]
    begin_s = np.array([[rank.begin_s for rank in step] for step in steps]) - clock_s
    return ShardedSteps(
        shape,
        len(steps[0]),
        np.array([[rank.window_s for rank in step] for step in steps]),
        begin_s - begin_s.mean(axis=1, keepdims=True),
        list(np.moveaxis(np.maximum(piece_s, 0.0), 2, 0)),
        dict(part_s),
        call_bytes,
        skipped_steps,
    )


def _clocks(steps: Sequence[Sequence[_ShardedStepOfRank]]) -> Seconds:
    """By how much the clock of each rank is ahead of the first one's.

    It is a median over collectives, which end everywhere at once, except where a thread has to wait for a core.
    """
    ends_s = []
    for step in steps:
        for key, launch_s in step[0].launch_s.items():
            for place in range(len(launch_s)):
                ends_s.append([rank.launch_s[key][place] + rank.part_s[key][2 * place + 1] for rank in step])
    stop_s = np.array(ends_s)  # collectives by ranks
    return np.asarray(np.median(stop_s - stop_s[:, :1], axis=0))
