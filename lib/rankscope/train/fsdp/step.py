"""`ModuleStep`: one forward and backward of a module as a list of events, from which any wrapping can be predicted.

An event is a call of a module, a piece of computing, or a gradient. The list has the calls of all modules, and nothing
in it depends on which of them `fully_shard` wraps, on other ranks, or on whether anything is communicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...common.checks import number, of_type, one_of, several, truth, whole
from ...common.frozen import checked, each, evolve, frozen, mapping, optional

_MOST_ELEMENTS = 2**50  # of a parameter; also the most bytes of activations that a layer may keep
EVENTS = ("enter", "leave", "forward", "pre_backward", "backward", "gradient", "post_backward")


def _shape(name: str, value: Any) -> tuple[int, ...]:
    return each(name, value, whole, 0, _MOST_ELEMENTS)


def _names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return each(name, value, str)


@frozen
class ShardedParameter:
    """The properties of a parameter that decide its shard; `names` has several if several modules share it.

    >>> weight = ShardedParameter(("fc.weight",), (5, 3))
    >>> weight.num_elements, weight.padded_elements(2)  # five rows on two ranks: three each, one of them padding
    (15, 18)
    """

    names: tuple[str, ...] = checked(_names)
    shape: tuple[int, ...] = checked(_shape)
    itemsize: int = checked(whole, 1, 16, default=4)
    trainable: bool = checked(truth, default=True)
    floating: bool = checked(truth, default=True)

    def __attrs_post_init__(self) -> None:
        if not self.names:
            raise ValueError("names must be at least one, got none")
        if not self.shape:
            raise ValueError(f"{self.name} must have at least one dimension for fully_shard, got a scalar")

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.itemsize

    def shard_elements(self, num_shards: int) -> int:
        """Return the number of elements that each rank stores: dimension 0 in equal chunks, rounded up.

        Every rank pads its chunk to the size of the first one (``FSDPParam._init_sharded_param`` in _fsdp_param.py).
        """
        num_rows = -(-self.shape[0] // num_shards)
        return num_rows * math.prod(self.shape[1:])

    def padded_elements(self, num_shards: int) -> int:
        """Return the number of elements in the gathered parameter, padding included."""
        return num_shards * self.shard_elements(num_shards)


class StepEvent(NamedTuple):
    """One event of a step, of one of the kinds in `EVENTS`.

    "enter" and "leave" are the forward call of the module `name`. "pre_backward" is the moment in which the gradient of
    its output is there, "post_backward" the one in which autograd is done with it; both are missing if the tensors need
    no gradient. "forward" and "backward" are computing, which takes `seconds`, keeps or frees `activation_bytes`, and
    has `working_bytes` more while it runs. "gradient" is the moment in which autograd has accumulated the gradient of
    the parameter `name`.
    """

    kind: str
    name: str
    seconds: float = 0.0
    activation_bytes: int = 0
    working_bytes: int = 0


def _event(name: str, value: Any) -> StepEvent:
    event: StepEvent = of_type(name, value, StepEvent)
    one_of(f"the kind of an event in {name}", event.kind, EVENTS)
    number(f"the seconds of an event in {name}", event.seconds, 0)
    # An observed forward may free more than it keeps, and a backward keep more than it frees: the number is negative.
    whole(f"the activation_bytes of an event in {name}", event.activation_bytes)
    whole(f"the working_bytes of an event in {name}", event.working_bytes, 0)
    return event


@frozen
class ShardedLayer:
    """A layer of a step that is described by hand: its times, its parameters and what forward keeps for backward.

    `parameters` are `ShardedParameter` values, or numbers of float32 elements. The name may be a path, such as
    "blocks.0.fc", so that ``wrap=["blocks.*"]`` takes several layers into one group.
    """

    name: str = checked(str)
    parameters: tuple[Any, ...] = checked(each, lambda name, value: value)  # `specs` checks the values
    forward_s: float = checked(number, 0, default=0.0)
    backward_s: float = checked(number, 0, default=0.0)
    activation_bytes: int = checked(whole, 0, _MOST_ELEMENTS, default=0)

    def specs(self) -> list[ShardedParameter]:
        """Return the parameters as `ShardedParameter`; numbers get the layer's name and their index."""
        specs = []
        for index, parameter in enumerate(self.parameters):
            if isinstance(parameter, ShardedParameter):
                specs.append(parameter)
                continue
            num_elements = whole(f"parameters of {self.name!r}", parameter, 0, _MOST_ELEMENTS)
            specs.append(ShardedParameter((f"{self.name}.{index}",), (num_elements,)))
        return specs


