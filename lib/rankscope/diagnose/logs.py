"""`read_logs`: what the logs of a job that hangs say, as facts of its ranks; see `log_lines` for the lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..common.checks import of_type, several
from ..common.files import PathLike, read_bytes
from .log_lines import (
    FIRST_FAILURE,
    LAUNCHERS,
    LINE_READERS,
    MOST_RANK_DIGITS,
    FirstFailure,
    LineReader,
    LogFact,
    LogLine,
    first_failure,
)

_MOST_LINE_BYTES = 1 << 14  # of a line that is read in one piece
_LEAST_LABELLED = 0.8  # of the lines: fewer that begin with a number are no output of srun
_LABEL_BEGINS = tuple(bytes([code]) for code in b"[ 0123456789")  # what the prefix of a launcher may begin with
_MARKS = tuple((mark, reader) for reader in LINE_READERS.values() for mark in reader.marks)
_BLOCK_BYTES = 1 << 20
_REPORT_BYTES = 1 << 13  # of torchrun's report on a failure
_COLOURS = re.compile(rb"\x1b\[[\d;]{0,16}[mK]")
_LINE_BEGIN = re.compile(rb"\n[^\n]")
_SRUN_BEGIN = re.compile(rb"\n {0,6}\d{1,7}: ")
_GZIP_MAGIC = b"\x1f\x8b"
_FILE_RANK = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)", re.ASCII)
_LOG_NAME = re.compile(r"(?:\.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,9})?|^std(?:out|err))(?:\.gz)?$", re.ASCII)
_ATTEMPT = re.compile(r"attempt_(\d{1,9})", re.ASCII)  # a folder of torchrun's --log-dir


class HangLogs(msgspec.Struct, frozen=True, eq=False):
    """What logs say about a hang: each fact once, the number of lines, and the ranks that a line or a file is of."""

    facts: tuple[LogFact, ...]
    num_lines: int
    sources: tuple[str, ...]
    file_ranks: tuple[int, ...]


def is_log_name(path: Path) -> bool:
    """Whether a file in a folder is taken for a log, by its name."""
    return _LOG_NAME.search(path.name) is not None


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a folder; without any, those of the last attempt in a folder that torchrun's --log-dir names.

    torchrun writes FOLDER/RUN/attempt_0/LOCAL_RANK/stderr.log; both FOLDER and FOLDER/RUN are understood.
    """
    logs = [file for file in sorted(folder.iterdir()) if is_log_name(file) and file.is_file()]
    if logs:
        return logs
    logs_of_attempt: dict[int, list[Path]] = {}
    for pattern in ("attempt_*", "*/attempt_*"):
        for attempt in sorted(folder.glob(pattern)):
            number = _ATTEMPT.fullmatch(attempt.name)
            if number and attempt.is_dir():
                files = sorted(file for file in attempt.glob("*/*") if is_log_name(file) and file.is_file())
                logs_of_attempt.setdefault(int(number[1]), []).extend(files)
    if not logs_of_attempt:
        return []
    return logs_of_attempt[max(logs_of_attempt)]


def read_logs(folder_or_files: PathLike | Iterable[PathLike]) -> HangLogs:
    """Parse the logs of a hanging job for `explain_hang`.

    Pass files, or a folder. In a folder, files are read if their names end in .log, .out, .err or .txt, or are stdout
    or stderr; a folder without such files may be one that torchrun's ``--log-dir`` names, whose last attempt is read.
    Logs may be gzipped. A log may contain the lines of one rank or of several ranks, mixed. A rank is recognised by
    torch's ``[rank3]:``, by the prefix of torchrun (``[default3]:``), srun (``3:``) or mpirun (``[1,3]<stderr>:``), or
    by the name of the file ("rank3.log").

    Raises FileError if a log has more than 1 GiB or is gzipped and damaged; ValueError if there are no logs; OSError
    if a log cannot be opened.
    """
    files = _log_files(folder_or_files)
    if not files:
        raise ValueError(f"{folder_or_files} has no log, a file whose name ends in .log, .out, .err or .txt")
    reader = _HangLogReader()
    for path in files:
        reader.read(BytesIO(read_bytes(path)).read, path)
    return reader.logs()


