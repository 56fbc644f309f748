"""Files: read up to one limit of size, written whole or not at all, JSON by msgspec, and one error with the path."""

from __future__ import annotations

import gzip
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args

import msgspec
import numpy as np

from .words import one_line

MOST_BYTES = 1 << 30  # of a file that is read as a whole
_GZIP_MAGIC = b"\x1f\x8b"  # the first bytes of a gzipped file

PathLike = str | os.PathLike[str]
Value = TypeVar("Value")


class FileError(ValueError):
    """A file is not what it should be. The message is one printable line that begins with the path."""

    def __init__(self, path: PathLike, message: str) -> None:
        super().__init__(os.fspath(path), message)  # both, because pickle calls the class with what is passed here

    def __str__(self) -> str:
        path, message = self.args
        return one_line(f"{path}: {message}")


def read_bytes(path: PathLike, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file, unpacked if it is gzipped.

    Raises FileError for one that is damaged or longer than `most_bytes`, and for anything but a file; OSError for one
    that is missing or cannot be opened.
    """
    with _open(path) as file:
        is_gzipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        reader = gzip.GzipFile(fileobj=file) if is_gzipped else file
        content = reader.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise FileError(path, f"it has more than {most_bytes} bytes")
    return content


def read_start(path: PathLike, num_bytes: int) -> bytes:
    """Return the first bytes of a file of any length. Raises as `read_bytes`."""
    with _open(path) as file:
        return file.read(num_bytes)


@contextmanager
def _open(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file; an error of reading, which names no file, becomes a FileError."""
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would wait for its writer
        raise FileError(path, "it is not a file")
    with open(path, "rb") as file:
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(path, f"it cannot be read: {error}") from error


@contextmanager
def while_reading(path: PathLike, problem: str) -> Iterator[None]:
    """Make a FileError that states the problem of whatever error a damaged file raises; an OSError stays one.

    >>> with while_reading("rank0.json", "not a usable trace"):
    ...     int("1?")
    Traceback (most recent call last):
    rankscope.common.files.FileError: rank0.json: not a usable trace: invalid literal for int() with base 10: '1?'
    """
    try:
        yield
    except (FileError, OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file can fail in many ways
        raise FileError(path, f"{problem}: {error}") from error


def read_json(path: PathLike, kind: type[Value], strict: bool = True) -> Value:
    """Return the JSON of a file as this type, by msgspec; lists become arrays where the type is ``NDArray``.

    Unless `strict`, 0 and 1 are truth values, too. Raises FileError for a file that is not JSON or does not fit the
    type, with the place, and as `read_bytes`.
    """
    content = read_bytes(path)
    with while_reading(path, f"not a readable {kind.__name__}"):
        return msgspec.json.decode(content, type=kind, strict=strict, dec_hook=_to_array)


def write_json(path: PathLike, value: Any) -> Path:
    """Write a value of msgspec as JSON, as `write_whole` does; arrays become lists, and nan becomes null."""
    return write_whole(path, msgspec.json.encode(value, enc_hook=_to_list) + b"\n")


def _to_array(kind: Any, value: Any) -> Any:
    """Return a list as an array of this kind, such as NDArray[np.float64]; null becomes nan."""
    _, dtype = get_args(kind)
    return np.array(value, *get_args(dtype))


def _to_list(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"JSON cannot hold a {type(value).__name__}")


def write_whole(path: PathLike, content: bytes) -> Path:
    """Write a new file next to `path`, then replace `path` by it in one step; return where it is, links followed.

    After an error or a crash `path` is as it was. A file that is replaced passes its permissions on. Raises OSError for
    a path that cannot be written, FileError for a folder, a device or anything else that is not a file.
    """
    target = Path(os.path.realpath(path))
    permissions = 0o666
    if target.exists():
        if not target.is_file():
            raise FileError(path, "it exists and is not a file")
        permissions = target.stat().st_mode & 0o777
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        _fill(temporary, content, permissions)
        os.replace(temporary, target)
    except OSError as error:  # it names the temporary file or none, and the user knows only `path`
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _fill(path: Path, content: bytes, permissions: int) -> None:
    """Write a new file with these permissions, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
        if permissions != 0o666:
            os.fchmod(descriptor, permissions)  # the umask of this process has removed some of them


def check_output(name: str, path: PathLike, inputs: Iterable[PathLike] = (), endings: tuple[str, ...] = ("",)) -> None:
    """Raise ValueError for a path, given as `name`, that has none of the `endings`, is no file, or is an input.

    Raises OSError if its folder is missing.
    """
    if not os.fspath(path).endswith(endings):
        raise ValueError(f"{name} must end in {' or '.join(endings)}, got {os.fspath(path)!r}")
    Path(path).parent.stat()
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(f"{name} must be a file, got {os.fspath(path)!r}")
    if any(os.path.exists(file) and os.path.samefile(path, file) for file in inputs):
        raise ValueError(f"{name} must be a new file, and {os.fspath(path)} is one of those to read")
