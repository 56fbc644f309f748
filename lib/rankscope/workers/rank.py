"""What a forked rank does: it takes on the caller's surroundings, joins the group, works, and waits to be ended.

A rank that has its result stays until all have theirs: a peer that left early would break the connections of those
that still read from it. Then it is killed. A regular exit would gain nothing, and hangs now and then where a
DistributedDataParallel outlives its group.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import linecache
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from .events import Event, tell
from .host import num_cores
from .namespaces import enter

DUMP = signal.SIGUSR1  # lets a rank write where it stands
_PR_SET_PDEATHSIG = 1
_LATER_S = 10.0  # the group waits longer than the caller, whose error says more


@dataclass(frozen=True)
class Setting:
    """What the ranks take from the caller, but for the function."""

    num_ranks: int
    backend: str
    timeout_s: float
    environment: dict[str, str]
    folder: str  # the working directory
    path: list[str]
    argv: list[str]
    sources: dict[str, Any]  # of cells: no file has them
    networks: tuple[tuple[str, str], ...] = ()  # a namespace and its interface for each rank that is in another one


@dataclass(frozen=True)
class Failure:
    """Why a rank has no result: in a line, at length, and the error itself, pickled, where it can be."""

    line: str
    text: str
    error: bytes | None = None


class Refused(Exception):
    """The rank cannot be what was asked for."""


def be_rank(line: socket.socket, server_pid: int, folder: Path, rank: int) -> None:
    """Be a rank until killed; what comes out is in files of the folder."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is for the caller; and what a rank starts ends with it
    _die_with(server_pid)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(folder, rank)
    from . import parcels

    event = Event.RETURNED
    try:
        result = _work(folder, rank)
        try:
            parcels.write(folder / f"{rank}.result", result)
        except Exception as error:
            what = f"what fn returned cannot be sent back: {type(error).__name__}: {error}"
            event = _fail(folder, rank, Failure(what, what))
    except Refused as error:
        event = _fail(folder, rank, Failure(str(error), str(error)), Event.REFUSED)
    except BaseException as error:
        event = _fail(folder, rank, _failure(error))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    tell(line, event, rank)
    while True:
        signal.pause()


def _work(folder: Path, rank: int) -> Any:
    with open(folder / "setting", "rb") as file:
        setting: Setting = pickle.load(file)
    if setting.networks:
        _enter_network(setting, rank)
    _settle(setting)
    import numpy as np
    import torch
    import torch.distributed as dist

    np.random.seed()  # as in any fresh process; Python's own generator does so by itself
    torch.set_num_threads(max(1, num_cores() // setting.num_ranks))
    _take_device(setting, rank)
    fn, args = _load(folder)
    store = dist.FileStore(str(folder / "store"), setting.num_ranks)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=setting.timeout_s + _LATER_S)
    dist.init_process_group(setting.backend, store=store, rank=rank, world_size=setting.num_ranks, timeout=timeout)
    result = fn(*args)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return result


def _load(folder: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from . import parcels

    try:
        work: tuple[Callable[..., Any], tuple[Any, ...]] = parcels.read(folder / "work")
    except Exception as error:
        raise Refused(f"fn and args cannot be loaded in the ranks: {type(error).__name__}: {error}") from error
    return work


def _take_device(setting: Setting, rank: int) -> None:
    """Take the GPU of that number for NCCL. Raises Refused where there are not enough, or no NCCL."""
    import torch
    import torch.distributed as dist

    if setting.backend != "nccl":
        return
    if not dist.is_nccl_available():
        raise Refused(f"backend='nccl' needs a torch that was built with NCCL, and {torch.__version__} was not")
    gpus = torch.cuda.device_count()
    if not gpus:
        raise Refused("backend='nccl' needs a GPU for each rank, and there is none")
    if setting.num_ranks > gpus:
        raise Refused(f"num_ranks must be at most {gpus} with backend='nccl', a GPU each, got {setting.num_ranks}")
    torch.cuda.set_device(rank)


def _settle(setting: Setting) -> None:
    """Take on the caller's surroundings; ranks talk to each other over loopback unless its environment says how."""
    os.environ.clear()
    os.environ.update(setting.environment)
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for interface in loopback:
            os.environ.setdefault(name, interface)
    with contextlib.suppress(OSError):
        os.chdir(setting.folder)
    sys.path[:], sys.argv[:] = setting.path, setting.argv
    linecache.cache.update(setting.sources)


def _enter_network(setting: Setting, rank: int) -> None:
    """Move into a network before anything is connected there."""
    path, interface = setting.networks[rank]
    enter(path)
    setting.environment["GLOO_SOCKET_IFNAME"] = interface


def _redirect(folder: Path, rank: int) -> None:
    """Let all that is printed go to files, and so where the rank stands when it is asked."""
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    stack = os.open(folder / f"{rank}.stack", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.enable(2)
    faulthandler.register(DUMP, stack, all_threads=False)


def _die_with(server_pid: int) -> None:
    """Let the rank be killed when the server ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(server_pid,), name="server", daemon=True).start()
    if os.getppid() != server_pid:
        os._exit(1)


def _watch(server_pid: int) -> None:
    while os.getppid() == server_pid:
        time.sleep(0.5)
    os._exit(1)


def _failure(error: BaseException) -> Failure:
    begin = error.__traceback__  # from `_work` on: what comes before is the same for every function
    while begin and begin.tb_next and begin.tb_frame.f_code.co_filename == __file__:
        begin = begin.tb_next
    text = "".join(traceback.format_exception(type(error), error, begin)).rstrip()
    try:
        from . import parcels

        pickled = parcels.to_bytes(error)
    except Exception:
        pickled = None
    return Failure(f"{type(error).__name__}: {error}", text, pickled)


def _fail(folder: Path, rank: int, failure: Failure, event: Event = Event.RAISED) -> Event:
    with open(folder / f"{rank}.failure", "wb") as file:
        pickle.dump(failure, file)
    return event
