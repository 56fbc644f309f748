"""Read the tables of nccl-tests and rccl-tests, as text or as JSON (-J), also if runs are mixed line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...common.words import count_of
from ..profile import Profile
from .clean import without_info
from .facts import facts_of
from .log import Log
from .table import FAULT, HALF, TYPE_BYTES, Half, Rank, Table, is_whole, profile_of

COLLECTIVE = {  # by the names of the programs, without _perf
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "alltoall": "all_to_all",
    "sendrecv": "together",
    **{name: name for name in ("reduce_scatter", "broadcast", "reduce", "scatter", "gather")},
}
_ROW = re.compile(rf"(?<![\w.])(\d+) +(\d+) +({'|'.join(TYPE_BYTES)})(?!\w)(.*)")
_HEADER = re.compile(r"size +count +type +(.*time +algbw +busbw.*)")
_RANK = re.compile(r"Rank +(\d+) (?:Group +\d+ )?Pid +(\d+) on +(\S+) +device +\d+ \[([^\[\]]*)\] *(.*)")
_NAME = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
_CELL = re.compile(r"[a-z]*|N/A|[+-]?\d[\d.]*(?:[eE][+-]?\d+)?")
_EMPTY_HALF = re.compile(r" {32,}(?=\S)")  # stands for an out-of-place half that was not measured


def nccl_tests_text(log: Log) -> Iterator[Profile]:
    table = Table()
    for line, text in without_info(log.lines):
        if _ends_before(table, text):
            yield from _profiles(log, table)
            table = Table(table.last_line + 1)
        _read_line(table, line, text)
    yield from _profiles(log, table)


def _ends_before(table: Table, text: str) -> bool:
    """Return whether a line belongs to another table: this one has its average, or has lost it."""
    if table.averages and len(table.averages) >= table.num_headers:
        return True
    if not table.halves or len(_runs(table.ranks)) > 1:
        return False
    rank = _RANK.search(text)
    if rank is not None:
        return rank[1] == "0" and any(rank[3] == other.host for other in table.ranks)
    return _HEADER.search(text) is not None


def _read_line(table: Table, line: int, text: str) -> None:
    table.last_line = line
    row = None if "#" in text else _ROW.search(text)  # "#" begins every other line of nccl-tests
    header = _HEADER.search(text)
    rank = _RANK.search(text)
    average = _AVERAGE.search(text)
    name = _NAME.search(text)
    if row:
        _add_row(table, line, row)
    elif rank:
        number, pid, host, bus, card = rank.groups()
        whole_bus = bus if ":" in bus else ""
        table.ranks.append(Rank(int(number), host, pid, whole_bus, card.strip()))
    elif header:
        columns = header[1].replace("cputime", "time").split()
        table.columns = [column for column in columns if column != "timestamp"]  # whose cells are removed as dates
        table.num_headers += 1
    elif average:
        table.averages.append(float(average[1]))
    elif name and "concluded" not in text:
        table.collective = COLLECTIVE.get(name[1], "")


def _add_row(table: Table, line: int, match: re.Match[str]) -> None:
    """Add the halves of a row, or a note about one that is cut or damaged."""
    columns = table.columns
    starts = [index for index, column in enumerate(columns) if column == "time"]
    width = len(columns) - starts[-1]
    num_bytes, count, dtype, rest = match.groups()
    cells = _EMPTY_HALF.sub(" N/A" * width + " ", rest).split()
    if "redop" in columns and not (cells and cells[0].isalpha()):  # some versions leave it blank
        cells.insert(0, "")
    if len(cells) == len(columns) - 1 and columns[-1] in ("#wrong", "error"):  # pasted without its right edge
        cells.append("N/A")
    if len(cells) != len(columns) or not all(map(_CELL.fullmatch, cells)):
        table.notes.append(f"line {line} is cut or damaged, and left out")
        return
    shared = {"dtype": dtype, **dict(zip(columns[: starts[0]], cells, strict=False))}
    for start in starts:
        by_column = dict(zip(columns[start : start + width], cells[start:], strict=False))
        if cells[start] != "N/A":
            in_place = start > starts[0]
            table.halves.append(Half(f"line {line}", int(num_bytes), int(count), in_place, shared, by_column))


def _profiles(log: Log, table: Table) -> Iterator[Profile]:
    """Yield the profile of each run. Rows of several are told apart by their sizes, which ascend in each."""
    runs = _runs(table.ranks)
    notes = list(table.notes)
    if len(runs) > 1:
        are_apart = len({ranks[0].host for ranks in runs}) == len(runs)
        what = "each on its own host: nothing crossed the network" if are_apart else "which exchanged nothing"
        notes.append(
            f"{FAULT}{len(runs)} separate runs of {count_of(len(runs[0]), 'rank')} each, {what}; build with MPI=1"
        )
    facts = facts_of(log.lines[table.first_line - 1 : table.last_line])
    tables = [replace(table, ranks=ranks, halves=[], notes=notes, facts=facts) for ranks in runs]
    for half in table.halves:
        fitting = [run for run in tables if _last(run) < (half.num_bytes, half.in_place)]
        max(fitting or tables, key=_last).halves.append(half)
    for run in tables:
        if run.halves:
            yield profile_of(log, run)


def _last(table: Table) -> tuple[int, bool]:
    """Return the size of the last half, and whether it is in place."""
    return (table.halves[-1].num_bytes, table.halves[-1].in_place) if table.halves else (-1, False)


def _runs(ranks: list[Rank]) -> list[list[Rank]]:
    """Return the ranks of each run. A process that lists ranks from 0 on is a run; with MPI it lists only its own."""
    by_process: dict[tuple[str, str], list[Rank]] = {}
    for rank in ranks:
        by_process.setdefault((rank.host, rank.pid), []).append(rank)
    if len(by_process) > 1 and all(map(is_whole, by_process.values())):
        return list(by_process.values())
    starts = [index for index, rank in enumerate(ranks) if rank.number == 0]
    return [ranks[max(starts, default=0) :]]  # an earlier list is of a run that printed no table


# ---- JSON


def nccl_tests_json(log: Log, content: Mapping[str, Any]) -> Iterator[Profile]:
    """Yield the profile of a file that nccl-tests -J wrote."""
    config = content["config"]
    num_per_process = config["nthreads"] * config["ngpus"]  # of which only the first is listed
    ranks: list[Rank] = []
    for process in config["devices"]:
        for _ in range(num_per_process):
            ranks.append(Rank(len(ranks), process["hostname"], "", "", process["device_info"]))
    name = _NAME.search(" ".join(content["args"]))
    library = f"nccl-library={content['nccl_version']}"
    iterations = f"warmup iters: {config['warmup_iters']} iters: {config['iterations']}"
    table = Table(
        collective=COLLECTIVE.get(name[1], "") if name else "",
        ranks=ranks,
        halves=list(_json_halves(content["results"])),
        averages=[content["average_bus_bandwidth"]["bandwidth"]],
        facts=facts_of([*content["env"], library, iterations]),  # in the words of the text
        date=content["start_time"],
    )
    yield profile_of(log, table)


def _json_halves(results: Sequence[Mapping[str, Any]]) -> Iterator[Half]:
    for index, result in enumerate(results):
        shared = {"dtype": result["type"], "redop": result["redop"], "root": result["root"].strip()}
        for name in ("out_of_place", "in_place"):
            half = result[name]
            if half is None:  # not measured
                continue
            time_us = half["time"] if "time" in half else half["cpu_time"]
            num_wrong = "N/A" if half["nwrong"] is None else half["nwrong"]
            cells = dict(zip(HALF, map(str, (time_us, half["alg_bw"], half["bus_bw"], num_wrong)), strict=True))
            each = result.get(f"{name}_per_iter", {})
            skipped = each.get("skipped_iterations", 0)
            yield Half(
                f"results[{index}]",
                result["size"],
                result["count"],
                name == "in_place",
                shared,
                cells,
                each.get("times_us", [])[skipped:],
                [times_us[skipped:] for times_us in each.get("per_process_max_times_us", [])],
            )
