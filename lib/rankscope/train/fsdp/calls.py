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
from ...common.frozen import evolve, optional
from ..zero.run import storages
from .live import LiveCounter
from .replay import dtype_name, matching
from .step import ForwardCall, ModuleStep, ShardedParameter, StepEvent, events_of

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # ``_validate_module`` in _fsdp_init.py refuses them
# Functions and methods of tensors whose results never require a gradient, by name.
_COMPARISONS = ("eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or", "lt")
_INDICES = ("argmax", "argmin", "argsort", "bucketize", "multinomial", "nonzero", "one_hot", "searchsorted")
_NEW_TENSORS = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_CASTS = ("bool", "int", "long", "short")
_NUMBERS = ("dim", "item", "numel", "size", "tolist")
_WITHOUT_GRADIENT = frozenset({"detach", "ne", *_COMPARISONS, *_INDICES, *_NEW_TENSORS, *_CASTS, *_NUMBERS})
# Those that return values and indices, of which the indices have none.
_WITH_INDICES = frozenset(["cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "sort", "topk"])
_ATTRIBUTES_WITHOUT_GRADIENT = frozenset(["data", "device", "dtype", "itemsize", "nbytes", "ndim", "shape"])


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
    for prefix, submodule in module.named_modules():  # a module that is registered twice comes once
        for own_name, parameter in submodule.named_parameters(recurse=False, remove_duplicate=False):
            names.setdefault(id(parameter), []).append(f"{prefix}.{own_name}" if prefix else own_name)
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


def step_without_events(module: nn.Module) -> ModuleStep:
    """Return what a step has of its module alone. Raises ValueError as `sharded_parameters` does."""
    named = dict(module.named_modules())
    return ModuleStep(
        sharded_parameters(module),
        tuple(named),
        events=(),
        containers=tuple([name for name, submodule in named.items() if isinstance(submodule, _CONTAINERS)]),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in module.buffers()),
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
    return evolve(step_without_events(module), events=events_of(forward))


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
        # the places in `_forward` of the computing that made a node, if its gradient leads to a trainable parameter
        self._results: dict[fx.Node, tuple[int, ...]] = {}

    def read(self, module: nn.Module) -> list[ForwardCall]:
        self._prepare(module)
        self._forward.append(ForwardCall("enter", ""))
        defaults = {}
        for name, parameter in inspect.signature(module.forward).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                defaults[name] = parameter.default
        with torch.enable_grad():  # the code of forward may disable it in parts
            graph = self.trace(module, concrete_args=defaults or None)
        results = [node.args[0] for node in graph.nodes if node.op == "output"]
        self._leave("", _nodes(results))
        return self._forward

    def in_order_of_definition(self, module: nn.Module) -> list[ForwardCall]:
        self._prepare(module)
        self._walk(module, "", ())
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
        if self.is_leaf_module(m, name) and self._is_looked_into(m, name):
            results = self._walk(m, name, self._results_of(inputs))
            proxy: Any = self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
            self._results[proxy.node] = results
            return proxy
        self._forward.append(ForwardCall("enter", name, bool(self._results_of(inputs))))
        result = super().call_module(m, forward, args, kwargs)
        self._leave(name, [value.node for value in tree_iter(result) if isinstance(value, fx.Proxy)])
        return result

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **options: Any) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, *others, **options)
        if kind in ("placeholder", "get_attr", "output"):
            return node
        inputs = list(node.all_input_nodes)
        name = ""
        if kind == "call_module":
            submodule = self._submodules[target]
            name = self._names[id(submodule)]
            if isinstance(submodule, nn.Identity) and inputs:  # it returns the tensor that it was called with
                self._results[node] = self._results.get(inputs[0], ())
                return node
            if self._is_looked_into(submodule, name):
                return node  # its calls are there already
            trained = self._trained(submodule)
        else:
            trained = self._read_parameters(inputs)
        self._results[node] = self._compute(name, self._results_of(inputs), trained, _may_have_gradient(node))
        return node

    def _compute(
        self, name: str, inputs: tuple[int, ...], trained: tuple[str, ...], may_have_gradient: bool = True
    ) -> tuple[int, ...]:
        """Add a piece of computing, and return its place if backward goes through it."""
        if not (may_have_gradient and torch.is_grad_enabled() and (inputs or trained)):
            self._forward.append(ForwardCall("compute", name))
            return ()
        self._forward.append(ForwardCall("compute", name, True, inputs=inputs, trained=trained))
        return (len(self._forward) - 1,)

    def _results_of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        """The places of the computing that made these nodes, each once."""
        places: dict[int, None] = {}
        for node in nodes:
            places |= dict.fromkeys(self._results.get(node, ()))
        return tuple(places)

    def _read_parameters(self, inputs: Sequence[fx.Node]) -> tuple[str, ...]:
        """The trainable parameters that a function reads directly."""
        trained = []
        for node in inputs:
            parameter = self._tensors.get(str(node.target))
            if node.op == "get_attr" and parameter is not None and parameter.requires_grad:
                trained.append(self._own_names[id(parameter)])
        return tuple(trained)

    def _leave(self, name: str, nodes: Sequence[fx.Node]) -> None:
        outputs: tuple[int, ...] = ()
        if torch.is_grad_enabled():
            outputs = self._results_of(nodes)
        self._forward.append(ForwardCall("leave", name, bool(outputs), outputs=outputs))

    # ---- the order of definition

    def _is_looked_into(self, module: nn.Module, name: str) -> bool:
        depth = name.count(".") + 1 if name else 0
        has_children = any(True for _ in module.children())
        return has_children and depth < self._depth and not isinstance(module, nn.Sequential)

    def _walk(self, module: nn.Module, name: str, results: tuple[int, ...]) -> tuple[int, ...]:
        """Add the calls of a module and of all inside it, as if each was called with the results of the one before.

        Results are represented as in `_compute`: by the places in `_forward` of the computing that made them, of which
        only results that require a gradient count. `results` are those that the module is called with. Return its own.
        """
        is_called = not isinstance(module, _CONTAINERS)  # of a container, only the modules inside are called
        if is_called:
            self._forward.append(ForwardCall("enter", name, requires_grad=bool(results)))
        for child_name, child in module.named_children():
            child_path = f"{name}.{child_name}" if name else child_name
            results = self._walk(child, child_path, results)
        if not is_called:
            return results
        trained = self._trained(module, recurse=False)
        # Sequential and Identity compute nothing themselves: they return the results of the modules inside.
        computes_nothing = isinstance(module, nn.Sequential | nn.Identity) and not trained
        if not computes_nothing:
            results = self._compute(name, results, trained)
        self._forward.append(ForwardCall("leave", name, requires_grad=bool(results), outputs=results))
        return results

    def _trained(self, module: nn.Module, recurse: bool = True) -> tuple[str, ...]:
        """The trainable parameters of a module."""
        parameters = module.parameters(recurse=recurse)
        return tuple([self._own_names[id(parameter)] for parameter in parameters if parameter.requires_grad])


