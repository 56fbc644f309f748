"""`measure` and `rankscope profile`: what is in the file when, whatever happens meanwhile."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from rankscope import cli
from rankscope.box import Profile
from rankscope.box.commands.profile import parse_sizes
from rankscope.box.measuring import rank as measure_rank
from rankscope.box.measuring import run as measure_run
from rankscope.box.measuring.plan import Protocol
from rankscope.box.measuring.run import measure
from rankscope.box.profile import Point
from rankscope.ranks import RankError

from ..ports import free_port
from ..processes import NOT_HANGING_S, alive, children, hears_hangups, server_pid, soon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = ["--num-ranks", "2", "--sizes", "1KiB,4KiB", "--algorithms", "native,ring", "--iterations", "3"]
MANY = Protocol(iterations=3, budget_s=0.05, sizes=[2**power for power in range(10, 16)], algorithms=["native", "ring"])
FEW = replace(MANY, sizes=[1024])
NUM_POINTS = 2 * 8 + 2 * 2 + 6 * 2  # messages up to 32 KiB, memory up to 16 KiB, collectives
DRIVER = f"""
import sys
from rankscope.box.measuring import plan
from rankscope.box.measuring.plan import Protocol
from rankscope.box.measuring.run import measure
plan.LAUNCH_S = 0.0  # so that there are many launches
measure(sys.argv[1], {MANY}, num_ranks=2, report=lambda progress: print(progress.num_done, flush=True))
"""


@pytest.fixture(autouse=True)
def _no_rank_is_left() -> Iterator[None]:
    yield
    assert soon(lambda: not children(server_pid()))


def profile_command(path: Path, *words: str) -> tuple[int, str, str]:
    """Run `rankscope profile` here, and return its code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(["profile", "-o", str(path), *words])
    return code, out.getvalue(), err.getvalue()


