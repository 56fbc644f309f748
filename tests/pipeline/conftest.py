"""Nothing here may hang, or leave processes, threads, open files or memory behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest


def soon(true: Callable[[], object], within_s: float = 10.0) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shared_memory() -> set[str]:
    """Our folders in shared memory."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("rankscope-*")} if folder.is_dir() else set()


def open_files() -> set[int]:
    """The descriptors that are open, but for those of multiprocessing's own helpers, which stay."""
    helpers = {resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}
    folder = Path("/proc/self/fd")
    return {int(path.name) for path in folder.iterdir() if path.exists() or path.is_symlink()} - helpers


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A test that takes a minute has hung."""

    def late(*_: object) -> None:
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """After the test there are the processes, the threads, the open files and the shared memory of before."""
    memory, mine = shared_memory(), os.getpid()
    children = {child.pid for child in multiprocessing.active_children()}
    threads, files = set(threading.enumerate()), open_files()
    yield
    assert os.getpid() == mine
    assert soon(lambda: {child.pid for child in multiprocessing.active_children()} <= children), "processes are left"
    if len(open_files()) > len(files):
        gc.collect()
    assert soon(lambda: set(threading.enumerate()) <= threads), "threads are left"
    assert soon(lambda: len(open_files()) <= len(files)), "open files are left"
    assert soon(lambda: shared_memory() <= memory), "shared memory is left"
