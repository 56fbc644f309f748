"""Files that are well formed and ask for much, and what is no file at all, for each reader and command.

A case has a file of less than a few megabytes. It is read within seconds and in memory in proportion to the file, or it
is refused with one error.
"""

from __future__ import annotations

import io
import json
import os
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any

from rankscope.box import Profile, read_log
from rankscope.box.nccl import read_topology
from rankscope.cli import main
from rankscope.diagnose import diagnose, explain_hang, read_dumps, read_traces
from rankscope.diagnose.figures.jobs import hang_page, job_page
from rankscope.diagnose.join import join
from rankscope.diagnose.perfetto import to_perfetto
from rankscope.diagnose.savings import what_if
from rankscope.parts.files import PartError, load_part, loaded
from rankscope.sampling import Assignment
from rankscope.timeline import Timeline
from rankscope.train.ddp import LocalStep

from .. import bombs
from ..box import logs_made
from ..box.nccl.test_topology import dump as topology_dump
from ..diagnose.made_dumps import entry
from ..diagnose.made_traces import write_traces
from ..explorers.cases import all_cases
from ..test_no_files import (
    INPUTS,
    NO_FILES,
    NO_INPUTS,
    OUTPUTS,
    TRIED,
    PathParameter,
    ending_of,
    ways_to_say,
)
from .commands import judge
from .files import STORED
from .pool import Case, Wrong, peak_bytes

FREE_S, S_PER_MB = 4.0, 5.0  # of a processor, for a file, and for each megabyte of it
FREE_BYTES, MOST_RATIO = 384 << 20, 128  # of memory, and for each byte of the file
STEP = LocalStep.modelled([1 << 18] * 4, backward_s=0.02)


def prepare(folder: Path) -> Callable[[Random, Path], Case]:
    kinds: dict[str, Callable[[Random, Path], Case]] = {
        "pickle that repeats": _repeating_pickle,
        "pickle of any opcodes": _any_pickle,
        "dump of nested sizes": _nested_sizes,
        "dumps of many groups": _groups,
        "trace of much": _traces,
        "groups, steps and threads": _many_groups,
        "packed": _packed,
        "long lines": _long_lines,
        "headers of arrays": _arrays,
        "topology": _topology,
        "state line": _state_line,
        "no file as input": _no_input,
        "no file as output": _no_output,
    }
    names = [name for name in kinds for _ in range(3 if name.startswith(("no file", "trace")) else 2)]

    def make(chance: Random, work: Path) -> Case:
        name = chance.choice(names)
        return kinds[name](chance, work)._replace(name=name)

    return make


def _bounded(use: Callable[[], object], *paths: Path, how: str) -> Case:
    """A case that also bounds the time and the memory by the size of its files."""
    num_bytes = sum(path.stat().st_size for path in paths)

    def run() -> None:
        before, begin_s = peak_bytes(), time.process_time()
        try:
            use()
        finally:
            took_s, grown = time.process_time() - begin_s, peak_bytes() - before
            if took_s > FREE_S + S_PER_MB * num_bytes / 1e6:
                raise Wrong(f"{num_bytes} bytes take {took_s:.1f} s of a processor")
            if grown > FREE_BYTES + MOST_RATIO * num_bytes:
                raise Wrong(f"{num_bytes} bytes take {grown >> 20} MiB")

    return Case("", run, how=f"{how}, {num_bytes} bytes")


# ---- dumps


def _hang(folder: Path) -> None:
    hang = explain_hang(read_dumps(folder))
    hang_page("job", hang)
    str(hang), hang.to_frame()


def _repeating_pickle(chance: Random, work: Path) -> Case:
    makers = bombs.PICKLES | bombs.JSON
    name, num = chance.choice(list(makers)), chance.choice([1, 10, 100, 300, 1000, 3000, 20_000])
    return _one_dump(makers[name](num), work, f"{name} {num}")


def _one_dump(raw: bytes, work: Path, how: str) -> Case:
    (work / "dumps").mkdir()
    path = work / "dumps" / "trace_0"
    path.write_bytes(raw)
    return _bounded(lambda: _hang(path.parent), path, how=how)


