"""`TraceFile`: the events of a Chrome trace, decoded in pieces, so that a file of gigabytes needs little memory."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import msgspec

from ..common.storage import StorageError, check_num_values, most_unpacked_bytes, naming, open_file, open_of_any_size

Entry = TypeVar("Entry")

_PIECE_BYTES = 4 << 20  # of text, decoded at once
_MOST_EVENT_BYTES = 1 << 24  # of text without the end of an event
_FREE_EVENTS = 1 << 20  # events that any trace may have
_LEAST_EVENT_BYTES = 32  # of text, on average, that events beyond these must have; the shortest have 50
_MOST_FIELD_VALUES = 1 << 22  # of the fields before and after the events
_MOST_CUTS = 8  # places that are tried as the end of an event before more text is read
_MOST_BRACES = 1000  # opening braces that are looked at for such a place
_MOST_GAP_BYTES = 64  # between two events; longer ones are not recognised as the end of an event
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*$")  # of the text before an event: the end of the event before it
_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_OURS = b'{"displayTimeUnit": "ms", "otherData": {"format": "rankscope.timeline"'


class _Text(NamedTuple):
    """Text that has been read, but not been decoded yet."""

    content: bytes
    is_last: bool  # whether it ends at the end of the file


class TraceFile(Generic[Entry]):
    """A trace on disk, gzipped or not, whose events are decoded as `entry`, a type for msgspec.

    `fields` contains the other fields of the file's object; those after the events only after all pieces were taken.
    """

    def __init__(self, path: str | os.PathLike[str], entry: Any, most_bytes: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._entries = list[entry]
        self._decoder = msgspec.json.Decoder(self._entries)
        self.fields: dict[str, Any] = {}
        self.num_bytes = 0  # of text that were read

    def pieces(self) -> Iterator[list[Entry]]:
        """Yield the events in order, some thousands at a time.

        The text may be cut at a place if the text before it, once closed, is a list; the content of strings cannot
        mislead this. Raises ValueError for a file that is not a trace or is cut short, for more than `most_bytes` of
        text, before memory is taken for it, and for millions of events with hardly any text; OSError, EOFError and
        RecursionError for a file that cannot be read.
        """
        with open_file(self._path, self._most_bytes) as raw, naming(self._path), _unpacked(raw) as file:
            if file is not raw:
                self._most_bytes = most_unpacked_bytes(os.fstat(raw.fileno()).st_size, self._most_bytes)
            num_events = 0
            for events in self._cut(file):
                num_events += len(events)
                most_events = _FREE_EVENTS + self.num_bytes // _LEAST_EVENT_BYTES
                if num_events > most_events:
                    raise ValueError(f"it has more than {most_events} events in {self.num_bytes} bytes")
                yield events

    def _cut(self, file: BinaryIO) -> Iterator[list[Entry]]:
        start = self._read(file, b"", _PIECE_BYTES).content.removeprefix(_BOM)
        if not start.strip():
            raise ValueError("it is empty")
        text = _Text(start, is_last=False)
        size = _PIECE_BYTES
        place = self._begin(text.content)
        while place is None and not text.is_last:  # the fields before the events are long
            text = self._read(file, text.content, size)
            size *= 2
            place = self._begin(text.content)
        if place is None:  # there are no events, or there is no place to cut
            yield self._rest_of_object(text.content)
            return

        is_list = text.content[:place].lstrip().startswith(b"[")
        text = text._replace(content=text.content[place:])
        size = _PIECE_BYTES
        while not text.is_last:
            for cut in _cuts(text.content):
                try:
                    events = self._events(b"[" + text.content[:cut] + b"]")
                except ValueError:
                    continue
                yield events
                text = text._replace(content=text.content[cut:].lstrip().removeprefix(b","))
                size = _PIECE_BYTES
                break
            text = self._read(file, text.content, size)
            size *= 2
        if is_list:
            yield self._events(b"[" + text.content)
        else:
            yield self._rest_of_object(b'{"traceEvents":[' + text.content)

    def _begin(self, text: bytes) -> int | None:
        """Return where the list of events begins, or None if it does not; keep the fields before it."""
        if text.lstrip().startswith(b"["):
            return text.index(b"[") + 1
        for match in islice(_LIST.finditer(text), _MOST_CUTS):
            head = text[: match.end()] + b"]}"
            check_num_values(head, _MOST_FIELD_VALUES)
            try:
                fields = _decoded(head, dict[str, Any])
            except ValueError:  # the match is within a string, or in an inner object
                continue
            self.fields.update(fields)
            return match.end()
        return None

    def _rest_of_object(self, text: bytes) -> list[Entry]:
        """Return the events up to the end of the file's object, and keep the fields after them."""
        events: list[Entry]
        try:
            raw_fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            events = self._decoder.decode(raw_fields.pop("traceEvents"))
            for raw_field in raw_fields.values():
                check_num_values(bytes(raw_field), _MOST_FIELD_VALUES)
            fields: Any = {name: msgspec.json.decode(raw_field) for name, raw_field in raw_fields.items()}
        except (msgspec.DecodeError, KeyError):
            check_num_values(text, _MOST_FIELD_VALUES)
            fields = _loaded(text)
            if not isinstance(fields, dict) or "traceEvents" not in fields:
                raise ValueError("it has no traceEvents; move it out of the folder if it is not a trace") from None
            events = msgspec.convert(fields.pop("traceEvents"), self._entries)
        self.fields.update(fields)
        return events

    def _events(self, text: bytes) -> list[Entry]:
        return _decoded(text, self._entries)  # type: ignore[no-any-return]

    def _read(self, file: BinaryIO, text: bytes, size: int) -> _Text:
        """Return `text` and up to `size` bytes after it."""
        if len(text) > _MOST_EVENT_BYTES:
            raise ValueError(
                f"it is damaged or not a trace: no event ends in {len(text)} bytes before byte {self.num_bytes}"
            )
        pieces = [text]
        num_missing = size
        while num_missing:
            piece = file.read(min(num_missing, _PIECE_BYTES))
            if not piece:
                break
            pieces.append(piece)
            num_missing -= len(piece)
            self.num_bytes += len(piece)
            if self.num_bytes > self._most_bytes:
                raise ValueError(f"it has more than {self._most_bytes} bytes unpacked")
        return _Text(b"".join(pieces), is_last=num_missing == size)


