"""`TraceFile`: the events of a Chrome trace, decoded in pieces, so that a file of gigabytes takes the memory of one."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from ..common.storage import StorageError, check_num_values, most_unpacked_bytes, naming, open_file, open_of_any_size

Entry = TypeVar("Entry")

_PIECE_BYTES = 4 << 20  # of text, decoded at once
_MOST_EVENT_BYTES = 1 << 24  # so much text must hold the end of an event
_FREE_EVENTS, _LEAST_EVENT_BYTES = 1 << 20, 32  # beyond so many, events must have so much text: the shortest have 50
_MOST_FIELD_VALUES = 1 << 22  # of what stands before and after the events
_MOST_CUTS, _MOST_BRACES = 8, 1000  # places that are tried, or looked at, before more is read
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*$")  # of what stands before an event: the end of the one before it
_BOM = b"\xef\xbb\xbf"
_OURS = b'{"displayTimeUnit": "ms", "otherData": {"format": "rankscope.timeline"'


class TraceFile(Generic[Entry]):
    """A trace on disk, gzipped or not, whose events are decoded as `entry`, a type for msgspec.

    `fields` holds the other fields of the file's object, those after the events only once all pieces were taken.
    """

    def __init__(self, path: str | os.PathLike[str], entry: Any, most_bytes: int) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._entries = list[entry]
        self._decoder = msgspec.json.Decoder(self._entries)
        self.fields: dict[str, Any] = {}
        self.num_bytes = 0  # of text that were read

    def pieces(self) -> Iterator[list[Entry]]:
        """Yield the events, some thousands at a time, in their order.

        A cut is right where what stands before it is a list once it is closed, whatever its strings hold. Raises
        ValueError for what is no trace, for one that is cut short, for more than `most_bytes` of text, before memory is
        taken for it, and for millions of events with hardly any text; OSError and EOFError for what cannot be read, and
        RecursionError.
        """
        with open_file(self._path, self._most_bytes) as raw, naming(self._path), _unpacked(raw) as file:
            if file is not raw:
                self._most_bytes = most_unpacked_bytes(os.fstat(raw.fileno()).st_size, self._most_bytes)
            num_events = 0
            for events in self._cut(file):
                num_events += len(events)
                most = _FREE_EVENTS + self.num_bytes // _LEAST_EVENT_BYTES
                if num_events > most:
                    raise ValueError(f"it has more than {most} events in {self.num_bytes} bytes")
                yield events

    def _cut(self, file: BinaryIO) -> Iterator[list[Entry]]:
        text, size = self._read(file, b"", _PIECE_BYTES).removeprefix(_BOM), _PIECE_BYTES
        if not text.strip():
            raise ValueError("it is empty")
        opening, at_end = self._opened(text), False
        while opening is None and not at_end:  # what comes before the events is long
            more = self._read(file, text, size)
            at_end, text, size = len(more) == len(text), more, 2 * size
            opening = self._opened(text)
        head, text = (b"", text) if opening is None else (text[:opening], text[opening:])
        size = _PIECE_BYTES
        while opening is not None and not at_end:
            for place in _cuts(text):
                try:
                    events = self._events(b"[" + text[:place] + b"]")
                except ValueError:
                    continue
                yield events
                text, size = text[place:].lstrip()[1:], _PIECE_BYTES
                break
            more = self._read(file, text, size)
            at_end, text, size = len(more) == len(text), more, 2 * size
        if head.lstrip()[:1] == b"[":
            yield self._events(b"[" + text)
        else:
            yield self._last(b'{"traceEvents":[' + text if opening is not None else text)

    def _opened(self, text: bytes) -> int | None:
        """Where the list of events begins, None where it does not; keeps the fields before it."""
        if text.lstrip()[:1] == b"[":
            return text.index(b"[") + 1
        for found in islice(_LIST.finditer(text), _MOST_CUTS):
            head = text[: found.end()] + b"]}"
            check_num_values(head, _MOST_FIELD_VALUES)
            try:
                fields = _decoded(head, dict[str, Any])
            except ValueError:  # within a string, or deeper
                continue
            self.fields.update(fields)
            return found.end()
        return None

    def _last(self, text: bytes) -> list[Entry]:
        """The events before the end of the file's object, and the fields after them."""
        events: list[Entry]
        try:
            found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            events = self._decoder.decode(found.pop("traceEvents"))
            for one in found.values():
                check_num_values(bytes(one), _MOST_FIELD_VALUES)
            fields: Any = {name: msgspec.json.decode(one) for name, one in found.items()}
        except (msgspec.DecodeError, KeyError):
            check_num_values(text, _MOST_FIELD_VALUES)
            fields = _loaded(text)
            if not isinstance(fields, dict) or "traceEvents" not in fields:
                raise ValueError("it has no traceEvents: move it away if it is no trace") from None
            events = msgspec.convert(fields.pop("traceEvents"), self._entries)
        self.fields.update(fields)
        return events

    def _events(self, text: bytes) -> list[Entry]:
        return _decoded(text, self._entries)  # type: ignore[no-any-return]

    def _read(self, file: BinaryIO, text: bytes, size: int) -> bytes:
        if len(text) > _MOST_EVENT_BYTES:
            raise ValueError(
                f"it is damaged, or no trace: no event ends in {len(text)} bytes before byte {self.num_bytes}"
            )
        pieces = [text]
        while size and (piece := file.read(min(size, _PIECE_BYTES))):
            pieces.append(piece)
            size -= len(piece)
            self.num_bytes += len(piece)
            if self.num_bytes > self._most_bytes:
                raise ValueError(f"it has more than {self._most_bytes} bytes unpacked")
        return b"".join(pieces)


@contextmanager
def readable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let whatever a damaged trace raises be a StorageError; an OSError stays one."""
    try:
        yield
    except (RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError)
        problem = "nested too deeply" if deep else "there is not enough memory to read it"
        raise StorageError(path, f"not a readable trace: {problem}") from error
    except Exception as error:  # a damaged file can fail in many ways
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise StorageError(path, f"not a readable trace: {kind}{error}") from error


def is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether `Timeline.to_chrome_trace` wrote this file, by how it begins.

    Raises StorageError for what is not a file, and OSError for what cannot be read.
    """
    damage = suppress(gzip.BadGzipFile, EOFError, zlib.error)
    with open_of_any_size(path) as raw, naming(path), _unpacked(raw) as file, damage:
        return file.read(len(_OURS)) == _OURS
    return False


def _unpacked(raw: BinaryIO) -> BinaryIO:
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return gzip.open(raw) if packed else raw  # type: ignore[return-value]


def _cuts(text: bytes) -> Iterator[int]:
    """Where events seem to end, the last first; what strings hold is not looked at."""
    place, num_cuts = len(text), 0
    for _ in range(_MOST_BRACES):
        place = text.rfind(b"{", 0, place)
        if place <= 0 or num_cuts == _MOST_CUTS:
            return
        if found := _BETWEEN.search(text, max(0, place - 64), place):
            num_cuts += 1
            yield found.start() + 1


def _decoded(text: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:  # Python's own reader also takes NaN, which some profilers write
        return msgspec.convert(_loaded(text), kind)


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        if text.lstrip()[:1] not in (b"{", b"["):
            raise ValueError("it is not JSON") from error
        if isinstance(error, UnicodeDecodeError):
            cut, reason = error.reason == "unexpected end of data", error.reason
        else:
            cut = error.pos > len(error.doc.rstrip()) - 10 or error.msg.startswith("Unterminated")
            reason = error.msg
        raise ValueError(f"it ends in the middle ({reason})" if cut else f"it is damaged ({reason})") from error
