"""`WeightedSampler`: samples drawn as often as their weights say, once for all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...common.checks import whole
from .interleaved import InterleavedSampler
from .keyed import KeyedPermutation, keyed_permutation
from .values import checked_weights, digest_of

MOST_DRAWS = 2**31  # of all ranks in an epoch, whose samples are stored
# Of the sum of all expected counts. `_draws_of_epoch` adds up to one draw to it, which then fits in 63 bits and a sign.
_FIXED_POINT_BITS = 62


class _EpochDraws(NamedTuple):
    """The samples of one epoch, a slot for each draw, and the random order in which the slots are read."""

    epoch: int
    slots: NDArray[np.int64]
    order: KeyedPermutation


class WeightedSampler(InterleavedSampler):
    """A distributed sampler that reads each sample in proportion to its weight.

    The draw of an epoch depends on seed and epoch alone, so all ranks share it and divide it among them: rank r of N
    reads every N-th draw, beginning with draw r. Torch's WeightedRandomSampler has no ranks.

    In an epoch of `num_samples` draws (by default as many as there are samples), sample i is expected
    ``expected[i] = num_samples * weights[i] / sum(weights)`` times. Draws are systematic, so each epoch reads it
    ``floor(expected[i])`` or ``ceil(expected[i])`` times, and on average ``expected[i]`` times. Independent draws, as
    torch's, vary more.

    Padding repeats the beginning of the draws, and `drop_last` cuts their end instead. Without `num_replicas` and
    `rank`, those of torch's process group apply, or one rank if there is no group.

    Raises ValueError if a weight is not a finite number of at least 0, or if all weights are 0.

    Source: Madow, "On the theory of systematic sampling, II", Ann. Math. Stat. 20 (1949), for systematic draws with
    unequal probabilities, here after a random permutation of the samples.

    >>> ranks = [WeightedSampler([3, 1, 0, 4], 2, rank, num_samples=8) for rank in range(2)]
    >>> sorted([*ranks[0], *ranks[1]])
    [0, 0, 0, 1, 3, 3, 3, 3]
    """

    is_grouped = True

    def __init__(
        self,
        weights: ArrayLike,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        num_samples: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.weights = checked_weights(weights)
        if num_samples is None:
            num_samples = self.weights.size
        self.num_samples = whole("num_samples", num_samples, 0, MOST_DRAWS)
        super().__init__(self.weights.size, num_replicas, rank, shuffle=True, seed=seed, drop_last=drop_last)
        if self.num_samples and not (self.weights > 0).any():
            got = f"{self.size} that are 0" if self.size else "none"
            raise ValueError(f"weights must have at least one above 0, got {got}")
        # The sum of all expected counts is num_samples; the bits that it does not need are for fractions.
        self._fraction_bits = _FIXED_POINT_BITS - self.num_samples.bit_length()
        self._shares = self._fixed_point_shares()
        self._digest = digest_of(self.weights)
        self._draws: _EpochDraws | None = None  # of the epoch that was read last

    @property
    def expected(self) -> NDArray[np.float64]:
        """The expected number of draws of each sample per epoch."""
        return self._shares / 2.0**self._fraction_bits

    @property
    def _order_length(self) -> int:
        return self.num_samples

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"weights": self._digest, "num_samples": self.num_samples}

    def _blocks(self, start: int, stop: int, step: int) -> Iterator[NDArray[np.int64]]:
        draws = self._draws_of_epoch()
        for slot_numbers in draws.order.blocks(start, stop, step):
            yield draws.slots[slot_numbers]

    def _fixed_point_shares(self) -> NDArray[np.int64]:
        """Return the expected counts as integers, in units of ``2**-_fraction_bits``, with the exact sum."""
        shares = np.zeros(self.size, dtype=np.int64)
        if self.num_samples == 0:  # there may be no weight above 0 to divide by
            return shares
        unit = 1 << self._fraction_bits  # stands for one draw
        scaled = self.weights / self.weights.max()  # their sum cannot overflow
        shares[:] = np.rint(self.num_samples * (scaled / scaled.sum()) * unit)
        # Rounding errors go to the samples whose expected count is no whole number, so that the others stay exact.
        total = self.num_samples * unit
        missing = total - int(shares.sum())  # below 0 if the sum is too large
        fractions = shares & (unit - 1)  # the lower bits
        adjustable = np.flatnonzero(fractions)
        if not adjustable.size:  # all are whole numbers, so the largest one changes least
            adjustable = np.array([np.argmax(shares)])
        _add_in_equal_parts(shares, missing, adjustable)
        return shares

    def _draws_of_epoch(self) -> _EpochDraws:
        """Return the draws of the epoch, which are made once and stored until the epoch changes."""
        if self._draws is not None and self._draws.epoch == self.epoch:
            return self._draws
        unit = 1 << self._fraction_bits
        samples = keyed_permutation(self.size, self._key("samples"))(np.arange(self.size))
        # The samples, in random order, cover a line, each as much as its share. Draw k is at offset + k * unit on it.
        stops = np.cumsum(self._shares[samples])  # where the part of each sample ends
        offset = _random_below(unit, self._key("offset"))
        num_draws_before_stop = (stops - offset + unit - 1) >> self._fraction_bits  # rounded up
        counts = np.diff(num_draws_before_stop, prepend=0)  # draws of each sample
        slots = np.repeat(samples, np.intp(counts))
        self._draws = _EpochDraws(self.epoch, slots, keyed_permutation(self.num_samples, self._key("draws")))
        return self._draws


def _add_in_equal_parts(shares: NDArray[np.int64], missing: int, adjustable: NDArray[np.int64]) -> None:
    """Add `missing`, which may be below 0, to the shares at the indices `adjustable`, in place.

    A share that would fall below 0 gets nothing, and the others get its part. If all would, all get their parts
    nevertheless, because the sum must be exact.
    """
    while missing:
        for_each, rest = divmod(missing, adjustable.size)
        adjusted = shares[adjustable] + for_each
        adjusted[:rest] += 1
        is_possible = adjusted >= 0
        if is_possible.all() or not is_possible.any():
            shares[adjustable] = adjusted
            return
        adjustable = adjustable[is_possible]


def _random_below(bound: int, key: str) -> int:
    """Return a random number below a power of two."""
    word = hashlib.blake2b(f"rankscope.offset 1\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(word, "little") % bound
