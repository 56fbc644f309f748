"""The random orders of torch and of libtorch, reproduced to the bit in numpy, streamed where they can be.

Both are Fisher-Yates shuffles driven by the 32-bit words of MT19937, whose stream for a seed is the same in
std::mt19937, in torch's CPU generator and in numpy's legacy RandomState. They differ in direction and in how a
word becomes a number below a bound:

- `torch.randperm` (ATen/native/TensorFactories.cpp, randperm_cpu) walks up and swaps item i with item
  ``i + word % (n - i)``. Item i is final after step i, so the order can be read while it is still being made.
- libstdc++'s `std::shuffle` (bits/stl_algo.h, GCC 11 or newer) walks up and swaps item i with an item in [0, i],
  by Lemire's multiplication (bits/uniform_int_dist.h), two swaps from one number while n**2 fits in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.signedinteger]

TORCH_32BIT_LIMIT = (2**32 - 1) // 20
"""From this length on torch.randperm takes 64-bit words and another loop: there we ask torch itself."""

_PLAIN = 1 << 16
"""Below this many items a plain Python loop is faster than numpy on blocks of the square root's size."""

SEEDS = -(2**63), 2**64 - 1
"""The lowest and the highest seed that torch's generator takes."""

_LOW32 = np.uint64(2**32 - 1)


def share(num_items: int, num_ranks: int, drop_last: bool) -> int:
    """Return how many items each rank gets: all the same, padded up or cut down.

    >>> share(10, 4, drop_last=False), share(10, 4, drop_last=True)
    (3, 2)
    """
    return num_items // num_ranks if drop_last else -(-num_items // num_ranks)


def torch_order(num_items: int, seed: int, total: int | None = None) -> IntArray:
    """Return what ``torch.randperm(num_items)`` gives on the CPU after ``manual_seed(seed)``.

    With `total`, the order is cut to that many items, or goes on from its start until there are as many.

    >>> torch_order(8, seed=0).tolist()
    [4, 0, 7, 3, 2, 5, 1, 6]
    >>> torch_order(8, seed=0, total=10).tolist()
    [4, 0, 7, 3, 2, 5, 1, 6, 4, 0]
    """
    total = num_items if total is None else total
    order = _identity(max(num_items, total))
    for _ in _shuffle_up(order[:num_items], seed, min(num_items, total)):
        pass
    if total > num_items:
        order[num_items:] = np.resize(order[:num_items], total - num_items)
    return order[:total]


def torch_order_blocks(num_items: int, seed: int, stop: int | None = None) -> Iterator[IntArray]:
    """Yield the same order in consecutive blocks, each as soon as it is final, up to item `stop`.

    The blocks are views of one array of `num_items` integers (4 bytes each below 2**31): read them, or copy
    them, before asking for the next.

    >>> [block.tolist() for block in torch_order_blocks(8, seed=0, stop=3)]
    [[4, 0, 7]]
    """
    stop = num_items if stop is None else stop
    order = _identity(num_items)
    first = 0
    for last in _shuffle_up(order, seed, stop):
        yield order[first:last]
        first = last


def libstdcxx_shuffle(items: IntArray, seed: int) -> None:
    """Shuffle `items` in place as ``std::shuffle(begin, end, std::mt19937(seed))`` does under libstdc++.

    `seed` is taken modulo 2**32, as std::mt19937 takes it. libc++ and MSVC shuffle in other orders.

    >>> items = np.arange(8); libstdcxx_shuffle(items, seed=0); items.tolist()
    [0, 2, 1, 5, 3, 6, 4, 7]
    """
    words = _RandomWords(seed)
    num_items = items.size
    if num_items < 2:
        return
    if (2**32 - 1) // num_items >= num_items:
        plain = items.tolist()
        _shuffle_in_pairs(plain, words)
        items[:] = plain
        return
    first = 1
    while first < num_items:
        last = min(_PLAIN if first < _PLAIN else first + isqrt(first), num_items)
        partner = _below(words, np.arange(first + 1, last + 1, dtype=np.uint64))
        _swap(items, first, partner)
        first = last


def _identity(num_items: int) -> IntArray:
    return np.arange(num_items, dtype=np.int32 if num_items < 2**31 else np.int64)


