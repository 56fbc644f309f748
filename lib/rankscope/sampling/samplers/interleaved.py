"""Samplers that yield indices of one order, which the ranks read in turn: the base, and torch's order without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.checks import whole
from .elastic import ElasticSampler, RankReads
from .permutation import SEEDS, torch_order_blocks

_MOST_LISTED = 1 << 12  # Python integers in one list: they take four times the memory of an array


class InterleavedSampler(ElasticSampler):
    """The base of samplers with one order, of which rank r of N reads every N-th sample, beginning with r.

    Without shuffle, the order is that of the dataset. Padding repeats the beginning of the order.
    """

    def _blocks(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Yield the samples at the positions ``range(start, stop, step)`` of the shuffled order, in blocks."""
        raise NotImplementedError

    def _pieces(self) -> Iterator[Sequence[Any]]:
        first = self._consumed_before + self.rank
        stop = self._consumed_before + len(self) * self.num_replicas
        own = range(first, min(stop, self._order_length), self.num_replicas)  # positions without padding
        if not self.shuffle:
            yield own
        elif own:
            for block in self._blocks(own.start, own.stop, own.step):
                for begin in range(0, block.size, _MOST_LISTED):
                    yield block[begin : begin + _MOST_LISTED].tolist()
        yield self._padding_at(range(first + len(own) * self.num_replicas, stop, self.num_replicas)).tolist()

    def all_ranks(self) -> RankReads:
        stop = self._consumed_before + len(self) * self.num_replicas
        stop_of_order = min(stop, self._order_length)
        parts: list[NDArray[Any]] = [np.arange(self._consumed_before, stop_of_order)]
        if self.shuffle and parts[0].size:
            parts = list(self._blocks(self._consumed_before, stop_of_order, 1))
        if stop > stop_of_order:
            parts.append(self._padding_at(range(stop_of_order, stop)))
        order = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return RankReads(tuple(order[rank :: self.num_replicas] for rank in range(self.num_replicas)))

    def _padding_at(self, positions: range) -> NDArray[Any]:
        """Return the samples at positions after the order's end, which repeat its beginning."""
        if not positions:
            return np.empty(0, dtype=np.int64)
        repeated: NDArray[Any] = np.array(positions) % self._order_length
        if not self.shuffle:
            return repeated
        beginning = list(self._blocks(0, int(repeated.max()) + 1, 1))
        return np.concatenate(beginning).take(repeated)


class TorchOrderSampler(InterleavedSampler):
    """The order of `torch.utils.data.DistributedSampler`, to the bit and without torch.

    Source: torch/utils/data/distributed.py.
    """

    def _blocks(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Take every `step`-th sample of each block of the order as soon as the block is final."""
        seed = whole("seed + epoch", self.seed + self.epoch, *SEEDS)
        block_start = 0
        least = stop if step == 1 else 1  # all at once where nobody waits for the first index
        for block in torch_order_blocks(self.size, seed, stop, least):
            first = max(start - block_start, (start - block_start) % step)  # in this block, or after its end
            if first < block.size:
                yield block[first::step]
            block_start += block.size
