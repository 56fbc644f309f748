"""Whether samples were read as often as their weights ask for."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..assignment import Assignment
from ..samplers.values import checked_weights
from ..samplers.weighted import expected_counts

LEAST_P_VALUE = 1e-5
"""Reads of groups of samples that are less likely than this, if the draws follow the weights, do not follow them."""

MOST_DEVIATIONS = 6.0
"""Nor does a number of reads that is less likely than so many standard deviations: at most 3 in 10**8 by chance."""

_MOST_GROUPS = 10  # of weights, if these all differ
_LEAST_EXPECTED = 10.0  # reads of a group, so that the chi-square distribution holds


class WeightBias(msgspec.Struct, frozen=True, eq=False):
    """How far the reads of one or several epochs are from given weights.

    `reads` and `expected` are, for each sample, the number of reads and the one that its weight asks for. Samples are
    put into groups of equal or similar weight, lightest first: `group_reads` and `group_expected` are their sums, and
    `p_value` is that of the chi-square test of these. `deviations` are the standard deviations of the least likely
    sample, `sample`: that is the root of twice its deviance, a bound (Chernoff's) that also holds for samples that are
    rarely expected. `variance_ratio` bounds the variance of the reads over that of independent draws: it is more than 1
    if padding may have repeated draws. `p_value` takes it into account, and `deviations` does not.
    """

    reads: NDArray[np.int64]
    expected: NDArray[np.float64]
    group_reads: NDArray[np.int64]
    group_expected: NDArray[np.float64]
    p_value: float
    sample: int
    deviations: float
    variance_ratio: float

    @property
    def num_forbidden(self) -> int:
        """The number of reads of samples whose weight is 0."""
        return int(self.reads[self.expected == 0].sum())

    @property
    def groups_differ(self) -> bool:
        """Whether the reads of groups cannot be draws with replacement by the weights."""
        return self.p_value < LEAST_P_VALUE

    @property
    def is_obeyed(self) -> bool:
        """Whether the reads, of groups and of each sample, can be draws with replacement by the weights."""
        return not self.groups_differ and self.deviations <= MOST_DEVIATIONS * self.variance_ratio**0.5


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


class WeightedReads:
    """How often the epochs that were added read each sample, and how often its weight asks for that."""

    def __init__(self, weights: ArrayLike) -> None:
        self.weights = checked_weights(weights)
        self.reads = np.zeros(self.weights.size, dtype=np.int64)
        self.expected = np.zeros(self.weights.size)
        self._sum_of_squares = 0  # over the draws of all epochs: how often each may have been read, squared

    def add(self, assignment: Assignment) -> None:
        """Add an epoch. Raises ValueError unless each sample of the dataset and of the reads has a weight."""
        assignment.check_values("weights", self.weights.size)
        reads = np.bincount(np.concatenate(assignment.ranks), minlength=self.weights.size)
        self.reads += reads
        if reads.any() and self.weights.any():
            self.expected += expected_counts(self.weights, int(reads.sum()))
        self._sum_of_squares += sum_of_squared_repeats(assignment)

    def bias(self) -> WeightBias:
        """Return how far the reads are from the weights."""
        return weight_bias(self.reads, self.expected, self._sum_of_squares / max(int(self.reads.sum()), 1))


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
