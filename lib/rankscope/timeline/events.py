"""`TraceFile`: the events of a Chrome trace, decoded in pieces, so that a file of gigabytes needs little memory."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import msgspec

from ..common.storage import StorageError, naming, open_file, open_of_any_size

Entry = TypeVar("Entry")

_PIECE_BYTES = 4 << 20  # of text, decoded at once
_MOST_EVENT_BYTES = 1 << 24  # of text without the end of an event
# Each attempt decodes up to megabytes of text, so there are few.
_MOST_LISTS = 8  # texts "traceEvents": [ that are tried as the beginning of the events
_MOST_ENDS = 8  # positions that are tried as the end of an event before more text is read
_MOST_BRACES = 1000  # opening braces that are looked at for such a position
_MOST_GAP_BYTES = 64  # between two events; longer ones are not recognised as the end of an event
_NEAR_END_CHARACTERS = 10  # an error so close to the end of the text shows that the rest of it is missing
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*$")  # of the text before an event: the end of the event before it
_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
# How a file of `Timeline.to_chrome_trace` begins.
_OURS = b'{"displayTimeUnit": "ms", "otherData": {"format": "rankscope.timeline"'


class _Text(NamedTuple):
    """Text that has been read, but not been decoded yet."""

    content: bytes
    is_last: bool  # whether it goes to the end of the file


class _EventsAndRest(NamedTuple):
    """The events at the beginning of a text, decoded, and the text after them."""

    events: list[Any]
    rest: bytes


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

        Raises ValueError for a file that is not a trace or is cut short, and for more than `most_bytes` of text;
        OSError, EOFError and RecursionError for a file that cannot be read.
        """
        with open_file(self._path, self._most_bytes) as raw, naming(self._path), _unpacked(raw) as file:
            yield from self._cut(file)

    def _cut(self, file: BinaryIO) -> Iterator[list[Entry]]:
        """Read the text in pieces. Decode each up to the last end of an event in it; the rest precedes the next piece.

        While no end of an event is found, pieces become longer: each failed attempt decodes all of the text again, and
        with a constant length of pieces the total time would grow with the square of the text.
        """
        text = self._read(file, b"", _PIECE_BYTES)
        text = text._replace(content=text.content.removeprefix(_BOM))
        if not text.content.strip():
            raise ValueError("it is empty")
        piece_bytes = _PIECE_BYTES
        list_start = self._find_events(text.content)
        while list_start is None and not text.is_last:  # the fields before the events are long
            text = self._read(file, text.content, piece_bytes)
            piece_bytes *= 2
            list_start = self._find_events(text.content)
        if list_start is None:  # there are no events, or their list was not recognised
            yield self._rest_of_object(text.content)
            return

        is_list = text.content[:list_start].lstrip().startswith(b"[")  # the file has only the list, without an object
        text = text._replace(content=text.content[list_start:])
        piece_bytes = _PIECE_BYTES
        while not text.is_last:
            decoded = self._up_to_last_end(text.content)
            if decoded is not None:
                yield decoded.events
                text = text._replace(content=decoded.rest)
                piece_bytes = _PIECE_BYTES
            text = self._read(file, text.content, piece_bytes)
            piece_bytes *= 2
        # The text now ends with the file, so it contains the bracket that closes the list.
        if is_list:
            yield self._events(b"[" + text.content)
        else:
            yield self._rest_of_object(b'{"traceEvents":[' + text.content)

    def _up_to_last_end(self, text: bytes) -> _EventsAndRest | None:
        """Decode the events up to the last end of an event in the text; None if it has no recognisable end.

        A position is the end of an event if the text before it is a valid list once a bracket closes it. So an event's
        own braces and commas, in strings or inner objects, are not mistaken for its end.
        """
        for end in _ends_of_events(text):
            try:
                events = self._events(b"[" + text[:end] + b"]")
            except ValueError:  # the position is within a string, or in an inner object
                continue
            return _EventsAndRest(events, rest=text[end:].lstrip().removeprefix(b","))
        return None

    def _find_events(self, text: bytes) -> int | None:
        """Return the position of the first event, or None if no list of events begins in the text.

        The fields before the list are added to `fields`.
        """
        if text.lstrip().startswith(b"["):  # the file is only the list, without an object around it
            return text.index(b"[") + 1
        for match in islice(_LIST.finditer(text), _MOST_LISTS):
            head = text[: match.end()] + b"]}"  # the object up to here, with an empty list of events
            try:
                fields = _decoded(head, dict[str, Any])
            except ValueError:  # the match is within a string, or in an inner object
                continue
            self.fields.update(fields)
            return match.end()
        return None

    def _rest_of_object(self, text: bytes) -> list[Entry]:
        """Return the events up to the end of the file's object, and add its other fields to `fields`.

        msgspec refuses NaN, so after an error Python's slower reader decodes the whole text.
        """
        events: list[Entry]
        try:
            raw_fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            events = self._decoder.decode(raw_fields.pop("traceEvents"))
            fields: Any = {name: msgspec.json.decode(raw_field) for name, raw_field in raw_fields.items()}
        except (msgspec.DecodeError, KeyError):  # KeyError if there are no events, for which the error is raised below
            fields = _loaded(text)
            if not isinstance(fields, dict) or "traceEvents" not in fields:
                raise ValueError("it has no traceEvents; move it out of the folder if it is not a trace") from None
            events = msgspec.convert(fields.pop("traceEvents"), self._entries)
        self.fields.update(fields)
        return events

    def _events(self, text: bytes) -> list[Entry]:
        return _decoded(text, self._entries)  # type: ignore[no-any-return]

    def _read(self, file: BinaryIO, text: bytes, num_more: int) -> _Text:
        """Return `text` and up to `num_more` bytes of the file after it."""
        if len(text) > _MOST_EVENT_BYTES:
            raise ValueError(
                f"it is damaged or not a trace: no event ends in {len(text)} bytes before byte {self.num_bytes}"
            )
        pieces = [text]
        num_missing = num_more
        while num_missing:
            piece = file.read(min(num_missing, _PIECE_BYTES))
            if not piece:
                break
            pieces.append(piece)
            num_missing -= len(piece)
            self.num_bytes += len(piece)
            if self.num_bytes > self._most_bytes:
                raise ValueError(f"it has more than {self._most_bytes} bytes unpacked")
        return _Text(b"".join(pieces), is_last=num_missing > 0)


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
        # Our own errors are plain ValueErrors, and sentences; those of other libraries are subclasses of it or others.
        problem = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise StorageError(path, f"not a usable trace: {problem}") from error


