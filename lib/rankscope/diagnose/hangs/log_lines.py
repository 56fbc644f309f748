"""`clean_lines`: the lines of logs, without what launchers, terminals and people put around them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_MOST_LETTERS = 4000  # of a line: what is behind them says nothing more, and some patterns take quadratic time
_LEAST_WIDTH = 60  # of a terminal that broke lines
_LEAST_FULL_LINES = 3  # at the width of such a terminal

_FILE_RANK = re.compile(r"rank[_=.-]?(\d{1,6})(?=[^/\\]*$)")
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
# What may stand before a message. The names of groups are the kinds of labels: `rank` is one of the job, `task` and
# `local` may be, and the others only tell processes apart.
_PREFIX = re.compile(
    r"\[rank[:= ]*(?P<rank>\d{1,6})\]:? ?(?:\|\| ?)?"  # torch, Lightning, Determined
    r"|(?:\[\d{1,3},| {1,5}(?=\d{1,6}: ))?(?P<task>\d{1,6})(?:\]<std\w+>: ?|: (?=\S))"  # of mpirun and srun
    r"|\[[a-z_]+(?P<local>\d{1,3})\]: ?"  # torchrun --tee
    r"|(?P<worker>\((?:[\w.:=-]+ ){0,3}pid=\d+(?:, ip=[\w.:]+)?\)) ?"  # Ray
    r"|(?P<host>[a-z][\w.-]{0,60}\d[\w.-]{0,60})(?: +\||:) "  # pods, and hosts of pdsh
    r"|[\[(]?20\d\d-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?[\])]? *(?:std\w+ F )?"
    r"(?:\[?(?:INFO|ERROR|WARNING)[\]:]* ?)?"
    r"|(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+\.py:\d+\] ?"  # vLLM
    r"|[>|] |(?:(?!\[rank)\S+ ){1,3}(?=\[rank[:= ]*\d|\[E[ \d])"  # quotes; numbers of lines and hosts before a tag
)
_HEAD = re.compile(  # of c10 and glog
    r"\[?[EWIF](?:(?P<month>\d\d?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)[.\d]*)? "
    r"(?:\d+ )?[\w./-]+\.(?:cpp|hpp|py):\d+\] ?"
)
# the line of another rank, or a traceback, behind a bar of progress
_RAN_INTO = re.compile(r"(?<=\S)(?=\[rank\d{1,6}\]:)|(?<=.{60})(?=\[rank\d{1,6}\]:)|(?<=\])(?=Traceback \()")
_UNFINISHED = re.compile(
    r"(?:Watchdog caught|Exception \(either|Timeout at NCCL|PG GUID|dump signal)"
    r"(?!.*(?:timing out|completed (?:NCCL )?work: -?\d))"
    r"|Detected mismatch between(?!.*(?:Collectives differ|\)\)+\.?$|Rank \d+ is running inconsistent))"
)

_BLOCK = re.compile(r"Traceback \(|Root Cause|Thread |Process ")  # how blocks of lines begin


class Line(NamedTuple):
    """A message, its labels by kind, and the rank of the job that printed it."""

    text: str
    labels: Mapping[str, str]
    rank: int | None = None
    second_of_year: int = 0  # 0 if the line has no time


def clean_lines(logs: Mapping[str, str]) -> list[Line]:
    """Return the lines of all logs, given by their names.

    A label counts as the rank if no line shows that it is something else. One that counts processes within a node does
    only if a line shows that it is the rank, too, and so does the name of a single log, or names of the same number.
    """
    lines = [line for name, text in logs.items() for line in _lines_of(text, name)]
    stated = [line.labels for line in lines if "rank" in line.labels]
    agrees = {(kind, value == labels["rank"]) for labels in stated for kind, value in labels.items()}
    in_names = [rank for name in logs for rank in _FILE_RANK.findall(name)]
    trusted = {"rank", "task"} | {kind for kind, is_same in agrees if is_same}
    if len(in_names) == len({*in_names}) > 1:
        trusted.add("file")
    kinds = [kind for kind in ("rank", "task", "file", "local") if kind in trusted and (kind, False) not in agrees]
    ranked = []
    for line in lines:
        ranks = [int(line.labels[kind]) for kind in kinds if kind in line.labels]
        ranked.append(line._replace(rank=ranks[0]) if ranks else line)
    return ranked


def _lines_of(text: str, name: str) -> list[Line]:
    """Return the lines of one log; those that a terminal broke at its width, or a person, are whole again."""
    pieces = []
    for raw in re.split(r"[\r\n]+", _ESCAPE.sub("", text)):
        pieces += [piece[:_MOST_LETTERS] for piece in _RAN_INTO.split(raw)]
    width = max(map(len, pieces))
    is_wrapped = width >= _LEAST_WIDTH and [*map(len, pieces)].count(width) >= _LEAST_FULL_LINES
    lines: list[Line] = []
    was_full = False
    for piece in pieces:
        line = _line(piece, name)
        is_own = line.text != piece or _BLOCK.match(piece)
        is_open = lines and len(lines[-1].text) < _MOST_LETTERS
        if is_open and not is_own and (was_full or _UNFINISHED.search(lines[-1].text)):
            whole = lines[-1].text + piece if was_full else f"{lines[-1].text.rstrip()} {piece}"
            lines[-1] = lines[-1]._replace(text=whole)
        else:
            lines.append(line)
        was_full = is_wrapped and len(piece) == width
    return lines


def _line(text: str, name: str) -> Line:
    """Take the labels off the begin of a line."""
    labels = {"log": name}
    for rank in _FILE_RANK.findall(name):
        labels["file"] = rank
    while match := _PREFIX.match(text):
        text = text[match.end() :]
        if match.lastgroup:
            labels[match.lastgroup] = match[match.lastgroup]
    head = _HEAD.match(text)
    if not head:
        return Line(text, labels)
    month, day, hour, minute, second = [int(number or 0) for number in head.groups()]
    days = 31 * month + day
    return Line(text[head.end() :], labels, None, ((24 * days + hour) * 60 + minute) * 60 + second)
