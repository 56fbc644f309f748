"""What the samples of an epoch cost: tokens per rank, cost per step, padding, and whether weights were obeyed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .assignment import Assignment
from .sample_values import CostFunction, checked_lengths, checked_weights, costs_of
from .weighted import expected_counts

_MOST_GROUPS = 10  # of weights, if these all differ
_LEAST_EXPECTED = 10.0  # reads of a group, so that the chi-square distribution holds


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


def epoch_work(assignment: Assignment, lengths: ArrayLike, cost: str | CostFunction = "linear") -> EpochWork:
    """Return the work of an epoch if sample i has ``lengths[i]`` tokens.

    If there are no batches (from `Assignment.with_loader`, or from the sampler), each sample is a batch.

    Raises ValueError if `lengths` are not one whole number of at least 0 per sample, or if a rank reads outside the
    dataset.

    >>> from rankscope.sampling import assign
    >>> epoch = assign(4, 2, shuffle=False).with_loader(batch_size=2)  # rank 0 reads samples 0 and 2
    >>> work = epoch_work(epoch, lengths=[5, 1, 3, 1])
    >>> work.tokens.tolist(), work.step_costs.tolist(), work.imbalance, work.padding_share
    ([8, 2], [[8.0, 2.0]], 1.6, 0.16666666666666666)
    """
    token_counts = checked_lengths(lengths)
    _check_size(assignment, "lengths", token_counts.size)
    costs = costs_of(token_counts, cost)
    stops_of_ranks = batch_stops_of(assignment)  # step i of a rank is its i-th batch
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
        step_tokens[: stops.size] += batch_tokens
        padded_tokens = _longest(lengths_read, starts, stops) * (stops - starts)
        step_padding[: stops.size] += padded_tokens - batch_tokens
    return EpochWork(tokens, step_costs, step_tokens, step_padding)


class WeightBias(msgspec.Struct, frozen=True, eq=False):
    """How far the reads of one or several epochs are from given weights.

    `reads` and `expected` are, for each sample, the number of reads and the one that its weight asks for. Samples of
    similar weight form groups, lightest first: `group_reads` and `group_expected` are the sums over each group, and
    `p_value` is that of Pearson's chi-square test of these sums. It is 1 if there is only one group.

    `sample` is the one whose number is least likely if draws are independent: as unlikely as `deviations` standard
    deviations. That is the root of twice its deviance, a bound (Chernoff's) that also holds for samples that are rarely
    expected. `variance_ratio` bounds the variance of the reads over that of independent draws: it is more than 1 if
    padding may have repeated draws. `p_value` takes it into account, and `deviations` does not.
    """

    reads: NDArray[np.int64]
    expected: NDArray[np.float64]
    group_reads: NDArray[np.int64]
    group_expected: NDArray[np.float64]
    p_value: float
    sample: int
    deviations: float
    variance_ratio: float = 1.0

    @property
    def num_forbidden(self) -> int:
        """The number of reads of samples whose weight is 0."""
        return int(self.reads[self.expected == 0].sum())


def weight_bias(reads: NDArray[np.int64], expected: NDArray[np.float64], variance_ratio: float = 1.0) -> WeightBias:
    """Compare how often samples were read with how often their weights ask for.

    The deviance of a sample is that of a Poisson distribution, r log(r / e) - r + e for r reads of which e are
    expected. The root of twice the deviance is the number of standard deviations.

    >>> bias = weight_bias(np.array([50, 50, 0]), np.array([25.0, 75.0, 0.0]))
    >>> bias.sample, round(bias.deviations, 1), f"{bias.p_value:.0e}"
    (0, 4.4, '8e-09')
    """
    from scipy.special import chdtrc  # here, because only weights need scipy

    is_possible = expected > 0
    group = _groups_of_weights(expected[is_possible])
    group_reads = np.bincount(group, reads[is_possible]).astype(np.int64)
    group_expected: NDArray[np.float64] = np.bincount(group, expected[is_possible]).astype(np.float64)
    p_value = 1.0
    if group_expected.size > 1:
        chi_square = float(((group_reads - group_expected) ** 2 / group_expected).sum())
        p_value = float(chdtrc(group_expected.size - 1, chi_square / variance_ratio))
    ratio = np.ones(expected.size)  # r / e; where r is 0, any ratio will do, because r log(r / e) is 0
    np.divide(reads, expected, out=ratio, where=is_possible & (reads > 0))
    deviance = np.where(is_possible, reads * np.log(ratio) - reads + expected, 0.0)
    deviations = np.sqrt(2 * np.maximum(deviance, 0.0))  # rounding can make a deviance slightly negative
    sample = int(deviations.argmax()) if deviations.size else 0
    highest = float(deviations.max(initial=0))
    return WeightBias(reads, expected, group_reads, group_expected, p_value, sample, highest, variance_ratio)


def _groups_of_weights(expected: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of each sample's group. Samples of equal weight are in one group, lightest samples in group 0.

    If there are at most `_MOST_GROUPS` different weights, each is a group of its own. Otherwise, each group has about
    a tenth of the expected reads. Groups with too few expected reads for the test are joined with their neighbours.

    >>> _groups_of_weights(np.array([8.0, 12.0, 3.0, 9.0, 8.0])).tolist()
    [0, 1, 0, 1, 0]
    """
    weights, number = np.unique(expected, return_inverse=True)
    expected_of_weight = np.bincount(number, expected, weights.size)
    group_of_weight = np.arange(weights.size)
    if weights.size > _MOST_GROUPS:
        middle = np.cumsum(expected_of_weight) - expected_of_weight / 2
        group_of_weight = (middle * (_MOST_GROUPS / expected_of_weight.sum())).astype(np.int64)
    expected_of_group = np.bincount(group_of_weight, expected_of_weight)
    joined = np.zeros(expected_of_group.size, dtype=np.int64)
    current = 0
    num_expected = 0.0  # in the current group so far
    for index, expected_of_this in enumerate(expected_of_group):
        joined[index] = current
        num_expected += expected_of_this
        if num_expected >= _LEAST_EXPECTED:
            current += 1
            num_expected = 0.0
    joined = np.minimum(joined, max(current - 1, 0))  # what is left at the end may be too few for a group
    groups: NDArray[np.int64] = joined[group_of_weight][number]
    return groups


def weighted_reads(
    assignment: Assignment, weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how often an epoch reads each sample, and how often its weight asks for that in so many draws.

    >>> from rankscope.sampling import assign
    >>> epoch = assign(3, 1, sampler="weighted", weights=[2, 1, 1], num_samples=4)
    >>> [counts.tolist() for counts in weighted_reads(epoch, np.array([2.0, 1.0, 1.0]))]
    [[2, 1, 1], [2.0, 1.0, 1.0]]
    """
    reads = np.bincount(np.concatenate(assignment.ranks), minlength=weights.size)
    num_reads = int(reads.sum())
    if not num_reads or not weights.any():
        return reads, np.zeros(weights.size)
    return reads, expected_counts(weights, num_reads)


def sum_of_squared_repeats(assignment: Assignment) -> int:
    """Return the highest possible sum, over the draws of an epoch, of how often each is read, squared.

    Padding repeats fewer draws than there are ranks. So if ranks read at least twice, no draw is read more than twice.
    If they read once, all reads may be of a single draw. Divided by the number of reads, the sum bounds the variance of
    the reads over that of independent draws.
    """
    num_reads = sum(indices.size for indices in assignment.ranks)
    if assignment.num_steps < 2:
        return num_reads**2
    num_repeated = min(assignment.num_ranks - 1, num_reads // 2)
    return num_reads + 2 * num_repeated  # two reads of a draw count 4 instead of 2


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
