"""`read_traces`: what torch.profiler and Kineto write of each rank becomes a `Trace`.

Of the events of a file only those that matter are kept, as columns (`kineto_events`), and these become steps, phases,
kernels and copies by stream, and collectives with their launches (`kineto_trace`).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..common.checks import several, whole
from ..common.files import read_start
from ..common.words import count_of
from ..ranks.errors import MachineError
from ..ranks.host import end_with, num_cores
from ..timeline.events import NoEvent, is_ours, read_trace, readable
from .dumps import is_dump
from .kineto_events import EventReader, KinetoEvent
from .kineto_trace import to_trace
from .logs import is_log, logs_in
from .trace import Trace

_HEAD_BYTES = 256  # of a file, which `_TRACE_HEAD` looks at
_RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d{1,9})(?!\d)")  # "rank3.json", "job_rank_3.json.gz"; no number is cut
_NAMED_BY_RANK = re.compile(r"(\d{1,9})\.")  # "3.json"
# how a trace begins: gzipped, or, perhaps after a byte order mark, with an object or a list of objects
_TRACE_HEAD = re.compile(rb"\x1f\x8b|(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*(?:\]|\{\s*[\"}]))")
_HIGHEST_RANK = 2**31 - 1  # torch's ranks are C's int
_IN_PARALLEL_BYTES = 8 << 20  # of files together; fewer are read before another process is there


class _KinetoTrace(msgspec.Struct):
    traceEvents: list[KinetoEvent | NoEvent]
    distributedInfo: dict[str, Any] = {}


class _TraceOfFile(NamedTuple):
    trace: Trace
    num_ranks: int  # of the job, 0 if the file does not state it


def read_traces(folder_or_files: Any, *, report: Callable[[str], object] = lambda line: None) -> tuple[Trace, ...]:
    """Read the traces of a job's ranks and return them by rank.

    Pass a folder with a .json or .json.gz per rank, a file, or several files; flight-recorder dumps among them are left
    out. The rank of a file is the one that `distributedInfo` names, else the one in its name ("rank3.json"). Files are
    read by one process per core. `report` is called with a line after each file.

    Raises ValueError, which names the file, if a file is not a profiler's trace, is cut short, or has more than 4 GiB;
    ValueError if two files belong to the same rank, files belong to jobs of different sizes, or a folder has no trace;
    OSError if a file cannot be opened.
    """
    paths, dumps, logs = files_in(folder_or_files)
    if not isinstance(folder_or_files, str | os.PathLike) or not Path(folder_or_files).is_dir():
        paths = [*paths, *logs]  # these files were given as traces
    if not paths:
        reason = (
            "no trace (a name that ends in .json or .json.gz), no log (.log, .out, .err or .txt) and no dump (a name "
            "that ends in the rank)"
        )
        if dumps:
            reason = "no trace, but flight-recorder dumps; pass them to read_dumps"
        elif logs:
            reason = "no trace, but logs; pass them to read_logs"
        raise ValueError(f"{folder_or_files} has {reason}")
    trace_of_rank: dict[int, Trace] = {}
    source_of_size: dict[int, str] = {}  # by the number of ranks that files state
    for trace, num_ranks in _read_all(paths, report):
        if trace.rank in trace_of_rank:
            raise ValueError(f"{trace_of_rank[trace.rank].source} and {trace.source} are both of rank {trace.rank}")
        trace_of_rank[trace.rank] = trace
        if num_ranks:
            source_of_size.setdefault(num_ranks, trace.source)
    if len(source_of_size) > 1:
        jobs = [f"{source} is of a job of {count_of(size, 'rank')}" for size, source in source_of_size.items()]
        raise ValueError(f"traces must be of one job: {' and '.join(jobs)}")
    return tuple(trace_of_rank[rank] for rank in sorted(trace_of_rank))


class TraceFiles(NamedTuple):
    """Files to read: traces, flight-recorder dumps, and logs."""

    traces: list[Path]
    dumps: list[Path]
    logs: list[Path]


def files_in(folder_or_files: Any) -> TraceFiles:
    """Return the traces, dumps and logs among these files, or in this folder.

    In a folder, names say what is a trace or a log, and traces that this package wrote are left out; if it has no
    trace, log or dump, the logs below it that torchrun's ``--log-dir`` makes are returned. Files that are given are
    logs if their names say so, or if they do not begin as traces do.
    """
    if not isinstance(folder_or_files, str | os.PathLike):
        return _by_kind([Path(path) for path in several("folder_or_files", folder_or_files, "files, or a folder")])
    path = Path(folder_or_files)
    if not path.is_dir():
        return _by_kind([path])
    files = sorted(file for file in path.iterdir() if file.is_file())
    dumps = [file for file in files if is_dump(file)]
    others = [file for file in files if file not in dumps]
    traces = [file for file in others if file.name.endswith((".json", ".json.gz")) and not is_ours(file)]
    logs = [file for file in others if is_log(file)]
    if not (traces or dumps or logs):
        logs = logs_in(path)
    return TraceFiles(traces, dumps, logs)


def _by_kind(files: list[Path]) -> TraceFiles:
    """Sort files that were given one by one; what is neither a dump nor a trace is a log."""
    dumps = [file for file in files if is_dump(file)]
    others = [file for file in files if file not in dumps]
    logs = [file for file in others if not _may_be_trace(file)]
    return TraceFiles([file for file in others if file not in logs], dumps, logs)


def _may_be_trace(path: Path) -> bool:
    """Return whether a file is a trace by its name, or, if that does not tell, by how its text begins."""
    if is_log(path):
        return False
    if path.name.endswith((".json", ".gz")):
        return True
    return _TRACE_HEAD.match(read_start(path, _HEAD_BYTES)) is not None


def _read_all(paths: list[Path], report: Callable[[str], object]) -> list[_TraceOfFile]:
    """Read these files, in a process per core if they are large; `report` is called with a line for each."""
    read = partial(_read, num_files=len(paths))
    num_workers = min(len(paths), num_cores())
    is_small = sum(path.stat().st_size for path in paths) < _IN_PARALLEL_BYTES
    if num_workers == 1 or is_small or sys.platform != "linux":
        return [_reported(report, path, read(path)) for path in paths]
    # Forked, so that the caller's script is not run again, and killed with this process.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(num_workers, context, end_with, (os.getpid(),)) as pool:
        try:
            results = pool.map(read, paths)
            return [_reported(report, path, result) for path, result in zip(paths, results, strict=True)]
        except BrokenProcessPool as error:
            raise MachineError("a process that reads traces has died") from error


def _reported(report: Callable[[str], object], path: Path, result: _TraceOfFile) -> _TraceOfFile:
    report(f"read {path.name}")
    return result


def _read(path: Path, num_files: int) -> _TraceOfFile:
    """Read a trace; `num_files` are all files of the job, which decides whether it needs a rank of its own."""
    file = read_trace(path, _KinetoTrace)
    with readable(path):
        reader = EventReader()
        reader.take(file.traceEvents)
        rank = _rank(path, file.distributedInfo, num_files)
        trace = to_trace(reader.events(), rank, path.name, _group_ranks(file.distributedInfo))
        num_ranks = file.distributedInfo.get("world_size")
        return _TraceOfFile(trace, num_ranks if isinstance(num_ranks, int) else 0)


def _rank(path: Path, info: Mapping[str, Any], num_files: int) -> int:
    """Return the rank that a trace or its name states; 0 for a single file that states none."""
    rank = info.get("rank")
    if rank is not None:
        return whole("distributedInfo's rank", rank, 0, _HIGHEST_RANK)
    rank_in_name = _RANK_IN_NAME.search(path.name) or _NAMED_BY_RANK.match(path.name)
    if rank_in_name:
        return int(rank_in_name[1])
    if num_files > 1:
        raise ValueError("cannot tell its rank: neither distributedInfo nor the file name gives one")
    return 0


def _group_ranks(info: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group that the trace describes, in the order in which the groups were made."""
    config = info.get("pg_config")
    if not isinstance(config, list):
        return {}
    ranks_of: dict[str, tuple[int, ...]] = {}
    for group in config:
        # the file may be damaged, so groups without legible ranks are left out
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) and 0 <= rank <= _HIGHEST_RANK for rank in ranks):
            ranks_of[str(group.get("pg_name"))] = tuple(ranks)
    return ranks_of
