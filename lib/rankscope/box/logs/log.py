"""`Log`: the text of a log, with errors that name its lines; `Times`: its timings, and a profile of them.

Readers search their patterns in single lines. A pattern that may begin with blanks or with any word starts with ^, and
no two neighbouring repetitions match the same character, so that a search takes time in proportion to the line.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ...common.files import FileError, read_bytes
from ...common.words import printable
from ...provenance import topology
from ..profile import Point, Profile

GB = 10**9  # bytes
_UNSTATED_BYTES = GB  # assumed for a copy of unstated size: its time is computed from the printed rate
COLLECTIVE = {  # by each name that logs have for it
    "allreduce": "allreduce",
    "all_reduce": "allreduce",
    "allgather": "allgather",
    "all_gather": "allgather",
    "_allgather_base": "allgather",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
    "sendrecv": "together",
}
TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "byte", "bool"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "long"), 8),
}
MOST_CARDS = 4096  # in a profile's list of GPUs: a few bytes of a log may state a million ranks
FLOAT_TOLERANCE = 1 + 1e-9  # a factor: sums and quotients of floats may be off by this much
# In half units of the last digit: a program that cuts digits off, instead of rounding, is off by a whole unit.
TRUNCATED = 2
SLACK = 0.01  # of a figure, for other ways of printing and averaging: the smallest wrong unit, KiB for kB, is 0.024
WARNING = "warning: "  # how the note about figures that hardly agree begins
_MPI_TAG = re.compile(r"\[\d+,\d+\]<std\w+>:")  # which mpirun --tag-output puts before each line
# Of the table that nvidia-smi topo -m prints; a terminal's code for underlining may stand before the header.
_TOPOLOGY_HEADER = re.compile(r"^\S*[ \t]*GPU0[ \t]")
_TOPOLOGY_ROW = re.compile(r"^\s*(?:GPU|NIC|mlx)\S*\s")
_SIZE_NOTE = "the size of a copy is not stated: times are those of 1 GB at the rate that is printed"

Where = int | str  # a line, or a place in JSON


class Log:
    """The text of a log, line by line."""

    def __init__(self, path: str | os.PathLike[str], num_ranks: int | None) -> None:
        self.path = path
        self.num_ranks = num_ranks  # as the caller states it
        self.name = printable(Path(path).name.split(".")[0])  # of the file, without its endings
        self.raw = read_bytes(path)
        text = self.raw.decode("utf-8", "replace")
        self.text = _MPI_TAG.sub("", text) if "<std" in text else text  # most logs have no tags, and some are long
        # `splitlines` would also end lines at form feeds and the like, unlike the line numbers of an editor.
        self.lines = self.text.replace("\r\n", "\n").split("\n")
        has_topology = "GPU0" in self.text and "Affinity" in self.text  # the header of every such table has both
        self.topology = topology("\n".join(_topology_lines(self.lines))) if has_topology else ""

    def fail(self, line: Where, problem: object) -> NoReturn:
        """Raise a FileError that names the line, or the place in JSON."""
        raise FileError(self.path, f"{place_words(line)}: {problem}")

    def check(self, fits: object, line: Where, problem: str) -> None:
        """Raise a FileError that names the line, or the place in JSON, if `fits` is false."""
        if not fits:
            self.fail(line, problem)

    def number(self, line: Where, text: Any, least: float = -math.inf) -> float:
        """Return a printed number; it must be finite and at least `least`."""
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan  # which is not finite
        if math.isfinite(value) and value >= least:
            return value
        bound = f" of at least {least:g}" if least > -math.inf else ""
        self.fail(line, f"{text!r} must be a number{bound}")

    def json(self) -> Any:
        """Return the content of a log in JSON."""
        try:
            return json.loads(self.text)
        except json.JSONDecodeError as error:
            self.fail(error.lineno, f"not JSON, damaged or cut short: {error.msg}")

    def words(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the first group of a pattern in each line that matches it, made printable."""
        matches = map(pattern.search, self.lines)
        return [printable(match[1].strip()) for match in matches if match]


class _TimedOperation(NamedTuple):
    """An operation at a size; its options, by name."""

    what: str
    num_bytes: int
    options: tuple[tuple[str, Any], ...]


class _PrintedTimes(NamedTuple):
    """The times of an operation, and where the first of them is printed."""

    where: Where
    seconds: list[float]


