"""`read_logs`: what the logs of a job that hangs say, as facts of its ranks; see `log_lines` for the lines."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..common.checks import of_type, several
from ..common.frozen import frozen
from ..common.storage import PathLike, StorageError, most_unpacked_bytes, naming, open_file
from .log_lines import (
    FIRST_FAILURE,
    LAUNCHERS,
    LINE_READERS,
    CallFrame,
    CommunicationError,
    LineReader,
    LogFact,
    LogLine,
    OwnError,
    first_failure,
)

MOST_LOG_BYTES = 1 << 30  # of one log
_MOST_LOGS = 1 << 14
_MOST_LINE_BYTES = 1 << 14  # of a line that is read in one piece
_MOST_FACTS = 1 << 20  # different ones, of all logs
_LEAST_LABELLED = 0.8  # of the lines: fewer that begin with a number are no output of srun
_LABEL_BEGINS = tuple(bytes([code]) for code in b"[ 0123456789")
_ERROR_READER = LINE_READERS["exception"]
_Mark = tuple[bytes | re.Pattern[bytes], LineReader]
_MARKS: Sequence[_Mark] = tuple((mark, reader) for reader in LINE_READERS.values() for mark in reader.marks)
_MOST_ALIKE = 64  # facts of one kind and rank of which the first ones say enough
_MOST_ERRORS = 1 << 15  # uncaught errors; a log with more shows none that explains the hang
_BLOCK_BYTES = 1 << 20
_REPORT_BYTES = 1 << 13  # of torchrun's report on a failure
_COLOURS = re.compile(rb"\x1b\[[\d;]{0,16}[mK]")
_LINE_BEGIN = re.compile(rb"\n[^\n]")
_SRUN_BEGIN = re.compile(rb"\n {0,6}\d{1,7}: ")
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FILE_RANK = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)", re.ASCII)
_LOG_NAME = re.compile(r"(?:\.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,9})?|^std(?:out|err))(?:\.gz)?$", re.ASCII)
_ATTEMPT = re.compile(r"attempt_(\d{1,9})", re.ASCII)  # a folder of torchrun's --log-dir


@frozen(eq=False)
class HangLogs:
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

    torchrun writes FOLDER/RUN/attempt_0/LOCAL_RANK/stderr.log.
    """
    logs = [file for file in sorted(folder.iterdir()) if is_log_name(file) and file.is_file()]
    if logs:
        return logs
    attempts: dict[int, list[Path]] = {}
    for pattern in ("attempt_*", "*/attempt_*"):
        for attempt in sorted(folder.glob(pattern)):
            number = _ATTEMPT.fullmatch(attempt.name)
            if number and attempt.is_dir():
                files = sorted(file for file in attempt.glob("*/*") if is_log_name(file) and file.is_file())
                attempts.setdefault(int(number[1]), []).extend(files)
    return attempts[max(attempts)] if attempts else []


def read_logs(folder_or_files: PathLike | Iterable[PathLike]) -> HangLogs:
    """Parse the logs of a hanging job for `explain_hang`.

    Pass files, or a folder. In a folder, files are read if their names end in .log, .out, .err or .txt, or are stdout
    or stderr; a folder without such files may be one that torchrun's ``--log-dir`` names, whose last attempt is read.
    Logs may be gzipped. A log may contain the lines of one rank or of several ranks, mixed. A rank is recognised by
    torch's ``[rank3]:``, by the prefix of torchrun (``[default3]:``), srun (``3:``) or mpirun (``[1,3]<stderr>:``), or
    by the name of the file ("rank3.log").

    Raises StorageError if a log has more than 1 GiB or is gzipped and damaged; ValueError if there are no logs or more
    than 16,384; OSError if a log cannot be opened.
    """
    files = _log_files(folder_or_files)
    if not files:
        raise ValueError(f"{folder_or_files} has no log, a file whose name ends in .log, .out, .err or .txt")
    if len(files) > _MOST_LOGS:
        raise ValueError(f"there must be at most {_MOST_LOGS} logs, got {len(files)}")
    reader = _HangLogReader()
    for path in files:
        try:
            file = open_file(path, MOST_LOG_BYTES)
        except ValueError as error:
            raise StorageError(path, str(error)) from error
        with file, naming(path):
            try:
                reader.read(_plain(file), path)
            except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise StorageError(path, str(error)) from error
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