@frozen(eq=False)
class ModuleStep:
    """Forward, backward and optimizer of one rank, as events in the order in which they happen.

    `modules` are the names of all modules in the order of ``module.named_modules()``, the root, "", first. `containers`
    are those without a forward method of their own, which cannot be wrapped. `input_bytes` are those of the batch.
    `param_dtype` is the dtype to which parameters and inputs were cast when activations were counted, None for none.
    `further_names` has the first name of a module, which is in `modules`, by each further one that it is registered
    under. `optimizer_s` is the time in which a rank updates its shard, one of `optimizer_shards`; None if that is the
    number of shards of whatever is predicted.

    Raises ValueError if the step has no parameters, or if an event names a module or parameter that it does not have.

    >>> layers = [ShardedLayer("0", [1000], forward_s=1e-3, backward_s=2e-3), ShardedLayer("1", [500])]
    >>> step = ModuleStep.of_layers(layers)
    >>> step
    <ModuleStep: 2 parameters, 1500 elements, 3 ms of computing>
    >>> [event.name for event in step.events if event.kind == "gradient"]
    ['1.0', '0.0']
    """

    parameters: tuple[ShardedParameter, ...] = checked(each, ShardedParameter)
    modules: tuple[str, ...] = checked(each, str)
    events: tuple[StepEvent, ...] = checked(each, _event)
    optimizer_s: float = checked(number, 0, default=0.0)
    containers: tuple[str, ...] = checked(each, str, default=())
    buffer_bytes: int = checked(whole, 0, default=0)
    input_bytes: int = checked(whole, 0, default=0)
    param_dtype: str | None = None
    further_names: Mapping[str, str] = checked(mapping, factory=dict)
    optimizer_shards: int | None = checked(optional, whole, 1, default=None)

    def __attrs_post_init__(self) -> None:
        if not self.parameters:
            raise ValueError("a step must have parameters to shard, got a module without any")
        parameters = {parameter.name for parameter in self.parameters}
        modules = set(self.modules)
        for event in self.events:
            if event.kind == "gradient" and event.name not in parameters:
                raise ValueError(f"events must be of the step's parameters, got a gradient of {event.name!r}")
            if event.kind != "gradient" and event.name not in modules:
                raise ValueError(f"events must be of the step's modules, got {event.kind} of {event.name!r}")

    def __repr__(self) -> str:
        num_elements = sum(parameter.num_elements for parameter in self.parameters)
        parameters = f"{len(self.parameters)} parameters, {num_elements} elements"
        return f"<ModuleStep: {parameters}, {self.computing_s * 1e3:.3g} ms of computing>"

    @property
    def forward_s(self) -> float:
        return sum(event.seconds for event in self.events if event.kind == "forward")

    @property
    def backward_s(self) -> float:
        return sum(event.seconds for event in self.events if event.kind == "backward")

    @property
    def computing_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def num_bytes(self) -> int:
        """The bytes of all parameters, without padding."""
        return sum(parameter.num_bytes for parameter in self.parameters)

    @classmethod
    def of_layers(cls, layers: Iterable[ShardedLayer], *, optimizer_s: float = 0.0) -> ModuleStep:
        """Return the step of layers that are called one after the other, as in a Sequential.

        Raises ValueError if an item is not a `ShardedLayer`, names are not unique, or there are no parameters.
        """
        listed = several("layers", layers, "ShardedLayer values")
        for layer in listed:
            of_type("a layer", layer, ShardedLayer)
        names = [layer.name for layer in listed]
        if len(set(names)) < len(names) or "" in names:
            raise ValueError(f"layers must have names that differ and are not empty, got {names}")
        sequence = _LayerSequence()
        for layer in listed:
            sequence.add(layer)
        sequence.finish()
        # A module around layers is called again after a layer outside it; the place of its first call counts.
        modules = _depth_first(dict.fromkeys(sequence.modules))
        return cls(tuple(sequence.parameters), modules, events_of(sequence.calls), optimizer_s)

    def scaled(self, forward_s: float, backward_s: float, optimizer_s: float | None = None) -> ModuleStep:
        """Return the same step with these totals, divided among the pieces of computing as now.

        If forward has no times yet, each of its pieces gets a share in proportion to the parameters of its module, or
        an equal share if none of these modules has parameters. The same holds for backward. Without `optimizer_s` the
        optimizer takes as long as now.
        """
        totals_s = {
            "forward": number("forward_s", forward_s, 0),
            "backward": number("backward_s", backward_s, 0),
        }
        events = list(self.events)
        for kind, total_s in totals_s.items():
            weights = self._weights(kind)
            sum_of_weights = sum(weights.values())
            for index, weight in weights.items():
                events[index] = events[index]._replace(seconds=total_s * weight / sum_of_weights)
        if optimizer_s is None:
            return evolve(self, events=tuple(events))
        return evolve(self, events=tuple(events), optimizer_s=optimizer_s, optimizer_shards=None)

    def with_shards(self, num_shards: int) -> ModuleStep:
        """Return the step with the optimizer's time for one of so many shards, as far as `optimizer_shards` is known.

        >>> layers = [ShardedLayer("0", [1000])]
        >>> measured = evolve(ModuleStep.of_layers(layers, optimizer_s=0.04), optimizer_shards=2)
        >>> measured.with_shards(8).optimizer_s
        0.01
        """
        if self.optimizer_shards is None:
            return self
        whole_update_s = self.optimizer_s * self.optimizer_shards
        return evolve(self, optimizer_s=whole_update_s / num_shards, optimizer_shards=num_shards)

    def _weights(self, kind: str) -> dict[int, float]:
        """Return, by the index of each event of this kind, a weight that says how `scaled` divides the total."""
        pieces = {index: event for index, event in enumerate(self.events) if event.kind == kind}
        seconds = {index: event.seconds for index, event in pieces.items()}
        if any(seconds.values()):
            return seconds
        elements: dict[str, float] = {}  # of the parameters that each module has itself, without modules inside
        for parameter in self.parameters:
            owner = parameter.name.rpartition(".")[0]
            elements[owner] = elements.get(owner, 0.0) + parameter.num_elements
        own_elements = {index: elements.get(event.name, 0.0) for index, event in pieces.items()}
        if any(own_elements.values()):
            return own_elements
        return dict.fromkeys(pieces, 1.0)


