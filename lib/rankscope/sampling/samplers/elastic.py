"""What our samplers share: ranks, epochs, and a state that continues an epoch on any number of ranks.

The state is the epoch, the number of samples that all ranks together have consumed of the epoch's order, and the recipe
of that order. It is the same on every rank that is at the same step. On another number of ranks, or with another batch
size, what is left of the order is divided again: no sample is lost, and only padding is read twice.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import length_hint
from typing import Any, ClassVar, NamedTuple

from ...common.checks import of_type, truth, whole
from .permutation import SEEDS, IntArray

MOST_RANKS = 1 << 16  # numbers of 16 bits, in which `BalancedSampler` sorts them


class RankReads(NamedTuple):
    """What each rank reads: `indices`, and `batch_stops` if they come in batches.

    Batch b of a rank ends before item ``batch_stops[b]`` of its indices.
    """

    indices: tuple[IntArray, ...]
    batch_stops: tuple[IntArray, ...] | None = None


class ElasticSampler:
    """The base of our samplers, one on each rank. They yield items: indices, or batches of them.

    A sampler reads the `epoch` that `set_epoch` has set. `state_dict` and `load_state_dict` are the protocol of
    torchdata's StatefulDataLoader and nodes, which take these samplers as they are.
    """

    is_grouped: ClassVar[bool] = False  # whether it decides which samples are in a batch, or how often each is read
    makes_batches: ClassVar[bool] = False

    def __init__(
        self, size: int, num_replicas: int | None, rank: int | None, shuffle: bool, seed: int, drop_last: bool
    ) -> None:
        """Check the arguments, except for `size`, the number of samples of the dataset.

        Without `num_replicas` and `rank`, those of torch's process group apply, else 1 and 0. Raises ValueError if only
        one of both is given, for values outside their ranges, and if neither is given on one of several ranks (by
        WORLD_SIZE) that has no process group yet.
        """
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"num_replicas and rank must be given together, got {num_replicas!r} and {rank!r}")
        if num_replicas is None:
            num_replicas, rank = _ranks_of_process_group()
        self.size = size
        self.num_replicas = whole("num_replicas", num_replicas, 1, MOST_RANKS)
        self.rank = whole("rank", rank, 0, self.num_replicas - 1)
        self.shuffle = truth("shuffle", shuffle)
        self.seed = whole("seed", seed, *SEEDS)
        self.drop_last = truth("drop_last", drop_last)
        self.epoch = 0
        self._start_at(0)

    # ---- what a kind of sampler defines

    @property
    def _order_length(self) -> int:
        """The number of samples in the order of an epoch."""
        return self.size

    @property
    def _samples_per_step(self) -> int:
        """The number of samples that all ranks together read in a full step."""
        return self.num_replicas

    def _settings(self) -> dict[str, Any]:
        """Return the data and settings on which the order depends, as values that JSON can store."""
        return {"size": self.size, "seed": self.seed, "shuffle": self.shuffle}

    def _take_up(self, state: Mapping[str, Any]) -> None:
        """Take what else this kind of sampler needs from a state; its position is set."""

    def _pieces(self) -> Iterator[Sequence[Any]]:
        """Yield this rank's items of what is left of the epoch, in pieces that have a length."""
        raise NotImplementedError

    def all_ranks(self) -> RankReads:
        """Return what all ranks read in this epoch, or in what is left of a resumed one, in one pass."""
        raise NotImplementedError

    # ---- iteration

    def _start_at(self, consumed: int, is_finished: bool = False) -> None:
        """Read the next iteration from this place in the epoch's order."""
        self._last_iteration_begun: _Iteration | None = None
        self._begin_epoch()
        self._consumed_before = consumed
        self._resumed_after_its_end = is_finished

    def _begin_epoch(self) -> None:
        """Read the next iteration from the beginning of the epoch's order."""
        self._consumed_before = 0  # samples, before the next or the present iteration
        self._resumed_after_its_end = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads. Raises ValueError if it is not a whole number.

        The epoch that `load_state_dict` has set stays resumed until it has been read. Any other is read from its
        beginning.
        """
        epoch = whole("epoch", epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self._start_at(0)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what this rank reads. After a resumed epoch, the next iteration reads a whole epoch."""
        if self._last_iteration_begun is not None:  # it has begun at `_consumed_before` already
            self._begin_epoch()
        iteration = _Iteration(self)
        if self._resumed_after_its_end:
            # Nothing is left to read. This iteration counts as begun, because a StatefulDataLoader whose own iterator
            # has also ended asks for a second one, which must read a whole epoch.
            iteration.is_finished = True
            self._last_iteration_begun = iteration
        return chain.from_iterable(iteration.pieces(self))

    def __len__(self) -> int:
        """The number of items that this rank reads in the epoch, or in what is left of a resumed one."""
        num_steps, rest = divmod(self._order_length - self._consumed_before, self._samples_per_step)
        # A last step needs a sample for each rank. Without `drop_last`, padding adds those that are missing.
        least = self.num_replicas if self.drop_last else 1
        return num_steps + int(rest >= least)

    @property
    def padding(self) -> int:
        """The number of samples at the end of the epoch that all ranks together read a second time."""
        if self.drop_last:
            return 0
        return (self._consumed_before - self._order_length) % self.num_replicas

    def _key(self, purpose: str) -> str:
        """Return the key of a random order for this seed and epoch. Without shuffle, all epochs have one key."""
        epoch = self.epoch if self.shuffle else 0
        return f"{purpose} of seed {self.seed}, epoch {epoch}"

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state after everything that was read so far.

        A loader reads ahead, so ask the loader for the state, as StatefulDataLoader does it, or count the items that
        were trained on and use `state_after`.
        """
        iteration = self._last_iteration_begun
        if iteration is None:
            return self._state(self._consumed_before, self._resumed_after_its_end)
        reader = iteration.reader
        if iteration.is_finished:
            return reader._state(reader._order_length, is_finished=True)
        return reader._state(reader._consumed_after(iteration.num_read))

    def state_after(self, trained: int) -> dict[str, Any]:
        """Return the state after each rank has trained on `trained` items since the start or the resumed position.

        Raises ValueError if the epoch has fewer items.
        """
        reader = self
        if self._last_iteration_begun is not None:
            reader = self._last_iteration_begun.reader
        return reader._state(reader._consumed_after(whole("trained", trained, 0, len(reader))))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the state's epoch at its position, on this sampler's ranks, of any number.

        If nothing of the state's epoch is left, the next iteration reads nothing, and the one after it a whole epoch.
        But if `set_epoch` has set a later epoch, that one is read from its beginning: StatefulDataLoader loads the
        state after `set_epoch`, when it is iterated. Raises ValueError for a state of other data, settings or seed.
        """
        of_type("state", state, dict)
        missing = [name for name in self._state(0) if name not in state]
        if missing:
            raise ValueError(f"the sampler's state lacks {', '.join(missing)}")
        differences = _differences(of_type("recipe", state["recipe"], dict), self._recipe())
        if differences:
            raise ValueError(f"the state is of another sampler: {differences}")
        consumed = whole("consumed", state["consumed"], 0, self._order_length)
        epoch_that_was_set = self.epoch
        self.epoch = whole("epoch", state["epoch"])
        self._start_at(consumed, truth("finished", state["finished"]))
        self._take_up(state)
        if len(self) == 0 and epoch_that_was_set > self.epoch:
            self.set_epoch(epoch_that_was_set)

    def _recipe(self) -> dict[str, Any]:
        return {"sampler": type(self).__name__} | self._settings()

    def _state(self, consumed: int, is_finished: bool = False) -> dict[str, Any]:
        return {"epoch": self.epoch, "consumed": consumed, "finished": is_finished, "recipe": self._recipe()}

    def _consumed_after(self, num_items: int) -> int:
        """Return the samples consumed after each rank has read so many items; all of them at the end.

        The end also leaves nothing of what `drop_last` drops. But if these ranks read nothing more, other numbers of
        ranks can still read what they would drop.
        """
        if num_items and num_items == len(self):
            return self._order_length
        return self._consumed_before + num_items * self._samples_per_step


