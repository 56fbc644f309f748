"""Logs of programs that time copies to, from, on and between GPUs; traces that contain copies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ...common.checks import whole
from ...common.words import printable
from ..profile import NATIVE, Profile
from .log import COLLECTIVE, GB, SLACK, TYPE_BYTES, Log, Times, Where, half_unit

_MEMCPY = re.compile(
    r"^(?:host_to_device|device_to_host|device_to_device)(?P<both>_bidirectional)?_memcpy"
    r"(?:_(?P<end>read|write))?_(?P<engine>ce|sm)$"
)
_NV_VERSION = re.compile(r"dth Version: (\S+)")
_NV_DRIVER = re.compile(r"Driver Version: ([\d.]+)")
_NV_DEVICE = re.compile(r"^\s*(?:Device|GPU) \d+: (.+?) \(")
_NV_TEST = re.compile(r"^\s*Running (\w+)\.")
_NV_MATRIX = re.compile(r"[CG]PU\((?:row|column)\)")
# A test of both directions at once between GPUs has three matrices: one for each direction, and one of their totals.
_NV_ONE_DIRECTION = re.compile(r"\b(?:Read|Write)[12] bandwidth")
_NV_TOTAL = re.compile(r"\bTotal bandwidth")
# Between one GPU and all others: a cell is the sum over all copies. Some titles are those of single copies, so that
# only the name says it.
_NV_SUMS_TITLE = re.compile(r"\bAll G(?:PU|pu)s\b")
_NV_SUMS_NAME = re.compile(r"all_to_one|one_to_all")
_NV_SUM_NOTE = "for copies between GPUs in both directions at once half of the printed total is used for each direction"
_MOST_SUM_DIGITS = 9  # with the point; JSON may have all digits of a float, which nobody has measured


class MatrixCell(NamedTuple):
    """A printed cell of a matrix."""

    where: Where
    text: str


Cells = Mapping[tuple[int, int], MatrixCell]  # by (row, column)


class PrintedMatrix(NamedTuple):
    """A printed matrix, and the line of its last row."""

    cells: Cells
    last_line: int


class CopyRoute(NamedTuple):
    """The direction and memory of a copy, and its end points as options of a point."""

    direction: str
    method: str
    ends: dict[str, Any]


def route(src: int | None, dst: int | None) -> CopyRoute:
    """Return the route of a copy between two GPUs; None is the host."""
    if src is None:
        return CopyRoute("h2d", "pinned", {"gpu": dst})
    if dst is None:
        return CopyRoute("d2h", "pinned", {"gpu": src})
    if src == dst:
        return CopyRoute("d2d", "device", {"gpu": src})
    return CopyRoute("p2p", "device", {"src": src, "dst": dst})


def matrix(log: Log, line: int, square: bool) -> PrintedMatrix:
    """Return the matrix whose title is on this line; it has a row for each column if it is `square`, else one row."""
    lines_below = _filled_lines(log, line)
    header_line = next(lines_below, None)
    columns = []
    if header_line is not None:
        columns = [word for word in log.lines[header_line - 1].split() if word.isdigit()]
    log.check(columns, line, "a matrix without columns below its title")
    rows = columns if square else ["0"]
    cells: dict[tuple[int, int], MatrixCell] = {}
    last_line = line
    for row in rows:
        row_line = next(lines_below, None)
        if row_line is None:
            log.fail(line, "the matrix is cut")
        last_line = row_line
        words = log.lines[row_line - 1].split()
        fits = words[0] == row and len(words) == len(columns) + 1
        log.check(fits, row_line, f"must be row {row} of {len(columns)} columns, got {' '.join(words)[:80]!r}")
        for column, word in zip(columns, words[1:], strict=True):
            cells[int(row), int(column)] = MatrixCell(row_line, word)
    return PrintedMatrix(cells, last_line)


def _filled_lines(log: Log, line: int) -> Iterator[int]:
    """Yield the numbers of the lines below this one that are not blank."""
    for below in range(line + 1, len(log.lines) + 1):
        if log.lines[below - 1].strip():
            yield below


class _NvbandwidthTest(NamedTuple):
    """A test of nvbandwidth: the title of its matrix, its cells, and the sum that is printed below it."""

    title: str
    cells: Cells
    total: Any


def _states_sums(name: str, title: str) -> bool:
    """Return whether each cell of a test is the sum over the copies between one GPU and all others."""
    return _NV_SUMS_TITLE.search(title) is not None or _NV_SUMS_NAME.search(name) is not None


def _is_between_gpus(name: str, title: str) -> bool:
    """Return whether a test has a row for each GPU, and not only one row.

    Tests on several nodes, in both directions at once, have titles that call the row a CPU.
    """
    return not _states_sums(name, title) and ("GPU(row)" in title or "device_to_device" in name)


class _NvbandwidthLog(NamedTuple):
    version: str
    driver: str
    gpu_names: list[str]
    tests: dict[str, _NvbandwidthTest]


def nvbandwidth(log: Log) -> list[Profile]:
    """nvbandwidth, text or JSON: GB/s per GPU or between GPUs; it does not print the size of its buffers."""
    printed = _nvbandwidth_json(log) if log.text.lstrip().startswith("{") else _nvbandwidth_text(log)
    times = Times(log)
    omitted = []
    sums = []
    others = []
    for name, test in printed.tests.items():
        if _states_sums(name, test.title):
            sums.append(name)
            continue
        if not _NV_MATRIX.search(test.title):  # as in multinode_bisect_write_ce; text without such a title is no matrix
            others.append(name)
            continue
        num_operations = len(times.printed)
        _add_test(times, name, test)
        if len(times.printed) == num_operations:  # the test has added nothing
            omitted.append(name)
    if omitted:
        times.notes.append(f"left out, because they are not copies: {', '.join(omitted)}")
    if sums:
        times.notes.append(f"left out, because they state sums over all GPUs: {', '.join(sums)}")
    if others:
        times.notes.append(f"left out, because their columns are not GPUs: {', '.join(others)}")
    columns = [column for name, test in printed.tests.items() if name not in others for _, column in test.cells]
    num_gpus = max(columns, default=0) + 1  # columns are the numbers of GPUs
    gpus = []
    if len(printed.gpu_names) == num_gpus:  # otherwise nobody knows whose name is missing
        driver = {"driver": printed.driver} if printed.driver else {}
        gpus = [{"name": name, **driver} for name in printed.gpu_names]
    num_nodes = 1
    if any(name.startswith("multinode_") for name in printed.tests):
        num_nodes = 0  # not stated
    return [times.profile(f"nvbandwidth {printed.version}".strip(), "cuda", num_gpus, gpus=gpus, num_nodes=num_nodes)]


def _nvbandwidth_json(log: Log) -> _NvbandwidthLog:
    """Parse the JSON of nvbandwidth -j. A cell's place is the name of its test."""
    tests = {}
    try:
        content = log.json()["nvbandwidth"]
        version = str(content.get("git_version", ""))
        driver = printable(str(content.get("Driver Version", "")))
        names = []
        for gpu in content.get("GPU Device list", ()):  # as in "0: NVIDIA H100 80GB HBM3 (00000000:0c:00): (host)"
            without_number = gpu.split(": ", 1)[1]
            names.append(printable(without_number.rsplit(" (", 2)[0]))
        for case in content["testcases"]:
            cells: dict[tuple[int, int], MatrixCell] = {}
            rows = case.get("bandwidth_matrix", ())
            if rows and _NV_TOTAL.search(case["bandwidth_description"]):
                num_gpus = len(rows[0])
                rows = rows[-num_gpus:]  # those of the totals, which follow those of both directions
            for row, texts in enumerate(rows):
                for column, text in enumerate(texts):
                    cells[row, column] = MatrixCell(case["name"], str(text))
            if cells:
                tests[case["name"]] = _NvbandwidthTest(case["bandwidth_description"], cells, case.get("sum"))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        log.fail(1, f"not what nvbandwidth writes: {error!r}")
    return _NvbandwidthLog(version, driver, names, tests)