class _RandomWords:
    """The 32-bit words of MT19937, in order."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed & 0xFFFFFFFF)
        self._ahead = np.empty(0, dtype=np.uint32)

    def take(self, count: int) -> NDArray[np.uint32]:
        while self._ahead.size < count:  # drawn in large pieces: a call costs as much as ten thousand words
            more = self._state.randint(0, 1 << 32, size=_PLAIN, dtype=np.uint32)
            self._ahead = np.concatenate([self._ahead, more]) if self._ahead.size else more
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken


def _shuffle_up(order: IntArray, seed: int, stop: int) -> Iterator[int]:
    """Shuffle in torch's way; yield each position up to which `order` is final, the last one being `stop`."""
    num_items = order.size
    if num_items >= TORCH_32BIT_LIMIT:
        import torch

        torch.randperm(num_items, generator=torch.Generator().manual_seed(seed), out=torch.from_numpy(order))
        yield stop
        return
    words = _RandomWords(seed)
    steps = np.arange(max(min(num_items, _PLAIN), isqrt(num_items)))
    ahead = steps.astype(np.uint32)
    first = 0
    while first < stop:
        left = num_items - first
        count = min(_PLAIN if left <= _PLAIN else isqrt(left), stop - first)
        partner = (words.take(count) % (np.uint32(left) - ahead[:count])).astype(np.intp)
        partner += steps[:count]
        partner += first
        _swap(order, first, partner)
        first += count
        yield first


def _swap(items: IntArray, first: int, partner: NDArray[np.intp]) -> None:
    """Swap item ``first + t`` with item ``partner[t]`` for t = 0, 1, …, as if one after the other.

    All at once, except the few steps that touch a position which another step touches too: those are done one by one,
    in order. The others share no position, so their place in the sequence does not matter.
    """
    if partner.size**2 > items.size:
        _swap_singly(items, first, partner)
        return
    last = first + partner.size
    block = items[first:last]
    here, there = block.copy(), items.take(partner)
    items[partner] = here
    lost = items.take(partner) != here  # overwritten: another step has the same partner
    block[:] = there
    tangled = (partner < last) & (partner >= first)
    inside = partner[tangled]
    tangled |= lost
    if not tangled.any():
        return
    tangled[inside - first] = True  # a partner within the block is the own item of another step
    for position in partner[lost].tolist():
        tangled |= partner == position
    steps = np.flatnonzero(tangled)
    items[partner[steps]] = there[steps]  # as it was before them, then one after the other
    block[steps] = here[steps]
    for own, other in zip((first + steps).tolist(), partner[steps].tolist(), strict=True):
        items[own], items[other] = items[other], items[own]


def _swap_singly(items: IntArray, first: int, partner: NDArray[np.intp]) -> None:
    """The same, one after the other, on a list of the stretch that is touched."""
    start = min(first, int(partner.min()))
    stop = max(first + partner.size, int(partner.max()) + 1)
    plain = items[start:stop].tolist()
    for i, j in enumerate((partner - start).tolist(), first - start):
        plain[i], plain[j] = plain[j], plain[i]
    items[start:stop] = plain


def _shuffle_in_pairs(items: list[int], words: _RandomWords) -> None:
    """std::shuffle for lengths whose square fits in 32 bits: one number below ``(i+1)(i+2)`` gives two swaps."""
    num_items = len(items)
    stream = iter(lambda: words.take(1024).tolist(), None)
    draw = (word for block in stream for word in block)
    i = 1
    if num_items % 2 == 0:  # an even length has an odd number of swaps: the first is done alone
        j = _one_below(2, draw)
        items[1], items[j] = items[j], items[1]
        i = 2
    while i < num_items:
        pair = _one_below((i + 1) * (i + 2), draw)
        j, k = divmod(pair, i + 2)
        items[i], items[j] = items[j], items[i]
        items[i + 1], items[k] = items[k], items[i + 1]
        i += 2


def _one_below(bound: int, draw: Iterator[int]) -> int:
    """Lemire's method: the high half of word·bound, unless the low half is one of the 2**32 % bound unfair ones."""
    product = next(draw) * bound
    if product & 0xFFFFFFFF < bound:
        unfair = 2**32 % bound
        while product & 0xFFFFFFFF < unfair:
            product = next(draw) * bound
    return product >> 32


def _below(words: _RandomWords, bounds: NDArray[np.uint64]) -> NDArray[np.intp]:
    """`_one_below` for each of many bounds in turn. A refused word shifts all later ones by a place."""
    numbers = np.empty(bounds.size, dtype=np.intp)
    done = 0
    waiting = bounds[:0]
    while done < bounds.size:
        rest = bounds[done:]
        waiting = np.concatenate([waiting, words.take(rest.size - waiting.size).astype(np.uint64)])
        product = waiting * rest
        low = product & _LOW32
        suspects = np.flatnonzero(low < rest)
        unfair = suspects[low[suspects] < np.uint64(2**32) % rest[suspects]]
        fair = int(unfair[0]) if unfair.size else rest.size
        numbers[done : done + fair] = product[:fair] >> np.uint64(32)
        waiting = waiting[fair + 1 :]
        done += fair
    return numbers
