"""What a worker of `launch` does: it joins the group, calls the function, reports what became of it, and waits.

A rank that has its result stays until all have theirs: a peer that left early would break the connections of those
that still read from it. Then it is killed. A regular exit would gain nothing, and hangs now and then if a
DistributedDataParallel outlives its group.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from . import pickling
from .host import num_cores
from .worker import WorkerLine, flush

_LATER_S = 10.0  # by which the group's timeout is longer than the launch's, whose error says more
# In errors about a connection that another rank has closed:
_LOST_PEER = re.compile("connection (was |is )?(closed|reset|refused|lost|aborted)|broken pipe|by peer", re.IGNORECASE)


class StoredResult(NamedTuple):
    """The result is in a file of the folder."""


class JoinProblem(NamedTuple):
    """The rank cannot be what was asked for."""

    reason: str


class Failure(NamedTuple):
    """Why a rank has no result: in one line, with the traceback, and the error itself, pickled, if it can be."""

    line: str
    text: str
    error: bytes | None = None
    is_lost_peer: bool = False  # the error looks like the consequence of another rank's failure


@dataclass(frozen=True)
class Rank:
    """The work of all ranks."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    num_ranks: int
    backend: str
    timeout_s: float
    folder: Path  # for the file through which the ranks find each other, and for results
    before: Callable[[int], object] | None  # is called with the number of the rank before anything is connected

    def __call__(self, values: WorkerLine, rank: int) -> None:
        """Run the function as this rank, and send how it ended; after an error, wait to be killed.

        A rank that failed keeps its connections open. If it closed them, its peers would fail on that, too.
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the server, from which it was forked, ignores it
        try:
            outcome = self._run(rank)
            flush()  # before it is sent, because the launch may kill the rank as soon as it has all outcomes
            values.send(outcome)
        except BaseException as error:
            flush()
            values.send(_failure(error))
            # Within `except`, the error's frames stay, and with them what the function has made. A store or a DDP that
            # is freed would close connections. A rank that has succeeded returns, and then its worker waits.
            while True:
                signal.pause()

    def _run(self, rank: int) -> StoredResult | JoinProblem | Failure:
        """Join the group, call the function, and store its result in a file of the folder.

        Return how that went: a rank that cannot be what was asked for is a JoinProblem, and a result that cannot be
        pickled is a Failure. Other errors, such as those of the function, are raised.
        """
        if self.before is not None:
            self.before(rank)
        _talk_over_loopback()  # after `before`, which may take the rank to other interfaces
        reason = self._join(rank)
        if reason:
            return JoinProblem(reason)
        result = self.fn(*self.args)
        _wait_for_gpu()
        try:
            pickling.write(self.folder / f"{rank}.result", result)
        except Exception as error:
            problem = f"what fn returned cannot be sent back: {type(error).__name__}: {error}"
            return Failure(problem, problem)
        return StoredResult()

    def _join(self, rank: int) -> str:
        """Join the group, with NCCL on the GPU whose number is the rank. Return "", or why that is impossible."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(max(1, num_cores() // self.num_ranks))
        if self.backend == "nccl":
            if not dist.is_nccl_available():
                return f"backend='nccl' needs a torch that was built with NCCL, and {torch.__version__} was not"
            gpus = torch.cuda.device_count()
            if not gpus:
                return "backend='nccl' needs a GPU for each rank, and there is none"
            if self.num_ranks > gpus:
                return f"num_ranks must be at most {gpus} with backend='nccl', a GPU each, got {self.num_ranks}"
            torch.cuda.set_device(rank)
        store = dist.FileStore(str(self.folder / "store"), self.num_ranks)  # type: ignore[attr-defined]
        timeout = timedelta(seconds=self.timeout_s + _LATER_S)
        dist.init_process_group(self.backend, store=store, rank=rank, world_size=self.num_ranks, timeout=timeout)
        return ""


def _talk_over_loopback() -> None:
    """Let ranks communicate over loopback, unless the environment names another interface."""
    interfaces = [name for _, name in socket.if_nameindex()]
    for name in ("lo", "lo0"):  # on Linux and on macOS
        if name in interfaces:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _wait_for_gpu() -> None:
    """Wait for the work that the function has left to the GPU, and raise its error if it fails.

    Without that, a rank would count as returned although its last kernels failed, or had not run when it was killed.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _failure(error: BaseException) -> Failure:
    """Return the message about an error that the function has raised."""
    own_traceback = error.__traceback__
    # The first frames are those of this module. They are the same for every function, so they are left out.
    while own_traceback and own_traceback.tb_next and own_traceback.tb_frame.f_code.co_filename == __file__:
        own_traceback = own_traceback.tb_next
    text = "".join(traceback.format_exception(type(error), error, own_traceback)).rstrip()
    pickled = None
    with contextlib.suppress(Exception):
        pickled = pickling.to_bytes(error)
    is_lost_peer = isinstance(error, EOFError | ConnectionError) or bool(_LOST_PEER.search(str(error)))
    return Failure(f"{type(error).__name__}: {error}", text, pickled, is_lost_peer)
