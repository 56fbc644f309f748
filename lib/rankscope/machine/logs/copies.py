"""Logs of programs that time copies to, from, on and between GPUs; traces that contain copies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...values.checks import count_of, printable, whole
from ..profile import NATIVE, Profile
from .log import COLLECTIVE, GB, SLACK, TYPE_BYTES, Log, Times, Where, half_unit

_SUM_NOTE = "of both ways at once the log has the sum, of which half is one way's"
_MEMCPY = re.compile(
    r"^(host_to_device|device_to_host|device_to_device)(_bidirectional)?_memcpy(_read|_write)?_(ce|sm)$"
)
_NV_VERSION, _NV_DRIVER = re.compile(r"dth Version: (\S+)"), re.compile(r"Driver Version: ([\d.]+)")
_NV_DEVICE = re.compile(r"^\s*(?:Device|GPU) \d+: (.+?) \(")
_NV_TEST = re.compile(r"^\s*Running (\w+)\.")
_NV_MATRIX = re.compile(r"[CG]PU\((?:row|column)\)")
_P2P_TITLE = re.compile(r"(Uni|Bi)directional P2P=(En|Dis)abled Bandwidth")
_P2P_MARK = re.compile(r"directional P2P=")
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

Cells = Mapping[tuple[int, int], tuple[Where, str]]  # matrix cells by (row, column): line and printed value


def _route(src: Any, dst: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the direction, memory and end points (as options) of a copy between two GPUs; None is the host."""
    if src is None:
        return "h2d", "pinned", {"gpu": dst}
    if dst is None:
        return "d2h", "pinned", {"gpu": src}
    if src == dst:
        return "d2d", "device", {"gpu": src}
    return "p2p", "device", {"src": src, "dst": dst}


def _matrix(log: Log, line: int, square: bool) -> tuple[Cells, int]:
    """Return the cells of the matrix whose title is on this line, and the line of its last row."""
    below = _filled_lines(log, line)
    header = next(below, 0)
    columns = [word for word in log.lines[header - 1].split() if word.isdigit()] if header else []
    log.check(columns, line, "a matrix without columns below its title")
    cells = dict[tuple[int, int], tuple[Where, str]]()
    last = line
    for name in columns if square else ["0"]:
        last = next(below, 0)
        log.check(last, line, "the matrix is cut")
        words = log.lines[last - 1].split()
        fits = words[0] == name and len(words) == len(columns) + 1
        log.check(fits, last, f"must be row {name} of {len(columns)} columns, got {' '.join(words)[:80]!r}")
        cells |= {(int(name), int(column)): (last, word) for column, word in zip(columns, words[1:], strict=True)}
    return cells, last


def _filled_lines(log: Log, line: int) -> Iterator[int]:
    """Yield the numbers of the lines below this one that are not blank."""
    for below in range(line + 1, len(log.lines) + 1):
        if log.lines[below - 1].strip():
            yield below


def nvbandwidth(log: Log) -> list[Profile]:
    """nvbandwidth, text or JSON: GB/s per GPU or between GPUs; it does not print the size of its buffers."""
    tests: dict[str, tuple[str, Cells, Any]] = {}  # its description, its matrix, and the printed sum
    if log.text.lstrip().startswith("{"):
        try:
            found = log.json()["nvbandwidth"]
            version, driver = str(found.get("git_version", "")), printable(str(found.get("Driver Version", "")))
            names = [printable(one.split(": ", 1)[1].rsplit(" (", 2)[0]) for one in found.get("GPU Device list", ())]
            for one in found["testcases"]:
                table = enumerate(one.get("bandwidth_matrix", ()))
                cells: Cells = {
                    (row, at): (one["name"], str(text)) for row, some in table for at, text in enumerate(some)
                }
                if cells:
                    tests[one["name"]] = one["bandwidth_description"], cells, one.get("sum")
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            log.fail(1, f"not what nvbandwidth writes: {error!r}")
    else:
        version, driver = (next(iter(log.words(pattern)), "") for pattern in (_NV_VERSION, _NV_DRIVER))
        names, test = log.words(_NV_DEVICE), ""
        for line, text in enumerate(log.lines, 1):
            running = _NV_TEST.search(text)
            if running:
                test = running[1]
            elif _NV_MATRIX.search(text):
                log.check(test, line, "a matrix without the name of its test above")
                cells, last = _matrix(log, line, "GPU(row)" in text)
                tests[test] = text, cells, _printed_sum(log, test, last)
                test = ""
    times, left_out = Times(log), []
    for test, (said, cells, total) in tests.items():
        before = len(times.found)
        _nvbandwidth_test(times, test, said, cells, total)
        left_out += [test] if len(times.found) == before else []
    if left_out:
        times.notes.append(f"left out, being no copies: {', '.join(left_out)}")
    number = max((column + 1 for _, cells, _ in tests.values() for _, column in cells), default=1)
    card = {"driver": driver} if driver else {}
    gpus = [{"name": name} | card for name in names] if len(names) == number else []
    return [times.profile(f"nvbandwidth {version}".strip(), "cuda", number, gpus=gpus, num_nodes=1)]


