"""`PackedSampler`: documents packed into sequences of at most so many tokens, with the boundaries between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import whole
from ..common.frozen import ReadOnly
from .elastic import InterleavedSampler, RankReads
from .keyed import KeyedPermutation
from .sample_values import MOST_TOKENS, MOST_WINDOW, checked_lengths, digest_of

_MOST_PACKS = 1 << 20  # in the windows that are packed at once: 8 MiB of 64-bit numbers


class Pack(list[int]):
    """The documents of one sequence: a list of indices, with `boundaries`.

    Document i of the pack has the tokens ``boundaries[i]`` to ``boundaries[i + 1] - 1`` of the sequence. These are the
    cumulative lengths (`cu_seqlens`) that attention kernels for packed sequences need.

    >>> pack = Pack([7, 2], boundaries=[0, 5, 8])
    >>> pack, pack.boundaries
    ([7, 2], (0, 5, 8))
    """

    def __init__(self, indices: Any = (), boundaries: Any = ()) -> None:
        super().__init__(indices)
        self.boundaries: tuple[int, ...] = tuple(boundaries)


class _EpochPacks(NamedTuple):
    """All packs of an epoch: pack p has the documents ``documents[starts[p]:starts[p + 1]]``."""

    epoch: int
    documents: NDArray[np.int64]
    starts: NDArray[np.int64]  # one more than there are packs: the last one is the number of documents

    def read(self, packs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents of these packs, one pack after the other, and the position in them where each ends."""
        sizes = self.starts[packs + 1] - self.starts[packs]
        stops = np.cumsum(sizes)
        # These arrays have an entry for each returned document: where the documents of its pack begin in `documents`,
        # and how many documents of its pack precede it.
        pack_start = np.repeat(self.starts[packs], sizes)
        index_in_pack = np.arange(pack_start.size) - np.repeat(stops - sizes, sizes)
        return self.documents[pack_start + index_in_pack], stops


