"""Queues, sources and turns, through which the threads of a run pass items, and which can be stopped at any time.

All waiting is inside `queue.SimpleQueue` or a lock, both of which are written in C. So a hand-over takes a few
microseconds; with `queue.Queue` and its condition variables it would take tens of them.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Generator, Iterable, Iterator
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple


class Stopped(Exception):
    """The run was stopped: a thread that gets this ends."""


class End(Exception):
    """There are no more items."""


class Item(NamedTuple):
    """An item on its way; `position` is its index in the items of its rank, `number` its number in spans and errors."""

    position: int
    number: int
    value: Any


class Queue:
    """At most `capacity` items between two stages. Each of the `num_takers` threads that take items gets an end."""

    wait = "blocked"  # the kind of span in which a worker waits until the queue has a free slot

    def __init__(self, capacity: int, num_takers: int) -> None:
        self._items: SimpleQueue[Item | None] = SimpleQueue()  # None is an end
        self._free_slots: SimpleQueue[None] = SimpleQueue()  # an entry for each item that fits in
        self._num_takers = num_takers
        self._stopped = False
        for _ in range(capacity):
            self._free_slots.put(None)

    def put(self, item: Item) -> bool:
        """Add an item as soon as a slot is free; return whether the caller had to wait for that.

        If there is a free slot, it is added even after `stop`, which does no harm: nobody takes it.
        """
        had_to_wait = False
        try:
            self._free_slots.get_nowait()
        except Empty:
            had_to_wait = True
            self._free_slots.get()
            if self._stopped:  # the entry may be that of `stop`
                raise Stopped from None
        self._items.put(item)
        return had_to_wait

    def take(self) -> Item:
        """Wait for an item, free its slot, and return it."""
        item = self._items.get()
        if self._stopped:
            raise Stopped
        if item is None:
            raise End
        self._free_slots.put(None)
        return item

    def end(self) -> None:
        for _ in range(self._num_takers):
            self._items.put(None)

    def stop(self, num_waiting: int) -> None:
        """Wake the threads that wait for items or for a free slot, at most `num_waiting` in all."""
        self._stopped = True  # before the entries below, so that a woken thread sees it
        for _ in range(num_waiting):
            self._items.put(None)
            self._free_slots.put(None)


class Source:
    """The user's items. One thread at a time takes from them, and none after their end."""

    def __init__(self, items: Iterable[Any], numbers: Iterable[int] | None = None) -> None:
        if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            raise ValueError(f"items must be something that can be iterated over, got {items!r}")
        self._values = iter(items)
        if numbers is None:
            numbers = count()
        self._items: Iterator[Item] = map(Item, count(), numbers, self._values)
        self._lock = allocate_lock()
        self._stopped = False
        self._ended = False

    def take(self) -> Item:
        """Return the next item; raise End if there is none, and Stopped after `stop`."""
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
        """Let no thread take another item. Those that wait for the lock need no waking, unlike those of a `Queue`."""
        self._stopped = True

    def close(self) -> None:
        """Close a generator, so that it releases its resources, unless a thread is still running it."""
        if isinstance(self._values, Generator) and self._lock.acquire(blocking=False):
            try:
                self._values.close()
            finally:
                self._lock.release()


class Turn(NamedTuple):
    """An item and two locks for its turn. Whoever acquires `previous_has_left` may let the item leave.

    The item before this one releases `previous_has_left` when it leaves; then this one must release `has_left`.
    """

    item: Item
    previous_has_left: LockType
    has_left: LockType


class Turns:
    """Makes the items of a stage leave in the order in which they were taken, whichever is done first."""

    def __init__(self, source: Queue | Source) -> None:
        self._source = source
        self._lock = allocate_lock()
        self._last_has_left = allocate_lock()  # of the item that was taken last; at first, a lock that is free

    def take(self) -> Turn:
        """Wait for an item of the source, and return it with its turn, which comes after those of all earlier items."""
        has_left = allocate_lock()
        has_left.acquire()
        with self._lock:
            item = self._source.take()
            previous_has_left = self._last_has_left
            self._last_has_left = has_left
        return Turn(item, previous_has_left, has_left)


class Lockstep:
    """The barrier to which the last stage of each rank hands its items, each of which waits for all other ranks.

    A rank that has no items left is not waited for.
    """

    wait = "barrier"  # the kind of span in which a worker waits for other ranks

    def __init__(self, num_ranks: int) -> None:
        self._lock = allocate_lock()
        self._num_left = num_ranks
        self._stopped = False
        # A queue for each rank that waits. It gets one entry: True to continue, or False if the run was stopped.
        self._waiting: list[SimpleQueue[bool]] = []

    def put(self, item: Item) -> bool:
        """Return once all ranks that have items left have arrived; return whether this one had to wait for them."""
        with self._lock:
            if self._stopped:
                raise Stopped
            if len(self._waiting) + 1 >= self._num_left:  # this rank is the last to arrive
                self._release()
                return False
            released: SimpleQueue[bool] = SimpleQueue()
            self._waiting.append(released)
        if not released.get():
            raise Stopped
        return True

    def end(self) -> None:
        """Stop waiting for one of the ranks, which has no items left."""
        with self._lock:
            self._num_left -= 1
            if len(self._waiting) >= self._num_left:  # the others wait only for this one
                self._release()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._release()

    def _release(self) -> None:
        for released in self._waiting:
            released.put(not self._stopped)
        self._waiting.clear()
