"""Read the matrices of nvbandwidth: GB/s of copies to, from, on and between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...common.words import and_joined
from ..profile import Profile
from .log import COPY_BYTES, COPY_NOTE, Log, timed

_DEVICE = re.compile(r"^ *(?:Device|GPU) \d+: (.+?)(?: \(|$)", re.MULTILINE)
_RUNNING = re.compile(r"^ *Running (\w+)\.")
_TITLE = re.compile(r"[CG]PU\((?:row|column)\)")
_WAIVED = re.compile(r"^ *Waiving (\w+)\.", re.MULTILINE)
_WHY_WAIVED = "these GPUs lack what it needs, which for copies between GPUs is peer-to-peer access to each other"
_CELL = re.compile(r"\d+\.\d\d\d*|N/A")
_SUM = re.compile(r"^ *SUM (\w+) ")
# No copies that run alone: sums over those of a GPU with all others, latencies, both directions between GPUs at once (a
# matrix of each and one of their totals), and tests of several nodes, whose number is not stated.
_OTHER = re.compile(
    r"\bAll G(?:PU|pu)s\b|all_to_one|one_to_all|\(ns\)|\b(?:Read[12]|Write[12]|Total) bandwidth|multinode_"
)
# A test of such a name copies in one direction at a time, or in both between the host and one GPU.
_MEMCPY = re.compile(r"(?:host|device)_to_(?:host|device)(_bidirectional)?_memcpy(?:_(read|write))?_(?:ce|(sm))")


class _Test(msgspec.Struct):
    """A test: the title of its matrix, the number of its columns, and its whole rows."""

    name: str
    title: str
    num_columns: int = 0
    rows: list[list[str]] = []

    @property
    def is_between_gpus(self) -> bool:
        return "GPU(row)" in self.title

    def read(self, words: list[str]) -> None:
        """Add a line below the title: the numbers of the columns, or a row. One that is cut is left out."""
        if not self.num_columns:
            self.num_columns = len(words)
        elif len(words) == 1 + self.num_columns and all(map(_CELL.fullmatch, words[1:])):
            self.rows.append(words[1:])


def _tests(lines: Sequence[str]) -> list[_Test]:
    tests: list[_Test] = []
    name = ""  # of the test that runs; an excerpt may state it only with the sum
    for line in lines:
        running = _RUNNING.search(line)
        total = _SUM.search(line)
        words = line.split()
        if running:
            name = running[1]
        elif _TITLE.search(line):
            tests.append(_Test(name, line.strip()))
        elif tests and total:
            tests[-1].name = tests[-1].name or total[1]
        elif tests and words and words[0].isdigit():
            tests[-1].read(words)
    return tests


def nvbandwidth_text(log: Log) -> Iterator[Profile]:
    """Yield the profile of all copies; nothing if there are no tests. Raises FileError if all tests were waived."""
    text = "\n".join(log.lines)
    waived = _WAIVED.findall(text)
    points = []
    notes = [COPY_NOTE]
    if waived:
        notes.append(f"nvbandwidth waived {and_joined(waived)}: {_WHY_WAIVED}")
    num_gpus = 0
    names: list[str] = []
    for test in _tests(log.lines):
        num_rows = test.num_columns if test.is_between_gpus else 1
        is_other = _OTHER.search(f"{test.title} {test.name}")
        if is_other or test.name in ("", *names) or len(test.rows) != num_rows:
            why = "it has no copies that run alone" if is_other else "it is cut, or ran before"
            notes.append(f"{test.name or test.title} is left out: {why}")
            continue
        names.append(test.name)
        num_gpus = max(num_gpus, test.num_columns)
        for row, words in enumerate(test.rows):
            for column, word in enumerate(words):
                # From a GPU to itself, or without peer access, is no copy: old versions print 0.00 there, not N/A.
                if word not in ("N/A", "0.00"):
                    points.append(timed("transfer", COPY_BYTES, [1 / float(word)], _options(test, row, column)))
    if waived and not points:
        raise log.error("nothing was measured", notes[-1])
    if points:
        yield log.copies(points, "nvbandwidth", notes, _DEVICE.findall(text), num_gpus)


def _options(test: _Test, row: int, column: int) -> dict[str, Any]:
    """Return the options of a copy. A test that is not named memcpy runs several copies at once.

    Between GPUs, that of the row copies: it reads from the memory of the column's, or writes into it. The arrows of the
    titles point the other way than the bytes go.
    """
    method = "pinned"
    direction = "h2d"
    ends = {"gpu": column}
    memcpy = _MEMCPY.fullmatch(test.name)
    if test.name == "device_local_copy":
        method = "device"
        direction = "d2d"
    elif test.is_between_gpus:
        method = "device"
        direction = "p2p"
        ends = {"src": row, "dst": column}
        if "_read_" in test.name:
            ends = {"src": column, "dst": row}
    elif test.name.startswith(("device_to_host", "all_to_host")):
        direction = "d2h"
    if memcpy:
        method = " ".join(filter(None, memcpy.groups()[1:])) or method  # the copy engine is usual
    elif direction != "d2d":
        method = test.name
    is_both_ways = bool(memcpy and memcpy[1])
    return {"direction": direction, "method": method, "pieces": 1, "both": is_both_ways, **ends, "size": "not stated"}
