"""`zero_memory`: the bytes that a rank needs under ZeRO's stages 0 to 3, every term named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..values.checks import count_of, is_scalar, one_of, truth, whole
from ..values.frozen import ReadOnly
from ..values.units import decimal_words
from .zero_holding import OPTIMIZERS, RECIPES, Holding
from .zero_module import ModuleSizes, Parameter, sizes_of

if TYPE_CHECKING:
    import pandas as pd

TERMS = {
    "parameters": "as forward and backward read them",
    "gradients": "of the parameters that are trained",
    "optimizer_states": "momentum, variance, step counters",
    "master_copy": "the parameters that the optimizer updates, where those are others",
    "buffers": "what a module keeps beside its parameters, whole on every rank",
    "buckets": "DDP's second copy of the gradients",
    "largest_layer": "of it for a while: gathered parameters, gradients before they are reduced",
    "activations": "as stated: no stage divides them",
}
PARTITIONS = {0: ("even",), 1: ("even", "tensors"), 2: ("even", "rows"), 3: ("even", "rows")}


@dataclass(frozen=True)
class ZeroMemory:
    """The bytes of one rank by term, in the order of `TERMS`: predicted by `zero_memory`, or measured.

    >>> print(zero_memory(7_500_000_000, 64, stage=1))
    7.5 billion parameters, 64 ranks, stage 1, mixed, adam: 31.4 GB a rank
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
    terms: Mapping[str, int] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", ReadOnly({name: self.terms.get(name, 0) for name in TERMS}))

    @property
    def total_bytes(self) -> int:
        """All terms together: an upper bound, since what is whole for a while may peak when activations do not."""
        return sum(self.terms.values())

    def words(self) -> list[str]:
        """Return a headline, and a line for each term that is not 0."""
        who = f"{_count_words(self.num_parameters)} parameters, {count_of(self.num_ranks, 'rank')}, stage {self.stage}"
        head = f"{who}, {self.recipe}, {self.optimizer}: {decimal_words(self.total_bytes)} a rank"
        return [head, *(f"  {name:<16}{decimal_words(value):>9}" for name, value in self.terms.items() if value)]

    def __str__(self) -> str:
        return "\n".join(self.words())

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each term: its name, its bytes, what it is."""
        import pandas as pd

        return pd.DataFrame({"term": list(TERMS), "bytes": list(self.terms.values()), "what": list(TERMS.values())})


def zero_memory(
    num_parameters_or_module: Any,
    num_ranks: int,
    stage: int,
    recipe: str = "mixed",
    optimizer: str = "adam",
    *,
    partition: str = "even",
    rank: int | None = None,
    largest_layer: float = 0,
    buffer_bytes: float = 0,
    activation_bytes: float = 0,
    buckets: bool = False,
) -> ZeroMemory:
    """Return what a rank of `num_ranks` holds under ZeRO's `stage` (Rajbhandari et al., 2020).

    Stage 1 divides optimizer states and master copy among the ranks, 2 the gradients too, 3 the parameters too. A
    `recipe` is one of RECIPES, or "own": each tensor in the module's dtype, as what is no float always has. Frozen
    parameters have neither gradient nor state; shared ones count once.

    `partition` says how: "even" is the paper's 1/N. "tensors" (stage 1, a module) deals out whole tensors as torch's
    ZeroRedundancyOptimizer does; "rows" (stages 2 and 3, a module) chunks of dimension 0, padded, as ``fully_shard``.
    That keeps its shard, as wide as the master copy, beside what it gathers: in stage 2 all parameters from forward to
    backward (``reshard_after_forward=False``). `rank` is the one that is asked about, the fullest where it is None.

    With a plain number of parameters, `largest_layer` (parameters) and `buffer_bytes` may be stated; a module has its
    own. With `buckets` (stages 0, 1) DDP has the gradients twice, as it does without ``gradient_as_bucket_view``.
    ValueError for no ranks, unknown names, negative sizes, and for what does not go together.

    >>> [f"{zero_memory(7.5e9, 64, stage).total_bytes / 1e9:.3g} GB" for stage in range(4)]
    ['120 GB', '31.4 GB', '16.6 GB', '1.88 GB']
    """
    how = (recipe, optimizer, partition, rank, largest_layer, buffer_bytes)
    held = holding(num_parameters_or_module, num_ranks, stage, *how)
    if truth("buckets", buckets) and stage > 1:
        raise ValueError(f"buckets are DDP's, in stages 0 and 1, got stage {stage}")
    terms = held.rows() if partition == "rows" else held.shares()
    terms["buckets"] = held.total("gradient", held.trained, attrgetter("size")) * bool(buckets)
    terms |= {"buffers": held.sizes.buffer_bytes, "activations": _count("activation_bytes", activation_bytes, 0)}
    return ZeroMemory(held.sizes.num_parameters, held.num_ranks, held.stage, recipe, optimizer, terms)


def holding(
    num_parameters_or_module: Any,
    num_ranks: int,
    stage: int,
    recipe: str,
    optimizer: str = "adam",
    partition: str = "even",
    rank: int | None = None,
    largest_layer: float = 0,
    buffer_bytes: float = 0,
) -> Holding:
    """Return what `zero_memory` and `zero_traffic` count from; ValueError for what is out of range."""
    num_ranks, stage = whole("num_ranks", num_ranks, 1), whole("stage", stage, 0, 3)
    one_of("recipe", recipe, (*RECIPES, "own"))
    rule = OPTIMIZERS[one_of("optimizer", optimizer, tuple(OPTIMIZERS))]
    one_of(f"partition in stage {stage}", partition, PARTITIONS[stage])
    place = None if rank is None else whole("rank", rank, 0, num_ranks - 1)
    if is_scalar(num_parameters_or_module):
        sizes, rule = _counted(num_parameters_or_module, largest_layer, buffer_bytes), replace(rule, counter_bytes=0)
        if partition != "even" or recipe == "own":
            raise ValueError(f"partition {partition!r} with recipe {recipe!r} needs a module: a number has no tensors")
    else:
        sizes = _of_module(num_parameters_or_module, largest_layer, buffer_bytes)
    return Holding(sizes, num_ranks, stage, partition, place, recipe, rule)


def _count_words(count: int) -> str:
    scale, word = (1e9, " billion") if count >= 1e9 else (1e6, " million") if count >= 1e6 else (1, "")
    return f"{count / scale:.4g}{word}" if word else str(count)


def _counted(stated: Any, largest_layer: Any, buffer_bytes: Any) -> ModuleSizes:
    total = _count("num_parameters_or_module", stated, 1)
    layer = _count("largest_layer", largest_layer, 0, total)
    parts = (Parameter("largest layer", (layer,), 4), Parameter("the rest", (total - layer,), 4))
    return ModuleSizes(parts, _count("buffer_bytes", buffer_bytes, 0), ((0,),))


def _count(name: str, value: Any, low: int, high: int | None = None) -> int:
    """As `whole`, which takes no floats; here 7.5e9 is a whole number too."""
    return whole(name, int(value) if isinstance(value, float) and value.is_integer() else value, low, high)


def _of_module(module: Any, largest_layer: Any, buffer_bytes: Any) -> ModuleSizes:
    if largest_layer or buffer_bytes:
        raise ValueError(f"a module has its own largest_layer and buffer_bytes, got {largest_layer}, {buffer_bytes}")
    return sizes_of(module)
