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
from ..losses import checked_loss
from ..zero.run import storages
from .live import LiveCounter
from .replay import dtype_name, matching
from .step import ForwardCall, ModuleStep, ShardedParameter, StepEvent, events_of

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # ``_validate_module`` in _fsdp_init.py refuses them
# names of modules: to go through so many takes some 4 s, here and again in `fully_shard`
_MOST_NAMES = 1_000_000
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

    Raises ValueError for anything but a module, for a module without parameters, for one that contains itself or has
    more than a million names of modules, and for a parameter that `fully_shard` refuses because it is a scalar.

    >>> sharded_parameters(nn.Linear(3, 5))[0]
    ShardedParameter(names=('weight',), shape=(5, 3), itemsize=4, trainable=True, floating=True)
    """
    of_type("module", module, nn.Module)
    num_names = _num_names(module, {}, set())
    if num_names > _MOST_NAMES:
        raise ValueError(
            f"module must have at most {_MOST_NAMES} names of modules, got {num_names}: "
            "a module inside a shared one has a name for each place of that"
        )
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for module_name, submodule in module.named_modules(remove_duplicate=False):
        for attribute, parameter in submodule.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{module_name}.{attribute}" if module_name else attribute
            names.setdefault(id(parameter), []).append(name)
            tensors[id(parameter)] = parameter
    if not tensors:
        raise ValueError(f"module must have parameters to shard, got a {type(module).__name__} without any")
    parameters = []
    for key, parameter in tensors.items():
        parameters.append(
            ShardedParameter(
                names=tuple(names[key]),
                shape=tuple(parameter.shape),
                itemsize=parameter.element_size(),
                trainable=parameter.requires_grad,
                floating=parameter.dtype.is_floating_point,
            )
        )
    return tuple(parameters)


def _num_names(module: nn.Module, known: dict[int, int], around: set[int]) -> int:
    """Count the names of a module and of those inside it, without going through them: sharing may multiply them.

    `known` has the counts of modules that were counted before, and `around` the modules that this one is inside of,
    both by id. Raises ValueError for a module that contains itself, because it has names without end.

    >>> twice = nn.Sequential(nn.ReLU())
    >>> _num_names(nn.Sequential(twice, twice), {}, set())  # '', '0', '0.0', '1' and '1.0'
    5
    """
    key = id(module)
    if key in around:
        raise ValueError(f"module must not contain itself, got a {type(module).__name__} that is inside itself")
    if key not in known:
        around.add(key)
        count = 1  # its own name
        for child in module._modules.values():  # unlike `children`, with each as often as it is registered
            if child is not None:
                count += _num_names(child, known, around)
        known[key] = count
        around.remove(key)
    return known[key]


def step_without_events(module: nn.Module) -> ModuleStep:
    """Return a step with all that its module decides, and without events, which depend on the calls of modules.

    Raises ValueError as `sharded_parameters` does.
    """
    parameters = sharded_parameters(module)  # first, because it refuses a module with too many names
    named = dict(module.named_modules())
    first_names = {id(submodule): name for name, submodule in named.items()}
    further_names = {}
    for name, submodule in module.named_modules(remove_duplicate=False):
        if name not in named:
            further_names[name] = first_names[id(submodule)]
    return ModuleStep(
        parameters,
        tuple(named),
        events=(),
        containers=tuple([name for name, submodule in named.items() if isinstance(submodule, _CONTAINERS)]),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in module.buffers()),
        further_names=further_names,
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
    sharded_parameters(module)  # for its errors, before fx runs the module's code
    # Parts that are no str are refused by `matching`, where the step is used.
    depth = max([_depth(str(part)) for part in parts], default=0)
    with torch.enable_grad():  # the caller may have disabled it; forward may still disable it in parts
        try:
            forward = _CallReader(depth).read(module)
        except Exception:  # fx raises whatever the traced code raises
            # A new reader, because the first one has recorded the calls up to the error.
            forward = _CallReader(depth).in_order_of_definition(module)
    return evolve(step_without_events(module), events=events_of(forward))


def _depth(name: str) -> int:
    """Return how deep inside the whole module a submodule is: 0 for the whole module, 1 for its children.

    >>> _depth("blocks.0")
    2
    """
    if not name:
        return 0
    return name.count(".") + 1


class _CallReader(fx.Tracer):
    """Records the calls of modules while fx traces the code of forward.

    fx calls forward with proxies instead of tensors, and makes a node for each operation on them: `create_node` for
    each function, method and read of a parameter, and before that `call_module` for each call of a module. It does not
    trace into modules of torch.nn, which it calls leaves. Each node stands for the tensors that its operation returns.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self._depth = depth  # of the deepest module that is wrapped
        self._forward: list[ForwardCall] = []
        self._module_names: dict[int, str] = {}  # by id; the first name of a module that has several
        self._parameter_names: dict[int, str] = {}  # by id, likewise
        # by name, because fx replaces the way in which attributes of modules are read while it traces
        self._parameters: dict[str, nn.Parameter] = {}
        self._submodules: dict[str, nn.Module] = {}
        # For each node, the indices in `_forward` of the computing that made its tensors. Only computing whose results
        # require a gradient counts, so the indices are empty if backward does not go through the node.
        self._results: dict[fx.Node, tuple[int, ...]] = {}

    def read(self, module: nn.Module) -> list[ForwardCall]:
        """Return the calls in the order of the code. Raises whatever the code raises if fx cannot follow it."""
        self._prepare(module)
        self._forward.append(ForwardCall("enter", ""))
        defaults = {}  # an argument with a default is taken to have that, instead of a tensor
        for name, parameter in inspect.signature(module.forward).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                defaults[name] = parameter.default
        graph = self.trace(module, concrete_args=defaults)
        returned = [node.args[0] for node in graph.nodes if node.op == "output"]
        self._leave("", _nodes(returned))
        return self._forward

    def in_order_of_definition(self, module: nn.Module) -> list[ForwardCall]:
        """Return the calls as if each module called its children in the order of their definition."""
        self._prepare(module)
        self._walk(module, "", ())
        return self._forward

    def _prepare(self, module: nn.Module) -> None:
        for name, submodule in module.named_modules():
            self._module_names[id(submodule)] = name
        for name, submodule in module.named_modules(remove_duplicate=False):
            self._submodules[name] = submodule
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._parameter_names.setdefault(id(parameter), name)
            self._parameters[name] = parameter

    # ---- called by fx

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record the begin and the end of a module's call, and let fx trace what is between them.

        If fx would not trace into the module although modules inside it are wrapped, walk through it instead.
        """
        name = self._module_names[id(m)]
        inputs = [argument.node for argument in tree_iter((args, kwargs)) if isinstance(argument, fx.Proxy)]
        if self.is_leaf_module(m, name) and self._may_contain_wrapped(m, name):
            results = self._walk(m, name, self._results_of(inputs))
            proxy: Any = self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
            self._results[proxy.node] = results
            return proxy
        self._forward.append(ForwardCall("enter", name, requires_grad=bool(self._results_of(inputs))))
        result = super().call_module(m, forward, args, kwargs)
        self._leave(name, [value.node for value in tree_iter(result) if isinstance(value, fx.Proxy)])
        return result

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **options: Any) -> fx.Node:
        """Make the node, and record its computing if it computes.

        A node of kind "call_module" is the call of a leaf, which reads all parameters of the leaf. Other nodes that
        compute are functions and methods. Their computing has the name "", that of the whole module.
        """
        node = super().create_node(kind, target, args, kwargs, *others, **options)
        if kind in ("placeholder", "get_attr", "output"):  # an argument, a parameter that is read, the return
            return node
        inputs = list(node.all_input_nodes)
        if kind != "call_module":
            trained = self._read_parameters(inputs)
            self._results[node] = self._compute("", self._results_of(inputs), trained, _may_have_gradient(node))
            return node
        submodule = self._submodules[target]
        name = self._module_names[id(submodule)]
        if isinstance(submodule, nn.Identity) and inputs:  # it returns its input; there is no node if that is no tensor
            self._results[node] = self._results.get(inputs[0], ())
        elif not self._may_contain_wrapped(submodule, name):  # else `call_module` has recorded it
            self._results[node] = self._compute(name, self._results_of(inputs), self._trained(submodule))
        return node

    def _compute(
        self, name: str, inputs: tuple[int, ...], trained: tuple[str, ...], may_have_gradient: bool = True
    ) -> tuple[int, ...]:
        """Add a piece of computing. Return its index if backward goes through it, else no index."""
        requires_grad = may_have_gradient and torch.is_grad_enabled() and bool(inputs or trained)
        if not requires_grad:
            self._forward.append(ForwardCall("compute", name))
            return ()
        self._forward.append(ForwardCall("compute", name, requires_grad=True, inputs=inputs, trained=trained))
        own_index = len(self._forward) - 1
        return (own_index,)

    def _results_of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        """The indices of the computing that made these nodes, each once."""
        indices: list[int] = []
        for node in nodes:
            indices += self._results.get(node, ())
        return tuple(dict.fromkeys(indices))

    def _read_parameters(self, inputs: Sequence[fx.Node]) -> tuple[str, ...]:
        """The trainable parameters that a function reads directly."""
        trained = []
        for node in inputs:
            parameter = self._parameters.get(str(node.target))
            if node.op == "get_attr" and parameter is not None and parameter.requires_grad:
                trained.append(self._parameter_names[id(parameter)])
        return tuple(trained)

    def _leave(self, name: str, nodes: Sequence[fx.Node]) -> None:
        """Record the end of a call that returns these nodes. Within ``torch.no_grad()`` it has no hook for backward."""
        outputs: tuple[int, ...] = ()
        if torch.is_grad_enabled():
            outputs = self._results_of(nodes)
        self._forward.append(ForwardCall("leave", name, bool(outputs), outputs=outputs))

    # ---- the order of definition

    def _may_contain_wrapped(self, module: nn.Module, name: str) -> bool:
        """Whether modules inside a leaf may be wrapped, by their depth. A Sequential is no leaf: fx traces into it."""
        has_children = any(True for _ in module.children())
        return has_children and _depth(name) < self._depth and not isinstance(module, nn.Sequential)

    def _walk(self, module: nn.Module, name: str, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """Add the calls of a module and of all inside it, as if each was called with the results of the one before.

        What a module computes with its own parameters is taken to follow the modules inside it.

        `inputs` are the indices in `_forward` of the computing whose results the module is called with, as in
        `_compute`. Return those of the computing whose results it returns.
        """
        is_called = not isinstance(module, _CONTAINERS)  # of a container, only the modules inside are called
        if is_called:
            self._forward.append(ForwardCall("enter", name, requires_grad=bool(inputs)))
        results = inputs
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
        return tuple([self._parameter_names[id(parameter)] for parameter in parameters if parameter.requires_grad])


def _may_have_gradient(node: fx.Node) -> bool:
    """Whether the result of a function or method may require a gradient, as far as its name and arguments tell.

    >>> graph = fx.Graph()
    >>> logits = graph.placeholder("logits")
    >>> _may_have_gradient(graph.call_method("argmax", (logits,)))
    False
    """
    for argument in [*node.args, *node.kwargs.values()]:
        if isinstance(argument, torch.dtype) and not _can_be_trained(argument):  # a cast, such as x.to(torch.int64)
            return False
    name = _operation(node)
    if name == "getattr":
        return node.args[1] not in _ATTRIBUTES_WITHOUT_GRADIENT
    if name == "getitem" and node.args[1] == 1:  # the indices, if a function returned values and indices
        source: Any = node.args[0]
        return _operation(source) not in _WITH_INDICES
    return name not in _WITHOUT_GRADIENT


def _operation(node: fx.Node) -> Any:
    """Return the name of what a node does: its target is a function, which has a name, or the name of a method."""
    return getattr(node.target, "__name__", node.target)


def _can_be_trained(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _nodes(values: Any) -> list[fx.Node]:
    """Return the nodes among nested values."""
    return [value for value in tree_iter(values) if isinstance(value, fx.Node)]


# ---- observed


class Mark(NamedTuple):
    """An event of the observed step, and when it happened.

    Its kinds are those of `StepEvent` that take no time, and "begin" (of forward), "turn" (from forward to backward)
    and "end" (of backward). `live_bytes` were alive then, without parameters, buffers and gradients of parameters, and
    `peak_bytes` at most since the mark before; 0 if they are not counted.
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
        return (None, *gradients)  # `done`, the first argument of forward, has no gradient