# ---- the calls of layers that are described by hand


class _LayerSequence:
    """The forward of layers that are called one after the other, as `calls` for `events_of`.

    The name of a layer says which modules are around it: "blocks.0.fc" is inside "blocks" and "blocks.0". The call of
    such a module begins before its first layer and ends as soon as a layer outside it follows.
    """

    def __init__(self) -> None:
        self.calls = [ForwardCall("enter", "")]
        self.modules = [""]  # in the order of their calls
        self.parameters: list[ShardedParameter] = []
        self._open: list[str] = []  # the modules around the last layer, from the outside in, without the root
        # What the next layer reads: the index in `calls` of the computing of the last layer that depends on a trainable
        # parameter. Empty as long as there is none, because nothing requires a gradient then.
        self._inputs: tuple[int, ...] = ()

    def add(self, layer: ShardedLayer) -> None:
        """Add the call of a layer; before it, end and begin the calls of modules around layers where they change."""
        parents = _parents(layer.name)
        num_common = _num_common(self._open, parents)
        self._leave_all_but(num_common)
        for name in parents[num_common:]:
            self._enter(name)
            self._open.append(name)
        self._enter(layer.name)
        self._compute(layer)
        self._leave(layer.name)

    def finish(self) -> None:
        """End all calls that are open, the root's last."""
        self._leave_all_but(0)
        self._leave("")

    def _enter(self, name: str) -> None:
        self.calls.append(ForwardCall("enter", name, requires_grad=bool(self._inputs)))
        self.modules.append(name)

    def _leave(self, name: str) -> None:
        self.calls.append(ForwardCall("leave", name, requires_grad=bool(self._inputs), outputs=self._inputs))

    def _leave_all_but(self, num_open: int) -> None:
        while len(self._open) > num_open:
            self._leave(self._open.pop())

    def _compute(self, layer: ShardedLayer) -> None:
        """Add the computing of a layer, which reads the result of the layer before it if that requires a gradient."""
        specs = layer.specs()
        self.parameters += specs
        trained = tuple([spec.name for spec in specs if spec.trainable])
        times = ComputeTimes(layer.forward_s, layer.backward_s, layer.activation_bytes)
        requires_grad = bool(self._inputs or trained)
        index = len(self.calls)
        call = ForwardCall("compute", layer.name, requires_grad, inputs=self._inputs, trained=trained, times=times)
        self.calls.append(call)
        if requires_grad:
            self._inputs = (index,)


