"""`zero_traffic`: what ZeRO's stages send in a step, collective by collective, and how long a link takes for it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ..cluster import Link
from ..collectives import closed_form
from ..values.checks import count_of, of_type
from ..values.units import decimal_words
from .zero import holding

_ALGORITHM = {"allreduce": "ring", "reduce_scatter": "ring", "allgather": "ring", "broadcast": "binomial"}
_TIMES = {"allreduce": 2}  # how often (N-1)/N of the bytes passes a rank; once where nothing else is said


@dataclass(frozen=True)
class Exchange:
    """One kind of collective in a step: what it carries, its bytes over all calls, and the number of calls."""

    collective: str
    what: str
    num_bytes: int
    num_calls: int = 1


@dataclass(frozen=True)
class ZeroTraffic:
    """The collectives of one step over `num_ranks` ranks.

    >>> print(zero_traffic(7.5e9, 64, stage=3))
    stage 3, 64 ranks: a rank sends 44.3 GB a step
      allgather       15 GB  parameters, for the forward pass
      allgather       15 GB  parameters, for the backward pass
      reduce_scatter  15 GB  gradients
    """

    num_ranks: int
    stage: int
    exchanges: tuple[Exchange, ...]

    def by_collective(self) -> dict[str, int]:
        """Return the bytes of each collective's arrays together."""
        names = dict.fromkeys(one.collective for one in self.exchanges)
        return {name: sum(one.num_bytes for one in self.exchanges if one.collective == name) for name in names}

    @property
    def sent_bytes(self) -> int:
        """What a rank sends, and receives, on average: (N-1)/N of each collective's bytes, of an allreduce's twice."""
        passes = sum(_TIMES.get(one.collective, 1) * one.num_bytes for one in self.exchanges)
        return round(passes * (self.num_ranks - 1) / self.num_ranks)

    def seconds(self, link: Link) -> float:
        """Return how long the step's collectives take one after the other, as rings; broadcasts as binomial trees.

        >>> round(zero_traffic(7.5e9, 64, stage=1).seconds(Link(5e-6, 50e9)), 3)  # 15 GB twice at 50 GB/s
        0.591
        """
        of_type("link", link, Link)
        total_s = 0.0
        for one in self.exchanges:
            way = (one.collective, _ALGORITHM[one.collective], self.num_ranks)
            each_s = float(closed_form(*way, 0, link))  # latencies, which every call pays
            total_s += float(closed_form(*way, one.num_bytes, link)) + (one.num_calls - 1) * each_s
        return total_s

    def __str__(self) -> str:
        who = f"stage {self.stage}, {count_of(self.num_ranks, 'rank')}"
        head = f"{who}: a rank sends {decimal_words(self.sent_bytes)} a step"
        rows = (f"  {one.collective:<14}{decimal_words(one.num_bytes):>7}  {one.what}" for one in self.exchanges)
        return "\n".join([head, *rows])


def zero_traffic(
    num_parameters_or_module: Any,
    num_ranks: int,
    stage: int,
    recipe: str = "mixed",
    *,
    partition: str = "even",
) -> ZeroTraffic:
    """Return the collectives of a step under ZeRO's `stage`; arguments and errors are those of `zero_memory`.

    In the paper stages 1 and 2 send what plain data parallelism does (its allreduce is a reduce-scatter and an
    allgather), 2Ψ, and stage 3 3Ψ. torch's ZeroRedundancyOptimizer ("tensors") keeps DDP's allreduce and broadcasts the
    updated tensors from their owners, 3Ψ; `fully_shard` ("rows") gathers and reduces layer by layer, padding included.
    """
    held = holding(num_parameters_or_module, num_ranks, stage, recipe, partition=partition)
    rows = partition == "rows"
    size = held.gathered if rows else attrgetter("size")
    every = held.total("parameter", held.sizes.parameters, size)
    updated = held.total("parameter", held.trained, size)
    gradients = held.total("parameter" if rows else "gradient", held.trained, size)
    calls = len(held.sizes.layers) if rows else 1
    reduced = Exchange("reduce_scatter", "gradients", gradients, calls)
    if stage == 0 or partition == "tensors":
        summed = Exchange("allreduce", "gradients", gradients)
        sent = Exchange("broadcast", "updated parameters", updated, len(held.trained))
        return ZeroTraffic(held.num_ranks, stage, (summed, sent) if stage else (summed,))
    if stage < 3 and not rows:
        return ZeroTraffic(held.num_ranks, stage, (reduced, Exchange("allgather", "updated parameters", updated)))
    passes = ("forward", "backward") if stage == 3 else ("forward",)
    gathers = (Exchange("allgather", f"parameters, for the {one} pass", every, calls) for one in passes)
    return ZeroTraffic(held.num_ranks, stage, (*gathers, reduced))
