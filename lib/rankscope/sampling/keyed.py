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
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import whole
from .permutation import IntArray

MOST_KEYED_SAMPLES = 2**63 - 1
"""Indices are signed 64-bit integers, as torch's are."""

NUM_ROUNDS = 8
"""Rounds of the network. tests/sampling/test_keyed.py measures that 3 rounds fail its statistical tests."""

_MOST_STORED = 4096
"""Orders of at most this many samples are stored, because a network of few bits has too few different rounds."""

_BLOCK = 1 << 14
"""Positions that go through the network at once: their halves and temporaries fit in the second-level cache."""

_CHUNK = 1 << 16
"""Positions whose walks end together, because many short arrays would cost more than the network itself."""

_FIRST_CHUNK = 1 << 10
"""Positions of the first chunk, so that the first index comes at once; each chunk is then four times as long."""

_SHIFT = np.uint32(15)
"""The hash shifts by about half of its 32 bits between two multiplications, so that high bits affect low ones."""


def checked_positions(positions: ArrayLike, size: int) -> NDArray[np.int64]:
    """Return a flat array of positions in an order of this size.

    Raises ValueError for anything but whole numbers, IndexError for a position outside the order.
    """
    flat = np.asarray(positions).reshape(-1)
    if flat.size and flat.dtype.kind not in "iu":
        raise ValueError(f"positions must be whole numbers, got {flat.dtype}")
    if flat.size and (flat.min() < 0 or flat.max() >= size):
        raise IndexError(f"positions must be from 0 to {size - 1}, got {flat.min()} to {flat.max()}")
    return flat.astype(np.int64)


class _RoundKey(NamedTuple):
    """The numbers of one round; both factors are odd."""

    factor: np.uint32
    offset: np.uint32
    second_factor: np.uint32


class _Scratch:
    """Arrays for one block, which the rounds use again and again.

    A half has at most 32 bits, and `wide` is for halves that come from 64-bit values or go back into them.
    """

    def __init__(self) -> None:
        self.left = np.empty(_BLOCK, dtype=np.uint32)
        self.right = np.empty(_BLOCK, dtype=np.uint32)
        self.hashed = np.empty(_BLOCK, dtype=np.uint32)
        self.shifted = np.empty(_BLOCK, dtype=np.uint32)
        self.wide = np.empty(_BLOCK, dtype=np.uint64)


