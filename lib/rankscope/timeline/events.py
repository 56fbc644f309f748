"""The events of Chrome traces: JSON in the Trace Event Format, with times in microseconds, gzipped or not."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from ..common.files import FileError, read_bytes

_MOST_BYTES = 4 << 30  # of text
FORMAT = "rankscope.timeline"

NoEvent = list[Any] | str | int | float | bool | None  # what may stand between the events, which is skipped
Trace = TypeVar("Trace")


def read_trace(path: str | os.PathLike[str], kind: type[Trace]) -> Trace:
    """Read a trace as this type of msgspec, whose `traceEvents` are the events; a bare list is a trace, too.

    Raises FileError for a file that is not such a trace, is damaged, or has more than 4 GiB; OSError if it cannot be
    opened.
    """
    with readable(path):
        text = read_bytes(path, _MOST_BYTES).removeprefix(codecs.BOM_UTF8)
        if text.lstrip().startswith(b"["):
            text = b'{"traceEvents":' + text + b"}"
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError:  # Python's own reader accepts NaN, too, which some profilers write
            return msgspec.convert(json.loads(text), kind)


@contextmanager
def readable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make one FileError, which names the path, of whatever error a damaged trace raises; an OSError stays one."""
    try:
        yield
    except (FileError, OSError):
        raise
    except Exception as error:  # a damaged file can fail in many ways
        raise FileError(path, f"not a usable trace: {error}") from error
