"""Files: written whole or not at all, read back only if they are intact, and one error that names the path."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .checks import one_line, whole

MOST_BYTES = 1 << 26  # the longest file of a stored value
_ANY_SIZE_BYTES = 1 << 63  # a limit that admits every file
Mark = bool | Literal[0, 1]  # a truth value, as lists in files store it

PathLike = str | os.PathLike[str]
Value = TypeVar("Value")
Fields = TypeVar("Fields", bound="StoredFile")


class StorageError(ValueError):
    """A file's content is not what it should be. The message is one printable line that begins with the path."""

    def __init__(self, path: PathLike, message: str) -> None:
        super().__init__(os.fspath(path), message)  # both, because pickle calls the class with what is passed here

    def __str__(self) -> str:
        path, message = self.args
        return one_line(f"{path}: {message}")


def save(path: PathLike, format: str, version: int, **fields: Any) -> Path:
    """Write fields as JSON under a head with format, version and a checksum of all that follows; return the path.

    Each field has its own line, and so has each item of a list or a mapping, so that diffs are readable. Raises
    OSError, with this path, if the file cannot be written or if the path is that of a folder or a device.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(save(folder + "/a.json", "rankscope example", 1, sizes=[1, 2]).read_text())
    {"format": "rankscope example", "version": 1, "crc32": "6a5e41be",
    "sizes": [
    1,
    2
    ]}
    <BLANKLINE>
    """
    body = ",\n".join(f'"{name}": {_in_lines(value)}' for name, value in fields.items()).encode()
    head = f'{{"format": "{format}", "version": {version}, "crc32": "{zlib.crc32(body):08x}",\n'.encode()
    return write_atomically(path, lambda file: file.write(head + body + b"}\n"))


def _in_lines(value: Any) -> str:
    """Return a value as JSON, with a line for each item of a list or a mapping."""
    if isinstance(value, Mapping):
        entries = [f"{_json(name)}: {_json(item)}" for name, item in value.items()]
        return "{\n" + ",\n".join(entries) + "\n}"
    if isinstance(value, list | tuple):
        return "[\n" + ",\n".join(map(_json, value)) + "\n]"
    return _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class StoredPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a file. Its fields are those of the class: all of them, of these types, and no others."""


class StoredFile(StoredPart, kw_only=True):
    """A file that `save` wrote; each format adds its own fields."""

    format: str
    version: int
    crc32: str


class _FileHead(msgspec.Struct):
    """The fields that any file of `save` has. With other values, the file is of another format, newer or damaged."""

    format: Any = None
    version: Any = None
    crc32: Any = None


def load(path: PathLike, format: str, version: int, fields: type[Fields], build: Callable[[Fields], Value]) -> Value:
    """Return what `build` makes from a file that `save` wrote, in this version of the format or older.

    `fields` is the type of the file's content. Raises StorageError for a file that is damaged, cut short, of another
    format, newer, or longer than `MOST_BYTES`, for other fields or types, and for values that `build` refuses; OSError
    if it cannot be opened.
    """
    try:
        raw = read_bytes(path)
        try:
            stored = decoded(raw, fields)
        except (ValueError, RecursionError):
            # A file of another format has other fields, too. If that is the cause, this raises an error that says so.
            _check_head(decoded(raw, _FileHead), raw, format, version)
            raise
        _check_head(stored, raw, format, version)
        return build(stored)
    except RecursionError as error:
        raise StorageError(path, f"not a readable {format}: nested too deeply") from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise StorageError(path, f"not a readable {format}: {error}") from error


def _check_head(head: StoredFile | _FileHead, raw: bytes, format: str, version: int) -> None:
    """Raise ValueError if a file is of another format, of a newer version, or was changed after it was written."""
    if head.format != format:
        raise ValueError(f"format must be {format!r}, got {head.format!r}")
    if whole("version", head.version, 1) > version:
        raise ValueError(f"version {head.version} is newer than {version}, the newest this rankscope reads")
    if head.crc32 not in _checksums(raw):
        raise ValueError(f"crc32 {head.crc32!r} does not fit: the file was damaged or edited by hand")


def decoded(raw: bytes | str, kind: type[Value]) -> Value:
    """Return JSON as this type, usually a `StoredPart`. Raises ValueError with the place of what does not fit.

    >>> class Sizes(StoredPart):
    ...     sizes: list[int]
    >>> decoded('{"sizes": [1, "2"]}', Sizes)
    Traceback (most recent call last):
    ValueError: sizes[1]: Expected `int`, got `str`
    """
    if isinstance(raw, str):
        raw = raw.encode()
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        # The error reads "Expected `int`, got `str` - at `$.sizes[1]`".
        problem, _, place = str(error).partition(" - at `$.")
        if place:
            problem = f"{place.rstrip('`')}: {problem}"
        raise ValueError(problem) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"damaged, cut short or not JSON: {error}") from error


def _checksums(raw: bytes) -> set[str]:
    """Return the checksums that a file may carry: of all after the head, or of the items of its only list.

    Cap sweeps of version 1 carry the second one.
    """
    body = raw.partition(b"\n")[2].rstrip().removesuffix(b"}")  # the head is the first line
    begin_of_items = body.find(b"[\n") + len(b"[\n")
    end_of_items = body.rfind(b"\n]")
    items = body[begin_of_items:end_of_items]
    return {f"{zlib.crc32(part):08x}" for part in (body, items)}


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Add the place in the file to the message of a ValueError.

    >>> with within("points[2]"):
    ...     raise ValueError("num_bytes must be at least 0")
    Traceback (most recent call last):
    ValueError: points[2]: num_bytes must be at least 0
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


@contextlib.contextmanager
def naming(path: PathLike) -> Iterator[None]:
    """Add this path to an OSError of the body that names none: errors of reading and writing do not, unlike opening."""
    try:
        yield
    except OSError as error:
        is_of_system = error.errno is not None  # unlike those of Python's modules, such as gzip.BadGzipFile
        if is_of_system and error.filename is None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


def read_bytes(path: PathLike, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises ValueError for a file that is empty, longer or of another kind; OSError, with this path, if there is none or
    it cannot be read.
    """
    with open_file(path, most_bytes) as file, naming(path):
        # Without a size, `read` would go on while the file grows, and it takes memory for the size that it gets. The
        # byte beyond the file's own shows that a file of the longest size has grown since it was opened.
        raw = file.read(os.fstat(file.fileno()).st_size + 1)
    if len(raw) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    if not raw.strip():
        raise ValueError("it is empty")
    return raw


