"""`clean_lines`: the lines of logs, without what launchers, terminals and people put around them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

_MOST_LETTERS = 4000  # of a line: what is behind them says nothing more, and some patterns take quadratic time
_LEAST_WIDTH = 60  # of a terminal that broke lines
_LEAST_FULL_LINES = 3  # at the width of such a terminal, unless it is a usual one
_USUAL_WIDTHS = (80, 100, 120, 132)

_FILE_RANK = re.compile(r"rank[_=.-]?(\d{1,6})(?=[^/\\]*$)")
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")  # whose first byte is lost
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,5}|#x[0-9A-Fa-f]{1,4});")
_NUMBER = re.compile(r"^ *(\d{1,7})(?:[:.)|]?[ \t]|[:|])")  # of a line
# What stands around all lines of a paste: indentation, quotes, the edges of a table, dashes of a list, times, numbers
_AROUND = (*map(re.compile, (r"^[ \t]", r"^> ?", r"^\| ?|\s*\|$", r"^[-*•] ", r"^【[^】]{1,40}】")), _NUMBER)
# What may stand before a message. The names of groups are the kinds of labels: `rank` is one of the job, `task` and
# `local` may be, and the others only tell processes apart.
_LABELS = re.compile(
    r"(?:(?:\[rank[:= ]*|r?a?nk(?:: )?)(?P<rank>\d{1,6})\]:? ?(?:\|\| ?)?"  # torch, Lightning, Determined
    r"|(?:\[(?:[\w-]+@)?\d{1,3},| {1,5}(?=\d{1,6}: ))?(?P<task>\d{1,6})"  # mpirun and srun
    r"(?:\]<std\w+>: ?|: (?=\S)(?!\[\w+[_./]))"
    r"|\[[a-z_]+(?P<local>\d{1,3})\]: ?"  # torchrun --tee
    r"|(?P<worker>\((?:[\w.:=-]+ ){0,3}pid=\d+(?:, ip=[\w.:]+)?\)) ?"  # Ray
    r"|(?P<host>[a-z][\w.-]{0,60}\d[\w.-]{0,60})(?: +\||:) "  # pods, and hosts of pdsh
    r"|[\[(]?20\d\d-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?[\])]? *(?:std\w+ F )?"
    r"(?:\[?(?:INFO|ERROR|WARNING)[\]:]* ?)?"
    r"|(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+\.py:\d+\] ?"  # vLLM
    r"|【[^】]{1,40}】 ?|\x1b\[[\d;?]*[A-Za-z]"
    r"|[ \t]+(?=\[(?:rank|default)\d|\[[EWIF]\d|【)"
    r"|[>|] |(?:(?!\[rank)\S+ ){1,3}(?=\[rank[:= ]*\d|\[E[ \d]))*"  # quotes; numbers of lines and hosts before a tag
)
_HEAD = re.compile(  # of c10 and glog
    r"\[?[EWIF](?:(?P<month>\d\d?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)[.\d]*)? "
    r"(?:\d+ )?[\w./-]+\.(?:cpp|hpp|py):\d+\] ?"
)
# the line of another rank, or a traceback, behind a bar of progress
_RAN_INTO = re.compile(
    r"(?<=\S)(?<!\]:)(?=\[rank\d{1,6}\]:)|(?<=.{60})(?<!\]:)(?=\[rank\d{1,6}\]:)|(?<=\])(?=Traceback \()"
)
_MAY_GO_ON = ("Watchdog caught", "Exception (either", "Timeout at", "PG GUID", "dump signal", "Detected mismatch")
_UNFINISHED = re.compile(
    r"(?:Watchdog caught|Exception \(either|Timeout at NCCL|PG GUID|dump signal)"
    r"(?!.*(?:timing out|completed (?:NCCL )?work: -?\d))"
    r"|Detected mismatch between(?!.*(?:Collectives differ|\)\)+\.?$|Rank \d+ is running inconsistent))"
)
_MOST_CUT = 12  # letters of the first line that a copy left out
_SAME_BEGIN = 4  # letters in which the lines of a log agree, and the parts of a broken line do not
_BLOCK = re.compile(r"Traceback \(|Root Cause|Thread |Process |[\w.]+Error: ")  # how blocks of lines begin


Watched = Callable[[Sequence[str]], Iterable[str]]


class Line(NamedTuple):
    """A message, its labels by kind, the rank of the job that printed it, and what only lines of its process have."""

    text: str
    labels: Mapping[str, str]
    second_of_year: int = 0  # 0 if it has no time
    rank: int | None = None
    process: object = None


def clean_lines(logs: Mapping[str, str], watched: Watched = iter) -> list[Line]:
    """Return the lines of all logs, given by their names; `watched` passes on the lines of a log, and may count them.

    A label counts as the rank if no line shows that it is something else. One that counts processes within a node does
    only if a line shows that it is the rank, too, and so does the name of a single log, or names of the same number.
    """
    lines = [line for name, text in logs.items() for line in _lines_of(text, name, watched)]
    all_labels = {id(line.labels): line.labels for line in lines}  # lines of a process share them
    stated = [labels for labels in all_labels.values() if "rank" in labels]
    agrees = {(kind, value == labels["rank"]) for labels in stated for kind, value in labels.items()}
    in_names = [rank for name in logs for rank in _FILE_RANK.findall(name)]
    trusted = {"rank", "task"} | {kind for kind, is_same in agrees if is_same}
    if len(in_names) == len({*in_names}) > 1:
        trusted.add("file")
    kinds = [kind for kind in ("rank", "task", "file", "local") if kind in trusted and (kind, False) not in agrees]
    printed_by: dict[int, tuple[int | None, object]] = {}
    for key, labels in all_labels.items():
        rank = next((int(labels[kind]) for kind in kinds if kind in labels), None)
        printed_by[key] = rank, key if rank is None else (labels["log"], rank)
    return [Line(*line[:3], *printed_by[id(line.labels)]) for line in lines]


def _lines_of(text: str, name: str, watched: Watched) -> list[Line]:
    """Return the lines of one log, without their process; those that were broken in a known message are whole again."""
    own_labels = {"log": name}
    for rank in _FILE_RANK.findall(name):
        own_labels["file"] = rank
    labels_of: dict[tuple[str | None, ...], dict[str, str]] = {}
    may_go_on = [words for words in _MAY_GO_ON if words in text]
    lines: list[Line] = []
    for raw in watched(_undressed(_plain_lines(text))):
        ran_into = raw.find("[rank", 1) > 0 or raw.find("Traceback", 1) > 0
        for whole in _RAN_INTO.split(raw) if ran_into else (raw,):
            piece = whole[:_MOST_LETTERS]
            match = _LABELS.match(piece)
            assert match  # also without any label
            message = piece[match.end() :]
            head = _HEAD.match(message) if message[:1] in "[EWIF" else None
            is_own = match.end() > 0 or head or _BLOCK.match(message)
            if lines and not is_own and any(words in lines[-1].text for words in may_go_on):
                last = lines[-1]
                if len(last.text) < _MOST_LETTERS and _UNFINISHED.search(last.text):
                    lines[-1] = last._replace(text=f"{last.text.rstrip()} {piece}")
                    continue
            values = match.groups()
            if values not in labels_of:
                labels_of[values] = own_labels | {kind: value for kind, value in match.groupdict().items() if value}
            second = 0
            if head:
                month, day, hour, minute, second = [int(number or 0) for number in head.groups()]
                second += (((31 * month + day) * 24 + hour) * 60 + minute) * 60
                message = message[head.end() :]
            lines.append(Line(message, labels_of[values], second))
    return lines


def _plain_lines(text: str) -> list[str]:
    """Return the lines that are not empty, without colours and entities of HTML."""
    text = text.replace("\r", "\n")
    if "\x1b" in text:  # a copy may count the letters of colours, too
        text = _ESCAPE.sub("", "\n".join(_unwrapped(text.split("\n"))))
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), _COLOUR.sub("", text))
    return [line for line in text.split("\n") if line]


def _undressed(lines: list[str]) -> list[str]:
    """Remove what people put around all lines of a paste but perhaps the first, and make broken lines whole."""
    is_dressed = True
    while lines and is_dressed:
        others = lines[1:] if len(lines) > 2 and not _BLOCK.match(lines[0]) else lines
        around = next((pattern for pattern in _AROUND if all(map(pattern.match, others))), None)
        if around and (around is not _NUMBER or _are_of_lines(others, len(lines))):
            kept = [around.sub("", line) for line in lines]
        else:
            kept = [*_unwrapped(lines)]
            is_dressed = len(kept) < len(lines)
        lines = [line for line in kept if line]
    return lines


def _are_of_lines(numbered: Iterable[str], last: int) -> bool:
    """Return whether numbers are those of lines, which ascend, and not of ranks; of two lines, they must be 1 and 2."""
    numbers = [int(match[1]) for match in map(_NUMBER.match, numbered) if match]
    return numbers[0] > 0 and numbers == sorted({*numbers}) and (len(numbers) > 2 or numbers[-1] == last)


def _unwrapped(lines: Sequence[str]) -> Iterator[str]:
    """Put lines together that a terminal broke at its width."""
    width = max(map(len, lines))
    is_wrapped = width in _USUAL_WIDTHS or [*map(len, lines)].count(width) >= _LEAST_FULL_LINES
    if width < _LEAST_WIDTH or not is_wrapped:
        yield from lines
        return
    whole = begin = ""
    was_full = False
    for line in lines:
        is_part = was_full and line[:_SAME_BEGIN] != begin and len(whole) < _MOST_LETTERS and not _is_own(line)
        if is_part:
            whole += line
        else:
            if whole:
                yield whole
            whole = line
        was_full = len(line) == width or (not begin and len(line) >= width - _MOST_CUT)
        begin = line[:_SAME_BEGIN]
    yield whole


def _is_own(line: str) -> bool:
    """Return whether a line begins as lines of logs do."""
    labels = _LABELS.match(line)
    return bool((labels and labels.end()) or _HEAD.match(line) or _BLOCK.match(line))
