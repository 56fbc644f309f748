"""The server forks a supervisor for each launch, and the supervisor forks the ranks, watches them and ends them.

No thread runs in them, so forking is safe. Each ends when its parent does: the server looks whether its owner is there,
the supervisor whether the server is, and the system kills ranks. A rank leads a process group, so what it has started
ends with it.

All that is said of a rank is in files of the launch's folder: ``2.outcome``, ``2.stdout``, ``2.stderr``, ``2.stack``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import shutil
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from .host import end_with, how_it_ended, kill_group
from .rank import ENDED, Failure, be_rank, write
from .stacks import STACK

# Messages of the owner to a supervisor, and the supervisor's last one.
END = "end"
STACKS = "stacks"
DONE = "done"
_OWNER_S = 0.5  # between two looks whether the owner is there
_LOOK_S = 0.01  # between two looks whether ranks have ended


def serve(owner_pid: str) -> None:
    """Fork a supervisor for each connection that the owner sends to the socket on stdin, until the owner is gone."""

    def end_if_orphaned(*_: object) -> None:
        if os.getppid() != int(owner_pid):
            sys.exit(1)

    signal.signal(signal.SIGALRM, end_if_orphaned)  # also in the middle of an import
    signal.setitimer(signal.ITIMER_REAL, _OWNER_S, _OWNER_S)  # what is forked does not inherit the timer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    signal.signal(STACK, signal.SIG_IGN)  # a rank that has no handler yet must survive it
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:  # the owner has closed its end
            return
        for descriptor in descriptors:  # none if this process can open no more; the owner then finds it closed
            with Connection(descriptor) as owner:
                _start_supervisor(owner)


def _start_supervisor(owner: Connection) -> None:
    with contextlib.suppress(EOFError, ConnectionError):  # the owner has given up, or is gone
        folder, num_ranks, modules = owner.recv()
        try:
            _import(modules)
            if owner.poll():
                return
            server_pid = os.getpid()
            pid = os.fork()
        except Exception:
            owner.send(traceback.format_exc())
            return
        if pid == 0:
            _supervise(owner, folder, num_ranks, server_pid)
        _lead_group(pid)
        owner.send([pid])


def _import(names: list[str]) -> None:
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if missing:
        gc.collect()
        gc.freeze()  # the collector writes to each object that it visits, which would copy pages that ranks share


def _supervise(owner: Connection, folder: Path, num_ranks: int, server_pid: int) -> NoReturn:
    """Fork the ranks, and note which end. When the owner says so or is gone, or the server ends, end all."""
    pids: dict[int, int] = {}  # of the ranks that run
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        for rank in range(num_ranks):
            pids[rank] = _fork_rank(rank, folder, owner)
        owner.send(list(pids.values()))
        while os.getppid() == server_pid:
            if owner.poll(_LOOK_S):
                if owner.recv() == END:  # if the owner has closed the connection, this raises EOFError
                    break
                for pid in pids.values():
                    os.kill(pid, STACK)
            for rank, pid in list(pids.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del pids[rank]
                    kill_group(pid)
                    _note_end(folder, rank, pid, os.waitstatus_to_exitcode(status))
    except OSError:
        with contextlib.suppress(OSError):
            owner.send(traceback.format_exc())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in pids.values():
            kill_group(pid)
        for pid in pids.values():
            os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            owner.send(DONE)
        os._exit(0)


def _fork_rank(rank: int, folder: Path, owner: Connection) -> int:
    supervisor_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with(supervisor_pid)
            owner.close()
            be_rank(rank, folder)
        finally:
            os._exit(1)
    _lead_group(pid)
    return pid


def _lead_group(pid: int) -> None:
    """Let a child lead a process group, which can be killed as a whole."""
    with contextlib.suppress(OSError):  # it has ended already
        os.setpgid(pid, pid)


def _note_end(folder: Path, rank: int, pid: int, code: int) -> None:
    outcome = folder / f"{rank}.outcome"
    if not outcome.exists():
        failure = Failure(ENDED, f"rank {rank} (pid {pid}) {how_it_ended(code)} before it returned")
        write(outcome, pickle.dumps(failure))
