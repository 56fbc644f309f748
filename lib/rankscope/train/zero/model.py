"""The memory of a rank under ZeRO, divided as in the paper or as in torch: every term named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from ...common.checks import each, one_of, whole
from ...common.units import decimal_words
from ...common.words import count_of

# The terms of a rank's memory that ZeRO divides, and the stage from which it does.
DIVIDED_FROM = {"parameters": 3, "gradients": 2, "optimizer_states": 1, "master_copy": 1}
# The others: the module's buffers, DDP's second copy of the gradients, and in stages 2 and 3 the layer in use, whose
# gradients are not reduced yet and whose parameters are gathered. Activations are as stated: no stage divides them.
TERMS = (*DIVIDED_FROM, "buffers", "buckets", "largest_layer", "activations")
# ZeRO's stage of what torch does with DistributedDataParallel. `memory` and `traffic` predict it, `measure` runs it.
WAYS = {
    "ddp": 0,  # DistributedDataParallel as it comes, whose buckets are a second copy of the gradients
    "ddp_bucket_view": 0,  # DistributedDataParallel(gradient_as_bucket_view=True)
    "zero_redundancy_optimizer": 1,  # the same, with ZeroRedundancyOptimizer, which divides by whole tensors
}


class Recipe(NamedTuple):
    """Bytes per element: of parameters, gradients, the optimizer's master copy (0 if there is none) and a state of it.

    Parameters and gradients are as forward and backward read and write them.
    """

    parameter: float
    gradient: float
    master: float
    state: float


class Optimizer(NamedTuple):
    """States per element, and bytes of each tensor's step counter."""

    num_states: int
    counter_bytes: int


RECIPES = {"fp32": Recipe(4, 4, 0, 4), "mixed": Recipe(2, 2, 4, 4), "bf16": Recipe(2, 2, 0, 2)}
OPTIMIZERS = {"sgd": Optimizer(0, 0), "momentum": Optimizer(1, 0), "adam": Optimizer(2, 4), "adamw": Optimizer(2, 4)}


class ZeroMemory(msgspec.Struct, frozen=True):
    """The bytes of one rank by term, in the order of `TERMS`: predicted by `memory`, or measured.

    ``str()`` also names what is not in them.

    >>> print(memory(7_500_000_000, 64, stage=1))
    7,500,000,000 parameters, 64 ranks, stage 1: 31.4 GB per rank
      parameters          15 GB
      gradients           15 GB
      optimizer_states   938 MB
      master_copy        469 MB
    not counted: activations, buffers of communication and of kernels, unused memory of the allocator
    """

    num_parameters: int
    num_ranks: int
    stage: int
    terms: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """The sum of all terms: an upper bound of these, since they may peak at different times."""
        return sum(self.terms.values())

    def __str__(self) -> str:
        size = decimal_words(self.total_bytes)
        ranks = count_of(self.num_ranks, "rank")
        lines = [f"{self.num_parameters:,} parameters, {ranks}, stage {self.stage}: {size} per rank"]
        for name, num_bytes in self.terms.items():
            if num_bytes:
                lines.append(f"  {name:<16}{decimal_words(num_bytes):>9}")
        missing = ["buffers of communication and of kernels", "unused memory of the allocator"]
        if self.stage >= 2 and not self.terms["largest_layer"]:
            missing.insert(0, "the layer in use")
        if not self.terms["activations"]:
            missing.insert(0, "activations")
        return "\n".join([*lines, f"not counted: {', '.join(missing)}"])


class _Tensor(NamedTuple):
    """A parameter, the bytes of each of its elements, and how many step counters it has."""

    size: int
    widths: Recipe
    is_trained: bool = True
    num_counters: int = 1


class Job(NamedTuple):
    """The checked arguments of `memory` and `traffic`."""

    tensors: list[_Tensor]
    buffer_bytes: int
    num_ranks: int
    stage: int
    recipe: Recipe

    @classmethod
    def of(cls, num_parameters_or_module: Any, num_ranks: int, stage: int | str, recipe: str | Recipe | None) -> Job:
        has_own_widths = recipe is None and stage in WAYS
        if recipe is None:
            recipe = "fp32" if isinstance(stage, str) else "mixed"
        if not isinstance(recipe, Recipe):
            recipe = RECIPES[one_of("recipe", recipe, tuple(RECIPES))]
        whole("num_ranks", num_ranks, 1)
        number = stage
        if isinstance(stage, str):
            number = WAYS[one_of("stage", stage, tuple(WAYS))]
        number = whole("stage", number, 0, 3)
        if not hasattr(num_parameters_or_module, "named_parameters"):
            if stage == "zero_redundancy_optimizer":
                raise ValueError(f"stage {stage} divides the tensors of a module, got {num_parameters_or_module!r}")
            size = _count("num_parameters_or_module", num_parameters_or_module, 1)
            tensors = [_Tensor(size, recipe, num_counters=0)]  # nobody knows how many tensors
            return cls(tensors, 0, num_ranks, number, recipe)
        tensors = []
        for parameter in num_parameters_or_module.parameters():  # one that is shared comes once
            widths = recipe
            if has_own_widths or not parameter.is_floating_point():
                width = parameter.element_size()
                widths = Recipe(width, width, master=0, state=width)
            tensors.append(_Tensor(parameter.numel(), widths, parameter.requires_grad))
        buffer_bytes = sum(buffer.nbytes for buffer in num_parameters_or_module.buffers())
        return cls(tensors, buffer_bytes, num_ranks, number, recipe)

    @property
    def trained(self) -> list[_Tensor]:
        return [tensor for tensor in self.tensors if tensor.is_trained]


