"""`recommend`: how to wrap, reshard and prefetch a module so that it fits, next to DDP and ZeRO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from torch import nn

from ...common.checks import number, of_type, one_of, optional, several, whole
from ...common.units import decimal_words, times_in_one_unit
from ...networks import Cost
from ..ddp.gradients import Gradient
from ..ddp.local import LocalStep
from ..ddp.step import simulate as ddp_step
from ..zero.model import OPTIMIZERS, memory, with_own_parameters
from .calls import observed_step, sharded_parameters
from .costs import FSDPCosts, costs_from, seconds_of
from .replay import ITEMSIZES, MOST_SHARDS, dtype_name
from .step import ModuleStep
from .timing import PredictedStep, predict

_WORTH = 0.01  # of a step's time: smaller differences do not justify more memory
_NAME_CHARACTERS = 50  # the width of the column of names in the printed table
_PREFETCHED_GROUPS = 2  # the depth of prefetching that is tried next to torch's own order
_BLOCK_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)  # their children are layers


class FSDPCandidate(NamedTuple):
    """A way to train, its predicted step and the peak of a rank's memory; `wrap` is None if it is not FSDP.

    `in_torch` is False for a way that torch does not offer, which is there for comparison and never chosen.
    """

    name: str
    step_s: float
    wait_s: float
    peak_bytes: int
    wrap: tuple[str, ...] | None = None
    reshard_after_forward: bool | None = None
    prefetch: int = 0
    in_torch: bool = True


class FSDPRecommendation(msgspec.Struct, frozen=True):
    """The candidates from the fastest to the slowest, and the recommended one for this memory per rank.

    `chosen` is the one with the lowest peak among those of torch that fit and are at most 1 % slower than the fastest
    that fits; None if nothing fits.
    """

    candidates: tuple[FSDPCandidate, ...]
    memory_bytes: float
    num_ranks: int

    @property
    def fitting(self) -> tuple[FSDPCandidate, ...]:
        return tuple([candidate for candidate in self.candidates if candidate.peak_bytes <= self.memory_bytes])

    @property
    def chosen(self) -> FSDPCandidate | None:
        fitting = [candidate for candidate in self.fitting if candidate.in_torch]
        if not fitting:
            return None
        longest_step_s = min(candidate.step_s for candidate in fitting) * (1 + _WORTH)
        fast = [candidate for candidate in fitting if candidate.step_s <= longest_step_s]
        return min(fast, key=lambda candidate: candidate.peak_bytes)

    def __str__(self) -> str:
        """The chosen candidate, or what to do if nothing fits, and a table of all candidates."""
        chosen = self.chosen
        limit = decimal_words(self.memory_bytes)
        if chosen is None:
            in_torch = [candidate for candidate in self.candidates if candidate.in_torch]
            smallest = min(in_torch, key=lambda candidate: candidate.peak_bytes)
            lines = [
                f"nothing fits into {limit} per rank on {self.num_ranks} ranks: the least is "
                f"{decimal_words(smallest.peak_bytes)}, with {smallest.name}; use more ranks, or smaller batches"
            ]
        else:
            lines = [f"{chosen.name}: {decimal_words(chosen.peak_bytes)} of {limit} per rank"]
        times = times_in_one_unit(*[candidate.step_s for candidate in self.candidates])
        for candidate, step in zip(self.candidates, times, strict=True):
            fits = "fits" if candidate.peak_bytes <= self.memory_bytes else "does not fit"
            size = decimal_words(candidate.peak_bytes)
            lines.append(f"  {candidate.name:<{_NAME_CHARACTERS}} {step:>9} {size:>9}  {fits}")
        return "\n".join(lines)


def recommend(
    module: nn.Module,
    *,
    num_ranks: int,
    memory_bytes: float,
    cost: Cost | FSDPCosts,
    step: ModuleStep | None = None,
    loss: Callable[..., Any] | None = None,
    backward_s: float = 0.0,
    optimizer: str = "adam",
    param_dtype: Any = None,
    reduce_dtype: Any = None,
    wraps: Mapping[str, Iterable[str]] | None = None,
) -> FSDPRecommendation:
    """Predict step and memory for several ways to wrap a module, DDP and ZeRO, and recommend one of them.

    The ways to wrap are each layer, the larger half of the layers, and the module alone. A layer is a block of a
    container such as ModuleList, however deep that is, or a child next to it. Each way is tried with torch's default of
    resharding and without resharding, and with torch's own prefetching and two groups; `wraps` replaces the ways by
    lists of names. `param_dtype` and `reduce_dtype` are those of MixedPrecisionPolicy.

    They are compared with DDP, with ZeroRedundancyOptimizer (stage 1: DDP's all-reduce, and a broadcast of what is
    updated, taken as an all-gather), and with ZeRO's stage 2 as in the paper, whose reduce-scatter and all-gather are
    not overlapped. torch does not offer stage 2, so it is never the recommended one. These three keep parameters and
    activations in the parameters' own dtype, and forward and backward take the same time. The optimizer's time in a
    step is that of one rank's shard (`measure_step` may run on another number of ranks), and DDP, which updates
    everything on each rank, takes `num_ranks` times as long. In their memory, parameters have two bytes per element if
    all that are floating point do, else four.

    `cost` is that of `predict`. The step is a measured `step` (see `measure_step`), or that of `loss`, observed
    once, with nothing wrapped. Then backward takes `backward_s`, forward half of it, and the pieces of the step take
    shares in proportion to their observed times; with a `backward_s` of 0, only communication is compared.
    Where wrapping changes activations, as that of attention does, pass a `step` that was observed with these modules as
    `wrap` (see `observed_step`).

    HSDP is not among the ways, because it needs the costs of other groups of ranks; pass those to `predict`.

    Raises ValueError if there is neither a step nor a loss, if the module has no parameters or no forward method, if
    there is only one rank, or if a number is out of range.

    >>> import torch
    >>> module = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(8)))
    >>> def loss(module, rank, number):
    ...     return module(torch.ones(1, 1000)).sum()
    >>> advice = recommend(module, loss=loss, num_ranks=8, memory_bytes=40e6, cost=lambda num_bytes: num_bytes / 1e9)
    >>> advice.chosen.name
    'each layer, reshard'
    """
    of_type("module", module, nn.Module)
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        raise ValueError(f"module must have a forward method, got a {type(module).__name__}")
    num_ranks = whole("num_ranks", num_ranks, 2, MOST_SHARDS)
    memory_bytes = number("memory_bytes", memory_bytes, above=0)
    backward_s = number("backward_s", backward_s, 0)
    one_of("optimizer", optimizer, tuple(OPTIMIZERS))
    param_dtype = optional("param_dtype", param_dtype, dtype_name)
    costs = costs_from(cost, num_replicas=1)
    sharded_parameters(module)  # for its errors, before layers are looked for inside the module
    names_by_wrap = _checked_wraps(module, wraps)
    if step is None:
        if loss is None:
            raise ValueError("step or loss must be given, got neither")
        step = observed_step(module, loss, param_dtype=param_dtype).scaled(backward_s / 2, backward_s)
    else:
        of_type("step", step, ModuleStep)
    step = step.with_shards(num_ranks)
    candidates = _without_sharding(module, step, num_ranks, costs, optimizer)
    for wrap_name, wrap in names_by_wrap.items():
        for reshard in (None, False):  # torch's default, and without resharding
            for prefetch in _prefetches(wrap):
                predicted = predict(
                    step,
                    costs,
                    num_ranks=num_ranks,
                    wrap=wrap,
                    optimizer=optimizer,
                    reshard_after_forward=reshard,
                    prefetch=prefetch,
                    param_dtype=param_dtype,
                    reduce_dtype=reduce_dtype,
                )
                name = _candidate_name(wrap_name, reshard, prefetch)
                candidates.append(_fsdp_candidate(name, predicted, wrap, reshard, prefetch))
    candidates.sort(key=lambda candidate: (candidate.step_s, candidate.peak_bytes))  # equally fast ones by memory
    return FSDPRecommendation(tuple(candidates), memory_bytes, num_ranks)


def _checked_wraps(module: nn.Module, wraps: Mapping[str, Iterable[str]] | None) -> dict[str, tuple[str, ...]]:
    """Return the modules that each way to wrap names: those of the caller, or the usual ones if `wraps` is None."""
    if wraps is None:
        return _usual_wraps(module)
    if not isinstance(wraps, Mapping):
        raise ValueError(f"wraps must be a dict from the name of a way to a list of modules, got {wraps!r}")
    return {str(name): tuple(several(f"wraps[{name!r}]", wrap, "names")) for name, wrap in wraps.items()}


def _usual_wraps(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return three ways to wrap: each layer, the larger half of the layers, and the module alone."""
    names = _layer_names(module)
    wraps: dict[str, tuple[str, ...]] = {}
    if names:
        wraps["each layer"] = tuple(names)
    if len(names) > 2:  # of two layers, the half is one, and the other belongs to the root: again a group for each
        wraps["the larger half of the layers"] = _larger_half(module, names)
    wraps["the module alone"] = ()
    return wraps


