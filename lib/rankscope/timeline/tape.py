"""`Tape`: spans on lanes, each of which begins once its lane is free and what it waits for is over: a model's clock."""

from __future__ import annotations

from collections import defaultdict

from .spans import Span
from .timeline import Timeline


class Tape:
    """What each lane of each rank does, in the order in which it is added; `free_s` says when a lane is free.

    Times may be of any type of number, such as fractions.

    >>> tape = Tape()
    >>> loaded_s = tape.add(0, "loader", "load", 0, 2.0)
    >>> tape.wait(0, "trainer", "wait", 0, loaded_s)
    2.0
    >>> tape.add(0, "trainer", "step", 0, 1.0)
    3.0
    """

    def __init__(self) -> None:
        self.free_s: defaultdict[tuple[int, str], float] = defaultdict(int)
        self.spans: list[Span] = []

    def add(self, rank: int, lane: str, kind: str, item: int, seconds: float, after_s: float = 0) -> float:
        """Add a span that takes so long and begins at `after_s` or later; return when it ends."""
        start_s = max(self.free_s[rank, lane], after_s)
        stop_s = start_s + seconds
        self.free_s[rank, lane] = stop_s
        self.spans.append(Span(rank, lane, kind, item, start_s, stop_s))
        return stop_s

    def wait(self, rank: int, lane: str, kind: str, item: int, until_s: float) -> float:
        """Add a span in which the lane waits until then, of length 0 if it is not free before; return when it ends."""
        start_s = self.free_s[rank, lane]
        stop_s = max(start_s, until_s)
        self.free_s[rank, lane] = stop_s
        self.spans.append(Span(rank, lane, kind, item, start_s, stop_s))
        return stop_s

    def timeline(self) -> Timeline:
        return Timeline.of(self.spans)
