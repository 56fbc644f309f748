"""What threads of one run pass items through: bounded queues, a source, and turns, all of which can be stopped at once.

Everything that blocks does so inside `queue.SimpleQueue` or a lock, both written in C: a hand-over costs a few
microseconds, where `queue.Queue` and its condition variables cost tens.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Generator, Iterable, Iterator
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple


class Stopped(Exception):
    """The run was stopped: whoever gets this ends."""


class End(Exception):
    """No more items will come."""


class Item(NamedTuple):
    """`place` is the item's among those of its rank, `number` what spans and errors call it."""

    place: int
    number: int
    value: Any


class Queue:
    """At most `capacity` items between stages; takes as many ends as there are takers."""

    wait = "blocked"  # the kind of the span of a worker that finds no room

    def __init__(self, capacity: int, num_takers: int) -> None:
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self._num_takers, self._stopped = num_takers, False
        for _ in range(capacity):
            self._room.put(None)

    def put(self, item: Item) -> bool:
        """Put the item there as soon as there is room; say whether that had to be waited for."""
        waits = False
        try:
            self._room.get_nowait()
        except Empty:
            waits = True
            self._room.get()
            if self._stopped:
                raise Stopped from None
        self._items.put(item)
        return waits

    def take(self) -> Item:
        """Wait for an item, and make room."""
        item = self._items.get()
        if self._stopped:
            raise Stopped
        if item is None:
            raise End
        self._room.put(None)
        return item

    def end(self) -> None:
        for _ in range(self._num_takers):
            self._items.put(None)

    def stop(self, num_waiting: int) -> None:
        """Wake everybody who waits here, up to that many."""
        self._stopped = True
        for _ in range(num_waiting):
            self._items.put(None)
            self._room.put(None)


class Source:
    """The items that come in from outside; taken from one thread at a time, and not asked after their end."""

    def __init__(self, items: Iterable[Any], numbers: Iterable[int] | None = None) -> None:
        if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            raise ValueError(f"items must be something that can be iterated over, got {items!r}")
        self._given = iter(items)
        self._items: Iterator[Item] = map(Item, count(), count() if numbers is None else numbers, self._given)
        self._lock, self._stopped, self._ended = allocate_lock(), False, False

    def take(self) -> Item:
        with self._lock:
            if self._stopped:
                raise Stopped
            if self._ended:
                raise End
            try:
                return next(self._items)
            except StopIteration:
                self._ended = True
                raise End from None

    def stop(self, num_waiting: int) -> None:
        self._stopped = True

    def close(self) -> None:
        """Close a generator, so that it releases what it holds; not one in which a thread still is."""
        if isinstance(self._given, Generator) and self._lock.acquire(False):
            try:
                self._given.close()
            finally:
                self._lock.release()


class Turns:
    """Items of a stage leave in the order in which they were taken, whoever is done first.

    With an item comes its turn, a pair of locks: the one that the item before it releases, and its own.
    """

    def __init__(self, source: Queue | Source) -> None:
        self._source, self._lock, self._last = source, allocate_lock(), allocate_lock()

    def take(self) -> tuple[Item, LockType, LockType]:
        own = allocate_lock()
        own.acquire()
        with self._lock:
            item = self._source.take()
            before, self._last = self._last, own
        return item, before, own


class Lockstep:
    """What the last stage of each rank hands its items to: nobody goes on before all that have items left have come."""

    wait = "barrier"  # the kind of the span of a worker that waits for other ranks

    def __init__(self, num_ranks: int) -> None:
        self._lock, self._left, self._stopped = allocate_lock(), num_ranks, False
        self._waiting: list[SimpleQueue[bool]] = []

    def put(self, item: Item) -> bool:
        """Return once all have come; say whether they had to be waited for."""
        with self._lock:
            if self._stopped:
                raise Stopped
            if len(self._waiting) + 1 >= self._left:
                self._call()
                return False
            call: SimpleQueue[bool] = SimpleQueue()
            self._waiting.append(call)
        if not call.get():
            raise Stopped
        return True

    def end(self) -> None:
        """Wait no longer for one of the ranks: it has no items left."""
        with self._lock:
            self._left -= 1
            if len(self._waiting) >= self._left:
                self._call()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._call()

    def _call(self) -> None:
        for call in self._waiting:
            call.put(not self._stopped)
        self._waiting.clear()
