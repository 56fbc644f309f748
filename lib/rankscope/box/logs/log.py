"""`Log`: a file and what the user states about it; the points and the profile of what was read from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...common.files import FileError
from ..points import Point, PointKey
from ..profile import Profile

COPY_BYTES = 10**9  # assumed for a copy of which only the rate in GB/s is printed
COPY_NOTE = "the size of a copy is not stated: times are those of 1 GB at the rate that is printed"


class Log(NamedTuple):
    """A file's clean lines, and what the user states about tables that do not state it themselves."""

    path: str | os.PathLike[str]
    lines: list[str]
    num_ranks: int
    collective: str

    def error(self, where: str, problem: str) -> FileError:
        return FileError(self.path, f"{where}: {problem}")

    def profile(
        self,
        points: Iterable[Point],
        program: str,
        notes: Sequence[str],
        how: Mapping[str, Any] = {},
        **about: Any,
    ) -> Profile:
        """Return the profile of these points; facts that are empty were not stated."""
        source = {"program": program}
        if notes:
            source["notes"] = "; ".join(dict.fromkeys(notes))
        stated = {"name": Path(self.path).stem, "source": source, **about}
        return Profile({key: value for key, value in stated.items() if value}, how, joined(points))

    def copies(
        self, points: Iterable[Point], program: str, notes: Sequence[str], names: Sequence[str], num_gpus: int
    ) -> Profile:
        """Return the profile of copies of one node. If a name of a GPU is missing, nobody knows which one."""
        gpus = [{"name": name} for name in names] if len(names) == num_gpus else []
        return self.profile(points, program, notes, backend="cuda", num_ranks=num_gpus, gpus=gpus, num_nodes=1)


def timed(what: str, num_bytes: int, seconds: Iterable[float], options: Mapping[str, Any]) -> Point:
    """Return a point of a log, which states no disturbance: all of its times are clean."""
    times_s = tuple(seconds)
    return Point(what, num_bytes, times_s, (True,) * len(times_s), options)


def joined(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return one point per operation: several times of the same operation are its iterations."""
    seconds: dict[PointKey, list[float]] = {}
    for point in points:
        seconds.setdefault(point.key, []).extend(point.seconds)
    return tuple([timed(key.what, key.num_bytes, times_s, dict(key.options)) for key, times_s in seconds.items()])