def _count(name: str, value: Any, low: int) -> int:
    """Return a whole number as `whole` does, but accept floats that are whole numbers, such as 7.5e9."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole(name, value, low)


def num_bytes_of(tensors: Sequence[_Tensor], field: str) -> Any:
    """Return the bytes of as many elements as these tensors have, each as wide as this field of its recipe."""
    return sum(tensor.size * getattr(tensor.widths, field) for tensor in tensors)


def memory(
    num_parameters_or_module: Any,
    num_ranks: int,
    stage: int | str,
    recipe: str | Recipe | None = None,
    optimizer: str = "adam",
    *,
    rank: int | None = None,
    largest_layer: float = 0,
    activation_bytes: float = 0,
) -> ZeroMemory:
    """Return the bytes of one of `num_ranks` ranks under ZeRO's `stage` (Rajbhandari et al., 2020) or one of `WAYS`.

    Stage 1 divides optimizer states and master copy evenly among the ranks, stage 2 also the gradients, stage 3 also
    the parameters. Stages 2 and 3 have the `largest_layer` (its number of parameters) as a whole for a short time. For
    one of `WAYS` the result predicts `measure` on `rank`, by default on the fullest.

    `recipe` is one of `RECIPES` or your own `Recipe`. By default it is "mixed" for a stage; for a way, tensors keep the
    widths that they have in the module, and a number of parameters is in float32. Tensors that are not floating point
    always keep their width. Frozen parameters have neither gradients nor states; shared parameters count once.
    `rankscope.train.fsdp.observe` has the memory of `fully_shard` itself, activations included.

    Raises ValueError if there are no ranks, a name is unknown, a size is negative, or the way divides whole
    tensors and there is no module.

    >>> [f"{memory(7.5e9, 64, stage).total_bytes / 1e9:.3g} GB" for stage in range(4)]
    ['120 GB', '31.4 GB', '16.6 GB', '1.88 GB']
    >>> own = Recipe(parameter=2, gradient=4, master=4, state=4)
    >>> [f"{memory(1.04e9, num_ranks, 1, own).total_bytes / 2**30:.1f} GiB" for num_ranks in (1, 24)]
    ['17.4 GiB', '6.3 GiB']
    """
    rule = OPTIMIZERS[one_of("optimizer", optimizer, tuple(OPTIMIZERS))]
    job = Job.of(num_parameters_or_module, num_ranks, stage, recipe)
    updated = job.trained
    divided_from = DIVIDED_FROM
    if stage == "zero_redundancy_optimizer":
        updated = _updated_by(rank, job.trained, num_ranks)
        divided_from = {}
    undivided = {
        "parameters": num_bytes_of(job.tensors, "parameter"),
        "gradients": num_bytes_of(job.trained, "gradient"),
        "optimizer_states": rule.num_states * num_bytes_of(updated, "state"),
        "master_copy": num_bytes_of(updated, "master"),
    }
    terms = {}
    for term, num_bytes in undivided.items():
        is_divided = job.stage >= divided_from.get(term, 4)
        terms[term] = math.ceil(Fraction(num_bytes) / (num_ranks if is_divided else 1))
    terms["optimizer_states"] += rule.counter_bytes * sum(tensor.num_counters for tensor in updated)
    layer = _count("largest_layer", largest_layer, 0)
    terms["buffers"] = job.buffer_bytes
    terms["buckets"] = terms["gradients"] if stage == "ddp" else 0
    whole_bytes = (0, 0, job.recipe.gradient, job.recipe.gradient + job.recipe.parameter)[job.stage]  # by stage
    terms["largest_layer"] = math.ceil(layer * whole_bytes)
    terms["activations"] = _count("activation_bytes", activation_bytes, 0)
    return ZeroMemory(sum(tensor.size for tensor in job.tensors), num_ranks, job.stage, terms)


def _updated_by(rank: int | None, trained: Sequence[_Tensor], num_ranks: int) -> list[_Tensor]:
    """Return the tensors that ZeroRedundancyOptimizer updates on a rank, by default on the one with most elements."""
    sizes = [tensor.size for tensor in trained]
    by_rank = partition(sizes, num_ranks)
    if rank is None:
        indices = max(by_rank, key=lambda indices: (sum(sizes[index] for index in indices), len(indices)))
    else:
        indices = by_rank[whole("rank", rank, 0, num_ranks - 1)]
    return [trained[index] for index in indices]


def partition(sizes: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Return the indices in `sizes` of the tensors that each rank updates, in the order of assignment.

    Tensors are assigned in descending order of size, each to the rank with the fewest elements so far (the first of
    several), as ``ZeroRedundancyOptimizer._partition_parameters`` (torch 2.6 to 2.13) does for one parameter group.

    Raises ValueError if a size is not a whole number of at least 0 or there are no ranks.

    >>> partition([5, 30, 20, 10], 2)
    [[1, 0], [2, 3]]
    """
    sizes = each("sizes", sizes, whole, 0)
    by_rank: list[list[int]] = [[] for _ in range(whole("num_ranks", num_ranks, 1))]
    num_elements = [0] * num_ranks  # that each rank has so far
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        rank = num_elements.index(min(num_elements))
        by_rank[rank].append(index)
        num_elements[rank] += sizes[index]
    return by_rank
