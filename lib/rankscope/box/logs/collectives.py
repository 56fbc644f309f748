"""Logs of programs that time collectives and messages: OSU and all_reduce_bench."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import attrs

from ..profile import Profile, busbw_factor
from .log import GB, NATIVE_OUT, SLACK, Log, Times, half_unit

_IN_PLACE = NATIVE_OUT | {"in_place": True}  # as torch's all_reduce, which all_reduce_bench calls


class _OsuBenchmark(NamedTuple):
    """What an OSU benchmark measures, and whether its size is the share of one rank."""

    operation: str
    is_share: bool = False


_OSU = {  # by words of a title, of which the first that it contains counts
    "all-to-all personalized": _OsuBenchmark("all_to_all", is_share=True),
    "allreduce": _OsuBenchmark("allreduce"),
    "allgather": _OsuBenchmark("allgather", is_share=True),
    "reduce_scatter": _OsuBenchmark("reduce_scatter"),
    "broadcast": _OsuBenchmark("broadcast"),
    "scatter": _OsuBenchmark("scatter", is_share=True),
    "gather": _OsuBenchmark("gather", is_share=True),
    "reduce": _OsuBenchmark("reduce"),
    "bandwidth": _OsuBenchmark("transfer"),
    "latency": _OsuBenchmark("ping_pong"),
}
# Titles of benchmarks that measure something else, although they contain words of `_OSU`: with computation at the same
# time, between neighbours only, with a length for each pair of ranks, one-sided (MPI_Put and the like), or not of MPI.
_OSU_OTHER = re.compile(r"^(?!MPI[ -])|Non-blocking|Neighbor|All-to-All[vw]|One Sided", re.IGNORECASE)
_MOST_COMMAND_LINES = 7  # above a title, in which the command that started the benchmark may stand
_LAUNCHER = re.compile(r"srun|mpirun|mpiexec")
_NODES = re.compile(r"(?:-N|--nodes[= ]) ?(\d+)")
_RANKS_PER_NODE = re.compile(r"--ntasks-per-node[= ](\d+)")
_RANKS = re.compile(r"(?:-n|-np|--ntasks[= ]) ?(\d+)\b")
_OSU_GPU_BUILD = re.compile(r"MPI-(?:CUDA|ROCM) ")
_OSU_BUFFERS = re.compile(r"Send Buffer on (\w+) \(\w+\) and Receive Buffer on (\w+)")  # HOST, DEVICE or MANAGED
# Where the buffers are by the command, as in "osu_bw -d cuda H D": OSU 7.5 no longer prints it below the title.
_OSU_PLACES = re.compile(r"[ \t]([HDM])[DH]?[ \t]+([HDM])[DH]?(?!\S)")
_OSU_PAIRS = re.compile(r"pairs: (\d+)")
_OSU_HEADER = re.compile(r"^\s*# *Size\b")
_OSU_UNIT = re.compile(r"\(us\)|MB/s")
_OSU_ROW = re.compile(r"^\s*\d+\s+[\d.]+(?:\s|$)")
_GAP = re.compile(r"\s{2,}")  # between the names of columns, such as "Avg Latency(us)"
_BENCH_RANKS = re.compile(r"over (\d+) ranks \((\d+) warmups / (\d+) trials")
_BENCH_MARK = re.compile(r"GBps \|")
_BENCH_SIZE = re.compile(r"^([\d._]+)\s*([KMGT]?)i?B?$")
_BENCH_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BENCH_RATE = re.compile(r"^([\d.]+) ?GBps$")
_TRIAL_LABEL = re.compile(r"^\s*(\d{1,7}):\s*$")  # the line with a rank's number above its figures of a trial
_TRIAL_FIGURES = ("data size", "duration", "throughput", "busbw")
_TRIAL_FIGURE = re.compile(rf"({'|'.join(_TRIAL_FIGURES)}): ([\d.]+)")


def osu(log: Log) -> list[Profile]:
    """OSU micro-benchmarks: latencies in µs, bandwidths in MB/s (10⁶), between two ranks, pairs or all ranks."""
    starts = [line for line, text in enumerate(log.lines, 1) if "# OSU " in text]
    log.check(starts, 1, "not a log of osu: no line contains '# OSU '")
    ends = [*starts[1:], len(log.lines) + 1]  # a table ends where the next one starts
    read = []
    left_out = []
    for start, end in zip(starts, ends, strict=True):
        text = "\n".join(log.lines[start - 1 : end - 1])  # with its title
        table = _OsuTable(start, text, _osu_places(log, start, text))
        if table.places is not None and table.places.are_mixed:
            left_out.append(f"line {start} ({table.places.words})")
        else:
            read.append(table)
    reason = f"messages between the host and a GPU are not read: {', '.join(left_out)}"
    log.check(read, starts[0], reason)
    notes = [f"left out, because {reason}"] if left_out else []
    return [_osu_profile(log, table, notes) for table in read]


class _BufferPlaces(NamedTuple):
    """Whether the sender's and the receiver's buffers are on the host, and the words that say so."""

    sends_from_host: bool
    receives_on_host: bool
    words: str

    @property
    def are_mixed(self) -> bool:
        return self.sends_from_host != self.receives_on_host


class _OsuTable(NamedTuple):
    """A table: the line of its title, counted from 1; its text, with the title; and where the buffers of messages are.

    `places` is None if neither the table nor its command says it.
    """

    start: int
    text: str
    places: _BufferPlaces | None

    @property
    def is_on_gpu(self) -> bool:
        """Whether the buffers are on GPUs.

        A build for GPUs has a title that says so, also if it runs on the host's memory. Messages say where their
        buffers are, collectives do not.
        """
        if self.places is None:
            return _OSU_GPU_BUILD.search(self.text) is not None
        return not self.places.sends_from_host


@attrs.frozen
class _OsuRun:
    """What the lines above the rows of an OSU table state. `num_nodes` is 0 if it is not stated."""

    title: str
    benchmark: _OsuBenchmark
    num_ranks: int
    num_nodes: int
    pairs: int
    is_on_gpu: bool

    @property
    def is_bidirectional(self) -> bool:
        return "Bi-Directional" in self.title

    @property
    def message_options(self) -> dict[str, Any]:
        """The options of a message between pairs of ranks: their number, and the link, as far as they are known."""
        options: dict[str, Any] = {}
        if self.pairs > 1:
            options["pairs"] = self.pairs
        if self.num_nodes == self.num_ranks:
            options["link"] = "inter"
        elif self.num_nodes == 1:
            options["link"] = "intra"
        return options


def _osu_profile(log: Log, table: _OsuTable, notes: list[str]) -> Profile:
    """Return the profile of a table; `notes` are about the log."""
    times = Times(log)
    times.notes += notes
    run = _osu_run(times, table)
    columns: list[str] = []
    last_size = -1  # below any size, since sizes must rise from row to row
    _title, *lines = table.text.split("\n")
    for line, text in enumerate(lines, table.start + 1):
        if _OSU_HEADER.search(text):
            columns = _GAP.split(text.strip("# "))
            fits = len(columns) > 1 and bool(_OSU_UNIT.search(columns[1]))
            log.check(fits, line, f"the header must have sizes and µs or MB/s, got {text.strip()[:80]!r}")
        elif _OSU_ROW.search(text):
            log.check(columns, line, "a row above the header of its table")
            cells = text.split()
            words = f"must be a larger size with {', '.join(columns[1:])}; got {text.strip()[:80]!r}"
            log.check(len(cells) == len(columns) and int(cells[0]) > last_size, line, words)
            last_size = int(cells[0])
            _add_osu_row(times, run, line, columns, cells)
    log.check(columns, table.start, "the table has no header with sizes and µs or MB/s")
    how: dict[str, Any] = {"statistic": "mean"}
    if "Validation" in columns:  # `_add_osu_row` accepts no other word than "Pass" there
        how["verified"] = True
    return times.profile(
        f"OSU {run.title}",
        "mpi",
        run.num_ranks,
        how,
        run.benchmark.operation,
        num_nodes=run.num_nodes,
        device="cuda" if run.is_on_gpu else "",
    )


def _osu_run(times: Times, table: _OsuTable) -> _OsuRun:
    """Return what is stated above the rows: in the title, and in the command above it."""
    log = times.log
    start = table.start
    title = log.lines[start - 1].partition("# OSU ")[2].strip()
    benchmark = next((known for words, known in _OSU.items() if words in title.lower()), None)
    if benchmark is None or _OSU_OTHER.search(title):
        log.fail(start, f"no benchmark of OSU's that is known: {title!r}")
    command = _launch_command(log, start)
    num_nodes = 0
    if "srun" in command:  # -N of mpirun means something else
        num_nodes = _first_number(_NODES, command)
    stated_pairs = _OSU_PAIRS.search(table.text)
    pairs = int(stated_pairs[1]) if stated_pairs else 1
    log.check(pairs, start, "there must be a pair of ranks")
    if benchmark.operation in ("transfer", "ping_pong"):
        num_ranks = 2 * pairs
        if "Multi" in title and not stated_pairs:
            times.notes.append("the number of pairs is not stated, so one pair is assumed")
    else:
        num_ranks = _launched_ranks(log, command, num_nodes)
    log.check(num_ranks, start, "the number of ranks is not stated")
    return _OsuRun(title, benchmark, num_ranks, num_nodes, pairs, table.is_on_gpu)


def _osu_places(log: Log, start: int, text: str) -> _BufferPlaces | None:
    """Return where the buffers of a table of messages are; None if neither its text nor its command says it."""
    printed = _OSU_BUFFERS.search(text)
    if printed is not None:
        return _BufferPlaces(printed[1] == "HOST", printed[2] == "HOST", printed[0])
    by_command = list(_OSU_PLACES.finditer(_launch_command(log, start)))
    if not by_command:
        return None
    nearest = by_command[-1]  # to the title
    return _BufferPlaces(nearest[1] == "H", nearest[2] == "H", nearest[0].strip())


def _launch_command(log: Log, start: int) -> str:
    """Return the lines above line `start` if they launch ranks, with mpirun, srun or the like; otherwise "".

    They begin below the title of the table before, because a short table is all within these lines, and its command
    is another one.
    """
    title_index = start - 1
    lines = log.lines[max(0, title_index - _MOST_COMMAND_LINES) : title_index]
    for index, text in enumerate(lines):
        if "# OSU " in text:
            lines = lines[index + 1 :]
    command = "\n".join(lines)
    return command if _LAUNCHER.search(command) else ""


def _launched_ranks(log: Log, command: str, num_nodes: int) -> int:
    """Return the number of ranks as the command or, failing that, the caller states it; 0 if neither does."""
    num_ranks = _first_number(_RANKS, command)
    if num_ranks:
        return num_ranks
    ranks_per_node = _first_number(_RANKS_PER_NODE, command)
    if num_nodes and ranks_per_node:
        return num_nodes * ranks_per_node
    return log.num_ranks or 0


def _add_osu_row(times: Times, run: _OsuRun, line: int, columns: list[str], cells: list[str]) -> None:
    """Check a row and add its time; the first column is the size, and the second the time or bandwidth."""
    log = times.log
    size = int(cells[0])
    values: dict[str, float] = {}
    for name, cell in zip(columns, cells, strict=True):
        if cell != "Pass":  # the only word among the numbers, in the column "Validation"
            values[name] = log.number(line, cell, 0)
    value = values[columns[1]]
    # Benchmarks of collectives may also print the least and the most latency of any rank.
    least = next((values[name] for name in values if "Min" in name), value)
    most = next((values[name] for name in values if "Max" in name), value)
    text = log.lines[line - 1]
    log.check(value and least <= value <= most, line, f"must be above 0, between least and most: {text.strip()!r}")
    if "Messages/s" in values:
        _check_message_rate(times, line, size, cells[1], cells[columns.index("Messages/s")])
    operation = run.benchmark.operation
    if operation == "transfer":
        rate = value * 1e6 / run.pairs  # the program prints the sum of all pairs, and of both directions
        if run.is_bidirectional:
            rate /= 2
        direction = "p2p" if run.is_on_gpu else "h2h"
        times.copy(line, direction, "mpi", rate, size, both=run.is_bidirectional, **run.message_options)
        return
    if run.benchmark.is_share:
        size *= run.num_ranks
    options = run.message_options if operation == "ping_pong" else NATIVE_OUT
    times.add(line, operation, size, value / 1e6, options)


def _check_message_rate(times: Times, line: int, size: int, mb_per_s: str, messages_per_s: str) -> None:
    """Check that the printed bandwidth and the printed messages/s of this size agree."""
    log = times.log
    messages = log.number(line, messages_per_s)
    deviation = abs(log.number(line, mb_per_s) * 1e6 / size - messages)
    rounding = half_unit(mb_per_s) * 1e6 / size + half_unit(messages_per_s)
    problem = f"{mb_per_s} MB/s are not {messages_per_s} messages of {size} bytes"
    times.agree(line, deviation, rounding, SLACK * messages, problem)


def _first_number(pattern: re.Pattern[str], text: str) -> int:
    """Return the number that a pattern finds; 0 if it finds none."""
    match = pattern.search(text)
    return int(match[1]) if match else 0


def all_reduce_bench(log: Log) -> list[Profile]:
    """all_reduce_bench.py with NCCL: its tables (1 KiB is 1024 bytes), or, in old versions, the trials of each rank."""
    times = Times(log)
    how: dict[str, Any] = {"statistic": "mean", "dtype": "float32"}  # fixed in its source
    num_ranks = log.num_ranks or 0
    stated = _BENCH_RANKS.search(log.text)
    if stated:  # what the log states counts more than what the caller does
        num_ranks = int(stated[1])
        how |= {"warm_up": int(stated[2]), "iterations": int(stated[3])}
    if "algo throughput" in log.text:  # an old version, in which each rank prints its number
        how["statistic"] = "each rank's time of each trial"
        num_ranks = _bench_trials(log, times)
    else:
        _bench_table(log, times, num_ranks)
    return [times.profile("all_reduce_bench", "nccl", num_ranks, how, "allreduce")]


def _bench_table(log: Log, times: Times, num_ranks: int) -> None:
    """Check the rows of a table, whose rates are in GB/s, and add their times."""
    for line, text in enumerate(log.lines, 1):
        if not _BENCH_MARK.search(text):
            continue
        row = _bench_row(log, line, text)
        log.check(num_ranks, line, "the number of ranks is not stated")
        size = log.number(line, row.size.replace("_", "")) * _BENCH_UNITS[row.unit]
        busbw = log.number(line, row.busbw)
        algbw = log.number(line, row.algbw, 1e-9)
        factor = busbw_factor("allreduce", num_ranks)
        rounding = half_unit(row.algbw) * factor + half_unit(row.busbw)
        problem = f"busbw {row.busbw} does not fit algbw {row.algbw} on {num_ranks} ranks"
        times.agree(line, abs(algbw * factor - busbw), rounding, SLACK * busbw, problem)
        times.add(line, "allreduce", round(size), size / (algbw * GB), _IN_PLACE)


class _BenchRow(NamedTuple):
    """The printed numbers of a row; the unit is K, M, G, T or empty."""

    size: str
    unit: str
    busbw: str
    algbw: str


def _bench_row(log: Log, line: int, text: str) -> _BenchRow:
    """Return the numbers of a row `| 1MiB | 12.47GBps | 6.44GBps |`, whatever stands before it."""
    cells = [cell.strip() for cell in text.split("|")[1:-1]]  # without what is outside of the bars
    for first, second, third in zip(cells, cells[1:], cells[2:], strict=False):
        size = _BENCH_SIZE.search(first)
        busbw = _BENCH_RATE.search(second)
        algbw = _BENCH_RATE.search(third)
        if size and busbw and algbw:
            return _BenchRow(size[1], size[2], busbw[1], algbw[1])
    log.fail(line, f"the line is cut or malformed: {text.strip()[:80]!r}")


class _PrintedFigure(NamedTuple):
    value: float  # comes first, because figures are sorted by their values
    rounding: float  # half a unit of the last digit
    line: int


def _bench_trials(log: Log, times: Times) -> int:
    """Add the times that each rank printed and return the number of ranks; lines of ranks may be interleaved."""
    labels = {int(label[1]) for label in map(_TRIAL_LABEL.search, log.lines) if label}
    num_ranks = len(labels)
    end = len(log.lines)
    is_whole = num_ranks > 0 and labels == set(range(num_ranks))
    log.check(is_whole, end, f"trials are missing: of ranks there are {sorted(labels)[:20]}")
    printed = _trial_figures(log)
    sizes = {figure.value for figure in printed["data size"]}
    log.check(len(sizes) == 1, end, f"the trials must be of one size, got {sorted(sizes)} GB")
    num_bytes = sizes.pop() * GB
    num_bits = 2 * 8 * num_bytes  # that the program counts: sent and received
    throughputs = printed["throughput"]
    log.check(len(throughputs) % num_ranks == 0, end, "a trial of a rank is cut")
    rates = sorted(figure.value for figure in throughputs)  # bits/s
    # Lines of ranks are interleaved, so nobody can tell which figures belong together: compare them in rising order.
    durations_s = [num_bits / rate for rate in reversed(rates)]
    # A bus bandwidth is 2 (n - 1) / n of the buffer per second. The rates count both directions, so they have the 2.
    busbws = [rate * (num_ranks - 1) / num_ranks / 1e9 for rate in rates]  # Gbit/s
    for kind, expected in (("duration", durations_s), ("busbw", busbws)):
        log.check(len(printed[kind]) == len(rates), end, "a trial of a rank is cut")
        for figure, value in zip(sorted(printed[kind]), expected, strict=True):
            problem = f"no throughput fits a {kind} of {figure.value:g}"
            times.agree(figure.line, abs(figure.value - value), figure.rounding, SLACK * value, problem)
    for figure in throughputs:
        times.add(figure.line, "allreduce", round(num_bytes), num_bits / figure.value, _IN_PLACE)
    return num_ranks


def _trial_figures(log: Log) -> dict[str, list[_PrintedFigure]]:
    """Return all printed figures of trials by their kind."""
    printed: dict[str, list[_PrintedFigure]] = {kind: [] for kind in _TRIAL_FIGURES}
    for line, text in enumerate(log.lines, 1):
        figure = _TRIAL_FIGURE.search(text)
        if figure:
            kind, number = figure.groups()
            printed[kind].append(_PrintedFigure(log.number(line, number, 1e-9), half_unit(number), line))
    return printed