def _plain(file: BinaryIO) -> Read:
    """Return what reads a file as UTF-8, unpacked."""
    read: Read = file.read
    if file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC:
        file.seek(0)
        most_bytes = most_unpacked_bytes(os.fstat(file.fileno()).st_size, MOST_LOG_BYTES)
        read = _at_most(gzip.GzipFile(fileobj=file).read, most_bytes)
    else:
        file.seek(0)
    begin = read(2)
    if begin in _UTF16_MARKS:
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        decoder.decode(begin)
        return lambda num_bytes: _recoded(read, num_bytes, decoder)
    return _with_begin(begin, read)


def _at_most(read: Read, most_bytes: int) -> Read:
    num_read = 0

    def bounded(num_bytes: int) -> bytes:
        nonlocal num_read
        raw = read(num_bytes)
        num_read += len(raw)
        if num_read > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes unpacked")
        return raw

    return bounded


def _with_begin(begin: bytes, read: Read) -> Read:
    """Put bytes that are read already before the others."""
    left = begin

    def whole(num_bytes: int) -> bytes:
        nonlocal left
        raw = left + read(num_bytes)
        left = b""
        return raw

    return whole


def _recoded(read: Read, num_bytes: int, decoder: codecs.IncrementalDecoder) -> bytes:
    raw = read(num_bytes)
    text: str = decoder.decode(raw, final=not raw)
    return text.encode("utf-8", "replace")


class _Block(NamedTuple):
    """Lines of a file. `text` begins with a line end, and its part after `end` comes again in the next block."""

    text: bytes
    end: int
    is_begin: bool  # of a line, rather than the rest of a long one
    is_last: bool


def _blocks(read: Read) -> Iterator[_Block]:
    """The lines of a file; a progress bar's carriage returns separate lines, too."""
    left = b""
    is_begin = True
    while True:
        raw = read(_BLOCK_BYTES)
        text = b"\n" + left + raw.replace(b"\r", b"\n")
        if b"\x1b" in text:
            text = _COLOURS.sub(b"", text)
        if not raw:
            yield _Block(text, len(text), is_begin, is_last=True)
            return
        end = text.rfind(b"\n", 1, max(1, len(text) - _REPORT_BYTES)) + 1
        has_line = end > 0
        if not has_line:  # a long line: in pieces, the last of which waits for its rest
            end = 1 + (len(text) - 1) // _MOST_LINE_BYTES * _MOST_LINE_BYTES
        if end <= 1:
            left = text[1:]
            continue
        yield _Block(text, end, is_begin, is_last=False)
        left = text[end:]
        is_begin = has_line


class _Hit(NamedTuple):
    """A line with a mark."""

    end: int
    readers: list[LineReader]


