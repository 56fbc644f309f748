"""`measure` and `rankscope profile`: what is in the file when, whatever happens meanwhile."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import attrs
import pytest
import torch

from rankscope import cli
from rankscope.box import Profile
from rankscope.box.commands.profile import parse_sizes
from rankscope.box.measuring import rank as measure_rank
from rankscope.box.measuring import run as measure_run
from rankscope.box.measuring.plan import Protocol
from rankscope.box.measuring.run import measure
from rankscope.box.profile import Point
from rankscope.cli.ending import interruptible
from rankscope.ranks import RankError, fork_server

from ..ports import free_port
from ..processes import NOT_HANGING_S, alive, children, hears_hangups, soon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = ["--num-ranks", "2", "--sizes", "1KiB,4KiB", "--algorithms", "native,ring", "--iterations", "3"]
MANY = Protocol(iterations=3, budget_s=0.05, sizes=[2**power for power in range(10, 16)], algorithms=["native", "ring"])
FEW = attrs.evolve(MANY, sizes=[1024])
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
    assert fork_server._current is None or soon(lambda: not children(fork_server._current.pid))


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
    assert "Verdict" in out
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
        (["--iterations", "4"], whole, "iterations is 3 there and 4 here; use another file, or start anew with fresh"),
        ([], whole[:-20], "not a readable rankscope profile"),
    ):
        path.write_bytes(content)
        code, _, err = profile_command(path, *SMALL, *words)
        assert code == 2
        assert said in err
        assert path.read_bytes() == content
    assert profile_command(path, *SMALL, "--fresh")[0] == 0
    assert len(Profile.load(path).points) == 16


def test_what_is_no_protocol_and_no_report_is_refused(tmp_path: Path) -> None:
    for name, wrong in (("protocol", {}), ("report", 3), ("network", 1e6)):
        with pytest.raises(ValueError, match=f"{name} must be .*, got {wrong!r}"):
            measure(tmp_path / "a.json", **{name: wrong})  # type: ignore[arg-type]
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "none/machine.json", *SMALL], "none/machine.json: No such file or directory"),
        (["--sizes", "3 apples"], "--sizes must be bytes like 512, 64KiB or 1.5MiB, got '3 apples'"),
        (["--sizes", "4KiB:1KiB"], "--sizes must increase from a size above 0, got '4KiB:1KiB'"),
        (["--backend", "tcp"], "backend must be one of 'gloo', 'nccl', 'mpi', got 'tcp'"),
        (["--device", "cpu", "--backend", "nccl"], "device with backend='nccl' must be one of 'cuda', got 'cpu'"),
        (["--place", "there"], "--place must be one of 'in', 'out', 'both', got 'there'"),
        (["--num-ranks", "1"], "num_ranks must be a whole number from 2 to 256, got 1"),
        (["--budget", "-1"], "budget_s must be a finite number above 0.0 and of at most 3600, got -1.0"),
        (["--backend", "mpi"], "backend='mpi' needs a torch that was built with MPI"),
        (["--sizes"], "requires an argument"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(words: list[str], message: str, tmp_path: Path) -> None:
    code, out, err = profile_command(tmp_path / "machine.json", *words)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message.replace("above 0.0", "above 0") in err
    assert not list(tmp_path.iterdir())


def test_sizes_by_name() -> None:
    assert parse_sizes("1KiB:5KiB") == [1024, 2048, 4096]
    assert parse_sizes("64KiB,1KiB") == [65536, 1024]


# ---- Gloo on a GPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_gpu_that_is_not_there_is_named_before_any_rank_starts(tmp_path: Path) -> None:
    code, out, err = profile_command(tmp_path / "machine.json", "--device", "cuda")
    assert (code, out) == (2, "")
    assert err == "rankscope: device='cuda' needs a GPU that torch can use, but there is none\n"
    assert not list(tmp_path.iterdir())


def on_host(name: str, *args: Any) -> Any:
    """What a rank does, with the host's memory in the place of a GPU's."""
    from rankscope.box.measuring import rank as measure_rank

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
    hosts = Mock(num_hosts=2)
    with pytest.raises(ValueError, match="network needs backend='gloo' and device='cpu', and does not work under"):
        measure(tmp_path / "other.json", num_ranks=2, device="cuda", network=hosts)
    hosts.launch.assert_not_called()
    monkeypatch.undo()
    code, _, err = profile_command(path, *words, "--algorithms", "native")
    assert code == 2
    assert "device is 'cuda' there and None here" in err


@pytest.mark.parametrize(
    ("backend", "rank", "local_rank", "gpu", "free_gib"),
    [("gloo", 3, None, 1, 4), ("gloo", 2, None, 0, 4), ("gloo", 6, "1", 1, 4), ("nccl", 5, "1", 0, 6)],
)
def test_ranks_share_gpus_in_turn_where_the_backend_lets_them(
    backend: str, rank: int, local_rank: str | None, gpu: int, free_gib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = [0]
    machine: dict[str, Any] = {  # with two GPUs
        "device_count": lambda: 2,
        "set_device": current.append,
        "current_device": lambda: current[-1],
        "mem_get_info": lambda: (12 * 2**30, 80 * 2**30),
    }
    for name, answer in machine.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: backend)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    monkeypatch.setattr(measure_rank, "free_bytes", lambda: 16 * 2**30)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert measure_rank._select_device("cuda") == f"cuda:{gpu}"
    assert measure_rank._free_bytes("cuda", 4) == free_gib * 2**30
    assert (measure_rank._select_device("cpu"), measure_rank._free_bytes("cpu", 4)) == ("cpu", 4 * 2**30)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_gloo_on_a_real_gpu(tmp_path: Path) -> None:
    every = ("allreduce", "allgather", "reduce_scatter", "broadcast", "all_to_all")
    protocol = attrs.evolve(MANY, sizes=[4096, 2**20], transfers=False, collectives=every)
    profile = measure(tmp_path / "a.json", protocol, num_ranks=2, device="cuda")
    for what in every:
        assert {point.num_bytes for point in profile.select(what, algorithm="native")} == {4096, 2**20}
        assert profile.select(what, algorithm="ring") or what == "all_to_all"


# ---- what fails


def wrong_on_rank_1(name: str, *args: Any) -> Any:
    """What a rank does, with an executor that gives rank 1 a wrong sum."""
    from rankscope.box.measuring import rank as measure_rank

    right = measure_rank.executor

    def wrong(schedule: Any, tensor: Any, group: Any) -> Any:
        run = right(schedule, tensor, group)

        def spoilt(tensor: Any) -> Any:
            found = run(tensor)
            found[5] += group.rank()
            return found

        return spoilt

    measure_rank.executor = wrong
    return getattr(measure_rank, name)(*args)


def test_a_wrong_result_ends_the_run_and_what_was_right_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collectives_last(missing: list[Any], *_: object) -> list[Any]:
        return [key for key in missing if key[0] != "allreduce"] or missing

    monkeypatch.setattr(measure_run, "_in_rank", wrong_on_rank_1)
    monkeypatch.setattr(measure_run, "next_launch", collectives_last)
    right = r"rank 1 failed: RuntimeError: allreduce by ring of 1 KiB gave a wrong result: element 5 is 91, not 90"
    with pytest.raises(RankError, match=right):
        measure(tmp_path / "a.json", FEW, num_ranks=2)
    kept = {point.what for point in Profile.load(tmp_path / "a.json").points}
    assert kept == {"ping_pong", "together", "add", "copy"}


def test_what_another_run_has_written_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_run, "next_launch", lambda missing, *_: missing[:4])
    path, theirs = tmp_path / "a.json", Point("add", 8, (1.0,), (True,))

    def another(progress: measure_run.Progress) -> None:
        if progress.num_done == 4:
            Profile.load(path).add(theirs).save(path)

    with pytest.raises(ValueError, match=r"another run has written .*a.json in the meantime, so it is left unchanged"):
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
            with pytest.raises(
                ValueError, match=r"another run is writing .*b.json; wait until it ends, or use another file"
            ):
                measure(link, FEW, num_ranks=2)
            assert not path.exists()
        finally:
            other.kill()
    assert measure(link, FEW, num_ranks=2) == Profile.load(path)


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_no_file_takes_the_place_of_a_folder_or_a_device(fresh: list[str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path, pipe):
        code, _, err = profile_command(place, *SMALL, *fresh)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert str(place) in err
        assert "not a file" in err
    assert pipe.is_fifo()


def kill_the_server(name: str, *args: Any) -> Any:
    if name == "measure_keys":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(NOT_HANGING_S)
    return getattr(measure_rank, name)(*args)


@pytest.mark.oracle
def test_a_server_that_is_killed_is_one_line_and_another_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    monkeypatch.setattr(measure_run, "_in_rank", kill_the_server)
    code, out, err = profile_command(path, *SMALL)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"(0 of .*\n)?rankscope: the server that forks the workers \(pid \d+\) was killed by SIGKILL\n", err
    )
    monkeypatch.undo()
    assert profile_command(path, *SMALL)[0] == 0


def hang(name: str, *args: Any) -> Any:
    from rankscope.box.measuring import rank as measure_rank

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
# one that hits Python's own socketpair leaves two sockets for the garbage collector to close
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_interrupts_at_random_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, fifteen times; a run that was not hit in time begins anew, so that all instants have their turn."""
    monkeypatch.setattr("rankscope.box.measuring.plan.LAUNCH_S", 0.0)
    chance, path = random.Random(5), tmp_path / "machine.json"
    known: dict[Any, Point] = {}
    for _ in range(15):
        done = [0]
        timer = threading.Timer(chance.uniform(0.05, 1.5), os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            try:
                measure(path, MANY, num_ranks=2, report=lambda progress, done=done: done.append(progress.num_done))
            finally:
                timer.cancel()
                timer.join()
                time.sleep(0.01)
        except KeyboardInterrupt:
            intact(path, done[-1], known)
        else:
            finish(path, known)
            path.unlink()
            known.clear()
        assert not [one for one in tmp_path.iterdir() if one != path]
    finish(path, known)


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


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    long = ["--iterations", "10000", "--budget", "600"]  # so that the first points are not there yet
    words = [sys.executable, "-m", "rankscope", "profile", "-o", "machine.json", *SMALL[:-2], *long]
    process = subprocess.Popen(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=NOT_HANGING_S)
    assert process.returncode == 130
    assert first == "0 of 16 points: ping_pong (intra), 256 B\n"
    assert (
        said
        == "rankscope: interrupted; 0 of 16 points are in machine.json, and the same command continues from there\n"
    )
    assert Profile.load(tmp_path / "machine.json").points == ()


@pytest.mark.parametrize(
    ("words", "sign", "said"),
    [
        (["profile", *SMALL[:-2], "--iterations", "10000", "--budget", "600"], b" points", b"continues from there"),
        (["doctor"], b"\x1b[?25l", b"rankscope: interrupted"),
    ],
)
@pytest.mark.oracle
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_hidden_cursor(
    sent: signal.Signals, words: list[str], sign: bytes, said: bytes, tmp_path: Path
) -> None:
    terminal, end = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib"), "TERM": "xterm"}
    command = [sys.executable, "-m", "rankscope", *words]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=end, preexec_fn=hears_hangups
    )
    os.close(end)
    shown = b""
    while sign not in shown:
        shown += os.read(terminal, 4096)
    process.send_signal(sent)
    with suppress(OSError):  # the terminal is gone with its last process
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    assert process.wait(NOT_HANGING_S) == 128 + sent
    assert said in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


