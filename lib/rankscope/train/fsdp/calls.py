"""The step of a torch module: the calls of its modules, read from its code, or observed in a run of its own."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_iter, tree_map

from ...common.checks import function, of_type, several
from ..zero.run import storages
from .live import LiveCounter
from .step import ForwardCall, ModuleStep, ShardedParameter, StepEvent, events_of

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # ``_validate_module`` in _fsdp_init.py refuses them


# ---- the parts of a module that do not depend on its calls


def sharded_parameters(module: nn.Module) -> tuple[ShardedParameter, ...]:
    """Return the parameters of a module, each once, with all its names.

    Raises ValueError for anything but a module, for a module without parameters, and for a parameter that
    `fully_shard` refuses because it is a scalar.

    >>> sharded_parameters(nn.Linear(3, 5))[0]
    ShardedParameter(names=('weight',), shape=(5, 3), itemsize=4, trainable=True, floating=True)
    """
    of_type("module", module, nn.Module)
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        tensors[id(parameter)] = parameter
    if not tensors:
        raise ValueError(f"module must have parameters to shard, got a {type(module).__name__} without any")
    parameters = []
    for key, parameter in tensors.items():
        parameters.append(
            ShardedParameter(
                tuple(names[key]),
                tuple(parameter.shape),
                parameter.element_size(),
                parameter.requires_grad,
                parameter.dtype.is_floating_point,
            )
        )
    return tuple(parameters)


def _step_of(module: nn.Module, events: Iterable[StepEvent], input_bytes: int = 0) -> ModuleStep:
    named = dict(module.named_modules())
    return ModuleStep(
        sharded_parameters(module),
        tuple(named),
        tuple(events),
        containers=tuple([name for name, submodule in named.items() if isinstance(submodule, _CONTAINERS)]),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in module.buffers()),
        input_bytes=input_bytes,
    )


# ---- read from the code


def module_step(module: nn.Module, wrap: Iterable[str] = ()) -> ModuleStep:
    """Return the step of a module without running it, with the modules that its forward pass calls, in order.

    The order is that of `torch.fx`, which follows the code of forward. A module of torch.nn with wrapped modules inside
    is taken to call its children in the order of their definition, and so is the whole module if its code depends on
    data, so that fx cannot follow it. `wrap` are the names that will be wrapped, which fx must look into. The step has
    no times: see `ModuleStep.scaled`.

    >>> step = module_step(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    >>> [event.name for event in step.events if event.kind == "enter"]
    ['', '0', '1', '2']
    """
    of_type("module", module, nn.Module)
    parts = several("wrap", wrap, "names of submodules")
    sharded_parameters(module)  # raises its errors first
    depth = max([str(part).count(".") + 1 for part in parts], default=0)
    reader = _CallReader(depth)
    try:
        forward = reader.read(module)
    except Exception:  # fx raises whatever the traced code raises
        reader = _CallReader(depth)
        forward = reader.in_order_of_definition(module)
    return _step_of(module, events_of(forward))


class _CallReader(fx.Tracer):
    """Records the calls of modules while fx traces the code of forward."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self._depth = depth  # of the deepest module that is wrapped
        self._forward: list[ForwardCall] = []
        self._names: dict[int, str] = {}
        self._own_names: dict[int, str] = {}
        # by name, because fx replaces the way in which attributes of modules are read while it traces
        self._tensors: dict[str, nn.Parameter] = {}
        self._submodules: dict[str, nn.Module] = {}
        self._requires_grad: dict[fx.Node, bool] = {}
        self._output: dict[fx.Node, int] = {}  # the place in `_forward` of the call that computes the node

    def read(self, module: nn.Module) -> list[ForwardCall]:
        self._prepare(module)
        self._forward.append(ForwardCall("enter", ""))
        defaults = {}
        for name, parameter in inspect.signature(module.forward).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                defaults[name] = parameter.default
        graph = self.trace(module, concrete_args=defaults or None)
        results = [node.args[0] for node in graph.nodes if node.op == "output"]
        self._leave("", _nodes(results))
        return self._forward

    def in_order_of_definition(self, module: nn.Module) -> list[ForwardCall]:
        self._prepare(module)
        self._walk(module, "", False)
        return self._forward

    def _prepare(self, module: nn.Module) -> None:
        for name, submodule in module.named_modules():
            self._names[id(submodule)] = name
        for name, submodule in module.named_modules(remove_duplicate=False):
            self._submodules[name] = submodule
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._own_names.setdefault(id(parameter), name)
            self._tensors[name] = parameter

    # ---- fx

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = self._names[id(m)]
        inputs = [argument.node for argument in tree_iter((args, kwargs)) if isinstance(argument, fx.Proxy)]
        requires_grad = any(self._requires_grad.get(node, False) for node in inputs)
        is_leaf = self.is_leaf_module(m, name)
        if is_leaf and self._is_looked_into(m, name):
            output_requires_grad = self._walk(m, name, requires_grad)
            proxy: Any = self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
            self._requires_grad[proxy.node] = output_requires_grad
            last_call = len(self._forward) - 1  # the "leave" of the module
            self._output[proxy.node] = last_call - 1
            return proxy
        self._forward.append(ForwardCall("enter", name, requires_grad))
        result = super().call_module(m, forward, args, kwargs)
        self._leave(name, [value.node for value in tree_iter(result) if isinstance(value, fx.Proxy)])
        return result

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **options: Any) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, *others, **options)
        inputs = list(node.all_input_nodes)
        requires_grad = any(self._requires_grad.get(other, False) for other in inputs)
        if kind == "get_attr":
            parameter = self._tensors.get(target)
            self._requires_grad[node] = parameter is not None and parameter.requires_grad
            return node
        if kind in ("placeholder", "output"):
            self._requires_grad[node] = False
            return node
        name = ""
        trained: tuple[str, ...] = ()
        if kind == "call_module":
            submodule = self._submodules[target]
            name = self._names[id(submodule)]
            trained = self._trained(submodule)
            if isinstance(submodule, nn.Identity) and inputs:  # it returns the tensor that it was called with
                self._requires_grad[node] = requires_grad
                self._output[node] = self._output.get(inputs[0], -1)
                return node
            if self._is_looked_into(submodule, name):
                return node  # its calls are there already
        else:
            trained = self._read_parameters(inputs)
        requires_grad = requires_grad or bool(trained)
        self._requires_grad[node] = requires_grad
        self._output[node] = len(self._forward)
        self._forward.append(ForwardCall("compute", name, requires_grad, len(self._forward), trained))
        return node

    def _read_parameters(self, inputs: Sequence[fx.Node]) -> tuple[str, ...]:
        """The parameters that a function reads directly; the first of several readers makes the gradient complete."""
        trained = []
        for node in inputs:
            parameter = self._tensors.get(str(node.target))
            if node.op == "get_attr" and parameter is not None:
                name = self._own_names.pop(id(parameter), None)
                if name is not None and parameter.requires_grad:
                    trained.append(name)
        return tuple(trained)

    def _leave(self, name: str, nodes: Sequence[fx.Node]) -> None:
        trained = [node for node in nodes if self._requires_grad.get(node, False)]
        output = max([self._output.get(node, -1) for node in trained], default=-1)
        self._forward.append(ForwardCall("leave", name, bool(trained), output))

    # ---- the order of definition

    def _is_looked_into(self, module: nn.Module, name: str) -> bool:
        depth = name.count(".") + 1 if name else 0
        has_children = any(True for _ in module.children())
        return has_children and depth < self._depth and not isinstance(module, nn.Sequential)

    def _walk(self, module: nn.Module, name: str, requires_grad: bool) -> bool:
        """Add the calls of a module and of all inside it, and return whether its output requires a gradient."""
        is_called = not isinstance(module, _CONTAINERS)
        if is_called:
            self._forward.append(ForwardCall("enter", name, requires_grad))
        children = list(module.named_children())
        for child_name, child in children:
            requires_grad = self._walk(child, f"{name}.{child_name}" if name else child_name, requires_grad)
        if not is_called:
            return requires_grad
        trained = self._trained(module, recurse=False)
        if trained or not isinstance(module, nn.Sequential | nn.Identity):
            requires_grad = requires_grad or bool(trained)
            self._forward.append(ForwardCall("compute", name, requires_grad, len(self._forward), trained))
        output = max([place for place, call in enumerate(self._forward) if call.kind == "compute"], default=-1)
        self._forward.append(ForwardCall("leave", name, requires_grad, output))
        return requires_grad

    def _trained(self, module: nn.Module, recurse: bool = True) -> tuple[str, ...]:
        """The parameters of a module whose gradients its backward completes: those that no earlier call has."""
        trained = []
        for parameter in module.parameters(recurse=recurse):
            name = self._own_names.pop(id(parameter), None)
            if name is not None and parameter.requires_grad:
                trained.append(name)
        return tuple(trained)


