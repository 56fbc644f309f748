"""The random orders of torch and of libtorch, reproduced to the bit in numpy, streamed where they can be.

Both are Fisher-Yates shuffles driven by the 32-bit words of MT19937. For a given seed, std::mt19937, torch's CPU
generator and numpy's legacy RandomState produce the same words. The shuffles differ in which items they swap and in how
a word becomes a number below a bound:

- `torch.randperm` (ATen/native/TensorFactories.cpp, randperm_cpu) swaps item i with item ``i + word % (n - i)``, for
  i = 0, 1, …. Item i is final after step i, so the order can be read while it is still being made.
- libstdc++'s `std::shuffle` (bits/stl_algo.h, GCC 11 or newer) swaps item i with an item in [0, i], for i = 1, 2, ….
  It uses Lemire's multiplication (bits/uniform_int_dist.h), and two swaps per number while n**2 fits in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.signedinteger]

SEEDS = (-(2**63), 2**64 - 1)
"""The lowest and the highest seed that torch's generator accepts."""

TORCH_32BIT_LIMIT = (2**32 - 1) // 20
"""At this length and above, torch.randperm uses 64-bit words and another loop, so we call torch itself."""

_PLAIN = 1 << 16
"""Below this many items a plain Python loop is faster than numpy on blocks of the square root's size."""


def share(num_items: int, num_ranks: int, drop_last: bool) -> int:
    """Return how many items each rank reads: the same number for all, padded up or cut down.

    >>> share(10, 4, drop_last=False), share(10, 4, drop_last=True)
    (3, 2)
    """
    if drop_last:
        return num_items // num_ranks
    return -(-num_items // num_ranks)  # rounded up


def torch_order_blocks(num_items: int, seed: int, stop: int, least: int = 1) -> Iterator[IntArray]:
    """Yield ``torch.randperm(num_items)`` as the CPU computes it after ``manual_seed(seed)``, up to item `stop`.

    The first block of the order is yielded as soon as `least` items are final, and later ones are longer. The blocks
    are views of one array of `num_items` integers (4 bytes each below 2**31).

    >>> [block.tolist() for block in torch_order_blocks(8, seed=0, stop=3)]
    [[4, 0, 7]]
    """
    order = _identity(num_items)
    first = 0
    for last in _shuffle_as_torch(order, seed, stop):
        if last - first >= least or last == stop:
            yield order[first:last]
            first = last
            least = min(4 * least, _PLAIN)


def libtorch_order(size: int, total: int, epoch: int, shuffle_first: bool = False) -> IntArray:
    """Return the shuffled order of all ranks, of length `total`, from which libtorch's random sampler cuts slices.

    libtorch pads or cuts the indices before it shuffles them; with `shuffle_first`, it is the other way round.
    """
    if shuffle_first:
        return np.resize(libstdcxx_shuffled(size, epoch), total)
    # Padding: the positions at and after `size` repeat the first samples. libtorch takes no modulo here, so if there is
    # more padding than there are samples, it returns indices that do not exist.
    shuffled = libstdcxx_shuffled(total, epoch)
    shuffled[shuffled >= size] -= size
    return shuffled


def libstdcxx_shuffled(num_items: int, seed: int) -> IntArray:
    """Return 0, 1, … as ``std::shuffle(begin, end, std::mt19937(seed))`` leaves them under libstdc++.

    `seed` is reduced modulo 2**32, as in std::mt19937. libc++ and MSVC shuffle in other orders.

    >>> libstdcxx_shuffled(8, seed=0).tolist()
    [0, 2, 1, 5, 3, 6, 4, 7]
    """
    order = _identity(num_items)
    partner = _libstdcxx_partners(num_items, seed)
    first = 1
    last = _PLAIN  # the first block is swapped in a plain loop
    while first < num_items:
        last = min(last, num_items)
        _swap(order, first, partner[first - 1 : last - 1])
        first = last
        last += isqrt(first)  # so that few swaps of a block share a position
    return order


def _libstdcxx_partners(num_items: int, seed: int) -> NDArray[np.integer]:
    """Return the items with which `std::shuffle` swaps item 1, item 2, and so on.

    Numpy's `Generator.integers` and libstdc++ use Lemire's method alike: a random number below a bound is the upper 32
    bits of word · bound. If the lower 32 bits are below 2**32 % bound, the next word is drawn.
    """
    words: Any = np.random.MT19937()
    words.state = np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=False)
    generator = np.random.Generator(words)
    if num_items**2 >= 2**32:
        return generator.integers(np.arange(2, num_items + 1), dtype=np.uint32)
    # One number below (i + 1)(i + 2) decides the swaps of items i and i + 1. An even number of items has an odd number
    # of swaps, of which the first is alone.
    num_single = 1 - num_items % 2
    single = generator.integers(2, size=num_single, dtype=np.uint32)
    i = np.arange(1 + num_single, num_items, 2)
    pairs = generator.integers((i + 1) * (i + 2), dtype=np.uint32)
    partners = np.stack(np.divmod(pairs, i + 2), axis=1)
    return np.concatenate([single, partners.ravel()])