def read_hang_text(text: str) -> HangLogs:
    """Parse a pasted log like `read_logs`.

    >>> text = "[rank0]: RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms"
    >>> read_hang_text(text).facts[0].ranks
    (2,)
    """
    reader = _HangLogReader()
    file = BytesIO(of_type("text", text, str).encode("utf-8", "replace"))
    reader.read(file.read, Path("the text"))
    return reader.logs()


def _log_files(folder_or_files: Any) -> list[Path]:
    if not isinstance(folder_or_files, str | os.PathLike):
        return [Path(path) for path in several("folder_or_files", folder_or_files, "files, or a folder")]
    path = Path(folder_or_files)
    if not path.is_dir():
        return [path]
    return logs_in(path)


Read = Callable[[int], bytes]  # at most so many bytes of a file, none at its end


class _Block(NamedTuple):
    """Lines of a file, up to `end`; `text` begins with a line end that is not in the file.

    So every line of a block follows a line end, which is how patterns and searches recognise where a line begins.

    What is behind `end` comes again at the begin of the next block. It is there because a report of torchrun that
    begins in this block may extend beyond it.
    """

    text: bytes
    end: int
    is_begin: bool  # whether the block begins with a new line, rather than with the rest of a long one
    is_last: bool


def _blocks(read: Read) -> Iterator[_Block]:
    """Yield a file in blocks of whole lines; a progress bar's carriage returns separate lines, too."""
    rest = b""  # what the last block left for the next one
    is_begin = True
    while True:
        raw = read(_BLOCK_BYTES)
        text = b"\n" + rest + raw.replace(b"\r", b"\n")
        if b"\x1b" in text:
            text = _COLOURS.sub(b"", text)
        if not raw:
            yield _Block(text, len(text), is_begin, is_last=True)
            return
        # the line end at 0 is not in the file, so the block's own text begins at 1
        latest_end = max(1, len(text) - _REPORT_BYTES)
        end = text.rfind(b"\n", 1, latest_end) + 1  # 0 if no line ends before that
        has_line_end = end > 0
        if not has_line_end:
            # A long line is cut into pieces. The last piece, which may be short, waits for its rest.
            num_pieces = (len(text) - 1) // _MOST_LINE_BYTES
            end = 1 + num_pieces * _MOST_LINE_BYTES
        if end == 1:  # no whole line or piece yet: read on
            rest = text[1:]
            continue
        yield _Block(text, end, is_begin, is_last=False)
        rest = text[end:]
        is_begin = has_line_end


class _LineLabel(NamedTuple):
    """The number that a launcher's prefix or a file's name gives to a line, and which of them; see `LogOrigin`."""

    number: int | None
    kind: str


_NO_LABEL = _LineLabel(None, "")


class _FactKey(NamedTuple):
    """A fact with its class, because a NamedTuple equals one of another class that has the same values."""

    kind: type[LogFact]
    fact: LogFact


_Facts = dict[_FactKey, LogFact]  # each once, in the order of the lines


class _HangLogReader:
    """Collects the facts of logs, each of them once."""

    def __init__(self) -> None:
        self._facts: _Facts = {}
        self._num_lines = 0
        self._sources: list[str] = []
        self._file_ranks: list[int] = []

    def read(self, read: Read, path: Path) -> None:
        """Add the facts of a log."""
        file_label = _label_of_file(path)
        if file_label.kind == "file" and file_label.number is not None:
            self._file_ranks.append(file_label.number)
        facts: _Facts = {}
        num_lines = 0
        num_srun_lines = 0
        for block in _blocks(read):
            lines = block.text[: block.end]
            num_lines += len(_LINE_BEGIN.findall(lines))
            num_srun_lines += len(_SRUN_BEGIN.findall(lines))
            self._read_block(block, facts, file_label)
        is_of_srun = num_srun_lines >= _LEAST_LABELLED * num_lines  # else some lines just begin with a number
        for fact in facts.values():
            certain_fact = fact if is_of_srun else _without_label(fact, "srun")
            self._facts[_FactKey(type(certain_fact), certain_fact)] = certain_fact
        self._num_lines += num_lines
        self._sources.append(path.name)

    def _read_block(self, block: _Block, facts: _Facts, file_label: _LineLabel) -> None:
        """Add the facts of a block to those of its file; a line without a label of its own has the file's."""
        report_begin = block.text.find(FIRST_FAILURE, 0, block.end)
        while report_begin >= 0:
            failure = first_failure(block.text[report_begin : report_begin + _REPORT_BYTES])
            facts[_FactKey(FirstFailure, failure)] = failure
            report_begin = block.text.find(FIRST_FAILURE, report_begin + 1, block.end)
        for marked in _marked_lines(block):
            line = _log_line(block, marked, file_label)
            for reader in marked.readers:
                for fact in reader.read(line):
                    facts[_FactKey(type(fact), fact)] = fact

    def logs(self) -> HangLogs:
        facts = tuple(self._facts.values())
        return HangLogs(facts, self._num_lines, tuple(self._sources), tuple(sorted(set(self._file_ranks))))


