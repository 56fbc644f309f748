"""What a profile holds, field by field, and its file: JSON with a point a line and a checksum, read with suspicion."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..values.checks import number, truth, whole
from ..values.storage import write_atomically
from .points import Point

if TYPE_CHECKING:
    from .profile import Profile

FORMAT, VERSION = "rankscope profile", 1
MOST_BYTES = 1 << 26  # of a file
_MOST_WORDS = 400  # characters of an error

Loaded = TypeVar("Loaded", bound="Profile")


class ProfileError(ValueError):
    """What a profile cannot hold, or a file that is none; in one line."""

    def __init__(self, message: str) -> None:
        plain = "".join(one if one.isprintable() else " " for one in message)
        middle = len(plain) - _MOST_WORDS
        super().__init__(plain if middle <= 0 else f"{plain[: _MOST_WORDS // 2]} … {plain[-_MOST_WORDS // 2 :]}")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and all(one.isprintable() or one in "\n\t" for one in value):
        return str(value)
    raise ValueError(f"{name} must be a printable text, got {value!r}")


def _printed(name: str, value: Any) -> str:
    """What another program printed, without what it said to a terminal (nvidia-smi underlines)."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value!r}")
    return "".join(one for one in re.sub(r"\x1b\[[0-9;]*m", "", value) if one.isprintable() or one in "\n\t")


def _date(name: str, value: Any) -> str:
    try:
        datetime.fromisoformat(_text(name, value))
    except ValueError:
        raise ValueError(f"{name} must be a date in ISO form, got {value!r}") from None
    return str(value)


def _count(name: str, value: Any) -> int:
    return whole(name, value, 1, 1 << 20)


def _from_0(name: str, value: Any) -> int:
    return whole(name, value, 0, 1 << 60)


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    raise ValueError(f"{name} must be a list, got {value!r}")


def _counts(name: str, value: Any) -> list[int]:
    return [whole(f"{name}[{place}]", one, 1, 1 << 20) for place, one in enumerate(_list(name, value))]


def _gpus(name: str, value: Any) -> list[dict[str, Any]]:
    return [_fields(f"{name}[{place}]", one, _GPU, ()) for place, one in enumerate(_list(name, value))]


_GPU = {"name": _text, "memory_bytes": _from_0, "driver": _text, "cuda": _text, "nccl": _text}
PROVENANCE = {
    "name": _text,
    "date": _date,  # UTC
    "command": _text,
    "rankscope": _text,
    "python": _text,
    "torch": _text,
    "backend": _text,
    "device": _text,  # of the buffers, where the backend does not say it
    "num_ranks": _count,
    "num_nodes": _count,
    "ranks_per_node": _counts,
    "network": _text,
    "system": _text,
    "cpu": _text,
    "num_cores": _count,
    "memory_bytes": _from_0,
    "gpus": _gpus,
    "topology": _printed,
}
PROTOCOL = {
    "warm_up": _from_0,
    "iterations": _count,
    "budget_s": number,
    "real_time": truth,
    "dtype": _text,
    "start": _text,
    "statistic": _text,
    "clock": _text,
    "clock_offset_s": number,
    "verified": truth,
}
NEEDED = ("name", "date", "backend", "num_ranks", "num_nodes", "ranks_per_node")
_POINT = ("what", "num_bytes", "options", "seconds", "clean")


