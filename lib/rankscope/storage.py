"""Files are written whole or not at all, so that nothing recorded is lost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a new file beside `path`, then put it in the place of `path` in one step.

    An exception or a crash before the last step leaves whatever stood at `path` as it was. Raises OSError
    where the folder cannot be written.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes it private; a plain open() would not
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target
