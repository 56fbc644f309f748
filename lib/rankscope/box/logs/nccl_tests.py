"""Tables of nccl-tests and rccl-tests: rows must agree with each other, the number of ranks and the average."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec
from msgspec.structs import replace

from ...common.checks import whole
from ...common.words import printable
from ...provenance import command_words
from ..profile import NATIVE, Profile, busbw_factor
from .log import (
    COLLECTIVE,
    FLOAT_TOLERANCE,
    GB,
    MOST_CARDS,
    SLACK,
    TRUNCATED,
    TYPE_BYTES,
    Log,
    Times,
    Where,
    half_unit,
)

_INFO_FIRST = re.compile(r"^\s*\S+:\d+:\d+ \[\d+\] ")  # a line of NCCL's own log: host:process:thread [device]
_INFO_LATER = re.compile(r"(?<![\w.-])[\d_.-]*([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")  # the same, behind part of a row
_ROW = re.compile(
    rf"(?<![\w.])(?P<size>\d+)[ \t]+(?P<count>\d+)[ \t]+(?P<type>{'|'.join(TYPE_BYTES)})(?!\w)(?P<cells>.*)"
)
_RANK = re.compile(
    r"Rank +(?P<number>\d+) (?:Group +\d+ )?Pid +\d+ on +(?P<host>\S+) +device +\d+ \[[^\[\]]*\] *(?P<card>.*)"
)
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


class PrintedAverage(NamedTuple):
    """The average bus bandwidth below a table."""

    line: Where
    gb_per_s: str


class HalfRow(NamedTuple):
    """Half of a row (in or out of place): its time, and its rates in bytes/s, each with what rounding may hide."""

    row: PrintedRow
    in_place: bool
    seconds: float
    algbw: float
    algbw_off: float
    busbw: float
    busbw_off: float


class RunFacts(msgspec.Struct, frozen=True):
    """What the lines around a table state about the run; empty where they state nothing."""

    gpu_software: dict[str, str] = {}  # the versions of NCCL and CUDA
    network: str = ""
    environment: str = ""
    repetitions: dict[str, Any] = {}  # warm_up and iterations, as in a profile's protocol
    tests_version: str = ""
    date: str = ""


class Table:
    """A table while it is being read, with facts from the lines around it.

    Its `columns` are those after the type, without a timestamp. A timestamp has a space in it, so a reader cuts it off
    each row before it splits the row into cells.
    """

    def __init__(self, header: Where, columns: list[str], ranks: Sequence[PrintedRank], name: str) -> None:
        self.header = header
        self.ranks = ranks
        self.name = name  # of the collective; "" if it is not stated
        self.has_timestamps = columns[-1:] == ["timestamp"]
        self.columns = columns[:-1] if self.has_timestamps else columns
        self.rows: list[PrintedRow] = []
        # The index of the time in each half, the out-of-place one first; algbw, busbw and often #wrong follow a time.
        self.halves = [index for index, column in enumerate(columns) if column in ("time", "cputime")]
        self.average: PrintedAverage | None = None  # None until the end of the table, or if it is cut
        self.is_elided = False  # whether somebody has replaced rows by "..."
        self.facts = RunFacts()  # empty until they are read

    @property
    def num_listed_ranks(self) -> int:
        """The number of listed ranks; 0 if some are missing."""
        numbers = [rank.number for rank in self.ranks]
        return len(numbers) if numbers == list(range(len(numbers))) else 0

    def cells(self, text: str) -> list[str]:
        """Return the cells after the type, one per column; fewer if some are missing.

        The cells of an empty out-of-place half are "N/A".
        """
        cells = self._split(text)
        has_operation = bool(cells) and cells[0].isalpha()
        if "redop" in self.columns and not has_operation:  # some versions leave this column blank
            cells.insert(0, "")
        if len(cells) == len(self.columns) - 1 and self.columns[-1] in ("#wrong", "error"):
            cells.append("N/A")  # some logs are cut at the right, and times do not need this column
        return cells

    def _split(self, text: str) -> list[str]:
        """Return the words of a row, with "N/A" for each cell of an out-of-place half that is blank."""
        gap = _EMPTY_HALF.search(text)
        if gap and len(self.halves) == 2:
            width = self.halves[1] - self.halves[0]
            before = text[: gap.start()].split()
            behind = text[gap.end() :].split()
            is_out_of_place_half = len(before) <= self.halves[0] and len(behind) == width
            if is_out_of_place_half:  # only cells before the times are left of it, and only the other half behind
                return [*before, *(["N/A"] * width), *behind]
        return text.split()


def nccl_tests(log: Log) -> list[Profile]:
    """Tables of nccl-tests and rccl-tests, as text or JSON (-J)."""
    tables = [_json(log)] if log.text.lstrip().startswith("{") else _TextReader(log).tables()
    return [_profile(log, table) for table in tables if table.rows]


# ---- tables as they are printed


class _PendingRow(NamedTuple):
    """A row that continues below lines of NCCL."""

    line: int
    match: re.Match[str]
    text: str  # the cells so far


class _TextReader:
    """Reads a log line by line; what stands above a table belongs to it.

    A table begins with its header and ends with its average. NCCL's own log may stand between its lines, and may cut a
    row in two. So a row with too few cells is pending until a line brings the other ones.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self._tables: list[Table] = []
        self._table: Table | None = None  # the one that has begun and not yet ended
        self._pending: _PendingRow | None = None
        # From the lines that have been read since the last average:
        self._ranks: list[PrintedRank] = []
        self._name = ""  # of the next table's collective, as in all_reduce_perf; "" until a line has it
        self._without_facts: list[Table] = []  # the tables that have begun
        self._last_average = 0  # its line

    def tables(self) -> list[Table]:
        """Read all lines, and return the tables with the facts about their runs."""
        for line, text in enumerate(self.log.lines, 1):
            text = _without_info(text)
            if self._table is not None and self._table.has_timestamps:
                text = _TIMESTAMP.sub("", text)
            if text and not text.isspace():
                self._read_line(line, text)
        if self._pending is not None:
            self._fail_cut(self._pending)
        self._add_facts(len(self.log.lines))
        return self._tables

    def _fail_cut(self, row: _PendingRow) -> NoReturn:
        self.log.fail(row.line, f"the row is cut: {row.match[0].strip()[:80]!r}")

    def _read_line(self, line: int, text: str) -> None:
        """Read a line that is not blank. Searching for a word first is faster than its pattern, and logs are long."""
        is_header = "busbw" in text and "algbw" in text
        average = _FOOT.search(text) if "Avg bus" in text else None
        row = _ROW.search(text) if "#" not in text else None  # "#" begins every other line of nccl-tests
        if self._pending is not None:
            if row or is_header or average:
                self._fail_cut(self._pending)
            if all(map(_CELL.search, text.split())):  # the row's other cells
                self._add_row(self._pending.line, self._pending.match, f"{self._pending.text} {text}")
                return
        if row:
            self._add_row(line, row, row["cells"])
            return
        rank = _RANK.search(text) if "Rank" in text else None
        name = _NAME.search(text) if "_perf" in text else None
        if rank:
            self._add_rank(rank)
        elif is_header:
            self._add_table(line, text)
        elif average:
            self._end_table(line, average[1])
        elif self._table is not None and text.strip() in ("...", "…"):
            self._table.is_elided = True
        elif name:
            self._name = name[1]

    def _add_row(self, line: int, match: re.Match[str], text: str) -> None:
        """Add a row with these cells, or keep it until its other cells come."""
        table = self._table
        if table is None:
            self.log.fail(line, "a row of nccl-tests without a header above it, or after the end of its table")
        cells = table.cells(text)
        if len(cells) < len(table.columns):
            self._pending = _PendingRow(line, match, text)
            return
        self._pending = None
        cells_before_times = cells[: table.halves[0]]
        if len(cells) > len(table.columns) or not all(map(_KIND.search, cells_before_times)):
            self.log.fail(line, f"its cells are not those of the columns: {match[0].strip()[:80]!r}")
        table.rows.append(PrintedRow(line, match["size"], match["count"], match["type"], cells))

    def _add_rank(self, rank: re.Match[str]) -> None:
        """Add a rank to the list of the next table; a second list that begins with 0 replaces the first."""
        if rank["number"] == "0" and self._ranks and self._ranks[0].number == 0:
            self._ranks = []  # those so far are of a previous run, which printed no table
        self._ranks.append(PrintedRank(int(rank["number"]), rank["host"], printable(rank["card"].strip())))

    def _add_table(self, line: int, text: str) -> None:
        """Begin a table with the columns of a header."""
        words = text[text.find("size") :].split()  # without "#", and without what a launcher puts before it
        has_times = "time" in words or "cputime" in words
        fits = words[:3] == ["size", "count", "type"] and has_times
        self.log.check(fits, line, f"the header must begin with size, count, type; got {text.strip()[:80]!r}")
        self._table = Table(line, words[3:], self._ranks, self._name)
        self._tables.append(self._table)
        self._without_facts.append(self._table)

    def _end_table(self, line: int, average: str) -> None:
        """End a table with its average. What follows belongs to the next one."""
        table = self._table
        if table is None or not table.rows:
            self.log.fail(line, "an average without rows above it")
        table.average = PrintedAverage(line, average)
        self._add_facts(line)
        self._table = None
        self._ranks = []
        self._name = ""
        self._last_average = line

    def _add_facts(self, last_line: int) -> None:
        """Add the facts of the lines since the last average to the tables that stand there.

        If a table has no average, these are several: the lines between it and the next table may be about both.
        """
        if not self._without_facts:
            return
        facts = _facts(self.log.lines[self._last_average : last_line])
        for table in self._without_facts:
            table.facts = facts
        self._without_facts = []