class _HangLogReader:
    """Collects the facts of logs, each of them once."""

    def __init__(self) -> None:
        self._facts: dict[LogFact, None] = {}
        self._num_alike = Counter[tuple[type, Any, str]]()
        self._num_lines = 0
        self._num_errors = 0
        self._sources: list[str] = []
        self._file_ranks: list[int] = []

    def read(self, read: Read, path: Path) -> None:
        in_name = _FILE_RANK.search(path.name)
        file_label: tuple[int | None, str] = (None, "")
        if in_name:
            file_label = (int(in_name[1]), "file")
            self._file_ranks.append(int(in_name[1]))
        elif _ATTEMPT.fullmatch(path.parent.parent.name) and path.parent.name.isdecimal():
            file_label = (int(path.parent.name[:7]), "torchrun")
        facts: dict[LogFact, None] = {}
        num_lines = 0
        num_srun = 0
        for block in _blocks(read):
            lines = block.text[: block.end]
            num_lines += len(_LINE_BEGIN.findall(lines))
            num_srun += len(_SRUN_BEGIN.findall(lines))
            self._read_block(block, facts, file_label)
        if num_srun < _LEAST_LABELLED * num_lines:
            facts = {_without_label(fact, "srun"): None for fact in facts}
        self._facts |= facts
        self._num_lines += num_lines
        self._sources.append(path.name)

    def _read_block(self, block: _Block, facts: dict[LogFact, None], file_label: tuple[int | None, str]) -> None:
        place = block.text.find(FIRST_FAILURE, 0, block.end)
        while place >= 0:
            facts[first_failure(block.text[place : place + _REPORT_BYTES])] = None
            place = block.text.find(FIRST_FAILURE, place + 1, block.end)
        marks = _MARKS
        if self._num_errors > _MOST_ERRORS:
            marks = [(mark, reader) for mark, reader in _MARKS if reader is not _ERROR_READER]
        for begin, hit in _hits(block, marks):
            raw = block.text[begin : hit.end]
            label, kind = None, ""
            is_line_begin = block.text[begin - 1 : begin] == b"\n"
            if is_line_begin and (begin > 1 or block.is_begin):
                label, kind = _label(raw)
            if label is None:
                label, kind = file_label
            has_end = block.text[hit.end : hit.end + 1] == b"\n"
            line = LogLine(raw.decode("utf-8", "replace"), label, kind, is_cut=not has_end)
            for reader in hit.readers:
                if reader is _ERROR_READER:
                    self._num_errors += 1
                    if self._num_errors > _MOST_ERRORS:
                        continue
                for fact in reader.read(line):
                    self._add(fact, facts)

    def _add(self, fact: LogFact, facts: dict[LogFact, None]) -> None:
        if len(facts) + len(self._facts) >= _MOST_FACTS or fact in facts:
            return
        if isinstance(fact, OwnError | CommunicationError | CallFrame):
            kind = (type(fact), fact.origin, getattr(fact, "kind", ""))
            self._num_alike[kind] += 1
            if self._num_alike[kind] > _MOST_ALIKE:
                return
        facts[fact] = None

    def logs(self) -> HangLogs:
        facts = tuple(self._facts)
        if self._num_errors > _MOST_ERRORS:
            facts = tuple(fact for fact in facts if not isinstance(fact, OwnError))
        return HangLogs(facts, self._num_lines, tuple(self._sources), tuple(sorted({*self._file_ranks})))


def _hits(block: _Block, marks: Sequence[_Mark]) -> list[tuple[int, _Hit]]:
    """Return the lines that have a mark, with their begin; it takes less time to search a block than each line."""
    text = block.text
    hit_of: dict[int, _Hit] = {}  # by the line's begin
    for mark, reader in marks:
        place = _find(mark, text, 0, block.end)
        while place >= 0:
            begin = text.rfind(b"\n", 0, place) + 1
            end = text.find(b"\n", place)
            if end < 0:
                end = len(text)
            if end - begin > _MOST_LINE_BYTES:
                begin += (place - begin) // _MOST_LINE_BYTES * _MOST_LINE_BYTES
                end = min(end, begin + _MOST_LINE_BYTES)
            hit = hit_of.get(begin)
            if hit is None:
                hit_of[begin] = _Hit(end, [reader])
            elif hit.readers[-1] is not reader:
                hit.readers.append(reader)
            place = _find(mark, text, end, block.end)
    return sorted(hit_of.items())


def _find(mark: bytes | re.Pattern[bytes], text: bytes, begin: int, end: int) -> int:
    if isinstance(mark, bytes):
        return text.find(mark, begin, end)
    match = mark.search(text, begin, end)
    return match.start() if match else -1


def _label(raw: bytes) -> tuple[int | None, str]:
    """Return the number in a launcher's prefix, and the launcher."""
    if raw[:1] not in _LABEL_BEGINS or raw.startswith(b"[rank"):
        return None, ""
    for launcher in LAUNCHERS:
        match = launcher.pattern.match(raw)
        if match:
            return int(match[1]), launcher.kind
    return None, ""


def _without_label(fact: Any, kind: str) -> Any:
    if fact.origin.label_kind != kind:
        return fact
    return fact._replace(origin=fact.origin._replace(label=None, label_kind=""))