def _nvbandwidth_text(log: Log) -> _NvbandwidthLog:
    """Parse the text of nvbandwidth: for each test a line with its name, a matrix with a title, and maybe a sum."""
    tests = {}
    title_lines = {}  # of the last matrix of each test
    name = ""  # of the test whose matrix comes next; "" once its last one has come
    for line, text in enumerate(log.lines, 1):
        running = _NV_TEST.search(text)
        if running:
            name = running[1]
        elif _NV_MATRIX.search(text):
            log.check(name, line, "a matrix without the name of its test above")
            printed = matrix(log, line, square=_is_between_gpus(name, text))
            title_lines[name] = line
            # The totals of both directions replace the matrices of one direction.
            tests[name] = _NvbandwidthTest(text, printed.cells, _printed_sum(log, name, printed.last_line))
            if not _NV_ONE_DIRECTION.search(text):
                name = ""
    for name, test in tests.items():
        is_whole = not _NV_ONE_DIRECTION.search(test.title)
        log.check(is_whole, title_lines[name], f"{name} is cut before its total")
    version = next(iter(log.words(_NV_VERSION)), "")
    driver = next(iter(log.words(_NV_DRIVER)), "")
    return _NvbandwidthLog(version, driver, log.words(_NV_DEVICE), tests)