def _fields(name: str, value: Any, known: Mapping[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a mapping, each checked, in the order in which they are known."""
    if not isinstance(value, Mapping):
        raise ProfileError(f"{name} must be a mapping, got {value!r}")
    for key in value:
        if key not in known:
            raise ProfileError(f"{name} must hold nothing but {', '.join(known)}, got {key!r}")
    for key in needed:
        if key not in value:
            raise ProfileError(f"{name} must say {key}, and does not")
    try:
        return {key: check(f"{name}: {key}", value[key]) for key, check in known.items() if key in value}
    except ValueError as error:
        raise ProfileError(str(error)) from error


def check_provenance(value: Any) -> dict[str, Any]:
    """Return the fields of `PROVENANCE`. Raises ProfileError for others, and where one of `NEEDED` is missing."""
    found = _fields("provenance", value, PROVENANCE, NEEDED)
    ranks, expected = found["ranks_per_node"], (found["num_nodes"], found["num_ranks"])
    if (len(ranks), sum(ranks)) != expected:
        nodes = f"{expected[1]} ranks on {expected[0]} nodes"
        raise ProfileError(f"provenance: ranks_per_node must be of {nodes}, got {ranks}")
    return found


def check_protocol(value: Any) -> dict[str, Any]:
    """Return the fields of `PROTOCOL`. Raises ProfileError for others."""
    return _fields("protocol", value, PROTOCOL, ())


def write(profile: Profile, path: str | os.PathLike[str]) -> Path:
    """Write a profile whole or not at all; OSError, with this path, where that cannot be or no file is there."""
    body = _body(profile)
    head = f'{{"format": "{FORMAT}", "version": {VERSION}, "crc32": "{zlib.crc32(body.encode()):08x}",\n'
    if Path(path).exists() and not Path(path).is_file():  # a folder, or a device, whose place a file must not take
        raise FileExistsError(errno.EEXIST, "it is there, and not a file", os.fspath(path))
    return write_atomically(path, lambda file: file.write((head + body + "}\n").encode()))


def _body(profile: Profile) -> str:
    parts = []
    for name, fields in (("provenance", profile.provenance), ("protocol", profile.protocol)):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        parts.append(f'"{name}": {{\n{lines}\n}}')
    points = ",\n".join(map(_point_text, profile.points))
    return ",\n".join([*parts, f'"points": [\n{points}\n]'])


def _point_text(point: Point) -> str:
    plain = {
        "what": point.what,
        "num_bytes": point.num_bytes,
        "options": dict(sorted(point.options.items())),
        "seconds": point.seconds,
        "clean": tuple(map(int, point.clean)),
    }
    return json.dumps(plain, separators=(",", ":"))


def read(path: str | os.PathLike[str], kind: type[Loaded]) -> Loaded:
    """Read a profile that `write` wrote; ProfileError for anything else, OSError where it cannot be opened."""
    try:
        return _profile(parsed(path, FORMAT, VERSION), kind)
    except ValueError as error:
        raise ProfileError(f"{os.fspath(path)} is no readable profile: {error}") from error


def _bytes(path: str | os.PathLike[str]) -> bytes:
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError("it is not a file")
    with open(path, "rb") as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    if not raw.strip():
        raise ValueError("it is empty")
    return raw


def parsed(path: str | os.PathLike[str], format: str, version: int) -> dict[str, Any]:
    """Return the object in a JSON file that says it is of this format, and of this version or an older one.

    Raises ValueError for any other file, OSError where it cannot be opened.
    """
    raw = _bytes(path)
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


def _profile(found: dict[str, Any], kind: type[Loaded]) -> Loaded:
    known = ("format", "version", "crc32", "provenance", "protocol", "points")
    exactly("it", found, known)
    points = []
    for place, one in enumerate(_list("points", found["points"])):
        try:
            points.append(_point(one))
        except ValueError as error:
            raise ValueError(f"points[{place}]: {error}") from error
    profile = kind(found["provenance"], found["protocol"], tuple(points))
    checksum = f"{zlib.crc32(_body(profile).encode()):08x}"
    if found["crc32"] != checksum:
        raise ValueError(f"crc32 must be {checksum!r}, got {found['crc32']!r}: it was damaged or changed by hand")
    return profile


def _point(one: Any) -> Point:
    exactly("a point", one, _POINT)
    clean = [bool(whole("clean", mark, 0, 1)) for mark in _list("clean", one["clean"])]
    return Point(one["what"], one["num_bytes"], _list("seconds", one["seconds"]), clean, one["options"])  # type: ignore[arg-type]


def exactly(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise ValueError unless a value is an object that holds these fields and no others."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object of {', '.join(known)}, got {value!r}")
    for key in (*known, *value):
        if key not in value or key not in known:
            raise ValueError(f"{name} must hold {', '.join(known)} and nothing else: {key!r} is the first that differs")
