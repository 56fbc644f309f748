"""Logs of other programs that time collectives and messages: OSU, all_reduce_bench, and published tables."""

from __future__ import annotations

import re
from typing import Any

from ..profile import Profile, busbw_factor
from .log import GB, NATIVE_OUT, SLACK, Log, Times, half_unit

_IN_PLACE = NATIVE_OUT | {"in_place": True}
_OSU = {  # by the name in a title: the collective, and whether the size is one rank's share
    "all-to-all personalized": ("all_to_all", True),
    **{name: (name, name == "allgather") for name in ("allreduce", "allgather", "reduce_scatter", "broadcast")},
    **{name: (name, name != "reduce") for name in ("scatter", "gather", "reduce")},
    "bandwidth": ("transfer", False),
    "latency": ("ping_pong", False),
}
# The command that started an OSU benchmark, and its nodes, ranks per node and ranks.
_LAUNCHER = re.compile(r"srun|mpirun|mpiexec")
_RUN = (
    re.compile(r"(?:-N|--nodes[= ]) ?(\d+)"),
    re.compile(r"--ntasks-per-node[= ](\d+)"),
    re.compile(r"(?:-n|-np|--ntasks[= ]) ?(\d+)\b"),
)
_OSU_ON_GPU = re.compile(r"MPI-(?:CUDA|ROCM) |on DEVICE \(D\) and")
_OSU_PAIRS = re.compile(r"pairs: (\d+)")
_OSU_HEADER = re.compile(r"^\s*# *Size\b")
_OSU_UNIT = re.compile(r"\(us\)|MB/s")
_OSU_ROW = re.compile(r"^\s*\d+\s+[\d.]+(?:\s|$)")
_GAP = re.compile(r"\s{2,}")
_BENCH_RANKS = re.compile(r"over (\d+) ranks \((\d+) warmups / (\d+) trials")
_BENCH_MARK = re.compile(r"GBps \|")
_BENCH_SIZE = re.compile(r"^([\d._]+)\s*([KMGT]?)i?B?$")
_BENCH_RATE = re.compile(r"^([\d.]+) ?GBps$")
_TRIAL_LABEL = re.compile(r"^\s*(\d{1,7}):\s*$")
_TRIAL_FIGURES = ("data size", "duration", "throughput", "busbw")
_TRIAL_FIGURE = re.compile(rf"({'|'.join(_TRIAL_FIGURES)}): ([\d.]+)")


def osu(log: Log) -> list[Profile]:
    """OSU micro-benchmarks: latencies in µs, bandwidths in MB/s (10⁶), between two ranks, pairs or all ranks."""
    starts = [line for line, text in enumerate(log.lines, 1) if "# OSU " in text]
    return [_osu_table(log, start, end) for start, end in zip(starts, [*starts[1:], len(log.lines) + 1], strict=True)]


def _osu_table(log: Log, start: int, end: int) -> Profile:
    title = log.lines[start - 1].partition("# OSU ")[2].strip()
    what, is_share = next((found for word, found in _OSU.items() if word in title.lower()), ("", False))
    log.check(what, start, f"no benchmark of OSU's that is known: {title!r}")
    text, above = "\n".join(log.lines[start - 1 : end - 1]), "\n".join(log.lines[max(0, start - 8) : start - 1])
    on_gpu = bool(_OSU_ON_GPU.search(text))
    named = _OSU_PAIRS.search(text)
    run = above if _LAUNCHER.search(above) else ""
    nodes, each, ranks = (_first_number(pattern, run) for pattern in _RUN)
    if "srun" not in run:  # -N of mpirun means something else
        nodes = 0
    pairs, times = int(named[1]) if named else 1, Times(log)
    log.check(pairs, start, "there must be a pair of ranks")
    number = ranks or nodes * each or log.num_ranks or 0
    if what in ("transfer", "ping_pong"):
        number = 2 * pairs
        if "Multi" in title and not named:
            times.notes.append("the number of pairs is not stated: ranks are those of one")
    log.check(number, start, "the number of ranks is not stated")
    both, link = "Bi-Directional" in title, {1: "intra", number: "inter"}.get(nodes)
    more: dict[str, Any] = {"pairs": pairs if pairs > 1 else None, "link": link}
    more = {key: value for key, value in more.items() if value}
    columns, last = list[str](), -1
    for line, row in enumerate(log.lines[start : end - 1], start + 1):
        if _OSU_HEADER.search(row):
            columns = _GAP.split(row.strip("# "))
            fits = len(columns) > 1 and bool(_OSU_UNIT.search(columns[1]))
            log.check(fits, line, f"the header must have sizes and µs or MB/s, got {row.strip()[:80]!r}")
        elif _OSU_ROW.search(row):
            log.check(columns, line, "a row above the header of its table")
            cells = row.split()
            words = f"must be a larger size with {', '.join(columns[1:])}; got {row.strip()[:80]!r}"
            log.check(len(cells) == len(columns) and int(cells[0]) > last, line, words)
            size = last = int(cells[0])
            named_cells = zip(columns, cells, strict=True)
            values = {name: log.number(line, cell, 0) for name, cell in named_cells if cell != "Pass"}
            value = values[columns[1]]
            low, high = (next((values[name] for name in values if word in name), value) for word in ("Min", "Max"))
            log.check(value and low <= value <= high, line, f"must be above 0, between least and most: {row.strip()!r}")
            if "Messages/s" in values:
                off = half_unit(cells[1]) * 1e6 / size + half_unit(cells[2])
                deviation = abs(value * 1e6 / size - values["Messages/s"])
                problem = f"{cells[1]} MB/s are not {cells[2]} messages of {size} bytes"
                times.agree(line, deviation, off, SLACK * values["Messages/s"], problem)
            if what == "transfer":
                rate = value * 1e6 / pairs / (1 + both)
                times.copy(line, "p2p" if on_gpu else "h2h", "mpi", rate, size, both=both, **more)
            else:
                options = more if what == "ping_pong" else NATIVE_OUT
                times.add(line, what, size * number if is_share else size, value / 1e6, options)
    log.check(columns, start, "the table has no header with sizes and µs or MB/s")
    how = {"statistic": "mean"} | ({"verified": True} if "Validation" in columns else {})
    return times.profile(f"OSU {title}", "mpi", number, how, what, num_nodes=nodes, device="cuda" if on_gpu else "")


