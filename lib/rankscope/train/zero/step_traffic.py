"""The collectives of a step under ZeRO, and the bytes that a rank sends."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from ...cluster import Link
from ...collectives import closed_form
from .model import WAYS, Job, Recipe, num_bytes_of


class CollectiveTraffic(NamedTuple):
    """One kind of collective in a step: its data, the bytes of all calls, and the number of calls."""

    collective: str
    what: str
    num_bytes: int
    num_calls: int = 1


class ZeroTraffic(msgspec.Struct, frozen=True):
    """The collectives of one step over `num_ranks` ranks.

    >>> [exchange.collective for exchange in traffic(7.5e9, 64, stage=3).exchanges]
    ['allgather', 'allgather', 'reduce_scatter']
    """

    num_ranks: int
    exchanges: list[CollectiveTraffic]

    @property
    def sent_bytes(self) -> int:
        """The mean bytes that a rank sends (and receives): (N-1)/N of each collective's bytes, twice for an
        allreduce."""
        num_bytes = 0
        for exchange in self.exchanges:
            times_sent = 2 if exchange.collective == "allreduce" else 1
            num_bytes += times_sent * exchange.num_bytes
        return round(num_bytes * (self.num_ranks - 1) / self.num_ranks)

    def seconds(self, link: Link) -> float:
        """Return the seconds of the step's collectives in sequence, as rings; broadcasts as binomial trees.

        >>> round(traffic(7.5e9, 64, stage=1).seconds(Link(5e-6, 50e9)), 3)  # 15 GB twice at 50 GB/s
        0.591
        """
        total_s = 0.0
        for collective, _, num_bytes, num_calls in self.exchanges:
            algorithm = "binomial" if collective == "broadcast" else "ring"
            # All calls together send the bytes of a single one, and each call after the first adds its latency.
            total_s += closed_form(collective, algorithm, self.num_ranks, num_bytes, link)
            total_s += (num_calls - 1) * closed_form(collective, algorithm, self.num_ranks, 0, link)
        return float(total_s)


def traffic(
    num_parameters_or_module: Any, num_ranks: int, stage: int | str, recipe: str | Recipe | None = None
) -> ZeroTraffic:
    """Return the collectives of a step under ZeRO's `stage` or one of `WAYS`; arguments and errors are `memory`'s.

    In the paper, stages 1 and 2 send 2Ψ, as plain data parallelism does (an allreduce is a reduce-scatter and an
    allgather); stage 3 sends 3Ψ. torch's ZeroRedundancyOptimizer keeps DDP's allreduce and broadcasts the updated
    tensors from their owners, 3Ψ; with DDP, rank 0 also broadcasts the buffers in every step. Frozen parameters are
    gathered in stage 3, but not reduced. `rankscope.train.fsdp.observe` has the collectives of `fully_shard` itself,
    layer by layer; it gathers frozen layers for the backward pass only if that goes through them.
    """
    job = Job.of(num_parameters_or_module, num_ranks, stage, recipe)
    gradients = math.ceil(num_bytes_of(job.trained, "gradient"))
    updated = math.ceil(num_bytes_of(job.trained, "parameter"))
    parameters = math.ceil(num_bytes_of(job.tensors, "parameter"))
    exchanges = []
    if stage in WAYS and job.buffer_bytes:
        exchanges.append(CollectiveTraffic("broadcast", "buffers", job.buffer_bytes))
    if job.stage == 3:
        exchanges.append(CollectiveTraffic("allgather", "parameters, for the forward pass", parameters))
        exchanges.append(CollectiveTraffic("allgather", "parameters, for the backward pass", parameters))
    is_summed_whole = job.stage == 0 or stage in WAYS
    exchanges.append(CollectiveTraffic("allreduce" if is_summed_whole else "reduce_scatter", "gradients", gradients))
    if stage == "zero_redundancy_optimizer":
        exchanges.append(CollectiveTraffic("broadcast", "updated parameters", updated, len(job.trained)))
    elif job.stage in (1, 2):
        exchanges.append(CollectiveTraffic("allgather", "updated parameters", updated))
    return ZeroTraffic(num_ranks, exchanges)
