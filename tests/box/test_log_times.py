"""Reading a log takes time in proportion to its length, whatever stands in it.

Patterns are found in the modules of the readers, and long lines are derived from each pattern; logs are derived from
an example of each reader in `READERS`. A new pattern or reader is therefore covered without a change here, except that
a reader needs an example in `logs_made`. The readers of rare logs, which make the bank, are tested as well.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import random
import re
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest

from rankscope import provenance
from rankscope.box import expected, link_facts, logs, nccl
from rankscope.box.nccl import log as nccl_log
from rankscope.box.nccl import topology as nccl_topology
from tests.tools import rare_logs
from tests.tools.rare_logs import ALL as READERS
from tests.tools.rare_logs import read as read_log

from . import logs_made as made

MOST_RATIO = 6.0  # four times the input may cost less than this; a quadratic reader takes 16 times as long
REPEATS = 5


def seconds(call: Callable[[str], object], text: str) -> float:
    """Return the CPU time of a call, which other processes do not change much."""
    start = time.process_time()
    with suppress(ValueError):
        call(text)
    return time.process_time() - start


def takes_less(call: Callable[[str], object], text: str, most_s: float) -> bool:
    """Return whether a call takes less than so long at least once in `REPEATS` times: others may disturb it."""
    return any(seconds(call, text) < most_s for _ in range(REPEATS))


def is_linear(call: Callable[[str], object], attack: Callable[[int], str], num_chars: int, quick_s: float) -> bool:
    """Return whether four times the input costs less than `MOST_RATIO` times the time, the best of several repeats.

    `attack` makes a text of about so many characters. A call that handles four times `num_chars` within `quick_s` is
    linear: at these sizes a quadratic one takes many times as long.
    """
    if not takes_less(call, attack(20), quick_s + 0.05):
        return False  # exponential: longer inputs would never end
    small, large = attack(num_chars), attack(4 * num_chars)
    large_s = seconds(call, large)
    if large_s < quick_s:
        return True
    small_s = seconds(call, small)
    for _ in range(REPEATS - 1):
        small_s, large_s = min(small_s, seconds(call, small)), min(large_s, seconds(call, large))
        if large_s < quick_s or large_s < MOST_RATIO * small_s:
            return True
    return False


# ---- patterns

READER_MODULES = [
    *(importlib.import_module(f"{logs.__name__}.{one.name}") for one in pkgutil.iter_modules(logs.__path__)),
    nccl_log,
    nccl_topology,
    rare_logs,
]
MODULES = [*READER_MODULES, expected, link_facts, provenance]  # the last three see strings from logs
PROBES = "a1A. \t\n:-_+[|/,(eG"  # characters that classes contain
NUM_CHARS, QUICK_S = (500, 2000, 8000), 0.004  # the first numbers find most slow patterns before they take long


def patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from patterns_in(one)
    elif isinstance(value, dict):
        yield from patterns_in(list(value.values()))


def all_patterns() -> dict[str, re.Pattern[str]]:
    found: dict[str, re.Pattern[str]] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            for place, pattern in enumerate(patterns_in(value)):
                found[f"{module.__name__.removeprefix('rankscope.')}.{name}[{place}]"] = pattern
    return found


def characters(node: Any) -> list[str]:
    """Return characters that a node of a parsed pattern matches: a literal, those of `PROBES`, or any."""
    kind, value = node
    if kind is kinds.LITERAL:
        return [chr(value)]
    single = re.compile(_as_text(node))
    matching = [one for one in PROBES if single.match(one)]
    return matching or [one for one in string.printable if single.match(one)]


def _as_text(node: Any) -> str:
    """The source of a node that matches one character."""
    kind, value = node
    if kind is kinds.ANY:
        return "."
    if kind is kinds.NOT_LITERAL:
        return f"[^{re.escape(chr(value))}]"
    assert kind is kinds.IN, kind
    categories = {
        kinds.CATEGORY_DIGIT: r"\d",
        kinds.CATEGORY_NOT_DIGIT: r"\D",
        kinds.CATEGORY_SPACE: r"\s",
        kinds.CATEGORY_NOT_SPACE: r"\S",
        kinds.CATEGORY_WORD: r"\w",
        kinds.CATEGORY_NOT_WORD: r"\W",
    }
    parts = []
    for part, inner in value:
        if part is kinds.NEGATE:
            parts.append("^")
        elif part is kinds.LITERAL:
            parts.append(re.escape(chr(inner)))
        elif part is kinds.RANGE:
            parts.append(f"{re.escape(chr(inner[0]))}-{re.escape(chr(inner[1]))}")
        else:
            parts.append(categories[inner])
    return f"[{''.join(parts)}]"


def example(nodes: Sequence[Any]) -> str:
    """Return a short string that a sequence of nodes matches, as far as its assertions do not matter."""
    found = ""
    for kind, value in nodes:
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            least, _, body = value
            found += example(body) * least
        elif kind is kinds.SUBPATTERN:
            found += example(value[-1])
        elif kind is kinds.BRANCH:
            found += example(value[1][0])
        elif kind not in (kinds.AT, kinds.ASSERT, kinds.ASSERT_NOT):
            found += characters((kind, value))[0]
    return found


def repetitions(nodes: Sequence[Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield, for each repetition without bound, a string that comes before it and one that it may repeat."""
    for node in nodes:
        kind, value = node
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            _, most, body = value
            if most is kinds.MAXREPEAT:
                is_single = len(body) == 1 and body[0][0] not in (kinds.SUBPATTERN, kinds.BRANCH)
                for repeated in characters(body[0]) if is_single else [example(body)]:
                    yield before, repeated
            yield from repetitions(body, before)
        elif kind is kinds.SUBPATTERN:
            yield from repetitions(value[-1], before)
        elif kind is kinds.BRANCH:
            for branch in value[1]:
                yield from repetitions(branch, before)
        before += example([node])


