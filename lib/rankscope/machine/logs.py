"""`read_log`: what others measured, read from what their programs printed."""

from __future__ import annotations

import gc
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np

from ..timeline.timeline import unpacked
from ..values.checks import count_of, one_of, printable, whole
from ..values.frozen import ReadOnly
from ..values.storage import StorageError, read_bytes
from .profile import NATIVE, Point, Profile, busbw_factor
from .provenance import command_words, difference, topology

GB = 10**9  # bytes of a copy whose size is not stated: its time is that of so many at the rate that is printed
SHARES = {"alltoall": "all_to_all", "reduce_scatter": "reduce_scatter", "all_gather": "allgather"}
COLLECTIVE = {
    "all_reduce": "allreduce",
    "allreduce": "allreduce",
    "allgather": "allgather",
    "sendrecv": "together",
} | SHARES
COLLECTIVE |= {name: name for name in ("all_to_all", "reduce", "broadcast", "scatter", "gather")}
COLLECTIVE |= {"_allgather_base": "allgather", "_reduce_scatter_base": "reduce_scatter"}
TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "byte", "bool"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "long"), 8),
}
SUMS = ("sum", "prod", "max", "min", "avg", "mulsum", "all")
_MORE = 1 + 1e-9  # of what is compared, for the rounding of floats
_MOST_CARDS = 4096
_OUT = {"algorithm": NATIVE, "in_place": False}
Where = int | str  # a line, or a place in JSON


class Row(NamedTuple):
    """One time that was printed: where, of what, and the options of its point."""

    line: Where
    what: str
    num_bytes: int
    seconds: float
    options: Mapping[str, Any]


_LINKS = re.compile(
    r"^\S*[ \t]*GPU0[ \t].*(?:\n\s*(?:GPU|NIC|mlx)\S*\s.*)+", re.MULTILINE
)  # what nvidia-smi topo -m prints


