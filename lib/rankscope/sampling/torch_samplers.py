"""torch's DistributedSampler, the same order to the bit, streamed instead of listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from copy import copy
from itertools import chain
from numbers import Number
from typing import Any, Self

from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..common.checks import of_type, whole
from .permutation import SEEDS, share, torch_order_blocks

_VERSION = 1  # of the state, and of the order it is a place in


class DistributedSampler(TorchDistributedSampler[int]):
    """A drop-in for `torch.utils.data.DistributedSampler`: same arguments, same order, same errors.

    It is one (`isinstance` holds, so trainers that look for torch's find it), but an epoch is streamed: unshuffled
    in O(1) memory, shuffled in one array of 4 bytes a sample (8 from 2**31 samples), and the first index comes
    before the epoch has been shuffled. torch's makes Python lists of the whole dataset in every rank.

    `dataset` is a dataset with a length, or the length itself. What torch lets through is refused with a
    ValueError: whole numbers that are not (a rank of 1.5 or True), a seed that the generator cannot take, and a
    dataset whose length changed since the sampler was made (torch then repeats, loses or invents samples).

    As in torch: the order depends on ``seed + epoch`` alone, so (seed 0, epoch 1) and (seed 1, epoch 0) agree, and
    without `set_epoch` every epoch reads in the same order; padding repeats the first samples of the order; with
    `drop_last` and fewer samples than ranks there is nothing to read, silently (`audit` says so).

    Beyond torch: `state_after` and `resume` take an epoch up again where it was left, on any number of ranks.

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
            rank = whole("rank", rank)
        seed = whole("seed", seed, *SEEDS)
        has_length = isinstance(dataset, Sized) and getattr(dataset, "ndim", None) != 0
        items: Sized = dataset if has_length else _range(dataset)  # type: ignore[assignment]
        super().__init__(items, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        self._size = len(items)
        self._start_at(0)

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)  # type: ignore[arg-type]
        if size != self._size:
            raise ValueError(
                f"the dataset had {self._size} samples when the sampler was made and has {size} now: make a new sampler"
            )
        if self._resume_used:
            self._start_at(0)
        if not self.shuffle:
            return _Order.of(self._in_order(self._consumed, self._stop))
        seed = whole("seed + epoch", self.seed + self.epoch, *SEEDS)
        return _Order.of(self._shuffled(seed, self._consumed, self._stop))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration shuffles for. Raises ValueError where it is not a whole number.

        The epoch that `resume` has set stays resumed until it has been read; any other is read from its beginning.
        """
        epoch = whole("epoch", epoch)
        if epoch != self.epoch:
            self._start_at(0)
        self.epoch = epoch

    def state_after(self, trained: int) -> dict[str, Any]:
        """Return where the epoch stands once each rank has TRAINED on `trained` samples since it began or was resumed.

        Count what was trained, not what the loader has fetched ahead. All ranks must be at the same step: then what
        they have read together is the beginning of the order, whatever their number, and the state is the same on
        every rank. Raises ValueError for more than the epoch has left.
        """
        trained = whole("trained", trained, 0, self.num_samples)
        consumed = min(self._consumed + trained * self.num_replicas, self._size)
        return {"version": _VERSION, "epoch": self.epoch, "consumed": consumed} | self._recipe()

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with the rest of the state's epoch, dealt out among this sampler's ranks, as many as before or not.

        Once: the first iteration from which an index is taken reads the rest, the one after it a whole epoch again;
        `len` and `state_after` speak of the rest until then.
        Nothing is lost and nothing read twice but the padding at the very end. Raises ValueError for a state of
        another version, or of a sampler with another dataset length, seed or shuffle.

        >>> before = [DistributedSampler(10, 3, rank, shuffle=False) for rank in range(3)]  # stopped after one step
        >>> after = [DistributedSampler(10, 2, rank, shuffle=False) for rank in range(2)]
        >>> for sampler in after:
        ...     sampler.resume(before[0].state_after(1))
        >>> [list(sampler) for sampler in after]
        [[3, 5, 7, 9], [4, 6, 8, 0]]
        """
        expected = {"version": _VERSION} | self._recipe()
        missing = (expected.keys() | {"epoch", "consumed"}) - of_type("state", state, dict).keys()
        if missing:
            raise ValueError(f"the sampler's state lacks {', '.join(sorted(missing))}")
        differing = [f"{name} {state[name]!r}, not {mine!r}" for name, mine in expected.items() if state[name] != mine]
        if differing:
            raise ValueError(f"the state is of another sampler: {'; '.join(differing)}")
        consumed = whole("consumed", state["consumed"], 0, self._size)
        self.epoch = whole("epoch", state["epoch"])
        self._start_at(consumed)

    def _recipe(self) -> dict[str, Any]:
        return {"size": self._size, "seed": self.seed, "shuffle": bool(self.shuffle)}

    def _start_at(self, consumed: int) -> None:
        """Deal out what is left of the epoch after `consumed` samples: places `consumed` … `_stop` - 1 of the order."""
        self._consumed = consumed
        self.num_samples = share(self._size - consumed, self.num_replicas, self.drop_last)
        self.total_size = self.num_samples * self.num_replicas
        self._stop = consumed + self.total_size
        self._resume_used = False

    def _in_order(self, consumed: int, stop: int) -> Iterator[Iterable[int]]:
        self._resume_used |= 0 < consumed == self._consumed
        places = range(consumed + self.rank, stop, self.num_replicas)
        real = range(places.start, min(self._size, stop), self.num_replicas)
        yield real
        yield [place % self._size for place in places[len(real) :]]

    def _shuffled(self, seed: int, consumed: int, stop: int) -> Iterator[list[int]]:
        """Yield this rank's indices in lists: its share of each block of the order, then its share of the padding.

        What `set_epoch` and `resume` change is passed in: an iterator goes on as it began. Here it begins, at its first
        index: DataLoader asks for iterators that it never uses.
        """
        self._resume_used |= 0 < consumed == self._consumed
        padding = max(stop - self._size, 0)
        mine, ranks = consumed + self.rank, self.num_replicas
        head: list[int] = []
        first = 0
        for block in torch_order_blocks(self._size, seed, min(self._size, stop)):
            start = max(first, consumed)
            yield block[start - first + (mine - start) % ranks :: ranks].tolist()
            head += block[: max(min(padding, self._size) - first, 0)].tolist()
            first += block.size
        start = self._size + (mine - self._size) % ranks
        yield [head[place % self._size] for place in range(start, stop, ranks)]


class _Order(chain[int]):
    """Indices out of one piece after the other, at chain's own speed; unlike it they can be pickled and copied."""

    _pieces: _Pieces

    @classmethod
    def of(cls, pieces: Iterable[Iterable[int]]) -> Self:
        source = _Pieces(pieces)
        order: Any = cls.from_iterable(source)
        order._pieces = source
        return order  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        """What is left of the epoch: what has not been shuffled yet is, and is held as lists, as torch holds it all."""
        self._pieces.rest = iter(left := list(self._pieces.rest))
        return _Order.of, ([copy(self._pieces.piece), *left],)


class _Pieces(Iterator[Iterator[int]]):
    """Iterators over the pieces; `piece` is the one handed out last."""

    def __init__(self, pieces: Iterable[Iterable[int]]) -> None:
        self.rest = iter(pieces)
        self.piece: Iterator[int] = iter(())

    def __next__(self) -> Iterator[int]:
        self.piece = iter(next(self.rest))
        return self.piece


def _range(length: Any) -> range:
    """A stand-in for a dataset of that many samples."""
    if isinstance(length, Number) or hasattr(length, "__index__"):
        return range(whole("dataset length", length, 0, 2**63 - 1))
    raise TypeError(f"the dataset has no length: pass a map-style dataset or its length, got {type(length).__name__}")
