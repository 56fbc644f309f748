"""Files of every kind that is read, spoilt: read, then used."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from rankscope import box, parts, sampling
from rankscope.box import tables
from rankscope.box.link_facts import recorded
from rankscope.collectives import Schedule, verify
from rankscope.diagnose import explain_hang, read_dumps
from rankscope.diagnose.figures.hangs import draw_hang
from rankscope.figures.svg import to_svg
from rankscope.figures.timelines import draw_timeline
from rankscope.parts.files import PartError, load_part, loaded
from rankscope.sampling import Assignment
from rankscope.timeline import Recorder, Timeline
from rankscope.train import ddp
from rankscope.train.pipeline_parallel import PipelineSchedule
from rankscope.train.pipeline_parallel import verify as verify_pipeline

from ..diagnose import made_dumps
from ..tools.recorded_steps import read_steps
from . import damage
from .pool import Case

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "notebooks" / "profiles"
# a file of each kind of stored value, by the name of the kind
STORED = {path.name.split(".")[0]: path for path in sorted((ROOT / "tests").glob("*/stored/*.v1.*"))}
EXPECTED = (ValueError, OSError)
READINGS = [(0.0, 1e-3, 2e-3), (5e-3, 6e-3, 7e-3)]


class Kind(NamedTuple):
    """Good files, how they are spoilt, and what reads and uses one."""

    good: tuple[Path, ...]
    spoil: Callable[[bytes, Random], bytes]
    use: Callable[[Path], object]
    allowed: tuple[type[BaseException], ...] = EXPECTED


def _profile(path: Path) -> None:
    profile = box.Profile.load(path)
    Console(file=open("/dev/null", "w")).print(*tables.overview(profile))  # noqa: SIM115


def _assignment(path: Path) -> None:
    found = sampling.audit(Assignment.load(path))
    str(found)


def _timeline(path: Path) -> None:
    for kind in ("category", "name"):
        found = Timeline.from_chrome_trace(path, kind)
    found.utilisation(), found.busy_s, repr(found)
    to_svg(draw_timeline(found))


def _schedule(path: Path) -> None:
    schedule = Schedule.from_text(path.read_text(errors="replace"))
    schedule.traffic(1e6)
    verify(schedule)


def _pipeline(path: Path) -> None:
    schedule = PipelineSchedule.from_text(path.read_text(errors="replace"))
    verify_pipeline(schedule)
    schedule.activations_in_flight()


def _run(path: Path) -> None:
    for step in ddp.DDPRun.load(path).steps:
        repr(step.timeline)


def _sweeps(path: Path) -> None:
    for sweep in ddp.load_sweeps(path):
        str(sweep.caps_mb), sweep.measured_s, sweep.predicted_s()


def _part(path: Path) -> None:
    loaded(load_part, str(path))


def _dump(path: Path) -> None:
    hang = explain_hang(read_dumps(path))
    str(hang), hang.to_frame()
    for place in range(len(hang.findings)):
        to_svg(draw_hang(hang, place))


def prepare(folder: Path) -> Callable[[Random, Path], Case]:
    kinds = _kinds(folder)
    names = [name for name in kinds for _ in range(2 if name in ("profile", "trace") else 1)]

    def make(chance: Random, work: Path) -> Case:
        name = chance.choice(names)
        kind = kinds[name]
        good = chance.choice(kind.good)
        path = work / good.name
        if chance.random() < 0.06 and kind.spoil is not damage.text_file:  # of which the library reads the text
            how = chance.choice(damage.NO_FILES)
            path = damage.no_file(path, how)
        elif name == "recorder":
            how = _spoil_folder(good, path, chance)
        else:
            how = chance.choice(("bytes", "meaning", "meaning"))
            spoil = damage.bytes_of if how == "bytes" else kind.spoil
            path.write_bytes(spoil(good.read_bytes(), chance))
        use = (lambda: recorded(work)) if name == "folder of profiles" else (lambda: kind.use(path))
        return Case(name, use, kind.allowed, how)

    return make


def _kinds(folder: Path) -> Mapping[str, Kind]:
    def json(signed: bool) -> Callable[[bytes, Random], bytes]:
        return lambda raw, chance: damage.json_file(raw, chance, signed)

    stored = {name: (path,) for name, path in STORED.items()}
    ours, foreign, steps = stored["timeline"], folder / "foreign.json", folder / "steps.json"
    foreign.write_text(damage.written(_foreign(["cpu_op", "kernel", "user_annotation"], "op")))
    steps.write_text(damage.written(_foreign(["user_annotation"], "rankscope: clock")))
    packed = folder / "trace.json.gz"
    packed.write_bytes(foreign.read_bytes())  # packed once it is spoilt
    (part,) = parts.write_parts(folder / "parts", 9, x=np.zeros((9, 3), np.float32), y=np.arange(9))
    recorder = Recorder(folder=folder / "recorder")
    for item in range(5):
        recorder.add("loader", "read", item, item, item + 1)
    for path in (folder / "recorder").glob("*.spans"):
        path.write_bytes(path.read_bytes()[: 5 * 40])  # 32,763 slots are empty
    in_json, pickled = sorted(made_dumps.write(folder / "dumps", made_dumps.sick("size", 2, 1)).iterdir())
    profiles = (*stored["profile"], *PROFILES.glob("*_ranks.json"))
    return {
        "profile": Kind(profiles, json(True), _profile),
        "folder of profiles": Kind(stored["profile"], json(True), _profile),
        "assignment": Kind(stored["assignment"], damage.npz_file, _assignment),
        "part": Kind((part,), damage.npz_file, _part, (PartError,)),
        "trace": Kind((*ours, foreign), json(False), _timeline),
        "trace.gz": Kind((packed,), damage.gzip_file, _timeline),
        "steps": Kind(
            (steps,), json(False), lambda path: read_steps(path, READINGS), (ValueError, OSError, RuntimeError)
        ),
        "schedule": Kind(stored["schedule"], damage.text_file, _schedule),
        "pipeline": Kind(stored["pipeline"], damage.text_file, _pipeline),
        "DDP run": Kind(stored["ddp_run"], json(True), _run),
        "sweeps": Kind((*stored["cap_sweeps"], PROFILES / "ddp_steps.json"), json(True), _sweeps),
        "dump": Kind((in_json,), json(False), _dump),
        "pickled dump": Kind((pickled,), damage.bytes_of, _dump),
        "recorder": Kind((folder / "recorder",), damage.bytes_of, lambda path: Recorder(folder=path).timeline()),
    }


def _foreign(categories: list[str], name: str) -> dict[str, Any]:
    """A trace as torch.profiler writes it, small."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "ts": 0, "args": {"name": "stream 7"}},
    ]
    for place in range(6):
        times = {"ts": 1e3 * place + 5e14, "dur": 900.0} if name == "op" else {"ts": 5e3 * place + 500, "dur": 1000.0}
        kind = {
            "cat": categories[place % len(categories)],
            "name": name if place % 2 else "ncclDevKernel_AllReduce_Sum",
        }
        if name == "op" or place < 2:
            events.append({"ph": "X", **kind, "pid": 7, "tid": 1, **times, "args": {"External id": place, "stream": 7}})
    events += [{"ph": ph, "name": "b", "cat": "x", "pid": 7, "tid": 1, "ts": 9e3} for ph in "BE"]
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 1}, "traceEvents": events}


