"""What the samples of an epoch cost: tokens per rank, cost per step, and padding."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..assignment import Assignment
from ..samplers.values import CostFunction, checked_lengths, costs_of


class EpochWork(msgspec.Struct, frozen=True, eq=False):
    """The work of one epoch.

    `tokens` is the number of tokens that each rank reads, and `step_costs` the cost of each rank's batch at each step,
    an array of shape (steps, ranks), 0 where a rank has no batch. `step_tokens` is the number of tokens that all ranks
    read in each step, and `step_padding` the number that is added if each batch is padded to its longest sample.
    """

    tokens: NDArray[np.int64]
    step_costs: NDArray[np.float64]
    step_tokens: NDArray[np.int64]
    step_padding: NDArray[np.int64]

    @property
    def step_padding_shares(self) -> NDArray[np.float64]:
        """The share of the processed tokens of each step that are padding."""
        shares: NDArray[np.float64] = self.step_padding / np.maximum(self.step_padding + self.step_tokens, 1)
        return shares

    @property
    def ratios(self) -> NDArray[np.float64]:
        """The highest cost over the mean cost of each step: how many times as long it takes as with equal costs.

        It is 1 for a step without any cost.
        """
        means = self.step_costs.mean(axis=1)
        ratios = np.ones(means.size)
        np.divide(self.step_costs.max(axis=1, initial=0), means, out=ratios, where=means > 0)
        return ratios

    @property
    def imbalance(self) -> float:
        """The sum of the steps' highest costs over the sum of their mean costs: 1 if no rank ever waits."""
        mean = float(self.step_costs.mean(axis=1).sum())
        highest = float(self.step_costs.max(axis=1).sum())
        return highest / mean if mean else 1.0

    @property
    def padding_share(self) -> float:
        """The share of all processed tokens that are padding."""
        num_padding = int(self.step_padding.sum())
        total = int(self.tokens.sum()) + num_padding
        return num_padding / total if total else 0.0


def epoch_work(assignment: Assignment, lengths: ArrayLike, cost: str | CostFunction = "linear") -> EpochWork:
    """Return the work of an epoch if sample i has ``lengths[i]`` tokens.

    If there are no batches (from `Assignment.with_loader`, or from the sampler), each sample is a batch. `cost` is that
    of a sample: "linear" for its length, "quadratic" for the length's square, or a function of all lengths.

    Raises ValueError if `lengths` are not one whole number of at least 0 per sample, or if a rank reads outside the
    dataset.

    >>> from rankscope.sampling import assign
    >>> epoch = assign(4, 2, shuffle=False).with_loader(batch_size=2)  # rank 0 reads samples 0 and 2
    >>> work = epoch_work(epoch, lengths=[5, 1, 3, 1])
    >>> work.tokens.tolist(), work.step_costs.tolist(), work.imbalance, work.padding_share
    ([8, 2], [[8.0, 2.0]], 1.6, 0.16666666666666666)
    """
    token_counts = checked_lengths(lengths)
    size = assignment.size
    if token_counts.size != size:
        raise ValueError(f"lengths must have the dataset's length {size}, got {token_counts.size}")
    for rank, indices in enumerate(assignment.ranks):
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            raise ValueError(f"rank {rank} reads outside the dataset's {size} samples, so they have no lengths")
    costs = costs_of(token_counts, cost)
    stops_of_ranks = [assignment.stops(rank) for rank in range(assignment.num_ranks)]
    num_steps = max(stops.size for stops in stops_of_ranks)  # step i of a rank is its i-th batch
    shape = (num_steps, assignment.num_ranks)
    step_costs = np.zeros(shape)
    tokens, longest, sizes = np.zeros((3, *shape), dtype=np.int64)  # of each batch
    for rank, stops in enumerate(stops_of_ranks):
        indices = assignment.ranks[rank]
        sizes[: stops.size, rank] = np.diff(stops, prepend=0)
        filled = np.flatnonzero(sizes[:, rank])  # the steps of batches that are not empty, as `reduceat` needs them
        starts = np.intp((stops - sizes[: stops.size, rank])[filled])
        lengths_read = token_counts[indices]
        step_costs[filled, rank] = np.add.reduceat(costs[indices], starts)
        tokens[filled, rank] = np.add.reduceat(lengths_read, starts)
        longest[filled, rank] = np.maximum.reduceat(lengths_read, starts)
    padding = longest * sizes - tokens
    return EpochWork(tokens.sum(axis=0), step_costs, tokens.sum(axis=1), padding.sum(axis=1))