def _nodes(values: Any) -> list[fx.Node]:
    return [
        value
        for value in tree_iter(values, is_leaf=lambda value: isinstance(value, fx.Node))
        if isinstance(value, fx.Node)
    ]


# ---- observed


class Mark(NamedTuple):
    """An event of the observed step, and when it happened.

    `live_bytes` were alive then apart from parameters and their gradients, and `peak_bytes` at most since the mark
    before; 0 if they are not counted.
    """

    kind: str
    name: str
    at_s: float
    live_bytes: int = 0
    peak_bytes: int = 0


class _Boundary(torch.autograd.Function):
    """Returns its inputs, and calls a function when autograd is done with what follows, as `fully_shard` does."""

    @staticmethod
    def forward(ctx: Any, done: Callable[[], None], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.done = done
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.done()
        return (None, *gradients)


class CallObserver:
    """Runs forward and backward of a copy of a module, with hooks on its modules, and records the events.

    Modules without parameters have no hooks, because they have nothing to shard.

    The hooks are at the places of those of `fully_shard` (``FSDPState.init`` in _fsdp_state.py), so whatever autograd
    does in the run, it does under FSDP. A tensor that a module receives as several arguments stays one tensor, because
    attention computes query, key and value in one multiplication only if they are the same tensor
    (``_in_projection_packed`` in torch/nn/functional.py). `fully_shard` passes such a tensor on as several ones, but
    only to a module that is wrapped itself.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module)
        self.marks: list[Mark] = []
        self.input_bytes = 0
        self._counter: LiveCounter | None = None
        self._gradient_bytes = 0  # of parameters
        self._sizes = {name: parameter.nbytes for name, parameter in self.module.named_parameters()}
        for name, submodule in self.module.named_modules():
            has_parameters = any(True for _ in submodule.parameters())
            if has_parameters and not isinstance(submodule, _CONTAINERS):
                self._watch(submodule, name)
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(lambda _, name=name: self._mark("gradient", name))

    def _mark(self, kind: str, name: str) -> None:
        live_bytes = 0
        peak_bytes = 0
        if self._counter is not None:
            peak_bytes = self._counter.take_peak() - self._gradient_bytes
            if kind == "gradient":
                self._gradient_bytes += self._sizes[name]
            live_bytes = self._counter.total - self._gradient_bytes
        self.marks.append(Mark(kind, name, time.perf_counter(), live_bytes, peak_bytes))

    def _watch(self, submodule: nn.Module, name: str) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            self._mark("enter", name)
            if not torch.is_grad_enabled():
                return args, kwargs
            inputs = {id(tensor): tensor for tensor in _trained_tensors((args, kwargs))}
            if not inputs:
                return args, kwargs
            boundary: Any = _Boundary.apply
            outputs = boundary(lambda: self._mark("post_backward", name), *inputs.values())
            output_of = dict(zip(inputs, outputs, strict=True))
            return tree_map(lambda value: output_of.get(id(value), value), (args, kwargs))

        def after(_: nn.Module, args: Any, output: Any) -> None:
            self._mark("leave", name)
            tensor: Any
            for tensor in _trained_tensors(output):
                tensor.register_hook(lambda _: self._mark("pre_backward", name))

        submodule.register_forward_pre_hook(before, with_kwargs=True)
        submodule.register_forward_hook(after)

    def run(self, loss: Callable[..., Any], rank: int, number: int) -> None:
        """Run one forward and backward. `marks` then has its events, from "begin" to "end"."""
        self.module.zero_grad(set_to_none=True)
        self.marks = []
        self._mark("begin", "")
        result = loss(self.module, rank, number)
        self._mark("turn", "")
        result.backward()
        del result
        self._mark("end", "")

    def run_with_live_bytes(self, loss: Callable[..., Any], rank: int, number: int) -> None:
        """Run as `run`, and count the live bytes at each mark, and those of the batch that exists before."""
        own = storages([*self.module.parameters(), *self.module.buffers()])
        counter = LiveCounter(own)
        self._counter = counter
        self._gradient_bytes = sum(own.values())
        with counter:
            self.run(loss, rank, number)
        self._counter = None
        self.input_bytes = counter.input_bytes


def _is_trained(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _trained_tensors(values: Any) -> Iterator[Tensor]:
    for value in tree_iter(values):
        if _is_trained(value):
            yield value


def events_of_marks(marks: Sequence[Mark]) -> list[StepEvent]:
    """Return the events between marks: the time from one mark to the next is computing of the module that runs.

    In backward, that is the module whose output or input autograd reached last.
    """
    events = []
    called = [""]
    is_forward = True
    current = ""
    for before, mark in pairwise(marks):
        if before.kind == "turn":
            is_forward = False
        if before.kind == "enter":
            called.append(before.name)
        elif before.kind == "leave":
            called.pop()
        elif before.kind in ("pre_backward", "post_backward"):
            current = before.name
        if before.kind == "post_backward":
            current = before.name.rpartition(".")[0]
        seconds = max(mark.at_s - before.at_s, 0.0)
        kept_bytes = mark.live_bytes - before.live_bytes
        peak_bytes = max(mark.peak_bytes, mark.live_bytes, before.live_bytes)
        if is_forward:
            working_bytes = peak_bytes - max(before.live_bytes, mark.live_bytes)
            events.append(StepEvent("forward", called[-1], seconds, kept_bytes, working_bytes))
        else:
            working_bytes = peak_bytes - before.live_bytes
            events.append(StepEvent("backward", current, seconds, -kept_bytes, working_bytes))
        if mark.kind not in ("turn", "end"):
            events.append(StepEvent(mark.kind, mark.name))
    return events


def observed_step(module: nn.Module, loss: Callable[..., Any]) -> ModuleStep:
    """Return a module's step as observed in one run of ``loss(module, 0, 0)`` in this process, exact for any code.

    It has the bytes of activations, and times of this one run, which are longer because bytes are counted. See
    `measure_step` for measured times. Raises ValueError if the module has no parameters or `loss` is not a function.

    >>> step = observed_step(nn.Linear(2, 1), lambda module, rank, number: module(torch.ones(3, 2)).sum())
    >>> [event.kind for event in step.events if event.kind not in ("forward", "backward")]
    ['enter', 'leave', 'pre_backward', 'gradient', 'gradient']
    """
    sharded_parameters(module)
    function("loss", loss, "of the module, a rank and a number")
    observer = CallObserver(module)
    observer.run_with_live_bytes(loss, 0, 0)
    return _step_of(module, events_of_marks(observer.marks), observer.input_bytes)
