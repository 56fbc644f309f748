"""Messages that share the cards of their ranks as packets do: all that go through a card get an equal share of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_TINY = 1e-12


@dataclass
class Flow:
    """A message's bytes on their way: seconds that its link would still need alone, and its share of that link."""

    cards: tuple[Hashable, ...]
    left_s: float
    share: float = 0.0


class Cards:
    """The messages under way; time moves on with `advance`. A card is any name, and carries 1 s of bytes a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._flows: dict[int, Flow] = {}

    def add(self, number: int, cards: tuple[Hashable, ...], alone_s: float) -> None:
        """Let a message begin that takes `alone_s` where nothing else goes through its cards."""
        self._flows[number] = Flow(cards, alone_s)
        self._divide()

    def next_s(self) -> float:
        """Return when the next message will be through, if none begins before; infinite where there is none."""
        ends_s = [flow.left_s / flow.share for flow in self._flows.values()]
        return self.now_s + min(ends_s) if ends_s else float("inf")

    def advance(self, to_s: float) -> list[int]:
        """Move on to a time up to `next_s`, and return the messages that are through."""
        passed_s, self.now_s = to_s - self.now_s, to_s
        done = []
        for number, flow in self._flows.items():
            flow.left_s -= passed_s * flow.share
            if flow.left_s <= _TINY * max(1.0, to_s):
                done.append(number)
        for number in done:
            del self._flows[number]
        if done:
            self._divide()
        return done

    def _divide(self) -> None:
        """Give each message its max-min fair share: fill the card with the least for each first, then the others."""
        waiting = dict.fromkeys(self._flows)
        room: dict[Hashable, float] = {}
        users: dict[Hashable, list[int]] = {}
        for number, flow in self._flows.items():
            flow.share = 1.0
            for card in flow.cards:
                room[card] = 1.0
                users.setdefault(card, []).append(number)
        while users:
            full = min(users, key=lambda card: room[card] / len(users[card]))
            each = room[full] / len(users[full])
            for number in users.pop(full):
                self._flows[number].share = each
                del waiting[number]
                for card in self._flows[number].cards:
                    if card in users:
                        room[card] -= each
                        users[card].remove(number)
                        if not users[card]:
                            del users[card]
