"""Readers of logs that only the bank of machines is made from; `rankscope import` reads the usual programs.

`read` recognises these and what `rankscope.box.read_log` reads.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator

from rankscope.box import Profile
from rankscope.box.logs import READERS, LogReader, Readers, read_by
from rankscope.box.logs.copies import SUM_NOTE, matrix, route
from rankscope.box.logs.log import COLLECTIVE, GB, MOST_CARDS, NATIVE_OUT, SLACK, TYPE_BYTES, Log, Times, half_unit
from rankscope.box.profile import NATIVE, busbw_factor
from rankscope.common.checks import count_of, printable

_ROCM_DEVICE = re.compile(r"^\s*Device: (\d+), *([^,]+)(,?)")
_ROCM_TITLE = re.compile(r"(Uni|B)i?directional copy peak bandwidth GB/s")
_ROCM_MARK = re.compile(r"copy peak bandwidth")
_GPU_COPY_END = r"(cpu|gpu_all|gpu\d+)"
_GPU_COPY_ROW = re.compile(
    rf"^\s*({_GPU_COPY_END}_(to|and)_{_GPU_COPY_END}(?:_(read|write))?_by_(sm|dma)(?:_under_numa(\d+))?)\s+([\d.]+)\s*$"
)
_GPU_COPY_MARK = re.compile(r"_by_(?:sm|dma)")
_SHMOO_ROW = re.compile(
    r"-(H2D|D2H|D2D)(?:-(Pinned|Paged))?, Bandwidth = ([\d.]+) ([GM])B/s, Time = ([\d.]+) s, Size = (\d+) bytes"
)
_SHMOO_MARK = re.compile(r"bandwidthTest-")
_TITLE = re.compile(r"(Host|Device) to (Host|Device) Bandwidth,|(PINNED|PAGEABLE) Memory|Bandwidth\(([GM])B/s\)")
_SIZE_AND_RATE = re.compile(r"^\s*\d+\s+\d")
_CUDA_DEVICE = re.compile(r"Device \d+: (.+)")
_HIP_FIGURES = 5 * r"\s+([\d.]+)"
_HIP_ROW = re.compile(
    r"([HD]2[HD])_(Bandwidth|Time)_?(pinned|pageable|unpinned)\s+\+?(\d+)(By|kB|MB)\s+(?:GB/sec|ms)"
    rf"{_HIP_FIGURES}\s*$"
)
_HIP_MARK = re.compile(r"[HD]2[HD]_(?:Bandwidth|Time)")
_GAINS_ROW = re.compile(r"^\s*(\d+)" + 6 * r"\s+(\d+\.\d+)" + r"\s*$")
_GAINS_MARK = re.compile(r"^\s*\d")
_QUADRO_DEVICE = re.compile(r"CUDA Device: (.+)")
_GAIN_OFF = 1e-3  # gains are printed with three digits after the point


def _csv_rows(log: Log, *columns: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and these cells of each CSV row; the header must have at least these columns."""
    names: list[str] = []
    for line, text in enumerate(log.lines, 1):
        cells = [cell.strip() for cell in text.split(",")]
        if set(columns) <= set(cells):
            names = cells
        elif names and text.strip():
            fits = len(cells) == len(names) and all(cells)
            log.check(fits, line, f"must have {count_of(len(names), 'value')}, got {text[:80]!r}")
            yield line, [cells[names.index(name)] for name in columns]