class KeyedPermutation:
    """A random order of 0 … size - 1 that needs the same memory for any size.

    ``order[position]`` is the sample at one position, ``order(positions)`` the samples at an array of positions, and
    `inverse` the positions of samples. The order depends on `size` and on the text `key` alone, and is the same on
    every machine. It is random enough for training, but not for cryptography.

    A size just below a power of two is fastest. Just above one, about every second position walks once more, so that
    an order needs about twice the time.

    Raises ValueError for a size outside 0 … 2**63 - 1, IndexError for a position outside the order.

    >>> order = KeyedPermutation(10**12, key="seed 0, epoch 0")
    >>> order[0], order[10**12 - 1]
    (566996528256, 7880526298)
    >>> samples = order(np.arange(3))
    >>> order.inverse(samples).tolist()
    [0, 1, 2]
    """

    def __init__(self, size: int, key: str) -> None:
        self.size = whole("size", size, 0, MOST_KEYED_SAMPLES)
        self.key = key
        text = f"rankscope.keyed 1\n{self.size}\n{key}".encode()
        digest = hashlib.shake_128(text).digest(12 * NUM_ROUNDS)  # three words of 4 bytes for each round
        words = np.frombuffer(digest, dtype="<u4").astype(np.uint32).reshape(NUM_ROUNDS, 3)
        self._rounds: list[_RoundKey] = []
        for factor, offset, second_factor in words:  # factors are made odd: multiplying by them loses no bits
            self._rounds.append(_RoundKey(factor | np.uint32(1), offset, second_factor | np.uint32(1)))
        num_bits = (self.size - 1).bit_length()  # of the highest index
        self._left_bits = num_bits // 2
        self._right_bits = num_bits - self._left_bits
        self._stored: IntArray | None = None
        if self.size <= _MOST_STORED:
            self._stored = _stored_order(self.size, text)

    def __len__(self) -> int:
        """The number of samples."""
        return self.size

    def __getitem__(self, position: int) -> int:
        position = whole("position", position)
        if not 0 <= position < self.size:
            raise IndexError(f"position must be a whole number from 0 to {self.size - 1}, got {position}")
        return int(self(np.array([position]))[0])

    def __call__(self, positions: IntArray) -> NDArray[np.int64]:
        """Return the samples at these positions, which must be in 0 … size - 1."""
        return self._each_block(positions, is_inverse=False)

    def inverse(self, samples: IntArray) -> NDArray[np.int64]:
        """Return the positions of these samples, which must be in 0 … size - 1."""
        return self._each_block(samples, is_inverse=True)

    def blocks(self, start: int, stop: int, step: int = 1) -> Iterator[NDArray[np.int64]]:
        """Yield the samples at the positions of ``range(start, stop, step)``, in blocks of at most 65,536.

        The first blocks are shorter, so that the first index comes at once. Each block is an array of its own. The
        positions must be in 0 … size - 1 and `step` at least 1, which is not checked.
        """
        scratch = _Scratch()
        num_left = len(range(start, stop, step))
        chunk_size = _FIRST_CHUNK
        while num_left:
            count = min(num_left, chunk_size)
            values = np.arange(start, start + count * step, step, dtype=np.uint64)
            if self._stored is not None:
                yield self._stored[values.view(np.int64)]
            else:
                self._walk(values, scratch, is_inverse=False)
                yield values.view(np.int64)
            del values  # so that their memory is free for the next ones
            start += count * step
            num_left -= count
            chunk_size = min(4 * chunk_size, _CHUNK)

    def _each_block(self, values: IntArray, is_inverse: bool) -> NDArray[np.int64]:
        flat = checked_positions(values, self.size)
        if self._stored is not None:
            if is_inverse:
                return np.argsort(self._stored)[flat]
            return self._stored[flat]
        result = flat.astype(np.uint64)
        scratch = _Scratch()
        for first in range(0, flat.size, _CHUNK):
            self._walk(result[first : first + _CHUNK], scratch, is_inverse)
        return result.view(np.int64)

    def _walk(self, values: NDArray[np.uint64], scratch: _Scratch, is_inverse: bool) -> None:
        """Send a chunk of values through the network, in place, until all of them are below `size`."""
        size = np.uint64(self.size)
        self._network(values, scratch, is_inverse)
        outside = np.flatnonzero(values >= size)  # the indices of the values that must go through it again
        while outside.size:
            again = values[outside]
            self._network(again, scratch, is_inverse)
            values[outside] = again
            outside = outside[again >= size]

    def _network(self, values: NDArray[np.uint64], scratch: _Scratch, is_inverse: bool) -> None:
        """Send values through the network once, in place.

        Even rounds change the left half, and odd ones the right half. The inverse applies the rounds in reverse order,
        because adding a hash twice by XOR removes it.
        """
        rounds = list(enumerate(self._rounds))
        if is_inverse:
            rounds.reverse()
        for first in range(0, values.size, _BLOCK):
            block = values[first : first + _BLOCK]
            left = scratch.left[: block.size]
            right = scratch.right[: block.size]
            self._split(block, scratch)
            for round_number, key in rounds:
                is_even = round_number % 2 == 0
                if is_even:
                    _add_hash(source=right, target=left, num_bits=self._left_bits, key=key, scratch=scratch)
                else:
                    _add_hash(source=left, target=right, num_bits=self._right_bits, key=key, scratch=scratch)
            self._join(block, scratch)

    def _split(self, values: NDArray[np.uint64], scratch: _Scratch) -> None:
        """Write the upper bits of the values to `scratch.left`, and the lower ones to `scratch.right`."""
        count = values.size
        np.right_shift(values, np.uint64(self._right_bits), out=scratch.wide[:count])
        scratch.left[:count] = scratch.wide[:count]
        np.bitwise_and(values, np.uint64((1 << self._right_bits) - 1), out=scratch.wide[:count])
        scratch.right[:count] = scratch.wide[:count]

    def _join(self, values: NDArray[np.uint64], scratch: _Scratch) -> None:
        """Write the two halves in `scratch` back to the values."""
        count = values.size
        values[:] = scratch.left[:count]
        np.left_shift(values, np.uint64(self._right_bits), out=values)
        scratch.wide[:count] = scratch.right[:count]
        np.bitwise_or(values, scratch.wide[:count], out=values)


def _add_hash(
    source: NDArray[np.uint32], target: NDArray[np.uint32], num_bits: int, key: _RoundKey, scratch: _Scratch
) -> None:
    """Add `num_bits` bits of a keyed hash of one half, `source`, to the other half, `target`, by XOR and in place.

    The hash is ``(x ^ (x >> _SHIFT)) * second_factor`` with ``x = source * factor + offset``, modulo 2**32; its upper
    bits are used. Every operation writes into an existing array: making new ones would take longer than the arithmetic.
    """
    hashed = scratch.hashed[: source.size]
    shifted = scratch.shifted[: source.size]
    np.multiply(source, key.factor, out=hashed)
    np.add(hashed, key.offset, out=hashed)
    np.right_shift(hashed, _SHIFT, out=shifted)
    np.bitwise_xor(hashed, shifted, out=hashed)
    np.multiply(hashed, key.second_factor, out=hashed)
    np.right_shift(hashed, np.uint32(32 - num_bits), out=hashed)
    np.bitwise_xor(target, hashed, out=target)


def _stored_order(size: int, text: bytes) -> IntArray:
    """Return a random order as an array: the indices that sort as many random 64-bit words."""
    words = np.frombuffer(hashlib.shake_128(b"stored " + text).digest(8 * size), dtype="<u8")
    return np.argsort(words, kind="stable")
