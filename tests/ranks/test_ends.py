"""How launches end: Ctrl-C, killed and stopped processes, and what is never run or imported on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankscope.ranks import launch
from tests.processes import NOT_HANGING_S, gone, server_pid, soon

from . import functions, kills
from .test_launch import _nobody_is_left  # noqa: F401

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}"}


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "script.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def output_of(command: list[str], **options: object) -> str:
    options = {"env": ENVIRONMENT, **options}
    done = subprocess.run(command, capture_output=True, text=True, timeout=NOT_HANGING_S, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an open() that it interrupts
def test_ctrl_c_ends_all_ranks(tmp_path):
    launch(functions.rank, 2)
    for delay_s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3):
        for path in tmp_path.iterdir():
            path.unlink()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()
            launch(functions.wait_long, 2, (str(tmp_path),))
        assert gone(functions.noted(tmp_path))
    assert launch(functions.total, 2) == [1, 1]


def test_ctrl_c_is_heard_while_the_server_starts(tmp_path):
    text = """
import os, signal, threading, time
from rankscope.ranks import launch
try:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    launch(time.sleep, 2, (10_000,), timeout_s=10_000)
except KeyboardInterrupt:
    print("heard")
"""
    assert output_of(script(tmp_path, text)) == "heard\n"


def test_where_the_server_is_killed_the_ranks_end_and_another_starts(tmp_path):
    launch(functions.rank, 2)
    server = server_pid()

    def kill():
        if soon(lambda: len(functions.noted(tmp_path)) == 4):
            os.kill(server, signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(RuntimeError, match="server"):
        launch(functions.wait_long, 2, (str(tmp_path),))
    assert gone(functions.noted(tmp_path))
    assert launch(functions.total, 2) == [1, 1]


def test_a_stopped_server_is_an_error_and_another_starts():
    launch(functions.rank, 2)
    os.kill(server_pid(), signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="stopped"):
        launch(functions.rank, 2)
    assert launch(functions.total, 2) == [1, 1]


@pytest.mark.parametrize(("fn", "in_thread"), [("wait_long", True), ("stop_with_a_process", False)])
def test_nothing_survives_an_owner_that_is_killed(tmp_path, fn, in_thread):
    text = f"""
import sys, threading
from rankscope.ranks import launch
from tests.ranks import functions
thread = threading.Thread(target=launch, args=(functions.{fn}, 3, (sys.argv[1],)))
thread.run() if {not in_thread} else thread.start()
"""
    notes, place = tmp_path / "notes", tmp_path / "place"
    notes.mkdir(), place.mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(place)}
    num_notes = 6 if fn == "wait_long" else 4  # the rank that stops has noted nothing
    with subprocess.Popen([*script(tmp_path, text), str(notes)], env=environment) as owner:
        assert soon(lambda: len(functions.noted(notes)) >= num_notes - (fn != "wait_long") * 2)
        owner.kill()
    assert gone(functions.noted(notes))
    assert soon(lambda: not list(place.glob("rankscope-*"))), "no folder is left"


@pytest.mark.oracle
def test_random_signals_to_owners_servers_supervisors_and_ranks():
    """A sample; `python -m tests.ranks.kills` sends 200."""
    rounds = kills.kills(15, seed=time.time_ns() % 1000)
    assert len(rounds) == 15


def test_processes_that_are_left_are_noticed():
    with pytest.raises(AssertionError, match="left after a test"):
        kills.seconds_until(lambda: False, "a test", 0.1)


# ---- what is not run, and not imported


def test_no_file_in_the_working_directory_passes_for_a_library(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "re", "struct", "socket", "selectors", "pickle", "random", "torch", "cloudpickle"):
        (here / f"{name}.py").write_text("open('executed', 'w').close()\nraise SystemExit('executed')")
    in_a_console = """
import cloudpickle, selectors, sys, torch
sys.path.insert(0, "")
from rankscope.ranks import launch
print(launch(int, 2))
"""
    assert output_of([sys.executable, "-P", "-c", in_a_console], cwd=here) == "[0, 0]\n"
    assert not (here / "executed").exists()


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    text = """
from rankscope.ranks import launch
open("runs", "a").write("x")
class Sum:
    def __init__(self, value): self.value = value
def work(x):
    return Sum(x + 1)
results = launch(work, 2, (5,))
print([each.value for each in results], all(isinstance(each, Sum) for each in results))
"""
    environment = {**ENVIRONMENT, "PYTHONSAFEPATH": "1"}
    assert output_of(script(tmp_path, text), cwd=tmp_path, env=environment) == "[6, 6] True\n"
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.oracle
def test_closed_standard_streams_do_not_matter(tmp_path):
    text = """
import sys
from rankscope.ranks import launch
from tests.ranks import functions
open(sys.argv[1], "w").write(str(launch(functions.total, 2)))
"""
    command = [*script(tmp_path, text), str(tmp_path / "result")]
    subprocess.run(["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command], env=ENVIRONMENT, timeout=NOT_HANGING_S)
    assert (tmp_path / "result").read_text() == "[1, 1]"


@pytest.mark.oracle
def test_a_fork_of_the_caller_has_its_own_server(tmp_path):
    text = """
import os, warnings
from rankscope.ranks import launch
warnings.simplefilter("ignore", DeprecationWarning)
print(launch(int, 2), flush=True)
pid = os.fork()
print(launch(int, 2), flush=True)
if pid:
    os.waitpid(pid, 0)
"""
    assert output_of(script(tmp_path, text)) == "[0, 0]\n" * 3
