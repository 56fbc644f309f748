"""Messages through the cards of their ranks: one after the other out of a card, and through a queue into the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple


class Sent(NamedTuple):
    """A message whose last byte has left, and how long that has still to wait before it is through the other card."""

    number: int
    queued_s: float


class _Queue:
    """Bytes that wait to get into a card, in seconds of its time; `num_senders` messages come at its full rate each."""

    def __init__(self) -> None:
        self.left_s = self.at_s = 0.0
        self.num_senders = 0

    def advance(self, to_s: float) -> None:
        self.left_s = max(0.0, self.left_s + (self.num_senders - 1) * (to_s - self.at_s))
        self.at_s = to_s


class Cards:
    """The messages under way. A card is any name; time is told to each call, and never goes back.

    Out of a card goes one message after the other, in the order in which they are added, each as if it were alone. What
    comes into a card from several others at the same time waits in a queue, as packets do in a switch.
    """

    def __init__(self) -> None:
        self._leaving: dict[Hashable, deque[tuple[int, Hashable, float]]] = {}
        self._free_s: dict[Hashable, float] = {}  # when all that has been added will have left
        self._queues: dict[Hashable, _Queue] = {}

    def add(self, number: int, out: Hashable, into: Hashable, alone_s: float, now_s: float) -> float | None:
        """Let a message go that takes `alone_s`; return when it will have left if it begins at once, or None."""
        line = self._leaving.setdefault(out, deque())
        line.append((number, into, alone_s))
        self._free_s[out] = max(now_s, self._free_s.get(out, 0.0)) + alone_s
        return self._begin(out, now_s) if len(line) == 1 else None

    def free_s(self, out: Hashable, now_s: float) -> float:
        """Return when a word, of no bytes, would leave this card: behind all that is there."""
        return max(now_s, self._free_s.get(out, 0.0))

    def leave(self, out: Hashable, now_s: float) -> tuple[Sent, float | None]:
        """End the message that is leaving this card, and return it with when the next will have left, or None."""
        line = self._leaving[out]
        number, into, _ = line.popleft()
        queue = self._queues[into]
        queue.advance(now_s)
        queue.num_senders -= 1
        return Sent(number, queue.left_s), self._begin(out, now_s) if line else None

    def _begin(self, out: Hashable, now_s: float) -> float:
        _, into, alone_s = self._leaving[out][0]
        queue = self._queues.setdefault(into, _Queue())
        queue.advance(now_s)
        queue.num_senders += 1
        return now_s + alone_s