def _any_pickle(chance: Random, work: Path) -> Case:
    """Opcodes that build on each other: values that are doubled by their places in the memo, again and again."""
    pieces, num_kept = [bombs.PROTOCOL, b"]", bombs.MEMOIZE], 1
    for _ in range(chance.choice([3, 10, 40, 200, 2000])):
        way = chance.randrange(9)
        number = chance.randrange(num_kept).to_bytes(1, "little") if num_kept < 256 else b"\0"
        if way == 0:
            pieces += [b"(", *[b"h" + number] * chance.choice([2, 10, 1000]), b"e"]  # APPENDS
        elif way == 1:
            pieces += [b"]", bombs.MEMOIZE, b"(", *[b"h" + number] * chance.choice([2, 50]), b"e"]
            num_kept += 1
        elif way == 2:
            pieces += [b"}", bombs.MEMOIZE, b"(", b"X\1\0\0\0a", b"h" + number, b"u"]  # SETITEMS
            num_kept += 1
        elif way == 3:
            text = b"x" * chance.choice([1, 100, 10_000])
            pieces += [b"X" + len(text).to_bytes(4, "little") + text, bombs.MEMOIZE]
            num_kept += 1
        elif way == 4:
            pieces += [b"h" + number, b"h" + number, b"\x86"]  # TUPLE2
        elif way == 5:
            pieces += [b"\x8a\xff" + bytes(255)]  # LONG1
        elif way == 6:
            pieces += [chance.choice([b"(", b"N", b"]", b"}", b"a", b"e", b"s", b"u", b"0", b"2"])]
        elif way == 7:
            pieces += [b"cos\nsystem\n", b"X\4\0\0\0true", b"\x85R"]  # what no dump may call
        else:
            pieces += [b"r" + chance.choice([2**31 - 1, 2**20, 5]).to_bytes(4, "little")]  # LONG_BINPUT
    return _one_dump(b"".join([*pieces, bombs.STOP]), work, f"{len(pieces)} opcodes")


def _nested(chance: Random, depth: int) -> Any:
    if depth == 0:
        return chance.choice([1, 0, -1, 2**62, 2**63, 10**30, "x", None, [], 0.5])
    return [_nested(chance, depth - 1)] * chance.choice([0, 1, 3, 40, 65])


def _nested_sizes(chance: Random, work: Path) -> Case:
    calls = []
    for place in range(chance.choice([1, 20, 400])):
        sizes = _nested(chance, chance.choice([2, 2, 2, 1, 3]))
        more = {chance.choice(["input_sizes", "output_sizes", "input_dtypes", "frames"]): sizes}
        calls.append(entry(place) | more)
    raw = json.dumps(bombs.dump(calls)).encode()
    return _one_dump(raw[: 4 << 20] if chance.random() < 0.1 else raw, work, f"{len(calls)} calls")


def _groups(chance: Random, work: Path) -> Case:
    name, num = chance.choice(list(bombs.DUMPS)), chance.choice([1, 3, 30, 200, 600])
    folder = work / "dumps"
    folder.mkdir()
    for file, raw in bombs.DUMPS[name](num).items():
        (folder / file).write_bytes(raw)
    return _bounded(lambda: _hang(folder), *folder.iterdir(), how=f"{name} {num}")


# ---- traces


def _job(folder: Path) -> None:
    traces = read_traces(folder)
    found = diagnose(traces)
    answers = None
    with suppress(ValueError):
        answers = what_if(traces, found)
    joined = join(traces)
    job_page("job", traces, joined, found, answers)
    to_perfetto(folder / "all.json.gz", traces, joined, found)


def _traces(chance: Random, work: Path) -> Case:
    """Traces of a job in which there is much of a few things, on one rank or on both."""
    folder = work / "traces"
    folder.mkdir()
    write_traces(folder, STEP, lambda num_bytes: 1e-3)
    paths = sorted(folder.glob("rank*.json"))
    chosen = chance.sample(list(bombs.EVENTS), chance.choice([1, 2, 3]))
    num = chance.choice([1, 50, 500, 2000, 4000])
    for path in chance.sample(paths, chance.choice([1, len(paths)])):
        content = json.loads(path.read_bytes())
        more = [bombs.EVENTS[name](place, num) for name in chosen for place in range(num)]
        content["traceEvents"] += chance.sample(more, len(more)) if chance.random() < 0.5 else more
        path.write_text(json.dumps(content))
    return _bounded(lambda: _job(folder), *paths, how=f"{num} of {', '.join(chosen)}")