def is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether `Timeline.to_chrome_trace` wrote this file, judged by its beginning.

    Raises StorageError if it is not a file, and OSError if it cannot be read.
    """
    with open_of_any_size(path) as raw, naming(path), _unpacked(raw) as file:
        try:
            return file.read(len(_OURS)) == _OURS
        except (gzip.BadGzipFile, EOFError, zlib.error):  # it is damaged, so it is not known to be ours
            return False


def _unpacked(raw: BinaryIO) -> BinaryIO:
    """Return a reader that unpacks the file if it is gzipped, and otherwise the file itself."""
    is_packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    if is_packed:
        return gzip.open(raw)  # type: ignore[return-value]
    return raw


def _ends_of_events(text: bytes) -> Iterator[int]:
    """Yield the positions at which events seem to end, the last one first.

    There, a closing brace and a comma precede an opening brace, which seems to begin the next event. The search does
    not know about strings and inner objects, so the caller must decode the text to be sure.
    """
    brace = len(text)
    num_ends = 0
    for _ in range(_MOST_BRACES):
        brace = text.rfind(b"{", 0, brace)
        if brace <= 0 or num_ends == _MOST_ENDS:  # below 0, there is no more brace; at 0, no event precedes it
            return
        between_events = _BETWEEN.search(text, max(0, brace - _MOST_GAP_BYTES), brace)
        if between_events is not None:
            num_ends += 1
            yield between_events.start() + 1  # after the closing brace


def _decoded(text: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:  # Python's own reader accepts NaN, too, which some profilers write
        return msgspec.convert(_loaded(text), kind)


def _loaded(text: bytes) -> Any:
    """Decode JSON with Python's reader. Raises ValueError that says if the text is cut short, damaged or not JSON."""
    try:
        return json.loads(text)
    except UnicodeDecodeError as error:
        if not _looks_like_json(text):
            raise ValueError("it is not JSON") from error
        if error.reason == "unexpected end of data":  # the last character has too few bytes
            raise ValueError(f"it ends in the middle ({error.reason})") from error
        raise ValueError(f"it is damaged ({error.reason})") from error
    except json.JSONDecodeError as error:
        if not _looks_like_json(text):
            raise ValueError("it is not JSON") from error
        is_near_end = error.pos > len(error.doc.rstrip()) - _NEAR_END_CHARACTERS
        # The error's position is then the start of the string, which may be long.
        is_in_string = error.msg.startswith("Unterminated")
        if is_near_end or is_in_string:
            raise ValueError(f"it ends in the middle ({error.msg})") from error
        raise ValueError(f"it is damaged ({error.msg})") from error


def _looks_like_json(text: bytes) -> bool:
    return text.lstrip()[:1] in (b"{", b"[")