def _first_number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0


def all_reduce_bench(log: Log) -> list[Profile]:
    """all_reduce_bench.py with NCCL: its tables (1 KiB is 1024 bytes), or, in old versions, the trials of each rank."""
    found, times = _BENCH_RANKS.search(log.text), Times(log)
    how: dict[str, Any] = {"statistic": "mean", "dtype": "float32"}
    number = log.num_ranks or 0
    if found:
        number = int(found[1])
        how |= {"warm_up": int(found[2]), "iterations": int(found[3])}
    if "algo throughput" in log.text:
        how["statistic"] = "each rank's time of each trial"
        number = _bench_trials(log, times)
    else:
        _bench_table(log, times, number)
    return [times.profile("all_reduce_bench", "nccl", number, how, "allreduce")]


def _bench_table(log: Log, times: Times, number: int) -> None:
    for line, text in enumerate(log.lines, 1):
        if not _BENCH_MARK.search(text):
            continue
        size_words, bus_words, alg_words = _bench_row(log, line, text)
        log.check(number, line, "the number of ranks is not stated")
        factor = 1024 ** " KMGT".index(size_words[2] or " ")
        size = log.number(line, size_words[1].replace("_", "")) * factor
        bus, alg = log.number(line, bus_words), log.number(line, alg_words, 1e-9)
        share = busbw_factor("allreduce", number)
        rounding = half_unit(alg_words) * share + half_unit(bus_words)
        problem = f"busbw {bus_words} does not fit algbw {alg_words} on {number} ranks"
        times.agree(line, abs(alg * share - bus), rounding, SLACK * bus, problem)
        times.add(line, "allreduce", round(size), size / (alg * GB), _IN_PLACE)


def _bench_row(log: Log, line: int, text: str) -> tuple[re.Match[str], str, str]:
    """Return the size, busbw and algbw of a row `| 1MiB | 12.47GBps | 6.44GBps |`, whatever stands before it."""
    cells = [cell.strip() for cell in text.split("|")[1:-1]]
    for first, second, third in zip(cells, cells[1:], cells[2:], strict=False):
        size, bus, alg = _BENCH_SIZE.search(first), _BENCH_RATE.search(second), _BENCH_RATE.search(third)
        if size and bus and alg:
            return size, bus[1], alg[1]
    log.fail(line, f"the line is cut or malformed: {text.strip()[:80]!r}")


def _bench_trials(log: Log, times: Times) -> int:
    """Add the times that each rank printed and return the number of ranks; lines of ranks may be interleaved."""
    labels = {int(label[1]) for label in map(_TRIAL_LABEL.search, log.lines) if label}
    number, end = len(labels), len(log.lines)
    is_whole = number > 0 and labels == set(range(number))
    log.check(is_whole, end, f"trials are missing: of ranks there are {sorted(labels)[:20]}")
    printed: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in _TRIAL_FIGURES}
    for line, text in enumerate(log.lines, 1):
        found = _TRIAL_FIGURE.search(text)
        if found:
            printed[found[1]].append((log.number(line, found[2], 1e-9), half_unit(found[2]), line))
    sizes = {value for value, *_ in printed["data size"]}
    log.check(len(sizes) == 1, end, f"the trials must be of one size, got {sorted(sizes)} GB")
    num_bits = 2 * 8 * sizes.pop() * GB  # sent and received
    log.check(not len(printed["throughput"]) % number, end, "a trial of a rank is cut")
    rates = sorted(rate for rate, *_ in printed["throughput"])
    expected = {"duration": [num_bits / rate for rate in reversed(rates)]}
    expected["busbw"] = [rate * (number - 1) / number / 1e9 for rate in rates]
    for kind, figures in expected.items():
        log.check(len(printed[kind]) == len(rates), end, "a trial of a rank is cut")
        for (value, off, line), figure in zip(sorted(printed[kind]), figures, strict=True):
            times.agree(line, abs(value - figure), off, SLACK * figure, f"no throughput fits a {kind} of {value:g}")
    for rate, _, line in printed["throughput"]:
        times.add(line, "allreduce", round(num_bits / 16), num_bits / rate, _IN_PLACE)
    return number
