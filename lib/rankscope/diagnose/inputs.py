"""Which files a user means: those that are named, or those of a folder; traces, dumps or logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
