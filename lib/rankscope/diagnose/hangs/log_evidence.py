"""`facts_of`: what the lines of logs state, by the kinds of the table; and findings with the lines that show them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from .groups import HangFinding
from .log_kinds import KINDS
from .log_lines import Line

UNKNOWN = "unknown"
_PATTERNS = {name: re.compile(kind.pattern, re.MULTILINE) for name, kind in KINDS.items()}
_MOST_QUOTED = 6  # lines of a log below an answer
_QUOTED = 220  # letters of each


class Fact(NamedTuple):
    """What a line, or a block of lines, states: the values of its kind by name, of which some may be missing."""

    kind: str
    line: Line
    values: dict[str, str]

    def number(self, name: str) -> int | None:
        return int(self.values[name]) if name in self.values else None


Facts = dict[str, list[Fact]]


def facts_of(lines: list[Line]) -> Facts:
    """Return what the last attempt of torchrun states, or what all lines do if that is nothing."""
    restart = _PATTERNS["restart"]
    last = {line.labels["log"]: place for place, line in enumerate(lines) if restart.search(line.text)}
    facts = _all_facts([line for place, line in enumerate(lines) if place > last.get(line.labels["log"], -1)])
    return facts if any(facts.values()) else _all_facts(lines)


def _all_facts(lines: list[Line]) -> Facts:
    """Return all facts by kind, in the order of the lines; a block is of the lines with the same labels."""
    texts_of = defaultdict[str, list[Line]](list)
    for line in lines:
        texts_of[str(line.labels)].append(line)
    blocks = [said[0]._replace(text="\n".join(line.text for line in said)) for said in texts_of.values()]
    facts: Facts = {}
    for name, kind in KINDS.items():
        facts[name] = []
        for line in blocks if kind.is_block else lines:
            facts[name] += [_fact(name, line, match) for match in _PATTERNS[name].finditer(line.text)]
    return facts


def _fact(name: str, line: Line, match: re.Match[str]) -> Fact:
    values = {key.rstrip("0123456789"): value for key, value in match.groupdict().items() if value is not None}
    if "num_in" in values:
        values["size"] = " to ".join(dict.fromkeys([values["num_in"], values["num_out"]]))
    if "who" in values:
        values["who"] = re.sub(r"[_:=]+ ?", " ", values["who"])
    text = match[0][-_QUOTED:]
    if not KINDS[name].is_block:
        text = line.text[max(0, match.start() - _QUOTED // 2) :]
    return Fact(name, line._replace(text=text), values)


def finding_of(
    cause: str, ranks: Collection[int], words: str, found: Iterable[Fact], is_certain: bool = True
) -> HangFinding:
    """Return a finding with the lines that show it, shortened."""
    lines = []
    for fact in found:
        label = "" if fact.line.rank is None else f"rank {fact.line.rank}: "
        lines.append(label + " ".join(fact.line.text.split())[:_QUOTED])
    sentence = f"{words[0].upper()}{words[1:]}" + "." * (words[-1] not in ".?")
    quoted = tuple(dict.fromkeys(lines))[:_MOST_QUOTED]
    return HangFinding(cause, tuple(sorted(ranks)), sentence, is_certain=is_certain, lines=quoted)


def unknown(why: str, found: Iterable[Fact]) -> HangFinding:
    return finding_of(
        UNKNOWN,
        (),
        f"the log does not show which rank is wrong, and rankscope cannot tell, because {why}",
        found,
        is_certain=False,
    )


def speakers(facts: Iterable[Fact]) -> set[int]:
    return {fact.line.rank for fact in facts if fact.line.rank is not None}


def in_job(facts: Iterable[Fact]) -> bool:
    """Return whether ranks give themselves the number in their group that they have in the job."""
    return all(fact.line.rank in (None, fact.number("by")) for fact in facts if "by" in fact.values)