def _spoil_folder(good: Path, path: Path, chance: Random) -> str:
    """A recorder's folder of somebody else: names and spans that do not fit, or no files."""
    shutil.copytree(good, path)
    names, spans = (next(path.glob(f"*.{kind}")) for kind in ("names", "spans"))
    how = chance.choice(("bytes", "names", "numbers", "missing", *damage.NO_FILES[:3]))
    if how == "bytes":
        one = chance.choice((names, spans))
        one.write_bytes(damage.bytes_of(one.read_bytes(), chance))
    elif how == "names":
        entries = [
            [chance.choice([0, -1, 10**9, 2**70, "x", None, [], 1.5, True]), damage.odd(chance)] for _ in range(3)
        ]
        names.write_text("\n".join(map(damage.written, [*entries, damage.odd(chance)])), errors="surrogatepass")
    elif how == "numbers":
        numbers = (chance.choice([0, 1, -1, 2**31 - 1, -(2**31)]) for _ in range(3))
        times = (chance.choice([0, -1, 2**63 - 1, -(2**63)]) for _ in range(3))
        spans.write_bytes(struct.pack("<iiiqqqi", *numbers, *times, 1) * chance.choice([1, 100]))
    else:
        one = chance.choice((names, spans))
        one.unlink()
        if how != "missing":
            damage.no_file(one, how)
    return how
