"""What all audits share: findings, and what to do with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod, sqrt
from typing import Any, ClassVar, NamedTuple

from ...common.checks import several
from ..samplers.permutation import IntArray

_LEAST_LOST = 8  # of orders of their own: with fewer samples, other faults lose as many


class AuditError(ValueError):
    """An audit has findings that are not allowed."""


class Finding(NamedTuple):
    """One finding: `kind` is the word that allows it, `message` describes it with its figures."""

    kind: str
    message: str


class Findings:
    """The base of all audits: findings, each of one of its `KINDS`, and what to do with them."""

    KINDS: ClassVar[tuple[str, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return tuple(self._found())

    def _found(self) -> Iterator[Finding]:
        raise NotImplementedError

    def not_allowed(self, allow: Iterable[str] = ()) -> list[Finding]:
        """Return the findings of kinds that are not allowed. Raises ValueError for a kind that does not exist."""
        allowed = several("allow", allow, "kinds of findings")
        unknown = [kind for kind in allowed if kind not in self.KINDS]
        if unknown:
            raise ValueError(f"allow takes kinds out of {', '.join(self.KINDS)}, got {', '.join(map(str, unknown))}")
        return [finding for finding in self.findings if finding.kind not in allowed]

    def check(self, allow: Iterable[str] = ()) -> None:
        """Raise AuditError unless every finding's kind is allowed; ValueError for a kind that does not exist."""
        messages = [finding.message for finding in self.not_allowed(allow)]
        if messages:
            raise AuditError("; ".join(messages))

    def report(self, head: str, nothing: str) -> str:
        """Return the line `head` and a line for each finding, or the line `nothing` if there is none."""
        lines = [f"  {finding.kind.replace('_', ' ')}: {finding.message}" for finding in self.findings]
        if not lines:
            lines = [f"  {nothing}"]
        return "\n".join([head, *lines])


def some(values: Sequence[Any] | IntArray) -> str:
    """Return the first values in words.

    >>> some(range(20))
    '0, 1, 2, 3, 4, 5, 6, 7, … (20 in all)'
    """
    shown = ", ".join(map(str, values[:8]))
    if len(values) <= 8:
        return shown
    return f"{shown}, … ({len(values)} in all)"


def own_orders(ranks: Sequence[Sequence[Any]], num_lost: int) -> str:
    """Return words for a hint if each rank seems to take its share of an order of its own, and "" otherwise.

    Then no rank reads in the dataset's order or any sample twice, each shares some of its samples with others, and
    together they lose as many as independent random shares do, within three standard deviations. Such a deviation is at
    most half of the root of that number. Samples with names have no order, so they are not judged.
    """
    readers = Counter(index for reads in ranks for index in reads)
    if not all(isinstance(index, int) for index in readers):
        return ""
    size = len(readers) + num_lost
    for reads in ranks:
        num_shared = sum(readers[index] > 1 for index in reads)
        if not 0 < num_shared < len(reads) or len(set(reads)) < len(reads) or sorted(reads) == reads:
            return ""
    expected = size * prod(1 - len(reads) / size for reads in ranks)
    if expected < _LEAST_LOST or abs(num_lost - expected) > 1.5 * sqrt(expected):
        return ""
    return ", as if each rank shuffled for itself: is the seed the same on all ranks?"
