"""`Log`: a file and what the user states about it; `Times`: its times by operation, and the profile of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...common.files import FileError
from ..profile import Point, Profile


class Log(NamedTuple):
    """A file's clean lines, and what the user states about tables that do not state it themselves."""

    path: str | os.PathLike[str]
    lines: list[str]
    num_ranks: int
    collective: str

    def error(self, where: str, problem: str) -> FileError:
        return FileError(self.path, f"{where}: {problem}")


class Times:
    """The times of a log by operation; several times of the same operation are its iterations."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, int, tuple[tuple[str, Any], ...]], list[float]] = {}

    def add(self, what: str, num_bytes: int, seconds: Iterable[float], options: Mapping[str, Any]) -> None:
        self.seconds.setdefault((what, num_bytes, tuple(options.items())), []).extend(seconds)

    def points(self) -> tuple[Point, ...]:
        points = []
        for (what, num_bytes, options), seconds in self.seconds.items():
            is_clean = (True,) * len(seconds)  # logs state no disturbance
            points.append(Point(what, num_bytes, tuple(seconds), is_clean, dict(options)))
        return tuple(points)

    def profile(
        self, log: Log, program: str, notes: Sequence[str], how: Mapping[str, Any] = {}, **about: Any
    ) -> Profile:
        """Return the profile of these times; facts that are empty were not stated."""
        source = {"program": program}
        if notes:
            source["notes"] = "; ".join(dict.fromkeys(notes))
        stated = {"name": Path(log.path).stem, "source": source, **about}
        return Profile({key: value for key, value in stated.items() if value}, how, self.points())
