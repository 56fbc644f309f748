"""Odd surroundings: foreign modules, deleted folders, closed streams, owners that were killed, an early Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from rankscope.ranks import fork_server, launch
from rankscope.ranks import pool as pool_module
from rankscope.ranks.errors import WorkerError
from rankscope.ranks.host import _stat, is_stopped
from rankscope.ranks.pool import WorkerPool
from rankscope.ranks.worker import answer

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


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
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


def test_the_server_ends_with_an_owner_that_is_killed_though_a_fork_of_c_code_holds_its_socket(tmp_path: Path) -> None:
    text = """
import ctypes
from rankscope.ranks.fork_server import fork_server
server = fork_server()
libc = ctypes.PyDLL(None)
pid = libc.fork()  # no function of os.register_at_fork is called
if pid == 0:
    while True:
        libc.pause()
print(pid, server.pid, flush=True)
input()
"""
    command = script(tmp_path, text)
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        holder, server = map(int, owner.stdout.readline().split())
        try:
            assert alive(server)
            owner.kill()
            assert gone([server])
            assert alive(holder)
        finally:
            os.kill(holder, signal.SIGKILL)


def test_the_server_leaves_when_it_is_closed_though_a_fork_of_c_code_holds_its_socket(tmp_path: Path) -> None:
    text = """
import ctypes, os, signal
from rankscope.ranks import fork_server
server = fork_server.fork_server()
libc = ctypes.PyDLL(None)
pid = libc.fork()
if pid == 0:
    while True:
        libc.pause()
fork_server._LEAVE_S = 20.0  # afterwards it is killed
fork_server._close()
print(server._process.returncode)
os.kill(pid, signal.SIGKILL)
"""
    assert finish(script(tmp_path, text)) == "0\n"


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


def test_a_server_that_imports_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "endless_import.py").write_text("import time\nwhile True:\n    time.sleep(600)")
    text = """
from rankscope.ranks.pool import WorkerPool
pool = WorkerPool("endless_import")
print(pool.folder.parent, flush=True)
pool.start(pool.pack(print), ["worker"])
"""
    command = script(tmp_path, text)
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        memory = Path(owner.stdout.readline().strip())
        (server,) = children(owner.pid)
        owner.kill()
    assert gone([server])
    assert soon(lambda: not memory.exists())


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


@pytest.mark.parametrize("error", ["OSError('no such library')", "EOFError('no such library')"])
def test_an_import_that_fails_in_the_server_is_shown_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    (tmp_path / "failing_import.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    fork_server._close()  # the next one has this folder on its path
    with WorkerPool("failing_import") as pool:
        report = r"(?s)server that forks .* ended with exit code 1:\nTraceback.*failing_import.*Error: no such library"
        with pytest.raises(WorkerError, match=report):
            pool.start(pool.pack(print), ["worker"])
    fork_server._close()


def test_a_stopped_worker_does_not_hold_up_who_sends_it_much() -> None:
    with WorkerPool() as pool:
        (worker,) = pool.start(pool.pack(partial(answer, len)), ["worker"], timeout_s=1.0)
        worker.ready()
        os.kill(worker.pid, signal.SIGSTOP)
        assert soon(lambda: is_stopped(worker.pid))
        with pytest.raises(WorkerError, match=r"has not answered after 1 s \(timeout_s\): it is stopped \(SIGSTOP\)"):
            worker.ask(b"more than a socket takes" * 1_000_000)


def test_who_waits_for_a_worker_that_is_terminated_gets_an_error_though_the_server_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[Exception] = []

    def ask() -> None:
        try:
            worker.ask(600)
        except WorkerError as error:
            errors.append(error)

    monkeypatch.setattr(pool_module, "_STOP_S", 0.2)
    with WorkerPool() as pool:
        (worker,) = pool.start(pool.pack(partial(answer, time.sleep)), ["worker"])
        worker.ready()
        thread = threading.Thread(target=ask)
        thread.start()
        os.kill(server_pid(), signal.SIGSTOP)
        worker.terminate()
        thread.join(NOT_HANGING_S)
        assert errors
    assert gone([worker.pid])


def _inheritable_descriptors(_: object) -> list[int]:
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    return [descriptor for descriptor in descriptors if _is_inheritable(descriptor)]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the one that listed them
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_worker_starts_inherits_only_the_standard_streams() -> None:
    with WorkerPool() as pool:
        (worker,) = pool.start(pool.pack(partial(answer, _inheritable_descriptors)), ["worker"])
        worker.ready()
        assert sorted(worker.ask(None)[0]) == [0, 1, 2]


def test_a_worker_whose_line_was_closed_is_waited_for_and_the_server_goes_on() -> None:
    with WorkerPool() as pool:
        work = pool.pack(partial(answer, str))
        (abandoned,) = pool.start(work, ["abandoned"])
        abandoned.ready()
        pool.workers.clear()
        abandoned.close()
        assert soon(lambda: abandoned.pid not in children(server_pid()))
        (worker,) = pool.start(work, ["worker"])
        worker.ready()
        assert worker.ask(3)[0] == "3"


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process, and reads /proc")
def test_a_server_that_is_out_of_descriptors_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(fork_server, "_REPORT_S", 0.2)
    fork_server._close()
    with WorkerPool() as pool:
        work = pool.pack(partial(answer, str))
        (worker,) = pool.start(work, ["first"])
        worker.ready()
        server = server_pid()
        assert soon(lambda: _stat(server)[0] == "S")  # it has closed what it passed on, and waits
        before = resource.prlimit(server, resource.RLIMIT_NOFILE)
        used = {int(name) for name in os.listdir(f"/proc/{server}/fd")}
        unused = [number for number in range(max(used) + 4) if number not in used]
        for num_left, problem in ((2, "Too many open files"), (0, "does not answer")):
            resource.prlimit(server, resource.RLIMIT_NOFILE, (unused[num_left], before[1]))
            with pytest.raises(WorkerError, match=problem):
                pool.start(work, ["second"])
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)
        (worker,) = pool.start(work, ["third"])
        worker.ready()
        assert worker.ask(3)[0] == "3"
        assert server_pid() == server
