"""Which of the files that a user names are traces, dumps or logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .inputs import is_trace, paths_of


def files_in(paths: Sequence[Path]) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the traces, dumps and logs among these files, or in a single folder.

    In a folder, only names of logs are read as such; if it has none of the three, the logs below it that torchrun's
    ``--log-dir`` makes are returned.
    """
    from .hangs.dumps import is_dump
    from .hangs.logs import is_log, logs_in

    is_folder = len(paths) == 1 and paths[0].is_dir()
    traces: list[Path] = []
    dumps: list[Path] = []
    logs: list[Path] = []
    for file in paths_of(paths[0] if is_folder else paths, Path.is_file):
        if is_dump(file):
            dumps.append(file)
        elif is_trace(file):
            traces.append(file)
        elif is_log(file) or not is_folder:
            logs.append(file)
    if is_folder and not (traces or dumps or logs):
        logs = logs_in(paths[0])
    return traces, dumps, logs
