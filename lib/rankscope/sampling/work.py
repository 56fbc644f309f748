"""What the samples of an epoch cost: tokens per rank, cost per step, padding, and whether weights were obeyed."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import whole
from .assignment import Assignment
from .sample_values import MOST_TOKENS, CostFunction, checked_lengths, checked_weights, costs_of
from .weighted import expected_counts

_MOST_SUM = 2**63 - 1  # sums of tokens have 64 bits


@attrs.frozen(eq=False)
class EpochWork:
    """The work of one epoch.

    `tokens` is the number of tokens that each rank reads, and `step_costs` the cost of each rank's batch at each step,
    an array of shape (steps, ranks), 0 where a rank has no batch. `step_tokens` is the number of tokens that all ranks
    read in each step, and `step_padding` the number that is added if each batch is padded to its longest sample, or to
    `max_tokens` in all.
    """

    tokens: NDArray[np.int64]
    step_costs: NDArray[np.float64]
    step_tokens: NDArray[np.int64]
    step_padding: NDArray[np.int64]

    @property
    def num_padding_tokens(self) -> int:
        """The number of tokens that padding adds in the whole epoch."""
        return int(self.step_padding.sum())

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
        mean = float(self.step_costs.mean(axis=1).sum()) if self.step_costs.size else 0.0
        if mean == 0:
            return 1.0
        return float(self.step_costs.max(axis=1).sum()) / mean

    @property
    def padding_share(self) -> float:
        """The share of all processed tokens that are padding."""
        total = int(self.tokens.sum()) + self.num_padding_tokens
        return self.num_padding_tokens / total if total else 0.0


def epoch_work(
    assignment: Assignment,
    lengths: ArrayLike,
    cost: str | CostFunction = "linear",
    max_tokens: int | None = None,
) -> EpochWork:
    """Return the work of an epoch if sample i has ``lengths[i]`` tokens.

    If there are no batches (from `Assignment.with_loader`, or from the sampler), each sample is a batch. If
    `max_tokens` is given, each batch is padded to this number of tokens, as packed sequences are, instead of to its
    longest sample. By default, this holds for the packs of a `PackedSampler`.

    Raises ValueError if `lengths` are not one whole number of at least 0 per sample, if a rank reads outside the
    dataset, if a batch has more than `max_tokens` tokens, or if the tokens of all padded batches exceed 64 bits.

    >>> from rankscope.sampling import assign
    >>> epoch = assign(4, 2, shuffle=False).with_loader(batch_size=2)  # rank 0 reads samples 0 and 2
    >>> work = epoch_work(epoch, lengths=[5, 1, 3, 1])
    >>> work.tokens.tolist(), work.step_costs.tolist(), work.imbalance, work.padding_share
    ([8, 2], [[8.0, 2.0]], 1.6, 0.16666666666666666)
    """
    token_counts = checked_lengths(lengths)
    _check_size(assignment, "lengths", token_counts.size)
    costs = costs_of(token_counts, cost)
    padded_to = assignment.padded_to
    if max_tokens is not None:
        padded_to = whole("max_tokens", max_tokens, 1, MOST_TOKENS)
    stops_of_ranks = batch_stops_of(assignment)  # step i of a rank is its i-th batch
    num_batches = sum(stops.size for stops in stops_of_ranks)
    if padded_to is not None and padded_to * num_batches > _MOST_SUM:
        most = _MOST_SUM // num_batches
        raise ValueError(f"max_tokens must be at most {most} for {num_batches} batches, got {padded_to}")
    num_steps = max(stops.size for stops in stops_of_ranks)
    step_costs = np.zeros((num_steps, assignment.num_ranks))
    tokens = np.zeros(assignment.num_ranks, dtype=np.int64)
    step_tokens = np.zeros(num_steps, dtype=np.int64)
    step_padding = np.zeros(num_steps, dtype=np.int64)
    for rank, stops in enumerate(stops_of_ranks):
        if not stops.size:
            continue
        indices = assignment.ranks[rank]
        starts = np.concatenate([[0], stops[:-1]])
        lengths_read = token_counts[indices]
        batch_tokens = _sums(lengths_read, starts, stops)
        step_costs[: stops.size, rank] = _sums(costs[indices], starts, stops)
        tokens[rank] = lengths_read.sum()
        if padded_to is None:
            padded_tokens = _longest(lengths_read, starts, stops) * (stops - starts)
        else:
            padded_tokens = np.full(stops.size, padded_to)
            if batch_tokens.max() > padded_to:
                batch = int(batch_tokens.argmax())
                problem = f"batch {batch} of rank {rank} has {batch_tokens[batch]}"
                raise ValueError(f"max_tokens must be at least the tokens of each batch, got {padded_to}: {problem}")
        step_tokens[: stops.size] += batch_tokens
        step_padding[: stops.size] += padded_tokens - batch_tokens
    return EpochWork(tokens, step_costs, step_tokens, step_padding)


@attrs.frozen(eq=False)
class WeightBias:
    """How far the reads of one or several epochs are from given weights.

    `reads` and `expected` are, for each sample, the number of reads and the one that its weight asks for. Without
    replacement, further reads of a sample in an epoch are not counted: they are padding. `sample` is
    the one whose number is least likely if draws are independent: as unlikely as `deviations` standard deviations. That
    is the root of twice its deviance, a bound (Chernoff's) that also holds for samples that are rarely expected.
    """

    reads: NDArray[np.int64]
    expected: NDArray[np.float64]
    sample: int
    deviations: float

    @property
    def num_forbidden(self) -> int:
        """The number of reads of samples whose weight is 0."""
        return int(self.reads[self.expected == 0].sum())


def weight_bias(reads: NDArray[np.int64], expected: NDArray[np.float64]) -> WeightBias:
    """Compare how often samples were read with how often their weights ask for.

    The deviance of a sample is that of a Poisson distribution, r log(r / e) - r + e for r reads of which e are
    expected. The root of twice the deviance is the number of standard deviations.

    >>> bias = weight_bias(np.array([50, 50, 0]), np.array([25.0, 75.0, 0.0]))
    >>> bias.sample, round(bias.deviations, 1)
    (0, 4.4)
    """
    is_possible = expected > 0
    ratio = np.ones(expected.size)  # r / e; where r is 0, any ratio will do, because r log(r / e) is 0
    np.divide(reads, expected, out=ratio, where=is_possible & (reads > 0))
    deviance = np.where(is_possible, reads * np.log(ratio) - reads + expected, 0.0)
    deviations = np.sqrt(2 * np.maximum(deviance, 0.0))  # rounding can make a deviance slightly negative
    sample = int(deviations.argmax()) if deviations.size else 0
    return WeightBias(reads, expected, sample, float(deviations.max(initial=0)))


def weighted_reads(
    assignment: Assignment, weights: NDArray[np.float64], replacement: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how often an epoch reads each sample, and how often its weight asks for that.

    >>> from rankscope.sampling import assign
    >>> epoch = assign(3, 1, sampler="weighted", weights=[9, 1, 1], num_samples=2, replacement=False)
    >>> weighted_reads(epoch, np.array([9.0, 1.0, 1.0]), replacement=False)[1].tolist()
    [1.0, 0.5, 0.5]
    """
    reads = np.bincount(np.concatenate(assignment.ranks), minlength=weights.size)
    num_possible = int((weights > 0).sum())  # samples that may be drawn
    num_reads = int(reads.sum())
    if not replacement:
        reads = np.minimum(reads, 1)  # further reads of a sample are padding
        num_reads = min(int(reads.sum()), num_possible)  # samples of weight 0 may have been read, against their weight
    if not num_possible or not num_reads:
        return reads, np.zeros(weights.size)
    num_draws = num_reads
    if not replacement and assignment.num_draws is not None:
        stated = max(assignment.num_draws, num_reads)  # an assignment made by hand may state fewer than it reads
        num_draws = min(stated, num_possible)
    share_read = num_reads / num_draws  # below one if `drop_last` left draws out; which ones is random
    return reads, expected_counts(weights, num_draws, replacement) * share_read


def weights_for(assignment: Assignment, weights: Any) -> NDArray[np.float64]:
    """Return checked weights, one for each sample of the assignment's dataset."""
    numbers = checked_weights(weights)
    _check_size(assignment, "weights", numbers.size)
    return numbers


def batch_stops_of(assignment: Assignment) -> list[NDArray[np.int64]]:
    """Return for each rank the positions in its reads at which its batches end."""
    if assignment.batch_stops is not None:
        return [np.asarray(stops, dtype=np.int64) for stops in assignment.batch_stops]
    batch_size = assignment.loader.batch_size if assignment.loader else 1
    stops_of_ranks = []
    for indices in assignment.ranks:
        stops = np.arange(batch_size, indices.size + batch_size, batch_size)
        stops_of_ranks.append(np.minimum(stops, indices.size))  # the last batch may be smaller
    return stops_of_ranks


def _sums(values: NDArray[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sum of each batch."""
    sum_before = np.concatenate([np.zeros(1, dtype=values.dtype), np.cumsum(values)])  # of all values before each one
    return np.asarray(sum_before[stops] - sum_before[starts])


def _longest(lengths: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of the longest sample of each batch, or 0 if the batch is empty."""
    longest = np.zeros_like(starts)
    has_samples = stops > starts  # `reduceat` needs batches that are not empty
    longest[has_samples] = np.maximum.reduceat(lengths, starts[has_samples])
    return longest


def _check_size(assignment: Assignment, name: str, size: int) -> None:
    """Raise ValueError unless each sample of the dataset and of the reads has a value; `name` is that of the values."""
    if size != assignment.size:
        raise ValueError(f"{name} must have the dataset's length {assignment.size}, got {size}")
    for rank, indices in enumerate(assignment.ranks):
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            raise ValueError(f"rank {rank} reads outside the dataset's {size} samples, so they have no {name}")
