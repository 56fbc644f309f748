"""`HangFinding`: why a group stops, and the words that findings from logs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..common.words import one_line
from .log_lines import DEFAULT_GROUP

UNKNOWN = "unknown"
MOST_LISTED = 8  # ranks, calls or groups of which one finding says what they did


class HangFinding(NamedTuple):
    """Why a group stops at its `call`-th collective: the cause, the ranks to look at, those that came, a verdict.

    `group` is empty and `call` 0 if the finding is from logs whose text does not state them.
    """

    cause: str
    ranks: tuple[int, ...]
    group: str
    call: int
    came: tuple[int, ...]
    words: str


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def group_words(group: str | None) -> str:
    if group == DEFAULT_GROUP:
        return "the default group"
    return one_line(group) if group else "a group that the log does not name"


def odd_ranks(parties: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return the ranks that differ from most, and the others; of equal parties all ranks differ."""
    sizes = sorted((len(party) for party in parties), reverse=True)
    if len(sizes) > 1 and sizes[0] == sizes[1]:
        return sorted(rank for party in parties for rank in party), []
    usual = max(parties, key=len)
    return sorted(rank for party in parties if party is not usual for rank in party), sorted(usual)
