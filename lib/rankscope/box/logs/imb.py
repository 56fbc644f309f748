"""Logs of the Intel MPI Benchmarks: the collectives, Sendrecv and PingPong of IMB-MPI1.

The format, and what its figures mean, are described in the Intel MPI Benchmarks User Guide, chapters "MPI-1 Benchmarks"
and "Output": t_min, t_max and t_avg are those of the processes, each of which takes the mean of its repetitions, and
throughput is based on t_max.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import attrs

from ...common.checks import count_of
from ..profile import Profile
from .log import MOST_RANKS, NATIVE_OUT, Log, Times, half_unit

_TITLE = re.compile(r"Intel ?\(R\) MPI Benchmark(?:s| Suite) V?([\d.]+)")
_PART = re.compile(r", *([^, ]+) part\b")  # of the suite, behind its version in the title
_START = re.compile(r"^\s*# Benchmarking +([\w-]+)")
_PROCESSES = re.compile(r"^\s*# #processes = (\d+)")
_GROUPS = re.compile(r"^\s*# \( *\d+ groups of \d+ processes")
_HEADER = re.compile(r"^\s*#bytes\s")
_COMMENT = re.compile(r"^\s*#")
_NOT_MEASURED = ("out-of-mem", "time-out", "int-overflow")  # begin what is printed instead of repetitions and times
_STEP_TIMES = ("t_min[usec]", "t_avg[usec]", "t_max[usec]")  # in rising order
_GROUPS_PROBLEM = "groups of processes that run at the same time (-multi) are not read"
_MEGABYTES = (1e6, 2.0**20)  # versions before 2017 print 2**20 bytes as a megabyte
_SLOWEST_NOTE = "times are t_max, those of the slowest process"


class _ImbBenchmark(NamedTuple):
    """What a benchmark measures, and what its column #bytes counts."""

    operation: str
    is_share: bool = False  # of one process; otherwise the whole buffer, or the message
    messages: int = 0  # that each process sends and receives, as its throughput counts them; 0 for a collective


_BENCHMARKS = {
    "PingPong": _ImbBenchmark("ping_pong", messages=1),
    "Sendrecv": _ImbBenchmark("together", messages=2),
    "Allreduce": _ImbBenchmark("allreduce"),
    "Reduce": _ImbBenchmark("reduce"),
    "Reduce_scatter": _ImbBenchmark("reduce_scatter"),
    "Bcast": _ImbBenchmark("broadcast"),
    "Allgather": _ImbBenchmark("allgather", is_share=True),
    "Gather": _ImbBenchmark("gather", is_share=True),
    "Scatter": _ImbBenchmark("scatter", is_share=True),
    "Alltoall": _ImbBenchmark("all_to_all", is_share=True),
}


class _ImbRow(NamedTuple):
    line: int
    num_bytes: int
    repetitions: int
    cells: dict[str, str]  # the other figures as they are printed, by column


@attrs.define
class _ImbTable:
    """A benchmark on some processes, as printed. `skipped_sizes` counts those that it did not measure."""

    line: int
    name: str
    num_processes: int = 0
    columns: list[str] = attrs.Factory(list)
    rows: list[_ImbRow] = attrs.Factory(list)
    skipped_sizes: int = 0
    last_size: float = -1  # of the rows read so far, which must rise; below any size before the first

    @property
    def timed_rows(self) -> list[_ImbRow]:
        """The rows that become points: a collective of 0 bytes sends nothing, a message of 0 bytes is one."""
        is_point_to_point = _BENCHMARKS[self.name].messages > 0
        return [row for row in self.rows if row.num_bytes or is_point_to_point]


def imb(log: Log) -> list[Profile]:
    """IMB-MPI1: a profile for each benchmark and number of processes; times are those of the slowest process.

    Benchmarks that no profile can store, such as Exchange and Barrier, are left out, and so are collectives of 0 bytes,
    which send nothing. A benchmark that was not measured at any other size is left out if another one was.
    """
    program = _program(log)
    tables = list(_tables(log))
    log.check(tables, 1, "not a benchmark of IMB-MPI1: it has no line '# Benchmarking'")
    known = [table for table in tables if table.name in _BENCHMARKS]
    names = ", ".join(sorted({table.name for table in tables}))
    log.check(known, tables[0].line, f"unknown IMB-MPI1 benchmark: {names[:80]}")
    for table in known:
        log.check(table.columns, table.line, f"the table of {table.name} has no header")
        has_rows = table.rows or table.skipped_sizes
        log.check(has_rows, table.line, f"the table of {table.name} has no rows with times")
    timed = [table for table in known if table.timed_rows]
    log.check(timed, known[0].line, f"the table of {known[0].name} has no rows with times")
    return [_profile(log, table, program) for table in timed]


