"""Odd surroundings: foreign modules, deleted folders, closed streams, owners that were killed, an early Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from rankscope.ranks.pool import WorkerPool
from rankscope.ranks.worker import answer

from rankscope.ranks import fork_server, launch
from rankscope.ranks.errors import WorkerError
from rankscope.ranks.host import is_stopped

from ..processes import NOT_HANGING_S, alive, children, gone, server_pid, soon
from . import functions
from .test_launch import ENVIRONMENT, script

pytestmark = [pytest.mark.slow, pytest.mark.oracle]


def finish(command: list[str], **options: object) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=NOT_HANGING_S, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_no_file_in_the_working_directory_passes_for_a_library(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "re", "struct", "socket", "selectors", "pickle", "random", "csv"):
        (here / f"{name}.py").write_text("open('executed', 'w').close()\nraise SystemExit('executed')")
    text = """
import os, sys
from rankscope.pipeline import Pipeline, Stage, run
from rankscope.ranks import launch
from tests.ranks import functions
os.chdir(sys.argv[1])
sys.path.insert(0, "")
assert launch(functions.total, 2) == [1, 1]
run(Pipeline([Stage("double", fn=lambda value: 2 * value, processes=True)]), range(3))
"""
    finish([*script(tmp_path, text), str(here)])
    assert not (here / "executed").exists()
    where_it_is_asked_for = subprocess.run([sys.executable, "-c", "import json"], cwd=here, capture_output=True)
    assert where_it_is_asked_for.stderr.strip() == b"executed"


def test_a_deleted_working_directory_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RuntimeError, match="the working directory was deleted: change to another one"):
        launch(functions.rank, 1)


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_do_not_matter(tmp_path: Path, closed: str) -> None:
    text = """
import sys
from rankscope.ranks import launch
from tests.ranks import functions
open(sys.argv[1], "w").write(str(launch(functions.total, 2)))
"""
    command = [*script(tmp_path, text), str(tmp_path / "result")]
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], env=ENVIRONMENT, timeout=NOT_HANGING_S)
    assert (tmp_path / "result").read_text() == "[1, 1]"


def test_ctrl_c_is_heard_while_the_server_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_import.py").write_text(
        f"open({str(tmp_path / 'begun')!r}, 'w').close()\nimport time\ntime.sleep(600)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    launch(functions.rank, 1)
    server = server_pid()
    os.kill(server, signal.SIGKILL)  # the next one has this place on its path
    assert gone([server])

    def interrupt() -> None:
        if soon((tmp_path / "begun").exists):
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), WorkerPool("endless_import") as pool:
        pool.start(pool.pack(functions.wait_long), ["worker"])
    fork_server._close()  # as at the end of the process
    assert not server_pid()


def test_memory_goes_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    text = """
from rankscope.ranks.fork_server import fork_server
memory = fork_server().memory
(memory / "large").write_bytes(b"x" * 1000)
print(memory, flush=True)
input()
"""
    command = script(tmp_path, text)
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        memory = Path(owner.stdout.readline().strip())
        (server,) = children(owner.pid)
        assert (memory / "large").exists()
        assert alive(server)
        owner.kill()
    assert gone([server])
    assert soon(lambda: not memory.exists())


def test_a_stopped_rank_and_what_ranks_have_started_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    text = """
import sys
from rankscope.ranks import launch
from tests.ranks import functions
launch(functions.stop_with_a_process, 2, (sys.argv[1],))
"""
    notes = tmp_path / "notes"
    notes.mkdir()
    with subprocess.Popen([*script(tmp_path, text), str(notes)], env=ENVIRONMENT) as owner:
        assert soon(lambda: len(functions.noted(notes)) == 4)
        stopped = int((notes / "0").read_text())
        assert soon(lambda: is_stopped(stopped))
        (server,) = children(owner.pid)
        owner.kill()
    assert gone([server, *functions.noted(notes)])


def test_a_fork_that_fails_is_one_error_and_the_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_fork.py").write_text("""
import os
fork = os.fork
def fail_once():
    os.fork = fork
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fail_once
""")
    monkeypatch.syspath_prepend(tmp_path)
    fork_server._close()  # the next one has this folder on its path
    with WorkerPool("failing_fork") as pool:
        work = pool.pack(partial(answer, str))
        with pytest.raises(WorkerError, match="not all of worker could be started: BlockingIOError: .* unavailable"):
            pool.start(work, ["worker"])
        server = server_pid()
        (worker,) = pool.start(work, ["worker"])
        worker.ready()
        assert worker.ask(3)[0] == "3"
        assert server_pid() == server
    fork_server._close()


def test_a_stopped_worker_does_not_hold_up_who_sends_it_much() -> None:
    with WorkerPool() as pool:
        (worker,) = pool.start(pool.pack(partial(answer, len)), ["worker"], timeout_s=1.0)
        worker.ready()
        os.kill(worker.pid, signal.SIGSTOP)
        assert soon(lambda: is_stopped(worker.pid))
        with pytest.raises(WorkerError, match=r"has not answered after 1 s \(timeout_s\): it is stopped \(SIGSTOP\)"):
            worker.ask(b"more than a socket takes" * 1_000_000)
