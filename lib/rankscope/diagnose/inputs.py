"""Which files a user means: those that are named, or those of a folder; traces, dumps or logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..common.checks import several
from ..common.files import PathLike


def paths_of(folder_or_files: PathLike | Iterable[PathLike], is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the files that are named, or those of a folder that are wanted, sorted.

    Raises ValueError for what is neither.
    """
    if not isinstance(folder_or_files, str | Path):
        return [Path(path) for path in several("folder_or_files", folder_or_files, "files, or a folder")]
    path = Path(folder_or_files)
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.iterdir()) if file.is_file() and is_wanted(file)]


def is_trace(path: Path) -> bool:
    """Whether a file is taken for a trace, by its name."""
    return path.name.endswith((".json", ".json.gz"))


def files_in(paths: Sequence[Path]) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the traces, dumps and logs among these files, or in a single folder.

    In a folder, only names of logs are read as such; if it has none of the three, the logs below it that torchrun's
    ``--log-dir`` makes are returned.
    """
    from .dumps import is_dump
    from .logs import is_log, logs_in

    is_folder = len(paths) == 1 and paths[0].is_dir()
    traces: list[Path] = []
    dumps: list[Path] = []
    logs: list[Path] = []
    for file in paths_of(paths[0] if is_folder else paths, Path.is_file):
        if is_dump(file):
            dumps.append(file)
        elif is_log(file):
            logs.append(file)
        elif is_trace(file):
            traces.append(file)
        elif not is_folder:
            logs.append(file)
    if is_folder and not (traces or dumps or logs):
        logs = logs_in(paths[0])
    return traces, dumps, logs