def _printed_sum(log: Log, test: str, last: int) -> str | None:
    """Return the sum of a test, which stands in one of the two lines below its matrix; None without one."""
    for text in log.lines[last : last + 2]:
        words = text.split()
        if words[:2] == ["SUM", test] and len(words) > 2:
            return words[2]
    return None


def _nvbandwidth_test(times: Times, test: str, said: str, cells: Cells, total: Any) -> None:
    """Add the copies of a test; if several run at once, the method is the test's name."""
    log, found, on_gpus = times.log, _MEMCPY.search(test), "GPU(row)" in said
    printed = [(line, text) for line, text in cells.values() if text != "N/A"]
    if total is not None:
        stated = log.number(test, total)
        deviation = abs(sum(log.number(*one) for one in printed) - stated)
        rounding = sum(half_unit(text) for _, text in printed) + half_unit(f"{total}"[:9])
        place = printed[0][0] if printed else test
        times.agree(place, deviation, rounding, SLACK * stated, f"the cells of {test} do not have the sum {total}")
    for (row, column), (line, text) in cells.items() if "(ns)" not in said else ():
        if text == "N/A" or (on_gpus and row == column):
            continue
        src: int | None
        dst: int | None
        src, dst = (column, row) if "<- " in said else (row, column)
        if test == "device_local_copy":
            src = dst = column
        elif not on_gpus:
            src, dst = (column, None) if test.startswith(("device_to_host", "all_to_host")) else (None, column)
        way, method, ends = _route(src, dst)
        if found:
            words = [(found[3] or "")[1:], "sm" if found[4] == "sm" else ""]
            method = " ".join(filter(None, words)) or method
        elif way != "d2d":
            method = test
        times.copy(line, way, method, log.number(line, text) * GB, both=bool(found and found[2]), **ends)


def p2p_test(log: Log) -> list[Profile]:
    """CUDA's p2pBandwidthLatencyTest: GB/s between GPUs; for both directions at once it prints the sum."""
    times = Times(log)
    for line, found in log.rows(_P2P_TITLE, _P2P_MARK):
        log.check("(GB/s)" in found.string, line, "the line is cut or malformed: it has no unit (GB/s)")
        both = found[1] == "Bi"
        for (src, dst), (at, text) in _matrix(log, line, True)[0].items():
            way, method, ends = _route(src, dst)
            if way == "p2p" and found[2] == "Dis":
                way = "through_host"
            times.copy(at, way, method, log.number(at, text) * GB / (1 + both), both=both, **ends)
    times.notes.append(_SUM_NOTE)
    number = max(times.gpus, default=0) + 1
    names = [words.partition(", ")[2] for words in log.words_between("Device: ", ", pciBusID")]
    gpus = [{"name": name} for name in names] if len(names) == number else []
    return [times.profile("p2pBandwidthLatencyTest", "cuda", number, gpus=gpus, num_nodes=1)]


