"""Command lines of all commands with all their options, with odd words and spoilt profiles."""

from __future__ import annotations

import io
import os
import re
import resource
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from typer.main import get_command

from rankscope.cli import app, main
from rankscope.train.ddp import LocalStep

from ..box.nccl.test_topology import dump as topology_dump
from ..diagnose.made_traces import write_traces
from . import damage
from .files import PROFILES, ROOT, STORED
from .kills import marked
from .pool import Case, Wrong, sentence_problem

WORDS = "- -- -1 0 1 x nan inf 1e400 $x$ ../.. %s {} ٣ 😀 None true 1,2 , --help = '"
ODD = ["", " ", *WORDS.split(), "9" * 400, "x" * 3000, "\x1b[31m", "\ud800", "\udcff", "a b", "a\nb"]
VALUES = {
    "--num-bytes": "1KiB 64KiB 1MiB 64MiB 1TiB 1 3 2KiB 1.5MiB 1e9 9999999TiB -1KiB",
    "--collective": "allreduce broadcast allgather reduce_scatter all_to_all reduce Allreduce",
    "--algorithm": "ring flat recursive_doubling native double_binary_tree torus_2d hierarchical",
    "--output": f"out.json out.json.gz out.svg . /dev/null none/x.json fifo loop / {'x' * 300} a\x1b[1m.json",
    "--num-ranks": "2 1 0 -2 257 1000000000 2.5",
    "--backend": "gloo nccl mpi GLOO",
    "--device": "cpu cuda cuda:99",
    "--collectives": "allreduce allreduce,broadcast all_to_all gather",
    "--place": "in out both none",
    "--algorithms": "native native,ring ring,ring rung",
    "--sizes": "1KiB 4,8 1KiB:4KiB 4:1 1:4KiB 3 0 : 9EiB",
    "--iterations": "1 3 0 -1 10001 1e3",
    "--budget": "0.01 0 -1 1e9 5e-324",
    "--perfetto": "out.json out.json.gz . /dev/null none/x.json fifo",
    "--name": "machine $\\frac$",
    "--picture": "out.svg none/x.svg fifo loop . /dev/null",
    "--tuner-csv": "out.csv none/x.csv fifo loop . /dev/null",
    "--log": "fifo loop . /dev/zero /dev/null none.log",
    "--topo": "fifo loop . /dev/zero /dev/null none.xml topo.xml",
    "--profile": "fifo loop . /dev/zero bank:h100_8 bank:none bank:",
    "--nodes": "1 2 0 -1 4096 4097",
    "--version": "2.30 2.29.2 1 2.x",
    "--kind": "nccl-tests osu trace none",
}
BOXES = ["h100x4", "h100x8", "a100x8", "h100x0", "h100x99", "x8", "h100"]
CHEAP = "--num-ranks 2 --sizes 1KiB --algorithms native --iterations 1 --budget 0.01 --no-transfers"
AROUND = "COLUMNS=0 COLUMNS=-1 COLUMNS=x COLUMNS=99999 TERM=dumb TERM= LANG=C LANG=x PYTHONIOENCODING=ascii "
AROUND += "HOME=/nonexistent FORCE_COLOR=1 NO_COLOR=1 RANK=x RANK=-1 RANK=5 TMPDIR=/nonexistent"
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
OFTEN = {"profile": 4, "doctor": 1, "show": 30, "predict": 30, "compare": 15, "trace": 25, "import": 15, "nccl": 20}
OFTEN |= {"diagnose": 15, "bank": 1}
OFTEN = {name: OFTEN.get(name, 15) for name in COMMANDS}
AS_PROCESS = ("profile", "doctor")
# what `python -m rankscope` does, with another place than /dev/shm, where folders of others stand
START = """
import os, runpy
from pathlib import Path
from rankscope.common import folders
folders.memory = lambda: Path(os.environ["CAMPAIGN_MEMORY"])
runpy.run_module("rankscope", run_name="__main__", alter_sys=True)
"""


def prepare(folder: Path) -> Callable[[Random, Path], Case]:
    profiles = (STORED["profile"], *PROFILES.glob("*_ranks.json"))
    traces = write_traces(folder, LocalStep.modelled([1 << 18] * 4, backward_s=0.02), lambda num_bytes: 1e-3)
    topology = topology_dump([[]] * 4)
    recorded = [path.read_bytes() for path in sorted(traces.glob("rank*.json"))]

    def make(chance: Random, work: Path) -> Case:
        os.mkfifo(work / "fifo")
        (work / "loop").symlink_to("loop")
        (work / "topo.xml").write_text(topology)
        name = chance.choices([*OFTEN, ""], [*OFTEN.values(), 3])[0] or chance.choice(ODD)
        given = [_path(chance, work, profiles) for _ in range(3)]
        if name == "diagnose" and chance.random() < 0.8:
            given.append(_traces(chance, work / "traces", recorded))
        words = [name, *_words(name, chance, given)]
        alone = name in AS_PROCESS or chance.random() < 0.03
        around = dict(one.split("=") for one in AROUND.split() if chance.random() < 0.08)
        how = " ".join(map(shlex.quote, words))[:300] + (f" with {around}" if alone and around else "")
        known = name if name in COMMANDS else "no command"
        run = (lambda: _process(words, around)) if alone else (lambda: _here(words))
        return Case(f"{known}, a process" if alone else known, run, (), ascii(how))

    return make