def _printed_sum(log: Log, name: str, last: int) -> str | None:
    """Return the sum of a test, which stands in one of the two lines below its matrix; None without one.

    If the test has several matrices, the name before the sum has a suffix, such as _read1 or _total.
    """
    for text in log.lines[last : last + 2]:
        words = text.split()
        if len(words) > 2 and words[0] == "SUM" and words[1].startswith(name):
            return words[2]
    return None


def _add_test(times: Times, name: str, test: _NvbandwidthTest) -> None:
    """Check the sum of a test, and add its copies. If several run at once, the method is the test's name."""
    if test.total is not None:
        _check_sum(times, name, test)
    if "(ns)" in test.title:  # latencies
        return
    is_between_gpus = _is_between_gpus(name, test.title)
    is_total = _NV_TOTAL.search(test.title) is not None
    if is_total:
        times.notes.append(_NV_SUM_NOTE)
    memcpy = _MEMCPY.search(name)
    for (row, column), (where, text) in test.cells.items():
        is_own_gpu = is_between_gpus and row == column  # is no copy between two: old versions print 0.00, not N/A
        if text == "N/A" or is_own_gpu:
            continue
        copied = _route_of(name, test.title, row, column)
        method = copied.method
        is_both_ways = is_total
        if memcpy is not None:
            method = _memcpy_words(memcpy) or method
            is_both_ways = memcpy["both"] is not None
        elif copied.direction != "d2d":  # tests of another name run several copies at once, except on one GPU
            method = name
        rate = times.log.number(where, text) * GB
        if is_total:
            rate /= 2
        times.copy(where, copied.direction, method, rate, both=is_both_ways, **copied.ends)


def _memcpy_words(memcpy: re.Match[str]) -> str:
    """Return what is special about a copy between two ends: which of them reads or writes, and copies by SMs.

    Copies by the copy engine ("ce") are the usual ones; "" for those that the host starts.
    """
    words = []
    if memcpy["end"] is not None:
        words.append(memcpy["end"])
    if memcpy["engine"] == "sm":
        words.append("sm")
    return " ".join(words)


def _check_sum(times: Times, name: str, test: _NvbandwidthTest) -> None:
    """Check that the cells of a test have the sum that is printed below them."""
    printed = [cell for cell in test.cells.values() if cell.text != "N/A"]
    stated = times.log.number(name, test.total)
    deviation = abs(sum(times.log.number(cell.where, cell.text) for cell in printed) - stated)
    stated_digits = str(test.total)[:_MOST_SUM_DIGITS]
    rounding = sum(half_unit(cell.text) for cell in printed) + half_unit(stated_digits)
    where = printed[0].where if printed else name  # the line of the sum itself is not known
    problem = f"the cells of {name} do not have the sum {test.total}"
    times.agree(where, deviation, rounding, SLACK * stated, problem)


def _route_of(name: str, title: str, row: int, column: int) -> CopyRoute:
    """Return the route of the copy that a cell is about.

    If the row is the host's CPU, the column is the GPU. Between GPUs, that of the row copies: it reads from the memory
    of the column's GPU, or writes into it. The arrows of these titles point the other way than the bytes go, so they do
    not count.
    """
    if name == "device_local_copy":
        return route(column, column)
    if not _is_between_gpus(name, title):
        if name.startswith(("device_to_host", "all_to_host")):
            return route(column, None)
        return route(None, column)
    if "_read_" in name:
        return route(column, row)
    return route(row, column)