# ---- the command


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A first run: its file and what it printed."""
    path = tmp_path_factory.mktemp("first") / "machine.json"
    code, out, err = profile_command(path, *SMALL)
    assert code == 0
    return path, out, err


def test_a_run_ends_with_table_and_verdict(first: tuple[Path, str, str]) -> None:
    path, out, err = first
    assert "allreduce: use " in out
    assert "0 of 16 points: ping_pong (intra), 256 B\n" in err
    profile = Profile.load(path)
    assert profile.provenance["name"] == "machine"
    assert profile.provenance["network"] == "loopback"
    order = ("--num-ranks", "--algorithms", "--sizes", "--iterations")
    words = [word for name in order for word in (name, SMALL[SMALL.index(name) + 1])]
    assert profile.provenance["command"] == f"rankscope profile --output machine.json {' '.join(words)}"
    assert (profile.num_ranks, profile.num_nodes, profile.backend) == (2, 1, "gloo")
    assert profile.protocol["iterations"] == 3
    assert bool(profile.select("transfer")) == torch.cuda.is_available()


def test_a_second_run_measures_what_is_missing(first: tuple[Path, str, str], tmp_path: Path) -> None:
    path = Path(shutil.copy(first[0], tmp_path))
    before = Profile.load(path)
    assert profile_command(path, *SMALL)[0] == 0
    assert Profile.load(path) == before
    assert profile_command(path, *SMALL, "--sizes", "1KiB:8KiB", "--place", "both")[0] == 0
    found = Profile.load(path)
    assert found.points[: len(before.points)] == before.points
    places = {(point.num_bytes, point.options["in_place"]) for point in found.select("allreduce")}
    assert places == {(1024 << power, place) for power in range(4) for place in (True, False)}


def test_a_file_of_another_setting_or_of_something_else_is_left_alone(
    first: tuple[Path, str, str], tmp_path: Path
) -> None:
    path = Path(shutil.copy(first[0], tmp_path))
    whole = path.read_bytes()
    for words, content, said in (
        (["--num-ranks", "3"], whole, "num_ranks is 2 there and 3 here"),
        (["--iterations", "4"], whole, "iterations is 3 there and 4 here"),
        ([], whole[:-20], "machine.json"),
        (["--sizes", "4KiB:1KiB"], whole, "--sizes"),
        (["--place", "there"], whole, "--place"),
        (["--backend", "tcp"], whole, "backend"),
    ):
        path.write_bytes(content)
        code, out, err = profile_command(path, *SMALL, *words)
        assert (code, out) == (2, "")
        assert said in err
        assert path.read_bytes() == content
    assert profile_command(path, *SMALL, "--fresh")[0] == 0
    assert len(Profile.load(path).points) == 16


def test_sizes_by_name() -> None:
    assert parse_sizes("1KiB:5KiB") == [1024, 2048, 4096]
    assert parse_sizes("64KiB,1KiB") == [65536, 1024]


# ---- Gloo on a GPU


def on_host(name: str, *args: Any) -> Any:
    """What a rank does, with the host's memory in the place of a GPU's."""

    assert "cuda" in args
    measure_rank._select_device = lambda device: "cpu"
    measure_rank._free_bytes = lambda *_: 2**30
    return getattr(measure_rank, name)(*args)


def test_gloo_on_a_gpu_has_its_own_collectives_and_no_links(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measure_run, "_in_rank", on_host)
    path = tmp_path / "machine.json"
    words = ["--num-ranks", "2", "--sizes", "4KiB,16KiB", "--iterations", "3", "--no-transfers"]
    code, out, _ = profile_command(path, "--device", "cuda", *words, "--collectives", "allreduce,broadcast")
    assert code == 0
    assert "2 ranks on 1 node, gloo, cuda, loopback" in out
    profile = Profile.load(path)
    kinds = [(point.what, point.options.get("algorithm")) for point in profile.points]
    memory = [(what, None) for _ in range(2) for what in ("add", "copy")]
    assert kinds == [*memory, *[(what, "native") for what in ("allreduce", "broadcast") for _ in range(2)]]
    assert (profile.provenance["device"], profile.protocol["clock"]) == ("cuda", "cuda events")
    assert " --device cuda " in profile.provenance["command"]
    assert " --no-transfers" in profile.provenance["command"]
    assert profile_command(path, "--device", "cuda", *words, "--algorithms", "native,ring")[0] == 0
    assert {point.options["algorithm"] for point in Profile.load(path).select("allreduce")} == {"native", "ring"}
    monkeypatch.undo()
    code, _, err = profile_command(path, *words, "--algorithms", "native")
    assert code == 2
    assert "device is 'cuda' there and None here" in err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_gloo_on_a_real_gpu(tmp_path: Path) -> None:
    every = ("allreduce", "allgather", "reduce_scatter", "broadcast", "all_to_all")
    protocol = replace(MANY, sizes=[4096, 2**20], transfers=False, collectives=every)
    profile = measure(tmp_path / "a.json", protocol, num_ranks=2, device="cuda")
    for what in every:
        assert {point.num_bytes for point in profile.select(what, algorithm="native")} == {4096, 2**20}
        assert profile.select(what, algorithm="ring") or what == "all_to_all"


# ---- what fails


def wrong_on_rank_1(name: str, *args: Any) -> Any:
    """What a rank does, with an executor that gives rank 1 a wrong sum."""

    right = measure_rank.execute

    def wrong(schedule: Any, tensor: Any, group: Any) -> Any:
        found = right(schedule, tensor, group)
        found[5] += group.rank()
        return found

    measure_rank.execute = wrong
    return getattr(measure_rank, name)(*args)


def test_a_wrong_result_ends_the_run_and_what_was_right_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collectives_last(missing: list[Any], *_: object) -> list[Any]:
        return [key for key in missing if key[0] != "allreduce"] or missing

    monkeypatch.setattr(measure_run, "_in_rank", wrong_on_rank_1)
    monkeypatch.setattr(measure_run, "next_launch", collectives_last)
    with pytest.raises(RankError, match="rank 1 failed: .*allreduce by ring .*element 5 is 91, not 90"):
        measure(tmp_path / "a.json", FEW, num_ranks=2)
    kept = {point.what for point in Profile.load(tmp_path / "a.json").points}
    assert kept == {"ping_pong", "together", "add", "copy"}


def test_what_another_run_has_written_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_run, "next_launch", lambda missing, *_: missing[:4])
    path, theirs = tmp_path / "a.json", Point("add", 8, (1.0,), (True,))

    def another(progress: measure_run.Progress) -> None:
        if progress.num_done == 4:
            Profile.load(path).add(theirs).save(path)

    with pytest.raises(ValueError, match=r"another run has written .*a\.json"):
        measure(path, FEW, num_ranks=2, report=another)
    assert Profile.load(path).points[4:] == (theirs,)
    found = measure(path, FEW, num_ranks=2, report=lambda progress: progress.num_done == 8 and path.unlink())
    assert theirs in found.points
    assert found == Profile.load(path)


@pytest.mark.skipif(sys.platform != "linux", reason="names of sockets that need no file are Linux's")
def test_a_file_is_one_runs_at_a_time(tmp_path: Path) -> None:
    """Also under another name; whoever holds it may be killed, and leaves nothing that hinders the next."""
    path, link = tmp_path / "a.json", tmp_path / "b.json"
    link.symlink_to(path)
    code = f"""
