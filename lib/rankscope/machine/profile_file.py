"""How `ddp` reads its files as long as it does not read them by `values.storage`."""

from __future__ import annotations

import json
import os
from typing import Any

from ..values import storage
from ..values.checks import whole
from ..values.storage import exactly as exactly


def parsed(path: str | os.PathLike[str], format: str, version: int) -> dict[str, Any]:
    """Return the object in a JSON file that says it is of this format, and of this version or an older one.

    Raises ValueError for any other file, OSError where it cannot be opened.
    """
    raw = storage.read_bytes(path)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8: it is damaged, or of another kind") from error
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is damaged, cut short or no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict) or found.get("format") != format:
        said = found.get("format") if isinstance(found, dict) else found
        raise ValueError(f"format must be {format!r}, got {said!r}")
    if whole("version", found.get("version"), 1) > version:
        raise ValueError(f"version {found['version']} is newer than {version}, which is what this rankscope reads")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"fields must be there once, got {max(names, key=names.count)!r} twice")
    return found


def _refuse(text: str) -> None:
    raise ValueError(f"numbers must be finite, got {text}")