def _without_info(text: str) -> str:
    """Return a line without what NCCL itself logged into it: from the name of the host to the end of the line.

    Such a part begins as in "node0:10:12 [0] NCCL INFO" or "node0:10:12 [0] socket.cc:5 NCCL WARN", so "NCCL " must
    follow the host, the process, the thread and the device. The patterns leave it out: with it they would be slow.
    """
    last_nccl = text.rfind("NCCL ")
    if last_nccl < 0:
        return text
    info = _INFO_FIRST.search(text)
    if info and info.end() <= last_nccl:
        return ""
    for info in _INFO_LATER.finditer(text):
        if info.end() <= last_nccl:
            return text[: info.start(1)]  # digits right before the name are those of the row's last cell
    return text


# ---- the JSON that nccl-tests writes with -J


def _json(log: Log) -> Table:
    """Parse the JSON of nccl-tests. Its figures become words, as in a text, because rounding depends on their digits.

    nccl-tests write every float with %lf, which has six digits after the point.
    """
    content = log.json()
    half_columns = ("time", "algbw", "busbw", "#wrong")
    columns = ["redop", "root", *half_columns, *half_columns]
    table = Table(header=1, columns=columns, ranks=[], name="")  # the ranks and the name follow below
    place = "results"  # what is being read, for the error
    try:
        for index, result in enumerate(content["results"]):
            place = f"results[{index}]"
            table.rows.append(_json_row(log, place, result))
        place = "config"
        config = content.get("config", {})
        table.ranks = _json_ranks(config)
        place = "average_bus_bandwidth"
        if "average_bus_bandwidth" in content:
            average = content["average_bus_bandwidth"]["bandwidth"]
            table.average = PrintedAverage("average_bus_bandwidth", f"{average:.6f}")
        place = "args"
        table.name = _json_name(content.get("args", ()))
        place = "env"
        version = f"nccl-library={content.get('nccl_version', '')}"  # as a log states it in text
        facts = _facts([*content.get("env", ()), version])
        place = "config"
        repetitions = {"warm_up": config.get("warmup_iters"), "iterations": config.get("iterations")}
        stated = {name: number for name, number in repetitions.items() if number is not None}
        table.facts = replace(facts, repetitions=stated, date=content.get("start_time", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.fail(place, f"not what nccl-tests writes: {error}")
    return table


def _json_row(log: Log, place: str, result: Any) -> PrintedRow:
    """Return a result, whose place in the JSON is stated, as a row."""
    cells = [str(result["redop"]), str(result["root"]).strip()]
    cells += _json_half(result["out_of_place"])
    cells += _json_half(result["in_place"])
    log.check(result["type"] in TYPE_BYTES, place, f"no type that is known: {result['type']!r}")
    num_bytes = str(whole("size", result["size"], 0))
    elements = str(whole("count", result["count"], 0))
    return PrintedRow(place, num_bytes, elements, result["type"], cells)


def _json_half(half: Any) -> list[str]:
    """Return time, algbw, busbw and number of wrong elements as words; "N/A" for what was not measured."""
    if not half:
        return ["N/A"] * 4
    time = "time" if "time" in half else "cpu_time"
    cells = [f"{half[key]:.6f}" for key in (time, "alg_bw", "bus_bw")]
    num_wrong = half.get("nwrong")
    cells.append("N/A" if num_wrong is None else f"{num_wrong:g}")
    return cells


def _json_ranks(config: Any) -> list[PrintedRank]:
    """Return all ranks; a process may have several GPUs, of which only the first is named."""
    num_threads = whole("nthreads", config.get("nthreads", 1), 1, MOST_CARDS)
    num_gpus = whole("ngpus", config.get("ngpus", 1), 1, MOST_CARDS)
    ranks_per_process = num_threads * num_gpus
    processes = config.get("devices", ())
    ranks: list[PrintedRank] = []
    for process in processes:
        for _ in range(ranks_per_process):
            ranks.append(PrintedRank(len(ranks), str(process["hostname"]), printable(process["device_info"])))
    return ranks


def _json_name(words: Sequence[str]) -> str:
    """Return the collective that a command line names; "" if none of its words does."""
    for word in words:
        name = _NAME.search(word)
        if name:
            return name[1]
    return ""


# ---- what the lines around a table state


def _facts(lines: Sequence[str]) -> RunFacts:
    """Return the facts about the run that the lines above and between the rows state."""
    # All patterns below need one of these words, and a search in the other lines of a long log would take long.
    text = "\n".join(line for line in lines if "NCCL" in line or "nccl" in line or "iters:" in line)
    repetitions = {}
    iterations = _ITERATIONS.search(text)
    if iterations:
        repetitions = {"warm_up": int(iterations[1]), "iterations": int(iterations[2])}
    tests_version = _TESTS_VERSION.search(text)
    # Each of these once, in the order of the log.
    ways = dict.fromkeys(_way(network, gpu_direct, path) for network, gpu_direct, path in _WAY.findall(text))
    variables = dict.fromkeys(f"{name}={value}" for name, value in _SET.findall(text))
    return RunFacts(
        gpu_software=_software_versions(text),
        network=", ".join(ways),
        environment=printable(command_words(list(variables))),
        repetitions=repetitions,
        tests_version=tests_version[1] if tests_version else "",
    )


def _software_versions(text: str) -> dict[str, str]:
    """Return the versions of NCCL and CUDA, as far as they are stated."""
    version = _NCCL_VERSION.search(text)
    if version:
        versions = {"nccl": version[1]}
        if version[2]:
            versions["cuda"] = version[2]
        return versions
    library = _LIBRARY.search(text)
    if library and int(library[1]):
        code = int(library[1])
        base = 10000 if code >= 20000 else 1000  # old: 2.7.8 is 2708; new: 2.29.2 is 22902
        return {"nccl": f"{code // base}.{code % base // 100}.{code % 100}"}
    return {}


def _way(network: str, gpu_direct: str, path: str) -> str:
    """Return how ranks communicate, from the groups of `_WAY`, of which one matched and the others are "".

    A network of NCCL's own is written as NET/ and its name.
    """
    name = printable(network).strip()
    if name in _BUILT_IN_NETWORKS:
        return f"NET/{name}"
    return name or gpu_direct or path


# ---- what they say together


def _halves(times: Times, table: Table) -> list[HalfRow]:
    """Return the halves of all rows, after checking that times and algbw agree."""
    log = times.log
    halves: list[HalfRow] = []
    for row in table.rows:
        for index in table.halves:
            time, algbw_words, busbw_words = row.cells[index : index + 3]
            if time == "N/A":
                continue
            seconds = log.number(row.line, time, least=1e-9) * 1e-6
            off_s = half_unit(time) * 1e-6
            algbw = log.number(row.line, algbw_words, least=0) * GB
            algbw_off = half_unit(algbw_words) * GB
            problem = f"{algbw_words} GB/s is not {row.num_bytes} bytes in {time} µs"
            fitting_s = times.fitting_s(row.line, seconds, off_s, float(row.num_bytes), algbw, algbw_off, problem)
            if "e" in time and algbw > 0:  # printed with two digits, as in 1.8e+07: narrowed by algbw
                seconds = fitting_s
            busbw = log.number(row.line, busbw_words, least=0) * GB
            in_place = index > table.halves[0]
            halves.append(HalfRow(row, in_place, seconds, algbw, algbw_off, busbw, half_unit(busbw_words) * GB))
    log.check(halves, table.header, "the table has no times")
    return halves


def _bytes_per_count(log: Log, table: Table) -> float:
    """Return the buffer size as a multiple of the counted elements: 1, or the number of ranks."""
    ratios: list[tuple[PrintedRow, float]] = []
    for row in table.rows:
        num_bytes = float(row.num_bytes)
        counted_bytes = float(row.elements) * TYPE_BYTES[row.dtype]
        if counted_bytes:
            ratios.append((row, num_bytes / counted_bytes))
        elif num_bytes:
            ratios.append((row, math.inf))  # which is wrong in every row
    ordered = sorted(ratio for _, ratio in ratios)
    usual = ordered[len(ordered) // 2] if ordered else 1.0  # the median, so that an error names the row that is off
    for row, ratio in ratios:
        is_right = ratio >= 1 and ratio.is_integer() and ratio == usual  # infinity is no integer
        log.check(is_right, row.line, f"{row.num_bytes} bytes are not {row.elements} elements")
    return usual


class _NumRanks(NamedTuple):
    """The number of ranks, and how it was found if the table does not list them."""

    number: int
    note: str = ""


def _num_ranks(
    times: Times, table: Table, halves: Sequence[HalfRow], collective: str, bytes_per_count: float
) -> _NumRanks:
    """Return the number of ranks. The ratio of busbw to algbw must fit it.

    The number that the caller states counts only for a table that has none. `bytes_per_count` is 1, or the number of
    ranks where a count is of one rank's part and the bytes are of all parts.
    """
    log = times.log
    stated = table.num_listed_ranks or log.num_ranks or 0  # 0: neither in the log nor by the caller
    fits_counts = bytes_per_count in (1, stated)
    if stated and fits_counts and _fit_ranks(halves, collective, stated):
        return _NumRanks(stated)
    derived = _derived_ranks(table, halves, collective, bytes_per_count)
    if derived is not None:
        return derived
    # No number fits exactly. Raise an error that says what contradicts the stated one, or use it if that is little.
    log.check(stated, table.header, "the number of ranks is not stated and does not follow from the bus bandwidths")
    first = halves[0].row
    problem = f"{first.num_bytes} bytes are not {first.elements} elements on {stated} ranks"
    log.check(fits_counts, first.line, problem)
    for half in halves:
        deviation = _busbw_deviation(half, collective, stated)
        slack = SLACK * half.busbw
        problem = f"bus bandwidths do not fit {stated} ranks"
        times.agree(half.row.line, deviation.distance, deviation.rounding, slack, problem)
    return _NumRanks(stated)


def _derived_ranks(
    table: Table, halves: Sequence[HalfRow], collective: str, bytes_per_count: float
) -> _NumRanks | None:
    """Return the number of ranks that follows from counts or bus bandwidths; None if none does, or it does not fit."""
    number = 0
    source = "bus bandwidths"
    if bytes_per_count > 1:
        number = int(bytes_per_count)
        source = "counts"
    elif collective == "allreduce":  # its count says nothing about the ranks, but its busbw does
        number = _exact_ranks(halves)
    if not number or not _fit_ranks(halves, collective, number):
        return None
    note = f"the number of ranks follows from {source}"
    if table.ranks:
        note += f"; {len(table.ranks)} of them are listed"
    return _NumRanks(number, note)


class _Deviation(NamedTuple):
    """How far a printed rate is from the expected one, and how far rounding may bring it, in bytes/s."""

    distance: float
    rounding: float


def _busbw_deviation(half: HalfRow, collective: str, num_ranks: int) -> _Deviation:
    """Return how far a printed busbw is from what the algbw implies."""
    # For sendrecv nccl-tests print the algbw again.
    factor = 1.0 if collective == "together" else busbw_factor(collective, num_ranks)
    return _Deviation(abs(half.busbw - factor * half.algbw), half.busbw_off + factor * half.algbw_off)


def _fit_ranks(halves: Sequence[HalfRow], collective: str, num_ranks: int) -> bool:
    """Return whether the busbw of every row belongs to so many ranks, except for rounding."""
    for half in halves:
        deviation = _busbw_deviation(half, collective, num_ranks)
        if deviation.distance > deviation.rounding * FLOAT_TOLERANCE:
            return False
    return True


def _exact_ranks(halves: Sequence[HalfRow]) -> int:
    """Return the number of ranks that the bus bandwidths of an allreduce imply; 0 if none or several fit.

    Each row bounds busbw / algbw, which is 2 (n - 1) / n, and so n = 2 / (2 - ratio).
    """
    low = 0.0  # bounds of the ratio, which is 0 for one rank and below 2 for any number
    high = 2.0
    for half in halves:
        if half.algbw > half.algbw_off:  # otherwise the algbw may be 0, and the ratio has no bound
            low = max(low, (half.busbw - half.busbw_off) / (half.algbw + half.algbw_off))
            high = min(high, (half.busbw + half.busbw_off) / (half.algbw - half.algbw_off))
    low /= FLOAT_TOLERANCE
    high *= FLOAT_TOLERANCE
    if low > high or high >= 2:  # no ratio fits every row, or any large number of ranks does
        return 0
    # A bound that is a whole number counts, also if the division has missed it by a rounding error.
    fewest = max(1, math.ceil(2 / (2 - low) - 1e-9))
    most = math.floor(2 / (2 - high) + 1e-9)
    return fewest if fewest == most else 0


def _profile(log: Log, table: Table) -> Profile:
    """Check a table and return its profile."""
    times = Times(log)
    facts = table.facts
    halves = _halves(times, table)
    bytes_per_count = _bytes_per_count(log, table)
    collective = _collective(log, table, bytes_per_count)
    ranks = _num_ranks(times, table, halves, collective, bytes_per_count)
    if not table.name:
        times.notes.append("the collective was inferred from the columns of the table")
    if ranks.note:
        times.notes.append(ranks.note)
    note = _average_note(times, table, halves)
    if note:
        times.notes.append(note)
    if ranks.number == 1:
        times.notes.append("one rank: no link was used")

    # A list in which ranks are missing says neither on how many nodes they are nor which GPU each has.
    listed = table.ranks if table.num_listed_ranks == ranks.number else []
    ranks_per_node = list(Counter(rank.host for rank in listed).values())  # in the order of their first ranks
    varying = _varying_columns(table)
    for half in halves:
        options = _options(collective, ranks.number, len(ranks_per_node))
        options["in_place"] = half.in_place
        options |= {name: values[half.row.line] for name, values in varying.items()}
        times.add(half.row.line, collective, int(half.row.num_bytes), half.seconds, options)

    how: dict[str, Any] = {"statistic": "mean", **facts.repetitions}
    num_wrong = _numbers_of_wrong(table)
    if num_wrong:
        how["verified"] = num_wrong == {"0"}
    if "dtype" not in varying:
        how["dtype"] = table.rows[0].dtype
    return times.profile(
        f"nccl-tests {facts.tests_version}".strip(),
        "nccl",
        ranks.number,
        how,
        collective,
        gpus=_gpus(listed, ranks.number, facts),
        num_nodes=len(ranks_per_node),
        ranks_per_node=ranks_per_node,
        network=facts.network,
        environment=facts.environment,
        date=facts.date,
    )


def _options(collective: str, num_ranks: int, num_nodes: int) -> dict[str, Any]:
    """Return the options that all points of a table share.

    For sendrecv, which a profile calls "together", this is the link, if all messages take the same one. For any other
    collective it is the algorithm.
    """
    if collective != "together":
        return {"algorithm": NATIVE}
    if num_ranks > 1 and num_nodes == 1:
        return {"link": "intra"}
    if num_ranks > 1 and num_nodes == num_ranks:
        return {"link": "inter"}
    return {}


def _gpus(listed: Sequence[PrintedRank], num_ranks: int, facts: RunFacts) -> list[dict[str, str]]:
    """Return what is known of the GPU of each rank: its name, if the log has it, and its software; empty if nothing."""
    if not listed:
        gpus = [facts.gpu_software] * min(num_ranks, MOST_CARDS)
    else:
        gpus = []
        for rank in listed:
            name = {"name": rank.card} if rank.card else {}
            gpus.append({**name, **facts.gpu_software})
    return gpus if any(gpus) else []


def _varying_columns(table: Table) -> dict[str, dict[Where, str]]:
    """Return the columns before the times, such as dtype and root, that differ between rows: their cells by line."""
    columns: dict[str, dict[Where, str]] = {"dtype": {row.line: row.dtype for row in table.rows}}
    for index, name in enumerate(table.columns[: table.halves[0]]):
        columns[name] = {row.line: row.cells[index] for row in table.rows}
    return {name: cells for name, cells in columns.items() if len(set(cells.values())) > 1}


def _numbers_of_wrong(table: Table) -> set[str]:
    """Return the different numbers of wrong elements that the rows state."""
    if "#wrong" not in table.columns:
        return set()
    numbers = {row.cells[index + 3] for row in table.rows for index in table.halves}  # behind time, algbw and busbw
    return numbers - {"N/A"}


def _average_note(times: Times, table: Table, halves: Sequence[HalfRow]) -> str:
    """Check the average below a table against its rows; return what is special about it, if anything."""
    if table.average is None:
        return "no average below the table: it may be cut"
    line, printed = table.average
    mean = sum(half.busbw for half in halves) / len(halves) / GB
    rounding_of_mean = sum(half.busbw_off for half in halves) / len(halves) / GB
    rounding = rounding_of_mean + half_unit(printed) + 1e-9  # the last for the sum of floats
    stated = times.log.number(line, printed)
    deviation = abs(mean - stated)
    if table.is_elided and deviation > TRUNCATED * rounding:
        return "an excerpt: the log's average covers more rows"
    problem = f"the average is {stated:g}, and that of the rows {mean:g}"
    times.agree(line, deviation, rounding, slack=0.0, problem=problem)  # no slack: it averages these very figures
    return ""


def _collective(log: Log, table: Table, bytes_per_count: float) -> str:
    """Return the collective: from its name, else from columns that only its program prints.

    Reductions have an operation. A reduce and a broadcast have a root. A count is of one rank's part, so that the bytes
    are a multiple of it, if each rank contributes or receives a part of the buffer.
    """
    if table.name:
        log.check(table.name in COLLECTIVE, table.header, f"unknown collective: {table.name!r}")
        return COLLECTIVE[table.name]
    first = dict(zip(table.columns, table.rows[0].cells, strict=True))
    has_root = first.get("root", "-1") not in ("-1", "")  # which are printed for a collective without a root
    if first.get("redop") in _SUMS:
        if has_root:
            return "reduce"
        return "allreduce" if bytes_per_count == 1 else "reduce_scatter"
    if has_root and bytes_per_count == 1:
        return "broadcast"
    is_clear = "root" not in table.columns and bytes_per_count > 1
    log.check(is_clear, table.header, "the collective of the table is not stated")
    # Versions that print a root print the same columns for an all-to-all and an allgather. The others print the
    # operation, a blank one, also for an all-to-all, but not for an allgather.
    return "all_to_all" if "redop" in table.columns else "allgather"
