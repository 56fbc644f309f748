"""`read_logs`: what the logs of a job that hangs say, as facts of its ranks; see `log_lines` for the lines."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..common.checks import of_type, several
from ..common.frozen import frozen
from ..common.storage import PathLike, StorageError, naming, open_file
from .log_lines import LAUNCHERS, LINE_READERS, LineReader, LogFact, LogLine, RootCause

MOST_LOG_BYTES = 1 << 30  # of one log
_MOST_LOGS = 1 << 14
_MOST_LINE_BYTES = 1 << 14  # of a line that is read in one piece
_MOST_FACTS = 1 << 20  # different ones, of all logs
_LEAST_LABELLED = 0.8  # of the lines: fewer that begin with a number are no output of srun
_LABEL_BEGINS = tuple(bytes([code]) for code in b"[ 0123456789")
_MARKS = tuple((mark, reader) for reader in LINE_READERS.values() for mark in reader.marks)
_FILE_RANK = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)", re.ASCII)
_LOG_NAME = re.compile(r"(?:\.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,9})?|^std(?:out|err))$", re.ASCII)


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


def read_logs(folder_or_files: PathLike | Iterable[PathLike]) -> HangLogs:
    """Parse the logs of a hanging job for `explain_hang`.

    Pass files, or a folder. In a folder, files are read if their names end in .log, .out, .err or .txt, or are stdout
    or stderr. A log may contain the lines of one rank or of several ranks, mixed. A rank is recognised by torch's
    ``[rank3]:``, by the prefix of torchrun (``[default3]:``), srun (``3:``) or mpirun (``[1,3]<stderr>:``), or by the
    name of the file ("rank3.log").

    Raises StorageError if a log has more than 1 GiB; ValueError if there are no logs or more than 16,384; OSError if a
    log cannot be opened.
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
            reader.read(file, path.name)
    return reader.logs()


def read_hang_text(text: str) -> HangLogs:
    """Parse a pasted log like `read_logs`.

    >>> text = "[rank0]: RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms"
    >>> read_hang_text(text).facts[0].ranks
    (2,)
    """
    reader = _HangLogReader()
    reader.read(BytesIO(of_type("text", text, str).encode("utf-8", "replace")), "the text")
    return reader.logs()


def _log_files(folder_or_files: Any) -> list[Path]:
    if not isinstance(folder_or_files, str | os.PathLike):
        return [Path(path) for path in several("folder_or_files", folder_or_files, "files, or a folder")]
    path = Path(folder_or_files)
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.iterdir()) if is_log_name(file) and file.is_file()]


class _RawLine(NamedTuple):
    text: bytes
    is_begin: bool  # of a line, rather than the rest of a long one
    has_end: bool


def _raw_lines(file: BinaryIO) -> Iterator[_RawLine]:
    """The lines of a file, long ones in pieces; a progress bar's carriage returns separate lines, too."""
    is_begin = True
    while True:
        raw = file.readline(_MOST_LINE_BYTES)
        if not raw:
            return
        has_end = raw.endswith(b"\n")
        if b"\r" in raw:
            pieces = raw.rstrip(b"\r\n").split(b"\r")
            for place, piece in enumerate(pieces):
                yield _RawLine(piece, is_begin or place > 0, has_end or place < len(pieces) - 1)
        else:
            yield _RawLine(raw, is_begin, has_end)
        is_begin = has_end


class _HangLogReader:
    """Collects the facts of logs, each of them once."""

    def __init__(self) -> None:
        self._facts: dict[LogFact, None] = {}
        self._num_lines = 0
        self._sources: list[str] = []
        self._file_ranks: list[int] = []

    def read(self, file: BinaryIO, name: str) -> None:
        in_name = _FILE_RANK.search(name)
        file_rank = int(in_name[1]) if in_name else None
        facts: dict[LogFact, None] = {}
        num_labelled = Counter[str]()
        num_lines = 0
        root_cause = RootCause()
        for raw in _raw_lines(file):
            if not raw.text.strip():
                continue
            num_lines += 1
            label, kind = None, ""
            if raw.is_begin:
                label, kind = _label(raw.text)
                num_labelled[kind] += 1
            killed = root_cause.read(raw.text)
            if killed is not None:
                facts[killed] = None
            readers = _readers_of(raw.text)
            if not readers:
                continue
            if label is None and file_rank is not None:
                label, kind = file_rank, "file"
            text = raw.text.decode("utf-8", "replace").rstrip("\r\n")
            self._add(facts, LogLine(text, label, kind, is_cut=not raw.has_end), readers)
        if num_labelled["srun"] < _LEAST_LABELLED * num_lines:
            facts = {_without_label(fact, "srun"): None for fact in facts}
        self._facts |= facts
        self._num_lines += num_lines
        self._sources.append(name)
        if file_rank is not None:
            self._file_ranks.append(file_rank)

    def _add(self, facts: dict[LogFact, None], line: LogLine, readers: Sequence[LineReader]) -> None:
        for reader in readers:
            for fact in reader.read(line):
                if len(facts) + len(self._facts) < _MOST_FACTS:
                    facts[fact] = None

    def logs(self) -> HangLogs:
        return HangLogs(tuple(self._facts), self._num_lines, tuple(self._sources), tuple(sorted({*self._file_ranks})))


def _readers_of(raw: bytes) -> list[LineReader]:
    """Return the readers of which a line has a mark. This runs for each line of a log, so it is a plain loop."""
    readers = []
    for mark, reader in _MARKS:
        if mark in raw and reader not in readers:
            readers.append(reader)
    return readers


def _label(raw: bytes) -> tuple[int | None, str]:
    """Return the number in a launcher's prefix, and the launcher."""
    if raw[:1] not in _LABEL_BEGINS:
        return None, ""
    for launcher in LAUNCHERS:
        match = launcher.pattern.match(raw)
        if match and not raw.startswith(b"[rank"):
            return int(match[1]), launcher.kind
    return None, ""


def _without_label(fact: Any, kind: str) -> Any:
    if fact.process.label_kind != kind:
        return fact
    return fact._replace(process=fact.process._replace(label=None, label_kind=""))