@contextmanager
def readable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn every error that a damaged trace raises into a StorageError; an OSError stays one."""
    try:
        yield
    except RecursionError as error:
        raise StorageError(path, "not a usable trace: nested too deeply") from error
    except MemoryError as error:
        raise StorageError(path, "not a usable trace: there is not enough memory to read it") from error
    except Exception as error:  # a damaged file can fail in many ways
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise
        problem = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise StorageError(path, f"not a usable trace: {problem}") from error


def is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether `Timeline.to_chrome_trace` wrote this file, judged by its beginning.

    Raises StorageError if it is not a file, and OSError if it cannot be read.
    """
    damage = suppress(gzip.BadGzipFile, EOFError, zlib.error)
    with open_of_any_size(path) as raw, naming(path), _unpacked(raw) as file, damage:
        return file.read(len(_OURS)) == _OURS
    return False


def _unpacked(raw: BinaryIO) -> BinaryIO:
    is_packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    if is_packed:
        return gzip.open(raw)  # type: ignore[return-value]
    return raw


def _cuts(text: bytes) -> Iterator[int]:
    """Yield where events seem to end, the last first; braces within strings count, too."""
    brace = len(text)
    num_cuts = 0
    for _ in range(_MOST_BRACES):
        brace = text.rfind(b"{", 0, brace)
        if brace <= 0 or num_cuts == _MOST_CUTS:
            return
        end_of_event = _BETWEEN.search(text, max(0, brace - _MOST_GAP_BYTES), brace)
        if end_of_event is not None:
            num_cuts += 1
            yield end_of_event.start() + 1


def _decoded(text: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:  # Python's own reader accepts NaN, too, which some profilers write
        return msgspec.convert(_loaded(text), kind)


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except UnicodeDecodeError as error:
        if not _looks_like_json(text):
            raise ValueError("it is not JSON") from error
        if error.reason == "unexpected end of data":
            raise ValueError(f"it ends in the middle ({error.reason})") from error
        raise ValueError(f"it is damaged ({error.reason})") from error
    except json.JSONDecodeError as error:
        if not _looks_like_json(text):
            raise ValueError("it is not JSON") from error
        is_near_end = error.pos > len(error.doc.rstrip()) - 10
        if is_near_end or error.msg.startswith("Unterminated"):
            raise ValueError(f"it ends in the middle ({error.msg})") from error
        raise ValueError(f"it is damaged ({error.msg})") from error


def _looks_like_json(text: bytes) -> bool:
    return text.lstrip()[:1] in (b"{", b"[")
