"""`read_log`: what others measured, read from what their programs printed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..values.checks import count_of, one_of, printable, whole
from ..values.storage import StorageError, read_bytes
from .profile import NATIVE, Point, Profile, busbw_factor
from .provenance import command_words, difference

GB = 10**9  # the bytes of a copy whose size is not stated: its time is that of so many at the rate that is printed
COLLECTIVE = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "alltoall": "all_to_all",
    "sendrecv": "together",
    **{name: name for name in ("allreduce", "allgather", "all_to_all", "reduce_scatter", "reduce", "broadcast")},
    **{name: name for name in ("scatter", "gather")},
}
TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
SUMS = ("sum", "prod", "max", "min", "avg", "mulsum", "all")
_MORE = 1 + 1e-9  # of what is compared, for the rounding of floats


class Row(NamedTuple):
    """One time that was printed: where, of what, and the options of its point."""

    line: int | str
    what: str
    num_bytes: int
    seconds: float
    options: Mapping[str, Any]


class Log:
    """The text of a log, line by line, and what was said of it."""

    def __init__(self, path: str | os.PathLike[str], num_ranks: int | None) -> None:
        self.path, self.num_ranks = path, num_ranks
        self.name = printable(Path(path).name.split(".")[0])
        try:
            text = read_bytes(path).decode("utf-8", "replace")
        except ValueError as error:
            raise StorageError(path, str(error)) from error
        if "<std" in text:
            text = re.sub(r"\[\d+,\d+\]<std\w+>:", "", text)
        self.text = text
        self.lines = text.replace("\r\n", "\n").split("\n")

    def error(self, line: int | str, problem: object) -> StorageError:
        """Return the error that names a line, or a place in JSON."""
        return StorageError(self.path, f"{f'line {line}' if isinstance(line, int) else line}: {problem}")

    def number(self, line: int | str, text: Any) -> float:
        """Return a number that was printed; raises ValueError for anything else, and for what is not finite."""
        try:
            found = float(text)
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            raise self.error(line, f"{text!r} must be a number")
        return found

    def json(self) -> Any:
        try:
            return json.loads(self.text)
        except json.JSONDecodeError as error:
            raise self.error(error.lineno, f"not JSON, damaged or cut short: {error.msg}") from error
        except RecursionError as error:
            raise self.error(1, "nested too deeply") from error

    def table(self, columns: Sequence[str]) -> Iterable[tuple[int, dict[str, str]]]:
        """Yield the rows of comma-separated values, which begin with a line of at least these columns."""
        names: list[str] = []
        for line, text in enumerate(self.lines, 1):
            cells = [cell.strip() for cell in text.split(",")]
            if set(columns) <= set(cells):
                names = cells
            elif names and text.strip():
                if len(cells) != len(names) or not all(cells):
                    raise self.error(line, f"must have {count_of(len(names), 'value')}, got {text[:80]!r}")
                yield line, dict(zip(names, cells, strict=True))

    def profile(
        self,
        rows: Iterable[Row],
        program: str,
        backend: str,
        num_ranks: int,
        notes: Iterable[str] = (),
        protocol: Mapping[str, Any] | None = None,
        name: str = "",
        **said: Any,
    ) -> Profile:
        """Return the profile of these rows; those of one key are the iterations of one point."""
        points = points_of(rows, self)
        if not points:
            raise self.error(len(self.lines), f"{program} printed no row above")
        words = "; ".join(dict.fromkeys(notes))
        about = {key: value for key, value in said.items() if value}
        about |= {"source": {"program": printable(program)} | ({"notes": words} if words else {})}
        title = f"{self.name}{name and f', {name}'}"
        return Profile({"name": title, "backend": backend, "num_ranks": num_ranks, **about}, protocol or {}, points)


def points_of(rows: Iterable[Row], log: Log | None = None) -> tuple[Point, ...]:
    """Return the points of rows; those of one key are its iterations."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.what, row.num_bytes, *row.options.items()), []).append(row)
    points = []
    for some in grouped.values():
        line, what, size, _, options = some[0]
        try:
            points.append(Point(what, size, tuple(row.seconds for row in some), (True,) * len(some), options))
        except ValueError as error:
            raise log.error(line, error) if log else error from error
    return tuple(points)


def half_unit(text: str) -> float:
    """Return by how much a printed number may be off, half of its last digit.

    >>> half_unit("0.48"), half_unit("92173"), half_unit("1.8e+07")
    (0.005, 0.5, 500000.0)
    """
    mantissa, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def between(seconds: float, off: float, num_bytes: float, rate: float, rate_off: float) -> float | None:
    """Return the time that fits both a printed time and a printed rate, None where none does."""
    low, high = num_bytes / (rate + rate_off), num_bytes / (rate - rate_off) if rate > rate_off else math.inf
    low, high = max(low / _MORE, seconds - off), min(high * _MORE, seconds + off)
    return None if low > high else min(max(num_bytes / rate if rate else seconds, low), high)


def copy_options(direction: str, method: str, both: bool = False, **ends: Any) -> dict[str, Any]:
    return {"direction": direction, "method": method, "pieces": 1, "both": both, **ends}


def at_rate(log: Log, line: int | str, bytes_per_s: float, options: Mapping[str, Any], size: int = 0) -> Row:
    """Return the row of a copy of which the rate was printed."""
    if not bytes_per_s > 0:
        raise log.error(line, f"a bandwidth must be above 0, got {bytes_per_s:g}")
    return Row(line, "transfer", size or GB, (size or GB) / bytes_per_s, options if size else {**options, **_NO_SIZE})


_NO_SIZE = {"size": "not stated"}
_SIZE_NOTE = "the size of a copy is not stated: times are those of 1 GB at the rate that is printed"


# ---- nccl-tests and rccl-tests

_INFO = re.compile(r"(?:^\s*\S+|[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] .*?NCCL ")
_ROW = re.compile(rf"(?<![\w.])(\d+)[ \t]+(\d+)[ \t]+({'|'.join(TYPE_BYTES)})(?!\w)(.*)")
_RANK = re.compile(r"Rank +(\d+) (?:Group +\d+ )?Pid +(\d+) on +(\S+) +device +(\d+) \[[^\]]*\] *(.*)")
_NAME = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_FOOT = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_GOES_ON = re.compile(r"(?:\s*(?:[+-]?[\d.]+(?:[eE][+-]?\d+)?|N/A))+\s*")
_WRONG = ("#wrong", "error")


class Table:
    """A table of nccl-tests while it is read."""

    def __init__(self, header: int, columns: Sequence[str], first: int) -> None:
        self.header, self.columns, self.first, self.last = header, columns, first, header
        self.times = [place for place, name in enumerate(columns) if name in ("time", "cputime")]
        self.rows: list[tuple[int | str, str, str, str, list[str]]] = []
        self.ranks: list[tuple[int, str, str, str]] = []  # number, process, host, card
        self.footer: tuple[int | str, str] | None = None
        self.name, self.is_elided = "", False
        self.said: dict[str, Any] = {}

    def cells(self, text: str) -> list[str] | None:
        """Return the cells after the type, one a column; None where some are missing."""
        cells = text.split()
        if "redop" in self.columns and not (cells and cells[0].isalpha()):
            cells.insert(0, "")
        if len(cells) == len(self.columns) - 1 and self.columns[-1] in _WRONG:
            cells.append("N/A")
        return None if len(cells) < len(self.columns) else cells