class _RandomWords:
    """The 32-bit words of MT19937, in order."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed & 0xFFFFFFFF)
        self._ahead = np.empty(0, dtype=np.uint32)  # drawn already, and not taken yet

    def take(self, count: int) -> NDArray[np.uint32]:
        """Return the next `count` words."""
        while self._ahead.size < count:  # drawn in large pieces, because a call costs as much as ten thousand words
            piece = self._state.randint(0, 1 << 32, size=_PLAIN, dtype=np.uint32)
            self._ahead = np.concatenate([self._ahead, piece])
        words = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return words


def _identity(num_items: int) -> IntArray:
    return np.arange(num_items, dtype=np.int32 if num_items < 2**31 else np.int64)


def _shuffle_as_torch(order: IntArray, seed: int, stop: int) -> Iterator[int]:
    """Shuffle as torch does, and yield each position up to which `order` is final; the last one is `stop`."""
    num_items = order.size
    if num_items >= TORCH_32BIT_LIMIT:
        import torch

        torch.randperm(num_items, generator=torch.Generator().manual_seed(seed), out=torch.from_numpy(order))
        yield stop
        return
    words = _RandomWords(seed)
    # Step t of a block swaps item `first + t` with item `first + t + word % (remaining - t)`. No block has more than
    # `_PLAIN` steps, because the square root of `TORCH_32BIT_LIMIT` is below that.
    steps = np.arange(min(num_items, _PLAIN))
    steps_32 = steps.astype(np.uint32)
    first = 0
    while first < stop:
        remaining = num_items - first
        block_size = isqrt(remaining)  # so that few of its swaps share a position
        if remaining <= _PLAIN:  # the rest is swapped in a plain loop
            block_size = _PLAIN
        count = min(block_size, stop - first)
        partner = (words.take(count) % (np.uint32(remaining) - steps_32[:count])).astype(np.intp)
        partner += steps[:count]
        partner += first
        _swap(order, first, partner)
        first += count
        yield first


def _swap(items: IntArray, first: int, partner: NDArray[np.integer]) -> None:
    """Swap item ``first + t`` with item ``partner[t]`` for t = 0, 1, …, as if one after the other.

    The items are all different, and those from `first` to ``first + partner.size`` are the block. Most steps share no
    position with another step, so their order does not matter and numpy swaps them all at once. The few that share one
    are then undone, and done again in order.
    """
    if partner.size**2 > items.size:  # many steps would share a position
        _swap_singly(items, first, partner)
        return
    last = first + partner.size
    block = items[first:last]  # a view; like every array below, it has a value per step
    own_values = block.copy()
    partner_values = items.take(partner)
    items[partner] = own_values
    is_overwritten = items.take(partner) != own_values  # because a later step has the same partner
    block[:] = partner_values
    is_in_block = (partner >= first) & (partner < last)
    shares_position = is_in_block | is_overwritten
    if not shares_position.any():
        return
    shares_position[partner[is_in_block] - first] = True  # the steps whose own item is the partner of another step
    for position in partner[is_overwritten].tolist():
        shares_position |= partner == position  # also the step that has overwritten it
    steps = np.flatnonzero(shares_position)
    items[partner[steps]] = partner_values[steps]  # undo
    block[steps] = own_values[steps]
    for own, other in zip((first + steps).tolist(), partner[steps].tolist(), strict=True):
        items[own], items[other] = items[other], items[own]


def _swap_singly(items: IntArray, first: int, partner: NDArray[np.integer]) -> None:
    """Do the same as `_swap`, one step after the other, on a list of the part that changes."""
    start = min(first, int(partner.min()))
    stop = max(first + partner.size, int(partner.max()) + 1)
    plain = items[start:stop].tolist()
    for own, other in enumerate((partner - start).tolist(), first - start):
        plain[own], plain[other] = plain[other], plain[own]
    items[start:stop] = plain