def open_file(path: PathLike, most_bytes: int) -> BinaryIO:
    """Open a regular file. Raises ValueError for a file that is longer or of another kind, OSError if there is none."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # so that a FIFO does not wait for a writer
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ValueError("it is not a file")
    if status.st_size > most_bytes:
        os.close(descriptor)
        raise ValueError(f"it has more than {most_bytes} bytes")
    return os.fdopen(descriptor, "rb")


def open_of_any_size(path: PathLike) -> BinaryIO:
    """Open a regular file of any length, to read its beginning.

    Raises StorageError for another kind of file, OSError if there is none.
    """
    try:
        return open_file(path, _ANY_SIZE_BYTES)
    except ValueError as error:
        raise StorageError(path, str(error)) from error


def unpacked(raw: bytes, most_bytes: int) -> bytes:
    """Return the content of gzipped bytes.

    Raises ValueError for more than `most_bytes`; OSError, EOFError or zlib.error if the bytes are not gzipped or are
    damaged.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes unpacked")
    return content


def read_arrays(raw: bytes, most_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz archive by their names; pickles are never read.

    Raises ValueError if the arrays have more than `most_bytes` together or the archive contains anything else,
    zipfile.BadZipFile for bytes that are not an archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
        if num_bytes > most_bytes:
            raise ValueError(f"its arrays must have at most {most_bytes} bytes unpacked, and have {num_bytes}")
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            return dict(arrays)
    except (zipfile.BadZipFile, ValueError):
        raise
    except Exception as error:  # a damaged archive can fail in many ways
        problem = str(error) or type(error).__name__
        raise ValueError(f"it is damaged or not an archive of arrays: {problem}") from error


def check_file(name: str, path: PathLike) -> None:
    """Raise ValueError for a path, given as `name`, that a file must not replace: that of a folder or a device."""
    if _is_other_than_file(path):
        raise ValueError(f"{name} must be a file, got {os.fspath(path)!r}")


def check_output(name: str, path: PathLike, inputs: Iterable[PathLike], endings: tuple[str, ...] = ("",)) -> None:
    """Raise ValueError for a path, given as `name`, that is not for this output.

    That is the path of a folder or a device, one without any of the `endings`, and one of an input, which the output
    would replace. An input that is not there, such as bank:NAME, is left out.
    """
    check_file(name, path)
    if not os.fspath(path).endswith(endings):
        raise ValueError(f"{name} must end in {' or '.join(endings)}, got {os.fspath(path)!r}")
    if os.path.exists(path) and any(os.path.exists(file) and os.path.samefile(path, file) for file in inputs):
        raise ValueError(f"{name} must be a new file, and {os.fspath(path)} is one of those to read")


def _is_other_than_file(path: PathLike) -> bool:
    """Whether there is a folder, a FIFO, a socket or a device at this path."""
    return os.path.exists(path) and not os.path.isfile(path)


def write_atomically(path: PathLike, write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a new file next to `path`, then replace `path` by it in one step.

    After an exception or a crash before the last step, `path` is as it was. Raises OSError naming `path` if it cannot
    be written, or if it is a folder, a FIFO, a socket or a device.
    """
    target = output_path(path)
    temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _replace(target, temporary, write)
    except OSError as error:
        # The user knows `path`, but not the temporary file; errors of writing name no file at all. An error without
        # the system's number, which `write` may raise, stays as it is.
        names_no_file_of_user = error.filename is None or str(error.filename) == str(temporary)
        if error.errno is not None and names_no_file_of_user:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    return target


def output_path(path: PathLike) -> Path:
    """Return the path that a file is written to: links are followed, so that a link stays a link.

    Raises OSError naming `path` for links that lead to themselves, and for what a file must not replace: a folder, a
    FIFO, a socket or a device.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)  # raises OSError for a loop of links, which `resolve` may not do
        target = Path(path).resolve()
    except RuntimeError as error:  # Python 3.11 and 3.12 raise it for a loop that has no stat, as "none/../loop"
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from error
    if _is_other_than_file(target):
        code = errno.EISDIR if target.is_dir() else errno.EEXIST
        raise OSError(code, "it exists and is not a file", os.fspath(path))
    return target


def _replace(target: Path, temporary: Path, write: Callable[[BinaryIO], object]) -> None:
    """Fill the temporary file, and rename it to the target; after an error, delete it."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():  # the new file gets the permissions of the one that it replaces
            temporary.chmod(target.stat().st_mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)  # it may have its final name already if Ctrl-C came late
        raise


def reserve(descriptor: int, num_bytes: int) -> None:
    """Give an open file this size, with disk space for all of it.

    On a full disk this raises OSError. Writing to a mapped file without that space would kill the process.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.truncate(descriptor, num_bytes)
