"""Where the threads of a run wait: queues that can be stopped at any time.

All waiting is inside `queue.SimpleQueue`, which is written in C. So a hand-over takes a few microseconds; with
`queue.Queue` and its condition variables it would take tens of them.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any, NamedTuple


class Stopped(Exception):
    """The run was stopped: a thread that gets this ends."""


class Lines:
    """All queues of a run. After `stop`, whoever waits for an entry, or comes to wait for one, gets Stopped."""

    def __init__(self) -> None:
        self._stopped = False
        self._queues: list[SimpleQueue[Any]] = []

    def new(self, num_entries: int = 0) -> SimpleQueue[Any]:
        """Return a queue with so many entries of None."""
        queue: SimpleQueue[Any] = SimpleQueue()
        for _ in range(num_entries):
            queue.put(None)
        self._queues.append(queue)
        return queue

    def get(self, queue: SimpleQueue[Any]) -> tuple[Any, bool]:
        """Return the next entry, and whether it was not there yet."""
        had_to_wait = queue.empty()
        entry = queue.get()
        if self._stopped:
            queue.put(None)  # so that the next thread that waits here wakes, too
            raise Stopped
        return entry, had_to_wait

    def stop(self) -> None:
        self._stopped = True  # before the entries below, so that a woken thread sees it
        for queue in self._queues:
            queue.put(None)


class Item(NamedTuple):
    """An item on its way, and its number."""

    number: int
    value: Any


class Channel:
    """At most `capacity` items between two stages. It is an iterator for the second one."""

    def __init__(self, lines: Lines, capacity: int) -> None:
        self._lines = lines
        self._items = lines.new()  # None is the end
        self._free_slots = lines.new(capacity)

    def put(self, item: Item) -> bool:
        """Add an item once there is a free slot; return whether that took waiting."""
        _, had_to_wait = self._lines.get(self._free_slots)
        self._items.put(item)
        return had_to_wait

    def end(self) -> None:
        self._items.put(None)

    def __iter__(self) -> Channel:
        return self

    def __next__(self) -> Item:
        """Return the next item, and free its slot."""
        item: Item | None = self._lines.get(self._items)[0]
        if item is None:
            self.end()  # for the other workers of the stage
            raise StopIteration
        self._free_slots.put(None)
        return item


class Turn(NamedTuple):
    """A worker's turn: it waits for an entry in `mine`, and then lets the next worker have its turn."""

    mine: SimpleQueue[Any]
    next: SimpleQueue[Any]


def round_of_turns(lines: Lines, num_workers: int) -> list[Turn]:
    """Return the turn of each worker, one after the other and round again."""
    queues = [lines.new(1 if worker == 0 else 0) for worker in range(num_workers)]
    return [Turn(queue, queues[(worker + 1) % num_workers]) for worker, queue in enumerate(queues)]
