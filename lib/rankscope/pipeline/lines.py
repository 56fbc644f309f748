"""Where the threads of a run wait: queues and turns that can be stopped at any time.

All waiting is inside `queue.SimpleQueue`, which is written in C. So a hand-over takes a few microseconds; with
`queue.Queue` and its condition variables it would take tens of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol


class Stopped(Exception):
    """The run was stopped: a thread that gets this ends."""


class End(Exception):
    """There are no more items."""


class Item(NamedTuple):
    """An item on its way; `place` is its index in the items of its rank, `number` its number in spans and errors."""

    place: int
    number: int
    value: Any


class Lines:
    """All queues of a run. After `stop`, whoever waits for an entry, or comes to wait for one, gets Stopped."""

    def __init__(self) -> None:
        self.stopped = False
        self._queues: list[SimpleQueue[Any]] = []

    def new(self, num_entries: int = 0) -> SimpleQueue[Any]:
        """Return a queue with so many entries of None."""
        queue: SimpleQueue[Any] = SimpleQueue()
        for _ in range(num_entries):
            queue.put(None)
        self._queues.append(queue)
        return queue

    def get(self, queue: SimpleQueue[Any]) -> Any:
        entry = queue.get()
        self._check(queue)
        return entry

    def wait(self, queue: SimpleQueue[Any]) -> bool:
        """Take an entry; return whether it was not there yet."""
        had_to_wait = False
        try:
            queue.get_nowait()
        except Empty:
            had_to_wait = True
            queue.get()
        self._check(queue)
        return had_to_wait

    def _check(self, queue: SimpleQueue[Any]) -> None:
        if self.stopped:
            queue.put(None)  # so that the next thread that waits here wakes, too
            raise Stopped

    def stop(self) -> None:
        self.stopped = True  # before the entries below, so that a woken thread sees it
        for queue in self._queues:
            queue.put(None)


class Source(Protocol):
    """What a stage takes its items from: the user's items or a queue."""

    def take(self) -> Item:
        """Return the next item; raise End if there is none."""


class Target(Protocol):
    """What a stage hands its results to."""

    wait: str  # the kind of span in which a worker waits to hand on a result

    def put(self, item: Item) -> bool:
        """Hand on an item; return whether that took waiting."""

    def end(self) -> None:
        """Note that there are no more items."""


class UserItems:
    """The user's items. One thread at a time takes from them, and none after their end."""

    def __init__(self, values: Iterable[Any], numbers: Iterable[int] | None = None) -> None:
        self._items: Iterator[Item] = map(Item, count(), count() if numbers is None else numbers, values)
        self._lock = threading.Lock()
        self._ended = False

    def take(self) -> Item:
        with self._lock:
            item = None
            if not self._ended:
                item = next(self._items, None)
            if item is None:
                self._ended = True
                raise End
            return item


class Channel:
    """At most `capacity` items between two stages."""

    wait = "blocked"

    def __init__(self, lines: Lines, capacity: int) -> None:
        self._lines = lines
        self._items = lines.new()  # None is the end
        self._free_slots = lines.new(capacity)

    def put(self, item: Item) -> bool:
        had_to_wait = self._lines.wait(self._free_slots)
        self._items.put(item)
        return had_to_wait

    def take(self) -> Item:
        item: Item | None = self._lines.get(self._items)
        if item is None:
            self._items.put(None)  # for the other workers of the stage
            raise End
        self._free_slots.put(None)
        return item

    def end(self) -> None:
        self._items.put(None)


class Nowhere:
    """What the last stage of a single rank hands its results to."""

    wait = "blocked"

    def put(self, item: Item) -> bool:
        return False

    def end(self) -> None:
        pass


class Barrier:
    """Where the last stage of each rank hands its items on, each once all ranks with items left have come."""

    wait = "barrier"

    def __init__(self, lines: Lines, num_ranks: int) -> None:
        self._lines = lines
        self._num_left = num_ranks
        self._waiting: list[SimpleQueue[Any]] = []
        self._of_thread: dict[int, SimpleQueue[Any]] = {}  # in which each rank's only worker waits
        self._lock = threading.Lock()

    def put(self, item: Item) -> bool:
        thread = threading.get_ident()
        with self._lock:
            if thread not in self._of_thread:
                self._of_thread[thread] = self._lines.new()
            self._waiting.append(self._of_thread[thread])
            self._release()
        return self._lines.wait(self._of_thread[thread])

    def end(self) -> None:
        with self._lock:
            self._num_left -= 1
            self._release()

    def _release(self) -> None:
        if len(self._waiting) == self._num_left:
            for may_leave in self._waiting:
                may_leave.put(None)
            self._waiting.clear()


class Turns:
    """Turns that go round the workers of a stage: of taking an item, and of handing it on in the same order."""

    def __init__(self, lines: Lines, num_workers: int) -> None:
        self._lines = lines
        self._to_take = [lines.new() for _ in range(num_workers)]
        self._to_leave = [lines.new() for _ in range(num_workers)]
        self._to_take[0].put(None)
        self._to_leave[0].put(None)

    def take(self, worker: int, source: Source) -> Item:
        """Wait for the worker's turn, and return the next item."""
        self._lines.wait(self._to_take[worker])
        try:
            return source.take()
        finally:
            self._to_take[(worker + 1) % len(self._to_take)].put(None)

    def put(self, worker: int, item: Item, target: Target) -> bool:
        """Wait for the worker's turn, and hand on an item; return whether any of that took waiting."""
        waited_for_turn = self._lines.wait(self._to_leave[worker])
        waited_for_slot = target.put(item)
        self._to_leave[(worker + 1) % len(self._to_leave)].put(None)
        return waited_for_turn or waited_for_slot