def attacks(pattern: re.Pattern[str]) -> Iterator[Callable[[int], str]]:
    """Yield makers of long strings that a pattern almost matches, or matches at many places."""
    whole = list(parser.parse(pattern.pattern, pattern.flags))
    for before, repeated in repetitions(whole):
        prefix = before + repeated
        yield lambda number, before=before, repeated=repeated: before + repeated * number + "\0"  # type: ignore[misc]
        yield lambda number, prefix=prefix: prefix * (number // len(prefix)) + "\0"  # type: ignore[misc]
        yield lambda number, before=before, repeated=repeated: repeated * number + before + repeated * number  # type: ignore[misc]
    start = example(whole)
    for length in range(1, len(start) + 1):
        yield lambda number, part=start[:length]: part * (number // len(part))  # type: ignore[misc]


def slow_attack(pattern: re.Pattern[str]) -> str:
    """Return the beginning of an input for which a pattern takes more than linear time; "" without one."""

    def search_all(text: str) -> None:
        for _ in pattern.finditer(text):
            pass

    for num_chars in NUM_CHARS:
        for attack in attacks(pattern):
            if not is_linear(search_all, attack, num_chars, QUICK_S):
                return attack(60)
    return ""


@pytest.mark.oracle
@pytest.mark.parametrize("name", all_patterns())
def test_a_pattern_takes_time_in_proportion_to_the_line(name: str) -> None:
    assert slow_attack(all_patterns()[name]) == ""


SLOW = {  # as they were, or might be
    "a long word before NCCL": r"(?:^\s*\S+|[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] .*?NCCL ",
    "an unclosed bracket": r"Rank +(\d+) (?:Group +\d+ )?Pid +\d+ on +(\S+) +device +\d+ \[[^\]]*\] *(.*)",
    "blank lines": r"(?m)^\s*Device: (\d+), *([^,\n]+)(,?)",
    "blanks around nothing": r"\|\s*([\d._]+)\s*([KMGT]?)i?B?\s*\|",
    "a repeated title": r"(Uni|Bi)directional P2P=(En|Dis)abled Bandwidth.*\(GB/s\)",
    "a repeated pattern": r"Pattern (\d), crossNic \d, nChannels (\d+), bw ([\d.]+)/([\d.]+)(?:.*sameChannels (\d))?",
    "a repeated device": r"Device: \d+, (.+?), pciBusID",
    "a word without an end": r"\w+ EDITION",
    "nested repetitions": r"(\d+)*x",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_pattern_is_found(name: str) -> None:
    assert slow_attack(re.compile(SLOW[name])) != ""


@pytest.mark.parametrize("module", READER_MODULES, ids=lambda module: module.__name__)
def test_patterns_of_readers_are_at_the_top_of_their_modules_where_they_are_found(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    within = [
        node
        for statement in tree.body
        if isinstance(statement, ast.FunctionDef | ast.ClassDef)
        for node in ast.walk(statement)
    ]
    calls = [node for node in within if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")]
    assert [ast.unparse(call) for call in calls] == []


# ---- whole readers

EXAMPLES: dict[str, tuple[str, ...]] = {
    **made.OTHERS,
    "nccl-tests": (
        "\n".join(made.table(num_ranks=2, era=3)),
        "\n".join(made.table(num_ranks=2, sizes=made.SIZES[:2])),
        json.dumps(made.as_json(num_ranks=2, sizes=made.SIZES[:2]), indent=1),
    ),
    "trace": (json.dumps(made.TRACE, indent=1),),
    "NCCL's own log": (made.NCCL_LOG,),
    "topology": (made.TOPOLOGY_MATRIX,),
}
LOG_CHARS, LOG_QUICK_S = 8192, 0.03
INSERTED = ("x", "1", " ", "\n", "1 ", "[", "|", ".", "0:")
DRAWN = 30  # of the logs that grow within a line, for each reader; patterns are tested with all of theirs above


def test_each_reader_has_an_example() -> None:
    assert {*READERS} <= {*EXAMPLES}


def grown(lines: Sequence[str], place: int, before: str, repeated: str, behind: str) -> Callable[[int], str]:
    """Return a maker of long logs: in one line, a string is repeated between two parts."""

    def text(num_chars: int) -> str:
        line = before + repeated * (num_chars // len(repeated)) + behind
        return "\n".join([*lines[:place], line, *lines[place + 1 :]])

    return text


def logs_from(kind: str) -> Iterator[tuple[str, Callable[[int], str]]]:
    """Yield makers of long logs, each with words that name it.

    In each line of the examples, what comes before is repeated, and something is inserted: at the line's ends always,
    and behind some of its words.
    """
    within = []
    seen = set[str]()
    for text in EXAMPLES[kind]:
        lines = text.split("\n")
        for place, line in enumerate(lines):
            shape = re.sub(r"\d+", "0", line)
            if shape in seen:
                continue
            seen.add(shape)
            yield f"{line!r} repeated in lines", grown(lines, place, "", f"{line}\n", line)
            for inserted in ("x", " ", "\n"):
                yield f"{inserted!r} before {line!r}", grown(lines, place, "", inserted, line)
            for end in (match.end() for match in re.finditer(r"\s+|[^\w\s]|\w+", line)):
                before, behind = line[:end], line[end:]
                within.append((f"{before!r} repeated", grown(lines, place, "", before, behind)))
                for inserted in INSERTED:
                    words = f"{inserted!r} after {before!r}"
                    within.append((words, grown(lines, place, before, inserted, behind)))
    yield from random.Random(29).sample(within, min(DRAWN, len(within)))


def reader_of(kind: str, folder: Path) -> Callable[[str], object]:
    path = folder / "a.log"

    def read(text: str) -> object:
        path.write_text(text, encoding="utf-8")
        if kind == "NCCL's own log":
            return nccl_log.read_log(path, "h100")
        if kind == "topology":
            return nccl.read_topology(path, "h100")
        return read_log(path, kind=kind)

    return read


@pytest.mark.oracle
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_reader_takes_time_in_proportion_to_the_log(kind: str, tmp_path: Path) -> None:
    read = reader_of(kind, tmp_path)
    for where, attack in logs_from(kind):
        assert is_linear(read, attack, LOG_CHARS, LOG_QUICK_S), where


# Inputs that took up to seven seconds with 32 kB: the reader, what comes first, what is repeated, and what follows.
KNOWN = {
    "a long word before NCCL": ("nccl-tests", "", "a", "NCCL "),
    "unclosed brackets": ("nccl-tests", "", "Rank 0 Pid 1 on a device 0 [", "\n"),
    "blanks in a row of all_reduce_bench": ("all_reduce_bench", "| busbw\n| 1", " ", "x GBps |"),
    "blank lines before devices": ("nvbandwidth", "GPU(column)", "\n", "x"),
    "blank lines before devices of ROCm": ("rocm_bandwidth_test", "copy peak bandwidth GB/s", "\n", "x"),
    "a repeated title of p2pBandwidthLatencyTest": (
        "p2pBandwidthLatencyTest",
        "",
        "Unidirectional P2P=Enabled Bandwidth ",
        "\n",
    ),
    "a repeated device of p2pBandwidthLatencyTest": (
        "p2pBandwidthLatencyTest",
        "\n".join(made.P2P.split("\n")[8:]),
        "Device: 0, ",
        "\n",
    ),
    "a repeated pattern": (
        "NCCL's own log",
        made.NCCL_LOG,
        "Pattern 4, crossNic 0, nChannels 24, bw 15.0/15.0 ",
        "\n",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_inputs_that_took_long_are_read_or_refused_quickly(name: str, tmp_path: Path) -> None:
    kind, before, repeated, behind = KNOWN[name]
    assert is_linear(reader_of(kind, tmp_path), grown([""], 0, before, repeated, behind), 32768, LOG_QUICK_S)
