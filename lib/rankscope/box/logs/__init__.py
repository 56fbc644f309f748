"""`read_log`: read measurements from the output of other benchmark programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...collectives.schedule import COLLECTIVES
from ...common.checks import one_of, whole
from ...common.files import FileError
from ...provenance import difference
from ..profile import Point, PointKey, Profile
from . import copies, nccl_tests
from .log import Log


class LogReader(NamedTuple):
    """A reader of one program's logs: strings that only that program prints, and what makes profiles of its log."""

    marks: tuple[str, ...]
    read: Callable[[Log], list[Profile]]


READERS: Mapping[str, LogReader] = {
    "nccl-tests": LogReader(("algbw   busbw", "algbw  busbw", "algbw busbw", '"bus_bw"'), nccl_tests.nccl_tests),
    "nvbandwidth": LogReader(('"nvbandwidth"', "PU(row)", "GPU(column)"), copies.nvbandwidth),
    "trace": LogReader(('"traceEvents"',), copies.trace),
}


def read_log(path: str | os.PathLike[str], kind: str | None = None, num_ranks: int | None = None) -> list[Profile]:
    """Return the measurements in a log: one profile per table of collectives, or one profile of all copies.

    The program is recognised by its output. If a file contains logs of several programs, `kind`, one of `READERS`,
    selects one. The profile has only facts that the log states or that follow from its figures; the source's notes list
    the latter.

    `num_ranks` selects tables of collectives by their number of ranks. A table that does not state its number of ranks
    is assumed to have this number.

    The log is checked: bandwidths must equal size over time, match the number of ranks and have the stated average.
    Figures agree if rounding of their last digits explains the difference. If it takes a whole unit of each last digit
    and 1 %, the source's notes contain a warning that names the line; any larger difference is an error.

    Raises FileError (a one-line ValueError that names the file and the line in it) if the file is not such a log, is
    cut short or contradicts itself; OSError if it cannot be opened.
    """
    if num_ranks is not None:
        whole("num_ranks", num_ranks, 1)
    if kind is not None:
        one_of("kind", kind, tuple(READERS))
    log = Log(path, num_ranks)
    reader = READERS[kind or _recognised(log)]
    try:
        profiles = reader.read(log)
    except FileError:  # a ValueError that already names the line
        raise
    except (ValueError, ArithmeticError) as error:  # the profile as a whole is invalid, or a number is out of range
        log.fail(1, error)  # which line is to blame is not known
    log.check(profiles, len(log.lines), "it has no rows")
    return profiles if num_ranks is None else _of_ranks(log, profiles, num_ranks)


def _recognised(log: Log) -> str:
    """Return which reader's program printed a log. Raises FileError if it was none of them, or several."""
    first_lines = {}  # by the name of a reader: the first line with one of its marks
    for name, reader in READERS.items():
        positions = [log.text.find(mark) for mark in reader.marks if mark in log.text]
        if positions:
            first_lines[name] = log.text.count("\n", 0, min(positions)) + 1
    if not first_lines and log.topology:
        log.fail(1, "a GPU topology without measurements: append it to a log of that machine")
    log.check(first_lines, 1, f"not a log of {', '.join(READERS)}")
    last_line = max(first_lines.values())  # with it, all of the programs have been recognised
    problem = f"has logs of {' and '.join(first_lines)}: name one of these kinds"
    log.check(len(first_lines) == 1, last_line, problem)
    return next(iter(first_lines))


def _of_ranks(log: Log, profiles: Sequence[Profile], num_ranks: int) -> list[Profile]:
    """Return the tables of so many ranks, and those that are of no collective, such as copies and messages.

    Raises FileError if there are tables of collectives, but none of so many ranks.
    """
    numbers = _numbers_of_ranks(profiles)
    if numbers and num_ranks not in numbers:
        if len(numbers) == 1:
            log.fail(1, f"its tables have {numbers[0]} ranks, not {num_ranks}")
        log.fail(1, f"its tables have {_listed(numbers)} ranks, and none has {num_ranks}")
    return [profile for profile in profiles if not _is_of_ranks(profile) or profile.num_ranks == num_ranks]


def _numbers_of_ranks(profiles: Sequence[Profile]) -> list[int]:
    """Return the numbers of ranks of the tables of collectives."""
    return sorted({profile.num_ranks for profile in profiles if _is_of_ranks(profile)})


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _is_of_ranks(profile: Profile) -> bool:
    """Return whether a profile is of collectives or of exchanges in a ring: its times depend on the number of ranks."""
    return any(point.what in (*COLLECTIVES, "together") for point in profile.points)


# What must agree in the provenance and the protocol of profiles that are merged.
_SAME_MACHINE = ("backend", "num_ranks", "num_nodes", "ranks_per_node", "gpus", "environment", "device")
_SAME_PROTOCOL = ("dtype", "statistic")  # other entries, such as iterations, are left out where they differ


def merged(profiles: Sequence[Profile], name: str) -> Profile:
    """Return one profile from several logs of a machine. Times of the same operation become iterations of one point.

    Raises ValueError if they are of different machines or numbers of ranks.
    """
    numbers = _numbers_of_ranks(profiles)
    if len(numbers) > 1:
        raise ValueError(
            f"the tables are of {_listed(numbers)} ranks, and a profile is of one number: choose it with num_ranks "
            "(--num-ranks on the command line)"
        )
    first = profiles[0]
    points: dict[PointKey, Point] = {}
    for profile in profiles:
        problem = difference(first.provenance, profile.provenance, _SAME_MACHINE)
        if not problem:
            problem = difference(first.protocol, profile.protocol, _SAME_PROTOCOL)
        if problem:
            raise ValueError(f"the logs are of different machines, or were measured in different ways: {problem}")
        for point in profile.points:
            seconds = point.seconds
            if point.key in points:
                seconds = points[point.key].seconds + seconds
            clean = (True,) * len(seconds)  # logs state no disturbance
            points[point.key] = Point(point.what, point.num_bytes, seconds, clean, point.options)
    provenance = _common([profile.provenance for profile in profiles])
    protocol = _common([profile.protocol for profile in profiles])
    provenance["name"] = name
    provenance["source"] = _merged_source([profile.provenance["source"] for profile in profiles])
    return Profile(provenance, protocol, tuple(points.values()))


def _common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries in which all mappings agree."""
    common = {}
    for key, value in mappings[0].items():
        if all(other.get(key) == value for other in mappings):
            common[key] = value
    return common


def _merged_source(sources: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the programs and notes of several sources, each of them once; sources of logs have nothing else."""
    merged_source = {}
    for key in ("program", "notes"):
        words = dict.fromkeys(source[key] for source in sources if key in source)
        if words:
            merged_source[key] = "; ".join(words)
    return merged_source