def nccl_tests(log: Log) -> list[Profile]:
    tables = nccl_json(log) if log.text.lstrip().startswith("{") else nccl_text(log)
    return [nccl_profile(log, table) for table in tables if table.rows]


def nccl_text(log: Log) -> list[Table]:
    tables: list[Table] = []
    table: Table | None = None
    ranks: list[tuple[int, str, str, str]] = []
    pending: tuple[int, re.Match[str], str] | None = None
    first, name = 1, ""
    for line, text in enumerate(log.lines, 1):
        if "NCCL " in text and (info := _INFO.search(text)):
            text = text[: info.start()]
        if not text or text.isspace():
            continue
        row = _ROW.search(text) if "Rank" not in text else None
        if pending and not row:
            if _GOES_ON.fullmatch(text):
                line, row, text = pending[0], pending[1], f"{pending[2]} {text}"
                pending = None
            elif "busbw" in text or _FOOT.search(text):
                raise log.error(pending[0], f"the row is cut: {pending[1][0].strip()[:80]!r}")
        elif row:
            text = row[4]
        if row:
            if pending:
                raise log.error(pending[0], f"the row is cut: {pending[1][0].strip()[:80]!r}")
            if table is None:
                raise log.error(line, "a row of nccl-tests without a header above it, or after the end of its table")
            cells = table.cells(text)
            if cells is None:
                pending = line, row, text
            elif len(cells) > len(table.columns):
                raise log.error(line, f"the row has more than the columns of its header: {row[0].strip()[:80]!r}")
            else:
                table.rows.append((line, row[1], row[2], row[3], cells))
                table.last = line
        elif found := _RANK.search(text):
            if found[1] == "0":
                ranks = []
            ranks.append((int(found[1]), found[2], found[3], found[5].strip()))
        elif "busbw" in text and "algbw" in text:
            words = text[text.find("size") :].split() if "size" in text else []
            if words[:3] != ["size", "count", "type"] or not {"time", "cputime"} & set(words):
                raise log.error(line, f"the header must begin with size, count, type; got {text.strip()[:80]!r}")
            table = Table(line, words[3:], first)
            table.ranks, table.name, ranks = ranks, name, []
            tables.append(table)
        elif foot := _FOOT.search(text):
            if table is None or not table.rows:
                raise log.error(line, "an average without rows above it")
            table.footer, table.last = (line, foot[1]), line
            table, name, first = None, "", line + 1
        elif table is not None and text.strip() in ("...", "…"):
            table.is_elided = True
        elif found := _NAME.search(text):
            name = found[1]
    if pending:
        raise log.error(pending[0], f"the row is cut: {pending[1][0].strip()[:80]!r}")
    for one in tables:
        one.said = nccl_said("\n".join(log.lines[one.first - 1 : one.last]))
    return tables


def nccl_json(log: Log) -> list[Table]:
    """One table: what nccl-tests writes with -J; a process may have several GPUs, of which it names the first."""
    found = log.json()
    columns = ("redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong")
    table = Table(1, columns, 1)
    try:
        config = found.get("config", {})
        each = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
        for place, one in enumerate(found["results"]):
            cells = [str(one["redop"]), str(one["root"]).strip()]
            for half in (one["out_of_place"], one["in_place"]):
                values = (
                    [half[key] for key in ("time" if "time" in half else "cpu_time", "alg_bw", "bus_bw")]
                    if half
                    else []
                )
                wrong = "N/A" if not half or half.get("nwrong") is None else f"{half['nwrong']:g}"
                cells += [f"{value:.6f}" for value in values] + [wrong] if half else ["N/A"] * 4
            table.rows.append((f"results[{place}]", str(one["size"]), str(one["count"]), one["type"], cells))
        devices = [one for one in config.get("devices", []) for _ in range(each)]
        table.ranks = [(rank, str(one["pid"]), one["hostname"], one["device_info"]) for rank, one in enumerate(devices)]
        if "average_bus_bandwidth" in found:
            table.footer = ("average_bus_bandwidth", f"{found['average_bus_bandwidth']['bandwidth']:.6f}")
        table.name = next((name[1] for word in found.get("args", ()) if (name := _NAME.search(word))), "")
        words = "\n".join(one for one in found.get("env", ()) if one.startswith("NCCL_"))
        nccl = f"nccl-library={found['nccl_version']}" if "nccl_version" in found else ""
        table.said = nccl_said(f"{words}\n{nccl}")
        protocol = {"warm_up": config.get("warmup_iters"), "iterations": config.get("iterations")}
        table.said["protocol"] = {key: value for key, value in protocol.items() if value is not None}
        if "start_time" in found:
            table.said["date"] = found["start_time"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise log.error(f"results[{len(table.rows)}]", f"not what nccl-tests writes: {error!r}") from error
    return [table]


_SET = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?: set by environment to |=)([^\s;,]+)")
_VERSION = re.compile(r"NCCL version (\d[\d.]*)(?:\+cuda([\d.]+))?")
_WAY = re.compile(r"Using network (\w[^\n]*)|(GPU Direct RDMA (?:En|Dis)abled)|via (P2P|SHM|NET/\w+)")
_RUN = re.compile(r"warmup iters: (\d+) iters: (\d+)")


