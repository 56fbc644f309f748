"""A schedule as text: a line for the header and one for each step, to read, to diff and to write by hand."""

from __future__ import annotations

import re
from typing import Any

from .schedule import Schedule, ScheduleError, Step

_HEADER = ("ranks", "chunks", "root", "ports", "lag", "weights")
_FIELDS = {"ranks": "num_ranks", "chunks": "num_chunks"}
_TRANSFER = re.compile(r"([0-9]{1,9})>([0-9]{1,9}):([0-9]{1,9})(?:-([0-9]{1,9}))?([+=])")


def to_text(schedule: Schedule) -> str:
    """Return the schedule as text: after the header ``step: src>dst:first-last`` with + to add and = to replace.

    >>> from . import ALGORITHMS
    >>> print(to_text(ALGORITHMS["allreduce"]["ring"](2)))
    allreduce ring ranks=2 chunks=2 root=0 ports=1 lag=1
    0: 0>1:0+ 1>0:1+
    1: 0>1:1= 1>0:0=
    <BLANKLINE>
    """
    fields = schedule.header()
    values = {name: fields[_FIELDS.get(name, name)] for name in _HEADER}
    if values["weights"] is None:
        del values["weights"]
    else:
        values["weights"] = ",".join(map(str, values["weights"]))
    head = [schedule.collective, schedule.algorithm, *(f"{name}={value}" for name, value in values.items())]
    lines = [" ".join(head)]
    for number, step in enumerate(schedule.steps()):
        rows = zip(*(column.tolist() for column in step), strict=True)
        lines.append(" ".join([f"{number}:", *(_transfer(*row) for row in rows)]))
    return "\n".join(lines) + "\n"


def from_text(text: str) -> Schedule:
    """Return the schedule that `to_text` wrote; lines that are empty or start with # are skipped.

    Raises ScheduleError naming the line, counted from 1, and what is wrong in it.
    """
    lines = [(place, line.split()) for place, line in enumerate(text.splitlines(), 1)]
    lines = [(place, words) for place, words in lines if words and not words[0].startswith("#")]
    if not lines:
        raise ScheduleError("the text of a schedule must start with a header line, and this one is empty")
    header = _read_header(*lines[0])
    steps = []
    for number, (place, words) in enumerate(lines[1:]):
        if words[0] != f"{number}:":
            raise ScheduleError(f"line {place}: expected step {number}:, got {words[0]!r}", step=number)
        steps.append(_read_step(place, number, words[1:], header))
    return Schedule.of_steps(steps, **header)


def _transfer(src: int, dst: int, chunk: int, count: int, reduce: bool) -> str:
    last = f"-{chunk + count - 1}" if count > 1 else ""
    return f"{src}>{dst}:{chunk}{last}{'+' if reduce else '='}"


def _read_header(place: int, words: list[str]) -> dict[str, Any]:
    header: dict[str, Any] = {}
    if len(words) < 4:
        raise ScheduleError(
            f"line {place}: a header is 'collective algorithm ranks=… chunks=…', got {' '.join(words)!r}"
        )
    for word in words[2:]:
        name, _, value = word.partition("=")
        numbers = value.split(",") if name == "weights" else [value]
        if name not in _HEADER or not all(re.fullmatch("[0-9]{1,24}", number) for number in numbers):
            raise ScheduleError(f"line {place}: expected {', '.join(_HEADER)} with whole numbers, got {word!r}")
        if _FIELDS.get(name, name) in header:
            raise ScheduleError(f"line {place}: {name}= is there twice")
        header[_FIELDS.get(name, name)] = tuple(map(int, numbers)) if name == "weights" else int(value)
    for name, field in _FIELDS.items():
        if field not in header:
            raise ScheduleError(f"line {place}: {name}= is missing")
    header = {"collective": words[0], "algorithm": words[1], **header}
    try:
        return Schedule.of_steps([], **header).header()
    except ValueError as error:
        raise ScheduleError(f"line {place}: {error}") from None


def _read_step(place: int, number: int, words: list[str], header: dict[str, Any]) -> Step:
    rows = []
    for word in words:
        found = _TRANSFER.fullmatch(word)
        if found is None:
            wanted = "src>dst:first-last with + or = after it"
            raise ScheduleError(f"line {place}: expected {wanted}, got {word!r}", number)
        src, dst, first, last = (int(part or found[3]) for part in found.groups()[:4])
        for rank in (src, dst):
            if rank >= header["num_ranks"]:
                limit = header["num_ranks"] - 1
                raise ScheduleError(f"line {place}: rank must be from 0 to {limit}, got {word!r}", number, rank)
        if not first <= last < header["num_chunks"]:
            limit = header["num_chunks"] - 1
            raise ScheduleError(f"line {place}: chunks must be from 0 to {limit}, got {word!r}", number, src, last)
        rows.append((src, dst, first, last - first + 1, found[5] == "+"))
    return Step.of(*zip(*rows, strict=True)) if rows else Step.of([], [], [], [], [])
