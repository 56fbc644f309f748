"""`randperm_bias`: how far torch.randperm's draws are from uniform, exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import whole
from .permutation import TORCH_32BIT_LIMIT


class RandpermBias(NamedTuple):
    """The bias of the draws "a 32-bit word modulo `bounds`", with an entry for each bound.

    The results below `num_favoured` are drawn with probability ``(quotient + 1) / 2**32``, the others with
    ``quotient / 2**32``. `excess` is the relative excess of a favoured result over another one. `distance` is the total
    variation distance from a uniform draw: the share of draws that would have to be changed.
    """

    bounds: NDArray[np.int64]
    num_favoured: NDArray[np.int64]
    quotient: NDArray[np.int64]
    excess: NDArray[np.float64]
    distance: NDArray[np.float64]


def randperm_bias(bounds: ArrayLike, word_bits: int = 32) -> RandpermBias:
    """Return the exact bias of drawing a number below each bound as torch.randperm does on the CPU.

    Step i of ``torch.randperm(n)`` swaps item i with item ``i + word % (n - i)``, where `word` has 32 bits if n is
    below 2**32 / 20, and 64 bits otherwise. 2**32 is not a multiple of most bounds, so the lowest results are drawn
    more often. For the first item of the order, ``bounds`` is n: samples below ``2**32 % n`` come first more often than
    the other samples do.

    Raises ValueError if a bound is below 1 or above the number of different words.

    Source: aten/src/ATen/native/TensorFactories.cpp, randperm_cpu.

    >>> bias = randperm_bias([1000, 200_000_000])
    >>> bias.num_favoured.tolist()
    [296, 94967296]
    >>> [f"{excess:.2g}" for excess in bias.excess]
    ['2.3e-07', '0.048']
    """
    word_bits = whole("word_bits", word_bits, 1, 62)  # so that the number of words fits in a signed 64-bit integer
    num_words = 1 << word_bits
    divisors = np.asarray(bounds)
    if divisors.dtype.kind not in "iu" or (divisors.size and (divisors.min() < 1 or divisors.max() > num_words)):
        raise ValueError(f"bounds must be whole numbers from 1 to {num_words}, got {bounds!r}")
    divisors = divisors.astype(np.int64)
    quotient = num_words // divisors
    num_favoured = num_words % divisors
    excess = np.where(num_favoured > 0, 1 / quotient, 0.0)
    # A favoured result exceeds the uniform probability by (quotient + 1) / num_words - 1 / bound. Because num_words is
    # quotient * bound + num_favoured, that is (1 - share) / num_words. The sum over all favoured ones is the distance.
    share = num_favoured / divisors
    distance = num_favoured * (1 - share) / num_words
    return RandpermBias(divisors, num_favoured, quotient, excess, distance)


def worst_randperm_bound() -> int:
    """Return the largest n for which torch.randperm draws 32-bit words.

    >>> worst_randperm_bound()
    214748363
    """
    return TORCH_32BIT_LIMIT - 1