def _program(log: Log) -> str:
    """Return the program's name with its version if a title states it; refuse a title of another part than MPI-1.

    IMB-P2P and IMB-NBC have benchmarks and columns of the same names, which measure something else.
    """
    version = ""
    for line, text in enumerate(log.lines, 1):
        title = _TITLE.search(text)
        if title is None:
            continue
        part = _PART.search(text, title.end())
        if part:
            is_mpi_1 = part[1] == "MPI-1"
            log.check(is_mpi_1, line, f"only the MPI-1 part of the Intel MPI Benchmarks is read, got {part[1][:40]!r}")
        if not version:  # logs of several runs may be in one file: the first title counts
            version = title[1]
    return f"IMB-MPI1 {version}".strip()


def _tables(log: Log) -> Iterator[_ImbTable]:
    """Yield the benchmarks of a log with their rows; those of unknown benchmarks have none."""
    table: _ImbTable | None = None
    is_open = False  # whether rows belong to the table: from its header to the next comment
    for line, text in enumerate(log.lines, 1):
        start = _START.search(text)
        if start:
            if start[1].startswith("Multi-"):
                log.fail(line, f"{_GROUPS_PROBLEM}: {start[1][:40]}")
            if table is not None:
                yield table
            table = _ImbTable(line, start[1])
            is_open = False
            continue
        if table is not None and table.name not in _BENCHMARKS:
            continue  # nothing is read of an unknown benchmark
        cells = text.split()
        if _HEADER.search(text):
            has_header = table is not None and bool(table.columns)
            if table is None or has_header:
                log.fail(line, "a header without a line '# Benchmarking' above it")
            _read_header(log, table, line, cells)
            is_open = True
        elif _COMMENT.search(text):
            if table is not None:
                _read_comment(log, table, line, text)
            is_open = False
        elif cells and cells[0].isdecimal() and cells[0].isascii():  # digits of other scripts are decimal, too
            if table is not None and is_open:
                _read_row(log, table, line, cells)
            elif _is_like_a_row(cells):
                log.fail(line, "a row above the header of its table")
    if table is not None:
        yield table


def _is_like_a_row(cells: list[str]) -> bool:
    """Return whether a line outside of tables has two whole numbers and times, as only rows have."""
    return len(cells) >= 4 and cells[1].isdecimal() and "." in cells[2]


def _read_comment(log: Log, table: _ImbTable, line: int, text: str) -> None:
    """Set the number of processes by a comment above the header of a table; refuse groups of processes."""
    processes = _PROCESSES.search(text)
    if processes and not table.columns:  # rows are of the number above their header
        # `int` refuses a number of thousands of digits, so long ones do not reach it; MOST_RANKS has 7 digits.
        is_number = len(processes[1]) < 9 and 1 <= int(processes[1]) <= MOST_RANKS
        log.check(is_number, line, f"#processes must be a number from 1 to {MOST_RANKS}")
        table.num_processes = int(processes[1])
    if _GROUPS.search(text):
        log.fail(line, _GROUPS_PROBLEM)


def _read_header(log: Log, table: _ImbTable, line: int, columns: list[str]) -> None:
    """Set the columns of a table, after checking that they are those of its benchmark."""
    log.check(table.num_processes, line, f"the number of processes of {table.name} is not stated")
    is_ping_pong = _BENCHMARKS[table.name].operation == "ping_pong"
    if is_ping_pong:
        has_two = table.num_processes == 2
        log.check(has_two, line, f"{table.name} must state #processes = 2, got {table.num_processes}")
    times = ("t[usec]",) if is_ping_pong else _STEP_TIMES
    has_all = columns[:2] == ["#bytes", "#repetitions"] and set(times) <= set(columns)
    log.check(has_all, line, f"the header must have #bytes, #repetitions and {', '.join(times)}")
    log.check(len(set(columns)) == len(columns), line, "the header has a column twice")
    table.columns = columns


