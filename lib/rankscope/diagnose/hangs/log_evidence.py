"""`facts_of`: what the lines of logs state, by the kinds of the table; and findings with the lines that show them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ...common.words import listed
from .groups import HangFinding
from .log_kinds import KINDS
from .log_lines import Line

UNKNOWN = "unknown"
LAST_LINES = "last lines"  # of each rank that has lines: a kind of facts that is not in the table
_RESTART = "will restart worker group"
_PATTERNS = {name: re.compile(kind.pattern, re.MULTILINE) for name, kind in KINDS.items()}
_MOST_QUOTED = 6  # lines of a log below an answer
_QUOTED = 220  # letters of each
_NEAR = 50  # lines of a process before and after an error, which show whether it went on
_NUMBERS = re.compile(r"\d[\d.,:/%]*")
# What a process may print after an error that ends it: more of the message, and words of runtimes and launchers
_AFTER_THE_END = re.compile(
    r"\s*$|[ \t]|\W*$|CUDA kernel errors|For debugging|Compile with|Device-side|Search for|Exception |frame #"
    r"|Last error"
    r"|Original |Traceback|During handling|The above|[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit)\b"
    r"|[=*#-]{3}|terminate|Abort|Killed|Segmentation|Fatal|srun|slurm|wandb|mpi|ncclUn|ncclSys|ncclInt|ncclRem|ncclInv"
    r"|.*[Ww]arning|\[c10d|\[?\w*(?:Rank|PG) |\[[EWIF]\d|\S*$"
)


class Fact(NamedTuple):
    """What a line, or a block of lines, states: the values of its kind by name, of which some may be missing.

    `place` is that of its last line among all lines.
    """

    kind: str
    line: Line
    values: dict[str, str]
    place: int = 0

    def number(self, name: str) -> int | None:
        return int(self.values[name]) if name in self.values else None


Facts = Mapping[str, list[Fact]]


def facts_of(lines: Sequence[Line]) -> Facts:
    """Return what the last attempt of torchrun states, or what all lines do if that is nothing."""
    last = {line.labels["log"]: place for place, line in enumerate(lines) if _RESTART in line.text}
    facts = _all_facts([line for place, line in enumerate(lines) if place > last.get(line.labels["log"], -1)])
    is_empty = not any(found for kind, found in facts.items() if kind != LAST_LINES)
    return _all_facts(lines) if last and is_empty else facts


def _all_facts(lines: Sequence[Line]) -> Facts:
    """Return all facts by kind, in the order of the lines; a block is of the lines of one process."""
    text = "\n".join(line.text for line in lines)
    starts = [0, *accumulate(len(line.text) + 1 for line in lines)]
    places_of = defaultdict[object, list[int]](list)
    for place, line in enumerate(lines):
        places_of[line.process].append(place)
    facts: dict[str, list[Fact]] = {}
    for name, kind in KINDS.items():
        found = sorted({place for literal in kind.literals.split("|") for place in _places(text, literal, starts)})
        blocks = [[place] for place in found]
        if r"\n" in kind.pattern:
            blocks = [places_of[process] for process in dict.fromkeys(lines[place].process for place in found)]
        facts[name] = [fact for block in blocks for fact in _facts_in(name, block, lines)]
    for fact in facts["error"] + facts["last line"]:
        fact.values["then"] = _then(lines, places_of[fact.line.process], fact.place)
    last_of = {lines[places[-1]].rank: lines[places[-1]] for places in places_of.values()}
    facts[LAST_LINES] = [Fact(LAST_LINES, line, {}) for rank, line in last_of.items() if rank is not None]
    return facts


def _places(text: str, literal: str, starts: Sequence[int]) -> Iterator[int]:
    """Return the places of the lines that have a literal; each starts where `starts` says."""
    at = text.find(literal)
    while at >= 0:
        place = bisect_right(starts, at) - 1
        yield place
        at = text.find(literal, starts[place + 1])


def _facts_in(name: str, places: Sequence[int], lines: Sequence[Line]) -> Iterator[Fact]:
    """Return the facts of a kind in these lines of one process, taken together."""
    text = "\n".join(lines[place].text for place in places)
    line = lines[places[0]]
    for match in _PATTERNS[name].finditer(text):
        values = {key.rstrip("0123456789"): value for key, value in match.groupdict().items() if value is not None}
        if "num_in" in values:
            values["size"] = " to ".join(dict.fromkeys([values["num_in"], values["num_out"]]))
        if "who" in values:
            values["who"] = re.sub(r"[_:=]+ ?", " ", values["who"])
        quoted = match[0][-_QUOTED:] if len(places) > 1 else text[max(0, match.start() - _QUOTED // 2) :]
        yield Fact(name, line._replace(text=quoted), values, places[text.count("\n", 0, match.end())])


def _then(lines: Sequence[Line], places: Sequence[int], place: int) -> str:
    """Say what a process printed after an error: nothing that matters, "lines", or "steps", which go on."""
    at = bisect_right(places, place)
    near = [lines[other] for other in places[max(0, at - _NEAR) : at + _NEAR]]
    after = [
        line.text for line in near[min(at, _NEAR) :] if not (line.second_of_year or _AFTER_THE_END.match(line.text))
    ]
    shapes = Counter(_NUMBERS.sub("0", text) for text in {line.text for line in near})
    if any(shapes[_NUMBERS.sub("0", text)] > 1 for text in after):
        return "steps"
    return "lines" if after else ""


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


def quiet(facts: Facts, waiting: Collection[int]) -> list[HangFinding]:
    """Name the ranks that have lines, and none of those that show a wait or an end, while others wait.

    There must be no more of them than wait, as the ranks of a small group may be the only ones that do.
    """
    said = speakers(
        fact
        for kind, found in facts.items()
        for fact in found
        if kind != LAST_LINES and not fact.values.get("then")  # an error that was caught says nothing
    )
    last = [fact for fact in facts[LAST_LINES] if fact.line.rank not in {*waiting, *said}]
    if not 0 < len(last) <= len(waiting) or any(_AFTER_THE_END.match(fact.line.text) for fact in last):
        return []
    ranks = speakers(last)
    quotes = "; ".join(f"rank {fact.line.rank} printed “{fact.line.text.strip()[:_QUOTED]}” last" for fact in last)
    words = f"as far as lines show, {listed('rank', ranks)} did not come to what others wait in: {quotes}"
    return [finding_of("silent", ranks, words, last, is_certain=False)]


def odd_ones(cause: str, said: Mapping[int, str], found: Iterable[Fact], is_certain: bool = True) -> HangFinding:
    """Name the ranks that said something else than more than half of them, or all, if there is no such half."""
    (usual, count), *_ = Counter(said.values()).most_common(1)
    is_tie = 2 * count <= len(said)
    odd = [rank for rank, what in said.items() if is_tie or what != usual]
    ranks_of = defaultdict[str, list[int]](list)
    for rank, what in sorted(said.items()):
        ranks_of[what].append(rank)
    each = "; ".join(f"{listed('rank', ranks)}: {what}" for what, ranks in ranks_of.items())
    advice = "rankscope cannot tell which is wrong" if is_tie else f"look at {listed('rank', odd)} first"
    words = f"ranks differ in the {cause}: {each}; {advice}"
    return finding_of(cause, odd, words, found, is_certain and not is_tie)