def _may_have_gradient(node: fx.Node) -> bool:
    """Whether the result of a function or method may require a gradient, as far as its name and arguments tell.

    >>> graph = fx.Graph()
    >>> logits = graph.placeholder("logits")
    >>> _may_have_gradient(graph.call_method("argmax", (logits,)))
    False
    """
    values = [*node.args, *node.kwargs.values()]
    if any(isinstance(value, torch.dtype) and not _can_be_trained(value) for value in values):
        return False
    name = getattr(node.target, "__name__", node.target)
    if name == "getattr":
        return node.args[1] not in _ATTRIBUTES_WITHOUT_GRADIENT
    if name == "getitem" and node.args[1] == 1:
        source: Any = node.args[0]
        source_name = getattr(source.target, "__name__", source.target)
        return source_name not in _WITH_INDICES
    return name not in _WITHOUT_GRADIENT


def _can_be_trained(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


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

    A module without parameters has hooks only if it is one of `wrapped`: it has nothing to shard, but may prefetch.
    With `param_dtype`, parameters are cast, and so are the inputs of the whole module and of wrapped ones, as by
    MixedPrecisionPolicy (``FSDPState._cast_forward_inputs``).

    The hooks are at the places of those of `fully_shard` (``FSDPState.init`` in _fsdp_state.py), so whatever autograd
    does in the run, it does under FSDP. A tensor that a module receives as several arguments stays one tensor, because
    attention computes query, key and value in one multiplication only if they are the same tensor
    (``_in_projection_packed`` in torch/nn/functional.py). `fully_shard` passes such a tensor on as several ones, but
    only to a module that is wrapped itself.
    """

    def __init__(self, module: nn.Module, wrapped: Iterable[str] = (), param_dtype: str | None = None) -> None:
        self.module = copy.deepcopy(module)
        self._cast_inputs_of = {"", *wrapped}
        self._dtype: torch.dtype | None = None
        if param_dtype is not None:
            self._dtype = getattr(torch, param_dtype)
            for parameter in self.module.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(self._dtype)
        self.marks: list[Mark] = []
        self.input_bytes = 0
        self._counter: LiveCounter | None = None
        self._gradient_bytes = 0  # of parameters
        self._sizes = {name: parameter.nbytes for name, parameter in self.module.named_parameters()}
        for name, submodule in self.module.named_modules():
            has_parameters = any(True for _ in submodule.parameters())
            may_be_wrapped = has_parameters or name in self._cast_inputs_of
            if may_be_wrapped and not isinstance(submodule, _CONTAINERS):
                self._watch(submodule, name, has_parameters)
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

    def _watch(self, submodule: nn.Module, name: str, has_parameters: bool) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            self._mark("enter", name)
            if self._dtype is not None and name in self._cast_inputs_of:
                args, kwargs = tree_map(self._cast, (args, kwargs))
            if not torch.is_grad_enabled() or not has_parameters:
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

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(self._dtype)
        return value

    def run(self, loss: Callable[..., Any], rank: int, number: int) -> None:
        """Run one forward and backward. `marks` then has its events, from "begin" to "end"."""
        self.module.zero_grad(set_to_none=True)
        self.marks = []
        self._mark("begin", "")
        result: Any = checked_loss(loss(self.module, rank, number))
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


def observed_step(
    module: nn.Module, loss: Callable[..., Any], wrap: Iterable[str] = (), *, param_dtype: Any = None
) -> ModuleStep:
    """Return a module's step as observed in one run of ``loss(module, 0, 0)`` in this process, exact for any code.

    It has the bytes of activations, and times of this one run, which are longer because bytes are counted. See
    `measure_step` for measured times. `wrap` are the names that will be wrapped; they matter only for modules without
    parameters and for `param_dtype`, the dtype of MixedPrecisionPolicy in which the module then computes. Raises
    ValueError if the module has no parameters, or if `loss` is not a function or does not return a scalar tensor that
    requires a gradient.

    >>> step = observed_step(nn.Linear(2, 1), lambda module, rank, number: module(torch.ones(3, 2)).sum())
    >>> [event.kind for event in step.events if event.kind not in ("forward", "backward")]
    ['enter', 'leave', 'pre_backward', 'gradient', 'gradient']
    """
    step = step_without_events(module)
    wrapped = matching(step, wrap)
    function("loss", loss, "of the module, a rank and a number")
    param_dtype = optional("param_dtype", param_dtype, dtype_name)
    observer = CallObserver(module, wrapped, param_dtype)
    observer.run_with_live_bytes(loss, 0, 0)
    return evolve(
        step,
        events=tuple(events_of_marks(observer.marks)),
        input_bytes=observer.input_bytes,
        param_dtype=param_dtype,
    )


def checked_loss(loss: Any) -> Tensor:
    """Return the loss. Raises ValueError for anything but a tensor of one element that requires a gradient."""
    expected = "loss must return a tensor of one element that requires a gradient"
    if not isinstance(loss, Tensor):
        raise ValueError(f"{expected}, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(f"{expected}, got one of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError(f"{expected}, got one that requires none")
    return loss