def _parents(name: str) -> list[str]:
    """The modules around a layer, from the outside in, without the root.

    >>> _parents("blocks.0.fc")
    ['blocks', 'blocks.0']
    """
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _depth_first(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of modules in the order of ``named_modules()``: each is followed by all modules inside it.

    Modules inside the same one keep the order of `names`, which has every module before those inside it.

    >>> _depth_first(["", "a", "a.x", "b", "a.y"])
    ('', 'a', 'a.x', 'a.y', 'b')
    """
    positions = {name: position for position, name in enumerate(names)}

    def positions_from_root(name: str) -> list[int]:
        return [positions[module] for module in [*_parents(name), name]]

    return tuple(sorted(positions, key=positions_from_root))


def _num_common(path: Sequence[str], other: Sequence[str]) -> int:
    """Return with how many equal names two paths begin."""
    num_common = 0
    for name, other_name in zip(path, other, strict=False):
        if name != other_name:
            break
        num_common += 1
    return num_common


# ---- backward from forward


class ComputeTimes(NamedTuple):
    """The seconds of a piece of computing, and the bytes that its forward keeps for its backward."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    activation_bytes: int = 0


class ForwardCall(NamedTuple):
    """A module's call begins ("enter") or ends ("leave"), or something is computed.

    `requires_grad` is about the inputs of "enter", and for the other kinds about the outputs. `outputs` are the indices
    (in the list of calls) of the computing that made the outputs of "leave", and `inputs` those of the computing whose
    results "compute" reads; only results that require a gradient count. `trained` are the trainable parameters that a
    piece of computing reads.
    """

    kind: str
    name: str
    requires_grad: bool = False
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    trained: tuple[str, ...] = ()
    times: ComputeTimes = ComputeTimes()


def events_of(forward: Sequence[ForwardCall]) -> tuple[StepEvent, ...]:
    """Return the events of a step from the calls of its forward, the last of which leaves the whole module.

    Autograd works through the nodes of its graph from the last that was made to the first (``ReadyQueue`` in
    torch/csrc/autograd/engine.cpp orders by sequence number). It reaches only nodes from which the module's output was
    made, and only as far as they lead to a tensor that requires a gradient. So the backward of a module begins when
    autograd reaches what made its output, where hooks run in the order in which they were registered: that of an inner
    module before that of the module around it. It ends when autograd reaches the node that `fully_shard` put in front
    of the module's inputs, if one of them requires a gradient. A parameter's gradient is complete when autograd is done
    with the first call that read it.
    """
    return (*_forward_events(forward), *_backward_events(forward))


def _forward_events(forward: Sequence[ForwardCall]) -> list[StepEvent]:
    events = []
    for call in forward:
        if call.kind == "compute":
            events.append(StepEvent("forward", call.name, call.times.forward_s, call.times.activation_bytes))
        else:
            events.append(StepEvent(call.kind, call.name))
    return events


def _backward_events(forward: Sequence[ForwardCall]) -> list[StepEvent]:
    """Return the events of backward, which goes through the calls of forward from the last to the first."""
    reached = _reached_in_backward(forward)
    completed_at = _completions_of_gradients(forward, reached)
    around_reached = _calls_around(forward, reached)
    modules_by_output: dict[int, list[str]] = {}  # by the index of computing, the modules whose output it made
    for call in forward:
        for index in call.outputs:
            modules_by_output.setdefault(index, []).append(call.name)
    events = []
    for index in range(len(forward) - 1, -1, -1):
        call = forward[index]
        if call.kind == "enter" and call.requires_grad and index in around_reached:
            events.append(StepEvent("post_backward", call.name))
        if index in reached:
            events += [StepEvent("pre_backward", name) for name in modules_by_output.get(index, ())]
            times = call.times
            events.append(StepEvent("backward", call.name, times.backward_s, times.activation_bytes))
            events += [StepEvent("gradient", name) for name in call.trained if completed_at[name] == index]
    return events


def _reached_in_backward(forward: Sequence[ForwardCall]) -> set[int]:
    """Return the indices of the computing that the backward of the module's output goes through."""
    to_visit = list(forward[-1].outputs)
    reached: set[int] = set()
    while to_visit:
        index = to_visit.pop()
        if index not in reached:
            reached.add(index)
            to_visit += forward[index].inputs
    return reached


def _completions_of_gradients(forward: Sequence[ForwardCall], reached: set[int]) -> dict[str, int]:
    """Return the index of the computing whose backward completes each parameter's gradient.

    Backward goes from the last call to the first, so that is the first computing in forward that reads the parameter.
    """
    completed_at: dict[str, int] = {}
    for index in sorted(reached):
        for name in forward[index].trained:
            completed_at.setdefault(name, index)
    return completed_at


def _calls_around(forward: Sequence[ForwardCall], reached: set[int]) -> set[int]:
    """Return the indices of all "enter" calls that were open when computing of `reached` ran.

    Backward goes through these calls, so each of them can get a "post_backward". It passes by the other calls, whose
    results the module's output does not depend on.
    """
    around_reached: set[int] = set()
    open_calls: list[int] = []
    for index, call in enumerate(forward):
        if call.kind == "enter":
            open_calls.append(index)
        elif call.kind == "leave":
            open_calls.pop()
        elif index in reached:
            around_reached.update(open_calls)
    return around_reached