class _Iteration:
    """An iteration that may have begun: the copy of the sampler that it reads, and how many items were taken."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self.reader = copy.copy(sampler)  # which a later `set_epoch` does not affect
        self.reader._last_iteration_begun = None
        self.is_finished = False  # whether an item after the last one was asked for
        self._num_items_of_pieces = 0
        self._rest_of_piece: Iterator[Any] = iter(())

    def pieces(self, sampler: ElasticSampler) -> Iterator[Iterator[Any]]:
        """Yield an iterator over each piece. The iteration begins with its first item.

        DataLoader makes iterators that it never uses, and those must not count as begun.
        """
        sampler._last_iteration_begun = self
        for piece in self.reader._pieces():
            self._num_items_of_pieces += len(piece)
            self._rest_of_piece = iter(piece)
            yield self._rest_of_piece
        self.is_finished = True

    @property
    def num_read(self) -> int:
        """The number of items that were taken."""
        return self._num_items_of_pieces - length_hint(self._rest_of_piece)


@contextmanager
def unmoved(samplers: Iterable[Any]) -> Iterator[None]:
    """Put our own samplers back to where they are now, at the end of the block, in which an audit reads them."""
    before = [(sampler, dict(vars(sampler))) for sampler in samplers if isinstance(sampler, ElasticSampler)]
    try:
        yield
    finally:
        for sampler, fields in before:
            vars(sampler).update(fields)


def _differences(recipe: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Name the entries that differ from what is expected."""
    names = [name for name in {**expected, **recipe} if recipe.get(name) != expected.get(name)]
    return "; ".join(f"{name} {recipe.get(name)!r}, not {expected.get(name)!r}" for name in names)


def _ranks_of_process_group() -> tuple[int, int]:
    """Return the number of ranks and this rank, of torch's process group if this process has initialized one.

    Without a group they are 1 and 0. Raises ValueError if WORLD_SIZE then says that there are several ranks.
    """
    distributed: Any = sys.modules.get("torch.distributed")  # a process with a group has imported torch
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size not in ("", "0", "1"):  # which name no other rank
        problem = f"WORLD_SIZE is {world_size}, but this process has no process group, so every rank would read all"
        raise ValueError(f"{problem}: call init_process_group before, or pass num_replicas and rank")
    return 1, 0