class Times:
    """The printed times by operation; several times of the same operation are its iterations."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.gpus: set[Any] = set()  # that copies come from and go to
        self.notes: list[str] = []
        self.warnings: list[tuple[Where, str]] = []  # figures that agree with each other only roughly
        self.printed: dict[_TimedOperation, _PrintedTimes] = {}

    def add(self, line: Where, what: str, num_bytes: int, seconds: float, options: Mapping[str, Any]) -> None:
        operation = _TimedOperation(what, num_bytes, tuple(options.items()))
        if operation in self.printed:
            self.printed[operation].seconds.append(seconds)
        else:
            self.printed[operation] = _PrintedTimes(line, [seconds])

    def copy(self, line: Where, direction: str, method: str, rate: float, size: int = 0, **options: Any) -> None:
        """Add a copy from its printed rate in bytes/s; a size of 0 is unknown.

        `options` extend or replace those of an ordinary copy, as the GPUs between which it was, or both=True.
        """
        self.log.check(rate > 0, line, f"a bandwidth must be above 0, got {rate:g}")
        self.gpus |= {gpu for name, gpu in options.items() if name in ("gpu", "src", "dst")}
        all_options = {"direction": direction, "method": method, "pieces": 1, "both": False, **options}
        if not size:
            size = _UNSTATED_BYTES
            all_options["size"] = "not stated"
            self.notes.append(_SIZE_NOTE)
        self.add(line, "transfer", size, size / rate, all_options)

    def agree(self, line: Where, deviation: float, rounding: float, slack: float, problem: str) -> None:
        """Check that two printed figures agree.

        `deviation` is the distance between them, `rounding` what half a unit of each last digit amounts to, and `slack`
        what other ways of printing may add, all in the same unit. Within `rounding` they agree. Within a whole unit of
        each last digit and `slack`, the problem is recorded as a warning. Otherwise it raises FileError.
        """
        if deviation <= rounding * FLOAT_TOLERANCE:
            return
        self.log.check(deviation <= TRUNCATED * rounding + slack, line, problem)
        self.warnings.append((line, problem))

    def fitting_s(
        self, line: Where, seconds: float, off_s: float, num_bytes: float, rate: float, rate_off: float, problem: str
    ) -> float:
        """Return a time in seconds that fits both a printed time and a printed rate in bytes/s; see `between`.

        `off_s` and `rate_off` are the rounding errors of the two, half a unit of the last digit. If only `agree`'s
        tolerance reconciles them, return the printed time and record the problem as a warning. Raises FileError if
        they contradict each other.
        """
        fitting = between(seconds, off_s, num_bytes, rate, rate_off)
        if fitting is not None:
            return fitting
        near = between(seconds, TRUNCATED * off_s, num_bytes, rate, TRUNCATED * rate_off + SLACK * rate)
        self.log.check(near is not None, line, problem)
        self.warnings.append((line, problem))
        return seconds

    def profile(
        self, program: str, backend: str, num_ranks: int, how: Mapping[str, Any] = {}, name: str = "", **about: Any
    ) -> Profile:
        """Return the profile of these times and of the log's topology; empty arguments were not stated."""
        self.log.check(self.printed, len(self.log.lines), f"{program} printed no row above")
        notes = [*self.notes, *self._warning_notes()]
        source = {"program": printable(program), "notes": "; ".join(dict.fromkeys(notes))}
        about["source"] = {key: text for key, text in source.items() if text}
        about["topology"] = self.log.topology
        title = f"{self.log.name}, {name}" if name else self.log.name
        stated = {"name": title, "backend": backend, "num_ranks": num_ranks, **about}
        return Profile({key: value for key, value in stated.items() if value}, how, self._points())

    def _warning_notes(self) -> list[str]:
        if not self.warnings:
            return []
        line, problem = self.warnings[0]
        first = f"{place_words(line)}: {problem}"
        if len(self.warnings) == 1:
            return [f"{WARNING}a printed figure does not agree with the others to its last digit: {first}"]
        several = f"{len(self.warnings)} printed figures do not agree with the others to their last digit"
        return [f"{WARNING}{several}; the first: {first}"]

    def _points(self) -> tuple[Point, ...]:
        """Return a point per operation."""
        points = []
        for (what, num_bytes, options), times in self.printed.items():
            seconds = tuple(times.seconds)
            try:
                points.append(Point(what, num_bytes, seconds, (True,) * len(seconds), dict(options)))
            except ValueError as error:
                self.log.fail(times.where, error)
        return tuple(points)


def place_words(where: Where) -> str:
    """Return a line, or a place in JSON, in words."""
    return f"line {where}" if isinstance(where, int) else where


def _topology_lines(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of the first table of `nvidia-smi topo -m`, from its header to its last row, if it has rows."""
    for index, text in enumerate(lines):
        if _TOPOLOGY_HEADER.search(text):
            last_row = _last_topology_row(lines, index)
            if last_row > index:
                return lines[index : last_row + 1]
    return []


def _last_topology_row(lines: Sequence[str], header: int) -> int:
    """Return the index of the last row under a header, or the header's if it has none; empty lines may be between."""
    last_row = header
    for index in range(header + 1, len(lines)):
        if _TOPOLOGY_ROW.search(lines[index]):
            last_row = index
        elif lines[index].strip():
            break  # the table ends
    return last_row


def half_unit(text: str) -> float:
    """Return the rounding error of a printed number: half a unit of its last digit.

    >>> half_unit("0.48"), half_unit("92173"), half_unit("1.8e+07")
    (0.005, 0.5, 500000.0)
    """
    mantissa, _, exponent = text.partition("e")
    decimals = mantissa.partition(".")[2]
    return 0.5 * 10.0 ** (int(exponent or "0") - len(decimals))


def between(seconds: float, off: float, num_bytes: float, rate: float, rate_off: float) -> float | None:
    """Return a time that fits both a printed time and a printed rate; None if there is none.

    The time is `seconds`, up to `off` more or less, and the rate is `rate`, up to `rate_off` more or less. Of all times
    that fit, the result is the one nearest to that of `rate`: a reader asks for it where the rate has more digits.
    """
    low = max(num_bytes / (rate + rate_off) / FLOAT_TOLERANCE, seconds - off)
    high = seconds + off
    if rate > rate_off:  # otherwise the rate may be 0, which does not limit the time
        high = min(num_bytes / (rate - rate_off) * FLOAT_TOLERANCE, high)
    if low > high:
        return None
    time_of_rate = num_bytes / rate if rate else seconds
    return min(max(time_of_rate, low), high)
