"""Which of the files that a user names are traces, dumps and logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..timeline.events import is_ours
from .dumps import is_dump
from .logs import is_log, logs_in


class TraceFiles(NamedTuple):
    """Files to read: traces, flight-recorder dumps, and logs."""

    traces: list[Path]
    dumps: list[Path]
    logs: list[Path]


def files_in(paths: Sequence[Path]) -> TraceFiles:
    """Return the traces, dumps and logs among these files, or in a single folder.

    A trace's name ends in .json or .json.gz. In a folder, only names of logs are read as such, and traces that this
    package wrote are left out; if it has none of the three, the logs below it that torchrun's ``--log-dir`` makes are
    returned.
    """
    is_folder = len(paths) == 1 and paths[0].is_dir()
    files = sorted(file for file in paths[0].iterdir() if file.is_file()) if is_folder else paths
    found = TraceFiles([], [], [])
    for file in files:
        if is_dump(file):
            found.dumps.append(file)
        elif is_log(file):
            found.logs.append(file)
        elif file.name.endswith((".json", ".json.gz")):
            if not (is_folder and is_ours(file)):
                found.traces.append(file)
        elif not is_folder:
            found.logs.append(file)
    if is_folder and not any(found):
        found.logs.extend(logs_in(paths[0]))
    return found