def rocm_bandwidth_test(log: Log) -> list[Profile]:
    """rocm_bandwidth_test: peak GB/s from row to column, CPUs included; for both directions at once the sum."""
    listed = [match.groups() for match in map(_ROCM_DEVICE.search, log.lines) if match]
    names = {int(place): printable(name.strip()) for place, name, _ in listed}
    gpu_of = {int(place): gpu for gpu, place in enumerate(place for place, _, comma in listed if comma)}
    times = Times(log)
    for line, found in log.rows(_ROCM_TITLE, _ROCM_MARK):
        both = found[1] == "B"
        for (src, dst), (at, text) in _matrix(log, line, True)[0].items():
            log.check(src in names and dst in names, at, "a device that is not listed above")
            if text == "N/A" or not {src, dst} & set(gpu_of):
                continue
            way, method, ends = _route(gpu_of.get(src), gpu_of.get(dst))
            if method == "pinned":
                ends["host"] = dst if src in gpu_of else src
            times.copy(at, way, method, log.number(at, text) * GB / (1 + both), both=both, **ends)
    times.notes.append(_SUM_NOTE)
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
        way, method, ends = _route(src, dst)
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
    if any(("direction", "d2d") in options for _, _, options in times.found):
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
    rows = list(log.table("bytes", *(f"{way}_{method}_gbps" for way, method in ways)))
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


# ---- traces of torch.profiler

_MEMORY = re.compile(r"^Memcpy ([HDP])to([HDP])(?: \((\w+) -> (\w+))?")
_RATE = "memory bandwidth (GB/s)"


class Event(msgspec.Struct, gc=False):
    """The fields of a trace event that describe a copy or a collective."""

    name: Any = ""
    cat: Any = None
    dur: Any = None
    args: Any = None


class Trace(msgspec.Struct):
    """The fields of a trace: its events, and what it says about the machine."""

    traceEvents: list[Event]
    distributedInfo: Any = None
    deviceProperties: Any = None


def trace(log: Log) -> list[Profile]:
    """Copies and NCCL kernels with a size in a torch.profiler trace; older versions truncate to whole µs."""
    log.check_num_values()
    try:
        found = msgspec.json.decode(log.raw, type=Trace)
        info = found.distributedInfo or {}
        number = whole("world_size", info.get("world_size", 1), 1, 1 << 20)
        version = {"nccl": printable(info["nccl_version"])} if "nccl_version" in info else {}
        gpus = [{"name": printable(one["name"])} | version for one in found.deviceProperties or ()]
    except RecursionError:
        log.fail("the trace", "nested too deeply")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.fail("the trace", f"damaged, cut short or none: {error}")
    times = Times(log)
    for place, event in enumerate(found.traceEvents):
        args, name = event.args if isinstance(event.args, dict) else {}, str(event.name)
        if event.cat == "gpu_memcpy":
            _add_copy(times, f"traceEvents[{place}]", name, event.dur, args)
        elif event.cat == "kernel" and name.startswith("nccl") and args.get("Group size") == number:
            _add_kernel(times, f"traceEvents[{place}]", event.dur, args)
    log.check(times.found, "the trace", "the trace has no GPU copies, and no NCCL kernels that state their size")
    return [times.profile("torch.profiler", str(info.get("backend", "cuda")), number, gpus=gpus)]


def _count(args: dict[str, Any], name: str) -> int:
    value = args.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _add_copy(times: Times, at: str, name: str, dur: Any, args: dict[str, Any]) -> None:
    found, size = _MEMORY.search(name), _count(args, "bytes")
    if not found or not size:
        return
    taken_us = times.log.number(at, dur, 0)
    seconds = size / GB / times.log.number(at, args[_RATE], 1e-9) if _RATE in args else taken_us / 1e6
    # Older versions cut the time to whole µs, so the bandwidth's time is up to 1 µs longer.
    deviation_us = abs(seconds * 1e6 - taken_us - 0.5)
    problem = f"{size} bytes do not take {taken_us:g} µs at that bandwidth"
    times.agree(at, deviation_us, 0.501, SLACK * taken_us, problem)
    method = next((one.lower() for one in (found[3], found[4]) if one in ("Pinned", "Pageable")), "device")
    times.copy(at, f"{found[1]}2{found[2]}".lower(), method, size / seconds if seconds else 0, size)


def _add_kernel(times: Times, at: str, dur: Any, args: dict[str, Any]) -> None:
    what, width = COLLECTIVE.get(str(args.get("Collective name"))), TYPE_BYTES.get(str(args.get("dtype")).lower())
    elements = max(_count(args, "In msg nelems"), _count(args, "Out msg nelems"))
    if what and what != "together" and width and elements:
        times.notes.append("a kernel's time has its wait for other ranks in it")
        times.add(at, what, elements * width, times.log.number(at, dur) / 1e6, {"algorithm": NATIVE})