def nccl_said(text: str) -> dict[str, Any]:
    """Return what the text above and between rows says of the run."""
    version = _VERSION.search(text)
    library = re.search(r"nccl-library=(\d+)", text)
    nccl = version[1].rstrip(".") if version else ""
    if library and not nccl:
        code = int(library[1])
        parts = (code // 10000, code // 100 % 100) if code >= 20000 else (code // 1000, code // 100 % 10)
        nccl = ".".join(map(str, (*parts, code % 100)))
    ways = [next(filter(None, found)) for found in _WAY.findall(text)]
    run = _RUN.search(text)
    variables = dict.fromkeys(f"{name}={value}" for name, value in _SET.findall(text))
    return {
        "card": {"nccl": nccl} | ({"cuda": version[2]} if version and version[2] else {}) if nccl else {},
        "network": ", ".join(dict.fromkeys(printable(way.strip()) for way in ways)),
        "environment": printable(command_words(list(variables))),
        "protocol": {"warm_up": int(run[1]), "iterations": int(run[2])} if run else {},
        "tests": found[1] if (found := re.search(r"nccl-tests version (\S+)", text)) else "",
    }


def nccl_profile(log: Log, table: Table) -> Profile:
    """Check a table and return its profile."""
    halves = [(row, table.times.index(place), row[4][place:]) for row in table.rows for place in table.times]
    halves = [one for one in halves if one[2][0] != "N/A"]
    if not halves:
        raise log.error(table.header, "the table has no times")
    where = [row[0] for row, _, _ in halves]
    texts = [cells[:3] for _, _, cells in halves]
    try:
        printed = np.array([[float(text) for text in some] for some in texts]).T
    except ValueError:
        printed = np.array([[log.number(at, text) for text in some] for at, some in zip(where, texts, strict=True)]).T
    off = np.array([[half_unit(text) for text in some] for some in texts]).T
    size = np.array([float(row[1]) for row, _, _ in halves])

    def check(fits: Any, problem: Callable[[int], str]) -> None:
        if not fits.all():
            place = int(np.argmin(fits))
            raise log.error(where[place], problem(place))

    time_s, alg, bus = printed * np.array([[1e-6], [1e9], [1e9]])
    time_off, alg_off, bus_off = off * np.array([[1e-6], [1e9], [1e9]])
    check(np.isfinite(printed).all(axis=0) & (time_s > 0), lambda at: f"{texts[at]} must be a time and two bandwidths")
    with np.errstate(divide="ignore", invalid="ignore"):
        least, most = size / (time_s + time_off), np.where(time_s > time_off, size / (time_s - time_off), np.inf)
    most = np.where(size > 0, most, 0.0)
    fits = (least <= (alg + alg_off) * _MORE) & (alg - alg_off <= most * _MORE)
    check(fits, lambda at: f"{texts[at][1]} GB/s is not {size[at]:.0f} bytes in {texts[at][0]} µs")
    least, most = np.maximum(least, alg - alg_off), np.minimum(most, alg + alg_off)

    counted = np.array([int(row[2]) * TYPE_BYTES[row[3]] for row, _, _ in halves], dtype=float)
    times = np.where(counted > 0, size / np.maximum(counted, 1), np.where(size > 0, -1.0, np.nan))
    per_count = float(np.nanmedian(times)) if not np.isnan(times).all() else 1.0
    check(
        np.isnan(times) | (times == per_count), lambda at: f"{size[at]:.0f} bytes are not {halves[at][0][2]} elements"
    )

    what = nccl_collective(log, table, per_count)
    factors = {n: 1.0 if what == "together" else busbw_factor(what, n) for n in (1, 2)}

    def factor(number: int) -> float:
        return 1.0 if what == "together" else busbw_factor(what, number)

    def fit(number: int) -> Any:
        share = factor(number)
        return (share * least <= (bus + bus_off) * _MORE) & (bus - bus_off <= share * most * _MORE)

    notes = ["the collective follows from the columns of the table"] if not table.name else []
    listed = [number for number, *_ in table.ranks]
    stated = len(listed) if listed and listed == list(range(len(listed))) else None
    number = log.num_ranks or stated
    others = per_count > 1 and number != per_count
    if number is None or others or not fit(number).all():
        exact = exact_ranks(factors, per_count, least, most, bus, bus_off)
        if exact is None or not fit(exact).all():
            if number is None:
                raise log.error(table.header, "the number of ranks is not stated, and bus bandwidths do not tell it")
            check(fit(number), lambda at: f"{texts[at][2]} GB/s does not fit {texts[at][1]} GB/s on {number} ranks")
            raise log.error(where[0], f"{size[0]:.0f} bytes are not {halves[0][0][2]} elements on {number} ranks")
        if log.num_ranks:
            raise log.error(where[0], f"the table is of {exact} ranks, not of {log.num_ranks}")
        follows = f"the number of ranks follows from {'counts' if per_count > 1 else 'bus bandwidths'}"
        notes.append(f"{follows}; {len(listed)} of them are listed" if listed else follows)
        number, stated = exact, None
    if number == 1:
        notes.append("one rank: no link was used")
    if table.footer:
        mean, foot = float(bus.mean()) / 1e9, log.number(*table.footer)
        if abs(mean - foot) > float(bus_off.mean()) / 1e9 + half_unit(table.footer[1]) + 1e-9:
            if not table.is_elided:
                raise log.error(table.footer[0], f"the average is {foot:g}, and that of the rows {mean:g}")
            notes.append("an excerpt: the log's average is of more rows")
    else:
        notes.append("no average below the table: it may be cut")

    hosts = [host for _, _, host, _ in table.ranks] if stated == number else []
    nodes = [hosts.count(host) for host in dict.fromkeys(hosts)]
    kinds = list(zip(*((row[3], *row[4][: table.times[0]]) for row in table.rows), strict=True))
    varying = [place for place, some in enumerate(kinds) if len(set(some)) > 1]
    names = ("dtype", *table.columns[: table.times[0]])
    link = {1: "intra", number: "inter"}.get(len(nodes)) if number > 1 else None
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    rows = []
    for at, (row, half, cells) in enumerate(halves):
        key = half, *((row[3], *row[4])[place] for place in varying)
        if key not in made:
            made[key] = {"algorithm": NATIVE} if what != "together" else {"link": link} if link else {}
            made[key] = (
                made[key] | {"in_place": half == 1} | dict(zip((names[at] for at in varying), key[1:], strict=True))
            )
        seconds = float(time_s[at])
        if "e" in cells[0] and alg[at] > 0:
            seconds = between(seconds, time_off[at], size[at], alg[at], alg_off[at]) or seconds
        rows.append(Row(row[0], what, int(row[1]), seconds, made[key]))

    card = table.said.pop("card")
    cards = [({"name": printable(name)} if name else {}) | card for *_, name in table.ranks] if stated == number else []
    wrong = {row[4][place + 3] for row in table.rows for place in table.times if "#wrong" in table.columns}
    verified = {"verified": wrong == {"0"}} if (wrong := wrong - {"N/A"}) else {}
    protocol = {"statistic": "mean", **table.said.pop("protocol"), **verified}
    if len(set(kinds[0])) == 1:
        protocol["dtype"] = kinds[0][0]
    program = f"nccl-tests {table.said.pop('tests')}".strip()
    if nodes:
        table.said |= {"num_nodes": len(nodes), "ranks_per_node": nodes}
    gpus = cards if any(cards) else [card] * number if card and number <= _MOST_CARDS else []
    return log.profile(rows, program, "nccl", number, notes, protocol, what, gpus=gpus, **table.said)


_MOST_CARDS = 4096


def nccl_collective(log: Log, table: Table, per_count: float) -> str:
    """Return the collective: by its name, else by what only its program prints."""
    if table.name:
        if table.name not in COLLECTIVE:
            raise log.error(table.header, f"no collective that is known: {table.name!r}")
        return COLLECTIVE[table.name]
    _, _, _, _, cells = table.rows[0]
    first = dict(zip(table.columns, cells, strict=False))
    rooted = first.get("root", "-1") not in ("-1", "")
    if first.get("redop") in SUMS:
        return "reduce" if rooted else "allreduce" if per_count == 1 else "reduce_scatter"
    if rooted and per_count == 1:
        return "broadcast"
    if "root" not in table.columns and per_count > 1:
        return "all_to_all" if "redop" in table.columns else "allgather"
    raise log.error(table.header, "it is not said of which collective the table is")


def exact_ranks(
    factors: Mapping[int, float], per_count: float, least: Any, most: Any, bus: Any, bus_off: Any
) -> int | None:
    """Return the only number of ranks that counts or, of an allreduce, bus bandwidths leave."""
    if per_count > 1:
        return int(per_count)
    if factors[1] == factors[2]:
        return None
    used = least > 0
    if not used.any():
        return None
    low, high = ((bus - bus_off)[used] / most[used]).max() / _MORE, ((bus + bus_off)[used] / least[used]).min() * _MORE
    if not low <= high < 2:
        return None
    few, many = max(1, math.ceil(2 / (2 - low) - 1e-9)) if low > 0 else 1, math.floor(2 / (2 - high) + 1e-9)
    return few if few == many else None


# ---- collectives of other programs


def aiconfigurator(log: Log) -> list[Profile]:
    """Tables of nccl-tests as NVIDIA's AIConfigurator keeps them: sizes in elements, milliseconds, out of place."""
    columns = ("version", "device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    found: dict[tuple[str, ...], list[Row]] = {}
    for line, cell in log.table(columns):
        if cell["op_name"] not in COLLECTIVE or cell["nccl_dtype"] not in TYPE_BYTES:
            raise log.error(line, f"no collective, or no type, that is known: {cell['op_name']}, {cell['nccl_dtype']}")
        size, ranks = (log.number(line, cell[name]) for name in ("message_size", "num_gpus"))
        if not (size.is_integer() and ranks.is_integer() and size >= 0 and 1 <= ranks <= _MOST_CARDS):
            raise log.error(line, f"no numbers of elements and GPUs: {cell['message_size']}, {cell['num_gpus']}")
        seconds = log.number(line, cell["latency"]) / 1e3
        options = {"algorithm": NATIVE, "in_place": False}
        row = Row(line, COLLECTIVE[cell["op_name"]], int(size) * TYPE_BYTES[cell["nccl_dtype"]], seconds, options)
        found.setdefault((cell["num_gpus"], cell["nccl_dtype"], cell["device"], cell["version"]), []).append(row)
    profiles = []
    for (gpus, dtype, device, version), rows in found.items():
        said: dict[str, Any] = {
            "gpus": [{"name": printable(device), "nccl": printable(version)}] * int(gpus),
            "num_nodes": 1,
        }
        protocol = {"dtype": dtype, "statistic": "mean"}
        profiles.append(
            log.profile(rows, "aiconfigurator", "nccl", int(gpus), (), protocol, f"{gpus} GPUs, {dtype}", **said)
        )
    return profiles


_OSU = re.compile(r"# OSU (.*?) v(\d\S*)")
_OSU_SIZED = {  # words of a title: what is timed, and whether its size is one rank's share
    "all-to-all personalized": ("all_to_all", True),
    "allreduce": ("allreduce", False),
    "allgather": ("allgather", True),
    "reduce_scatter": ("reduce_scatter", False),
    "broadcast": ("broadcast", False),
    "bcast": ("broadcast", False),
    "scatter": ("scatter", True),
    "gather": ("gather", True),
    "reduce": ("reduce", False),
    "bandwidth": ("transfer", False),
    "latency": ("ping_pong", False),
}


def osu(log: Log) -> list[Profile]:
    """OSU's micro-benchmarks: latencies in µs, bandwidths in MB/s (10⁶), between two ranks, pairs or all of them."""
    profiles: list[Profile] = []
    starts = [line for line, text in enumerate(log.lines, 1) if _OSU.search(text)]
    for start, end in zip(starts, [*starts[1:], len(log.lines) + 1], strict=True):
        profiles.append(osu_table(log, start, end, "\n".join(log.lines[max(0, start - 8) : start])))
    return profiles


def osu_table(log: Log, start: int, end: int, above: str) -> Profile:
    title = _OSU.search(log.lines[start - 1])
    assert title is not None
    words = title[1].lower()
    what, is_share = next((found for word, found in _OSU_SIZED.items() if word in words), ("", False))
    if not what:
        raise log.error(start, f"no benchmark of OSU's that is known: {title[1]!r}")
    columns: list[str] = []
    printed: list[tuple[int, list[str]]] = []
    pairs, on_gpu = 0, "cuda" in words or "rocm" in words
    for line, text in enumerate(log.lines[start : end - 1], start + 1):
        plain = text.strip()
        if plain.startswith("#"):
            if re.match(r"# *Size\b", plain):
                columns = re.split(r"\s{2,}", plain[1:].strip())
            elif found := re.search(r"pairs: (\d+)", plain):
                pairs = int(found[1])
            on_gpu = on_gpu or "on DEVICE (D) and" in plain
        elif columns and re.match(r"\d+\s", plain):
            cells = plain.split()
            if len(cells) != len(columns) or (printed and int(cells[0]) <= int(printed[-1][1][0])):
                raise log.error(line, f"must be a larger size with {', '.join(columns[1:])}; got {plain[:80]!r}")
            printed.append((line, cells))
    if not columns or not ("(us)" in columns[1] or "MB/s" in columns[1]):
        raise log.error(start, "the table has no header with sizes and µs or MB/s")
    run = above if "srun" in above or "mpirun" in above or "mpiexec" in above else ""
    stated = {name: int(found[1]) for name, how in _RUN_WORDS.items() if (found := re.search(how, run))}
    nodes = stated.get("nodes") if "srun" in run else None
    ranks = stated.get("ranks") or (nodes or 0) * stated.get("each", 0)
    notes = []
    if what in ("transfer", "ping_pong"):
        if not pairs and "multi" in words:
            notes.append("the number of pairs is not stated: ranks are those of one")
        ranks, pairs = 2 * (pairs or 1), pairs or 1
    number = log.num_ranks or ranks
    if not number:
        raise log.error(start, "the number of ranks is not stated")
    both = "bi-directional" in words
    link = {1: "intra", number: "inter"}.get(nodes or 0)
    rows = []
    for line, cells in printed:
        values = {name: log.number(line, cell) for name, cell in zip(columns, cells, strict=True) if cell != "Pass"}
        size, value = int(cells[0]), values[columns[1]]
        low, high = (next((values[name] for name in values if word in name), value) for word in ("Min", "Max"))
        if not (value > 0 and low <= value <= high):
            raise log.error(line, f"must be above 0, and between least and most; got {' '.join(cells)}")
        if "Messages/s" in values:
            off = half_unit(cells[1]) * 1e6 / size + half_unit(cells[2])
            if abs(value * 1e6 / size - values["Messages/s"]) > off * _MORE:
                raise log.error(line, f"{cells[1]} MB/s are not {cells[2]} messages of {size} bytes")
        options: dict[str, Any] = {"algorithm": NATIVE, "in_place": False}
        seconds = value / 1e6
        if what == "transfer":
            options = copy_options("p2p" if on_gpu else "h2h", "mpi", both, **({"pairs": pairs} if pairs > 1 else {}))
            seconds = size * pairs * (1 + both) / (value * 1e6)
        elif what == "ping_pong":
            options = ({"pairs": pairs} if pairs > 1 else {}) | ({"link": link} if link else {})
        rows.append(Row(line, what, size * number if is_share else size, seconds, options))
    protocol = {"statistic": "mean"} | ({"verified": True} if "Validation" in columns else {})
    said = {"num_nodes": nodes, "device": "cuda" if on_gpu else ""}
    return log.profile(rows, f"OSU {title[1]} {title[2]}", "mpi", number, notes, protocol, what, **said)


_RUN_WORDS = {
    "nodes": r"(?:-N|--nodes[= ]) ?(\d+)",
    "each": r"--ntasks-per-node[= ](\d+)",
    "ranks": r"(?:-n|-np|--ntasks[= ]) ?(\d+)\b",
}
_CELL = re.compile(r"\|\s*([\d._]+)\s*([KMGT]?)i?B?\s*\|\s*([\d.]+) ?GBps\s*\|\s*([\d.]+) ?GBps\s*\|")


def all_reduce_bench(log: Log) -> list[Profile]:
    """all_reduce_bench.py, which runs NCCL: its tables (1 KiB is 1024 bytes), or of old the trials of each rank."""
    options = {"algorithm": NATIVE, "in_place": True}  # torch's all_reduce is
    found = re.search(r"over (\d+) ranks \((\d+) warmups / (\d+) trials", log.text)
    is_old = "algo throughput" in log.text
    rows, number = bench_trials(log, options) if is_old else bench_table(log, options, int(found[1]) if found else 0)
    protocol: dict[str, Any] = {"statistic": "each rank's time of each trial" if is_old else "mean", "dtype": "float32"}
    if found:
        protocol |= {"warm_up": int(found[2]), "iterations": int(found[3])}
    return [log.profile(rows, "all_reduce_bench", "nccl", number, (), protocol, "allreduce")]


def bench_trials(log: Log, options: Mapping[str, Any]) -> tuple[list[Row], int]:
    """Each time that a rank printed, and how many ranks there are; lines of several ranks may be mixed."""
    labels = {int(text.strip()[:-1]) for text in log.lines if re.fullmatch(r"\s*\d+:\s*", text)}
    number, size, rows = len(labels), 0.0, list[Row]()
    if labels != set(range(number)):
        raise log.error(len(log.lines), f"the trials must be of all ranks; these have some: {sorted(labels)}")
    taken, rates = list[tuple[int, str]](), list[tuple[int, str]]()

    def fitting(line: int, some: list[tuple[int, str]], figure: float, text: str) -> None:
        """Take what was printed before, and fits this, out of some."""
        place = next(
            (at for at, (_, old) in enumerate(some) if abs(float(old) - figure) <= half_unit(old) * _MORE), None
        )
        if place is None:
            raise log.error(line, f"{text.strip()} does not fit {size:g} GB, {number} ranks and what is printed above")
        some.pop(place)

    for line, text in enumerate(log.lines, 1):
        if sized := re.search(r"data size: ([\d.]+) GB", text):
            if size not in (0.0, log.number(line, sized[1])):
                raise log.error(line, f"the trials must be of one size, got {sized[1]} and {size:g} GB")
            size = log.number(line, sized[1])
        elif printed := re.search(r"(duration|algo throughput|busbw): ([\d.]+) ", text):
            value = log.number(line, printed[2])
            if printed[1] == "duration":
                taken.append((line, printed[2]))
            elif printed[1] == "algo throughput" and size and value:  # in bits, those sent and those received
                fitting(line, taken, 2 * 8 * size * GB / value, text)
                rates.append((line, f"{value * (number - 1) / number / 1e9:.4f}"))
                rows.append(Row(line, "allreduce", round(size * GB), 2 * 8 * size * GB / value, options))
            else:
                fitting(line, rates, value, text)
    if taken or rates or not rows or len(rows) % number:
        raise log.error(
            (taken + rates + [(len(log.lines), "")])[0][0], "the trial is cut: a duration, a throughput, busbw"
        )
    return rows, number


def bench_table(log: Log, options: Mapping[str, Any], stated: int) -> tuple[list[Row], int]:
    number, rows = log.num_ranks or stated, list[Row]()
    for line, text in enumerate(log.lines, 1):
        found = _CELL.search(text)
        if found is None:
            if "GBps |" in text:
                raise log.error(line, f"must be a size, busbw and algbw; got {text.strip()[:80]!r}")
            continue
        if not number:
            raise log.error(line, "the number of ranks is not stated")
        size = log.number(line, found[1].replace("_", "")) * 1024 ** " KMGT".index(found[2] or " ")
        bus, alg, share = log.number(line, found[3]), log.number(line, found[4]), busbw_factor("allreduce", number)
        if abs(alg * share - bus) > (half_unit(found[4]) * share + half_unit(found[3])) * _MORE or not alg > 0:
            raise log.error(line, f"busbw {found[3]} does not fit algbw {found[4]} on {number} ranks")
        rows.append(Row(line, "allreduce", round(size), size / (alg * GB), options))
    return rows, number


def pairs(log: Log) -> list[Profile]:
    """A table of nccl-tests between every two nodes of a fleet, one size a pair."""
    columns = ("cluster", "gpus_per_node", "node_a", "node_b", "collective", "size_bytes", "time_oop_us")
    found: dict[tuple[str, int], list[Row]] = {}
    for line, cell in log.table(columns):
        each, size = (whole_of(log, line, cell[name]) for name in ("gpus_per_node", "size_bytes"))
        what, taken = COLLECTIVE.get(cell["collective"], ""), log.number(line, cell["time_oop_us"])
        bus = cell.get("busbw_oop_GBps", "")
        if not what or not taken > 0 or not 1 <= each <= _MOST_CARDS:
            raise log.error(line, "must be a collective that is known, GPUs and a time")
        share = 1.0 if what == "together" else busbw_factor(what, 2 * each)
        off = (
            0.05e-6 * 10 ** math.floor(math.log10(taken))
            if taken >= 1e7
            else half_unit(cell["time_oop_us"].removesuffix(".0")) / 1e6
        )
        rate, rate_off = log.number(line, bus) * 1e9 / share, half_unit(bus) * 1e9 / share
        seconds = between(taken / 1e6, off, size, rate, rate_off)
        if seconds is None:
            raise log.error(line, f"{bus} GB/s does not fit {size} bytes in {taken:g} µs on {2 * each} ranks")
        ends = {"src": cell["node_a"], "dst": cell["node_b"]}
        kind = {"link": "inter"} if what == "together" else {"algorithm": NATIVE}
        seconds = seconds if taken >= 1e7 else taken / 1e6
        row = Row(line, what, size, seconds, {**kind, "in_place": False, **ends})
        found.setdefault((cell["cluster"], each), []).append(row)
    return [
        log.profile(
            rows,
            "nccl-tests",
            "nccl",
            2 * each,
            (),
            {"statistic": "mean"},
            f"{cluster}, pairs of {count_of(each, 'GPU')}",
            num_nodes=2,
            ranks_per_node=[each, each],
        )
        for (cluster, each), rows in found.items()
    ]


def whole_of(log: Log, line: int, text: str) -> int:
    try:
        return whole("it", int(text), 0, 1 << 60)
    except ValueError as error:
        raise log.error(line, f"{text!r} must be a whole number") from error


# ---- copies

_WAYS = {
    "h2d": "h2d",
    "d2h": "d2h",
    "d2d": "d2d",
    "host to device": "h2d",
    "device to host": "d2h",
    "device to device": "d2d",
}
_SHMOO = re.compile(
    r"bandwidthTest-(H2D|D2H|D2D)(?:-(Pinned|Paged))?, Bandwidth = ([\d.]+) ([GM])B/s, "
    r"Time = ([\d.]+) s, Size = (\d+) bytes"
)
_QUICK = re.compile(r"(Host to Device|Device to Host|Device to Device) Bandwidth, (\d+) Device")
_TWICE = "a copy on the GPU counts twice in bandwidthTest, for reading and writing; times are size / bandwidth"


def bandwidth_test(log: Log) -> list[Profile]:
    """CUDA's bandwidthTest: shmoo, quick or CSV; its MB/s are 2²⁰ bytes, its GB/s 10⁹."""
    rows, cards = [], []
    direction, memory, unit = "", "", ""
    for line, text in enumerate(log.lines, 1):
        if found := _SHMOO.search(text):
            way, pinned, rate, letter, taken, size = found.groups()
            scale = 2**20 if letter == "M" else GB
            bytes_per_s, num_bytes = log.number(line, rate) * scale, int(size)
            seconds = between(float(taken), half_unit(taken), num_bytes, bytes_per_s, half_unit(rate) * scale)
            if seconds is None or not bytes_per_s > 0:
                raise log.error(line, f"{rate} {letter}B/s is not {size} bytes in {taken} s")
            method = {"Pinned": "pinned", "Paged": "pageable", None: "device"}[pinned]
            rows.append(Row(line, "transfer", num_bytes, seconds, copy_options(way.lower(), method)))
        elif "bandwidthTest-" in text:
            raise log.error(line, f"must be a direction, a bandwidth, a time and a size; got {text.strip()[:80]!r}")
        elif found := re.search(r"Device (\d+): (.+)", text):
            cards.append({"name": printable(found[2].strip())})
        elif found := _QUICK.search(text):
            direction, memory, unit = _WAYS[found[1].lower()], "", ""
        elif "Memory Transfers" in text:
            memory = {"PINNED": "pinned", "PAGEABLE": "pageable"}.get(text.split()[0], "")
        elif found := re.search(r"Transfer Size \(Bytes\)\s+Bandwidth\(([GM])B/s\)", text):
            unit = found[1]
        elif direction and re.match(r"\s*\d+\s+\d", text):
            words = text.split()
            if len(words) != 2 or not unit or not memory:
                raise log.error(line, f"must be a size and a bandwidth below their header; got {text.strip()[:80]!r}")
            rate = log.number(line, words[1]) * (2**20 if unit == "M" else GB)
            method = "device" if direction == "d2d" else memory
            rows.append(at_rate(log, line, rate, copy_options(direction, method), whole_of(log, line, words[0])))
    notes = [_TWICE] if any(row.options["direction"] == "d2d" for row in rows) else []
    said: dict[str, Any] = {"gpus": cards, "num_nodes": 1}
    return [log.profile(rows, "bandwidthTest", "cuda", max(1, len(cards)), notes, {"statistic": "mean"}, **said)]


_HIP = re.compile(
    r"([HD])2([HD])_(Bandwidth|Time)_?(pinned|pageable|unpinned)\s+\+?(\d+)(By|kB|MB)\s+(GB/sec|ms)\s+(.*)"
)


def hip_bus_bandwidth(log: Log) -> list[Profile]:
    """hipBusBandwidth: medians in GB/s, which count whole thousands of bytes, and in ms, which must agree."""
    rates: dict[tuple[str, str, int], tuple[float, float]] = {}
    rows = []
    card = re.search(r"Device:(.+?) Mem=", log.text)
    for line, text in enumerate(log.lines, 1):
        found = _HIP.search(text)
        if found is None:
            if re.search(r"[HD]2[HD]_(?:Bandwidth|Time)", text):
                raise log.error(line, f"must be a size, a unit and five figures; got {text.strip()[:80]!r}")
            continue
        cells = found[8].split()
        if len(cells) != 5:
            raise log.error(line, f"must have a median, mean, stddev, least and most; got {found[8]!r}")
        median, _, _, low, high = (log.number(line, cell) for cell in cells)
        if not low <= median <= high:
            raise log.error(line, f"the median must be between least and most, got {found[8]!r}")
        size = int(found[5]) * {"By": 1, "kB": 1024, "MB": 2**20}[found[6]]
        method = {"pinned": "pinned"}.get(found[4], "pageable")
        key = f"{found[1]}2{found[2]}".lower(), method, size
        if found[3] == "Bandwidth":
            rates[key] = median, half_unit(cells[0])
        elif key not in rates:
            raise log.error(line, "a time without its bandwidth above")
        else:
            rate, off = rates.pop(key)
            seconds, least = median / 1e3, half_unit(cells[0]) / 1e3
            counted = size // 1000 * 1000
            if between(seconds, least, counted, rate * GB, off * GB) is None if counted else rate:
                raise log.error(line, f"{cells[0]} ms are not {size} bytes at {rate:g} GB/s")
            rows.append(Row(line, "transfer", size, seconds, copy_options(key[0], method)))
    if rates:
        raise log.error(len(log.lines), f"no time for {count_of(len(rates), 'bandwidth')}: the log is cut")
    said: dict[str, Any] = {"gpus": [{"name": printable(card[1].strip())}] if card else [], "num_nodes": 1}
    return [log.profile(rows, "hipBusBandwidth", "hip", 1, (), {"statistic": "median"}, **said)]


def matrix(log: Log, line: int, square: bool) -> tuple[dict[tuple[int, int], tuple[int, str]], int]:
    """Return the cells of a matrix whose header, numbers of its columns, is on that line, and the line after it."""
    columns = [word for word in log.lines[line - 1].split() if word.isdigit()]
    cells: dict[tuple[int, int], tuple[int, str]] = {}
    rows = list[str]()
    line += 1
    while line <= len(log.lines) and (len(rows) < len(columns) if square else not rows):
        words = log.lines[line - 1].split()
        if words:
            if words[0] != (columns[len(rows)] if square else "0") or len(words) != len(columns) + 1:
                raise log.error(
                    line, f"must be row {len(rows)} of {len(columns)} columns, got {' '.join(words)[:80]!r}"
                )
            rows.append(words[0])
            for column, word in zip(columns, words[1:], strict=True):
                cells[int(words[0]), int(column)] = line, word
        line += 1
    if not columns or len(rows) != (len(columns) if square else 1):
        raise log.error(line - 1, "the matrix is cut")
    return cells, line


_TEST = re.compile(r"(host_to_device|device_to_host|device_to_device)(_bidirectional)?_memcpy(_read|_write)?_(ce|sm)")


def nv_rows(log: Log, test: str, how: str, cells: Mapping[tuple[int, int], tuple[int | str, str]]) -> list[Row]:
    """The rows of a test of nvbandwidth; a way in which several copies go at once has the test's name."""
    if "latency" in test or "(ns)" in how:
        return []
    found, rows = _TEST.fullmatch(test), []
    for (row, column), (line, text) in cells.items():
        on_gpus = "GPU(row)" in how
        if text == "N/A" or (on_gpus and row == column):
            continue
        method = ("" if found[4] == "ce" else "sm") if found else test
        if on_gpus:
            src, dst = (column, row) if "<- " in how else (row, column)
            method = " ".join(filter(None, [(found[3] or "").strip("_"), method])) if found else test
            options = copy_options("p2p", method or "device", bool(found and found[2]), src=src, dst=dst)
        elif test == "device_local_copy":
            options = copy_options("d2d", "device", gpu=column)
        else:
            direction = "d2h" if re.match("device_to_host|all_to_host", test) else "h2d"
            options = copy_options(direction, method or "pinned", bool(found and found[2]), gpu=column)
        rows.append(at_rate(log, line, log.number(line, text) * GB, options))
    return rows


def nvbandwidth(log: Log) -> list[Profile]:
    """nvbandwidth's text or JSON: GB/s of each GPU, or from each to each, of buffers whose size it does not print."""
    rows: list[Row] = []
    cards: list[dict[str, str]] = []
    left_out, program, num_gpus = list[str](), "nvbandwidth", 0

    def add(
        test: str, how: str, cells: Mapping[tuple[int, int], tuple[int | str, str]], total: tuple[int | str, float]
    ) -> None:
        nonlocal num_gpus
        some = nv_rows(log, test, how, cells)
        num_gpus = max(num_gpus, 1 + max(column for _, column in cells))
        if not some:
            left_out.append(test)
        values = [log.number(line, text) for line, text in cells.values() if text != "N/A"]
        off = sum(half_unit(text) for _, text in cells.values() if text != "N/A") + 0.01
        if not math.isnan(total[1]) and abs(sum(values) - total[1]) > off:
            raise log.error(total[0], f"the sum of {test} is {total[1]:g}, and that of its cells {sum(values):g}")
        rows.extend(some)

    if log.text.lstrip().startswith("{"):
        found = log.json()
        try:
            found = found["nvbandwidth"]
            program = f"nvbandwidth {found.get('git_version', found.get('version', ''))}".strip()
            driver = {"driver": printable(str(found["Driver Version"]))} if "Driver Version" in found else {}
            for name in found.get("GPU Device list", ()):
                cards.append({"name": printable(name.split(": ", 1)[1].rsplit(" (", 2)[0])} | driver)
            for one in found["testcases"]:
                if "bandwidth_matrix" in one:
                    cells = {
                        (row, column): (one["name"], str(text))
                        for row, some in enumerate(one["bandwidth_matrix"])
                        for column, text in enumerate(some)
                    }
                    total = float(one["sum"]) if "sum" in one else math.nan
                    add(one["name"], one["bandwidth_description"], cells, (one["name"], total))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise log.error(1, f"not what nvbandwidth writes: {error!r}") from error
    else:
        test, how = "", ""
        version: dict[str, str] = {}
        for line, text in enumerate(log.lines, 1):
            if found := re.match(r"\s*Running (\w+)\.", text):
                test, how = found[1], ""
            elif re.search(r"[CG]PU\((?:row|column)\)", text):
                how = text
                below = next((at for at in range(line, len(log.lines)) if log.lines[at].strip()), line)
                cells, after = matrix(log, below + 1, "GPU(row)" in how)
                sums = re.match(rf"\s*SUM {test} ([\d.]+)", "\n".join(log.lines[after - 1 : after + 1]))
                if not test:
                    raise log.error(line, "a matrix without the name of its test above")
                add(test, how, dict(cells), (after, float(sums[1]) if sums else math.nan))
            elif found := re.match(r"\s*(?:Device|GPU) (\d+): (.+?) \(", text):
                cards.append({"name": printable(found[2])})
            elif found := re.search(r"Driver Version: ([\d.]+)", text):
                version = {"driver": found[1]}
        cards = [card | version for card in cards]
    notes = [_SIZE_NOTE, *([f"left out, being no copies: {', '.join(left_out)}"] if left_out else [])]
    said: dict[str, Any] = {"gpus": cards if len(cards) == num_gpus else [], "num_nodes": 1}
    return [log.profile(rows, program, "cuda", num_gpus or 1, notes, **said)]


def p2p_test(log: Log) -> list[Profile]:
    """CUDA's p2pBandwidthLatencyTest: GB/s from GPU to GPU; of both ways at once it prints the sum."""
    rows, cards, number = [], [], 0
    for line, text in enumerate(log.lines, 1):
        if found := re.match(r"\s*Device: (\d+), (.+?), pciBusID", text):
            cards.append({"name": printable(found[2])})
        elif found := re.search(r"(Uni|Bi)directional P2P=(En|Dis)abled Bandwidth.*\(GB/s\)", text):
            both = found[1] == "Bi"
            cells, _ = matrix(log, line + 1, True)
            for (src, dst), (at, word) in cells.items():
                way = "d2d" if src == dst else "p2p" if found[2] == "En" else "through_host"
                ends = {"gpu": src} if src == dst else {"src": src, "dst": dst}
                rate = log.number(at, word) * GB / (1 + both)
                rows.append(at_rate(log, at, rate, copy_options(way, "device", both, **ends)))
                number = max(number, src + 1)
    notes = [_SIZE_NOTE, "of both ways at once the log has the sum, of which half is one way's"]
    return [log.profile(rows, "p2pBandwidthLatencyTest", "cuda", number or 1, notes, gpus=cards, num_nodes=1)]


def rocm_bandwidth_test(log: Log) -> list[Profile]:
    """rocm_bandwidth_test: the peak GB/s from row to column, processors among them; of both ways at once the sum."""
    rows, names = [], dict[int, tuple[str, bool]]()
    for line, text in enumerate(log.lines, 1):
        if found := re.match(r"\s*Device: (\d+), *([^,]+)(.*)", text):
            names[int(found[1])] = printable(found[2].strip()), "," in found[3]
        elif found := re.search(r"(Uni|B)i?directional copy peak bandwidth GB/s", text):
            both = found[1] == "B"
            below = next((at for at in range(line, len(log.lines)) if log.lines[at].strip()), line)
            cells, _ = matrix(log, below + 1, True)
            gpus = [place for place, (_, is_gpu) in names.items() if is_gpu]
            for (src, dst), (at, word) in cells.items():
                if src not in names or dst not in names:
                    raise log.error(at, f"device {src if src not in names else dst} is not listed above")
                if word == "N/A" or (src not in gpus and dst not in gpus):
                    continue
                ends = {name: gpus.index(one) for name, one in (("src", src), ("dst", dst)) if one in gpus}
                way = "h2d" if "src" not in ends else "d2h" if "dst" not in ends else "d2d" if src == dst else "p2p"
                method = "pinned" if way in ("h2d", "d2h") else "device"
                ends = (
                    ends
                    if way == "p2p"
                    else {"gpu": max(ends.values()), "host": min(src, dst)}
                    if method == "pinned"
                    else {"gpu": ends["src"]}
                )
                rows.append(
                    at_rate(log, at, log.number(at, word) * GB / (1 + both), copy_options(way, method, both, **ends))
                )
    cards = [{"name": name} for name, is_gpu in names.values() if is_gpu]
    notes = [_SIZE_NOTE, "of both ways at once the log has the sum, of which half is one way's"]
    said: dict[str, Any] = {
        "cpu": next((name for name, is_gpu in names.values() if not is_gpu), ""),
        "gpus": cards,
        "num_nodes": 1,
    }
    return [log.profile(rows, "rocm_bandwidth_test", "hip", max(1, len(cards)), notes, **said)]


_COPY = re.compile(
    r"(cpu|gpu_all|gpu\d+)_(to|and)_(cpu|gpu_all|gpu\d+)(?:_(read|write))?_by_(sm|dma)(?:_under_numa(\d+))?$"
)


def gpu_copy(log: Log) -> list[Profile]:
    """superbench's gpu_copy: a name of a copy and GB/s; what several copies do at once has its name as method."""
    rows, gpus = [], set[int]()
    for line, text in enumerate(log.lines, 1):
        words = text.split()
        if len(words) == 2 and (found := _COPY.match(words[0])):
            src, to, dst, reads, engine, numa = found.groups()
            ends = [int(one[3:]) if one[3:].isdigit() else None for one in (src, dst)]
            gpus |= {one for one in ends if one is not None}
            way = "h2d" if src == "cpu" else "d2h" if dst == "cpu" else "d2d" if src == dst else "p2p"
            method = {"dma": "pinned" if "cpu" in (src, dst) else "device", "sm": "sm"}[engine]
            at_once = to == "and" or "gpu_all" in (src, dst)
            method = words[0] if at_once else " ".join(filter(None, [reads, method.replace("device", "")])) or method
            more: dict[str, Any] = {"src": ends[0], "dst": ends[1]} if way == "p2p" and not at_once else {}
            if way != "p2p" and not at_once:
                more = {"gpu": next(one for one in ends if one is not None)}
            more |= {"numa": int(numa)} if numa else {}
            rate = log.number(line, words[1]) * GB
            rows.append(at_rate(log, line, rate, copy_options(way, method, to == "and", **more)))
        elif re.search(r"_by_(?:sm|dma)", text):
            raise log.error(line, f"must be a copy and its GB/s, got {text.strip()[:80]!r}")
    return [log.profile(rows, "superbench gpu_copy", "cuda", max(1, len(gpus)), [_SIZE_NOTE], num_nodes=1)]


def pageable_pinned(log: Log) -> list[Profile]:
    """A table of copies both ways from pageable and pinned memory in GB/s, as CSV or text, with gains beside them."""
    ways = [(direction, method) for method in ("pageable", "pinned") for direction in ("h2d", "d2h")]
    card = re.search(r"CUDA Device: (.+)", log.text)
    columns = ("bytes", *(f"{direction}_{method}_gbps" for direction, method in ways))
    table = [(line, [cell[name] for name in columns]) for line, cell in log.table(columns)]
    is_text = "H2D Page" in log.text
    for line, text in enumerate(log.lines, 1) if is_text else ():
        cells = text.split()
        if cells and cells[0].isdigit():
            if len(cells) != 7:
                raise log.error(line, f"must be a size, four bandwidths and two gains, got {text.strip()[:80]!r}")
            table.append((line, cells))
    rows, unread = [], 0
    for line, cells in table:
        size, *rates = whole_of(log, line, cells[0]), *(log.number(line, cell) for cell in cells[1:])
        for place, gain in enumerate(rates[4:]):
            plain, pinned = rates[place], rates[place + 2]
            off = half_unit(cells[1])
            if (
                plain > off
                and not (pinned - off) / (plain + off) - 1e-3 <= gain <= (pinned + off) / (plain - off) + 1e-3
            ):
                raise log.error(line, f"a gain of {gain:g} is not {pinned:g} GB/s over {plain:g}")
        for (direction, method), rate in zip(ways, rates, strict=False):
            if rate == 0 and is_text:
                unread += 1  # less than can be printed
            else:
                rows.append(at_rate(log, line, rate * GB, copy_options(direction, method), size))
    notes = [f"left out: {count_of(unread, 'bandwidth')} printed as 0.000"] if unread else []
    said: dict[str, Any] = {"gpus": [{"name": printable(card[1].strip())}] if card else [], "num_nodes": 1}
    return [log.profile(rows, "a table of pageable and pinned copies", "cuda", 1, notes, **said)]


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
    if kind is not None:
        one_of("kind", kind, tuple(READERS))
    if num_ranks is not None:
        whole("num_ranks", num_ranks, 1, 1 << 20)
    log = Log(path, num_ranks)
    found = {}
    for name, (marks, _) in READERS.items():
        places = [place for mark in marks if (place := log.text.find(mark)) >= 0]
        if places:
            found[name] = log.text.count("\n", 0, min(places)) + 1
    if kind is None:
        if len(found) != 1:
            what = (
                f"has logs of {' and '.join(found)}: name one of these kinds"
                if found
                else f"no log of {', '.join(READERS)}"
            )
            raise log.error(max(found.values(), default=1), what)
        (kind,) = found
    try:
        profiles = READERS[kind][1](log)
    except StorageError:
        raise
    except ValueError as error:  # of a profile as a whole
        raise log.error(1, error) from error
    if not profiles:
        raise log.error(len(log.lines), f"{kind} printed no row")
    return profiles


_ONE_MACHINE = ("backend", "num_ranks", "num_nodes", "ranks_per_node", "gpus", "environment", "device")


def merged(profiles: Sequence[Profile], name: str) -> Profile:
    """Return one profile of what several logs of one machine say; raises ValueError where they are of several."""
    first = profiles[0]
    rows, notes, programs = list[Row](), list[str](), list[str]()
    for one in profiles:
        if told := difference(first.provenance, one.provenance, _ONE_MACHINE):
            raise ValueError(f"these are of several machines, or of one in several ways: {told}")
        if told := difference(first.protocol, one.protocol, ("dtype",)):
            raise ValueError(f"these were measured in several ways: {told}")
        source = one.provenance["source"]
        programs.append(source["program"])
        notes += [source["notes"]] if "notes" in source else []
        rows += [Row("", p.what, p.num_bytes, seconds, p.options) for p in one.points for seconds in p.seconds]
    about, protocol = (
        {key: value for key, value in part.items() if all(dict(other).get(key) == value for other in others)}
        for part, others in (
            (first.provenance, [one.provenance for one in profiles]),
            (first.protocol, [one.protocol for one in profiles]),
        )
    )
    source = {"program": ", ".join(dict.fromkeys(programs))} | (
        {"notes": "; ".join(dict.fromkeys(notes))} if notes else {}
    )
    return Profile({**about, "name": name, "source": source}, protocol, points_of(rows))
