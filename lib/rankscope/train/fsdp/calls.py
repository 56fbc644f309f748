"""The step of a torch module, observed in one run of its own."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._pytree import tree_iter, tree_map

from ...common.checks import function, of_type, optional
from ..losses import checked_loss
from ..zero.run import storages
from .live import LiveCounter
from .replay import dtype_name, matching
from .step import ModuleStep, ShardedParameter, StepEvent

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # ``_validate_module`` in _fsdp_init.py refuses them


# ---- the parts of a module that do not depend on its calls


def sharded_parameters(module: nn.Module) -> tuple[ShardedParameter, ...]:
    """Return the parameters of a module, each once, with all its names.

    Raises ValueError for anything but a module, for a module without parameters, and for a parameter that `fully_shard`
    refuses because it is a scalar.

    >>> sharded_parameters(nn.Linear(3, 5))[0]
    ShardedParameter(names=('weight',), shape=(5, 3), itemsize=4, trainable=True, floating=True)
    """
    of_type("module", module, nn.Module)
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


def step_without_events(module: nn.Module) -> ModuleStep:
    """Return a step with all that its module decides, and without events, which depend on the calls of modules.

    Raises ValueError as `sharded_parameters` does.
    """
    parameters = sharded_parameters(module)
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
    return replace(
        step,
        events=tuple(events_of_marks(observer.marks)),
        input_bytes=observer.input_bytes,
        param_dtype=param_dtype,
    )
