"""`read_traces`: what torch.profiler and Kineto write of each rank becomes a `Trace`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...common.files import FileError, PathLike, while_reading
from ...timeline.events import read_trace
from ..inputs import is_trace, paths_of
from .kineto_events import events_by_role
from .kineto_trace import to_trace
from .trace import Trace

_RANK_IN_NAME = re.compile(r"(?:rank[-_ ]?|^(?=\d+\.))(\d+)")  # "rank3.json", "job_rank_3.json.gz", "3.json"


def read_traces(folder_or_files: PathLike | Iterable[PathLike]) -> tuple[Trace, ...]:
    """Read the traces of a job's ranks, and return them by rank.

    Pass a folder with a .json or .json.gz per rank, a file, or several files. The rank of a file is the one that its
    `distributedInfo` names, else the one in its name ("rank3.json"). A file that is not a profiler's trace, or is
    damaged, or may not be opened, is left out if another one can be read; a diagnosis names it.

    Raises ValueError or OSError if no file can be read; ValueError if a folder has none, or two are of the same rank.
    """
    paths = paths_of(folder_or_files, is_trace)
    if not paths:
        raise ValueError(f"{folder_or_files} has no trace, which is a file whose name ends in .json or .json.gz")
    trace_of: dict[int, Trace] = {}
    errors: list[Exception] = []
    for path in paths:
        try:
            trace = _read(path, len(paths))
        except (FileError, OSError) as error:
            errors.append(error)
            continue
        if trace.rank in trace_of:
            raise ValueError(f"{trace_of[trace.rank].source} and {trace.source} are both of rank {trace.rank}")
        trace_of[trace.rank] = trace
    if not trace_of:
        raise errors[0]
    first, *others = (trace_of[rank] for rank in sorted(trace_of))
    return replace(first, left_out=tuple(map(str, errors))), *others


def _read(path: Path, num_files: int) -> Trace:
    with while_reading(path, "not a usable trace"):
        file = read_trace(path)
        info = file.distributedInfo
        events = events_by_role(file.traceEvents)
        if not events:
            raise ValueError("it has no event of torch.profiler")
        trace = to_trace(events, _rank(path, info, num_files))
        return replace(trace, source=path.name, num_ranks=info.get("world_size") or 0)


def _rank(path: Path, info: dict[str, Any], num_files: int) -> int:
    """Return the rank that a trace or its name states; 0 for a single file that states none."""
    in_name = _RANK_IN_NAME.search(path.name)
    rank = info.get("rank")
    if rank is None and in_name:
        rank = int(in_name[1])
    if rank is None and num_files == 1:
        rank = 0
    if not isinstance(rank, int) or rank < 0:
        raise ValueError("neither distributedInfo nor the file's name gives its rank")
    return rank
