"""torch's DistributedSampler, with the same order to the bit, streamed instead of listed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from numbers import Number
from typing import Any

from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..common.checks import of_type, whole
from .elastic import check_version
from .permutation import SEEDS, share, torch_order_blocks
from .reading import Movable, ReadingOrder

_VERSION = 1  # of the state, and of the order that it refers to


class DistributedSampler(TorchDistributedSampler[int], Movable):
    """A drop-in replacement for `torch.utils.data.DistributedSampler`: same arguments, same order, same errors.

    It is a subclass, so trainers that check with `isinstance` accept it, but it streams an epoch. Unshuffled, an epoch
    needs O(1) memory; shuffled, one array of 4 bytes per sample (8 at 2**31 samples and above). The first index is
    available before the whole epoch has been shuffled. torch's sampler makes Python lists of the whole dataset in every
    rank.

    `dataset` is a dataset with a length, or the length itself. Some inputs that torch accepts raise ValueError: numbers
    that are not whole (a rank of 1.5 or True), a seed outside the generator's range, and a dataset whose length has
    changed since the sampler was made (torch then repeats, loses or invents samples).

    As in torch, the order depends on ``seed + epoch`` alone, so (seed 0, epoch 1) and (seed 1, epoch 0) agree, and
    without `set_epoch` every epoch reads in the same order. Padding repeats the first samples of the order. With
    `drop_last` and fewer samples than ranks, no rank reads anything, without an error (`audit` reports it).

    In addition, `state_after` and `resume` continue an epoch where it was stopped, on any number of ranks.

    Source: torch/utils/data/distributed.py.

    >>> sampler = DistributedSampler(10, num_replicas=4, rank=1, shuffle=False)
    >>> list(sampler), len(sampler)
    ([1, 5, 9], 3)
    >>> list(DistributedSampler(10, num_replicas=4, rank=3, shuffle=False))  # padded with sample 1
    [3, 7, 1]
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is not None:
            num_replicas = whole("num_replicas", num_replicas, 1)
        if rank is not None:
            rank = whole("rank", rank)  # torch checks whether it is below the number of ranks
        seed = whole("seed", seed, *SEEDS)
        is_single_number = getattr(dataset, "ndim", None) == 0  # 0-d arrays and tensors have a `__len__`, which fails
        has_length = isinstance(dataset, Sized) and not is_single_number
        items: Any = dataset if has_length else _range(dataset)
        super().__init__(items, num_replicas, rank, shuffle, seed, drop_last)
        self._size = len(items)
        self._start_at(0)

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)  # type: ignore[arg-type]
        if size != self._size:
            raise ValueError(
                f"the dataset had {self._size} samples when the sampler was made and has {size} now: make a new sampler"
            )
        if self._resume_used:  # the rest of the resumed epoch has been read
            self._start_at(0)
        if not self.shuffle:
            return ReadingOrder.of(self._in_order(self._consumed, self._stop))
        seed = whole("seed + epoch", self.seed + self.epoch, *SEEDS)
        return ReadingOrder.of(self._shuffled(seed, self._consumed, self._stop))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration shuffles for. Raises ValueError if it is not a whole number.

        The epoch that `resume` has set stays resumed until it has been read. Any other is read from its beginning.
        """
        epoch = whole("epoch", epoch)
        if epoch != self.epoch:
            self._start_at(0)
        self.epoch = epoch

    def state_after(self, trained: int) -> dict[str, Any]:
        """Return the state of the epoch after each rank has TRAINED on `trained` samples since its start or `resume`.

        Count the samples that were trained on, not those that the loader has fetched ahead. All ranks must be at the
        same step: the samples they have read together are then the beginning of the order, for any number of ranks, and
        the state is the same on every rank. Raises ValueError if the epoch has fewer samples left.
        """
        trained = whole("trained", trained, 0, self.num_samples)
        consumed = min(self._consumed + trained * self.num_replicas, self._size)
        return {"version": _VERSION, "epoch": self.epoch, "consumed": consumed} | self._recipe()

    def resume(self, state: dict[str, Any]) -> None:
        """Continue the epoch of a state: distribute its remaining samples among any number of ranks.

        The first iteration from which an index is taken reads the remaining samples, and the next one reads a whole
        epoch again; `len` and `state_after` are about the remaining samples until then. No sample is lost, and none is
        read twice except for the padding at the very end. Raises ValueError if the state has another version, or comes
        from a sampler with another dataset length, seed or shuffle.

        >>> before = [DistributedSampler(10, 3, rank, shuffle=False) for rank in range(3)]  # stopped after one step
        >>> after = [DistributedSampler(10, 2, rank, shuffle=False) for rank in range(2)]
        >>> for sampler in after:
        ...     sampler.resume(before[0].state_after(1))
        >>> [list(sampler) for sampler in after]
        [[3, 5, 7, 9], [4, 6, 8, 0]]
        """
        of_type("state", state, dict)
        expected = self._recipe()
        missing = (expected.keys() | {"version", "epoch", "consumed"}) - state.keys()
        if missing:
            raise ValueError(f"the sampler's state lacks {', '.join(sorted(missing))}")
        check_version(state["version"], _VERSION)
        differences = []
        for name, own_value in expected.items():
            if state[name] != own_value:
                differences.append(f"{name} {state[name]!r}, not {own_value!r}")
        if differences:
            raise ValueError(f"the state is of another sampler: {'; '.join(differences)}")
        consumed = whole("consumed", state["consumed"], 0, self._size)
        self.epoch = whole("epoch", state["epoch"])
        self._start_at(consumed)

    def _recipe(self) -> dict[str, Any]:
        return {"size": self._size, "seed": self.seed, "shuffle": bool(self.shuffle)}

    def _start_at(self, consumed: int) -> None:
        """Let the ranks read the samples after the first `consumed` ones: positions `consumed` … `_stop` - 1."""
        self._consumed = consumed
        self.num_samples = share(self._size - consumed, self.num_replicas, self.drop_last)
        self.total_size = self.num_samples * self.num_replicas
        self._stop = consumed + self.total_size
        self._resume_used = False

    def _position(self) -> tuple[int, int, bool]:
        return self.epoch, self._consumed, self._resume_used

    def _return_to(self, position: tuple[int, int, bool]) -> None:
        self.epoch, consumed, resume_used = position
        self._start_at(consumed)
        self._resume_used = resume_used

    def _note_iteration(self, consumed: int) -> None:
        """Note that an iteration has begun with an index: if it is the resumed one, the next reads a whole epoch."""
        is_resumed = consumed > 0
        is_present = consumed == self._consumed  # `set_epoch` or `resume` may have moved the sampler since `iter`
        if is_resumed and is_present:
            self._resume_used = True

    def _in_order(self, consumed: int, stop: int) -> Iterator[Iterable[int]]:
        """Yield this rank's indices without shuffle, and then its share of the padding."""
        self._note_iteration(consumed)
        positions = range(consumed + self.rank, stop, self.num_replicas)
        without_padding = range(positions.start, min(self._size, stop), self.num_replicas)
        yield without_padding
        yield [position % self._size for position in positions[len(without_padding) :]]

    def _shuffled(self, seed: int, consumed: int, stop: int) -> Iterator[list[int]]:
        """Yield this rank's indices in lists: its share of each block of the order, then its share of the padding.

        `set_epoch` and `resume` change the arguments, so an iterator that has begun is not affected by them. It begins
        with its first index, because DataLoader asks for iterators that it never uses.
        """
        self._note_iteration(consumed)
        num_ranks = self.num_replicas
        first_position = consumed + self.rank  # this rank reads every num_ranks-th position, beginning here
        num_padding = max(stop - self._size, 0)  # of all ranks
        head_size = min(num_padding, self._size)
        head: list[int] = []  # the beginning of the order, which the padding repeats
        block_start = 0  # the position in the order at which the block begins
        for block in torch_order_blocks(self._size, seed, min(self._size, stop)):
            start = max(block_start, consumed)  # may be after the block, of which nothing is then read
            own_start = start + (first_position - start) % num_ranks  # the first of this rank at or after `start`
            yield block[own_start - block_start :: num_ranks].tolist()
            head += block[: max(head_size - block_start, 0)].tolist()
            block_start += block.size
        own_start = self._size + (first_position - self._size) % num_ranks  # the first of this rank in the padding
        yield [head[position % self._size] for position in range(own_start, stop, num_ranks)]


def _range(length: Any) -> range:
    """Return a substitute for a dataset of this many samples."""
    if isinstance(length, Number) or hasattr(length, "__index__"):
        return range(whole("dataset length", length, 0, sys.maxsize))  # of a longer range, `len` fails
    raise TypeError(f"the dataset has no length: pass a map-style dataset or its length, got {type(length).__name__}")
