"""Files: written whole or not at all, read back only if they are intact, and one error that names the path."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import math
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .checks import one_line, whole

MOST_BYTES = 1 << 26  # of a stored value
MOST_VALUES = 1 << 23  # of a stored value: numbers, texts, lists and mappings
MOST_UNPACKED_RATIO = 64  # by which a gzipped file may grow; traces and logs grow by 5 to 30
FREE_UNPACKED_BYTES = 32 << 20  # up to which it may grow in any case
_MOST_LENGTH = 1 << 62  # of a dimension; numpy counts in 64 bits
_ANY_SIZE_BYTES = 1 << 63  # no file is longer
Mark = bool | Literal[0, 1]  # a truth value, as lists in files hold it

PathLike = str | os.PathLike[str]
Value = TypeVar("Value")
Fields = TypeVar("Fields", bound="StoredFile")


class StorageError(ValueError):
    """A file does not hold what it should. The message is one printable line that begins with the path."""

    def __init__(self, path: PathLike, message: str) -> None:
        super().__init__(one_line(f"{os.fspath(path)}: {message}"))


def save(path: PathLike, format: str, version: int, **fields: Any) -> Path:
    """Write fields as JSON under a head with format, version and a checksum of all that follows; return the path.

    Each field stands on a line of its own, and so does each item of a list and of a mapping, for readable diffs.
    Raises OSError, with this path, where the file cannot be written, or where there is something that is no file.

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
    if isinstance(value, Mapping):
        items = [f"{_json(name)}: {_json(one)}" for name, one in value.items()]
        return "{\n" + ",\n".join(items) + "\n}"
    return "[\n" + ",\n".join(map(_json, value)) + "\n]" if isinstance(value, list | tuple) else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class StoredPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a file, by the types of its fields: it holds all of them, and no others."""


class StoredFile(StoredPart, kw_only=True):
    """A file that `save` wrote; each format adds its own fields."""

    format: str
    version: int
    crc32: str


class _FileHead(msgspec.Struct):
    """What is looked at first, whatever else the file holds."""

    format: Any = None
    version: Any = None
    crc32: Any = None


def load(path: PathLike, format: str, version: int, fields: type[Fields], build: Callable[[Fields], Value]) -> Value:
    """Return what `build` makes from a file that `save` wrote, in this version of the format or older.

    `fields` says what the file must hold. Raises StorageError for a file that is damaged, cut short, of another format,
    newer, or longer than `MOST_BYTES`, for other fields or types, and for values that `build` refuses; OSError where it
    cannot be opened.
    """
    try:
        raw = read_bytes(path)
        head = decoded(raw, _FileHead)
        if head.format != format:
            raise ValueError(f"format must be {format!r}, got {head.format!r}")
        if whole("version", head.version, 1) > version:
            raise ValueError(f"version {head.version} is newer than {version}, the newest this rankscope reads")
        if head.crc32 not in _checksums(raw):
            raise ValueError(f"crc32 {head.crc32!r} does not fit: the file was damaged or edited by hand")
        return build(decoded(raw, fields))
    except StorageError:
        raise
    except RecursionError as error:
        raise StorageError(path, f"not a readable {format}: nested too deeply") from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise StorageError(path, f"not a readable {format}: {error}") from error


def decoded(raw: bytes | str, kind: type[Value]) -> Value:
    """Return JSON as this type, mostly a `StoredPart`; ValueError names the place that does not fit.

    >>> class Sizes(StoredPart):
    ...     sizes: list[int]
    >>> decoded('{"sizes": [1, "2"]}', Sizes)
    Traceback (most recent call last):
    ValueError: sizes[1]: Expected `int`, got `str`
    """
    if isinstance(raw, str):
        raw = raw.encode()
    check_num_values(raw, MOST_VALUES)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        raise ValueError(f"{place.rstrip('`')}: {problem}" if place else problem) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"damaged, cut short or not JSON: {error}") from error


def check_num_values(text: bytes, most_values: int) -> None:
    """Raise ValueError if JSON may have more values than this, before each of them takes up to 232 bytes of memory.

    Commas and brackets are counted, those within strings included.

    >>> check_num_values(b"[0,0,0]", 2)
    Traceback (most recent call last):
    ValueError: it has more than 2 values
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") > most_values:
        raise ValueError(f"it has more than {most_values} values")


def _checksums(raw: bytes) -> set[str]:
    """Of all after the head, and of the items of its only list: cap sweeps of version 1 were signed that way."""
    body = raw.partition(b"\n")[2].rstrip().removesuffix(b"}")
    items = body[body.find(b"[\n") + 2 : body.rfind(b"\n]")]
    return {f"{zlib.crc32(part):08x}" for part in (body, items)}


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Let a ValueError name the place in the file where its value stands.

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
    """Let an OSError of the body have this path, if it has none: reading and writing leave it out, unlike opening."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


def read_bytes(path: PathLike, most_bytes: int = MOST_BYTES) -> bytes:
    """Return all of a regular file.

    Raises ValueError for a longer, an empty or another kind of file; OSError, with this path, for none and for one that
    cannot be read.
    """
    with open_file(path, most_bytes) as file, naming(path):
        raw = file.read(os.fstat(file.fileno()).st_size + 1)  # takes memory for as much
    if len(raw) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    if not raw.strip():
        raise ValueError("it is empty")
    return raw


def open_file(path: PathLike, most_bytes: int) -> BinaryIO:
    """Open a regular file; ValueError for a longer or another kind of file, OSError for none."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # that of a FIFO waits for no writer
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
        os.close(descriptor)
        raise ValueError(f"it has more than {most_bytes} bytes" if stat.S_ISREG(found.st_mode) else "it is not a file")
    return os.fdopen(descriptor, "rb")


