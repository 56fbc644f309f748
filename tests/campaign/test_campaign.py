"""A small sample of each kind of case finds nothing, and each judge finds what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rankscope.box import Profile
from rankscope.common import folders

from ..diagnose.store_job import Result, Settings
from ..foreign_folders import ForeignFolders
from ..processes import soon
from . import __main__ as entry
from . import commands, kills, names, pool, stores, structures
from .files import STORED
from .pool import Verdict, Wrong

SAMPLE = {
    "files": (1, 19),
    "structures": (3, 40),
    "commands": (2, 20),
    "names": (5, 12),
    "kills": (17, 3),
    "stores": (29, 2),
}  # seed and number of cases


@pytest.mark.oracle
@pytest.mark.parametrize("kind", SAMPLE)
def test_a_sample_finds_nothing(kind: str) -> None:
    seed, count = SAMPLE[kind]
    found = entry.run(kind, seed, range(count), num_workers=1)
    assert len(found) == count
    assert [one for one in found if one.wrong] == []


@pytest.mark.parametrize(
    ("code", "out", "err", "said"),
    [
        (2, "", "Traceback (most recent call last):\n", "shows a traceback"),
        (3, "", "rankscope: x\n", "exit 3"),
        (0, "\x1b[2J", "", "prints '\\x1b'"),
        (0, "", "RuntimeWarning: overflow\n", "though nothing is wrong"),
        (2, "", "rankscope: one\nrankscope: two\n", "in one sentence"),
        (2, "", "", "in one sentence"),
    ],
)
def test_the_judge_of_a_command(code: int, out: str, err: str, said: str) -> None:
    with pytest.raises(Wrong) as caught:
        commands.judge(["show"], code, out, err)
    assert said in str(caught.value)
    commands.judge(["show"], 2, "", "rankscope: none.json: No such file or directory\n")


def test_the_judges_of_names() -> None:
    tame = names._elements("<svg><text/></svg>")
    for svg in ("<svg><script/></svg>", "<svg><text onload=''/></svg>", "<svg><text></svg>", "<svg>\x1b</svg>"):
        with pytest.raises(Wrong):
            names.check_svg(svg, tame)
    for page in ("<p><b>", "<p onclick=x>", "<p><!-- -->", "<p>\0"):
        with pytest.raises(Wrong):
            names.check_html(page, {"p"})
    for title in ("$x$", r"$\frac{$"):
        axes: Any = names.plt.subplots()[1]
        axes.set_title(title)
        with pytest.raises(Wrong):
            names.check_axes(axes)


@pytest.mark.slow
def test_the_judge_of_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kills, "END_S", 0.2)
    monkeypatch.setattr(kills, "GONE_S", 0.2)
    environment, mark = os.environ | {"CAMPAIGN": str(tmp_path)}, str(tmp_path)
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    for wait, said in (("import time; " + code, "has not ended"), (code.partition("; time")[0], "processes are left")):
        owner = subprocess.Popen([sys.executable, "-c", wait], env=environment)
        assert soon(lambda: kills.marked(mark))
        monkeypatch.setattr(kills, "END_S", 0.2 if "has" in said else 60.0)
        assert said in kills._ended(owner, mark)
        assert soon(lambda: not kills.marked(mark))


class AtOnce(Random):
    """Chance that chooses the least: no delay, and the owner instead of one of its others."""

    def random(self) -> float:
        return 0.0


@pytest.mark.slow
def test_a_signal_is_sent_only_when_the_job_has_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C reached a process while Python still imported `site`, and the campaign took that traceback for ours."""
    begun_at_signal = list[bool]()
    kill = os.kill

    def watched_kill(pid: int, number: int) -> None:
        begun_at_signal.append(b"begun" in (tmp_path / "out").read_bytes())
        kill(pid, number)

    monkeypatch.setattr(kills.os, "kill", watched_kill)
    monkeypatch.setattr(kills, "PROLOGUE", f"import time\ntime.sleep(0.5)\n{kills.PROLOGUE}")
    monkeypatch.setitem(kills.JOBS, "sleep", "    time.sleep(60)\n")
    memory = tmp_path / "memory"
    memory.mkdir()
    planted = ForeignFolders(tmp_path, memory)
    wrong, is_hit = kills._signalled("sleep", "INT", AtOnce(1), 1.0, tmp_path, memory, planted)
    planted.release()
    assert (wrong, is_hit, begun_at_signal) == ("", True, [True])