def _label_of_file(path: Path) -> _LineLabel:
    """Return the rank in the name of a file, or the number in the name of torchrun's folder for a process."""
    rank = _FILE_RANK.search(path.name)
    if rank:
        return _LineLabel(int(rank[1]), "file")
    process_folder = path.parent
    is_number = process_folder.name.isdecimal() and len(process_folder.name) <= MOST_RANK_DIGITS
    if is_number and _ATTEMPT.fullmatch(process_folder.parent.name):
        return _LineLabel(int(process_folder.name), "torchrun")
    return _NO_LABEL


class _MarkedLine(NamedTuple):
    """A line with marks, or the piece of a long line that has them: where it is in a block, and who reads it."""

    begin: int
    end: int
    readers: list[LineReader]


def _marked_lines(block: _Block) -> list[_MarkedLine]:
    """Return the lines that have a mark, in their order; it takes less time to search a block than each line."""
    text = block.text
    line_at: dict[int, _MarkedLine] = {}  # by its begin
    for mark, reader in _MARKS:
        position = _find(mark, text, 0, block.end)
        while position >= 0:
            begin = text.rfind(b"\n", 0, position) + 1
            end = text.find(b"\n", position)
            if end < 0:
                end = len(text)
            if end - begin > _MOST_LINE_BYTES:  # only the piece that the mark begins in
                begin += (position - begin) // _MOST_LINE_BYTES * _MOST_LINE_BYTES
                end = min(end, begin + _MOST_LINE_BYTES)
            line = line_at.setdefault(begin, _MarkedLine(begin, end, []))
            # marks of one reader follow each other in `_MARKS`, so it is the last one if it reads the line already
            if not line.readers or line.readers[-1] is not reader:
                line.readers.append(reader)
            position = _find(mark, text, end, block.end)
    return [line_at[begin] for begin in sorted(line_at)]


def _log_line(block: _Block, marked: _MarkedLine, file_label: _LineLabel) -> LogLine:
    """Return a line of a block with the label of its launcher's prefix, or else with that of its file."""
    raw = block.text[marked.begin : marked.end]
    label = _NO_LABEL
    follows_line_end = block.text[marked.begin - 1 : marked.begin] == b"\n"
    is_rest_of_line = marked.begin == 1 and not block.is_begin  # then the line end before it is not in the file
    if follows_line_end and not is_rest_of_line:
        label = _launcher_label(raw)
    if label.number is None:
        label = file_label
    has_end = block.text[marked.end : marked.end + 1] == b"\n"
    return LogLine(raw.decode("utf-8", "replace"), label.number, label.kind, is_cut=not has_end)


def _find(mark: bytes | re.Pattern[bytes], text: bytes, begin: int, end: int) -> int:
    if isinstance(mark, bytes):
        return text.find(mark, begin, end)
    match = mark.search(text, begin, end)
    return match.start() if match else -1


def _launcher_label(raw: bytes) -> _LineLabel:
    """Return the number in a launcher's prefix at the begin of a line, and the launcher."""
    if raw[:1] not in _LABEL_BEGINS or raw.startswith(b"[rank"):  # that is torch's own
        return _NO_LABEL
    for launcher in LAUNCHERS:
        match = launcher.pattern.match(raw)
        if match:
            return _LineLabel(int(match[1]), launcher.kind)
    return _NO_LABEL


def _without_label(fact: Any, kind: str) -> Any:
    if fact.origin.label_kind != kind:
        return fact
    return fact._replace(origin=fact.origin._replace(label=None, label_kind=""))
