"""`read_logs`: what the logs of a job that hangs, or has ended, state; see `log_evidence` for the kinds of lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ...common.checks import of_type
from ...common.files import FileError, PathLike, read_bytes
from ..inputs import paths_of
from .log_evidence import Facts, facts_of
from .log_lines import Watched, clean_lines

_LOG_NAME = re.compile(r"(?:\.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,9})?|^std(?:out|err))(?:\.gz)?$", re.ASCII)
_ATTEMPT = re.compile(r"attempt_(\d+)")  # a folder of torchrun's --log-dir


class HangLogs(msgspec.Struct, frozen=True, eq=False):
    """What logs state, by kind; and why files could not be read."""

    facts: Facts
    left_out: tuple[str, ...] = ()


def is_log(path: Path) -> bool:
    """Whether a file is taken for a log, by its name."""
    return _LOG_NAME.search(path.name) is not None


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in the folders below this one, of the last attempt of torchrun's --log-dir.

    torchrun writes FOLDER/RUN/attempt_0/LOCAL_RANK/stderr.log.
    """
    logs = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_log(path)]
    attempts = [_ATTEMPT.findall(str(path.parent.relative_to(folder))) for path in logs]
    return [path for path, attempt in zip(logs, attempts, strict=True) if attempt == max(attempts)]


def read_logs(folder_or_files: PathLike | Iterable[PathLike], watched: Watched = iter) -> HangLogs:
    """Read the logs of a job: files, or a folder of files that end in .log, .out, .err or .txt, perhaps gzipped.

    The folder may be that of torchrun's ``--log-dir``. A name such as ``rank3.log`` states the rank of the lines; a
    folder of torchrun states the one within its node. A file that cannot be read is left out and named. `watched`
    passes on the lines of a log, and may count them.

    Raises ValueError if there is no log, and FileError or OSError if none can be read.
    """
    files = paths_of(folder_or_files, is_log)
    if not files and isinstance(folder_or_files, str | Path):
        files = logs_in(Path(folder_or_files))
    if not files:
        raise ValueError(f"{folder_or_files} has no log, which is a file that ends in .log, .out, .err or .txt")
    texts: dict[str, str] = {}
    errors: list[Exception] = []
    for path in files:
        try:
            texts[str(path)] = read_bytes(path).decode("utf-8-sig", "replace")
        except (FileError, OSError) as error:
            errors.append(error)
    if not texts:
        raise errors[0]
    return HangLogs(facts_of(clean_lines(texts, watched)), tuple(map(str, errors)))


def read_hang_text(text: str, watched: Watched = iter) -> HangLogs:
    """Read text that was pasted from the logs of a job; the lines may be of several ranks."""
    return HangLogs(facts_of(clean_lines({"": of_type("text", text, str)}, watched)))
