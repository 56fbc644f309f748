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
from .table import FAULT, TYPE_BYTES, Half, Rank, Table, is_whole, profile_of

COLLECTIVE = {  # by the names of the programs, without _perf
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "alltoall": "all_to_all",
    "sendrecv": "together",
    **{name: name for name in ("reduce_scatter", "broadcast", "reduce", "scatter", "gather")},
}
_ROW = re.compile(rf"(?<![\w.])(?P<size>\d+) +(?P<count>\d+) +(?P<type>{'|'.join(TYPE_BYTES)})(?!\w)(?P<cells>.*)")
_HEADER = re.compile(r"size +count +type +(.*time +algbw +busbw.*)")
_RANK = re.compile(
    r"Rank +(?P<number>\d+) (?:Group +\d+ )?Pid +(?P<pid>\d+) on +(?P<host>\S+) +device +\d+ "
    r"\[(?P<bus>[^\[\]]*)\] *(?P<card>.*)"
)
_NAME = re.compile(r"^(?!.*(?:Linking|concluded)).*?\b(\w+?)_perf(?:_mpi)?\b")  # not where it was built, or has ended
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
_CELL = re.compile(r"[a-z]*|(?:[A-Z]|Direct)\w*|N/A|[+-]?\d[\d.]*(?:[eE][+-]?\d+)?")
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
    if not table.halves and not table.averages:
        return False
    num_runs = len(_runs(table))
    if len(table.averages) >= max(table.num_headers, num_runs):
        return True
    if num_runs > 1:
        return False
    rank = _RANK.search(text)
    if rank is not None:
        return rank["number"] == "0" and any(rank["host"] == other.host for other in table.ranks)
    return _HEADER.search(text) is not None


def _read_line(table: Table, line: int, text: str) -> None:
    table.last_line = line
    row = _ROW.search(text.partition("#")[0])  # "#" begins every other line of nccl-tests
    header = _HEADER.search(text)
    rank = _RANK.search(text)
    average = _AVERAGE.search(text)
    if row:
        _add_row(table, line, row)
    elif rank:
        card = rank["card"].strip()
        table.ranks.append(Rank(int(rank["number"]), rank["host"], rank["pid"], rank["bus"], card))
    elif header:
        columns = header[1].replace("cputime", "time").split()
        table.columns = [column for column in columns if column != "timestamp"]  # whose cells are removed as dates
        table.num_headers += 1
    elif average:
        table.averages.append(float(average[1]))
    elif "_perf" in text and _NAME.search(text):  # without the first, a long line would take long
        table.collective = _collective(text)


def _collective(text: str) -> str:
    """Return the collective whose program a text names first; "" if it names none that is known."""
    return next((COLLECTIVE.get(name, "") for name in _NAME.findall(text)), "")


def _add_row(table: Table, line: int, match: re.Match[str]) -> None:
    """Add the halves of a row, or a note about one that is cut or damaged."""
    columns = table.columns
    starts = [index for index, column in enumerate(columns) if column == "time"]
    width = starts[-1] - starts[0] or len(columns) - starts[0]
    cells = _EMPTY_HALF.sub(" N/A" * width + " ", match["cells"]).split()
    if "redop" in columns and not (cells and cells[0].isalpha()):  # some versions leave it blank
        cells.insert(0, "")
    if len(cells) == len(columns) - 1 and columns[-1] in ("#wrong", "error"):  # pasted without its right edge
        cells.append("N/A")
    if len(cells) != len(columns) or not all(map(_CELL.fullmatch, cells)):
        table.notes.append(f"line {line} is cut or damaged, and left out")
        return
    shared = {"dtype": match["type"], **dict(zip(columns[: starts[0]], cells, strict=False))}
    for start in starts:
        by_column = dict(zip(columns[start : start + width], cells[start:], strict=False))
        if cells[start] != "N/A":
            sizes = (int(match["size"]), int(match["count"]))
            table.halves.append(Half(f"line {line}", *sizes, start > starts[0], shared, by_column))


def _profiles(log: Log, table: Table) -> Iterator[Profile]:
    """Yield the profile of each run. Rows of several are told apart by their sizes, which ascend in each."""
    runs = _runs(table)
    notes = list(table.notes)
    if len(runs) > 1:
        what = "which exchanged nothing"
        if len({ranks[0].host for ranks in runs}) == len(runs):
            what = "each on its own host: nothing crossed the network"
        num_ranks = count_of(len(runs[0]), "rank")
        notes.append(f"{FAULT}{len(runs)} separate runs of {num_ranks} each, {what}. Build nccl-tests with MPI=1")
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
    if not table.halves:
        return (-1, False)
    return (table.halves[-1].num_bytes, table.halves[-1].in_place)


def _runs(table: Table) -> list[list[Rank]]:
    """Return the ranks of each run. A process that lists ranks from 0 on is a run; with MPI it lists only its own."""
    by_process: dict[tuple[str, str], list[Rank]] = {}
    for rank in table.ranks:
        by_process.setdefault((rank.host, rank.pid), []).append(rank)
    hosts = {rank.host for rank in table.ranks}
    are_at_once = table.num_headers > 1 or len(hosts) > 1  # otherwise an earlier one has failed before its table
    if len(by_process) > 1 and are_at_once and all(map(is_whole, by_process.values())):
        return list(by_process.values())
    starts = [index for index, rank in enumerate(table.ranks) if rank.number == 0]
    return [table.ranks[max(starts, default=0) :]]


# ---- JSON


def nccl_tests_json(log: Log, content: Mapping[str, Any]) -> Iterator[Profile]:
    """Yield the profile of a file that nccl-tests -J wrote."""
    config = content["config"]
    num_per_process = config["nthreads"] * config["ngpus"]  # of which only the first is listed
    ranks: list[Rank] = []
    for process in config["devices"]:
        for _ in range(num_per_process):
            ranks.append(Rank(len(ranks), process["hostname"], "", "", process["device_info"]))
    library = f"nccl-library={content['nccl_version']}"
    iterations = f"warmup iters: {config['warmup_iters']} iters: {config['iterations']}"
    table = Table(
        collective=_collective(" ".join(content["args"])),
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
            time_us = half.get("time", half.get("cpu_time"))
            cells = {"time": time_us, "algbw": half["alg_bw"], "busbw": half["bus_bw"]}
            if half["nwrong"] is not None:
                cells["#wrong"] = half["nwrong"]
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
