"""The samplers of libtorch's C++ data API, with the same order to the bit if libtorch is built with libstdc++.

Source: torch/csrc/api/src/data/samplers/distributed.cpp. They differ from Python's DistributedSampler: the shuffle is
seeded by the epoch alone (there is no seed), indices are padded or cut before they are shuffled, and a rank reads a
contiguous slice of the order instead of every N-th item.
"""

from __future__ import annotations

from ...common.checks import truth, whole
from .permutation import libtorch_order, share


class DistributedSequentialSampler:
    """libtorch's `DistributedSequentialSampler`: unshuffled, each rank a contiguous slice, padded from the start.

    As in libtorch, with ``allow_duplicates=False`` the last ``size % num_replicas`` samples are never read. With True
    nothing is lost. The epoch has no effect.

    >>> sampler = DistributedSequentialSampler(10, num_replicas=4, rank=3)
    >>> sampler.next(2), sampler.next(2), sampler.next(2)
    ([9, 0], [1], None)
    """

    def __init__(self, size: int, num_replicas: int = 1, rank: int = 0, allow_duplicates: bool = True) -> None:
        self.size = whole("size", size, 0)
        self.num_replicas = whole("num_replicas", num_replicas, 1)
        self.rank = whole("rank", rank, 0, self.num_replicas - 1)
        self.allow_duplicates = truth("allow_duplicates", allow_duplicates)
        self.epoch = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. As in C++, it has no effect before the next `reset`, and the shuffle uses it modulo 2**32."""
        self.epoch = whole("epoch", epoch, 0, 2**64 - 1)  # the largest size_t of C++

    def index(self) -> int:
        """Return the position of the next index to read in the epoch's order, which is that of all ranks."""
        return self._sample_index

    def __len__(self) -> int:
        """The number of indices that this rank reads in an epoch."""
        return self._end - self._begin

    def reset(self, new_size: int | None = None) -> None:
        """Go back to the start of the current epoch; with `new_size`, over that many samples."""
        if new_size is not None:
            self.size = whole("new_size", new_size, 0)
        count = share(self.size, self.num_replicas, drop_last=not self.allow_duplicates)
        self._begin = self.rank * count
        self._end = self._begin + count
        self._sample_index = self._begin

    def next(self, batch_size: int) -> list[int] | None:
        """Return the next `batch_size` indices, fewer at the end, and None after the end of this rank's slice."""
        batch_size = whole("batch_size", batch_size, 1)
        start = self._sample_index
        if start == self._end:
            return None
        self._sample_index = min(start + batch_size, self._end)
        return self._read(start, self._sample_index)

    def _read(self, start: int, stop: int) -> list[int]:
        return [position % self.size for position in range(start, stop)]  # padding starts over

    def state_dict(self) -> dict[str, int]:
        """Return the state for `load_state_dict`, as C++ stores it."""
        return {"sample_index": self._sample_index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the state's position. Raises ValueError if this rank's slice has no such position.

        As in C++, nothing compares the sampler with the one that was saved.
        """
        sample_index = whole("sample_index", state.get("sample_index"), self._begin, self._end)
        self.reset()
        self._sample_index = sample_index


class DistributedRandomSampler(DistributedSequentialSampler):
    """libtorch's `DistributedRandomSampler`: shuffled, each rank a contiguous slice of the shuffled order.

    It reproduces these peculiarities of libtorch, except for the last one:

    - Padding is ``i - size`` for each place i ≥ size, so with ``num_replicas * ceil(size / num_replicas) > 2 * size``
      it returns indices ≥ size (size 3 over 8 replicas gives 3 and 4). The padded samples are always the first ones.
    - With ``allow_duplicates=False`` the last ``size % num_replicas`` samples are never read, in any epoch.
      `shuffle_first` avoids both: it shuffles the samples, then pads by starting over, or cuts.
    - There is no seed, so every job shuffles epoch 0 in the same way.
    - `set_epoch` has no effect before `reset`. `load_state_dict` does not compare the sampler with the one that was
      saved.
    - libtorch itself checks neither rank nor replicas (0 replicas crash), and never ends with a batch size of 0; here
      these raise ValueError.

    >>> sampler = DistributedRandomSampler(10, num_replicas=4, rank=1)
    >>> sampler.next(2), sampler.next(2), sampler.next(2)
    ([5, 9], [1], None)
    """

    def __init__(
        self,
        size: int,
        num_replicas: int = 1,
        rank: int = 0,
        allow_duplicates: bool = True,
        *,
        shuffle_first: bool = False,
    ) -> None:
        self.shuffle_first = truth("shuffle_first", shuffle_first)  # first, because the base calls `reset`
        super().__init__(size, num_replicas, rank, allow_duplicates)

    def reset(self, new_size: int | None = None) -> None:
        """Shuffle for the current epoch and return to the start, over `new_size` samples if it is given."""
        super().reset(new_size)
        self._order = libtorch_order(self.size, len(self) * self.num_replicas, self.epoch, self.shuffle_first)

    def _read(self, start: int, stop: int) -> list[int]:
        indices: list[int] = self._order[start:stop].tolist()
        return indices

    def state_dict(self) -> dict[str, int]:
        return super().state_dict() | {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the state's epoch, which is shuffled for, and position."""
        self.set_epoch(state.get("epoch", -1))
        super().load_state_dict(state)