class Log:
    """The text of a log, line by line."""

    def __init__(self, path: str | os.PathLike[str], num_ranks: int | None) -> None:
        self.path, self.num_ranks = path, num_ranks
        self.name = printable(Path(path).name.split(".")[0])
        try:
            raw = read_bytes(path)
            self.raw = unpacked(raw) if raw[:2] == b"\x1f\x8b" else raw
        except (ValueError, EOFError) as error:
            raise StorageError(path, str(error)) from error
        text = self.raw.decode("utf-8", "replace")
        self.text = re.sub(r"\[\d+,\d+\]<std\w+>:", "", text) if "<std" in text else text
        self.lines = self.text.replace("\r\n", "\n").split("\n")
        links = _LINKS.search(self.text) if "GPU0" in self.text and "Affinity" in self.text else None
        self.topology = topology(links[0]) if links else ""

    def fail(self, line: Where, problem: object) -> NoReturn:
        """Raise the error that names a line, or a place in JSON."""
        raise StorageError(self.path, f"{f'line {line}' if isinstance(line, int) else line}: {problem}")

    def check(self, fits: object, line: Where, problem: str) -> None:
        if not fits:
            self.fail(line, problem)

    def number(self, line: Where, text: Any, least: float = -math.inf) -> float:
        """Return a number that was printed, finite and of at least so much."""
        try:
            found = float(text)
        except (TypeError, ValueError):
            found = math.nan
        self.check(
            math.isfinite(found) and found >= least, line, f"{text!r} must be a number{'' if least < 0 else ' above 0'}"
        )
        return found

    def json(self) -> Any:
        try:
            return json.loads(self.text)
        except json.JSONDecodeError as error:
            self.fail(error.lineno, f"not JSON, damaged or cut short: {error.msg}")
        except RecursionError:
            self.fail(1, "nested too deeply")

    def rows(self, pattern: str, mark: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield the lines that fit a pattern; a line with the mark in it that does not fit is refused."""
        fitting = re.compile(pattern)
        for line, text in enumerate(self.lines, 1):
            if re.search(mark, text):
                found = fitting.search(text)
                self.check(found, line, f"cut, or not as it is printed: {text.strip()[:80]!r}")
                assert found is not None
                yield line, found

    def table(self, *columns: str) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows of comma-separated values, which begin with a line of at least these columns."""
        names: list[str] = []
        for line, text in enumerate(self.lines, 1):
            cells = [cell.strip() for cell in text.split(",")]
            if set(columns) <= set(cells):
                names = cells
            elif names and text.strip():
                fits = len(cells) == len(names) and all(cells)
                self.check(fits, line, f"must have {count_of(len(names), 'value')}, got {text[:80]!r}")
                yield line, dict(zip(names, cells, strict=True))

    def profile(
        self,
        rows: Sequence[Row],
        program: str,
        backend: str,
        num_ranks: int,
        notes: Iterable[str] = (),
        protocol: Mapping[str, Any] | None = None,
        name: str = "",
        **said: Any,
    ) -> Profile:
        """Return the profile of these rows, and of the topology that the log has."""
        self.check(rows, len(self.lines), f"{program} printed no row above")
        source = {"program": printable(program)} | ({"notes": "; ".join(dict.fromkeys(notes))} if notes else {})
        said["topology"] = self.topology
        about = {key: value for key, value in said.items() if value}
        title = f"{self.name}{name and f', {name}'}"
        points = points_of(rows, self)
        return Profile(
            {"name": title, "backend": backend, "num_ranks": num_ranks, **about, "source": source},
            protocol or {},
            points,
        )


def points_of(rows: Iterable[Row], log: Log) -> tuple[Point, ...]:
    """Return the points of rows; those of one key are its iterations."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    options_of, keys = dict[int, int](), dict[Any, int]()  # the number of options, of which rows have many alike
    for row in rows:
        if (key := options_of.get(id(row.options))) is None:
            key = options_of[id(row.options)] = keys.setdefault(tuple(row.options.items()), len(keys))
        grouped.setdefault((row.what, row.num_bytes, key), []).append(row)
    points, checked = [], dict[tuple[str, int], Point]()
    for some in grouped.values():
        line, what, size, _, options = some[0]
        seconds = tuple([row.seconds for row in some])
        known = checked.get((what, id(options)))
        if known is not None and 1e-9 <= min(seconds) <= max(seconds) <= 1e6:
            points.append(known.like(size, seconds))
            continue
        try:
            points.append(Point(what, size, seconds, (True,) * len(some), options))
        except ValueError as error:
            log.fail(line, error)
        checked[what, id(options)] = points[-1]
    return tuple(points)


def half_unit(text: str) -> float:
    """Return by how much a printed number may be off, half of its last digit.

    >>> half_unit("0.48"), half_unit("92173"), half_unit("1.8e+07")
    (0.005, 0.5, 500000.0)
    """
    if "e" not in text:
        return _HALVES[len(text) - 1 - point] if (point := text.find(".")) >= 0 else 0.5
    mantissa, _, exponent = text.partition("e")
    return 0.5 * 10.0 ** (int(exponent) - len(mantissa.partition(".")[2]))


_HALVES = [0.5 * 10.0**-digits for digits in range(400)]


def between(seconds: float, off: float, num_bytes: float, rate: float, rate_off: float) -> float | None:
    """Return the time that fits both a printed time and a printed rate, None where none does."""
    low, high = num_bytes / (rate + rate_off), num_bytes / (rate - rate_off) if rate > rate_off else math.inf
    low, high = max(low / _MORE, seconds - off), min(high * _MORE, seconds + off)
    return None if low > high else min(max(num_bytes / rate if rate else seconds, low), high)


def copy(
    log: Log, line: Where, way: str, method: str, rate: float, size: int = 0, both: bool = False, **ends: Any
) -> Row:
    """Return the row of a copy of which the bytes per second were printed."""
    log.check(rate > 0, line, f"a bandwidth must be above 0, got {rate:g}")
    options = {"direction": way, "method": method, "pieces": 1, "both": both, **ends}
    return Row(
        line, "transfer", size or GB, (size or GB) / rate, options if size else {**options, "size": "not stated"}
    )


_SIZE_NOTE = "the size of a copy is not stated: times are those of 1 GB at the rate that is printed"
_SUM_NOTE = "of both ways at once the log has the sum, of which half is one way's"


# ---- nccl-tests and rccl-tests

_INFO = re.compile(r"(?:^\s*\S+|[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] .*?NCCL ")
_ROW = re.compile(rf"(?<![\w.])(\d+)[ \t]+(\d+)[ \t]+({'|'.join(TYPE_BYTES)})(?!\w)(.*)")
_RANK = re.compile(r"Rank +(\d+) (?:Group +\d+ )?Pid +\d+ on +(\S+) +device +\d+ \[[^\]]*\] *(.*)")
_NAME = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_FOOT = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_GOES_ON = re.compile(r"(?:\s*(?:[+-]?[\d.]+(?:[eE][+-]?\d+)?|N/A))+\s*")
_KIND, _WRONG = re.compile(r"[a-z]*|-?\d+"), ("#wrong", "error")


class Table:
    """A table of nccl-tests while it is read."""

    def __init__(self, header: Where, columns: Sequence[str], ranks: Sequence[tuple[int, str, str]], name: str) -> None:
        self.header, self.columns, self.ranks, self.name = (
            header,
            columns,
            ranks,
            name,
        )  # number, host and card of a rank
        self.times = [place for place, name in enumerate(columns) if name in ("time", "cputime")]
        self.rows: list[tuple[Where, str, str, str, list[str]]] = []  # line, size, count, type, the other cells
        self.footer: tuple[Where, str] | None = None
        self.is_elided = False
        self.said: dict[str, Any] = {}

    def cells(self, text: str) -> list[str]:
        """Return the cells after the type, one a column, fewer where some are missing."""
        cells = text.split()
        if "redop" in self.columns and not (cells and cells[0].isalpha()):
            cells.insert(0, "")
        return [*cells, "N/A"] if len(cells) == len(self.columns) - 1 and self.columns[-1] in _WRONG else cells


def nccl_tests(log: Log) -> list[Profile]:
    """Tables of nccl-tests and rccl-tests, as text or JSON (-J)."""
    tables = [nccl_json(log)] if log.text.lstrip().startswith("{") else nccl_text(log)
    return [nccl_profile(log, table) for table in tables if table.rows]


def nccl_text(log: Log) -> list[Table]:
    tables, ranks, name, first = list[Table](), list[tuple[int, str, str]](), "", 0
    table: Table | None = None
    pending: tuple[int, re.Match[str], str] | None = None  # a row that goes on below NCCL's lines

    def whole_rows() -> None:
        if pending:
            log.fail(pending[0], f"the row is cut: {pending[1][0].strip()[:80]!r}")

    for line, text in enumerate(log.lines, 1):
        if "NCCL " in text and (info := _INFO.search(text)):
            text = text[: info.start()]
        if not text or text.isspace():
            continue
        row = _ROW.search(text) if "#" not in text else None
        if row:
            whole_rows()
            text = row[4]
        elif pending and _GOES_ON.fullmatch(text):
            line, row, text = pending[0], pending[1], f"{pending[2]} {text}"
            pending = None
        if row:
            if table is None:
                log.fail(line, "a row of nccl-tests without a header above it, or after the end of its table")
            cells = table.cells(text)
            if len(cells) < len(table.columns):
                pending = line, row, text
            else:
                fits = len(cells) == len(table.columns) and all(map(_KIND.fullmatch, cells[: table.times[0]]))
                log.check(fits, line, f"its cells are not those of the columns: {row[0].strip()[:80]!r}")
                table.rows.append((line, row[1], row[2], row[3], cells))
        elif found := _RANK.search(text):
            if found[1] == "0" and ranks and ranks[0][0] == 0:  # of a run before, which printed no table
                ranks = []
            ranks.append((int(found[1]), found[2], printable(found[3].strip())))
        elif "busbw" in text and "algbw" in text:
            whole_rows()
            words = text[text.find("size") :].split()
            fits = words[:3] == ["size", "count", "type"] and not {"time", "cputime"}.isdisjoint(words)
            log.check(fits, line, f"the header must begin with size, count, type; got {text.strip()[:80]!r}")
            table = Table(line, words[3:], ranks, name)
            tables.append(table)
        elif foot := _FOOT.search(text):
            whole_rows()
            if table is None or not table.rows:
                log.fail(line, "an average without rows above it")
            table.footer, table.said = (line, foot[1]), nccl_said(log.lines[first:line])
            table, ranks, name, first = None, [], "", line
        elif table is not None and text.strip() in ("...", "…"):
            table.is_elided = True
        elif named := _NAME.search(text):
            name = named[1]
    whole_rows()
    for one in tables:
        one.said = one.said or nccl_said(log.lines[first:])
    return tables


def nccl_json(log: Log) -> Table:
    """What nccl-tests writes with -J; a process may have several GPUs, of which it names the first."""
    found = log.json()
    half_columns = ("time", "algbw", "busbw", "#wrong")
    table = Table(1, ("redop", "root", *half_columns, *half_columns), [], "")
    try:
        config = found.get("config", {})
        for place, one in enumerate(found["results"]):
            cells = [str(one["redop"]), str(one["root"]).strip()]
            for half in (one["out_of_place"], one["in_place"]):
                keys = ("time" if "time" in half else "cpu_time", "alg_bw", "bus_bw") if half else ()
                wrong = half.get("nwrong") if half else None
                cells += [
                    *(f"{half[key]:.6f}" for key in keys),
                    *["N/A"] * (3 - len(keys)),
                    "N/A" if wrong is None else f"{wrong:g}",
                ]
            log.check(one["type"] in TYPE_BYTES, f"results[{place}]", f"no type that is known: {one['type']!r}")
            row = (
                f"results[{place}]",
                str(whole("size", one["size"], 0)),
                str(whole("count", one["count"], 0)),
                one["type"],
            )
            table.rows.append((*row, cells))
        each = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
        devices = [one for one in config.get("devices", ()) for _ in range(each)]
        table.ranks = [(rank, str(one["hostname"]), printable(one["device_info"])) for rank, one in enumerate(devices)]
        if "average_bus_bandwidth" in found:
            table.footer = "average_bus_bandwidth", f"{found['average_bus_bandwidth']['bandwidth']:.6f}"
        table.name = next((name[1] for word in found.get("args", ()) if (name := _NAME.search(word))), "")
        table.said = nccl_said([*found.get("env", ()), f"nccl-library={found.get('nccl_version', '')}"])
        protocol = {"warm_up": config.get("warmup_iters"), "iterations": config.get("iterations")}
        table.said["protocol"] = {key: value for key, value in protocol.items() if value is not None}
        table.said["date"] = found.get("start_time", "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.fail(f"results[{len(table.rows)}]", f"not what nccl-tests writes: {error}")
    return table


_SET = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?: set by environment to |=)([^\s;,]+)")
_WAY = re.compile(r"Using network (\w[^\n]*)|(GPU Direct RDMA (?:En|Dis)abled)|via (P2P|SHM|NET/\w+)")


def nccl_said(lines: Sequence[str]) -> dict[str, Any]:
    """Return what the lines above and between rows say of the run."""
    text = "\n".join(line for line in lines if "NCCL" in line or "nccl" in line or "iters:" in line)
    version = re.search(r"NCCL version (\d+(?:\.\d+)*)(?:\+cuda([\d.]+))?", text)
    library, tests = re.search(r"nccl-library=(\d+)", text), re.search(r"nccl-tests version (\S+)", text)
    run = re.search(r"warmup iters: (\d+) iters: (\d+)", text)
    code, nccl = int(library[1]) if library else 0, version[1] if version else ""
    if code and not nccl:
        base = 10000 if code >= 20000 else 1000
        nccl = f"{code // base}.{code % base // 100}.{code % 100}"
    ways = dict.fromkeys(printable(next(filter(None, found)).strip()) for found in _WAY.findall(text))
    variables = dict.fromkeys(f"{name}={value}" for name, value in _SET.findall(text))
    return {
        "card": {"nccl": nccl} | ({"cuda": version[2]} if version and version[2] else {}) if nccl else {},
        "network": ", ".join(ways),
        "environment": printable(command_words(list(variables))),
        "protocol": {"warm_up": int(run[1]), "iterations": int(run[2])} if run else {},
        "tests": tests[1] if tests else "",
    }


def nccl_profile(log: Log, table: Table) -> Profile:
    """Check a table and return its profile."""
    places = list(enumerate(table.times))
    halves = [(row, half, row[4][at : at + 3]) for row in table.rows for half, at in places if row[4][at] != "N/A"]
    log.check(halves, table.header, "the table has no times")
    try:
        printed = np.array([[float(text) for text in texts] for *_, texts in halves]).T
    except ValueError:
        printed = np.array([[log.number(row[0], text) for text in texts] for row, _, texts in halves]).T
    units = np.array([[1e-6], [1e9], [1e9]])
    time_s, alg, bus = printed * units
    time_off, alg_off, bus_off = np.array([[half_unit(text) for text in texts] for *_, texts in halves]).T * units
    size = np.array([float(row[1]) for row, *_ in halves])

    def check(fits: Any, problem: str, number: object = "") -> None:
        if not fits.all():
            row, _, (time, rate, busbw) = halves[int(np.argmin(fits))]
            words = {"size": row[1], "count": row[2], "time": time, "alg": rate, "bus": busbw, "number": number}
            log.fail(row[0], problem.format(**words))

    check(np.isfinite(printed).all(axis=0) & (time_s > 0), "{time}, {alg}, {bus} must be a time and two bandwidths")
    most = np.divide(size, time_s - time_off, out=np.where(size > 0, np.inf, 0.0), where=time_s > time_off)
    least = size / (time_s + time_off)
    fits = (least <= (alg + alg_off) * _MORE) & (alg - alg_off <= most * _MORE)
    check(fits, "{alg} GB/s is not {size} bytes in {time} µs")
    least, most = np.maximum(least, alg - alg_off), np.minimum(most, alg + alg_off)

    counted = np.array([float(row[2]) * TYPE_BYTES[row[3]] for row, *_ in halves])
    times = np.divide(size, counted, out=np.where(size > 0, -1.0, np.nan), where=counted > 0)
    known = np.sort(times)  # what is not a number comes last
    per_count = float(known[np.count_nonzero(~np.isnan(known)) // 2]) if not np.isnan(known[0]) else 1.0
    check(np.isnan(times) | (times == per_count), "{size} bytes are not {count} elements")
    what = nccl_collective(log, table, per_count)

    def fit(number: int) -> Any:
        share = 1.0 if what == "together" else busbw_factor(what, number)
        return (share * least <= (bus + bus_off) * _MORE) & (bus - bus_off <= share * most * _MORE)

    notes = [] if table.name else ["the collective follows from the columns of the table"]
    is_all = [number for number, *_ in table.ranks] == list(range(len(table.ranks)))
    stated = len(table.ranks) if is_all else 0
    number = log.num_ranks or stated
    log.check(stated in (0, number), table.header, f"the table lists {stated} ranks, not {number}")
    if not number or (per_count > 1 and number != per_count) or not fit(number).all():
        exact = (
            int(per_count) if per_count > 1 else exact_ranks(least, most, bus, bus_off) if what == "allreduce" else 0
        )
        if not exact or not fit(exact).all():
            log.check(number, table.header, "the number of ranks is not stated, and bus bandwidths do not tell it")
            check(fit(number), "{bus} GB/s does not fit {alg} GB/s on {number} ranks", number)
            check(size < 0, "{size} bytes are not {count} elements on {number} ranks", number)
        log.check(not log.num_ranks, table.header, f"the table is of {exact} ranks, not of {log.num_ranks}")
        listed = f"; {len(table.ranks)} of them are listed" if table.ranks else ""
        notes.append(f"the number of ranks follows from {'counts' if per_count > 1 else 'bus bandwidths'}{listed}")
        number = exact
    if table.footer:
        mean, foot = float(bus.mean()) / 1e9, log.number(*table.footer)
        if abs(mean - foot) > float(bus_off.mean()) / 1e9 + half_unit(table.footer[1]) + 1e-9:
            log.check(table.is_elided, table.footer[0], f"the average is {foot:g}, and that of the rows {mean:g}")
            notes.append("an excerpt: the log's average is of more rows")
    else:
        notes.append("no average below the table: it may be cut")
    notes += ["one rank: no link was used"] if number == 1 else []

    ranks = table.ranks if stated == number else []
    hosts = [host for _, host, _ in ranks]
    nodes = [hosts.count(host) for host in dict.fromkeys(hosts)]
    kinds = [(row[3], *row[4][: table.times[0]]) for row in table.rows]
    varying = [at for at, some in enumerate(zip(*kinds, strict=True)) if len(set(some)) > 1]
    names = ("dtype", *table.columns[: table.times[0]])
    link = {1: "intra", number: "inter"}.get(len(nodes)) if number > 1 else None
    plain = {"algorithm": NATIVE} if what != "together" else {"link": link} if link else {}
    made: dict[tuple[Any, ...], ReadOnly] = {}
    rows = []
    for at, ((line, num_bytes, _, dtype, cells), half, texts) in enumerate(halves):
        key = half, *[(dtype, *cells)[place] for place in varying]
        if key not in made:
            more = {names[place]: word for place, word in zip(varying, key[1:], strict=True)}
            made[key] = ReadOnly({**plain, "in_place": half == 1, **more})
        seconds = float(time_s[at])
        if "e" in texts[0] and alg[at] > 0:
            seconds = between(seconds, time_off[at], size[at], alg[at], alg_off[at]) or seconds
        rows.append(Row(line, what, int(num_bytes), seconds, made[key]))

    card, tests, run = (table.said.pop(name) for name in ("card", "tests", "protocol"))
    cards = [({"name": name} if name else {}) | card for *_, name in ranks] or [card] * min(number, _MOST_CARDS)
    wrong = {row[4][at + 3] for row in table.rows for at in table.times if "#wrong" in table.columns} - {"N/A"}
    dtypes = {dtype for dtype, *_ in kinds}
    protocol = {"statistic": "mean", **run} | ({"verified": wrong == {"0"}} if wrong else {})
    protocol |= {"dtype": dtypes.pop()} if len(dtypes) == 1 else {}
    said: dict[str, Any] = {
        "gpus": cards if any(cards) else [],
        "num_nodes": len(nodes),
        "ranks_per_node": nodes,
        **table.said,
    }
    return log.profile(rows, f"nccl-tests {tests}".strip(), "nccl", number, notes, protocol, what, **said)


def nccl_collective(log: Log, table: Table, per_count: float) -> str:
    """Return the collective: by its name, else by what only its program prints."""
    if table.name:
        log.check(table.name in COLLECTIVE, table.header, f"no collective that is known: {table.name!r}")
        return COLLECTIVE[table.name]
    first = dict(zip(table.columns, table.rows[0][4], strict=False))
    rooted = first.get("root", "-1") not in ("-1", "")
    if first.get("redop") in SUMS:
        return "reduce" if rooted else "allreduce" if per_count == 1 else "reduce_scatter"
    if rooted and per_count == 1:
        return "broadcast"
    is_told = "root" not in table.columns and per_count > 1
    log.check(is_told, table.header, "it is not said of which collective the table is")
    return "all_to_all" if "redop" in table.columns else "allgather"


def exact_ranks(least: Any, most: Any, bus: Any, bus_off: Any) -> int:
    """Return the only number of ranks that the bus bandwidths of an allreduce leave, 0 where they leave several."""
    used = least > 0
    low = float(np.max((bus - bus_off)[used] / most[used], initial=0.0)) / _MORE
    high = float(np.min((bus + bus_off)[used] / least[used], initial=2.0)) * _MORE
    if not low <= high < 2:
        return 0
    few, many = max(1, math.ceil(2 / (2 - low) - 1e-9)), math.floor(2 / (2 - high) + 1e-9)
    return few if few == many else 0


# ---- collectives of other programs


def aiconfigurator(log: Log) -> list[Profile]:
    """Tables of nccl-tests as NVIDIA's AIConfigurator keeps them: sizes in elements, milliseconds, out of place."""
    found: dict[tuple[str, ...], list[Row]] = {}
    columns = ("version", "device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    for line, cell in log.table(*columns):
        version, device, name, dtype, gpus, elements, latency = (cell[column] for column in columns)
        fits = name in COLLECTIVE and dtype in TYPE_BYTES and gpus.isdigit() and 0 < int(gpus) <= _MOST_CARDS
        log.check(
            fits and elements.isdigit(),
            line,
            f"no collective, type, GPUs and elements: {name}, {dtype}, {gpus}, {elements}",
        )
        row = Row(line, COLLECTIVE[name], int(elements) * TYPE_BYTES[dtype], log.number(line, latency) / 1e3, _OUT)
        found.setdefault((gpus, dtype, printable(device), printable(version)), []).append(row)
    profiles = []
    for (gpus, dtype, device, version), rows in found.items():
        how, cards = {"dtype": dtype, "statistic": "mean"}, [{"name": device, "nccl": version}] * int(gpus)
        title = f"{gpus} GPUs, {dtype}"
        profiles.append(log.profile(rows, "aiconfigurator", "nccl", int(gpus), (), how, title, gpus=cards, num_nodes=1))
    return profiles


_OSU = {  # words of a title: what is timed, and whether its size is one rank's share
    "all-to-all personalized": ("all_to_all", True),
    **{name: (name, name == "allgather") for name in ("allreduce", "allgather", "reduce_scatter", "broadcast")},
    **{name: (name, name != "reduce") for name in ("scatter", "gather", "reduce")},
    "bandwidth": ("transfer", False),
    "latency": ("ping_pong", False),
}
_RUN = (r"(?:-N|--nodes[= ]) ?(\d+)", r"--ntasks-per-node[= ](\d+)", r"(?:-n|-np|--ntasks[= ]) ?(\d+)\b")


def osu(log: Log) -> list[Profile]:
    """OSU's micro-benchmarks: latencies in µs, bandwidths in MB/s (10⁶), between two ranks, pairs or all of them."""
    starts = [line for line, text in enumerate(log.lines, 1) if "# OSU " in text]
    return [osu_table(log, start, end) for start, end in zip(starts, [*starts[1:], len(log.lines) + 1], strict=True)]


def osu_table(log: Log, start: int, end: int) -> Profile:
    title = log.lines[start - 1].partition("# OSU ")[2].strip()
    what, is_share = next((found for word, found in _OSU.items() if word in title.lower()), ("", False))
    log.check(what, start, f"no benchmark of OSU's that is known: {title!r}")
    text = "\n".join(log.lines[start - 1 : end - 1])
    on_gpu = bool(re.search(r"MPI-(?:CUDA|ROCM) |on DEVICE \(D\) and", text))
    named = re.search(r"pairs: (\d+)", text)
    above = "\n".join(log.lines[max(0, start - 8) : start - 1])
    run = above if re.search(r"srun|mpirun|mpiexec", above) else ""
    nodes, each, ranks = (int(found[1]) if (found := re.search(how, run)) else 0 for how in _RUN)
    nodes = nodes if "srun" in run else 0  # of mpirun, -N is another thing
    pairs, notes = int(named[1]) if named else 1, list[str]()
    log.check(pairs, start, "there must be a pair of ranks")
    number = log.num_ranks or ranks or nodes * each
    if what in ("transfer", "ping_pong"):
        number = 2 * pairs
        notes += ["the number of pairs is not stated: ranks are those of one"] if "Multi" in title and not named else []
    log.check(number, start, "the number of ranks is not stated")
    both, link = "Bi-Directional" in title, {1: "intra", number: "inter"}.get(nodes)
    more: dict[str, Any] = ({"pairs": pairs} if pairs > 1 else {}) | ({"link": link} if link else {})
    columns, rows, last = list[str](), list[Row](), -1
    for line, row in enumerate(log.lines[start : end - 1], start + 1):
        if re.match(r"\s*# *Size\b", row):
            columns = re.split(r"\s{2,}", row.strip("# "))
            fits = len(columns) > 1 and bool(re.search(r"\(us\)|MB/s", columns[1]))
            log.check(fits, line, f"the header must have sizes and µs or MB/s, got {row.strip()[:80]!r}")
        elif re.match(r"\s*\d+\s+[\d.]+(\s|$)", row):
            log.check(columns, line, "a row above the header of its table")
            words = f"must be a larger size with {', '.join(columns[1:])}; got {row.strip()[:80]!r}"
            cells = row.split()
            log.check(len(cells) == len(columns) and int(cells[0]) > last, line, words)
            values = {
                name: log.number(line, cell, 0) for name, cell in zip(columns, cells, strict=True) if cell != "Pass"
            }
            size = last = int(cells[0])
            value = values[columns[1]]
            low, high = (next((values[name] for name in values if word in name), value) for word in ("Min", "Max"))
            log.check(value and low <= value <= high, line, f"must be above 0, between least and most: {row.strip()!r}")
            if "Messages/s" in values:
                off = half_unit(cells[1]) * 1e6 / size + half_unit(cells[2])
                fits = abs(value * 1e6 / size - values["Messages/s"]) <= off * _MORE
                log.check(fits, line, f"{cells[1]} MB/s are not {cells[2]} messages of {size} bytes")
            if what == "transfer":
                rate = value * 1e6 / pairs / (1 + both)
                rows.append(copy(log, line, "p2p" if on_gpu else "h2h", "mpi", rate, size, both, **more))
            else:
                options = more if what == "ping_pong" else _OUT
                rows.append(Row(line, what, size * number if is_share else size, value / 1e6, options))
    log.check(columns, start, "the table has no header with sizes and µs or MB/s")
    how = {"statistic": "mean"} | ({"verified": True} if "Validation" in columns else {})
    said: dict[str, Any] = {"num_nodes": nodes, "device": "cuda" if on_gpu else ""}
    return log.profile(rows, f"OSU {title}", "mpi", number, notes, how, what, **said)


def all_reduce_bench(log: Log) -> list[Profile]:
    """all_reduce_bench.py, which runs NCCL: its tables (1 KiB is 1024 bytes), or of old the trials of each rank."""
    found = re.search(r"over (\d+) ranks \((\d+) warmups / (\d+) trials", log.text)
    is_old = "algo throughput" in log.text
    rows, number = bench_trials(log) if is_old else bench_table(log, log.num_ranks or (int(found[1]) if found else 0))
    how: dict[str, Any] = {"statistic": "each rank's time of each trial" if is_old else "mean", "dtype": "float32"}
    how |= {"warm_up": int(found[2]), "iterations": int(found[3])} if found else {}
    return [log.profile(rows, "all_reduce_bench", "nccl", number, (), how, "allreduce")]


def bench_trials(log: Log) -> tuple[list[Row], int]:
    """Each time that a rank printed, and how many ranks there are; lines of several ranks may be mixed."""
    labels = {int(text.strip()[:-1]) for text in log.lines if re.fullmatch(r"\s*\d{1,7}:\s*", text)}
    number, size, options, rows = len(labels), 0.0, _OUT | {"in_place": True}, list[Row]()
    log.check(
        labels == set(range(number)), len(log.lines), f"trials are missing: of ranks there are {sorted(labels)[:20]}"
    )
    waiting: dict[str, list[tuple[int, str]]] = {"duration": [], "busbw": []}  # for what fits them further below

    def settle(line: int, kind: str, figure: float) -> None:
        fits = [one for one in waiting[kind] if abs(float(one[1]) - figure) <= half_unit(one[1]) * _MORE]
        log.check(fits, line, f"it does not fit {size:g} GB, {number} ranks and a {kind} above")
        waiting[kind].remove(fits[0])

    for line, text in enumerate(log.lines, 1):
        if (found := re.search(r"(data size|duration|algo throughput|busbw): ([\d.]+)", text)) is None:
            continue
        value = log.number(line, found[2], 1e-9)
        if found[1] == "data size":
            log.check(size in (0.0, value), line, f"the trials must be of one size, got {value:g} and {size:g} GB")
            size = value
        elif found[1] == "duration":
            waiting["duration"].append((line, found[2]))
        elif found[1] == "algo throughput":  # in bits, of those sent and those received
            seconds = 2 * 8 * size * GB / value
            settle(line, "duration", seconds)
            waiting["busbw"].append((line, f"{value * (number - 1) / number / 1e9:.4f}"))
            rows.append(Row(line, "allreduce", round(size * GB), seconds, options))
        else:
            settle(line, "busbw", value)
    left = [*waiting["duration"], *waiting["busbw"]]
    log.check(not left and not len(rows) % number, left[0][0] if left else len(log.lines), "a trial of a rank is cut")
    return rows, number


def bench_table(log: Log, number: int) -> tuple[list[Row], int]:
    rows = []
    for line, found in log.rows(
        r"\|\s*([\d._]+)\s*([KMGT]?)i?B?\s*\|\s*([\d.]+) ?GBps\s*\|\s*([\d.]+) ?GBps\s*\|", r"GBps \|"
    ):
        log.check(number, line, "the number of ranks is not stated")
        size = log.number(line, found[1].replace("_", "")) * 1024 ** " KMGT".index(found[2] or " ")
        bus, alg, share = (
            log.number(line, found[3]),
            log.number(line, found[4], 1e-9),
            busbw_factor("allreduce", number),
        )
        fits = abs(alg * share - bus) <= (half_unit(found[4]) * share + half_unit(found[3])) * _MORE
        log.check(fits, line, f"busbw {found[3]} does not fit algbw {found[4]} on {number} ranks")
        rows.append(Row(line, "allreduce", round(size), size / (alg * GB), _OUT | {"in_place": True}))
    return rows, number


def pairs(log: Log) -> list[Profile]:
    """A table of nccl-tests between every two nodes of a fleet, one size a pair, out of place."""
    found: dict[tuple[str, int], list[Row]] = {}
    columns = (
        "cluster",
        "gpus_per_node",
        "node_a",
        "node_b",
        "collective",
        "size_bytes",
        "time_oop_us",
        "busbw_oop_GBps",
    )
    for line, cell in log.table(*columns):
        cluster, gpus, src, dst, name, size, time, bus = (cell[column] for column in columns)
        fits = name in COLLECTIVE and gpus.isdigit() and 0 < int(gpus) <= _MOST_CARDS and size.isdigit()
        log.check(fits, line, f"no collective, GPUs and size: {name}, {gpus}, {size}")
        what, taken = COLLECTIVE[name], log.number(line, time, 1e-9)
        scale = GB / (1.0 if what == "together" else busbw_factor(what, 2 * int(gpus)))
        off = 0.05 * 10 ** math.floor(math.log10(taken)) if taken >= 1e7 else half_unit(time.removesuffix(".0"))
        seconds = between(
            taken / 1e6, off / 1e6, int(size), log.number(line, bus, 1e-9) * scale, half_unit(bus) * scale
        )
        log.check(seconds, line, f"{bus} GB/s does not fit {size} bytes in {time} µs on {2 * int(gpus)} ranks")
        assert seconds is not None
        kind = {"link": "inter"} if what == "together" else {"algorithm": NATIVE}
        options = {**kind, "in_place": False, "src": src, "dst": dst}
        row = Row(line, what, int(size), seconds if taken >= 1e7 else taken / 1e6, options)
        found.setdefault((cluster, int(gpus)), []).append(row)
    profiles = []
    for (cluster, each), rows in found.items():
        title, how = f"{cluster}, pairs of {count_of(each, 'GPU')}", {"statistic": "mean"}
        profiles.append(log.profile(rows, "nccl-tests", "nccl", 2 * each, (), how, title, ranks_per_node=[each, each]))
    return profiles


# ---- copies


def bandwidth_test(log: Log) -> list[Profile]:
    """CUDA's bandwidthTest: shmoo, quick or CSV; its MB/s are of 2²⁰ bytes, its GB/s of 10⁹."""
    shmoo = r"-(H2D|D2H|D2D)(?:-(Pinned|Paged))?, Bandwidth = ([\d.]+) ([GM])B/s, Time = ([\d.]+) s, Size = (\d+) bytes"
    cards = [{"name": printable(name.strip())} for name in re.findall(r"Device \d+: (.+)", log.text)]
    units, rows = {"M": 2**20, "G": GB}, list[Row]()
    for line, found in log.rows(shmoo, "bandwidthTest-"):
        way, memory, rate, unit, time, size = found.groups()
        value, off = log.number(line, rate, 1e-9) * units[unit], half_unit(rate) * units[unit]
        seconds = between(log.number(line, time), half_unit(time), int(size), value, off)
        log.check(seconds, line, f"{rate} {unit}B/s is not {size} bytes in {time} s")
        method = {"Pinned": "pinned", "Paged": "pageable"}.get(memory, "device")
        rows.append(copy(log, line, way.lower(), method, int(size) / (seconds or 1.0), int(size)))
    way = memory = unit = ""
    for line, text in enumerate(log.lines, 1):
        if title := re.search(
            r"(Host|Device) to (Host|Device) Bandwidth,|(PINNED|PAGEABLE) Memory|Bandwidth\(([GM])B/s\)", text
        ):
            way = f"{title[1][0]}2{title[2][0]}".lower() if title[1] else way
            memory, unit = title[3] or memory, title[4] or ("" if title[1] else unit)
        elif way and re.match(r"\s*\d+\s+\d", text):
            cells = text.split()
            fits = len(cells) == 2 and unit and memory and cells[0].isdigit()
            log.check(fits, line, f"must be a size and a bandwidth below their header; got {text.strip()[:80]!r}")
            method = "device" if way == "d2d" else memory.lower()
            rows.append(copy(log, line, way, method, log.number(line, cells[1]) * units[unit], int(cells[0])))
    twice = "a copy on the GPU counts twice in bandwidthTest, for reading and writing; times are size / bandwidth"
    notes = [twice] if any(row.options["direction"] == "d2d" for row in rows) else []
    number = max(1, len(cards))
    return [log.profile(rows, "bandwidthTest", "cuda", number, notes, {"statistic": "mean"}, gpus=cards, num_nodes=1)]


def hip_bus_bandwidth(log: Log) -> list[Profile]:
    """hipBusBandwidth: medians in GB/s, which count whole thousands of bytes, and in ms, which must agree."""
    figures = 5 * r"\s+([\d.]+)"
    row = rf"([HD]2[HD])_(Bandwidth|Time)_?(pinned|pageable|unpinned)\s+\+?(\d+)(By|kB|MB)\s+(?:GB/sec|ms){figures}\s*$"
    rates: dict[tuple[str, ...], tuple[float, float]] = {}
    rows = []
    for line, found in log.rows(row, "[HD]2[HD]_(Bandwidth|Time)"):
        key, median = (found[1], found[3], found[4], found[5]), log.number(line, found[6])
        fits = log.number(line, found[9]) <= median <= log.number(line, found[10])
        log.check(fits, line, f"the median must be between least and most, got {found[0].strip()!r}")
        if found[2] == "Bandwidth":
            rates[key] = median * GB, half_unit(found[6]) * GB
            continue
        log.check(key in rates, line, "a time without its bandwidth above")
        size, (rate, off) = int(found[4]) * {"By": 1, "kB": 1024, "MB": 2**20}[found[5]], rates.pop(key)
        counted = size // 1000 * 1000
        fits = between(median / 1e3, half_unit(found[6]) / 1e3, counted, rate, off) is not None if counted else not rate
        log.check(fits and median, line, f"{found[6]} ms are not {size} bytes at {rate / GB:g} GB/s")
        method = "pinned" if found[3] == "pinned" else "pageable"
        rows.append(copy(log, line, found[1].lower(), method, size * 1e3 / median, size))
    log.check(not rates, len(log.lines), f"no time for {count_of(len(rates), 'bandwidth')}: the log is cut")
    card = re.search(r"Device:(.+?) Mem=", log.text)
    said: dict[str, Any] = {"gpus": [{"name": printable(card[1].strip())}]} if card else {}
    return [log.profile(rows, "hipBusBandwidth", "hip", 1, (), {"statistic": "median"}, num_nodes=1, **said)]


Cells = Mapping[tuple[int, int], tuple[Where, str]]  # of a matrix by row and column: where it stands, what is printed


def matrix(log: Log, line: int, square: bool) -> tuple[Cells, int]:
    """Return the cells of a matrix whose title is on that line, and the line of its last row."""
    below = [at for at in range(line + 1, len(log.lines) + 1) if log.lines[at - 1].strip()]
    columns = [word for word in log.lines[below[0] - 1].split() if word.isdigit()] if below else []
    log.check(columns, line, "a matrix without columns below its title")
    cells, names = dict[tuple[int, int], tuple[Where, str]](), columns if square else ["0"]
    log.check(len(below) > len(names), line, "the matrix is cut")
    for name, at in zip(names, below[1:], strict=False):
        words = log.lines[at - 1].split()
        fits = words[0] == name and len(words) == len(columns) + 1
        log.check(fits, at, f"must be row {name} of {len(columns)} columns, got {' '.join(words)[:80]!r}")
        cells |= {(int(name), int(column)): (at, word) for column, word in zip(columns, words[1:], strict=True)}
    return cells, below[len(names)]


_MEMCPY = re.compile(r"(host_to_device|device_to_host|device_to_device)(_bidirectional)?_memcpy(_read|_write)?_(ce|sm)")


def nv_rows(log: Log, test: str, how: str, cells: Cells, total: Any) -> list[Row]:
    """The rows of a test of nvbandwidth; where several copies go at once, the method is the test's name."""
    found, rows, on_gpus = _MEMCPY.fullmatch(test), list[Row](), "GPU(row)" in how
    printed = [(line, text) for line, text in cells.values() if text != "N/A"]
    if total is not None:
        off = abs(sum(log.number(*one) for one in printed) - log.number(test, total))
        fits = off <= sum(half_unit(text) for _, text in printed) + half_unit(f"{total}"[:9])
        log.check(fits, printed[0][0] if printed else test, f"the cells of {test} do not have the sum {total}")
    for (row, column), (line, text) in cells.items() if "(ns)" not in how else ():
        if text == "N/A" or (on_gpus and row == column):
            continue
        src, dst = (column, row) if "<- " in how else (row, column)
        way = "p2p" if on_gpus else "d2h" if test.startswith(("device_to_host", "all_to_host")) else "h2d"
        words = [(found[3] or "")[1:], "sm" * (found[4] == "sm")] if found else [test]
        method = " ".join(filter(None, words)) or ("device" if on_gpus else "pinned")
        ends = {"src": src, "dst": dst} if on_gpus else {"gpu": column}
        if test == "device_local_copy":
            way, method = "d2d", "device"
        rows.append(copy(log, line, way, method, log.number(line, text) * GB, both=bool(found and found[2]), **ends))
    return rows


def nvbandwidth(log: Log) -> list[Profile]:
    """nvbandwidth's text or JSON: GB/s of each GPU, or from each to each, of buffers whose size it does not print."""
    tests: list[tuple[str, str, Cells, Any]] = []
    if log.text.lstrip().startswith("{"):
        try:
            found = log.json()["nvbandwidth"]
            version, driver = str(found.get("git_version", "")), str(found.get("Driver Version", ""))
            names = [one.split(": ", 1)[1].rsplit(" (", 2)[0] for one in found.get("GPU Device list", ())]
            for one in found["testcases"]:
                table = list(enumerate(one.get("bandwidth_matrix", ())))
                cells: Cells = {
                    (row, at): (one["name"], str(text)) for row, some in table for at, text in enumerate(some)
                }
                if cells:
                    tests.append((one["name"], one["bandwidth_description"], cells, one.get("sum")))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            log.fail(1, f"not what nvbandwidth writes: {error!r}")
    else:
        version, driver = (
            (re.findall(how, log.text) or [""])[0] for how in (r"dth Version: (\S+)", r"Driver Version: ([\d.]+)")
        )
        names, test = re.findall(r"^\s*(?:Device|GPU) \d+: (.+?) \(", log.text, re.M), ""
        for line, text in enumerate(log.lines, 1):
            if running := re.match(r"\s*Running (\w+)\.", text):
                test = running[1]
            elif re.search(r"[CG]PU\((?:row|column)\)", text):
                log.check(test, line, "a matrix without the name of its test above")
                cells, last = matrix(log, line, "GPU(row)" in text)
                total = re.match(rf"\s*SUM {test} ([\d.]+)", "\n".join(log.lines[last : last + 2]))
                tests.append((test, text, cells, total[1] if total else None))
                test = ""
    made = {test: nv_rows(log, test, how, cells, total) for test, how, cells, total in tests}
    rows = [row for some in made.values() for row in some]
    left_out = ", ".join(test for test, some in made.items() if not some)
    notes = [_SIZE_NOTE, *([f"left out, being no copies: {left_out}"] if left_out else [])]
    number = max((column + 1 for _, _, cells, _ in tests for _, column in cells), default=1)
    cards = [{"name": printable(name)} | ({"driver": printable(driver)} if driver else {}) for name in names]
    said: dict[str, Any] = {"gpus": cards if len(cards) == number else [], "num_nodes": 1}
    return [log.profile(rows, f"nvbandwidth {version}".strip(), "cuda", number, notes, **said)]


def p2p_test(log: Log) -> list[Profile]:
    """CUDA's p2pBandwidthLatencyTest: GB/s from GPU to GPU; of both ways at once it prints the sum."""
    cards = [{"name": printable(name)} for name in re.findall(r"Device: \d+, (.+?), pciBusID", log.text)]
    rows, number = list[Row](), 1
    for line, found in log.rows(r"(Uni|Bi)directional P2P=(En|Dis)abled Bandwidth.*\(GB/s\)", "directional P2P="):
        both, peer = found[1] == "Bi", "p2p" if found[2] == "En" else "through_host"
        for (src, dst), (at, word) in matrix(log, line, True)[0].items():
            way, ends = ("d2d", {"gpu": src}) if src == dst else (peer, {"src": src, "dst": dst})
            rows.append(copy(log, at, way, "device", log.number(at, word) * GB / (1 + both), both=both, **ends))
            number = max(number, src + 1)
    said: dict[str, Any] = {"gpus": cards if len(cards) == number else [], "num_nodes": 1}
    notes = [_SIZE_NOTE, _SUM_NOTE]
    return [log.profile(rows, "p2pBandwidthLatencyTest", "cuda", number, notes, **said)]


def rocm_bandwidth_test(log: Log) -> list[Profile]:
    """rocm_bandwidth_test: the peak GB/s from row to column, processors among them; of both ways at once the sum."""
    listed = re.findall(r"^\s*Device: (\d+), *([^,\n]+)(,?)", log.text, re.M)
    names = {int(place): printable(name.strip()) for place, name, _ in listed}
    gpus = [int(place) for place, _, comma in listed if comma]
    rows = []
    for line, found in log.rows(r"(Uni|B)i?directional copy peak bandwidth GB/s", "copy peak bandwidth"):
        both = found[1] == "B"
        for (src, dst), (at, word) in matrix(log, line, True)[0].items():
            log.check(src in names and dst in names, at, "a device that is not listed above")
            if word != "N/A" and (src in gpus or dst in gpus):
                way = (
                    ("p2p" if src != dst else "d2d") if src in gpus and dst in gpus else "d2h" if src in gpus else "h2d"
                )
                ends = {"src": gpus.index(src), "dst": gpus.index(dst)} if way == "p2p" else {}
                gpu = gpus.index(src if src in gpus else dst)
                ends |= {"h2d": {"gpu": gpu, "host": src}, "d2h": {"gpu": gpu, "host": dst}, "d2d": {"gpu": gpu}}.get(
                    way, {}
                )
                rate = log.number(at, word) * GB / (1 + both)
                rows.append(copy(log, at, way, "pinned" if "host" in ends else "device", rate, both=both, **ends))
    cpu = next((name for place, name in names.items() if place not in gpus), "")
    said: dict[str, Any] = {"cpu": cpu, "gpus": [{"name": names[place]} for place in gpus], "num_nodes": 1}
    return [log.profile(rows, "rocm_bandwidth_test", "hip", max(1, len(gpus)), [_SIZE_NOTE, _SUM_NOTE], **said)]


def gpu_copy(log: Log) -> list[Profile]:
    """superbench's gpu_copy: a name of a copy and GB/s; what several copies do at once has its name as method."""
    end = r"(cpu|gpu_all|gpu\d+)"
    name = rf"^\s*({end}_(to|and)_{end}(?:_(read|write))?_by_(sm|dma)(?:_under_numa(\d+))?)\s+([\d.]+)\s*$"
    rows, gpus = [], set[str]()
    for line, found in log.rows(name, "_by_(sm|dma)"):
        src, dst, numa = found[2], found[4], {"numa": int(found[7])} if found[7] else {}
        gpus |= {one for one in (src, dst) if one[3:].isdigit()}
        way = "h2d" if src == "cpu" else "d2h" if dst == "cpu" else "d2d" if src == dst else "p2p"
        method = " ".join(filter(None, (found[5], "sm" * (found[6] == "sm")))) or (
            "device" if way[1:] != "2d" or src != "cpu" else "pinned"
        )
        method = "pinned" if method == "device" and "cpu" in (src, dst) else method
        ends: dict[str, Any] = {"src": int(src[3:]), "dst": int(dst[3:])} if {src, dst} <= gpus and src != dst else {}
        ends |= {"gpu": int(max(src, dst)[3:])} if way != "p2p" and "gpu_all" not in (src, dst) else {}
        both = found[3] == "and"
        if both or "gpu_all" in (src, dst):
            method, ends = found[1], {}
        rows.append(copy(log, line, way, method, log.number(line, found[8]) * GB, both=both, **ends, **numa))
    return [log.profile(rows, "superbench gpu_copy", "cuda", max(1, len(gpus)), [_SIZE_NOTE], num_nodes=1)]


def pageable_pinned(log: Log) -> list[Profile]:
    """A table of copies both ways from pageable and pinned memory in GB/s, as CSV or text, with gains next to them."""
    ways = [(way, method) for method in ("pageable", "pinned") for way in ("h2d", "d2h")]
    columns = ("bytes", *(f"{way}_{method}_gbps" for way, method in ways))
    table = [(line, [cell[name] for name in columns]) for line, cell in log.table(*columns)]
    if is_text := "H2D Page" in log.text:
        table = [
            (line, list(found.groups()))
            for line, found in log.rows(r"^\s*(\d+)" + 6 * r"\s+(\d+\.\d+)" + r"\s*$", r"^\s*\d")
        ]
    rows, unread = [], 0
    for line, cells in table:
        log.check(cells[0].isdigit(), line, f"{cells[0]!r} must be a whole number")
        size, rates, off = int(cells[0]), [log.number(line, cell) for cell in cells[1:]], half_unit(cells[1])
        for gain, plain, pinned in zip(rates[4:], rates, rates[2:], strict=False):
            low, high = (pinned - off) / (plain + off), (pinned + off) / (plain - off) if plain > off else math.inf
            log.check(
                low - 1e-3 <= gain <= high + 1e-3, line, f"a gain of {gain:g} is not {pinned:g} GB/s over {plain:g}"
            )
        for (way, method), rate in zip(ways, rates, strict=False):
            if rate or not is_text:
                rows.append(copy(log, line, way, method, rate * GB, size))
            else:
                unread += 1  # less than can be printed
    notes = [f"left out: {count_of(unread, 'bandwidth')} printed as 0.000"] if unread else []
    card = re.search(r"CUDA Device: (.+)", log.text)
    said: dict[str, Any] = {"gpus": [{"name": printable(card[1].strip())}]} if card else {}
    return [log.profile(rows, "a table of pageable and pinned copies", "cuda", 1, notes, num_nodes=1, **said)]


# ---- traces of torch.profiler


class Event(msgspec.Struct, gc=False):
    """Of an event what tells of a copy or of a collective."""

    name: Any = ""
    cat: Any = None
    dur: Any = None
    args: Any = None


class Trace(msgspec.Struct):
    """Of a trace its events, and what it says of the machine."""

    traceEvents: list[Event]
    distributedInfo: Any = None
    deviceProperties: Any = None


_MEMORY = re.compile(r"Memcpy ([HDP])to([HDP])(?: \((\w+) -> (\w+))?")
_RATE = "memory bandwidth (GB/s)"


def trace(log: Log) -> list[Profile]:
    """Copies, and NCCL's kernels that say their size, of a trace of torch.profiler; older ones cut µs to whole ones."""
    try:
        found = msgspec.json.decode(log.raw, type=Trace)
        info = found.distributedInfo or {}
        number = whole("world_size", info.get("world_size", 1), 1, 1 << 20)
        cards = [{"name": printable(one["name"])} for one in found.deviceProperties or ()]
        version = {"nccl": printable(info["nccl_version"])} if "nccl_version" in info else {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.fail("the trace", f"damaged, cut short or none: {error}")
    rows, waited = list[Row](), False
    for place, event in enumerate(found.traceEvents):
        args, at = event.args if isinstance(event.args, dict) else {}, f"traceEvents[{place}]"
        way = _MEMORY.match(str(event.name)) if event.cat == "gpu_memcpy" else None
        sizes = [args.get(name) for name in ("bytes", "In msg nelems", "Out msg nelems")]
        size, *elements = [one if isinstance(one, int) and one > 0 else 0 for one in sizes]
        if way and size:
            dur = log.number(at, event.dur, 0)
            seconds = size / GB / log.number(at, args[_RATE], 1e-9) if _RATE in args else dur / 1e6
            log.check(
                -0.01 <= seconds * 1e6 - dur <= 1.001, at, f"{size} bytes do not take {dur:g} µs at that bandwidth"
            )
            method = next((one.lower() for one in (way[3], way[4]) if one in ("Pinned", "Pageable")), "device")
            rows.append(copy(log, at, f"{way[1]}2{way[2]}".lower(), method, size / seconds if seconds else 0, size))
        elif event.cat == "kernel" and str(event.name).startswith("nccl") and args.get("Group size") == number:
            what, width = (
                COLLECTIVE.get(str(args.get("Collective name"))),
                TYPE_BYTES.get(str(args.get("dtype")).lower()),
            )
            if what and what != "together" and width and max(elements):
                waited = True
                rows.append(
                    Row(at, what, max(elements) * width, log.number(at, event.dur) / 1e6, {"algorithm": NATIVE})
                )
    log.check(rows, "the trace", "it has no copies of GPUs, and no kernels of NCCL that say their size")
    notes = ["a kernel's time has its wait for other ranks in it"] if waited else []
    said: dict[str, Any] = {"gpus": [card | version for card in cards]}
    return [log.profile(rows, "torch.profiler", str(info.get("backend", "cuda")), number, notes, **said)]


# ---- all of them

READERS: dict[str, tuple[tuple[str, ...], Callable[[Log], list[Profile]]]] = {  # what only that program prints
    "nccl-tests": (("algbw   busbw", "algbw  busbw", "algbw busbw", '"bus_bw"'), nccl_tests),
    "osu": (("# OSU ",), osu),
    "all_reduce_bench": (("algo throughput:", "|    busbw   |", "| busbw"), all_reduce_bench),
    "aiconfigurator": (("num_gpus,message_size,latency",), aiconfigurator),
    "pairs": (("node_a,node_b,collective",), pairs),
    "bandwidthTest": (("bandwidthTest-", "Transfer Size (Bytes)"), bandwidth_test),
    "hipBusBandwidth": (("H2D_Bandwidth", "D2H_Bandwidth"), hip_bus_bandwidth),
    "nvbandwidth": (('"nvbandwidth"', "PU(row)", "GPU(column)"), nvbandwidth),
    "p2pBandwidthLatencyTest": (("P2P=Enabled", "P2P=Disabled"), p2p_test),
    "rocm_bandwidth_test": (("copy peak bandwidth GB/s",), rocm_bandwidth_test),
    "gpu_copy": (("_by_sm", "_by_dma"), gpu_copy),
    "pageable_pinned": (("h2d_pageable_gbps", "H2D Page"), pageable_pinned),
    "trace": (('"traceEvents"',), trace),
}


def read_log(path: str | os.PathLike[str], kind: str | None = None, num_ranks: int | None = None) -> list[Profile]:
    """Return what a log says was measured: a profile a table of collectives, or one of all copies.

    The program is recognised by its text; `kind`, one of `READERS`, says it where a file has logs of several. What is
    not stated is not there, but for what follows from the figures, which the notes of the source say. `num_ranks` is
    for logs that do not state it. Bandwidths must be size over time, fit the number of ranks, and have the average that
    the log says, all within the rounding of what is printed.

    Raises StorageError, a ValueError of one line that names the file and the line in it, for what is no such log, is
    cut, or contradicts itself; OSError where it cannot be opened.
    """
    if num_ranks is not None:
        whole("num_ranks", num_ranks, 1, 1 << 20)
    if kind is not None:
        one_of("kind", kind, tuple(READERS))
    log = Log(path, num_ranks)
    places = {name: [log.text.find(mark) for mark in marks if mark in log.text] for name, (marks, _) in READERS.items()}
    found = {name: log.text.count("\n", 0, min(some)) + 1 for name, some in places.items() if some}
    if kind is None:
        is_alone = bool(log.topology) and not found
        log.check(not is_alone, 1, "a topology of GPUs without measurements: put it into a log of that machine")
        log.check(found, 1, f"no log of {', '.join(READERS)}")
        log.check(len(found) == 1, max(found.values()), f"has logs of {' and '.join(found)}: name one of these kinds")
    reader = READERS[kind or next(iter(found))][1]
    was_enabled = gc.isenabled()
    gc.disable()  # no circles are made, and looking for them among 100,000 points takes a third of the time
    try:
        profiles = reader(log)
    except StorageError:
        raise
    except (ValueError, ArithmeticError) as error:  # of a profile as a whole, and numbers out of all bounds
        log.fail(1, error)
    finally:
        if was_enabled:
            gc.enable()
    log.check(profiles, len(log.lines), "it has no rows")
    return profiles


_ONE_MACHINE = ("backend", "num_ranks", "num_nodes", "ranks_per_node", "gpus", "environment", "device")


def merged(profiles: Sequence[Profile], name: str) -> Profile:
    """Return one profile of what several logs of one machine say; raises ValueError where they are of several."""
    first, *others = profiles
    for one in others:
        told = difference(first.provenance, one.provenance, _ONE_MACHINE)
        told = told or difference(first.protocol, one.protocol, ("dtype", "statistic"))
        if told:
            raise ValueError(f"these are of several machines, or were measured in several ways: {told}")
    points: dict[Any, Point] = {}
    for point in (point for one in profiles for point in one.points):
        seconds = points[point.key].seconds + point.seconds if point.key in points else point.seconds
        points[point.key] = point.like(point.num_bytes, seconds)
    about, how = (
        {key: value for key, value in part.items() if all(other.get(key) == value for other in same)}
        for part, same in (
            (first.provenance, [one.provenance for one in others]),
            (first.protocol, [one.protocol for one in others]),
        )
    )
    sources = [one.provenance["source"] for one in profiles]
    words = {key: dict.fromkeys(one[key] for one in sources if key in one) for key in ("program", "notes")}
    source = {key: "; ".join(some) for key, some in words.items() if some}
    return Profile({**about, "name": name, "source": source}, how, tuple(points.values()))
