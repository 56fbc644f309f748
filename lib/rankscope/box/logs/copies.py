"""Logs of programs that time copies to, from, on and between GPUs; traces that contain copies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...common.checks import printable, whole
from ..profile import NATIVE, Profile
from .log import COLLECTIVE, GB, SLACK, TYPE_BYTES, Log, Times, Where, half_unit

SUM_NOTE = "of both ways at once the log has the sum, of which half is one way's"
_MEMCPY = re.compile(
    r"^(host_to_device|device_to_host|device_to_device)(_bidirectional)?_memcpy(_read|_write)?_(ce|sm)$"
)
_NV_VERSION, _NV_DRIVER = re.compile(r"dth Version: (\S+)"), re.compile(r"Driver Version: ([\d.]+)")
_NV_DEVICE = re.compile(r"^\s*(?:Device|GPU) \d+: (.+?) \(")
_NV_TEST = re.compile(r"^\s*Running (\w+)\.")
_NV_MATRIX = re.compile(r"[CG]PU\((?:row|column)\)")
_P2P_TITLE = re.compile(r"(Uni|Bi)directional P2P=(En|Dis)abled Bandwidth")
_P2P_MARK = re.compile(r"directional P2P=")

Cells = Mapping[tuple[int, int], tuple[Where, str]]  # matrix cells by (row, column): line and printed value


def route(src: Any, dst: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the direction, memory and end points (as options) of a copy between two GPUs; None is the host."""
    if src is None:
        return "h2d", "pinned", {"gpu": dst}
    if dst is None:
        return "d2h", "pinned", {"gpu": src}
    if src == dst:
        return "d2d", "device", {"gpu": src}
    return "p2p", "device", {"src": src, "dst": dst}


def matrix(log: Log, line: int, square: bool) -> tuple[Cells, int]:
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
                cells, last = matrix(log, line, "GPU(row)" in text)
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
        way, method, ends = route(src, dst)
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
        for (src, dst), (at, text) in matrix(log, line, True)[0].items():
            way, method, ends = route(src, dst)
            if way == "p2p" and found[2] == "Dis":
                way = "through_host"
            times.copy(at, way, method, log.number(at, text) * GB / (1 + both), both=both, **ends)
    times.notes.append(SUM_NOTE)
    number = max(times.gpus, default=0) + 1
    names = [words.partition(", ")[2] for words in log.words_between("Device: ", ", pciBusID")]
    gpus = [{"name": name} for name in names] if len(names) == number else []
    return [times.profile("p2pBandwidthLatencyTest", "cuda", number, gpus=gpus, num_nodes=1)]


# ---- traces of torch.profiler

_MEMORY = re.compile(r"^Memcpy ([HDP])to([HDP])(?: \((\w+) -> (\w+))?")
_RATE = "memory bandwidth (GB/s)"


class CopyEvent(msgspec.Struct, gc=False):
    """The fields of a trace event that describe a copy or a collective."""

    name: Any = ""
    cat: Any = None
    dur: Any = None
    args: Any = None


class CopyTrace(msgspec.Struct):
    """The fields of a trace: its events, and what it says about the machine."""

    traceEvents: list[CopyEvent]
    distributedInfo: Any = None
    deviceProperties: Any = None


def trace(log: Log) -> list[Profile]:
    """Copies and NCCL kernels with a size in a torch.profiler trace; older versions truncate to whole µs."""
    log.check_num_values()
    try:
        found = msgspec.json.decode(log.raw, type=CopyTrace)
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