@pytest.mark.oracle
def test_a_terminal_that_is_closed_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and nothing can be written to the terminal any more."""
    errors = tmp_path / "errors"
    driver = (
        "import os, sys\n"
        "from rankscope.cli import app\n"
        "sys.excepthook = lambda *error: open(sys.argv[1], 'w').write(repr(error))\n"
        "from rankscope.cli import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    words = ["profile", *SMALL[:-2], "--iterations", "10000", "--budget", "600", "-o", str(tmp_path / "machine.json")]
    command = [sys.executable, "-c", driver, str(errors), *words]
    process, terminal = pty.fork()
    if process == 0:
        os.environ["PYTHONPATH"] = str(ROOT / "lib")
        hears_hangups()
        os.execv(sys.executable, command)
    shown = b""
    while b" points" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert not errors.exists(), errors.read_text()
    assert Profile.load(tmp_path / "machine.json").points == ()


@pytest.mark.oracle
def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As SIGHUP is under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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
    assert "Verdict" in said[0][0]
    assert said[1][0] == ""
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    profile = Profile.load(tmp_path / "0.json")
    assert (profile.num_ranks, profile.num_nodes, len(profile.points)) == (2, 1, 16)
    assert re.fullmatch(r"rankscope profile --output 0.json .*", profile.provenance["command"])
    assert json.loads((tmp_path / "0.json").read_text())["provenance"]["ranks_per_node"] == [2]