def _layer_names(module: nn.Module) -> list[str]:
    """Return the names of the layers that are wrapped one by one.

    A child that has a container of blocks inside, as the body of a language model has, is replaced by its own children.
    A layer without parameters belongs to the root, and so does one that shares a parameter with another layer
    (`fully_shard` requires it).

    >>> body = nn.Module()
    >>> body.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    >>> model = nn.Module()
    >>> model.body = body
    >>> model.head = nn.Linear(2, 1)
    >>> _layer_names(model)
    ['body.blocks.0', 'body.blocks.1', 'head']
    """
    return [name for name, _ in with_own_parameters(_layers_below(module, ""))]


def _layers_below(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and the module of each layer inside a module, whose own name with a "." is `prefix`.

    The layers are the children of containers. A container inside a container is searched like a module. A child that is
    no container is searched only if it has a ModuleList somewhere inside, as bodies of transformers have for their
    blocks; otherwise the child itself is a layer. A Sequential in it does not count: it is usually a part of one layer.
    """
    for child_name, child in module.named_children():
        name = prefix + child_name
        if isinstance(child, _BLOCK_CONTAINERS):
            for block_name, block in child.named_children():
                if isinstance(block, _BLOCK_CONTAINERS):
                    yield from _layers_below(block, f"{name}.{block_name}.")
                else:
                    yield f"{name}.{block_name}", block
        elif any(isinstance(inner, nn.ModuleList) for inner in child.modules()):
            yield from _layers_below(child, f"{name}.")
        else:
            yield name, child


def _prefetches(wrap: tuple[str, ...]) -> tuple[int, ...]:
    """Return the depths of prefetching to try: 0, which is torch's own order, and another if the root is not alone."""
    if wrap:
        return (0, _PREFETCHED_GROUPS)
    return (0,)


def _candidate_name(wrap_name: str, reshard: bool | None, prefetch: int) -> str:
    """Return the name of a candidate, such as "each layer, reshard, prefetch 2"."""
    words = [wrap_name]
    if reshard is False:
        words.append("keep")
    else:  # None is torch's default, which reshards all groups but the root's
        words.append("reshard")
    if prefetch:
        words.append(f"prefetch {prefetch}")
    return ", ".join(words)


def _fsdp_candidate(
    name: str, predicted: PredictedStep, wrap: tuple[str, ...], reshard: bool | None, prefetch: int
) -> FSDPCandidate:
    return FSDPCandidate(
        name=name,
        step_s=predicted.step_s,
        wait_s=predicted.wait_s,
        peak_bytes=predicted.memory.peak_bytes,
        wrap=wrap,
        reshard_after_forward=reshard,
        prefetch=prefetch,
    )


def _larger_half(module: nn.Module, names: list[str]) -> tuple[str, ...]:
    """Return the half of the layers with the most elements, rounded up, in the order of the module."""
    num_elements = {}
    for name in names:
        num_elements[name] = sum(parameter.numel() for parameter in module.get_submodule(name).parameters())
    by_size = sorted(names, key=lambda name: -num_elements[name])
    larger_half = by_size[: (len(names) + 1) // 2]
    return tuple([name for name in names if name in larger_half])


def _without_sharding(
    module: nn.Module, step: ModuleStep, num_ranks: int, costs: FSDPCosts, optimizer: str
) -> list[FSDPCandidate]:
    """Return DDP, ZeroRedundancyOptimizer, and ZeRO's stage 2, whose collectives no computation hides.

    DDP's all-reduce is taken as a reduce-scatter and an all-gather, as in a ring. ZeroRedundancyOptimizer does the same
    as DDP up to the optimizer, updates only its part, and then gathers the parameters; stage 2 computes, reduces the
    gradients and gathers the parameters in turn.
    """

    def allreduce_s(num_bytes: Any) -> Any:
        return np.asarray(costs.allgather(num_bytes)) + np.asarray(costs.reduce_scatter(num_bytes))

    local_step = _local_step(step)
    timeline = ddp_step(local_step, allreduce_s)
    shard_updated_s = timeline.end_s  # forward, backward, and the update of one rank's shard
    other_shards_s = (num_ranks - 1) * step.optimizer_s  # DDP updates these, too
    ddp_wait_s = float(timeline.select(lane="compute", kind="wait").busy_s)
    gather_s = seconds_of("allgather", costs.allgather, local_step.num_bytes)
    stage_2_wait_s = seconds_of("reduce_scatter", costs.reduce_scatter, local_step.num_bytes) + gather_s
    recipe = _recipe(step)
    activation_bytes = _activation_bytes(step)

    def peak_bytes(stage: int | str) -> int:
        return memory(module, num_ranks, stage, recipe, optimizer, activation_bytes=activation_bytes).total_bytes

    return [
        FSDPCandidate("DDP", shard_updated_s + other_shards_s, ddp_wait_s, peak_bytes("ddp")),
        FSDPCandidate(
            "ZeroRedundancyOptimizer",
            shard_updated_s + gather_s,
            ddp_wait_s + gather_s,
            peak_bytes("zero_redundancy_optimizer"),
        ),
        FSDPCandidate(
            "ZeRO, stage 2", step.computing_s + stage_2_wait_s, stage_2_wait_s, peak_bytes(2), in_torch=False
        ),
    ]


def _recipe(step: ModuleStep) -> str:
    """Return the recipe of `zero.memory` for parameters in their own dtype, with gradients and states like them."""
    itemsizes = {parameter.itemsize for parameter in step.parameters if parameter.floating}
    if itemsizes == {2}:
        return "bf16"
    return "fp32"


def _local_step(step: ModuleStep) -> LocalStep:
    """Return the step as DDP sees it: with the time at which each gradient is ready, counted from backward's begin.

    The time is nan for a trainable parameter that gets no gradient.
    """
    trained = {parameter.name: parameter for parameter in step.parameters if parameter.trainable}
    ready_s = dict.fromkeys(trained, math.nan)
    elapsed_s = 0.0  # of backward
    for event in step.events:
        if event.kind == "backward":
            elapsed_s += event.seconds
        elif event.kind == "gradient":
            ready_s[event.name] = elapsed_s
    specs = [Gradient(name, parameter.num_bytes) for name, parameter in trained.items()]
    return LocalStep(
        gradients=tuple(specs),
        ready_s=np.array(list(ready_s.values())),
        forward_s=step.forward_s,
        backward_s=elapsed_s,
        optimizer_s=step.optimizer_s,
    )


def _activation_bytes(step: ModuleStep) -> int:
    """Return the bytes that forward keeps for backward, in the dtype of the parameters.

    If the step was observed with a cast, its activations are converted back by the ratio of the dtypes' sizes. If the
    parameters have several dtypes, that of the largest parameter is taken for all activations.
    """
    num_bytes = sum(event.activation_bytes for event in step.events if event.kind == "forward")
    if step.param_dtype is None:
        return num_bytes
    largest = max(step.parameters, key=lambda parameter: parameter.num_elements)
    return num_bytes * largest.itemsize // ITEMSIZES[step.param_dtype]
