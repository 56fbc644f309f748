"""`measure` and `rankscope profile`: what is in the file when, whatever happens meanwhile."""

from __future__ import annotations

import io
import os
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
from msgspec.structs import replace

from rankscope import cli
from rankscope.box import Profile, Protocol, measure
from rankscope.box.measuring import rank, run
from rankscope.ranks import RankError
from tests.ports import free_port
from tests.processes import NOT_HANGING_S, children, server_pid, soon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
SMALL = ["--num-ranks", "2", "--sizes", "1KiB,4KiB", "--algorithms", "native,ring", "--iterations", "3"]
MANY = Protocol(iterations=3, budget_s=0.05, sizes=[2**10, 2**12, 2**14], algorithms=["native", "ring"])
FEW = replace(MANY, sizes=[1024])
NUM_POINTS = 1 + 5 + 2 * 3  # a sum, messages up to 64 KiB, collectives: native in both places, and the ring


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


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A first run: its file and what it printed."""
    path = tmp_path_factory.mktemp("first") / "machine_2.18.5.json"
    code, out, err = profile_command(path, *SMALL)
    assert code == 0
    return path, out, err


def test_a_run_says_how_long_it_takes_and_ends_with_table_and_verdict(first: tuple[Path, str, str]) -> None:
    path, out, err = first
    assert out.startswith("· There is nothing to compare")
    assert err.startswith(f"0 of {NUM_POINTS} points, about ")
    profile = Profile.load(path)
    assert profile.provenance["name"] == "machine_2.18.5"
    assert profile.provenance["command"].startswith("rankscope")
    assert (profile.num_ranks, profile.num_nodes, profile.backend) == (2, 1, "gloo")
    assert {point.options["in_place"] for point in profile.select("allreduce", algorithm="native")} == {True, False}
    assert len(profile.points) == NUM_POINTS


def test_a_file_that_exists_is_left_alone_unless_it_is_to_be_replaced(
    first: tuple[Path, str, str], tmp_path: Path
) -> None:
    path = Path(shutil.copy(first[0], tmp_path))
    whole = path.read_bytes()
    for words, content, said in (
        ([], whole, "--force"),
        ([], b"import torch", "--force"),
        (["--sizes", "much"], whole, "--sizes"),
        (["--backend", "tcp"], whole, "backend"),
    ):
        path.write_bytes(content)
        code, out, err = profile_command(path, *SMALL, *words)
        assert (code, out) == (2, "")
        assert said in err
        assert path.read_bytes() == content
    assert "points" not in profile_command(tmp_path / "none" / "a.json", *SMALL)[2]  # it ends before it measures
    path.write_bytes(b"import torch")
    assert profile_command(path, *SMALL, "--force")[0] == 0
    assert len(Profile.load(path).points) == NUM_POINTS


# ---- what fails


def wrong_on_rank_1(*args: Any) -> Any:
    """Measure with an executor that gives rank 1 a wrong sum, in a rank, where nothing else is patched."""
    from rankscope.box.measuring import collectives

    right = collectives.execute

    def wrong(schedule: Any, tensor: Any, group: Any) -> Any:
        found = right(schedule, tensor, group)
        found[5] += group.rank()
        return found

    collectives.execute = wrong
    return rank.measure_keys(*args)


def test_a_wrong_result_ends_the_run_and_what_was_right_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "measure_keys", wrong_on_rank_1)
    monkeypatch.setattr(run, "POINTS_PER_LAUNCH", 6)
    with pytest.raises(RankError, match="rank 1 failed: .*allreduce ring, 1 KiB gave another result"):
        measure(tmp_path / "a.json", FEW, num_ranks=2)
    assert {point.what for point in Profile.load(tmp_path / "a.json").points} == {"together", "add"}


def hang(*args: Any) -> Any:
    time.sleep(600)


def test_a_rank_that_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "measure_keys", hang)
    monkeypatch.setattr(run, "LENIENCE", 0.0)

    def impatient(progress: run.Progress) -> None:  # the first launch, which is none of those that hang, is over
        monkeypatch.setattr(run, "PATIENCE_S", 1.0)

    with pytest.raises(RankError, match="have not returned after 1 s"):
        measure(tmp_path / "a.json", MANY, num_ranks=2, report=impatient)


def on_two_nodes() -> Any:
    machine, _ = rank.survey()
    return machine, [0, 0, 1]


def test_links_within_and_between_nodes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "survey", on_two_nodes)
    profile = measure(tmp_path / "a.json", FEW, num_ranks=3)
    assert (profile.num_ranks, profile.num_nodes, profile.ranks_per_node) == (3, 2, (2, 1))
    assert len(profile.select("together", link="intra")) == len(profile.select("together", link="inter")) == 5


# ---- interrupted


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    driver = (
        "import sys; from rankscope.box.measuring import run; from rankscope.box import Protocol, measure\n"
        "run.POINTS_PER_LAUNCH = 3\n"
        f"measure(sys.argv[1], {MANY}, num_ranks=2, report=lambda progress: print(progress.num_done, flush=True))"
    )
    command = [sys.executable, "-c", driver, str(path)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        num_done = [int(process.stdout.readline()) for _ in range(3)][-1]
        process.kill()
    assert len(Profile.load(path).points) >= num_done > 0


def test_ctrl_c_ends_a_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rankscope", "profile", "-o", "machine.json", *SMALL[:-2], "--iterations", "10000"]
    with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"0 of {NUM_POINTS} points")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=NOT_HANGING_S)
    assert process.returncode == 128 + signal.SIGINT


# ---- torchrun


@pytest.mark.oracle
def test_ranks_of_torchrun_write_one_file_and_one_speaks(tmp_path: Path) -> None:
    processes = []
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for number in "01":
        environment = {**ENVIRONMENT, **place, "RANK": number, "LOCAL_RANK": number}
        words = [sys.executable, "-m", "rankscope", "profile", "-o", f"{number}.json", *SMALL[2:]]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(words, cwd=tmp_path, env=environment, **pipes))
    try:
        said = [process.communicate(timeout=4 * NOT_HANGING_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    assert said[0][0].startswith("· There is nothing to compare")
    assert said[1] == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    profile = Profile.load(tmp_path / "0.json")
    assert (profile.num_ranks, profile.ranks_per_node, len(profile.points)) == (2, (2,), NUM_POINTS)
    assert profile.provenance["command"] == f"rankscope profile -o 0.json {' '.join(SMALL[2:])}"
