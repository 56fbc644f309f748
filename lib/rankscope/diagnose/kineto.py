"""`read_traces`: what torch.profiler and Kineto write of each rank becomes a `Trace`."""

from __future__ import annotations

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ..common.checks import several
from ..common.files import FileError
from ..common.words import count_of
from ..ranks.host import end_with, num_cores
from ..timeline.events import NoEvent, is_ours, read_trace, readable
from .kineto_events import KinetoEvent, events_by_role
from .kineto_trace import to_trace
from .trace import Trace

_RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d+)|^(\d+)\.")  # "rank3.json", "job_rank_3.json.gz", "3.json"
_IN_PARALLEL_BYTES = 8 << 20  # of files together; fewer are read before another process is there


class _KinetoFile(msgspec.Struct):
    traceEvents: list[KinetoEvent | NoEvent]
    distributedInfo: dict[str, Any] = {}


def read_traces(folder_or_files: Any) -> tuple[Trace, ...]:
    """Read the traces of a job's ranks, and return them by rank.

    Pass a folder with a .json or .json.gz per rank, a file, or several files. The rank of a file is the one that its
    `distributedInfo` names, else the one in its name ("rank3.json"). A file that is not a profiler's trace, or is
    damaged, is left out if another one can be read; a diagnosis names it.

    Raises ValueError if no file can be read, a folder has none, two are of the same rank, or of jobs of different
    sizes; OSError if a file cannot be opened.
    """
    if not isinstance(folder_or_files, str | os.PathLike):
        paths = [Path(path) for path in several("folder_or_files", folder_or_files, "files, or a folder")]
    elif Path(folder_or_files).is_dir():
        files = sorted(path for path in Path(folder_or_files).iterdir() if path.is_file())
        paths = [path for path in files if path.name.endswith((".json", ".json.gz")) and not is_ours(path)]
    else:
        paths = [Path(folder_or_files)]
    if not paths:
        raise ValueError(f"{folder_or_files} has no trace, which is a file whose name ends in .json or .json.gz")

    trace_of: dict[int, Trace] = {}
    errors = []
    for trace in _read_all(paths):
        if isinstance(trace, FileError):
            errors.append(trace)
            continue
        if trace.rank in trace_of:
            raise ValueError(f"{trace_of[trace.rank].source} and {trace.source} are both of rank {trace.rank}")
        trace_of[trace.rank] = trace
    if not trace_of:
        raise errors[0]
    sizes = {trace.num_ranks: trace.source for trace in trace_of.values() if trace.num_ranks}
    if len(sizes) > 1:
        jobs = [f"{source} is of a job of {count_of(size, 'rank')}" for size, source in sizes.items()]
        raise ValueError(f"traces must be of one job: {' and '.join(jobs)}")
    first, *others = (trace_of[rank] for rank in sorted(trace_of))
    return replace(first, left_out=tuple(map(str, errors))), *others


def _read_all(paths: list[Path]) -> list[Trace | FileError]:
    """Read these files, by a process per core if they are large."""
    num_workers = min(len(paths), num_cores())
    is_small = sum(path.stat().st_size for path in paths) < _IN_PARALLEL_BYTES
    if num_workers == 1 or is_small:
        return [_read(path, len(paths)) for path in paths]
    context = multiprocessing.get_context("fork")  # which does not run the caller's script again
    with ProcessPoolExecutor(num_workers, context, end_with, (os.getpid(),)) as pool:  # and ends with this process
        return list(pool.map(_read, paths, [len(paths)] * len(paths)))


def _read(path: Path, num_files: int) -> Trace | FileError:
    try:
        file = read_trace(path, _KinetoFile)
        with readable(path):
            info = file.distributedInfo
            groups = [group for group in info.get("pg_config") or [] if isinstance(group, dict)]
            events = events_by_role(file.traceEvents)
            if not events:
                raise ValueError("it has no event of torch.profiler")
            trace = to_trace(events, _rank(path, info, num_files), _only_name(groups))
            sizes = [len(group.get("ranks") or ()) for group in groups]
            return replace(trace, source=path.name, num_ranks=info.get("world_size") or max(sizes, default=0))
    except FileError as error:
        return error


def _rank(path: Path, info: dict[str, Any], num_files: int) -> int:
    """Return the rank that a trace or its name states; 0 for a single file that states none."""
    in_name = _RANK_IN_NAME.search(path.name)
    rank = info.get("rank")
    if rank is None and in_name:
        rank = int(in_name[1] or in_name[2])
    if rank is None and num_files == 1:
        rank = 0
    if not isinstance(rank, int) or rank < 0:
        raise ValueError("neither distributedInfo nor the file's name gives its rank")
    return rank


def _only_name(groups: list[dict[str, Any]]) -> str:
    """Return the name of the job's only group; "" if there are several, as Gloo's events do not say theirs."""
    return str(groups[0].get("pg_name")) if len(groups) == 1 else ""
