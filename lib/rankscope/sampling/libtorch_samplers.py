"""The samplers of libtorch's C++ data API, the same order to the bit where libtorch is built with libstdc++.

Source: torch/csrc/api/src/data/samplers/distributed.cpp. How they differ from Python's DistributedSampler:
the shuffle is seeded by the epoch alone (there is no seed), indices are padded or cut before they are shuffled, and
a rank takes a contiguous slice of the order instead of every N-th item.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.checks import of_type, truth, whole
from .permutation import IntArray, libstdcxx_shuffle, share

_SIZE_T = 2**64 - 1


class _Slice:
    """What both samplers share: this rank's slice [begin, end) of the epoch, and how far it has been read."""

    _needed: tuple[str, ...] = ("sample_index",)  # of a state

    def __init__(self, size: int, num_replicas: int = 1, rank: int = 0, allow_duplicates: bool = True) -> None:
        self.size = whole("size", size, 0)
        self.num_replicas = whole("num_replicas", num_replicas, 1)
        self.rank = whole("rank", rank, 0, self.num_replicas - 1)
        self.allow_duplicates = truth("allow_duplicates", allow_duplicates)
        self.epoch = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. As in C++ it counts from the next `reset` on, and the shuffle takes it modulo 2**32."""
        self.epoch = whole("epoch", epoch, 0, _SIZE_T)

    def index(self) -> int:
        """Return the position in the epoch's order, over all ranks, of the next index to be read."""
        return self._sample_index

    def __len__(self) -> int:
        """The number of indices that this rank reads in an epoch."""
        return self._end - self._begin

    def reset(self, new_size: int | None = None) -> None:
        """Go back to the start of the current epoch; with `new_size`, over that many samples."""
        if new_size is not None:
            self.size = whole("new_size", new_size, 0)
        count = share(self.size, self.num_replicas, drop_last=not self.allow_duplicates)
        self._begin, self._end = self.rank * count, (self.rank + 1) * count
        self._sample_index = self._begin

    def next(self, batch_size: int) -> list[int] | None:
        """Return the next `batch_size` indices, fewer at the end, and None when this rank's slice is used up."""
        start = self._sample_index
        self._sample_index = min(start + whole("batch_size", batch_size, 1), self._end)
        return self._read(start, self._sample_index) if start < self._end else None

    def _read(self, start: int, stop: int) -> list[int]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs; C++ keeps only sample_index and, where it shuffles, epoch of it."""
        names = ("size", "num_replicas", "rank", "allow_duplicates")
        return {"sample_index": self._sample_index} | {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> None:
        """Go to the state's epoch and position. Raises ValueError for a state that is damaged or does not fit."""
        missing = [name for name in self._needed if name not in of_type("state", state, dict)]
        if missing:
            raise ValueError(f"the sampler's state lacks {', '.join(missing)}")
        place = whole("sample_index", state["sample_index"], self._begin, self._end)
        differing = [
            f"{name} {state.get(name)!r}, not {mine!r}"
            for name, mine in self.state_dict().items()
            if name not in ("sample_index", "epoch") and state.get(name) != mine
        ]
        if truth("strict", strict) and differing:
            raise ValueError(f"the state was taken from another sampler, with {'; '.join(differing)}")
        if "epoch" in self._needed:
            self.set_epoch(state["epoch"])
        self.reset()
        self._sample_index = place


class DistributedRandomSampler(_Slice):
    """libtorch's `DistributedRandomSampler`: shuffled, each rank a contiguous slice of the shuffled order.

    Its quirks, reproduced unless said otherwise:

    - Padding is ``i - size`` for each place i ≥ size, so with ``num_replicas * ceil(size / num_replicas) > 2 * size``
      indices ≥ size come out (size 3 over 8 replicas gives 3 and 4). The padded samples are always the first ones.
    - With ``allow_duplicates=False`` the last ``size % num_replicas`` samples are never read, in any epoch.
      `shuffle_first` avoids both: it shuffles the samples, then pads by starting over, or cuts.
    - There is no seed: every job shuffles epoch 0 alike.
    - `set_epoch` waits for `reset`; `load_state_dict` does not compare the sampler with the one that was saved
      (``strict=True`` does).
    - libtorch itself checks neither rank nor replicas (0 replicas crash), and lets a batch of 0 spin for ever; here
      they raise ValueError.

    >>> sampler = DistributedRandomSampler(10, num_replicas=4, rank=1)
    >>> sampler.next(2), sampler.next(2), sampler.next(2)
    ([5, 9], [1], None)
    """

    _needed = ("sample_index", "epoch")

    def __init__(
        self,
        size: int,
        num_replicas: int = 1,
        rank: int = 0,
        allow_duplicates: bool = True,
        *,
        shuffle_first: bool = False,
    ) -> None:
        self.shuffle_first = truth("shuffle_first", shuffle_first)
        super().__init__(size, num_replicas, rank, allow_duplicates)

    def reset(self, new_size: int | None = None) -> None:
        """Shuffle for the current epoch and go back to the start; with `new_size`, over that many samples."""
        super().reset(new_size)
        self._order = libtorch_random_order(self.size, len(self) * self.num_replicas, self.epoch, self.shuffle_first)

    def _read(self, start: int, stop: int) -> list[int]:
        indices: list[int] = self._order[start:stop].tolist()
        return indices

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"epoch": self.epoch, "shuffle_first": self.shuffle_first}


class DistributedSequentialSampler(_Slice):
    """libtorch's `DistributedSequentialSampler`: unshuffled, each rank a contiguous slice, padding wraps round.

    Its quirk: with ``allow_duplicates=False`` the last ``size % num_replicas`` samples are never read; with True
    nothing is lost. The epoch changes nothing.

    >>> sampler = DistributedSequentialSampler(10, num_replicas=4, rank=3)
    >>> sampler.next(2), sampler.next(2), sampler.next(2)
    ([9, 0], [1], None)
    """

    def _read(self, start: int, stop: int) -> list[int]:
        return [place % self.size for place in range(start, stop)]


def libtorch_random_order(size: int, total: int, epoch: int, shuffle_first: bool = False) -> IntArray:
    """Return the shuffled order of all ranks, `total` long, that the random sampler cuts its slices from."""
    if shuffle_first:
        order = np.arange(size)
        libstdcxx_shuffle(order, epoch)
        return np.resize(order, total) if size else order
    order = np.arange(total)
    order[size:] -= size
    libstdcxx_shuffle(order, epoch)
    return order