class CallObserver:
    """Runs forward and backward of a copy of a module, with hooks on its modules, and records the events.

    A module without parameters has hooks only if it is one of `wrapped`: it has nothing to shard, but may prefetch.
    With `param_dtype`, parameters are cast, and so are the inputs of the whole module and of wrapped ones, as by
    MixedPrecisionPolicy (``FSDPState._cast_forward_inputs``).

    The hooks are at the places of those of `fully_shard` (``FSDPState.init`` in _fsdp_state.py), so whatever autograd
    does in the run, it does under FSDP. To a wrapped module, `fully_shard` passes a tensor that requires a gradient and
    is several arguments on as several tensors. To any other module it stays one tensor. Attention depends on this: it
    computes query, key and value in one multiplication only if they are the same tensor (``_in_projection_packed`` in
    torch/nn/functional.py).
    """

    def __init__(self, module: nn.Module, wrapped: Iterable[str] = (), param_dtype: str | None = None) -> None:
        self.module = copy.deepcopy(module)
        self.marks: list[Mark] = []
        self.input_bytes = 0  # of the batch, once `run_with_live_bytes` has counted
        self._wrapped = {"", *wrapped}
        self._dtype: torch.dtype | None = None
        if param_dtype is not None:
            self._dtype = getattr(torch, param_dtype)
            self._cast_parameters()
        self._counter: LiveCounter | None = None  # while `run_with_live_bytes` counts
        self._excluded_bytes = 0  # of parameters, buffers and gradients: in the counter's total, but not in marks
        self._parameter_bytes = {name: parameter.nbytes for name, parameter in self.module.named_parameters()}
        for name, submodule in self.module.named_modules():
            has_parameters = any(True for _ in submodule.parameters())
            may_be_wrapped = has_parameters or name in self._wrapped
            if may_be_wrapped and not isinstance(submodule, _CONTAINERS):
                self._watch(submodule, name, has_parameters)
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(lambda _, name=name: self._mark("gradient", name))

    def _cast_parameters(self) -> None:
        for parameter in self.module.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(self._dtype)

    def _mark(self, kind: str, name: str) -> None:
        """Add a mark of now. From the mark of a gradient on, its bytes are excluded, as those of its parameter are."""
        live_bytes = 0
        peak_bytes = 0
        if self._counter is not None:
            # First, because the peak was before this mark, when a gradient was not excluded yet.
            peak_bytes = self._counter.take_peak() - self._excluded_bytes
            if kind == "gradient":
                self._excluded_bytes += self._parameter_bytes[name]
            live_bytes = self._counter.total - self._excluded_bytes
        self.marks.append(Mark(kind, name, time.perf_counter(), live_bytes, peak_bytes))

    def _watch(self, submodule: nn.Module, name: str, has_parameters: bool) -> None:
        """Have the calls of a module marked, in forward and in backward, and cast its inputs if it is wrapped.

        The hook before forward passes the inputs that require a gradient through a `_Boundary`. So autograd comes to
        the boundary when the backward of the module has ended. As under `fully_shard`, a module without parameters has
        no boundary.
        """

        def before_forward(_: nn.Module, args: Any, kwargs: Any) -> Any:
            """Return the arguments with which the module is called instead of its own."""
            self._mark("enter", name)
            if self._dtype is not None and name in self._wrapped:
                args, kwargs = tree_map(self._cast, (args, kwargs))
            if not torch.is_grad_enabled() or not has_parameters:
                return args, kwargs
            tensors = list(_trained_tensors((args, kwargs)))  # in the order in which `tree_map` comes to them
            if not tensors:
                return args, kwargs
            keys = [id(tensor) for tensor in tensors]  # equal for a tensor that is several arguments
            if name in self._wrapped:
                keys = list(range(len(tensors)))
            inputs = dict(zip(keys, tensors, strict=True))
            boundary: Any = _Boundary.apply
            outputs = boundary(lambda: self._mark("post_backward", name), *inputs.values())
            output_of = dict(zip(inputs, outputs, strict=True))
            passed_on = iter([output_of[key] for key in keys])
            return tree_map(lambda value: next(passed_on) if _is_trained(value) else value, (args, kwargs))

        def after_forward(_: nn.Module, args: Any, output: Any) -> None:
            self._mark("leave", name)
            tensor: Any
            for tensor in _trained_tensors(output):
                tensor.register_hook(lambda _: self._mark("pre_backward", name))

        submodule.register_forward_pre_hook(before_forward, with_kwargs=True)
        submodule.register_forward_hook(after_forward)

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(self._dtype)
        return value

    def run(self, loss: Callable[..., Any], rank: int, number: int) -> None:
        """Run forward and backward of ``loss(module, rank, number)``, where `number` is that of the step.

        `marks` then has its events, from "begin" to "end".
        """
        self.module.zero_grad(set_to_none=True)
        self.marks = []
        self._mark("begin", "")
        result: Any = checked_loss(loss(self.module, rank, number))
        self._mark("turn", "")
        result.backward()
        del result  # so that its bytes are not alive at the end
        self._mark("end", "")

    def run_with_live_bytes(self, loss: Callable[..., Any], rank: int, number: int) -> None:
        """Run as `run`, count the live bytes at each mark, and set `input_bytes` to those of the existing batch."""
        sizes = storages([*self.module.parameters(), *self.module.buffers()])
        counter = LiveCounter(sizes)
        self._counter = counter
        self._excluded_bytes = sum(sizes.values())
        with counter:
            self.run(loss, rank, number)
        self._counter = None
        self.input_bytes = counter.input_bytes


