"""The memory and traffic of a rank under ZeRO, divided as in the paper and as in torch: every term named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from ...cluster import Link
from ...collectives import closed_form
from ...common.checks import is_scalar, of_type, one_of, several, truth, whole
from ...common.units import decimal_words
from ...common.words import count_of

_MOST_RANKS = 1_000_000
_BLOCK = 2048  # elements that share a scale (Dettmers et al., 2022: 8-bit Optimizers via Block-wise Quantization)
# By name, because this module works without torch.
_CONTAINERS = ("ModuleList", "ModuleDict", "Sequential")

TERMS = {
    "parameters": "as forward and backward read them",
    "gradients": "of the parameters that are trained",
    "optimizer_states": "momentum, variance, step counters",
    "master_copy": "the parameters that the optimizer updates, if it has its own copy",
    "buffers": "of the module, whole on every rank",
    "buckets": "DDP's second copy of the gradients",
    "largest_layer": "temporary: its gathered parameters, and its gradients before they are reduced",
    "activations": "as stated: no stage divides them",
}


class TensorDivision(NamedTuple):
    """How a job divides its tensors: ZeRO's stage, the partition, and whether DDP keeps the gradients twice.

    The partition is "even" (the paper's 1/N of everything), "tensors" (whole tensors, assigned greedily) or "rows"
    (chunks of dimension 0, padded to equal length).
    """

    stage: int
    partition: str
    buckets: bool
    what: str


# The ways in which torch implements ZeRO's stages: `memory` and `traffic` predict them, `measure` runs them.
WAYS = {
    "ddp": TensorDivision(0, "even", True, "DistributedDataParallel as it comes"),
    "ddp_bucket_view": TensorDivision(0, "even", False, "DistributedDataParallel(gradient_as_bucket_view=True)"),
    "zero_redundancy_optimizer": TensorDivision(1, "tensors", False, "the same, with ZeroRedundancyOptimizer"),
    "fully_shard_keep": TensorDivision(
        2, "rows", False, "fully_shard(reshard_after_forward=False), from forward to backward"
    ),
    "fully_shard": TensorDivision(3, "rows", False, "fully_shard(reshard_after_forward=True)"),
}


class Recipe(NamedTuple):
    """Bytes per element: of parameters, gradients, the master copy (0 if there is none) and an optimizer state."""

    parameter: int
    gradient: int
    master: int
    state: int

    @property
    def shard(self) -> int:
        """Bytes per element that `fully_shard` keeps: of the master copy, else of the parameters."""
        return self.master or self.parameter


class Optimizer(NamedTuple):
    """The number of states per element, the bytes of each tensor's step counter, and whether states have 8 bits."""

    num_states: int
    counter_bytes: int = 0
    eight_bit: bool = False

    def element_bytes(self, recipe: Recipe) -> Fraction:
        """Return the bytes of all states of one element; 8-bit states include a float32 scale per block.

        >>> float(OPTIMIZERS["adam_8bit"].element_bytes(RECIPES["mixed"]))
        2.00390625
        """
        if self.eight_bit:
            return self.num_states * (1 + Fraction(4, _BLOCK))
        return self.num_states * Fraction(recipe.state)


RECIPES = {"fp32": Recipe(4, 4, 0, 4), "mixed": Recipe(2, 2, 4, 4), "bf16": Recipe(2, 2, 0, 2)}
OPTIMIZERS = {
    "sgd": Optimizer(0),
    "momentum": Optimizer(1),
    "adam": Optimizer(2, counter_bytes=4),
    "adam_8bit": Optimizer(2, counter_bytes=4, eight_bit=True),
}


# ---- memory


class ZeroMemory(msgspec.Struct, frozen=True):
    """The bytes of one rank by term, in the order of `TERMS`: predicted by `memory`, or measured.

    >>> print(memory(7_500_000_000, 64, stage=1))
    7.5 billion parameters, 64 ranks, stage 1, mixed, adam: 31.4 GB per rank
      parameters          15 GB
      gradients           15 GB
      optimizer_states   938 MB
      master_copy        469 MB
    """

    num_parameters: int
    num_ranks: int
    stage: int
    recipe: str
    optimizer: str
    terms: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """The sum of all terms: an upper bound, since temporary memory and activations may peak at different times."""
        return sum(self.terms.values())

    def words(self) -> list[str]:
        """Return a headline, and a line for each nonzero term."""
        ranks = count_of(self.num_ranks, "rank")
        how = f"stage {self.stage}, {self.recipe}, {self.optimizer}"
        size = decimal_words(self.total_bytes)
        lines = [f"{_number_words(self.num_parameters)} parameters, {ranks}, {how}: {size} per rank"]
        for name, num_bytes in self.terms.items():
            if num_bytes:
                lines.append(f"  {name:<16}{decimal_words(num_bytes):>9}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.words())


def _number_words(number: int) -> str:
    if number >= 1e9:
        return f"{number / 1e9:.4g} billion"
    if number >= 1e6:
        return f"{number / 1e6:.4g} million"
    return str(number)


def memory(
    num_parameters_or_module: Any,
    num_ranks: int,
    stage: int | str,
    recipe: str | None = None,
    optimizer: str = "adam",
    *,
    rank: int | None = None,
    largest_layer: float = 0,
    buffer_bytes: float = 0,
    activation_bytes: float = 0,
    buckets: bool = False,
) -> ZeroMemory:
    """Return the bytes of one of `num_ranks` ranks under ZeRO's `stage` (Rajbhandari et al., 2020) or a torch way
    (WAYS).

    Stage 1 divides optimizer states and master copy evenly among the ranks, stage 2 also the gradients, stage 3 also
    the parameters. For one of WAYS the result predicts `measure` on `rank`, by default on the fullest; all except
    plain DDP need a module. "fully_shard_keep" is stage 2 within a step and stage 3 between steps: torch cannot keep
    whole parameters and sharded gradients all the time.

    `recipe` is one of RECIPES, by default "mixed" for a stage and "fp32" for a way; tensors that are not floating point
    keep their width. Frozen parameters have neither gradients nor states; shared parameters count once. If the first
    argument is a number of parameters, `largest_layer` (parameters) and `buffer_bytes` may be given; a module has its
    own. With `buckets` (stages 0 and 1) DDP keeps the gradients twice, as without ``gradient_as_bucket_view``.

    Raises ValueError if there are no ranks, a name is unknown, a size is negative, or arguments contradict each other.

    >>> [f"{memory(7.5e9, 64, stage).total_bytes / 1e9:.3g} GB" for stage in range(4)]
    ['120 GB', '31.4 GB', '16.6 GB', '1.88 GB']
    >>> import torch.nn as nn
    >>> module = nn.Linear(256, 3, bias=False)  # three rows on two ranks: two, and one that is padded
    >>> [memory(module, 2, "fully_shard", rank=rank).terms["parameters"] for rank in (0, 1)]
    [2048, 2048]
    """
    rank_bytes = _rank_bytes(
        num_parameters_or_module,
        num_ranks,
        stage,
        recipe,
        optimizer=optimizer,
        rank=rank,
        largest_layer=largest_layer,
        buffer_bytes=buffer_bytes,
    )
    if truth("buckets", buckets) and rank_bytes.way.stage > 1:
        raise ValueError(f"buckets are DDP's, in stages 0 and 1, got stage {stage}")
    terms = rank_bytes.terms()
    if buckets or rank_bytes.way.buckets:
        terms["buckets"] = terms["gradients"]
    terms["buffers"] = rank_bytes.sizes.buffer_bytes
    terms["activations"] = _count("activation_bytes", activation_bytes, 0)
    return ZeroMemory(
        num_parameters=rank_bytes.sizes.num_parameters,
        num_ranks=rank_bytes.num_ranks,
        stage=rank_bytes.way.stage,
        recipe=rank_bytes.recipe,
        optimizer=optimizer,
        terms={term: terms.get(term, 0) for term in TERMS},
    )


def _rank_bytes(
    num_parameters_or_module: Any,
    num_ranks: int,
    stage: int | str,
    recipe: str | None,
    optimizer: str = "adam",
    rank: int | None = None,
    largest_layer: float = 0,
    buffer_bytes: float = 0,
) -> _RankBytes:
    """Return the basis of `memory` and `traffic`. Raises ValueError for arguments out of range."""
    num_ranks = whole("num_ranks", num_ranks, 1)
    if isinstance(stage, str):
        way = WAYS[one_of("stage", stage, tuple(WAYS))]
        if recipe is None:
            recipe = "fp32"
        if recipe == "mixed" and way.partition != "rows":
            raise ValueError("recipe 'mixed' needs fully_shard: DistributedDataParallel keeps no master copy")
    else:
        way = TensorDivision(whole("stage", stage, 0, 3), "even", buckets=False, what="as in the paper")
        if recipe is None:
            recipe = "mixed"
    one_of("recipe", recipe, tuple(RECIPES))
    rule = OPTIMIZERS[one_of("optimizer", optimizer, tuple(OPTIMIZERS))]
    if rank is not None:
        rank = whole("rank", rank, 0, num_ranks - 1)
    if is_scalar(num_parameters_or_module):
        if way.partition != "even":
            raise ValueError(f"stage {stage!r} needs a module: a number has no tensors")
        sizes = _sizes_of_number(num_parameters_or_module, largest_layer, buffer_bytes)
        rule = rule._replace(counter_bytes=0)  # each tensor has a counter, and how many tensors there are is unknown
    elif largest_layer or buffer_bytes:
        raise ValueError(f"a module has its own largest_layer and buffer_bytes, got {largest_layer}, {buffer_bytes}")
    else:
        sizes = sizes_of(num_parameters_or_module)
    return _RankBytes(sizes, num_ranks, way, rank, recipe, rule)


def _sizes_of_number(num_parameters: Any, largest_layer: float, buffer_bytes: float) -> ModuleSizes:
    """The sizes of a module of so many parameters, of which only the largest layer is known."""
    total = _count("num_parameters_or_module", num_parameters, 1)
    layer_size = _count("largest_layer", largest_layer, 0, total)
    # The recipe decides the bytes per element of parameters that are floating point, so the itemsize has no effect.
    largest_layer_parameter = Parameter("largest layer", (layer_size,), itemsize=4)
    other_parameters = Parameter("the rest", (total - layer_size,), itemsize=4)
    parameters = (largest_layer_parameter, other_parameters)
    return ModuleSizes(parameters, _count("buffer_bytes", buffer_bytes, 0), layers=((0,),))


def _count(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return a whole number as `whole` does, but accept floats that are whole numbers, such as 7.5e9."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole(name, value, low, high)


# ---- the properties of a module that decide its memory


class Parameter(NamedTuple):
    """A parameter's name, shape and bytes per element; whether it is trained, and whether it is floating point."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    trainable: bool = True
    floating: bool = True

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def rows_bound(self, num_ranks: int) -> int:
        """Return the number of elements allocated for a rank's shard: dimension 0 in equal chunks, rounded up.

        Raises ValueError for a parameter without dimensions, as `fully_shard` does.
        """
        if not self.shape:
            raise ValueError(f"fully_shard takes parameters of at least one dimension, and {self.name} has none")
        num_rows = -(-self.shape[0] // num_ranks)
        return num_rows * math.prod(self.shape[1:])

    def rows_held(self, num_ranks: int, rank: int) -> int:
        """Return the number of elements in a rank's shard: the last ranks have fewer, or none."""
        chunk = self.rows_bound(num_ranks)
        return min(max(self.size - rank * chunk, 0), chunk)


class ModuleSizes(NamedTuple):
    """A module's parameters, each once; the bytes of its buffers; and its layers, as indices into the parameters."""

    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    layers: tuple[tuple[int, ...], ...]

    @property
    def num_parameters(self) -> int:
        return sum(p.size for p in self.parameters)


def layers(module: Any) -> list[tuple[str, Any]]:
    """Return the submodules, by name, that are gathered one at a time: the children, with containers expanded.

    A submodule without parameters belongs to the root, and so does one that shares a parameter (`fully_shard` requires
    it).

    >>> import torch.nn as nn
    >>> [name for name, _ in layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3))))]
    ['0', '2.0']
    """

    def leaves(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        """Yield the children by name, and instead of a container its own children."""
        for name, child in module.named_children():
            if type(child).__name__ in _CONTAINERS:
                yield from leaves(child, f"{prefix}{name}.")
            else:
                yield prefix + name, child

    return with_own_parameters(leaves(module, ""))


def with_own_parameters(named_layers: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the layers that have parameters and share none with another layer; the others belong to the root."""
    layer_of_name = dict(named_layers)
    parameter_ids = {name: [id(p) for p in layer.parameters()] for name, layer in layer_of_name.items()}
    num_users = Counter(chain.from_iterable(parameter_ids.values()))  # of each parameter, how many layers have it
    with_own = []
    for name, layer in layer_of_name.items():
        is_shared = any(num_users[parameter_id] > 1 for parameter_id in parameter_ids[name])
        if parameter_ids[name] and not is_shared:
            with_own.append((name, layer))
    return with_own


def sizes_of(module: Any) -> ModuleSizes:
    """Return the sizes of a ``torch.nn.Module``. Raises ValueError for any other object, or if it has no parameters.

    >>> import torch.nn as nn
    >>> sizes = sizes_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> [p.shape for p in sizes.parameters], sizes.buffer_bytes, sizes.layers
    ([(3, 2), (3,), (3,), (3,)], 32, ((0, 1), (2, 3)))
    """
    if not callable(getattr(module, "named_parameters", None)):
        raise ValueError(f"num_parameters_or_module must be a number of parameters or a torch module, got {module!r}")
    named = list(module.named_parameters())  # a shared one comes once
    if not named:
        raise ValueError("num_parameters_or_module must have parameters, got a module without any")
    parameters = tuple(
        Parameter(name, tuple(map(int, p.shape)), p.element_size(), p.requires_grad, p.dtype.is_floating_point)
        for name, p in named
    )
    index_of = {id(p): index for index, (_, p) in enumerate(named)}
    indices_by_layer = [tuple(index_of[id(p)] for p in layer.parameters()) for _, layer in layers(module)]
    root = sorted(set(range(len(named))) - set(chain.from_iterable(indices_by_layer)))  # of no layer
    if root:
        indices_by_layer.append(tuple(root))
    buffer_bytes = sum(b.numel() * b.element_size() for b in module.buffers())
    return ModuleSizes(parameters, buffer_bytes, tuple(indices_by_layer))


# ---- the memory of a rank


Held = Callable[[Parameter], int | Fraction]  # how many elements of a parameter a rank holds


def _size(parameter: Parameter) -> int:
    return parameter.size


class _RankBytes(msgspec.Struct, frozen=True, dict=True):
    """A rank's bytes of everything that ZeRO divides; if `rank` is None, those of the fullest rank."""

    sizes: ModuleSizes
    num_ranks: int
    way: TensorDivision
    rank: int | None
    recipe: str
    optimizer: Optimizer

    @property
    def trained(self) -> list[Parameter]:
        return [p for p in self.sizes.parameters if p.trainable]

    def terms(self) -> dict[str, int]:
        """Return the bytes of each term that depends on the division."""
        if self.way.partition == "rows":
            return self._terms_of_rows()
        return self._terms_of_shares()

    def total(self, field: str, parameters: Iterable[Parameter], held: Held) -> int:
        """Return the bytes of the elements that a rank holds, each of which has as many as `field` of its `Recipe`."""
        num_bytes = Fraction(0)
        for p in parameters:
            num_bytes += getattr(self._recipe(p), field) * held(p)
        return math.ceil(num_bytes)

    def _terms_of_shares(self) -> dict[str, int]:
        """Return the terms divided as in the paper: evenly, or by whole tensors in stage 1."""

        def share(p: Parameter) -> Fraction:
            return Fraction(p.size, self.num_ranks)

        def whole_if_updated(p: Parameter) -> int:
            return p.size if p.name in self._updated_tensors else 0

        # How much of a parameter the rank has, of its gradient, and of what it updates. Nothing is divided in stage 0.
        parameter: Held = _size
        gradient: Held = _size
        updated: Held = _size
        num_counters = len(self.trained)
        if self.way.partition == "tensors":
            updated = whole_if_updated
            num_counters = len(self._updated_tensors)
        elif self.way.stage >= 1:
            updated = share
        if self.way.stage >= 2:
            gradient = share
        if self.way.stage >= 3:
            parameter = share
        return {
            "parameters": self.total("parameter", self.sizes.parameters, parameter),
            "gradients": self.total("gradient", self.trained, gradient),
            "optimizer_states": self._states(updated, num_counters),
            "master_copy": self.total("master", self.trained, updated),
            "largest_layer": self._largest_layer("gradient", _size),
        }

    def _terms_of_rows(self) -> dict[str, int]:
        """Return the terms divided as in `fully_shard`, which keeps its shard and gathers parameters temporarily.

        Gradients have the dtype of the computation, and are stored in that of the shard. The storages of parameters and
        gradients contain the padding; an optimizer makes its states without.
        """

        def bound(p: Parameter) -> int:
            return p.rows_bound(self.num_ranks)

        def held(p: Parameter) -> int:
            return p.rows_held(self.num_ranks, self.rank or 0)  # rank 0 is the fullest

        everything = self.sizes.parameters
        shard = self.total("shard", everything, bound)
        if self.way.stage == 2:
            # Between forward and backward all parameters are gathered. The shard, which is updated, is a second copy.
            parameters = self.total("parameter", everything, self.gathered)
            masters = shard
        else:
            # There is only the shard. It counts as the master copy where the recipe has one.
            masters = self.total("master", everything, bound)
            parameters = shard - masters
        return {
            "parameters": parameters,
            "gradients": self.total("shard", self.trained, bound),
            "optimizer_states": self._states(held, len(self.trained)),
            "master_copy": masters,
            "largest_layer": self._largest_layer("parameter", self.gathered),
        }

    def gathered(self, parameter: Parameter) -> int:
        """Return the number of elements of a parameter that `fully_shard` has gathered, padding included."""
        return self.num_ranks * parameter.rows_bound(self.num_ranks)

    def _states(self, held: Held, num_counters: int) -> int:
        """Return the bytes of the optimizer's states for the elements that a rank holds, and of its step counters."""
        num_bytes = Fraction(0)
        for p in self.trained:
            num_bytes += held(p) * self.optimizer.element_bytes(self._recipe(p))
        return math.ceil(num_bytes) + self.optimizer.counter_bytes * num_counters

    def _largest_layer(self, gradient_field: str, held: Held) -> int:
        """Gathered parameters in stage 3, and gradients before they are divided in stages 2 and 3.

        Gradients have as many bytes per element as that field of a `Recipe`.
        """
        num_bytes = 0
        layers = [[self.sizes.parameters[index] for index in layer] for layer in self.sizes.layers]
        if self.way.stage >= 3:
            num_bytes += max(self.total("parameter", layer, held) for layer in layers)
        if self.way.stage >= 2:
            trained = [[p for p in layer if p.trainable] for layer in layers]
            num_bytes += max(self.total(gradient_field, layer, held) for layer in trained)
        return num_bytes

    def _recipe(self, parameter: Parameter) -> Recipe:
        """Return the recipe, or for a parameter that is not floating point one that keeps its width."""
        if parameter.floating:
            return RECIPES[self.recipe]
        return Recipe(parameter.itemsize, parameter.itemsize, master=0, state=parameter.itemsize)

    @cached_property
    def _updated_tensors(self) -> frozenset[str]:
        """The names of the tensors that the rank updates; the fullest rank has most states and master copies."""

        def updating_bytes(indices: Sequence[int]) -> Fraction | int:
            """Return the bytes of states and master copies of these tensors."""
            num_bytes: Fraction | int = self.optimizer.counter_bytes * len(indices)
            for index in indices:
                p = self.trained[index]
                recipe = self._recipe(p)
                num_bytes += p.size * (self.optimizer.element_bytes(recipe) + recipe.master)
            return num_bytes

        by_rank = partition([p.size for p in self.trained], self.num_ranks)
        indices = max(by_rank, key=updating_bytes) if self.rank is None else by_rank[self.rank]
        return frozenset(self.trained[index].name for index in indices)


def partition(sizes: Sequence[int], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the indices in `sizes` of the tensors that each rank updates, in the order of assignment.

    Tensors are assigned in descending order of size, each to the rank with the fewest elements so far (the first of
    several), as ``ZeroRedundancyOptimizer._partition_parameters`` (torch 2.6 to 2.13) does for one parameter group.

    Raises ValueError if a size is not a whole number of at least 0 or there are no ranks.

    >>> partition([5, 30, 20, 10], 2)
    ((1, 0), (2, 3))
    """
    num_ranks = whole("num_ranks", num_ranks, 1, _MOST_RANKS)
    checked_sizes = [whole("sizes", size, 0) for size in several("sizes", sizes, "numbers of elements")]
    largest_first = sorted(range(len(checked_sizes)), key=lambda index: -checked_sizes[index])
    by_rank: list[list[int]] = [[] for _ in range(num_ranks)]
    num_elements = [0] * num_ranks  # that each rank has so far
    for index in largest_first:
        rank = num_elements.index(min(num_elements))
        by_rank[rank].append(index)
        num_elements[rank] += checked_sizes[index]
    return tuple(map(tuple, by_rank))


# ---- traffic


_ALGORITHM = {"allreduce": "ring", "reduce_scatter": "ring", "allgather": "ring", "broadcast": "binomial"}
_TIMES_SENT = {"allreduce": 2}  # how often a rank sends (N-1)/N of the bytes; once in all other collectives


class CollectiveTraffic(NamedTuple):
    """One kind of collective in a step: its data, the bytes of all calls, and the number of calls."""

    collective: str
    what: str
    num_bytes: int
    num_calls: int = 1


class ZeroTraffic(msgspec.Struct, frozen=True):
    """The collectives of one step over `num_ranks` ranks.

    >>> print(traffic(7.5e9, 64, stage=3))
    stage 3, 64 ranks: each rank sends 44.3 GB per step
      allgather        15 GB  parameters, for the forward pass
      allgather        15 GB  parameters, for the backward pass
      reduce_scatter   15 GB  gradients
    """

    num_ranks: int
    stage: int
    exchanges: tuple[CollectiveTraffic, ...]

    def by_collective(self) -> dict[str, int]:
        """Return the total bytes of the arrays of each collective."""
        num_bytes: dict[str, int] = {}
        for exchange in self.exchanges:
            num_bytes[exchange.collective] = num_bytes.get(exchange.collective, 0) + exchange.num_bytes
        return num_bytes

    @property
    def sent_bytes(self) -> int:
        """The mean bytes that a rank sends (and receives): (N-1)/N of each collective's bytes, twice for an
        allreduce."""
        num_bytes = sum(_TIMES_SENT.get(exchange.collective, 1) * exchange.num_bytes for exchange in self.exchanges)
        return round(num_bytes * (self.num_ranks - 1) / self.num_ranks)

    def seconds(self, link: Link) -> float:
        """Return the seconds of the step's collectives in sequence, as rings; broadcasts as binomial trees.

        >>> round(traffic(7.5e9, 64, stage=1).seconds(Link(5e-6, 50e9)), 3)  # 15 GB twice at 50 GB/s
        0.591
        """
        of_type("link", link, Link)
        total_s = 0.0
        for exchange in self.exchanges:
            algorithm = _ALGORITHM[exchange.collective]
            # All calls together send the bytes of a single one, and each call after the first adds its latency.
            single_call_s = float(closed_form(exchange.collective, algorithm, self.num_ranks, exchange.num_bytes, link))
            latency_s = float(closed_form(exchange.collective, algorithm, self.num_ranks, 0, link))
            total_s += single_call_s + (exchange.num_calls - 1) * latency_s
        return total_s

    def __str__(self) -> str:
        ranks = count_of(self.num_ranks, "rank")
        lines = [f"stage {self.stage}, {ranks}: each rank sends {decimal_words(self.sent_bytes)} per step"]
        for exchange in self.exchanges:
            size = decimal_words(exchange.num_bytes)
            lines.append(f"  {exchange.collective:<14} {size:>7}  {exchange.what}")
        return "\n".join(lines)


def traffic(num_parameters_or_module: Any, num_ranks: int, stage: int | str, recipe: str | None = None) -> ZeroTraffic:
    """Return the collectives of a step under ZeRO's `stage` or one of WAYS; arguments and errors are those of `memory`.

    In the paper, stages 1 and 2 send 2Ψ, as plain data parallelism does (an allreduce is a reduce-scatter and an
    allgather); stage 3 sends 3Ψ. torch's ZeroRedundancyOptimizer keeps DDP's allreduce and broadcasts the updated
    tensors from their owners, 3Ψ. `fully_shard` gathers and reduces layer by layer, padding included. In torch's ways
    that use DDP, rank 0 also broadcasts the buffers in every step.
    """
    rank_bytes = _rank_bytes(num_parameters_or_module, num_ranks, stage, recipe)
    exchanges = []
    if rank_bytes.way.partition == "rows":
        exchanges = _fully_shard_exchanges(rank_bytes)
    else:
        if isinstance(stage, str) and rank_bytes.sizes.buffer_bytes:
            exchanges.append(CollectiveTraffic("broadcast", "buffers", rank_bytes.sizes.buffer_bytes))
        exchanges += _exchanges(rank_bytes)
    return ZeroTraffic(rank_bytes.num_ranks, rank_bytes.way.stage, tuple(exchanges))


def _exchanges(rank_bytes: _RankBytes) -> list[CollectiveTraffic]:
    """The exchanges of parameters and gradients as in the paper, or as in torch's ways that use DDP."""
    gradients = rank_bytes.total("gradient", rank_bytes.trained, _size)
    updated = rank_bytes.total("parameter", rank_bytes.trained, _size)
    if rank_bytes.way.partition == "tensors":
        return [
            CollectiveTraffic("allreduce", "gradients", gradients),
            CollectiveTraffic("broadcast", "updated parameters", updated, num_calls=len(rank_bytes.trained)),
        ]
    if rank_bytes.way.stage == 0:
        return [CollectiveTraffic("allreduce", "gradients", gradients)]
    if rank_bytes.way.stage < 3:
        return [
            CollectiveTraffic("reduce_scatter", "gradients", gradients),
            CollectiveTraffic("allgather", "updated parameters", updated),
        ]
    parameters = rank_bytes.total("parameter", rank_bytes.sizes.parameters, _size)
    return [
        CollectiveTraffic("allgather", "parameters, for the forward pass", parameters),
        CollectiveTraffic("allgather", "parameters, for the backward pass", parameters),
        CollectiveTraffic("reduce_scatter", "gradients", gradients),
    ]


def _fully_shard_exchanges(rank_bytes: _RankBytes) -> list[CollectiveTraffic]:
    """The exchanges of `fully_shard`, a call for each layer. Stage 2 keeps what forward gathered until backward."""
    parameters = rank_bytes.total("parameter", rank_bytes.sizes.parameters, rank_bytes.gathered)
    # Gradients are reduced in the dtype of the computation, which is that of the gathered parameters.
    gradients = rank_bytes.total("parameter", rank_bytes.trained, rank_bytes.gathered)
    num_calls = len(rank_bytes.sizes.layers)
    exchanges = [CollectiveTraffic("allgather", "parameters, for the forward pass", parameters, num_calls)]
    if rank_bytes.way.stage == 3:
        exchanges.append(CollectiveTraffic("allgather", "parameters, for the backward pass", parameters, num_calls))
    exchanges.append(CollectiveTraffic("reduce_scatter", "gradients", gradients, num_calls))
    return exchanges
