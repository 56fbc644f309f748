"""What `KeyedSampler`, `WeightedSampler` and `BalancedSampler` share: ranks, epochs, elastic state.

The state of such a sampler is a position in the order of all ranks together. So it is the same on every rank, and the
epoch continues on any number of ranks and with any batch size.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ..common.checks import function, of_type, truth, whole
from .permutation import SEEDS, IntArray, share
from .reading import Movable, ReadingOrder

_VERSION = 1  # of the state, and of the orders that it refers to
_STATE_FIELDS = ("version", "sampler", "epoch", "progress", "finished", "recipe")

MOST_RANKS = 1 << 16  # of a sampler, and of an assignment: numbers of 16 bits, in which `BalancedSampler` sorts them

_MOST_LISTED = 1 << 12
"""Python integers in one list: they take four times the memory of an array."""

Progress = dict[str, Any]
"""Where in an epoch's order all ranks together are: numbers that JSON can store."""


class RankReads(NamedTuple):
    """What each rank reads: `indices`, and `batch_stops` if they come in batches.

    Batch b of a rank ends before item ``batch_stops[b]`` of its indices.
    """

    indices: tuple[IntArray, ...]
    batch_stops: tuple[IntArray, ...] | None = None


class _BegunIteration(NamedTuple):
    """An iterator that has begun, where it began, and the copy of the sampler that it reads from."""

    start: Progress
    reader: ElasticSampler
    order: ReadingOrder

    def progress(self) -> Progress:
        """Return where all ranks are, if each has read as many items as this one."""
        if self.order.pieces.is_finished:
            return self.reader._end_progress()
        return self.reader._progress_after(self.start, self.order.pieces.num_read)


class RankFacts(NamedTuple):
    """What a rank tells the others about its sampler: `start` is where its iteration begins or has begun."""

    rank: int
    recipe: dict[str, Any]
    start: Progress