def aiconfigurator(log: Log) -> list[Profile]:
    """Tables of nccl-tests in NVIDIA's AIConfigurator: sizes in elements, times in ms, out of place."""
    found: dict[tuple[str, ...], Times] = {}
    columns = ("version", "device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    for line, (version, device, name, dtype, gpus, elements, latency) in _csv_rows(log, *columns):
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
    table = _csv_rows(log, "cluster", "gpus_per_node", "node_a", "node_b", *measured)
    for line, (cluster, gpus, src, dst, name, size, time, bus) in table:
        fits = name in COLLECTIVE and gpus.isdigit() and 0 < int(gpus) <= MOST_CARDS and size.isdigit()
        log.check(fits, line, f"no collective, GPUs and size: {name}, {gpus}, {size}")
        what, printed = COLLECTIVE[name], log.number(line, time, 1e-9)
        is_rounded = printed >= 1e7  # printed with two digits, as in 1.8e+07
        off = 0.05 * 10 ** math.floor(math.log10(printed)) if is_rounded else half_unit(time.removesuffix(".0"))
        scale = GB / (1.0 if what == "together" else busbw_factor(what, 2 * int(gpus)))
        rate, rate_off = log.number(line, bus, 1e-9) * scale, half_unit(bus) * scale
        times = found.setdefault((cluster, int(gpus)), Times(log))
        problem = f"{bus} GB/s does not fit {size} bytes in {time} µs on {2 * int(gpus)} ranks"
        seconds = times.fitting_s(line, printed / 1e6, off / 1e6, int(size), rate, rate_off, problem)
        kind = {"link": "inter"} if what == "together" else {"algorithm": NATIVE}
        options = {**kind, "in_place": False, "src": src, "dst": dst}
        times.add(line, what, int(size), seconds if is_rounded else printed / 1e6, options)
    profiles = []
    for (cluster, each), times in found.items():
        title, how = f"{cluster}, pairs of {count_of(each, 'GPU')}", {"statistic": "mean"}
        profiles.append(times.profile("nccl-tests", "nccl", 2 * each, how, title, ranks_per_node=[each, each]))
    return profiles


def rocm_bandwidth_test(log: Log) -> list[Profile]:
    """rocm_bandwidth_test: peak GB/s from row to column, CPUs included; for both directions at once the sum."""
    listed = [match.groups() for match in map(_ROCM_DEVICE.search, log.lines) if match]
    names = {int(place): printable(name.strip()) for place, name, _ in listed}
    gpu_of = {int(place): gpu for gpu, place in enumerate(place for place, _, comma in listed if comma)}
    times = Times(log)
    for line, found in log.rows(_ROCM_TITLE, _ROCM_MARK):
        both = found[1] == "B"
        for (src, dst), (at, text) in matrix(log, line, True).cells.items():
            log.check(src in names and dst in names, at, "a device that is not listed above")
            if text == "N/A" or not {src, dst} & set(gpu_of):
                continue
            way, method, ends = route(gpu_of.get(src), gpu_of.get(dst))
            if method == "pinned":
                ends["host"] = dst if src in gpu_of else src
            times.copy(at, way, method, log.number(at, text) * GB / (1 + both), both=both, **ends)
    times.notes.append(SUM_NOTE)
    cpu = next((name for place, name in names.items() if place not in gpu_of), "")
    gpus = [{"name": names[place]} for place in gpu_of]
    return [times.profile("rocm_bandwidth_test", "hip", max(1, len(gpus)), cpu=cpu, gpus=gpus, num_nodes=1)]


def gpu_copy(log: Log) -> list[Profile]:
    """superbench's gpu_copy: the name of a copy and GB/s; for several copies at once the name becomes the method."""
    times = Times(log)
    for line, found in log.rows(_GPU_COPY_ROW, _GPU_COPY_MARK):
        src, dst = (
            None if one == "cpu" else int(one[3:]) if one[3:].isdigit() else one for one in (found[2], found[4])
        )
        way, method, ends = route(src, dst)
        method = " ".join(filter(None, [found[5], "sm" if found[6] == "sm" else ""])) or method
        if found[3] == "and" or "gpu_all" in (src, dst):
            times.gpus |= {one for one in (src, dst) if isinstance(one, int)}
            method, ends = found[1], {}
        if found[7]:
            ends["numa"] = int(found[7])
        times.copy(line, way, method, log.number(line, found[8]) * GB, both=found[3] == "and", **ends)
    return [times.profile("superbench gpu_copy", "cuda", max(1, len(times.gpus)), num_nodes=1)]


def bandwidth_test(log: Log) -> list[Profile]:
    """CUDA's bandwidthTest: shmoo, default or CSV output; its MB are 2²⁰ bytes, its GB 10⁹."""
    units, times = {"M": 2**20, "G": GB}, Times(log)
    for line, found in log.rows(_SHMOO_ROW, _SHMOO_MARK):
        way, memory, rate, unit, time, size = found.groups()
        value, off = log.number(line, rate, 1e-9) * units[unit], half_unit(rate) * units[unit]
        problem = f"{rate} {unit}B/s is not {size} bytes in {time} s"
        seconds = times.fitting_s(line, log.number(line, time), half_unit(time), int(size), value, off, problem)
        log.check(seconds, line, problem)
        method = {"Pinned": "pinned", "Paged": "pageable"}.get(memory, "device")
        times.copy(line, way.lower(), method, int(size) / seconds, int(size))
    way = memory = unit = ""
    for line, text in enumerate(log.lines, 1):
        named = _TITLE.search(text)
        if named:
            if named[1]:
                way, unit = f"{named[1][0]}2{named[2][0]}".lower(), ""
            memory, unit = named[3] or memory, named[4] or unit
        elif way and _SIZE_AND_RATE.search(text):
            cells = text.split()
            fits = len(cells) == 2 and unit and memory and cells[0].isdigit()
            log.check(fits, line, f"must be a size and a bandwidth below their header; got {text.strip()[:80]!r}")
            method = "device" if way == "d2d" else memory.lower()
            times.copy(line, way, method, log.number(line, cells[1]) * units[unit], int(cells[0]))
    if any(("direction", "d2d") in options for _, _, options in times.printed):
        times.notes.append(
            "a copy on the GPU counts twice in bandwidthTest, for reading and writing; times are size / bandwidth"
        )
    gpus = [{"name": name} for name in log.words(_CUDA_DEVICE)]
    return [times.profile("bandwidthTest", "cuda", max(1, len(gpus)), {"statistic": "mean"}, gpus=gpus, num_nodes=1)]


def hip_bus_bandwidth(log: Log) -> list[Profile]:
    """hipBusBandwidth: medians in GB/s, computed from whole thousands of bytes, and in ms; they must agree."""
    rates: dict[tuple[str, ...], tuple[float, float]] = {}
    times = Times(log)
    for line, found in log.rows(_HIP_ROW, _HIP_MARK):
        key, median = (found[1], found[3], found[4], found[5]), log.number(line, found[6])
        fits = log.number(line, found[9]) <= median <= log.number(line, found[10])
        log.check(fits, line, f"the median must be between least and most, got {found[0].strip()!r}")
        if found[2] == "Bandwidth":
            rates[key] = median * GB, half_unit(found[6]) * GB
            continue
        log.check(key in rates, line, "a time without its bandwidth above")
        size, (rate, off) = int(found[4]) * {"By": 1, "kB": 1024, "MB": 2**20}[found[5]], rates.pop(key)
        counted = size // 1000 * 1000
        problem = f"{found[6]} ms are not {size} bytes at {rate / GB:g} GB/s"
        log.check(median, line, problem)
        if counted:
            times.fitting_s(line, median / 1e3, half_unit(found[6]) / 1e3, counted, rate, off, problem)
        else:
            log.check(not rate, line, problem)
        method = "pinned" if found[3] == "pinned" else "pageable"
        times.copy(line, found[1].lower(), method, size * 1e3 / median, size)
    log.check(not rates, len(log.lines), f"no time for {count_of(len(rates), 'bandwidth')}: the log is cut")
    gpus = [{"name": name} for name in log.words_between("Device:", " Mem=")[:1]]
    return [times.profile("hipBusBandwidth", "hip", 1, {"statistic": "median"}, gpus=gpus, num_nodes=1)]


def pageable_pinned(log: Log) -> list[Profile]:
    """A table of pageable and pinned copies in both directions in GB/s, as CSV or text, with the gains."""
    ways = [(way, method) for method in ("pageable", "pinned") for way in ("h2d", "d2h")]
    rows = list(_csv_rows(log, "bytes", *(f"{way}_{method}_gbps" for way, method in ways)))
    if is_text := "H2D Page" in log.text:
        rows = [(line, list(found.groups())) for line, found in log.rows(_GAINS_ROW, _GAINS_MARK)]
    times, unread = Times(log), 0
    for line, (size, *cells) in rows:
        log.check(size.isdigit(), line, f"{size!r} must be a whole number")
        rates, off = [log.number(line, cell) for cell in cells], half_unit(cells[0])
        for gain, plain, pinned in zip(rates[4:], rates, rates[2:], strict=False):
            low = (pinned - off) / (plain + off)
            high = (pinned + off) / (plain - off) if plain > off else math.inf
            deviation = max(low - gain, gain - high, 0.0)  # beyond what the rounding of both rates allows
            problem = f"a gain of {gain:g} is not {pinned:g} GB/s over {plain:g}"
            times.agree(line, deviation, _GAIN_OFF, SLACK * gain, problem)
        for (way, method), rate in zip(ways, rates, strict=False):
            if is_text and not rate:  # rounded to zero
                unread += 1
            else:
                times.copy(line, way, method, rate * GB, int(size))
    if unread:
        times.notes.append(f"left out: {count_of(unread, 'bandwidth')} printed as 0.000")
    gpus = [{"name": name} for name in log.words(_QUADRO_DEVICE)[:1]]
    return [times.profile("a table of pageable and pinned copies", "cuda", 1, gpus=gpus, num_nodes=1)]


RARE: Readers = {
    "aiconfigurator": LogReader(("num_gpus,message_size,latency",), aiconfigurator),
    "pairs": LogReader(("node_a,node_b,collective",), pairs),
    "bandwidthTest": LogReader(("bandwidthTest-", "Transfer Size (Bytes)"), bandwidth_test),
    "hipBusBandwidth": LogReader(("H2D_Bandwidth", "D2H_Bandwidth"), hip_bus_bandwidth),
    "rocm_bandwidth_test": LogReader(("copy peak bandwidth GB/s",), rocm_bandwidth_test),
    "gpu_copy": LogReader(("_by_sm", "_by_dma"), gpu_copy),
    "pageable_pinned": LogReader(("h2d_pageable_gbps", "H2D Page"), pageable_pinned),
}
ALL: Readers = {**READERS, **RARE}


def read(path: str | os.PathLike[str], kind: str | None = None, num_ranks: int | None = None) -> list[Profile]:
    """Return the measurements in a log, as `rankscope.box.read_log` does, of the rare programs as well."""
    return read_by(ALL, path, kind, num_ranks)
