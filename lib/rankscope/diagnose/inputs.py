"""Which of the files that a user names are traces, dumps and logs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..common.checks import several
from ..common.files import read_start
from ..timeline.events import is_ours
from .dumps import is_dump
from .logs import is_log_name, logs_in

_HEAD_BYTES = 256  # of a file, which `_TRACE_HEAD` looks at
# how a trace begins: gzipped, or, perhaps after a byte order mark, with an object or a list of objects
_TRACE_HEAD = re.compile(rb"\x1f\x8b|(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*(?:\]|\{\s*[\"}]))")


class TraceFiles(NamedTuple):
    """Files to read: traces, flight-recorder dumps, and logs."""

    traces: list[Path]
    dumps: list[Path]
    logs: list[Path]


def files_in(folder_or_files: Any) -> TraceFiles:
    """Return the traces, dumps and logs among these files, or in this folder.

    In a folder, names say what is a trace or a log, and traces that this package wrote are left out; if it has no
    trace, log or dump, the logs below it that torchrun's ``--log-dir`` makes are returned. Files that are given are
    logs if their names say so, or if they do not begin as traces do.
    """
    if not isinstance(folder_or_files, str | os.PathLike):
        return _by_kind([Path(path) for path in several("folder_or_files", folder_or_files, "files, or a folder")])
    path = Path(folder_or_files)
    if not path.is_dir():
        return _by_kind([path])
    files = sorted(file for file in path.iterdir() if file.is_file())
    dumps = [file for file in files if is_dump(file)]
    others = [file for file in files if file not in dumps]
    traces = [file for file in others if file.name.endswith((".json", ".json.gz")) and not is_ours(file)]
    logs = [file for file in others if is_log_name(file)]
    if not (traces or dumps or logs):
        logs = logs_in(path)
    return TraceFiles(traces, dumps, logs)


def _by_kind(files: list[Path]) -> TraceFiles:
    """Sort files that were given one by one; what is neither a dump nor a trace is a log."""
    dumps = [file for file in files if is_dump(file)]
    others = [file for file in files if file not in dumps]
    logs = [file for file in others if not _may_be_trace(file)]
    return TraceFiles([file for file in others if file not in logs], dumps, logs)


def _may_be_trace(path: Path) -> bool:
    """Return whether a file is a trace by its name, or, if that does not tell, by how its text begins."""
    if is_log_name(path):
        return False
    if path.name.endswith((".json", ".gz")):
        return True
    return _TRACE_HEAD.match(read_start(path, _HEAD_BYTES)) is not None