class ElasticSampler(Movable):
    """The base of the samplers whose state is a position in the order of all ranks.

    A sampler reads the `epoch` that `set_epoch` has set. `state_dict` and `load_state_dict` are the protocol of
    torchdata's StatefulDataLoader, which takes these samplers as they are.
    """

    _TITLE: ClassVar[str]
    is_grouped: ClassVar[bool] = False  # whether it decides which samples are in a batch, or how often each is read
    makes_batches: ClassVar[bool] = False  # whether it yields lists of indices
    _RECIPE: ClassVar[Mapping[str, str]]  # what a state must agree with: names in the state, and attributes
    _FIXED_SETTINGS: ClassVar[tuple[str, ...]] = ()  # those of _RECIPE that only this kind of sampler has

    def __init__(self, num_replicas: int | None, rank: int | None, shuffle: bool, seed: int, drop_last: bool) -> None:
        """Check the arguments. Without `num_replicas` and `rank`, those of torch's process group apply, else 1 and 0.

        Raises ValueError if only one of both is given, for values outside their ranges, and if neither is given on one
        of several ranks (by WORLD_SIZE) that has no process group yet.
        """
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"num_replicas and rank must be given together, got {num_replicas!r} and {rank!r}")
        if num_replicas is None:
            num_replicas, rank = _ranks_of_process_group()
        self.num_replicas = whole("num_replicas", num_replicas, 1, MOST_RANKS)
        self.rank = whole("rank", rank, 0, self.num_replicas - 1)
        self.shuffle = truth("shuffle", shuffle)
        self.seed = whole("seed", seed, *SEEDS)
        self.drop_last = truth("drop_last", drop_last)
        self.epoch = 0
        self._reading: _BegunIteration | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads. Raises ValueError if it is not a whole number of at least 0.

        The epoch that `load_state_dict` has set stays resumed until it has been read. Any other is read from its
        beginning.
        """
        epoch = whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch = epoch
            self._start_from(self._first_progress())

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what this rank reads. After a resumed epoch, the next iteration reads a whole epoch."""
        if self._reading is not None:  # an iteration has begun at `_start` already
            self._start = self._first_progress()
            self._is_finished = False
        start = self._start
        reader = self._reader()  # a later `set_epoch` does not affect an iterator that has begun

        def pieces() -> Iterator[Iterable[Any]]:
            # This runs when the first item is asked for: DataLoader makes iterators that it never uses, and those must
            # not count as begun.
            self._reading = _BegunIteration(start, reader, order)
            yield from reader._pieces(start)

        order = ReadingOrder.of(pieces())
        if self._is_finished:
            # Nothing is left to read. This iteration counts as begun, because a StatefulDataLoader whose own iterator
            # has also ended asks for a second one, which must read a whole epoch.
            order.pieces.is_finished = True
            self._reading = _BegunIteration(start, reader, order)
        return order

    def _reader(self) -> Self:
        """Return a copy for one iteration, which shares the arrays.

        `copy.copy` would call `__getstate__`, which computes where an earlier iteration is, for nothing.
        """
        reader = object.__new__(type(self))
        reader.__dict__.update(self.__dict__)
        reader._reading = None
        return reader

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy gets. It continues where this sampler is; iterators that have begun belong to this one.

        Without this, pickle would list what the iterator has not read yet.
        """
        fields = dict(self.__dict__)
        reading = self._reading
        if reading is not None:
            fields["_reading"] = None
            fields["_is_finished"] = False
            fields["_start"] = self._first_progress()
            # An iterator that was made before `set_epoch` may have begun after it.
            is_of_this_epoch = reading.reader.epoch == self.epoch
            if is_of_this_epoch and not reading.order.pieces.is_finished:
                fields["_start"] = reading.progress()
        return fields

    def state_dict(self) -> dict[str, Any]:
        """Return the state after everything that was read so far, the same on every rank that is at the same step.

        A loader reads ahead, so ask the loader for the state, as StatefulDataLoader does it, or count the items that
        were trained on and use `state_after`.
        """
        reading = self._reading
        if reading is None:
            return self._state(self._start, self.epoch, self._is_finished)
        return self._state(reading.progress(), reading.reader.epoch, is_finished=reading.order.pieces.is_finished)

    def state_after(self, trained: int) -> dict[str, Any]:
        """Return the state after each rank has trained on `trained` items since the start or the resumed position.

        Items are what the sampler returns: indices, or batches. Raises ValueError if the epoch has fewer.
        """
        start = self._start
        reader = self
        if self._reading is not None:
            start = self._reading.start
            reader = self._reading.reader
        trained = whole("trained", trained, 0, reader._num_items(start))
        return self._state(reader._progress_after(start, trained), reader.epoch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the state's epoch at its position, on this sampler's ranks, of any number.

        No sample is lost, and none is read twice except for the padding at the end of the epoch. If nothing of the
        state's epoch is left, the next iteration reads nothing, and the one after it a whole epoch. But if `set_epoch`
        has set a later epoch, that one is read from its beginning: loaders such as StatefulDataLoader load the state
        after `set_epoch`, when they are iterated.

        Raises ValueError for a state that is damaged, of another version, or of a sampler with other data, settings or
        seed.
        """
        of_type("state", state, dict)
        missing = [name for name in _STATE_FIELDS if name not in state]
        if missing:
            raise ValueError(f"the sampler's state lacks {', '.join(missing)}")
        check_version(state["version"], _VERSION)
        self._check_same_sampler(state)
        progress = of_type("progress", state["progress"], dict)
        epoch = whole("epoch", state["epoch"], 0)
        is_finished = truth("finished", state["finished"])
        epoch_that_was_set = self.epoch
        self.epoch = epoch  # whose order decides what is left
        try:
            start = self._checked_progress(progress)
            nothing_left = self._nothing_left(start)
            if is_finished and not nothing_left:
                raise ValueError(f"the state's epoch must be at its end if it is finished, got progress {progress!r}")
        except ValueError:
            self.epoch = epoch_that_was_set
            raise
        if nothing_left and epoch_that_was_set > epoch:
            self.epoch = epoch_that_was_set
            start = self._first_progress()
            is_finished = False
        self._start_from(start)
        self._is_finished = is_finished

    def _check_same_sampler(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless a state is of a sampler of this kind, with this data, settings and seed."""
        own = {"sampler": self._TITLE} | self._recipe_of_state()
        other = {"sampler": state["sampler"]} | of_type("recipe", state["recipe"], dict)
        differences = _differences(other, own)
        if not differences:
            return
        words = "; ".join(differences.values())
        if all(name in self._FIXED_SETTINGS for name in differences):
            raise ValueError(f"{', '.join(differences)} cannot change in the middle of an epoch: the state has {words}")
        raise ValueError(f"the state is of another sampler: {words}")

    def recipe(self) -> dict[str, Any]:
        """Return everything that must be the same on all ranks, so that they divide one order among them."""
        return {
            "sampler": self._TITLE,
            "num_replicas": self.num_replicas,
            "drop_last": self.drop_last,
            "epoch": self.epoch,
            **self._recipe_of_state(),
        }

    def check_ranks(self, all_gather: Callable[[Any], list[Any]] | None = None) -> None:
        """Raise ValueError on every rank unless the ranks' samplers divide one order among them.

        They must agree in everything except the rank, divide by as many ranks as there are, have each rank once, and
        begin at the same position. Each rank must call it. `all_gather` returns the values that all ranks pass to it;
        by default that is ``torch.distributed.all_gather_object``, which needs a process group.
        """
        gather = _all_gather
        if all_gather is not None:
            gather = function("all_gather", all_gather, "that returns the values of all ranks")
        facts = gather(self.facts())
        # torch's all_gather_object, passed as it is, returns None: it fills a list.
        is_list_of_facts = isinstance(facts, Sequence) and all(isinstance(fact, RankFacts) for fact in facts)
        if not is_list_of_facts or not facts:
            raise ValueError(f"all_gather must return the values of all ranks, a list, got {facts!r}")
        check_division(facts)

    def facts(self) -> RankFacts:
        """Return what `check_ranks` compares."""
        start = self._start
        if self._reading is not None:
            start = self._reading.start
        return RankFacts(self.rank, self.recipe(), start)

    def _state(self, progress: Progress, epoch: int, is_finished: bool = False) -> dict[str, Any]:
        """Return a state. `is_finished` says that the iterator has ended, and not only returned its last item."""
        return {
            "version": _VERSION,
            "sampler": self._TITLE,
            "epoch": epoch,
            "progress": progress,
            "finished": is_finished,
            "recipe": self._recipe_of_state(),
        }

    def _recipe_of_state(self) -> dict[str, Any]:
        """Return the data and settings that a state must agree with: values that JSON can store."""
        return {name: getattr(self, attribute) for name, attribute in self._RECIPE.items()}

    def _start_from(self, start: Progress) -> None:
        """Read the next iteration from `start`."""
        self._start = start
        self._reading = None
        self._is_finished = False  # whether a state was loaded whose iterator had ended, and nothing was read since

    def _position(self) -> tuple[int, Progress, _BegunIteration | None, bool]:
        return self.epoch, self._start, self._reading, self._is_finished

    def _return_to(self, position: tuple[int, Progress, _BegunIteration | None, bool]) -> None:
        self.epoch, self._start, self._reading, self._is_finished = position

    def _key(self, purpose: str) -> str:
        """Return the key of a random order for this seed and epoch. Without shuffle, all epochs have one key."""
        epoch = self.epoch if self.shuffle else 0
        return f"{purpose} of seed {self.seed}, epoch {epoch}"

    def __len__(self) -> int:
        """The number of items that this rank reads in the epoch, or in what is left of a resumed one."""
        return self._num_items(self._start)

    # What a kind of sampler defines:

    def all_ranks(self) -> RankReads:
        """Return what all ranks read in this epoch, or in what is left of a resumed one, in one pass."""
        raise NotImplementedError

    def _first_progress(self) -> Progress:
        """Return the progress at the beginning of an epoch."""
        raise NotImplementedError

    def _end_progress(self) -> Progress:
        """Return the progress at the end of an epoch, after which nothing is left, also of what `drop_last` drops."""
        raise NotImplementedError

    def _nothing_left(self, progress: Progress) -> bool:
        """Return whether these ranks read nothing more of the epoch."""
        raise NotImplementedError

    def _checked_progress(self, progress: Progress) -> Progress:
        """Return the progress of a loaded state. Raises ValueError if this epoch has no such place."""
        raise NotImplementedError

    def _progress_after(self, start: Progress, num_items: int) -> Progress:
        """Return the progress after each rank has read `num_items` items from `start`."""
        raise NotImplementedError

    def _num_items(self, start: Progress) -> int:
        """Return how many items each rank reads from `start` to the end of the epoch."""
        raise NotImplementedError

    def _pieces(self, start: Progress) -> Iterator[list[Any]]:
        """Yield this rank's items from `start` to the end of the epoch, in lists."""
        raise NotImplementedError


class InterleavedSampler(ElasticSampler):
    """The base of samplers with one order of items, in which rank r of N reads every N-th item, beginning with r.

    All ranks at the same step have read the first items of the order, so the progress is one number.
    """

    def _order_length(self) -> int:
        """Return the number of items in this epoch's order."""
        raise NotImplementedError

    def _order_blocks(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Yield the items at the positions ``range(start, stop, step)`` of the order, in blocks."""
        raise NotImplementedError

    @property
    def padding(self) -> int:
        """The number of items at the end of the epoch that all ranks together read a second time."""
        length = self._order_length()
        position = self._start["position"]
        num_left: int = length - position
        return max(self._num_items(self._start) * self.num_replicas - num_left, 0)

    def _first_progress(self) -> Progress:
        return {"position": 0}

    def _end_progress(self) -> Progress:
        return {"position": self._order_length()}

    def _nothing_left(self, progress: Progress) -> bool:
        return self._num_items(progress) == 0

    def _checked_progress(self, progress: Progress) -> Progress:
        return {"position": whole("position", progress.get("position"), 0, self._order_length())}

    def _progress_after(self, start: Progress, num_items: int) -> Progress:
        # After the last item, the epoch is at its end for any number of ranks, also with what `drop_last` drops. But if
        # nothing was left to read for these ranks, another number of ranks can still read what they would drop.
        if num_items and num_items == self._num_items(start):
            return self._end_progress()
        return {"position": start["position"] + num_items * self.num_replicas}

    def _num_items(self, start: Progress) -> int:
        return share(self._order_length() - start["position"], self.num_replicas, self.drop_last)

    def _pieces(self, start: Progress) -> Iterator[list[Any]]:
        num_items = self._num_items(start)
        first = start["position"] + self.rank
        stop = start["position"] + num_items * self.num_replicas
        stop_of_real = min(stop, self._order_length())  # what follows is padding
        for block in self._order_blocks(first, stop_of_real, self.num_replicas):
            for begin in range(0, block.size, _MOST_LISTED):
                yield block[begin : begin + _MOST_LISTED].tolist()
            del block  # so that its memory is free for the next one
        num_real = len(range(first, stop_of_real, self.num_replicas))  # this rank's items that are not padding
        if num_real < num_items:  # at most once, because padding is shorter than the number of ranks
            yield self._padding_items(first + num_real * self.num_replicas, stop)

    def _padding_items(self, first: int, stop: int) -> list[Any]:
        """Return this rank's items at positions after the end of the order, which repeat its beginning."""
        items = []
        for position in range(first, stop, self.num_replicas):
            repeated = position % self._order_length()
            for block in self._order_blocks(repeated, repeated + 1, 1):
                items += block.tolist()
        return items

    def all_ranks(self) -> RankReads:
        length = self._order_length()
        position = self._start["position"]
        stop = position + self._num_items(self._start) * self.num_replicas
        blocks = list(self._order_blocks(position, min(stop, length), 1))
        order = np.concatenate([np.empty(0, dtype=np.int64), *blocks])
        if stop > length:
            positions = np.arange(length, stop) % length  # padding repeats the beginning of the order
            num_repeated = int(positions.max()) + 1
            beginning = np.concatenate(list(self._order_blocks(0, num_repeated, 1)))
            order = np.concatenate([order, beginning[positions]])
        return RankReads(tuple(order[rank :: self.num_replicas] for rank in range(self.num_replicas)))


def check_same_recipes(recipes: Iterable[dict[str, Any]]) -> None:
    """Raise ValueError, naming a rank and what differs, if the ranks' samplers would not divide one order among them.

    >>> check_same_recipes([{"size": 10, "seed": 0}, {"size": 11, "seed": 0}])
    Traceback (most recent call last):
    ValueError: rank 1's sampler differs from rank 0's: size 11, not 10
    """
    first: dict[str, Any] | None = None
    for rank, recipe in enumerate(recipes):
        if first is None:
            first = recipe
        differences = _differences(recipe, first)
        if differences:
            words = "; ".join(differences.values())
            raise ValueError(f"rank {rank}'s sampler differs from rank 0's: {words}")


def check_division(facts: Sequence[RankFacts]) -> None:
    """Raise ValueError unless the samplers of all ranks, in the order of the ranks, divide one order among them.

    >>> recipe = {"sampler": "KeyedSampler", "num_replicas": 2}
    >>> check_division([RankFacts(0, recipe, {"position": 0}), RankFacts(0, recipe, {"position": 0})])
    Traceback (most recent call last):
    ValueError: the samplers must have the ranks 0 to 1, each once, got 0, 0
    """
    check_same_recipes([fact.recipe for fact in facts])
    num_replicas = facts[0].recipe["num_replicas"]
    if num_replicas != len(facts):
        advice = "construct them after init_process_group, or pass num_replicas and rank"
        raise ValueError(f"the samplers have num_replicas {num_replicas}, but there are {len(facts)} ranks: {advice}")
    ranks = [fact.rank for fact in facts]
    # In any order: a process may read another rank's part, as long as each part is read once.
    if sorted(ranks) != list(range(num_replicas)):
        words = ", ".join(map(str, ranks))
        raise ValueError(f"the samplers must have the ranks 0 to {num_replicas - 1}, each once, got {words}")
    for rank, fact in enumerate(facts):
        if fact.start != facts[0].start:
            positions = f"rank {rank}'s sampler begins at {fact.start}, rank 0's at {facts[0].start}"
            raise ValueError(f"{positions}: load the same state on every rank")


def _ranks_of_process_group() -> tuple[int, int]:
    """Return the number of ranks and this rank, of torch's process group if this process has initialized one.

    Without a group they are 1 and 0. Raises ValueError if WORLD_SIZE then says that there are several ranks.
    """
    if not _has_process_group():
        world_size = os.environ.get("WORLD_SIZE", "1")
        if world_size not in ("", "0", "1"):  # which name no other rank
            problem = f"WORLD_SIZE is {world_size}, but this process has no process group, so every rank would read all"
            raise ValueError(f"{problem}: call init_process_group before, or pass num_replicas and rank")
        return 1, 0
    distributed: Any = sys.modules["torch.distributed"]  # as in `_has_process_group`, which found it there
    num_replicas = int(distributed.get_world_size())
    return num_replicas, int(distributed.get_rank())


def _has_process_group() -> bool:
    # A process with a group has imported torch, so a process without one need not.
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())


def _all_gather(value: Any) -> list[Any]:
    if not _has_process_group():
        raise ValueError("check_ranks needs a process group: call init_process_group before, or pass all_gather")
    import torch.distributed as distributed

    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def check_version(version: Any, expected: int) -> None:
    """Raise ValueError unless this is the version of states that this library reads; True and 1.0 are not."""
    if type(version) is not int or version != expected:
        raise ValueError(f"the state must be of version {expected}, which this library reads, got version {version!r}")


def _differences(recipe: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries that differ from what is expected, each with words that say how.

    Values of another type differ: True and 1.0 are equal to 1, but no such state was saved.
    """
    words = {}
    for name, value in expected.items():
        if name not in recipe:
            words[name] = f"no {name}"
        elif type(recipe[name]) is not type(value) or recipe[name] != value:
            words[name] = f"{name} {recipe[name]!r}, not {value!r}"
    for name in recipe:
        if name not in expected:
            words[name] = f"an unknown entry {name!r}"
    return words
