"""What tests of processes share: nothing may hang, or leave processes, threads, open files or memory behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

NOT_HANGING_S = 900.0  # what nothing takes, on the busiest machine, but what has come to a halt


def soon(true: Callable[[], object]) -> bool:
    """Whether it becomes true, in whatever time a busy machine takes."""
    deadline = time.monotonic() + NOT_HANGING_S
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False


def children(pid: int) -> list[int]:
    """The processes that one has started and that it has not waited for."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
        files = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for file in files for child in file.read_text().split()]
    return []


def server_pid() -> int:
    """The server of ranks that this process has, 0 for none."""
    for pid in children(os.getpid()):
        with suppress(FileNotFoundError):
            if b"import serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


def gone(pids: list[int]) -> bool:
    return soon(lambda: not any(map(alive, pids)))


def open_files() -> set[int]:
    """The open descriptors, except for those of multiprocessing's own helpers, which stay."""
    helpers = {resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}
    folder = Path("/proc/self/fd")
    return {int(path.name) for path in folder.iterdir() if path.exists() or path.is_symlink()} - helpers


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A test that takes half an hour has hung."""

    def late(*_: object) -> None:
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(round(2 * NOT_HANGING_S))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """After the test there are the processes, the threads, the open files and the shared memory of before."""
    new_folders: list[str] = []
    own_pid = os.getpid()
    mkdtemp = tempfile.mkdtemp
    processes = {child.pid for child in multiprocessing.active_children()}
    threads = set(threading.enumerate())
    files = open_files()

    def noted_mkdtemp(*arguments: object, **options: object) -> str:
        folder = str(mkdtemp(*arguments, **options))  # type: ignore[call-overload]
        new_folders.append(folder)
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", noted_mkdtemp)
        yield
    assert os.getpid() == own_pid
    assert soon(lambda: {child.pid for child in multiprocessing.active_children()} <= processes), "processes are left"
    assert soon(lambda: not children(server_pid())), "workers are left"
    if len(open_files()) > len(files):
        gc.collect()
    assert soon(lambda: set(threading.enumerate()) <= threads), "threads are left"
    assert soon(lambda: len(open_files()) <= len(files)), "open files are left"
    in_memory = {folder for folder in new_folders if folder.startswith("/dev/shm/")}
    assert soon(lambda: not any(map(os.path.exists, in_memory))), "shared memory is left"