import pathlib, time
from rankscope.box.measuring.run import _alone
with _alone(pathlib.Path({str(path)!r})):
    print("held", flush=True)
    time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(ValueError, match=r"another run is writing .*b\.json"):
                measure(link, FEW, num_ranks=2)
            assert not path.exists()
        finally:
            other.kill()
    assert measure(link, FEW, num_ranks=2) == Profile.load(path)


def hang(name: str, *args: Any) -> Any:

    if name == "measure_keys":
        time.sleep(600)
    return getattr(measure_rank, name)(*args)


def test_a_rank_that_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(progress: measure_run.Progress) -> None:
        if progress.num_points:  # the ranks' first launch, which is none of those that hang, is over
            monkeypatch.setattr(measure_run, "PATIENCE_S", 1.0)

    monkeypatch.setattr(measure_run, "_in_rank", hang)
    monkeypatch.setattr(measure_run, "LENIENCE", 0.0)

    with pytest.raises(RankError, match="have not returned after 1 s"):
        measure(tmp_path / "a.json", MANY, num_ranks=2, report=impatient)
    assert Profile.load(tmp_path / "a.json").points == ()


# ---- interrupted


def intact(path: Path, num_done: int, known: dict[Any, Point]) -> None:
    """The file is absent or whole, has all that was said to be done, and what it had before is as it was."""
    if num_done == 0 and not path.exists():
        return
    points = {point.key: point for point in Profile.load(path).points}
    assert len(points) >= num_done
    assert {key: points.get(key) for key in known} == known
    known.update(points)


def finish(path: Path, known: dict[Any, Point]) -> None:
    profile = measure(path, MANY, num_ranks=2)
    assert len(profile.points) == NUM_POINTS
    intact(path, NUM_POINTS, known)
    assert profile == Profile.load(path)


@pytest.mark.oracle
def test_kills_at_random_lose_nothing_and_leave_nobody(tmp_path: Path) -> None:
    chance, path = random.Random(6), tmp_path / "machine.json"
    known: dict[Any, Point] = {}
    for turn in range(3):
        mark = f"PROFILE_TEST={tmp_path}/{turn}"
        environment = {**os.environ, "PROFILE_TEST": f"{tmp_path}/{turn}", "TMPDIR": str(tmp_path)}
        environment["PYTHONPATH"] = str(ROOT / "lib")
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(path)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert driver.stdout is not None
        told = [driver.stdout.readline() for _ in range(chance.randint(1, 7))]  # at the first, ranks are being started
        time.sleep(chance.uniform(0, 0.6))
        driver.kill()
        told += driver.stdout.read().split()
        driver.wait()
        driver.stdout.close()
        assert soon(lambda mark=mark: not marked(mark)), f"processes are left: {marked(mark)}"
        intact(path, max(map(int, filter(None, told))), known)
    assert known, "no kill came late enough"
    finish(path, known)


def marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and alive(int(folder.name)):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_and_says_how_to_go_on(sent: signal.Signals, tmp_path: Path) -> None:
    long = ["--iterations", "10000", "--budget", "600"]  # so that the first points are not there yet
    words = [sys.executable, "-m", "rankscope", "profile", "-o", "machine.json", *SMALL[:-2], *long]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=hears_hangups
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("0 of 16 points")
    process.send_signal(sent)
    _, said = process.communicate(timeout=NOT_HANGING_S)
    assert process.returncode == 128 + sent
    assert "0 of 16 points are in machine.json" in said
    assert Profile.load(tmp_path / "machine.json").points == ()


# ---- torchrun


@pytest.mark.oracle
def test_ranks_of_torchrun_write_one_file_and_one_speaks(tmp_path: Path) -> None:
    port, processes = free_port(), []
    for rank in range(2):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib"), **{name: str(told[name]) for name in told}}
        words = [sys.executable, "-m", "rankscope", "profile", "-o", f"{rank}.json", *SMALL[2:]]
        processes.append(
            subprocess.Popen(
                words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        said = [process.communicate(timeout=4 * NOT_HANGING_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    assert "allreduce: use " in said[0][0]
    assert said[1][0] == ""
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    profile = Profile.load(tmp_path / "0.json")
    assert (profile.num_ranks, profile.num_nodes, len(profile.points)) == (2, 1, 16)
    assert re.fullmatch(r"rankscope profile --output 0.json .*", profile.provenance["command"])
    assert json.loads((tmp_path / "0.json").read_text())["provenance"]["ranks_per_node"] == [2]