def open_of_any_size(path: PathLike) -> BinaryIO:
    """Open a regular file, to look at how it begins; StorageError for another kind of file, OSError for none."""
    try:
        return open_file(path, _ANY_SIZE_BYTES)
    except ValueError as error:
        raise StorageError(path, str(error)) from error


def most_unpacked_bytes(packed_bytes: int, most_bytes: int) -> int:
    """Return to how much a gzipped file may unpack: `most_bytes`, or less if the file is small.

    Zeros shrink by a factor of 1,000, and so a file of megabytes could ask for gigabytes of memory.
    """
    return min(most_bytes, max(FREE_UNPACKED_BYTES, MOST_UNPACKED_RATIO * packed_bytes))


def unpacked(raw: bytes, most_bytes: int) -> bytes:
    """Return what was gzipped.

    Raises ValueError for more than `most_bytes`, or than `most_unpacked_bytes` allows; OSError or EOFError for no gzip.
    """
    most_bytes = most_unpacked_bytes(len(raw), most_bytes)
    pieces, num_bytes = list[bytes](), 0
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        while piece := file.read(1 << 20):
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > most_bytes:
                raise ValueError(f"it has more than {most_bytes} bytes unpacked")
    return b"".join(pieces)


def read_arrays(raw: bytes, most_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz archive by their names; pickles are never read.

    What the archive and each array declare is compared with what is there before memory is taken for it. Raises
    ValueError for arrays of more than `most_bytes` together and for what is no such archive, zipfile.BadZipFile for
    what is no archive.
    """
    try:
        return _arrays(raw, most_bytes)
    except (ValueError, zipfile.BadZipFile):
        raise
    except _DAMAGED_ARCHIVE as error:
        said = str(error) or type(error).__name__
        raise ValueError(f"it is damaged, or no archive of arrays: {said}") from error


# a size above 64 bits, another compression, a password, what is cut short, and headers that are none of an array
_DAMAGED_ARCHIVE = (
    *(OverflowError, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error, struct.error),
    *(TypeError, KeyError, IndexError, SyntaxError, AttributeError),
)


def _arrays(raw: bytes, most_bytes: int) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        num_bytes = sum(one.file_size for one in archive.infolist())
        if num_bytes > most_bytes:
            raise ValueError(f"its arrays must have at most {most_bytes} bytes unpacked, and have {num_bytes}")
        for one in archive.infolist():
            with archive.open(one) as file:
                version = np.lib.format.read_magic(file)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                if version not in read_header:
                    raise ValueError(f"{one.filename} must be of version 1.0 or 2.0 of npy, got {version}")
                shape, _, dtype = read_header[version](file)
                if not all(0 <= size < _MOST_LENGTH for size in shape):
                    raise ValueError(f"{one.filename} must have sizes from 0 to {_MOST_LENGTH - 1}, got {shape}")
                declared = file.tell() + math.prod(shape) * dtype.itemsize
                if declared != one.file_size and not dtype.hasobject:
                    what = f"{declared} bytes for {dtype} of shape {shape}"
                    raise ValueError(f"{one.filename} must have {what}, and has {one.file_size}")
            with archive.open(one) as file:
                found[one.filename.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
    return found


def check_file(name: str, path: PathLike) -> None:
    """Refuse a path, given as `name`, of a folder or a device, which a file must not replace."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{name} must be a file, got {os.fspath(path)!r}")


def write_atomically(path: PathLike, write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a new file next to `path`, then put it in the place of `path` in one step.

    An exception or a crash before the last step leaves whatever stood at `path` as it was. Raises OSError
    naming `path` where it cannot be written, and where there is a folder, a FIFO, a socket or a device.
    """
    target = output_path(path)
    temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _replace(target, temporary, write)
    except OSError as error:
        if error.errno and str(error.filename) in ("None", str(temporary)):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    return target


def output_path(path: PathLike) -> Path:
    """Return where a file is written: behind the links, so that a link stays a link.

    Raises OSError naming `path` for links that lead to themselves, and for what exists and is not a file: a folder, or
    a FIFO or a device, which a file must not replace.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)
        target = Path(path).resolve()
    except RuntimeError as error:  # what Python 3.11 and 3.12 say of a loop; "none/../loop" is one, and has no stat
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from error
    if target.exists() and not target.is_file():
        code = errno.EISDIR if target.is_dir() else errno.EEXIST
        raise OSError(code, "it exists and is not a file", os.fspath(path))
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
        temporary.unlink(missing_ok=True)  # Ctrl-C may come once it has its name
        raise


def reserve(descriptor: int, num_bytes: int) -> None:
    """Make an open file that size; on a full disk this raises OSError, where writing to a mapped hole would kill."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.truncate(descriptor, num_bytes)