def _many_groups(chance: Random, work: Path) -> Case:
    """Calls of many groups from many threads in many steps, which the ranks make in another order."""
    num_groups, num_steps, num_threads = (chance.choice([1, 10, 100, 1000]) for _ in range(3))
    num_calls = chance.choice([100, 1000, 3000])
    folder = work / "traces"
    folder.mkdir()
    step_us = 1e6 / num_steps
    for rank in range(2):
        events: list[dict[str, Any]] = [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
            | {"ts": step * step_us, "dur": 0.95 * step_us}
            for step in range(num_steps)
        ]
        for place in range(num_calls):
            number = place if chance.random() < 0.9 else chance.randrange(num_calls)
            args = {"Collective name": chance.choice(["allreduce", "allgather"]), "In msg nelems": 8, "dtype": "Float"}
            args["Process Group Name"] = str(number % num_groups)
            events.append(
                {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0}
                | {"tid": 7 + number % num_threads, "ts": place * 1e6 / num_calls, "dur": 100.0, "args": args}
            )
        about = {"backend": "nccl", "rank": rank, "world_size": 2}
        content = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    how = f"{num_calls} calls of {num_groups} groups in {num_steps} steps on {num_threads} threads"
    return _bounded(lambda: _job(folder), *folder.iterdir(), how=how)


def _packed(chance: Random, work: Path) -> Case:
    contents = bombs.PACKED_TRACES | bombs.PACKED_LOGS
    before, repeated, after = (chance.choice(list(contents.values()))[place] for place in range(3))
    if chance.random() < 0.5:
        before, repeated, after = chance.choice(list(contents.values()))
    num_mb = chance.choice([1, 16, 40, 100, 300])
    path = work / "rank0.json.gz"
    path.write_bytes(bombs.packed(before, repeated or b" ", after, num_mb))
    uses: dict[str, Callable[[], object]] = {
        "log": lambda: read_log(path),
        "trace": lambda: read_traces(path),
        "timeline": lambda: Timeline.from_chrome_trace(path),
        "folder": lambda: read_traces(path.parent),
    }
    use = chance.choice(list(uses))
    return _bounded(uses[use], path, how=f"{use} of {num_mb} MB of {repeated[:20]!r}")


def _long_lines(chance: Random, work: Path) -> Case:
    """Logs with the mark of a program, and much of what stands in such lines."""
    marks = ["algbw   busbw", '"bus_bw"', "# OSU ", "| busbw", "algo throughput:", '"nvbandwidth"', "PU(row)"]
    marks += ["P2P=Enabled", '"traceEvents"', "GPU0\tGPU1\tCPU Affinity"]
    words = [" ", "\t", "x", "1.0 ", "[", "Rank ", "NCCL ", "\n", "0 ", "|", "-", "float", "#", "{", '"', "Pattern 4, "]
    pieces = [chance.choice(marks)]
    for _ in range(chance.choice([1, 2, 5])):
        word = "".join(chance.choices(words, k=chance.choice([1, 1, 2, 3])))
        pieces += [word * chance.choice([10, 1000, 40_000]), chance.choice(["\n", " ", chance.choice(marks)])]
    path = work / "a.log"
    path.write_text("".join(pieces))
    return _bounded(lambda: read_log(path), path, how=repr("".join(pieces)[:60]))


# ---- archives, topologies, lines of explorers


def _arrays(chance: Random, work: Path) -> Case:
    sizes = [0, 1, 2, 3, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, -1, -(2**63)]
    names = chance.choice([["header", "lengths", "indices"], ["x", "y"], ["x"], ["", "x/", "../x"]])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", chance.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])) as archive:
        for name in names:
            shape = tuple(chance.choices(sizes, k=chance.choice([0, 1, 1, 2, 2, 3, 40])))
            kind = chance.choice(["<i8", "<f4", "|b1", "|S0", "<U0", "|V0", "<U1000000", "|O", "<M8[ns]"])
            header = f"{{'descr': '{kind}', 'fortran_order': {chance.random() < 0.5}, 'shape': {shape}}}\n".encode()
            body = bytes(chance.choice([0, 8, 24, 1 << 16]))
            version = chance.choice([b"\1\0", b"\1\0", b"\2\0", b"\3\0"])
            length = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a name twice
                archive.writestr(f"{name}.npy", b"\x93NUMPY" + version + length + header + body)
    path = work / "a.npz"
    path.write_bytes(packed.getvalue())
    if chance.random() < 0.5:
        return _bounded(lambda: Assignment.load(path), path, how="assignment")
    return _bounded(lambda: loaded(load_part, str(path)), path, how="part")._replace(allowed=(PartError,))


