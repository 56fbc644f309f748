"""`predict`: a step under `fully_shard` on the streams that FSDP2 uses, with its memory over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...common.checks import of_type, one_of, optional, truth
from ...networks import Cost
from ...timeline import Span, Timeline
from ..zero.model import OPTIMIZERS
from .costs import FSDPCosts, costs_from, seconds_of
from .memory import TERMS, PredictedMemory
from .replay import (
    NO_GROUP,
    CollectiveCall,
    FSDPAction,
    Replay,
    ShardedGroup,
    ShardSettings,
    collective_calls,
    matching,
)
from .step import ModuleStep

LANES = ("compute", "copy_in", "allgather", "reduce_scatter", "allreduce")  # FSDP's streams


class PredictedStep(msgspec.Struct, frozen=True, eq=False):
    """One step of a rank under `fully_shard`: its timeline, its memory over time, and its collectives.

    `groups` are the names of the wrapped modules, the root's, "", first; a span's item is the index of its group. Lane
    "compute" of the timeline has the rank's computing, copies and waits; "copy_in", "allgather", "reduce_scatter" and
    "allreduce" are FSDP's other streams.
    """

    timeline: Timeline
    memory: PredictedMemory
    collectives: tuple[CollectiveCall, ...]
    groups: tuple[str, ...]
    settings: ShardSettings

    @property
    def step_s(self) -> float:
        return self.timeline.end_s

    @property
    def wait_s(self) -> float:
        """The time in seconds for which the rank waits for communication (the exposed communication)."""
        return float(self.timeline.select(lane="compute", kind="wait").busy_s)

    def __repr__(self) -> str:
        return f"<PredictedStep: {self.step_s:.3g} s, peak {self.memory.peak_bytes} bytes>"


def predict(
    step: ModuleStep,
    cost: Cost | FSDPCosts,
    *,
    num_ranks: int,
    wrap: Iterable[str] = (),
    overlap: bool = True,
    optimizer: str | None = "adam",
    **settings: Any,
) -> PredictedStep:
    """Predict one rank's step under `fully_shard`. All ranks do the same at the same time.

    `cost` has the seconds of collectives and copies: `FSDPCosts`, or the cost of an all-reduce, such as `ddp.cost`
    makes. `wrap` and `settings` are those of `collectives`.

    With `overlap`, collectives run on streams of their own, by the rules of torch's _fsdp_param_group.py: at most two
    all-gathers are ahead of what the rank computes. Without it, every collective blocks the rank, as on the CPU with
    Gloo, where FSDP has no streams.

    The memory counts what torch allocates, in the order of issue, so it is the same with and without `overlap`; its
    terms are those of `PredictedMemory`. `optimizer` is one of those of `zero.memory`, or None. Activations are those
    of the step. If `param_dtype` casts the parameters, observe the step with it, too (`observed_step`); activations of
    any other step are assumed to shrink as the parameters do, which is too little memory for a loss in float32. Left
    out are the time that the process needs to issue all this, fragmentation, and what a backend allocates for itself.

    Raises ValueError if `collectives` rejects an argument, if the step was observed with another `param_dtype`, or if a
    cost is negative or not finite.

    >>> from rankscope.cluster import Link
    >>> from rankscope.train.fsdp import ShardedLayer
    >>> layers = [ShardedLayer(str(n), [1_000_000], forward_s=1e-3, backward_s=2e-3) for n in range(4)]
    >>> costs = FSDPCosts.of_link(Link(1e-5, 10e9), num_ranks=8)
    >>> predicted = predict(ModuleStep.of_layers(layers), costs, num_ranks=8, wrap=["*"])
    >>> round(predicted.step_s * 1e3, 2), round(predicted.wait_s * 1e3, 2)
    (12.84, 0.84)
    >>> print(predicted.memory)
    peak 23 MB, during backward of 1
      gradients                5 MB
      optimizer_states         4 MB
      gathered_parameters      4 MB
      gather_buffers           4 MB
      reduce_buffers           4 MB
      parameters               2 MB
    """
    of_type("step", step, ModuleStep)
    checked_settings = ShardSettings.of(num_ranks, settings)
    if step.param_dtype is not None and step.param_dtype != checked_settings.param_dtype:
        raise ValueError(
            f"step was observed with param_dtype {step.param_dtype!r}, got param_dtype "
            f"{checked_settings.param_dtype!r}: observe the module again with it"
        )
    costs = costs_from(cost, checked_settings.num_replicas)
    overlap = truth("overlap", overlap)
    optimizer = optional("optimizer", optimizer, one_of, tuple(OPTIMIZERS))
    step = step.with_shards(checked_settings.num_shards)
    replay = Replay(step, matching(step, wrap), checked_settings).run()
    if overlap:
        streams = _Streams(step, replay, checked_settings, costs)
    else:
        streams = _BlockingStreams(step, replay, checked_settings, costs)
    streams.allocate_permanent(step, optimizer)
    for action in replay.actions:
        streams.perform(action)
    streams.optimize(step.optimizer_s)
    return PredictedStep(
        timeline=Timeline.of(streams.spans),
        memory=streams.bytes.over_time(),
        collectives=tuple(collective_calls(replay, checked_settings)),
        groups=tuple([group.name for group in replay.groups]),
        settings=checked_settings,
    )


# ---- memory


class _MemoryChange(NamedTuple):
    """So many bytes more, or less if negative, in one of `TERMS`, while the rank is `doing` this."""

    at_s: float
    term: str
    num_bytes: int
    doing: str


class _Bytes:
    """Collects what is allocated and freed, in the order of issue.

    That order decides the memory, because torch's allocator reuses a block as soon as the process has freed it, and
    lets the streams take care of the rest. Each change is at the time at which the compute stream gets there.
    """

    def __init__(self) -> None:
        self._changes: list[_MemoryChange] = []

    def add(self, at_s: float, term: str, num_bytes: int, doing: str) -> None:
        if num_bytes:
            self._changes.append(_MemoryChange(at_s, term, num_bytes, doing))

    def over_time(self) -> PredictedMemory:
        """Return the bytes of each term after each change."""
        terms = {}
        for term in TERMS:
            deltas = np.zeros(len(self._changes), dtype=np.int64)
            for index, change in enumerate(self._changes):
                if change.term == term:
                    deltas[index] = change.num_bytes
            terms[term] = np.cumsum(deltas)
        at_s = np.array([change.at_s for change in self._changes], dtype=np.float64)
        return PredictedMemory(at_s, terms, tuple([change.doing for change in self._changes]))


# ---- streams


class _KeptBuffer(NamedTuple):
    """The output of an all-gather that is kept although it was copied out, and when the copy ended."""

    num_bytes: int
    copied_s: float


def _activation_scale(step: ModuleStep, groups: Iterable[ShardedGroup], settings: ShardSettings) -> float:
    """Return the factor by which a cast of the parameters changes activations: that of the largest parameter.

    It is 1 for a step that was observed with the cast, whose activations were counted in the dtype of the cast.
    """
    if step.param_dtype is not None:
        return 1.0
    parameters = [parameter for group in groups for parameter in group.parameters]
    largest = max(parameters, key=lambda parameter: parameter.num_elements)
    return settings.gathered_itemsize(largest) / largest.itemsize


class _Streams:
    """Performs the actions of a replay on FSDP's streams: on each, one thing after the other.

    FSDP2 issues collectives on streams of their own (``FSDPCommContext.lazy_init`` in _fsdp_param_group.py), and events
    limit how far they run ahead. The process issues everything at once and never waits, so in forward

    - an all-gather starts when the one before it has ended and when its copy-in has ended (``foreach_all_gather``),
    - a copy-in waits for the copy-out of the group two before it, whose buffer it may then use again
      (``wait_for_unshard`` keeps the last buffer in ``all_gather_state``),
    - the rank computes after the copy-out, which waits for the all-gather.

    So at most two all-gathers are ahead of what the rank computes. In backward, a copy-in waits for the copy-out of the
    group before it, and what it gathers is the group that `prefetch` names, or by default the one whose forward ended
    before. A reduce-scatter starts after its copy-in, and the next group's copy-in waits until it has ended
    (``post_backward``), because its input is kept until then. HSDP's all-reduce and the copy-out of its result follow
    on another stream, so the next reduce-scatter does not wait for them. At the end the rank waits for all of them.
    """

    def __init__(self, step: ModuleStep, replay: Replay, settings: ShardSettings, costs: FSDPCosts) -> None:
        self.spans: list[Span] = []
        self.bytes = _Bytes()
        self._groups = replay.groups
        self._settings = settings
        self._costs = costs
        # Times in seconds from the begin of the step.
        self._lane_free_s = dict.fromkeys(LANES, 0.0)  # when each lane has ended what it was issued
        self._gathered_s: dict[int, float] = {}  # when the last all-gather of each group ended
        self._reduced_s = 0.0  # when the last reduce-scatter ended
        self._gradients_there_s = 0.0  # when the last gradient was there, after an all-reduce, if there is one
        # Bytes that are freed later.
        self._kept_buffer: _KeptBuffer | None = None  # torch's ``all_gather_state``
        self._reduce_input_bytes = 0  # of the reduce-scatter for which no later group has waited; 0 if there is none
        self._resharded_bytes: dict[int, int] = {}  # by group, of its shards on the smaller mesh of an integer reshard
        self._unreduced_bytes: dict[int, int] = {}  # by group, of its gradients until their reduce-scatter
        self._activation_scale = _activation_scale(step, replay.groups, settings)
        self._parameters = {p.name: p for group in replay.groups for p in group.parameters}

    # ---- time

    @property
    def _now_s(self) -> float:
        """When the rank has computed all that was issued so far. Changes of the memory are at this time."""
        return self._lane_free_s["compute"]

    def run(self, lane: str, kind: str, item: int, seconds: float, after_s: float = 0.0) -> tuple[float, float]:
        """Run something on a lane when that is free, but not before `after_s`; return its start and stop."""
        start_s = max(self._lane_free_s[lane], after_s)
        stop_s = start_s + seconds
        self._lane_free_s[lane] = stop_s
        if seconds:
            self._add_span(lane, kind, item, start_s, stop_s)
        return start_s, stop_s

    def wait(self, until_s: float) -> None:
        """Have the rank wait."""
        start_s = self._now_s
        if until_s > start_s:
            self._add_span("compute", "wait", NO_GROUP, start_s, until_s)
            self._lane_free_s["compute"] = until_s

    def _add_span(self, lane: str, kind: str, item: int, start_s: float, stop_s: float) -> None:
        """Add a span, or make the last one longer if it is of the same work and ends where this one starts.

        Spans of the compute lane are joined because a group computes in many pieces, one for each module inside it.
        """
        if self.spans and lane == "compute":
            last = self.spans[-1]
            if (last.lane, last.kind, last.item) == (lane, kind, item) and last.stop_s == start_s:
                self.spans[-1] = last._replace(stop_s=stop_s)
                return
        self.spans.append(Span(0, lane, kind, item, start_s, stop_s))

    def _cost_s(self, name: str, num_bytes: int) -> float:
        return seconds_of(name, getattr(self._costs, name), num_bytes)

    def _communicate(self, collective: str, group: int, num_bytes: int, after_s: float) -> float:
        """Run a collective on its stream, not before `after_s`, and return when it ends."""
        seconds = self._cost_s(collective, num_bytes)
        _, stop_s = self.run(lane=collective, kind=collective, item=group, seconds=seconds, after_s=after_s)
        return stop_s

    # ---- actions

    def allocate_permanent(self, step: ModuleStep, optimizer: str | None) -> None:
        """Count what is in memory during the whole step: parameters, buffers, the input and the optimizer's states."""
        self.bytes.add(0.0, "parameters", sum(group.stored_bytes for group in self._groups), "the begin")
        self.bytes.add(0.0, "buffers", step.buffer_bytes, "the begin")
        input_bytes = step.input_bytes
        if self._activation_scale != 1.0:  # a copy in the dtype in which the module computes
            input_bytes += self._activations(step.input_bytes)
        self.bytes.add(0.0, "activations", input_bytes, "the begin")
        if optimizer is not None:
            self.bytes.add(0.0, "optimizer_states", self._state_bytes(step, optimizer), "the begin")

    def _state_bytes(self, step: ModuleStep, optimizer: str) -> int:
        """Return the bytes of the optimizer's states: torch's optimizers make them only for parameters with a gradient.

        The states have the dtype of the parameter, or one byte per element in an 8-bit optimizer.
        """
        rule = OPTIMIZERS[optimizer]
        with_gradient = {event.name for event in step.events if event.kind == "gradient"}
        num_bytes = 0
        for parameter in self._parameters.values():
            if parameter.name in with_gradient:
                itemsize = parameter.itemsize
                if rule.eight_bit:
                    itemsize = 1
                num_elements = parameter.shard_elements(self._settings.num_shards)
                num_bytes += rule.num_states * num_elements * itemsize + rule.counter_bytes
        return num_bytes

    def perform(self, action: FSDPAction) -> None:
        """Perform an action, by the method that has the name of its kind."""
        getattr(self, f"_{action.kind}")(action, self._groups[action.group])

    def _gather(self, action: FSDPAction, group: ShardedGroup) -> None:
        """``foreach_all_gather``: the shard is copied into the buffer, and cast first if the settings say so."""
        doing = f"all-gather of {group.label}"
        cast_bytes = 0  # of a cast copy of the rank's shard, which is freed as soon as the all-gather is issued
        if group.is_cast:
            cast_bytes = action.num_bytes // self._settings.num_shards
        self.bytes.add(self._now_s, "gather_buffers", action.num_bytes + cast_bytes, doing)
        copy_s = self._cost_s("copy_in", action.num_bytes)
        _, copied_s = self.run("copy_in", "copy_in", action.group, copy_s)
        self._gathered_s[action.group] = self._communicate("allgather", action.group, action.num_bytes, copied_s)
        self.bytes.add(self._now_s, "gather_buffers", -cast_bytes, doing)

    def _copy_out(self, action: FSDPAction, group: ShardedGroup) -> None:
        """``wait_for_unshard``: wait for the all-gather, copy its buffer to the parameters, and free the buffer.

        In forward the buffer is kept until the next group's copy-out, so that the next all-gather need not wait for
        this copy-out. That next copy-out lets the all-gathers go on when it begins, but frees the buffer only when it
        ends, because a local variable of that function still refers to it.
        """
        doing = f"copy-out of {group.label}"
        previous = None
        if action.is_forward:
            previous = self._kept_buffer
            self._kept_buffer = None
            if previous is not None:
                self._hold_back_gathers(previous.copied_s)
        self.wait(self._gathered_s[action.group])
        seconds = self._cost_s("copy_out", action.num_bytes)
        start_s, stop_s = self.run("compute", "copy_out", action.group, seconds)
        self.bytes.add(start_s, "gathered_parameters", action.num_bytes, doing)
        # The larger shard that forward kept, if it resharded to fewer ranks, is not needed next to whole parameters.
        self.bytes.add(stop_s, "gathered_parameters", -self._resharded_bytes.pop(action.group, 0), doing)
        if previous is not None:
            self.bytes.add(stop_s, "gather_buffers", -previous.num_bytes, doing)
        if action.is_forward:
            self._kept_buffer = _KeptBuffer(action.num_bytes, stop_s)
            return
        self.bytes.add(stop_s, "gather_buffers", -action.num_bytes, doing)
        self._hold_back_gathers(stop_s)

    def _hold_back_gathers(self, until_s: float) -> None:
        """``_wait_all_gather_streams_on_event``: all-gathers issued from now on start no earlier than `until_s`."""
        for lane in ("copy_in", "allgather"):
            self._lane_free_s[lane] = max(self._lane_free_s[lane], until_s)

    def _flush(self, action: FSDPAction, group: ShardedGroup) -> None:
        """The end of ``FSDPState._post_forward`` of the root: no copy-out follows, so the last buffer is freed here."""
        if self._kept_buffer is not None:
            self._hold_back_gathers(self._kept_buffer.copied_s)
            self.bytes.add(self._now_s, "gather_buffers", -self._kept_buffer.num_bytes, "end of the forward")
            self._kept_buffer = None

    def _reshard(self, action: FSDPAction, group: ShardedGroup) -> None:
        """Free gathered parameters; if forward reshards to fewer ranks, a larger shard is kept until backward."""
        doing = f"end of {group.label}"
        self.bytes.add(self._now_s, "gathered_parameters", -action.num_bytes, doing)
        size = self._settings.reshard_size
        if action.is_forward and size is not None:
            self._resharded_bytes[action.group] = action.num_bytes // size
            self.bytes.add(self._now_s, "gathered_parameters", action.num_bytes // size, doing)

    def _hooks(self, action: FSDPAction, group: ShardedGroup) -> None:
        """The time of FSDP's hooks is counted as the group's forward or backward, as in a recorded step."""
        if action.is_forward:
            self.run("compute", "forward", action.group, self._costs.forward_hooks_s)
        else:
            self.run("compute", "backward", action.group, self._costs.backward_hooks_s)

    def _forward(self, action: FSDPAction, group: ShardedGroup) -> None:
        """Compute; what forward keeps for backward stays allocated, and what it only works with is freed at the end."""
        event = action.event
        assert event is not None, "every forward action has the event of the module"
        doing = f"forward of {group.label}"
        start_s, stop_s = self.run("compute", "forward", action.group, event.seconds)
        working_bytes = self._activations(event.working_bytes)
        self.bytes.add(start_s, "activations", self._activations(event.activation_bytes) + working_bytes, doing)
        self.bytes.add(stop_s, "activations", -working_bytes, doing)

    def _backward(self, action: FSDPAction, group: ShardedGroup) -> None:
        """Compute, and free at the end what forward kept for it."""
        event = action.event
        assert event is not None, "every backward action has the event of the module"
        doing = f"backward of {group.label}"
        start_s, stop_s = self.run("compute", "backward", action.group, event.seconds)
        working_bytes = self._activations(event.working_bytes)
        self.bytes.add(start_s, "activations", working_bytes, doing)
        self.bytes.add(stop_s, "activations", -working_bytes - self._activations(event.activation_bytes), doing)

    def _activations(self, num_bytes: int) -> int:
        """The bytes of activations in the dtype in which the module computes, instead of that of its parameters."""
        return int(num_bytes * self._activation_scale)

    def _gradient(self, action: FSDPAction, group: ShardedGroup) -> None:
        """A parameter's gradient is complete: whole, and in the dtype in which the module computes."""
        assert action.event is not None, "every gradient action has the event of its parameter"
        parameter = self._parameters[action.event.name]
        num_bytes = parameter.num_elements * self._settings.gathered_itemsize(parameter)
        self._unreduced_bytes[action.group] = self._unreduced_bytes.get(action.group, 0) + num_bytes
        self.bytes.add(self._now_s, "gradients", num_bytes, f"backward of {group.label}")

    def _reduce_wait(self, action: FSDPAction, group: ShardedGroup) -> None:
        self.wait(self._reduced_s)
        self._free_reduce_input(f"end of {group.label}")

    def _free_reduce_input(self, doing: str) -> None:
        self.bytes.add(self._now_s, "reduce_buffers", -self._reduce_input_bytes, doing)
        self._reduce_input_bytes = 0

    def _reduce(self, action: FSDPAction, group: ShardedGroup) -> None:
        """``foreach_reduce``: gradients are copied into one buffer, which is reduced; the result is the shard's."""
        doing = f"reduce-scatter of {group.label}"
        copy_s = self._cost_s("reduce_copy_in", action.num_bytes)
        start_s, copied_s = self.run("compute", "copy_in", action.group, copy_s)
        self.bytes.add(start_s, "reduce_buffers", action.num_bytes, doing)
        self._reduce_input_bytes = action.num_bytes
        self.bytes.add(copied_s, "gradients", -self._unreduced_bytes.pop(action.group), doing)
        self._reduce_on_streams(action, copied_s)
        # The output is in the dtype of the reduction. It becomes the shard's gradient, or is cast to it and freed.
        output_bytes = 0
        if self._is_cast_back(action.parameters):
            output_bytes = action.num_bytes // self._settings.num_shards
        self.bytes.add(self._now_s, "reduce_buffers", output_bytes, doing)
        self.bytes.add(self._now_s, "gradients", group.shard_gradient_bytes(action.parameters), doing)
        self.bytes.add(self._now_s, "reduce_buffers", -output_bytes, doing)

    def _reduce_on_streams(self, action: FSDPAction, copied_s: float) -> None:
        """Run the reduce-scatter, the all-reduce of HSDP and the copy-out one after the other, from `copied_s` on."""
        stop_s = self._communicate("reduce_scatter", action.group, action.num_bytes, copied_s)
        self._reduced_s = stop_s
        lane = "reduce_scatter"  # on which the copy-out runs: torch's ``post_reduce_stream``
        if self._settings.num_replicas > 1:
            lane = "allreduce"
            shard_bytes = action.num_bytes // self._settings.num_shards
            stop_s = self._communicate("allreduce", action.group, shard_bytes, stop_s)
        seconds = self._cost_s("copy_out_reduced", action.num_bytes)
        _, stop_s = self.run(lane, "copy_out", action.group, seconds, stop_s)
        self._gradients_there_s = max(self._gradients_there_s, stop_s)

    def _is_cast_back(self, names: Iterable[str]) -> bool:
        """Whether the gradients of these parameters are reduced in another dtype than the parameters have."""
        reduced = [self._parameters[name] for name in names]
        return any(self._settings.reduced_itemsize(parameter) != parameter.itemsize for parameter in reduced)

    def _drop(self, action: FSDPAction, group: ShardedGroup) -> None:
        self.wait(self._gathered_s[action.group])
        self.bytes.add(self._now_s, "gather_buffers", -action.num_bytes, "end of the backward")

    def _finish(self, action: FSDPAction, group: ShardedGroup) -> None:
        self.wait(self._gradients_there_s)
        self._free_reduce_input("end of the backward")

    def optimize(self, seconds: float) -> None:
        self.run("compute", "optimizer", NO_GROUP, seconds)


class _BlockingStreams(_Streams):
    """Performs everything on the only thread of the process, as on the CPU: a collective has the rank wait.

    This rank leaves each collective first, and the last rank leaves it after the collective's spread. The next
    collective begins when the last rank is there. If the ranks share cores, the last rank catches up meanwhile: it
    computes when the others have finished and need no core, so it takes only ``cores_per_rank`` of the time. So in each
    second that this rank runs something, the last rank comes closer by ``1 - cores_per_rank`` seconds.
    """

    def __init__(self, step: ModuleStep, replay: Replay, settings: ShardSettings, costs: FSDPCosts) -> None:
        super().__init__(step, replay, settings, costs)
        self._last_rank_behind_s = 0.0  # how much later the last rank will reach the place where this rank is

    def run(self, lane: str, kind: str, item: int, seconds: float, after_s: float = 0.0) -> tuple[float, float]:
        """Run something at once: whatever the lane, the rank does nothing else meanwhile, so no lane is free before.

        All that was issued earlier has ended, so there is no need to wait for `after_s`.
        """
        start_s = self._now_s
        stop_s = start_s + seconds
        if seconds:
            self._add_span(lane, kind, item, start_s, stop_s)
            if lane != "compute":
                self._add_span("compute", "wait", NO_GROUP, start_s, stop_s)
        for name in LANES:
            self._lane_free_s[name] = stop_s
        caught_up_s = seconds * (1 - self._costs.cores_per_rank)
        self._last_rank_behind_s = max(0.0, self._last_rank_behind_s - caught_up_s)
        return start_s, stop_s

    def _communicate(self, collective: str, group: int, num_bytes: int, after_s: float) -> float:
        self._wait_for_last_rank()
        stop_s = super()._communicate(collective, group, num_bytes, after_s)
        self._last_rank_behind_s = self._cost_s(f"{collective}_spread", num_bytes)
        return stop_s

    def _wait_for_last_rank(self) -> None:
        self.wait(self._now_s + self._last_rank_behind_s)
        self._last_rank_behind_s = 0.0

    def optimize(self, seconds: float) -> None:
        """Run the optimizer, and wait for the last rank, because a step is as long as it is on the slowest rank."""
        super().optimize(seconds)
        self._wait_for_last_rank()