class PackedSampler(InterleavedSampler):
    """A distributed batch sampler whose batches are packs: documents of at most `max_tokens` tokens together.

    The epoch's random order is cut into windows of `window` documents. In each window, a document goes into the first
    pack with enough tokens left (first fit). The packs do not depend on the number of ranks: rank r of N reads every
    N-th pack, beginning with pack r. A longer window wastes fewer tokens, but packing takes longer.

    Pass it as ``batch_sampler`` to a DataLoader: it yields a `Pack` for each sequence, a list of indices with the
    document boundaries. Padding repeats the first packs, and `drop_last` leaves out the last ones instead. Without
    `num_replicas` and `rank`, those of torch's process group apply, or one rank if there is no group.

    Raises ValueError if a length is not a whole number from 0 to `max_tokens`.

    >>> sampler = PackedSampler([6, 3, 5, 2, 4], max_tokens=10, shuffle=False)
    >>> [(pack, pack.boundaries) for pack in sampler]
    [([0, 1], (0, 6, 9)), ([2, 3], (0, 5, 7)), ([4], (0, 4))]
    """

    _TITLE = "PackedSampler"
    _RECIPE = ReadOnly(
        size="size", seed="seed", shuffle="shuffle", lengths="_digest", max_tokens="max_tokens", window="window"
    )
    _FIXED_SETTINGS = ("max_tokens", "window")
    is_grouped = True
    makes_batches = True

    def __init__(
        self,
        lengths: ArrayLike,
        max_tokens: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        window: int = 1000,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(num_replicas, rank, shuffle, seed, drop_last)
        self.max_tokens = whole("max_tokens", max_tokens, 1, MOST_TOKENS)
        self.padded_to = self.max_tokens  # tokens of each pack with its padding, which `Assignment.collect` takes over
        self.window = whole("window", window, 1, MOST_WINDOW)
        self.lengths = checked_lengths(lengths, self.max_tokens)
        self.size = self.lengths.size
        self._digest = digest_of(self.lengths)
        self._packs: _EpochPacks | None = None
        self._start_from(self._first_progress())

    @property
    def fill(self) -> float:
        """The filled share of the packs' capacity in this epoch, in tokens."""
        num_packs = self._order_length()
        if num_packs == 0:
            return 1.0
        return float(self.lengths.sum()) / (num_packs * self.max_tokens)

    def __getitem__(self, position: int) -> Pack:
        """Return the pack at a position of the order of all ranks. Raises IndexError outside the order."""
        position = whole("position", position)
        num_packs = self._order_length()
        if not 0 <= position < num_packs:
            raise IndexError(f"position must be a whole number from 0 to {num_packs - 1}, got {position}")
        packs = self._epoch_packs()
        documents = packs.documents[packs.starts[position] : packs.starts[position + 1]]
        boundaries = np.cumsum(self.lengths[documents])
        return Pack(documents.tolist(), [0, *boundaries.tolist()])

    def all_ranks(self) -> RankReads:
        epoch_packs = self._epoch_packs()
        position = self._start["position"]
        num_packs_read = self._num_items(self._start) * self.num_replicas
        packs = np.arange(position, position + num_packs_read)
        if packs.size:  # an epoch without packs has no length to divide by
            packs %= self._order_length()  # padding repeats the first packs
        indices = []
        stops = []
        for rank in range(self.num_replicas):
            documents, stops_of_rank = epoch_packs.read(packs[rank :: self.num_replicas])
            indices.append(documents)
            stops.append(stops_of_rank)
        return RankReads(tuple(indices), tuple(stops), padded_to=self.max_tokens)

    def _order_length(self) -> int:
        return self._epoch_packs().starts.size - 1

    def _pieces(self, start: dict[str, Any]) -> Iterator[list[Pack]]:
        length = self._order_length()
        stop = start["position"] + self._num_items(start) * self.num_replicas
        for position in range(start["position"] + self.rank, stop, self.num_replicas):
            yield [self[position % length]]  # padding repeats the first packs

    def _epoch_packs(self) -> _EpochPacks:
        """Return the packs of the epoch, which are made once and stored until the epoch changes."""
        if self._packs is not None and self._packs.epoch == self.epoch:
            return self._packs
        order = np.arange(self.size)
        if self.shuffle:
            order = KeyedPermutation(self.size, self._key("order"))(order)
        pack_of_document = first_fit(self.lengths[order], self.max_tokens, self.window)  # in the order of `order`
        documents = order[np.argsort(pack_of_document, kind="stable")]  # pack by pack
        num_packs = int(pack_of_document.max(initial=-1)) + 1  # 0 without documents
        pack_sizes = np.bincount(pack_of_document, minlength=num_packs)
        starts = np.concatenate([[0], np.cumsum(pack_sizes)]).astype(np.int64)
        self._packs = _EpochPacks(self.epoch, documents, starts)
        return self._packs


def first_fit(lengths: NDArray[np.int64], max_tokens: int, window: int) -> NDArray[np.int64]:
    """Return the number of the pack of each document. Packs are numbered through all windows.

    numpy places the first document of many windows at once, then the second of each, and so on. The arrays with two
    dimensions have a row for each window.

    >>> first_fit(np.array([6, 5, 4, 3, 2]), max_tokens=10, window=5).tolist()
    [0, 1, 0, 1, 1]
    """
    num_windows = -(-lengths.size // window)  # rounded up
    # The last row is filled up with documents of no tokens, whose packs are left out at the end.
    lengths_of_windows = np.zeros((num_windows, min(window, lengths.size)), dtype=np.int64)
    lengths_of_windows.reshape(-1)[: lengths.size] = lengths
    pack_in_window = np.empty_like(lengths_of_windows)  # of each document, numbered from 0 in each window
    # At most one pack of a window is half full or less: first fit would have put the documents of a second one into it.
    # So n packs have more than (n - 1) * max_tokens / 2 tokens.
    most_tokens = int(lengths_of_windows.sum(axis=1).max(initial=0))  # of a window
    most_packs = 2 * most_tokens // max_tokens + 1
    num_at_once = max(_MOST_PACKS // most_packs, 1)  # windows
    for first in range(0, num_windows, num_at_once):
        rows = lengths_of_windows[first : first + num_at_once]
        tokens_left = np.full((rows.shape[0], most_packs), max_tokens)  # of each pack of each window
        row_numbers = np.arange(rows.shape[0])
        for column in range(rows.shape[1]):
            length = rows[:, column]
            pack = (tokens_left >= length[:, None]).argmax(axis=1)  # the first pack with enough tokens left
            tokens_left[row_numbers, pack] -= length
            pack_in_window[first : first + num_at_once, column] = pack
    pack_of_document = pack_in_window.reshape(-1)[: lengths.size]
    window_of_document = np.arange(lengths.size) // window
    num_packs = np.zeros(num_windows, dtype=np.int64)  # of each window
    np.maximum.at(num_packs, window_of_document, pack_of_document + 1)
    packs_before = np.cumsum(num_packs) - num_packs  # in earlier windows
    return pack_of_document + packs_before[window_of_document]
