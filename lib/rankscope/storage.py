"""Files are written whole or not at all, so that nothing recorded is lost; mapped ones have room on the disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a new file beside `path`, then put it in the place of `path` in one step.

    An exception or a crash before the last step leaves whatever stood at `path` as it was. Raises OSError
    naming `path` where it cannot be written.
    """
    target = Path(path).resolve()  # a link stays a link
    temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _replace(target, temporary, write)
    except OSError as error:
        if error.errno and str(error.filename) in ("None", str(temporary)):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    return target


def _replace(target: Path, temporary: Path, write: Callable[[BinaryIO], object]) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)  # Ctrl-C may come when it has its name already
        raise


def reserve(descriptor: int, num_bytes: int) -> None:
    """Make an open file that size; on a full disk this raises OSError, where writing to a mapped hole would kill."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.truncate(descriptor, num_bytes)
