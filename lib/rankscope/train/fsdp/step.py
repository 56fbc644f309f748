"""`ModuleStep`: one forward and backward of a module as a list of events, from which any wrapping can be predicted.

An event is a call of a module, a piece of computing, or a gradient. The list has the calls of all modules, and nothing
in it depends on which of them `fully_shard` wraps, on other ranks, or on whether anything is communicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ...common.checks import check_field, each, number, of_type, one_of, optional, several, truth, whole

_MOST_ELEMENTS = 2**50  # of a parameter; also the most bytes of activations that a layer may keep
EVENTS = ("enter", "leave", "forward", "pre_backward", "backward", "gradient", "post_backward")


def _shape(name: str, value: Any) -> tuple[int, ...]:
    return each(name, value, whole, 0, _MOST_ELEMENTS)


def _names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return each(name, value, of_type, str)


class ShardedParameter(msgspec.Struct, frozen=True):
    """The properties of a parameter that decide its shard; `names` has several if several modules share it.

    >>> weight = ShardedParameter(("fc.weight",), (5, 3))
    >>> weight.num_elements, weight.padded_elements(2)  # five rows on two ranks: three each, one of them padding
    (15, 18)
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    itemsize: int = 4
    trainable: bool = True
    floating: bool = True

    def __post_init__(self) -> None:
        check_field(self, "names", _names)
        check_field(self, "shape", _shape)
        check_field(self, "itemsize", whole, 1, 16)
        check_field(self, "trainable", truth)
        check_field(self, "floating", truth)
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


class ShardedLayer(msgspec.Struct, frozen=True):
    """A layer of a step that is described by hand: its times, its parameters and what forward keeps for backward.

    `parameters` are `ShardedParameter` values, or numbers of float32 elements. The name may be a path, such as
    "blocks.0.fc", so that ``wrap=["blocks.*"]`` takes several layers into one group.
    """

    name: str
    parameters: tuple[Any, ...]  # `specs` checks the values
    forward_s: float = 0.0
    backward_s: float = 0.0
    activation_bytes: int = 0

    def __post_init__(self) -> None:
        check_field(self, "name", of_type, str)
        check_field(self, "parameters", each, lambda name, value: value)
        check_field(self, "forward_s", number, 0)
        check_field(self, "backward_s", number, 0)
        check_field(self, "activation_bytes", whole, 0, _MOST_ELEMENTS)

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


class ModuleStep(msgspec.Struct, frozen=True, eq=False):
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

    parameters: tuple[ShardedParameter, ...]
    modules: tuple[str, ...]
    events: tuple[StepEvent, ...]
    optimizer_s: float = 0.0
    containers: tuple[str, ...] = ()
    buffer_bytes: int = 0
    input_bytes: int = 0
    param_dtype: str | None = None
    further_names: Mapping[str, str] = {}
    optimizer_shards: int | None = None

    def __post_init__(self) -> None:
        check_field(self, "parameters", each, of_type, ShardedParameter)
        check_field(self, "modules", each, of_type, str)
        check_field(self, "events", each, _event)
        check_field(self, "optimizer_s", number, 0)
        check_field(self, "containers", each, of_type, str)
        check_field(self, "buffer_bytes", whole, 0)
        check_field(self, "input_bytes", whole, 0)
        check_field(self, "optimizer_shards", optional, whole, 1)
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

        The name of a layer says which modules are around it: "blocks.0.fc" is inside "blocks" and "blocks.0". The call
        of such a module begins before its first layer and ends after its last one.

        Raises ValueError if an item is not a `ShardedLayer`, if a name is empty or that of another layer or of a module
        around one, if the layers of a module do not follow one another, or if the first layer trains no parameter.
        """
        listed: list[ShardedLayer] = several("layers", layers, "ShardedLayer values")
        for layer in listed:
            of_type("a layer", layer, ShardedLayer)
        paths = [[], *[_path(layer.name) for layer in listed], []]  # no module is around what is before and after them
        parameters: list[ShardedParameter] = []
        modules: list[str] = []
        forward: list[StepEvent] = []
        backward: list[StepEvent] = []
        for layer, before, path, after in zip(listed, paths, paths[1:], paths[2:], strict=False):
            specs = layer.specs()
            trained = [spec.name for spec in specs if spec.trainable]
            if not parameters and not trained:  # nothing before this layer has a gradient, so it would have no backward
                raise ValueError(f"the first layer must have a parameter to train, got none in {layer.name!r}")
            parameters += specs
            entered = [name for name in path if name not in before]
            left = [name for name in reversed(path) if name not in after]
            modules += entered
            forward += [StepEvent("enter", name) for name in entered]
            forward.append(StepEvent("forward", layer.name, layer.forward_s, layer.activation_bytes))
            forward += [StepEvent("leave", name) for name in left]
            own_backward = [StepEvent("pre_backward", name) for name in left]
            own_backward.append(StepEvent("backward", layer.name, layer.backward_s, layer.activation_bytes))
            own_backward += [StepEvent("gradient", name) for name in trained]
            if before:  # the input of the first layer needs no gradient, so no backward of a module ends there
                own_backward += [StepEvent("post_backward", name) for name in reversed(entered)]
            backward = own_backward + backward
        around = {name for path in paths for name in path[:-1]}
        names = [layer.name for layer in listed]
        is_repeated = len(set(names)) < len(names) or len(set(modules)) < len(modules)
        if is_repeated or around.intersection(names):
            raise ValueError(
                f"layers must have names that differ, and those of a module follow one another, got {names}"
            )
        return cls(tuple(parameters), tuple(modules), (*forward, *backward), optimizer_s)

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
            return replace(self, events=tuple(events))
        return replace(self, events=tuple(events), optimizer_s=optimizer_s, optimizer_shards=None)

    def with_shards(self, num_shards: int) -> ModuleStep:
        """Return the step with the optimizer's time for one of so many shards, as far as `optimizer_shards` is known.

        >>> layers = [ShardedLayer("0", [1000])]
        >>> measured = replace(ModuleStep.of_layers(layers, optimizer_s=0.04), optimizer_shards=2)
        >>> measured.with_shards(8).optimizer_s
        0.01
        """
        if self.optimizer_shards is None:
            return self
        whole_update_s = self.optimizer_s * self.optimizer_shards
        return replace(self, optimizer_s=whole_update_s / num_shards, optimizer_shards=num_shards)

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


def _path(name: str) -> list[str]:
    """Return the modules around a layer from the root, "", inwards, and the layer itself.

    >>> _path("blocks.0.fc")
    ['', 'blocks', 'blocks.0', 'blocks.0.fc']
    """
    parts = name.split(".")
    return ["", *[".".join(parts[:length]) for length in range(1, len(parts) + 1)]]