def _read_row(log: Log, table: _ImbTable, line: int, cells: list[str]) -> None:
    """Add a row to a table, or count its size as skipped if it was not measured."""
    size = log.number(line, cells[0], 0)
    log.check(size > table.last_size, line, f"must be a larger size than {table.last_size:.0f}, got {cells[0][:40]}")
    table.last_size = size
    if len(cells) > 1 and cells[1].startswith(_NOT_MEASURED):
        table.skipped_sizes += 1
        return
    is_whole = len(cells) == len(table.columns) and cells[1].isdecimal()
    log.check(is_whole, line, f"the row is cut or malformed; its columns are {', '.join(table.columns)}")
    repetitions = int(log.number(line, cells[1], 1))
    table.rows.append(_ImbRow(line, int(size), repetitions, dict(zip(table.columns[2:], cells[2:], strict=True))))


def _profile(log: Log, table: _ImbTable, program: str) -> Profile:
    """Check the rows of a table that has times, and return its profile."""
    benchmark = _BENCHMARKS[table.name]
    is_point_to_point = benchmark.messages > 0
    rows = table.timed_rows
    times = Times(log)
    if benchmark.operation != "ping_pong":
        times.notes.append(_SLOWEST_NOTE)
    if table.skipped_sizes:
        sizes = count_of(table.skipped_sizes, "size")
        times.notes.append(f"{sizes} not measured, for lack of memory or time")
    if table.num_processes == 1:
        times.notes.append("one rank: no link was used")
    megabyte = _megabyte(log, rows, benchmark)
    for row in rows:
        time = _printed_time(log, row, benchmark)
        if "Mbytes/sec" in row.cells and is_point_to_point:
            _check_throughput(times, row, time, benchmark, megabyte)
        size = row.num_bytes
        if benchmark.is_share:
            size *= table.num_processes
        options = {} if is_point_to_point else NATIVE_OUT
        times.add(row.line, benchmark.operation, size, log.number(row.line, time) * 1e-6, options)

    how: dict[str, object] = {"statistic": "mean"}
    repetitions = {row.repetitions for row in rows}
    if len(repetitions) == 1:
        how["iterations"] = repetitions.pop()
    if "defects" in table.columns:  # IMB checks results if it was built with CHECK
        how["verified"] = all(log.number(row.line, row.cells["defects"], 0) == 0 for row in rows)
    return times.profile(program, "mpi", table.num_processes, how, benchmark.operation)


def _printed_time(log: Log, row: _ImbRow, benchmark: _ImbBenchmark) -> str:
    """Return the time of a row in µs as it is printed: of a message, or of the slowest process."""
    if benchmark.operation == "ping_pong":
        log.number(row.line, row.cells["t[usec]"], 1e-9)  # raises if it is 0
        return row.cells["t[usec]"]
    least, mean, most = (log.number(row.line, row.cells[column], 0) for column in _STEP_TIMES)
    log.check(most > 0 and least <= mean <= most, row.line, "must have t_min ≤ t_avg ≤ t_max, and t_max above 0")
    return row.cells["t_max[usec]"]


def _megabyte(log: Log, rows: list[_ImbRow], benchmark: _ImbBenchmark) -> float:
    """Return the bytes of a megabyte in a table: what fits its last row better.

    Sizes rise, and the throughput of a large message has more digits than that of a small one.
    """
    row = rows[-1]
    if "Mbytes/sec" not in row.cells or not benchmark.messages:
        return _MEGABYTES[0]  # which is not used: there is no throughput to check
    seconds = log.number(row.line, _printed_time(log, row, benchmark), 1e-9) * 1e-6
    rate = log.number(row.line, row.cells["Mbytes/sec"], 0)
    expected = row.num_bytes * benchmark.messages / seconds
    return min(_MEGABYTES, key=lambda megabyte: abs(expected - rate * megabyte))


def _check_throughput(times: Times, row: _ImbRow, time: str, benchmark: _ImbBenchmark, megabyte: float) -> None:
    """Check that a row's time and throughput agree. A point has the printed time, so the fitting one is not used."""
    throughput = row.cells["Mbytes/sec"]
    sent = row.num_bytes * benchmark.messages
    seconds = times.log.number(row.line, time, 1e-9) * 1e-6
    rate = times.log.number(row.line, throughput, 0) * megabyte
    problem = f"{throughput} MB/s are not {sent} bytes in {time} µs"
    times.fitting_s(row.line, seconds, half_unit(time) * 1e-6, sent, rate, half_unit(throughput) * megabyte, problem)
