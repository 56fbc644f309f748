"""`clean_lines`: the lines of logs, without what launchers, terminals and people put around them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_MOST_LETTERS = 4000  # of a line: what is behind them says nothing more, and some patterns take quadratic time
_LEAST_WIDTH = 60  # of a terminal that broke lines
_LEAST_FULL_LINES = 3  # at the width of such a terminal
_MOST_PIECES = 8  # of a message that was broken

_FILE_RANK = re.compile(r"rank[_=.-]?(\d{1,6})(?=[^/\\]*$)")
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
# What may stand before a message. The names of groups are the kinds of labels: `rank` is one of the job, `task` and
# `local` may be, and the others only tell processes apart.
_PREFIX = re.compile(
    r"\[rank[:= ]*(?P<rank>\d{1,6})\]:? ?(?:\|\| ?)?"  # torch, Lightning, Determined
    r"|(?:\[\d{1,3},)?(?P<task>\d{1,6})(?:\]<std\w+>: ?|: (?=\S))"  # mpirun --tag-output, horovodrun, srun --label
    r"|\[[a-z_]+(?P<local>\d{1,3})\]: ?"  # torchrun --tee
    r"|(?P<worker>\((?:[\w.:=-]+ ){0,3}pid=\d+(?:, ip=[\w.:]+)?\)) ?"  # Ray
    r"|(?P<host>[a-z][\w.-]*\d[\w.-]*)(?: +\||:) "  # pods, and hosts of pdsh
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
    r"(?:Watchdog caught|Exception \(either|PG GUID|dump signal)(?!.*(?:timing out|completed (?:NCCL )?work: -?\d))"
    r"|Detected mismatch between(?!.*(?:Collectives differ|\)\)+\.?$|Rank \d+ is running inconsistent))"
)


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
    in_names = [rank for name in logs for rank in _FILE_RANK.findall(name)]
    lines = [line for name, text in logs.items() for line in _lines_of(text, name)]
    agrees: dict[str, set[bool]] = {}  # by kind of label, whether it is the stated rank
    for line in lines:
        if "rank" in line.labels:
            for kind, value in line.labels.items():
                agrees.setdefault(kind, set()).add(value == line.labels["rank"])
    trusted = [kind for kind in ("rank", "task") if False not in agrees.get(kind, set())]
    if len(in_names) == len({*in_names}) > 1 and False not in agrees.get("file", set()):
        trusted.append("file")
    trusted += [kind for kind in ("file", "local") if agrees.get(kind) == {True}]
    ranked = []
    for line in lines:
        ranks = [int(line.labels[kind]) for kind in trusted if kind in line.labels]
        ranked.append(line._replace(rank=ranks[0]) if ranks else line)
    return ranked


def _lines_of(text: str, name: str) -> Iterator[Line]:
    """Yield the lines of one log; those that a terminal or a person broke are whole again."""
    pieces = []
    for raw in re.split(r"[\r\n]+", _ESCAPE.sub("", text)):
        pieces += [piece[:_MOST_LETTERS] for piece in _RAN_INTO.split(raw)]
    lengths = Counter(map(len, pieces))
    width = max(lengths)
    is_wrapped = _LEAST_WIDTH <= width < _MOST_LETTERS and lengths[width] >= _LEAST_FULL_LINES
    place = 0
    while place < len(pieces):
        line = _line(pieces[place], name)
        whole = line.text
        num_pieces = 1
        is_full = len(pieces[place]) == width
        for piece in pieces[place + 1 : place + _MOST_PIECES]:
            is_over = not (is_full and is_wrapped) and not _UNFINISHED.search(whole)
            if is_over or _line(piece, name).text != piece:  # the next one has labels of its own
                break
            whole += piece if is_full else f" {piece}"
            num_pieces += 1
            is_full = len(piece) == width
        if num_pieces > 1 and not _UNFINISHED.search(whole):
            line = line._replace(text=whole)
            place += num_pieces - 1
        yield line
        place += 1


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