def _topology(chance: Random, work: Path) -> Case:
    links = [[(chance.choice(["0000:f5:00.0", f"{gpu ^ 1:04x}:01:00.0"]), 4, "0x068000")] for gpu in range(4)]
    text = topology_dump(chance.choice([links, [[]] * 4]))
    odd = ["²", "٣", "", "-1", "0", "9" * 5000, "1e3", "x16", "🎲", " 16 ", "1_6", "0x10"]
    for _ in range(chance.choice([1, 2, 5])):
        name = chance.choice(["link_width", "link_speed", "count", "speed", "modelid", "class", "busid", "target"])
        before, mark, rest = text.partition(f' {name}="')
        value, _, after = rest.partition('"')
        if mark:
            new = f' {name}="{chance.choice(odd)}"'
            text = text.replace(f'{mark}{value}"', new) if chance.random() < 0.5 else f"{before}{new}{after}"
    if chance.random() < 0.3:
        tag = chance.choice(["<pci>", "<nic>", "<cpu/>", '<net speed="1"/>', "<!DOCTYPE x>", "&a;"])
        text = text.replace("<cpu", tag * chance.choice([1, 70, 5000]) + "<cpu", 1)
    path = work / "topo.xml"
    path.write_text(text)
    return _bounded(lambda: read_topology(path, chance.choice(["h100", "a100", "l40s"])), path, how=ascii(text[:200]))


def _state_line(chance: Random, work: Path) -> Case:
    cases = all_cases()
    explorer = cases[chance.choice(sorted(cases))].made()
    values = ["{[]:1}", "{{}:1}", "[]", "()", "b''", "1j", "-True", "1e999", "'\\ud800'", "...", "9" * 1500, "f''"]
    values += [
        "[" * 150,
        "(" * 1500,
        "-" * 1500 + "1",
        "0x",
        "'",
        "\0",
        "None",
        "{**{}}",
        "*[]",
        "x.y",
        "1 if 1 else 2",
    ]
    pairs = []
    for _ in range(chance.choice([0, 1, 2, 5])):
        name = chance.choice([one.name for one in explorer.settings] + ["x", "*", "**", "a.b"])
        pairs.append(f"{name}={chance.choice(values)}")
    line = f"{chance.choice(['explorers.', ''])}{explorer.name}({chance.choice([', ', ' '])}{', '.join(pairs)})"
    return Case("", lambda: explorer.read(line), (ValueError,), ascii(line[:200]))


# ---- what is no file


def _no_input(chance: Random, work: Path) -> Case:
    place = chance.choice(INPUTS)
    what = chance.choice(list(NO_INPUTS))
    path = NO_INPUTS[what](work / chance.choice(["rank0.json", "trace_0", "a.json.gz", "b.log"]))
    return _command(_words(chance, place, str(path)), work, what)


def _no_output(chance: Random, work: Path) -> Case:
    places = [place for place in OUTPUTS if place.command != "profile" or chance.random() < 0.1]
    place = chance.choice(places)
    what = chance.choice(list(NO_FILES))
    name = f"out{ending_of(place)}"
    NO_FILES[what](work / name)
    return _command(_words(chance, place, name), work, what)


def _words(chance: Random, place: PathParameter, path: str) -> list[str]:
    """Return a command line that gives this path as a parameter, with other words that may fit it or not."""
    words = chance.choice(list(ways_to_say(place)))
    return [path if word == TRIED else word for word in words]


def _command(words: list[str], work: Path, what: str) -> Case:
    def run() -> None:
        Profile.load(STORED["profile"]).save("good.json")
        Path("all_reduce.log").write_text("\n".join(logs_made.table()))
        Path("topo.xml").write_text(topology_dump([[]] * 8))
        Path("traces").mkdir()
        write_traces(Path("traces"), STEP, lambda num_bytes: 1e-3)
        before = {path: os.lstat(path).st_ino for path in work.iterdir()}
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        judge(words, code, out.getvalue(), err.getvalue())
        if code != 2:
            raise Wrong(f"takes it, and ends with {code}")
        if {path: os.lstat(path).st_ino for path in work.iterdir()} != before:
            raise Wrong("replaced or added files")

    return Case("", run, (), f"{what}: {' '.join(words)}")