@pytest.mark.slow
def test_a_server_has_begun_when_it_ignores_interrupts_and_its_workers_always_have() -> None:
    code = (
        "import os, signal, sys\n"
        "print('started', flush=True)\n"
        "sys.stdin.readline()\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('ignores', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "started\n"
        assert not kills.has_begun(server.pid, owner=os.getpid())
        assert kills.has_begun(server.pid, owner=1)  # as its workers, whose parent is another process
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "ignores\n"
        assert kills.has_begun(server.pid, owner=os.getpid())
    assert not kills.has_begun(server.pid, owner=1)


def test_the_judge_of_structures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    use = structures._bounded(lambda: sum(range(10**6)), path, how="")
    use.run()
    monkeypatch.setattr(structures, "FREE_S", 0.0)
    with pytest.raises(Wrong, match="1000 bytes take .* s of a processor"):
        use.run()
    monkeypatch.setattr(structures, "FREE_S", 100.0)
    monkeypatch.setattr(structures, "FREE_BYTES", -(1 << 40))
    with pytest.raises(Wrong, match="1000 bytes take .* MiB"):
        use.run()


def test_the_judge_of_what_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command that takes what is no file, and one that replaces it."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("OUT")
    monkeypatch.setattr(structures, "main", lambda words: 0)
    with pytest.raises(Wrong, match="takes it"):
        structures._command(["show"], tmp_path, "fifo").run()

    def replace(words: list[str]) -> int:
        Path("new").touch()
        os.replace("new", "OUT")
        print("rankscope: none", file=sys.stderr)
        return 2

    monkeypatch.setattr(structures, "main", replace)
    shutil.rmtree("traces")
    with pytest.raises(Wrong, match="replaced or added files"):
        structures._command(["show"], tmp_path, "fifo").run()


def test_the_judge_of_a_profile(tmp_path: Path) -> None:
    path, good = tmp_path / "a.json", STORED["profile"]
    path.write_bytes(good.read_bytes()[:-5])
    assert "not whole" in kills._lost(path, 1)
    assert kills._lost(good, len(Profile.load(good).points)) == ""
    assert kills._lost(good, 3) == "of 3 finished points 2 are left"


def test_the_exit_status_says_whether_there_are_violations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, code in (("hangs", 1), ("", 0)):
        found = [Verdict(7, "a case", wrong)]
        monkeypatch.setattr(pool, "run", lambda *given, found=found: [given[-1](one) or one for one in found])
        assert entry.main(["--only", "files", "--scale", "0"]) == code
        assert ("--seed 17 --only files --case 7" in capsys.readouterr().out) == bool(wrong)


def test_the_judge_of_folders_of_others(tmp_path: Path) -> None:
    """Whatever is deleted, changed or added in them is told, and then they are as before."""
    planted = ForeignFolders(tmp_path)
    assert planted.changed() == []
    (tmp_path / "rankscope-a1b2c3d4").mkdir()  # one that was left behind
    assert [path.name for path in planted.others(tmp_path)] == ["rankscope-a1b2c3d4"]
    git = tmp_path / "rankscope-main" / ".git"
    (git / "HEAD").write_text("")
    assert planted.changed() == [str(git / "HEAD")]
    (tmp_path / "rankscope-0.9" / "new").touch()
    assert str(tmp_path / "rankscope-0.9" / "new") in planted.changed()
    shutil.rmtree(tmp_path / "rankscope-thesis-data")
    gone = [str(tmp_path / "rankscope-thesis-data"), str(tmp_path / "rankscope-thesis-data" / "results.csv")]
    assert planted.changed() == gone
    assert planted.changed() == []
    planted.release()


def test_the_judge_of_a_job_with_a_stopped_store() -> None:
    settings = Settings(num_ranks=1, num_steps=2)
    said = {"digest": 1.0, "unwatched_s": [0.01, 0.01], "watched_s": [0.01, 0.02]}
    good = Result([0], [said], ["rankscope.watch: one line"], "")
    assert stores.judge(settings, good) == ""
    assert "exit codes [-6]" in stores.judge(settings, Result([-6], [said], [], "terminate called"))
    assert "exit codes []" in stores.judge(settings, Result([], [], [], ""))
    assert "traceback" in stores.judge(settings, Result([0], [said], [], "Traceback (most recent call last):"))
    assert "more than one line" in stores.judge(settings, Result([0], [said], ["one", "two"], ""))
    assert "trained 1 steps" in stores.judge(settings, Result([0], [said | {"watched_s": [0.01]}], [], ""))
    slow = said | {"watched_s": [5.0, 5.0]}
    assert "a step takes 5.0000 s watched" in stores.judge(settings, Result([0], [slow], [], ""))


@pytest.mark.slow
def test_a_sweep_by_name_and_age_alone_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What rankscope did once: a folder without a marker that was old enough was deleted."""
    planted = ForeignFolders(tmp_path)

    def sweep(place: Path) -> None:
        for folder in place.glob("rankscope-*"):
            shutil.rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(folders, "_sweep", sweep)
    monkeypatch.setattr(folders, "_swept", set())
    made = folders.make_folder(tmp_path)
    assert any(path.endswith(".git") for path in planted.changed())
    folders.delete_folder(made)
    planted.release()
