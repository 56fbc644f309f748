"""Read the tables of nccl-tests and rccl-tests, also if runs are mixed line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ...common.words import count_of
from ..profile import Profile
from .log import Log
from .table import CUT, FAULT, TYPE_BYTES, Half, Rank, Table, is_whole, profile_of

COLLECTIVE = {  # by the names of the programs, without _perf
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "alltoall": "all_to_all",
    "sendrecv": "together",
    **{name: name for name in ("reduce_scatter", "broadcast", "reduce", "scatter", "gather")},
}
_ROW = re.compile(rf"(?<![\w.])(?P<size>\d+) +(?P<count>\d+) +(?P<type>{'|'.join(TYPE_BYTES)})(?!\w) *(?P<cells>.*)")
_HEADER = re.compile(r"size +count +type +(.*time +algbw +busbw.*)")
_CUT_ROW = re.compile(r"^ *\d+(?: +\d+(?: +[a-z]\w*)?)? *$")  # that ends before its times
_RANK = re.compile(
    r"Rank +(?P<number>\d+) (?:Group +\d+ )?Pid +(?P<pid>\d+) on +(?P<host>.*?) *\bdevice +\d+ "
    r"\[(?P<bus>[^\[\]]*)\] *(?P<card>.*)"
)
_NAME = re.compile(r"^(?!.*(?:Linking|concluded)).*?\b(\w+?)_perf(?:_mpi)?\b")  # not where it was built, or has ended


def nccl_tests_text(log: Log) -> Iterator[Profile]:
    tables = [Table()]
    for number, line in enumerate(log.lines, 1):
        if _ends_before(tables[-1], line):
            tables.append(Table())
        _read_line(tables[-1], number, line)
    cut = [note for table in tables if not table.halves for note in table.notes]
    for table in tables:
        if table.halves:
            table.notes += cut
            yield _profile(log, table)


def _ends_before(table: Table, line: str) -> bool:
    """Return whether a line belongs to another table: this one has its average, or has lost it."""
    if not table.halves and not table.num_averages:
        return False
    if table.num_averages >= max(table.num_headers, 1):
        return True
    rank = _RANK.search(line)
    is_first_rank = rank is not None and rank["number"] == "0"
    return (is_first_rank or _HEADER.search(line) is not None) and len(_separate(table)) < 2


def _read_line(table: Table, number: int, line: str) -> None:
    table.lines.append(line)
    row = _ROW.search(line.partition("#")[0])  # "#" begins every other line of nccl-tests
    header = _HEADER.search(line)
    rank = _RANK.search(line)
    name = _NAME.search(line) if "_perf" in line else None  # without this condition, a long line would take long
    if row:
        _add_row(table, f"line {number}", row)
    elif rank:
        table.ranks.append(Rank(int(rank["number"]), rank["host"], rank["pid"], rank["bus"], rank["card"].strip()))
    elif header:
        table.columns = [column for column in header[1].split() if column != "timestamp"]  # dates are cleaned away
        table.num_headers += 1
    elif table.num_headers and _CUT_ROW.search(line):
        table.notes.append(f"line {number} {CUT}")
    elif "Avg bus bandwidth" in line:
        table.num_averages += 1
    elif name:
        table.collective = COLLECTIVE.get(name[1], "")


def _add_row(table: Table, where: str, row: re.Match[str]) -> None:
    """Add the halves of a row, or a note about one that is cut or damaged."""
    shared: dict[str, str] = {}
    halves: list[dict[str, str]] = []
    columns = table.columns
    if columns[0] == "redop" and row["cells"][:1].isdigit():  # an old alltoall leaves it blank
        columns = columns[1:]
    try:
        for column, cell in zip(columns, row["cells"].split(), strict=True):
            if column in ("time", "cputime"):  # begins a half
                halves.append({**shared})
            cells = halves[-1] if halves else shared
            cells[column] = cell
        table.halves += [_half(where, row, half, number > 0) for number, half in enumerate(halves)]
    except ValueError:
        table.notes.append(f"{where} {CUT}")


def _half(where: str, row: re.Match[str], cells: Mapping[str, str], in_place: bool) -> Half:
    """Return a half from its cells. Raises ValueError if one is no number, or if the size is not that of the count."""
    counted_bytes = int(row["count"]) * TYPE_BYTES[row["type"]]
    if counted_bytes and (not int(row["size"]) or int(row["size"]) % counted_bytes):
        raise ValueError
    wrong = cells.get("#wrong", "N/A")
    times = ("i_min", "time", "cputime", "i_max")
    return Half(
        where,
        int(row["size"]),
        int(row["count"]),
        row["type"],
        cells.get("redop", ""),
        cells.get("root", ""),
        in_place,
        float(cells.get("cputime") or cells["time"]),
        [float(cells[column]) for column in times if column in cells],
        float(cells["algbw"]),
        float(cells["busbw"]),
        num_wrong=None if wrong == "N/A" else float(wrong),
        is_cpu_time="cputime" in cells,
    )


def _profile(log: Log, table: Table) -> Profile:
    """Return the profile of a table. The times of separate runs are iterations of the same points."""
    runs = _separate(table)
    starts = [index for index, rank in enumerate(table.ranks) if rank.number == 0]
    table.ranks = table.ranks[max(starts, default=0) :]  # an earlier run may have failed before its table
    if len(runs) > 1 and table.num_headers > 1:
        table.ranks = runs[0]
        what = "which exchanged nothing"
        if len({ranks[0].host for ranks in runs}) == len(runs):
            what = "each on its own host: nothing crossed the network"
        num_ranks = count_of(len(runs[0]), "rank")
        table.notes.append(f"{FAULT}{len(runs)} separate runs of {num_ranks} each, {what}. Build nccl-tests with MPI=1")
    return profile_of(log, table)


def _separate(table: Table) -> list[list[Rank]]:
    """Return the ranks of each process that lists them from 0 on. With MPI, there is one such process in a run."""
    by_process: dict[tuple[str, str], list[Rank]] = {}
    for rank in table.ranks:
        by_process.setdefault((rank.host, rank.pid), []).append(rank)
    return [ranks for ranks in by_process.values() if is_whole(ranks)]
