"""What a rank does: it joins the group, calls the function, writes what became of it, and waits to be killed.

It stays until all have returned, because a peer that left early would break the connections of those that still read
from it. It does not exit: a DistributedDataParallel that outlives its group hangs there now and then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import pickle
import re
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ..common.words import error_words
from .host import num_cores
from .stacks import STACK

_LATER_S = 10.0  # by which the group's timeout is longer than the launch's, whose error says more
# In errors about a connection that another rank has closed:
_LOST_PEER = re.compile("connection (was |is )?(closed|reset|refused|lost|aborted)|broken pipe|by peer", re.IGNORECASE)


class Request(NamedTuple):
    """A launch: the call, how it is run, and the surroundings that ranks share with the caller."""

    call: bytes  # the function and its arguments, pickled
    num_ranks: int
    backend: str
    timeout_s: float
    environment: dict[str, str]
    folder: str  # the working directory
    path: list[str]
    argv: list[str]
    sources: dict[str, Any]  # of notebook cells, for `linecache`


# Kinds of failures. The lowest is told, because others may follow from it.
ENDED = 0  # the process has ended
RAISED = 1
LOST_PEER = 2  # it raised what looks like the consequence of another rank's failure


class Failure(NamedTuple):
    """Why a rank has no result."""

    kind: int
    text: str


def be_rank(rank: int, folder: Path) -> None:
    """Be this rank of the launch in that folder. Returns when the rank is killed, that is never."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the server and the supervisor have set these
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = _redirected(1, folder / f"{rank}.stdout")
    sys.stderr = _redirected(2, folder / f"{rank}.stderr")
    faulthandler.enable(sys.stderr)  # a crash of C code prints where it happened
    faulthandler.register(STACK, open(folder / f"{rank}.stack", "w"), all_threads=False)  # noqa: SIM115
    try:
        result = _called(rank, folder)
        _finish(folder / f"{rank}.outcome", result)
    except BaseException as error:
        # Within `except`, the error's frames stay, and with them connections: closing them would fail other ranks.
        _finish(folder / f"{rank}.outcome", pickle.dumps(_failure(error, rank)))


def write(path: Path, content: bytes) -> None:
    """Write a file that is complete once it is there."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)


def _redirected(descriptor: int, path: Path) -> Any:
    """Let a descriptor write to the end of a file, and return a stream to it that writes line by line."""
    with open(path, "ab") as file:
        os.dup2(file.fileno(), descriptor)
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _finish(path: Path, outcome: bytes) -> None:
    """Write the outcome, after all that was printed, and wait to be killed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the function may have closed or replaced it
            stream.flush()
    write(path, outcome)
    while True:
        signal.pause()


def _called(rank: int, folder: Path) -> bytes:
    """Take on the caller's surroundings, join the group, call the function, and return its result, pickled."""
    import cloudpickle
    import numpy as np
    import torch

    request: Request = pickle.loads((folder / "request").read_bytes())
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    sys.path[:] = request.path
    sys.argv[:] = request.argv
    linecache.cache.update(request.sources)
    np.random.seed()  # or all ranks would draw the same numbers; Python's own generator does so after a fork
    torch.set_num_threads(max(1, num_cores() // request.num_ranks))
    fn, args = pickle.loads(request.call)
    _join(rank, folder, request)
    result = fn(*args)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()  # a kernel that fails later would otherwise count as returned
    return cloudpickle.dumps(result)  # type: ignore[no-any-return]


def _join(rank: int, folder: Path, request: Request) -> None:
    """Make the default process group; over loopback, unless the environment names another interface."""
    import torch
    import torch.distributed as dist

    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    if request.backend == "nccl":
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(folder / "store"), request.num_ranks)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=request.timeout_s + _LATER_S)
    dist.init_process_group(request.backend, store=store, rank=rank, world_size=request.num_ranks, timeout=timeout)


def _failure(error: BaseException, rank: int) -> Failure:
    # Without the first frames, which are those of `be_rank` and `_called` for every function.
    own_traceback = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    lines = traceback.format_exception(type(error), error, own_traceback)
    words = error_words(error)
    has_lost_peer = isinstance(error, EOFError | ConnectionError) or _LOST_PEER.search(words)
    text = f"rank {rank} failed: {words}\n\n{''.join(lines).rstrip()}"
    return Failure(LOST_PEER if has_lost_peer else RAISED, text)