# ---- traces of torch.profiler

# H is the host, D a device, and P a peer: PtoP is a copy between two devices, and DtoD one within a device.
_MEMORY = re.compile(r"^Memcpy (?P<from>[HDP])to(?P<to>[HDP])(?: \((?P<source>\w+) -> (?P<target>\w+))?")
_RATE = "memory bandwidth (GB/s)"


class CopyEvent(msgspec.Struct, gc=False):  # a trace may have millions, and none refers to another
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
    try:
        content = msgspec.json.decode(log.raw, type=CopyTrace)
        info = content.distributedInfo or {}
        num_ranks = whole("world_size", info.get("world_size", 1), 1)
        version = {"nccl": printable(info["nccl_version"])} if "nccl_version" in info else {}
        gpus = [{"name": printable(gpu["name"]), **version} for gpu in content.deviceProperties or ()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.fail("the trace", f"damaged, cut short or none: {error}")
    times = Times(log)
    for index, event in enumerate(content.traceEvents):
        where = f"traceEvents[{index}]"
        args = event.args if isinstance(event.args, dict) else {}
        name = str(event.name)
        if event.cat == "gpu_memcpy":
            _add_copy(times, where, name, event.dur, args)
        # Collectives of fewer ranks are left out, because a profile has one number of ranks.
        elif event.cat == "kernel" and name.startswith("nccl") and args.get("Group size") == num_ranks:
            _add_kernel(times, where, event.dur, args)
    log.check(times.printed, "the trace", "the trace has no GPU copies, and no NCCL kernels that state their size")
    return [times.profile("torch.profiler", str(info.get("backend", "cuda")), num_ranks, gpus=gpus)]


def _count(args: dict[str, Any], name: str) -> int:
    """Return a whole number of an event's arguments; 0 if it is missing or none."""
    value = args.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _add_copy(times: Times, where: str, name: str, duration: Any, args: dict[str, Any]) -> None:
    """Add the copy of an event such as "Memcpy HtoD (Pageable -> Device)", if it states its size.

    Its time is that of the bandwidth, which has more digits, if the event states one.
    """
    memory = _MEMORY.search(name)
    size = _count(args, "bytes")
    if memory is None or not size:
        return
    duration_us = times.log.number(where, duration, 0)
    seconds = duration_us / 1e6
    if _RATE in args:
        seconds = size / GB / times.log.number(where, args[_RATE], 1e-9)
        # Older versions cut the duration to whole µs, so the bandwidth's time is up to 1 µs longer: 0.5 µs on average,
        # and up to 0.5 µs more or less. The rest is for the digits of the bandwidth.
        deviation_us = abs(seconds * 1e6 - (duration_us + 0.5))
        rounding_us = 0.5 + 0.001
        problem = f"{size} bytes do not take {duration_us:g} µs at that bandwidth"
        times.agree(where, deviation_us, rounding_us, SLACK * duration_us, problem)
    method = "device"
    for kind in (memory["source"], memory["target"]):
        if kind in ("Pinned", "Pageable"):  # the end in the host's memory
            method = kind.lower()
            break
    direction = f"{memory['from']}2{memory['to']}".lower()
    rate = size / seconds if seconds else 0  # a duration that was cut to 0 µs gives no rate, and `copy` refuses 0
    times.copy(where, direction, method, rate, size)


def _add_kernel(times: Times, where: str, duration: Any, args: dict[str, Any]) -> None:
    """Add the collective of an NCCL kernel, if its event states the collective, the type and the elements."""
    collective = COLLECTIVE.get(str(args.get("Collective name")))
    item_bytes = TYPE_BYTES.get(str(args.get("dtype")).lower())
    # The whole buffer: a reduce-scatter's input, an allgather's output.
    elements = max(_count(args, "In msg nelems"), _count(args, "Out msg nelems"))
    # A point of "together" is a ring of messages, which the sends and receives of a kernel need not be.
    if collective and collective != "together" and item_bytes and elements:
        times.notes.append("a kernel's time includes its wait for other ranks")
        seconds = times.log.number(where, duration) / 1e6
        times.add(where, collective, elements * item_bytes, seconds, {"algorithm": NATIVE})