def _trained_tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors that require a gradient among nested values."""
    for value in tree_iter(values):
        if _is_trained(value):
            yield value


def _is_trained(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def events_of_marks(marks: Sequence[Mark]) -> list[StepEvent]:
    """Return the marks as events, with a piece of computing between every two of them.

    In forward, it is computing of the innermost module that is called. In backward, it is computing of the module whose
    output autograd has reached last, or of the module around it if autograd has since reached its input.
    """
    events = []
    called = [""]  # the modules that are being called, the innermost last; what the loss computes counts to the whole
    is_forward = True
    in_backward = ""  # the module that backward computes; it begins with the loss
    for mark, next_mark in pairwise(marks):
        if mark.kind == "turn":
            is_forward = False
        elif mark.kind == "enter":
            called.append(mark.name)
        elif mark.kind == "leave":
            called.pop()
        elif mark.kind == "pre_backward":
            in_backward = mark.name
        elif mark.kind == "post_backward":
            in_backward, _, _ = mark.name.rpartition(".")  # the module around it
        if is_forward:
            events.append(_computing_between(mark, next_mark, "forward", called[-1]))
        else:
            events.append(_computing_between(mark, next_mark, "backward", in_backward))
        if next_mark.kind not in ("turn", "end"):  # these mark passes, and no hook of a module runs then
            events.append(StepEvent(next_mark.kind, next_mark.name))
    return events


def _computing_between(mark: Mark, next_mark: Mark, kind: str, name: str) -> StepEvent:
    """Return the computing of a module between two marks, with its time and its bytes.

    What is alive afterwards and was not before is kept by forward, and what is alive no longer is freed by backward.
    `predict` changes the live bytes by what forward keeps when forward begins, and by what backward frees when backward
    ends. The working bytes are what is missing to the peak in between, which is at least the live bytes of both marks.
    """
    seconds = next_mark.at_s - mark.at_s
    added_bytes = next_mark.live_bytes - mark.live_bytes
    if kind == "forward":
        working_bytes = next_mark.peak_bytes - next_mark.live_bytes
        return StepEvent(kind, name, seconds, added_bytes, working_bytes)
    working_bytes = next_mark.peak_bytes - mark.live_bytes
    return StepEvent(kind, name, seconds, -added_bytes, working_bytes)


def observed_step(
    module: nn.Module, loss: Callable[..., Any], wrap: Iterable[str] = (), *, param_dtype: Any = None
) -> ModuleStep:
    """Return a module's step as observed in one run of ``loss(module, 0, 0)`` in this process, exact for any code.

    It has the bytes of activations, and times of this one run, which are longer because bytes are counted. See
    `measure_step` for measured times. `wrap` are the names that will be wrapped; they matter only for modules without
    parameters, for attention that gets one tensor as query, key and value and is wrapped itself, and for `param_dtype`,
    the dtype of MixedPrecisionPolicy in which the module then computes. Raises ValueError if the module has no
    parameters, or if `loss` is not a function or does not return a scalar tensor that requires a gradient.

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
