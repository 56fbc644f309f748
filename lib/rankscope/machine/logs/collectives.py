"""Logs of other programs that time collectives and messages: OSU, all_reduce_bench, and published tables."""

from __future__ import annotations

import math
import re
from typing import Any

from ...values.checks import count_of, printable
from ..profile import NATIVE, Profile, busbw_factor
from .log import COLLECTIVE, GB, MOST_CARDS, NATIVE_OUT, ROUNDING, TYPE_BYTES, Log, Times, between, half_unit

_IN_PLACE = NATIVE_OUT | {"in_place": True}
_OSU = {  # by the name in a title: the collective, and whether the size is one rank's share
    "all-to-all personalized": ("all_to_all", True),
    **{name: (name, name == "allgather") for name in ("allreduce", "allgather", "reduce_scatter", "broadcast")},
    **{name: (name, name != "reduce") for name in ("scatter", "gather", "reduce")},
    "bandwidth": ("transfer", False),
    "latency": ("ping_pong", False),
}
_RUN = (r"(?:-N|--nodes[= ]) ?(\d+)", r"--ntasks-per-node[= ](\d+)", r"(?:-n|-np|--ntasks[= ]) ?(\d+)\b")


def aiconfigurator(log: Log) -> list[Profile]:
    """Tables of nccl-tests in NVIDIA's AIConfigurator: sizes in elements, times in ms, out of place."""
    found: dict[tuple[str, ...], Times] = {}
    columns = ("version", "device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    for line, (version, device, name, dtype, gpus, elements, latency) in log.table(*columns):
        fits = name in COLLECTIVE and dtype in TYPE_BYTES and gpus.isdigit() and 0 < int(gpus) <= MOST_CARDS
        words = f"no collective, type, GPUs and elements: {name}, {dtype}, {gpus}, {elements}"
        log.check(fits and elements.isdigit(), line, words)
        times = found.setdefault((gpus, dtype, printable(device), printable(version)), Times(log))
        seconds = log.number(line, latency) / 1e3
        times.add(line, COLLECTIVE[name], int(elements) * TYPE_BYTES[dtype], seconds, NATIVE_OUT)
    profiles = []
    for (gpus, dtype, device, version), times in found.items():
        how, about = {"dtype": dtype, "statistic": "mean"}, {"gpus": [{"name": device, "nccl": version}] * int(gpus)}
        title = f"{gpus} GPUs, {dtype}"
        profiles.append(times.profile("aiconfigurator", "nccl", int(gpus), how, title, num_nodes=1, **about))
    return profiles


def pairs(log: Log) -> list[Profile]:
    """A table of nccl-tests for each pair of nodes in a fleet: one size per pair, out of place."""
    found: dict[tuple[str, int], Times] = {}
    measured = ("collective", "size_bytes", "time_oop_us", "busbw_oop_GBps")
    table = log.table("cluster", "gpus_per_node", "node_a", "node_b", *measured)
    for line, (cluster, gpus, src, dst, name, size, time, bus) in table:
        fits = name in COLLECTIVE and gpus.isdigit() and 0 < int(gpus) <= MOST_CARDS and size.isdigit()
        log.check(fits, line, f"no collective, GPUs and size: {name}, {gpus}, {size}")
        what, printed = COLLECTIVE[name], log.number(line, time, 1e-9)
        is_rounded = printed >= 1e7  # printed with two digits, as in 1.8e+07
        off = 0.05 * 10 ** math.floor(math.log10(printed)) if is_rounded else half_unit(time.removesuffix(".0"))
        scale = GB / (1.0 if what == "together" else busbw_factor(what, 2 * int(gpus)))
        rate, rate_off = log.number(line, bus, 1e-9) * scale, half_unit(bus) * scale
        seconds = between(printed / 1e6, off / 1e6, int(size), rate, rate_off)
        if seconds is None:
            log.fail(line, f"{bus} GB/s does not fit {size} bytes in {time} µs on {2 * int(gpus)} ranks")
        kind = {"link": "inter"} if what == "together" else {"algorithm": NATIVE}
        options = {**kind, "in_place": False, "src": src, "dst": dst}
        times = found.setdefault((cluster, int(gpus)), Times(log))
        times.add(line, what, int(size), seconds if is_rounded else printed / 1e6, options)
    profiles = []
    for (cluster, each), times in found.items():
        title, how = f"{cluster}, pairs of {count_of(each, 'GPU')}", {"statistic": "mean"}
        profiles.append(times.profile("nccl-tests", "nccl", 2 * each, how, title, ranks_per_node=[each, each]))
    return profiles


def osu(log: Log) -> list[Profile]:
    """OSU micro-benchmarks: latencies in µs, bandwidths in MB/s (10⁶), between two ranks, pairs or all ranks."""
    starts = [line for line, text in enumerate(log.lines, 1) if "# OSU " in text]
    return [_osu_table(log, start, end) for start, end in zip(starts, [*starts[1:], len(log.lines) + 1], strict=True)]


def _osu_table(log: Log, start: int, end: int) -> Profile:
    title = log.lines[start - 1].partition("# OSU ")[2].strip()
    what, is_share = next((found for word, found in _OSU.items() if word in title.lower()), ("", False))
    log.check(what, start, f"no benchmark of OSU's that is known: {title!r}")
    text, above = "\n".join(log.lines[start - 1 : end - 1]), "\n".join(log.lines[max(0, start - 8) : start - 1])
    on_gpu = bool(re.search(r"MPI-(?:CUDA|ROCM) |on DEVICE \(D\) and", text))
    named = re.search(r"pairs: (\d+)", text)
    run = above if re.search(r"srun|mpirun|mpiexec", above) else ""
    nodes, each, ranks = (int(found[1]) if (found := re.search(how, run)) else 0 for how in _RUN)
    nodes = nodes if "srun" in run else 0  # -N of mpirun means something else
    pairs, times = int(named[1]) if named else 1, Times(log)
    log.check(pairs, start, "there must be a pair of ranks")
    number = log.num_ranks or ranks or nodes * each
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
        if re.match(r"\s*# *Size\b", row):
            columns = re.split(r"\s{2,}", row.strip("# "))
            fits = len(columns) > 1 and bool(re.search(r"\(us\)|MB/s", columns[1]))
            log.check(fits, line, f"the header must have sizes and µs or MB/s, got {row.strip()[:80]!r}")
        elif re.match(r"\s*\d+\s+[\d.]+(\s|$)", row):
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
                fits = abs(value * 1e6 / size - values["Messages/s"]) <= off * ROUNDING
                log.check(fits, line, f"{cells[1]} MB/s are not {cells[2]} messages of {size} bytes")
            if what == "transfer":
                rate = value * 1e6 / pairs / (1 + both)
                times.copy(line, "p2p" if on_gpu else "h2h", "mpi", rate, size, both=both, **more)
            else:
                options = more if what == "ping_pong" else NATIVE_OUT
                times.add(line, what, size * number if is_share else size, value / 1e6, options)
    log.check(columns, start, "the table has no header with sizes and µs or MB/s")
    how = {"statistic": "mean"} | ({"verified": True} if "Validation" in columns else {})
    return times.profile(f"OSU {title}", "mpi", number, how, what, num_nodes=nodes, device="cuda" if on_gpu else "")


def all_reduce_bench(log: Log) -> list[Profile]:
    """all_reduce_bench.py with NCCL: its tables (1 KiB is 1024 bytes), or, in old versions, the trials of each rank."""
    found, times = re.search(r"over (\d+) ranks \((\d+) warmups / (\d+) trials", log.text), Times(log)
    how: dict[str, Any] = {"statistic": "mean", "dtype": "float32"}
    number = log.num_ranks or (int(found[1]) if found else 0)
    if found:
        how |= {"warm_up": int(found[2]), "iterations": int(found[3])}
    if "algo throughput" in log.text:
        how["statistic"] = "each rank's time of each trial"
        number = _bench_trials(log, times)
    else:
        _bench_table(log, times, number)
    return [times.profile("all_reduce_bench", "nccl", number, how, "allreduce")]


def _bench_table(log: Log, times: Times, number: int) -> None:
    row = r"\|\s*([\d._]+)\s*([KMGT]?)i?B?\s*\|\s*([\d.]+) ?GBps\s*\|\s*([\d.]+) ?GBps\s*\|"
    for line, found in log.rows(row, r"GBps \|"):
        log.check(number, line, "the number of ranks is not stated")
        size = log.number(line, found[1].replace("_", "")) * 1024 ** " KMGT".index(found[2] or " ")
        bus, alg = log.number(line, found[3]), log.number(line, found[4], 1e-9)
        share = busbw_factor("allreduce", number)
        fits = abs(alg * share - bus) <= (half_unit(found[4]) * share + half_unit(found[3])) * ROUNDING
        log.check(fits, line, f"busbw {found[3]} does not fit algbw {found[4]} on {number} ranks")
        times.add(line, "allreduce", round(size), size / (alg * GB), _IN_PLACE)


def _bench_trials(log: Log, times: Times) -> int:
    """Add the times that each rank printed and return the number of ranks; lines of ranks may be interleaved."""
    labels = {int(text.strip()[:-1]) for text in log.lines if re.fullmatch(r"\s*\d{1,7}:\s*", text)}
    number, end = len(labels), len(log.lines)
    is_whole = number > 0 and labels == set(range(number))
    log.check(is_whole, end, f"trials are missing: of ranks there are {sorted(labels)[:20]}")
    kinds = ("data size", "duration", "throughput", "busbw")
    printed: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in kinds}
    for line, text in enumerate(log.lines, 1):
        if found := re.search(rf"({'|'.join(kinds)}): ([\d.]+)", text):
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
            log.check(abs(value - figure) <= off * ROUNDING, line, f"no throughput fits a {kind} of {value:g}")
    for rate, _, line in printed["throughput"]:
        times.add(line, "allreduce", round(num_bits / 16), num_bits / rate, _IN_PLACE)
    return number
