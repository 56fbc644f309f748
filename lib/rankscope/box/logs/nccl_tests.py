"""Tables of nccl-tests and rccl-tests; each row is checked for consistency, with the number of ranks and the
average."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...common.checks import printable, whole
from ...provenance import command_words
from ..profile import NATIVE, Profile, busbw_factor
from .log import COLLECTIVE, GB, MOST_CARDS, ROUNDING, SLACK, TRUNCATED, TYPE_BYTES, Log, Times, Where, half_unit

_MOST_RANKS = 1 << 20
_INFO_FIRST = re.compile(r"^\s*\S+:\d+:\d+ \[\d+\] ")  # a line of NCCL's own log: host:process:thread [device]
_INFO_LATER = re.compile(r"(?<![\w.-])[\d_.-]*([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")  # the same, behind part of a row
_ROW = re.compile(rf"(?<![\w.])(\d+)[ \t]+(\d+)[ \t]+({'|'.join(TYPE_BYTES)})(?!\w)(.*)")
_RANK = re.compile(r"Rank +(\d+) (?:Group +\d+ )?Pid +\d+ on +(\S+) +device +\d+ \[[^\[\]]*\] *(.*)")
_NAME = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_FOOT = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_CELL = re.compile(r"^(?:[+-]?[\d.]+(?:[eE][+-]?\d+)?|N/A)$")
_KIND = re.compile(r"^(?:[a-z]*|-?\d+)$")  # an operation, or the rank of a root
_TIMESTAMP = re.compile(r"(?<!\S)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_EMPTY_HALF = re.compile(r" {32,}")  # what nccl-tests prints instead of the out-of-place half
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?: set by environment to |=)([^\s;,]+)")
_WAY = re.compile(r"Using network (\w[^\n]*)|(GPU Direct RDMA (?:En|Dis)abled)|via (P2P|SHM|NET/\w+)")
_BUILT_IN_NETWORKS = ("Socket", "IB")  # NCCL's log names them in two ways: network Socket, via NET/Socket
_NCCL_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)*)(?:\+cuda([\d.]+))?")
_LIBRARY = re.compile(r"nccl-library=(\d+)")
_TESTS_VERSION = re.compile(r"nccl-tests version (\S+)")
_ITERATIONS = re.compile(r"warmup iters: (\d+) iters: (\d+)")
_MOST_COLUMNS = 64  # behind the type; the widest table of nccl-tests has 21
_SUMS = ("sum", "prod", "max", "min", "avg", "mulsum", "all")


class PrintedRank(NamedTuple):
    number: int
    host: str
    card: str


class PrintedRow(NamedTuple):
    """A printed row: `cells` are those after the type, one per column."""

    line: Where
    num_bytes: str
    elements: str
    dtype: str
    cells: list[str]


class Half(NamedTuple):
    """Half of a row (in or out of place): its time, and its algbw and busbw in bytes/s with what rounding hides."""

    row: PrintedRow
    in_place: bool
    seconds: float
    alg: float
    alg_off: float
    bus: float
    bus_off: float


class Table:
    """A table while it is being read, with facts from the lines around it."""

    def __init__(self, header: Where, columns: Sequence[str], ranks: Sequence[PrintedRank], name: str) -> None:
        self.header, self.ranks, self.name = header, ranks, name
        self.has_timestamps = columns[-1:] == ["timestamp"]
        self.columns = columns[:-1] if self.has_timestamps else columns
        self.rows: list[PrintedRow] = []
        self.halves = [place for place, name in enumerate(columns) if name in ("time", "cputime")]  # out of place first
        self.footer: tuple[Where, str] | None = None
        self.is_elided = False
        self.said: dict[str, Any] = {}

    @property
    def stated(self) -> int:
        """The number of listed ranks; 0 if some are missing."""
        return len(self.ranks) if [rank.number for rank in self.ranks] == list(range(len(self.ranks))) else 0

    def cells(self, text: str) -> list[str]:
        """Return the cells after the type, one per column; fewer if some are missing.

        The cells of an empty out-of-place half are "N/A".
        """
        cells = self._split(text)
        if "redop" in self.columns and not (cells and cells[0].isalpha()):
            cells.insert(0, "")
        if len(cells) == len(self.columns) - 1 and self.columns[-1] in ("#wrong", "error"):
            cells.append("N/A")
        return cells

    def _split(self, text: str) -> list[str]:
        gap = _EMPTY_HALF.search(text)
        if gap and len(self.halves) == 2:
            width = self.halves[1] - self.halves[0]
            before, behind = text[: gap.start()].split(), text[gap.end() :].split()
            has_no_numbers = len(before) <= self.halves[0]
            if has_no_numbers and len(behind) == width:
                return [*before, *(["N/A"] * width), *behind]
        return text.split()


def nccl_tests(log: Log) -> list[Profile]:
    """Tables of nccl-tests and rccl-tests, as text or JSON (-J)."""
    tables = [_json(log)] if log.text.lstrip().startswith("{") else _text(log)
    return [_profile(log, table) for table in tables if table.rows]


# ---- tables as they are printed


def _text(log: Log) -> list[Table]:
    tables, ranks, name, first = list[Table](), list[PrintedRank](), "", 0
    table: Table | None = None
    pending: tuple[int, re.Match[str], str] | None = None  # a row that continues below lines of NCCL
    for line, text in enumerate(log.lines, 1):
        text = _without_info(text)
        if table is not None and table.has_timestamps:
            text = _TIMESTAMP.sub("", text)
        if not text or text.isspace():
            continue
        is_header, foot = "busbw" in text and "algbw" in text, "Avg bus" in text and _FOOT.search(text)
        row = _ROW.search(text) if "#" not in text else None
        if pending and (row or is_header or foot):
            break
        if row:
            text = row[4]
        elif pending and all(map(_CELL.search, text.split())):
            line, row, text = pending[0], pending[1], f"{pending[2]} {text}"
            pending = None
        if row:
            if table is None:
                log.fail(line, "a row of nccl-tests without a header above it, or after the end of its table")
            cells = table.cells(text)
            if len(cells) < len(table.columns):
                pending = line, row, text
                continue
            if len(cells) > len(table.columns) or not all(map(_KIND.search, cells[: table.halves[0]])):
                log.fail(line, f"its cells are not those of the columns: {row[0].strip()[:80]!r}")
            table.rows.append(PrintedRow(line, row[1], row[2], row[3], cells))
        elif "Rank" in text and (found := _RANK.search(text)):
            if found[1] == "0" and ranks and ranks[0].number == 0:  # from a previous run, which printed no table
                ranks = []
            ranks.append(PrintedRank(int(found[1]), found[2], printable(found[3].strip())))
        elif is_header:
            words = text[text.find("size") :].split()
            fits = words[:3] == ["size", "count", "type"] and not {"time", "cputime"}.isdisjoint(words)
            log.check(fits, line, f"the header must begin with size, count, type; got {text.strip()[:80]!r}")
            log.check(len(words) <= _MOST_COLUMNS, line, f"the header must have at most {_MOST_COLUMNS} columns")
            table = Table(line, words[3:], ranks, name)
            tables.append(table)
        elif foot:
            if table is None or not table.rows:
                log.fail(line, "an average without rows above it")
            table.footer, table.said = (line, foot[1]), _said(log.lines[first:line])
            table, ranks, name, first = None, [], "", line
        elif table is not None and text.strip() in ("...", "…"):
            table.is_elided = True
        elif "_perf" in text and (named := _NAME.search(text)):
            name = named[1]
    if pending:
        log.fail(pending[0], f"the row is cut: {pending[1][0].strip()[:80]!r}")
    unfinished = [table for table in tables if not table.said]
    if unfinished:
        said_last = _said(log.lines[first:])
        for table in unfinished:
            table.said = dict(said_last)
    return tables


def _without_info(text: str) -> str:
    """Return a line without what NCCL itself logged into it."""
    last = text.rfind("NCCL ")
    if last < 0:
        return text
    info = _INFO_FIRST.search(text)
    if info and info.end() <= last:
        return ""
    for info in _INFO_LATER.finditer(text):
        if info.end() <= last:
            return text[: info.start(1)]
    return text


def _json(log: Log) -> Table:
    """The JSON that nccl-tests writes with -J; a process may have several GPUs, but only the first is named."""
    found = log.json()
    half_columns = ("time", "algbw", "busbw", "#wrong")
    table = Table(1, ("redop", "root", *half_columns, *half_columns), [], "")
    try:
        for one in found["results"]:
            place = f"results[{len(table.rows)}]"
            cells = [str(one["redop"]), str(one["root"]).strip()]
            for half in (one["out_of_place"], one["in_place"]):
                keys = ("time" if half and "time" in half else "cpu_time", "alg_bw", "bus_bw")
                cells += [f"{half[key]:.6f}" if half else "N/A" for key in keys]
                cells.append("N/A" if not half or half.get("nwrong") is None else f"{half['nwrong']:g}")
            log.check(one["type"] in TYPE_BYTES, place, f"no type that is known: {one['type']!r}")
            size, count = (str(whole(name, one[name], 0)) for name in ("size", "count"))
            table.rows.append(PrintedRow(place, size, count, one["type"], cells))
        config = found.get("config", {})
        each = math.prod(whole(name, config.get(name, 1), 1, MOST_CARDS) for name in ("nthreads", "ngpus"))
        processes = config.get("devices", ())
        whole("the number of ranks", len(processes) * each, 0, _MOST_RANKS)
        devices = [one for one in processes for _ in range(each)]
        table.ranks = [
            PrintedRank(at, str(one["hostname"]), printable(one["device_info"])) for at, one in enumerate(devices)
        ]
        if "average_bus_bandwidth" in found:
            table.footer = "average_bus_bandwidth", f"{found['average_bus_bandwidth']['bandwidth']:.6f}"
        table.name = next((name[1] for word in found.get("args", ()) if (name := _NAME.search(word))), "")
        table.said = _said([*found.get("env", ()), f"nccl-library={found.get('nccl_version', '')}"])
        run = {"warm_up": config.get("warmup_iters"), "iterations": config.get("iterations")}
        table.said["run"] = {key: value for key, value in run.items() if value is not None}
        table.said["date"] = found.get("start_time", "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.fail(f"results[{len(table.rows)}]", f"not what nccl-tests writes: {error}")
    return table


def _said(lines: Sequence[str]) -> dict[str, Any]:
    """Return the facts about the run that the lines above and between the rows state."""
    text = "\n".join(line for line in lines if "NCCL" in line or "nccl" in line or "iters:" in line)
    version, library, tests = (one.search(text) for one in (_NCCL_VERSION, _LIBRARY, _TESTS_VERSION))
    card = {"nccl": version[1], "cuda": version[2]} if version else {}
    if library and int(library[1]) and not version:
        code = int(library[1])
        base = 10000 if code >= 20000 else 1000
        card = {"nccl": f"{code // base}.{code % base // 100}.{code % 100}"}
    run = _ITERATIONS.search(text)
    ways = dict.fromkeys(_way(*found) for found in _WAY.findall(text))
    variables = dict.fromkeys(f"{name}={value}" for name, value in _SET.findall(text))
    return {
        "card": {key: value for key, value in card.items() if value},
        "network": ", ".join(ways),
        "environment": printable(command_words(list(variables))),
        "run": {"warm_up": int(run[1]), "iterations": int(run[2])} if run else {},
        "tests": tests[1] if tests else "",
    }


def _way(network: str, gpu_direct: str, path: str) -> str:
    """Return how ranks communicate, as one of the lines of `_WAY` says; a network is written as NET/ and its name."""
    name = printable(network).strip()
    if name in _BUILT_IN_NETWORKS:
        return f"NET/{name}"
    return name or gpu_direct or path


# ---- what they say together


def _halves(times: Times, table: Table) -> list[Half]:
    """Check that times and algbw agree."""
    log, found = times.log, list[Half]()
    for row in table.rows:
        for at in table.halves:
            time, alg, bus = row.cells[at : at + 3]
            if time == "N/A":
                continue
            seconds, off = log.number(row.line, time, 1e-9) * 1e-6, half_unit(time) * 1e-6
            rate, rate_off = log.number(row.line, alg, 0) * GB, half_unit(alg) * GB
            problem = f"{alg} GB/s is not {row.num_bytes} bytes in {time} µs"
            fitting = times.fitting_s(row.line, seconds, off, float(row.num_bytes), rate, rate_off, problem)
            if "e" in time and rate > 0:  # printed with two digits, as in 1.8e+07: narrowed by algbw
                seconds = fitting
            busbw, bus_off = log.number(row.line, bus, 0) * GB, half_unit(bus) * GB
            found.append(Half(row, at > table.halves[0], seconds, rate, rate_off, busbw, bus_off))
    log.check(found, table.header, "the table has no times")
    return found


def _bytes_per_count(log: Log, table: Table) -> float:
    """Return the buffer size as a multiple of the counted elements: 1, or the number of ranks."""
    counted = [(row, float(row.num_bytes), float(row.elements) * TYPE_BYTES[row.dtype]) for row in table.rows]
    ratios = [(row, size / count if count else math.inf) for row, size, count in counted if size or count]
    known = sorted(ratio for _, ratio in ratios) or [1.0]
    usual = known[len(known) // 2]
    for row, ratio in ratios:
        log.check(ratio == usual < math.inf, row.line, f"{row.num_bytes} bytes are not {row.elements} elements")
    return usual


def _num_ranks(times: Times, table: Table, halves: Sequence[Half], what: str, per_count: float) -> tuple[int, str]:
    """Return the number of ranks and, if the table does not list them, how it was found.

    The ratio of busbw to algbw must fit it. The number that the caller states counts only for a table that has none.
    """
    log = times.log
    number = table.stated or log.num_ranks or 0
    fits_counts = per_count in (1, number)
    if number and fits_counts and _misfit(halves, what, number) is None:
        return number, ""
    exact, source = int(per_count), "counts"
    if per_count <= 1:
        exact, source = _exact_ranks(halves) if what == "allreduce" else 0, "bus bandwidths"
    if exact and _misfit(halves, what, exact) is None:
        listed = f"; {len(table.ranks)} of them are listed" if table.ranks else ""
        return exact, f"the number of ranks follows from {source}{listed}"
    log.check(number, table.header, "the number of ranks is not stated and does not follow from the bus bandwidths")
    log.check(fits_counts, halves[0].row.line, _count_problem(halves[0], number))
    for half in halves:
        deviation, rounding = _bus_deviation(half, what, number)
        times.agree(half.row.line, deviation, rounding, SLACK * half.bus, f"bus bandwidths do not fit {number} ranks")
    return number, ""


def _count_problem(half: Half, number: int) -> str:
    return f"{half.row.num_bytes} bytes are not {half.row.elements} elements on {number} ranks"


def _bus_deviation(half: Half, what: str, num_ranks: int) -> tuple[float, float]:
    """Return how far a printed busbw is from what the algbw implies, and how far rounding may bring it, in bytes/s."""
    factor = 1.0 if what == "together" else busbw_factor(what, num_ranks)
    return abs(half.bus - factor * half.alg), half.bus_off + factor * half.alg_off


def _misfit(halves: Sequence[Half], what: str, num_ranks: int) -> Half | None:
    """Return the first half of a row whose busbw does not belong to so many ranks; None if all do."""
    for half in halves:
        deviation, rounding = _bus_deviation(half, what, num_ranks)
        if deviation > rounding * ROUNDING:
            return half
    return None


def _exact_ranks(halves: Sequence[Half]) -> int:
    """Return the number of ranks that the bus bandwidths of an allreduce imply; 0 if several fit."""
    used = [half for half in halves if half.alg > half.alg_off]
    low = max([0.0, *((half.bus - half.bus_off) / (half.alg + half.alg_off) for half in used)]) / ROUNDING
    high = min([2.0, *((half.bus + half.bus_off) / (half.alg - half.alg_off) for half in used)]) * ROUNDING
    if not low <= high < 2:
        return 0
    few, many = max(1, math.ceil(2 / (2 - low) - 1e-9)), math.floor(2 / (2 - high) + 1e-9)
    return few if few == many else 0


def _profile(log: Log, table: Table) -> Profile:
    """Check a table and return its profile."""
    times, first = Times(log), table.halves[0]
    halves, per_count = _halves(times, table), _bytes_per_count(log, table)
    what = _collective(log, table, per_count)
    number, note = _num_ranks(times, table, halves, what, per_count)
    times.notes += [] if table.name else ["the collective follows from the columns of the table"]
    times.notes += [note] if note else []
    times.notes += _footer_note(times, table, halves)
    times.notes += ["one rank: no link was used"] if number == 1 else []

    ranks = table.ranks if table.stated == number else []
    nodes = list(Counter(rank.host for rank in ranks).values())  # in the order of their first ranks
    plain: dict[str, Any] = {"algorithm": NATIVE}
    if what == "together":
        link = {1: "intra", number: "inter"}.get(len(nodes)) if number > 1 else None
        plain = {"link": link} if link else {}
    kinds = {row.line: (row.dtype, *row.cells[:first]) for row in table.rows}
    names = ("dtype", *table.columns[:first])
    varying = [place for place, words in enumerate(zip(*kinds.values(), strict=True)) if len(set(words)) > 1]
    for half in halves:
        more = {names[place]: kinds[half.row.line][place] for place in varying}
        options = {**plain, "in_place": half.in_place, **more}
        times.add(half.row.line, what, int(half.row.num_bytes), half.seconds, options)

    card, tests, run = (table.said.pop(name) for name in ("card", "tests", "run"))
    gpus = [({"name": rank.card} if rank.card else {}) | card for rank in ranks] or [card] * min(number, MOST_CARDS)
    wrong = {row.cells[at + 3] for row in table.rows for at in table.halves if "#wrong" in table.columns} - {"N/A"}
    how = {"statistic": "mean", **run} | ({"verified": wrong == {"0"}} if wrong else {})
    how |= {} if 0 in varying else {"dtype": table.rows[0].dtype}
    about = {"gpus": gpus if any(gpus) else [], "num_nodes": len(nodes), "ranks_per_node": nodes, **table.said}
    return times.profile(f"nccl-tests {tests}".strip(), "nccl", number, how, what, **about)


def _footer_note(times: Times, table: Table, halves: Sequence[Half]) -> list[str]:
    """Check the average below a table against its rows."""
    if table.footer is None:
        return ["no average below the table: it may be cut"]
    line, printed = table.footer
    mean = sum(half.bus for half in halves) / len(halves) / GB
    rounding = sum(half.bus_off for half in halves) / len(halves) / GB + half_unit(printed) + 1e-9
    stated = times.log.number(line, printed)
    deviation = abs(mean - stated)
    if table.is_elided and deviation > TRUNCATED * rounding:
        return ["an excerpt: the log's average is of more rows"]
    times.agree(line, deviation, rounding, 0.0, f"the average is {stated:g}, and that of the rows {mean:g}")
    return []


def _collective(log: Log, table: Table, per_count: float) -> str:
    """Return the collective: from its name, else from columns that only its program prints."""
    if table.name:
        log.check(table.name in COLLECTIVE, table.header, f"unknown collective: {table.name!r}")
        return COLLECTIVE[table.name]
    first = dict(zip(table.columns, table.rows[0].cells, strict=False))
    rooted = first.get("root", "-1") not in ("-1", "")
    if first.get("redop") in _SUMS:
        return "reduce" if rooted else "allreduce" if per_count == 1 else "reduce_scatter"
    if rooted and per_count == 1:
        return "broadcast"
    is_told = "root" not in table.columns and per_count > 1
    log.check(is_told, table.header, "the collective of the table is not stated")
    return "all_to_all" if "redop" in table.columns else "allgather"