def _words(name: str, chance: Random, paths: Sequence[str]) -> list[str]:
    """Arguments and options of a command, some of them odd."""
    if name not in COMMANDS:
        return [*paths[:1], chance.choice(ODD)]
    words, left = CHEAP.split() if name == "profile" else [], list(paths)
    for parameter in COMMANDS[name].params:
        is_option = parameter.param_type_name == "option"
        often = 0.3 if name == "profile" and parameter.opts[-1] != "--num-bytes" else 0.5
        if not is_option:
            is_box = name == "nccl" and chance.random() < 0.9
            words += [chance.choice(BOXES) if is_box else left.pop()] * (chance.random() < 0.96)
        elif parameter.is_flag:
            words += [chance.choice([*parameter.opts, *parameter.secondary_opts])] * (chance.random() < 0.2)
        elif chance.random() < (0.93 if parameter.required else often):
            option = parameter.opts[-1]
            values = ODD if chance.random() < 0.2 or option not in VALUES else VALUES[option].split()
            words += [chance.choice(parameter.opts), chance.choice(values)]
            if option == "--output" and name == "profile" and chance.random() < 0.3:
                words[-1] = left[0]
    if chance.random() < 0.05:
        words.insert(chance.randrange(len(words) + 1), chance.choice(ODD))
    return words


def _path(chance: Random, work: Path, profiles: Sequence[Path]) -> str:
    good = chance.choice(profiles)
    way, place = chance.random(), work / f"{chance.randrange(10**6)}.json"
    if way < 0.4:
        return str(good)
    if way < 0.8:
        place.write_bytes(damage.json_file(good.read_bytes(), chance, True))
        return str(place)
    if way < 0.85:
        place.write_bytes(damage.bytes_of(good.read_bytes(), chance))
        return place.name
    return str(damage.no_file(place, chance.choice(damage.NO_FILES))) if way < 0.95 else chance.choice(ODD)


def _traces(chance: Random, folder: Path, recorded: Sequence[bytes]) -> str:
    """A folder of traces, some of which are spoilt, missing or of another rank."""
    folder.mkdir()
    for rank, raw in enumerate(recorded):
        name = f"rank{rank}.json" if chance.random() < 0.9 else chance.choice(["a.json", f"{rank}.pkl", "b.json.gz"])
        spoil = chance.choice([damage.bytes_of, lambda raw, chance: damage.json_file(raw, chance, False)])
        (folder / name).write_bytes(raw if chance.random() < 0.6 else spoil(raw, chance))
    return str(folder)


def judge(words: Sequence[str], code: int, out: str, err: str) -> None:
    """Raise Wrong unless a command said what it should, in text."""
    if "Traceback" in out + err:
        raise Wrong(f"shows a traceback: {err[-300:]!r}")
    if code not in (0, 2):
        raise Wrong(f"exit {code}: {err[-300:]!r}")
    strange = re.search(r"[^\n -~\xa0-\ud7ff\ue000-\U0010ffff]", out + err)
    if strange:
        raise Wrong(f"prints {strange[0]!r} in {(out + err)[max(0, strange.start() - 40) :][:80]!r}")
    lines = [line for line in err.splitlines() if not re.match(r"\d+ of \d+ points", line)]
    if code == 0 and lines and "doctor" not in words:
        raise Wrong(f"says on stderr though nothing is wrong: {err[:300]!r}")
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("rankscope: ") or sentence_problem(lines[0])):
        raise Wrong(f"does not say in one sentence what is wrong: {err[:300]!r}")


def _here(words: Sequence[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        code = main(words)
    judge(words, code, out.getvalue(), err.getvalue())


def _process(words: Sequence[str], around: dict[str, str]) -> None:
    mark = f"{os.getpid()}-{Path.cwd()}-{id(around)}"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lib")} | around | {"CAMPAIGN": mark}
    try:
        done = subprocess.run(
            [sys.executable, "-c", START, *(word.replace("\0", "") for word in words)],
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
        )
    except UnicodeEncodeError:  # no such word can be passed
        return
    out, err = (re.sub(r"\x1b\[[\d;]*m", "", text.decode(errors="replace")) for text in (done.stdout, done.stderr))
    judge(words, done.returncode, out, err)
    if left := marked(mark):
        raise Wrong(f"left processes {left}")
