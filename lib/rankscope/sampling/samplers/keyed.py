"""`KeyedPermutation`: a shuffled order that is computed for any position on request, instead of being stored.

It is a Feistel network: the bits of a position are split into two halves, and each round adds a keyed hash of one half
to the other half. Every round can be undone, so the network is a bijection of 0 … 2**bits - 1 for any hash. Positions
that land outside the dataset go through the network again until they land inside ("cycle walking"), so the result is
a bijection of 0 … size - 1.

Sources: Luby and Rackoff, "How to construct pseudorandom permutations", SIAM J. Comput. 17 (1988); Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002, for cycle walking; Mitchell et al., "Bandwidth-optimal random
shuffling for GPUs", ACM TOPC 9 (2022), for its use as a shuffle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...common.checks import whole

MOST_KEYED_SAMPLES = 2**63 - 1
"""Indices are signed 64-bit integers, as torch's are."""

NUM_ROUNDS = 8
"""Rounds of the network. tests/sampling/test_keyed.py measures that 3 rounds fail its statistical tests."""

_MOST_STORED = 4096
"""Orders of at most this many samples are stored, because a network of few bits has too few different rounds."""

_CACHED = 1 << 14
"""Positions that go through the network at once: their halves and temporaries fit in the second-level cache."""

_BLOCK = 1 << 16
"""Positions whose walks end together, because many short arrays would cost more than the network itself."""

_FIRST_BLOCK = 1 << 10
"""Positions of the first block, so that the first index comes at once; each block is then four times as long."""


class _Round(NamedTuple):
    """The numbers of one round; both factors are odd, because multiplying by an odd number loses no bits."""

    factor: np.uint32
    offset: np.uint32
    second_factor: np.uint32


class KeyedPermutation:
    """A random order of 0 … size - 1 that needs the same memory for any size.

    ``order[position]`` is the sample at one position, and ``order(positions)`` the samples at an array of positions.
    The order depends on `size` and on the text `key` alone, and is the same on every machine. It is random enough for
    training, but not for cryptography. A size just below a power of two is fastest; just above one, an order needs
    about twice the time.

    Raises ValueError for a size outside 0 … 2**63 - 1, IndexError for a position outside the order.

    >>> order = KeyedPermutation(10**12, key="seed 0, epoch 0")
    >>> order[0], order[10**12 - 1]
    (566996528256, 7880526298)
    """

    def __init__(self, size: int, key: str) -> None:
        self.size = whole("size", size, 0, MOST_KEYED_SAMPLES)
        text = f"rankscope.keyed 1\n{self.size}\n{key}".encode()
        digest = hashlib.shake_128(text).digest(12 * NUM_ROUNDS)  # three words of 4 bytes for each round
        words = np.frombuffer(digest, dtype="<u4").astype(np.uint32).reshape(NUM_ROUNDS, 3)
        self._rounds = [_Round(factor | 1, offset, second_factor | 1) for factor, offset, second_factor in words]
        num_bits = (self.size - 1).bit_length()  # of the highest index
        self._left_bits = num_bits // 2
        self._right_bits = num_bits - self._left_bits
        self._stored: NDArray[np.int64] | None = None
        if self.size <= _MOST_STORED:
            long_words = np.frombuffer(hashlib.shake_128(b"stored " + text).digest(8 * self.size), dtype="<u8")
            self._stored = np.argsort(long_words, kind="stable")

    def __getitem__(self, position: int) -> int:
        return int(self([position])[0])

    def __call__(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the samples at these positions, as a flat array.

        Raises ValueError for anything but whole numbers, IndexError for a position outside the order.
        """
        flat = np.asarray(positions).reshape(-1)
        if flat.size and flat.dtype.kind not in "iu":
            raise ValueError(f"positions must be whole numbers, got {flat.dtype}")
        if flat.size and (flat.min() < 0 or flat.max() >= self.size):
            raise IndexError(f"positions must be from 0 to {self.size - 1}, got {flat.min()} to {flat.max()}")
        return self._samples(flat.astype(np.int64))

    def blocks(self, start: int, stop: int, step: int = 1) -> Iterator[NDArray[np.int64]]:
        """Yield the samples at the positions of ``range(start, stop, step)``, in blocks of at most 65,536."""
        block_size = _FIRST_BLOCK
        while start < stop:
            block_stop = min(start + block_size * step, stop)
            yield self._samples(np.arange(start, block_stop, step))
            start += block_size * step
            block_size = min(4 * block_size, _BLOCK)

    def _samples(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return stored samples, or send positions through the network, in place, until all are below `size`."""
        if self._stored is not None:
            return self._stored[positions]
        values = positions.view(np.uint64)
        for first in range(0, values.size, _BLOCK):
            block = values[first : first + _BLOCK]
            self._network(block)
            outside = np.flatnonzero(block >= self.size)  # the indices of values that must go through it again
            while outside.size:
                again = block[outside]
                self._network(again)
                block[outside] = again
                outside = outside[again >= self.size]
        return positions

    def _network(self, values: NDArray[np.uint64]) -> None:
        """Send values through the network once, in place. Even rounds change the left half, odd ones the right half."""
        shift = np.uint64(self._right_bits)
        right_mask = np.uint64((1 << self._right_bits) - 1)
        for first in range(0, values.size, _CACHED):
            part = values[first : first + _CACHED]
            left = (part >> shift).astype(np.uint32)
            right = (part & right_mask).astype(np.uint32)
            for number, keys in enumerate(self._rounds):
                if number % 2 == 0:
                    left ^= _hashed(right, self._left_bits, keys)
                else:
                    right ^= _hashed(left, self._right_bits, keys)
            part[:] = left
            part <<= shift
            part |= right


@lru_cache(maxsize=4)  # the orders of the samplers of a process, which share them
def keyed_permutation(size: int, key: str) -> KeyedPermutation:
    """Return the order of this size and key."""
    return KeyedPermutation(size, key)


def _hashed(half: NDArray[np.uint32], num_bits: int, keys: _Round) -> NDArray[np.uint32]:
    """Return `num_bits` bits of a keyed hash of each number.

    They are the upper bits of ``(x ^ (x >> 15)) * second_factor`` with ``x = half * factor + offset``, modulo 2**32.
    The shift by about half of the 32 bits lets high bits affect low ones. All but the first operation are in place,
    because new arrays would take longer than the arithmetic.
    """
    hashed = half * keys.factor
    hashed += keys.offset
    hashed ^= hashed >> np.uint32(15)
    hashed *= keys.second_factor
    hashed >>= np.uint32(32 - num_bits)
    return hashed
