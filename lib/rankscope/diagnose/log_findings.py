"""What rules on logs have in common: findings with the lines that show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .hang_groups import HangFinding
from .log_evidence import KINDS, Fact

UNKNOWN = "unknown"
_MOST_QUOTED = 6  # lines of a log below an answer
_QUOTED = 220  # letters of each


def finding_of(
    cause: str, ranks: Collection[int], words: str, found: Sequence[Fact], is_certain: bool = True
) -> HangFinding:
    """Return a finding with the lines that show it, shortened."""
    lines: dict[str, None] = {}
    for fact in found:
        label = "" if fact.line.rank is None else f"rank {fact.line.rank}: "
        text = " ".join(fact.line.text.split())
        lines[label + (text[-_QUOTED:] if KINDS[fact.kind].is_block else text[:_QUOTED])] = None
    sentence = f"{words[0].upper()}{words[1:]}" + "." * (words[-1] not in ".?")
    quoted = tuple(lines)[:_MOST_QUOTED]
    return HangFinding(cause, tuple(sorted(ranks)), sentence, is_certain=is_certain, lines=quoted)


def unknown(why: str, found: Sequence[Fact]) -> HangFinding:
    return finding_of(UNKNOWN, (), f"rankscope cannot tell which rank is wrong: {why}", found, is_certain=False)


def speakers(facts: Iterable[Fact]) -> set[int]:
    return {fact.line.rank for fact in facts if fact.line.rank is not None}


def in_job(facts: Iterable[Fact]) -> bool:
    """Return whether ranks give themselves the number in their group that they have in the job."""
    return all(fact.line.rank in (None, fact.number("by")) for fact in facts if "by" in fact.values)
